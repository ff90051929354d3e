/*
 * States of optimizers and the temporaries of their steps.
 *
 * Ours keep moments of 8 or 4 bits with an fp32 absmax or scale per block (optim.h), a count of
 * steps of 8 bytes, and make nothing. torch's keep moments of the weight's type and a count of 4
 * bytes. AdamW with foreach, which torch takes on a GPU, makes a root of every weight at once, and
 * without it a root and a quotient for each weight while those of the weight before are still
 * there.
 */
#include "model/optimizer.h"

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

static int is_on_host(const mo_plan_run *run)
{
    return (run->offload & MO_PLAN_OFFLOAD_OPTIMIZER) != 0;
}

/* Of torch's optimizers: a copy's states are of one type for all. On the host ours step, in fp32. */
static uint64_t state_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    memopt_dtype type = run->state_dtype;
    if (is_on_host(run))
        return memopt_dtype_size(MEMOPT_DTYPE_F32);
    return memopt_dtype_size(run->master_dtype ? type : own_type(run, w, type));
}

/* Adapters that are as wide as the copies are none the better for one. */
static uint64_t master_width(const mo_plan_run *run, const mo_plan_weight *w)
{
    uint64_t width = run->master_dtype ? memopt_dtype_size(run->master_dtype) : 0;
    return w->adapter && mo_plan_weight_width(run, w) >= width ? 0 : width;
}

/* What `CPUOffloadOptimizer` has on the host beside states: an fp32 master, where the parameter is
 * none itself, and a buffer for the gradient of a parameter that is on a device. */
static uint64_t beside_states(const mo_plan_tape *t, const mo_plan_run *run,
                              const mo_plan_weight *w)
{
    uint64_t master = memopt_dtype_size(MEMOPT_DTYPE_F32);
    if (!is_on_host(run))
        return master_width(run, w);
    if (t->gpu)
        return master + mo_plan_gradient_width(run, w);
    return mo_plan_weight_width(run, w) < master ? master : 0;
}

/* Codes of `bits` and an fp32 number per block. */
static uint64_t coded(uint64_t count, unsigned bits, unsigned block)
{
    return (count * bits + 7) / 8 + mo_ceil_div_u64(count, block) * 4;
}

/* Its moments, of one size, and its count of steps. */
typedef struct mo_plan_moments {
    uint64_t each, count, rest;
} mo_plan_moments;

static mo_plan_moments moments(const mo_plan_run *run, const mo_plan_weight *w)
{
    uint64_t n = w->count, width = state_width(run, w);
    int small = mo_max_u64(n, w->whole) < run->min_8bit_size; /* shards go by what they are of */
    switch (run->optimizer) {
    case MO_PLAN_ADAMW:
    case MO_PLAN_ADAMW_FOREACH:
    case MO_PLAN_ADAMW_FUSED:
        return (mo_plan_moments){n * width, 2, is_on_host(run) ? 8 : 4};
    case MO_PLAN_ADAMW_8BIT:
    case MO_PLAN_ADAMW_FP8:
        return (mo_plan_moments){small ? 4 * n : coded(n, 8, 256), 2, 8};
    case MO_PLAN_ADAMW_4BIT:
        return (mo_plan_moments){small ? 4 * n : coded(n, 4, 128), 2, 8};
    case MO_PLAN_ADAMW_OURS:
        return (mo_plan_moments){4 * n, 2, 8};
    case MO_PLAN_LION:
        return (mo_plan_moments){4 * n, 1, 8};
    case MO_PLAN_LION_8BIT:
    case MO_PLAN_SGD_8BIT:
        return (mo_plan_moments){small ? 4 * n : coded(n, 8, 256), 1, 8};
    case MO_PLAN_SGD_MOMENTUM:
        return (mo_plan_moments){n * width, 1, 0};
    case MO_PLAN_ADAFACTOR:
        return (mo_plan_moments){(w->columns > 0 ? w->rows + w->columns : n) * 4, 1, 4};
    default:
        return (mo_plan_moments){0, 0, 0};
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
    mo_plan_moments m = moments(run, w);
    return m.each * m.count + m.rest + w->count * beside_states(t, run, w);
}

void mo_plan_optimizer_make_states(mo_plan_tape *t, const mo_plan_run *run, const mo_plan_weight *w)
{
    if (mo_plan_optimizer_state_bytes(t, run, w) == 0)
        return;
    mo_plan_moments m = moments(run, w);
    for (uint64_t i = 0; i < m.count; i++)
        (void)mo_plan_storage_new(t, m.each, MO_PLAN_OPTIMIZER);
    (void)mo_plan_storage_new(t, m.rest, MO_PLAN_OPTIMIZER);
    (void)mo_plan_storage_new(t, w->count * master_width(run, w), MO_PLAN_OPTIMIZER);
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
    return mo_plan_optimizer_at_once(t, run) ? all : most;
}

int mo_plan_optimizer_at_once(const mo_plan_tape *t, const mo_plan_run *run)
{
    return run->optimizer == MO_PLAN_ADAMW_FOREACH || (run->optimizer == MO_PLAN_ADAMW && t->gpu);
}

uint64_t mo_plan_optimizer_root_bytes(const mo_plan_run *run, const mo_plan_weight *w)
{
    return w->learns ? w->count * state_width(run, w) : 0;
}
