/*
 * Recorded streams. A block that other streams use is freed in two steps: at the free an event is
 * recorded on each of those streams, and the block goes back to its pool when all are complete.
 *
 * Recording the stream makes what a free needs (the struct, the event, the stream's queue), so a
 * free needs no memory. Before new memory is made, the pool's stream waits for such events on the
 * device: then the block serves that stream although its last use is not complete.
 * While a stream records a graph, none of its events is recorded, asked or
 * waited for; its uses are deferred until the capture is over. So are the uses of a stream that is
 * ending: its handle may not be used, but its work may still run.
 *
 * A stream that its owner has destroyed without memopt_stream_release_sync() is found by the
 * driver's refusal of the handle. It is then an ending one, whose work a wait for the device ends.
 */
#include "allocator/streams/events.h"

#include "allocator/blocks/block_life.h"
#include "allocator/streams/stream_state.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

/* Allocations within which every stream with pending frees is asked, if they are not too many. */
enum { MOST_INTERVAL = 32 };

/* --- queues ----------------------------------------------------------------------------------- */

static mo_use_queue *find_queue(const memopt_allocator *allocator, memopt_stream stream)
{
    mo_use_queue *queue = allocator->events.by_stream[mo_stream_bucket(stream)];
    while (queue != NULL && (queue->stream != stream || queue->life != MO_STREAM_LIVE))
        queue = queue->same;
    return queue;
}

static void leave_bucket(const mo_use_queue *queue)
{
    mo_use_queue **place = queue->bucket;
    while (*place != queue)
        place = &(*place)->same;
    *place = queue->same;
}

/* A queue whose stream has ended, with nothing left of it; NULL if there is none. */
static mo_use_queue *spent_queue(memopt_allocator *allocator)
{
    mo_use_queue *queue = allocator->events.queues;
    while (queue != NULL && (queue->life != MO_STREAM_ENDED || queue->uses != 0))
        queue = queue->next;
    if (queue != NULL)
        leave_bucket(queue);
    return queue;
}

