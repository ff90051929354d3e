/*
 * Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023), the scalar
 * specification. One moment.
 *
 * Per element, in this order, each line one rounding unless it says fma:
 *     h = gradient * factor                     (unscale, clip and direction in one factor)
 *     x = fma(beta1, m, (1 - beta1) * h)
 *     u = 1 where x > 0, -1 where x < 0, else x (a zero, or NaN)
 *     p = fma(rate, u, fma(decay, p, p))
 *     m = fma(beta2, m, (1 - beta2) * h)
 * with decay = -lr * weight_decay and rate = -lr. eps is not used. The update uses m before it is
 * coded.
 */
#ifndef MO_KERNELS_LION_H
#define MO_KERNELS_LION_H

#include "kernels/optim/rule.h"

MO_HD static inline mo_rule_coef mo_lion_coef_of(const mo_rule_group *group, uint64_t step,
                                                 double factor)
{
    mo_rule_coef c;
    c.beta1 = (float)group->beta1;
    c.one_minus_beta1 = (float)(1.0 - group->beta1);
    c.beta2 = (float)group->beta2;
    c.one_minus_beta2 = (float)(1.0 - group->beta2);
    c.decay = (float)-(group->lr * group->weight_decay);
    c.rate = (float)-group->lr;
    c.eps = 0.0f;
    c.factor = (float)(group->maximize ? -factor : factor);
    c.step = step;
    return c;
}

MO_HD static inline float mo_lion_update(const mo_rule_coef *c, float gradient, float parameter,
                                         float *m)
{
    float h = gradient * c->factor;
    float x = mo_fmaf(c->beta1, *m, c->one_minus_beta1 * h);
    float u = x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
    *m = mo_fmaf(c->beta2, *m, c->one_minus_beta2 * h);
    return mo_fmaf(c->rate, u, mo_fmaf(c->decay, parameter, parameter));
}

#endif
