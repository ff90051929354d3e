/*
 * Weights that are shared out and gathered in groups: FSDP of torch 2.15 (fully_shard of each layer
 * and of the model), played move by move. Sizes are those of torch/distributed/fsdp/_fully_shard.
 *
 * A group is a layer's weights; the rest (embeddings, last norm, head) is the root's group, 0.
 *
 * Gather: shards are cast where they are gathered in another type, put into a flat buffer as long
 * as all shards, and copied out of it into the weights. In forward the flat buffer stays until the
 * next group has filled its own (_fsdp_param_group.py, wait_for_unshard), the last one until the
 * loss is there; in backward it goes after the copy, and the flat buffer of the group before is
 * filled at once (_backward_prefetch).
 *
 * ZeRO 3 lets the gathered weights of a layer go after its forward and gathers them again before
 * its backward; ZeRO 2 keeps them. The root's stay in both.
 *
 * Reduce: once a group's gradients are all there its weights go, and so does the buffer of the
 * group reduced before; a buffer of all its gradients in the type they rest in is filled, the
 * gradients go, and the shard's gradients are made. The root, and a group whose input needs no
 * gradient, are reduced when backward has ended (_fsdp_state.py,
 * _root_post_backward_final_callback).
 *
 * Of micro-batches before the last nothing is reduced where the program says so
 * (set_requires_gradient_sync): gradients stay whole, cast to the type they rest in
 * (_set_unsharded_grad_dtypes), and the last one's are added to them.
 *
 * Shards are of equal size: the first size of a weight is divided by the devices and rounded up.
 */
#include "plan/play.h"

static uint64_t devices(const mo_play *p)
{
    return p->settings->run.world_size;
}

/* A buffer for the group's move. */
static uint32_t buffer(mo_play *p, const char *label, uint64_t bytes, mo_category category)
{
    p->tape.label = label;
    return mo_storage_new(&p->tape, bytes, category);
}

static void drop(mo_play *p, uint32_t *storage)
{
    mo_storage_drop(&p->tape, *storage);
    *storage = MO_NONE;
}

uint32_t mo_shard_group(const mo_play *p, uint32_t layer)
{
    return layer + 1 < p->shard_count ? layer : 0;
}

memopt_status mo_shard_init(mo_play *p, uint64_t layers)
{
    const memopt_plan_run *r = &p->settings->run;
    if (r->sharding < MEMOPT_PLAN_ZERO2 || r->world_size < 2 ||
        r->zero_engine != MEMOPT_PLAN_ENGINE_TORCH)
        return MEMOPT_OK;
    p->shards = mo_calloc(layers, sizeof *p->shards);
    if (p->shards == NULL)
        return mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
    p->shard_count = layers;
    if (r->gather_dtype != 0)
        p->weight_width = (uint32_t)memopt_dtype_size(r->gather_dtype);
    return MEMOPT_OK;
}

void mo_shard_end(mo_play *p)
{
    mo_free(p->shards);
}

uint32_t mo_shard_width(const mo_play *p, const mo_weight *w)
{
    const memopt_plan_run *r = &p->settings->run;
    return r->gather_dtype != 0 ? (uint32_t)memopt_dtype_size(r->gather_dtype)
                                : mo_weight_width(r, w);
}

/* Whether shards are gathered in another type than their own. */
static int is_cast(const mo_play *p, const mo_weight *w)
{
    const memopt_plan_run *r = &p->settings->run;
    memopt_dtype own = w->adapter ? r->adapter_dtype : r->weight_dtype;
    return r->gather_dtype != 0 && r->gather_dtype != own;
}

int mo_shard_waits(const mo_play *p)
{
    const memopt_plan_run *r = &p->settings->run;
    return p->shards != NULL && r->accumulation > 1 && r->gradient_sync == MEMOPT_PLAN_NO;
}

uint64_t mo_shard_count(const mo_play *p, const mo_weight *w)
{
    return mo_ceil_div_u64(w->chunks, devices(p)) * (w->count / w->chunks);
}

static void add(mo_play *p, uint64_t *sum, uint64_t bytes)
{
    if (!mo_add_u64(*sum, bytes, sum))
        (void)mo_tape_mul(&p->tape, UINT64_MAX, 2);
}

void mo_shard_add(mo_play *p, const mo_weight *w)
{
    mo_tape *t = &p->tape;
    if (p->shards == NULL || t->status != MEMOPT_OK)
        return;
    const memopt_plan_run *r = &p->settings->run;
    mo_shard *s = &p->shards[mo_shard_group(p, w->layer)];
    uint64_t own = mo_shard_count(p, w), padded = mo_tape_mul(t, own, devices(p));
    uint32_t width = mo_shard_width(p, w);
    add(p, &s->bytes, mo_tape_mul(t, padded, width));
    if (is_cast(p, w))
        add(p, &s->cast, mo_tape_mul(t, own, width));
    if (!w->learns)
        return;
    add(p, &s->learning, mo_tape_mul(t, padded, mo_gradient_width(r, w)));
    t->leaves[t->leaf_count - 1].next = s->leaves;
    s->leaves = (uint32_t)t->leaf_count;
}

