/* Lists of gradients: their checks, and launches over their chunks. */
#include "cast/scaler.h"
#include "cast/tensors.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>

static memopt_status check_written(const char *subject, const memopt_tensor *gradients,
                                   uint64_t count)
{
    uint64_t used = 0;
    memopt_status status;
    mo_range *ranges = mo_malloc(count * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < count; i++)
        if (gradients[i].count != 0)
            ranges[used++] = mo_range_of(&gradients[i], i, 1);
    status = mo_ranges_check(subject, ranges, used);
    mo_free(ranges);
    return status;
}

memopt_status mo_gradients_check(const char *verb, const memopt_scaler *scaler,
                                 const memopt_tensor *gradients, uint64_t count, int written,
                                 uint64_t *out_chunks)
{
    char subject[48];
    uint64_t chunks = 0;
    memopt_status status = MEMOPT_OK;
    if (scaler == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler %s: scaler is NULL", verb);
    if (count != 0 && gradients == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "scaler %s: the tensors are NULL but count is %" PRIu64, verb, count);
    if (count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "scaler %s: %" PRIu64 " tensors; a call takes at most 2^32 - 1", verb,
                       count);
    snprintf(subject, sizeof subject, "scaler %s: tensors", verb);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        status = mo_tensor_check(subject, i, &gradients[i], mo_dtype_is_gradient);
        chunks += mo_chunks_of(gradients[i].count);
    }
    if (status == MEMOPT_OK && written && count != 0)
        status = check_written(subject, gradients, count);
    if (status == MEMOPT_OK)
        status = mo_tensors_reachable(scaler->device, subject, gradients, count);
    if (status == MEMOPT_OK)
        *out_chunks = chunks;
    return status;
}

/* Describes gradients from *next on, as many as fit; moves *next; returns their chunks. */
static uint64_t fill_segments(mo_segment *segments, uint32_t *out_count,
                              const memopt_tensor *gradients, uint64_t count, uint64_t *next)
{
    uint64_t chunks = 0;
    uint32_t used = 0;
    for (; *next < count && used < MO_SEGMENTS; (*next)++) {
        const memopt_tensor *gradient = &gradients[*next];
        if (gradient->count == 0)
            continue;
        segments[used].data = gradient->data;
        segments[used].count = gradient->count;
        segments[used].first_chunk = chunks;
        segments[used].dtype = (uint32_t)gradient->dtype;
        segments[used].reserved = 0;
        chunks += mo_chunks_of(gradient->count);
        used++;
    }
    *out_count = used;
    return chunks;
}

memopt_status mo_gradients_reduce(memopt_scaler *scaler, const mo_kernel *kernel,
                                  mo_reduce_args *args, const memopt_tensor *gradients,
                                  uint64_t count, memopt_stream stream)
{
    uint64_t next = 0;
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK && next < count) {
        uint64_t chunks = fill_segments(args->segments, &args->count, gradients, count, &next);
        status = mo_launch(scaler->device, stream, kernel, args, chunks);
        if (args->partials != NULL)
            args->partials += chunks;
    }
    return status;
}

memopt_status mo_gradients_scale(memopt_scaler *scaler, mo_scale_args *args,
                                 const memopt_tensor *gradients, uint64_t count,
                                 memopt_stream stream)
{
    uint64_t next = 0;
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK && next < count) {
        uint64_t chunks = fill_segments(args->segments, &args->count, gradients, count, &next);
        status = mo_launch(scaler->device, stream, &mo_kernel_scale, args, chunks);
    }
    return status;
}
