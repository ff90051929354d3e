/* The public functions that give cached memory back. */
#include "allocator/blocks/pool.h"
#include "allocator/memory/family.h"
#include "allocator/memory/give_back.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/segment.h"
#include "allocator/streams/events.h"

#include "base/lock.h"

static memopt_status trim(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    memopt_status status = mo_give_back(allocator, target, released);
    if (status == MEMOPT_OK)
        status = mo_segments_trim(allocator);
    mo_pools_trim(allocator);
    mo_events_trim(allocator);
    return status;
}

static memopt_status trim_call(const char *function, memopt_allocator *allocator, uint64_t target,
                               uint64_t *out_released)
{
    uint64_t released = 0;
    memopt_status status = MEMOPT_OK;
    if (allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: allocator is NULL", function);
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited(function);
    status = mo_family_enter(allocator->family, function);
    if (status != MEMOPT_OK)
        return status;
    if (!mo_family_capturing(allocator->family)) {
        mo_lock(&allocator->lock);
        status = trim(allocator, target, &released);
        mo_unlock(&allocator->lock);
    }
    mo_family_leave(allocator->family);
    if (status == MEMOPT_OK && out_released != NULL)
        *out_released = released;
    return status;
}

memopt_status memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t *out_released)
{
    return trim_call("allocator_trim_sync", allocator, 0, out_released);
}

memopt_status memopt_allocator_trim_to_sync(memopt_allocator *allocator, uint64_t target,
                                            uint64_t *out_released)
{
    return trim_call("allocator_trim_to_sync", allocator, target, out_released);
}
