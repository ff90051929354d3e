/*
 * Two devices side by side: in alternation from one thread and from a thread each, with the same
 * results; and what belongs to one is refused by the other. Two "cpu" devices are two as well.
 */
#include "conformance.h"

#include "offload/offload.h"

#include "device/device.h"
#include "kernels/hash/hash.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A second device of the back end, with a world; skips the case where there is none. */
static void open_second(world *w, world *second)
{
    char name[32];
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    memopt_device *device = NULL;
    OK(memopt_backend_get_info(w->properties.backend, &info));
    const int32_t devices = info.device_count;
    int cpu = strcmp(w->properties.backend, "cpu") == 0;
    if (devices < 2 && !cpu)
        skip("there is one %s device", w->properties.backend);
    snprintf(name, sizeof name, cpu ? "cpu" : "%s:%d", w->properties.backend,
             (w->properties.index + 1) % devices);
    OK(open_device(w->options, name, &device));
    memset(second, 0, sizeof *second);
    open_world(second, device, w->options);
}

static void close_second(world *second)
{
    free_results(second);
    close_world(second);
    OK(memopt_device_close(second->device));
}

static void check_same(const world *w, const world *second)
{
    char message[256];
    if (!same_results(second, w, message, sizeof message))
        fail(__FILE__, __LINE__, "the second device: %s", message);
}

/* --- in alternation ------------------------------------------------------------------------ */

enum { COUNT = 6001, STEPS = 4 };

/* What one device holds while the other gets its turn. */
typedef struct side {
    world *w;
    memopt_optimizer *optimizer;
    memopt_offloader *offloader;
    memopt_tensor parameter, gradient, copy;
    memopt_ticket ticket;
} side;

static void begin_side(side *s, world *w)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    float values[COUNT];
    uint32_t number = 0;
    uint64_t index = 0;
    s->w = w;
    s->ticket = 0;
    options.state_format = MEMOPT_STATE_8BIT_DYNAMIC;
    fill_smooth(values, COUNT, 9, 1.0f);
    s->parameter = new_tensor(w, COUNT, MEMOPT_DTYPE_F32, values);
    s->gradient = new_tensor(w, COUNT, MEMOPT_DTYPE_BF16, values);
    s->copy = new_tensor(w, COUNT, MEMOPT_DTYPE_F16, NULL);
    OK(memopt_optimizer_create(w->allocator, &options, &s->optimizer));
    OK(memopt_optimizer_add_group(s->optimizer, &group, &number));
    OK(memopt_optimizer_add_parameter(s->optimizer, number, &s->parameter, NULL, w->stream,
                                      &index));
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &s->offloader));
}

/* One call each, so that every call finds the other device current. */
static void part_of_step(side *s, int part)
{
    world *w = s->w;
    int32_t kept = 0;
    void *back = NULL;
    switch (part) {
    case 0:
        OK(memopt_optimizer_step(s->optimizer, &s->gradient, 1, NULL, w->stream));
        break;
    case 1:
        OK(memopt_cast(w->device, &s->copy, &s->parameter, 1, NULL, w->stream));
        break;
    case 2:
        OK(mo_offloader_pack_borrowed(s->offloader, s->copy.data, tensor_bytes(&s->copy), w->stream,
                                      &s->ticket, &kept));
        break;
    case 3:
        OK(memopt_offloader_unpack(s->offloader, s->ticket, w->stream, &back));
        label(w, "an alternate step");
        result_of(w, back, tensor_bytes(&s->copy));
        break;
    case 4:
        OK(memopt_offloader_release(s->offloader, s->ticket, w->stream));
        break;
    default:
        OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
        break;
    }
}

static void end_side(side *s)
{
    world *w = s->w;
    label(w, "parameters at the end");
    result_of_tensor(w, &s->parameter);
    OK(memopt_optimizer_destroy(s->optimizer));
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_destroy(s->offloader));
    free_tensor(w, &s->parameter);
    free_tensor(w, &s->gradient);
    free_tensor(w, &s->copy);
}

static void devices_alternate(world *w)
{
    world second;
    side sides[2];
    open_second(w, &second);
    begin_side(&sides[0], w);
    begin_side(&sides[1], &second);
    for (int i = 0; i < STEPS; i++)
        for (int part = 0; part < 6; part++) {
            part_of_step(&sides[0], part);
            part_of_step(&sides[1], part);
        }
    end_side(&sides[1]);
    end_side(&sides[0]);
    check_same(w, &second);
    close_second(&second);
}

/* --- from two threads ---------------------------------------------------------------------- */

typedef struct worker {
    world *w;
    case_outcome outcome;
    char message[512];
} worker;

static void *work(void *user)
{
    worker *me = user;
    me->outcome = run_guarded(run_everything, me->w, me->message, sizeof me->message);
    return NULL;
}

