/*
 * The content check: values are declared in the same order by both runs; the forward run keeps what
 * the recompute run is compared against. check_hash.c keeps hashes in device memory, check_exact.c
 * a copy in host memory.
 *
 * Order. Both write memory of the region from the run's stream. A run on another stream, and
 * freeing, wait for an event behind the last such work (`settled`).
 */
#include "checkpoint/region.h"

#include "base/checked.h"
#include "base/memory.h"
#include "device/device.h"

#include <string.h>

memopt_status mo_region_checks_begin(memopt_region *region)
{
    if (!region->pending || region->settled_stream == region->stream)
        return MEMOPT_OK;
    return memopt_stream_wait_event(region->device, region->stream, region->settled);
}

memopt_status mo_region_checks_end(memopt_region *region)
{
    if (region->check_mode == MEMOPT_CHECK_NONE || region->check_next == 0)
        return MEMOPT_OK;
    return mo_region_settle_mark(region);
}

memopt_status mo_region_checks_verdict(memopt_region *region)
{
    if (region->check_mode == MEMOPT_CHECK_NONE || region->check_next == 0)
        return MEMOPT_OK;
    for (uint64_t i = 0; i < region->check_next; i++)
        region->stats.checked_bytes += region->checks[i].bytes;
    if (region->check_mode == MEMOPT_CHECK_HASH)
        return mo_check_hash_verdict(region);
    return MEMOPT_OK; /* exact: compared as the values came */
}

memopt_status mo_region_checks_destroy(memopt_region *region)
{
    memopt_status first = mo_region_settle_wait(region);
    if (first != MEMOPT_OK) /* no late copy may write to freed memory */
        (void)memopt_device_sync(region->device);
    mo_keep_first(&first, mo_check_hash_drop_verdict(region));
    for (uint64_t i = 0; i < region->check_capacity; i++) {
        mo_check *check = &region->checks[i];
        mo_keep_first(&first, mo_check_hash_drop(region, check));
        (void)memopt_host_free(region->device, check->copy);
        mo_free(check->name);
    }
    (void)memopt_host_free(region->device, region->scratch);
    mo_keep_first(&first, memopt_event_destroy(region->settled));
    return first;
}

/* Reads the size of a declared value. */
static memopt_status tensor_bytes(const memopt_region *region, const char *name,
                                  const memopt_tensor *tensor, uint64_t *out_bytes)
{
    uint64_t size = memopt_dtype_size(tensor->dtype);
    if (size == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_check: region '%s', value '%s': dtype %d is not an "
                       "element type",
                       region->name, name, (int)tensor->dtype);
    if (!mo_mul_u64(tensor->count, size, out_bytes))
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "region_check: region '%s', value '%s': %llu elements of %llu bytes overflow "
            "64 bits",
            region->name, name, (unsigned long long)tensor->count, (unsigned long long)size);
    if (tensor->data == NULL && tensor->count != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_check: region '%s', value '%s': data is NULL", region->name, name);
    return MEMOPT_OK;
}

/* The forward run's next entry, with its name and size. */
static memopt_status declare(memopt_region *region, const char *name, uint64_t bytes,
                             mo_check **out_check)
{
    uint64_t old = region->check_capacity;
    if (!mo_grow((void **)&region->checks, &region->check_capacity, region->check_next + 1,
                 sizeof *region->checks))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (region->check_capacity > old)
        memset(region->checks + old, 0, (region->check_capacity - old) * sizeof *region->checks);
    mo_check *check = &region->checks[region->check_next];
    if (check->name == NULL || strcmp(check->name, name) != 0) {
        char *copy = mo_strdup(name);
        if (copy == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        mo_free(check->name);
        check->name = copy;
    }
    check->bytes = bytes;
    *out_check = check;
    return MEMOPT_OK;
}

/* The entry that the forward run wrote; name and size must be equal. */
static memopt_status find(memopt_region *region, const char *name, uint64_t bytes,
                          mo_check **out_check)
{
    uint64_t index = region->check_next;
    if (index >= region->check_total)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s': value %llu, '%s' of %llu bytes, is "
                                  "declared in recompute, but forward declared only %llu",
                                  region->name, (unsigned long long)index, name,
                                  (unsigned long long)bytes,
                                  (unsigned long long)region->check_total);
    mo_check *check = &region->checks[index];
    if (check->bytes != bytes || strcmp(check->name, name) != 0)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s': value %llu is '%s' of %llu bytes in "
                                  "recompute, but was '%s' of %llu bytes in forward",
                                  region->name, (unsigned long long)index, name,
                                  (unsigned long long)bytes, check->name,
                                  (unsigned long long)check->bytes);
    *out_check = check;
    return MEMOPT_OK;
}

static memopt_status keep_or_compare(memopt_region *region, mo_check *check, const void *data)
{
    int first = region->pass == MEMOPT_PASS_FORWARD;
    if (check->bytes == 0)
        return MEMOPT_OK;
    if (region->check_mode == MEMOPT_CHECK_HASH)
        return first ? mo_check_hash_first(region, check, data)
                     : mo_check_hash_again(region, check, data);
    return first ? mo_check_exact_first(region, check, data)
                 : mo_check_exact_again(region, check, data);
}

memopt_status memopt_region_check(memopt_region *region, const char *name,
                                  const memopt_tensor *tensor)
{
    MO_NOT_NULL("region_check", region, name, tensor);
    MO_TRY(mo_check_process(region->device, "region_check"));
    if (region->activity != MO_ACTIVITY_RUN)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "checkpoint: region '%s' declares values only inside its run callback",
                       region->name);
    uint64_t bytes = 0;
    mo_check *check = NULL;
    memopt_status status = tensor_bytes(region, name, tensor, &bytes);
    if (status != MEMOPT_OK || region->check_mode == MEMOPT_CHECK_NONE)
        return status;
    MO_TRY(region->pass == MEMOPT_PASS_FORWARD ? declare(region, name, bytes, &check)
                                               : find(region, name, bytes, &check));
    MO_TRY(mo_reachable(region->device, "region_check: value", region->check_next, tensor->data,
                        bytes));
    MO_TRY(keep_or_compare(region, check, tensor->data));
    region->check_next++;
    return MEMOPT_OK;
}
