/*
 * Recorded streams. A block that other streams use is freed in two steps: at the free an event is
 * recorded on each of those streams, and the block goes back to its pool when all are complete.
 *
 * What a free needs (the struct, the event, the stream's queue) is made when the stream is
 * recorded, so a free needs no memory. While a stream that the allocator knows records a graph, no
 * event is recorded, asked or waited for; such frees are deferred until the capture is over.
 */
#include "allocator/internal.h"

#include "base/memory.h"

static mo_use_queue *find_queue(memopt_allocator *allocator, memopt_stream stream)
{
    mo_use_queue *queue = allocator->events.queues;
    while (queue != NULL && queue->stream != stream)
        queue = queue->next;
    return queue;
}

static mo_use_queue *get_queue(memopt_allocator *allocator, memopt_stream stream)
{
    mo_use_queue *queue = find_queue(allocator, stream);
    if (queue != NULL)
        return queue;
    queue = mo_calloc(1, sizeof *queue);
    if (queue == NULL)
        return NULL;
    queue->stream = stream;
    queue->tail = &queue->head;
    queue->next = allocator->events.queues;
    allocator->events.queues = queue;
    return queue;
}

static void append(mo_use_queue *queue, mo_stream_use *use)
{
    use->next = NULL;
    *queue->tail = use;
    queue->tail = &use->next;
}

static void prepend(mo_use_queue *queue, mo_stream_use *use)
{
    use->next = queue->head;
    if (queue->head == NULL)
        queue->tail = &use->next;
    queue->head = use;
}

memopt_status mo_events_borrow(memopt_allocator *allocator, mo_stream_use **out_use)
{
    mo_stream_use *use = allocator->events.unused;
    if (use != NULL) {
        allocator->events.unused = use->next;
        *out_use = use;
        return MEMOPT_OK;
    }
    use = mo_calloc(1, sizeof *use);
    if (use == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = memopt_event_create(allocator->device, 0, &use->event);
    if (status != MEMOPT_OK) {
        mo_free(use);
        return status;
    }
    *out_use = use;
    return MEMOPT_OK;
}

void mo_events_return(memopt_allocator *allocator, mo_stream_use *use)
{
    use->block = NULL;
    use->next = allocator->events.unused;
    allocator->events.unused = use;
}

memopt_status mo_events_note(memopt_allocator *allocator, mo_block *block, memopt_stream stream)
{
    mo_stream_use *use;
    if (stream == block->segment->pool->stream)
        return MEMOPT_OK;
    for (use = block->uses; use != NULL; use = use->next)
        if (use->stream == stream)
            return MEMOPT_OK;
    mo_use_queue *queue = get_queue(allocator, stream);
    if (queue == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_events_borrow(allocator, &use);
    if (status != MEMOPT_OK)
        return status;
    queue->uses++;
    use->stream = stream;
    use->block = block;
    use->next = block->uses;
    block->uses = use;
    return MEMOPT_OK;
}

void mo_events_drop(memopt_allocator *allocator, mo_block *block)
{
    while (block->uses != NULL) {
        mo_stream_use *use = block->uses;
        block->uses = use->next;
        find_queue(allocator, use->stream)->uses--;
        mo_events_return(allocator, use);
    }
}

static int stream_captures(memopt_allocator *allocator, memopt_stream stream)
{
    int32_t capturing = 0;
    return mo_stream_capturing(allocator->device, stream, &capturing) == MEMOPT_OK && capturing;
}

int mo_capturing(memopt_allocator *allocator)
{
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (stream_captures(allocator, pool->stream))
            return 1;
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next)
        if (stream_captures(allocator, queue->stream))
            return 1;
    return 0;
}

/* Records the use's event. A stream that is gone has no work left: *out_gone. */
static memopt_status record(mo_stream_use *use, int *out_gone)
{
    memopt_status status = memopt_event_record(use->event, use->stream);
    *out_gone = status == MEMOPT_INVALID_ARGUMENT;
    return *out_gone ? MEMOPT_OK : status;
}

/* One use less; the last one retires the block. */
static void complete(memopt_allocator *allocator, mo_stream_use *use)
{
    mo_block *block = use->block;
    find_queue(allocator, use->stream)->uses--;
    mo_events_return(allocator, use);
    allocator->events.pending--;
    if (--block->pending == 0)
        mo_block_retire(allocator, block);
}

/* Recorded uses move to their queues; the block's list was emptied into `use`. */
static void enqueue(memopt_allocator *allocator, mo_block *block)
{
    mo_stream_use *use = block->uses, *next;
    block->uses = NULL;
    block->pending = 0;
    for (mo_stream_use *each = use; each != NULL; each = each->next)
        block->pending++;
    allocator->events.pending += block->pending;
    for (; use != NULL; use = next) {
        next = use->next;
        append(find_queue(allocator, use->stream), use);
    }
}

static void defer(memopt_allocator *allocator, mo_block *block)
{
    mo_stream_use *next;
    for (mo_stream_use *use = block->uses; use != NULL; use = next) {
        next = use->next;
        use->next = allocator->events.deferred;
        allocator->events.deferred = use;
        block->pending++;
        allocator->events.pending++;
    }
    block->uses = NULL;
}

memopt_status mo_events_free(memopt_allocator *allocator, mo_block *block)
{
    if (mo_capturing(allocator)) {
        block->state = MO_BLOCK_PENDING;
        defer(allocator, block);
        return MEMOPT_OK;
    }
    for (mo_stream_use *use = block->uses; use != NULL; use = use->next) {
        int gone; /* the event is then complete, or was never recorded, which counts as complete */
        memopt_status status = record(use, &gone);
        if (status != MEMOPT_OK)
            return status;
    }
    block->state = MO_BLOCK_PENDING;
    enqueue(allocator, block);
    return MEMOPT_OK;
}

/* After a capture: the uses that waited for its end. Recording later than the free is safe. */
static void record_deferred(memopt_allocator *allocator)
{
    mo_stream_use **place = &allocator->events.deferred;
    while (*place != NULL) {
        mo_stream_use *use = *place;
        int gone;
        if (record(use, &gone) != MEMOPT_OK) {
            place = &use->next; /* the next time again */
            continue;
        }
        *place = use->next;
        append(find_queue(allocator, use->stream), use);
    }
}

void mo_events_process(memopt_allocator *allocator)
{
    if (allocator->events.pending == 0 || mo_capturing(allocator))
        return;
    record_deferred(allocator);
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        while (queue->head != NULL && memopt_event_query(queue->head->event) == MEMOPT_OK) {
            mo_stream_use *use = queue->head;
            queue->head = use->next;
            if (queue->head == NULL)
                queue->tail = &queue->head;
            complete(allocator, use);
        }
    }
}

