/*
 * Weights of a play: each is a value on the tape that learns, or not, and an entry in the list that
 * the optimizer's account is made from.
 *
 * Those that DeepSpeed shares out are no bytes here: it keeps them in buffers of its own. Weights
 * that FSDP shares out (shard.c) take a share's bytes here; their gradients, of the gathered
 * weights, are whole until the group is reduced. Gradients that are views of DDP's buckets take
 * nothing beside them.
 */
#include "plan/play.h"

/* Bytes of a weight's gradient from when it is there to when it is reduced, or to the step. */
static uint64_t gradient_bytes(mo_play *p, const mo_weight *w)
{
    const memopt_plan_run *r = &p->settings->run;
    if (p->engine != NULL)
        return mo_tape_mul(&p->tape, w->count, mo_weight_width(r, w));
    if (p->shards != NULL && !mo_shard_waits(p))
        return mo_tape_mul(&p->tape, w->count, mo_shard_width(p, w));
    if (p->shards == NULL && r->world_size > 1 && r->bucket_view == MEMOPT_PLAN_YES)
        return 0;
    return mo_tape_mul(&p->tape, w->count, mo_gradient_width(r, w));
}

static mo_value weight_value(mo_play *p, const mo_weight *w)
{
    mo_tape *t = &p->tape;
    uint64_t count = w->count, own = p->shards == NULL ? count : mo_shard_count(p, w);
    uint32_t width = mo_weight_width(&p->settings->run, w);
    uint64_t bytes = mo_engine_shares_weights(p) ? 0 : mo_tape_mul(t, own, width);
    mo_value v = mo_value_new(t, bytes, 1, MO_PARAMETERS);
    if (v != MO_NONE) {
        t->values[v].elements = count;
        t->values[v].width = p->shards == NULL ? width : mo_shard_width(p, w);
    }
    return v;
}

/* chunks: the first size, which FSDP shares out. */
static mo_value add_weight(mo_play *p, uint64_t rows, uint64_t columns, uint64_t chunks,
                           uint32_t adapter)
{
    mo_tape *t = &p->tape;
    t->label = "the weights";
    uint64_t count = mo_tape_mul(t, rows, columns ? columns : 1);
    (void)mo_tape_mul(t, count, 4);
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    if (!mo_grow((void **)&p->weights, &p->weight_capacity, p->weight_count + 1,
                 sizeof *p->weights)) {
        mo_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return MO_NONE;
    }
    mo_weight *w = &p->weights[p->weight_count++];
    uint32_t asks = adapter || !p->frozen;
    *w = (mo_weight){.count = count,
                     .rows = rows,
                     .columns = columns,
                     .chunks = chunks,
                     .layer = t->layer,
                     .learns = asks && !p->unused,
                     .adapter = adapter,
                     .unused = asks && p->unused};
    mo_value v = weight_value(p, w);
    if (asks) /* operations on one that is not used are recorded as well */
        mo_value_learns(t, v, w->learns ? gradient_bytes(p, w) : 0);
    mo_shard_add(p, w);
    return v;
}

mo_value mo_play_weight(mo_play *p, uint64_t rows, uint64_t columns)
{
    return add_weight(p, rows, columns, rows, 0);
}

static mo_value add_bias(mo_play *p, uint64_t size)
{
    mo_value v = mo_play_weight(p, size, 0);
    if (v != MO_NONE)
        p->weights[p->weight_count - 1].bias = 1;
    return v;
}

mo_value mo_play_weight_of(mo_play *p, uint64_t rows, uint64_t columns, uint64_t chunks)
{
    return add_weight(p, rows, columns, chunks, 0);
}

mo_linear mo_play_linear(mo_play *p, uint64_t in, uint64_t out, int bias, uint32_t target)
{
    const memopt_plan_model *m = &p->settings->model;
    mo_linear l = MO_NO_LINEAR;
    l.in = in;
    l.out = out;
    /* GPT-2's layers are of Conv1D, which has its inputs first. */
    int inputs_first = m->family == MEMOPT_PLAN_GPT2 && mo_shard_group(p, p->tape.layer) != 0;
    l.weight = add_weight(p, out, in, inputs_first ? in : out, 0);
    if (bias)
        l.bias = add_bias(p, out);
    if (m->lora_rank > 0 && (target & m->lora_targets) != 0) {
        l.down = add_weight(p, m->lora_rank, in, m->lora_rank, 1);
        l.up = add_weight(p, out, m->lora_rank, out, 1);
    }
    return l;
}

mo_norm mo_play_norm(mo_play *p, uint64_t size, enum mo_norm_kind kind)
{
    mo_norm n = {MO_NONE, MO_NONE, kind};
    n.weight = mo_play_weight(p, size, 0);
    if (kind == MO_NORM_LAYER)
        n.bias = add_bias(p, size);
    return n;
}

void mo_play_buffer(mo_play *p, uint64_t bytes)
{
    (void)mo_storage_new(&p->tape, bytes, MO_PARAMETERS);
    p->buffer_bytes += bytes;
}

void mo_play_hold(mo_play *p, mo_held *held, mo_value v)
{
    if (v == MO_NONE)
        return;
    if (!mo_grow((void **)&held->values, &held->capacity, held->count + 1, sizeof v)) {
        mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    held->values[held->count++] = v;
}

void mo_play_returns(mo_play *p, mo_value v)
{
    p->returned += mo_bytes(&p->tape, v);
    mo_play_hold(p, &p->outputs, v);
}

void mo_play_let_go(mo_play *p, mo_held *held, uint64_t from)
{
    while (held->count > from)
        mo_drop(&p->tape, held->values[--held->count]);
}
