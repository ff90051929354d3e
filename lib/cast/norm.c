/* Norm and clip: the total of squares in the order of kernels/reduce/reduce.h, then one item
 * finishes. The device's scratch holds the clip's coefficient, then the partial sums. */
#include "cast/gradients.h"

/* What a call works on, checked. */
typedef struct reduction {
    memopt_device *device;
    const memopt_tensor *tensors;
    uint64_t count, chunks;
    memopt_stream stream;
    mo_scratch *piece;
    double *scratch;
} reduction;

static memopt_status check_sum(memopt_device *device, const double *sum)
{
    if (sum == NULL || (uintptr_t)sum % sizeof(double) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "square_sum: sum %p is NULL or not aligned to 8",
                       (const void *)sum);
    return mo_reachable(device, "square_sum", 0, sum, sizeof *sum);
}

static memopt_status check_norm(memopt_device *device, const float *norm, int required)
{
    if (norm == NULL && required)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "norm: norm is NULL");
    if ((uintptr_t)norm % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "norm: norm %p is not aligned to an f32",
                       (const void *)norm);
    return norm == NULL ? MEMOPT_OK : mo_reachable(device, "norm", 0, norm, sizeof *norm);
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

static memopt_status start(reduction *r, const char *verb, int clips)
{
    if (r->device == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: device is NULL", verb);
    if (mo_device_inherited(r->device))
        return mo_fail_inherited(verb);
    return mo_gradient_list_check(r->device, verb, r->tensors, r->count, clips, &r->chunks);
}

/* Everything is checked. The scratch is for one coefficient and the partial sums. */
static memopt_status take(reduction *r)
{
    void *scratch = NULL;
    const uint64_t bytes = (mo_total_scratch(r->chunks) + 1) * sizeof(double);
    memopt_status status = mo_scratch_take(r->device, bytes, r->stream, &r->piece, &scratch);
    r->scratch = scratch;
    return status;
}

memopt_status memopt_square_sum(memopt_device *device, double *sum, const memopt_tensor *tensors,
                                uint64_t count, memopt_stream stream)
{
    reduction r = {.device = device, .tensors = tensors, .count = count, .stream = stream};
    const double *total = NULL;
    MO_TRY(start(&r, "square_sum", 0));
    MO_TRY(check_sum(device, sum));
    if (r.chunks == 0)
        return memopt_fill(device, sum, 0, sizeof *sum, stream);
    MO_TRY(take(&r));
    memopt_status status = enqueue_total(&r, &total);
    if (status == MEMOPT_OK)
        status = memopt_copy(device, sum, total, sizeof *sum, stream);
    mo_scratch_return(device, r.piece);
    return status;
}

static memopt_status enqueue_norm(const reduction *r, float *norm, double max_norm)
{
    const double *sum = NULL;
    const int clips = max_norm > 0.0;
    float *coefficient = clips ? (float *)(void *)r->scratch : NULL;
    MO_TRY(enqueue_total(r, &sum));
    mo_norm_args args = {
        .sum = sum, .norm = norm, .coefficient = coefficient, .max_norm = max_norm};
    mo_writes(r->device, r->stream, "norm", norm, norm == NULL ? 0 : sizeof *norm);
    MO_TRY(mo_launch(r->device, r->stream, &mo_kernel_norm, &args, 1));
    mo_scale_args scale = {.factor = coefficient};
    return clips ? mo_gradients_scale(r->device, &scale, r->tensors, r->count, r->stream)
                 : MEMOPT_OK;
}

memopt_status memopt_norm(memopt_device *device, float *norm, const memopt_tensor *tensors,
                          uint64_t count, double max_norm, memopt_stream stream)
{
    reduction r = {.device = device, .tensors = tensors, .count = count, .stream = stream};
    if (!(max_norm >= 0.0 && max_norm <= 1.7976931348623157e308))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "norm: max_norm is %g; it must be finite and at least 0", max_norm);
    MO_TRY(start(&r, "norm", max_norm > 0.0));
    MO_TRY(check_norm(device, norm, max_norm == 0.0));
    MO_TRY(take(&r));
    memopt_status status = enqueue_norm(&r, norm, max_norm);
    mo_scratch_return(device, r.piece);
    return status;
}
