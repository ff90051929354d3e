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
 * Codes of 4 bits are one long column, stored in the type that is gathered; their scales are whole
 * on each device.
 */
#include "parallel/parallel.h"

/* Weights that are gathered together, and their gradients. */
typedef struct mo_plan_fsdp_group {
    uint64_t bytes, learning;        /* of all devices, rounded up to equal shards; and those of
                                        gradients at rest */
    uint64_t cast;                   /* of one device's shards that are cast to be gathered */
    uint32_t flat, whole, gradients; /* storages */
    uint32_t leaves;                 /* the first of its list: index + 1 */
    uint32_t ran, reduced;           /* 1: in forward; in backward */
} mo_plan_fsdp_group;

typedef struct mo_plan_fsdp {
    mo_plan_fsdp_group *groups;
    uint64_t count;
    uint32_t filled, reduced; /* storages of the last group's buffers */
    mo_plan_held inputs;      /* casts of the model's inputs, held until it returns */
} mo_plan_fsdp;

static mo_plan_fsdp *state_of(const mo_plan_play *p)
{
    return p->engine_state;
}

static uint64_t devices(const mo_plan_play *p)
{
    return p->settings->run.world_size;
}

static uint32_t group_of(const mo_plan_play *p, uint32_t layer)
{
    return mo_plan_play_in_layers(p, layer) ? layer : 0;
}

static memopt_status create(mo_plan_play *p, uint64_t layers)
{
    const mo_plan_run *r = &p->settings->run;
    mo_plan_fsdp *f = p->engine_state = mo_calloc(1, sizeof *f);
    if (f != NULL)
        f->groups = mo_calloc(layers, sizeof *f->groups);
    if (f == NULL || f->groups == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    f->count = layers;
    if (r->gather_dtype != 0)
        p->weight_width = (uint32_t)memopt_dtype_size(r->gather_dtype);
    return MEMOPT_OK;
}

static void destroy(mo_plan_play *p)
{
    mo_plan_fsdp *f = state_of(p);
    if (f == NULL)
        return;
    mo_free(f->groups);
    mo_free(f->inputs.values);
    mo_free(f);
}

/* Bytes of an element of a gathered weight. */
static uint32_t gathered_width(const mo_plan_play *p, const mo_plan_weight *w)
{
    const mo_plan_run *r = &p->settings->run;
    if (w->codes > 0)
        return 1;
    return r->gather_dtype != 0 ? (uint32_t)memopt_dtype_size(r->gather_dtype)
                                : mo_plan_weight_width(r, w);
}

/* Whether shards are gathered in another type than their own. */
static int is_cast(const mo_plan_play *p, const mo_plan_weight *w)
{
    const mo_plan_run *r = &p->settings->run;
    memopt_dtype own = w->adapter ? r->adapter_dtype : r->weight_dtype;
    return r->gather_dtype != 0 && r->gather_dtype != own && w->codes == 0;
}

int mo_plan_fsdp_waits(const mo_plan_run *r)
{
    return r->accumulation > 1 && r->gradient_sync == MO_PLAN_NO;
}

/* Elements of a weight on one device, or bytes of its codes. */
static uint64_t own_count(const mo_plan_play *p, const mo_plan_weight *w)
{
    if (w->codes > 0)
        return mo_ceil_div_u64(w->codes, devices(p));
    return mo_ceil_div_u64(w->chunks, devices(p)) * (w->count / w->chunks);
}

static mo_plan_place place(mo_plan_play *p, const mo_plan_weight *w)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_run *r = &p->settings->run;
    uint32_t width = gathered_width(p, w);
    uint32_t gradient = mo_plan_fsdp_waits(r) ? mo_plan_gradient_width(r, w) : width;
    uint32_t own = w->codes > 0 ? 1 : mo_plan_weight_width(r, w);
    return (mo_plan_place){mo_plan_tape_mul(t, own_count(p, w), own), width,
                           mo_plan_tape_mul(t, w->count, gradient)};
}

static memopt_status check(mo_plan_play *p)
{
    return mo_plan_check_types(p, 1, "a group of FSDP");
}

