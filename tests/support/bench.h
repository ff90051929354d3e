/*
 * What unit tests of primitives share: checks that print the library's own words, and a small "cpu"
 * device with an allocator.
 */
#ifndef TEST_SUPPORT_BENCH_H
#define TEST_SUPPORT_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "memopt/allocator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)

#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            fail_msg("%s: %s: %s", #call, memopt_status_name(ok_status_), memopt_last_error());    \
    } while (0)

#define FAILS(wanted, call)                                                                        \
    do {                                                                                           \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: %s, not %s", #call, memopt_status_name(got_),                            \
                     memopt_status_name(wanted));                                                  \
    } while (0)

#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (strstr(memopt_last_error(), (text)) == NULL)                                           \
            fail_msg("\"%s\" is not in \"%s\"", (text), memopt_last_error());                      \
    } while (0)

/* How the device is to be. */
typedef struct bench_device {
    uint32_t order; /* a memopt_stream_order */
    uint64_t seed;
    uint64_t capacity;
    uint32_t threads;
} bench_device;

static inline void bench_open_device(const bench_device *wanted, memopt_device **out_device,
                                     memopt_allocator **out_allocator)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = wanted->capacity;
    options.threads = wanted->threads;
    options.stream_order = wanted->order;
    options.seed = wanted->seed;
    OK(memopt_device_open("cpu", &options, out_device));
    OK(memopt_allocator_create(*out_device, NULL, NULL, out_allocator));
}

/* Nothing may be left: these calls say BUSY otherwise. */
static inline void bench_close_device(memopt_device *device, memopt_allocator *allocator)
{
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

/* Bytes in use of the tags from `first` up to but not `end`. */
static inline uint64_t bench_active_bytes(memopt_allocator *allocator, memopt_tag first,
                                          memopt_tag end)
{
    memopt_tag_stats stats = {.struct_size = sizeof stats};
    uint64_t bytes = 0;
    for (memopt_tag tag = first; tag < end; tag++) {
        OK(memopt_allocator_tag_stats(allocator, tag, &stats));
        bytes += stats.current_bytes;
    }
    return bytes;
}

#endif
