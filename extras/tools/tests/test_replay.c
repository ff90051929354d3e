/* Replays: the figures of a replay are those of the same calls made by hand; the smallest device is
 * one that does and the next smaller one does not; samples, progress, streams, refusals. */
#include "unit/allocator/support.h"

#include "base/memory.h"
#include "memopt/tools/trace.h"

#define PAGE (2 * MIB)

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

enum { EVENTS = 6000, LIVE_AT_MOST = 200 };

/* Blocks of many sizes, some frees on another stream, not all freed. */
static uint64_t random_events(memopt_trace_event *events, uint64_t streams)
{
    static const uint64_t sizes[] = {100, 5000, 300 * KIB, MIB, 5 * MIB, 17 * MIB};
    uint64_t live[LIVE_AT_MOST], owner[LIVE_AT_MOST], count = 0;
    for (uint64_t i = 0; i < EVENTS; i++) {
        if (count == LIVE_AT_MOST || (count > 0 && below(100) < 48)) {
            uint64_t k = below(count), stream = below(10) == 0 ? below(streams) : owner[k];
            events[i] = (memopt_trace_event){live[k], 0, stream, MEMOPT_TRACE_FREE};
            live[k] = live[--count];
            owner[k] = owner[count];
            continue;
        }
        uint64_t stream = below(streams), bytes = sizes[below(6)] * (1 + below(3));
        events[i] = (memopt_trace_event){i, bytes, stream, MEMOPT_TRACE_ALLOC};
        live[count] = i;
        owner[count++] = stream;
    }
    return EVENTS;
}

static memopt_trace *random_trace(uint64_t seed, uint64_t streams, memopt_trace_event *events)
{
    memopt_trace *trace = NULL;
    random_state = seed;
    OK(memopt_trace_create(NULL, &trace));
    OK(memopt_trace_add(trace, events, random_events(events, streams)));
    return trace;
}

static memopt_replay_result replay(const memopt_trace *trace, const char *config, uint64_t capacity)
{
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = {.struct_size = sizeof result};
    options.config = config;
    options.capacity = capacity;
    OK(memopt_trace_replay(trace, &options, &result));
    return result;
}

