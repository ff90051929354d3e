/*
 * AdamW (Loshchilov & Hutter 2019), the scalar specification: what a step computes per parameter
 * tensor (in double) and per element (in fp32).
 *
 * Per element, in this order, each line one rounding unless it says fma:
 *     h = gradient * factor                     (unscale, clip and direction in one factor)
 *     m = fma(beta1, m, (1 - beta1) * h)
 *     v = fma(beta2, v, ((1 - beta2) * h) * h), at most FLT_MAX
 *     u = m / (sqrt(v) + eps')
 *     p = fma(rate, u, fma(decay, p, p))
 * with decay = -lr * weight_decay, rate = -lr * sqrt(1 - beta2^t) / (1 - beta1^t) and
 * eps' = eps * sqrt(1 - beta2^t), at least 2^-126 so that 0 / 0 does not arise. p is then rounded
 * once to its type. The update uses m and v before they are coded to 8 bits.
 */
#ifndef MO_KERNELS_ADAMW_H
#define MO_KERNELS_ADAMW_H

#include "kernels/optim/rule.h"

/* step: the count after this step. factor: unscale times clip. */
MO_HD static inline mo_rule_coef mo_adamw_coef_of(const mo_rule_group *group, uint64_t step,
                                                  double factor)
{
    mo_rule_coef c;
    double correction1 = 1.0 - mo_power(group->beta1, step);
    double correction2 = mo_sqrt(1.0 - mo_power(group->beta2, step));
    double eps = group->eps * correction2;
    c.beta1 = (float)group->beta1;
    c.one_minus_beta1 = (float)(1.0 - group->beta1);
    c.beta2 = (float)group->beta2;
    c.one_minus_beta2 = (float)(1.0 - group->beta2);
    c.decay = (float)-(group->lr * group->weight_decay);
    c.rate = (float)-(group->lr * correction2 / correction1);
    c.eps = (float)(eps < 0x1p-126 ? 0x1p-126 : eps);
    c.factor = (float)(group->maximize ? -factor : factor);
    c.step = step;
    return c;
}

/* One element in three parts: the moments, u, the parameter. gradient is the raw value. */
MO_HD static inline void mo_adamw_moments(const mo_rule_coef *c, float gradient, float *m, float *v)
{
    float h = gradient * c->factor;
    float first = mo_fmaf(c->beta1, *m, c->one_minus_beta1 * h);
    float second = mo_fmaf(c->beta2, *v, (c->one_minus_beta2 * h) * h);
    if (second > 0x1.fffffep127f)
        second = 0x1.fffffep127f;
    *m = first;
    *v = second;
}

MO_HD static inline float mo_adamw_ratio(const mo_rule_coef *c, float m, float v)
{
    return m / (mo_sqrtf(v) + c->eps);
}

/* Returns the new parameter, not yet rounded to its type. */
MO_HD static inline float mo_adamw_apply(const mo_rule_coef *c, float parameter, float ratio)
{
    return mo_fmaf(c->rate, ratio, mo_fmaf(c->decay, parameter, parameter));
}

MO_HD static inline float mo_adamw_update(const mo_rule_coef *c, float gradient, float parameter,
                                          float *m, float *v)
{
    mo_adamw_moments(c, gradient, m, v);
    return mo_adamw_apply(c, parameter, mo_adamw_ratio(c, *m, *v));
}

#endif
