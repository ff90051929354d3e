/*
 * AdamW on a GPU: the arithmetic of optim_step.h for the elements of a thread, with parameters by
 * approximations where these cannot change a bit. Part of optim.cu.
 */
#ifndef MO_KERNELS_OPTIM_ADAMW_GPU_H
#define MO_KERNELS_OPTIM_ADAMW_GPU_H

#include "kernels/optim/state_codes_gpu.h"

/* What mo_adamw_bf16 computes with, see there. */
typedef struct mo_near_rates {
    float less, more, eps;
} mo_near_rates;

MO_DEVICE mo_near_rates mo_near_rates_of(const mo_rule_coef *c)
{
    const float down = 0x1p-64f, slack = 0x1p-20f;
    float rate = c->rate * down;
    mo_near_rates near;
    near.less = mo_fmaf(rate, -slack, rate);
    near.more = mo_fmaf(rate, slack, rate);
    near.eps = c->eps * down;
    return near;
}

/* Coefficients for which the approximations are right: they do not leave the range in which numbers
 * keep their precision, and the root of a number below all normal ones, which may count as 0, is
 * small beside eps (0: of a rule without one). */
MO_DEVICE int mo_coef_is_plain(const mo_rule_coef *c)
{
    float rate = mo_magnitude(c->rate);
    return c->eps <= 0x1p20f && (c->eps >= 0x1p-37f || c->eps == 0.0f) && rate <= 0x1p30f &&
           (rate >= 0x1p-40f || rate == 0.0f);
}

/* What encoding needs to know of a pack's moments. */
typedef struct mo_pack_range {
    uint32_t largest_m, largest_v, largest_slow; /* mo_largest */
    int32_t least_v;                             /* mo_least */
} mo_pack_range;

template <uint32_t RULE>
MO_DEVICE mo_pack_range mo_range_of(const float m[8], const float v[8], const float slow[8])
{
    mo_pack_range range = {mo_largest<8>(m), 0, 0, 0};
    if (mo_rule_has_second(RULE)) {
        range.largest_v = mo_largest<8>(v);
        range.least_v = mo_least<8>(v);
    }
    if (mo_rule_has_slow(RULE))
        range.largest_slow = mo_largest<8>(slow);
    return range;
}

template <int N>
MO_DEVICE void mo_adamw_moments_of(const mo_rule_coef *c, const float g[N], float m[N], float v[N],
                                   mo_pack_range *range)
{
    MO_UNROLL
    for (int k = 0; k < N; k += 2) { /* mo_adamw_moments of two */
        mo_two h = mo_mul2(mo_two_of(g + k), mo_both(c->factor));
        mo_two part = mo_mul2(mo_both(c->one_minus_beta1), h);
        mo_two square = mo_mul2(mo_mul2(mo_both(c->one_minus_beta2), h), h);
        mo_two first = mo_fma2(mo_both(c->beta1), mo_two_of(m + k), part);
        mo_two second = mo_fma2(mo_both(c->beta2), mo_two_of(v + k), square);
        MO_UNROLL
        for (int j = 0; j < 2; j++) {
            m[k + j] = first.of[j];
            v[k + j] = second.of[j];
        }
    }
    range->largest_m = mo_largest<N>(m);
    range->largest_v = mo_largest_positive<N>(v);
    range->least_v = mo_least<N>(v);
}

/* Whether v is in the range for which mo_adamw_bf16 is right, and not to be bounded: bit 31 is set
 * if not. */
MO_DEVICE uint32_t mo_adamw_beyond(const mo_pack_range *range)
{
    uint32_t largest = range->largest_v; /* negative numbers and NaN are above all others */
    return (largest | (largest + (0x80000000u - 0x53800000u))) & 0x80000000u; /* 2^40 */
}

/* AdamW's bf16 parameters by approximations: their last bits seldom matter to a number of 8 bits.
 * u is at most 2^-20 off (the root 2^-22 and its exact twin's rounding 2^-24, two sums 2^-23, the
 * reciprocal 2^-22, product and exact quotient 2^-23), so the exact rate * u lies between those of
 * a rate that is 2^-20 smaller and one that much larger. fma and rounding are monotone: if both
 * give the same code, it is the exact one. u has a factor 2^64, which keeps it normal. An exact u
 * below 2^-126 is further off; it moves no parameter of at least 2^-64.
 *
 * Writes the codes, two in a word. Returns 0 if this does not decide, or `differ` has bits. */
