/*
 * Weights of a play: each is a value on the tape that learns, or not, and an entry in the list that
 * the optimizer's account is made from. The engine says what a device keeps of it.
 */
#include "model/play.h"

/* A value of the weight's elements that takes the bytes of its place. */
static mo_plan_value weight_value(mo_plan_play *p, const mo_plan_weight *w,
                                  const mo_plan_place *place)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_value v = mo_plan_value_new(t, place->bytes, 1, MO_PLAN_PARAMETERS);
    if (v != MO_PLAN_NONE) {
        t->values[v].elements = w->count;
        t->values[v].width = place->width;
    }
    return v;
}

/* Bytes of n rounded up to whole parts. */
static uint64_t parts(uint64_t n, uint64_t of)
{
    return n / of + (n % of != 0);
}

/* What a matrix of few bits has beside its codes. bitsandbytes: absmax of each 64 in fp32, or in 8
 * bits with an fp32 of each 256 of them and 256 codes, and 16 codes; of int8 an fp32 a row. GPTQ
 * and AWQ: a scale and a zero of each 128 inputs, and GPTQ the group of each input. Matrices are
 * below 2^60 elements. */
static uint64_t scale_bytes(uint32_t kind, uint64_t rows, uint64_t columns)
{
    uint64_t blocks = parts(rows * columns, 64);
    uint64_t groups = parts(columns, 128) * rows;
    switch (kind) {
    case MO_PLAN_QUANTIZE_NF4:
        return 4 * blocks + 64;
    case MO_PLAN_QUANTIZE_NF4_DOUBLE:
        return blocks + 4 * parts(blocks, 256) + 64 + 4 + 1024;
    case MO_PLAN_QUANTIZE_INT8:
        return 4 * rows;
    default:
        return 2 * groups + parts(groups, 2) + (kind == MO_PLAN_QUANTIZE_GPTQ ? 4 * columns : 0);
    }
}

/* chunks: the first size, which FSDP shares out. kind: how it is quantised. */
static mo_plan_value add_stored(mo_plan_play *p, uint64_t rows, uint64_t columns, uint64_t chunks,
                                uint32_t adapter, uint32_t kind)
{
    mo_plan_tape *t = &p->tape;
    t->label = "the weights";
    uint64_t count = mo_plan_tape_mul(t, rows, columns ? columns : 1);
    (void)mo_plan_tape_mul(t, count, 4);
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (!mo_grow((void **)&p->weights, &p->weight_capacity, p->weight_count + 1,
                 sizeof *p->weights)) {
        mo_plan_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return MO_PLAN_NONE;
    }
    mo_plan_weight *w = &p->weights[p->weight_count++];
    uint32_t asks = adapter || !p->frozen;
    *w = (mo_plan_weight){.count = count,
                          .rows = rows,
                          .columns = columns,
                          .chunks = chunks,
                          .layer = t->layer,
                          .learns = asks && !p->unused,
                          .adapter = adapter,
                          .unused = asks && p->unused};
    if (kind != MO_PLAN_QUANTIZE_NONE)
        w->codes = kind == MO_PLAN_QUANTIZE_INT8 ? count : parts(count, 2);
    mo_plan_place place = p->engine->place(p, w);
    if (kind != MO_PLAN_QUANTIZE_NONE)
        place.bytes += scale_bytes(kind, rows, columns);
    mo_plan_value v = weight_value(p, w, &place);
    if (asks) /* operations on one that is not used are recorded as well */
        mo_plan_value_learns(t, v, w->learns ? place.gradient_bytes : 0);
    p->engine->add(p, w);
    return v;
}

static mo_plan_value add_weight(mo_plan_play *p, uint64_t rows, uint64_t columns, uint64_t chunks,
                                uint32_t adapter)
{
    return add_stored(p, rows, columns, chunks, adapter, MO_PLAN_QUANTIZE_NONE);
}

int mo_plan_play_in_layers(const mo_plan_play *p, uint32_t layer)
{
    return layer > 0 && layer + 1 < p->tape.layer_count;
}

mo_plan_value mo_plan_play_weight(mo_plan_play *p, uint64_t rows, uint64_t columns)
{
    return add_weight(p, rows, columns, rows, 0);
}

static mo_plan_value add_bias(mo_plan_play *p, uint64_t size)
{
    mo_plan_value v = mo_plan_play_weight(p, size, 0);
    if (v != MO_PLAN_NONE)
        p->weights[p->weight_count - 1].bias = 1;
    return v;
}

