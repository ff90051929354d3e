/*
 * What forward operations leave for backward: nodes with their edges and what they save, weights
 * that learn, and regions that are run again.
 *
 * A region runs forward without nodes; one node stands for it and holds its inputs.
 */
#include "tape/tape.h"

#include <string.h>

/* A node without edges and saved storages; MO_PLAN_NONE and an error without memory. */
static uint32_t new_node(mo_plan_tape *t, mo_plan_node_kind kind, uint8_t slots)
{
    if (!mo_grow((void **)&t->nodes, &t->node_capacity, t->node_count + 1, sizeof *t->nodes) ||
        !mo_grow((void **)&t->grads, &t->grad_capacity, t->grad_count + slots, sizeof *t->grads)) {
        mo_plan_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return MO_PLAN_NONE;
    }
    uint32_t id = (uint32_t)t->node_count++;
    mo_plan_node *n = &t->nodes[id];
    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->label = t->label;
    n->slots = slots;
    n->layer = t->layer;
    n->edges = (uint32_t)t->edge_count;
    n->saved = (uint32_t)t->saved_count;
    n->grads = (uint32_t)t->grad_count;
    n->temp_category = (uint8_t)t->category;
    for (uint8_t i = 0; i < slots; i++)
        t->grads[t->grad_count++] = MO_PLAN_NONE;
    return id;
}

void mo_plan_value_learns(mo_plan_tape *t, mo_plan_value v, uint64_t gradient_bytes)
{
    if (v == MO_PLAN_NONE || t->status != MEMOPT_OK)
        return;
    if (!MO_PLAN_GROW(t, leaves, leaf))
        return;
    uint32_t node = new_node(t, MO_PLAN_NODE_LEAF, 1);
    if (node == MO_PLAN_NONE)
        return;
    t->nodes[node].object = (uint32_t)t->leaf_count;
    t->leaves[t->leaf_count++] = (mo_plan_leaf){gradient_bytes, MO_PLAN_NONE, node, 0, 0};
    t->values[v].node = node;
    t->values[v].slot = 0;
}

void mo_plan_value_input_learns(mo_plan_tape *t, mo_plan_value v)
{
    uint64_t leaf = t->leaf_count;
    mo_plan_value_learns(t, v, mo_plan_bytes_of(t, v));
    if (t->leaf_count == leaf)
        return;
    t->leaves[leaf].passing = 1;
    t->storages[t->values[v].storage].stays = 1;
}

void mo_plan_value_collects(mo_plan_tape *t, mo_plan_value v)
{
    if (v == MO_PLAN_NONE || t->status != MEMOPT_OK)
        return;
    uint32_t node = new_node(t, MO_PLAN_NODE_INPUT, 1);
    if (node == MO_PLAN_NONE)
        return;
    t->values[v].node = node;
    t->values[v].slot = 0;
}

