/* Adafactor's step: checks, the places of the scratch, and the launches. */
#include "kernels/adafactor/adafactor.h"
#include "base/options.h"
#include "kernels/optim/schedules.h"
#include "optim/optim.h"

#include <inttypes.h>

/* --- the scratch ----------------------------------------------------------------------------- */

/* How many of each thing there are. */
typedef struct shape {
    uint64_t stack, tiles, row_blocks, column_blocks;
    uint64_t bytes;
} shape;

static memopt_status shape_of(const memopt_adafactor *w, shape *out)
{
    memopt_status status =
        mo_optim_matrices_check("adafactor", w->parameter.count, w->rows, w->columns);
    if (status != MEMOPT_OK)
        return status;
    const uint64_t across = mo_tiles_of(w->columns, MO_TILE_COLUMNS);
    const uint64_t down = mo_tiles_of(w->rows, MO_TILE_ROWS);
    const uint64_t stack = w->parameter.count / (w->rows * w->columns);
    out->stack = stack;
    out->tiles = stack * across * down;
    out->row_blocks = stack * mo_tiles_of(w->rows, MO_ROW_BLOCK);
    out->column_blocks = stack * across;
    /* No term exceeds the elements. */
    uint64_t doubles = 1 + out->row_blocks + mo_total_scratch(out->tiles);
    uint64_t floats = stack * (across * w->rows + down * w->columns + w->rows + w->columns);
    out->bytes = 8 * doubles + 4 * (1 + (w->row_var == NULL ? 0 : floats));
    return MEMOPT_OK;
}

/* --- checks ---------------------------------------------------------------------------------- */

static memopt_status check_values(const memopt_adafactor *w)
{
    const mo_value_range ranges[] = {
        {"lr", w->lr, 0.0, MO_F32_MOST},
        {"beta2_decay", w->beta2_decay, -MO_F32_MOST, 0.0},
        {"eps[0]", w->eps[0], 0.0, MO_F32_MOST},
        {"eps[1]", w->eps[1], 0.0, MO_F32_MOST},
        {"d", w->d, 1.0, MO_F32_MOST},
        {"weight_decay", w->weight_decay, 0.0, MO_F32_MOST},
        {"gradient_scale", w->gradient_scale, -MO_F32_MOST, MO_F32_MOST},
        {"step", (double)w->step, 1.0, 0x1p64},
    };
    return mo_ranges_check("adafactor", ranges, sizeof ranges / sizeof ranges[0]);
}

static memopt_status check_memory(memopt_device *device, const memopt_adafactor *w, const shape *s)
{
    const mo_optim_argument parts[] = {
        {"parameter", w->parameter, 0},
        {"gradient", w->gradient, 0},
        {"row_var", {w->row_var, s->stack * w->rows, MEMOPT_DTYPE_F32}, 1},
        {"column_var", {w->column_var, s->stack * w->columns, MEMOPT_DTYPE_F32}, 0},
        {"found_inf", {(void *)(uintptr_t)w->found_inf, 1, MEMOPT_DTYPE_F32}, 1},
    };
    return mo_optim_arguments_check(device, "adafactor", parts, sizeof parts / sizeof parts[0]);
}

static memopt_status check(memopt_device *device, const memopt_adafactor *w, const shape *s)
{
    if (w->gradient.count != w->parameter.count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "adafactor: the gradient has %" PRIu64 " elements, the parameter %" PRIu64,
                       w->gradient.count, w->parameter.count);
    if (w->row_var == NULL && w->rows != 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "adafactor: row_var is NULL, and there are %" PRIu64 " rows; vectors have 1",
                       w->rows);
    MO_TRY(check_values(w));
    return check_memory(device, w, s);
}

/* --- the step -------------------------------------------------------------------------------- */

