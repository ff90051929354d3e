/* Stripes are to be seen in time only: the same calls give the same blocks and the same statistics
 * with them as through the closed gate, which a history keeps closed. */
#include "support.h"

#include "support/sweep.h"

enum { STREAMS = 5, BLOCKS = 300, STATS = 200, STEPS = 4000, THREADS = 4, PAIRS = 20000 };

typedef struct side {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream streams[STREAMS];
    unsigned in_use; /* of the streams */
    void *blocks[BLOCKS];
    uint64_t hash;
} side;

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void open_side(side *s, const char *config, unsigned streams, int closed)
{
    const memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    memset(s, 0, sizeof *s);
    s->device = open_cpu(512 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0);
    s->allocator = new_allocator(s->device, config);
    s->in_use = streams;
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_create(s->device, &s->streams[i]));
    if (closed)
        OK(memopt_allocator_start_history(s->allocator, &options));
}

static void close_side(side *s)
{
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_allocator_free(s->allocator, s->blocks[i]));
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_destroy(s->device, s->streams[i]));
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

static void compare(side *open, side *closed)
{
    uint64_t a[STATS] = {0}, b[STATS] = {0}, total = 0;
    OK(memopt_allocator_get_stats(open->allocator, STATS, a, &total));
    OK(memopt_allocator_get_stats(closed->allocator, STATS, b, NULL));
    assert_true(total <= STATS);
    for (uint64_t i = 0; i < total; i++)
        if (a[i] != b[i])
            fail_msg("%s is %llu, not %llu", memopt_allocator_stat_name(i),
                     (unsigned long long)a[i], (unsigned long long)b[i]);
    for (memopt_tag tag = 0; tag < MEMOPT_TAG_USER; tag++) {
        memopt_tag_stats x = MEMOPT_TAG_STATS_INIT, y = MEMOPT_TAG_STATS_INIT;
        OK(memopt_allocator_get_tag_stats(open->allocator, tag, &x));
        OK(memopt_allocator_get_tag_stats(closed->allocator, tag, &y));
        assert_int_equal(x.current_bytes, y.current_bytes);
        assert_int_equal(x.peak_bytes, y.peak_bytes);
        assert_int_equal(x.blocks, y.blocks);
    }
    open->hash = closed->hash = 0;
    OK(memopt_allocator_snapshot(open->allocator, add_block, open));
    OK(memopt_allocator_snapshot(closed->allocator, add_block, closed));
    assert_int_equal(open->hash, closed->hash);
    OK(mo_allocator_check(open->allocator));
}

static void step(side *s, uint64_t random)
{
    unsigned which = (unsigned)(random >> 8) % BLOCKS,
             stream = (unsigned)(random >> 20) % s->in_use;
    uint64_t bytes = 1 + (random >> 32) % (UINT64_C(1) << (8 + (random >> 24) % 15));
    if (random % 1024 == 0)
        OK(memopt_allocator_reset_peaks(s->allocator));
    if (random % 1024 == 1)
        OK(memopt_allocator_trim_to_sync(s->allocator, (random >> 32) % (16 * MIB), NULL));
    if (random % 4 == 0) /* the last block of a pair, or one that is long gone */
        which = (unsigned)(random >> 8) % 4;
    OK(memopt_allocator_free(s->allocator, s->blocks[which]));
    s->blocks[which] = NULL;
    memopt_status status =
        memopt_allocator_alloc(s->allocator, bytes, (memopt_tag)(random >> 28) % MEMOPT_TAG_USER,
                               s->streams[stream], &s->blocks[which]);
    if (status != MEMOPT_OUT_OF_DEVICE_MEMORY)
        OK(status);
    if (random % 16 == 5) { /* the same again */
        OK(memopt_allocator_free(s->allocator, s->blocks[which]));
        s->blocks[which] = NULL;
        OK(memopt_allocator_alloc(s->allocator, bytes / 2 + 1, 0, s->streams[stream],
                                  &s->blocks[which]));
    }
}

static void test_they_do_not_show(void **state)
{
    static const char *const configs[] = {"expandable_segments:True", "",
                                          "expandable_segments:True,roundup_power2_divisions:4"};
    (void)state;
    FOR_SEEDS (seed, 24) {
        side open, closed;
        uint64_t random = seed;
        open_side(&open, configs[seed % 3], seed % 2 ? STREAMS : 1, 0);
        open_side(&closed, configs[seed % 3], seed % 2 ? STREAMS : 1, 1);
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

/* --- threads ------------------------------------------------------------------------------------
 */

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

/* Own streams, then one for all: no count is lost, and the peak is one that can have been. */
static void test_threads(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        worker workers[THREADS];
        uint64_t allocated = 0;
        memopt_device *device = open_cpu(512 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0);
        memopt_allocator *allocator = new_allocator(device, "expandable_segments:True");
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
        assert_int_equal(stat_of(allocator, "allocation.all.allocated"), THREADS * PAIRS);
        assert_int_equal(stat_of(allocator, "allocation.all.current"), 0);
        assert_int_equal(stat_of(allocator, "allocated_bytes.all.allocated"), allocated);
        assert_in_range(stat_of(allocator, "allocation.all.peak"), 8, THREADS * 8);
        assert_in_range(stat_of(allocator, "requested_bytes.all.peak"), 8 * 512,
                        THREADS * 8 * 64 * 512);
        finish(allocator, device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_they_do_not_show),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
