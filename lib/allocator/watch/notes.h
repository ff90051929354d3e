/* What the device is told of blocks; see notes.c. */
#ifndef MO_ALLOCATOR_NOTES_H
#define MO_ALLOCATOR_NOTES_H

#include "allocator/blocks/state.h"

/* The device of a new allocator hears of its blocks, if it wants to. */
void mo_notes_init(memopt_allocator *allocator);

#endif
