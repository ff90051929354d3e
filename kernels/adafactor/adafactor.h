/*
 * Adafactor (Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
 * 2018) over a stack of matrices: the second moment of element (i, j) is row[i] * column[j] /
 * mean(row), where row and column are moving means of the squares in a row and in a column. A
 * vector is a row whose elements have second moments of their own.
 *
 * A launch is over many parameters. A matrix is cut into tiles of MO_TILE_ROWS rows and
 * MO_TILE_COLUMNS columns (a stripe), one item of a launch each. All values are fp32 unless a line says double. The order of additions:
 *
 *   stripe   a row of a tile: lane l of 32 takes columns l, l + 32, ... in order, starting from 0,
 * by fma(x, x, lane); then the lanes are added as a tree: l + 16, then 8, 4, 2, 1. row      its
 * stripes, in order, in double. column   of a tile: the rows in order by fma(x, x, sum), starting
 * from 0; of the matrix: the tiles' sums, in order, in double. mean of rows    stripes of 1,024 in
 * double as in reduce.h; the stripes in order. squared update  the stripes of a tile, its rows in
 * order, in double; then the tiles as mo_sum adds.
 *
 * With x = gradient * scale, and 1 / sqrt(0) = infinity:
 *
 *   moment          fresh < 1/2: fma(fresh, mean - old, old); else fma(fresh - 1, mean - old, mean)
 *   row factor      1 / sqrt(row)
 *   column factor   sqrt(max(mean of rows, least) / column)
 *   update          x * min(row factor * column factor, 1 / least); of a vector, whose mean is
 *                   x * x, x * min(1 / sqrt(moment), 1 / least)
 *   parameter       fma(-rate, update, parameter * keep)
 */
#ifndef MO_KERNELS_ADAFACTOR_ADAFACTOR_H
#define MO_KERNELS_ADAFACTOR_ADAFACTOR_H

#include "kernels/optim/optim_step.h"
#include "kernels/reduce/reduce.h"

enum {
    MO_TILE_ROWS = 64,
    MO_TILE_COLUMNS = MO_STRIPE_ELEMENTS,
    MO_ROW_BLOCK = MO_STRIPE_ELEMENTS,
    MO_ADAFACTOR_THREADS = 256
};

/* Of a gradient: its shape, and where its part of what a launch has for all of them begins. */
typedef struct mo_adafactor_plan {
    uint64_t rows, columns; /* of a matrix; a vector is one row */
    uint64_t first_tile;
    uint64_t first_row_block, first_column_block; /* vectors have none */
    uint64_t first_double;                        /* of `levels` */
    uint64_t first_float;                         /* of `floats`; vectors have none */
} mo_adafactor_plan;

/* Each kernel runs over the gradients of a table in one launch. */
typedef struct mo_adafactor_args {
    const mo_optim_tensor *tensors; /* m: of rows, v: of columns; of a vector m alone */
    const mo_tensor_segment *gradients;
    const mo_rule_group *groups;
    const mo_rule_coef *coefs;
    const mo_optim_control *control;
    const mo_adafactor_plan *plans;
    /* Scratch. */
    double *chunk_squares; /* of the parameters; a chunk each */
    double *tile_squares;  /* of the updates; a tile each */
    double *row_totals;    /* a row block each */
    double *levels;        /* of the totals over chunks and tiles */
    float *floats;         /* of each matrix: mo_adafactor_matrix says what */
    float *rates;          /* a gradient each */
    uint64_t elements;     /* of all gradients */
    uint32_t count;        /* gradients */
    uint32_t reserved;
} mo_adafactor_args;

/* In the order of their launches. Only the last one writes parameters, states and step counts. */
extern const mo_kernel mo_kernel_adafactor_squares; /* an item for each tile */
extern const mo_kernel mo_kernel_adafactor_rows;    /* for each 1,024 rows of a matrix */
extern const mo_kernel mo_kernel_adafactor_columns; /* for each 1,024 columns of a matrix */
extern const mo_kernel mo_kernel_adafactor_update;  /* for each tile: the square of the update */
extern const mo_kernel mo_kernel_adafactor_rate;    /* for each gradient */
extern const mo_kernel mo_kernel_step_adafactor;    /* for each tile */

