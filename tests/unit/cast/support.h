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

/* For norms of a tensor of four elements. */
typedef struct norm_fixture {
    memopt_device *device;
    float *data; /* 1024 floats, 0; norm is the last but one */
    float *norm;
    memopt_tensor tensor; /* four elements */
} norm_fixture;

static inline int begin_norm(void **state)
{
    norm_fixture *f = calloc(1, sizeof *f);
    f->device = open_cpu(2);
    f->data = device_memory(f->device, 4096);
    memset(f->data, 0, 4096);
    f->norm = f->data + 1022;
    f->tensor = tensor_of(f->data, 4, MEMOPT_DTYPE_F32);
    *state = f;
    return 0;
}

static inline int end_norm(void **state)
{
    norm_fixture *f = *state;
    OK(mo_mem_free(f->device, f->data, 4096));
    OK(memopt_device_close(f->device));
    free(f);
    return 0;
}

#endif
