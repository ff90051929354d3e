/*
 * Cross-entropy of logits that come in pieces of the classes. The order of operations is part of
 * the specification, so that every form, and every cut into pieces, gives the same bits:
 *
 *   stripe  1,024 consecutive classes of a row. Its largest logit; then lane l of 32 adds the
 *           exponentials of logits l, l + 32, l + 64, …, less the largest, in order and in f32, and
 *           the lanes are added as a tree: l + 16, then 8, 4, 2, 1.
 *   row     the stripes, one by one in order: the sum so far and the stripe's are brought to the
 *           larger of both largest logits and added, in double.
 *
 * An exponential of a number that is not positive is at most 1.01 units of the last place off
 * ("Handbook of Floating-Point Arithmetic", Muller et al., section 11.1: r = z - k ln 2 in two
 * parts, a polynomial of r, 2^k); below e^-87 it is 0.
 *
 * A stripe is a warp's work on a GPU: a lane there is a lane here.
 */
#ifndef MO_KERNELS_LOSS_LOSS_H
#define MO_KERNELS_LOSS_LOSS_H

#include "kernels/core/kernel_launch.h"

enum { MO_LOSS_STRIPE = 1024, MO_LOSS_LANES = 32, MO_LOSS_THREADS = 256 };

/* memopt_cross_entropy_row. Zero bytes: nothing was added yet. */
typedef struct mo_loss_row {
    double sum;     /* of the exponentials of logits less the largest */
    float largest;  /* where sum is not 0 */
    float target;   /* the logit of the row's target, where found */
    uint32_t found; /* the target was in a piece */
    uint32_t reserved;
} mo_loss_row;

/* One item per row. */
typedef struct mo_logits_args {
    unsigned char *logits; /* row r begins at element r * stride */
    const int32_t *targets;
    mo_loss_row *rows;
    uint64_t stride;
    uint64_t count; /* rows */
    uint32_t columns;
    uint32_t first; /* the class of column 0, a multiple of MO_LOSS_STRIPE */
    uint32_t dtype; /* f32, f16 or bf16 */
    float scale;    /* gradient: of the loss */
} mo_logits_args;

/* One item per MO_LOSS_THREADS rows. */
typedef struct mo_losses_args {
    const mo_loss_row *rows;
    const int32_t *targets;
    float *losses;
    uint64_t count;
} mo_losses_args;

extern const mo_kernel mo_kernel_logits_add;      /* mo_logits_args */
extern const mo_kernel mo_kernel_logits_gradient; /* mo_logits_args */
extern const mo_kernel mo_kernel_losses;          /* mo_losses_args */

#define MO_EXP_LEAST -87.0f
#define MO_EXP_LOG2E 0x1.715476p+0f
#define MO_EXP_ROUND 0x1.8p23f /* adding it rounds to a whole number, in the low bits */
#define MO_EXP_LN2_HIGH 0x1.62e4p-1f
#define MO_EXP_LN2_LOW 0x1.7f7d1cp-20f
/* e^r = 1 + r + r^2 * (a polynomial), |r| <= 0.35. */
#define MO_EXP_0 0x1.fffffcp-2f
#define MO_EXP_1 0x1.55548ep-3f
#define MO_EXP_2 0x1.555904p-5f
#define MO_EXP_3 0x1.123cccp-7f
#define MO_EXP_4 0x1.6a1f96p-10f

/* e^z for z <= 0, and NaN for NaN. */
MO_HD static inline float mo_exp_down(float z)
{
    float shifted = mo_fmaf(z, MO_EXP_LOG2E, MO_EXP_ROUND), k = shifted - MO_EXP_ROUND;
    float r = mo_fmaf(k, -MO_EXP_LN2_LOW, mo_fmaf(k, -MO_EXP_LN2_HIGH, z));
    float q = mo_fmaf(mo_fmaf(MO_EXP_4, r, MO_EXP_3), r, MO_EXP_2);
    q = mo_fmaf(mo_fmaf(q, r, MO_EXP_1), r, MO_EXP_0);
    float p = mo_fmaf(q, r * r, r) + 1.0f;
    float power = mo_f32_from_bits((mo_f32_bits(shifted) << 23) + 0x3f800000u);
    return z < MO_EXP_LEAST ? 0.0f : p * power;
}

/* What is subtracted from a stripe's logits: the largest, but 0 where all are -infinity. */
MO_HD static inline float mo_loss_base(float largest)
{
    return largest == -mo_f32_from_bits(MO_F32_INF_BITS) ? 0.0f : largest;
}

/* Adds a stripe to a row. */
MO_HD static inline void mo_loss_join(mo_loss_row *row, float largest, float sum)
{
    float old = row->sum == 0.0 ? -mo_f32_from_bits(MO_F32_INF_BITS) : row->largest;
    float both = largest > old ? largest : old, base = mo_loss_base(both);
    double before = row->sum * (double)mo_exp_down(old - base);
    double added = (double)sum * (double)mo_exp_down(largest - base);
    double total = before + added;
    row->largest = both + 0.0f; /* -0 becomes 0 */
    row->sum = total == total ? total : mo_f64_from_bits(0x7ff8000000000000u);
}

/* The logit of a row's target was in a piece. */
MO_HD static inline void mo_loss_target(mo_loss_row *row, float logit)
{
    row->target = logit == logit ? logit : mo_f32_from_bits(MO_F32_NAN_BITS);
    row->found = 1;
}

/* The tree over a stripe's lanes, which are used up. */
MO_HD static inline float mo_loss_tree(float lanes[MO_LOSS_LANES])
{
    for (uint32_t distance = MO_LOSS_LANES / 2; distance > 0; distance /= 2)
        for (uint32_t lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    return lanes[0];
}

/* What an exponential is multiplied by to be a gradient; of an ignored row nothing is left. */
MO_HD static inline float mo_loss_factor(const mo_loss_row *row, float scale)
{
    return (float)((double)scale / row->sum);
}

MO_HD static inline float mo_loss_gradient(float logit, float base, float factor, float less)
{
    float d = mo_exp_down(logit - base) * factor - less;
    return d == d ? d : mo_f32_from_bits(MO_F32_NAN_BITS);
}

/* The logarithm of a positive number: m * 2^k, m from 0.7 to 1.42; log m by the series of
 * 2 artanh((m - 1) / (m + 1)), whose next term is below 2^-47. */
MO_HD static inline double mo_log_positive(double x)
{
    uint64_t bits = mo_f64_bits(x), upper = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    int32_t k = (int32_t)(upper >> 52) - 1023;
    double m = mo_f64_from_bits(bits - ((uint64_t)k << 52));
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int32_t n = 15; n > 1; n -= 2)
        sum = (sum + 1.0 / (double)n) * z;
    return (double)k * 0x1.62e42fefa39efp-1 + (s + s) * (1.0 + sum);
}

/* The loss of a row. */
MO_HD static inline float mo_loss_of(const mo_loss_row *row, int32_t target)
{
    if (target < 0)
        return 0.0f;
    double less = (double)row->largest - (double)row->target;
    if (!row->found || !(row->sum > 0.0) || less != less)
        return mo_f32_from_bits(MO_F32_NAN_BITS);
    return (float)(mo_log_positive(row->sum) + less);
}

#endif
