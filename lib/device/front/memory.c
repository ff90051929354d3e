/* The front end's part for device memory: checks, accounting, fault points. */
#include "device/front/handle.h"

#include "base/address_space.h"
#include "base/checked.h"
#include "base/lock.h"

#include <inttypes.h>
#include <string.h>

/* Plain allocations are counted in units of the least rounding of all drivers. */
enum { ALLOCATION_UNIT = 512 };

static void count_used(memopt_device *device, uint64_t size, uint64_t *objects)
{
    mo_lock(&device->lock);
    device->account.used += size;
    device->account.used_peak = mo_max_u64(device->account.used_peak, device->account.used);
    (*objects)++;
    mo_unlock(&device->lock);
}

static void uncount_used(memopt_device *device, uint64_t size, uint64_t *objects)
{
    mo_lock(&device->lock);
    device->account.used -= size;
    (*objects)--;
    mo_unlock(&device->lock);
}

memopt_status mo_mem_alloc(memopt_device *device, uint64_t size, void **out_pointer)
{
    if (size == 0 || !mo_round_up_u64(size, ALLOCATION_UNIT, &size))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "mem_alloc: %" PRIu64 " bytes asked", size);
    MO_TRY(mo_device_enter(device, "mem_alloc", MEMOPT_OUT_OF_DEVICE_MEMORY));
    MO_TRY(device->ops->mem_alloc(device, size, out_pointer));
    count_used(device, size, &device->account.allocations);
    return MEMOPT_OK;
}

memopt_status mo_reachable(memopt_device *device, const char *subject, uint64_t index,
                           const void *pointer, uint64_t bytes)
{
    if (device->ops->reachable == NULL || bytes == 0)
        return MEMOPT_OK;
    MO_TRY(mo_device_enter(device, "reachable", MEMOPT_DRIVER_ERROR));
    return device->ops->reachable(device, subject, index, pointer, bytes);
}

memopt_status mo_mem_free(memopt_device *device, void *pointer, uint64_t size)
{
    if (pointer == NULL)
        return MEMOPT_OK;
    if (!mo_round_up_u64(size, ALLOCATION_UNIT, &size))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "mem_free: %" PRIu64 " bytes", size);
    MO_TRY(device->ops->mem_free(device, pointer, size));
    uncount_used(device, size, &device->account.allocations);
    return MEMOPT_OK;
}

int mo_vm_supported(memopt_device *device)
{
    return device->properties.virtual_memory != 0 && device->ops->vm_reserve != NULL;
}

/* Every virtual-memory call: supported, and sizes and addresses in whole granules. */
static memopt_status check_granules(memopt_device *device, const char *operation,
                                    const void *address, uint64_t size)
{
    uint64_t granularity = device->properties.granularity;
    if (!mo_vm_supported(device))
        return mo_fail(MEMOPT_UNSUPPORTED, "%s: %s has no virtual memory management", operation,
                       device->properties.name);
    if (size == 0 || size % granularity != 0 || (uintptr_t)address % granularity != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: address %p or size %" PRIu64 " is not a multiple of %" PRIu64 " bytes",
                       operation, address, size, granularity);
    if ((uintptr_t)address > UINTPTR_MAX - size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %p + %" PRIu64 " wraps around", operation,
                       address, size);
    return MEMOPT_OK;
}

static memopt_status enter_vm(memopt_device *device, const char *operation, const void *address,
                              uint64_t size, memopt_status fault)
{
    MO_TRY(check_granules(device, operation, address, size));
    return mo_device_enter(device, operation, fault);
}

/* Drivers map addresses as the program does, and say only that there is no memory. */
static memopt_status check_address_space(uint64_t size)
{
    uint64_t limit, left = mo_address_space_left(&limit);
    if (size <= left)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_OUT_OF_HOST_MEMORY,
                   "vm_reserve: %s of addresses asked, %s left of the %s that the process may map; "
                   "raise ulimit -v",
                   MO_SIZE(size), MO_SIZE(left), MO_SIZE(limit));
}

memopt_status mo_vm_reserve(memopt_device *device, uint64_t size, void **out_address)
{
    MO_TRY(enter_vm(device, "vm_reserve", NULL, size, MEMOPT_DRIVER_ERROR));
    MO_TRY(check_address_space(size));
    MO_TRY(device->ops->vm_reserve(device, size, out_address));
    mo_lock(&device->lock);
    device->account.reserved_va += size;
    device->account.reservations++;
    mo_unlock(&device->lock);
    return MEMOPT_OK;
}

memopt_status mo_vm_unreserve(memopt_device *device, void *address, uint64_t size)
{
    MO_TRY(check_granules(device, "vm_unreserve", address, size));
    MO_TRY(device->ops->vm_unreserve(device, address, size));
    mo_lock(&device->lock);
    device->account.reserved_va -= size;
    device->account.reservations--;
    mo_unlock(&device->lock);
    return MEMOPT_OK;
}

