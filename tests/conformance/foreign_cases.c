/*
 * Streams and memory that the program made with the driver itself: every primitive takes them, and
 * computes the same bits with them. On "cpu" the library's own stand in, as the reference.
 */
#include "driver.h"

#include "offload/offload.h"

#include <stdlib.h>
#include <string.h>

/* --- streams ------------------------------------------------------------------------------- */

typedef enum stream_kind {
    STREAM_DEFAULT,    /* NULL */
    STREAM_LEGACY,     /* the handle 1: the same one */
    STREAM_PER_THREAD, /* the handle 2 */
    STREAM_BLOCKING,   /* made with the default flags */
    STREAM_NON_BLOCKING
} stream_kind;

/* Skips the case where the driver has no such stream. */
static memopt_stream foreign_stream(world *w, const driver *d, stream_kind kind, int *out_made)
{
    void *stream = NULL;
    *out_made = 0;
    if (kind == STREAM_LEGACY || kind == STREAM_PER_THREAD) {
        stream = (void *)(uintptr_t)(kind == STREAM_LEGACY ? 1 : 2);
        if (d->stream_sync(stream) != 0) {
            driver_leave(w);
            skip("this driver does not know the stream handle %d", (int)(uintptr_t)stream);
        }
    } else if (kind != STREAM_DEFAULT) {
        DRIVER_OK(d->stream_create(&stream, kind == STREAM_NON_BLOCKING));
        *out_made = 1;
    }
    return (memopt_stream)stream;
}

/* Runs cases of a table whose names begin with one of the words. */
static void run_named(world *w, const conformance_case *cases, const char *const *words)
{
    for (const conformance_case *c = cases; c->name != NULL; c++)
        for (const char *const *word = words; *word != NULL; word++)
            if (strncmp(c->name, *word, strlen(*word)) == 0) {
                w->format = c->format;
                c->run(w);
            }
}

void run_everything(world *w)
{
    static const char *const device[] = {"copies", "pinned",         "events", "timing",
                                         "launch", "host_callbacks", NULL};
    static const char *const primitives[] = {"allocator", "record_stream", "checkpoint", "offload",
                                             NULL};
    static const char *const casts[] = {"cast_in_place", "cast_pairs", NULL};
    static const char *const scalers[] = {"scaler_non_finite", "scaler_scale", NULL};
    static const char *const codes[] = {"codes_every_code", "hash", NULL};
    static const char *const steps[] = {"step_plain", NULL};
    run_named(w, device_cases, device);
    run_named(w, primitive_cases, primitives);
    run_named(w, cast_cases, casts);
    run_named(w, scaler_cases, scalers);
    run_named(w, code_cases, codes);
    run_named(w, graph_cases, steps);
}

/* The library's other stream stays beside it. What is left of the allocator goes before the stream,
 * since a stream that has ended is not recognised. */
