/* A block's way into use and back to its pool. Called with the lock held. */
#ifndef MO_ALLOCATOR_BLOCK_LIFE_H
#define MO_ALLOCATOR_BLOCK_LIFE_H

#include "allocator/blocks/state.h"

/* Enters a taken block as live. */
void *mo_block_activate(memopt_allocator *allocator, mo_block *block, const mo_request *request);
/* A live block is freed: it leaves the table, and, unless streams use it still, goes
 * back to its pool. */
void mo_block_discard(memopt_allocator *allocator, mo_block *block);
/* A freed block whose streams are done goes back to its pool. */
void mo_block_retire(memopt_allocator *allocator, mo_block *block);
/* A block in no structure is free, but its pages are not there. */
void mo_block_put_to_sleep(mo_pause *pause, mo_block *block);

#endif
