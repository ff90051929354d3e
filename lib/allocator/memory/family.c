/*
 * An allocator and its pools. Each member has its own blocks, segments and statistics; they share
 * the device, the parent's limit, and `slow`, under which one member may empty the others' caches.
 */
#include "allocator/memory/family.h"

#include "allocator/memory/give_back.h"
#include "allocator/memory/segment.h"
#include "allocator/streams/events.h"

#include "base/lock.h"

int mo_family_capturing(mo_family *family)
{
    int capturing = 0;
    for (memopt_allocator *member = family->members; member != NULL && !capturing;
         member = member->next_member) {
        mo_lock(&member->lock);
        capturing = mo_capturing(member);
        mo_unlock(&member->lock);
    }
    return capturing;
}

int mo_family_records(memopt_allocator *allocator)
{
    if (allocator->family->pools == 0)
        return mo_capturing(allocator);
    mo_unlock(&allocator->lock);
    int capturing = mo_family_capturing(allocator->family);
    mo_lock(&allocator->lock);
    return capturing;
}

/* Lock of the member held. */
static memopt_status release_from(memopt_allocator *member, uint64_t wanted, uint64_t *released)
{
    uint64_t held = mo_stat_current(&member->stats, MO_STAT_RESERVED_BYTES);
    return held == 0 ? MEMOPT_OK
                     : mo_give_back(member, held > wanted ? held - wanted : 0, released);
}

static memopt_status release_others(const memopt_allocator *allocator, uint64_t wanted,
                                    uint64_t *released)
{
    memopt_status status = MEMOPT_OK;
    for (memopt_allocator *member = allocator->family->members;
         member != NULL && status == MEMOPT_OK && *released < wanted;
         member = member->next_member) {
        if (member == allocator || member->retain)
            continue;
        mo_lock(&member->lock);
        status = release_from(member, wanted - *released, released);
        mo_unlock(&member->lock);
    }
    return status;
}

memopt_status mo_family_release(memopt_allocator *allocator, uint64_t wanted, uint64_t *released)
{
    memopt_status status = MEMOPT_OK;
    if (allocator->family->pools == 0)
        return MEMOPT_OK;
    mo_unlock(&allocator->lock);
    if (!mo_family_capturing(allocator->family))
        status = release_others(allocator, wanted, released);
    mo_lock(&allocator->lock);
    return status;
}

uint64_t mo_family_spare(memopt_allocator *allocator)
{
    uint64_t bytes = 0;
    if (allocator->family->pools == 0)
        return 0;
    mo_unlock(&allocator->lock);
    for (memopt_allocator *member = allocator->family->members; member != NULL;
         member = member->next_member) {
        if (member == allocator)
            continue;
        mo_lock(&member->lock);
        bytes += mo_segment_spare(member, UINT64_MAX);
        mo_unlock(&member->lock);
    }
    mo_lock(&allocator->lock);
    return bytes;
}
