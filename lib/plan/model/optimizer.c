/*
 * States of optimizers and the temporaries of their steps.
 *
 * Ours keep moments of 8 or 4 bits with an fp32 absmax or scale per block (optim.h), a count of
 * steps of 8 bytes, and make nothing. torch's keep moments of the weight's type and a count of 4
 * bytes. AdamW with foreach, which torch takes on a GPU, makes a root of every weight at once, and
 * without it a root and a quotient for each weight while those of the weight before are still
 * there.
 */
#include "plan/model/optimizer.h"

uint32_t mo_plan_weight_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    return (uint32_t)memopt_dtype_size(w->adapter ? run->adapter_dtype : run->weight_dtype);
}

/* A type that is the weights' own is that of adapters for adapters. */
static memopt_dtype own_type(const mo_plan_run *run, const mo_plan_weight *w, memopt_dtype type)
{
    return w->adapter && type == run->weight_dtype ? run->adapter_dtype : type;
}

uint32_t mo_plan_gradient_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    return (uint32_t)memopt_dtype_size(own_type(run, w, run->gradient_dtype));
}

/* Of torch's optimizers: a copy's states are of one type for all. */
static uint64_t state_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    memopt_dtype type = run->state_dtype;
    return memopt_dtype_size(run->master_dtype ? type : own_type(run, w, type));
}

/* Adapters that are as wide as the copies are none the better for one. */
static uint64_t master_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    uint64_t width = run->master_dtype ? memopt_dtype_size(run->master_dtype) : 0;
    return w->adapter && mo_plan_weight_width(run, w) >= width ? 0 : width;
}

/* Codes of `bits` and an fp32 number per block. */
static uint64_t coded(uint64_t count, unsigned bits, unsigned block)
{
    return (count * bits + 7) / 8 + mo_ceil_div_u64(count, block) * 4;
}

static uint64_t moments(const mo_plan_run *run, const mo_plan_weight *w)
{
    uint64_t n = w->count, width = state_width(run, w);
    int small = mo_max_u64(n, w->whole) < run->min_8bit_size; /* shards go by what they are of */
    switch (run->optimizer) {
    case MO_PLAN_ADAMW:
    case MO_PLAN_ADAMW_FOREACH:
    case MO_PLAN_ADAMW_FUSED:
        return 2 * n * width + 4;
    case MO_PLAN_ADAMW_8BIT:
        return (small ? 8 * n : 2 * coded(n, 8, 256)) + 8;
    case MO_PLAN_ADAMW_4BIT:
        return (small ? 8 * n : 2 * coded(n, 4, 128)) + 8;
    case MO_PLAN_ADAMW_FP8:
        return (small ? 8 * n : 2 * coded(n, 8, 256)) + 8;
    case MO_PLAN_ADAMW_OURS:
        return 8 * n + 8;
    case MO_PLAN_LION:
        return 4 * n + 8;
    case MO_PLAN_LION_8BIT:
    case MO_PLAN_SGD_8BIT:
        return (small ? 4 * n : coded(n, 8, 256)) + 8;
    case MO_PLAN_SGD_MOMENTUM:
        return n * width;
    case MO_PLAN_ADAFACTOR:
        return (w->columns > 0 ? w->rows + w->columns : n) * 4 + 4;
    default:
        return 0;
    }
}

uint64_t mo_plan_optimizer_state_bytes(mo_plan_tape *t, const mo_plan_run *run,
                                       const mo_plan_weight *w)
{
    /* 2^60 elements are refused long before: 16 bytes of each fit. */
    if (!w->learns || run->optimizer == MO_PLAN_NO_OPTIMIZER)
        return 0;
    if (w->count > UINT64_C(1) << 58) {
        (void)mo_plan_tape_mul(t, UINT64_MAX, 2);
        return 0;
    }
    return moments(run, w) + w->count * master_width(run, w);
}

/* Bytes that the step of one weight makes, and what of them stays until the next weight's. */
static uint64_t one_step(const mo_plan_run *run, const mo_plan_weight *w, uint64_t *stays)
{
    uint64_t width = state_width(run, w);
    switch (run->optimizer) {
    case MO_PLAN_ADAMW:
        *stays = w->count * width;
        return 2 * w->count * width;
    case MO_PLAN_ADAFACTOR:
        *stays = 4 * w->count;
        return 8 * w->count;
    default:
        *stays = 0;
        return 0;
    }
}

uint64_t mo_plan_optimizer_step_bytes(mo_plan_tape *t, const mo_plan_run *run,
                                      const mo_plan_weight *weights, uint64_t count)
{
    uint64_t most = 0, before = 0, all = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t stays;
        if (!weights[i].learns)
            continue;
        uint64_t now = one_step(run, &weights[i], &stays);
        most = mo_max_u64(most, before + now);
        before = stays;
        if (!mo_add_u64(all, weights[i].count * state_width(run, &weights[i]), &all))
            (void)mo_plan_tape_mul(t, UINT64_MAX, 2);
    }
    int at_once =
        run->optimizer == MO_PLAN_ADAMW_FOREACH || (run->optimizer == MO_PLAN_ADAMW && t->gpu);
    return at_once ? all : most;
}
