/* Tags. Called with the lock held. */
#ifndef MO_ALLOCATOR_TAGS_H
#define MO_ALLOCATOR_TAGS_H

#include "allocator/state.h"

void mo_tags_init(memopt_allocator *allocator);
void mo_tag_add(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);
void mo_tag_subtract(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);

#endif
