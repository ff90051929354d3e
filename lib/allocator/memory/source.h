/* Where the memory of classic segments comes from, and what kind of memory it is. */
#ifndef MO_ALLOCATOR_SOURCE_H
#define MO_ALLOCATOR_SOURCE_H

#include "allocator/blocks/state.h"

/* Copies the options' provider and checks it; all zero if there is none. */
memopt_status mo_source_read(const memopt_allocator_options *options,
                             memopt_memory_provider *out_provider);

/* Memory of a segment, without `lock`. OUT_OF_DEVICE_MEMORY: there is none left. */
memopt_status mo_source_get(memopt_allocator *allocator, uint64_t bytes, void **out_address);
memopt_status mo_source_put(memopt_allocator *allocator, void *address, uint64_t bytes);

/* The device forgets page-locked memory even if its driver does not take it back. */
static inline int mo_source_forgets(const memopt_allocator *allocator)
{
    return allocator->pinned && allocator->family->provider.alloc == NULL;
}

#endif
