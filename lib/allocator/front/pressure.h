/* The slow path. */
#ifndef MO_ALLOCATOR_PRESSURE_H
#define MO_ALLOCATOR_PRESSURE_H

#include "allocator/blocks/state.h"

/* The order of attempts. Enters and leaves without a lock. */
memopt_status mo_alloc_slow(memopt_allocator *allocator, mo_request *request, void **out_pointer);

#endif
