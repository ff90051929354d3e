/* A device with an allocator, and tensors in it. */
#ifndef TEST_OPTIM_FIXTURE_H
#define TEST_OPTIM_FIXTURE_H

#include "support.h"

#include "memopt/optim.h"
#include "support/bench.h"

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
    void *blocks[64];
    int block_count;
} world;

/* order: a memopt_stream_order. With a stream of its own, work is asynchronous. */
static inline world open_world(uint32_t order, int own_stream)
{
    world w;
    memset(&w, 0, sizeof w);
    const bench_device wanted = {order, 12345, 512 * MIB, 2};
    w.device = bench_open_cpu(&wanted);
    OK(memopt_allocator_create(w.device, "expandable_segments:True", NULL, &w.allocator));
    if (own_stream)
        OK(memopt_stream_create(w.device, &w.stream));
    return w;
}

static inline void close_world(world *w)
{
    OK(memopt_stream_sync(w->device, w->stream));
    for (int i = 0; i < w->block_count; i++)
        OK(memopt_allocator_free(w->allocator, w->blocks[i]));
    OK(memopt_allocator_destroy(w->allocator));
    OK(memopt_stream_destroy(w->device, w->stream));
    OK(memopt_device_close(w->device));
}

/* A tensor filled from host floats; freed with the world. */
static inline memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype,
                                       const float *values)
{
    memopt_tensor t = {NULL, count, dtype};
    uint64_t bytes = count * memopt_dtype_size(dtype);
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_OTHER, w->stream, &t.data));
    w->blocks[w->block_count++] = t.data;
    void *host = malloc(bytes);
    for (uint64_t i = 0; i < count; i++)
        mo_store_element(host, i, dtype, values == NULL ? 0.0f : values[i]);
    OK(memopt_copy(w->device, t.data, host, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    free(host);
    return t;
}

static inline void write_tensor(world *w, const memopt_tensor *t, const float *values)
{
    uint64_t bytes = t->count * memopt_dtype_size(t->dtype);
    void *host = malloc(bytes);
    for (uint64_t i = 0; i < t->count; i++)
        mo_store_element(host, i, t->dtype, values[i]);
    OK(memopt_copy(w->device, t->data, host, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    free(host);
}

/* The bytes of a tensor; the caller frees them. */
static inline void *read_bytes(world *w, const memopt_tensor *t)
{
    uint64_t bytes = t->count * memopt_dtype_size(t->dtype);
    void *host = malloc(bytes);
    OK(memopt_copy(w->device, host, t->data, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    return host;
}

static inline void read_floats(world *w, const memopt_tensor *t, float *out)
{
    void *host = read_bytes(w, t);
    for (uint64_t i = 0; i < t->count; i++)
        out[i] = mo_load_element(host, i, t->dtype);
    free(host);
}

/* A whole export; the caller frees it. */
static inline unsigned char *export_all(world *w, memopt_optimizer *o, uint64_t *bytes)
{
    OK(memopt_optimizer_get_export_size(o, bytes));
    unsigned char *buffer = malloc(*bytes);
    OK(memopt_optimizer_export_sync(o, *bytes, w->stream, buffer));
    return buffer;
}

static inline memopt_optimizer *new_optimizer_of(world *w, uint32_t kind, uint32_t format,
                                                 const memopt_optimizer_group *group)
{
    memopt_optimizer *o;
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group defaults = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t number;
    options.kind = kind;
    options.state_format = format;
    options.min_8bit_size = 1;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, group == NULL ? &defaults : group, &number));
    return o;
}

static inline memopt_optimizer *new_optimizer(world *w, uint32_t format,
                                              const memopt_optimizer_group *group)
{
    return new_optimizer_of(w, MEMOPT_OPTIMIZER_ADAMW, format, group);
}

#endif
