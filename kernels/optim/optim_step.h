/*
 * One step of the optimizer, to the last formula: what its kernels are given, the update rules
 * (AdamW, Adam, Lion, SGD, schedule-free AdamW, RMSprop, Adagrad, AdEMAMix), what the prologue
 * computes, and the span that a work item updates.
 *
 * One step is: the reductions of reduce.h (optional) -> prologue (one item) -> step (one item per
 * chunk, so that no table grows with the elements). The upload kernel writes tables from its
 * argument struct, so no host memory must stay alive and nothing waits.
 *
 * The prologue writes only scratch (coefficients, control block, verdicts); parameters, states and
 * step counts are written by the step kernel alone, so a step whose last launch fails has changed
 * nothing.
 *
 * An update rule is two functions: the coefficients of a tensor in double, the update of an element
 * in fp32. The lines of an update are in order, each one rounding unless it says fma. The update
 * uses the moments before they are coded to 16, 8 or 4 bits.
 */
#ifndef MO_KERNELS_OPTIM_OPTIM_STEP_H
#define MO_KERNELS_OPTIM_OPTIM_STEP_H

#include "kernels/core/kernel_launch.h"
#include "kernels/optim/schedules.h"
#include "kernels/optim/state_codes.h"

/* --- hyperparameters and coefficients -------------------------------------------------------- */

/* Update rules. */
#define MO_RULE_VALUE(id, number, name, word, kernel) MO_RULE_##id = number,
enum { MO_EACH_RULE(MO_RULE_VALUE) MO_RULES };

/* Hyperparameters of a group as the device keeps them. */
typedef struct mo_rule_group {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    uint32_t maximize, nesterov;
    const float *device_lr;                /* in place of lr; or NULL */
    double average;                        /* 0: 1 / step */
    double beta3, alpha, t_alpha, t_beta3; /* a t of 0: no growth */
    double beta2_decay, eps2, d;           /* of Adafactor; d of 0: no update is cut */
    double max_ratio;                      /* of kernels/trust */
    uint32_t trust_clip, uncorrected;
} mo_rule_group;

/* A bit of a step count: the tensor has moments, and none of the counted steps has written them.
 * Only SGD has steps that do not write moments. */
#define MO_STEPS_NOT_BEGUN 0x8000000000000000ull

MO_HD static inline uint64_t mo_steps_taken(uint64_t steps)
{
    return steps & ~MO_STEPS_NOT_BEGUN;
}

/* What one step needs of a tensor: computed once, in device memory. Each rule defines its fields;
 * where one_minus_beta2 is 0 the moments are neither read nor written. */
typedef struct mo_rule_coef {
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float decay, rate, eps, factor;
    float beta3, one_minus_beta3, mix; /* of AdEMAMix; else 0 */
    uint32_t reserved;                 /* 0 */
    uint64_t step; /* the count after this step, from 1, perhaps with MO_STEPS_NOT_BEGUN */
} mo_rule_coef;

/* --- tables in device memory, and arguments -------------------------------------------------- */

/* One parameter; addresses are device memory. */
typedef struct mo_optim_tensor {
    void *parameter;
    void *copy; /* or NULL */
    void *m;    /* codes, bf16 or f32; NULL: SGD without momentum, which keeps nothing. Of a rule
                   with a mean of squares alone that one (mo_rule_first_signed) */
    void *v;    /* NULL where the rule has one moment; so is absmax2 */
    void *slow; /* NULL where the rule has less than three; so is slow_absmax */
    float *absmax1; /* a scale per block; NULL: 32-bit states, or bf16 by `format` */
    float *absmax2;
    float *slow_absmax;
    void *residual;  /* of split bf16 weights; or NULL */
    uint64_t *steps; /* steps taken, perhaps with MO_STEPS_NOT_BEGUN */
    int32_t parameter_dtype, copy_dtype;
    uint32_t group;
    uint32_t format;                   /* of the states: MO_STATE_… */
    uint32_t residual_bytes, reserved; /* of an element: 1 or 2 */
    uint64_t first; /* of a shard: the place of its first element in the whole parameter */
} mo_optim_tensor;