/* A new queue, for a stream that the driver knows as far as it can tell. */
static memopt_status new_queue(memopt_allocator *allocator, memopt_stream stream,
                               mo_use_queue **out_queue)
{
    MO_TRY(mo_stream_check(allocator, stream));
    mo_use_queue *queue = spent_queue(allocator);
    if (queue == NULL) {
        queue = mo_calloc(1, sizeof *queue);
        if (queue == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        queue->tail = &queue->head;
        queue->next = allocator->events.queues;
        allocator->events.queues = queue;
    }
    queue->stream = stream;
    queue->life = MO_STREAM_LIVE;
    queue->bucket = &allocator->events.by_stream[mo_stream_bucket(stream)];
    queue->same = *queue->bucket;
    *queue->bucket = queue;
    *out_queue = queue;
    return MEMOPT_OK;
}

static int has_pending(const mo_use_queue *queue)
{
    return queue->head != NULL || queue->deferred != NULL;
}

/* Behind the others with pending uses. */
static void list(mo_events *events, mo_use_queue *queue)
{
    queue->later = NULL;
    queue->earlier = events->last;
    if (events->last != NULL)
        events->last->later = queue;
    else
        events->first = queue;
    events->last = queue;
    queue->listed = 1;
    events->listed++;
}

static void unlist(mo_events *events, mo_use_queue *queue)
{
    if (queue->earlier != NULL)
        queue->earlier->later = queue->later;
    else
        events->first = queue->later;
    if (queue->later != NULL)
        queue->later->earlier = queue->earlier;
    else
        events->last = queue->earlier;
    queue->listed = 0;
    events->listed--;
}

/* Puts it into the list or takes it out, after its uses have changed. */
static void relist(mo_events *events, mo_use_queue *queue)
{
    if (has_pending(queue) && !queue->listed)
        list(events, queue);
    else if (!has_pending(queue) && queue->listed)
        unlist(events, queue);
}

static void append(mo_use_queue *queue, mo_stream_use *use)
{
    use->next = NULL;
    use->number = queue->records++;
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
    use->queue = NULL;
    use->next = allocator->events.unused;
    allocator->events.unused = use;
}

memopt_status mo_events_note(memopt_allocator *allocator, mo_block *block, memopt_stream stream)
{
    mo_stream_use *use;
    const mo_pool *pool = block->segment->pool;
    if (pool->life == MO_STREAM_LIVE && stream == pool->stream)
        return MEMOPT_OK;
    mo_use_queue *queue = find_queue(allocator, stream);
    MO_TRY(queue == NULL ? new_queue(allocator, stream, &queue) : MEMOPT_OK);
    for (use = block->uses; use != NULL; use = use->next)
        if (use->queue == queue)
            return MEMOPT_OK;
    MO_TRY(mo_events_borrow(allocator, &use));
    queue->uses++;
    use->queue = queue;
    use->block = block;
    use->recorded = 0;
    use->next = block->uses;
    block->uses = use;
    const mo_event event = {.what = MO_USE, .block = block, .stream = stream};
    mo_tell(allocator, &event);
    return MEMOPT_OK;
}

/* The next use of the stream needs no memory and no event. */
memopt_status mo_events_reserve(memopt_allocator *allocator, memopt_stream stream)
{
    mo_stream_use *use;
    mo_use_queue *queue = find_queue(allocator, stream);
    MO_TRY(queue == NULL ? new_queue(allocator, stream, &queue) : MEMOPT_OK);
    MO_TRY(mo_events_borrow(allocator, &use));
    mo_events_return(allocator, use);
    return MEMOPT_OK;
}

void mo_events_drop(memopt_allocator *allocator, mo_block *block)
{
    while (block->uses != NULL) {
        mo_stream_use *use = block->uses;
        block->uses = use->next;
        use->queue->uses--;
        mo_events_return(allocator, use);
    }
}

/* --- what the driver says of a stream --------------------------------------------------------- */

/* Events may be recorded on the queue's stream. */
static int usable(memopt_allocator *allocator, const mo_use_queue *queue)
{
    return queue->life == MO_STREAM_LIVE && !mo_stream_captures(allocator, queue->stream) &&
           queue->life == MO_STREAM_LIVE;
}

int mo_capturing(memopt_allocator *allocator)
{
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (pool->life == MO_STREAM_LIVE && mo_stream_captures(allocator, pool->stream))
            return 1;
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next)
        if (queue->life == MO_STREAM_LIVE && mo_stream_captures(allocator, queue->stream))
            return 1;
    return 0;
}

/* --- frees ------------------------------------------------------------------------------------ */

/* Records the use's event. A lost device has no work left: the event is complete. On a stream that
 * is gone nothing is recorded, and the use waits for the device. */
static memopt_status record(memopt_allocator *allocator, mo_stream_use *use)
{
    memopt_status status = memopt_event_record(use->event, use->queue->stream);
    use->recorded = status != MEMOPT_INVALID_ARGUMENT;
    if (!use->recorded)
        mo_stream_dead(allocator, use->queue->stream);
    int over =
        !use->recorded || (status == MEMOPT_DEVICE_LOST && mo_device_lost(allocator->device));
    return over ? MEMOPT_OK : status;
}

/* One use less; the last one retires the block. */
static void complete(memopt_allocator *allocator, mo_stream_use *use)
{
    mo_block *block = use->block;
    use->queue->uses--;
    mo_events_return(allocator, use);
    allocator->events.pending--;
    if (--block->pending == 0) {
        mo_tell_block(allocator, MO_COMPLETED, block);
        mo_block_retire(allocator, block);
    }
}

/* Recorded uses move to their queues, others to those that are deferred. */
void mo_events_free(memopt_allocator *allocator, mo_block *block)
{
    mo_stream_use *next;
    for (mo_stream_use *use = block->uses; use != NULL; use = next) {
        mo_use_queue *queue = use->queue;
        next = use->next;
        block->pending++;
        allocator->events.pending++;
        if (use->recorded) {
            append(queue, use);
        } else {
            use->next = queue->deferred;
            queue->deferred = use;
        }
        if (!queue->listed)
            allocator->events.due = allocator->events.interval = 0;
        relist(&allocator->events, queue);
    }
    block->uses = NULL;
    block->state = MO_BLOCK_PENDING;
    block->freed_at = allocator->clock;
    mo_tell_block(allocator, MO_WAITS, block);
}

