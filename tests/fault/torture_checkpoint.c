/* Every host allocation and every device operation of the regions fails once. */
#include "support/torture.h"
#include "unit/checkpoint/layer.h"

enum { WORDS = 1500 };

typedef struct fixture {
    uint32_t mode, check;
    int adversarial;
    bench b;
    memopt_stream other;
    layer l;
    random_state random;
    random_state before;
    uint64_t out; /* the first word of the first run's output */
} fixture;

static memopt_device *open_device(void *context)
{
    const fixture *f = context;
    return bench_open_cpu(&(bench_device){f->adversarial ? MEMOPT_STREAM_ORDER_ADVERSARIAL
                                                         : MEMOPT_STREAM_ORDER_EAGER,
                                          0, 64 * MIB, 1});
}

static void setup_bench(memopt_device *device, void *context)
{
    fixture *f = context;
    f->b.device = device;
    OK(memopt_allocator_create(device, NULL, NULL, &f->b.allocator));
    OK(memopt_stream_create(device, &f->b.stream));
    OK(memopt_stream_create(device, &f->other));
}

static void teardown_bench(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_device_sync(device));
    OK(memopt_stream_destroy(device, f->other));
    OK(memopt_stream_destroy(device, f->b.stream));
    OK(memopt_allocator_destroy(f->b.allocator));
}

static void setup_region(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_bench(device, context);
    f->random.counter = 4711;
    layer_open(&f->l, &f->b, "tortured", f->mode, f->check, &f->random, WORDS);
    OK(memopt_device_sync(device));
    f->before = f->random;
}

static void setup_forwarded(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_region(device, context);
    OK(memopt_region_forward(f->l.region, f->b.stream));
    OK(memopt_copy(device, &f->out, f->l.out, 8, f->b.stream));
    OK(memopt_device_sync(device));
    f->before = f->random;
}

static void setup_held(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_forwarded(device, context);
    OK(memopt_region_recompute(f->l.region, f->other));
}

static void teardown_region(memopt_device *device, void *context)
{
    fixture *f = context;
    layer_close(&f->l);
    teardown_bench(device, context);
}

static memopt_status run_create(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_region_callbacks callbacks = {sizeof callbacks, layer_run, layer_random_save,
                                         layer_random_restore, &f->l};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    options.name = "tortured";
    options.check = f->check;
    options.random_bytes = sizeof(random_state);
    return memopt_region_create(device, f->b.allocator, &callbacks, &options, &f->l.region);
}

TORTURE_UNDO(undo_create, memopt_region_destroy(f->l.region))
TORTURE_CALL(run_forward, memopt_region_forward(f->l.region, f->b.stream))

/* The generator is where it was, nothing is leased. */
static void nothing_leased(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(f->random.counter, f->before.counter);
    assert_int_equal(region_stats(f->l.region).leased_bytes, 0);
}

static void forward_worked(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(region_stats(f->l.region).forwards, 1);
    OK(memopt_device_sync(device));
    OK(memopt_region_recompute(f->l.region, f->b.stream)); /* and passes its check */
    OK(memopt_region_release(f->l.region));
}

TORTURE_CALL(run_recompute, memopt_region_recompute(f->l.region, f->other))

static void recompute_worked(memopt_device *device, void *context)
{
    fixture *f = context;
    uint64_t out = 0;
    OK(memopt_device_sync(device));
    OK(memopt_copy(device, &out, f->l.out, 8, f->other));
    OK(memopt_stream_sync(device, f->other));
    assert_int_equal(out, f->out);
    assert_int_equal(f->random.counter, f->before.counter);
    assert_int_equal(region_stats(f->l.region).leased_bytes, WORDS * 8);
}

static void still_kept(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(region_stats(f->l.region).leased_bytes, WORDS * 8);
}

TORTURE_CALL(run_release, memopt_region_release(f->l.region))

static void released(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(region_stats(f->l.region).leased_bytes, 0);
    OK(memopt_region_forward(f->l.region, f->b.stream));
}

/* In all check modes and both orders. */
static void in_all_modes(const torture_scenario *scenario, uint32_t mode)
{
    for (uint32_t check = 0; check <= MEMOPT_CHECK_EXACT; check++) {
        for (int adversarial = 0; adversarial < 2; adversarial++) {
            fixture f = {.mode = mode, .check = check, .adversarial = adversarial};
            (void)torture(scenario, &f);
        }
    }
}

TEST(test_create)
{
    static const torture_scenario create = {.name = "region_create",
                                            .open = open_device,
                                            .setup = setup_bench,
                                            .run = run_create,
                                            .undo = undo_create,
                                            .teardown = teardown_bench};
    in_all_modes(&create, MEMOPT_REGION_RECOMPUTE);
    fixture f = {.check = MEMOPT_CHECK_HASH};
    assert_true(torture(&create, &f) >= 5);
}

TEST(test_forward)
{
    static const torture_scenario forward = {.name = "region_forward",
                                             .open = open_device,
                                             .setup = setup_region,
                                             .run = run_forward,
                                             .undo = forward_worked,
                                             .check_unchanged = nothing_leased,
                                             .teardown = teardown_region,
                                             .absorbs = 1,
                                             .caches = 1};
    in_all_modes(&forward, MEMOPT_REGION_RECOMPUTE);
    fixture f = {.check = MEMOPT_CHECK_EXACT};
    assert_true(torture(&forward, &f) >= 8);
}

TEST(test_recompute)
{
    static const torture_scenario recompute = {.name = "region_recompute",
                                               .open = open_device,
                                               .setup = setup_forwarded,
                                               .run = run_recompute,
                                               .undo = recompute_worked,
                                               .check_unchanged = nothing_leased,
                                               .teardown = teardown_region,
                                               .absorbs = 1,
                                               .caches = 1};
    in_all_modes(&recompute, MEMOPT_REGION_RECOMPUTE);
    fixture f = {.check = MEMOPT_CHECK_HASH};
    assert_true(torture(&recompute, &f) >= 10);
}

TEST(test_recompute_of_kept)
{
    static const torture_scenario recompute = {.name = "region_recompute, kept",
                                               .open = open_device,
                                               .setup = setup_forwarded,
                                               .run = run_recompute,
                                               .undo = still_kept,
                                               .check_unchanged = still_kept,
                                               .teardown = teardown_region,
                                               .absorbs = 1,
                                               .caches = 1};
    in_all_modes(&recompute, MEMOPT_REGION_KEEP);
}

TEST(test_release)
{
    static const torture_scenario release = {.name = "region_release",
                                             .open = open_device,
                                             .setup = setup_held,
                                             .run = run_release,
                                             .undo = released,
                                             .check_unchanged = still_kept,
                                             .teardown = teardown_region,
                                             .absorbs = 1,
                                             .caches = 1};
    in_all_modes(&release, MEMOPT_REGION_KEEP); /* on two streams: its frees can fail */
}
