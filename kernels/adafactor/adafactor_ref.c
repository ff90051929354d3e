/* The scalar forms of Adafactor, and the loops over tiles that all CPU forms share. */
#include "kernels/adafactor/adafactor_cpu.h"
#include "kernels/core/element_io.h"

#include <stddef.h>

/* --- a row of a tile ------------------------------------------------------------------------- */

static float value_at(const mo_adafactor_piece *p, uint32_t gradient, uint32_t j)
{
    return mo_load_element(p->gradient, j, (int32_t)gradient) * p->scale;
}

/* Of an element of a vector: the new moment. */
static float moment_at(const mo_adafactor_piece *p, uint32_t gradient, uint32_t j)
{
    float x = value_at(p, gradient, j);
    return mo_adafactor_moment(p->columns[j], x * x, p->fresh);
}

static float update_at(const mo_adafactor_piece *p, uint32_t gradient, uint32_t j)
{
    float factor = p->vector ? mo_adafactor_factor(moment_at(p, gradient, j), p->cap)
                             : mo_adafactor_capped(p->row * p->columns[j], p->cap);
    return value_at(p, gradient, j) * factor;
}

void mo_adafactor_squares_tail(const mo_adafactor_piece *p, uint32_t gradient, uint32_t first,
                               float lanes[MO_STRIPE_LANES])
{
    for (uint32_t j = first; j < p->count; j++) {
        float x = value_at(p, gradient, j);
        float *lane = &lanes[j % MO_STRIPE_LANES];
        *lane = mo_fmaf(x, x, *lane);
        p->columns[j] = mo_fmaf(x, x, p->columns[j]);
    }
}

void mo_adafactor_length_tail(const mo_adafactor_piece *p, uint32_t gradient, uint32_t first,
                              float lanes[MO_STRIPE_LANES])
{
    for (uint32_t j = first; j < p->count; j++) {
        float u = update_at(p, gradient, j);
        float *lane = &lanes[j % MO_STRIPE_LANES];
        *lane = mo_fmaf(u, u, *lane);
    }
}

void mo_adafactor_apply_tail(const mo_adafactor_piece *p, uint32_t parameter, uint32_t gradient,
                             uint32_t first)
{
    for (uint32_t j = first; j < p->count; j++) {
        float kept = mo_load_element(p->parameter, j, (int32_t)parameter) * p->keep;
        float moved = mo_fmaf(-p->rate, update_at(p, gradient, j), kept);
        mo_store_element(p->parameter, j, (int32_t)parameter, mo_f32_one_nan(moved));
        if (p->vector)
            p->columns[j] = moment_at(p, gradient, j);
    }
}

static float squares_scalar(const mo_adafactor_piece *piece, uint32_t gradient)
{
    float lanes[MO_STRIPE_LANES] = {0};
    mo_adafactor_squares_tail(piece, gradient, 0, lanes);
    return mo_adafactor_tree(lanes);
}

static float length_scalar(const mo_adafactor_piece *piece, uint32_t gradient)
{
    float lanes[MO_STRIPE_LANES] = {0};
    mo_adafactor_length_tail(piece, gradient, 0, lanes);
    return mo_adafactor_tree(lanes);
}

static void apply_scalar(const mo_adafactor_piece *piece, uint32_t parameter, uint32_t gradient)
{
    mo_adafactor_apply_tail(piece, parameter, gradient, 0);
}

/* --- the loops over tiles -------------------------------------------------------------------- */

/* A tile; the piece is its first row. */
typedef struct tile_rows {
    mo_adafactor_matrix matrix;
    mo_adafactor_tile tile;
    mo_adafactor_piece piece;
    const float *row_factor; /* NULL: a vector */
} tile_rows;

static void tile_at(const mo_adafactor_args *a, uint64_t item, tile_rows *out)
{
    mo_adafactor_matrix *m = &out->matrix;
    item = mo_adafactor_find(a, &a->plans->first_tile, item, m);
    mo_adafactor_tile_of(m, item, &out->tile);
    const mo_adafactor_tile *tile = &out->tile;
    float *columns = m->row_var ? m->column_factor : m->column_var;
    out->row_factor = m->row_var ? m->row_factor + tile->matrix * m->rows + tile->row : NULL;
    out->piece = (mo_adafactor_piece){
        .parameter = m->parameter + tile->element * mo_element_size(m->parameter_dtype),
        .gradient = m->gradient + tile->element * mo_element_size(m->gradient_dtype),
        .count = tile->columns,
        .columns = columns + tile->matrix * m->columns + tile->column,
        .cap = m->cap,
        .scale = m->scale,
        .keep = m->keep,
        .fresh = m->fresh,
        .vector = m->row_var == NULL,
    };
}

static mo_adafactor_piece row_of(const tile_rows *t, uint32_t i)
{
    const mo_adafactor_matrix *m = &t->matrix;
    mo_adafactor_piece piece = t->piece;
    piece.parameter += i * m->columns * mo_element_size(m->parameter_dtype);
    piece.gradient += i * m->columns * mo_element_size(m->gradient_dtype);
    piece.row = t->row_factor != NULL ? t->row_factor[i] : 0.0f;
    return piece;
}