/* The same calls by hand; returns the events done. */
static uint64_t by_hand(const memopt_trace_event *events, uint64_t streams, const char *config,
                        uint64_t capacity, memopt_replay_result *out)
{
    memopt_device *device = open_cpu(capacity, MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_allocator *allocator = new_allocator(device, config);
    memopt_stream made[8] = {NULL};
    void **blocks = calloc(EVENTS, sizeof *blocks);
    uint64_t *owner = calloc(EVENTS, sizeof *owner), i;
    assert_true(blocks != NULL && owner != NULL && streams <= 8);
    for (uint64_t s = 1; s < streams; s++)
        OK(memopt_stream_create(device, &made[s]));
    for (i = 0; i < EVENTS; i++) {
        const memopt_trace_event *e = &events[i];
        if (e->action == MEMOPT_TRACE_ALLOC) {
            owner[i] = e->stream;
            if (memopt_allocator_alloc(allocator, e->bytes, MEMOPT_TAG_OTHER, made[e->stream],
                                       &blocks[i]) != MEMOPT_OK)
                break;
            continue;
        }
        if (e->stream != owner[e->id])
            OK(memopt_allocator_record_stream(allocator, blocks[e->id], made[e->stream]));
        OK(memopt_allocator_free(allocator, blocks[e->id]));
        OK(memopt_device_sync(device));
    }
    out->peak_reserved_bytes = stat_of(allocator, "reserved_bytes.all.peak");
    out->device_allocs = stat_of(allocator, "num_device_alloc");
    out->device_frees = stat_of(allocator, "num_device_free");
    out->retries = stat_of(allocator, "num_alloc_retries");
    out->failed_live_bytes = stat_of(allocator, "requested_bytes.all.current");
    out->failed_reserved_bytes = stat_of(allocator, "reserved_bytes.all.current");
    OK(memopt_allocator_destroy_force(allocator));
    for (uint64_t s = 1; s < streams; s++)
        OK(memopt_stream_destroy(device, made[s]));
    OK(memopt_device_close(device));
    free(blocks);
    free(owner);
    return i;
}

static const char *const settings[] = {"", "expandable_segments:True", "max_split_size_mb:32"};

TEST(test_figures)
{
    static memopt_trace_event events[EVENTS];
    for (uint64_t streams = 1; streams <= 4; streams += 3) {
        memopt_trace *trace = random_trace(1 + streams, streams, events);
        memopt_trace_info info = {.struct_size = sizeof info};
        OK(memopt_trace_get_info(trace, &info));
        for (int c = 0; c < 3; c++) {
            for (int short_of = 0; short_of < 2; short_of++) {
                uint64_t capacity = short_of ? info.peak_live_bytes / PAGE * PAGE : 64 * KIB * MIB;
                memopt_replay_result hand = {0}, got = replay(trace, settings[c], capacity);
                uint64_t done = by_hand(events, streams, settings[c], capacity, &hand);
                assert_int_equal(got.events, done);
                assert_int_equal(got.out_of_memory, done < EVENTS);
                assert_int_equal(got.out_of_memory, short_of);
                assert_int_equal(got.capacity, capacity);
                assert_int_equal(got.peak_live_bytes, info.peak_live_bytes);
                assert_int_equal(got.peak_reserved_bytes, hand.peak_reserved_bytes);
                assert_true(got.ratio ==
                            (double)hand.peak_reserved_bytes / (double)info.peak_live_bytes);
                assert_int_equal(got.device_allocs, hand.device_allocs);
                assert_int_equal(got.device_frees, hand.device_frees);
                assert_int_equal(got.retries, hand.retries);
                assert_true(got.first_ns_per_event > 0);
                assert_true(got.ns_per_event == got.first_ns_per_event); /* no other pass */
                assert_int_equal(got.failed_bytes, short_of ? events[done].bytes : 0);
                assert_int_equal(got.failed_stream, short_of ? events[done].stream : 0);
                assert_int_equal(got.failed_live_bytes, short_of ? hand.failed_live_bytes : 0);
                assert_int_equal(got.failed_reserved_bytes,
                                 short_of ? hand.failed_reserved_bytes : 0);
            }
        }
        OK(memopt_trace_destroy(trace));
    }
}

TEST(test_no_limit_is_ample)
{
    memopt_trace *trace = NULL;
    OK(memopt_trace_create(NULL, &trace));
    memopt_trace_event e[] = {{1, 300 * KIB * MIB, 0, MEMOPT_TRACE_ALLOC}}; /* 300 GiB */
    OK(memopt_trace_add(trace, e, 1));
    memopt_replay_result got = {.struct_size = sizeof got};
    OK(memopt_trace_replay(trace, NULL, &got));
    assert_false(got.out_of_memory);
    assert_int_equal(got.peak_reserved_bytes, 300 * KIB * MIB);
    e[0].id = 2;
    e[0].bytes = UINT64_C(1) << 63; /* more than any device */
    OK(memopt_trace_add(trace, e, 1));
    OK(memopt_trace_replay(trace, NULL, &got));
    assert_int_equal(got.out_of_memory, 1);
    assert_int_equal(got.events, 1);
    uint64_t capacity = 7;
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "event 2 of 2 asks for",
                 memopt_trace_find_capacity(trace, NULL, &capacity));
    assert_int_equal(capacity, 7);
    OK(memopt_trace_destroy(trace));
}

/* The allocator refuses such sizes before it asks a device; with divisions it rounds up further. */
TEST(test_sizes_that_no_device_has)
{
    const struct {
        uint64_t bytes;
        const char *config;
    } asked[] = {{UINT64_C(1) << 62, NULL},
                 {(UINT64_C(1) << 62) - 1, NULL},
                 {(UINT64_C(3) << 60) + 1, "roundup_power2_divisions:2"},
                 {UINT64_MAX, NULL}};
    for (int i = 0; i < 4; i++) {
        memopt_trace *trace = NULL;
        OK(memopt_trace_create(NULL, &trace));
        memopt_trace_event e[] = {{1, MIB, 0, MEMOPT_TRACE_ALLOC},
                                  {1, 0, 0, MEMOPT_TRACE_FREE},
                                  {2, asked[i].bytes, 0, MEMOPT_TRACE_ALLOC}};
        OK(memopt_trace_add(trace, e, 3));
        memopt_replay_result got = replay(trace, asked[i].config, 0);
        assert_int_equal(got.out_of_memory, 1);
        assert_int_equal(got.events, 2);
        assert_true(got.failed_bytes == asked[i].bytes);
        OK(memopt_trace_destroy(trace));
    }
}

