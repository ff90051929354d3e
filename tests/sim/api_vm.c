/* Virtual memory: the checks of both vendors' calls. */
#include "calls.h"

/* Pinned device memory of a device that exists, with what the device has said it knows. */
static sim_status check_allocation(const sim_allocation *p)
{
    if (!sim_options.virtual_memory)
        return SIM_NOT_SUPPORTED;
    if (p == NULL || p->type != 1 || p->where.type != 1 || p->metadata != NULL ||
        (p->handle_types & ~1) != 0 || p->compression != 0 || p->usage != 0 || p->rdma > 1)
        return SIM_INVALID_VALUE;
    if (p->handle_types != 0 && !sim_options.share)
        return SIM_NOT_SUPPORTED;
    if (p->rdma == 1 && (sim_is_hip || sim_options.rdma == 0))
        return SIM_INVALID_VALUE; /* the device has not said that it can */
    return sim_known_device(p->where.id) ? SIM_OK : SIM_INVALID_DEVICE;
}

sim_status sim_call_vm_granularity(size_t *out, const sim_allocation *wanted, int which)
{
    sim_status status = check_allocation(wanted);
    if (status == SIM_OK && (out == NULL || which < 0 || which > 1))
        status = SIM_INVALID_VALUE;
    if (status == SIM_OK)
        *out = sim_granule();
    return status;
}

/* Addresses belong to all devices of a process; the simulator puts them to the current one's. The
 * wanted address is a hint. */
sim_status sim_call_vm_reserve(void **out, size_t bytes, size_t align, void *wanted, uint64_t flags)
{
    uintptr_t address = 0;
    if (!sim_options.virtual_memory)
        return SIM_NOT_SUPPORTED;
    if (out == NULL || flags != 0)
        return SIM_INVALID_VALUE;
    sim_status status = sim_vm_reserve(sim_here()->device, bytes, align, &address);
    if (status == SIM_OK)
        *out = (void *)address;
    return status;
}

sim_status sim_call_vm_unreserve(void *address, size_t bytes)
{
    return sim_vm_unreserve((uintptr_t)address, bytes);
}

/* A device that can map for remote access may still be in a machine that does not let it
 * (MEMOPT_SIM_RDMA=2). */
sim_status sim_call_vm_create(sim_physical **out, size_t bytes, const sim_allocation *wanted,
                              uint64_t flags)
{
    sim_status status = out == NULL || flags != 0 ? SIM_INVALID_VALUE : check_allocation(wanted);
    if (status == SIM_OK && wanted->rdma == 1 && sim_options.rdma == 2)
        status = SIM_NOT_SUPPORTED;
    if (status == SIM_OK)
        status = sim_vm_create(wanted->where.id, bytes, out);
    if (status == SIM_OK)
        (*out)->exportable = wanted->handle_types & 1;
    return status;
}

sim_status sim_call_vm_map(void *address, size_t bytes, size_t offset, sim_physical *handle,
                           uint64_t flags)
{
    return flags == 0 ? sim_vm_map((uintptr_t)address, bytes, offset, handle) : SIM_INVALID_VALUE;
}

/* Access: none, read, or read and write; the library has no use for read only. */
sim_status sim_call_vm_set_access(void *address, size_t bytes, const sim_access *access,
                                  size_t count)
{
    const sim_arena *arena = sim_arena_of((uintptr_t)address);
    uint32_t give = 0, take = 0;
    if (arena == NULL || access == NULL || count == 0)
        return SIM_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const sim_place *place = &access[i].where;
        if (place->type != 1 ||
            (access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3))
            return SIM_INVALID_VALUE;
        if (!sim_known_device(place->id) || (place->id != arena->index && !sim_options.peers))
            return sim_is_hip ? SIM_INVALID_VALUE : SIM_INVALID_DEVICE;
        *(access[i].flags == 3 ? &give : &take) |= UINT32_C(1) << place->id;
    }
    return sim_vm_set_access((uintptr_t)address, bytes, give, take);
}

sim_status sim_call_vm_unmap(void *address, size_t bytes)
{
    return sim_vm_unmap((uintptr_t)address, bytes);
}

sim_status sim_call_vm_release(sim_physical *handle)
{
    return sim_vm_release(handle);
}

/* --- sharing ------------------------------------------------------------------------------- */

sim_status sim_call_vm_export(void *out, sim_physical *handle, int type, uint64_t flags)
{
    if (out == NULL || type != 1 || flags != 0)
        return SIM_INVALID_VALUE;
    return sim_options.share ? sim_vm_export(handle, out) : SIM_NOT_SUPPORTED;
}

/* HIP before 7.1 takes the descriptor's address. */
sim_status sim_call_vm_import(sim_physical **out, void *shared, int type)
{
    int by_address = sim_is_hip && sim_options.driver_version < 70100000;
    if (out == NULL || type != 1 || (by_address && (uintptr_t)shared < SIM_PAGE) ||
        (!by_address && (uintptr_t)shared > INT32_MAX))
        return SIM_INVALID_VALUE;
    if (!sim_options.share)
        return SIM_NOT_SUPPORTED;
    return sim_vm_import(by_address ? *(int *)shared : (int)(uintptr_t)shared, out);
}

sim_status sim_call_device_uuid(void *out, int device)
{
    unsigned char *bytes = out;
    if (out == NULL)
        return SIM_INVALID_VALUE;
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    for (int i = 0; i < 16; i++)
        bytes[i] = (unsigned char)(0xA0 + i + 16 * sim_is_hip);
    bytes[15] = (unsigned char)(device + 1);
    return SIM_OK;
}
