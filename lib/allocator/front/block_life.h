/* A block's way into use and back to its pool. Called with the lock held. */
#ifndef MO_ALLOCATOR_BLOCK_LIFE_H
#define MO_ALLOCATOR_BLOCK_LIFE_H

#include "allocator/blocks/state.h"

/* Finds the request's pool and makes sure that it can be served without host memory.
 * INVALID_ARGUMENT if the driver can tell that there is no such stream, BUSY while its tag is
 * paused. Needed again whenever both locks were released, since a trim may have ended the pool. */
memopt_status mo_request_enter(memopt_allocator *allocator, mo_request *request);
/* A cached block for the request, in no structure; NULL if there is none. A small request may be
 * served by the large pool, which then is request->pool. */
mo_block *mo_request_serve(memopt_allocator *allocator, mo_request *request);
/* Enters a taken block as live. */
void *mo_block_activate(memopt_allocator *allocator, mo_block *block, const mo_request *request);
/* Removes a block that is no longer live from the counts. */
void mo_block_count_free(memopt_allocator *allocator, const mo_block *block);
/* A live block is freed: it leaves the table and the counts, and, unless streams use it still, goes
 * back to its pool. */
void mo_block_discard(memopt_allocator *allocator, mo_block *block);
/* A freed block whose streams are done goes back to its pool. */
void mo_block_retire(memopt_allocator *allocator, mo_block *block);
/* A block in no structure is free, but its pages are not there. */
void mo_block_put_to_sleep(mo_pause *pause, mo_block *block);

#endif
