/* Giving cached memory back to the device, down to a target. */
#include "allocator/memory/give_back.h"

#include "allocator/memory/segment.h"
#include "allocator/streams/events.h"
#include "allocator/streams/streams.h"

static uint64_t held_bytes(const memopt_allocator *allocator)
{
    return mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
}

/* The clock up to which the `wanted` bytes were freed that are free the longest. */
static uint64_t freed_by(const memopt_allocator *allocator, uint64_t wanted)
{
    uint64_t low = 0, high = allocator->clock;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (mo_segment_spare(allocator, middle) >= wanted)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Releases what is free now while more than `target` is held, least recently freed first. */
static memopt_status release_to(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    mo_release what = MO_RELEASE_ALL;
    uint64_t held = held_bytes(allocator);
    if (held <= target)
        return MEMOPT_OK;
    if (target != 0) {
        what.wanted = held - target;
        what.freed_before = freed_by(allocator, what.wanted);
        what.freed_first = what.freed_before > 0 ? what.freed_before - 1 : 0;
    }
    return mo_segment_release(allocator, &what, released);
}

memopt_status mo_give_back(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    int found;
    memopt_status status = MEMOPT_OK;
    if (held_bytes(allocator) > target)
        (void)mo_plan_leave(allocator, UINT64_MAX);
    if (target != 0)
        status = release_to(allocator, target, released);
    if (status != MEMOPT_OK || (target != 0 && held_bytes(allocator) <= target))
        return status;
    do {
        status = mo_events_wait_one(allocator, NULL, &found);
    } while (status == MEMOPT_OK && found);
    if (status == MEMOPT_OK)
        status = mo_streams_settle(allocator);
    if (status == MEMOPT_OK)
        status = release_to(allocator, target, released);
    return status;
}
