/* The end of a member that may be paused. */
#ifndef MO_ALLOCATOR_PAUSE_H
#define MO_ALLOCATOR_PAUSE_H

#include "allocator/blocks/state.h"

/* Gives back what the pause holds; no other thread uses the member. */
memopt_status mo_pause_end(memopt_allocator *allocator);

#endif
