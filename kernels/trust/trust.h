/*
 * The trust ratios of LAMB and LARS: of each tensor the sums of squares of the parameter and of
 * its update, and what the update is multiplied by. The squares of chunks are
 * mo_kernel_square_sum's, the products mo_kernel_accumulate's.
 *
 *   total  of a tensor: lane l of 32 adds the sums of chunks l, l + 32, ... in order, starting from
 *          0, and the lanes are added as the tree of reduce.h
 *   ratio  most * sqrt(squares of the parameter) / sqrt(squares of the update); at most 1 if it
 *          clips; 1 where either is 0 or NaN, or `most` is 0
 *   rate   scale * ratio, rounded once
 *
 * All of it in double.
 */
#ifndef MO_KERNELS_TRUST_TRUST_H
#define MO_KERNELS_TRUST_TRUST_H

#include "kernels/reduce/reduce.h"

enum { MO_TRUST_TENSORS = 256 };

/* One item per tensor. */
typedef struct mo_trust_totals_args {
    const double *partials; /* one for each chunk */
    double *totals;
    uint64_t first[MO_TRUST_TENSORS + 1]; /* tensor i has the chunks [first[i], first[i + 1]) */
} mo_trust_totals_args;

/* One item per MO_ONE_THREADS tensors. */
typedef struct mo_trust_rates_args {
    const double *squares; /* of `count` parameters, then of their updates */
    float *rates;
    double scale, most;
    uint64_t count;
    uint32_t clip;
    uint32_t reserved;
} mo_trust_rates_args;

extern const mo_kernel mo_kernel_trust_totals, mo_kernel_trust_rates;

MO_HD static inline float mo_trust_rate(const mo_trust_rates_args *a, uint64_t tensor)
{
    const double size = mo_sqrt(MO_AT(const double, a->squares + tensor));
    const double length = mo_sqrt(MO_AT(const double, a->squares + a->count + tensor));
    double ratio = a->most > 0.0 && size > 0.0 && length > 0.0 ? a->most * size / length : 1.0;
    if (a->clip && ratio > 1.0)
        ratio = 1.0;
    return mo_f32_one_nan((float)(a->scale * ratio));
}

#endif