/* What an item works on: a stack of matrices, or a vector. */
typedef struct mo_adafactor_matrix {
    unsigned char *parameter;
    const unsigned char *gradient;
    float *row_var;        /* stack * rows; NULL: a vector, and rows is 1 */
    float *column_var;     /* stack * columns */
    double *row_totals;    /* stack * row blocks */
    double *tile_squares;  /* a tile each */
    float *row_squares;    /* stack * tiles across * rows */
    float *column_squares; /* stack * tiles down * columns */
    float *row_factor;     /* stack * rows */
    float *column_factor;  /* stack * columns */
    float *row_moment;     /* stack * rows: what the last launch copies to row_var */
    float *column_moment;  /* stack * columns */
    const float *rate;
    uint64_t *steps;
    uint64_t stack, rows, columns, step;
    float fresh, least, cap, scale, keep; /* cap: 1 / least */
    uint32_t parameter_dtype, gradient_dtype;
} mo_adafactor_matrix;

MO_HD static inline uint64_t mo_tiles_of(uint64_t length, uint64_t tile)
{
    return length / tile + (length % tile != 0);
}

/* Tiles of a stack of matrices with `count` elements. */
MO_HD static inline uint64_t mo_adafactor_tiles(uint64_t count, uint64_t rows, uint64_t columns)
{
    return count / rows / columns * mo_tiles_of(columns, MO_TILE_COLUMNS) *
           mo_tiles_of(rows, MO_TILE_ROWS);
}

/* Floats of scratch that a stack of matrices needs; no term exceeds its elements. */
MO_HD static inline uint64_t mo_adafactor_floats(uint64_t stack, uint64_t rows, uint64_t columns)
{
    return stack * (mo_tiles_of(columns, MO_TILE_COLUMNS) * rows +
                    mo_tiles_of(rows, MO_TILE_ROWS) * columns + 2 * rows + 2 * columns);
}

MO_HD static inline void mo_adafactor_matrix_of(const mo_adafactor_args *a, uint32_t i,
                                                mo_adafactor_matrix *out)
{
    const mo_adafactor_plan *plan = &a->plans[i];
    const mo_tensor_segment *g = &a->gradients[i];
    const mo_optim_tensor *t = &a->tensors[g->number];
    const mo_rule_coef *c = &a->coefs[i];
    out->parameter = (unsigned char *)t->parameter;
    out->gradient = (const unsigned char *)g->data;
    out->row_var = (float *)(t->v != 0 ? t->m : 0);
    out->column_var = (float *)(t->v != 0 ? t->v : t->m);
    out->stack = g->count / plan->rows / plan->columns;
    out->rows = plan->rows;
    out->columns = plan->columns;
    out->row_totals = a->row_totals + plan->first_row_block;
    out->tile_squares = a->tile_squares + plan->first_tile;
    out->row_squares = a->floats + plan->first_float;
    out->column_squares =
        out->row_squares + out->stack * mo_tiles_of(out->columns, MO_TILE_COLUMNS) * out->rows;
    out->row_factor =
        out->column_squares + out->stack * mo_tiles_of(out->rows, MO_TILE_ROWS) * out->columns;
    out->column_factor = out->row_factor + out->stack * out->rows;
    out->row_moment = out->column_factor + out->stack * out->columns;
    out->column_moment = out->row_moment + out->stack * out->rows;
    out->rate = a->rates + i;
    out->steps = t->steps;
    out->step = c->step;
    out->fresh = c->one_minus_beta2;
    out->least = c->eps;
    out->cap = 1.0f / c->eps;
    out->scale = c->factor;
    out->keep = c->decay;
    out->parameter_dtype = (uint32_t)t->parameter_dtype;
    out->gradient_dtype = g->dtype;
}

/* What item number `item` of a launch works on, and its number there; `first` is that member of
 * the first plan. */
MO_HD static inline uint64_t mo_adafactor_find(const mo_adafactor_args *a, const uint64_t *first,
                                               uint64_t item, mo_adafactor_matrix *out)
{
    uint32_t i = mo_chunk_segment(first, sizeof *a->plans, a->count, item);
    mo_adafactor_matrix_of(a, i, out);
    return item - *(const uint64_t *)(const void *)((const unsigned char *)(const void *)first +
                                                    i * sizeof *a->plans);
}

/* A tile of a matrix. */
typedef struct mo_adafactor_tile {
    uint64_t matrix, row, column; /* the first ones */
    uint64_t element;             /* row, column as an element of the stack */
    uint64_t across, down;        /* the tile's place in the matrix */
    uint32_t rows, columns;
} mo_adafactor_tile;

