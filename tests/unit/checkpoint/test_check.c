/* The content check: what it finds, what it says, and that it finds nothing where nothing is. */
#include "layer.h"

enum { WORDS = 3000 };

static const uint32_t modes[] = {MEMOPT_CHECK_HASH, MEMOPT_CHECK_EXACT};

TEST(test_equal_runs_pass)
{
    for (int m = 0; m < 2; m++) {
        for (uint64_t seed = 0; seed < 30; seed++) {
            layer l;
            random_state random = {seed};
            uint64_t checked = 0;
            bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
            layer_open(&l, &b, "block", 0, modes[m], &random, WORDS + seed);
            for (int step = 0; step < 3; step++) {
                OK(memopt_region_forward(l.region, step == 1 ? NULL : b.stream));
                OK(memopt_device_sync(b.device)); /* inputs and outputs of two streams */
                OK(memopt_region_recompute(l.region, step == 2 ? NULL : b.stream));
                OK(memopt_region_release(l.region));
                OK(memopt_device_sync(b.device));
                checked += 2 * l.words * 8;
                l.words -= 700; /* sizes may change from step to step */
            }
            assert_int_equal(region_stats(l.region).checked_bytes, checked);
            layer_end(&l);
        }
    }
}

/* A region whose random state was not restored (here: it draws one more) is caught. */
TEST(test_wrong_random_state)
{
    for (int m = 0; m < 2; m++) {
        layer l;
        random_state random = {3};
        bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1);
        layer_open(&l, &b, "dropout.7", 0, modes[m], &random, WORDS);
        OK(memopt_region_forward(l.region, b.stream));
        l.draw_more = 1;
        FAILS_SAYING(MEMOPT_MISMATCH, "'dropout.7'", memopt_region_recompute(l.region, b.stream));
        SAYS("'hidden'");
        SAYS("random state");
        assert_int_equal(region_stats(l.region).leased_bytes, 0);
        l.draw_more = 0;
        OK(memopt_region_recompute(l.region, b.stream));
        OK(memopt_region_release(l.region));
        layer_end(&l);
    }
}

/* One byte of a value differs: the place is named. */
TEST(test_place_is_named)
{
    const uint64_t places[] = {0, 1, 4095, 4096, 12345, WORDS * 8 - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (int m = 0; m < 2; m++) {
            layer l;
            char text[96];
            bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, i);
            layer_open(&l, &b, "attention", 0, modes[m], NULL, WORDS);
            OK(memopt_region_forward(l.region, b.stream));
            OK(memopt_region_recompute(l.region, b.stream));
            uint64_t *saved = layer_saved(&l);
            unsigned char was = ((unsigned char *)saved)[places[i]];
            free(saved);
            OK(memopt_region_release(l.region));
            l.drift = was ^ 0x10u; /* the byte of the recomputed value */
            l.drift += l.drift == 0 ? 1 : 0;
            l.drift_at = places[i];
            FAILS_SAYING(MEMOPT_MISMATCH, "region 'attention'",
                         memopt_region_recompute(l.region, b.stream));
            SAYS("'hidden'");
            if (modes[m] == MEMOPT_CHECK_EXACT) {
                snprintf(text, sizeof text, "at byte %llu of %d: 0x%02x was 0x%02x",
                         (unsigned long long)places[i], WORDS * 8, (unsigned)l.drift, was);
            } else {
                uint64_t begin = places[i] / 4096 * 4096;
                uint64_t end = begin + 4096 < WORDS * 8 ? begin + 4096 : WORDS * 8;
                snprintf(text, sizeof text, "bytes %llu to %llu of %d", (unsigned long long)begin,
                         (unsigned long long)end - 1, WORDS * 8);
            }
            SAYS(text);
            l.drift = 0;
            OK(memopt_region_recompute(l.region, b.stream));
            layer_end(&l);
        }
    }
}

TEST(test_declarations_must_agree)
{
    for (int m = 0; m < 2; m++) {
        for (int ignore = 0; ignore < 2; ignore++) {
            layer l;
            bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
            layer_open(&l, &b, "block", 0, modes[m], NULL, WORDS);
            OK(memopt_region_forward(l.region, b.stream));
            l.ignore_status = ignore;
            l.no_declaration = 1;
            FAILS_SAYING(MEMOPT_MISMATCH, "'out' of 24000 bytes is missing",
                         memopt_region_recompute(l.region, b.stream));
            l.no_declaration = 0;
            l.extra_declaration = 1;
            FAILS_SAYING(MEMOPT_MISMATCH, "'more' of 24000 bytes",
                         memopt_region_recompute(l.region, b.stream));
            l.extra_declaration = 0;
            l.other_name = "value";
            FAILS_SAYING(MEMOPT_MISMATCH,
                         "is 'value' of 24000 bytes in recompute, but was 'hidden' of 24000 bytes",
                         memopt_region_recompute(l.region, b.stream));
            l.other_name = NULL;
            OK(memopt_region_recompute(l.region, b.stream));
            layer_end(&l);
        }
    }
}

