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
    memopt_optimizer *optimizers[8];
    int optimizer_count;
} world;

/* order: a memopt_stream_order. With a stream of its own, work is asynchronous. */
static inline world open_world(uint32_t order, int own_stream)
{
    world w = {.device = bench_open_cpu(&(bench_device){order, 12345, 512 * MIB, 2})};
    OK(memopt_allocator_create(w.device, "expandable_segments:True", NULL, &w.allocator));
    w.stream = own_stream ? stream_on(w.device) : NULL;
    return w;
}

/* Before the world ends. */
static inline void end_optimizer(world *w, memopt_optimizer *o)
{
    int at = 0;
    while (w->optimizers[at] != o)
        at++;
    w->optimizers[at] = w->optimizers[--w->optimizer_count];
    OK(memopt_optimizer_destroy(o));
}

/* With its optimizers, tensors and streams. */
static inline void close_world(world *w)
{
    OK(memopt_stream_sync(w->device, w->stream));
    while (w->optimizer_count > 0)
        end_optimizer(w, w->optimizers[0]);
    bench_close_device(w->device, w->allocator);
}

/* Nearly normal numbers; the next call overwrites them. */
static inline float *noise(uint64_t seed, float scale)
{
    enum { COUNT = 20001 };
    static float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = normal(&seed) * scale;
    return values;
}

/* A tensor filled from host floats. */
static inline memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype,
                                       const float *values)
{
    memopt_tensor t = {NULL, count, dtype};
    uint64_t bytes = count * memopt_dtype_size(dtype);
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_OTHER, w->stream, &t.data));
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
    OK(memopt_optimizer_export_sync(o, 0, NULL, NULL, bytes));
    unsigned char *buffer = malloc(*bytes);
    OK(memopt_optimizer_export_sync(o, *bytes, w->stream, buffer, NULL));
    return buffer;
}

/* The optimizer's export is this one, which is freed. */
static inline void exports_as(world *w, memopt_optimizer *o, unsigned char *wanted, uint64_t bytes)
{
    uint64_t count;
    unsigned char *found = export_all(w, o, &count);
    assert_int_equal(count, bytes);
    assert_memory_equal(found, wanted, bytes);
    free(found);
    free(wanted);
}

/* group NULL: AdamW's. */
static inline memopt_optimizer *make_optimizer(world *w, memopt_optimizer_options options,
                                               const memopt_optimizer_group *group)
{
    memopt_optimizer_group defaults = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *o;
    uint32_t number;
    options.struct_size = sizeof options;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, group == NULL ? &defaults : group, &number));
    return w->optimizers[w->optimizer_count++] = o;
}

static inline memopt_optimizer *new_optimizer_of(world *w, uint32_t kind, uint32_t format,
                                                 const memopt_optimizer_group *group)
{
    const memopt_optimizer_options options = {
        .kind = kind, .state_format = format, .min_8bit_size = 1};
    return make_optimizer(w, options, group);
}

/* Its number. */
static inline uint64_t add_parameter(world *w, memopt_optimizer *o, const memopt_tensor *p)
{
    uint64_t index;
    OK(memopt_optimizer_add_parameter(o, 0, p, NULL, w->stream, &index));
    return index;
}

/* All that a step may change: an export, and the bytes of the tensors. The caller frees it. */
static inline unsigned char *everything_of(world *w, memopt_optimizer *o,
                                           const memopt_tensor *tensors, int count,
                                           uint64_t *out_bytes)
{
    unsigned char *all = export_all(w, o, out_bytes);
    for (int i = 0; i < count; i++) {
        uint64_t size = tensors[i].count * memopt_dtype_size(tensors[i].dtype);
        void *bytes = read_bytes(w, &tensors[i]);
        all = realloc(all, *out_bytes + size);
        memcpy(all + *out_bytes, bytes, size);
        *out_bytes += size;
        free(bytes);
    }
    return all;
}

static inline memopt_optimizer *new_optimizer(world *w, uint32_t format,
                                              const memopt_optimizer_group *group)
{
    return new_optimizer_of(w, MEMOPT_OPTIMIZER_ADAMW, format, group);
}

#endif
