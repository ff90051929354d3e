/*
 * One device, and replicas: torch's DDP, whose optimizer may be a ZeroRedundancyOptimizer (zero1).
 */
#include "parallel/parallel.h"

/* --- one device ------------------------------------------------------------------------------ */

static memopt_status create(mo_plan_play *p, uint64_t layers)
{
    (void)p, (void)layers;
    return MEMOPT_OK;
}

static memopt_status check(mo_plan_play *p)
{
    const mo_plan_run *r = &p->settings->run;
    return r->world_size > 1 && r->sharding == MO_PLAN_ZERO1
               ? mo_plan_check_types(p, 0, "ZeroRedundancyOptimizer")
               : p->tape.status;
}

static mo_plan_place place(mo_plan_play *p, const mo_plan_weight *w)
{
    const mo_plan_run *r = &p->settings->run;
    uint32_t width = mo_plan_weight_width(r, w);
    int viewed = r->world_size > 1 && r->bucket_view == MO_PLAN_YES;
    return (mo_plan_place){
        w->codes > 0 ? w->codes : mo_plan_tape_mul(&p->tape, w->count, width), width,
        viewed ? 0 : mo_plan_tape_mul(&p->tape, w->count, mo_plan_gradient_width(r, w))};
}

/* The weights that a device steps: all, or those that are given to it. */
static void own_states(mo_plan_play *p)
{
    const mo_plan_run *r = &p->settings->run;
    uint64_t count = p->weight_count;
    mo_plan_weight *weights = mo_calloc(count, sizeof *weights);
    if (weights == NULL) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        weights[i] = p->weights[i];
        weights[i].chunks = 0; /* one device */
    }
    if (r->sharding == MO_PLAN_ZERO1 && r->world_size > 1)
        mo_plan_tape_fail(&p->tape,
                          mo_plan_partition(p->weights, count, r->world_size, weights, &count));
    mo_plan_make_states(p, weights, count);
    mo_free(weights);
}

static void start(mo_plan_play *p)
{
    own_states(p);
    if (p->settings->run.accumulation > 1)
        mo_plan_make_gradients(p);
}

/* --- replicas -------------------------------------------------------------------------------- */

/* Weights that ask for a gradient and get none. */
static int any_unused(const mo_plan_play *p)
{
    for (uint64_t i = 0; i < p->weight_count; i++)
        if (p->weights[i].unused)
            return 1;
    return 0;
}

/* DDP holds a copy of all gradients in buckets, or all gradients (reducer.cpp): also of weights
 * that ask for one and get none, which the program has to name (find_unused_parameters). */
static void make_buckets(mo_plan_play *p)
{
    const mo_plan_run *r = &p->settings->run;
    uint64_t all = 0, map = any_unused(p) ? 4 : 0; /* of each weight, whether it was used */
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_plan_weight *w = &p->weights[i];
        all += w->learns || w->unused ? w->count * mo_plan_gradient_width(r, w) + map : 0;
    }
    (void)mo_plan_buffer(p, "buckets of communication", all, MO_PLAN_GRADIENTS);
}

static void start_replicas(mo_plan_play *p)
{
    own_states(p);
    make_buckets(p);
    if (p->settings->run.accumulation > 1)
        mo_plan_make_gradients(p);
}

/* DDP that looks for unused weights returns copies (distributed.py, _DDPSink). */
static void copy_outputs(mo_plan_play *p, mo_plan_value loss)
{
    (void)loss;
    p->tape.label = "copies of what the model returns";
    if (any_unused(p))
        mo_plan_tape_flash(&p->tape, p->returned, MO_PLAN_LOGITS);
}

#define ENGINE(begin, at_loss)                                                                     \
    {                                                                                              \
        .create = create, .destroy = mo_plan_nothing, .place = place,                              \
        .add = mo_plan_nothing_at_weight, .check = check, .start = begin,                          \
        .inputs = mo_plan_nothing_with, .before_forward = mo_plan_nothing_at_layer,                \
        .input = mo_plan_nothing_at_value, .output = mo_plan_nothing_at_value,                     \
        .after_forward = mo_plan_nothing_at_layer, .loss = at_loss, .finish = mo_plan_nothing,     \
        .step = mo_plan_step_states                                                                \
    }

const mo_plan_engine mo_plan_engine_none = ENGINE(start, mo_plan_nothing_with);
const mo_plan_engine mo_plan_engine_ddp = ENGINE(start_replicas, copy_outputs);
