/*
 * Adafactor's step. Norms of a whole parameter lie between its passes over the gradient, so it has
 * several launches, each over many parameters. Its scratch is the device's: first the tables that
 * the kernels read, then sums. Parameters are taken in batches that bound the scratch.
 */
#include "kernels/adafactor/adafactor.h"
#include "kernels/reduce/reduce.h"
#include "optim/optim.h"

#include "base/checked.h"

#include <inttypes.h>
#include <string.h>

/* Elements of a batch, or one parameter: about 4 MiB of scratch. */
enum { BATCH_ELEMENTS = 1 << 26 };

/* A run of the step's gradients, and how many of each thing they have. */
typedef struct batch {
    uint64_t first, count;
    uint64_t elements, chunks, tiles, row_blocks, column_blocks, doubles, floats;
} batch;

static mo_adafactor_plan plan_of(const mo_parameter *p)
{
    mo_adafactor_plan plan = {.rows = 1, .columns = p->tensor.count};
    if (p->columns != 0) {
        plan.rows = p->rows;
        plan.columns = p->columns;
    }
    return plan;
}

/* The plan of gradient number i behind those of the batch; it becomes one of them. */
static mo_adafactor_plan append(const memopt_optimizer *o, uint64_t i, batch *b)
{
    const mo_tensor_segment *g = &o->segments[i];
    const mo_parameter *p = &o->parameters[g->number];
    mo_adafactor_plan plan = plan_of(p);
    const uint64_t chunks = mo_chunks_of(g->count);
    const uint64_t tiles = mo_adafactor_tiles(g->count, plan.rows, plan.columns);
    const uint64_t stack = g->count / plan.rows / plan.columns;
    plan.first_tile = b->tiles;
    plan.first_row_block = b->row_blocks;
    plan.first_column_block = b->column_blocks;
    plan.first_double = b->doubles;
    plan.first_float = b->floats;
    b->count++;
    b->elements += g->count;
    b->chunks += chunks;
    b->tiles += tiles;
    b->doubles += mo_max_u64(mo_total_scratch(chunks) - chunks, mo_total_scratch(tiles) - tiles);
    if (p->columns != 0) {
        b->row_blocks += stack * mo_tiles_of(plan.rows, MO_ROW_BLOCK);
        b->column_blocks += stack * mo_tiles_of(plan.columns, MO_TILE_COLUMNS);
        b->floats += mo_adafactor_floats(stack, plan.rows, plan.columns);
    }
    return plan;
}

/* The batch that begins with gradient number `first`. */
static batch batch_at(const memopt_optimizer *o, uint64_t first)
{
    batch b = {.first = first};
    for (uint64_t i = first; i < o->segment_count; i++)
        if (i == first || b.elements + o->segments[i].count <= BATCH_ELEMENTS)
            (void)append(o, i, &b);
        else
            break;
    return b;
}

static uint64_t bytes_of(const batch *b)
{
    return b->count * (sizeof(mo_tensor_segment) + sizeof(mo_adafactor_plan) + sizeof(float)) +
           8 * (b->chunks + b->tiles + b->row_blocks + b->doubles) + 4 * b->floats;
}

/* Writes the batch's tables: its parameters as segments, and plans. */
static memopt_status upload(memopt_optimizer *o, const batch *b, mo_tensor_segment *segments,
                            mo_adafactor_plan *plans, memopt_stream stream)
{
    enum { MOST = MO_UPLOAD_BYTES / sizeof(mo_adafactor_plan) };
    mo_tensor_segment some_segments[MOST];
    mo_adafactor_plan some_plans[MOST];
    batch done = {0};
    while (done.count < b->count) {
        const uint64_t at = done.count, n = mo_min_u64(b->count - at, MOST);
        for (uint64_t k = 0; k < n; k++) {
            const mo_tensor_segment *g = &o->segments[b->first + at + k];
            const memopt_tensor *p = &o->parameters[g->number].tensor;
            some_segments[k] =
                (mo_tensor_segment){p->data, p->count, done.chunks, (uint32_t)p->dtype, 0};
            some_plans[k] = append(o, b->first + at + k, &done);
        }
        MO_TRY(mo_upload(o, segments + at, some_segments, n * sizeof *segments, stream));
        MO_TRY(mo_upload(o, plans + at, some_plans, n * sizeof *plans, stream));
    }
    return MEMOPT_OK;
}