/* A gradient is a mo_tensor_segment whose `number` is that of its parameter; a parameter without a
 * gradient has none. The reductions and the step share this table and its chunks. */

/* What the prologue tells the step. */
typedef struct mo_optim_control {
    uint32_t skip; /* 1: leave everything as it is */
    uint32_t reserved;
} mo_optim_control;

enum { MO_UPLOAD_BYTES = 3968, MO_OPTIM_THREADS = 256 };

typedef struct mo_optim_upload_args {
    void *destination;
    uint64_t bytes;
    unsigned char payload[MO_UPLOAD_BYTES];
} mo_optim_upload_args;

typedef struct mo_optim_prologue_args {
    const mo_optim_tensor *tensors;
    const mo_tensor_segment *gradients;
    const mo_rule_group *groups;
    mo_rule_coef *coefs; /* by gradient */
    mo_optim_control *control;
    const double *square_sum; /* of all gradients as they are; NULL: not taken */
    const float *scale;       /* NULL: gradients are not scaled */
    float *found_inf;         /* NULL: no scaler */
    float *out_norm;          /* or NULL */
    double max_norm;          /* 0: no clipping */
    uint32_t count;           /* gradients */
    uint32_t check;           /* 1: a square_sum that is not finite skips the step */
    uint32_t rule;
    uint32_t trust; /* 1: the step is kernels/trust's */
} mo_optim_prologue_args;

typedef struct mo_optim_step_args {
    const mo_optim_tensor *tensors;
    const mo_tensor_segment *gradients;
    const mo_rule_coef *coefs;
    const mo_optim_control *control;
    uint64_t seed;
    uint32_t count; /* gradients */
    uint32_t stochastic;
} mo_optim_step_args;

/* The types that all tensors of a launch have, where most programs have them. Parameters are not
 * split, nor rounded at random. */
typedef enum mo_step_types {
    MO_TYPES_ANY,
    MO_TYPES_BF16, /* parameters and gradients bf16, no copy */
    MO_TYPES_F32,  /* both f32, no copy */
    MO_TYPES_COPY  /* f32 parameters; gradients and a copy bf16 */
} mo_step_types;

/* Of a tensor and its gradient. */
MO_HD static inline mo_step_types mo_step_types_of(const mo_optim_tensor *t, uint32_t gradient,
                                                   int stochastic)
{
    int wide = t->parameter_dtype == MO_DTYPE_F32, narrow = gradient == MO_DTYPE_BF16;
    if (stochastic || t->residual != 0)
        return MO_TYPES_ANY;
    if (t->copy != 0)
        return wide && narrow && t->copy_dtype == MO_DTYPE_BF16 ? MO_TYPES_COPY : MO_TYPES_ANY;
    if (wide)
        return gradient == MO_DTYPE_F32 ? MO_TYPES_F32 : MO_TYPES_ANY;
    return narrow && t->parameter_dtype == MO_DTYPE_BF16 ? MO_TYPES_BF16 : MO_TYPES_ANY;
}

/* Block-wise quantisation of one tensor; an item is a chunk. */
typedef struct mo_blockcode_args {
    void *values; /* f32, f16 or bf16 */
    uint8_t *codes;
    float *absmax;
    uint64_t count;
    int32_t dtype;
    uint32_t is_signed;
} mo_blockcode_args;

extern const mo_kernel mo_kernel_optim_upload, mo_kernel_optim_prologue;

#define MO_DECLARE_KERNEL(kernel, rule, format) extern const mo_kernel mo_kernel_step_##kernel;
#define MO_DECLARE_CODERS(suffix, format)                                                          \
    extern const mo_kernel mo_kernel_quantize##suffix, mo_kernel_dequantize##suffix;
