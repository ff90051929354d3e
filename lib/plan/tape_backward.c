/*
 * Backward: the nodes from the newest to the oldest. Since an operation's node is newer than those
 * of its inputs, that is the order in which autograd's queue hands them out.
 *
 * A region's node runs the region again (tape_region.c).
 */
#include "plan/tape.h"

#include <string.h>

/* Adds a gradient to what waits at a node. Takes over the caller's hold of storage. */
static void deliver(mo_tape *t, uint32_t target, uint32_t slot, uint32_t storage)
{
    uint32_t *at = &t->grads[t->nodes[target].grads + slot];
    if (storage == MO_NONE)
        return;
    if (*at == MO_NONE) {
        *at = storage;
        return;
    }
    mo_storage *s = &t->storages[storage];
    t->label = "the sum of gradients";
    uint32_t sum = mo_storage_new(t, s->bytes, (mo_category)s->category);
    mo_storage_drop(t, storage);
    mo_storage_drop(t, t->grads[t->nodes[target].grads + slot]);
    t->grads[t->nodes[target].grads + slot] = sum;
}

/* A weight's gradient has come: the first is kept, in the type it rests in; others are added. */
static void settle(mo_tape *t, mo_node *n)
{
    mo_leaf *leaf = &t->leaves[n->object];
    uint32_t storage = t->grads[n->grads];
    t->grads[n->grads] = MO_NONE;
    if (storage == MO_NONE)
        return;
    if (leaf->storage == MO_NONE && t->storages[storage].refs == 1 &&
        t->storages[storage].bytes == leaf->bytes) {
        leaf->storage = storage;
        return;
    }
    if (leaf->storage == MO_NONE)
        leaf->storage = mo_storage_new(t, leaf->bytes, MO_GRADIENTS);
    mo_storage_drop(t, storage);
}

static void settle_leaf(mo_tape *t, uint32_t leaf, uint32_t node)
{
    settle(t, &t->nodes[node]);
    if (t->on_gradient != NULL && t->leaves[leaf].storage != MO_NONE)
        t->on_gradient(t->gradient_context, leaf);
}

void mo_tape_deliver(mo_tape *t, const mo_edge *edge, uint32_t storage)
{
    deliver(t, edge->node, edge->slot, storage);
    mo_node *target = &t->nodes[edge->node];
    if (target->waiting > 0)
        target->waiting--;
    if (target->kind == MO_NODE_LEAF && target->waiting == 0)
        settle_leaf(t, target->object, edge->node);
}

void mo_node_fetch_saved(mo_tape *t, const mo_node *n, uint32_t held[MO_RECORD_SAVED])
{
    for (uint8_t i = 0; i < n->saved_count; i++) {
        const mo_saved *saved = &t->saved[n->saved + i];
        held[i] = MO_NONE;
        if (saved->host) {
            const mo_storage *s = &t->storages[saved->storage];
            t->link += t->ghost ? 0 : s->bytes;
            uint32_t kind = s->category == MO_BATCH ? MO_ACTIVATIONS : s->category;
            held[i] = mo_storage_new(t, s->bytes, (mo_category)kind);
        }
    }
}

void mo_node_drop_saved(mo_tape *t, const mo_node *n, const uint32_t held[MO_RECORD_SAVED])
{
    for (uint8_t i = 0; i < n->saved_count; i++) {
        const mo_saved *saved = &t->saved[n->saved + i];
        mo_storage *s = &t->storages[saved->storage];
        if (!saved->host) {
            mo_storage_drop(t, saved->storage);
            continue;
        }
        mo_storage_drop(t, held[i]);
        if (--s->host_refs == 0) {
            t->host -= s->bytes;
            if (s->refs == 0) {
                s->next_free = t->free_storage;
                t->free_storage = saved->storage;
            }
        }
    }
}

void mo_node_drop_grads(mo_tape *t, const mo_node *n)
{
    for (uint8_t i = 0; i < n->slots; i++) {
        mo_storage_drop(t, t->grads[n->grads + i]);
        t->grads[n->grads + i] = MO_NONE;
    }
}

