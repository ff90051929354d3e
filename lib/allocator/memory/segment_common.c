/* The list of segments, limits, and what both kinds of segments share. */
#include "allocator/memory/segment_common.h"

#include "allocator/streams/events.h"
#include "allocator/streams/stream_state.h"
#include "allocator/streams/streams.h"

#include "base/checked.h"
#include "base/lock.h"

void mo_segment_link(memopt_allocator *allocator, mo_segment *segment)
{
    segment->pool->segments++;
    segment->prev = NULL;
    segment->next = allocator->segments;
    if (segment->next != NULL)
        segment->next->prev = segment;
    allocator->segments = segment;
}

void mo_segment_unlink(memopt_allocator *allocator, mo_segment *segment)
{
    mo_plan_forget(allocator, NULL, segment);
    segment->pool->segments--;
    if (segment->prev != NULL)
        segment->prev->next = segment->next;
    else
        allocator->segments = segment->next;
    if (segment->next != NULL)
        segment->next->prev = segment->prev;
}

mo_block *mo_block_at(const memopt_allocator *allocator, const void *address)
{
    uintptr_t wanted = (uintptr_t)address;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        if (wanted - (uintptr_t)segment->address >= segment->size)
            continue;
        mo_block *block = segment->first;
        while (wanted - (uintptr_t)block->address >= block->size)
            block = block->next;
        return block;
    }
    return NULL;
}

uint64_t mo_allowed(const memopt_allocator *allocator)
{
    double fraction = allocator->config.per_process_memory_fraction;
    uint64_t limit = allocator->limit;
    uint64_t allowed = limit != 0 ? limit : UINT64_MAX;
    if (fraction < 1)
        allowed = mo_min_u64(allowed, (uint64_t)(fraction * (double)allocator->device_total));
    return allowed;
}

static uint64_t room_below(uint64_t allowed, uint64_t held)
{
    return allowed > held ? allowed - held : 0;
}

uint64_t mo_own_room(const memopt_allocator *allocator)
{
    return room_below(mo_allowed(allocator),
                      mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES) +
                          allocator->outside);
}

uint64_t mo_room(const memopt_allocator *allocator)
{
    const mo_family *family = allocator->family;
    return mo_min_u64(mo_own_room(allocator),
                      room_below(mo_allowed(family->parent), family->held + family->outside));
}

memopt_status mo_may_grow(memopt_allocator *allocator, uint64_t bytes)
{
    int fits = bytes <= mo_room(allocator);
    if (fits && (allocator->foreign || !allocator->config.throw_on_cudamalloc_oom))
        return MEMOPT_OK;
    if (fits) {
        memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
        memopt_status status = memopt_device_get_memory_info(allocator->device, &info);
        if (status != MEMOPT_OK || info.free >= bytes)
            return status;
    }
    if (allocator->config.throw_on_cudamalloc_oom)
        allocator->stats.counter[MO_STAT_NUM_OOM_REJECTIONS]++;
    return MEMOPT_OUT_OF_DEVICE_MEMORY;
}

static void tell(memopt_allocator *allocator, const mo_segment *segment, uint64_t bytes,
                 mo_happening what)
{
    const mo_event event = {
        .what = what, .segment = segment, .bytes = bytes, .stream = segment->pool->stream};
    if (bytes > 0)
        mo_tell(allocator, &event);
}

void mo_count_mapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                     uint64_t calls)
{
    if (segment->mapped == 0 && bytes > 0)
        mo_stat_add(&allocator->stats, segment->pool->kind, MO_STAT_SEGMENT, 1);
    segment->mapped += bytes;
    allocator->family->held += bytes;
    mo_stat_add(&allocator->stats, segment->pool->kind, MO_STAT_RESERVED_BYTES, bytes);
    allocator->stats.counter[MO_STAT_NUM_DEVICE_ALLOC] += calls;
    tell(allocator, segment, bytes, MO_MAPPED);
}

void mo_count_unmapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                       uint64_t calls)
{
    segment->mapped -= bytes;
    allocator->family->held -= bytes;
    if (segment->mapped == 0 && bytes > 0)
        mo_stat_subtract(&allocator->stats, segment->pool->kind, MO_STAT_SEGMENT, 1);
    mo_stat_subtract(&allocator->stats, segment->pool->kind, MO_STAT_RESERVED_BYTES, bytes);
    allocator->stats.counter[MO_STAT_NUM_DEVICE_FREE] += calls;
    tell(allocator, segment, bytes, MO_UNMAPPED);
}

int mo_release_matches(const mo_release *what, mo_release_turn turn, const mo_block *block)
{
    const mo_pool *pool = block->segment->pool;
    return block->state == MO_BLOCK_FREE && block->size >= what->at_least &&
           block->freed_at <= what->freed_before &&
           (turn == MO_RELEASE_REST || block->freed_at <= what->freed_first) &&
           (what->pool == NULL || what->pool == pool) &&
           (!what->large_only || pool->kind == MO_POOL_LARGE);
}

/* The stream is used under the lock only, so it cannot end meanwhile;
 * the event outlives it. */
static memopt_status drain_live(memopt_allocator *allocator, const mo_pool *pool)
{
    mo_stream_use *use;
    MO_PRE(pool->life == MO_STREAM_LIVE && mo_is_locked(&allocator->lock));
    if (mo_device_lost(allocator->device))
        return MEMOPT_OK;
    MO_TRY(mo_events_borrow(allocator, &use));
    memopt_status status = memopt_event_record(use->event, pool->stream);
    if (status == MEMOPT_OK) {
        mo_unlock(&allocator->lock);
        status = memopt_event_sync(use->event);
        mo_lock(&allocator->lock);
    } else if (status == MEMOPT_INVALID_ARGUMENT) {
        mo_stream_dead(allocator, pool->stream); /* its work may still run */
        status = MEMOPT_OK;
    }
    mo_events_return(allocator, use);
    return status;
}

memopt_status mo_drain_pool(memopt_allocator *allocator, mo_pool *pool)
{
    memopt_status status = MEMOPT_OK;
    uint64_t pass = allocator->release_pass;
    if (pool->life == MO_STREAM_ENDED || pool->drained == pass)
        return MEMOPT_OK;
    if (pool->life == MO_STREAM_LIVE)
        status = drain_live(allocator, pool);
    if (status == MEMOPT_OK && pool->life == MO_STREAM_ENDING)
        status = mo_streams_settle(allocator);
    if (status == MEMOPT_OK)
        pool->drained = pass;
    return status;
}

int mo_pool_idle(memopt_allocator *allocator, mo_pool *pool)
{
    memopt_status status = memopt_stream_query(allocator->device, pool->stream);
    if (status == MEMOPT_INVALID_ARGUMENT)
        mo_stream_dead(allocator, pool->stream);
    if (status != MEMOPT_OK)
        return 0;
    pool->drained = allocator->release_pass;
    return 1;
}