MO_EACH_STEP(MO_DECLARE_KERNEL)
MO_EACH_CODE(MO_DECLARE_CODERS)

/* --- AdamW (Loshchilov & Hutter 2019) ------------------------------------------------------------
 *
 *     h = gradient * factor                     (unscale, clip and direction in one factor)
 *     m = fma(beta1, m, (1 - beta1) * h)
 *     v = fma(beta2, v, ((1 - beta2) * h) * h), at most FLT_MAX
 *     u = m / (sqrt(v) + eps')
 *     p = fma(rate, u, fma(decay, p, p))
 *
 * with decay = -lr * weight_decay, rate = -lr * sqrt(1 - beta2^t) / (1 - beta1^t) and
 * eps' = eps * sqrt(1 - beta2^t), at least 2^-126 so that 0 / 0 does not arise; uncorrected, both
 * 1 - beta^t are 1. p is then rounded once to its type.
 */

/* step: the count after this step. factor: unscale times clip. */
MO_HD static inline mo_rule_coef mo_adamw_coef_of(const mo_rule_group *group, uint64_t step,
                                                  double factor)
{
    mo_rule_coef c;
    double correction1 = group->uncorrected ? 1.0 : 1.0 - mo_power(group->beta1, step);
    double correction2 = group->uncorrected ? 1.0 : mo_sqrt(1.0 - mo_power(group->beta2, step));
    double eps = group->eps * correction2;
    c.beta1 = (float)group->beta1;
    c.one_minus_beta1 = (float)(1.0 - group->beta1);
    c.beta2 = (float)group->beta2;
    c.one_minus_beta2 = (float)(1.0 - group->beta2);
    c.decay = (float)-(group->lr * group->weight_decay);
    c.rate = (float)-(group->lr * correction2 / correction1);
    c.eps = (float)(eps < 0x1p-126 ? 0x1p-126 : eps);
    c.factor = (float)(group->maximize ? -factor : factor);
    c.beta3 = c.one_minus_beta3 = c.mix = 0.0f;
    c.reserved = 0;
    c.step = step;
    return c;
}

/* gradient is the raw value; v may become infinite. */
MO_HD static inline void mo_adamw_moments(const mo_rule_coef *c, float gradient, float *m, float *v)
{
    float h = gradient * c->factor;
    *m = mo_fmaf(c->beta1, *m, c->one_minus_beta1 * h);
    *v = mo_fmaf(c->beta2, *v, (c->one_minus_beta2 * h) * h);
}

MO_HD static inline float mo_adamw_bounded(float v)
{
    return v > 0x1.fffffep127f ? 0x1.fffffep127f : v;
}

/* Of the new moments. Returns the new parameter, not yet rounded to its type. */
MO_HD static inline float mo_adamw_parameter(const mo_rule_coef *c, float parameter, float m,
                                             float v)
{
    float u = m / (mo_sqrtf(v) + c->eps);
    return mo_fmaf(c->rate, u, mo_fmaf(c->decay, parameter, parameter));
}

MO_HD static inline float mo_adamw_update(const mo_rule_coef *c, float gradient, float parameter,
                                          float *m, float *v)
{
    mo_adamw_moments(c, gradient, m, v);
    *v = mo_adamw_bounded(*v);
    return mo_adamw_parameter(c, parameter, *m, *v);
}

/* --- Adam (Kingma & Ba 2015) with the decay in the gradient (L2), as torch.optim.Adam ----------
 *
 *     d = fma(weight_decay, p, gradient * factor)
 *
 * takes the place of h in AdamW, and p = fma(rate, u, p). decay is the weight decay.
 */

MO_HD static inline mo_rule_coef mo_adam_coef_of(const mo_rule_group *group, uint64_t step,
                                                 double factor)
{
    mo_rule_coef c = mo_adamw_coef_of(group, step, factor);
    c.decay = (float)group->weight_decay;
    return c;
}

