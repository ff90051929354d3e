/* What the allocator tests share: a device, an allocator, blocks and figures of it. */
#ifndef TEST_ALLOCATOR_SUPPORT_H
#define TEST_ALLOCATOR_SUPPORT_H

#include "support/bench.h"
#include "support/pausing.h"

#include "support/allocator_check.h"

#define CAPACITY (64 * MIB)

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

static inline uint64_t held_by(memopt_allocator *allocator)
{
    return stat_of(allocator, "reserved_bytes.all.current");
}

static inline memopt_pool *pool_of(memopt_allocator *parent, const memopt_pool_options *options)
{
    memopt_pool *pool = NULL;
    OK(memopt_pool_create(parent, options, &pool));
    return pool;
}

/* Frees what is live, and destroys both, with the device's streams. */
static inline void finish(memopt_allocator *allocator, memopt_device *device)
{
    free_live(allocator);
    OK(mo_allocator_check(allocator));
    bench_close_device(device, allocator);
}

/* In eager order. */
static inline memopt_device *eager(uint64_t capacity)
{
    return open_cpu(capacity, MEMOPT_STREAM_ORDER_EAGER, 0);
}

/* A test of an allocator, called `allocator` in it, on a device opened so; with each of the
 * configurations, the number of which is `c`. What is live at its end goes (finish). */
#define ALLOCATOR_TEST(name, allocator, opened, ...)                                               \
    ALLOCATOR_TEST_OF(name, allocator, opened, new_allocator(device, config), __VA_ARGS__)
/* With an allocator made so of `device` and `config`. */
#define ALLOCATOR_TEST_OF(name, allocator, opened, made, ...)                                      \
    ALLOCATOR_TESTS(name, allocator, , opened, made, __VA_ARGS__)
/* Again and again: a loop over seeds. */
#define ALLOCATOR_SWEEP(name, allocator, loop, opened, ...)                                        \
    ALLOCATOR_TESTS(name, allocator, loop, opened, new_allocator(device, config), __VA_ARGS__)
#define ALLOCATOR_TESTS(name, allocator, loop, opened, made, ...)                                  \
    static void name(memopt_device *device, memopt_allocator *allocator, int c);                   \
    TEST_NAMED(#name, name##_with_each, NULL, NULL, no_fixture)                                    \
    {                                                                                              \
        static const char *const with[] = {__VA_ARGS__};                                           \
        for (int i = 0; i < (int)(sizeof with / sizeof *with); i++)                                \
            loop                                                                                   \
            {                                                                                      \
                const char *config = with[i];                                                      \
                memopt_device *device = opened;                                                    \
                memopt_allocator *one = ((void)config, made);                                      \
                name(device, one, i);                                                              \
                finish(one, device);                                                               \
            }                                                                                      \
    }                                                                                              \
    static void name(memopt_device *device, memopt_allocator *allocator, int c)
#define CLASSIC ""
#define EXPANDABLE "expandable_segments:True"
#define BOTH CLASSIC, EXPANDABLE
static const char *const configs[] = {BOTH};

#endif
