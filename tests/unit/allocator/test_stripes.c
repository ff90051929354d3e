/* Stripes are to be seen in time only: the same calls give the same blocks and the same statistics
 * with them as through the closed gate, which the recording of a trace keeps closed. */
#include "support.h"

#include "allocator/watch/stats.h"

#include "device/front/handle.h"
#include "support/random.h"
#include "support/sweep.h"

enum { STREAMS = 5, BLOCKS = 300, STATS = 200, STEPS = 4000, THREADS = 4, PAIRS = 20000 };
enum { BUSY = 3, ROUNDS = 8, PAUSED = 3, RING = 300 };

typedef struct side {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream streams[STREAMS];
    unsigned in_use;          /* of the streams */
    memopt_stream busy[BUSY]; /* they use blocks of the others */
    const char *config;
    int paused, late;
    void *blocks[BLOCKS];
    uint64_t hash;
} side;

/* splitmix64 */
static mo_device_ops ops; /* the cpu device's, but for one */
static const mo_device_ops *real;
static int late; /* no event is complete until it is waited for; else all are */

static memopt_status event_query(memopt_device *device, memopt_event *event)
{
    return late ? MEMOPT_NOT_READY : real->event_sync(device, event);
}

static void open_side(side *s, const char *config, unsigned streams, int closed)
{
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    options.events = RING;
    memset(s, 0, sizeof *s);
    s->device = eager(512 * MIB);
    real = s->device->ops;
    ops = *real;
    ops.event_query = event_query;
    s->device->ops = &ops;
    s->allocator = new_allocator(s->device, config);
    s->config = config;
    s->in_use = streams;
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_create(s->device, &s->streams[i]));
    for (int i = 0; i < BUSY; i++)
        OK(memopt_stream_create(s->device, &s->busy[i]));
    OK(memopt_allocator_set_history(s->allocator, &options));
    if (closed)
        OK(memopt_allocator_trace(s->allocator, "/dev/null", NULL));
}

static void close_side(side *s)
{
    finish(s->allocator, s->device);
}

/* Where a block lies, not at which address, since those are the device's. */
static memopt_status add_block(void *user, const memopt_block_info *block)
{
    side *s = user;
    uint64_t stream = 0;
    while (stream < STREAMS && s->streams[stream] != block->stream)
        stream++;
    const uint64_t words[] = {
        (uint64_t)((char *)block->address - (char *)block->segment_address),
        block->segment_bytes,
        block->bytes,
        block->requested_bytes,
        block->state,
        block->tag,
        s->in_use == 1 ? block->age : 0, /* a stripe learns late of the others' allocations */
        block->segment_large,
        stream};
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        uint64_t state = hash ^ words[i];
        hash = next_random(&state);
    }
    s->hash += hash;
    return MEMOPT_OK;
}

static void compare_histories(side *open, side *closed)
{
    static memopt_history_event a[RING], b[RING];
    uint64_t first, count, other_first, other_count;
    OK(memopt_allocator_read_history(open->allocator, 0, RING, a, &first, &count));
    OK(memopt_allocator_read_history(closed->allocator, 0, RING, b, &other_first, &other_count));
    assert_int_equal(first, other_first);
    assert_int_equal(count, other_count);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(a[i].action, b[i].action);
        assert_int_equal(a[i].bytes, b[i].bytes);
        assert_int_equal(a[i].tag, b[i].tag);
        assert_true(i == 0 || a[i - 1].time_ns <= a[i].time_ns);
    }
}

static void compare(side *open, side *closed)
{
    uint64_t a[STATS] = {0}, b[STATS] = {0}, total = 0;
    OK(memopt_allocator_get_stats(open->allocator, STATS, NULL, a, &total));
    OK(memopt_allocator_get_stats(closed->allocator, STATS, NULL, b, NULL));
    assert_true(total <= STATS);
    for (uint64_t i = 0; i < total; i++)
        if (a[i] != b[i])
            fail_msg("%s is %llu, not %llu", mo_stat_name(i), (unsigned long long)a[i],
                     (unsigned long long)b[i]);
    for (memopt_tag tag = 0; tag < MEMOPT_TAG_USER; tag++) {
        memopt_tag_stats x = MEMOPT_TAG_STATS_INIT, y = MEMOPT_TAG_STATS_INIT;
        OK(memopt_allocator_get_tag_stats(open->allocator, tag, &x));
        OK(memopt_allocator_get_tag_stats(closed->allocator, tag, &y));
        assert_int_equal(x.current_bytes, y.current_bytes);
        assert_int_equal(x.peak_bytes, y.peak_bytes);
        assert_int_equal(x.blocks, y.blocks);
    }
    compare_histories(open, closed);
    open->hash = closed->hash = 0;
    OK(memopt_allocator_snapshot(open->allocator, add_block, open));
    OK(memopt_allocator_snapshot(closed->allocator, add_block, closed));
    assert_int_equal(open->hash, closed->hash);
    OK(mo_allocator_check(closed->allocator));
    OK(mo_allocator_check(open->allocator));
}

