/*
 * Backward of a region: it is run again, and then what it recorded.
 *
 * As torch's checkpoints do it, the region runs again when a node first asks for what it saved, and
 * ends with the last operation that saves something. Operations after that one, sums and casts,
 * have run backward before: their gradients are alive meanwhile. To know which they are, the region
 * is played once without bytes (a ghost).
 *
 * Its nodes are pushed on top of the tape, run, and taken off; its inputs are stood for by nodes
 * that collect the gradients. Both runs give a node the same number, so gradients that wait after
 * the first are handed to the second.
 */
#include "tape/tape.h"

#include <string.h>

typedef struct mo_plan_again {
    mo_plan_mark mark;
    uint64_t base; /* its first node after those of the inputs */
    mo_plan_value inputs[MO_PLAN_REGION_INPUTS];
    uint32_t held[MO_PLAN_RECORD_SAVED];
    uint32_t *grads; /* that wait between the runs */
    uint64_t grad_count, grad_capacity;
} mo_plan_again;

/* Values for the region's inputs, with nodes that collect their gradients. */
static void stand_in(mo_plan_tape *t, const mo_plan_tape_region *region, const mo_plan_node *n,
                     mo_plan_again *a)
{
    for (uint32_t i = 0; i < region->input_count && t->status == MEMOPT_OK; i++) {
        const mo_plan_value_entry *e = &region->inputs[i];
        const mo_plan_saved *saved = &t->saved[n->saved + i];
        uint32_t storage = saved->host ? a->held[i] : saved->storage;
        mo_plan_value v = mo_plan_value_new(t, 0, 1, MO_PLAN_ACTIVATIONS);
        if (v == MO_PLAN_NONE)
            return;
        mo_plan_storage_drop(t, t->values[v].storage);
        mo_plan_storage_hold(t, storage);
        t->values[v] = (mo_plan_value_entry){e->elements, storage, MO_PLAN_NONE, e->width, 0};
        a->inputs[i] = v;
        if (e->node != MO_PLAN_NONE)
            mo_plan_value_collects(t, v);
    }
}

