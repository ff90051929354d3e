/* What the checkpoint tests share: a device, an allocator, a stream, and work to run on them. */
#ifndef TEST_CHECKPOINT_SUPPORT_H
#define TEST_CHECKPOINT_SUPPORT_H

#include "memopt/checkpoint.h"
#include "support/bench.h"

typedef struct bench {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
} bench;

static inline bench open_bench(uint32_t order, uint64_t seed)
{
    bench b;
    bench_open_device(&(bench_device){order, seed, 64 * MIB, 2}, &b.device, &b.allocator);
    b.stream = stream_on(b.device);
    return b;
}

static inline void bench_close(bench *b)
{
    OK(memopt_device_sync(b->device));
    bench_close_device(b->device, b->allocator);
}

static inline uint64_t active_bytes(const bench *b)
{
    return bench_active_bytes(b->allocator, MEMOPT_TAG_ACTIVATIONS, MEMOPT_TAG_ACTIVATIONS + 1);
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
    "test_scramble", sizeof(scramble_args), 1, {scramble_cpu, NULL, NULL}, NULL, NULL, NULL};

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
