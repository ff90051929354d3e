/* Regions: states, leases, nesting, random state, errors. The content check has its own file. */
#include "layer.h"

#include "base/memory.h"

enum { WORDS = 3000 };

TEST(test_leases_end_with_forward_and_come_back)
{
    layer l;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", MEMOPT_REGION_RECOMPUTE, MEMOPT_CHECK_NONE, NULL, WORDS);
    OK(memopt_region_forward(l.region, b.stream));
    assert_int_equal(active_bytes(&b), 0);
    assert_int_equal(region_stats(l.region).dropped_bytes, WORDS * 8);
    assert_int_equal(region_stats(l.region).leased_bytes, 0);
    for (int again = 0; again < 3; again++) { /* a graph kept for several backward passes */
        OK(memopt_region_recompute(l.region, b.stream));
        assert_int_equal(l.pass, MEMOPT_PASS_RECOMPUTE);
        assert_int_equal(active_bytes(&b), WORDS * 8);
        assert_int_equal(region_stats(l.region).leased_bytes, WORDS * 8);
        uint64_t *saved = layer_saved(&l);
        for (int i = 0; i < WORDS; i++)
            assert_int_equal(saved[i], 0x5A5A5A5A5A5A5A5Au * 0x9E3779B97F4A7C15u + 5);
        free(saved);
        OK(memopt_region_release(l.region));
        assert_int_equal(active_bytes(&b), 0);
    }
    assert_int_equal(region_stats(l.region).forwards, 1);
    assert_int_equal(region_stats(l.region).recomputes, 3);
    layer_end(&l);
}

TEST(test_keep_mode_recomputes_nothing)
{
    layer l;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", MEMOPT_REGION_KEEP, MEMOPT_CHECK_NONE, NULL, WORDS);
    OK(memopt_region_forward(l.region, b.stream));
    assert_int_equal(active_bytes(&b), WORDS * 8);
    OK(memopt_region_forward(l.region, b.stream)); /* an evaluation: no backward between them */
    assert_int_equal(active_bytes(&b), WORDS * 8);
    uint64_t *saved = l.saved;
    OK(memopt_region_recompute(l.region, b.stream));
    assert_int_equal(l.runs, 2);
    assert_ptr_equal(l.saved, saved);
    FAILS(MEMOPT_BUSY, memopt_region_recompute(l.region, b.stream)); /* as without keep */
    OK(memopt_region_release(l.region));
    assert_int_equal(active_bytes(&b), 0);
    OK(memopt_region_recompute(l.region, b.stream)); /* a second backward: now it must run */
    assert_int_equal(l.runs, 3);
    assert_int_equal(active_bytes(&b), WORDS * 8);
    OK(memopt_region_release(l.region));
    layer_end(&l);
}

/* Backward on another stream than a keeping forward: the free waits for it. */
TEST(test_kept_leases_on_two_streams)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        layer l;
        void *result, *next;
        uint64_t host = 0;
        bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
        layer_open(&l, &b, "block", MEMOPT_REGION_KEEP, MEMOPT_CHECK_NONE, NULL, WORDS);
        memopt_stream other = stream_on(b.device);
        memopt_event *event = event_on(b.device);
        OK(memopt_allocator_alloc(b.allocator, 64, MEMOPT_TAG_OTHER, other, &result));
        OK(memopt_region_forward(l.region, b.stream));
        OK(memopt_event_record(event, b.stream));
        OK(memopt_stream_wait_event(b.device, other, event));
        OK(memopt_region_recompute(l.region, other));
        OK(memopt_copy(b.device, result, l.saved, 8, other)); /* "backward" */
        OK(memopt_region_release(l.region));
        OK(memopt_allocator_alloc(b.allocator, WORDS * 8, MEMOPT_TAG_OTHER, b.stream, &next));
        OK(memopt_fill(b.device, next, 0, WORDS * 8, b.stream));
        OK(memopt_stream_sync(b.device, b.stream));
        OK(memopt_copy(b.device, &host, result, 8, other));
        OK(memopt_stream_sync(b.device, other));
        assert_int_equal(host, 0x5A5A5A5A5A5A5A5Au * 0x9E3779B97F4A7C15u + 5);
        OK(memopt_device_sync(b.device));
        OK(memopt_allocator_free(b.allocator, next));
        OK(memopt_allocator_free(b.allocator, result));
        OK(memopt_event_destroy(event));
        layer_close(&l);
        bench_close(&b);
    }
}

