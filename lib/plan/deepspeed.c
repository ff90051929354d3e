/*
 * DeepSpeed 0.19's own ZeRO, move by move (runtime/zero/stage_1_and_2.py); of stage 3 the rest is
 * in deepspeed_shares.c. It keeps weights, gradients and states in flat buffers, whose parts are of
 * equal size.
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
 * Those of a part that lies in one weight alone are not copied: of f32, all of that weight's stay.
 *
 * Of several devices it is one that keeps its gradients the longest that is played, with the buffer
 * for gradients of the fullest.
 */
#include "plan/engine.h"

uint32_t mo_engine_buffer(mo_play *p, const char *label, uint64_t bytes, mo_category category)
{
    p->tape.label = label;
    return mo_storage_new(&p->tape, bytes, category);
}

void mo_engine_let_go(mo_play *p, uint32_t *storage)
{
    mo_storage_drop(&p->tape, *storage);
    *storage = MO_NONE;
}

uint64_t mo_engine_add(mo_play *p, uint64_t a, uint64_t b)
{
    uint64_t sum = 0;
    if (!mo_add_u64(a, b, &sum))
        (void)mo_tape_mul(&p->tape, UINT64_MAX, 2);
    return sum;
}

const mo_weight *mo_engine_weight(const mo_play *p, uint32_t leaf)
{
    return &p->weights[p->engine->learning[leaf]];
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

int mo_engine_has_place(const mo_weight *w)
{
    return w->learns || w->unused;
}

/* Weights that have a place, in the order of their leaves. */
static void list_learning(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t at = 0;
    for (uint64_t i = 0; i < p->weight_count; i++)
        e->count += (uint64_t)mo_engine_has_place(&p->weights[i]);
    e->starts = mo_calloc(e->count + 1, sizeof *e->starts);
    e->learning = mo_calloc(e->count + 1, sizeof *e->learning);
    e->filled = mo_calloc(e->count + 1, sizeof *e->filled);
    e->late = mo_calloc(e->count + 1, sizeof *e->late);
    if (e->starts == NULL || e->learning == NULL || e->filled == NULL || e->late == NULL) {
        mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0, n = 0; i < p->weight_count; i++)
        if (mo_engine_has_place(&p->weights[i])) {
            e->learning[n] = (uint32_t)i;
            e->starts[n++] = at;
            at = mo_engine_add(p, at, p->weights[i].count);
        }
    e->starts[e->count] = at;
}

/* --- states ---------------------------------------------------------------------------------- */

/* The optimizer sees one flat tensor. */
static mo_weight flat(uint64_t elements)
{
    return (mo_weight){.count = elements, .rows = elements, .learns = 1};
}

void mo_engine_states(mo_play *p, uint64_t elements)
{
    mo_tape *t = &p->tape;
    mo_weight w = flat(elements);
    t->label = "the optimizer's states";
    (void)mo_storage_new(t, mo_optimizer_state_bytes(t, &p->settings->run, &w), MO_OPTIMIZER);
}

/* --- stages 1 and 2 -------------------------------------------------------------------------- */

/* Elements of all weights that touch one device's part, where they are most; and of the largest
 * weight in which a part lies whole. */
static uint64_t most_touching(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t most = e->part, low = 0, high = 0;
    for (uint64_t rank = 0; rank < p->settings->run.world_size && e->part > 0; rank++) {
        while (low < e->count && e->starts[low + 1] <= rank * e->part)
            low++;
        while (high < e->count && e->starts[high] < (rank + 1) * e->part)
            high++;
        most = mo_max_u64(most, e->starts[high] - e->starts[low]);
        if (high == low + 1 && e->starts[high] >= (rank + 1) * e->part)
            e->alone = mo_max_u64(e->alone, e->starts[high] - e->starts[low]);
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
    uint64_t all = e->starts[e->count], unit = 2 * p->settings->run.world_size;
    uint64_t rounded = mo_tape_mul(&p->tape, mo_ceil_div_u64(all, unit), unit);
    e->part = rounded / p->settings->run.world_size;
    e->rank = reduces_as_they_come(e) ? mo_ceil_div_u64(all, mo_max_u64(e->part, 1)) : 1;
    e->rank -= e->rank > 0;
    e->kept_elements = most_touching(p);
    if (p->tape.status != MEMOPT_OK)
        return;
    (void)mo_engine_buffer(p, "the end of the flat weights", (rounded - all) * e->width,
                           MO_PARAMETERS);
    mo_engine_states(p, e->part);
    if (r->accumulation < 2)
        return;
    if (e->stage == MEMOPT_PLAN_ZERO2) {
        e->earlier =
            mo_engine_buffer(p, "gradients of earlier micro-batches",
                             mo_tape_mul(&p->tape, e->kept_elements, e->width), MO_GRADIENTS);
        return;
    }
    for (uint64_t i = 0; i < e->count && p->tape.status == MEMOPT_OK; i++)
        p->tape.leaves[i].storage = mo_engine_buffer(p, "gradients of earlier micro-batches",
                                                     p->tape.leaves[i].bytes, MO_GRADIENTS);
}

void mo_engine_bucket(mo_play *p)
{
    mo_engine *e = p->engine;
    uint64_t bytes = mo_tape_mul(&p->tape, e->capacity, e->width);
    if (!e->contiguous || e->bucket != MO_NONE)
        return;
    if (e->overlap && e->stage < MEMOPT_PLAN_ZERO3)
        bytes = mo_tape_mul(&p->tape, bytes, 2);
    e->bucket = mo_engine_buffer(p, "the reduce bucket", bytes, MO_GRADIENTS);
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

void mo_engine_drop_gradient(mo_play *p, uint32_t leaf)
{
    mo_tape_drop_gradient(&p->tape, &p->tape.leaves[leaf]);
}

static void drop_late(mo_play *p)
{
    mo_engine *e = p->engine;
    for (uint64_t i = 0; i < e->late_count; i++)
        mo_engine_drop_gradient(p, e->late[i]);
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
                e->kept =
                    mo_engine_buffer(p, "the device's own gradients",
                                     mo_tape_mul(t, e->kept_elements, e->width), MO_GRADIENTS);
            mo_engine_drop_gradient(p, leaf);
        } else if (e->stage == MEMOPT_PLAN_ZERO2) {
            if (e->overlap && !e->contiguous)
                e->late[e->late_count++] = leaf;
            else
                mo_engine_drop_gradient(p, leaf);
        }
    }
    e->filled_count = e->elements = 0;
}

static void put_flat(mo_play *p, uint32_t leaf)
{
    mo_engine *e = p->engine;
    uint64_t count = mo_engine_weight(p, leaf)->count;
    if (e->elements + count > e->capacity)
        reduce_flat(p);
    if (e->contiguous && count <= e->capacity)
        mo_engine_drop_gradient(p, leaf);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}

/* Gradients of the fullest device, of which the one that is played keeps some where they are. */
static void keep_own(mo_play *p)
{
    mo_engine *e = p->engine;
    if (e->kept == MO_NONE)
        e->kept = mo_engine_buffer(p, "the device's own gradients",
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
    mo_engine_let_go(p, &e->bucket);
    for (uint64_t i = 0; i < e->count; i++)
        mo_engine_drop_gradient(p, (uint32_t)i);
    keep_own(p);
    if (e->earlier != MO_NONE)
        mo_engine_let_go(p, &e->kept); /* added to those of earlier micro-batches */
}

/* What is gathered from here on. */
static void gather(mo_play *p, uint64_t bytes)
{
    mo_engine *e = p->engine;
    mo_engine_let_go(p, &e->gathered);
    e->gathered = mo_engine_buffer(p, "gathered weights", bytes, MO_PARAMETERS);
}

void mo_engine_forward_end(mo_play *p, uint32_t layer)
{
    if (p->engine != NULL && p->engine->layers != NULL)
        gather(p, p->engine->layers[layer].after);
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
        mo_shares_put(p, leaf);
        return;
    }
    mo_engine_bucket(p);
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
        mo_shares_start(p);
        return;
    }
    start_flat(p);
    if (e->stage == MEMOPT_PLAN_ZERO1 && p->settings->run.accumulation > 1)
        mo_engine_bucket(p);
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
        mo_shares_finish_bucket(p);
    mo_engine_let_go(p, &e->gathered);
}

