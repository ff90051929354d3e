/*
 * Backward: the nodes from the newest to the oldest. Since an operation's node is newer than those
 * of its inputs, that is the order in which autograd's queue hands them out.
 *
 * A region's node runs the region again (tape_region.c).
 */
#include "tape/tape.h"

#include <string.h>

/* Adds a gradient to what waits at a node. Takes over the caller's hold of storage. */
static void deliver(mo_plan_tape *t, uint32_t target, uint32_t slot, uint32_t storage)
{
    uint32_t *at = &t->grads[t->nodes[target].grads + slot];
    if (storage == MO_PLAN_NONE)
        return;
    if (*at == MO_PLAN_NONE) {
        *at = storage;
        return;
    }
    mo_plan_storage *s = &t->storages[storage];
    t->label = "the sum of gradients";
    uint32_t sum = mo_plan_storage_new(t, s->bytes, (mo_plan_category)s->category);
    mo_plan_storage_drop(t, storage);
    mo_plan_storage_drop(t, t->grads[t->nodes[target].grads + slot]);
    t->grads[t->nodes[target].grads + slot] = sum;
}

/* A weight's gradient has come: the first is kept, in the type it rests in; others are added. */
static void settle(mo_plan_tape *t, mo_plan_node *n)
{
    mo_plan_leaf *leaf = &t->leaves[n->object];
    uint32_t storage = t->grads[n->grads];
    t->grads[n->grads] = MO_PLAN_NONE;
    if (storage == MO_PLAN_NONE)
        return;
    if (leaf->storage == MO_PLAN_NONE && t->storages[storage].refs == 1 &&
        t->storages[storage].bytes == leaf->bytes) {
        leaf->storage = storage;
        return;
    }
    if (leaf->storage == MO_PLAN_NONE)
        leaf->storage = mo_plan_storage_new(t, leaf->bytes, MO_PLAN_GRADIENTS);
    mo_plan_storage_drop(t, storage);
}

void mo_plan_tape_deliver(mo_plan_tape *t, const mo_plan_edge *edge, uint32_t storage)
{
    deliver(t, edge->node, edge->slot, storage);
    mo_plan_node *target = &t->nodes[edge->node];
    if (target->waiting > 0)
        target->waiting--;
    if (target->kind == MO_PLAN_NODE_LEAF && target->waiting == 0)
        settle(t, target);
}

void mo_plan_node_fetch_saved(mo_plan_tape *t, const mo_plan_node *n,
                              uint32_t held[MO_PLAN_RECORD_SAVED])
{
    for (uint8_t i = 0; i < n->saved_count; i++) {
        const mo_plan_saved *saved = &t->saved[n->saved + i];
        held[i] = MO_PLAN_NONE;
        if (saved->host) {
            const mo_plan_storage *s = &t->storages[saved->storage];
            t->link += t->ghost ? 0 : s->bytes;
            uint32_t kind = s->category == MO_PLAN_BATCH ? MO_PLAN_ACTIVATIONS : s->category;
            held[i] = mo_plan_storage_new(t, s->bytes, (mo_plan_category)kind);
        }
    }
}

void mo_plan_node_drop_saved(mo_plan_tape *t, const mo_plan_node *n,
                             const uint32_t held[MO_PLAN_RECORD_SAVED])
{
    for (uint8_t i = 0; i < n->saved_count; i++) {
        const mo_plan_saved *saved = &t->saved[n->saved + i];
        mo_plan_storage *s = &t->storages[saved->storage];
        if (!saved->host) {
            mo_plan_storage_drop(t, saved->storage);
            continue;
        }
        mo_plan_storage_drop(t, held[i]);
        if (--s->host_refs == 0) {
            t->host -= s->bytes;
            if (s->refs == 0) {
                s->next_free = t->free_storage;
                t->free_storage = saved->storage;
            }
        }
    }
}

void mo_plan_node_drop_grads(mo_plan_tape *t, const mo_plan_node *n)
{
    for (uint8_t i = 0; i < n->slots; i++) {
        mo_plan_storage_drop(t, t->grads[n->grads + i]);
        t->grads[n->grads + i] = MO_PLAN_NONE;
    }
}