memopt_status mo_events_record(memopt_allocator *allocator, mo_block *block)
{
    for (mo_stream_use *use = block->uses; use != NULL; use = use->next) {
        use->recorded = usable(allocator, use->queue);
        MO_TRY(use->recorded ? record(allocator, use) : MEMOPT_OK);
    }
    return MEMOPT_OK;
}

/* After a capture: the uses that waited for its end. Recording later than the free is safe; what
 * cannot be recorded is tried again next time. */
static void record_deferred(memopt_allocator *allocator, mo_use_queue *queue)
{
    while (queue->deferred != NULL) {
        mo_stream_use *use = queue->deferred;
        if (record(allocator, use) != MEMOPT_OK || !use->recorded)
            return;
        queue->deferred = use->next;
        append(queue, use);
    }
}

static mo_stream_use *take_first(mo_use_queue *queue)
{
    mo_stream_use *use = queue->head;
    queue->head = use->next;
    if (queue->head == NULL)
        queue->tail = &queue->head;
    return use;
}

/* Drops a live block's use of the queue's stream, if it has one. */
static void forget_use(memopt_allocator *allocator, mo_block *block, mo_use_queue *queue)
{
    for (mo_stream_use **place = &block->uses; *place != NULL; place = &(*place)->next) {
        mo_stream_use *use = *place;
        if (use->queue != queue)
            continue;
        *place = use->next;
        queue->uses--;
        mo_events_return(allocator, use);
        return;
    }
}

/* Another thread that waits for a use completes it. */
void mo_events_settle(memopt_allocator *allocator, mo_use_queue *queue)
{
    queue->life = MO_STREAM_ENDED;
    while (queue->head != NULL)
        complete(allocator, take_first(queue));
    while (queue->deferred != NULL) {
        mo_stream_use *use = queue->deferred;
        queue->deferred = use->next;
        complete(allocator, use);
    }
    relist(&allocator->events, queue);
    for (mo_segment *segment = allocator->segments; segment != NULL && queue->uses != 0;
         segment = segment->next)
        for (mo_block *block = segment->first; block != NULL; block = block->next)
            if (block->state == MO_BLOCK_LIVE)
                forget_use(allocator, block, queue);
}

/* A use whose event is not complete yet keeps those behind it waiting. */
static void process_queue(memopt_allocator *allocator, mo_use_queue *queue)
{
    if (queue->life == MO_STREAM_LIVE) {
        if (!usable(allocator, queue) && queue->life == MO_STREAM_LIVE)
            return;
        if (queue->life == MO_STREAM_LIVE)
            record_deferred(allocator, queue);
    }
    while (queue->head != NULL && mo_work_is_over(memopt_event_query(queue->head->event)))
        complete(allocator, take_first(queue));
    relist(&allocator->events, queue);
}

void mo_events_process(memopt_allocator *allocator)
{
    mo_use_queue *later;
    for (mo_use_queue *queue = allocator->events.first; queue != NULL; queue = later) {
        later = queue->later;
        process_queue(allocator, queue);
    }
}

/* A stream that was asked in vain is asked less often: the work on it takes its time, and what no
 * cached block serves asks all streams. */
void mo_events_process_next(memopt_allocator *allocator)
{
    mo_events *events = &allocator->events;
    mo_use_queue *queue = events->first;
    uint64_t before = events->pending;
    if (mo_events_in(events, allocator->clock) != 0)
        return;
    unlist(events, queue);
    process_queue(allocator, queue);
    relist(events, queue);
    uint64_t longer = mo_min_u64(2 * events->interval, MOST_INTERVAL / (events->listed + 1));
    events->interval = events->pending < before ? 1 : mo_max_u64(longer, 1);
    events->due = allocator->clock + events->interval;
}

/* Takes the first use of a block of `pool` (any if NULL) out of its queue. */
static mo_stream_use *detach(memopt_allocator *allocator, const mo_pool *pool)
{
    for (mo_use_queue *queue = allocator->events.first; queue != NULL; queue = queue->later) {
        for (mo_stream_use **place = &queue->head; *place != NULL; place = &(*place)->next) {
            mo_stream_use *use = *place;
            if (pool != NULL && use->block->segment->pool != pool)
                continue;
            *place = use->next;
            if (*place == NULL)
                queue->tail = place;
            relist(&allocator->events, queue);
            return use;
        }
    }
    return NULL;
}