/* Runs the region, whose nodes come on top of the tape. Gives the node of what it makes. */
static uint32_t record(mo_plan_tape *t, const mo_plan_tape_region *region, const mo_plan_node *n,
                       mo_plan_again *a, uint32_t *slot)
{
    a->mark = mo_plan_tape_mark(t);
    memset(a->inputs, 0, sizeof a->inputs);
    mo_plan_node_fetch_saved(t, n, a->held);
    stand_in(t, region, n, a);
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    a->base = t->node_count;
    uint8_t offload = t->offload;
    t->offload = 0; /* hooks are those of the forward pass: what is run again stays here */
    mo_plan_value out = region->run(t, region->context, a->inputs);
    t->offload = offload;
    if (out == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    uint32_t top = t->values[out].node;
    *slot = t->values[out].slot;
    mo_plan_drop(t, out);
    return top;
}

/* A node's gradients for weights are not to come from it. */
static void not_from(mo_plan_tape *t, uint64_t id)
{
    const mo_plan_node *n = &t->nodes[id];
    for (uint8_t i = 0; i < n->edge_count; i++) {
        mo_plan_node *target = &t->nodes[t->edges[n->edges + i].node];
        if (target->kind == MO_PLAN_NODE_LEAF && target->waiting > 0)
            target->waiting--;
    }
}

/* Runs the nodes of a ghost that need nothing of what they saved. Gives how many are left. */
static uint64_t run_tail(mo_plan_tape *t, const mo_plan_again *a)
{
    uint64_t left = t->node_count;
    for (; left > a->base && t->status == MEMOPT_OK; left--) {
        const mo_plan_node *n = &t->nodes[left - 1];
        if (!mo_plan_node_has_gradient(t, n))
            not_from(t, left - 1);
        else if (n->saved_count > 0)
            break;
        else
            mo_plan_tape_run_node(t, (uint32_t)(left - 1));
    }
    return left;
}

/* Takes what was recorded off the tape; what waits there is kept. */
static void take_off(mo_plan_tape *t, mo_plan_again *a, uint64_t left)
{
    const uint32_t none[MO_PLAN_RECORD_SAVED] = {0};
    uint64_t count = t->grad_count - a->mark.grads;
    for (uint64_t i = t->node_count; i > a->base; i--) {
        mo_plan_node *n = &t->nodes[i - 1];
        mo_plan_node_drop_saved(t, n, none);
        if (i <= left)
            not_from(t, i - 1);
    }
    if (mo_grow((void **)&a->grads, &a->grad_capacity, count + 1, sizeof *a->grads)) {
        memcpy(a->grads, t->grads + a->mark.grads, count * sizeof *a->grads);
        a->grad_count = count;
    } else {
        mo_plan_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
    }
    for (uint32_t i = 0; i < MO_PLAN_REGION_INPUTS; i++)
        mo_plan_drop(t, a->inputs[i]);
    for (uint32_t i = 0; i < MO_PLAN_RECORD_SAVED; i++)
        mo_plan_storage_drop(t, a->held[i]);
    mo_plan_tape_rewind(t, &a->mark);
}

/* The last node that saved something, or 0. */
static uint64_t last_saving(const mo_plan_tape *t, const mo_plan_again *a)
{
    for (uint64_t i = t->node_count; i > a->base; i--)
        if (t->nodes[i - 1].saved_count > 0)
            return i - 1;
    return 0;
}

/* A region without bytes, and backward as far as the incoming gradient leads.
 * Gives the nodes that are left for the region itself. */
static uint64_t play_ghost(mo_plan_tape *t, const mo_plan_tape_region *region,
                           const mo_plan_node *n, mo_plan_again *a, uint64_t *stop)
{
    uint32_t slot = 0;
    t->ghost = 1;
    uint32_t top = record(t, region, n, a, &slot);
    t->ghost = 0;
    if (t->status != MEMOPT_OK)
        return 0;
    *stop = last_saving(t, a);
    if (top != MO_PLAN_NONE) {
        t->grads[t->nodes[top].grads + slot] = t->grads[n->grads];
        t->grads[n->grads] = MO_PLAN_NONE;
    }
    uint64_t left = run_tail(t, a);
    take_off(t, a, left);
    return left;
}

/* The region itself, up to the last that it saves; then backward from where the ghost ended. */
static void play_region(mo_plan_tape *t, const mo_plan_tape_region *region, const mo_plan_node *n,
                        mo_plan_again *a, uint64_t left, uint64_t stop)
{
    uint32_t slot = 0;
    t->stop = stop;
    (void)record(t, region, n, a, &slot);
    t->stop = 0;
    t->ghost = 0;
    if (t->status != MEMOPT_OK)
        return;
    memcpy(t->grads + a->mark.grads, a->grads, a->grad_count * sizeof *a->grads);
    for (uint64_t i = t->node_count; i > left; i--)
        not_from(t, i - 1);
    uint8_t before = t->in_region;
    t->in_region = 1;
    mo_plan_tape_run(t, a->base);
    t->in_region = before;
}

void mo_plan_tape_run_region(mo_plan_tape *t, uint32_t id)
{
    mo_plan_node n = t->nodes[id];
    mo_plan_tape_region region = t->regions[n.object];
    uint32_t made[MO_PLAN_REGION_INPUTS] = {MO_PLAN_NONE, MO_PLAN_NONE, MO_PLAN_NONE};
    mo_plan_again a = {.grads = NULL};
    uint64_t stop = 0, left = play_ghost(t, &region, &n, &a, &stop);
    if (t->status == MEMOPT_OK)
        play_region(t, &region, &n, &a, left, stop);
    mo_free(a.grads);
    if (t->status != MEMOPT_OK)
        return;
    mo_plan_node_drop_grads(t, &n);
    for (uint32_t i = 0; i < region.input_count; i++) {
        made[i] = mo_plan_value_collected(t, a.inputs[i]);
        mo_plan_drop(t, a.inputs[i]);
    }
    mo_plan_node_drop_saved(t, &n, a.held);
    mo_plan_tape_rewind(t, &a.mark);
    for (uint32_t i = 0, k = 0; i < region.input_count; i++)
        if (region.inputs[i].node != MO_PLAN_NONE) {
            mo_plan_edge edge = t->edges[n.edges + k++];
            mo_plan_tape_deliver(t, &edge, made[i]);
        }
}
