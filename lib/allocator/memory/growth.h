/* The growth of expandable segments. Called with slow and lock held; releases and retakes lock. */
#ifndef MO_ALLOCATOR_GROWTH_H
#define MO_ALLOCATOR_GROWTH_H

#include "allocator/memory/place.h"

/* Where a block of `size` grows: in the pool, or in a segment of a stream that has ended, which
 * becomes the pool's. 1 if there is a place. */
int mo_growth_find(memopt_allocator *allocator, mo_pool *pool, uint64_t size, mo_place *out_place);
/* 1 if growth for a block of `size` would take pages of free blocks though the device has more. */
int mo_growth_moves(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* Gives the place memory; *out_block, in no structure, is all of it. On failure the place is as
 * before. */
memopt_status mo_growth_make(memopt_allocator *allocator, const mo_request *request,
                             mo_place *place, mo_block **out_block);

#endif