TEST(test_smallest_capacity)
{
    enum { SEEDS = 3 };
    static memopt_trace_event events[EVENTS];
    static const char *const half = "per_process_memory_fraction:0.5";
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        memopt_trace *trace = random_trace(seed, 2, events);
        uint64_t peak = replay(trace, NULL, 0).peak_live_bytes;
        for (int c = 0; c < 4; c++) {
            memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
            uint64_t capacity = 0, again = 0;
            options.config = c < 3 ? settings[c] : half;
            OK(memopt_trace_find_capacity(trace, &options, &capacity));
            assert_int_equal(capacity % PAGE, 0);
            assert_true(capacity >= peak * (c < 3 ? 1 : 2));
            assert_false(replay(trace, options.config, capacity).out_of_memory);
            assert_true(replay(trace, options.config, capacity - PAGE).out_of_memory);
            options.capacity = capacity + 100; /* the largest to try: not of whole pages */
            OK(memopt_trace_find_capacity(trace, &options, &again));
            assert_true(again <= capacity);
            assert_false(replay(trace, options.config, again).out_of_memory);
            options.capacity = peak - 1;
            FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "does not complete on",
                         memopt_trace_find_capacity(trace, &options, &again));
        }
        OK(memopt_trace_destroy(trace));
    }
}

TEST(test_one_block_takes_its_pages)
{
    static const uint64_t sizes[] = {1, PAGE - 1, PAGE, PAGE + 1, 50 * PAGE};
    for (int i = 0; i < 5; i++) {
        memopt_trace *trace = NULL;
        memopt_trace_event e = {1, sizes[i], 0, MEMOPT_TRACE_ALLOC};
        memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
        uint64_t capacity = 0;
        options.config = "expandable_segments:True";
        OK(memopt_trace_create(NULL, &trace));
        OK(memopt_trace_add(trace, &e, 1));
        OK(memopt_trace_find_capacity(trace, &options, &capacity));
        assert_int_equal(capacity, (sizes[i] + PAGE - 1) / PAGE * PAGE);
        OK(memopt_trace_destroy(trace));
    }
}

/* What lives at the peak, to the byte, where a page more is held without a limit: the other pages
 * are taken from another stream. */
TEST(test_smallest_is_the_peak)
{
    const memopt_trace_event events[] = {{1, 4 * PAGE, 5, MEMOPT_TRACE_ALLOC},
                                         {1, 0, 5, MEMOPT_TRACE_FREE},
                                         {2, 4 * PAGE, 6, MEMOPT_TRACE_ALLOC}};
    memopt_trace *trace = NULL;
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    uint64_t capacity = 0;
    options.config = "expandable_segments:True";
    OK(memopt_trace_create(NULL, &trace));
    OK(memopt_trace_add(trace, events, 3));
    assert_int_equal(replay(trace, options.config, 0).peak_reserved_bytes, 5 * PAGE);
    OK(memopt_trace_find_capacity(trace, &options, &capacity));
    assert_int_equal(capacity, 4 * PAGE);
    OK(memopt_trace_destroy(trace));
}

