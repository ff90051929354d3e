/* What the driver says of a stream. Called with the lock held. */
#ifndef MO_ALLOCATOR_STREAM_STATE_H
#define MO_ALLOCATOR_STREAM_STATE_H

#include "allocator/blocks/state.h"

/* INVALID_ARGUMENT if the driver can tell that there is no such stream. */
memopt_status mo_stream_check(const memopt_allocator *allocator, memopt_stream stream);
/* The driver has refused the handle of a stream that was LIVE: from here on it is ENDING. */
void mo_stream_dead(memopt_allocator *allocator, memopt_stream stream);
/* True while the stream records a graph; one that is gone does not. */
int mo_stream_captures(memopt_allocator *allocator, memopt_stream stream);

#endif