/* Frees that wait: on one stream only, since each stripe counts the allocations until it is time to
 * ask for them by itself. */
static void use_elsewhere(side *s, void *block, uint64_t random)
{
    if (s->in_use > 1)
        return;
    if (random / 4 % 32 == 0)
        late = s->late = random / 128 % 4 != 0;
    if (block != NULL && random / 4096 % 8 == 0)
        OK(memopt_allocator_record_stream(s->allocator, block, s->busy[random % BUSY]));
}

static void pause_or_resume(side *s)
{
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    options.tags = 1u << PAUSED;
    options.how = MEMOPT_PAUSE_DISCARD;
    if (strncmp(s->config, "expandable", 10) != 0)
        return;
    if (s->paused)
        OK(memopt_pool_resume_sync(s->allocator, 1u << PAUSED));
    else
        OK(memopt_pool_pause_sync(s->allocator, &options, NULL));
    s->paused = !s->paused;
}

static void step(side *s, uint64_t random)
{
    unsigned which = (unsigned)(random >> 8) % BLOCKS,
             stream = (unsigned)(random >> 20) % s->in_use;
    uint64_t bytes = 1 + (random >> 32) % (UINT64_C(1) << (8 + (random >> 24) % 15));
    late = s->late;
    if (random % 16 == 7) /* more than max_split_size_mb, too */
        bytes *= 8;
    if (random % 512 == 9)
        pause_or_resume(s);
    use_elsewhere(s, s->blocks[which], random >> 36);
    if (random % 1024 == 0)
        OK(memopt_allocator_reset_peaks(s->allocator));
    if (random % 1024 == 1)
        OK(memopt_allocator_trim_sync(s->allocator, (random >> 32) % (16 * MIB), NULL));
    if (random % 4 == 0) /* the last block of a pair, or one that is long gone */
        which = (unsigned)(random >> 8) % 4;
    OK(memopt_allocator_free(s->allocator, s->blocks[which]));
    s->blocks[which] = NULL;
    memopt_status status =
        memopt_allocator_alloc(s->allocator, bytes, (memopt_tag)(random >> 28) % MEMOPT_TAG_USER,
                               s->streams[stream], &s->blocks[which]);
    if (status != MEMOPT_OUT_OF_DEVICE_MEMORY && !(status == MEMOPT_BUSY && s->paused))
        OK(status);
    /* The same again, and some more times in which nothing differs. */
    for (uint64_t turns = random % 16 == 5 ? 1 + (random >> 61) : 0; turns > 0; turns--) {
        OK(memopt_allocator_free(s->allocator, s->blocks[which]));
        s->blocks[which] = NULL;
        OK(memopt_allocator_alloc(s->allocator, bytes / 2 + 1, 0, s->streams[stream],
                                  &s->blocks[which]));
    }
}

TEST(they_do_not_show)
{
    static const char *const mixes[] = {"expandable_segments:True", "",
                                        "expandable_segments:True,roundup_power2_divisions:4",
                                        "max_split_size_mb:11,large_segment_size_mb:11"};
    FOR_SEEDS (seed, 32) {
        side open, closed;
        uint64_t random = seed;
        const unsigned streams = (seed + seed / 4) % 2 ? STREAMS : 1;
        open_side(&open, mixes[seed % 4], streams, 0);
        open_side(&closed, mixes[seed % 4], streams, 1);
        for (int i = 0; i < STEPS; i++) {
            uint64_t now = next_random(&random);
            step(&open, now);
            step(&closed, now);
            if (now % 128 == 2)
                compare(&open, &closed);
        }
        compare(&open, &closed);
        close_side(&open);
        close_side(&closed);
    }
}

/* The same step again and again, so that a plan is learned; two of them differ from it half way. */
static void train(side *open, side *closed, uint64_t seed, int round)
{
    uint64_t random = seed;
    OK(memopt_allocator_mark_step(open->allocator, MEMOPT_STEP_NEXT));
    OK(memopt_allocator_mark_step(closed->allocator, MEMOPT_STEP_NEXT));
    for (int i = 0; i < STEPS / ROUNDS; i++) {
        uint64_t now = next_random(&random);
        if (round % 4 == 2 && i == STEPS / ROUNDS / 2)
            random ^= (uint64_t)round;
        if (now % 512 == 9)
            continue; /* a pause would end the plan */
        step(open, now);
        step(closed, now);
        if (now % 128 == 2)
            compare(open, closed);
    }
    compare(open, closed);
}

