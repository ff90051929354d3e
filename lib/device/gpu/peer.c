/*
 * Which devices can use the memory that a device maps: all of its driver's that the process has
 * open and that the driver says can be peers.
 *
 * Access to mapped memory is set by device; what a context enables for its peers does not cover it.
 * The call that sets the owner's access sets that of the others too. A device that is opened later
 * gets access to what is mapped then. So a process that uses one device of many pays nothing, and
 * no device but those in use has page tables for the memory.
 *
 * driver->mapping guards the list of open devices and their access. It is held to read while a
 * range is mapped, given access or unmapped, so that a device which joins (to write) finds all
 * ranges as the sets have them. It is the one lock that is held over driver calls; who reads waits
 * only for a device that joins or leaves. It comes before a device's lock.
 */
#include "device/gpu/gpu.h"

#include "base/lock.h"
#include "base/log.h"

#include <inttypes.h>

static int is_let(const mo_gpu_device *owner, int32_t handle)
{
    uint32_t i = 0;
    while (i < owner->access_count && owner->access[i].location.id != handle)
        i++;
    return i < owner->access_count;
}

static void let(mo_gpu_device *owner, int32_t handle)
{
    owner->access[owner->access_count++] =
        (mo_gpu_access){{MO_GPU_LOCATION_DEVICE, handle}, MO_GPU_ACCESS_READ_WRITE};
}

/* 0 also where the driver cannot tell. */
static int can_use(const mo_gpu_device *gpu, const mo_gpu_device *owner)
{
    int can = 0;
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    if (call->can_access_peer == NULL || owner->access_count == MO_GPU_SHARERS)
        return 0;
    if (call->can_access_peer(&can, gpu->handle, owner->handle) == MO_GPU_SUCCESS)
        return can != 0;
    gpu->driver->vendor->clear_error(gpu->driver);
    return 0;
}

/* The next run of adjacent mappings from *start on; 0: there is none. */
static int next_run(mo_gpu_device *owner, uintptr_t *start, uint64_t *out_bytes)
{
    mo_lock(&owner->lock);
    const mo_range *range = mo_ranges_after(&owner->mappings, *start);
    int found = range != NULL;
    if (found)
        *start = range->start;
    for (*out_bytes = 0; range != NULL;
         range = mo_ranges_find(&owner->mappings, *start + *out_bytes))
        *out_bytes += range->size;
    mo_unlock(&owner->lock);
    return found;
}

/* Gives all that the owner lets use its memory access to what is mapped. */
static memopt_status open_mappings(mo_gpu_device *owner)
{
    uintptr_t start = 0;
    uint64_t bytes = 0;
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, &owner->base, "vm_set_access", 0))
        for (; in.code == MO_GPU_SUCCESS && next_run(owner, &start, &bytes); start += bytes)
            in.code =
                in.call->vm_set_access((void *)start, bytes, owner->access, owner->access_count);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

/* Another handle of the same device may have access already. */
static void let_use(mo_gpu_device *owner, const mo_gpu_device *gpu)
{
    const char *name = gpu->driver->vendor->name;
    if (is_let(owner, gpu->handle))
        return;
    int can = can_use(gpu, owner);
    if (can) {
        let(owner, gpu->handle);
        if (open_mappings(owner) == MEMOPT_OK)
            return;
        owner->access_count--;
    }
    atomic_store(&gpu->driver->strangers, 1);
    mo_log(MEMOPT_LOG_WARNING, "%s:%d: no copies from or to mapped memory of %s:%d: %s", name,
           gpu->index, name, owner->index,
           can ? memopt_last_error() : "the driver says that they cannot be peers");
}

void mo_gpu_join(mo_gpu_device *gpu)
{
    mo_gpu_driver *driver = gpu->driver;
    gpu->access_count = 0;
    let(gpu, gpu->handle);
    mo_lock_to_write(&driver->mapping);
    for (mo_gpu_device *other = driver->open; other != NULL; other = other->next_open) {
        let_use(other, gpu);
        let_use(gpu, other);
    }
    gpu->next_open = driver->open;
    driver->open = gpu;
    mo_unlock_shared(&driver->mapping);
}

/* The others keep a peer of which another handle is open. */
void mo_gpu_part(mo_gpu_device *gpu)
{
    mo_gpu_driver *driver = gpu->driver;
    int stays = 0;
    mo_lock_to_write(&driver->mapping);
    mo_gpu_device **place = &driver->open;
    while (*place != gpu)
        place = &(*place)->next_open;
    *place = gpu->next_open;
    for (const mo_gpu_device *other = driver->open; other != NULL; other = other->next_open)
        stays |= other->handle == gpu->handle;
    for (mo_gpu_device *other = driver->open; other != NULL && !stays; other = other->next_open)
        for (uint32_t i = other->access_count; i-- > 0;)
            if (other->access[i].location.id == gpu->handle)
                other->access[i] = other->access[--other->access_count];
    mo_unlock_shared(&driver->mapping);
}

/* The mapped memory of another device in the range that is not for this one; 0 if there is none. */
static int is_closed(const mo_gpu_device *gpu, const void *start, uint64_t bytes,
                     const mo_gpu_device **out_owner)
{
    for (mo_gpu_device *other = gpu->driver->open; other != NULL; other = other->next_open) {
        if (is_let(other, gpu->handle))
            continue;
        mo_lock(&other->lock);
        int mapped = mo_ranges_overlapping(&other->mappings, (uintptr_t)start, bytes) != NULL;
        mo_unlock(&other->lock);
        *out_owner = other;
        if (mapped)
            return 1;
    }
    return 0;
}

memopt_status mo_gpu_check_copy(mo_gpu_device *gpu, const void *destination, const void *source,
                                uint64_t bytes)
{
    const char *name = gpu->driver->vendor->name;
    const void *const ends[] = {source, destination};
    const mo_gpu_device *owner;
    memopt_status status = MEMOPT_OK;
    if (!atomic_load_explicit(&gpu->driver->strangers, memory_order_relaxed))
        return MEMOPT_OK;
    mo_lock_to_read(&gpu->driver->mapping);
    for (int i = 0; i < 2 && status == MEMOPT_OK; i++)
        if (is_closed(gpu, ends[i], bytes, &owner))
            status = mo_fail(MEMOPT_UNSUPPORTED,
                             "copy: [%p, +%" PRIu64 ") is mapped memory of %s:%d, which %s:%d "
                             "cannot use: %s; copy by way of the host, or leave out "
                             "expandable_segments",
                             ends[i], bytes, name, owner->index, name, gpu->index,
                             can_use(gpu, owner) ? "the driver has refused it"
                                                 : "the driver says that they cannot be peers");
    mo_unlock_shared(&gpu->driver->mapping);
    return status;
}
