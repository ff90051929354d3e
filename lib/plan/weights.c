/*
 * Weights of a play: each is a value on the tape that learns, or not, and an entry in the list that
 * the optimizer's account is made from.
 *
 * ZeRO 3 keeps a share of each weight, from ZeRO 2 on a share of each gradient.
 */
#include "plan/play.h"

static uint64_t share(const mo_play *p, uint64_t bytes, uint32_t from_stage)
{
    const memopt_plan_run *r = &p->settings->run;
    return r->sharding >= from_stage ? mo_ceil_div_u64(bytes, r->world_size) : bytes;
}

static mo_value sharded_value(mo_play *p, uint64_t count, uint64_t bytes, uint32_t width)
{
    mo_tape *t = &p->tape;
    mo_value v = mo_value_new(t, bytes, 1, MO_PARAMETERS);
    if (v != MO_NONE) {
        t->values[v].elements = count;
        t->values[v].width = width;
    }
    return v;
}

static mo_value add_weight(mo_play *p, uint64_t rows, uint64_t columns, uint32_t adapter)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    t->label = "the weights";
    uint64_t count = mo_tape_mul(t, rows, columns ? columns : 1);
    const mo_weight w = {count, rows, columns, t->layer, adapter || !p->frozen, adapter};
    uint64_t bytes = mo_tape_mul(t, count, mo_weight_width(r, &w));
    uint64_t gradient = mo_tape_mul(t, count, mo_gradient_width(r, &w));
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    if (!mo_grow((void **)&p->weights, &p->weight_capacity, p->weight_count + 1,
                 sizeof *p->weights)) {
        mo_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return MO_NONE;
    }
    p->weights[p->weight_count++] = w;
    mo_value v =
        sharded_value(p, count, share(p, bytes, MEMOPT_PLAN_ZERO3), mo_weight_width(r, &w));
    if (w.learns)
        mo_value_learns(t, v, share(p, gradient, MEMOPT_PLAN_ZERO2));
    return v;
}

mo_value mo_play_weight(mo_play *p, uint64_t rows, uint64_t columns)
{
    return add_weight(p, rows, columns, 0);
}

mo_linear mo_play_linear(mo_play *p, uint64_t in, uint64_t out, int bias, uint32_t target)
{
    const memopt_plan_model *m = &p->settings->model;
    mo_linear l = MO_NO_LINEAR;
    l.in = in;
    l.out = out;
    l.weight = mo_play_weight(p, out, in);
    if (bias)
        l.bias = mo_play_weight(p, out, 0);
    if (m->lora_rank > 0 && (target & m->lora_targets) != 0) {
        l.down = add_weight(p, m->lora_rank, in, 1);
        l.up = add_weight(p, out, m->lora_rank, 1);
    }
    return l;
}

mo_norm mo_play_norm(mo_play *p, uint64_t size, enum mo_norm_kind kind)
{
    mo_norm n = {MO_NONE, MO_NONE, kind};
    n.weight = mo_play_weight(p, size, 0);
    if (kind == MO_NORM_LAYER)
        n.bias = mo_play_weight(p, size, 0);
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

void mo_play_let_go(mo_play *p, mo_held *held, uint64_t from)
{
    while (held->count > from)
        mo_drop(&p->tape, held->values[--held->count]);
}