void mo_adafactor_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_adafactor_squares squares)
{
    const mo_adafactor_args *a = args;
    for (uint64_t item = begin; item < end && !a->control->skip; item++) {
        tile_rows t;
        tile_at(a, item, &t);
        const mo_adafactor_matrix *m = &t.matrix;
        const mo_adafactor_tile *tile = &t.tile;
        if (t.piece.vector)
            continue;
        const uint64_t across = tile->matrix * mo_tiles_of(m->columns, MO_TILE_COLUMNS);
        const uint64_t down = tile->matrix * mo_tiles_of(m->rows, MO_TILE_ROWS);
        float *rows = m->row_squares + (across + tile->across) * m->rows + tile->row;
        t.piece.columns = m->column_squares + (down + tile->down) * m->columns + tile->column;
        for (uint32_t j = 0; j < tile->columns; j++)
            t.piece.columns[j] = 0.0f;
        for (uint32_t i = 0; i < tile->rows; i++) {
            mo_adafactor_piece piece = row_of(&t, i);
            rows[i] = squares(&piece, m->gradient_dtype);
        }
    }
}

void mo_adafactor_update_run(const void *args, uint64_t begin, uint64_t end,
                             mo_adafactor_length length)
{
    const mo_adafactor_args *a = args;
    for (uint64_t item = begin; item < end && !a->control->skip; item++) {
        tile_rows t;
        double sum = 0;
        tile_at(a, item, &t);
        for (uint32_t i = 0; i < t.tile.rows; i++) {
            mo_adafactor_piece piece = row_of(&t, i);
            sum += (double)length(&piece, t.matrix.gradient_dtype);
        }
        a->tile_squares[item] = sum;
    }
}

/* The tiles of the first column keep the moments of rows, those of the first row those of columns. */
static void keep_moments(const mo_adafactor_matrix *m, const mo_adafactor_tile *tile)
{
    const uint64_t row = tile->matrix * m->rows + tile->row;
    const uint64_t column = tile->matrix * m->columns + tile->column;
    for (uint32_t i = 0; i < tile->rows && m->row_var && tile->across == 0; i++)
        m->row_var[row + i] = m->row_moment[row + i];
    for (uint32_t j = 0; j < tile->columns && m->row_var && tile->down == 0; j++)
        m->column_var[column + j] = m->column_moment[column + j];
    if (tile->element == 0)
        *m->steps = m->step;
}

void mo_adafactor_apply_run(const void *args, uint64_t begin, uint64_t end,
                            mo_adafactor_apply apply)
{
    const mo_adafactor_args *a = args;
    for (uint64_t item = begin; item < end && !a->control->skip; item++) {
        tile_rows t;
        tile_at(a, item, &t);
        const mo_adafactor_matrix *m = &t.matrix;
        t.piece.rate = *m->rate;
        for (uint32_t i = 0; i < t.tile.rows; i++) {
            mo_adafactor_piece piece = row_of(&t, i);
            apply(&piece, m->parameter_dtype, m->gradient_dtype);
        }
        keep_moments(m, &t.tile);
    }
}

/* --- the forms ------------------------------------------------------------------------------- */

void mo_adafactor_squares_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_squares_run(args, begin, end, squares_scalar);
}

void mo_adafactor_update_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_update_run(args, begin, end, length_scalar);
}

void mo_adafactor_apply_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_apply_run(args, begin, end, apply_scalar);
}

void mo_adafactor_rows_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    for (uint64_t item = begin; item < end && !a->control->skip; item++) {
        mo_adafactor_matrix m;
        uint64_t own = mo_adafactor_find(a, &a->plans->first_row_block, item, &m);
        const uint64_t blocks = mo_tiles_of(m.rows, MO_ROW_BLOCK);
        uint64_t first = own % blocks * MO_ROW_BLOCK, rest = m.rows - first;
        double lanes[MO_STRIPE_LANES] = {0};
        for (uint64_t i = 0; i < rest && i < MO_ROW_BLOCK; i++)
            lanes[i % MO_STRIPE_LANES] += (double)mo_adafactor_row(&m, own / blocks, first + i);
        a->row_totals[item] = mo_stripe_tree(lanes);
    }
}

void mo_adafactor_columns_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    for (uint64_t item = begin; item < end && !a->control->skip; item++) {
        mo_adafactor_matrix m;
        uint64_t own = mo_adafactor_find(a, &a->plans->first_column_block, item, &m);
        const uint64_t across = mo_tiles_of(m.columns, MO_TILE_COLUMNS);
        uint64_t first = own % across * MO_TILE_COLUMNS, rest = m.columns - first;
        float mean = mo_adafactor_row_mean(&m, own / across);
        for (uint64_t j = 0; j < rest && j < MO_TILE_COLUMNS; j++)
            mo_adafactor_column(&m, own / across, first + j, mean);
    }
}

/* The sum of values in the order of mo_launch_sum(). */
static double total(const double *values, uint64_t count, double *levels)
{
    while (count > 1) {
        const mo_sum_args args = {values, levels, count};
        count = mo_tiles_of(count, MO_STRIPE_ELEMENTS);
        mo_kernel_sum.cpu[MO_ISA_SCALAR](&args, 0, count);
        values = levels;
        levels += count;
    }
    return *values;
}

void mo_adafactor_rate_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    for (uint64_t i = begin; i < end && !a->control->skip; i++) {
        const mo_tensor_segment *g = &a->gradients[i];
        const mo_adafactor_plan *plan = &a->plans[i];
        double *levels = a->levels + plan->first_double;
        const double *chunks = a->chunk_squares + (g->first_chunk - a->gradients->first_chunk);
        double parameter = total(chunks, mo_chunks_of(g->count), levels);
        uint64_t tiles = mo_adafactor_tiles(g->count, plan->rows, plan->columns);
        double update = total(a->tile_squares + plan->first_tile, tiles, levels);
        a->rates[i] = mo_adafactor_rate_of(a, (uint32_t)i, parameter, update);
    }
}
