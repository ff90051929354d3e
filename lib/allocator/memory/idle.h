/* Giving back what was free for a time; see idle.c. */
#ifndef MO_ALLOCATOR_IDLE_H
#define MO_ALLOCATOR_IDLE_H

#include "allocator/blocks/state.h"

/* Looks at the clock where the configuration has idle_release_seconds, and rarely does more.
 * Without any lock. */
void mo_idle_check_now(memopt_allocator *allocator);

static inline void mo_idle_check(memopt_allocator *allocator)
{
    if (allocator->idle.period != 0)
        mo_idle_check_now(allocator);
}

/* From the configuration, when the allocator is made. */
void mo_idle_init(memopt_allocator *allocator);

/* For tests: nanoseconds in place of the system's; NULL: the system's. */
void mo_idle_set_clock(uint64_t (*now)(void));

#endif
