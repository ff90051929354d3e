/* Statistics; see stats.c. */
#ifndef MO_ALLOCATOR_STATS_H
#define MO_ALLOCATOR_STATS_H

#include "allocator/blocks/state.h"

/* A new allocator counts its blocks. */
void mo_stats_init(memopt_allocator *allocator);

/* The key of a statistic; NULL behind the last one. */
const char *mo_stat_name(uint64_t index);

#endif
