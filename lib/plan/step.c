/*
 * The step as a whole: states, gradients of earlier micro-batches and what sharding holds, then
 * forward, loss, backward and optimizer.
 */
#include "plan/play.h"

/* A weight as a device's optimizer sees it. */
static mo_weight own(const mo_play *p, const mo_weight *w)
{
    mo_weight o = *w;
    if (p->shards == NULL)
        return o;
    o.whole = w->count;
    o.count = mo_shard_count(p, w);
    o.rows = o.columns > 0 ? mo_ceil_div_u64(o.count, o.columns) : o.count;
    return o;
}

/* The weights that a device steps, in the order in which it does: all of them or shards of all, or
 * whole ones of the fullest device (out_states and out_step are of the fullest of each). */
static void optimizer_bytes(mo_play *p, uint64_t *out_states, uint64_t *out_step)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    int parts = r->sharding == MEMOPT_PLAN_ZERO1 && r->world_size > 1;
    uint64_t count = p->weight_count;
    mo_weight *weights = mo_calloc(count, sizeof *weights);
    *out_states = *out_step = 0;
    if (weights == NULL) {
        mo_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        weights[i] = own(p, &p->weights[i]);
        weights[i].chunks = 0; /* one device */
    }
    if (parts)
        mo_tape_fail(t, mo_partition(p->weights, count, r->world_size, weights, &count));
    mo_partition_largest(t, r, weights, count, out_states, out_step);
    mo_free(weights);
}

static void make_states(mo_play *p)
{
    mo_tape *t = &p->tape;
    uint64_t all = 0;
    t->label = "the optimizer's states";
    optimizer_bytes(p, &all, &p->step_bytes);
    if (p->settings->run.offload & MEMOPT_PLAN_OFFLOAD_OPTIMIZER) {
        t->host += all;
        t->host_peak = mo_max_u64(t->host_peak, t->host);
    } else {
        (void)mo_storage_new(t, all, MO_OPTIMIZER);
    }
}

/* Weights that ask for a gradient and get none. */
static int any_unused(const mo_play *p)
{
    for (uint64_t i = 0; i < p->weight_count; i++)
        if (p->weights[i].unused)
            return 1;
    return 0;
}

/* DDP holds a copy of all gradients in buckets, or all gradients (reducer.cpp): of weights that ask
 * for one and get none too, which it has to be told of (find_unused_parameters). */
static void make_buckets(mo_play *p)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    uint64_t all = 0;
    if (r->world_size < 2 || p->shards != NULL)
        return;
    uint64_t map = any_unused(p) ? 4 : 0; /* of each weight, whether it was used */
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *w = &p->weights[i];
        all += w->learns || w->unused ? w->count * mo_gradient_width(r, w) + map : 0;
    }
    t->label = "buckets of communication";
    (void)mo_storage_new(t, all, MO_GRADIENTS);
}

/* From the second micro-batch on, gradients are there before forward. */
static void make_gradients(mo_play *p)
{
    mo_tape *t = &p->tape;
    if (p->shards != NULL && !mo_shard_waits(p)) {
        mo_shard_gradients(p);
        return;
    }
    if (p->settings->earlier && p->settings->run.accumulation == 2)
        return; /* it is the first */
    t->label = "gradients of earlier micro-batches";
    for (uint64_t i = 0; i < t->leaf_count && t->status == MEMOPT_OK; i++)
        t->leaves[i].storage = mo_storage_new(t, t->leaves[i].bytes, MO_GRADIENTS);
}

void mo_play_wrapped(mo_play *p, mo_value loss)
{
    const memopt_plan_run *r = &p->settings->run;
    mo_shard_loss(p, loss);
    /* DDP that looks for unused weights returns copies (distributed.py, _DDPSink). */
    p->tape.label = "copies of what the model returns";
    if (r->world_size > 1 && p->shards == NULL && p->engine == NULL && any_unused(p))
        mo_tape_flash(&p->tape, p->returned, MO_LOGITS);
}

static mo_value forward(mo_play *p)
{
    mo_tape *t = &p->tape;
    t->phase = MEMOPT_PLAN_PHASE_FORWARD;
    p->info[0].kind = MEMOPT_PLAN_LAYER_EMBEDDING;
    mo_shard_forward(p, 0);
    mo_engine_forward(p, 0);
    mo_value x = mo_play_stem(p);
    mo_engine_hook_output(p, 0, x);
    p->info[0].flops = t->flops;
    p->info[0].saved = t->live[MO_ACTIVATIONS];
    p->info[0].output = mo_bytes(t, x);
    x = mo_play_stack(p, &p->text, x);
    p->saved = t->live[MO_ACTIVATIONS];
    double before = t->flops;
    uint64_t saved = t->live[MO_ACTIVATIONS] + t->live[MO_LOGITS];
    mo_engine_forward(p, t->layer_count - 1);
    mo_value loss = mo_play_head(p, x);
    mo_play_wrapped(p, loss);
    mo_engine_forward_end(p, t->layer_count - 1);
    mo_engine_hook_output(p, t->layer_count - 1, loss);
    mo_layer_info *last = &p->info[t->layer_count - 1];
    uint64_t now = t->live[MO_ACTIVATIONS] + t->live[MO_LOGITS];
    *last = (mo_layer_info){.saved = now > saved ? now - saved : 0,
                            .output = mo_bytes(t, loss),
                            .flops = t->flops - before,
                            .kind = MEMOPT_PLAN_LAYER_HEAD};
    return loss;
}

static void optimizer_step(mo_play *p)
{
    mo_tape *t = &p->tape;
    t->phase = MEMOPT_PLAN_PHASE_STEP;
    t->layer = t->layer_count; /* of no layer, nor of its forward */
    t->label = "the optimizer's step";
    const memopt_plan_run *r = &p->settings->run;
    if (p->engine != NULL) {
        mo_engine_step(p);
        return;
    }
    int here =
        r->optimizer != MEMOPT_PLAN_NO_OPTIMIZER && !(r->offload & MEMOPT_PLAN_OFFLOAD_OPTIMIZER);
    mo_storage_drop(t, mo_storage_new(t, here ? p->step_bytes : 0, MO_OPTIMIZER));
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
    mo_shard_finish(p);
    mo_engine_finish(p);
    if (again)
        mo_play_drop_tables(p);
    mo_drop(t, loss);
}

memopt_status mo_play_step(mo_play *p)
{
    mo_tape *t = &p->tape;
    if (p->engine != NULL) {
        mo_engine_start(p);
    } else {
        make_states(p);
        make_buckets(p);
        if (p->settings->run.accumulation > 1)
            make_gradients(p);
    }
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
