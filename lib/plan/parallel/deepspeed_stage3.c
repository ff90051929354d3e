/*
 * DeepSpeed 0.19's ZeRO of stage 3 (runtime/zero/stage3.py); the other stages, and what is common,
 * are in deepspeed.c.
 *
 * Stage 3 cuts each weight into equal parts. It keeps those of all weights, of those that learn in
 * f32 once more (of f32 too: it compares a device with its name), a buffer of the gradients of its
 * parts, and one bucket, all from the start. The step goes through weights in groups: each makes
 * what that of the other stages makes of all.
 *
 * Weights are gathered ahead while fewer elements are there than may be
 * (stage3_max_live_parameters, 1e9 by default), some at a time (stage3_prefetch_bucket_size, 5e7),
 * and stay where they are used again soon (stage3_max_reuse_distance, 1e9): all weights of a
 * smaller model, in backward until they have been used; of a larger one up to 1e9 elements and what
 * one gather adds. Other values of these settings are not planned: lower ones need less.
 */
#include "plan/parallel/deepspeed.h"

#define LIVE UINT64_C(1000000000)
#define AHEAD UINT64_C(50000000)

/* Elements of a weight that one device has at stage 3. */
uint64_t mo_plan_stage3_share(const mo_plan_play *p, const mo_plan_weight *w)
{
    return mo_ceil_div_u64(w->count, p->settings->run.world_size);
}

/* A gather of several weights goes through a flat buffer beside them: weights in their order, or
 * from the last to the first, until they are so many. flat[l]: the largest that weights of layer l
 * come through. */
static void find_buffers(const mo_plan_play *p, int backward, uint64_t *flat)
{
    uint64_t count = p->weight_count;
    for (uint64_t from = 0, to; from < count; from = to) {
        uint64_t sum = 0;
        for (to = from; to < count && sum < AHEAD; to++)
            sum += p->weights[backward ? count - 1 - to : to].count;
        for (uint64_t i = from; i < to && to - from > 1; i++) {
            uint32_t layer = p->weights[backward ? count - 1 - i : i].layer;
            flat[layer] = mo_max_u64(flat[layer], sum);
        }
    }
}

static void plan_gathers(mo_plan_play *p)
{
    mo_plan_gathered *layers = mo_plan_deepspeed_of(p)->layers;
    uint32_t count = p->tape.layer_count, width = mo_plan_deepspeed_of(p)->width;
    uint64_t all = 0, through = 0, *sums = mo_calloc(4 * (uint64_t)count, sizeof *sums);
    uint64_t *flat = sums + count, *back = flat + count, *largest = back + count;
    if (sums == NULL) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_plan_weight *w = &p->weights[i];
        sums[w->layer] += w->count;
        largest[w->layer] = mo_max_u64(largest[w->layer], w->count);
        all += w->count;
    }
    find_buffers(p, 0, flat);
    if (all > LIVE) /* else all are there */
        find_buffers(p, 1, back);
    for (uint32_t l = 0; l < count; l++) {
        uint64_t most = LIVE + mo_max_u64(largest[l], AHEAD);
        through += sums[l];
        layers[l].forward = width * mo_min_u64(all + flat[l], most);
        int is_head = l + 1 == count; /* its weights are there from its forward */
        layers[l].backward =
            width * (is_head ? mo_min_u64(all, LIVE) : mo_min_u64(through + back[l], most));
    }
    mo_free(sums);
}

void mo_plan_stage3_start(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_tape *t = &p->tape;
    uint64_t weights = 0, own = 0, twice = 0;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_plan_weight *w = &p->weights[i];
        uint64_t bytes = mo_plan_tape_mul(t, mo_plan_stage3_share(p, w), e->width);
        weights = mo_plan_deepspeed_add(p, weights, bytes);
        own = mo_plan_deepspeed_add(
            p, own, mo_plan_deepspeed_has_place(w) ? mo_plan_stage3_share(p, w) : 0);
        twice = mo_plan_deepspeed_add(
            p, twice,
            mo_plan_tape_mul(t, mo_plan_tape_mul(t, bytes, p->settings->run.world_size), 2));
    }
    if (t->status != MEMOPT_OK) /* what is gathered is no more than twice all weights */
        return;
    (void)mo_plan_buffer(p, "the device's weights", weights, MO_PLAN_PARAMETERS);
    e->part = own;
    mo_plan_deepspeed_states(p, own);
    e->earlier = mo_plan_buffer(p, "the device's own gradients", mo_plan_tape_mul(t, own, e->width),
                                MO_PLAN_GRADIENTS);
    mo_plan_deepspeed_bucket(p);
    if (e->layers != NULL)
        plan_gathers(p);
}

/* Sums the bucket over the devices, through a copy but for one gradient of equal parts. */
void mo_plan_stage3_reduce(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    mo_plan_tape *t = &p->tape;
    uint64_t copy = 0;
    for (uint64_t i = 0; i < e->filled_count; i++)
        copy += mo_plan_stage3_share(p, mo_plan_deepspeed_weight(p, e->filled[i])) *
                p->settings->run.world_size;
    if (e->filled_count == 1 && copy == e->elements)
        copy = 0;
    t->label = "the copy of the reduce bucket";
    mo_plan_tape_flash(t, mo_plan_tape_mul(t, copy, e->width), MO_PLAN_GRADIENTS);
    for (uint64_t i = 0; i < e->filled_count; i++)
        mo_plan_tape_drop_gradient(t, &t->leaves[e->filled[i]]);
    e->filled_count = e->elements = 0;
}

void mo_plan_stage3_put(mo_plan_play *p, uint32_t leaf)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    uint64_t count = mo_plan_deepspeed_weight(p, leaf)->count;
    if (e->elements + count > e->capacity && e->elements > 0)
        mo_plan_stage3_reduce(p);
    if (e->elements + count <= e->capacity)
        mo_plan_tape_drop_gradient(&p->tape, &p->tape.leaves[leaf]);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}