static mo_adafactor_args arguments_of(const memopt_adafactor *w, const shape *s, double *doubles)
{
    mo_adafactor_args a = {
        .parameter = w->parameter.data,
        .gradient = w->gradient.data,
        .row_var = w->row_var,
        .column_var = w->column_var,
        .found_inf = w->found_inf,
        .parameter_squares = doubles,
        .row_totals = doubles + 1,
        .tile_squares = doubles + 1 + s->row_blocks,
        .stack = s->stack,
        .rows = w->rows,
        .columns = w->columns,
        .step_rate = w->lr,
        .least_size = w->eps[1],
        .longest = w->d,
        .fresh = (float)mo_exp_minus(-w->beta2_decay * mo_minus_log(1.0 / (double)w->step)),
        .least = (float)w->eps[0],
        .scale = (float)w->gradient_scale,
        .keep = (float)(1.0 - w->lr * w->weight_decay),
        .parameter_dtype = (uint32_t)w->parameter.dtype,
        .gradient_dtype = (uint32_t)w->gradient.dtype,
    };
    const double slowed = 1.0 / mo_sqrt((double)w->step);
    a.rate = (float *)(a.tile_squares + mo_total_scratch(s->tiles));
    a.row_squares = a.rate + 1; /* from here on not of vectors */
    a.column_squares = a.row_squares + s->column_blocks * w->rows;
    a.row_factor = a.column_squares + s->stack * mo_tiles_of(w->rows, MO_TILE_ROWS) * w->columns;
    a.column_factor = a.row_factor + s->stack * w->rows;
    a.cap = 1.0f / a.least;
    if (slowed < a.step_rate)
        a.step_rate = slowed;
    if (w->maximize)
        a.step_rate = -a.step_rate;
    return a;
}

static memopt_status launch(memopt_device *device, memopt_stream stream, mo_adafactor_args *a,
                            const shape *s)
{
    const struct {
        const mo_kernel *kernel;
        uint64_t items, of_vectors;
    } before[] = {{&mo_kernel_adafactor_squares, s->tiles, 0},
                  {&mo_kernel_adafactor_rows, s->row_blocks, 0},
                  {&mo_kernel_adafactor_columns, s->column_blocks, 0},
                  {&mo_kernel_adafactor_update, s->tiles, 0},
                  {&mo_kernel_adafactor_vector, 0, s->tiles}};
    memopt_status status = MEMOPT_OK;
    for (size_t i = 0; i < sizeof before / sizeof before[0] && status == MEMOPT_OK; i++)
        status = mo_launch(device, stream, before[i].kernel, a,
                           a->row_var != NULL ? before[i].items : before[i].of_vectors);
    if (status == MEMOPT_OK)
        status = mo_launch_sum(device, stream, a->tile_squares, s->tiles, &a->update_squares);
    if (status == MEMOPT_OK)
        status = mo_launch(device, stream, &mo_kernel_adafactor_rate, a, 1);
    return status == MEMOPT_OK ? mo_launch(device, stream, &mo_kernel_adafactor_apply, a, s->tiles)
                               : status;
}

memopt_status memopt_adafactor_step(memopt_device *device, const memopt_adafactor *what,
                                    memopt_stream stream)
{
    memopt_adafactor w;
    shape s;
    mo_scratch *piece = NULL;
    void *scratch = NULL;
    if (device == NULL || what == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "adafactor_step: %s is NULL",
                       device == NULL ? "device" : "what");
    if (mo_device_inherited(device))
        return mo_fail_inherited("adafactor_step");
    MO_TRY(mo_options_read(&w, sizeof w, what, "memopt_adafactor"));
    if (w.parameter.count == 0)
        return MEMOPT_OK;
    MO_TRY(shape_of(&w, &s));
    MO_TRY(check(device, &w, &s));
    MO_TRY(mo_scratch_take(device, s.bytes, stream, &piece, &scratch));
    mo_adafactor_args args = arguments_of(&w, &s, scratch);
    memopt_status status = memopt_square_sum(device, scratch, &w.parameter, 1, stream);
    if (status == MEMOPT_OK)
        status = launch(device, stream, &args, &s);
    mo_scratch_return(device, piece);
    return status;
}