static void streams_of_the_program_work(world *w)
{
    world mine = *w;
    int made = 0;
    const driver *d = driver_enter(w);
    if (d != NULL)
        mine.stream = foreign_stream(w, d, (stream_kind)w->kind, &made);
    driver_leave(w);
    mine.allocator = new_allocator(&mine);
    run_everything(&mine);
    OK(memopt_device_sync(w->device));
    OK(memopt_stream_sync(w->device, mine.stream));
    OK(memopt_allocator_destroy(mine.allocator));
    if (made) {
        d = driver_enter(w);
        DRIVER_OK(d->stream_sync(mine.stream));
        DRIVER_OK(d->stream_destroy(mine.stream));
        driver_leave(w);
    }
    mine.allocator = w->allocator; /* the results are the case's */
    mine.stream = w->stream;
    *w = mine;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Memory of the driver's; on "cpu" of the device. size is a multiple of 512. */
static void *foreign_memory(world *w, uint64_t size)
{
    void *p = NULL;
    const driver *d = driver_enter(w);
    if (d != NULL)
        DRIVER_OK(d->mem_alloc(&p, size));
    else
        OK(memopt_allocator_alloc(w->allocator, size, MEMOPT_TAG_OTHER, w->stream, &p));
    driver_leave(w);
    return p;
}

static void free_foreign(world *w, void *p)
{
    OK(memopt_stream_sync(w->device, w->stream));
    const driver *d = driver_enter(w);
    if (d != NULL)
        DRIVER_OK(d->mem_free(p));
    else
        OK(memopt_allocator_free(w->allocator, p));
    driver_leave(w);
}

enum { COUNT = 5003, ROOM = (4 * COUNT / 512 + 1) * 512 };

static memopt_tensor foreign_tensor(world *w, memopt_dtype dtype, const float *values)
{
    memopt_tensor t = {foreign_memory(w, ROOM), COUNT, dtype};
    OK(memopt_fill(w->device, t.data, 0, ROOM, w->stream));
    if (values != NULL) {
        memopt_tensor source = new_tensor(w, COUNT, MEMOPT_DTYPE_F32, values);
        OK(memopt_cast(w->device, &t, &source, 1, NULL, w->stream));
        free_tensor(w, &source);
    }
    return t;
}

/* Parameter, model copy and gradient of a step. */
static void step_in_foreign_memory(world *w, uint32_t format)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    memopt_optimizer *optimizer = NULL;
    float values[COUNT];
    uint32_t number = 0;
    uint64_t index = 0;
    options.state_format = format;
    step.max_norm = 1;
    fill_smooth(values, COUNT, 3, 1.0f);
    memopt_tensor parameter = foreign_tensor(w, MEMOPT_DTYPE_F32, values);
    memopt_tensor copy = foreign_tensor(w, MEMOPT_DTYPE_BF16, NULL);
    memopt_tensor gradient = foreign_tensor(w, MEMOPT_DTYPE_F16, values);
    OK(memopt_optimizer_create(w->allocator, &options, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    OK(memopt_optimizer_add_parameter(
        optimizer, number, &parameter,
        &(memopt_parameter_options){
            sizeof(memopt_parameter_options), copy, NULL, 0, NULL, 0, 0, {0, 0}},
        w->stream, &index));
    for (int i = 0; i < 3; i++)
        OK(memopt_optimizer_step(optimizer, &gradient, 1, &step, w->stream));
    label(w, "step in memory of the driver's, format %u", format);
    result_of_tensor(w, &parameter);
    result_of_tensor(w, &copy);
    OK(memopt_optimizer_destroy(optimizer));
    free_foreign(w, parameter.data);
    free_foreign(w, copy.data);
    free_foreign(w, gradient.data);
}

/* Packed where it lies, and brought back both ways. */
static void offload_foreign_memory(world *w)
{
    memopt_offloader *offloader = NULL;
    memopt_ticket ticket = 0;
    int32_t kept = -1;
    void *back = NULL;
    float values[COUNT];
    fill_floats(values, COUNT, 6);
    memopt_tensor value = foreign_tensor(w, MEMOPT_DTYPE_F32, values);
    memopt_tensor into = foreign_tensor(w, MEMOPT_DTYPE_F32, NULL);
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &offloader));
    OK(mo_offloader_pack_borrowed(offloader, value.data, 4 * COUNT, w->stream, &ticket, &kept));
    CHECK(kept == 0);
    OK(memopt_offloader_wait_packed(offloader, ticket, w->stream));
    OK(memopt_fill(w->device, value.data, 0xAA, 4 * COUNT, w->stream));
    OK(mo_offloader_unpack_into(offloader, ticket, into.data, 4 * COUNT, w->stream));
    OK(memopt_offloader_unpack(offloader, ticket, w->stream, &back));
    label(w, "offloaded memory of the driver's");
    result_of_tensor(w, &into);
    result_of(w, back, 4 * COUNT);
    OK(memopt_offloader_release(offloader, ticket, w->stream));
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_destroy(offloader));
    free_foreign(w, value.data);
    free_foreign(w, into.data);
}

static void foreign_memory_works(world *w)
{
    float values[COUNT];
    fill_any_floats(values, COUNT, 4);
    memopt_tensor source = foreign_tensor(w, MEMOPT_DTYPE_F32, values);
    memopt_tensor target = foreign_tensor(w, MEMOPT_DTYPE_BF16, NULL);
    label(w, "cast in memory of the driver's");
    OK(memopt_cast(w->device, &target, &source, 1, NULL, w->stream));
    result_of_tensor(w, &target);
    /* it is none of the allocator's */
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_free(w->allocator, (char *)source.data + 512));
    free_foreign(w, source.data);
    free_foreign(w, target.data);
    step_in_foreign_memory(w, MEMOPT_STATE_F32);
    step_in_foreign_memory(w, MEMOPT_STATE_8BIT_DYNAMIC);
    offload_foreign_memory(w);
}

const conformance_case foreign_cases[] = {
    {"stream_default", streams_of_the_program_work, 1, STREAM_DEFAULT, 0},
    {"stream_legacy_handle", streams_of_the_program_work, 1, STREAM_LEGACY, 0},
    {"stream_per_thread_handle", streams_of_the_program_work, 1, STREAM_PER_THREAD, 0},
    {"stream_blocking", streams_of_the_program_work, 1, STREAM_BLOCKING, 0},
    {"stream_non_blocking", streams_of_the_program_work, 1, STREAM_NON_BLOCKING, 0},
    {"foreign_memory", foreign_memory_works, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
