/*
 * Gradients to their owners, weights back (shards.h).
 */
#include "shards.h"

#include <stdlib.h>
#include <string.h>

#define UNIT ((uint64_t)MEMOPT_SHARD_ALIGNMENT)

static uint64_t units_of(uint64_t elements)
{
    return (elements + UNIT - 1) / UNIT;
}

static uint64_t units_of_all(const parameter *parameters, uint32_t count)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < count; i++)
        units += units_of(parameters[i].weight.count);
    return units;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void shards_cut(parameter *parameters, uint32_t count, uint32_t rank, uint32_t of)
{
    uint64_t units = units_of_all(parameters, count), before = 0;
    uint64_t begin = units * rank / of, end = units * (rank + 1) / of;
    for (uint32_t i = 0; i < count; i++) {
        parameter *p = &parameters[i];
        uint64_t all = p->weight.count;
        p->first = begin > before ? least((begin - before) * UNIT, all) : 0;
        p->own = (end > before ? least((end - before) * UNIT, all) : 0) - p->first;
        before += units_of(all);
    }
}

uint64_t shards_place(const bucket *b, uint32_t index)
{
    return units_of_all(b->parameters, index) * UNIT;
}

/* Where the parts of a bucket begin, in bytes; a unit has this many. */
static void find_parts(const shards *s, const bucket *b, uint64_t size)
{
    for (uint32_t k = 0; k <= s->ranks->count; k++)
        s->at[k] = b->units * k / s->ranks->count * size;
}

/* --- making and ending ------------------------------------------------------------------------ */

static memopt_status create_sums(shards *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->buckets[i].count; k++) {
            parameter *p = &s->buckets[i].parameters[k];
            if (p->own)
                TRY(memory_tensor(s->memory, MEMOPT_DTYPE_F32, p->own, MEMOPT_TAG_GRADIENTS,
                                  &p->sum));
        }
    return MEMOPT_OK;
}

static memopt_status create_slots(shards *s, memopt_dtype dtype)
{
    uint64_t units = 0, n = s->ranks->count;
    for (uint32_t i = 0; i < s->count; i++)
        units = units > s->buckets[i].units ? units : s->buckets[i].units;
    for (int i = 0; i < SHARD_SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        TRY(memory_tensor(s->memory, dtype, units * UNIT, MEMOPT_TAG_OTHER, &slot->flat));
        TRY(memory_tensor(s->memory, dtype, (units / n + 1) * n * UNIT, MEMOPT_TAG_OTHER,
                          &slot->received));
        TRY(memopt_fill(s->memory->device, slot->flat.data, 0,
                        slot->flat.count * memopt_dtype_size(dtype),
                        NULL)); /* between parameters */
    }
    return memory_sync(s->memory);
}

memopt_status shards_create(shards *s, memory *m, ranks *r, parameter_set *p, uint32_t layers)
{
    uint64_t units = 0;
    *s = (shards){.ranks = r, .memory = m, .count = layers + 1};
    s->buckets = calloc(s->count, sizeof *s->buckets);
    s->at = calloc((size_t)r->count + 1, sizeof *s->at);
    if (!s->buckets || !s->at)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "shards: no memory for %u buckets", s->count);
    for (uint32_t i = 0; i < s->count; i++) {
        bucket *b = &s->buckets[i];
        b->parameters = i < layers ? p->layers + (size_t)i * LAYER_PARAMETERS : p->list;
        b->count = i < layers ? LAYER_PARAMETERS : (uint32_t)(p->layers - p->list);
        b->units = units_of_all(b->parameters, b->count);
        units += b->units;
    }
    s->squares = calloc(units, sizeof *s->squares);
    if (!s->squares)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "shards: no memory for sums");
    TRY(memory_tensor(m, MEMOPT_DTYPE_F32, 2, MEMOPT_TAG_OTHER, &s->total));
    TRY(create_sums(s));
    return create_slots(s, p->list->weight.dtype);
}

memopt_status shards_destroy(shards *s)
{
    memopt_status first = MEMOPT_OK;
    for (int i = 0; i < SHARD_SLOTS; i++) {
        memopt_tensor *tensors[] = {&s->slots[i].flat, &s->slots[i].received, &s->total};
        for (int t = 0; t < 3 && s->memory; t++) {
            memopt_status status = memory_free(s->memory, tensors[t]);
            first = first == MEMOPT_OK ? status : first;
        }
    }
    free(s->buckets);
    free(s->at);
    free(s->squares);
    memset(s, 0, sizeof *s);
    return first;
}

/* --- gradients -------------------------------------------------------------------------------- */

static unsigned char *element(const memopt_tensor *t, uint64_t index)
{
    return (unsigned char *)t->data + index * memopt_dtype_size(t->dtype);
}

/* sum + what one rank sent, or that alone. */
static memopt_status add_part(shards *s, const memopt_tensor *part, const memopt_tensor *sum,
                              int replaces)
{
    frame f = frame_begin(s->memory);
    const float *values = frame_read(&f, part);
    float *sums = sum->data;
    for (uint64_t i = 0; frame_ok(&f) && i < sum->count; i++)
        sums[i] = replaces ? values[i] : sums[i] + values[i];
    return frame_end(&f);
}

