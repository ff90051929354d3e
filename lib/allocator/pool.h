/* Pools. Called with the lock held. */
#ifndef MO_ALLOCATOR_POOL_H
#define MO_ALLOCATOR_POOL_H

#include "allocator/state.h"

/* Finds or makes the pool of a live stream; NULL: no host memory. */
/* NULL if there is none yet. */
mo_pool *mo_pool_find(const memopt_allocator *allocator, memopt_stream stream, unsigned kind);
mo_pool *mo_pool_get(memopt_allocator *allocator, memopt_stream stream, unsigned kind);
/* The size of a block for `bytes`; 0 where it overflows. */
uint64_t mo_round_size(const memopt_allocator *allocator, uint64_t bytes);
/* Bytes of memory the device must give for a block of this size in a classic segment. */
uint64_t mo_segment_size(const memopt_allocator *allocator, const mo_request *request);
/* Cuts what is worth keeping off a block that is in no structure. One block was reserved. */
void mo_pool_cut(memopt_allocator *allocator, mo_block *block, uint64_t size);
/* Takes the best fit out of the bins, cut to size; NULL if none. One block was reserved. */
mo_block *mo_pool_take(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* The same; if the pool has none, takes over a segment of a stream that has ended. */
mo_block *mo_pool_serve(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* Joins a block that is in no structure with its free neighbours and puts it into the bins. */
void mo_pool_put(memopt_allocator *allocator, mo_block *block);
/* Ends pools without a segment; slow held. */
void mo_pools_trim(memopt_allocator *allocator);
/* The segment's blocks belong to another pool of the same kind from now on. */
void mo_pool_move_segment(memopt_allocator *allocator, mo_segment *segment, mo_pool *pool);
/* The pool of memory whose streams have ended. */
static inline mo_pool *mo_pool_ended(memopt_allocator *allocator, unsigned kind)
{
    return &allocator->ended[kind - MO_POOL_SMALL];
}
/* Into and out of the bins, without joining. */
void mo_pool_insert(memopt_allocator *allocator, mo_block *block);
void mo_pool_remove(memopt_allocator *allocator, mo_block *block);

#endif