/* Samples hold each peak, in order, and are the maxima of what a replay by hand sees. */
TEST(test_samples)
{
    static memopt_trace_event events[EVENTS];
    static memopt_replay_sample samples[EVENTS + 5];
    memopt_trace *trace = random_trace(9, 1, events);
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = {.struct_size = sizeof result};
    static const uint64_t rooms[] = {1, 7, 1000, EVENTS, EVENTS + 5};
    options.samples = samples;
    for (int r = 0; r < 5; r++) {
        options.sample_room = rooms[r];
        memset(samples, 0xA5, sizeof samples);
        OK(memopt_trace_replay(trace, &options, &result));
        uint64_t step = (EVENTS + rooms[r] - 1) / rooms[r], live = 0, at = 0;
        static uint64_t sizes[EVENTS];
        assert_int_equal(result.sample_count, (EVENTS + step - 1) / step);
        uint64_t reserved = 0;
        for (uint64_t s = 0; s < result.sample_count; s++) {
            uint64_t most = live;
            for (; at < samples[s].event; at++) {
                if (events[at].action == MEMOPT_TRACE_ALLOC) {
                    live += sizes[at] = events[at].bytes;
                    most = live > most ? live : most;
                } else {
                    live -= sizes[events[at].id];
                }
            }
            assert_int_equal(samples[s].live_bytes, most);
            assert_true(samples[s].reserved_bytes >= most);
            reserved = samples[s].reserved_bytes > reserved ? samples[s].reserved_bytes : reserved;
        }
        assert_int_equal(at, EVENTS);
        assert_int_equal(reserved, result.peak_reserved_bytes);
    }
    options.sample_room = 100;
    options.capacity = result.peak_live_bytes / PAGE * PAGE;
    OK(memopt_trace_replay(trace, &options, &result));
    assert_true(result.out_of_memory);
    assert_true(result.sample_count > 90 && result.sample_count <= 100); /* of the events done */
    assert_int_equal(samples[result.sample_count - 1].event, result.events);
    OK(memopt_trace_destroy(trace));
}

typedef struct watcher {
    uint64_t calls, last, total, stop_at;
} watcher;

static memopt_status watch(void *user, const memopt_replay_progress_info *info)
{
    watcher *w = user;
    assert_int_equal(info->struct_size, sizeof *info);
    assert_true(info->done > w->last && info->done <= info->total);
    assert_true(info->capacity >= PAGE);
    w->last = info->done;
    w->total = info->total;
    w->calls++;
    return w->calls == w->stop_at ? MEMOPT_STATUS_USER + 5 : MEMOPT_OK;
}

TEST(test_progress)
{
    static memopt_trace_event events[EVENTS];
    memopt_trace *trace = random_trace(4, 3, events);
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = {.struct_size = sizeof result, .events = 77};
    memopt_replay_sample samples[3];
    watcher w = {0};
    options.progress = watch;
    options.progress_user = &w;
    options.warm_passes = 2;
    options.samples = samples;
    options.sample_room = 3;
    OK(memopt_trace_replay(trace, &options, &result));
    assert_int_equal(w.calls, 6); /* a pass each, and three ranges of the one for samples */
    assert_int_equal(w.last, 4 * EVENTS);
    assert_int_equal(w.total, 4 * EVENTS);
    assert_true(result.ns_per_event > 0 && result.ns_per_event != result.first_ns_per_event);
    w = (watcher){0};
    uint64_t capacity = 0, untouched = 7;
    OK(memopt_trace_find_capacity(trace, &options, &capacity));
    assert_true(w.calls > 2);
    assert_true(w.last + EVENTS >= w.total); /* the last halving may have spared one replay */
    for (uint64_t n = 1; n <= 3; n++) {      /* each place where it can be ended */
        w = (watcher){.stop_at = n};
        result.events = 77;
        assert_int_equal(memopt_trace_replay(trace, &options, &result), MEMOPT_STATUS_USER + 5);
        assert_non_null(strstr(memopt_last_error(), "the progress callback returned status 65541"));
        assert_int_equal(result.events, 77);
        w = (watcher){.stop_at = n};
        assert_int_equal(memopt_trace_find_capacity(trace, &options, &untouched),
                         MEMOPT_STATUS_USER + 5);
        assert_int_equal(untouched, 7);
    }
    OK(memopt_trace_destroy(trace));
}

/* A block that is freed on another stream comes back at once, each time: no figure depends on how
 * fast a worker is. */
