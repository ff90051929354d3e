/*
 * The kernels of the loss scaler: multiply many tensors in place by a factor that lies in device
 * memory, finish a norm, and update the scale.
 */
#ifndef MO_KERNELS_REDUCE_SCALE_H
#define MO_KERNELS_REDUCE_SCALE_H

#include "kernels/reduce/reduce.h"

/* The scaler in device memory. growth and backoff are doubles, as in torch: scale * factor is
 * rounded to f32 once. */
typedef struct mo_scaler_block {
    float scale;
    float found_inf;
    uint32_t growth_tracker;
    uint32_t growth_interval;
    double growth_factor;
    double backoff_factor;
} mo_scaler_block;

enum { MO_SCALE_THREADS = 256 };

/* One item per chunk: x = x * factor, in f32, rounded once to x's type. A NaN keeps its bits, made
 * quiet; a NaN that arises is MO_F32_NAN_BITS. */
typedef struct mo_scale_args {
    const mo_tensor_segment *table; /* in device memory, or NULL: `segments` below */
    const float *scale;             /* unscale: factor = float(1 / double(*scale)); or NULL: */
    const float *factor;            /* the factor itself; 1 without found_inf: nothing is done */
    float *found_inf;               /* becomes 1 if any element was not finite before; or NULL */
    uint32_t count;                 /* segments */
    uint32_t reserved;
    mo_tensor_segment segments[MO_TENSOR_SEGMENTS];
} mo_scale_args;

/* One item. *sum is the total of squares. */
typedef struct mo_norm_args {
    const double *sum;  /* NULL: 0 */
    float *norm;        /* or NULL */
    float *coefficient; /* or NULL */
    double max_norm;
} mo_norm_args;

/* One item. */
typedef struct mo_scaler_update_args {
    mo_scaler_block *block;
    uint32_t disabled; /* 1: only the flag is cleared */
    uint32_t reserved;
} mo_scaler_update_args;

/* One item: the block takes a state. */
typedef struct mo_scaler_set_args {
    mo_scaler_block *block;
    float scale;
    uint32_t growth_tracker;
    uint32_t growth_interval;
    uint32_t clear; /* 1: the found-inf flag becomes 0; 0: it stays */
    double growth_factor;
    double backoff_factor;
} mo_scaler_set_args;

extern const mo_kernel mo_kernel_scale;         /* mo_scale_args */
extern const mo_kernel mo_kernel_norm;          /* mo_norm_args */
extern const mo_kernel mo_kernel_scaler_update; /* mo_scaler_update_args */
extern const mo_kernel mo_kernel_scaler_set;    /* mo_scaler_set_args */

/* --- the formulas ---------------------------------------------------------------------------- */

MO_HD static inline float mo_inverse_scale(float scale)
{
    return (float)(1.0 / (double)scale);
}

MO_HD static inline float mo_scale_element(float value, float factor)
{
    float product = value * factor;
    if (mo_f32_is_nan(value))
        return mo_f32_from_bits(mo_f32_bits(value) | MO_F32_QUIET_BIT);
    return mo_f32_is_nan(product) ? mo_f32_from_bits(MO_F32_NAN_BITS) : product;
}

/* The norm of a total of squares, rounded once to f32 (infinite beyond its range). */
MO_HD static inline float mo_norm_of(double sum)
{
    double norm = mo_sqrt(sum);
    return norm != norm ? mo_f32_from_bits(MO_F32_NAN_BITS) : (float)norm;
}

/* min(1, max_norm / (norm + 1e-6)) in double, rounded once; NaN stays NaN. */
MO_HD static inline float mo_clip_coefficient(double sum, double max_norm)
{
    double ratio = max_norm / (mo_sqrt(sum) + 1e-6);
    if (ratio != ratio)
        return mo_f32_from_bits(MO_F32_NAN_BITS);
    return ratio < 1.0 ? (float)ratio : 1.0f;
}

/* The block takes the state in `args`. */
MO_HD static inline void mo_scaler_assign(const mo_scaler_set_args *args)
{
    mo_scaler_block *block = args->block;
    if (args->clear)
        block->found_inf = 0.0f;
    block->scale = args->scale;
    block->growth_tracker = args->growth_tracker;
    block->growth_interval = args->growth_interval;
    block->growth_factor = args->growth_factor;
    block->backoff_factor = args->backoff_factor;
}

/* GradScaler's update. */
MO_HD static inline void mo_scaler_step(mo_scaler_block *block, uint32_t disabled)
{
    float found = block->found_inf;
    block->found_inf = 0.0f;
    if (disabled)
        return;
    if (found != 0.0f) {
        block->scale = (float)((double)block->scale * block->backoff_factor);
        block->growth_tracker = 0;
        return;
    }
    block->growth_tracker++;
    if (block->growth_tracker < block->growth_interval)
        return;
    float grown = (float)((double)block->scale * block->growth_factor);
    if (mo_f32_is_finite(grown))
        block->scale = grown;
    block->growth_tracker = 0;
}

#endif