uint32_t mo_plan_value_collected(mo_plan_tape *t, mo_plan_value v)
{
    uint32_t node = v == MO_PLAN_NONE ? MO_PLAN_NONE : t->values[v].node, storage;
    if (node == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    storage = t->grads[t->nodes[node].grads];
    t->grads[t->nodes[node].grads] = MO_PLAN_NONE;
    t->values[v].node = MO_PLAN_NONE;
    return storage;
}

mo_plan_mark mo_plan_tape_mark(const mo_plan_tape *t)
{
    return (mo_plan_mark){t->node_count, t->edge_count, t->saved_count, t->grad_count,
                          t->region_count};
}

void mo_plan_tape_rewind(mo_plan_tape *t, const mo_plan_mark *mark)
{
    t->node_count = mark->nodes;
    t->edge_count = mark->edges;
    t->saved_count = mark->saved;
    t->grad_count = mark->grads;
    t->region_count = mark->regions;
}

/* Gradients are of the category of what they are of; those of weights are gradients. */
static mo_plan_category gradient_category(const mo_plan_tape *t, mo_plan_value v)
{
    mo_plan_category c = (mo_plan_category)t->storages[t->values[v].storage].category;
    if (c == MO_PLAN_PARAMETERS)
        return MO_PLAN_GRADIENTS;
    return c == MO_PLAN_LOGITS ? MO_PLAN_LOGITS : MO_PLAN_ACTIVATIONS;
}

static int add_edge(mo_plan_tape *t, uint32_t node, mo_plan_value v, uint64_t bytes)
{
    const mo_plan_value_entry *e = &t->values[v];
    if (!MO_PLAN_GROW(t, edges, edge))
        return 0;
    mo_plan_edge *edge = &t->edges[t->edge_count++];
    edge->node = e->node;
    edge->slot = (uint8_t)e->slot;
    edge->alias = bytes == MO_PLAN_ALIAS;
    edge->bytes = bytes == MO_PLAN_ALIAS ? 0 : bytes;
    edge->category = (uint8_t)gradient_category(t, v);
    edge->reserved = 0;
    t->nodes[node].edge_count++;
    t->nodes[e->node].waiting++;
    return 1;
}

/* Smaller storages are not worth a copy: memopt.torch.save_on_cpu leaves them where they are. */
enum { LEAST_OFFLOADED = 4096 };

static int goes_to_host(const mo_plan_tape *t, const mo_plan_storage *s)
{
    int kind = s->category == MO_PLAN_ACTIVATIONS || s->category == MO_PLAN_LOGITS ||
               s->category == MO_PLAN_BATCH;
    return t->offload && !s->stays && s->bytes >= LEAST_OFFLOADED && kind;
}

/* Holds a storage for backward, on the device or, where activations are offloaded, on the host. */
static int add_saved(mo_plan_tape *t, uint32_t node, uint32_t storage)
{
    mo_plan_storage *s = &t->storages[storage];
    uint32_t host = (uint32_t)goes_to_host(t, s);
    if (!MO_PLAN_GROW(t, saved, saved))
        return 0;
    t->saved[t->saved_count++] = (mo_plan_saved){storage, host};
    t->nodes[node].saved_count++;
    if (!host) {
        s->refs++;
        return 1;
    }
    if (s->host_refs++ == 0) {
        t->host += s->bytes;
        t->link += s->bytes;
        t->host_peak = mo_max_u64(t->host_peak, t->host);
    }
    return 1;
}

void mo_plan_value_hook(mo_plan_tape *t, mo_plan_value v, mo_plan_tape_hook_run run, void *context,
                        uint32_t number)
{
    if (t->status != MEMOPT_OK || !t->recording || !mo_plan_needs(t, v))
        return;
    if (!MO_PLAN_GROW(t, hooks, hook))
        return;
    uint32_t node = new_node(t, MO_PLAN_NODE_HOOK, 1);
    if (node == MO_PLAN_NONE || !add_edge(t, node, v, MO_PLAN_ALIAS))
        return;
    t->nodes[node].object = (uint32_t)t->hook_count;
    t->hooks[t->hook_count++] = (mo_plan_tape_hook){run, context, number};
    t->values[v].node = node;
    t->values[v].slot = 0;
}

static int any_needs(const mo_plan_tape *t, const mo_plan_value *values, int count)
{
    for (int i = 0; i < count; i++)
        if (mo_plan_needs(t, values[i]))
            return 1;
    return 0;
}

void mo_plan_tape_record(mo_plan_tape *t, const mo_plan_record *r)
{
    uint8_t slots = 0;
    if (t->status != MEMOPT_OK || !t->recording || !any_needs(t, r->in, MO_PLAN_RECORD_INPUTS))
        return;
    while (slots < MO_PLAN_RECORD_OUTPUTS && r->out[slots] != MO_PLAN_NONE)
        slots++;
    t->label = r->label;
    uint32_t node = new_node(t, MO_PLAN_NODE_PLAIN, slots);
    if (node == MO_PLAN_NONE)
        return;
    t->nodes[node].temp = r->temp;
    t->nodes[node].late = r->late;
    for (int i = 0; i < MO_PLAN_RECORD_INPUTS; i++)
        if (mo_plan_needs(t, r->in[i]) && !add_edge(t, node, r->in[i], r->grad[i]))
            return;
    for (int i = 0; i < MO_PLAN_RECORD_SAVED; i++)
        if (r->saved[i] != MO_PLAN_NONE && !add_saved(t, node, t->values[r->saved[i]].storage))
            return;
    if (node == t->stop)
        t->ghost = 1;
    for (uint8_t i = 0; i < slots; i++) {
        t->values[r->out[i]].node = node;
        t->values[r->out[i]].slot = i;
    }
}

mo_plan_value mo_plan_value_of_inputs(mo_plan_tape *t, uint64_t elements, uint32_t width,
                                      mo_plan_category category)
{
    uint8_t ghost = t->ghost;
    if (t->stop != 0 && t->node_count == t->stop)
        t->ghost = 1;
    mo_plan_value v = mo_plan_value_new(t, elements, width, category);
    t->ghost = ghost;
    return v;
}

/* Stands for the region: its inputs are held and their gradients come out of it. */
static void record_region(mo_plan_tape *t, const mo_plan_tape_region *region,
                          const mo_plan_value *inputs, mo_plan_value out)
{
    if (t->status != MEMOPT_OK)
        return;
    if (!MO_PLAN_GROW(t, regions, region))
        return;
    uint32_t node = new_node(t, MO_PLAN_NODE_REGION, 1);
    if (node == MO_PLAN_NONE)
        return;
    t->nodes[node].object = (uint32_t)t->region_count;
    t->regions[t->region_count++] = *region;
    for (uint32_t i = 0; i < region->input_count; i++) {
        if (!add_saved(t, node, t->values[inputs[i]].storage))
            return;
        if (mo_plan_needs(t, inputs[i]) && !add_edge(t, node, inputs[i], 0))
            return;
    }
    uint8_t offload = t->offload;
    t->offload = 0;
    for (uint8_t i = 0; i < t->kept_count; i++)
        (void)add_saved(t, node, t->kept[i]);
    t->offload = offload;
    t->values[out].node = node;
    t->values[out].slot = 0;
}

void mo_plan_tape_keep(mo_plan_tape *t, mo_plan_value v)
{
    if (t->status != MEMOPT_OK || t->recording || t->in_backward)
        return;
    uint32_t storage = t->values[v].storage;
    for (uint8_t i = 0; i < t->kept_count; i++)
        if (t->kept[i] == storage)
            return;
    if (t->kept_count == MO_PLAN_REGION_KEPT)
        return;
    mo_plan_storage_hold(t, storage);
    t->kept[t->kept_count++] = storage;
}

mo_plan_value mo_plan_tape_region_forward(mo_plan_tape *t, mo_plan_region_run run, void *context,
                                          const mo_plan_value *inputs, uint32_t count, int again)
{
    uint8_t recording = t->recording;
    mo_plan_tape_region region = {run, context, {{0}}, count};
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (!again || !recording)
        return run(t, context, inputs);
    for (uint32_t i = 0; i < count; i++)
        region.inputs[i] = t->values[inputs[i]];
    t->recording = 0;
    mo_plan_value out = run(t, context, inputs);
    t->recording = recording;
    if (out != MO_PLAN_NONE)
        record_region(t, &region, inputs, out);
    while (t->kept_count > 0)
        mo_plan_storage_drop(t, t->kept[--t->kept_count]);
    return out;
}
