/*
 * DeepSpeed 0.19's own ZeRO, stages 1, 2 and 3, move by move (runtime/zero/stage_1_and_2.py,
 * stage3.py). It keeps weights, gradients and states in flat buffers, whose parts are of equal
 * size.
 *
 * Stages 1 and 2 keep all weights that learn in one buffer, rounded up to twice the devices, and of
 * one device's part a copy in f32, whatever the weights are of; the optimizer steps that one
 * tensor. When the first gradient of a backward comes, a bucket is made (two where communication
 * overlaps), and gradients are copied into it until the next would not fit; a larger one stays
 * where it is. A full bucket is summed over the devices: through a copy of it where it holds
 * gradients of more than one device. Then those of the device's own part are copied to a buffer of
 * all gradients that touch it, made with the first of them, and the others go. Without
 * contiguous_gradients there is no bucket and none of these buffers: gradients stay where they are
 * until they are reduced, through a copy of all of them.
 *
 * Stage 2 does that as gradients come, in every micro-batch, and adds what it keeps of each. Stage
 * 1 lets them come to rest, as without sharding, and does it when the last backward has ended, from
 * the first weight to the last; where communication overlaps, as they come in the last backward.
 * Its bucket stays from one micro-batch to the next.
 *
 * The step copies the kept gradients into one tensor, in f32 once more where they are narrower.
 *
 * Stage 3 cuts each weight into equal parts. It keeps those of all weights, in f32 once more where
 * they are narrower, a buffer of the gradients of its parts, and one bucket, all from the start.
 * Gathered weights come and go as gather.c says; of a layer the most in its forward and in its
 * backward is taken to be there all the time. The step goes through weights in groups
 * (sub_group): each makes what that of the other stages makes of all.
 *
 * Of several devices it is one that keeps its gradients the longest that is played, with the buffer
 * for gradients of the fullest.
 */
#include "plan/engine.h"

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

static uint64_t add(mo_play *p, uint64_t a, uint64_t b)
{
    uint64_t sum = 0;
    if (!mo_add_u64(a, b, &sum))
        (void)mo_tape_mul(&p->tape, UINT64_MAX, 2);
    return sum;
}

static const mo_weight *weight_of(const mo_play *p, uint32_t leaf)
{
    return &p->weights[p->engine->learning[leaf]];
}

static uint64_t world(const mo_play *p)
{
    return p->settings->run.world_size;
}

/* Elements of a weight that one device has at stage 3. */
static uint64_t share(const mo_play *p, const mo_weight *w)
{
    return mo_ceil_div_u64(w->count, world(p));
}

/* --- life ------------------------------------------------------------------------------------ */

memopt_status mo_engine_init(mo_play *p, uint64_t layers)
{
    const memopt_plan_run *r = &p->settings->run;
    if (r->zero_engine != MEMOPT_PLAN_ENGINE_DEEPSPEED)
        return MEMOPT_OK;
    mo_engine *e = p->engine = mo_calloc(1, sizeof *e);
    if (e == NULL)
        return mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
    e->stage = (int)r->sharding;
    e->contiguous = r->contiguous_gradients != MEMOPT_PLAN_NO;
    e->overlap = r->overlap_comm == MEMOPT_PLAN_YES;
    e->width = (uint32_t)memopt_dtype_size(r->weight_dtype);
    e->capacity = r->bucket_bytes / e->width;
    if (e->stage < MEMOPT_PLAN_ZERO3 || r->world_size < 2)
        return MEMOPT_OK;
    e->layers = mo_calloc(layers, sizeof *e->layers);
    return e->layers != NULL ? MEMOPT_OK : mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
}

void mo_engine_end(mo_play *p)
{
    mo_engine *e = p->engine;
    if (e == NULL)
        return;
    mo_free(e->layers);
    mo_free(e->starts);
    mo_free(e->learning);
    mo_free(e->filled);
    mo_free(e->late);
    mo_free(e);
}

int mo_engine_shares_weights(const mo_play *p)
{
    return p->engine != NULL && p->engine->stage == MEMOPT_PLAN_ZERO3;
}

/* Whether its buffers have a place for it: also for one that asks for a gradient and gets none. */
static int has_place(const mo_weight *w)
{
    return w->learns || w->unused;
}

