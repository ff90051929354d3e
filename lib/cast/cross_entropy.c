/* memopt_cross_entropy_*: checks, then one launch each. */
#include "kernels/loss/loss.h"

#include "base/checked.h"
#include "base/options.h"
#include "cast/tensors.h"
#include "device/device.h"
#include "memopt/loss.h"

#include <inttypes.h>

_Static_assert(sizeof(memopt_cross_entropy_row) == sizeof(mo_loss_row), "the same rows");

/* An array of a call, whose name is `call`: not NULL, aligned, within the address space. */
static memopt_status check_array(const char *call, const char *name, const void *data,
                                 uint64_t count, uint64_t size, uint64_t align)
{
    uint64_t bytes, end;
    if (data == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is NULL", call, name);
    if ((uintptr_t)data % align != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is at %p, not aligned to %" PRIu64, call,
                       name, data, align);
    if (!mo_mul_u64(count, size, &bytes) || !mo_add_u64((uintptr_t)data, bytes, &end))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %s: %" PRIu64 " rows of %" PRIu64 " bytes at %p do not fit the address "
                       "space",
                       call, name, count, size, data);
    return MEMOPT_OK;
}

/* Ranges that the device can reach, none over another one that is written. */
static memopt_status check_memory(memopt_device *device, const char *call, mo_tensor_range *ranges,
                                  uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const void *data = (const void *)ranges[i].begin; /* NOLINT(performance-no-int-to-ptr) */
        MO_TRY(mo_reachable(device, call, ranges[i].index, data, ranges[i].end - ranges[i].begin));
    }
    return mo_tensor_ranges_check(call, ranges, count);
}

static mo_tensor_range range_of(const void *data, uint64_t bytes, uint64_t index, int32_t written)
{
    return (mo_tensor_range){(uintptr_t)data, (uintptr_t)data + bytes, index, written};
}

static memopt_status check_shape(const char *call, memopt_logits *l)
{
    if (l->stride == 0)
        l->stride = l->columns;
    if (memopt_dtype_size(l->dtype) == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: dtype %d is not an element type", call,
                       (int)l->dtype);
    if (!mo_dtype_is_gradient(l->dtype))
        return mo_fail(MEMOPT_UNSUPPORTED, "%s: the element type %s is not supported", call,
                       memopt_dtype_name(l->dtype));
    if (l->columns == 0 || l->columns > INT32_MAX || l->first_class > INT32_MAX - l->columns)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: columns is %" PRIu64 " and first_class %" PRIu64
                       "; there are 1 to 2^31 - 1 classes",
                       call, l->columns, l->first_class);
    if (l->first_class % MO_LOSS_STRIPE != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: first_class is %" PRIu64 ", not a multiple of %d", call, l->first_class,
                       MO_LOSS_STRIPE);
    if (l->stride < l->columns)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: stride is %" PRIu64 ", less than the %" PRIu64 " columns", call,
                       l->stride, l->columns);
    return MEMOPT_OK;
}

/* Both calls with logits. `adds`: rows are written, else the logits. */
static memopt_status launch_logits(memopt_device *device, const char *call,
                                   const memopt_logits *logits, const int32_t *targets,
                                   const memopt_cross_entropy_row *rows, float scale, int adds,
                                   memopt_stream stream)
{
    memopt_logits l = MEMOPT_LOGITS_INIT;
    uint64_t row_bytes, size;
    MO_NOT_NULL(call, device);
    MO_NOT_NULL(call, logits);
    MO_TRY(mo_options_read(&l, sizeof l, logits, "memopt_logits"));
    if (l.rows == 0)
        return MEMOPT_OK;
    MO_TRY(check_shape(call, &l));
    size = memopt_dtype_size(l.dtype);
    if (!mo_mul_u64(l.stride, size, &row_bytes))
        row_bytes = UINT64_MAX;
    MO_TRY(check_array(call, "logits", l.data, l.rows, row_bytes, size));
    MO_TRY(check_array(call, "targets", targets, l.rows, sizeof *targets, sizeof *targets));
    MO_TRY(check_array(call, "rows", rows, l.rows, sizeof *rows, sizeof(double)));
    mo_tensor_range ranges[] = {
        range_of(l.data, (l.rows - 1) * row_bytes + l.columns * size, 0, !adds),
        range_of(targets, l.rows * sizeof *targets, 1, 0),
        range_of(rows, l.rows * sizeof *rows, 2, adds)};
    MO_TRY(check_memory(device, call, ranges, 3));
    mo_logits_args args = {.logits = l.data,
                           .targets = targets,
                           .rows = (mo_loss_row *)(uintptr_t)rows,
                           .stride = l.stride,
                           .count = l.rows,
                           .columns = (uint32_t)l.columns,
                           .first = (uint32_t)l.first_class,
                           .dtype = (uint32_t)l.dtype,
                           .scale = scale};
    return mo_launch(device, stream, adds ? &mo_kernel_logits_add : &mo_kernel_logits_gradient,
                     &args, l.rows);
}

memopt_status memopt_cross_entropy_add(memopt_device *device, const memopt_logits *logits,
                                       const int32_t *targets, memopt_cross_entropy_row *rows,
                                       memopt_stream stream)
{
    return launch_logits(device, "cross entropy add", logits, targets, rows, 1.0f, 1, stream);
}

memopt_status memopt_cross_entropy_gradient(memopt_device *device, const memopt_logits *logits,
                                            const int32_t *targets,
                                            const memopt_cross_entropy_row *rows, float scale,
                                            memopt_stream stream)
{
    static const char call[] = "cross entropy gradient";
    if (!mo_f32_is_finite(scale))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: scale is %g; it must be finite", call,
                       (double)scale);
    return launch_logits(device, call, logits, targets, rows, scale, 0, stream);
}

memopt_status memopt_cross_entropy_losses(memopt_device *device,
                                          const memopt_cross_entropy_row *rows,
                                          const int32_t *targets, uint64_t count, float *losses,
                                          memopt_stream stream)
{
    static const char call[] = "cross entropy losses";
    MO_NOT_NULL(call, device);
    if (count == 0)
        return MEMOPT_OK;
    MO_TRY(check_array(call, "rows", rows, count, sizeof *rows, sizeof(double)));
    MO_TRY(check_array(call, "targets", targets, count, sizeof *targets, sizeof *targets));
    MO_TRY(check_array(call, "losses", losses, count, sizeof *losses, sizeof *losses));
    mo_tensor_range ranges[] = {range_of(rows, count * sizeof *rows, 0, 0),
                                range_of(targets, count * sizeof *targets, 1, 0),
                                range_of(losses, count * sizeof *losses, 2, 1)};
    MO_TRY(check_memory(device, call, ranges, 3));
    mo_losses_args args = {(const mo_loss_row *)(const void *)rows, targets, losses, count};
    return mo_launch(device, stream, &mo_kernel_losses, &args,
                     mo_ceil_div_u64(count, MO_LOSS_THREADS));
}
