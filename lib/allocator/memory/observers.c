/*
 * Observers of ranges: callbacks that are told of each range that gets memory and, before that, of
 * each that loses it. They run in the family's turn and under no lock. The list changes in the turn
 * only, so never while a callback runs.
 */
#include "allocator/memory/observers.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/turn.h"

#include <inttypes.h>
#include <string.h>

struct mo_observer {
    mo_observer *next;
    const memopt_allocator *member; /* NULL: all of the family */
    memopt_range_observer function;
    void *user;
    uint64_t number;
};

/* --- the turn --------------------------------------------------------------------------------- */

memopt_status mo_family_enter(mo_family *family, const char *function)
{
    if (mo_turn_take(&family->slow))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_BUSY,
                   "%s: called by a range observer or the memory provider of the same "
                   "allocator; call it when that has returned",
                   function);
}

void mo_family_leave(mo_family *family)
{
    mo_turn_give(&family->slow);
}

/* --- telling ---------------------------------------------------------------------------------- */

static memopt_status tell(const mo_observer *observer, const memopt_range_event *event)
{
    if (observer->member != NULL && observer->member != event->allocator)
        return MEMOPT_OK;
    return observer->function(observer->user, event);
}

static memopt_range_event new_event(memopt_allocator *allocator, uint32_t kind, const void *address,
                                    uint64_t bytes)
{
    memopt_range_event event = MEMOPT_RANGE_EVENT_INIT;
    event.kind = kind;
    event.allocator = allocator;
    event.address = (void *)(uintptr_t)address;
    event.bytes = bytes;
    event.generation = ++allocator->family->generation;
    return event;
}

/* Tells the observers before `end`, whatever they say. */
static void tell_before(memopt_allocator *allocator, const mo_observer *end, uint32_t kind,
                        const void *address, uint64_t bytes)
{
    if (bytes == 0 || allocator->family->observers == end)
        return;
    memopt_range_event event = new_event(allocator, kind, address, bytes);
    for (const mo_observer *o = allocator->family->observers; o != end; o = o->next)
        (void)tell(o, &event);
}

/* A refusal is taken back from those who have agreed. */
static memopt_status ask(memopt_allocator *allocator, uint32_t kind, uint32_t opposite,
                         const void *address, uint64_t bytes)
{
    memopt_status status = MEMOPT_OK;
    const mo_observer *o = allocator->family->observers;
    if (bytes == 0 || o == NULL)
        return MEMOPT_OK;
    memopt_range_event event = new_event(allocator, kind, address, bytes);
    for (; o != NULL; o = o->next) {
        status = tell(o, &event);
        if (status != MEMOPT_OK && !allocator->ending)
            break;
        status = MEMOPT_OK;
    }
    if (status == MEMOPT_OK)
        return MEMOPT_OK;
    allocator->family->refused = 1;
    tell_before(allocator, o, opposite, address, bytes);
    return mo_callback_status(status, "allocator: a range observer");
}

memopt_status mo_observe_mapped(memopt_allocator *allocator, const void *address, uint64_t bytes)
{
    return ask(allocator, MEMOPT_RANGE_MAPPED, MEMOPT_RANGE_UNMAPPING, address, bytes);
}

memopt_status mo_observe_unmapping(memopt_allocator *allocator, const void *address, uint64_t bytes)
{
    return ask(allocator, MEMOPT_RANGE_UNMAPPING, MEMOPT_RANGE_MAPPED, address, bytes);
}

void mo_observe_gone(memopt_allocator *allocator, const void *address, uint64_t bytes)
{
    tell_before(allocator, NULL, MEMOPT_RANGE_UNMAPPING, address, bytes);
}

void mo_observe_stays(memopt_allocator *allocator, const void *address, uint64_t bytes)
{
    tell_before(allocator, NULL, MEMOPT_RANGE_MAPPED, address, bytes);
}

/* --- what is there already -------------------------------------------------------------------- */

/* One more observer is told of [address, +bytes). */
static memopt_status tell_one(const mo_observer *observer, memopt_allocator *member,
                              const void *address, uint64_t bytes)
{
    memopt_range_event event = new_event(member, MEMOPT_RANGE_MAPPED, address, bytes);
    return tell(observer, &event);
}