/* Leases of forward are freed while the work that uses them still waits. */
TEST(test_frees_are_in_stream_order)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        layer first, second;
        bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
        layer_open(&first, &b, "first", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
        layer_open(&second, &b, "second", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
        OK(memopt_region_forward(first.region, b.stream));
        void *lease = first.saved;
        OK(memopt_region_forward(second.region, b.stream));
        assert_ptr_equal(second.saved, lease); /* the memory is used again at once */
        OK(memopt_region_recompute(second.region, b.stream));
        OK(memopt_region_release(second.region));
        OK(memopt_region_recompute(first.region, b.stream));
        uint64_t *saved = layer_saved(&first);
        for (int i = 0; i < WORDS; i++)
            assert_int_equal(saved[i], 0x5A5A5A5A5A5A5A5Au * 0x9E3779B97F4A7C15u + 5);
        free(saved);
        OK(memopt_region_release(first.region));
        layer_close(&first);
        layer_end(&second);
    }
}

TEST(test_nested)
{
    layer outer, inner;
    random_state random = {1};
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&outer, &b, "outer", 0, MEMOPT_CHECK_HASH, &random, WORDS);
    layer_open(&inner, &b, "inner", 0, MEMOPT_CHECK_HASH, &random, WORDS / 2);
    outer.inner = &inner;
    OK(memopt_region_forward(outer.region, b.stream));
    uint64_t *inner_out = malloc(WORDS / 2 * 8), *outer_out = malloc(WORDS * 8);
    assert_true(inner_out != NULL && outer_out != NULL);
    OK(memopt_copy(b.device, inner_out, inner.out, WORDS / 2 * 8, b.stream));
    OK(memopt_copy(b.device, outer_out, outer.out, WORDS * 8, b.stream));
    OK(memopt_stream_sync(b.device, b.stream));

    random.counter = 12345;                              /* other regions have drawn since */
    OK(memopt_region_recompute(outer.region, b.stream)); /* runs inner forward again */
    assert_int_equal(random.counter, 12345);
    assert_int_equal(inner.runs, 2);
    OK(memopt_region_recompute(inner.region, b.stream)); /* inside outer's backward */
    assert_int_equal(random.counter, 12345);
    assert_int_equal(region_stats(inner.region).leased_bytes, WORDS / 2 * 8);
    OK(memopt_stream_sync(b.device, b.stream));
    assert_memory_equal(inner_out, inner.out, WORDS / 2 * 8);
    assert_memory_equal(outer_out, outer.out, WORDS * 8);
    FAILS(MEMOPT_BUSY, memopt_region_forward(inner.region, b.stream));
    OK(memopt_region_release(inner.region));
    OK(memopt_region_release(outer.region));
    free(inner_out);
    free(outer_out);
    layer_close(&outer);
    layer_end(&inner);
}

