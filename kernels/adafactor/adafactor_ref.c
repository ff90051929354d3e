/* The scalar forms of Adafactor, and the loops over tiles that all CPU forms share. */
#include "kernels/adafactor/adafactor_cpu.h"
#include "kernels/core/element_io.h"

#include <stddef.h>

/* --- a row of a tile ------------------------------------------------------------------------- */

static float value_at(const mo_adafactor_piece *p, uint32_t gradient, uint32_t j)
{
    return mo_load_element(p->gradient, j, (int32_t)gradient) * p->scale;
}

static float update_at(const mo_adafactor_piece *p, uint32_t gradient, uint32_t j)
{
    float factor = p->vector ? mo_adafactor_factor(p->columns[j], p->cap)
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

void mo_adafactor_vector_tail(const mo_adafactor_piece *p, uint32_t gradient, uint32_t first,
                              float lanes[MO_STRIPE_LANES])
{
    for (uint32_t j = first; j < p->count; j++) {
        float x = value_at(p, gradient, j);
        p->columns[j] = mo_adafactor_moment(p->columns[j], x * x, p->fresh);
    }
    mo_adafactor_length_tail(p, gradient, first, lanes);
}

void mo_adafactor_apply_tail(const mo_adafactor_piece *p, uint32_t parameter, uint32_t gradient,
                             uint32_t first)
{
    for (uint32_t j = first; j < p->count; j++) {
        float kept = mo_load_element(p->parameter, j, (int32_t)parameter) * p->keep;
        float moved = mo_fmaf(-p->rate, update_at(p, gradient, j), kept);
        mo_store_element(p->parameter, j, (int32_t)parameter, mo_f32_one_nan(moved));
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

static float vector_scalar(const mo_adafactor_piece *piece, uint32_t gradient)
{
    float lanes[MO_STRIPE_LANES] = {0};
    mo_adafactor_vector_tail(piece, gradient, 0, lanes);
    return mo_adafactor_tree(lanes);
}

static void apply_scalar(const mo_adafactor_piece *piece, uint32_t parameter, uint32_t gradient)
{
    mo_adafactor_apply_tail(piece, parameter, gradient, 0);
}

/* --- the loops over tiles -------------------------------------------------------------------- */

/* The first row of a tile; `columns` is the first of the matrix's. */
static mo_adafactor_piece piece_of(const mo_adafactor_args *a, const mo_adafactor_tile *tile,
                                   float *columns)
{
    mo_adafactor_piece piece = {
        .parameter = a->parameter + tile->element * mo_element_size(a->parameter_dtype),
        .gradient = a->gradient + tile->element * mo_element_size(a->gradient_dtype),
        .count = tile->columns,
        .columns = columns + tile->column,
        .cap = a->cap,
        .scale = a->scale,
        .keep = a->keep,
        .fresh = a->fresh,
        .vector = a->row_var == NULL,
    };
    return piece;
}

static void next_row(const mo_adafactor_args *a, mo_adafactor_piece *piece)
{
    piece->parameter += a->columns * mo_element_size(a->parameter_dtype);
    piece->gradient += a->columns * mo_element_size(a->gradient_dtype);
}

void mo_adafactor_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_adafactor_squares squares)
{
    const mo_adafactor_args *a = args;
    const uint64_t across = mo_tiles_of(a->columns, MO_TILE_COLUMNS);
    const uint64_t down = mo_tiles_of(a->rows, MO_TILE_ROWS);
    mo_adafactor_tile tile;
    for (uint64_t item = begin; item < end; item++) {
        mo_adafactor_tile_of(a, item, &tile);
        float *sums = a->column_squares + (tile.matrix * down + tile.down) * a->columns;
        float *rows = a->row_squares + (tile.matrix * across + tile.across) * a->rows + tile.row;
        mo_adafactor_piece piece = piece_of(a, &tile, sums);
        for (uint32_t j = 0; j < piece.count; j++)
            piece.columns[j] = 0.0f;
        for (uint32_t i = 0; i < tile.rows; i++, next_row(a, &piece))
            rows[i] = squares(&piece, a->gradient_dtype);
    }
}

void mo_adafactor_update_run(const void *args, uint64_t begin, uint64_t end,
                             mo_adafactor_length length)
{
    const mo_adafactor_args *a = args;
    mo_adafactor_tile tile;
    for (uint64_t item = begin; item < end; item++) {
        mo_adafactor_tile_of(a, item, &tile);
        mo_adafactor_piece piece = piece_of(a, &tile, a->column_factor + tile.matrix * a->columns);
        double sum = 0;
        for (uint32_t i = 0; i < tile.rows; i++, next_row(a, &piece)) {
            piece.row = a->row_factor[tile.matrix * a->rows + tile.row + i];
            sum += (double)length(&piece, a->gradient_dtype);
        }
        a->tile_squares[item] = sum;
    }
}

void mo_adafactor_vector_run(const void *args, uint64_t begin, uint64_t end,
                             mo_adafactor_length length)
{
    const mo_adafactor_args *a = args;
    mo_adafactor_tile tile;
    if (mo_adafactor_is_skipped(a))
        return;
    for (uint64_t item = begin; item < end; item++) {
        mo_adafactor_tile_of(a, item, &tile);
        mo_adafactor_piece piece = piece_of(a, &tile, a->column_var + tile.matrix * a->columns);
        a->tile_squares[item] = (double)length(&piece, a->gradient_dtype);
    }
}

void mo_adafactor_apply_run(const void *args, uint64_t begin, uint64_t end,
                            mo_adafactor_apply apply)
{
    const mo_adafactor_args *a = args;
    float *columns = a->row_var ? a->column_factor : a->column_var;
    mo_adafactor_tile tile;
    if (mo_adafactor_is_skipped(a))
        return;
    for (uint64_t item = begin; item < end; item++) {
        mo_adafactor_tile_of(a, item, &tile);
        mo_adafactor_piece piece = piece_of(a, &tile, columns + tile.matrix * a->columns);
        piece.rate = *a->rate;
        for (uint32_t i = 0; i < tile.rows; i++, next_row(a, &piece)) {
            if (a->row_var)
                piece.row = a->row_factor[tile.matrix * a->rows + tile.row + i];
            apply(&piece, a->parameter_dtype, a->gradient_dtype);
        }
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

void mo_adafactor_vector_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_vector_run(args, begin, end, vector_scalar);
}

void mo_adafactor_apply_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_apply_run(args, begin, end, apply_scalar);
}

void mo_adafactor_rows_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    const uint64_t blocks = mo_tiles_of(a->rows, MO_ROW_BLOCK);
    if (mo_adafactor_is_skipped(a))
        return;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t first = item % blocks * MO_ROW_BLOCK, rest = a->rows - first;
        double lanes[MO_STRIPE_LANES] = {0};
        for (uint64_t i = 0; i < rest && i < MO_ROW_BLOCK; i++)
            lanes[i % MO_STRIPE_LANES] += (double)mo_adafactor_row(a, item / blocks, first + i);
        a->row_totals[item] = mo_stripe_tree(lanes);
    }
}

void mo_adafactor_columns_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    const uint64_t across = mo_tiles_of(a->columns, MO_TILE_COLUMNS);
    if (mo_adafactor_is_skipped(a))
        return;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t first = item % across * MO_TILE_COLUMNS, rest = a->columns - first;
        float mean = mo_adafactor_row_mean(a, item / across);
        for (uint64_t j = 0; j < rest && j < MO_TILE_COLUMNS; j++)
            mo_adafactor_column(a, item / across, first + j, mean);
    }
}

void mo_adafactor_rate_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adafactor_args *a = args;
    (void)begin;
    (void)end;
    *a->rate = mo_adafactor_rate_of(a);
}