/* Marks the pages of a segment that have memory; only the turn's owner changes that. */
static void mark_pages(memopt_allocator *member, const mo_segment *segment, uint8_t *marks)
{
    uint64_t unit = member->granularity;
    mo_lock(&member->lock);
    for (const mo_block *b = segment->first; b != NULL; b = b->next) {
        uint64_t start = (uint64_t)(b->address - segment->address);
        if (b->state != MO_BLOCK_UNMAPPED)
            memset(marks + start / unit, 1, mo_ceil_div_u64(start + b->size, unit) - start / unit);
    }
    mo_unlock(&member->lock);
    for (const mo_pause *pause = member->pauses; pause != NULL; pause = pause->next)
        for (uint64_t i = 0; i < pause->page_count; i++)
            if (pause->pages[i].segment == segment)
                marks[pause->pages[i].page] = pause->pages[i].told;
}

static memopt_status tell_segment(const mo_observer *observer, memopt_allocator *member,
                                  const mo_segment *segment)
{
    uint64_t unit = member->granularity, pages = segment->size / unit, run;
    memopt_status status = MEMOPT_OK;
    if (!mo_segment_is_expandable(segment))
        return tell_one(observer, member, segment->address, segment->size);
    uint8_t *marks = mo_calloc(pages, 1);
    if (marks == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mark_pages(member, segment, marks);
    for (uint64_t page = 0; page < pages && status == MEMOPT_OK; page += run + 1) {
        for (run = 0; page + run < pages && marks[page + run]; run++)
            ;
        if (run > 0)
            status = tell_one(observer, member, segment->address + page * unit, run * unit);
    }
    mo_free(marks);
    return status;
}

static memopt_status tell_member(const mo_observer *observer, memopt_allocator *member)
{
    memopt_status status = MEMOPT_OK;
    if (observer->member != NULL && observer->member != member)
        return MEMOPT_OK;
    for (mo_segment *s = member->segments; s != NULL && status == MEMOPT_OK; s = s->next)
        status = tell_segment(observer, member, s);
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

static memopt_status add(memopt_allocator *allocator, mo_observer *fresh)
{
    mo_family *family = allocator->family;
    memopt_status status = MEMOPT_OK;
    for (memopt_allocator *member = family->members; member != NULL && status == MEMOPT_OK;
         member = member->next_member)
        status = tell_member(fresh, member);
    if (status != MEMOPT_OK)
        return mo_callback_status(status, "allocator_add_range_observer: the observer");
    mo_observer **end = &family->observers;
    while (*end != NULL)
        end = &(*end)->next;
    fresh->number = ++family->observers_made;
    *end = fresh;
    return MEMOPT_OK;
}

memopt_status memopt_allocator_add_range_observer(memopt_allocator *allocator,
                                                  memopt_range_observer function, void *user,
                                                  uint64_t *out_number)
{
    MO_NOT_NULL("allocator_add_range_observer", allocator, out_number);
    if (function == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_add_range_observer: function is NULL");
    MO_TRY(mo_check_process(allocator->device, "allocator_add_range_observer"));
    mo_observer *fresh = mo_calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    fresh->member = allocator == allocator->family->parent ? NULL : allocator;
    fresh->function = function;
    fresh->user = user;
    memopt_status status = mo_family_enter(allocator->family, "allocator_add_range_observer");
    if (status == MEMOPT_OK) {
        status = add(allocator, fresh);
        mo_family_leave(allocator->family);
    }
    if (status == MEMOPT_OK)
        *out_number = fresh->number;
    else
        mo_free(fresh);
    return status;
}

memopt_status memopt_allocator_remove_range_observer(memopt_allocator *allocator, uint64_t number)
{
    MO_NOT_NULL("allocator_remove_range_observer", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_remove_range_observer"));
    MO_TRY(mo_family_enter(allocator->family, "allocator_remove_range_observer"));
    mo_observer **place = &allocator->family->observers;
    while (*place != NULL && (*place)->number != number)
        place = &(*place)->next;
    mo_observer *found = *place;
    if (found != NULL)
        *place = found->next;
    mo_family_leave(allocator->family);
    mo_free(found);
    if (found == NULL)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "allocator_remove_range_observer: there is no observer %" PRIu64
                       " of this allocator",
                       number);
    return MEMOPT_OK;
}

void mo_observers_end(const memopt_allocator *allocator)
{
    mo_family *family = allocator->family;
    for (mo_observer **place = &family->observers; *place != NULL;) {
        mo_observer *observer = *place;
        if (allocator != family->parent && observer->member != allocator) {
            place = &observer->next;
            continue;
        }
        *place = observer->next;
        mo_free(observer);
    }
}
