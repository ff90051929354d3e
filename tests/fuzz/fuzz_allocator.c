/*
 * Sequences of allocator calls against a naive model: a plain list of what is live.
 *
 * The first byte picks the configuration, the rest are operations of one to three bytes. After each
 * one the statistics must equal the model's; a new block must be aligned, large enough and overlap
 * no live one; and the allocator's own invariants must hold.
 */
#include "support/allocator_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MIB ((uint64_t)1 << 20)

enum { MOST_LIVE = 48, STREAMS = 3, MOST_STEPS = 120 };

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s does not hold: %s\n", #condition, memopt_last_error());            \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct live_block {
    unsigned char *at;
    uint64_t bytes;
    memopt_tag tag;
    unsigned char mark;
} live_block;

/* One device for all inputs: opening it costs more than most sequences. */
static memopt_device *device;
static memopt_stream streams[STREAMS];

typedef struct model {
    memopt_allocator *allocator;
    live_block live[MOST_LIVE];
    uint32_t count;
    uint64_t requested, allocations, peak;
    uint64_t limit;
} model;

static uint64_t stat_of(const model *m, const char *name)
{
    uint64_t value = 0;
    REQUIRE(memopt_allocator_get_stat(m->allocator, name, &value) == MEMOPT_OK);
    return value;
}

static void compare(const model *m)
{
    REQUIRE(mo_allocator_check(m->allocator) == MEMOPT_OK);
    REQUIRE(stat_of(m, "allocation.all.current") == m->count);
    REQUIRE(stat_of(m, "allocation.all.allocated") == m->allocations);
    REQUIRE(stat_of(m, "requested_bytes.all.current") == m->requested);
    REQUIRE(stat_of(m, "requested_bytes.all.peak") == m->peak);
    REQUIRE(stat_of(m, "reserved_bytes.all.current") >= stat_of(m, "allocated_bytes.all.current"));
    for (memopt_tag tag = 0; tag < MEMOPT_TAG_USER; tag++) {
        memopt_tag_stats stats = {.struct_size = sizeof stats};
        uint64_t bytes = 0, blocks = 0;
        for (uint32_t i = 0; i < m->count; i++) {
            bytes += m->live[i].tag == tag ? m->live[i].bytes : 0;
            blocks += m->live[i].tag == tag;
        }
        REQUIRE(memopt_allocator_get_tag_stats(m->allocator, tag, &stats) == MEMOPT_OK);
        REQUIRE(stats.current_bytes == bytes && stats.blocks == blocks);
    }
}

static void allocate(model *m, uint64_t bytes, memopt_tag tag, memopt_stream stream)
{
    void *at = NULL, *base;
    uint64_t usable;
    if (m->count == MOST_LIVE)
        return;
    uint64_t held = stat_of(m, "reserved_bytes.all.current");
    memopt_status status = memopt_allocator_alloc(m->allocator, bytes, tag, stream, &at);
    if (m->limit != 0 && held <= m->limit)
        REQUIRE(stat_of(m, "reserved_bytes.all.current") <= m->limit);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return;
    REQUIRE(status == MEMOPT_OK && at != NULL && (uintptr_t)at % 512 == 0);
    REQUIRE(memopt_allocator_get_block(m->allocator, (char *)at + bytes - 1, &base, &usable) ==
            MEMOPT_OK);
    REQUIRE(base == at && usable >= bytes);
    for (uint32_t i = 0; i < m->count; i++)
        REQUIRE(!mo_ranges_overlap(at, bytes, m->live[i].at, m->live[i].bytes));
    live_block block = {at, bytes, tag, (unsigned char)(m->allocations + 1)};
    block.at[0] = block.at[bytes - 1] = block.mark;
    m->live[m->count++] = block;
    m->allocations++;
    m->requested += bytes;
    if (m->requested > m->peak)
        m->peak = m->requested;
}