MO_HD static inline float mo_adam_update(const mo_rule_coef *c, float gradient, float parameter,
                                         float *m, float *v)
{
    float d = mo_fmaf(c->decay, parameter, gradient * c->factor);
    *m = mo_fmaf(c->beta1, *m, c->one_minus_beta1 * d);
    *v = mo_adamw_bounded(mo_fmaf(c->beta2, *v, (c->one_minus_beta2 * d) * d));
    return mo_fmaf(c->rate, *m / (mo_sqrtf(*v) + c->eps), parameter);
}

/* --- Lion: one moment ----------------------------------------------------------------------------
 *
 * Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
 *
 *     h = gradient * factor
 *     x = fma(beta1, m, (1 - beta1) * h)
 *     u = 1 where x > 0, -1 where x < 0, else x (a zero, or NaN)
 *     p = fma(rate, u, fma(decay, p, p))
 *     m = fma(beta2, m, (1 - beta2) * h)
 *
 * with decay = -lr * weight_decay and rate = -lr. eps is not used.
 */

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
    c.beta3 = c.one_minus_beta3 = c.mix = 0.0f;
    c.reserved = 0;
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

/* --- SGD with momentum as torch.optim.SGD defines it (Sutskever et al. 2013 for the Nesterov
 * form): one moment, the momentum buffer
 * ----------------------------------------------------------------
 *
 *     h = gradient * factor
 *     d = fma(weight_decay, p, h)               (decay is coupled: part of the gradient)
 *     m = fma(momentum, m, (1 - dampening) * d)
 *     u = fma(momentum, m, d) with Nesterov, else m
 *     p = fma(rate, u, p)
 * with rate = -lr. Dampening is omitted in a tensor's first step with a momentum, so its buffer
 * becomes d, and if momentum is 0. The update uses m before it is coded.
 *
 * Without momentum u is d and a buffer stays unchanged: later steps with a momentum continue with
 * it. If the count is not 0, it says whether there was such a step.
 *
 * Coefficients: beta1 is the momentum, one_minus_beta1 one minus the dampening, decay the weight
 * decay; eps is 1 with Nesterov, else 0; one_minus_beta2 is 0 without momentum, else 1.
 */

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
    c.beta3 = c.one_minus_beta3 = c.mix = 0.0f;
    c.reserved = 0;
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

/* --- schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024) -----------------------
 *
 * m is the sequence z, in the place of a first moment; the parameter is y, at which gradients are
 * taken, between z and its average x.
 *
 *     h = gradient * factor
 *     z = m, in the first step p
 *     v = fma(beta2, v, ((1 - beta2) * h) * h), at most FLT_MAX
 *     u = fma(decay, p, h / (sqrt(v) + eps'))
 *     p = fma(pull, u, fma(average, z - p, p))
 *     m = fma(rate, u, z)
 *
 * with c = sqrt(1 - beta2^t), rate = -lr * c, decay = weight_decay / c, eps' as AdamW's and pull =
 * -rate * (beta1 * (1 - average) - 1). average is the group's, or 1 / t.
 *
 * Coefficients: beta1 is average, one_minus_beta1 is pull.
 */

MO_HD static inline mo_rule_coef mo_schedule_free_coef_of(const mo_rule_group *group, uint64_t step,
                                                          double factor)
{
    mo_rule_coef c = mo_adamw_coef_of(group, step, factor);
    double correction = mo_sqrt(1.0 - mo_power(group->beta2, step));
    double average = group->average != 0.0 ? group->average : 1.0 / (double)step;
    double rate = group->lr * correction;
    c.beta1 = (float)average;
    c.one_minus_beta1 = (float)(rate * (group->beta1 * (1.0 - average) - 1.0));
    c.decay = (float)(group->weight_decay / correction);
    c.rate = (float)-rate;
    return c;
}