TEST(test_random_state)
{
    layer l;
    random_state random = {77};
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "dropout", 0, MEMOPT_CHECK_NONE, &random, WORDS);
    OK(memopt_region_forward(l.region, b.stream));
    uint64_t after = random.counter;
    assert_int_not_equal(after, 77);
    uint64_t first;
    OK(memopt_copy(b.device, &first, l.out, 8, b.stream));
    OK(memopt_stream_sync(b.device, b.stream));
    random.counter = 999;
    OK(memopt_region_recompute(l.region, b.stream));
    OK(memopt_stream_sync(b.device, b.stream));
    assert_int_equal(*(uint64_t *)l.out, first);
    assert_int_equal(random.counter, 999);
    OK(memopt_region_release(l.region));

    l.fail_with = MEMOPT_STATUS_USER + 7; /* put back also when the callback fails */
    l.fail_pass = MEMOPT_PASS_RECOMPUTE;
    FAILS_SAYING(MEMOPT_STATUS_USER + 7, "its callback run returned status 65543 (USER)",
                 memopt_region_recompute(l.region, b.stream));
    assert_int_equal(random.counter, 999);
    assert_int_equal(active_bytes(&b), 0);
    l.fail_with = MEMOPT_OK;
    OK(memopt_region_recompute(l.region, b.stream));
    OK(memopt_stream_sync(b.device, b.stream));
    assert_int_equal(*(uint64_t *)l.out, first);
    OK(memopt_region_release(l.region));

    l.fail_with = MEMOPT_STATUS_USER + 8; /* a forward that failed can be tried again the same */
    l.fail_pass = MEMOPT_PASS_FORWARD;
    random.counter = 77;
    FAILS_SAYING(MEMOPT_STATUS_USER + 8, "callback run returned",
                 memopt_region_forward(l.region, b.stream));
    assert_int_equal(random.counter, 77);
    layer_end(&l);
}

static int random_status[4], random_calls;

static memopt_status failing_save(void *user, void *out)
{
    memcpy(out, ((layer *)user)->random, sizeof(random_state));
    return random_status[random_calls++];
}

static memopt_status failing_restore(void *user, const void *in)
{
    memopt_status status = random_status[random_calls++];
    if (status == MEMOPT_OK)
        memcpy(((layer *)user)->random, in, sizeof(random_state));
    return status;
}

/* Each of the three calls around a recompute may fail; the region stays as it was. */
TEST(test_random_callbacks_fail)
{
    layer l;
    random_state random = {5};
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "dropout", 0, MEMOPT_CHECK_NONE, &random, WORDS);
    OK(memopt_region_destroy(l.region));
    memopt_region_callbacks callbacks = {sizeof callbacks, layer_run, failing_save, failing_restore,
                                         &l};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    options.random_bytes = sizeof(random_state);
    OK(memopt_region_create(b.device, b.allocator, &callbacks, &options, &l.region));

    random_status[0] = MEMOPT_STATUS_USER + 1;
    FAILS_SAYING(MEMOPT_STATUS_USER + 1, "callback random_save returned status 65537",
                 memopt_region_forward(l.region, b.stream));
    assert_int_equal(l.runs, 0);
    REFUSED(memopt_region_recompute(l.region, b.stream));
    random_status[0] = MEMOPT_OK;
    random_calls = 0;
    OK(memopt_region_forward(l.region, b.stream));
    for (int at = 0; at < 3; at++) {
        memset(random_status, 0, sizeof random_status);
        random_status[at] = MEMOPT_STATUS_USER + at;
        random_calls = 0;
        random.counter = 31;
        FAILS_SAYING(MEMOPT_STATUS_USER + at, at == 0 ? "random_save" : "random_restore returned",
                     memopt_region_recompute(l.region, b.stream));
        assert_int_equal(active_bytes(&b), 0);
        if (at < 2)
            assert_int_equal(random.counter, 31);
    }
    memset(random_status, 0, sizeof random_status);
    random_status[2] = MEMOPT_STATUS_USER + 9; /* the first failure's status and words stay */
    random_calls = 0;
    l.fail_with = MEMOPT_STATUS_USER + 8;
    l.fail_pass = MEMOPT_PASS_RECOMPUTE;
    FAILS_SAYING(MEMOPT_STATUS_USER + 8, "callback run returned status 65544",
                 memopt_region_recompute(l.region, b.stream));
    l.fail_with = MEMOPT_OK;
    memset(random_status, 0, sizeof random_status);
    random_calls = 0;
    OK(memopt_region_recompute(l.region, b.stream));
    OK(memopt_region_release(l.region));
    layer_end(&l);
}