static void devices_work_in_two_threads(world *w)
{
    world second;
    worker workers[2];
    pthread_t thread;
    open_second(w, &second);
    workers[0].w = w;
    workers[1].w = &second;
    CHECK(pthread_create(&thread, NULL, work, &workers[1]) == 0);
    work(&workers[0]);
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 2; i++)
        if (workers[i].outcome != PASSED)
            fail(__FILE__, __LINE__, "device %d: %s", i, workers[i].message);
    check_same(w, &second);
    close_second(&second);
}

/* --- what belongs to the other ------------------------------------------------------------- */

/* The call must fail for what it was given, and say so. */
#define REFUSED_AS(call)                                                                           \
    do {                                                                                           \
        memopt_status refused_ = (call);                                                           \
        if (refused_ != MEMOPT_INVALID_ARGUMENT && refused_ != MEMOPT_DRIVER_ERROR)                \
            fail(__FILE__, __LINE__, "%s: %s", #call, memopt_status_name(refused_));               \
        CHECK(memopt_last_error()[0] != '\0');                                                     \
    } while (0)

static void refuse_events_and_streams(world *a, world *b, memopt_tensor *t)
{
    memopt_event *event = NULL, *mine = NULL;
    double seconds = 7;
    mo_hash_granules_args args = {t->data, t->data, 4096};
    OK(memopt_event_create(b->device, 1, &event));
    OK(memopt_event_create(a->device, 1, &mine));
    OK(memopt_event_record(event, b->stream));
    OK(memopt_event_record(mine, a->stream));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_stream_wait_event(a->device, a->stream, event));
    REFUSED_AS(memopt_event_record(event, a->stream));
    REFUSED_AS(memopt_event_record(mine, b->stream));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_event_elapsed(event, mine, &seconds));
    CHECK(seconds == 7);
    OK(memopt_event_sync(event));
    OK(memopt_event_sync(mine));
    REFUSED_AS(mo_launch(a->device, b->stream, &mo_kernel_hash_granules, &args, 1));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_stream_destroy(a->device, b->stream));
    OK(memopt_event_destroy(event));
    OK(memopt_event_destroy(mine));
}

static memopt_status run_nothing(void *user, memopt_region *region, memopt_region_pass pass,
                                 memopt_stream stream)
{
    return MEMOPT_OK;
}

static void refuse_memory(world *a, world *b, void *block)
{
    memopt_offloader *offloader = NULL, *none = NULL;
    memopt_ticket ticket = 0;
    void *pinned = NULL;
    unsigned char mine[64];
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_free(a->allocator, block));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_record_stream(a->allocator, block, a->other));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_get_block(a->allocator, block, NULL, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_create(a->device, b->allocator, NULL, &none));
    CHECK(none == NULL);
    memopt_region_callbacks callbacks = {.struct_size = sizeof callbacks, .run = run_nothing};
    memopt_region *region = NULL;
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_region_create(a->device, b->allocator, &callbacks, NULL, &region));
    CHECK(region == NULL);
    OK(memopt_offloader_create(a->device, a->allocator, NULL, &offloader));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_offloader_pack(offloader, block, 512, a->stream, &ticket));
    CHECK(ticket == 0);
    OK(memopt_offloader_destroy(offloader));
    OK(memopt_host_alloc(b->device, 4096, &pinned));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_host_free(a->device, pinned));
    OK(memopt_host_free(b->device, pinned));
    OK(memopt_host_register(b->device, mine, sizeof mine));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_host_unregister(a->device, mine));
    OK(memopt_host_unregister(b->device, mine));
}

static void strangers_are_refused(world *w)
{
    world second, *worlds[2] = {w, &second};
    float values[2048];
    memopt_tensor tensors[2];
    open_second(w, &second);
    fill_smooth(values, 2048, 3, 1.0f);
    for (int i = 0; i < 2; i++)
        tensors[i] = new_tensor(worlds[i], 2048, MEMOPT_DTYPE_F32, values);
    for (int i = 0; i < 2; i++) {
        refuse_events_and_streams(worlds[i], worlds[1 - i], &tensors[i]);
        refuse_memory(worlds[i], worlds[1 - i], tensors[1 - i].data);
    }
    for (int i = 0; i < 2; i++) {
        label(worlds[i], "after refusals");
        result_of_tensor(worlds[i], &tensors[i]);
        result(worlds[i], values, sizeof values);
        CHECK(memcmp(worlds[i]->bytes, values, sizeof values) == 0);
        free_tensor(worlds[i], &tensors[i]);
    }
    close_second(&second);
}

const conformance_case two_device_cases[] = {
    {"two_alternate", devices_alternate, 1, 0, 0},
    {"two_threads", devices_work_in_two_threads, 1, 0, 0},
    {"two_strangers", strangers_are_refused, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