memopt_status mo_vm_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle)
{
    MO_TRY(enter_vm(device, "vm_create", NULL, size, MEMOPT_OUT_OF_DEVICE_MEMORY));
    MO_TRY(device->ops->vm_create(device, size, out_handle));
    count_used(device, size, &device->account.handles);
    return MEMOPT_OK;
}

memopt_status mo_vm_map(memopt_device *device, void *address, uint64_t size, mo_vm_handle handle)
{
    MO_TRY(enter_vm(device, "vm_map", address, size, MEMOPT_DRIVER_ERROR));
    return device->ops->vm_map(device, address, size, handle);
}

memopt_status mo_vm_set_access(memopt_device *device, void *address, uint64_t size)
{
    MO_TRY(enter_vm(device, "vm_set_access", address, size, MEMOPT_DRIVER_ERROR));
    return device->ops->vm_set_access(device, address, size);
}

memopt_status mo_vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    MO_TRY(check_granules(device, "vm_unmap", address, size));
    return device->ops->vm_unmap(device, address, size);
}

memopt_status mo_vm_unmap_run(memopt_device *device, void *address, uint64_t size, uint64_t mapping,
                              uint64_t *out_done)
{
    memopt_status status = check_granules(device, "vm_unmap", address, size);
    *out_done = 0;
    if (status == MEMOPT_OK && size > mapping && device->ops->vm_unmap_run != NULL) {
        status = device->ops->vm_unmap_run(device, address, size, mapping);
        if (status != MEMOPT_UNSUPPORTED) {
            *out_done = status == MEMOPT_OK ? size : 0;
            return status;
        }
        status = MEMOPT_OK;
    }
    while (status == MEMOPT_OK && *out_done < size) {
        status = device->ops->vm_unmap(device, (char *)address + *out_done, mapping);
        if (status == MEMOPT_OK)
            *out_done += mapping;
    }
    return status;
}

memopt_status mo_vm_release(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    MO_TRY(check_granules(device, "vm_release", NULL, size));
    MO_TRY(device->ops->vm_release(device, handle, size));
    uncount_used(device, size, &device->account.handles);
    return MEMOPT_OK;
}

/* Not on HIP: the first-level caches of RDNA tell addresses apart, as AMD's documents warn, and nobody
 * has tried CDNA. */
int mo_vm_aliases(memopt_device *device)
{
    return mo_vm_supported(device) && strcmp(device->properties.backend, "hip") != 0;
}

int mo_device_finds_races(const memopt_device *device)
{
    return device->race != NULL;
}

int mo_device_takes_notes(const memopt_device *device)
{
    return device->takes_notes;
}

int mo_device_unified(const memopt_device *device)
{
    return device->unified;
}

/* --- sharing ------------------------------------------------------------------------------- */

static memopt_status fail_sharing(const memopt_device *device, const char *operation)
{
    return mo_fail(MEMOPT_UNSUPPORTED, "%s: %s cannot share memory between processes", operation,
                   device->properties.name);
}

memopt_status mo_vm_export(memopt_device *device, mo_vm_handle handle, uint64_t size, int *out_file)
{
    if (device->ops->vm_export == NULL)
        return fail_sharing(device, "vm_export");
    MO_TRY(enter_vm(device, "vm_export", NULL, size, MEMOPT_DRIVER_ERROR));
    return device->ops->vm_export(device, handle, size, out_file);
}

static void count_handles(memopt_device *device, int more)
{
    mo_lock(&device->lock);
    device->account.handles += (uint64_t)(int64_t)more;
    mo_unlock(&device->lock);
}

memopt_status mo_vm_import(memopt_device *device, int file, uint64_t size, mo_vm_handle *out_handle)
{
    if (device->ops->vm_import == NULL)
        return fail_sharing(device, "vm_import");
    MO_TRY(enter_vm(device, "vm_import", NULL, size, MEMOPT_DRIVER_ERROR));
    MO_TRY(device->ops->vm_import(device, file, size, out_handle));
    count_handles(device, 1);
    return MEMOPT_OK;
}

memopt_status mo_vm_drop_import(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    MO_TRY(check_granules(device, "vm_release", NULL, size));
    MO_TRY(device->ops->vm_release(device, handle, size));
    count_handles(device, -1);
    return MEMOPT_OK;
}

memopt_status mo_device_identity(memopt_device *device, uint8_t *out_bytes)
{
    if (device->ops->identity == NULL)
        return fail_sharing(device, "identity");
    MO_TRY(mo_device_enter(device, "identity", MEMOPT_DRIVER_ERROR));
    return device->ops->identity(device, out_bytes);
}

void mo_note_alloc(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream)
{
    if (device->takes_notes && bytes != 0)
        device->ops->note_alloc(device, pointer, bytes, stream);
}

void mo_note_free(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream)
{
    if (device->takes_notes && bytes != 0)
        device->ops->note_free(device, pointer, bytes, stream);
}