MO_HD static inline void mo_adafactor_tile_of(const mo_adafactor_matrix *a, uint64_t item,
                                              mo_adafactor_tile *out)
{
    const uint64_t across = mo_tiles_of(a->columns, MO_TILE_COLUMNS);
    const uint64_t down = mo_tiles_of(a->rows, MO_TILE_ROWS);
    out->across = item % across;
    out->down = item / across % down;
    out->matrix = item / across / down;
    out->row = out->down * MO_TILE_ROWS;
    out->column = out->across * MO_TILE_COLUMNS;
    out->element = (out->matrix * a->rows + out->row) * a->columns + out->column;
    uint64_t rows = a->rows - out->row, columns = a->columns - out->column;
    out->rows = rows < MO_TILE_ROWS ? (uint32_t)rows : (uint32_t)MO_TILE_ROWS;
    out->columns = columns < MO_TILE_COLUMNS ? (uint32_t)columns : (uint32_t)MO_TILE_COLUMNS;
}

MO_HD static inline float mo_adafactor_moment(float old, float mean, float fresh)
{
    float way = mean - old;
    return mo_f32_one_nan(fresh < 0.5f ? mo_fmaf(fresh, way, old)
                                       : mo_fmaf(fresh - 1.0f, way, mean));
}

/* The smaller one; a NaN of the factor stays. */
MO_HD static inline float mo_adafactor_capped(float factor, float cap)
{
    return cap < factor ? cap : factor;
}

/* Of an element of a vector, by its moment. */
MO_HD static inline float mo_adafactor_factor(float moment, float cap)
{
    return mo_adafactor_capped(1.0f / mo_sqrtf(moment), cap);
}

/* The tree of mo_stripe_tree in fp32; the lanes are used up. */
MO_HD static inline float mo_adafactor_tree(float lanes[MO_STRIPE_LANES])
{
    for (uint32_t distance = MO_STRIPE_LANES / 2; distance > 0; distance /= 2)
        for (uint32_t lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    return lanes[0];
}

/* Row i of matrix s: finds its new moment and returns it. */
MO_HD static inline float mo_adafactor_row(const mo_adafactor_matrix *a, uint64_t s, uint64_t i)
{
    const uint64_t across = mo_tiles_of(a->columns, MO_TILE_COLUMNS), at = s * a->rows + i;
    double sum = 0;
    for (uint64_t t = 0; t < across; t++)
        sum += (double)MO_AT(float, a->row_squares + (s * across + t) * a->rows + i);
    float mean = (float)(sum / (double)a->columns);
    float moment = mo_adafactor_moment(MO_AT(float, a->row_var + at), mean, a->fresh);
    MO_AT(float, a->row_moment + at) = moment;
    MO_AT(float, a->row_factor + at) = mo_f32_one_nan(1.0f / mo_sqrtf(moment));
    return moment;
}

/* The mean of a matrix's row moments, at least `least`. */
MO_HD static inline float mo_adafactor_row_mean(const mo_adafactor_matrix *a, uint64_t s)
{
    const uint64_t blocks = mo_tiles_of(a->rows, MO_ROW_BLOCK);
    double sum = 0;
    for (uint64_t k = 0; k < blocks; k++)
        sum += MO_AT(double, a->row_totals + s * blocks + k);
    float mean = (float)(sum / (double)a->rows);
    return mean < a->least ? a->least : mean;
}

/* Column j of matrix s. */
MO_HD static inline void mo_adafactor_column(const mo_adafactor_matrix *a, uint64_t s, uint64_t j,
                                             float row_mean)
{
    const uint64_t down = mo_tiles_of(a->rows, MO_TILE_ROWS), at = s * a->columns + j;
    double sum = 0;
    for (uint64_t k = 0; k < down; k++)
        sum += (double)MO_AT(float, a->column_squares + (s * down + k) * a->columns + j);
    float mean = (float)(sum / (double)a->rows);
    float moment = mo_adafactor_moment(MO_AT(float, a->column_var + at), mean, a->fresh);
    MO_AT(float, a->column_moment + at) = moment;
    MO_AT(float, a->column_factor + at) = mo_f32_one_nan(mo_sqrtf(row_mean / moment));
}

/* The step's rate: relative to the parameter, and less where the update is long. */
MO_HD static inline float mo_adafactor_rate_of(const mo_adafactor_args *a, uint32_t i,
                                               double parameter_squares, double update_squares)
{
    const mo_rule_group *g = &a->groups[a->tensors[a->gradients[i].number].group];
    const double count = (double)a->gradients[i].count;
    double rate = g->device_lr != 0 ? (double)MO_AT(const float, g->device_lr) : g->lr;
    double slowed = 1.0 / mo_sqrt((double)a->coefs[i].step);
    double size = mo_sqrt(parameter_squares / count);
    double length = g->d > 0.0 ? mo_sqrt(update_squares / count) / g->d : 1.0;
    rate = slowed < rate ? slowed : rate;
    size = size < g->eps2 ? g->eps2 : size;
    length = length < 1.0 ? 1.0 : length;
    return mo_f32_one_nan((float)(size * rate / length));
}

#endif
