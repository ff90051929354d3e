/*
 * Reductions over many tensors: the sum of squares (norm and non-finite check in one) and the check
 * alone. The order of additions is part of the specification, so that every form gives the same
 * bits:
 *
 *   stripe  1,024 consecutive values; lane l of 32 adds the values l, l + 32, l + 64, … in order,
 *           starting from 0, and the lanes are added as a tree: l + 16, then 8, 4, 2, 1.
 *   chunk   MO_CHUNK_ELEMENTS elements of one tensor, 16 stripes, added in order.
 *   total   the chunks' sums, in the order of tensors and chunks, are values again: each 1,024 of
 *           them (a stripe) become one, until one is left.
 *
 * All of it in double. The square of an f32 is exact there, and no sum of fewer than 2^700 such
 * squares overflows: the total is finite exactly when every element is.
 *
 * A stripe is a warp's work on a GPU: a lane there is a lane here.
 */
#ifndef MO_KERNELS_REDUCE_REDUCE_H
#define MO_KERNELS_REDUCE_REDUCE_H

#include "kernels/core/kernel_launch.h"

enum { MO_STRIPE_ELEMENTS = 1024, MO_STRIPE_LANES = 32, MO_TENSOR_SEGMENTS = 120 };

/* square_sum: a thread for each lane of a chunk's stripes. sum: a stripe, and whole warps. */
enum {
    MO_SQUARE_SUM_THREADS = MO_CHUNK_ELEMENTS / MO_STRIPE_ELEMENTS * MO_STRIPE_LANES,
    MO_CHECK_THREADS = 256,
    MO_SUM_THREADS = 64
};

/* One item per chunk. */
typedef struct mo_reduce_args {
    const mo_tensor_segment *table; /* in device memory, or NULL: `segments` below */
    double *partials;               /* square_sum: the sum of chunk i goes to partials[i] */
    float *found_inf; /* check: becomes 1 if any element is not finite; else untouched */
    uint32_t count;   /* segments */
    uint32_t reserved;
    mo_tensor_segment segments[MO_TENSOR_SEGMENTS];
} mo_reduce_args;

/* One item per 1,024 values: destination[i] = the sum of values [1024 i, 1024 i + 1024). */
typedef struct mo_sum_args {
    const double *values;
    double *destination; /* does not overlap values */
    uint64_t count;      /* values, in all */
} mo_sum_args;

extern const mo_kernel mo_kernel_square_sum; /* mo_reduce_args */
extern const mo_kernel mo_kernel_check;      /* mo_reduce_args */
extern const mo_kernel mo_kernel_sum;        /* mo_sum_args */

/* Doubles of scratch that a total over `chunks` chunks needs: the partials, then each level. The
 * total is the last of them, at index mo_total_scratch(chunks) - 1; one chunk needs no level. */
MO_HD static inline uint64_t mo_total_scratch(uint64_t chunks)
{
    uint64_t scratch = chunks;
    while (chunks > 1) {
        chunks = chunks / MO_STRIPE_ELEMENTS + (chunks % MO_STRIPE_ELEMENTS != 0);
        scratch += chunks;
    }
    return scratch;
}

/* The tree over a stripe's lanes; the lanes are used up. */
MO_HD static inline double mo_stripe_tree(double lanes[MO_STRIPE_LANES])
{
    for (uint32_t distance = MO_STRIPE_LANES / 2; distance > 0; distance /= 2)
        for (uint32_t lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    return lanes[0];
}

#endif