TEST(test_many_streams)
{
    enum { STREAMS = 200 };
    memopt_trace *trace = NULL;
    OK(memopt_trace_create(NULL, &trace));
    for (uint64_t i = 0; i < 3 * STREAMS; i++) {
        uint64_t stream = i % STREAMS, other = (i * 7 + 1) % STREAMS;
        memopt_trace_event e[] = {{1, 3 * MIB, stream << 32, MEMOPT_TRACE_ALLOC},
                                  {1, 0, other << 32, MEMOPT_TRACE_FREE}};
        OK(memopt_trace_add(trace, e, 2));
    }
    memopt_replay_result first = replay(trace, "", 0);
    assert_false(first.out_of_memory);
    /* One block a stream, in a segment of 20 MiB, which nobody else can have. */
    assert_int_equal(first.peak_reserved_bytes, (uint64_t)STREAMS * 20 * MIB);
    memopt_replay_result second = replay(trace, "", 20 * MIB); /* each gives it back for the next */
    assert_false(second.out_of_memory);
    assert_int_equal(second.retries, 3 * STREAMS - 1);
    OK(memopt_trace_destroy(trace));
}

/* A block that another stream has used is not free while the device lags: a larger one is cut. */
TEST(test_lag)
{
    static const memopt_trace_event events[] = {
        {0, 40 * MIB, 0, MEMOPT_TRACE_ALLOC},  {1, 20 * MIB, 0, MEMOPT_TRACE_ALLOC},
        {1, 0, 7, MEMOPT_TRACE_RECORD_STREAM}, {1, 0, 0, MEMOPT_TRACE_FREE},
        {0, 0, 0, MEMOPT_TRACE_FREE},          {2, 20 * MIB, 0, MEMOPT_TRACE_ALLOC},
        {3, 40 * MIB, 0, MEMOPT_TRACE_ALLOC},  {2, 0, 0, MEMOPT_TRACE_FREE},
        {3, 0, 0, MEMOPT_TRACE_FREE},
    };
    enum { EVENTS_HERE = sizeof events / sizeof events[0] };
    memopt_trace *trace = NULL;
    OK(memopt_trace_create(NULL, &trace));
    OK(memopt_trace_add(trace, events, EVENTS_HERE));
    const uint64_t lags[] = {0, UINT64_MAX}, held[] = {60, 100};
    for (int i = 0; i < 2; i++) {
        memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
        memopt_replay_result result = MEMOPT_REPLAY_RESULT_INIT;
        options.lag = lags[i];
        OK(memopt_trace_replay(trace, &options, &result));
        assert_int_equal(result.peak_reserved_bytes, held[i] * MIB);
        assert_int_equal(result.events, EVENTS_HERE);
    }
    OK(memopt_trace_destroy(trace));
}

TEST(test_refused)
{
    memopt_trace *trace = NULL;
    OK(memopt_trace_create(NULL, &trace));
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = {.struct_size = sizeof result};
    uint64_t capacity;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "no allocation",
                 memopt_trace_replay(trace, NULL, &result));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "no allocation",
                 memopt_trace_find_capacity(trace, NULL, &capacity));
    const memopt_trace_event e = {1, 100, 0, MEMOPT_TRACE_ALLOC};
    OK(memopt_trace_add(trace, &e, 1));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL",
                 memopt_trace_replay(NULL, NULL, &result));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL", memopt_trace_replay(trace, NULL, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL", memopt_trace_find_capacity(trace, NULL, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL",
                 memopt_trace_find_capacity(NULL, NULL, &capacity));
    result.struct_size = 1;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "struct_size", memopt_trace_replay(trace, NULL, &result));
    result.struct_size = sizeof result;
    options.config = "expandable:True";
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "expandable_segments",
                 memopt_trace_replay(trace, &options, &result));
    options.config = NULL;
    options.capacity = MIB;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "at least one granule",
                 memopt_trace_replay(trace, &options, &result));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "at least one granule",
                 memopt_trace_find_capacity(trace, &options, &capacity));
    OK(memopt_trace_destroy(trace));
}

static int nothing_is_left(void **state)
{
    return mo_memory_live_blocks() == 0 ? 0 : -1;
}

int main(void)
{
    return run_all_tests(NULL, nothing_is_left);
}
