/* What tests of primitives share: a small "cpu" device, and an allocator on it. */
#ifndef TEST_SUPPORT_BENCH_H
#define TEST_SUPPORT_BENCH_H

#include "support/checks.h"

#include "device/device.h"
#include "memopt/allocator.h"

/* How the device is to be. */
typedef struct bench_device {
    uint32_t order; /* a memopt_stream_order */
    uint64_t seed;
    uint64_t capacity;
    uint32_t threads;
} bench_device;

static inline memopt_device *bench_open_cpu(const bench_device *wanted)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = wanted->capacity;
    options.threads = wanted->threads;
    options.stream_order = wanted->order;
    options.seed = wanted->seed;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static inline void bench_open_device(const bench_device *wanted, memopt_device **out_device,
                                     memopt_allocator **out_allocator)
{
    *out_device = bench_open_cpu(wanted);
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
        OK(memopt_allocator_get_tag_stats(allocator, tag, &stats));
        bytes += stats.current_bytes;
    }
    return bytes;
}

#endif
