/*
 * Making and initialising the model's parameters (parameters.h).
 */
#include "parameters.h"

#include "ops.h"
#include "shards.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a parameter begins. */
typedef struct start {
    const char *name;
    uint64_t count;
    float deviation; /* of random values; 0: all are `value` */
    float value;
} start;

/* The next free host memory of a layer's; NULL: it is on the device. */
typedef struct host_memory {
    unsigned char *weights, *masters;
} host_memory;

/* What a tensor takes in the store, and in the streamer's memory. */
static uint64_t stored_bytes(memopt_dtype dtype, uint64_t count)
{
    return (count * memopt_dtype_size(dtype) + 255) / 256 * 256;
}

static memopt_status fill_parameter(const parameter *p, memory *m, const start *s, uint64_t key)
{
    float *values = malloc(s->count * sizeof *values);
    if (!values)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "parameters: no memory to initialise %s",
                        p->name);
    if (s->deviation > 0)
        random_normal(key, s->deviation, values, s->count);
    for (uint64_t i = 0; s->deviation <= 0 && i < s->count; i++)
        values[i] = s->value;

    /* The view rounds them into a narrower weight on the device. */
    frame f = frame_begin(m);
    float *weight = frame_write(&f, &p->weight);
    if (frame_ok(&f))
        memcpy(weight, values, s->count * sizeof *values);
    if (frame_ok(&f) && p->master.data)
        memcpy(p->master.data, values + p->first, p->own * sizeof *values);
    free(values);
    return frame_end(&f);
}

/* Memory of a tensor: of the device, or the next part of `host`. */
static memopt_status place_tensor(memory *m, memopt_dtype dtype, uint64_t count,
                                  unsigned char **host, memopt_tensor *out_tensor)
{
    if (!*host)
        return memory_tensor(m, dtype, count, MEMOPT_TAG_WEIGHTS, out_tensor);
    *out_tensor = (memopt_tensor){*host, count, dtype};
    *host += stored_bytes(dtype, count);
    return MEMOPT_OK;
}

/* Which shard of each of these this rank has. */
static void cut_bucket(parameter *parameters, uint32_t count, const options *o, const start *plans)
{
    for (uint32_t i = 0; i < count; i++)
        parameters[i].weight.count = plans[i].count;
    shards_cut(parameters, count, o->rank, o->ranks ? o->ranks : 1);
}

static memopt_status create_parameter(parameter_set *list, memory *m, const options *o,
                                      const char *prefix, const start *s, host_memory *host)
{
    uint64_t index = list->count;
    parameter *p = &list->list[list->count++];
    snprintf(p->name, sizeof p->name, "%s%s", prefix, s->name);
    p->decays = s->deviation > 0;
    list->elements += s->count;
    TRY(place_tensor(m, o->dtype, s->count, &host->weights, &p->weight));
    p->master.dtype = MEMOPT_DTYPE_F32;
    if (o->dtype != MEMOPT_DTYPE_F32 && o->master && p->own)
        TRY(place_tensor(m, MEMOPT_DTYPE_F32, p->own, &host->masters, &p->master));
    TRY(memory_tensor(m, o->dtype, s->count, MEMOPT_TAG_GRADIENTS, &p->gradient));
    return fill_parameter(p, m, s, random_draw(o->seed, UINT64_MAX - index));
}