template <int N>
MO_DEVICE int mo_adamw_bf16(float decay, const mo_near_rates *near, const float p[N],
                            const float m[N], const float v[N], uint32_t differ,
                            uint32_t words[N / 2])
{
    MO_UNROLL
    for (int k = 0; k < N; k += 2) {
        mo_two root, u, was = mo_two_of(p + k), kept = mo_fma2(mo_both(decay), was, was);
        MO_UNROLL
        for (int j = 0; j < 2; j++)
            root.of[j] = mo_sqrtf_near(v[k + j]);
        root = mo_fma2(root, mo_both(0x1p-64f), mo_both(near->eps));
        MO_UNROLL
        for (int j = 0; j < 2; j++)
            u.of[j] = mo_reciprocal_near(root.of[j]);
        u = mo_mul2(mo_two_of(m + k), u);
        mo_two low = mo_fma2(mo_both(near->less), u, kept);
        mo_two high = mo_fma2(mo_both(near->more), u, kept);
        words[k / 2] = mo_pair_word<MO_DTYPE_BF16>(low.of[0], low.of[1]);
        differ |= words[k / 2] ^ mo_pair_word<MO_DTYPE_BF16>(high.of[0], high.of[1]);
    }
    return mo_kept(differ | mo_odd_bf16<N / 2>(words)) == 0;
}

/* NVIDIA's approximations, whose corrections are those of its own root and quotient, without their
 * branches; tests/gpu/exact.cu tries them on a card. Roots and divisors are negative: so no operand
 * of an fma is. Factors of 2^64 keep what is corrected normal. */

/* -2^32 sqrt(v), correctly rounded, of v up to 2^40; -2^-63 of 0. */
MO_DEVICE mo_two mo_adamw_roots(mo_two v)
{
    mo_two square = mo_fma2(v, mo_both(-0x1p64f), mo_both(-0x1p-126f)), r;
    MO_UNROLL
    for (int j = 0; j < 2; j++)
        r.of[j] = mo_root_reciprocal_near(-square.of[j]);
    mo_two root = mo_mul2(square, r);
    return mo_fma2(mo_fma2(root, root, square), mo_mul2(r, mo_both(0.5f)), root);
}

/* 2^64 m / -below, correctly rounded where m / -below is at least 2^-126. */
MO_DEVICE mo_two mo_adamw_quotients(mo_two m, mo_two below)
{
    mo_two r;
    MO_UNROLL
    for (int j = 0; j < 2; j++)
        r.of[j] = mo_reciprocal_near(-below.of[j]);
    r = mo_fma2(r, mo_fma2(below, r, mo_both(1.0f)), r);
    mo_two above = mo_mul2(m, mo_both(0x1p64f)), u = mo_mul2(above, r);
    u = mo_fma2(r, mo_fma2(below, u, above), u);
    return mo_fma2(r, mo_fma2(below, u, above), u);
}

/* AdamW's f32 parameters by these. Beside eps a root of 2^-95 in place of 0 is nothing. An exact u
 * below 2^-126 is rounded otherwise; it moves no parameter of at least 2^-63.
 *
 * Returns 0 if this does not decide, or `differ` has bits. */
template <int N>
MO_DEVICE int mo_adamw_f32(const mo_rule_coef *c, const mo_pack_range *range, const float p[N],
                           const float m[N], const float v[N], uint32_t differ, uint32_t words[N])
{
    float least = 0x1p100f;
    MO_UNROLL
    for (int k = 0; k < N; k += 2) {
        mo_two root = mo_adamw_roots(mo_two_of(v + k));
        root = mo_fma2(root, mo_both(-0x1p-32f), mo_both(c->eps));
        mo_two u = mo_adamw_quotients(mo_two_of(m + k), root);
        mo_two was = mo_two_of(p + k), kept = mo_fma2(mo_both(c->decay), was, was);
        mo_two now = mo_fma2(mo_both(c->rate * -0x1p-64f), u, kept);
        MO_UNROLL
        for (int j = 0; j < 2; j++) {
            words[k + j] = mo_f32_bits(now.of[j]);
            least = mo_least_magnitude(least, now.of[j]);
        }
    }
    differ |= range->largest_m >= 0x49800000u; /* 2^20, NaN too */
    differ |= !(least >= 0x1p-63f);            /* NaN too */
    return mo_kept(differ) == 0;
}

#endif
