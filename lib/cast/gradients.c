/* Lists of gradients: their checks, and launches over their chunks. */
#include "cast/gradients.h"
#include "cast/tensors.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>

static memopt_status check_written(const char *subject, const memopt_tensor *gradients,
                                   uint64_t count)
{
    uint64_t used = 0;
    memopt_status status;
    mo_tensor_range *ranges = mo_malloc(count * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < count; i++)
        if (gradients[i].count != 0)
            ranges[used++] = mo_tensor_range_of(&gradients[i], i, 1);
    status = mo_tensor_ranges_check(subject, ranges, used);
    mo_free(ranges);
    return status;
}

memopt_status mo_gradient_list_check(memopt_device *device, const char *subject,
                                     const memopt_tensor *gradients, uint64_t count, int written,
                                     uint64_t *out_chunks)
{
    char list[48];
    uint64_t chunks = 0;
    memopt_status status = MEMOPT_OK;
    if (count != 0 && gradients == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: the tensors are NULL but count is %" PRIu64,
                       subject, count);
    if (count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " tensors; a call takes at most 2^32 - 1", subject, count);
    snprintf(list, sizeof list, "%s: tensors", subject);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        status = mo_tensor_check(list, i, &gradients[i], mo_dtype_is_gradient);
        chunks += mo_chunks_of(gradients[i].count);
        if (status == MEMOPT_OK && chunks >> 60 != 0) /* their sums would not fit 64 bits */
            status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                             "%s: the first %" PRIu64 " have 2^74 elements or more", list, i + 1);
    }
    if (status == MEMOPT_OK && written && count != 0)
        status = check_written(list, gradients, count);
    if (status == MEMOPT_OK)
        status = mo_tensors_reachable(device, list, gradients, count);
    if (status == MEMOPT_OK)
        *out_chunks = chunks;
    return status;
}

/* Launches over the chunks of all gradients, as many described at a time as fit `segments`, which
 * lie in the arguments with their count. NULL or where the launches' results go, one a chunk. */
static memopt_status launch(memopt_device *device, const mo_kernel *kernel, const void *args,
                            mo_tensor_segment *segments, uint32_t *segment_count, double **partials,
                            const memopt_tensor *gradients, uint64_t count, memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t next = 0; status == MEMOPT_OK && next < count;) {
        uint64_t chunks = 0;
        for (*segment_count = 0; next < count && *segment_count < MO_TENSOR_SEGMENTS; next++) {
            const memopt_tensor *g = &gradients[next];
            mo_tensor_used(device, kernel->name, g, kernel == &mo_kernel_scale, stream);
            if (g->count != 0)
                segments[(*segment_count)++] =
                    (mo_tensor_segment){g->data, g->count, chunks, (uint32_t)g->dtype, 0};
            chunks += mo_chunks_of(g->count);
        }
        status = mo_launch(device, stream, kernel, args, chunks);
        if (*partials != NULL)
            *partials += chunks;
    }
    return status;
}

memopt_status mo_gradients_reduce(memopt_device *device, const mo_kernel *kernel,
                                  mo_reduce_args *args, const memopt_tensor *gradients,
                                  uint64_t count, memopt_stream stream)
{
    mo_writes(device, stream, kernel->name, args->found_inf, sizeof *args->found_inf);
    return launch(device, kernel, args, args->segments, &args->count, &args->partials, gradients,
                  count, stream);
}

memopt_status mo_gradients_scale(memopt_device *device, mo_scale_args *args,
                                 const memopt_tensor *gradients, uint64_t count,
                                 memopt_stream stream)
{
    double *none = NULL;
    mo_reads(device, stream, "scale", args->factor, sizeof *args->factor);
    mo_reads(device, stream, "scale", args->scale, sizeof *args->scale);
    mo_writes(device, stream, "scale", args->found_inf, sizeof *args->found_inf);
    return launch(device, &mo_kernel_scale, args, args->segments, &args->count, &none, gradients,
                  count, stream);
}

/* --- gradients without a scaler -------------------------------------------------------------- */

static memopt_status check_cell(memopt_device *device, const char *subject, const char *name,
                                const float *cell, int required)
{
    if (cell == NULL && required)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is NULL", subject, name);
    if ((uintptr_t)cell % sizeof *cell != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s %p is not aligned to an f32", subject, name,
                       (const void *)cell);
    return cell == NULL ? MEMOPT_OK : mo_reachable(device, subject, 0, cell, sizeof *cell);
}

memopt_status memopt_scale(memopt_device *device, const memopt_tensor *tensors, uint64_t count,
                           const float *factor, float *found_inf, memopt_stream stream)
{
    uint64_t chunks;
    MO_NOT_NULL("scale", device);
    MO_TRY(mo_gradient_list_check(device, "scale", tensors, count, 1, &chunks));
    MO_TRY(check_cell(device, "scale", "factor", factor, 1));
    MO_TRY(check_cell(device, "scale", "found_inf", found_inf, 0));
    mo_scale_args args = {.factor = factor, .found_inf = found_inf};
    return mo_gradients_scale(device, &args, tensors, count, stream);
}

memopt_status memopt_check_finite(memopt_device *device, const memopt_tensor *tensors,
                                  uint64_t count, float *found_inf, memopt_stream stream)
{
    uint64_t chunks;
    MO_NOT_NULL("check finite", device);
    MO_TRY(mo_gradient_list_check(device, "check finite", tensors, count, 0, &chunks));
    MO_TRY(check_cell(device, "check finite", "found_inf", found_inf, 1));
    mo_reduce_args args = {.found_inf = found_inf};
    return mo_gradients_reduce(device, &mo_kernel_check, &args, tensors, count, stream);
}
