/* Adam-mini's step: checks, the places of the scratch, and the launches. */
#include "memopt/adam_mini.h"

#include "base/options.h"
#include "kernels/adam_mini/adam_mini.h"
#include "kernels/optim/schedules.h"
#include "optim/optim.h"

#include <inttypes.h>

/* How many of each thing there are. */
typedef struct shape {
    uint64_t blocks, chunks; /* chunks: of all blocks; 0 where the step's items have whole blocks */
    uint64_t scales;
    uint64_t bytes; /* of scratch */
} shape;

static memopt_status shape_of(const memopt_adam_mini *w, shape *out)
{
    memopt_status status =
        mo_optim_matrices_check("adam_mini", w->parameter.count, w->rows, w->columns);
    if (status != MEMOPT_OK)
        return status;
    const uint64_t size = w->rows * w->columns;
    out->blocks = w->parameter.count / size;
    out->chunks = size <= MO_CHUNK_ELEMENTS ? 0 : out->blocks * mo_chunks_of(size);
    out->scales = out->blocks * w->rows * mo_parts_of(w->columns, MO_BLOCK_SIZE);
    out->bytes = out->chunks == 0 ? 0 : 8 * out->chunks + 4 * out->blocks;
    return MEMOPT_OK;
}

memopt_status memopt_adam_mini_get_scratch(const memopt_adam_mini *what, uint64_t *out_bytes)
{
    memopt_adam_mini w;
    shape s;
    if (what == NULL || out_bytes == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "adam_mini_get_scratch: %s is NULL",
                       what == NULL ? "what" : "out_bytes");
    memopt_status status = mo_options_read(&w, sizeof w, what, "memopt_adam_mini");
    if (status == MEMOPT_OK)
        status = shape_of(&w, &s);
    if (status == MEMOPT_OK)
        *out_bytes = s.bytes;
    return status;
}

/* --- checks ---------------------------------------------------------------------------------- */

static memopt_status check_values(const memopt_adam_mini *w)
{
    const mo_value_range ranges[] = {
        {"lr", w->lr, 0.0, MO_F32_MOST},
        {"beta1", w->beta1, 0.0, 1.0},
        {"beta2", w->beta2, 0.0, 1.0},
        {"eps", w->eps, 0.0, MO_F32_MOST},
        {"weight_decay", w->weight_decay, 0.0, MO_F32_MOST},
        {"gradient_scale", w->gradient_scale, -MO_F32_MOST, MO_F32_MOST},
        {"step", (double)w->step, 1.0, 0x1p64},
    };
    if (w->beta1 == 1.0 || w->beta2 == 1.0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "adam_mini: %s is 1; it must be below",
                       w->beta1 == 1.0 ? "beta1" : "beta2");
    return mo_ranges_check("adam_mini", ranges, sizeof ranges / sizeof ranges[0]);
}

static memopt_status check_memory(memopt_device *device, const memopt_adam_mini *w, const shape *s,
                                  void *scratch, uint64_t scratch_bytes)
{
    const mo_optim_argument parts[] = {
        {"parameter", w->parameter, 0},
        {"gradient", w->gradient, 0},
        {"mean", w->mean, 0},
        {"scales", {w->scales, s->scales, MEMOPT_DTYPE_F32}, w->mean.dtype == MEMOPT_DTYPE_F32},
        {"square_mean", {w->square_mean, s->blocks, MEMOPT_DTYPE_F32}, 0},
        {"scratch", {s->bytes ? scratch : NULL, scratch_bytes, MEMOPT_DTYPE_U8}, s->bytes == 0},
        {"found_inf", {(void *)(uintptr_t)w->found_inf, 1, MEMOPT_DTYPE_F32}, 1},
    };
    return mo_optim_arguments_check(device, "adam_mini", parts, sizeof parts / sizeof parts[0]);
}

static memopt_status check(memopt_device *device, const memopt_adam_mini *w, const shape *s,
                           void *scratch, uint64_t scratch_bytes)
{
    if (w->gradient.count != w->parameter.count || w->mean.count != w->parameter.count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "adam_mini: the gradient has %" PRIu64 " elements, the mean %" PRIu64
                       ", the parameter %" PRIu64,
                       w->gradient.count, w->mean.count, w->parameter.count);
    if (w->mean.dtype != MEMOPT_DTYPE_F32 && w->mean.dtype != MEMOPT_DTYPE_U8)
        return mo_fail(MEMOPT_UNSUPPORTED, "adam_mini: a mean of %s; f32 and u8 are supported",
                       memopt_dtype_name(w->mean.dtype));
    if (w->mean.dtype == MEMOPT_DTYPE_F32 && w->scales != NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "adam_mini: a mean of f32 has no scales");
    memopt_status status = mo_scratch_check("adam_mini", scratch, scratch_bytes, s->bytes);
    if (status == MEMOPT_OK)
        status = check_values(w);
    return status == MEMOPT_OK ? check_memory(device, w, s, scratch, scratch_bytes) : status;
}

