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
 * all gradients that touch it, made with the first of them, and the others go.
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
#include "plan/parallel/deepspeed.h"

/* --- life ------------------------------------------------------------------------------------ */

static memopt_status create(mo_plan_play *p, uint64_t layers)
{

    const mo_plan_run *r = &p->settings->run;
    mo_plan_deepspeed *e = p->engine_state = mo_calloc(1, sizeof *e);
    if (e == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    e->stage = r->sharding;
    e->overlap = r->overlap_comm == MO_PLAN_YES;
    e->width = (uint32_t)memopt_dtype_size(r->weight_dtype);
    e->capacity = r->bucket_bytes / e->width;
    if (e->stage < MO_PLAN_ZERO3 || r->world_size < 2)
        return MEMOPT_OK;
    e->layers = mo_calloc(layers, sizeof *e->layers);
    return e->layers != NULL ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

static void destroy(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    if (e == NULL)
        return;
    mo_free(e->layers);
    mo_free(e->starts);
    mo_free(e->learning);
    mo_free(e->filled);
    mo_free(e);
}

/* Stage 3 keeps weights in a buffer of its own. */
static mo_plan_place place(mo_plan_play *p, const mo_plan_weight *w)
{
    uint32_t width = mo_plan_weight_width(&p->settings->run, w);
    uint64_t bytes = mo_plan_tape_mul(&p->tape, w->count, width);
    uint64_t stored = w->codes > 0 ? w->codes : bytes;
    int shared = mo_plan_deepspeed_of(p)->stage == MO_PLAN_ZERO3;
    return (mo_plan_place){shared ? 0 : stored, width, bytes};
}

static memopt_status check(mo_plan_play *p)
{
    return p->tape.status;
}

/* Weights that have a place, in the order of their leaves. */
static void list_learning(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    uint64_t at = 0;
    for (uint64_t i = 0; i < p->weight_count; i++)
        e->count += (uint64_t)mo_plan_deepspeed_has_place(&p->weights[i]);
    e->starts = mo_calloc(e->count + 1, sizeof *e->starts);
    e->learning = mo_calloc(e->count + 1, sizeof *e->learning);
    e->filled = mo_calloc(e->count + 1, sizeof *e->filled);
    if (e->starts == NULL || e->learning == NULL || e->filled == NULL) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0, n = 0; i < p->weight_count; i++)
        if (mo_plan_deepspeed_has_place(&p->weights[i])) {
            e->learning[n] = (uint32_t)i;
            e->starts[n++] = at;
            at = mo_plan_deepspeed_add(p, at, p->weights[i].count);
        }
    e->starts[e->count] = at;
}

/* --- stages 1 and 2 -------------------------------------------------------------------------- */

/* Elements of all weights that touch one device's part, where they are most; and of the largest
 * weight in which a part lies whole. */
static uint64_t most_touching(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
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

static int is_own(const mo_plan_play *p, uint32_t leaf)
{
    const mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    uint64_t from = e->rank * e->part;
    return e->starts[leaf] < from + e->part && e->starts[leaf + 1] > from;
}

static int reduces_as_they_come(const mo_plan_deepspeed *e)
{
    return e->stage == MO_PLAN_ZERO2 || e->overlap;
}

static void start_flat(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    const mo_plan_run *r = &p->settings->run;
    uint64_t all = e->starts[e->count], unit = 2 * p->settings->run.world_size;
    uint64_t rounded = mo_plan_tape_mul(&p->tape, mo_ceil_div_u64(all, unit), unit);
    e->part = rounded / p->settings->run.world_size;
    e->rank = reduces_as_they_come(e) ? mo_ceil_div_u64(all, mo_max_u64(e->part, 1)) : 1;
    e->rank -= e->rank > 0;
    e->kept_elements = most_touching(p);
    if (p->tape.status != MEMOPT_OK)
        return;
    (void)mo_plan_buffer(p, "the end of the flat weights", (rounded - all) * e->width,
                         MO_PLAN_PARAMETERS);
    mo_plan_deepspeed_states(p, e->part);
    if (r->accumulation < 2)
        return;
    if (e->stage == MO_PLAN_ZERO2) {
        e->earlier = mo_plan_buffer(p, "gradients of earlier micro-batches",
                                    mo_plan_tape_mul(&p->tape, e->kept_elements, e->width),
                                    MO_PLAN_GRADIENTS);
        return;
    }
    for (uint64_t i = 0; i < e->count && p->tape.status == MEMOPT_OK; i++)
        p->tape.leaves[i].storage = mo_plan_buffer(p, "gradients of earlier micro-batches",
                                                   p->tape.leaves[i].bytes, MO_PLAN_GRADIENTS);
}

/* Elements that are summed through a copy, at the most: slices of the bucket's gradients by the
 * device that steps them, in groups that end when they are more than a bucket. A slice alone has no
 * copy. */
static uint64_t copied(const mo_plan_play *p)
{
    const mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
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

static void drop_gradient(mo_plan_play *p, uint32_t leaf)
{
    mo_plan_tape_drop_gradient(&p->tape, &p->tape.leaves[leaf]);
}

/* Gradients that a device keeps: those of the fullest. */
static void keep_own(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    if (e->kept == MO_PLAN_NONE)
        e->kept = mo_plan_buffer(p, "the device's own gradients",
                                 mo_plan_tape_mul(&p->tape, e->kept_elements, e->width),
                                 MO_PLAN_GRADIENTS);
}

/* Sums what is in the bucket over the devices, and keeps the device's own. */
static void reduce_flat(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_tape *t = &p->tape;
    t->label = "the copy of the reduce bucket";
    mo_plan_tape_flash(t, mo_plan_tape_mul(t, copied(p), e->width), MO_PLAN_GRADIENTS);
    for (uint64_t i = 0; i < e->filled_count; i++) {
        uint32_t leaf = e->filled[i];
        if (is_own(p, leaf))
            keep_own(p);
        if (is_own(p, leaf) || e->stage == MO_PLAN_ZERO2)
            drop_gradient(p, leaf);
    }
    e->filled_count = e->elements = 0;
}

static void put_flat(mo_plan_play *p, uint32_t leaf)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    uint64_t count = mo_plan_deepspeed_weight(p, leaf)->count;
    if (e->elements + count > e->capacity)
        reduce_flat(p);
    if (count <= e->capacity)
        drop_gradient(p, leaf);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}

static void finish_flat(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    if (e->count == 0)
        return;
    if (!reduces_as_they_come(e))
        for (uint64_t i = 0; i < e->count; i++)
            if (p->tape.leaves[i].storage != MO_PLAN_NONE)
                put_flat(p, (uint32_t)i);
    reduce_flat(p);
    mo_plan_buffer_drop(p, &e->bucket);
    for (uint64_t i = 0; i < e->count; i++)
        drop_gradient(p, (uint32_t)i);
    keep_own(p);
    if (e->earlier != MO_PLAN_NONE)
        mo_plan_buffer_drop(p, &e->kept); /* added to those of earlier micro-batches */
}

/* What is gathered from here on. */
static void gather(mo_plan_play *p, uint64_t bytes)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_buffer_drop(p, &e->gathered);
    e->gathered = mo_plan_buffer(p, "gathered weights", bytes, MO_PLAN_PARAMETERS);
}

static void before_forward(mo_plan_play *p, uint32_t layer)
{
    if (mo_plan_deepspeed_of(p)->layers != NULL)
        gather(p, mo_plan_deepspeed_of(p)->layers[layer].forward);
}

/* The buffers go when the last weights are there. */
static void after_forward(mo_plan_play *p, uint32_t layer)
{
    if (mo_plan_deepspeed_of(p)->layers != NULL && layer + 1 == p->tape.layer_count)
        gather(p, mo_plan_deepspeed_of(p)->layers[layer].backward);
}

static void before_backward(void *context, uint32_t layer)
{
    mo_plan_play *p = context;
    gather(p, mo_plan_deepspeed_of(p)->layers[layer].backward);
}

static void hook_output(mo_plan_play *p, uint32_t layer, mo_plan_value x)
{
    if (mo_plan_deepspeed_of(p)->layers != NULL)
        mo_plan_value_hook(&p->tape, x, before_backward, p, layer);
}

/* --- a step ---------------------------------------------------------------------------------- */

/* A gradient is whole. */
static void on_gradient(void *context, uint32_t leaf)
{
    mo_plan_play *p = context;
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    if (leaf >= e->count)
        return;
    if (e->stage == MO_PLAN_ZERO3) {
        mo_plan_stage3_put(p, leaf);
        return;
    }
    mo_plan_deepspeed_bucket(p);
    if (reduces_as_they_come(e))
        put_flat(p, leaf);
}

static void start(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_tape *t = &p->tape;
    list_learning(p);
    if (t->status != MEMOPT_OK)
        return;
    t->on_gradient = on_gradient;
    t->gradient_context = p;
    if (e->stage == MO_PLAN_ZERO3) {
        mo_plan_stage3_start(p);
        return;
    }
    start_flat(p);
    if (e->stage == MO_PLAN_ZERO1 && p->settings->run.accumulation > 1)
        mo_plan_deepspeed_bucket(p);
}

static void finish(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    if (p->tape.status != MEMOPT_OK)
        return;
    if (e->stage < MO_PLAN_ZERO3) {
        finish_flat(p);
        return;
    }
    if (e->filled_count > 0)
        mo_plan_stage3_reduce(p);
    mo_plan_buffer_drop(p, &e->gathered);
}

/* One tensor's step: its gradient in one piece, in f32, and what the optimizer makes. */
static void step_flat(mo_plan_play *p, uint64_t elements)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_tape *t = &p->tape;
    const mo_plan_run *r = &p->settings->run;
    mo_plan_weight w = mo_plan_deepspeed_flat(elements);
    uint32_t one = mo_plan_buffer(p, "the gradient of the flat weights",
                                  mo_plan_tape_mul(t, elements, e->width), MO_PLAN_OPTIMIZER);
    if (e->width < 4) {
        uint32_t wide = mo_plan_buffer(p, "the gradient of the flat weights, in f32",
                                       mo_plan_tape_mul(t, elements, 4), MO_PLAN_OPTIMIZER);
        mo_plan_buffer_drop(p, &one);
        one = wide;
    }
    if (e->stage < MO_PLAN_ZERO3) {
        mo_plan_buffer_drop(p, &e->kept);
        mo_plan_buffer_drop(p, &e->earlier);
    }
    t->label = "the optimizer's step";
    uint64_t more = e->width == 4 && e->alone > elements ? 4 * (e->alone - elements) : 0;
    mo_plan_tape_flash(t, mo_plan_deepspeed_add(p, mo_plan_optimizer_step_bytes(t, r, &w, 1), more),
                       MO_PLAN_OPTIMIZER);
    mo_plan_buffer_drop(p, &one);
}

static void step(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    const uint64_t most = 1000000000; /* sub_group_size as it is by default */
    uint64_t group = 0;
    if (e->stage < MO_PLAN_ZERO3) {
        step_flat(p, e->part);
        return;
    }
    for (uint64_t i = 0; i < e->count && p->tape.status == MEMOPT_OK; i++) {
        group += mo_plan_stage3_share(p, mo_plan_deepspeed_weight(p, (uint32_t)i));
        if (i + 1 < e->count && (group < most || e->part <= most))
            continue;
        step_flat(p, group);
        group = 0;
    }
}

const mo_plan_engine mo_plan_engine_deepspeed = {.create = create,
                                                 .destroy = destroy,
                                                 .place = place,
                                                 .add = mo_plan_nothing_at_weight,
                                                 .check = check,
                                                 .start = start,
                                                 .inputs = mo_plan_nothing_with,
                                                 .before_forward = before_forward,
                                                 .input = mo_plan_nothing_at_value,
                                                 .output = hook_output,
                                                 .after_forward = after_forward,
                                                 .loss = mo_plan_nothing_with,
                                                 .finish = finish,
                                                 .step = step};
