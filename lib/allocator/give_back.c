/* Giving cached memory back to the device, down to a target. */
#include "allocator/give_back.h"

#include "allocator/events.h"
#include "allocator/segment.h"
#include "allocator/streams.h"

static uint64_t held_bytes(const memopt_allocator *allocator)
{
    return mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
}

/* Releases what is free now while more than `target` is held. */
static memopt_status release_to(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    mo_release what = MO_RELEASE_ALL;
    uint64_t held = held_bytes(allocator);
    if (held <= target)
        return MEMOPT_OK;
    if (target != 0)
        what.wanted = held - target;
    return mo_segment_release(allocator, &what, released);
}

memopt_status mo_give_back(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    int found;
    memopt_status status = MEMOPT_OK;
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
