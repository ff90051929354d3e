/* Tags. Called with the lock held. */
#ifndef MO_ALLOCATOR_TAGS_H
#define MO_ALLOCATOR_TAGS_H

#include "allocator/blocks/state.h"

void mo_tags_init(memopt_allocator *allocator);
/* A new pool gets its parent's tags. Slow held instead of the lock. */
void mo_tags_copy(memopt_allocator *pool, memopt_allocator *parent);
void mo_tag_add(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);
void mo_tag_subtract(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);

#endif
