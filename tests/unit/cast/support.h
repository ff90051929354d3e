/* What the tests of casts and scaler share. */
#ifndef TEST_CAST_SUPPORT_H
#define TEST_CAST_SUPPORT_H

#include "support/bench.h"

#include "kernels/core/numerics.h"
#include "memopt/cast.h"

#include <math.h>

static inline memopt_device *open_cpu(uint32_t threads)
{
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 0, 512 * MIB, threads};
    return bench_open_cpu(&wanted);
}

static inline memopt_tensor tensor_of(void *data, uint64_t count, memopt_dtype dtype)
{
    memopt_tensor tensor = {data, count, dtype};
    return tensor;
}

static inline void *device_memory(memopt_device *device, uint64_t bytes)
{
    void *pointer = NULL;
    OK(mo_mem_alloc(device, bytes, &pointer));
    return pointer;
}

/* splitmix64: the tests' own generator. */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static inline float next_float(uint64_t *state)
{
    return (float)((double)(next_random(state) >> 11) * 0x1p-52 - 1.0);
}

#endif