static void add(mo_plan_play *p, uint64_t *sum, uint64_t bytes)
{
    if (!mo_add_u64(*sum, bytes, sum))
        (void)mo_plan_tape_mul(&p->tape, UINT64_MAX, 2);
}

/* Puts a weight into its layer's group. */
static void add_weight(mo_plan_play *p, const mo_plan_weight *w)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_run *r = &p->settings->run;
    mo_plan_fsdp_group *s = &state_of(p)->groups[group_of(p, w->layer)];
    uint64_t own = own_count(p, w), padded = mo_plan_tape_mul(t, own, devices(p));
    uint32_t width = gathered_width(p, w);
    if (t->status != MEMOPT_OK)
        return;
    add(p, &s->bytes, mo_plan_tape_mul(t, padded, width));
    if (is_cast(p, w))
        add(p, &s->cast, mo_plan_tape_mul(t, own, width));
    if (!w->learns)
        return;
    add(p, &s->learning, mo_plan_tape_mul(t, padded, mo_plan_gradient_width(r, w)));
    t->leaves[t->leaf_count - 1].next = s->leaves;
    s->leaves = (uint32_t)t->leaf_count;
}

/* A weight as a device's optimizer sees it. */
static mo_plan_weight own_part(const mo_plan_play *p, const mo_plan_weight *w)
{
    mo_plan_weight o = *w;
    o.whole = w->count;
    o.count = own_count(p, w);
    o.rows = o.columns > 0 ? mo_ceil_div_u64(o.count, o.columns) : o.count;
    o.chunks = 0; /* one device */
    return o;
}

static void make_gradients(mo_plan_play *p)
{
    const mo_plan_run *r = &p->settings->run;
    mo_plan_fsdp *f = state_of(p);
    if (r->accumulation < 2)
        return;
    if (mo_plan_fsdp_waits(r)) {
        if (!p->settings->earlier || r->accumulation > 2) /* else it is the first */
            mo_plan_make_gradients(p);
        return;
    }
    for (uint64_t i = 0; i < f->count; i++)
        f->groups[i].gradients =
            mo_plan_buffer(p, "gradients of earlier micro-batches",
                           f->groups[i].learning / devices(p), MO_PLAN_GRADIENTS);
}

static void begin(mo_plan_play *p)
{
    mo_plan_weight *weights = mo_calloc(p->weight_count, sizeof *weights);
    if (weights == NULL) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0; i < p->weight_count; i++)
        weights[i] = own_part(p, &p->weights[i]);
    mo_plan_make_states(p, weights, p->weight_count);
    mo_free(weights);
    make_gradients(p);
}

/* Fills the flat buffer. */
static void start(mo_plan_play *p, uint32_t group)
{
    mo_plan_fsdp_group *s = &state_of(p)->groups[group];
    uint32_t cast = MO_PLAN_NONE;
    if (s->bytes == 0 || s->flat != MO_PLAN_NONE || s->whole != MO_PLAN_NONE)
        return;
    if (s->cast > 0)
        cast = mo_plan_buffer(p, "the cast of shards", s->cast, MO_PLAN_PARAMETERS);
    s->flat = mo_plan_buffer(p, "the buffer of gathered weights", s->bytes, MO_PLAN_PARAMETERS);
    mo_plan_buffer_drop(p, &cast);
}

static void copy_out(mo_plan_play *p, uint32_t group)
{
    mo_plan_fsdp_group *s = &state_of(p)->groups[group];
    if (s->flat != MO_PLAN_NONE)
        s->whole = mo_plan_buffer(p, "gathered weights", s->bytes, MO_PLAN_PARAMETERS);
}

/* The root's group is gathered with the embeddings and stays. */
static void before_forward(mo_plan_play *p, uint32_t layer)
{
    uint32_t group = group_of(p, layer);
    mo_plan_fsdp_group *s = &state_of(p)->groups[group];
    if (group == 0 && layer > 0)
        return;
    start(p, group);
    mo_plan_buffer_drop(p, &state_of(p)->filled);
    copy_out(p, group);
    state_of(p)->filled = s->flat;
    s->flat = MO_PLAN_NONE;
    s->ran = 1;
}