/* Without a check mode a declaration is looked at and forgotten. */
TEST(test_no_check_costs_nothing)
{
    layer l;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
    OK(memopt_region_forward(l.region, b.stream));
    assert_int_equal(active_bytes(&b), 0);
    l.drift = 1;
    OK(memopt_region_recompute(l.region, b.stream));
    assert_int_equal(region_stats(l.region).checked_bytes, 0);
    layer_end(&l);
}

static memopt_status declare_bad(void *user, memopt_region *region, memopt_region_pass pass,
                                 memopt_stream stream)
{
    static char memory[64];
    const memopt_tensor bad[] = {
        {memory, 1, 77},
        {memory, UINT64_MAX / 2, MEMOPT_DTYPE_F64},
        {NULL, 1, MEMOPT_DTYPE_F32},
    };
    const memopt_tensor empty = {NULL, 0, MEMOPT_DTYPE_F32};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        REFUSED_SAYING("'bad'", memopt_region_check(region, "bad", &bad[i]));
    }
    return memopt_region_check(region, "empty", &empty);
}

TEST(test_bad_tensors)
{
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    for (uint32_t check = 0; check <= MEMOPT_CHECK_EXACT; check++) {
        memopt_region *region;
        memopt_region_callbacks callbacks = {sizeof callbacks, declare_bad, NULL, NULL, NULL};
        memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
        options.check = check;
        OK(memopt_region_create(b.device, b.allocator, &callbacks, &options, &region));
        OK(memopt_region_forward(region, b.stream));
        OK(memopt_region_recompute(region, b.stream));
        OK(memopt_region_destroy(region));
    }
    bench_close(&b);
}

/* The device is asked for the values in stream order: what the callback does to them after the
 * declaration does not count, in either run. */
static memopt_status overwrite_after(void *user, memopt_region *region, memopt_region_pass pass,
                                     memopt_stream stream)
{
    layer *l = user;
    l->region = region;
    memopt_status status = layer_run(user, region, pass, stream);
    if (status == MEMOPT_OK)
        status = memopt_fill(l->b->device, l->out, pass == MEMOPT_PASS_FORWARD ? 1 : 2,
                             l->words * 8, stream);
    return status;
}

TEST(test_values_count_as_declared)
{
    for (int m = 0; m < 2; m++) {
        for (uint64_t seed = 0; seed < 30; seed++) {
            layer l;
            bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
            layer_open(&l, &b, "block", 0, modes[m], NULL, WORDS);
            OK(memopt_region_destroy(l.region));
            memopt_region_callbacks callbacks = {sizeof callbacks, overwrite_after, NULL, NULL, &l};
            memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
            options.check = modes[m];
            OK(memopt_region_create(b.device, b.allocator, &callbacks, &options, &l.region));
            OK(memopt_region_forward(l.region, b.stream));
            OK(memopt_region_recompute(l.region, b.stream));
            layer_end(&l);
        }
    }
}

/* Forward on one stream, forward again on another with inputs and outputs of its own: nothing of
 * the caller's orders the two, but the region's own memory is the same. */
TEST(test_forward_on_another_stream)
{
    for (int m = 0; m < 2; m++) {
        for (uint64_t seed = 0; seed < 100; seed++) {
            layer l, second;
            bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
            memopt_stream other = stream_on(b.device);
            layer_open(&l, &b, "block", 0, modes[m], NULL, WORDS);
            layer_open(&second, &b, "memory", 0, 0, NULL, WORDS);
            OK(memopt_fill(b.device, (void *)(uintptr_t)second.in, 0x17, WORDS * 8, b.stream));
            OK(memopt_device_sync(b.device));
            OK(memopt_region_forward(l.region, b.stream));
            const void *in = l.in;
            void *out = l.out;
            l.in = second.in;
            l.out = second.out;
            OK(memopt_region_forward(l.region, other));
            OK(memopt_stream_sync(b.device, other));
            OK(memopt_stream_sync(b.device, b.stream)); /* the older run's copies come late */
            OK(memopt_region_recompute(l.region, other));
            OK(memopt_region_release(l.region));
            l.in = in;
            l.out = out;
            OK(memopt_device_sync(b.device));
            layer_close(&l);
            layer_close(&second);
            bench_close(&b);
        }
    }
}
