/*
 * Memory of classic segments: the device's, page-locked host memory, or a provider's.
 *
 * A provider stands in for the driver: it is called in the family's turn and under no lock. What it
 * calls of the same family and needs the turn is refused.
 */
#include "allocator/memory/source.h"

#include "base/options.h"

#include <inttypes.h>

memopt_status mo_source_read(const memopt_allocator_options *options,
                             memopt_memory_provider *out_provider)
{
    memopt_status status = mo_options_read(out_provider, sizeof *out_provider, options->provider,
                                           "memopt_memory_provider");
    if (status != MEMOPT_OK || options->provider == NULL)
        return status;
    if (out_provider->alloc == NULL || out_provider->free == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_create: the provider's %s is NULL",
                       out_provider->alloc == NULL ? "alloc" : "free");
    return MEMOPT_OK;
}

static memopt_status refuse_address(memopt_allocator *allocator, void *address, uint64_t bytes)
{
    const memopt_memory_provider *provider = &allocator->family->provider;
    if (address != NULL)
        (void)provider->free(provider->user, address, bytes);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "allocator_alloc: the memory provider gave %p for %" PRIu64 " bytes; it must be "
                   "a multiple of %" PRIu64,
                   address, bytes, MO_BLOCK_UNIT);
}

static memopt_status fail_provider(memopt_status status, const char *what, uint64_t bytes)
{
    return mo_fail(status, "allocator: the memory provider could not %s %" PRIu64 " bytes: %s",
                   what, bytes, memopt_status_name(status));
}

static memopt_status get_provided(memopt_allocator *allocator, uint64_t bytes, void **out_address)
{
    const memopt_memory_provider *provider = &allocator->family->provider;
    void *address = NULL;
    memopt_status status = provider->alloc(provider->user, bytes, &address);
    if (status == MEMOPT_OK && (address == NULL || (uintptr_t)address % MO_BLOCK_UNIT != 0))
        status = refuse_address(allocator, address, bytes);
    else if (status == MEMOPT_OK)
        *out_address = address;
    else if (status != MEMOPT_OUT_OF_DEVICE_MEMORY && status != MEMOPT_OUT_OF_HOST_MEMORY)
        status = fail_provider(status, "give", bytes);
    return status;
}

static memopt_status put_provided(memopt_allocator *allocator, void *address, uint64_t bytes)
{
    const memopt_memory_provider *provider = &allocator->family->provider;
    memopt_status status = provider->free(provider->user, address, bytes);
    return status == MEMOPT_OK ? status : fail_provider(status, "take back", bytes);
}

memopt_status mo_source_get(memopt_allocator *allocator, uint64_t bytes, void **out_address)
{
    memopt_status status;
    if (allocator->family->provider.alloc != NULL)
        status = get_provided(allocator, bytes, out_address);
    else if (allocator->pinned)
        status = memopt_host_alloc(allocator->device, bytes, out_address);
    else
        return mo_mem_alloc(allocator->device, bytes, out_address);
    return status == MEMOPT_OUT_OF_HOST_MEMORY ? MEMOPT_OUT_OF_DEVICE_MEMORY : status;
}

memopt_status mo_source_put(memopt_allocator *allocator, void *address, uint64_t bytes)
{
    if (allocator->family->provider.alloc != NULL)
        return put_provided(allocator, address, bytes);
    return allocator->pinned ? memopt_host_free(allocator->device, address)
                             : mo_mem_free(allocator->device, address, bytes);
}
