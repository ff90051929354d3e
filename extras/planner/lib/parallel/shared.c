/* What several engines do. */
#include "parallel/parallel.h"

void mo_plan_nothing(mo_plan_play *p)
{
    (void)p;
}

void mo_plan_nothing_at_weight(mo_plan_play *p, const mo_plan_weight *w)
{
    (void)p, (void)w;
}

void mo_plan_nothing_at_layer(mo_plan_play *p, uint32_t layer)
{
    (void)p, (void)layer;
}

void mo_plan_nothing_at_value(mo_plan_play *p, uint32_t layer, mo_plan_value x)
{
    (void)p, (void)layer, (void)x;
}

void mo_plan_nothing_with(mo_plan_play *p, mo_plan_value x)
{
    (void)p, (void)x;
}

uint32_t mo_plan_buffer(mo_plan_play *p, const char *label, uint64_t bytes,
                        mo_plan_category category)
{
    p->tape.label = label;
    return mo_plan_storage_new(&p->tape, bytes, category);
}

void mo_plan_buffer_drop(mo_plan_play *p, uint32_t *storage)
{
    mo_plan_storage_drop(&p->tape, *storage);
    *storage = MO_PLAN_NONE;
}

/* --- what engines share ---------------------------------------------------------------------- */

/* The roots that torch's AdamW makes of the weights. */
static void note_roots(mo_plan_play *p, const mo_plan_weight *weights, uint64_t count)
{
    const mo_plan_run *r = &p->settings->run;
    int one_by_one = r->optimizer == MO_PLAN_ADAMW;
    if (!p->tape.listing || !(one_by_one || mo_plan_optimizer_at_once(&p->tape, r)))
        return; /* a list alone tells them from one block */
    p->roots = mo_calloc(count, sizeof *p->roots);
    if (p->roots == NULL)
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
    for (uint64_t i = 0; p->roots != NULL && i < count; i++)
        p->roots[p->root_count++] = mo_plan_optimizer_root_bytes(r, &weights[i]);
}

void mo_plan_make_states(mo_plan_play *p, const mo_plan_weight *weights, uint64_t count)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_run *r = &p->settings->run;
    uint64_t all = 0, own;
    t->label = "the optimizer's states";
    weights = mo_plan_partition_largest(t, r, weights, count, &own, &all, &p->step_bytes);
    if (r->offload & MO_PLAN_OFFLOAD_OPTIMIZER) {
        t->host += all;
        t->host_peak = mo_max_u64(t->host_peak, t->host);
        return;
    }
    for (uint64_t i = 0; i < own; i++)
        mo_plan_optimizer_make_states(t, r, &weights[i]);
    note_roots(p, weights, own);
}

void mo_plan_make_gradients(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    t->label = "gradients of earlier micro-batches";
    for (uint64_t i = 0; i < t->leaf_count && t->status == MEMOPT_OK; i++)
        t->leaves[i].storage = mo_plan_storage_new(t, t->leaves[i].bytes, MO_PLAN_GRADIENTS);
}

/* Of one weight after another a root and a quotient; the quotient stays until the next one's. */
static void step_quotients(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    uint32_t before = MO_PLAN_NONE;
    for (uint64_t i = 0; i < p->root_count; i++) {
        uint32_t root = mo_plan_storage_new(t, p->roots[i], MO_PLAN_OPTIMIZER);
        uint32_t quotient = mo_plan_storage_new(t, p->roots[i], MO_PLAN_OPTIMIZER);
        mo_plan_storage_drop(t, root);
        mo_plan_storage_drop(t, before);
        before = quotient;
    }
    mo_plan_storage_drop(t, before);
    p->root_count = 0;
}

/* All roots at once, and what is left of the bytes of the step. */
static void step_roots(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    uint64_t left = p->step_bytes;
    for (uint64_t i = 0; i < p->root_count; i++) {
        left -= mo_min_u64(left, p->roots[i]);
        p->roots[i] = mo_plan_storage_new(t, p->roots[i], MO_PLAN_OPTIMIZER);
    }
    mo_plan_tape_flash(t, left, MO_PLAN_OPTIMIZER);
    for (uint64_t i = 0; i < p->root_count; i++)
        mo_plan_storage_drop(t, (uint32_t)p->roots[i]);
    p->root_count = 0;
}

void mo_plan_step_states(mo_plan_play *p)
{
    const mo_plan_run *r = &p->settings->run;
    int here = r->optimizer != MO_PLAN_NO_OPTIMIZER && !(r->offload & MO_PLAN_OFFLOAD_OPTIMIZER);
    if (here && p->root_count > 0 && !mo_plan_optimizer_at_once(&p->tape, r))
        step_quotients(p);
    else if (here)
        step_roots(p);
    else
        mo_plan_tape_flash(&p->tape, 0, MO_PLAN_OPTIMIZER);
}

/* Torch refuses weights of several types that learn in one optimizer or group. Only adapters have a
 * type of their own. */
memopt_status mo_plan_check_types(mo_plan_play *p, int outside_layers, const char *who)
{
    const mo_plan_run *r = &p->settings->run;
    int learning[2] = {0, 0};
    if (p->tape.status != MEMOPT_OK || r->adapter_dtype == r->weight_dtype)
        return p->tape.status;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_plan_weight *w = &p->weights[i];
        if (!outside_layers || !mo_plan_play_in_layers(p, w->layer))
            learning[w->adapter] |= w->learns || w->unused;
    }
    if (!learning[0] || !learning[1])
        return MEMOPT_OK;
    const char *adapters = mo_plan_dtype_word(r->adapter_dtype);
    const char *weights = mo_plan_dtype_word(r->weight_dtype);
    return mo_plan_tape_fail(
        &p->tape, mo_fail(MEMOPT_INVALID_ARGUMENT,
                          "plan: adapters are %s and other weights that learn are %s; %s takes one "
                          "type: use adapters of %s, or weights of %s",
                          adapters, weights, who, weights, adapters));
}
