/*
 * Storages, values and the account of bytes alive. Entries that are free are linked; ids are
 * indices, so that arrays may move.
 */
#include "tape/tape.h"

#include <string.h>

memopt_status mo_plan_tape_fail(mo_plan_tape *t, memopt_status status)
{
    if (t->status == MEMOPT_OK)
        t->status = status;
    return t->status;
}

int mo_plan_tape_grow(mo_plan_tape *t, void **array, uint64_t *capacity, uint64_t count,
                      size_t size)
{
    if (mo_grow(array, capacity, count, size))
        return 1;
    mo_plan_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
    return 0;
}

memopt_status mo_plan_tape_init(mo_plan_tape *t, uint32_t layers)
{
    memset(t, 0, sizeof *t);
    t->recording = 1;
    t->category = MO_PLAN_ACTIVATIONS;
    t->label = "";
    t->layers = mo_calloc(layers, sizeof *t->layers);
    if (t->layers == NULL ||
        !mo_grow((void **)&t->storages, &t->storage_capacity, 1, sizeof *t->storages) ||
        !mo_grow((void **)&t->values, &t->value_capacity, 1, sizeof *t->values) ||
        !mo_grow((void **)&t->nodes, &t->node_capacity, 1, sizeof *t->nodes))
        return mo_plan_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
    memset(t->storages, 0, sizeof *t->storages);
    memset(t->values, 0, sizeof *t->values);
    memset(t->nodes, 0, sizeof *t->nodes);
    t->storage_count = t->value_count = t->node_count = 1;
    t->layer_count = layers;
    return MEMOPT_OK;
}

void mo_plan_tape_end(mo_plan_tape *t)
{
    mo_free(t->storages);
    mo_free(t->values);
    mo_free(t->nodes);
    mo_free(t->edges);
    mo_free(t->saved);
    mo_free(t->grads);
    mo_free(t->leaves);
    mo_free(t->regions);
    mo_free(t->hooks);
    mo_free(t->events);
    mo_free(t->layers);
    mo_free(t->cached);
    memset(t, 0, sizeof *t);
}

static memopt_status too_large(mo_plan_tape *t)
{
    if (t->status != MEMOPT_OK)
        return t->status;
    return mo_plan_tape_fail(
        t, mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "plan: the sizes of %s do not fit 64 bits; take a smaller model "
                   "or batch",
                   t->label));
}

uint64_t mo_plan_tape_mul(mo_plan_tape *t, uint64_t a, uint64_t b)
{
    uint64_t product;
    if (!mo_mul_u64(a, b, &product)) {
        (void)too_large(t);
        return 0;
    }
    return product;
}

/* Compares what is alive with the fullest moments. */
static void note_moment(mo_plan_tape *t)
{
    mo_plan_moment *m = &t->phases[t->phase];
    if (t->live[MO_PLAN_ACTIVATIONS] > t->most_activations)
        t->most_activations = t->live[MO_PLAN_ACTIVATIONS];
    if (t->total > m->total) {
        memcpy(m->bytes, t->live, sizeof m->bytes);
        m->total = t->total;
        m->layer = t->layer;
        m->label = t->label;
    }
    if (t->layer < t->layer_count) {
        mo_plan_layer_peak *l = &t->layers[t->layer];
        uint64_t *peak = t->in_backward ? &l->backward : &l->forward;
        if (t->total > *peak)
            *peak = t->total;
    }
}

static int count_bytes(mo_plan_tape *t, uint64_t bytes, mo_plan_category category)
{
    uint64_t total;
    if (!mo_add_u64(t->total, bytes, &total)) {
        (void)too_large(t);
        return 0;
    }
    t->total = total;
    t->live[category] += bytes;
    note_moment(t);
    return 1;
}

/* Gives the number of the event, from 1; 0 where nothing is listed. */
static uint32_t list_event(mo_plan_tape *t, uint64_t bytes, uint32_t begins, uint32_t category)
{
    if (!t->listing || (bytes == 0 && begins == 0) || !MO_PLAN_GROW(t, events, event))
        return 0;
    t->events[t->event_count++] = (mo_plan_event){bytes, begins, t->phase, category};
    return (uint32_t)t->event_count;
}