/* Events of one stream are complete in the order of their records. */
static void complete_up_to(memopt_allocator *allocator, mo_stream_use *use)
{
    mo_use_queue *queue = use->queue;
    uint64_t number = use->number;
    complete(allocator, use);
    while (queue->head != NULL && queue->head->number < number)
        complete(allocator, take_first(queue));
    relist(&allocator->events, queue);
}

memopt_status mo_events_wait_one(memopt_allocator *allocator, const mo_pool *pool, int *out_found)
{
    for (mo_use_queue *queue = allocator->events.first; queue != NULL; queue = queue->later)
        if (queue->deferred != NULL && usable(allocator, queue))
            record_deferred(allocator, queue);
    mo_stream_use *use = detach(allocator, pool);
    *out_found = use != NULL;
    if (use == NULL)
        return MEMOPT_OK;
    mo_unlock(&allocator->lock);
    memopt_status status = memopt_event_sync(use->event);
    mo_lock(&allocator->lock);
    if (mo_work_is_over(status) || use->queue->life == MO_STREAM_ENDED) {
        complete_up_to(allocator, use); /* a fault is an error, but the work is over */
    } else {
        prepend(use->queue, use);
        relist(&allocator->events, use->queue);
    }
    return status;
}

/* --- waits on the device ---------------------------------------------------------------------- */

static int is_of(const mo_stream_use *use, const mo_pool *pool)
{
    const mo_pool *owner = use->block->segment->pool;
    return owner->life == MO_STREAM_LIVE && owner->stream == pool->stream;
}

static int goes_before(const mo_block *a, const mo_block *b)
{
    return a->freed_at != b->freed_at ? a->freed_at < b->freed_at : a->address < b->address;
}

/* The first freed of the pool's pending blocks that are large enough; NULL if there is none. */
static const mo_block *first_pending(const mo_events *events, const mo_pool *pool, uint64_t size)
{
    const mo_block *found = NULL;
    for (const mo_use_queue *queue = events->first; queue != NULL; queue = queue->later)
        for (const mo_stream_use *use = queue->head; use != NULL; use = use->next)
            if (use->block->segment->pool == pool && use->block->size >= size &&
                (found == NULL || goes_before(use->block, found)))
                found = use->block;
    return found;
}

/* The pool's stream waits for the use, and so for those before it: those of its own blocks are
 * complete for it. */
static int order_behind(memopt_allocator *allocator, mo_use_queue *queue, const mo_pool *pool,
                        const mo_stream_use *last)
{
    mo_stream_use **place = &queue->head;
    if (memopt_stream_wait_event(allocator->device, pool->stream, last->event) != MEMOPT_OK)
        return 0;
    for (int done = 0; !done;) {
        mo_stream_use *use = *place;
        done = use == last;
        if (!is_of(use, pool)) {
            place = &use->next;
            continue;
        }
        *place = use->next;
        if (*place == NULL)
            queue->tail = place;
        complete(allocator, use);
    }
    relist(&allocator->events, queue);
    return 1;
}

int mo_events_order(memopt_allocator *allocator, const mo_pool *pool, uint64_t size)
{
    const mo_block *block = first_pending(&allocator->events, pool, size);
    mo_use_queue *later;
    int ordered = 0;
    for (mo_use_queue *queue = allocator->events.first; queue != NULL; queue = later) {
        const mo_stream_use *last = NULL;
        later = queue->later;
        for (const mo_stream_use *use = queue->head; use != NULL; use = use->next)
            if (block != NULL ? use->block == block : is_of(use, pool))
                last = use;
        if (last != NULL)
            ordered += order_behind(allocator, queue, pool, last);
    }
    return ordered;
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
        leave_bucket(queue);
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
    while (allocator->events.queues != NULL) {
        mo_use_queue *queue = allocator->events.queues;
        allocator->events.queues = queue->next;
        end_uses(queue->head, &result);
        end_uses(queue->deferred, &result);
        mo_free(queue);
    }
    return result;
}
