/* Streams that end. */
#ifndef MO_ALLOCATOR_STREAMS_H
#define MO_ALLOCATOR_STREAMS_H

#include "allocator/blocks/state.h"

/* Starts and stops listening to ending streams. Without lock. */
void mo_streams_listen(memopt_allocator *allocator);
void mo_streams_unlisten(memopt_allocator *allocator);
/* Waits for the work of streams that are ending, or whose end could not be waited for; releases
 * lock meanwhile. Slow and lock held. */
memopt_status mo_streams_settle(memopt_allocator *allocator);

#endif