static memopt_status meddle(void *user, memopt_region *region, memopt_region_pass pass,
                            memopt_stream stream)
{
    int *calls = user;
    (*calls)++;
    FAILS_SAYING(MEMOPT_BUSY, "own callback", memopt_region_forward(region, stream));
    FAILS(MEMOPT_BUSY, memopt_region_recompute(region, stream));
    FAILS(MEMOPT_BUSY, memopt_region_release(region));
    FAILS(MEMOPT_BUSY, memopt_region_destroy(region));
    return MEMOPT_OK;
}

TEST(test_states)
{
    layer l;
    int calls = 0;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
    REFUSED_SAYING("'block'", memopt_region_recompute(l.region, b.stream));
    OK(memopt_region_release(l.region));
    OK(memopt_region_forward(l.region, b.stream));
    OK(memopt_region_forward(l.region, b.stream)); /* the newer run counts */
    OK(memopt_region_recompute(l.region, b.stream));
    FAILS(MEMOPT_BUSY, memopt_region_recompute(l.region, b.stream));
    FAILS_SAYING(MEMOPT_BUSY, "23.44 KiB", memopt_region_forward(l.region, b.stream));
    OK(memopt_region_release(l.region));
    OK(memopt_region_release(l.region));
    OK(memopt_region_recompute(l.region, b.stream));
    layer_close(&l); /* ends its leases, too */
    assert_int_equal(active_bytes(&b), 0);

    memopt_region_callbacks callbacks = {sizeof callbacks, meddle, NULL, NULL, &calls};
    OK(memopt_region_create(b.device, b.allocator, &callbacks, NULL, &l.region));
    OK(memopt_region_forward(l.region, b.stream));
    OK(memopt_region_recompute(l.region, b.stream));
    assert_int_equal(calls, 2);
    OK(memopt_region_destroy(l.region));
    OK(memopt_region_destroy(NULL));
    bench_close(&b);
}

TEST(test_errors_come_out_unchanged)
{
    layer l;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
    l.fail_with = MEMOPT_STATUS_USER + 41;
    l.fail_pass = MEMOPT_PASS_FORWARD;
    GIVES(MEMOPT_STATUS_USER + 41, memopt_region_forward(l.region, b.stream));
    assert_int_equal(active_bytes(&b), 0);
    assert_int_equal(region_stats(l.region).forwards, 0);
    REFUSED(memopt_region_recompute(l.region, b.stream));
    l.fail_pass = MEMOPT_PASS_RECOMPUTE;
    OK(memopt_region_forward(l.region, b.stream));
    GIVES(MEMOPT_STATUS_USER + 41, memopt_region_recompute(l.region, b.stream));
    assert_int_equal(active_bytes(&b), 0);
    assert_int_equal(region_stats(l.region).recomputes, 0);
    l.fail_with = MEMOPT_OK;
    OK(memopt_region_recompute(l.region, b.stream));

    /* No memory: the library's own status comes through the callback. */
    OK(memopt_region_release(l.region));
    uint64_t limit = 0;
    OK(memopt_allocator_get_stat(b.allocator, "reserved_bytes.all.current", &limit));
    OK(memopt_allocator_set_limit(b.allocator, limit));
    l.words = 4 << 20;
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_region_forward(l.region, b.stream));
    assert_int_equal(active_bytes(&b), 0);
    l.words = WORDS;
    OK(memopt_region_forward(l.region, b.stream));
    layer_end(&l);
}

