/*
 * Streams that end while the allocator has their memory.
 *
 * After on_ending the allocator does not use the handle again: its pools and its queue of recorded
 * uses are ENDING. Blocks can still be freed into them, but nothing is given out. When the stream's
 * work is complete, its free blocks and segments move to the pools of ended memory, where any
 * stream may take them, and its recorded uses end. Nothing here needs memory, so the allocator
 * cannot make a stream's end fail.
 *
 * If the wait for the stream failed, its memory stays ENDING, without a handle, until a wait for
 * the whole device.
 *
 * This folder uses stream handles only under `lock`, which also guards the change to ENDING. So
 * after the change no other thread uses the handle.
 */
#include "allocator/streams/streams.h"

#include "allocator/blocks/pool.h"
#include "allocator/streams/events.h"

#include "base/lock.h"

/* A handle that no stream has: the address of the owner. */
static memopt_stream no_stream(void *owner)
{
    return (memopt_stream)owner;
}

static void settle_pool(memopt_allocator *allocator, mo_pool *pool)
{
    mo_pool *ended = mo_pool_ended(allocator, pool->sizes);
    pool->life = MO_STREAM_ENDED;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next)
        if (segment->pool == pool)
            mo_pool_move_segment(allocator, segment, ended);
}

static memopt_allocator *owner_of(mo_stream_listener *listener)
{
    return (memopt_allocator *)(void *)((char *)listener - offsetof(memopt_allocator, listener));
}

static void on_ending(mo_stream_listener *listener, memopt_stream stream)
{
    memopt_allocator *allocator = owner_of(listener);
    mo_lock(&allocator->lock);
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        if (pool->stream != stream || pool->life == MO_STREAM_ENDED)
            continue;
        mo_plan_forget(allocator, pool, NULL);
        pool->life = MO_STREAM_ENDING;
        pool->awaited = 0;
    }
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        if (queue->stream != stream || queue->life == MO_STREAM_ENDED)
            continue;
        queue->life = MO_STREAM_ENDING;
        queue->awaited = 0;
    }
    mo_unlock(&allocator->lock);
}

static void on_ended(mo_stream_listener *listener, memopt_stream stream, int complete)
{
    memopt_allocator *allocator = owner_of(listener);
    mo_lock(&allocator->lock);
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        if (pool->stream != stream || pool->life == MO_STREAM_ENDED)
            continue;
        mo_plan_forget(allocator, pool, NULL);
        pool->life = MO_STREAM_ENDING;
        pool->stream = no_stream(pool);
        if (complete)
            settle_pool(allocator, pool);
    }
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        if (queue->stream != stream || queue->life == MO_STREAM_ENDED)
            continue;
        queue->life = MO_STREAM_ENDING;
        queue->stream = no_stream(queue);
        if (complete)
            mo_events_settle(allocator, queue);
    }
    mo_unlock(&allocator->lock);
}

void mo_streams_listen(memopt_allocator *allocator)
{
    allocator->listener = (mo_stream_listener){on_ending, on_ended, NULL};
    mo_stream_listen(allocator->device, &allocator->listener);
}

void mo_streams_unlisten(memopt_allocator *allocator)
{
    mo_stream_unlisten(allocator->device, &allocator->listener);
}

/* Marks ending pools and queues as covered by the next wait; true if there are any. */
static int await_ending(memopt_allocator *allocator)
{
    int any = 0;
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        pool->awaited = pool->life == MO_STREAM_ENDING;
        any |= pool->awaited;
    }
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        queue->awaited = queue->life == MO_STREAM_ENDING;
        any |= queue->awaited;
    }
    return any;
}

memopt_status mo_streams_settle(memopt_allocator *allocator)
{
    if (!await_ending(allocator))
        return MEMOPT_OK;
    mo_unlock(&allocator->lock);
    memopt_status status =
        mo_device_lost(allocator->device) ? MEMOPT_OK : memopt_device_sync(allocator->device);
    mo_lock(&allocator->lock);
    if (!mo_work_is_over(status))
        return status;
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (pool->life == MO_STREAM_ENDING && pool->awaited)
            settle_pool(allocator, pool);
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next)
        if (queue->life == MO_STREAM_ENDING && queue->awaited)
            mo_events_settle(allocator, queue);
    return status;
}