/* One tensor's step: its gradient in one piece, in f32, and what the optimizer makes. */
static void step_flat(mo_play *p, uint64_t elements)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    mo_weight w = flat(elements);
    uint32_t one = mo_engine_buffer(p, "the gradient of the flat weights",
                                    mo_tape_mul(t, elements, e->width), MO_OPTIMIZER);
    if (e->width < 4) {
        uint32_t wide = mo_engine_buffer(p, "the gradient of the flat weights, in f32",
                                         mo_tape_mul(t, elements, 4), MO_OPTIMIZER);
        mo_engine_let_go(p, &one);
        one = wide;
    }
    if (e->stage < MEMOPT_PLAN_ZERO3) {
        mo_engine_let_go(p, &e->kept);
        mo_engine_let_go(p, &e->earlier);
    }
    t->label = "the optimizer's step";
    uint64_t more = e->width == 4 && e->alone > elements ? 4 * (e->alone - elements) : 0;
    mo_tape_flash(t, mo_engine_add(p, mo_optimizer_step_bytes(t, r, &w, 1), more), MO_OPTIMIZER);
    mo_engine_let_go(p, &one);
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
        group += mo_engine_share(p, mo_engine_weight(p, (uint32_t)i));
        if (i + 1 < e->count && (group < most || e->part <= most))
            continue;
        step_flat(p, group);
        group = 0;
    }
}