/* The two runs must lease the same; what differs is named. */
TEST(test_leases_must_agree)
{
    layer l;
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "ffn.3", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
    OK(memopt_region_forward(l.region, b.stream));
    for (int ignore = 0; ignore < 2; ignore++) { /* also if the callback goes on */
        l.ignore_status = ignore;
        l.other_words = WORDS + 1;
        FAILS_SAYING(MEMOPT_MISMATCH, "'ffn.3'", memopt_region_recompute(l.region, b.stream));
        SAYS("lease 0 is 24008 bytes in recompute, but was 24000 bytes");
        l.other_words = 0;
        l.extra_lease = 1;
        FAILS_SAYING(MEMOPT_MISMATCH, "lease 1 of 64 bytes",
                     memopt_region_recompute(l.region, b.stream));
        l.extra_lease = 0;
        l.no_lease = 1;
        FAILS_SAYING(MEMOPT_MISMATCH, "lease 0 of 24000 bytes is missing",
                     memopt_region_recompute(l.region, b.stream));
        l.no_lease = 0;
        assert_int_equal(active_bytes(&b), 0);
    }
    OK(memopt_region_recompute(l.region, b.stream));
    layer_end(&l);
}

TEST(test_bad_input)
{
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer l;
    memopt_region *region = NULL;
    void *pointer = NULL;
    memopt_tensor tensor = {&b, 1, MEMOPT_DTYPE_F32};
    layer_open(&l, &b, "block", 0, MEMOPT_CHECK_NONE, NULL, WORDS);
    memopt_region_callbacks ok = {sizeof ok, layer_run, NULL, NULL, &l}, callbacks = ok;
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    REFUSED(memopt_region_create(NULL, b.allocator, &ok, NULL, &region));
    REFUSED(memopt_region_create(b.device, NULL, &ok, NULL, &region));
    REFUSED(memopt_region_create(b.device, b.allocator, NULL, NULL, &region));
    REFUSED(memopt_region_create(b.device, b.allocator, &ok, NULL, NULL));
    callbacks.run = NULL;
    REFUSED(memopt_region_create(b.device, b.allocator, &callbacks, NULL, &region));
    callbacks = ok;
    callbacks.struct_size = 3;
    REFUSED(memopt_region_create(b.device, b.allocator, &callbacks, NULL, &region));
    callbacks = ok;
    callbacks.random_save = layer_random_save;
    options.random_bytes = 8;
    REFUSED(memopt_region_create(b.device, b.allocator, &callbacks, &options, &region));
    callbacks.random_restore = layer_random_restore;
    options.random_bytes = 0;
    REFUSED(memopt_region_create(b.device, b.allocator, &callbacks, &options, &region));
    options.random_bytes = 8;
    REFUSED(memopt_region_create(b.device, b.allocator, &ok, &options, &region));
    options.random_bytes = 0;
    options.mode = 2;
    REFUSED(memopt_region_create(b.device, b.allocator, &ok, &options, &region));
    options.mode = 0;
    options.check = 3;
    REFUSED(memopt_region_create(b.device, b.allocator, &ok, &options, &region));
    options.struct_size = 1;
    REFUSED(memopt_region_create(b.device, b.allocator, &ok, &options, &region));
    struct {
        memopt_region_options known;
        uint64_t newer;
    } larger = {MEMOPT_REGION_OPTIONS_INIT, 1};
    larger.known.struct_size = sizeof larger;
    FAILS(MEMOPT_UNSUPPORTED,
          memopt_region_create(b.device, b.allocator, &ok, &larger.known, &region));
    assert_null(region);

    REFUSED(memopt_region_forward(NULL, b.stream));
    REFUSED(memopt_region_recompute(NULL, b.stream));
    REFUSED(memopt_region_release(NULL));
    REFUSED(memopt_region_alloc(NULL, 8, &pointer));
    REFUSED(memopt_region_alloc(l.region, 8, NULL));
    REFUSED(memopt_region_alloc(l.region, 8, &pointer)); /* not inside */
    SAYS("inside its run callback");
    REFUSED(memopt_region_check(NULL, "x", &tensor));
    REFUSED(memopt_region_check(l.region, NULL, &tensor));
    REFUSED(memopt_region_check(l.region, "x", NULL));
    REFUSED(memopt_region_check(l.region, "x", &tensor)); /* not inside */
    memopt_region_stats stats = {.struct_size = 1};
    REFUSED(memopt_region_get_stats(l.region, &stats));
    REFUSED(memopt_region_get_stats(NULL, &stats));
    REFUSED(memopt_region_get_stats(l.region, NULL));
    layer_end(&l);
}

