/*
 * A step whose updates are bounded by their parameters' norms (LAMB, LARS). Updates are found by
 * the rule's own step kernel: on zeros in scratch memory, at a rate of 1, it leaves minus the
 * update. Everything else that moves elements is SGD's kernel without a momentum, which adds a
 * multiple of one tensor to another:
 *
 *     target = fma(rate, source * factor, target)
 *
 * The kernels here make the tables for those, and rates:
 *
 *   plan    tables of a batch of gradients: what is stepped, from what, by which coefficients
 *   totals  sums of squares of tensors: lane l of 32 adds the sums of chunks l, l + 32, ... in order,
 *           starting from 0, and the lanes are added as the tree of reduce.h
 *   rates   lr * ratio, in double, rounded once, as coefficients of the last step. ratio = max_ratio
 *           * sqrt(squares of the parameter) / sqrt(squares of the update); at most 1 if it clips; 1
 *           where either is 0 or NaN, or max_ratio is 0
 *
 * LAMB's decay is part of the update: it moves by the parameter. LARS's is part of the gradient: one
 * of its own, the source, is made of both. Where SGD's first moment is fp32 and the update itself
 * (`direct`), the step is made on the parameter at a rate of 0, and needs neither.
 */
#ifndef MO_KERNELS_TRUST_TRUST_H
#define MO_KERNELS_TRUST_TRUST_H

#include "kernels/optim/optim_step.h"
#include "kernels/reduce/reduce.h"

/* Lists of `count` segments each, and of coefficients. */
enum {
    MO_TRUST_GRADIENTS,
    MO_TRUST_PARAMETERS,
    MO_TRUST_UPDATES, /* numbered as the optimizer's parameters are; others by place */
    MO_TRUST_SOURCES,
    MO_TRUST_SEGMENTS
};
enum { MO_TRUST_RULE, MO_TRUST_DECAY, MO_TRUST_COPY, MO_TRUST_RATE, MO_TRUST_COEFS };

typedef struct mo_trust_args {
    const mo_optim_tensor *tensors;     /* of the optimizer */
    const mo_tensor_segment *gradients; /* of the batch; so are the coefficients */
    const mo_rule_group *groups;
    const mo_rule_coef *coefs; /* the prologue's, with a rate of 1 and no decay */
    const uint64_t *places;    /* where in them a gradient's begin */
    float *updates, *sources;
    mo_optim_tensor *targets; /* `count` whose parameters are the updates, then the sources */
    mo_tensor_segment *segments;
    mo_rule_coef *steps;
    const double *partials; /* of chunks */
    double *squares;        /* of `parameters` parameters, then of their updates */
    uint32_t count, parameters, rule, direct;
    uint32_t list, reserved; /* whose totals are found */
} mo_trust_args;

extern const mo_kernel mo_kernel_trust_plan;   /* an item for each MO_ONE_THREADS tensors */
extern const mo_kernel mo_kernel_trust_totals; /* for each tensor */
extern const mo_kernel mo_kernel_trust_rates;  /* for each MO_ONE_THREADS tensors */

/* target = fma(rate, source * factor, target) in the step of c. */
MO_HD static inline mo_rule_coef mo_trust_coef(const mo_rule_coef *c, float factor, float rate)
{
    mo_rule_coef move = {0};
    move.one_minus_beta1 = 1.0f;
    move.factor = factor;
    move.rate = rate;
    move.step = c->step;
    return move;
}

/* Structs are changed where they are, not copied: a copy would lie in a GPU thread's own memory. */
MO_HD static inline void mo_trust_plan_coefs(const mo_trust_args *a, uint32_t k, float decay)
{
    const mo_rule_coef *given = &a->coefs[k];
    mo_rule_coef *own = a->steps + MO_TRUST_RULE * a->count + k;
    *own = *given;
    if (a->direct) {
        own->rate = 0.0f;
        own->decay = decay;
    } else if (a->rule == MO_RULE_SGD) {
        own->factor = 1.0f;
    } else {
        decay = -decay; /* of minus the update */
    }
    a->steps[MO_TRUST_COPY * a->count + k] = mo_trust_coef(given, given->factor, 1.0f);
    a->steps[MO_TRUST_DECAY * a->count + k] = mo_trust_coef(given, 1.0f, decay);
}