static memopt_status launch(memopt_optimizer *o, const batch *b, memopt_stream stream)
{
    mo_tensor_segment *segments = o->scratch.data;
    mo_adafactor_plan *plans = (mo_adafactor_plan *)(segments + b->count);
    double *doubles = (double *)(plans + b->count);
    const mo_adafactor_args a = {
        .tensors = o->tensor_table.data,
        .gradients = (const mo_tensor_segment *)o->segment_table.data + b->first,
        .groups = o->group_table.data,
        .coefs = (const mo_rule_coef *)o->coef_table.data + b->first,
        .control = o->control.data,
        .plans = plans,
        .chunk_squares = doubles,
        .tile_squares = doubles + b->chunks,
        .row_totals = doubles + b->chunks + b->tiles,
        .levels = doubles + b->chunks + b->tiles + b->row_blocks,
        .floats = (float *)(doubles + b->chunks + b->tiles + b->row_blocks + b->doubles),
        .rates = (float *)(doubles + b->chunks + b->tiles + b->row_blocks + b->doubles) + b->floats,
        .elements = b->elements,
        .count = (uint32_t)b->count,
    };
    const struct {
        const mo_kernel *kernel;
        uint64_t items;
    } launches[] = {{&mo_kernel_adafactor_squares, b->floats != 0 ? b->tiles : 0},
                    {&mo_kernel_adafactor_rows, b->row_blocks},
                    {&mo_kernel_adafactor_columns, b->column_blocks},
                    {&mo_kernel_adafactor_update, b->tiles},
                    {&mo_kernel_adafactor_rate, b->count},
                    {&mo_kernel_step_adafactor, b->tiles}};
    mo_reduce_args squares = {.table = segments, .partials = doubles, .count = (uint32_t)b->count};
    MO_TRY(upload(o, b, segments, plans, stream));
    MO_TRY(mo_launch(o->device, stream, &mo_kernel_square_sum, &squares, b->chunks));
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        MO_TRY(mo_launch(o->device, stream, launches[i].kernel, &a, launches[i].items));
    return MEMOPT_OK;
}

memopt_status mo_adafactor_prepare(memopt_optimizer *o, memopt_stream stream)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < o->segment_count;) {
        const batch b = batch_at(o, i);
        bytes = mo_max_u64(bytes, bytes_of(&b));
        i += b.count;
    }
    return mo_table_reserve(o, &o->scratch, bytes, stream);
}

memopt_status mo_adafactor_launch(memopt_optimizer *o, memopt_stream stream)
{
    for (uint64_t i = 0; i < o->segment_count;) {
        const batch b = batch_at(o, i);
        MO_TRY(launch(o, &b, stream));
        i += b.count;
    }
    return MEMOPT_OK;
}

/* --- what it takes --------------------------------------------------------------------------- */

memopt_status mo_matrices_check(const memopt_optimizer *o, const memopt_tensor *parameter,
                                const memopt_parameter_options *options)
{
    const uint64_t rows = options->rows, columns = options->columns, index = o->parameter_count;
    if (o->options.kind != MEMOPT_OPTIMIZER_ADAFACTOR)
        return rows == 0 && columns == 0
                   ? MEMOPT_OK
                   : mo_fail(MEMOPT_INVALID_ARGUMENT,
                             "optimizer: parameter %" PRIu64 ": %" PRIu64 " rows and %" PRIu64
                             " columns are for Adafactor; kind is %" PRIu32,
                             index, rows, columns, o->options.kind);
    if (options->model_copy.data != NULL)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: parameter %" PRIu64 ": Adafactor fills no model copy", index);
    if ((rows == 0) != (columns == 0) || (rows | columns) >> 32 != 0 ||
        parameter->count >> 60 != 0 || (rows != 0 && parameter->count % (rows * columns) != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: parameter %" PRIu64 ": %" PRIu64
                       " elements are not whole matrices of %" PRIu64 " x %" PRIu64
                       ", each below 2^32, or are 2^60 or more",
                       index, parameter->count, rows, columns);
    return MEMOPT_OK;
}