/* Fills the flat buffer. */
static void start(mo_play *p, uint32_t group)
{
    mo_shard *s = &p->shards[group];
    uint32_t cast = MO_NONE;
    if (s->bytes == 0 || s->flat != MO_NONE || s->whole != MO_NONE)
        return;
    if (s->cast > 0)
        cast = buffer(p, "the cast of shards", s->cast, MO_PARAMETERS);
    s->flat = buffer(p, "the buffer of gathered weights", s->bytes, MO_PARAMETERS);
    drop(p, &cast);
}

static void copy_out(mo_play *p, uint32_t group)
{
    mo_shard *s = &p->shards[group];
    if (s->flat != MO_NONE)
        s->whole = buffer(p, "gathered weights", s->bytes, MO_PARAMETERS);
}

void mo_shard_forward(mo_play *p, uint32_t layer)
{
    if (p->shards == NULL)
        return;
    uint32_t group = mo_shard_group(p, layer);
    mo_shard *s = &p->shards[group];
    start(p, group);
    drop(p, &p->filled);
    copy_out(p, group);
    p->filled = s->flat;
    s->flat = MO_NONE;
    s->ran = 1;
}

void mo_shard_forward_end(mo_play *p, uint32_t layer)
{
    if (p->shards != NULL && p->settings->run.sharding == MEMOPT_PLAN_ZERO3)
        drop(p, &p->shards[mo_shard_group(p, layer)].whole);
}

/* Of the layer that ran before a group's. */
static void prefetch(mo_play *p, uint64_t group)
{
    while (--group > 0)
        if (p->shards[group].ran) {
            start(p, (uint32_t)group);
            return;
        }
}

static void before_backward(void *context, uint32_t group)
{
    mo_play *p = context;
    mo_shard *s = &p->shards[group];
    start(p, group);
    copy_out(p, group);
    drop(p, &s->flat);
    prefetch(p, group == 0 ? p->shard_count - 1 : group);
}

static void drop_gradients(mo_play *p, mo_shard *s)
{
    mo_tape *t = &p->tape;
    for (uint32_t i = s->leaves; i != 0; i = t->leaves[i - 1].next)
        mo_tape_drop_gradient(t, &t->leaves[i - 1]);
}

static void after_backward(void *context, uint32_t group)
{
    mo_play *p = context;
    mo_shard *s = &p->shards[group];
    s->reduced = 1;
    drop(p, &s->flat);
    drop(p, &s->whole);
    drop(p, &p->reduced);
    if (s->learning == 0 || p->settings->earlier)
        return;
    p->reduced = buffer(p, "the buffer of gradients", s->learning, MO_GRADIENTS);
    drop_gradients(p, s);
    uint32_t own = buffer(p, "the shard's gradients", s->learning / devices(p), MO_GRADIENTS);
    if (s->gradients == MO_NONE)
        s->gradients = own;
    else /* added to those of earlier micro-batches */
        drop(p, &own);
}

void mo_shard_hook_input(mo_play *p, uint32_t layer, mo_value x)
{
    if (p->shards != NULL)
        mo_value_hook(&p->tape, x, after_backward, p, mo_shard_group(p, layer));
}

void mo_shard_hook_output(mo_play *p, uint32_t layer, mo_value x)
{
    if (p->shards != NULL)
        mo_value_hook(&p->tape, x, before_backward, p, mo_shard_group(p, layer));
}

void mo_shard_loss(mo_play *p, mo_value loss)
{
    mo_play_let_go(p, &p->inputs, 0);
    if (p->shards == NULL)
        return;
    drop(p, &p->filled);
    mo_value_hook(&p->tape, loss, before_backward, p, 0);
}

void mo_shard_backward(mo_play *p, uint32_t layer)
{
    if (p->shards != NULL)
        before_backward(p, mo_shard_group(p, layer));
}

void mo_shard_backward_end(mo_play *p, uint32_t layer)
{
    if (p->shards != NULL)
        after_backward(p, mo_shard_group(p, layer));
}

void mo_shard_gradients(mo_play *p)
{
    for (uint64_t i = 0; i < p->shard_count; i++)
        p->shards[i].gradients = buffer(p, "gradients of earlier micro-batches",
                                        p->shards[i].learning / devices(p), MO_GRADIENTS);
}

void mo_shard_finish(mo_play *p)
{
    for (uint64_t i = 0; i < p->shard_count; i++)
        if (!p->shards[i].reduced && p->shards[i].bytes > 0)
            after_backward(p, (uint32_t)i);
    drop(p, &p->reduced);
}
