/*
 * Old addresses of pages that have moved on; see stale.c. Called with slow and lock held.
 */
#ifndef MO_ALLOCATOR_STALE_H
#define MO_ALLOCATOR_STALE_H

#include "allocator/blocks/state.h"

/* Whether pages that work of the pool's stream may still use can be mapped elsewhere at once. */
static inline int mo_stale_may(const memopt_allocator *allocator, const mo_pool *pool)
{
    return allocator->aliases && pool->life == MO_STREAM_LIVE;
}

/* An event behind all work of the pool's stream, for mo_stale_add; another stream that is to use the
 * pages waits for it. */
memopt_status mo_stale_mark(memopt_allocator *allocator, const mo_pool *pool, memopt_stream user,
                            mo_stream_use **out_use);
/* A claimed block whose handles have gone to other places; it takes the event. */
void mo_stale_add(memopt_allocator *allocator, mo_block *block, mo_stream_use *use);
/* Blocks whose handles are all in pages[] again are free again: the move was undone. */
void mo_stale_restore(memopt_allocator *allocator);
/* Unmaps those whose work is complete; with `wait` waits for the others. What an observer or the
 * driver keeps stays in the list; the first of their answers is returned. Nothing during a capture.
 * Releases lock meanwhile. */
memopt_status mo_stale_collect(memopt_allocator *allocator, int wait);

#endif