MO_HD static inline float mo_schedule_free_update(const mo_rule_coef *c, float gradient,
                                                  float parameter, float *m, float *v)
{
    float h = gradient * c->factor, z = c->step == 1 ? parameter : *m;
    *v = mo_adamw_bounded(mo_fmaf(c->beta2, *v, (c->one_minus_beta2 * h) * h));
    float u = mo_fmaf(c->decay, parameter, h / (mo_sqrtf(*v) + c->eps));
    *m = mo_fmaf(c->rate, u, z);
    return mo_fmaf(c->one_minus_beta1, u, mo_fmaf(c->beta1, z - parameter, parameter));
}

/* --- RMSprop (Hinton 2012) and Adagrad (Duchi et al. 2011) as torch.optim's ----------------------
 *
 * One moment, the mean or the sum of squares, which lies in the place of the first and is coded as
 * a second one is.
 *
 *     d = fma(weight_decay, p, gradient * factor)
 *     v = fma(beta2, v, ((1 - beta2) * d) * d), at most FLT_MAX; of Adagrad both factors are 1
 *     u = d / (sqrt(v) + eps)
 *     p = fma(rate, u, p)
 *
 * with rate = -lr and eps at least 2^-126. RMSprop with momentum has the buffer as its first
 * moment:
 *
 *     m = fma(momentum, m, u)
 *     p = fma(rate, m, p)
 *
 * Coefficients: beta1 is the momentum, decay the weight decay.
 */

MO_HD static inline mo_rule_coef mo_rmsprop_coef_of(const mo_rule_group *group, uint64_t step,
                                                    double factor, int sums)
{
    mo_rule_coef c;
    c.beta1 = (float)group->momentum;
    c.one_minus_beta1 = 1.0f;
    c.beta2 = sums ? 1.0f : (float)group->beta2;
    c.one_minus_beta2 = sums ? 1.0f : (float)(1.0 - group->beta2);
    c.decay = (float)group->weight_decay;
    c.rate = (float)-group->lr;
    c.eps = (float)(group->eps < 0x1p-126 ? 0x1p-126 : group->eps);
    c.factor = (float)(group->maximize ? -factor : factor);
    c.beta3 = c.one_minus_beta3 = c.mix = 0.0f;
    c.reserved = 0;
    c.step = step;
    return c;
}

/* The mean of squares, and the quotient u. */
MO_HD static inline float mo_rmsprop_quotient(const mo_rule_coef *c, float gradient,
                                              float parameter, float *v)
{
    float d = mo_fmaf(c->decay, parameter, gradient * c->factor);
    *v = mo_adamw_bounded(mo_fmaf(c->beta2, *v, (c->one_minus_beta2 * d) * d));
    return d / (mo_sqrtf(*v) + c->eps);
}

MO_HD static inline float mo_rmsprop_momentum_update(const mo_rule_coef *c, float gradient,
                                                     float parameter, float *m, float *v)
{
    *m = mo_fmaf(c->beta1, *m, mo_rmsprop_quotient(c, gradient, parameter, v));
    return mo_fmaf(c->rate, *m, parameter);
}

/* --- AdEMAMix (Pagliardini, Ablin & Grangier 2024) -----------------------------------------------
 *
 * AdamW with a slow mean beside the fast one; m and v are corrected for their start at 0, it is
 * not.
 *
 *     h = gradient * factor
 *     m = fma(beta1, m, (1 - beta1) * h)
 *     s = fma(beta3, s, (1 - beta3) * h)
 *     v = fma(beta2, v, ((1 - beta2) * h) * h), at most FLT_MAX
 *     u = fma(mix, s, m) / (sqrt(v) + eps')
 *     p = fma(rate, u, fma(decay, p, p))
 *
 * with mix = alpha * (1 - beta1^t) and AdamW's rate, decay and eps'; alpha and beta3 are those of
 * the step (schedules.h).
 */

