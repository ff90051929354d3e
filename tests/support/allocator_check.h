/* The invariant checker of tests. */
#ifndef TEST_ALLOCATOR_CHECK_H
#define TEST_ALLOCATOR_CHECK_H

#include "allocator/blocks/state.h"

/* Walks over everything: INTERNAL with what is broken, else OK. Takes the locks. */
memopt_status mo_allocator_check(memopt_allocator *allocator);

#endif