mo_plan_value mo_plan_play_weight_of(mo_plan_play *p, uint64_t rows, uint64_t columns,
                                     uint64_t chunks)
{
    return add_weight(p, rows, columns, chunks, 0);
}

static void add_adapters(mo_plan_play *p, mo_plan_linear *l, uint64_t rank)
{
    if (rank == 0)
        return;
    l->down = add_weight(p, rank, l->in, rank, 1);
    l->up = add_weight(p, l->out, rank, l->out, 1);
}

/* Linear layers are quantised but for the head's. Routers and experts are no linear layers. */
static uint32_t quantize(mo_plan_play *p, mo_plan_linear *l, uint32_t target)
{
    static const enum mo_plan_stored stored[] = {[MO_PLAN_QUANTIZE_NF4] = MO_PLAN_STORED_NF4,
                                                 [MO_PLAN_QUANTIZE_NF4_DOUBLE] = MO_PLAN_STORED_NF4,
                                                 [MO_PLAN_QUANTIZE_INT8] = MO_PLAN_STORED_INT8,
                                                 [MO_PLAN_QUANTIZE_GPTQ] = MO_PLAN_STORED_INT4,
                                                 [MO_PLAN_QUANTIZE_AWQ] = MO_PLAN_STORED_INT4};
    uint32_t kind = p->settings->model.quantize;
    if ((target & MO_PLAN_NO_TARGET) || !mo_plan_play_in_layers(p, p->tape.layer))
        return MO_PLAN_QUANTIZE_NONE;
    l->stored = stored[kind];
    if (kind == MO_PLAN_QUANTIZE_NF4_DOUBLE)
        l->scales = 4 * parts(l->in * l->out, 64);
    return kind;
}

mo_plan_linear mo_plan_play_linear(mo_plan_play *p, uint64_t in, uint64_t out, int bias,
                                   uint32_t target)
{
    const mo_plan_model *m = &p->settings->model;
    mo_plan_linear l = {0};
    l.in = in;
    l.out = out;
    int inputs_first =
        mo_plan_family_of(m)->inputs_first && mo_plan_play_in_layers(p, p->tape.layer);
    l.weight = add_stored(p, out, in, inputs_first ? in : out, 0, quantize(p, &l, target));
    if (bias)
        l.bias = add_bias(p, out);
    if ((target & m->lora_targets) != 0)
        add_adapters(p, &l, m->lora_rank);
    return l;
}

mo_plan_linear mo_plan_play_experts(mo_plan_play *p, uint64_t experts, uint64_t in, uint64_t out,
                                    uint64_t rank)
{
    mo_plan_linear l = {.in = in, .out = out};
    l.weight = mo_plan_play_weight_of(p, mo_plan_tape_mul(&p->tape, experts, out), in, experts);
    add_adapters(p, &l, mo_plan_tape_mul(&p->tape, experts, rank));
    return l;
}

mo_plan_norm mo_plan_play_norm(mo_plan_play *p, uint64_t size, enum mo_plan_norm_kind kind)
{
    mo_plan_norm n = {MO_PLAN_NONE, MO_PLAN_NONE, kind};
    n.weight = mo_plan_play_weight(p, size, 0);
    if (kind == MO_PLAN_NORM_LAYER)
        n.bias = add_bias(p, size);
    return n;
}

void mo_plan_play_buffer(mo_plan_play *p, uint64_t bytes)
{
    (void)mo_plan_storage_new(&p->tape, bytes, MO_PLAN_PARAMETERS);
    p->buffer_bytes += bytes;
}

void mo_plan_play_hold(mo_plan_play *p, mo_plan_held *held, mo_plan_value v)
{
    if (v == MO_PLAN_NONE)
        return;
    if (!mo_grow((void **)&held->values, &held->capacity, held->count + 1, sizeof v)) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    held->values[held->count++] = v;
}

void mo_plan_play_returns(mo_plan_play *p, mo_plan_value v)
{
    p->returned += mo_plan_bytes_of(&p->tape, v);
    mo_plan_play_hold(p, &p->outputs, v);
}

void mo_plan_play_release(mo_plan_play *p, mo_plan_held *held, uint64_t from)
{
    while (held->count > from)
        mo_plan_drop(&p->tape, held->values[--held->count]);
}
