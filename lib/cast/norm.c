/* Norm and clip: the total of squares in the order of kernels/reduce/reduce.h, then one item
 * finishes. */
#include "cast/scaler.h"

#include <inttypes.h>

/* Enqueues the total over all gradients; *out_sum is where it will lie (NULL: there are no
 * elements, the total is 0). */
static memopt_status enqueue_total(memopt_scaler *scaler, const memopt_tensor *gradients,
                                   uint64_t count, uint64_t chunks, memopt_stream stream,
                                   const double **out_sum)
{
    double *scratch = NULL;
    memopt_status status;
    *out_sum = NULL;
    if (chunks == 0)
        return MEMOPT_OK;
    status = mo_scaler_reserve(scaler, mo_total_scratch(chunks), &scratch);
    if (status != MEMOPT_OK)
        return status;
    mo_reduce_args args = {.partials = scratch};
    status =
        mo_gradients_reduce(scaler->device, &mo_kernel_square_sum, &args, gradients, count, stream);
    for (uint64_t values = chunks; status == MEMOPT_OK && values > 1;) {
        uint64_t sums = values / MO_STRIPE_ELEMENTS + (values % MO_STRIPE_ELEMENTS != 0);
        mo_sum_args level = {scratch, scratch + values, values};
        status = mo_launch(scaler->device, stream, &mo_kernel_sum, &level, sums);
        scratch += values;
        values = sums;
    }
    *out_sum = scratch;
    return status;
}

static memopt_status check_result(const memopt_scaler *scaler, const char *verb,
                                  const float *out_norm, int required)
{
    if (out_norm == NULL && required)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler %s: out_norm is NULL", verb);
    if ((uintptr_t)out_norm % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler %s: out_norm %p is not aligned to an f32",
                       verb, (const void *)out_norm);
    return out_norm == NULL
               ? MEMOPT_OK
               : mo_reachable(scaler->device, "scaler: out_norm", 0, out_norm, sizeof *out_norm);
}

memopt_status memopt_scaler_norm(memopt_scaler *scaler, const memopt_tensor *tensors,
                                 uint64_t count, float *out_norm, memopt_stream stream)
{
    uint64_t chunks;
    const double *sum;
    memopt_status status = mo_gradients_check("norm", scaler, tensors, count, 0, &chunks);
    if (status == MEMOPT_OK)
        status = check_result(scaler, "norm", out_norm, 1);
    if (status == MEMOPT_OK)
        status = enqueue_total(scaler, tensors, count, chunks, stream, &sum);
    if (status != MEMOPT_OK)
        return status;
    mo_norm_args args = {.sum = sum, .norm = out_norm};
    return mo_launch(scaler->device, stream, &mo_kernel_norm, &args, 1);
}

memopt_status memopt_scaler_clip(memopt_scaler *scaler, const memopt_tensor *tensors,
                                 uint64_t count, double max_norm, float *out_norm,
                                 memopt_stream stream)
{
    uint64_t chunks;
    const double *sum;
    memopt_status status = mo_gradients_check("clip", scaler, tensors, count, 1, &chunks);
    if (status == MEMOPT_OK)
        status = check_result(scaler, "clip", out_norm, 0);
    if (status == MEMOPT_OK && !(max_norm > 0.0 && max_norm <= 1.7976931348623157e308))
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "scaler clip: max_norm is %g; it must be finite and above 0", max_norm);
    if (status == MEMOPT_OK)
        status = enqueue_total(scaler, tensors, count, chunks, stream, &sum);
    if (status != MEMOPT_OK)
        return status;
    mo_norm_args norm = {.sum = sum,
                         .norm = out_norm,
                         .coefficient = &scaler->block->coefficient,
                         .max_norm = max_norm};
    status = mo_launch(scaler->device, stream, &mo_kernel_norm, &norm, 1);
    if (status != MEMOPT_OK)
        return status;
    mo_scale_args scale = {.factor = &scaler->block->coefficient};
    return mo_gradients_scale(scaler->device, &scale, tensors, count, stream);
}
