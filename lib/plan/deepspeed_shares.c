/*
 * DeepSpeed 0.19's ZeRO of stage 3 (runtime/zero/stage3.py); the other stages, and what is common,
 * are in deepspeed.c.
 *
 * Stage 3 cuts each weight into equal parts. It keeps those of all weights, of those that learn in
 * f32 once more (of f32 too: it compares a device with its name), a buffer of the gradients of its
 * parts, and one bucket, all from the start.
 * Gathered weights come and go as gather.c says; of a layer the most in its forward and in its
 * backward is taken to be there all the time. The step goes through weights in groups
 * (sub_group): each makes what that of the other stages makes of all.
 */
#include "plan/engine.h"

/* Elements of a weight that one device has at stage 3. */
uint64_t mo_engine_share(const mo_play *p, const mo_weight *w)
{
    return mo_ceil_div_u64(w->count, p->settings->run.world_size);
}

void mo_shares_start(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    uint64_t weights = 0, own = 0, whole = 0, twice = 0;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *w = &p->weights[i];
        uint64_t bytes = mo_tape_mul(t, mo_engine_share(p, w), e->width);
        weights = mo_engine_add(p, weights, bytes);
        own = mo_engine_add(p, own, mo_engine_has_place(w) ? mo_engine_share(p, w) : 0);
        if (p->settings->run.world_size > 1 && mo_gather_persists(p, w))
            whole = mo_engine_add(p, whole, mo_tape_mul(t, w->count, e->width));
        twice = mo_engine_add(
            p, twice, mo_tape_mul(t, mo_tape_mul(t, bytes, p->settings->run.world_size), 2));
    }
    if (t->status != MEMOPT_OK) /* what is gathered is no more than twice all weights */
        return;
    (void)mo_engine_buffer(p, "the device's weights", weights, MO_PARAMETERS);
    (void)mo_engine_buffer(p, "weights that stay gathered", whole, MO_PARAMETERS);
    e->part = own;
    mo_engine_states(p, own);
    e->earlier = mo_engine_buffer(p, "the device's own gradients", mo_tape_mul(t, own, e->width),
                                  MO_GRADIENTS);
    mo_engine_bucket(p);
    if (e->layers != NULL)
        (void)mo_tape_fail(t, mo_gather_follow(p, e->layers));
}

/* Sums the bucket over the devices, through a copy but for one gradient of equal parts. */
void mo_shares_finish_bucket(mo_play *p)
{
    mo_engine *e = p->engine;
    mo_tape *t = &p->tape;
    uint64_t copy = 0;
    for (uint64_t i = 0; i < e->filled_count; i++)
        copy += mo_engine_share(p, mo_engine_weight(p, e->filled[i])) * p->settings->run.world_size;
    if (e->filled_count == 1 && copy == e->elements)
        copy = 0;
    t->label = "the copy of the reduce bucket";
    mo_tape_flash(t, mo_tape_mul(t, copy, e->width), MO_GRADIENTS);
    for (uint64_t i = 0; i < e->filled_count; i++)
        mo_engine_drop_gradient(p, e->filled[i]);
    e->filled_count = e->elements = 0;
}

void mo_shares_put(mo_play *p, uint32_t leaf)
{
    mo_engine *e = p->engine;
    uint64_t count = mo_engine_weight(p, leaf)->count;
    if (e->elements + count > e->capacity && e->elements > 0)
        mo_shares_finish_bucket(p);
    if (e->contiguous && e->elements + count <= e->capacity)
        mo_engine_drop_gradient(p, leaf);
    e->filled[e->filled_count++] = leaf;
    e->elements += count;
}