/* Weights that have a place, in the order of their leaves. */
static void list_learning(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t at = 0;
    for (uint64_t i = 0; i < p->weight_count; i++)
        e->count += (uint64_t)has_place(&p->weights[i]);
    e->starts = mo_calloc(e->count + 1, sizeof *e->starts);
    e->learning = mo_calloc(e->count + 1, sizeof *e->learning);
    e->filled = mo_calloc(e->count + 1, sizeof *e->filled);
    e->late = mo_calloc(e->count + 1, sizeof *e->late);
    if (e->starts == NULL || e->learning == NULL || e->filled == NULL || e->late == NULL) {
        mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0, n = 0; i < p->weight_count; i++)
        if (has_place(&p->weights[i])) {
            e->learning[n] = (uint32_t)i;
            e->starts[n++] = at;
            at = add(p, at, p->weights[i].count);
        }
    e->starts[e->count] = at;
}

/* --- states ---------------------------------------------------------------------------------- */

/* The optimizer sees one flat tensor. */
static mo_weight flat(uint64_t elements)
{
    return (mo_weight){.count = elements, .rows = elements, .learns = 1};
}

static void make_states(mo_play *p, uint64_t elements)
{
    mo_tape *t = &p->tape;
    mo_weight w = flat(elements);
    t->label = "the optimizer's states";
    (void)mo_storage_new(t, mo_optimizer_state_bytes(t, &p->settings->run, &w), MO_OPTIMIZER);
}

/* --- stages 1 and 2 -------------------------------------------------------------------------- */

/* Elements of all weights that touch one device's part, where they are most. */
static uint64_t most_touching(const mo_play *p)
{
    const mo_engine *e = p->engine;
    uint64_t most = e->part, low = 0, high = 0;
    for (uint64_t rank = 0; rank < world(p) && e->part > 0; rank++) {
        while (low < e->count && e->starts[low + 1] <= rank * e->part)
            low++;
        while (high < e->count && e->starts[high] < (rank + 1) * e->part)
            high++;
        most = mo_max_u64(most, e->starts[high] - e->starts[low]);
    }
    return most;
}

static int is_own(const mo_play *p, uint32_t leaf)
{
    const mo_engine *e = p->engine;
    uint64_t from = e->rank * e->part;
    return e->starts[leaf] < from + e->part && e->starts[leaf + 1] > from;
}

static int reduces_as_they_come(const mo_engine *e)
{
    return e->stage == MEMOPT_PLAN_ZERO2 || e->overlap;
}

static void start_flat(mo_play *p)
{
    mo_engine *e = p->engine;
    const memopt_plan_run *r = &p->settings->run;
    uint64_t all = e->starts[e->count], unit = 2 * world(p);
    uint64_t rounded = mo_tape_mul(&p->tape, mo_ceil_div_u64(all, unit), unit);
    e->part = rounded / world(p);
    e->rank = reduces_as_they_come(e) ? mo_ceil_div_u64(all, mo_max_u64(e->part, 1)) : 1;
    e->rank -= e->rank > 0;
    e->kept_elements = most_touching(p);
    if (p->tape.status != MEMOPT_OK)
        return;
    (void)buffer(p, "the end of the flat weights", (rounded - all) * e->width, MO_PARAMETERS);
    make_states(p, e->part);
    if (r->accumulation < 2)
        return;
    if (e->stage == MEMOPT_PLAN_ZERO2) {
        e->earlier = buffer(p, "gradients of earlier micro-batches",
                            mo_tape_mul(&p->tape, e->kept_elements, e->width), MO_GRADIENTS);
        return;
    }
    for (uint64_t i = 0; i < e->count && p->tape.status == MEMOPT_OK; i++)
        p->tape.leaves[i].storage =
            buffer(p, "gradients of earlier micro-batches", p->tape.leaves[i].bytes, MO_GRADIENTS);
}

static void make_bucket(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t bytes = mo_tape_mul(&p->tape, e->capacity, e->width);
    if (!e->contiguous || e->bucket != MO_NONE)
        return;
    if (e->overlap && e->stage < MEMOPT_PLAN_ZERO3)
        bytes = mo_tape_mul(&p->tape, bytes, 2);
    e->bucket = buffer(p, "the reduce bucket", bytes, MO_GRADIENTS);
}

/* Elements that are summed through a copy, at the most: slices of the bucket's gradients by the
 * device that steps them, in groups that end when they are more than a bucket. A slice alone has no
 * copy. */