static void after_forward(mo_plan_play *p, uint32_t layer)
{
    uint32_t group = group_of(p, layer);
    if (group != 0 && p->settings->run.sharding == MO_PLAN_ZERO3)
        mo_plan_buffer_drop(p, &state_of(p)->groups[group].whole);
}

/* Of the layer that ran before a group's. */
static void prefetch(mo_plan_play *p, uint64_t group)
{
    while (--group > 0)
        if (state_of(p)->groups[group].ran) {
            start(p, (uint32_t)group);
            return;
        }
}

static void before_backward(void *context, uint32_t group)
{
    mo_plan_play *p = context;
    mo_plan_fsdp_group *s = &state_of(p)->groups[group];
    start(p, group);
    copy_out(p, group);
    mo_plan_buffer_drop(p, &s->flat);
    prefetch(p, group == 0 ? state_of(p)->count - 1 : group);
}

static void drop_gradients(mo_plan_play *p, mo_plan_fsdp_group *s)
{
    mo_plan_tape *t = &p->tape;
    for (uint32_t i = s->leaves; i != 0; i = t->leaves[i - 1].next)
        mo_plan_tape_drop_gradient(t, &t->leaves[i - 1]);
}

static void after_backward(void *context, uint32_t group)
{
    mo_plan_play *p = context;
    mo_plan_fsdp_group *s = &state_of(p)->groups[group];
    s->reduced = 1;
    mo_plan_buffer_drop(p, &s->flat);
    mo_plan_buffer_drop(p, &s->whole);
    mo_plan_buffer_drop(p, &state_of(p)->reduced);
    if (s->learning == 0 || p->settings->earlier)
        return;
    state_of(p)->reduced =
        mo_plan_buffer(p, "the buffer of gradients", s->learning, MO_PLAN_GRADIENTS);
    drop_gradients(p, s);
    uint32_t own =
        mo_plan_buffer(p, "the shard's gradients", s->learning / devices(p), MO_PLAN_GRADIENTS);
    if (s->gradients == MO_PLAN_NONE)
        s->gradients = own;
    else /* added to those of earlier micro-batches */
        mo_plan_buffer_drop(p, &own);
}

static void hook_input(mo_plan_play *p, uint32_t layer, mo_plan_value x)
{
    if (group_of(p, layer) != 0)
        mo_plan_value_hook(&p->tape, x, after_backward, p, layer);
}

static void hook_output(mo_plan_play *p, uint32_t layer, mo_plan_value x)
{
    if (group_of(p, layer) != 0)
        mo_plan_value_hook(&p->tape, x, before_backward, p, layer);
}

static void keep_inputs(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    if (p->settings->run.gather_dtype != 0) /* the root has cast them */
        mo_plan_play_hold(p, &state_of(p)->inputs,
                          mo_plan_value_view(t, x, mo_plan_elements(t, x)));
}

static void at_loss(mo_plan_play *p, mo_plan_value loss)
{
    mo_plan_play_release(p, &state_of(p)->inputs, 0);
    mo_plan_buffer_drop(p, &state_of(p)->filled);
    mo_plan_value_hook(&p->tape, loss, before_backward, p, 0);
}

static void finish(mo_plan_play *p)
{
    mo_plan_fsdp *f = state_of(p);
    for (uint64_t i = 0; i < f->count; i++)
        if (!f->groups[i].reduced && f->groups[i].bytes > 0)
            after_backward(p, (uint32_t)i);
    mo_plan_buffer_drop(p, &f->reduced);
}

const mo_plan_engine mo_plan_engine_fsdp = {.create = create,
                                            .destroy = destroy,
                                            .place = place,
                                            .add = add_weight,
                                            .check = check,
                                            .start = begin,
                                            .inputs = keep_inputs,
                                            .before_forward = before_forward,
                                            .input = hook_input,
                                            .output = hook_output,
                                            .after_forward = after_forward,
                                            .loss = at_loss,
                                            .finish = finish,
                                            .step = mo_plan_step_states};
