/*
 * Page-locked host memory in place of device memory.
 *
 * The host writes it at once, not in stream order. So its pools belong to no stream, and the stream
 * of an allocation is recorded like any other that uses the block: a freed block waits for the
 * events of all of them, and then any stream can get it.
 */
#include "allocator/pinned.h"

#include "allocator/block_life.h"
#include "allocator/events.h"

memopt_status mo_memory_get(memopt_allocator *allocator, uint64_t bytes, void **out_address)
{
    if (!allocator->pinned)
        return mo_mem_alloc(allocator->device, bytes, out_address);
    memopt_status status = memopt_host_alloc(allocator->device, bytes, out_address);
    return status == MEMOPT_OUT_OF_HOST_MEMORY ? MEMOPT_OUT_OF_DEVICE_MEMORY : status;
}

memopt_status mo_memory_put(memopt_allocator *allocator, void *address, uint64_t bytes)
{
    return allocator->pinned ? memopt_host_free(allocator->device, address)
                             : mo_mem_free(allocator->device, address, bytes);
}

memopt_status mo_block_give(memopt_allocator *allocator, mo_block *block, const mo_request *request,
                            void **out_pointer)
{
    void *pointer = mo_block_activate(allocator, block, request);
    if (allocator->pinned) {
        memopt_status status = mo_events_note(allocator, block, request->stream);
        if (status != MEMOPT_OK) {
            mo_block_discard(allocator, block);
            return status;
        }
    }
    *out_pointer = pointer;
    return MEMOPT_OK;
}
