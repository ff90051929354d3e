/*
 * Adam-mini (Zhang et al., "Adam-mini: use fewer learning rates to gain more", 2024): AdamW with
 * one second moment for each block of whole rows. The first moment is fp32, or 8-bit codes with a
 * scale for each 256 elements of a row (state_codes.h).
 *
 * The elements of a block lie one after the other. Their squares are added in double, as reduce.h
 * adds those of a chunk of MO_CHUNK_ELEMENTS; of a larger block lane l of 32 adds the sums of
 * chunks l, l + 32, ... in order, and the lanes are added as its tree. With g the gradient, in fp32
 * unless a line says double:
 *
 *   mean square   sum * square_factor, in double, rounded once
 *   second        v = fma(beta2, v, fresh2 * mean square)
 *   rate          step_rate / max(sqrt(v) * root_factor + eps, 2^-126), in double, rounded once
 *   mean          m = fma(beta1, m, fresh1 * g)
 *   parameter     fma(rate, m, fma(decay, p, p)), with m as it is before it is coded
 *
 * A block of at most a chunk is one item's or part of one's, which reads the gradient a second time
 * from a cache. Of larger ones the squares and the rates are launches of their own.
 */
#ifndef MO_KERNELS_ADAM_MINI_ADAM_MINI_H
#define MO_KERNELS_ADAM_MINI_ADAM_MINI_H

#include "kernels/optim/state_codes.h"
#include "kernels/reduce/reduce.h"

enum { MO_ADAM_MINI_THREADS = 256, MO_ADAM_MINI_BLOCKS = 256 };

typedef struct mo_adam_mini_args {
    unsigned char *parameter;
    const unsigned char *gradient;
    void *mean;             /* f32 or codes */
    float *scales;          /* rows * the codes' blocks in a row; NULL: the mean is f32 */
    float *second;          /* one for each block */
    const float *found_inf; /* not 0: nothing changes; or NULL */
    double *chunk_squares;  /* scratch: blocks * chunks */
    float *rates; /* scratch, one for each block; NULL: the step's items are of whole blocks */
    uint64_t rows, columns;
    uint64_t block_rows;
    uint64_t item_rows;    /* of an item of the step */
    uint64_t item_columns; /* all, or MO_CHUNK_ELEMENTS */
    double square_factor, step_rate, root_factor, eps;
    float beta1, fresh1, beta2, fresh2, decay;
    uint32_t parameter_dtype, gradient_dtype;
    uint32_t reserved;
} mo_adam_mini_args;

/* Of blocks larger than a chunk, in this order: an item for each chunk of each block, and one for
 * each block. */
extern const mo_kernel mo_kernel_adam_mini_squares, mo_kernel_adam_mini_rates;
/* With a mean of f32, and with codes: mo_adam_mini_items(). */
extern const mo_kernel mo_kernel_adam_mini_step, mo_kernel_adam_mini_step8;

MO_HD static inline uint64_t mo_parts_of(uint64_t length, uint64_t part)
{
    return length / part + (length % part != 0);
}

MO_HD static inline uint64_t mo_adam_mini_size(const mo_adam_mini_args *a)
{
    return a->block_rows * a->columns;
}

MO_HD static inline uint64_t mo_adam_mini_items(const mo_adam_mini_args *a)
{
    return mo_parts_of(a->rows, a->item_rows) * mo_parts_of(a->columns, a->item_columns);
}

/* What an item of the step works on. */
typedef struct mo_adam_mini_item {
    uint64_t row, column; /* the first ones */
    uint32_t rows, columns;
} mo_adam_mini_item;

MO_HD static inline mo_adam_mini_item mo_adam_mini_item_of(const mo_adam_mini_args *a,
                                                           uint64_t number)
{
    const uint64_t across = mo_parts_of(a->columns, a->item_columns);
    mo_adam_mini_item item = {number / across * a->item_rows, number % across * a->item_columns, 0,
                              0};
    uint64_t rows = a->rows - item.row, columns = a->columns - item.column;
    item.rows = (uint32_t)(rows < a->item_rows ? rows : a->item_rows);
    item.columns = (uint32_t)(columns < a->item_columns ? columns : a->item_columns);
    return item;
}

MO_HD static inline int mo_adam_mini_is_skipped(const mo_adam_mini_args *a)
{
    return a->found_inf && *a->found_inf != 0.0f;
}

/* Brings the second moment of a block up to date by its sum of squares; what multiplies its mean.
 */
MO_HD static inline float mo_adam_mini_rate(const mo_adam_mini_args *a, uint64_t block, double sum)
{
    float square = (float)(sum * a->square_factor);
    float second = mo_fmaf(a->beta2, MO_AT(float, a->second + block), a->fresh2 * square);
    second = mo_f32_one_nan(second);
    MO_AT(float, a->second + block) = second;
    double root = mo_sqrt((double)second) * a->root_factor + a->eps;
    return mo_f32_one_nan((float)(a->step_rate / (root < 0x1p-126 ? 0x1p-126 : root)));
}

MO_HD static inline float mo_adam_mini_mean(float beta1, float fresh1, float mean, float gradient)
{
    return mo_fmaf(beta1, mean, fresh1 * gradient);
}

MO_HD static inline float mo_adam_mini_moved(float rate, float decay, float mean, float parameter)
{
    return mo_f32_one_nan(mo_fmaf(rate, mean, mo_fmaf(decay, parameter, parameter)));
}

#endif
