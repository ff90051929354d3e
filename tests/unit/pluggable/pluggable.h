/* Allocators that frameworks reach by address, on the cpu device, with a stream that can record. */
#ifndef MEMOPT_TEST_PLUGGABLE_H
#define MEMOPT_TEST_PLUGGABLE_H

#include "unit/allocator/support.h"

#include "allocator/allocator.h"

#include "pluggable/pluggable.h"
#include "support/watched.h"

static memopt_stream recorder; /* records where `captured` is it */
static int synced;

static inline memopt_status device_sync(memopt_device *device)
{
    synced++;
    return real->sync(device);
}

/* The first allocator of device 0, with a stream that a test can let record. */
static inline memopt_allocator *start(const char *config)
{
    memopt_allocator *allocator = NULL;
    OK(memopt_pluggable_configure("cpu", config, NULL));
    OK(memopt_pluggable_get_allocator(0, 0, &allocator));
    memopt_device *device = mo_allocator_device(allocator);
    (void)watch(device);
    ops.sync = device_sync;
    recorder = stream_on(device);
    synced = 0;
    return allocator;
}

/* The allocator's blocks go. */
static inline void stop(memopt_allocator *allocator)
{
    free_live(allocator);
    OK(memopt_stream_destroy(mo_allocator_device(allocator), recorder));
    OK(memopt_pluggable_end());
}

#define PLUGGABLE_TEST(name, allocator, config)                                                    \
    static void name(memopt_allocator *allocator);                                                 \
    TEST_NAMED(#name, name##_started, NULL, NULL, no_fixture)                                      \
    {                                                                                              \
        memopt_allocator *first_one = start(config);                                               \
        name(first_one);                                                                           \
        stop(first_one);                                                                           \
    }                                                                                              \
    static void name(memopt_allocator *allocator)

#endif