MO_HD static inline mo_rule_coef mo_ademamix_coef_of(const mo_rule_group *group, uint64_t step,
                                                     double factor)
{
    mo_rule_coef c = mo_adamw_coef_of(group, step, factor);
    double beta3 = mo_beta_growing(group->beta1, group->beta3, group->t_beta3, step);
    double alpha = group->alpha * mo_growth(group->t_alpha, step);
    c.beta3 = (float)beta3;
    c.one_minus_beta3 = (float)(1.0 - beta3);
    c.mix = (float)(alpha * (1.0 - mo_power(group->beta1, step)));
    return c;
}

MO_HD static inline float mo_ademamix_update(const mo_rule_coef *c, float gradient, float parameter,
                                             float *m, float *v, float *slow)
{
    mo_adamw_moments(c, gradient, m, v);
    *slow = mo_fmaf(c->beta3, *slow, c->one_minus_beta3 * (gradient * c->factor));
    *v = mo_adamw_bounded(*v);
    return mo_adamw_parameter(c, parameter, mo_fmaf(c->mix, *slow, *m), *v);
}

/* --- Adafactor: kernels/adafactor/adafactor.h has the rule ----------------------------------------
 *
 * Coefficients: one_minus_beta2 is t^beta2_decay, eps the least root of a second moment, decay what
 * is left of a parameter. The rate depends on norms.
 */

MO_HD static inline mo_rule_coef mo_adafactor_coef_of(const mo_rule_group *group, uint64_t step,
                                                      double factor)
{
    mo_rule_coef c = mo_lion_coef_of(group, step, factor);
    c.one_minus_beta2 = (float)mo_exp_minus(-group->beta2_decay * mo_minus_log(1.0 / (double)step));
    c.eps = (float)group->eps;
    c.decay = (float)(1.0 - group->lr * group->weight_decay);
    return c;
}

/* --- the rules by number; callers pass a constant, so the choice is made by the compiler ----- */

/* A rule has one moment or more; the second is never negative. */
MO_HD static inline int mo_rule_has_second(uint32_t rule)
{
    return rule == MO_RULE_ADAMW || rule == MO_RULE_ADAM || rule == MO_RULE_SCHEDULE_FREE ||
           rule == MO_RULE_RMSPROP_MOMENTUM || rule == MO_RULE_ADEMAMIX;
}

/* Whether there is a slow mean too. */
MO_HD static inline int mo_rule_has_slow(uint32_t rule)
{
    return rule == MO_RULE_ADEMAMIX;
}

/* Whether the first moment may be negative; if not, its codes are those of second moments. */
MO_HD static inline int mo_rule_first_signed(uint32_t rule)
{
    return rule == MO_RULE_LION ? MO_SLOW : rule != MO_RULE_RMSPROP && rule != MO_RULE_ADAGRAD;
}

/* step: the count before this step plus one, with MO_STEPS_NOT_BEGUN unchanged. factor: unscale
 * times clip. */
MO_HD static inline mo_rule_coef mo_rule_coef_of(uint32_t rule, const mo_rule_group *group,
                                                 uint64_t step, double factor)
{
    if (rule == MO_RULE_LION)
        return mo_lion_coef_of(group, step, factor);
    if (rule == MO_RULE_SGD)
        return mo_sgd_coef_of(group, step, factor);
    if (rule == MO_RULE_ADAM)
        return mo_adam_coef_of(group, step, factor);
    if (rule == MO_RULE_SCHEDULE_FREE)
        return mo_schedule_free_coef_of(group, step, factor);
    if (rule == MO_RULE_RMSPROP || rule == MO_RULE_ADAGRAD || rule == MO_RULE_RMSPROP_MOMENTUM)
        return mo_rmsprop_coef_of(group, step, factor, rule == MO_RULE_ADAGRAD);
    if (rule == MO_RULE_ADEMAMIX)
        return mo_ademamix_coef_of(group, step, factor);
    if (rule == MO_RULE_ADAFACTOR)
        return mo_adafactor_coef_of(group, step, factor);
    return mo_adamw_coef_of(group, step, factor);
}

