/* The update rules by number. Callers pass a constant, so the choice is made by the compiler. */
#ifndef MO_KERNELS_RULES_H
#define MO_KERNELS_RULES_H

#include "kernels/optim/adamw.h"
#include "kernels/optim/lion.h"
#include "kernels/optim/sgd.h"

/* A rule has one moment or, with the second moment that is never negative, two. */
MO_HD static inline int mo_rule_has_second(uint32_t rule)
{
    return rule == MO_RULE_ADAMW;
}

/* step: the count before this step and one, with MO_STEPS_NOT_BEGUN as it was. factor: unscale
 * times clip. */
MO_HD static inline mo_rule_coef mo_rule_coef_of(uint32_t rule, const mo_rule_group *group,
                                                 uint64_t step, double factor)
{
    if (rule == MO_RULE_LION)
        return mo_lion_coef_of(group, step, factor);
    if (rule == MO_RULE_SGD)
        return mo_sgd_coef_of(group, step, factor);
    return mo_adamw_coef_of(group, step, factor);
}

/* One element. gradient is the raw value; returns the new parameter, not yet rounded to its type
 * and with any NaN. v is left alone by rules without a second moment. */
MO_HD static inline float mo_rule_update_raw(uint32_t rule, const mo_rule_coef *c, float gradient,
                                             float parameter, float *m, float *v)
{
    if (rule == MO_RULE_LION)
        return mo_lion_update(c, gradient, parameter, m);
    if (rule == MO_RULE_SGD)
        return mo_sgd_update(c, gradient, parameter, m);
    return mo_adamw_update(c, gradient, parameter, m, v);
}

/* The same with the one NaN. Moments that are stored as fp32 still need mo_f32_one_nan; coded ones
 * poison their block. */
MO_HD static inline float mo_rule_update(uint32_t rule, const mo_rule_coef *c, float gradient,
                                         float parameter, float *m, float *v)
{
    return mo_f32_one_nan(mo_rule_update_raw(rule, c, gradient, parameter, m, v));
}

#endif
