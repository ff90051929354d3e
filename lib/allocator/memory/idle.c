/*
 * Idle release: what was free for idle_release_seconds goes back to the device.
 *
 * No thread and no timer: allocations look at the clock. Four times in the span a look
 * marks the allocator's clock of allocations, which ages free blocks: what was freed up to the mark
 * of a span ago has been free for as long. So the look costs reading a clock, and only one in a
 * quarter of the span walks over the free blocks. It waits neither for another thread nor for work
 * of a stream; what it cannot have now, the next look may.
 */
#include "allocator/memory/idle.h"

#include "allocator/memory/family.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/segment.h"
#include "allocator/streams/events.h"
#include "allocator/streams/stream_state.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/turn.h"

#include <time.h>

static _Atomic(uint64_t (*)(void)) other_clock;

void mo_idle_set_clock(uint64_t (*now)(void))
{
    other_clock = now;
}

/* Some milliseconds old at most. */
static uint64_t read_clock(void)
{
    struct timespec t;
    uint64_t (*other)(void) = atomic_load_explicit(&other_clock, memory_order_relaxed);
    if (other != NULL)
        return other();
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void mo_idle_init(memopt_allocator *allocator)
{
    double span = allocator->config.idle_release_seconds * 1e9;
    allocator->idle.period = span <= 0 ? 0 : (uint64_t)(span / MO_IDLE_MARKS) + 1;
}

/* Marks the present; returns the mark of a span ago, 0 if there is none. Lock held. */
static uint64_t mark(memopt_allocator *allocator, uint64_t now)
{
    mo_idle *idle = &allocator->idle;
    uint64_t old = 0, span = idle->period * MO_IDLE_MARKS;
    for (unsigned i = 0; i < MO_IDLE_MARKS; i++)
        if (idle->clock[i] > old && now - idle->time[i] >= span)
            old = idle->clock[i];
    unsigned at = idle->next++ % MO_IDLE_MARKS;
    idle->time[at] = now;
    idle->clock[at] = ++allocator->clock;
    allocator->clock++; /* what is freed from here on is younger */
    return old;
}

/* Lock held, released meanwhile. */
static memopt_status release_pool(memopt_allocator *allocator, mo_pool *pool, uint64_t clock,
                                  uint64_t *released)
{
    mo_release what = MO_RELEASE_ALL;
    what.pool = pool;
    what.freed_before = clock;
    if (pool->segments == 0 || (pool->life == MO_STREAM_LIVE && !mo_pool_idle(allocator, pool)))
        return MEMOPT_OK;
    return mo_segment_release(allocator, &what, released);
}

/* Lock held, released meanwhile. Pools of streams stay while the allocator lives. */
static void release_idle(memopt_allocator *allocator, uint64_t clock)
{
    uint64_t released = 0;
    memopt_status status = MEMOPT_OK;
    for (mo_pool *pool = allocator->pools; pool != NULL && status == MEMOPT_OK; pool = pool->next)
        status = release_pool(allocator, pool, clock, &released);
    for (unsigned i = 0; i < MO_SIZES_CLASSES && status == MEMOPT_OK; i++)
        status = release_pool(allocator, &allocator->ended[i], clock, &released);
    if (status != MEMOPT_OK)
        mo_log(MEMOPT_LOG_WARNING, "allocator: idle memory could not go back: %s",
               memopt_last_error());
    else if (released != 0)
        mo_log(MEMOPT_LOG_DEBUG, "allocator: %s that were idle went back", MO_SIZE(released));
}

static void look_at(memopt_allocator *member, uint64_t now)
{
    mo_lock(&member->lock);
    uint64_t clock = mark(member, now);
    (void)mo_plan_leave(member, clock); /* if no step goes on */
    if (clock != 0 && !member->retain)
        release_idle(member, clock);
    mo_unlock(&member->lock);
}

void mo_idle_check_now(memopt_allocator *allocator)
{
    mo_family *family = allocator->family;
    uint64_t now = read_clock(), due = now + allocator->idle.period;
    if (now < atomic_load_explicit(&family->idle_due, memory_order_relaxed) ||
        mo_device_lost(allocator->device) || !mo_turn_try(&family->slow))
        return;
    if (!mo_family_capturing(family))
        for (memopt_allocator *m = family->members; m != NULL; m = m->next_member) {
            mo_idle *idle = &m->idle;
            if (idle->period == 0)
                continue;
            if (now >= idle->due) {
                look_at(m, now);
                idle->due = now + idle->period;
            }
            due = idle->due < due ? idle->due : due;
        }
    atomic_store_explicit(&family->idle_due, due, memory_order_relaxed);
    mo_turn_give(&family->slow);
}
