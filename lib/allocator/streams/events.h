/* Recorded streams and deferred frees. Called with the lock held. */
#ifndef MO_ALLOCATOR_EVENTS_H
#define MO_ALLOCATOR_EVENTS_H

#include "allocator/blocks/block_life.h"
#include "allocator/blocks/pool.h"

memopt_status mo_events_note(memopt_allocator *allocator, mo_block *block, memopt_stream stream);
/* Records the work so far of a block's uses, as far as it may be recorded now. The block stays live. */
memopt_status mo_events_record(memopt_allocator *allocator, mo_block *block);
/* Starts the deferred free of a block with uses, behind what was recorded. */
void mo_events_free(memopt_allocator *allocator, mo_block *block);
/* Retires every block whose events are complete. */
void mo_events_process(memopt_allocator *allocator);
/* The same for the next stream of those with pending frees, if it is time to ask it: a few calls of
 * the driver at most. */
void mo_events_process_next(memopt_allocator *allocator);
/* Allocations after this clock until it is time to ask; UINT64_MAX if no free is pending. */
static inline uint64_t mo_events_in(const mo_events *events, uint64_t clock)
{
    if (events->first == NULL)
        return UINT64_MAX;
    return events->due > clock ? events->due - clock : 0;
}
/* Waits for one pending use, of a block of `pool` if not NULL; releases lock meanwhile. *out_found
 * is 0 if there is none. Slow held. */
memopt_status mo_events_wait_one(memopt_allocator *allocator, const mo_pool *pool, int *out_found);
/* Lets the pool's stream wait on the device for the uses of its pending blocks: of one block of at
 * least that size if there is one, else of all. They go back to the pool; 0 if there are none. */
int mo_events_order(memopt_allocator *allocator, const mo_pool *pool, uint64_t size);
/* Returns the uses of a block that is freed by force. */
void mo_events_drop(memopt_allocator *allocator, mo_block *block);
/* True while a stream that the allocator knows records a graph. */
int mo_capturing(memopt_allocator *allocator);
/* Ends the queues of streams that no block is recorded on. */
void mo_events_trim(memopt_allocator *allocator);
/* An event of the pool, for the slow path; given back by mo_events_return. */
memopt_status mo_events_borrow(memopt_allocator *allocator, mo_stream_use **out_use);
void mo_events_return(memopt_allocator *allocator, mo_stream_use *use);
memopt_status mo_events_end(memopt_allocator *allocator);
/* The work of the queue's stream is complete: so are all uses of it. */
void mo_events_settle(memopt_allocator *allocator, mo_use_queue *queue);

/* What noting the stream needs is had. */
memopt_status mo_events_reserve(memopt_allocator *allocator, memopt_stream stream);

/* Enters a taken block as live. After a failure it is cached again.
 *
 * A block may be of no stream's pool (the host writes page-locked memory at once, not in stream
 * order), or of another one's that lends it. Then the stream of the allocation is recorded like any
 * other that uses the block. */
static inline memopt_status mo_block_give(memopt_allocator *allocator, mo_block *block,
                                          const mo_request *request, void **out_pointer)
{
    const mo_pool *pool = request->pool;
    int own = pool->life == MO_STREAM_LIVE && pool->stream == request->stream;
    memopt_status status = own ? MEMOPT_OK : mo_events_reserve(allocator, request->stream);
    if (status != MEMOPT_OK) {
        mo_pool_put(allocator, block);
        return status;
    }
    *out_pointer = mo_block_activate(allocator, block, request);
    if (!own)
        (void)mo_events_note(allocator, block, request->stream);
    return MEMOPT_OK;
}

#endif