/* One element. gradient is the raw value; returns the new parameter, not yet rounded to its type
 * and with any NaN. Rules do not change the v and slow that they do not have. */
MO_HD static inline float mo_rule_update_raw(uint32_t rule, const mo_rule_coef *c, float gradient,
                                             float parameter, float *m, float *v, float *slow)
{
    if (rule == MO_RULE_ADEMAMIX)
        return mo_ademamix_update(c, gradient, parameter, m, v, slow);
    if (rule == MO_RULE_LION)
        return mo_lion_update(c, gradient, parameter, m);
    if (rule == MO_RULE_SGD)
        return mo_sgd_update(c, gradient, parameter, m);
    if (rule == MO_RULE_ADAM)
        return mo_adam_update(c, gradient, parameter, m, v);
    if (rule == MO_RULE_SCHEDULE_FREE)
        return mo_schedule_free_update(c, gradient, parameter, m, v);
    if (rule == MO_RULE_RMSPROP_MOMENTUM)
        return mo_rmsprop_momentum_update(c, gradient, parameter, m, v);
    if (rule == MO_RULE_RMSPROP || rule == MO_RULE_ADAGRAD)
        return mo_fmaf(c->rate, mo_rmsprop_quotient(c, gradient, parameter, m), parameter);
    return mo_adamw_update(c, gradient, parameter, m, v);
}

/* The same with the one NaN. Moments that are stored as fp32 still need mo_f32_one_nan; coded ones
 * poison their block. */
MO_HD static inline float mo_rule_update(uint32_t rule, const mo_rule_coef *c, float gradient,
                                         float parameter, float *m, float *v, float *slow)
{
    return mo_f32_one_nan(mo_rule_update_raw(rule, c, gradient, parameter, m, v, slow));
}

/* --- the prologue ---------------------------------------------------------------------------- */

/* The prologue's verdict: unscale and clip in one factor; sets the control block and the norm. */
MO_HD static inline double mo_optim_verdict(const mo_optim_prologue_args *a)
{
    const uint64_t infinity = 0x7ff0000000000000u;
    double factor = a->scale != 0 ? (double)(float)(1.0 / (double)*a->scale) : 1.0;
    double norm = a->square_sum != 0 ? mo_sqrt(*a->square_sum) * factor : 0.0;
    int finite = a->square_sum == 0 || (mo_f64_bits(*a->square_sum) & infinity) != infinity;
    if (!finite && a->found_inf != 0)
        *a->found_inf = 1.0f;
    a->control->skip = (a->check && !finite) || (a->found_inf != 0 && *a->found_inf != 0.0f);
    if (a->out_norm != 0)
        *a->out_norm = norm != norm ? mo_f32_from_bits(MO_F32_NAN_BITS) : (float)norm;
    if (a->max_norm > 0.0 && a->max_norm < norm + 1e-6)
        factor *= a->max_norm / (norm + 1e-6);
    return factor;
}

/* ... and its coefficients of gradient i. */
MO_HD static inline void mo_optim_prepare(const mo_optim_prologue_args *a, uint32_t i,
                                          double factor)
{
    const mo_optim_tensor *t = &a->tensors[a->gradients[i].number];
    mo_rule_group group = a->groups[t->group];
    if (group.device_lr != 0)
        group.lr = (double)MO_AT(const float, group.device_lr);
    if (a->trust) {
        group.lr = 1.0;
        group.weight_decay = 0.0;
    }
    group.uncorrected &= a->rule == MO_RULE_ADAMW || a->rule == MO_RULE_ADAM;
    a->coefs[i] = mo_rule_coef_of(a->rule, &group, MO_AT(uint64_t, t->steps) + 1, factor);
}

