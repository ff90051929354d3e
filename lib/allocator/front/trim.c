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

memopt_status memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t target,
                                         uint64_t *out_released)
{
    uint64_t released = 0;
    memopt_status status = MEMOPT_OK;
    MO_NOT_NULL("allocator_trim_sync", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_trim_sync"));
    MO_TRY(mo_family_enter(allocator->family, "allocator_trim_sync"));
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