/* Steps allocate no host memory that stays: bookkeeping is used again. The device allocates some
 * for its work, so this is seen on the number of live blocks alone; the allocator's tables and
 * structs take some steps to reach their sizes. */
TEST(test_steady_state_holds_no_more)
{
    layer l;
    random_state random = {1};
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "block", 0, MEMOPT_CHECK_HASH, &random, WORDS);
    int64_t blocks = 0;
    uint64_t bytes = 0;
    for (int step = 0; step < 400; step++) {
        OK(memopt_region_forward(l.region, NULL));
        OK(memopt_region_recompute(l.region, NULL));
        OK(memopt_region_release(l.region));
        OK(memopt_device_sync(b.device));
        if (step == 200) {
            blocks = mo_memory_live_blocks();
            bytes = active_bytes(&b);
        }
    }
    assert_int_equal(mo_memory_live_blocks(), blocks);
    assert_int_equal(active_bytes(&b), bytes);
    assert_int_equal(bytes, 2 * 6 * 8); /* the hashes of two values of 24,000 bytes */
    layer_end(&l);
}

static jmp_buf away;
static int leave; /* the callback does not return */

static memopt_status left_run(void *user, memopt_region *region, memopt_region_pass pass,
                              memopt_stream stream)
{
    memopt_status status = layer_run(user, region, pass, stream);
    if (leave)
        longjmp(away, 1);
    return status;
}

/* What a C++ exception does that is caught outside of the pass. */
static void try_pass(memopt_region *region, memopt_region_pass pass, memopt_stream stream)
{
    leave = 1;
    if (setjmp(away) == 0) {
        if (pass == MEMOPT_PASS_FORWARD)
            (void)memopt_region_forward(region, stream);
        else
            (void)memopt_region_recompute(region, stream);
        fail_msg("the callback returned");
    }
    leave = 0;
}

TEST(test_reset)
{
    layer l;
    random_state random = {5};
    bench b = open_bench(MEMOPT_STREAM_ORDER_EAGER, 0);
    layer_open(&l, &b, "left", 0, MEMOPT_CHECK_NONE, &random, WORDS);
    OK(memopt_region_destroy(l.region));
    memopt_region_callbacks callbacks = {sizeof callbacks, left_run, layer_random_save,
                                         layer_random_restore, &l};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    options.random_bytes = sizeof(random_state);
    options.check = MEMOPT_CHECK_HASH;
    OK(memopt_region_create(b.device, b.allocator, &callbacks, &options, &l.region));
    for (memopt_region_pass pass = MEMOPT_PASS_FORWARD; pass <= MEMOPT_PASS_RECOMPUTE; pass++) {
        if (pass == MEMOPT_PASS_RECOMPUTE)
            OK(memopt_region_forward(l.region, b.stream));
        random.counter = 40;
        try_pass(l.region, pass, b.stream);
        FAILS(MEMOPT_BUSY, memopt_region_release(l.region));
        OK(memopt_region_reset(l.region));
        assert_int_equal(random.counter, 40);
        REFUSED(memopt_region_recompute(l.region, b.stream));
        OK(memopt_region_forward(l.region, b.stream));
        OK(memopt_region_recompute(l.region, b.stream));
        OK(memopt_region_release(l.region));
    }
    OK(memopt_region_reset(l.region)); /* harmless otherwise */
    layer_close(&l);
    assert_int_equal(active_bytes(&b), 0);
    bench_close(&b);
}
