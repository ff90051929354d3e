/* Every host allocation and every device operation of the streamer fails once. */
#include "support/torture.h"
#include "unit/stream/support.h"

enum { PART = 30000, PLACE = 30208 };

typedef struct fixture {
    streaming s;
    uint64_t budget;
    int adversarial;
    void *parts[MOST_PARTS];
    uint32_t number;
    memopt_stream_part more;
} fixture;

static memopt_device *open_device(void *context)
{
    const fixture *f = context;
    return bench_open_cpu(&(bench_device){f->adversarial ? MEMOPT_STREAM_ORDER_ADVERSARIAL
                                                         : MEMOPT_STREAM_ORDER_EAGER,
                                          1, 64 * MIB, 1});
}

static void setup_world(memopt_device *device, void *context)
{
    fixture *f = context;
    world *w = &f->s.w;
    f->s = (streaming){.w = {.device = device}};
    OK(memopt_allocator_create(device, NULL, NULL, &w->allocator));
    OK(memopt_stream_create(device, &w->s));
    OK(memopt_stream_create(device, &w->t));
    OK(memopt_offloader_create(device, w->allocator, NULL, &w->offloader));
}

static void teardown_world(memopt_device *device, void *context)
{
    fixture *f = context;
    release_layers(&f->s);
    OK(memopt_device_sync(device));
    OK(memopt_offloader_destroy(f->s.w.offloader));
    OK(memopt_stream_destroy(device, f->s.w.s));
    OK(memopt_stream_destroy(device, f->s.w.t));
    OK(memopt_allocator_destroy(f->s.w.allocator));
}

/* Three layers of which one and a half fit, or two; the first two were used. */
static void setup_layers(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_world(device, context);
    OK(memopt_streamer_create(device, f->s.w.offloader, f->budget, &f->s.streamer));
    for (uint32_t i = 0; i < 3; i++)
        add_layer(&f->s, 1, PART);
    for (uint32_t i = 0; i < 2; i++) {
        OK(memopt_streamer_begin(f->s.streamer, i, f->s.w.s, f->parts));
        OK(memopt_streamer_end(f->s.streamer, i, f->s.w.s));
    }
    f->more = f->s.layers[0].parts[0];
    f->number = 99;
}

static void setup_begun(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_layers(device, context);
    OK(memopt_streamer_begin(f->s.streamer, 2, f->s.w.s, f->parts));
}

static void teardown_layers(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_streamer_destroy(f->s.streamer));
    teardown_world(device, context);
}

/* Each layer still reads as it should, within the budget. */
static void all_there(fixture *f)
{
    for (uint32_t i = 0; i < 3; i++) {
        void *parts[MOST_PARTS];
        memopt_status status = memopt_streamer_begin(f->s.streamer, i, f->s.w.t, parts);
        if (status == MEMOPT_LIMIT_REACHED)
            continue;
        OK(status);
        assert_true(is_layer(&f->s, i, parts, f->s.w.t));
        OK(memopt_streamer_end(f->s.streamer, i, f->s.w.t));
    }
    assert_true(streamed(&f->s).resident_bytes_peak <= f->budget);
}

static uint64_t begins_before(const fixture *f)
{
    return streamed(&f->s).begins;
}

static void not_begun(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(begins_before(f), 2);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_end(f->s.streamer, 2, f->s.w.s));
}

static void ends_and_reads(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_true(is_layer(&f->s, 2, f->parts, f->s.w.s));
    OK(memopt_streamer_end(f->s.streamer, 2, f->s.w.s));
    all_there(f);
}

static void reads(memopt_device *device, void *context)
{
    all_there(context);
}

static void still_begun(memopt_device *device, void *context)
{
    fixture *f = context;
    FAILS(MEMOPT_BUSY, memopt_streamer_destroy(f->s.streamer));
    assert_true(is_layer(&f->s, 2, f->parts, f->s.w.s));
}

static void not_added(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(f->number, 99);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_begin(f->s.streamer, 3, f->s.w.s, f->parts));
}

TORTURE_CALL(run_create,
             memopt_streamer_create(device, f->s.w.offloader, f->budget, &f->s.streamer))
TORTURE_UNDO(undo_create, memopt_streamer_destroy(f->s.streamer))
TORTURE_CALL(run_add, memopt_streamer_add(f->s.streamer, &f->more, 1, &f->number))
TORTURE_CALL(run_begin, memopt_streamer_begin(f->s.streamer, 2, f->s.w.s, f->parts))
TORTURE_CALL(run_end, memopt_streamer_end(f->s.streamer, 2, f->s.w.s))
TORTURE_CALL(run_write, memopt_streamer_write(f->s.streamer, 2, f->s.w.s))
TORTURE_CALL(run_evict, memopt_streamer_evict(f->s.streamer, 1))
TORTURE_CALL(run_expect, memopt_streamer_expect(f->s.streamer, (uint32_t[]){0, 1, 2}, 3))

static memopt_status run_force(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_streamer *streamer = f->s.streamer;
    f->s.streamer = NULL; /* gone whatever happens */
    return memopt_streamer_destroy_force(streamer);
}

static int64_t in_all_kinds(torture_scenario scenario)
{
    int64_t struck = 0;
    scenario.open = open_device;
    for (int kind = 0; kind < 4; kind++) {
        fixture f = {.budget = kind / 2 == 0 ? 46080 : 2 * PLACE, .adversarial = kind % 2};
        f.budget = f.budget / 512 * 512;
        struck += torture(&scenario, &f);
    }
    return struck;
}

TEST(test_making)
{
    assert_true(in_all_kinds((torture_scenario){"streamer_create", NULL, setup_world, run_create,
                                                undo_create, NULL, teardown_world, 1, 1}) > 8);
    assert_true(in_all_kinds((torture_scenario){"streamer_add", NULL, setup_layers, run_add, reads,
                                                not_added, teardown_layers, 0, 1}) > 2);
    (void)in_all_kinds((torture_scenario){"streamer_destroy_force", NULL, setup_begun, run_force,
                                          NULL, NULL, teardown_layers, 1, 1});
}

TEST(test_use)
{
    assert_true(in_all_kinds((torture_scenario){"streamer_begin", NULL, setup_layers, run_begin,
                                                ends_and_reads, not_begun, teardown_layers, 1, 1}) >
                8);
    assert_true(in_all_kinds((torture_scenario){"streamer_end", NULL, setup_begun, run_end, reads,
                                                still_begun, teardown_layers, 1, 1}) > 4);
    assert_true(
        in_all_kinds((torture_scenario){"streamer_write", NULL, setup_begun, run_write,
                                        ends_and_reads, still_begun, teardown_layers, 1, 1}) > 4);
    assert_true(in_all_kinds((torture_scenario){"streamer_evict", NULL, setup_layers, run_evict,
                                                reads, NULL, teardown_layers, 1, 1}) > 2);
    assert_true(in_all_kinds((torture_scenario){"streamer_expect", NULL, setup_layers, run_expect,
                                                reads, NULL, teardown_layers, 1, 1}) > 2);
}
