/* The pages that a pause has taken. Called with slow held. */
#ifndef MO_ALLOCATOR_PAUSED_PAGES_H
#define MO_ALLOCATOR_PAUSED_PAGES_H

#include "allocator/blocks/state.h"

/* Unmaps and releases the listed pages. What the driver refuses stays where it is; the first error,
 * and whether any page was unmapped. Without lock. */
memopt_status mo_paused_unmap(memopt_allocator *allocator, mo_pause *pause, int *out_any);
/* Maps the listed pages that are not; on failure those of this call are unmapped again. Lock held,
 * released meanwhile. */
memopt_status mo_paused_map(memopt_allocator *allocator, mo_pause *pause);
/* Unmaps what mo_paused_map has mapped. Without lock. */
void mo_paused_unmap_fresh(memopt_allocator *allocator, mo_pause *pause);
/* Counts pages that have come or gone as held or not; bytes that went. Lock held. */
uint64_t mo_paused_count(memopt_allocator *allocator, mo_pause *pause);

#endif
