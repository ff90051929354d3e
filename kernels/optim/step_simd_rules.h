/*
 * The rules in vectors, with the words v_… of the instruction set that is included before: the
 * moments are updated in place, the new parameter is returned. h is the gradient times the factor.
 */
#ifndef MO_KERNELS_OPTIM_STEP_SIMD_RULES_H
#define MO_KERNELS_OPTIM_STEP_SIMD_RULES_H

#include "kernels/optim/optim_step.h"

typedef struct mo_lane_coef {
    VF beta1, one_minus_beta1, beta2, one_minus_beta2, decay, rate, factor, eps;
    VF beta3, one_minus_beta3, mix;
    int nesterov, first; /* first: of the tensor's steps */
} mo_lane_coef;

MO_INLINE mo_lane_coef mo_lane_coef_of(const mo_rule_coef *c)
{
    return (mo_lane_coef){v_set(c->beta1),  v_set(c->one_minus_beta1),
                          v_set(c->beta2),  v_set(c->one_minus_beta2),
                          v_set(c->decay),  v_set(c->rate),
                          v_set(c->factor), v_set(c->eps),
                          v_set(c->beta3),  v_set(c->one_minus_beta3),
                          v_set(c->mix),    c->eps != 0.0f,
                          c->step == 1};
}

/* Rules whose new parameter needs but the old one and new moments: AdamW's, Adam's and AdEMAMix's.
 * It may wait until they are coded. */
MO_INLINE int lane_is_late(uint32_t rule)
{
    return rule == MO_RULE_ADAMW || rule == MO_RULE_ADAM || rule == MO_RULE_ADEMAMIX;
}

/* Rules whose new parameter is NaN where a new moment is. */
MO_INLINE int lane_tells_nan(uint32_t rule)
{
    return rule != MO_RULE_LION && rule != MO_RULE_SCHEDULE_FREE;
}

/* Moments of late rules; v may become infinite. p: Adam's parameter. */
MO_INLINE void lane_moments(uint32_t rule, const mo_lane_coef *c, VF h, VF p, VF *m, VF *v,
                            VF *slow)
{
    if (rule == MO_RULE_ADAM)
        h = v_fma(c->decay, p, h);
    *m = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, h));
    *v = v_fma(c->beta2, *v, v_mul(v_mul(c->one_minus_beta2, h), h));
    if (rule == MO_RULE_ADEMAMIX)
        *slow = v_fma(c->beta3, *slow, v_mul(c->one_minus_beta3, h));
}

/* The quotient of their moments, of which v has this root. */
MO_INLINE VF lane_quotient(uint32_t rule, const mo_lane_coef *c, VF m, VF slow, VF root)
{
    if (rule == MO_RULE_ADEMAMIX)
        m = v_fma(c->mix, slow, m);
    return v_div(m, v_add(root, c->eps));
}

MO_INLINE VF lane_moved(uint32_t rule, const mo_lane_coef *c, VF p, VF quotient)
{
    return v_fma(c->rate, quotient, rule == MO_RULE_ADAM ? p : v_fma(c->decay, p, p));
}

MO_INLINE VF lane_late(uint32_t rule, const mo_lane_coef *c, VF h, VF p, VF *m, VF *v, VF *slow)
{
    lane_moments(rule, c, h, p, m, v, slow);
    *v = v_min(v_set(0x1.fffffep127f), *v); /* the second operand where one is NaN */
    return lane_moved(rule, c, p, lane_quotient(rule, c, *m, *slow, v_sqrt(*v)));
}

MO_INLINE VF lane_lion(const mo_lane_coef *c, VF h, VF p, VF *m)
{
    VF x = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, h));
    VI one = v_or(v_and(v_ints(x), v_seti((int)0x80000000u)), v_ints(v_set(1.0f)));
    VF u = v_select(v_not_zero(x), v_bits(one), x);
    *m = v_fma(c->beta2, *m, v_mul(c->one_minus_beta2, h));
    return v_fma(c->rate, u, v_fma(c->decay, p, p));
}

MO_INLINE VF lane_sgd(const mo_lane_coef *c, VF h, VF p, VF *m)
{
    VF d = v_fma(c->decay, p, h);
    VF u = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, d));
    *m = u;
    if (c->nesterov)
        u = v_fma(c->beta1, u, d);
    return v_fma(c->rate, u, p);
}

MO_INLINE VF lane_schedule_free(const mo_lane_coef *c, VF h, VF p, VF *m, VF *v)
{
    VF z = c->first ? p : *m;
    *v = v_fma(c->beta2, *v, v_mul(v_mul(c->one_minus_beta2, h), h));
    *v = v_min(v_set(0x1.fffffep127f), *v);
    VF u = v_fma(c->decay, p, v_div(h, v_add(v_sqrt(*v), c->eps)));
    *m = v_fma(c->rate, u, z);
    return v_fma(c->one_minus_beta1, u, v_fma(c->beta1, v_sub(z, p), p));
}

MO_INLINE VF lane_rmsprop_quotient(const mo_lane_coef *c, VF h, VF p, VF *v)
{
    VF d = v_fma(c->decay, p, h);
    *v = v_fma(c->beta2, *v, v_mul(v_mul(c->one_minus_beta2, d), d));
    *v = v_min(v_set(0x1.fffffep127f), *v);
    return v_div(d, v_add(v_sqrt(*v), c->eps));
}

MO_INLINE VF lane_rmsprop_momentum(const mo_lane_coef *c, VF h, VF p, VF *m, VF *v)
{
    *m = v_fma(c->beta1, *m, lane_rmsprop_quotient(c, h, p, v));
    return v_fma(c->rate, *m, p);
}

MO_INLINE VF lane_rule(uint32_t rule, const mo_lane_coef *c, VF h, VF p, VF *m, VF *v, VF *slow)
{
    return lane_is_late(rule)                 ? lane_late(rule, c, h, p, m, v, slow)
           : rule == MO_RULE_LION             ? lane_lion(c, h, p, m)
           : rule == MO_RULE_SGD              ? lane_sgd(c, h, p, m)
           : rule == MO_RULE_RMSPROP_MOMENTUM ? lane_rmsprop_momentum(c, h, p, m, v)
           : rule == MO_RULE_RMSPROP          ? v_fma(c->rate, lane_rmsprop_quotient(c, h, p, m), p)
                                              : lane_schedule_free(c, h, p, m, v);
}

#endif