TEST(plans_do_not_show_them)
{
    static const char *const mixes[] = {"expandable_segments:True", ""};
    uint64_t all = 0;
    FOR_SEEDS (seed, 32) {
        side open, closed;
        memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
        open_side(&open, mixes[seed % 2], seed / 2 % 2 ? STREAMS : 1, 0);
        open_side(&closed, mixes[seed % 2], seed / 2 % 2 ? STREAMS : 1, 1);
        for (int round = 0; round < 2 * ROUNDS; round++) {
            train(&open, &closed, seed, round);
        }
        OK(memopt_allocator_get_step_plan(closed.allocator, &plan));
        const uint64_t served = plan.served, missed = plan.missed;
        OK(memopt_allocator_get_step_plan(open.allocator, &plan));
        assert_int_equal(plan.served, served);
        assert_int_equal(plan.missed, missed);
        all += served;
        close_side(&open);
        close_side(&closed);
    }
    assert_true(all > 0);
}

/* --- threads ---------------------------------------------------------------------------------- */

typedef struct worker {
    memopt_allocator *allocator;
    memopt_stream stream;
    uint64_t random;
    uint64_t allocated; /* bytes of all its blocks */
    pthread_t thread;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    void *blocks[8] = {NULL};
    for (int i = 0; i < PAIRS; i++) {
        void **block = &blocks[next_random(&w->random) % 8];
        uint64_t units = 1 + next_random(&w->random) % 64;
        OK(memopt_allocator_free(w->allocator, *block));
        *block = alloc_on(w->allocator, units * 512, w->stream);
        w->allocated += units * 512;
    }
    for (int i = 0; i < 8; i++)
        OK(memopt_allocator_free(w->allocator, blocks[i]));
    return NULL;
}

/* Each event of the ring is whole: a block of its size is taken, and then the same is freed. */
static void check_events(memopt_allocator *allocator, uint64_t events)
{
    static memopt_history_event ring[4096];
    static const memopt_history_event *taken[4096];
    uint64_t first = 0, count = 0, known = 0;
    OK(memopt_allocator_read_history(allocator, 0, 4096, ring, &first, &count));
    assert_true(first + count >= events);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = 0;
        if (ring[i].action == MEMOPT_HISTORY_MAP)
            continue;
        assert_true(ring[i].bytes % 512 == 0 && ring[i].bytes <= 64 * 512);
        while (at < known && taken[at]->address != ring[i].address)
            at++;
        if (at == known) {
            taken[known++] = &ring[i];
            continue;
        }
        assert_int_not_equal(taken[at]->action, ring[i].action);
        if (ring[i].action == MEMOPT_HISTORY_FREE)
            assert_int_equal(taken[at]->bytes, ring[i].bytes);
        taken[at] = &ring[i];
    }
}

/* Own streams, then one for all: no count and no event is lost, and the peak is one that can have
 * been. */
TEST(threads)
{
    for (int shared = 0; shared < 2; shared++) {
        worker workers[THREADS];
        uint64_t allocated = 0;
        memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
        memopt_device *device = eager(512 * MIB);
        memopt_allocator *allocator = new_allocator(device, EXPANDABLE);
        options.events = 4096;
        OK(memopt_allocator_set_history(allocator, &options));
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (worker){allocator, NULL, (uint64_t)i, 0, 0};
            if (!shared)
                OK(memopt_stream_create(device, &workers[i].stream));
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
            allocated += workers[i].allocated;
            if (!shared)
                OK(memopt_stream_destroy(device, workers[i].stream));
        }
        check_events(allocator, 2 * THREADS * PAIRS);
        assert_int_equal(stat_of(allocator, "allocation.all.allocated"), THREADS * PAIRS);
        assert_int_equal(stat_of(allocator, "allocation.all.current"), 0);
        assert_int_equal(stat_of(allocator, "allocated_bytes.all.allocated"), allocated);
        assert_in_range(stat_of(allocator, "allocation.all.peak"), 8, THREADS * 8);
        assert_in_range(stat_of(allocator, "requested_bytes.all.peak"), 8 * 512,
                        THREADS * 8 * 64 * 512);
        finish(allocator, device);
    }
}
