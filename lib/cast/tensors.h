/*
 * Checks of the tensor lists that callers hand in, and launches over them. Each check names the
 * list and the index of the first tensor that is wrong.
 */
#ifndef MO_CAST_TENSORS_H
#define MO_CAST_TENSORS_H

#include "memopt/base.h"
#include "memopt/device.h"

#include "base/error.h"
#include "kernels/cast/cast.h"

/* 1 where kernels know the type (f32, f16, bf16 and the 8-bit floats). */
int mo_dtype_is_float(memopt_dtype dtype);
/* 1 where the loss scaler knows the type (f32, f16, bf16). */
int mo_dtype_is_gradient(memopt_dtype dtype);

/* One tensor: type known, bytes within the address space, data neither NULL nor
 * misaligned (unless count is 0). subject is "cast: sources" or the like. */
memopt_status mo_tensor_check(const char *subject, uint64_t index, const memopt_tensor *tensor,
                              int (*type_allowed)(memopt_dtype));

/* The last check of a list whose tensors have passed mo_tensor_check: the device can reach them. */
memopt_status mo_tensors_reachable(memopt_device *device, const char *subject,
                                   const memopt_tensor *tensors, uint64_t count);

/* 1 where these tensors are together too large to stay in the caches. */
uint8_t mo_tensors_streaming(const memopt_tensor *tensors, uint64_t count);

/* Sources and destinations of a call named `verb` ("cast"), `count` of each: lists are not NULL and
 * not too long, tensors pass mo_tensor_check, counts are equal in pairs. */
memopt_status mo_pairs_check(const char *verb, const memopt_tensor *destinations,
                             const memopt_tensor *sources, uint64_t count,
                             int (*type_allowed)(memopt_dtype));

/* The remaining checks: no tensor overlaps a written one, except a destination that is its own
 * source if `in_place`; the device can reach them. `destinations` may be NULL: none is written.
 * `amax` is as many f32 that are written, or NULL. */
memopt_status mo_pairs_memory_check(memopt_device *device, const char *verb,
                                    const memopt_tensor *destinations, const memopt_tensor *sources,
                                    uint64_t count, int in_place, const float *amax);

/* Launches a kernel over the chunks of all pairs, in as few launches as MO_CAST_SEGMENTS allows.
 * `segments` and `segment_count` lie in its arguments. Without destinations they are NULL. */
memopt_status mo_pairs_launch(memopt_device *device, const mo_kernel *kernel, const void *args,
                              mo_cast_segment *segments, uint32_t *segment_count,
                              const memopt_tensor *destinations, const memopt_tensor *sources,
                              uint64_t count, memopt_stream stream);

/* A range of bytes of tensor number `index`. */
typedef struct mo_tensor_range {
    uintptr_t begin, end; /* begin < end */
    uint64_t index;
    int32_t written; /* 1: nothing else may overlap it; 0: others that are read may */
} mo_tensor_range;

/* Sorts ranges, and fails if one that is written shares a byte with any other. O(n log n). */
memopt_status mo_tensor_ranges_check(const char *subject, mo_tensor_range *ranges, uint64_t count);

/* The range of a tensor of at least one element that has passed mo_tensor_check. */
static inline mo_tensor_range mo_tensor_range_of(const memopt_tensor *tensor, uint64_t index,
                                                 int32_t written)
{
    uintptr_t begin = (uintptr_t)tensor->data;
    mo_tensor_range range = {begin, begin + tensor->count * memopt_dtype_size(tensor->dtype), index,
                             written};
    return range;
}

#endif