/* --- the step -------------------------------------------------------------------------------- */

/* A block is one row where no block of codes ends within it. */
static void lay_out(const memopt_adam_mini *w, const shape *s, mo_adam_mini_args *a)
{
    const uint64_t size = w->rows * w->columns;
    const int joined = w->scales == NULL || w->columns % MO_BLOCK_SIZE == 0;
    a->columns = joined ? size : w->columns;
    a->block_rows = joined ? 1 : w->rows;
    a->rows = s->blocks * a->block_rows;
    a->item_columns = a->columns < MO_CHUNK_ELEMENTS ? a->columns : (uint64_t)MO_CHUNK_ELEMENTS;
    a->item_rows = MO_CHUNK_ELEMENTS / a->item_columns;
    if (s->chunks == 0) {
        uint64_t blocks = MO_CHUNK_ELEMENTS / size;
        a->item_rows =
            (blocks < MO_ADAM_MINI_BLOCKS ? blocks : (uint64_t)MO_ADAM_MINI_BLOCKS) * a->block_rows;
    }
}

static mo_adam_mini_args arguments_of(const memopt_adam_mini *w, const shape *s, void *scratch)
{
    const double size = (double)(w->rows * w->columns);
    const double sign = w->maximize ? -1.0 : 1.0;
    mo_adam_mini_args a = {
        .parameter = w->parameter.data,
        .gradient = w->gradient.data,
        .mean = w->mean.data,
        .scales = w->scales,
        .second = w->square_mean,
        .found_inf = w->found_inf,
        .chunk_squares = scratch,
        .rates = s->chunks == 0 ? NULL : (float *)((double *)scratch + s->chunks),
        .square_factor = w->gradient_scale * w->gradient_scale / size,
        .step_rate = -w->lr / (1.0 - mo_power(w->beta1, w->step)),
        .root_factor = 1.0 / mo_sqrt(1.0 - mo_power(w->beta2, w->step)),
        .eps = w->eps,
        .beta1 = (float)w->beta1,
        .fresh1 = (float)(sign * (1.0 - w->beta1) * w->gradient_scale),
        .beta2 = (float)w->beta2,
        .fresh2 = (float)(1.0 - w->beta2),
        .decay = (float)-(w->lr * w->weight_decay),
        .parameter_dtype = (uint32_t)w->parameter.dtype,
        .gradient_dtype = (uint32_t)w->gradient.dtype,
    };
    lay_out(w, s, &a);
    return a;
}

memopt_status memopt_adam_mini_step(memopt_device *device, const memopt_adam_mini *what,
                                    void *scratch, uint64_t scratch_bytes, memopt_stream stream)
{
    memopt_adam_mini w;
    shape s;
    if (device == NULL || what == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "adam_mini_step: %s is NULL",
                       device == NULL ? "device" : "what");
    memopt_status status = mo_options_read(&w, sizeof w, what, "memopt_adam_mini");
    if (status == MEMOPT_OK && w.parameter.count == 0)
        return MEMOPT_OK;
    if (status == MEMOPT_OK)
        status = shape_of(&w, &s);
    if (status == MEMOPT_OK)
        status = check(device, &w, &s, scratch, scratch_bytes);
    if (status != MEMOPT_OK)
        return status;
    mo_adam_mini_args args = arguments_of(&w, &s, scratch);
    if (s.chunks != 0)
        status = mo_launch(device, stream, &mo_kernel_adam_mini_squares, &args, s.chunks);
    if (status == MEMOPT_OK && s.chunks != 0)
        status = mo_launch(device, stream, &mo_kernel_adam_mini_rates, &args, s.blocks);
    if (status != MEMOPT_OK)
        return status;
    return mo_launch(device, stream,
                     args.scales != NULL ? &mo_kernel_adam_mini_step8 : &mo_kernel_adam_mini_step,
                     &args, mo_adam_mini_items(&args));
}