/* --- the span of a work item ----------------------------------------------------------------- */

/* A chunk of a tensor with all that a step needs; pointers are to its first element. */
typedef struct mo_optim_span {
    void *parameter;
    void *copy; /* or NULL */
    const void *gradient;
    void *m; /* NULL: nothing is kept here, nor in v */
    void *v, *slow;
    float *absmax1;     /* NULL: 32-bit states, or bf16 by `format` */
    float *absmax2;     /* and v: NULL where the rule has one moment */
    float *slow_absmax; /* and slow: NULL where it has less than three */
    void *residual;     /* of split bf16 weights; or NULL */
    uint64_t start;     /* index of the first element in its tensor, of a shard in the whole one; a
                           multiple of a block */
    uint64_t count;
    int32_t parameter_dtype, copy_dtype, gradient_dtype;
    uint32_t residual_bytes; /* of an element: 1 or 2 */
    uint32_t format;         /* of the states */
    uint32_t stochastic;
    mo_rule_coef coef;
    mo_random_stream random;
} mo_optim_span;

MO_HD static inline void *mo_element_at(const void *data, uint64_t i, int32_t dtype)
{
    return data == 0 ? 0 : (unsigned char *)(uintptr_t)data + i * mo_element_size((uint32_t)dtype);
}

/* Fills the span of a chunk. */
MO_HD static inline void mo_optim_span_of(const mo_optim_step_args *a, uint64_t chunk,
                                          mo_optim_span *s)
{
    uint32_t index =
        mo_chunk_segment(&a->gradients->first_chunk, sizeof *a->gradients, a->count, chunk);
    const mo_tensor_segment *g = &a->gradients[index];
    const mo_optim_tensor *t = &a->tensors[g->number];
    uint64_t start = (chunk - g->first_chunk) * MO_CHUNK_ELEMENTS;
    int narrow = t->absmax1 != 0 || t->format == MO_STATE_BF16;
    uint32_t format = narrow ? t->format : (uint32_t)MO_STATE_F32;
    uint64_t state = mo_format_bytes(format, start), block = start / mo_format_block(format);
    s->parameter = mo_element_at(t->parameter, start, t->parameter_dtype);
    s->copy = mo_element_at(t->copy, start, t->copy_dtype);
    s->gradient = mo_element_at(g->data, start, (int32_t)g->dtype);
    s->m = t->m != 0 ? (unsigned char *)t->m + state : 0;
    s->v = t->v != 0 ? (unsigned char *)t->v + state : 0;
    s->slow = t->slow != 0 ? (unsigned char *)t->slow + state : 0;
    s->absmax1 = t->absmax1 != 0 ? t->absmax1 + block : 0;
    s->absmax2 = t->absmax2 != 0 ? t->absmax2 + block : 0;
    s->slow_absmax = t->slow_absmax != 0 ? t->slow_absmax + block : 0;
    s->residual_bytes = t->residual_bytes;
    s->residual = t->residual != 0 ? (unsigned char *)t->residual + start * t->residual_bytes : 0;
    s->start = t->first + start;
    s->count = mo_chunk_length(g->count, chunk - g->first_chunk);
    s->parameter_dtype = t->parameter_dtype;
    s->copy_dtype = t->copy_dtype;
    s->gradient_dtype = (int32_t)g->dtype;
    s->format = format;
    s->stochastic = a->stochastic;
    s->coef = a->coefs[index];
    s->random = mo_random_stream_of(a->seed, mo_steps_taken(s->coef.step), g->number);
    if (start == 0) /* one item of each tensor counts the step; without moments the flag stays */
        MO_AT(uint64_t, t->steps) = t->m != 0 ? s->coef.step : mo_steps_taken(s->coef.step);
    if (s->coef.one_minus_beta2 == 0.0f) {
        s->m = s->v = 0;
        s->absmax1 = s->absmax2 = 0;
    }
}

#endif
