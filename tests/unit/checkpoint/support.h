/* What the checkpoint tests share: a device, an allocator, a stream, and work to run on them. */
#ifndef TEST_CHECKPOINT_SUPPORT_H
#define TEST_CHECKPOINT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "memopt/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

typedef struct bench {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
} bench;

static inline void bench_open(bench *b, uint32_t order, uint64_t seed)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = (uint64_t)64 << 20;
    options.threads = 2;
    options.stream_order = order;
    options.seed = seed;
    memset(b, 0, sizeof *b);
    OK(memopt_device_open("cpu", &options, &b->device));
    OK(memopt_allocator_create(b->device, NULL, NULL, &b->allocator));
    OK(memopt_stream_create(b->device, &b->stream));
}

/* Nothing may be left: the destroy calls say BUSY otherwise. */
static inline void bench_close(bench *b)
{
    OK(memopt_device_sync(b->device));
    OK(memopt_stream_destroy(b->device, b->stream));
    OK(memopt_allocator_destroy(b->allocator));
    OK(memopt_device_close(b->device));
}

static inline uint64_t active_bytes(const bench *b)
{
    memopt_tag_stats stats = {.struct_size = sizeof stats};
    OK(memopt_allocator_tag_stats(b->allocator, MEMOPT_TAG_ACTIVATIONS, &stats));
    return stats.current_bytes;
}

static inline memopt_region_stats region_stats(memopt_region *region)
{
    memopt_region_stats stats = {.struct_size = sizeof stats};
    OK(memopt_region_get_stats(region, &stats));
    return stats;
}

/* The work of a region: out[i] = in[i] * 0x9E3779B97F4A7C15 + salt, in stream order. */
typedef struct scramble_args {
    const uint64_t *in;
    uint64_t *out;
    uint64_t salt;
} scramble_args;

static inline void scramble_cpu(const void *args, uint64_t begin, uint64_t end)
{
    const scramble_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        a->out[i] = a->in[i] * 0x9E3779B97F4A7C15u + a->salt;
}

static const mo_kernel scramble_kernel = {
    "test_scramble", sizeof(scramble_args), 1, {scramble_cpu, NULL, NULL}, NULL};

static inline memopt_status scramble(memopt_device *device, memopt_stream stream, const void *in,
                                     void *out, uint64_t words, uint64_t salt)
{
    scramble_args args = {in, out, salt};
    return mo_launch(device, stream, &scramble_kernel, &args, words);
}

/* A generator such as a trainer keeps for dropout. */
typedef struct random_state {
    uint64_t counter;
} random_state;

static inline uint64_t random_next(random_state *state)
{
    uint64_t x = (state->counter += 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

#endif