/* Host memory for the weights of a layer, which the streamer gets to know, and for its masters. */
static memopt_status store_layer(parameter_set *p, memory *m, const options *o, const start *plans,
                                 host_memory *out_host)
{
    memopt_stream_part part = {0, 0};
    uint64_t master_bytes = 0;
    void *weights = NULL, *masters = NULL;
    for (int i = 0; i < LAYER_PARAMETERS; i++) {
        part.bytes += stored_bytes(o->dtype, plans[i].count);
        master_bytes += stored_bytes(MEMOPT_DTYPE_F32, p->list[p->count + (uint64_t)i].own);
    }
    if (!m->streamer) {
        uint64_t budget = part.bytes * o->layers / 3;
        budget = (budget < part.bytes ? part.bytes : budget) + 511; /* it is rounded down */
        TRY(memopt_streamer_create(m->device, m->store, budget, &m->streamer));
    }
    TRY(memopt_offloader_reserve(m->store, part.bytes, &part.ticket, &weights));
    p->stored[p->stored_count] = part.ticket;
    TRY(memopt_streamer_add(m->streamer, &part, 1, &p->stored_count));
    p->stored_count++;
    if (o->dtype != MEMOPT_DTYPE_F32 && o->master && master_bytes > 0)
        TRY(memopt_offloader_reserve(m->store, master_bytes, &part.ticket, &masters));
    *out_host = (host_memory){weights, masters};
    return MEMOPT_OK;
}

static memopt_status create_layer(parameter_set *p, memory *m, const options *o, uint32_t number)
{
    uint64_t d = o->width;
    float narrow = 0.02F / sqrtf(2.0F * (float)o->layers); /* keeps the residual stream's size */
    const start plans[LAYER_PARAMETERS] = {
        [NORM1_GAIN] = {"norm1.gain", d, 0, 1},
        [NORM1_BIAS] = {"norm1.bias", d, 0, 0},
        [QKV_WEIGHT] = {"qkv.weight", 3 * d * d, 0.02F, 0},
        [QKV_BIAS] = {"qkv.bias", 3 * d, 0, 0},
        [PROJECT_WEIGHT] = {"project.weight", d * d, narrow, 0},
        [PROJECT_BIAS] = {"project.bias", d, 0, 0},
        [NORM2_GAIN] = {"norm2.gain", d, 0, 1},
        [NORM2_BIAS] = {"norm2.bias", d, 0, 0},
        [UP_WEIGHT] = {"up.weight", 4 * d * d, 0.02F, 0},
        [UP_BIAS] = {"up.bias", 4 * d, 0, 0},
        [DOWN_WEIGHT] = {"down.weight", 4 * d * d, narrow, 0},
        [DOWN_BIAS] = {"down.bias", d, 0, 0},
    };
    char prefix[24];
    snprintf(prefix, sizeof prefix, "layer%u.", number);
    host_memory host = {NULL, NULL};
    cut_bucket(p->list + p->count, LAYER_PARAMETERS, o, plans);
    if (m->store)
        TRY(store_layer(p, m, o, plans, &host));
    for (int i = 0; i < LAYER_PARAMETERS; i++)
        TRY(create_parameter(p, m, o, prefix, &plans[i], &host));
    return m->store ? memopt_offloader_host_end(m->store, p->stored[number]) : MEMOPT_OK;
}

/* A training step uses the layers forward, then backward. */
static memopt_status tell_order(memory *m, uint32_t layers)
{
    uint32_t *order = malloc(2 * (size_t)layers * sizeof *order);
    if (!order)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "parameters: no memory for %u layers", layers);
    for (uint32_t i = 0; i < layers; i++)
        order[i] = order[2 * layers - 1 - i] = i;
    memopt_status status = memopt_streamer_expect(m->streamer, order, 2 * layers);
    free(order);
    return status;
}

memopt_status parameters_create(parameter_set *p, memory *m, const options *o)
{
    uint64_t d = o->width;
    const start plans[] = {
        [TOKEN_EMBEDDING] = {"token.embedding", CLASSES * d, 0.02F, 0},
        [POSITION_EMBEDDING] = {"position.embedding", o->context * d, 0.02F, 0},
        [FINAL_GAIN] = {"final.gain", d, 0, 1},
        [FINAL_BIAS] = {"final.bias", d, 0, 0},
        [HEAD_OR_LAYERS] = {"head", CLASSES * d, 0.02F, 0},
    };
    int outside = o->tied ? HEAD_OR_LAYERS : HEAD_OR_LAYERS + 1;
    memset(p, 0, sizeof *p);
    p->list = calloc((size_t)outside + (size_t)o->layers * LAYER_PARAMETERS, sizeof *p->list);
    if (!p->list)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "parameters: no memory for %u layers",
                        o->layers);
    p->stored = m->store ? calloc(o->layers, sizeof *p->stored) : NULL;
    if (m->store && !p->stored)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "parameters: no memory for %u layers",
                        o->layers);
    p->head = &p->list[o->tied ? TOKEN_EMBEDDING : HEAD_OR_LAYERS];
    p->layers = p->list + outside;
    cut_bucket(p->list, (uint32_t)outside, o, plans);
    for (int i = 0; i < outside; i++)
        TRY(create_parameter(p, m, o, "", &plans[i], &(host_memory){NULL, NULL}));
    for (uint32_t i = 0; i < o->layers; i++)
        TRY(create_layer(p, m, o, i));
    return m->streamer ? tell_order(m, o->layers) : MEMOPT_OK;
}