static void release(model *m, uint32_t index)
{
    live_block block = m->live[index];
    REQUIRE(block.at[0] == block.mark && block.at[block.bytes - 1] == block.mark);
    REQUIRE(memopt_allocator_free(m->allocator, block.at + 8) == MEMOPT_INVALID_ARGUMENT);
    REQUIRE(memopt_allocator_free(m->allocator, block.at) == MEMOPT_OK);
    REQUIRE(memopt_allocator_free(m->allocator, block.at) == MEMOPT_INVALID_ARGUMENT);
    m->live[index] = m->live[--m->count];
    m->requested -= block.bytes;
}

/* Sizes from one byte to 32 MiB, often around the classes' bounds. */
static uint64_t size_of(uint8_t a, uint8_t b)
{
    static const uint64_t bounds[] = {1, 512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 4096, 64 << 10};
    uint64_t near = bounds[a % 8] + b;
    return (a & 8) != 0 ? near - (b > 1 ? 2 : b) : ((uint64_t)b + 1) << (a >> 4);
}

static const uint8_t *step(model *m, const uint8_t *data, const uint8_t *end)
{
    uint8_t op = *data++;
    uint8_t a = data < end ? *data++ : 0, b = 0;
    uint32_t index = m->count != 0 ? a % m->count : 0;
    switch (op % 8) {
    case 0:
    case 1:
    case 2:
        b = data < end ? *data++ : 0;
        allocate(m, size_of(a, b), (op >> 3) % MEMOPT_TAG_USER, streams[(op >> 6) % STREAMS]);
        break;
    case 3:
    case 4:
        if (m->count != 0)
            release(m, index);
        break;
    case 5:
        if (m->count != 0)
            REQUIRE(memopt_allocator_record_stream(m->allocator, m->live[index].at,
                                                   streams[(op >> 6) % STREAMS]) == MEMOPT_OK);
        break;
    case 6:
        REQUIRE(memopt_allocator_trim_sync(m->allocator, NULL) == MEMOPT_OK);
        break;
    default:
        if ((op & 128) != 0) {
            REQUIRE(memopt_allocator_mark_step(m->allocator, a % 3) == MEMOPT_OK);
            break;
        }
        m->limit = (uint64_t)(a % 32) * 2 * MIB;
        REQUIRE(memopt_allocator_set_limit(m->allocator, m->limit) == MEMOPT_OK);
    }
    return data;
}

static void close_device(void)
{
    for (int i = 1; i < STREAMS; i++)
        REQUIRE(memopt_stream_destroy(device, streams[i]) == MEMOPT_OK);
    REQUIRE(memopt_device_close(device) == MEMOPT_OK);
}

static void open_device(void)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 64 * MIB;
    options.threads = 1;
    REQUIRE(memopt_device_open("cpu", &options, &device) == MEMOPT_OK);
    for (int i = 1; i < STREAMS; i++)
        REQUIRE(memopt_stream_create(device, &streams[i]) == MEMOPT_OK);
    atexit(close_device);
}

static void finish(model *m)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    while (m->count != 0)
        release(m, m->count - 1);
    REQUIRE(memopt_allocator_trim_sync(m->allocator, NULL) == MEMOPT_OK);
    REQUIRE(stat_of(m, "reserved_bytes.all.current") == 0);
    REQUIRE(memopt_allocator_destroy(m->allocator) == MEMOPT_OK);
    REQUIRE(memopt_device_get_memory_info(device, &info) == MEMOPT_OK);
    REQUIRE(info.used == 0 && info.reserved_va == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const configs[] = {
        "expandable_segments:True", "", "max_split_size_mb:20,large_segment_size_mb:12",
        "expandable_segments:True,garbage_collection_threshold:0.3,roundup_power2_divisions:4"};
    static model m;
    const uint8_t *end = data + size;
    if (size == 0)
        return 0;
    if (device == NULL)
        open_device();
    memset(&m, 0, sizeof m);
    REQUIRE(memopt_allocator_create(device, configs[*data++ % 4], NULL, &m.allocator) == MEMOPT_OK);
    for (int steps = 0; data < end && steps < MOST_STEPS; steps++) {
        data = step(&m, data, end);
        compare(&m);
    }
    finish(&m);
    return 0;
}