int mo_plan_node_has_gradient(const mo_plan_tape *t, const mo_plan_node *n)
{
    for (uint8_t i = 0; i < n->slots; i++)
        if (t->grads[n->grads + i] != MO_PLAN_NONE)
            return 1;
    return 0;
}

/* Whether a hook brings what was saved. */
static int fetched(const mo_plan_tape *t, const mo_plan_node *n)
{
    return t->in_region || (n->saved_count > 0 && t->saved[n->saved].host);
}

static void run_plain(mo_plan_tape *t, uint32_t id)
{
    if (t->nodes[id].kind == MO_PLAN_NODE_HOOK) {
        const mo_plan_tape_hook *hook = &t->hooks[t->nodes[id].object];
        hook->run(hook->context, hook->number);
    }
    mo_plan_node n = t->nodes[id];
    uint32_t made[MO_PLAN_RECORD_INPUTS], held[MO_PLAN_RECORD_SAVED];
    mo_plan_node_fetch_saved(t, &n, held);
    for (uint8_t i = 0; i < n.edge_count; i++) {
        const mo_plan_edge *edge = &t->edges[n.edges + i];
        if (edge->alias) {
            made[i] = t->grads[n.grads];
            mo_plan_storage_hold(t, made[i]);
        } else {
            made[i] = mo_plan_storage_new(t, edge->bytes, (mo_plan_category)edge->category);
        }
    }
    int early = fetched(t, &n);
    mo_plan_tape_flash(t, n.temp, (mo_plan_category)n.temp_category);
    if (early)
        mo_plan_node_drop_saved(t, &n, held);
    mo_plan_tape_flash(t, n.late, (mo_plan_category)n.temp_category);
    mo_plan_node_drop_grads(t, &n);
    if (!early)
        mo_plan_node_drop_saved(t, &n, held);
    for (uint8_t i = 0; i < n.edge_count; i++) {
        mo_plan_edge edge = t->edges[n.edges + i];
        mo_plan_tape_deliver(t, &edge, made[i]);
    }
}

void mo_plan_tape_run_node(mo_plan_tape *t, uint32_t id)
{
    const mo_plan_node *n = &t->nodes[id];
    t->layer = n->layer;
    t->label = n->label;
    if (!mo_plan_node_has_gradient(t, n)) {
        const uint32_t held[MO_PLAN_RECORD_SAVED] = {0};
        mo_plan_node_drop_saved(t, n, held);
    } else if (n->kind == MO_PLAN_NODE_REGION) {
        mo_plan_tape_run_region(t, id);
    } else {
        run_plain(t, id);
    }
    t->nodes[id].saved_count = 0; /* it has run */
}

void mo_plan_tape_run(mo_plan_tape *t, uint64_t from)
{
    for (uint64_t i = t->node_count; i > from && t->status == MEMOPT_OK; i--) {
        uint8_t kind = t->nodes[i - 1].kind;
        if (kind != MO_PLAN_NODE_LEAF && kind != MO_PLAN_NODE_INPUT)
            mo_plan_tape_run_node(t, (uint32_t)(i - 1));
    }
}

static void forget_passing(mo_plan_tape *t)
{
    for (uint64_t i = 0; i < t->leaf_count; i++)
        if (t->leaves[i].passing)
            mo_plan_tape_drop_gradient(t, &t->leaves[i]);
}

void mo_plan_tape_backward(mo_plan_tape *t, mo_plan_value loss)
{
    t->phase = MO_PLAN_PHASE_BACKWARD;
    mo_plan_tape_flash(t, 0, MO_PLAN_ACTIVATIONS);
    if (t->status != MEMOPT_OK || !mo_plan_needs(t, loss))
        return;
    const mo_plan_value_entry *e = &t->values[loss];
    uint32_t node = e->node, slot = e->slot;
    t->in_backward = 1;
    t->grads[t->nodes[node].grads + slot] =
        mo_plan_storage_new(t, e->elements * e->width, MO_PLAN_ACTIVATIONS);
    mo_plan_tape_run(t, 1);
    t->in_backward = 0;
    forget_passing(t);
}

void mo_plan_tape_drop_gradient(mo_plan_tape *t, mo_plan_leaf *leaf)
{
    mo_plan_storage_drop(t, leaf->storage);
    leaf->storage = MO_PLAN_NONE;
}