memopt_status parameters_free(parameter_set *p, memory *m)
{
    memopt_status first = MEMOPT_OK;
    for (uint64_t i = 0; p->stored && i < p->count; i++)
        if (&p->list[i] >= p->layers) /* the store's */
            p->list[i].weight.data = p->list[i].master.data = NULL;
    for (uint64_t i = 0; i < p->count; i++) {
        memopt_tensor *tensors[] = {&p->list[i].weight, &p->list[i].master, &p->list[i].gradient,
                                    &p->list[i].sum};
        for (int t = 0; t < 4; t++) {
            memopt_status status = memory_free(m, tensors[t]);
            first = first == MEMOPT_OK ? status : first;
        }
    }
    free(p->list);
    free(p->stored);
    memset(p, 0, sizeof *p);
    return first;
}

/* --- weights that stream ------------------------------------------------------------------- */

/* The weights of a layer lie one behind the other, wherever they are: the first one is at `base`. */
static void move_weights(parameter *layer, unsigned char *base)
{
    const unsigned char *old = layer->weight.data;
    for (int i = 0; i < LAYER_PARAMETERS; i++)
        layer[i].weight.data = base + ((const unsigned char *)layer[i].weight.data - old);
}

memopt_status parameters_to_device(parameter *layer, memory *m, uint32_t number)
{
    void *base = NULL;
    if (!m->streamer || m->tape)
        return MEMOPT_OK;
    TRY(memopt_streamer_begin(m->streamer, number, NULL, &base));
    layer->host = layer->weight.data;
    move_weights(layer, base);
    return memory_sync(m);
}

memopt_status parameters_to_host(parameter *layer, memory *m, uint32_t number)
{
    if (!m->streamer || m->tape)
        return MEMOPT_OK;
    move_weights(layer, layer->host);
    layer->host = NULL;
    return memopt_streamer_end(m->streamer, number, NULL);
}

memopt_status parameters_write(parameter_set *p, memory *m)
{
    void *host = NULL;
    for (uint32_t i = 0; i < p->stored_count; i++) {
        memopt_status status =
            memopt_offloader_host(m->store, p->stored[i], MEMOPT_HOST_WRITE, &host);
        while (status != MEMOPT_OK && i-- > 0)
            (void)memopt_offloader_host_end(m->store, p->stored[i]);
        TRY(status);
    }
    return MEMOPT_OK;
}

memopt_status parameters_written(parameter_set *p, memory *m)
{
    for (uint32_t i = 0; i < p->stored_count; i++)
        TRY(memopt_offloader_host_end(m->store, p->stored[i]));
    for (uint32_t i = 0; i < p->stored_count; i++) /* the device's copies are the old ones */
        TRY(memopt_streamer_evict(m->streamer, i));
    return MEMOPT_OK;
}

memopt_status parameters_zero_gradients(parameter_set *p, memory *m)
{
    for (uint64_t i = 0; i < p->count; i++) {
        const memopt_tensor *g = &p->list[i].gradient;
        TRY(memopt_fill(m->device, g->data, 0, g->count * memopt_dtype_size(g->dtype), NULL));
    }
    return memory_sync(m);
}
