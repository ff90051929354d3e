/* The invariant checker of tests. */
#ifndef MO_ALLOCATOR_CHECK_H
#define MO_ALLOCATOR_CHECK_H

#include "allocator/state.h"

/* Walks over everything: INTERNAL with what is broken, else OK. Takes the locks. */
memopt_status mo_allocator_check(memopt_allocator *allocator);

#endif
