/* What the allocator tests share: a device, an allocator, blocks and figures of it. */
#ifndef TEST_ALLOCATOR_SUPPORT_H
#define TEST_ALLOCATOR_SUPPORT_H

#include "support/bench.h"
#include "support/pausing.h"

#include "support/allocator_check.h"

static inline memopt_device *open_cpu(uint64_t capacity, uint32_t order, uint64_t seed)
{
    const bench_device wanted = {order, seed, capacity, 1};
    return bench_open_cpu(&wanted);
}

static inline memopt_allocator *new_allocator(memopt_device *device, const char *config)
{
    memopt_allocator *allocator = NULL;
    OK(memopt_allocator_create(device, config, NULL, &allocator));
    return allocator;
}

static inline void *alloc_on(memopt_allocator *allocator, uint64_t bytes, memopt_stream stream)
{
    void *pointer = NULL;
    OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, stream, &pointer));
    assert_non_null(pointer);
    return pointer;
}

static inline void *alloc(memopt_allocator *allocator, uint64_t bytes)
{
    return alloc_on(allocator, bytes, NULL);
}

static inline uint64_t stat_of(memopt_allocator *allocator, const char *name)
{
    uint64_t value = 0;
    OK(memopt_allocator_get_stat(allocator, name, &value));
    return value;
}

/* Destroys both; nothing may be left. */
static inline void finish(memopt_allocator *allocator, memopt_device *device)
{
    OK(mo_allocator_check(allocator));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

#endif
