/* Leases: memory that a region's callback requests and backward reads. */
#include "checkpoint/region.h"

#include "base/memory.h"
#include "device/device.h"

memopt_status mo_region_drop_leases(memopt_region *region)
{
    memopt_status first = MEMOPT_OK;
    for (uint64_t i = 0; i < region->lease_capacity; i++) {
        mo_lease *lease = &region->leases[i];
        if (lease->pointer == NULL)
            continue;
        memopt_status status = memopt_allocator_free(region->allocator, lease->pointer);
        if (status == MEMOPT_OK)
            lease->pointer = NULL;
        else if (first == MEMOPT_OK)
            first = status;
    }
    return first;
}

memopt_status mo_region_share_leases(memopt_region *region, memopt_stream stream)
{
    for (uint64_t i = 0; i < region->lease_total; i++) {
        void *pointer = region->leases[i].pointer;
        if (pointer == NULL)
            continue;
        MO_TRY(memopt_allocator_record_stream(region->allocator, pointer, stream));
    }
    return MEMOPT_OK;
}

uint64_t mo_region_leased_bytes(const memopt_region *region)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < region->lease_capacity; i++)
        if (region->leases[i].pointer != NULL)
            bytes += region->leases[i].bytes;
    return bytes;
}

/* The entry of the run's next lease; new entries start empty. */
static mo_lease *next_place(memopt_region *region)
{
    uint64_t old = region->lease_capacity;
    if (!mo_grow((void **)&region->leases, &region->lease_capacity, region->lease_next + 1,
                 sizeof *region->leases))
        return NULL;
    for (uint64_t i = old; i < region->lease_capacity; i++)
        region->leases[i] = (mo_lease){0, NULL};
    return &region->leases[region->lease_next];
}

/* A recompute run must lease what the forward run leased. */
static memopt_status agree(memopt_region *region, uint64_t bytes)
{
    uint64_t index = region->lease_next;
    if (index >= region->lease_total)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s': lease %llu of %llu bytes asked in "
                                  "recompute, but forward made only %llu leases; the callback must "
                                  "enqueue the same work each time",
                                  region->name, (unsigned long long)index,
                                  (unsigned long long)bytes,
                                  (unsigned long long)region->lease_total);
    if (region->leases[index].bytes != bytes)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s': lease %llu is %llu bytes in recompute, "
                                  "but was %llu bytes in forward; the callback must enqueue the "
                                  "same work each time",
                                  region->name, (unsigned long long)index,
                                  (unsigned long long)bytes,
                                  (unsigned long long)region->leases[index].bytes);
    return MEMOPT_OK;
}

memopt_status memopt_region_alloc(memopt_region *region, uint64_t bytes, void **out_pointer)
{
    MO_NOT_NULL("region_alloc", region, out_pointer);
    MO_TRY(mo_check_process(region->device, "region_alloc"));
    if (region->activity != MO_ACTIVITY_RUN)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "checkpoint: region '%s' leases memory only inside its run callback",
                       region->name);
    if (region->pass == MEMOPT_PASS_RECOMPUTE)
        MO_TRY(agree(region, bytes));
    mo_lease *place = next_place(region);
    if (place == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    void *pointer = NULL;
    MO_TRY(memopt_allocator_alloc(region->allocator, bytes, MEMOPT_TAG_ACTIVATIONS, region->stream,
                                  &pointer));
    *place = (mo_lease){bytes, pointer};
    region->lease_next++;
    *out_pointer = pointer;
    return MEMOPT_OK;
}
