/* What the tests of casts and scaler share. */
#ifndef TEST_CAST_SUPPORT_H
#define TEST_CAST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels/numerics.h"
#include "memopt/cast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The call succeeds, or the test fails with the library's own message. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            fail_msg("%s: %s: %s", #call, memopt_status_name(ok_status_), memopt_last_error());    \
    } while (0)

/* The call fails with this status and a message that contains this text. */
#define FAILS(wanted, text, call)                                                                  \
    do {                                                                                           \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: %s, not %s", #call, memopt_status_name(got_),                            \
                     memopt_status_name(wanted));                                                  \
        if (strstr(memopt_last_error(), (text)) == NULL)                                           \
            fail_msg("%s: \"%s\" is not in \"%s\"", #call, (text), memopt_last_error());           \
    } while (0)

static inline memopt_device *open_cpu(uint32_t threads)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = (uint64_t)512 << 20;
    options.threads = threads;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static inline memopt_tensor tensor_of(void *data, uint64_t count, memopt_dtype dtype)
{
    memopt_tensor tensor = {data, count, dtype, 0};
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
