/*
 * Adafactor (Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
 * 2018) over a stack of matrices: the second moment of element (i, j) is row[i] * column[j] /
 * mean(row), where row and column are moving means of the squares in a row and in a column. A
 * vector is a row whose elements have second moments of their own.
 *
 * A matrix is cut into tiles of MO_TILE_ROWS rows and MO_TILE_COLUMNS columns (a stripe), one item
 * of a launch each. All values are fp32 unless a line says double. The order of additions:
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

#include "kernels/reduce/reduce.h"

enum {
    MO_TILE_ROWS = 64,
    MO_TILE_COLUMNS = MO_STRIPE_ELEMENTS,
    MO_ROW_BLOCK = MO_STRIPE_ELEMENTS,
    MO_ADAFACTOR_THREADS = 256
};

typedef struct mo_adafactor_args {
    unsigned char *parameter;
    const unsigned char *gradient;
    float *row_var;                  /* stack * rows; NULL: vectors, and rows is 1 */
    float *column_var;               /* stack * columns */
    const float *found_inf;          /* not 0: nothing changes; or NULL */
    const double *parameter_squares; /* the sum over all elements */
    const double *update_squares;
    /* Scratch. */
    double *row_totals;    /* stack * row blocks */
    double *tile_squares;  /* an item each: of the update */
    float *row_squares;    /* stack * tiles across * rows */
    float *column_squares; /* stack * tiles down * columns */
    float *row_factor;     /* stack * rows */
    float *column_factor;  /* stack * columns */
    float *rate;           /* one */
    uint64_t stack, rows, columns;
    double step_rate;           /* min(lr, 1 / sqrt(step)); below 0: the gradient is climbed */
    double least_size, longest; /* eps[1] and d */
    float fresh, least, cap;    /* of the new mean; eps[0]; 1 / eps[0] */
    float scale, keep;          /* of the gradient; 1 - lr * weight_decay */
    uint32_t parameter_dtype, gradient_dtype;
    uint32_t reserved;
} mo_adafactor_args;

/* In the order of their launches. */
extern const mo_kernel mo_kernel_adafactor_squares; /* an item for each tile */
extern const mo_kernel mo_kernel_adafactor_rows;    /* for each 1,024 rows of a matrix */
extern const mo_kernel mo_kernel_adafactor_columns; /* for each 1,024 columns of a matrix */
extern const mo_kernel mo_kernel_adafactor_update;  /* for each tile: the square of the update */
extern const mo_kernel mo_kernel_adafactor_vector;  /* in place of these four: for each tile */
extern const mo_kernel mo_kernel_adafactor_rate;    /* one */
extern const mo_kernel mo_kernel_adafactor_apply;   /* for each tile */

MO_HD static inline uint64_t mo_tiles_of(uint64_t length, uint64_t tile)
{
    return length / tile + (length % tile != 0);
}

/* What an item works on. */
typedef struct mo_adafactor_tile {
    uint64_t matrix, row, column; /* the first ones */
    uint64_t element;             /* row, column as an element of the stack */
    uint64_t across, down;        /* the tile's place in the matrix */
    uint32_t rows, columns;
} mo_adafactor_tile;

MO_HD static inline void mo_adafactor_tile_of(const mo_adafactor_args *a, uint64_t item,
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

MO_HD static inline int mo_adafactor_is_skipped(const mo_adafactor_args *a)
{
    return a->found_inf && *a->found_inf != 0.0f;
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

/* Row i of matrix s: brings the moment up to date and returns it. */
MO_HD static inline float mo_adafactor_row(const mo_adafactor_args *a, uint64_t s, uint64_t i)
{
    const uint64_t across = mo_tiles_of(a->columns, MO_TILE_COLUMNS), at = s * a->rows + i;
    double sum = 0;
    for (uint64_t t = 0; t < across; t++)
        sum += (double)MO_AT(float, a->row_squares + (s * across + t) * a->rows + i);
    float mean = (float)(sum / (double)a->columns);
    float moment = mo_adafactor_moment(MO_AT(float, a->row_var + at), mean, a->fresh);
    MO_AT(float, a->row_var + at) = moment;
    MO_AT(float, a->row_factor + at) = mo_f32_one_nan(1.0f / mo_sqrtf(moment));
    return moment;
}

/* The mean of a matrix's row moments, at least `least`. */
MO_HD static inline float mo_adafactor_row_mean(const mo_adafactor_args *a, uint64_t s)
{
    const uint64_t blocks = mo_tiles_of(a->rows, MO_ROW_BLOCK);
    double sum = 0;
    for (uint64_t k = 0; k < blocks; k++)
        sum += MO_AT(double, a->row_totals + s * blocks + k);
    float mean = (float)(sum / (double)a->rows);
    return mean < a->least ? a->least : mean;
}

/* Column j of matrix s. */
MO_HD static inline void mo_adafactor_column(const mo_adafactor_args *a, uint64_t s, uint64_t j,
                                             float row_mean)
{
    const uint64_t down = mo_tiles_of(a->rows, MO_TILE_ROWS), at = s * a->columns + j;
    double sum = 0;
    for (uint64_t k = 0; k < down; k++)
        sum += (double)MO_AT(float, a->column_squares + (s * down + k) * a->columns + j);
    float mean = (float)(sum / (double)a->rows);
    float moment = mo_adafactor_moment(MO_AT(float, a->column_var + at), mean, a->fresh);
    MO_AT(float, a->column_var + at) = moment;
    MO_AT(float, a->column_factor + at) = mo_f32_one_nan(mo_sqrtf(row_mean / moment));
}

/* The step's rate: relative to the parameter, and less where the update is long. */
MO_HD static inline float mo_adafactor_rate_of(const mo_adafactor_args *a)
{
    double count = (double)a->stack * (double)a->rows * (double)a->columns;
    double size = mo_sqrt(*a->parameter_squares / count);
    double length = mo_sqrt(*a->update_squares / count) / a->longest;
    size = size < a->least_size ? a->least_size : size;
    length = length < 1.0 ? 1.0 : length;
    return mo_f32_one_nan((float)(size * a->step_rate / length));
}

#endif
