/* Tags; see tags.c. */
#ifndef MO_ALLOCATOR_TAGS_H
#define MO_ALLOCATOR_TAGS_H

#include "allocator/blocks/state.h"

/* A new allocator has the built-in tags, and counts what each has. */
void mo_tags_init(memopt_allocator *allocator);
/* A new pool gets its parent's tags. Slow held instead of the lock. */
void mo_tags_copy(memopt_allocator *pool, memopt_allocator *parent);

#endif