uint32_t mo_plan_storage_new(mo_plan_tape *t, uint64_t bytes, mo_plan_category category)
{
    uint32_t id = t->free_storage;
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (id == MO_PLAN_NONE) {
        if (!MO_PLAN_GROW(t, storages, storage))
            return MO_PLAN_NONE;
        id = (uint32_t)t->storage_count++;
    } else {
        t->free_storage = t->storages[id].next_free;
    }
    bytes = t->ghost ? 0 : bytes;
    t->storages[id] = (mo_plan_storage){bytes, 1, 0, category, MO_PLAN_NONE, 0, 0};
    if (!count_bytes(t, bytes, category)) {
        t->storages[id].next_free = t->free_storage;
        t->free_storage = id;
        return MO_PLAN_NONE;
    }
    t->storages[id].event = list_event(t, bytes, 0, category);
    return id;
}

void mo_plan_storage_hold(mo_plan_tape *t, uint32_t storage)
{
    if (storage != MO_PLAN_NONE)
        t->storages[storage].refs++;
}

void mo_plan_storage_drop(mo_plan_tape *t, uint32_t storage)
{
    if (storage == MO_PLAN_NONE)
        return;
    mo_plan_storage *s = &t->storages[storage];
    if (--s->refs > 0)
        return;
    t->total -= s->bytes;
    t->live[s->category] -= s->bytes;
    (void)list_event(t, 0, s->event, s->category);
    if (s->host_refs == 0) {
        s->next_free = t->free_storage;
        t->free_storage = storage;
    }
}

void mo_plan_tape_flash(mo_plan_tape *t, uint64_t bytes, mo_plan_category category)
{
    if (t->status == MEMOPT_OK && !t->ghost && count_bytes(t, bytes, category)) {
        t->total -= bytes;
        t->live[category] -= bytes;
        (void)list_event(t, 0, list_event(t, bytes, 0, category), category);
    }
}

static mo_plan_value new_entry(mo_plan_tape *t)
{
    mo_plan_value v = t->free_value;
    if (v != MO_PLAN_NONE) {
        t->free_value = t->values[v].storage;
        return v;
    }
    if (!MO_PLAN_GROW(t, values, value))
        return MO_PLAN_NONE;
    return (mo_plan_value)t->value_count++;
}

mo_plan_value mo_plan_value_new(mo_plan_tape *t, uint64_t elements, uint32_t width,
                                mo_plan_category category)
{
    uint32_t storage = mo_plan_storage_new(t, mo_plan_tape_mul(t, elements, width), category);
    mo_plan_value v;
    if (storage == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    v = new_entry(t);
    if (v == MO_PLAN_NONE) {
        mo_plan_storage_drop(t, storage);
        return MO_PLAN_NONE;
    }
    t->values[v] = (mo_plan_value_entry){elements, storage, MO_PLAN_NONE, width, 0};
    return v;
}

mo_plan_value mo_plan_value_view(mo_plan_tape *t, mo_plan_value v, uint64_t elements)
{
    mo_plan_value view;
    if (v == MO_PLAN_NONE || t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    view = new_entry(t);
    if (view == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    t->values[view] = t->values[v];
    t->values[view].elements = elements;
    mo_plan_storage_hold(t, t->values[v].storage);
    return view;
}

void mo_plan_drop(mo_plan_tape *t, mo_plan_value v)
{
    if (v == MO_PLAN_NONE)
        return;
    mo_plan_storage_drop(t, t->values[v].storage);
    t->values[v].storage = t->free_value;
    t->free_value = v;
}

void mo_plan_drop_all(mo_plan_tape *t, const mo_plan_value *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mo_plan_drop(t, values[i]);
}

uint64_t mo_plan_elements(const mo_plan_tape *t, mo_plan_value v)
{
    return v == MO_PLAN_NONE ? 0 : t->values[v].elements;
}

uint32_t mo_plan_width(const mo_plan_tape *t, mo_plan_value v)
{
    return v == MO_PLAN_NONE ? 1 : t->values[v].width;
}

uint64_t mo_plan_bytes_of(const mo_plan_tape *t, mo_plan_value v)
{
    return v == MO_PLAN_NONE ? 0 : t->values[v].elements * t->values[v].width;
}

int mo_plan_needs(const mo_plan_tape *t, mo_plan_value v)
{
    return v != MO_PLAN_NONE && t->values[v].node != MO_PLAN_NONE;
}

void mo_plan_tape_cache(mo_plan_tape *t, mo_plan_value v)
{
    if (v == MO_PLAN_NONE || t->in_backward)
        return;
    if (!MO_PLAN_GROW(t, cached, cached))
        return;
    mo_plan_value handle = mo_plan_value_view(t, v, mo_plan_elements(t, v));
    if (handle != MO_PLAN_NONE)
        t->cached[t->cached_count++] = handle;
}

void mo_plan_tape_forget(mo_plan_tape *t)
{
    while (t->cached_count > 0)
        mo_plan_drop(t, t->cached[--t->cached_count]);
}
