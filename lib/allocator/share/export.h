/* The exports of an allocator. */
#ifndef MO_ALLOCATOR_EXPORT_H
#define MO_ALLOCATOR_EXPORT_H

#include "allocator/blocks/state.h"

/* How many there are. Lock held. */
uint64_t mo_exports_count(const memopt_allocator *allocator);
/* Their blocks are no longer exported, and they know no allocator. Lock held. */
void mo_exports_detach(memopt_allocator *allocator);

#endif
