/* Norm and clip: the total of squares in the order of kernels/reduce/reduce.h, then one item
 * finishes. The caller's scratch holds the clip's coefficient, then the partial sums. */
#include "cast/gradients.h"

#include "base/checked.h"

#include <inttypes.h>

/* What a call works on, checked. */
typedef struct reduction {
    memopt_device *device;
    const memopt_tensor *tensors;
    uint64_t count, chunks;
    double *scratch;
    memopt_stream stream;
} reduction;

/* Bytes for one coefficient and the partial sums; 0 on overflow. */
static uint64_t scratch_of(uint64_t chunks)
{
    uint64_t bytes;
    return mo_mul_u64(mo_total_scratch(chunks) + 1, sizeof(double), &bytes) ? bytes : 0;
}

memopt_status memopt_norm_get_scratch(const memopt_tensor *tensors, uint64_t count,
                                      uint64_t *out_bytes)
{
    uint64_t chunks = 0;
    if (out_bytes == NULL || (tensors == NULL && count != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "norm_get_scratch: %s is NULL",
                       out_bytes == NULL ? "out_bytes" : "tensors");
    for (uint64_t i = 0; i < count; i++)
        if (!mo_add_u64(chunks, mo_chunks_of(tensors[i].count), &chunks))
            return mo_fail(MEMOPT_INVALID_ARGUMENT, "norm_get_scratch: 2^64 elements or more");
    uint64_t bytes = scratch_of(chunks);
    if (bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "norm_get_scratch: 2^64 bytes or more");
    *out_bytes = bytes;
    return MEMOPT_OK;
}

static memopt_status check_sum(memopt_device *device, const double *sum)
{
    if (sum == NULL || (uintptr_t)sum % sizeof(double) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "square_sum: sum %p is NULL or not aligned to 8",
                       (const void *)sum);
    return mo_reachable(device, "square_sum", 0, sum, sizeof *sum);
}

static memopt_status check_norm(memopt_device *device, const char *verb, const float *norm,
                                int required)
{
    if (norm == NULL && required)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: norm is NULL", verb);
    if ((uintptr_t)norm % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: norm %p is not aligned to an f32", verb,
                       (const void *)norm);
    return norm == NULL ? MEMOPT_OK : mo_reachable(device, verb, 0, norm, sizeof *norm);
}

static memopt_status check_scratch(const reduction *r, const char *verb, const void *scratch,
                                   uint64_t bytes)
{
    uint64_t least = scratch_of(r->chunks);
    if (scratch == NULL || (uintptr_t)scratch % sizeof(double) != 0 || bytes < least)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: scratch %p has %" PRIu64 " bytes; %" PRIu64
                       " are needed, aligned to 8 (memopt_norm_get_scratch)",
                       verb, scratch, bytes, least);
    return mo_reachable(r->device, verb, 1, scratch, bytes);
}

/* Enqueues the total over all tensors; *out_sum is its address (NULL: no elements, the total is
 * 0). */
static memopt_status enqueue_total(const reduction *r, const double **out_sum)
{
    double *at = r->scratch + 1;
    *out_sum = NULL;
    if (r->chunks == 0)
        return MEMOPT_OK;
    mo_reduce_args args = {.partials = at};
    MO_TRY(mo_gradients_reduce(r->device, &mo_kernel_square_sum, &args, r->tensors, r->count,
                               r->stream));
    return mo_launch_sum(r->device, r->stream, at, r->chunks, out_sum);
}

static memopt_status start(reduction *r, const char *verb, int clips, void *scratch,
                           uint64_t scratch_bytes)
{
    if (r->device == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: device is NULL", verb);
    memopt_status status =
        mo_gradient_list_check(r->device, verb, r->tensors, r->count, clips, &r->chunks);
    if (status == MEMOPT_OK)
        status = check_scratch(r, verb, scratch, scratch_bytes);
    r->scratch = scratch;
    return status;
}

memopt_status memopt_norm(memopt_device *device, float *norm, const memopt_tensor *tensors,
                          uint64_t count, void *scratch, uint64_t scratch_bytes,
                          memopt_stream stream)
{
    reduction r = {.device = device, .tensors = tensors, .count = count, .stream = stream};
    const double *sum = NULL;
    MO_TRY(start(&r, "norm", 0, scratch, scratch_bytes));
    MO_TRY(check_norm(device, "norm", norm, 1));
    MO_TRY(enqueue_total(&r, &sum));
    mo_norm_args args = {.sum = sum, .norm = norm};
    return mo_launch(device, stream, &mo_kernel_norm, &args, 1);
}

memopt_status memopt_square_sum(memopt_device *device, double *sum, const memopt_tensor *tensors,
                                uint64_t count, void *scratch, uint64_t scratch_bytes,
                                memopt_stream stream)
{
    reduction r = {.device = device, .tensors = tensors, .count = count, .stream = stream};
    const double *total = NULL;
    MO_TRY(start(&r, "square_sum", 0, scratch, scratch_bytes));
    MO_TRY(check_sum(device, sum));
    MO_TRY(enqueue_total(&r, &total));
    return total == NULL ? memopt_fill(device, sum, 0, sizeof *sum, stream)
                         : memopt_copy(device, sum, total, sizeof *sum, stream);
}

memopt_status memopt_clip(memopt_device *device, float *norm, const memopt_tensor *tensors,
                          uint64_t count, double max_norm, void *scratch, uint64_t scratch_bytes,
                          memopt_stream stream)
{
    reduction r = {.device = device, .tensors = tensors, .count = count, .stream = stream};
    const double *sum = NULL;
    MO_TRY(start(&r, "clip", 1, scratch, scratch_bytes));
    MO_TRY(check_norm(device, "clip", norm, 0));
    if (!(max_norm > 0.0 && max_norm <= 1.7976931348623157e308))
        MO_TRY(mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "clip: max_norm is %g; it must be finite and above 0", max_norm));
    MO_TRY(enqueue_total(&r, &sum));
    float *coefficient = (float *)scratch;
    mo_norm_args args = {
        .sum = sum, .norm = norm, .coefficient = coefficient, .max_norm = max_norm};
    MO_TRY(mo_launch(device, stream, &mo_kernel_norm, &args, 1));
    mo_scale_args scale = {.factor = coefficient};
    return mo_gradients_scale(device, &scale, tensors, count, stream);
}
