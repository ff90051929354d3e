/* Requests on their way to a block. Called with the lock held. */
#ifndef MO_ALLOCATOR_REQUEST_H
#define MO_ALLOCATOR_REQUEST_H

#include "allocator/blocks/state.h"

/* Finds the request's pool and makes sure that it can be served without host memory.
 * INVALID_ARGUMENT if the driver can tell that there is no such stream, BUSY while its tag is
 * paused. Needed again whenever both locks were released, since a trim may have ended the pool. */
memopt_status mo_request_enter(memopt_allocator *allocator, mo_request *request);
/* A cached block for the request, in no structure; NULL if there is none. A small request may be
 * served by the large pool, which then is request->pool. */
mo_block *mo_request_serve(memopt_allocator *allocator, mo_request *request);

#endif
