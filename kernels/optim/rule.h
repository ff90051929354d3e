/*
 * What update rules have in common: their hyperparameters, the coefficients of one step, and how
 * the state of a tensor is kept. A rule is a header of its own (adamw.h, lion.h, sgd.h) with two
 * functions: coefficients per tensor in double, the update per element in fp32. rules.h chooses.
 */
#ifndef MO_KERNELS_RULE_H
#define MO_KERNELS_RULE_H

#include "kernels/core/numerics.h"

/* Update rules; values are those of memopt_optimizer_kind. */
enum { MO_RULE_ADAMW = 1, MO_RULE_LION = 2, MO_RULE_SGD = 3 };

/* Formats of states; values are those of memopt_state_format. */
enum { MO_STATE_F32 = 1, MO_STATE_8BIT = 2, MO_STATE_4BIT = 3, MO_STATE_F8 = 4 };

/* Hyperparameters of a group as the device keeps them. */
typedef struct mo_rule_group {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    uint32_t maximize, nesterov;
    const float *device_lr; /* in place of lr; or NULL */
} mo_rule_group;

/* Set in a step count beside the steps taken: the tensor has moments, and none of those steps has
 * written them. Only SGD leaves moments alone. */
#define MO_STEPS_NOT_BEGUN 0x8000000000000000ull

MO_HD static inline uint64_t mo_steps_taken(uint64_t steps)
{
    return steps & ~MO_STEPS_NOT_BEGUN;
}

/* What one step needs of a tensor: computed once, in device memory. Each rule says what it keeps in
 * which; where one_minus_beta2 is 0 the moments are neither read nor written. */
typedef struct mo_rule_coef {
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float decay, rate, eps, factor;
    uint64_t step; /* the count after this step, from 1, perhaps with MO_STEPS_NOT_BEGUN */
} mo_rule_coef;

/* base^exponent by repeated squaring: the same roundings on every back end. */
MO_HD static inline double mo_power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1)
            result *= base;
        base *= base;
    }
    return result;
}

/* Which NaN an operation makes is the processor's choice; what is stored is always this one. */
MO_HD static inline float mo_f32_one_nan(float value)
{
    uint32_t bits = mo_f32_bits(value); /* integers: compilers take liberties with float NaNs */
    return mo_f32_from_bits((bits & 0x7fffffffu) > MO_F32_INF_BITS ? MO_F32_NAN_BITS : bits);
}

#endif
