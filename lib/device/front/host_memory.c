/* The front end's part for page-locked host memory: which ranges are live, and how many bytes. */
#include "device/front/handle.h"

#include "base/checked.h"
#include "base/lock.h"

#include <inttypes.h>
#include <unistd.h>

memopt_status memopt_host_alloc(memopt_device *device, uint64_t bytes, void **out_pointer)
{
    void *pointer;
    if (device == NULL || out_pointer == NULL || bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "host_alloc: device or out_pointer is NULL, or 0 bytes are asked");
    if (!mo_round_up_u64(bytes, (uint64_t)sysconf(_SC_PAGESIZE), &bytes))
        return mo_fail(MEMOPT_OUT_OF_HOST_MEMORY, "host_alloc: %" PRIu64 " bytes are asked", bytes);
    MO_TRY(mo_device_enter(device, "host_alloc", MEMOPT_OUT_OF_HOST_MEMORY));
    MO_TRY(device->ops->host_alloc(device, bytes, &pointer));
    mo_device_account *account = &device->account;
    mo_lock(&device->lock);
    int kept = mo_ranges_insert(&account->pinned_ranges, (uintptr_t)pointer, bytes, NULL);
    if (kept) {
        account->pinned += bytes;
        account->pinned_peak = mo_max_u64(account->pinned_peak, account->pinned);
    }
    mo_unlock(&device->lock);
    if (!kept) {
        (void)device->ops->host_free(device, pointer, bytes);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    *out_pointer = pointer;
    return MEMOPT_OK;
}

/* Takes the range that starts at pointer out of the set; its size, or 0 if there is none. */
static uint64_t take_range(memopt_device *device, mo_ranges *set, uint64_t *total, void *pointer)
{
    uint64_t bytes = 0;
    mo_lock(&device->lock);
    mo_range *range = mo_ranges_find(set, (uintptr_t)pointer);
    if (range != NULL) {
        bytes = range->size;
        *total -= bytes;
        mo_ranges_remove(set, range);
    }
    mo_unlock(&device->lock);
    return bytes;
}

memopt_status memopt_host_free(memopt_device *device, void *pointer)
{
    MO_NOT_NULL("host_free", device);
    MO_TRY(mo_check_process(device, "host_free"));
    if (pointer == NULL)
        return MEMOPT_OK;
    uint64_t bytes =
        take_range(device, &device->account.pinned_ranges, &device->account.pinned, pointer);
    if (bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "host_free: %p is not a page-locked allocation of this device", pointer);
    return device->ops->host_free(device, pointer, bytes);
}

memopt_status memopt_host_register(memopt_device *device, void *pointer, uint64_t bytes)
{
    uintptr_t start = (uintptr_t)pointer;
    if (device == NULL || pointer == NULL || bytes == 0 || start > UINTPTR_MAX - bytes)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "host_register: device %p, pointer %p, %" PRIu64
                       " bytes: NULL, empty or beyond the address space",
                       (void *)device, pointer, bytes);
    memopt_status status = mo_device_enter(device, "host_register", MEMOPT_DRIVER_ERROR);
    if (status != MEMOPT_OK)
        return status;
    /* The range is entered first, so that one of two concurrent overlapping calls is refused. */
    mo_device_account *account = &device->account;
    mo_range overlap = {0, 0, NULL};
    mo_lock(&device->lock);
    const mo_range *found = mo_ranges_overlapping(&account->registered_ranges, start, bytes);
    if (found == NULL)
        found = mo_ranges_overlapping(&account->pinned_ranges, start, bytes);
    if (found != NULL)
        overlap = *found;
    else if (mo_ranges_insert(&account->registered_ranges, start, bytes, NULL))
        account->registered += bytes;
    else
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    mo_unlock(&device->lock);
    if (overlap.size != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "host_register: [%p, +%" PRIu64 ") overlaps [%p, +%" PRIu64
                       "), which is page-locked already",
                       pointer, bytes, (void *)overlap.start, overlap.size);
    if (status != MEMOPT_OK)
        return status;
    status = device->ops->host_register(device, pointer, bytes);
    if (status != MEMOPT_OK)
        take_range(device, &account->registered_ranges, &account->registered, pointer);
    return status;
}

memopt_status memopt_host_unregister(memopt_device *device, void *pointer)
{
    MO_NOT_NULL("host_unregister", device, pointer);
    MO_TRY(mo_check_process(device, "host_unregister"));
    uint64_t bytes = take_range(device, &device->account.registered_ranges,
                                &device->account.registered, pointer);
    if (bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "host_unregister: %p is not registered", pointer);
    return device->ops->host_unregister(device, pointer, bytes);
}