int mo_node_has_gradient(const mo_tape *t, const mo_node *n)
{
    for (uint8_t i = 0; i < n->slots; i++)
        if (t->grads[n->grads + i] != MO_NONE)
            return 1;
    return 0;
}

/* Whether a hook brings what was saved. */
static int fetched(const mo_tape *t, const mo_node *n)
{
    return t->in_region || (n->saved_count > 0 && t->saved[n->saved].host);
}

static void run_plain(mo_tape *t, uint32_t id)
{
    if (t->nodes[id].kind == MO_NODE_HOOK) {
        const mo_tape_hook *hook = &t->hooks[t->nodes[id].object];
        hook->run(hook->context, hook->number);
    }
    mo_node n = t->nodes[id];
    uint32_t made[MO_RECORD_INPUTS], held[MO_RECORD_SAVED];
    mo_node_fetch_saved(t, &n, held);
    for (uint8_t i = 0; i < n.edge_count; i++) {
        const mo_edge *edge = &t->edges[n.edges + i];
        if (edge->alias) {
            made[i] = t->grads[n.grads];
            mo_storage_hold(t, made[i]);
        } else {
            made[i] = mo_storage_new(t, edge->bytes, (mo_category)edge->category);
        }
    }
    int early = fetched(t, &n);
    mo_tape_flash(t, n.temp, (mo_category)n.temp_category);
    if (early)
        mo_node_drop_saved(t, &n, held);
    mo_tape_flash(t, n.late, (mo_category)n.temp_category);
    mo_node_drop_grads(t, &n);
    if (!early)
        mo_node_drop_saved(t, &n, held);
    for (uint8_t i = 0; i < n.edge_count; i++) {
        mo_edge edge = t->edges[n.edges + i];
        mo_tape_deliver(t, &edge, made[i]);
    }
}

void mo_tape_run_node(mo_tape *t, uint32_t id)
{
    const mo_node *n = &t->nodes[id];
    t->layer = n->layer;
    t->label = n->label;
    if (t->layer < t->layer_count && t->layers[t->layer].start == 0)
        t->layers[t->layer].start = t->total;
    if (!mo_node_has_gradient(t, n)) {
        const uint32_t held[MO_RECORD_SAVED] = {0};
        mo_node_drop_saved(t, n, held);
    } else if (n->kind == MO_NODE_REGION) {
        mo_tape_run_region(t, id);
    } else {
        run_plain(t, id);
    }
    t->nodes[id].saved_count = 0; /* it has run */
}

void mo_tape_run(mo_tape *t, uint64_t from)
{
    for (uint64_t i = t->node_count; i > from && t->status == MEMOPT_OK; i--) {
        uint8_t kind = t->nodes[i - 1].kind;
        if (kind != MO_NODE_LEAF && kind != MO_NODE_INPUT)
            mo_tape_run_node(t, (uint32_t)(i - 1));
    }
}

void mo_tape_backward(mo_tape *t, mo_value loss)
{
    t->phase = MEMOPT_PLAN_PHASE_BACKWARD;
    mo_tape_flash(t, 0, MO_ACTIVATIONS);
    if (t->status != MEMOPT_OK || !mo_needs(t, loss))
        return;
    const mo_value_entry *e = &t->values[loss];
    uint32_t node = e->node, slot = e->slot;
    t->in_backward = 1;
    t->grads[t->nodes[node].grads + slot] =
        mo_storage_new(t, e->elements * e->width, MO_ACTIVATIONS);
    mo_tape_run(t, 1);
    t->in_backward = 0;
    mo_tape_forget_passing(t);
}

void mo_tape_drop_gradient(mo_tape *t, mo_leaf *leaf)
{
    mo_storage_drop(t, leaf->storage);
    leaf->storage = MO_NONE;
}

void mo_tape_forget_passing(mo_tape *t)
{
    for (uint64_t i = 0; i < t->leaf_count; i++)
        if (t->leaves[i].passing)
            mo_tape_drop_gradient(t, &t->leaves[i]);
}
