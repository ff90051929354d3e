/* What the tests of casts and scaler share. */
#ifndef TEST_CAST_SUPPORT_H
#define TEST_CAST_SUPPORT_H

#include "support/bench.h"
#include "support/random.h"

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

#endif