/* Takes the first use of a block of `pool` (any if NULL) out of its queue. */
static mo_stream_use *detach(memopt_allocator *allocator, const mo_pool *pool,
                             mo_use_queue **out_queue)
{
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        for (mo_stream_use **place = &queue->head; *place != NULL; place = &(*place)->next) {
            mo_stream_use *use = *place;
            if (pool != NULL && use->block->segment->pool != pool)
                continue;
            *place = use->next;
            if (*place == NULL)
                queue->tail = place;
            *out_queue = queue;
            return use;
        }
    }
    return NULL;
}

memopt_status mo_events_wait_one(memopt_allocator *allocator, const mo_pool *pool, int *out_found)
{
    mo_use_queue *queue;
    if (!mo_capturing(allocator))
        record_deferred(allocator);
    mo_stream_use *use = detach(allocator, pool, &queue);
    *out_found = use != NULL;
    if (use == NULL)
        return MEMOPT_OK;
    pthread_mutex_unlock(&allocator->lock);
    memopt_status status = memopt_event_sync(use->event);
    pthread_mutex_lock(&allocator->lock);
    if (status == MEMOPT_OK || status == MEMOPT_DEVICE_FAULT) /* a fault is told, but it is done */
        complete(allocator, use);
    else
        prepend(queue, use);
    return status;
}

void mo_events_trim(memopt_allocator *allocator)
{
    mo_use_queue **place = &allocator->events.queues;
    while (*place != NULL) {
        mo_use_queue *queue = *place;
        if (queue->uses != 0) {
            place = &queue->next;
            continue;
        }
        *place = queue->next;
        mo_free(queue);
    }
}

/* Destroys a list's events; the first error is kept in *result. */
static void end_uses(mo_stream_use *use, memopt_status *result)
{
    while (use != NULL) {
        mo_stream_use *next = use->next;
        memopt_status status = memopt_event_destroy(use->event);
        if (*result == MEMOPT_OK)
            *result = status;
        mo_free(use);
        use = next;
    }
}

memopt_status mo_events_end(memopt_allocator *allocator)
{
    memopt_status result = MEMOPT_OK;
    end_uses(allocator->events.unused, &result);
    end_uses(allocator->events.deferred, &result);
    while (allocator->events.queues != NULL) {
        mo_use_queue *queue = allocator->events.queues;
        allocator->events.queues = queue->next;
        end_uses(queue->head, &result);
        mo_free(queue);
    }
    return result;
}
