/* Page-locked host memory in place of device memory. */
#ifndef MO_ALLOCATOR_PINNED_H
#define MO_ALLOCATOR_PINNED_H

#include "allocator/state.h"

/* Memory of a classic segment, without the lock. OUT_OF_DEVICE_MEMORY: there is none left. */
memopt_status mo_memory_get(memopt_allocator *allocator, uint64_t bytes, void **out_address);
memopt_status mo_memory_put(memopt_allocator *allocator, void *address, uint64_t bytes);

/* Enters a taken block as live, with the lock held. After a failure it is cached again. */
memopt_status mo_block_give(memopt_allocator *allocator, mo_block *block, const mo_request *request,
                            void **out_pointer);

#endif