static uint64_t copied(const mo_play *p)
{
    const mo_engine *e = p->engine;
    uint64_t most = 0, group = 0, slices = 0, owner = UINT64_MAX;
    for (uint64_t i = 0; i < e->filled_count; i++) {
        uint64_t at = e->starts[e->filled[i]], end = e->starts[e->filled[i] + 1];
        while (at < end) {
            uint64_t rank = at / e->part, to = mo_min_u64(end, (rank + 1) * e->part);
            if (rank != owner) {
                if (group > e->capacity)
                    group = slices = 0;
                slices++;
            }
            owner = rank;
            group += to - at;
            at = to;
            if (slices > 1)
                most = mo_max_u64(most, group);
        }
    }
    return most;
}

static void drop_gradient(mo_play *p, uint32_t leaf)
{
    mo_tape_drop_gradient(&p->tape, &p->tape.leaves[leaf]);
}

static void drop_late(mo_play *p)
{
    mo_engine *e = p->engine;
    for (uint64_t i = 0; i < e->late_count; i++)
        drop_gradient(p, e->late[i]);
    e->late_count = 0;
}

/* Sums what is in the bucket over the devices, and keeps the device's own. */
static void reduce_flat(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    drop_late(p);
    t->label = "the copy of the reduce bucket";
    uint64_t copy = e->contiguous ? copied(p) : e->filled_count > 1 ? e->elements : 0;
    mo_tape_flash(t, mo_tape_mul(t, copy, e->width), MO_GRADIENTS);
    for (uint64_t i = 0; i < e->filled_count; i++) {
        uint32_t leaf = e->filled[i];
        if (is_own(p, leaf)) {
            if (!e->contiguous)
                continue;
            if (e->kept == MO_NONE)
                e->kept = buffer(p, "the device's own gradients",
                                 mo_tape_mul(t, e->kept_elements, e->width), MO_GRADIENTS);
            drop_gradient(p, leaf);
        } else if (e->stage == MEMOPT_PLAN_ZERO2) {
            if (e->overlap && !e->contiguous)
                e->late[e->late_count++] = leaf;
            else
                drop_gradient(p, leaf);
        }
    }
    e->filled_count = e->elements = 0;
}

static void put_flat(mo_play *p, uint32_t leaf)
{
    mo_engine *e = p->engine;
    uint64_t count = weight_of(p, leaf)->count;
    if (e->elements + count > e->capacity)
        reduce_flat(p);
    if (e->contiguous && count <= e->capacity)
        drop_gradient(p, leaf);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}

/* Gradients of the fullest device, of which the one that is played keeps some where they are. */
static void keep_own(mo_play *p)
{
    mo_engine *e = p->engine;
    if (e->kept == MO_NONE)
        e->kept = buffer(p, "the device's own gradients",
                         mo_tape_mul(&p->tape, e->kept_elements, e->width), MO_GRADIENTS);
}

static void finish_flat(mo_play *p)
{
    mo_engine *e = p->engine;
    if (e->count == 0)
        return;
    if (!reduces_as_they_come(e))
        for (uint64_t i = 0; i < e->count; i++)
            if (p->tape.leaves[i].storage != MO_NONE)
                put_flat(p, (uint32_t)i);
    reduce_flat(p);
    drop_late(p);
    drop(p, &e->bucket);
    for (uint64_t i = 0; i < e->count; i++)
        drop_gradient(p, (uint32_t)i);
    keep_own(p);
    if (e->earlier != MO_NONE)
        drop(p, &e->kept); /* added to those of earlier micro-batches */
}

/* --- stage 3 --------------------------------------------------------------------------------- */

static void start_shares(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    uint64_t weights = 0, own = 0, whole = 0, twice = 0;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *w = &p->weights[i];
        uint64_t bytes = mo_tape_mul(t, share(p, w), e->width);
        weights = add(p, weights, bytes);
        own = add(p, own, has_place(w) ? share(p, w) : 0);
        if (world(p) > 1 && mo_gather_persists(p, w))
            whole = add(p, whole, mo_tape_mul(t, w->count, e->width));
        twice = add(p, twice, mo_tape_mul(t, mo_tape_mul(t, bytes, world(p)), 2));
    }
    if (t->status != MEMOPT_OK) /* what is gathered is no more than twice all weights */
        return;
    (void)buffer(p, "the device's weights", weights, MO_PARAMETERS);
    (void)buffer(p, "weights that stay gathered", whole, MO_PARAMETERS);
    e->part = own;
    make_states(p, own);
    e->earlier =
        buffer(p, "the device's own gradients", mo_tape_mul(t, own, e->width), MO_GRADIENTS);
    make_bucket(p);
    if (e->layers != NULL)
        (void)mo_tape_fail(t, mo_gather_follow(p, e->layers));
}