/* The oldest exchange: what the ranks sent, in their order. In a rehearsal only its memory counts. */
static memopt_status end_oldest(shards *s)
{
    struct slot *slot = &s->slots[s->ended++ % SHARD_SLOTS];
    const bucket *b = slot->bucket;
    const uint64_t n = s->ranks->count, begin = b->units * s->ranks->rank / n;
    const uint64_t own = (b->units * (s->ranks->rank + 1) / n - begin) * UNIT;
    slot->bucket = NULL;
    if (!s->memory->tape)
        TRY(ranks_wait(&slot->work));
    for (uint64_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < b->count; i++) {
            const parameter *p = &b->parameters[i];
            uint64_t at = k * own + shards_place(b, i) + p->first - begin * UNIT;
            memopt_tensor part = {element(&slot->received, at), p->own, slot->received.dtype};
            if (p->own)
                TRY(add_part(s, &part, &p->sum, slot->first && k == 0));
        }
    return MEMOPT_OK;
}

static memopt_status begin_exchange(shards *s, const bucket *b, struct slot *slot)
{
    for (uint32_t i = 0; i < b->count; i++) {
        const memopt_tensor *g = &b->parameters[i].gradient;
        uint64_t bytes = g->count * memopt_dtype_size(g->dtype);
        TRY(memopt_copy(s->memory->device, element(&slot->flat, shards_place(b, i)), g->data, bytes,
                        NULL));
        TRY(memopt_fill(s->memory->device, g->data, 0, bytes, NULL));
    }
    TRY(memory_sync(s->memory));
    find_parts(s, b, UNIT * memopt_dtype_size(slot->flat.dtype));
    return ranks_exchange(s->ranks, slot->flat.data, s->at, slot->received.data, &slot->work);
}

memopt_status shards_send(shards *s, uint32_t number, int first)
{
    const bucket *b = &s->buckets[number];
    if (s->begun - s->ended == SHARD_SLOTS)
        TRY(end_oldest(s));
    struct slot *slot = &s->slots[s->begun % SHARD_SLOTS];
    if (!s->memory->tape)
        TRY(begin_exchange(s, b, slot));
    slot->bucket = b;
    slot->first = first;
    s->begun++;
    return MEMOPT_OK;
}

memopt_status shards_receive(shards *s)
{
    while (s->ended < s->begun)
        TRY(end_oldest(s));
    return MEMOPT_OK;
}

/* Of the units that this rank has, one sum each. */
static void square_units(const bucket *b, double *squares)
{
    for (uint32_t i = 0; i < b->count; i++) {
        const parameter *p = &b->parameters[i];
        const float *sum = p->sum.data;
        double *at = squares + (shards_place(b, i) + p->first) / UNIT;
        for (uint64_t k = 0; k < p->own; k++)
            at[k / UNIT] = (k % UNIT ? at[k / UNIT] : 0) + (double)sum[k] * (double)sum[k];
    }
}

memopt_status shards_square_sum(shards *s)
{
    double total = 0, *squares = s->squares;
    for (uint32_t i = 0; i < s->count; squares += s->buckets[i++].units) {
        square_units(&s->buckets[i], squares);
        find_parts(s, &s->buckets[i], sizeof *squares);
        TRY(ranks_gather(s->ranks, squares, s->at));
        for (uint64_t k = 0; k < s->buckets[i].units; k++)
            total += squares[k];
    }
    TRY(memopt_copy(s->memory->device, s->total.data, &total, sizeof total, NULL));
    return memory_sync(s->memory);
}

/* --- weights and masters ---------------------------------------------------------------------- */

/* The ranks' shards of a bucket into `flat`, from each parameter's weight or from its master. */
static memopt_status gather(shards *s, const bucket *b, int masters, const memopt_tensor *flat)
{
    const uint64_t size = memopt_dtype_size(flat->dtype);
    for (uint32_t i = 0; i < b->count; i++) {
        const parameter *p = &b->parameters[i];
        const void *own = masters ? p->master.data : element(&p->weight, p->first);
        if (p->own)
            TRY(memopt_copy(s->memory->device, element(flat, shards_place(b, i) + p->first), own,
                            p->own * size, NULL));
    }
    TRY(memory_sync(s->memory));
    find_parts(s, b, UNIT * size);
    return ranks_gather(s->ranks, flat->data, s->at);
}

memopt_status shards_gather_weights(shards *s)
{
    const memopt_tensor *flat = &s->slots[0].flat;
    for (uint32_t n = 0; n < s->count; n++) {
        const bucket *b = &s->buckets[n];
        TRY(gather(s, b, 0, flat));
        for (uint32_t i = 0; i < b->count; i++) {
            const memopt_tensor *w = &b->parameters[i].weight;
            TRY(memopt_copy(s->memory->device, w->data, element(flat, shards_place(b, i)),
                            w->count * memopt_dtype_size(w->dtype), NULL));
        }
        TRY(memory_sync(s->memory));
    }
    return MEMOPT_OK;
}

memopt_status shards_gather_masters(shards *s, uint32_t number, memopt_tensor *flat)
{
    const bucket *b = &s->buckets[number];
    TRY(memory_tensor(s->memory, MEMOPT_DTYPE_F32, b->units * UNIT, s->memory->workspace, flat));
    return s->memory->tape ? MEMOPT_OK : gather(s, b, 1, flat);
}
