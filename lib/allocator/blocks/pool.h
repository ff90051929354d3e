/* Pools. Called with the lock held, or in the stripe of the pool's stream. */
#ifndef MO_ALLOCATOR_POOL_H
#define MO_ALLOCATOR_POOL_H

#include "allocator/blocks/state.h"

/* The pool of a live stream; NULL if there is none yet. */
mo_pool *mo_pool_find(const memopt_allocator *allocator, memopt_stream stream, mo_sizes sizes);
/* The same, or a new one; NULL: no host memory. */
mo_pool *mo_pool_get(memopt_allocator *allocator, memopt_stream stream, mo_sizes sizes);
/* Which of a stream's pools a block of this size comes from. */
static inline mo_sizes mo_pool_sizes(const memopt_allocator *allocator, uint64_t size)
{
    if (size <= allocator->small_limit)
        return MO_SIZES_SMALL;
    return size <= allocator->medium_limit ? MO_SIZES_MEDIUM : MO_SIZES_LARGE;
}
/* The size of a block for `bytes`; 0 where it overflows. */
uint64_t mo_round_size(const memopt_allocator *allocator, uint64_t bytes);
/* Bytes of memory the device must give for a block of this size in a classic segment. */
uint64_t mo_segment_size(const memopt_allocator *allocator, const mo_request *request);
/* Cuts what is worth keeping off a block that is in no structure. One block was reserved. */
void mo_pool_cut(memopt_allocator *allocator, mo_block *block, uint64_t size);
/* The size that the block is cut to. */
uint64_t mo_pool_cut_size(const memopt_allocator *allocator, const mo_block *block, uint64_t size);
/* For a small request: a hole of the stream's other pools between blocks that share its pages, so
 * that the block keeps no page from others. NULL if none. */
mo_block *mo_pool_hole(const memopt_allocator *allocator, memopt_stream stream, uint64_t size);
/* True unless max_split_size_mb forbids a block of this size for the request. */
int mo_pool_serves(const memopt_allocator *allocator, const mo_block *block, uint64_t size);
/* The block of the stream's pools that a request is for: the best fit, or a hole. It stays in the
 * bins. NULL if none, or if memory of ended streams comes first. */
mo_block *mo_pool_choose(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size);
/* In a stripe: takes a block out of the bins, cut to size; a struct of the stripe's was reserved.
 */
void mo_pool_take_in(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block,
                     uint64_t size);
/* In a stripe: mo_pool_put. */
void mo_pool_put_in(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block);
/* Takes the best fit out of the holes or the bins, cut to size; NULL if none. One block was
 * reserved. */
mo_block *mo_pool_take(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* The same; if the pool has none, takes over a segment of a stream that has ended. */
mo_block *mo_pool_serve(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* Joins a block that is in no structure with its free neighbours and puts it into the bins. */
void mo_pool_put(memopt_allocator *allocator, mo_block *block);
/* Ends pools without a segment; slow held. */
void mo_pools_trim(memopt_allocator *allocator);
/* The segment's blocks belong to another pool of the same sizes from now on. */
void mo_pool_move_segment(memopt_allocator *allocator, mo_segment *segment, mo_pool *pool);
/* The pool of memory whose streams have ended. */
static inline mo_pool *mo_pool_ended(memopt_allocator *allocator, mo_sizes sizes)
{
    return &allocator->ended[sizes];
}
/* Into and out of the bins, without joining. */
void mo_pool_insert(memopt_allocator *allocator, mo_block *block);
void mo_pool_remove(memopt_allocator *allocator, mo_block *block);

#endif
