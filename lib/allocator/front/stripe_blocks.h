/* The fast path. Called without a lock. */
#ifndef MO_ALLOCATOR_STRIPE_BLOCKS_H
#define MO_ALLOCATOR_STRIPE_BLOCKS_H

#include "allocator/blocks/state.h"

/* A block for the request, allocated; NULL if that takes more than a stripe has. */
void *mo_stripe_alloc(memopt_allocator *allocator, const mo_request *request);
/* Frees a live block. 0 if that takes more, or the pointer is not one. */
int mo_stripe_free(memopt_allocator *allocator, void *pointer);

#endif
