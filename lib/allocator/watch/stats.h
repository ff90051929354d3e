/* Statistics; see stats.c. */
#ifndef MO_ALLOCATOR_STATS_H
#define MO_ALLOCATOR_STATS_H

#include "allocator/blocks/state.h"

/* A new allocator counts its blocks. */
void mo_stats_init(memopt_allocator *allocator);

#endif
