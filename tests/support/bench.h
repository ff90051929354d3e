/* What tests of primitives share: a small "cpu" device, and an allocator on it. */
#ifndef TEST_SUPPORT_BENCH_H
#define TEST_SUPPORT_BENCH_H

#include "support/checks.h"

#include "device/front/handle.h"
#include "memopt/allocator.h"

/* How the device is to be. */
typedef struct bench_device {
    uint32_t order; /* a memopt_stream_order */
    uint64_t seed;
    uint64_t capacity;
    uint32_t threads;
} bench_device;

static uint32_t bench_races; /* a memopt_race_search, of what is opened from now on */

static inline memopt_device *bench_open_cpu(const bench_device *wanted)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = wanted->capacity;
    options.threads = wanted->threads;
    options.stream_order = wanted->order;
    options.seed = wanted->seed;
    options.race = bench_races;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static inline void bench_open_device(const bench_device *wanted, memopt_device **out_device,
                                     memopt_allocator **out_allocator)
{
    *out_device = bench_open_cpu(wanted);
    OK(memopt_allocator_create(*out_device, NULL, NULL, out_allocator));
}

static inline memopt_memory_info info_of(memopt_device *device)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    OK(memopt_device_get_memory_info(device, &info));
    return info;
}

static inline memopt_stream stream_on(memopt_device *device)
{
    memopt_stream stream = NULL;
    OK(memopt_stream_create(device, &stream));
    return stream;
}

/* Without timing. */
static inline memopt_event *event_on(memopt_device *device)
{
    memopt_event *event = NULL;
    OK(memopt_event_create(device, 0, &event));
    return event;
}

enum { LIVE_AT_A_TIME = 1024 };

typedef struct live_blocks {
    void *blocks[LIVE_AT_A_TIME];
    uint64_t count;
} live_blocks;

static inline memopt_status note_live(void *user, const memopt_block_info *block)
{
    live_blocks *live = user;
    if (block->state == MEMOPT_BLOCK_ACTIVE_ALLOCATED && live->count < LIVE_AT_A_TIME)
        live->blocks[live->count++] = block->address;
    return MEMOPT_OK;
}

/* Frees what is live. */
static inline void free_live(memopt_allocator *allocator)
{
    live_blocks live = {.count = 1};
    while (live.count != 0) {
        live.count = 0;
        OK(memopt_allocator_snapshot(allocator, note_live, &live));
        for (uint64_t i = 0; i < live.count; i++)
            OK(memopt_allocator_free(allocator, live.blocks[i]));
    }
}

/* Ends the device's streams, and the device; nothing else may be left, or it says BUSY. */
static inline void end_device(memopt_device *device)
{
    const mo_range *stream;
    while ((stream = mo_ranges_after(&device->account.streams, 0)) != NULL)
        OK(memopt_stream_destroy(device, (memopt_stream)stream->start));
    OK(memopt_device_close(device));
}

/* A test of a device, called `device` in it. What is left of it is streams. */
#define DEVICE_TEST(name, device, opened)                                                          \
    static void name(memopt_device *device);                                                       \
    TEST_NAMED(#name, name##_on_a_device, NULL, NULL, no_fixture)                                  \
    {                                                                                              \
        memopt_device *open = opened;                                                              \
        name(open);                                                                                \
        memopt_memory_info info = info_of(open);                                                   \
        assert_int_equal(info.used, 0);                                                            \
        assert_int_equal(info.free, info.total);                                                   \
        assert_int_equal(info.reserved_va, 0);                                                     \
        end_device(open);                                                                          \
    }                                                                                              \
    static void name(memopt_device *device)

/* Ends live blocks, the allocator, and the device with its streams. */
static inline void bench_close_device(memopt_device *device, memopt_allocator *allocator)
{
    free_live(allocator);
    OK(memopt_allocator_destroy(allocator));
    end_device(device);
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