/* Sums the bucket over the devices, through a copy but for one gradient of equal parts. */
static void reduce_shares(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    uint64_t copy = 0;
    for (uint64_t i = 0; i < e->filled_count; i++)
        copy += share(p, weight_of(p, e->filled[i])) * world(p);
    if (e->filled_count == 1 && copy == e->elements)
        copy = 0;
    t->label = "the copy of the reduce bucket";
    mo_tape_flash(t, mo_tape_mul(t, copy, e->width), MO_GRADIENTS);
    for (uint64_t i = 0; i < e->filled_count; i++)
        drop_gradient(p, e->filled[i]);
    e->filled_count = e->elements = 0;
}

static void put_share(mo_play *p, uint32_t leaf)
{
    mo_engine *e = p->engine;
    uint64_t count = weight_of(p, leaf)->count;
    if (e->elements + count > e->capacity && e->elements > 0)
        reduce_shares(p);
    if (e->contiguous && e->elements + count <= e->capacity)
        drop_gradient(p, leaf);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}

/* What is gathered from here on. */
static void gather(mo_play *p, uint64_t bytes)
{
    mo_engine *e = p->engine;
    drop(p, &e->gathered);
    e->gathered = buffer(p, "gathered weights", bytes, MO_PARAMETERS);
}

void mo_engine_forward(mo_play *p, uint32_t layer)
{
    if (p->engine != NULL && p->engine->layers != NULL)
        gather(p, p->engine->layers[layer].forward);
}

static void before_backward(void *context, uint32_t layer)
{
    mo_play *p = context;
    gather(p, p->engine->layers[layer].backward);
}

void mo_engine_hook_output(mo_play *p, uint32_t layer, mo_value x)
{
    if (p->engine != NULL && p->engine->layers != NULL)
        mo_value_hook(&p->tape, x, before_backward, p, layer);
}

/* --- a step ---------------------------------------------------------------------------------- */

/* A gradient is whole. */
static void on_gradient(void *context, uint32_t leaf)
{
    mo_play *p = context;
    mo_engine *e = p->engine;
    if (leaf >= e->count)
        return;
    if (e->stage == MEMOPT_PLAN_ZERO3) {
        put_share(p, leaf);
        return;
    }
    make_bucket(p);
    if (reduces_as_they_come(e))
        put_flat(p, leaf);
}

void mo_engine_start(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    list_learning(p);
    if (t->status != MEMOPT_OK)
        return;
    t->on_gradient = on_gradient;
    t->gradient_context = p;
    if (e->stage == MEMOPT_PLAN_ZERO3) {
        start_shares(p);
        return;
    }
    start_flat(p);
    if (e->stage == MEMOPT_PLAN_ZERO1 && p->settings->run.accumulation > 1)
        make_bucket(p);
}

void mo_engine_finish(mo_play *p)
{
    mo_engine *e = p->engine;
    if (e == NULL || p->tape.status != MEMOPT_OK)
        return;
    if (e->stage < MEMOPT_PLAN_ZERO3) {
        finish_flat(p);
        return;
    }
    if (e->filled_count > 0)
        reduce_shares(p);
    drop(p, &e->gathered);
}

/* One tensor's step: its gradient in one piece, in f32, and what the optimizer makes. */
static void step_flat(mo_play *p, uint64_t elements)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    mo_weight w = flat(elements);
    uint32_t one = buffer(p, "the gradient of the flat weights", mo_tape_mul(t, elements, e->width),
                          MO_OPTIMIZER);
    if (e->width < 4) {
        uint32_t wide = buffer(p, "the gradient of the flat weights, in f32",
                               mo_tape_mul(t, elements, 4), MO_OPTIMIZER);
        drop(p, &one);
        one = wide;
    }
    if (e->stage < MEMOPT_PLAN_ZERO3) {
        drop(p, &e->kept);
        drop(p, &e->earlier);
    }
    t->label = "the optimizer's step";
    mo_tape_flash(t, mo_optimizer_step_bytes(t, r, &w, 1), MO_OPTIMIZER);
    drop(p, &one);
}

void mo_engine_step(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t group = 0, most = p->settings->run.sub_group;
    if (e->stage < MEMOPT_PLAN_ZERO3) {
        step_flat(p, e->part);
        return;
    }
    for (uint64_t i = 0; i < e->count && p->tape.status == MEMOPT_OK; i++) {
        group += share(p, weight_of(p, (uint32_t)i));
        if (i + 1 < e->count && (group < most || e->part <= most))
            continue;
        step_flat(p, group);
        group = 0;
    }
}
