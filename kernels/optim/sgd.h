/*
 * Stochastic gradient descent with momentum as torch.optim.SGD defines it (Sutskever et al. 2013
 * for the Nesterov form), the scalar specification. One moment, the momentum buffer.
 *
 * Per element, in this order, each line one rounding unless it says fma:
 *     h = gradient * factor                     (unscale, clip and direction in one factor)
 *     d = fma(weight_decay, p, h)               (decay is coupled: part of the gradient)
 *     m = fma(momentum, m, (1 - dampening) * d)
 *     u = fma(momentum, m, d) with Nesterov, else m
 *     p = fma(rate, u, p)
 * with rate = -lr. Dampening is left out in a tensor's first step with a momentum, whose buffer so
 * becomes d, and where momentum is 0. The update uses m before it is coded.
 *
 * Without momentum u is d, and a buffer stays as it is: later steps with a momentum go on with it.
 * Whether there was such a step before, the count says where it is not 0.
 *
 * Coefficients: beta1 is the momentum, one_minus_beta1 one minus the dampening, decay the weight
 * decay; eps is 1 with Nesterov, else 0; one_minus_beta2 is 0 without momentum, else 1.
 */
#ifndef MO_KERNELS_SGD_H
#define MO_KERNELS_SGD_H

#include "kernels/optim/rule.h"

MO_HD static inline mo_rule_coef mo_sgd_coef_of(const mo_rule_group *group, uint64_t step,
                                                double factor)
{
    uint64_t taken = mo_steps_taken(step);
    int moves = group->momentum != 0.0, begun = step != 1 && step == taken;
    mo_rule_coef c;
    c.beta1 = (float)group->momentum;
    c.one_minus_beta1 = moves && begun ? (float)(1.0 - group->dampening) : 1.0f;
    c.beta2 = 0.0f;
    c.one_minus_beta2 = moves ? 1.0f : 0.0f;
    c.decay = (float)group->weight_decay;
    c.rate = (float)-group->lr;
    c.eps = group->nesterov ? 1.0f : 0.0f;
    c.factor = (float)(group->maximize ? -factor : factor);
    c.step = moves || begun ? taken : taken | MO_STEPS_NOT_BEGUN;
    return c;
}

MO_HD static inline float mo_sgd_update(const mo_rule_coef *c, float gradient, float parameter,
                                        float *m)
{
    float h = gradient * c->factor;
    float d = mo_fmaf(c->decay, parameter, h);
    float buffer = mo_fmaf(c->beta1, *m, c->one_minus_beta1 * d);
    float u = c->eps != 0.0f ? mo_fmaf(c->beta1, buffer, d) : buffer;
    *m = buffer;
    return mo_fmaf(c->rate, u, parameter);
}

#endif
