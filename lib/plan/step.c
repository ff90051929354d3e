/*
 * The step as a whole: states, gradients of earlier micro-batches and what sharding holds, then
 * forward, loss, backward and optimizer.
 */
#include "plan/play.h"

static uint64_t share(const mo_play *p, uint64_t count, uint32_t from_stage)
{
    const memopt_plan_run *r = &p->settings->run;
    return r->sharding >= from_stage ? mo_ceil_div_u64(count, r->world_size) : count;
}

/* The weights as a device's optimizer sees them. */
static mo_weight own(const mo_play *p, const mo_weight *w)
{
    mo_weight o = *w;
    o.count = share(p, w->count, MEMOPT_PLAN_ZERO1);
    o.rows = o.columns > 0 ? share(p, w->rows, MEMOPT_PLAN_ZERO1) : o.count;
    return o;
}

static void make_states(mo_play *p)
{
    mo_tape *t = &p->tape;
    uint64_t all = 0;
    t->label = "the optimizer's states";
    for (uint64_t i = 0; i < p->weight_count && t->status == MEMOPT_OK; i++) {
        mo_weight w = own(p, &p->weights[i]);
        if (!mo_add_u64(all, mo_optimizer_state_bytes(t, &p->settings->run, &w), &all))
            (void)mo_tape_mul(t, UINT64_MAX, 2);
    }
    if (p->settings->run.offload & MEMOPT_PLAN_OFFLOAD_OPTIMIZER) {
        t->host += all;
        t->host_peak = mo_max_u64(t->host_peak, t->host);
    } else {
        (void)mo_storage_new(t, all, MO_OPTIMIZER);
    }
}

/* DDP holds a copy of all gradients in buckets; sharding has two buckets in flight, and ZeRO 3 two
 * layers of gathered weights. */
static void make_buckets(mo_play *p)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    uint64_t all = 0, layer = 0, most = 0, bytes = 0;
    uint32_t number = UINT32_MAX;
    if (r->world_size < 2)
        return;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *w = &p->weights[i];
        all += w->learns ? w->count * mo_gradient_width(r, w) : 0;
        layer = w->layer == number ? layer : 0;
        if (!mo_add_u64(layer, w->count * mo_weight_width(r, w), &layer))
            (void)mo_tape_mul(t, UINT64_MAX, 2);
        number = w->layer;
        most = mo_max_u64(most, layer);
    }
    t->label = "buckets of communication";
    if (r->sharding == MEMOPT_PLAN_DDP)
        bytes = all;
    else if (!mo_mul_u64(2, mo_min_u64(r->bucket_bytes, all), &bytes))
        (void)mo_tape_mul(t, UINT64_MAX, 2);
    (void)mo_storage_new(t, bytes, MO_GRADIENTS);
    t->label = "gathered layers";
    if (r->sharding == MEMOPT_PLAN_ZERO3)
        (void)mo_storage_new(t, mo_tape_mul(t, 2, most), MO_PARAMETERS);
}

/* From the second micro-batch on, gradients are there before forward. */
static void make_gradients(mo_play *p)
{
    mo_tape *t = &p->tape;
    t->label = "gradients of earlier micro-batches";
    for (uint64_t i = 0; i < t->leaf_count && t->status == MEMOPT_OK; i++)
        t->leaves[i].storage = mo_storage_new(t, t->leaves[i].bytes, MO_GRADIENTS);
}

static mo_value forward(mo_play *p)
{
    mo_tape *t = &p->tape;
    t->phase = MEMOPT_PLAN_PHASE_FORWARD;
    p->info[0].kind = MEMOPT_PLAN_LAYER_EMBEDDING;
    mo_value x = mo_play_stem(p);
    p->info[0].flops = t->flops;
    p->info[0].saved = t->live[MO_ACTIVATIONS];
    p->info[0].output = mo_bytes(t, x);
    x = mo_play_stack(p, &p->text, x);
    p->saved = t->live[MO_ACTIVATIONS];
    double before = t->flops;
    uint64_t saved = t->live[MO_ACTIVATIONS] + t->live[MO_LOGITS];
    mo_value loss = mo_play_head(p, x);
    mo_layer_info *last = &p->info[t->layer_count - 1];
    uint64_t now = t->live[MO_ACTIVATIONS] + t->live[MO_LOGITS];
    *last = (mo_layer_info){.saved = now > saved ? now - saved : 0,
                            .output = mo_bytes(t, loss),
                            .flops = t->flops - before,
                            .kind = MEMOPT_PLAN_LAYER_HEAD};
    return loss;
}

/* Bytes that the step makes on this device. */
static uint64_t step_bytes(mo_play *p)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    if (r->optimizer == MEMOPT_PLAN_NO_OPTIMIZER || (r->offload & MEMOPT_PLAN_OFFLOAD_OPTIMIZER))
        return 0;
    mo_weight *weights = mo_calloc(p->weight_count, sizeof *weights);
    if (weights == NULL) {
        mo_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return 0;
    }
    for (uint64_t i = 0; i < p->weight_count; i++)
        weights[i] = own(p, &p->weights[i]);
    uint64_t bytes = mo_optimizer_step_bytes(t, r, weights, p->weight_count);
    mo_free(weights);
    return bytes;
}

static void optimizer_step(mo_play *p)
{
    mo_tape *t = &p->tape;
    t->phase = MEMOPT_PLAN_PHASE_STEP;
    t->layer = t->layer_count; /* of no layer, nor of its forward */
    t->label = "the optimizer's step";
    mo_storage_drop(t, mo_storage_new(t, step_bytes(p), MO_OPTIMIZER));
}

/* Forward and backward in one piece each. */
static void plain_passes(mo_play *p)
{
    mo_tape *t = &p->tape;
    int again = p->settings->run.checkpointing != MEMOPT_PLAN_CHECKPOINT_NONE;
    mo_value loss = forward(p);
    if (t->status != MEMOPT_OK)
        return;
    mo_tape_forget(t);
    if (p->settings->run.keep_outputs != MEMOPT_PLAN_YES)
        mo_play_let_go(p, &p->outputs, 0);
    if (!again) /* else layers that run again hold them */
        mo_play_drop_tables(p);
    mo_tape_backward(t, loss);
    if (again)
        mo_play_drop_tables(p);
    mo_drop(t, loss);
}

memopt_status mo_play_step(mo_play *p)
{
    mo_tape *t = &p->tape;
    make_states(p);
    make_buckets(p);
    if (p->settings->run.accumulation > 1)
        make_gradients(p);
    if (p->schedule != NULL)
        mo_play_scheduled(p);
    else
        plain_passes(p);
    if (t->status != MEMOPT_OK)
        return t->status;
    mo_tape_forget_passing(t); /* a schedule runs backward by itself */
    optimizer_step(p);
    mo_play_let_go(p, &p->outputs, 0);
    return t->status;
}
