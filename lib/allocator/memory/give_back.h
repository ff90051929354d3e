/* Giving cached memory back to the device. */
#ifndef MO_ALLOCATOR_GIVE_BACK_H
#define MO_ALLOCATOR_GIVE_BACK_H

#include "allocator/blocks/state.h"

/* Gives free memory back while more than `target` bytes are held, then waits for pending frees and
 * ending streams if it must and gives back what they free; *released counts bytes. Slow and lock
 * held; releases lock. */
memopt_status mo_give_back(memopt_allocator *allocator, uint64_t target, uint64_t *released);

#endif