MO_HD static inline void mo_trust_target(mo_optim_tensor *out, const mo_optim_tensor *tensor,
                                         float *memory)
{
    *out = *tensor;
    out->copy = 0;
    if (memory == 0)
        return;
    out->parameter = memory;
    out->parameter_dtype = MO_DTYPE_F32;
}

/* Gradient k of the batch in one of the lists: other memory with as many elements. */
MO_HD static inline void mo_trust_segment(const mo_trust_args *a, uint32_t k, uint32_t list,
                                          void *data, uint32_t dtype, uint32_t number)
{
    mo_tensor_segment *out = a->segments + (uint64_t)list * a->count + k;
    out->data = data;
    out->count = a->gradients[k].count;
    out->first_chunk = a->gradients[k].first_chunk - a->gradients[0].first_chunk;
    out->dtype = dtype;
    out->number = number;
}

/* The tables of gradient k of the batch. */
MO_HD static inline void mo_trust_plan_one(const mo_trust_args *a, uint32_t k)
{
    const mo_tensor_segment *gradient = &a->gradients[k];
    const mo_optim_tensor *tensor = &a->tensors[gradient->number];
    float *update = a->updates + a->places[k], *source = a->sources + a->places[k];
    mo_trust_segment(a, k, MO_TRUST_GRADIENTS, gradient->data, gradient->dtype, k);
    mo_trust_segment(a, k, MO_TRUST_PARAMETERS, tensor->parameter,
                     (uint32_t)tensor->parameter_dtype, k);
    mo_trust_segment(a, k, MO_TRUST_SOURCES, source, MO_DTYPE_F32, k);
    mo_trust_segment(a, k, MO_TRUST_UPDATES, a->direct ? tensor->m : update, MO_DTYPE_F32,
                     gradient->number);
    mo_trust_target(a->targets + k, tensor, a->direct ? 0 : update);
    mo_trust_target(a->targets + a->count + k, tensor, source);
    mo_trust_plan_coefs(a, k, (float)a->groups[tensor->group].weight_decay);
}

/* Where the total of gradient k of the batch goes. */
MO_HD static inline double *mo_trust_total(const mo_trust_args *a, uint32_t k)
{
    return a->squares + (a->list == MO_TRUST_UPDATES ? a->parameters : 0) + a->gradients[k].number;
}

MO_HD static inline double mo_trust_ratio(const mo_rule_group *group, double size, double length)
{
    double ratio = group->max_ratio > 0.0 && size > 0.0 && length > 0.0
                       ? group->max_ratio * mo_sqrt(size) / mo_sqrt(length)
                       : 1.0;
    return group->trust_clip && ratio > 1.0 ? 1.0 : ratio;
}

MO_HD static inline void mo_trust_rate_one(const mo_trust_args *a, uint32_t k)
{
    const uint32_t number = a->gradients[k].number;
    const mo_rule_group *group = &a->groups[a->tensors[number].group];
    const double ratio = mo_trust_ratio(group, MO_AT(const double, a->squares + number),
                                        MO_AT(const double, a->squares + a->parameters + number));
    double lr = group->device_lr != 0 ? (double)MO_AT(const float, group->device_lr) : group->lr;
    if (a->direct) /* the moment is the update; elsewhere it is minus the update */
        lr = -lr;
    a->steps[MO_TRUST_RATE * a->count + k] =
        mo_trust_coef(&a->coefs[k], 1.0f, mo_f32_one_nan((float)(lr * ratio)));
}

#endif
