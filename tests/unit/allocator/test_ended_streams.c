/* Streams that end while the allocator has memory of theirs. The cpu device's operations are
 * watched: none may be given a handle after the allocator has taken leave of it. */
#include "support.h"

#include "support/sweep.h"
#include "support/watched.h"

/* Every operation on watched memory is some thirty times slower under ThreadSanitizer. */
enum { SEEDS = UNDER_TSAN ? 4 : 40 };

static memopt_stream dead;      /* no operation may see it */
static memopt_status sync_says; /* what waiting for a stream returns */
static void (*on_sync)(void *); /* called while a stream is waited for */
static void *on_sync_user;
static int records, queries;

static void not_dead(memopt_stream stream)
{
    if (stream != NULL && stream == dead)
        fail_msg("the handle of a stream that has ended was used");
}

static memopt_status stream_capturing(memopt_device *device, memopt_stream stream, int32_t *out)
{
    not_dead(stream);
    return says_captured(device, stream, out);
}

static memopt_status event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    not_dead(stream);
    records++;
    return real->event_record(device, event, stream);
}

static memopt_status event_query(memopt_device *device, memopt_event *event)
{
    queries++;
    return real->event_query(device, event);
}

static memopt_status stream_sync(memopt_device *device, memopt_stream stream)
{
    if (on_sync != NULL)
        on_sync(on_sync_user);
    memopt_status status = real->stream_sync(device, stream);
    if (sync_says != MEMOPT_OK)
        return mo_fail(sync_says, "stream_sync: as the test says");
    return status;
}

static void note_alloc(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream)
{
    not_dead(stream);
    real->note_alloc(device, pointer, bytes, stream);
}

static void note_free(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream)
{
    not_dead(stream);
    real->note_free(device, pointer, bytes, stream);
}

static memopt_device *open_watched(uint64_t seed)
{
    memopt_device *device = watch(open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed));
    ops.stream_capturing = stream_capturing;
    ops.event_record = event_record;
    ops.event_query = event_query;
    ops.stream_sync = stream_sync;
    ops.note_alloc = note_alloc;
    ops.note_free = note_free;
    dead = NULL;
    sync_says = MEMOPT_OK;
    on_sync = NULL;
    records = queries = 0;
    return device;
}

static memopt_stream new_stream(memopt_device *device)
{
    memopt_stream stream = stream_on(device);
    if (stream == dead)
        dead = NULL; /* the handle lives again */
    return stream;
}

static void end_stream(memopt_device *device, memopt_stream stream)
{
    OK(memopt_stream_destroy(device, stream));
    dead = stream;
}

static void expect_bytes(memopt_device *device, const void *at, int value, uint64_t bytes,
                         memopt_stream stream)
{
    unsigned char *seen = malloc(bytes);
    assert_non_null(seen);
    OK(memopt_copy(device, seen, at, bytes, stream));
    OK(memopt_stream_sync(device, stream));
    for (uint64_t i = 0; i < bytes; i++)
        if (seen[i] != value)
            fail_msg("byte %llu is %d, not %d", (unsigned long long)i, seen[i], value);
    free(seen);
}

/* --- what is left is for everybody ------------------------------------------------------------ */

ALLOCATOR_SWEEP(cached_memory_is_taken_over, allocator, FOR_SEEDS (seed, SEEDS), open_watched(seed),
                BOTH)
{
    memopt_stream s = new_stream(device), t = new_stream(device);
    void *small = alloc_on(allocator, 1000, s), *large = alloc_on(allocator, 7 * MIB, s);
    OK(memopt_fill(device, small, 1, 1000, s));
    OK(memopt_fill(device, large, 1, 7 * MIB, s));
    OK(memopt_allocator_free(allocator, small));
    OK(memopt_allocator_free(allocator, large));
    uint64_t used = info_of(device).used;
    end_stream(device, s);
    OK(mo_allocator_check(allocator));
    assert_ptr_equal(alloc_on(allocator, 7 * MIB, t), large);
    assert_ptr_equal(alloc_on(allocator, 1000, NULL), small);
    assert_int_equal(info_of(device).used, used);
    OK(memopt_fill(device, large, 2, 7 * MIB, t));
    OK(memopt_fill(device, small, 3, 1000, NULL));
    expect_bytes(device, large, 2, 7 * MIB, t);
    expect_bytes(device, small, 3, 1000, NULL);
    OK(memopt_allocator_free(allocator, large));
    OK(memopt_allocator_free(allocator, small));
    OK(memopt_device_sync(device));
}

/* Blocks outlive their stream; what is freed then is everybody's, and use after it is found. */
ALLOCATOR_SWEEP(live_blocks_outlive_their_stream, allocator, FOR_SEEDS (seed, SEEDS),
                open_watched(seed), BOTH)
{
    memopt_stream s = new_stream(device), t = new_stream(device);
    void *block = alloc_on(allocator, 3 * MIB, s);
    OK(memopt_fill(device, block, 5, 3 * MIB, s));
    end_stream(device, s);
    expect_bytes(device, block, 5, 3 * MIB, t);
    OK(memopt_copy(device, block, (char *)block + MIB, MIB, t));
    OK(memopt_allocator_record_stream(allocator, block, t)); /* not its own */
    OK(memopt_allocator_free(allocator, block));
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    OK(memopt_stream_sync(device, t));
    assert_ptr_equal(alloc_on(allocator, 3 * MIB, NULL), block);
    OK(memopt_fill(device, block, 6, 3 * MIB, NULL));
    expect_bytes(device, block, 6, 3 * MIB, NULL);
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_fill(device, block, 7, 100, NULL));
    FAILS_SAYING(MEMOPT_DEVICE_FAULT, "free", memopt_device_sync(device));
}

/* Uses that the ended stream had are over, of blocks that are live and that wait for it. */
ALLOCATOR_TEST(recorded_uses_are_over, allocator, open_watched(3), BOTH)
{
    memopt_stream s = new_stream(device);
    void *pending = alloc(allocator, 1000), *live = alloc(allocator, 3 * MIB);
    OK(memopt_device_sync(device)); /* the fills need not wait for the notes */
    OK(memopt_fill(device, pending, 1, 1000, s));
    OK(memopt_fill(device, live, 1, MIB, s));
    OK(memopt_allocator_record_stream(allocator, pending, s));
    OK(memopt_allocator_record_stream(allocator, live, s));
    OK(memopt_allocator_free(allocator, pending));
    assert_int_equal(stat_of(allocator, "active.all.current"), 2);
    end_stream(device, s);
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    assert_ptr_equal(alloc(allocator, 1000), pending);
    assert_int_equal(queries, 0); /* nothing was left to ask */
    records = 0;
    OK(memopt_allocator_free(allocator, live));
    assert_int_equal(records, 0);
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    OK(memopt_allocator_free(allocator, pending));
    OK(memopt_device_sync(device));
}

/* Pages of an ended stream's expandable segment and its addresses serve a larger request. */
ALLOCATOR_TEST(addresses_are_taken_over, allocator, open_watched(1), EXPANDABLE)
{
    memopt_memory_info before = {.struct_size = sizeof before}, after = before;
    for (int i = 0; i < 8; i++) {
        memopt_stream s = new_stream(device);
        void *block = alloc_on(allocator, (uint64_t)(4 + i) * MIB, s);
        OK(memopt_fill(device, block, i, 64 * KIB, s));
        OK(memopt_allocator_free(allocator, block));
        end_stream(device, s);
        if (i == 0)
            OK(memopt_device_get_memory_info(device, &before));
    }
    OK(memopt_device_get_memory_info(device, &after));
    assert_int_equal(after.reserved_va, before.reserved_va);
    assert_int_equal(after.used, 12 * MIB);
}

/* Streams that come and go leave no trace but the blocks they leave. */
ALLOCATOR_TEST(no_trace_of_many_streams, allocator, open_watched(1), BOTH)
{
    enum { MANY = 60 };
    void *kept[MANY], *own = alloc(allocator, 5000);
    int pools = 0, queues = 0;
    for (int i = 0; i < MANY; i++) {
        memopt_stream s = new_stream(device);
        kept[i] = alloc_on(allocator, 700 * KIB, s);
        OK(memopt_fill(device, kept[i], i, 700 * KIB, s));
        OK(memopt_allocator_record_stream(allocator, own, s));
        end_stream(device, s);
    }
    for (const mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        pools++;
    for (const mo_use_queue *q = allocator->events.queues; q != NULL; q = q->next)
        queues++;
    assert_true(pools <= 2);
    assert_int_equal(queues, 1);
    assert_true(info_of(device).used <= (MANY + 4) * MIB);
    for (int i = 0; i < MANY; i++) {
        expect_bytes(device, kept[i], i, 700 * KIB, NULL);
        OK(memopt_allocator_free(allocator, kept[i]));
    }
    OK(memopt_allocator_free(allocator, own));
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
    assert_int_equal(info_of(device).used + info_of(device).reserved_va, 0);
    assert_null(allocator->pools);
    assert_null(allocator->events.queues);
}

/* --- the same handle again -------------------------------------------------------------------- */

/* The handle goes on after the leave, as that of a new stream that the driver gave it to. Until that
 * has done its work its uses count, whatever the old one's did: of a block of the old one's, too. */
ALLOCATOR_TEST(same_handle_waits_again, allocator, open_watched(1), BOTH)
{
    memopt_stream s = new_stream(device);
    void *old = alloc_on(allocator, 3 * MIB, s), *block = alloc(allocator, 30 * MIB);
    OK(memopt_allocator_record_stream(allocator, block, s));
    OK(memopt_stream_release_sync(device, s));
    void *const both[] = {old, block};
    for (int i = 0; i < 2; i++) {
        OK(memopt_fill(device, both[i], 2, 3 * MIB, s));
        OK(memopt_allocator_record_stream(allocator, both[i], s));
        records = 0;
        OK(memopt_allocator_free(allocator, both[i]));
        assert_int_equal(records, 1);
        assert_int_equal(stat_of(allocator, "active.all.current"), 2);
    }
    assert_ptr_not_equal(alloc(allocator, 3 * MIB), old);
    OK(memopt_stream_release_sync(device, s));
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    (void)alloc_on(allocator, 30 * MIB, s);
    end_stream(device, s);
}

/* --- captures --------------------------------------------------------------------------------- */

ALLOCATOR_TEST(deferred_frees, allocator, open_watched(1), BOTH)
{
    memopt_stream s = new_stream(device), graph = new_stream(device);
    void *both = alloc(allocator, 1000), *block = alloc(allocator, 3 * MIB);
    void *known = alloc_on(allocator, 1000, graph);
    OK(memopt_allocator_record_stream(allocator, block, s));
    OK(memopt_allocator_record_stream(allocator, both, s));
    OK(memopt_allocator_record_stream(allocator, both, graph));
    captured = graph;
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_allocator_free(allocator, both));
    assert_int_equal(stat_of(allocator, "active.all.current"), 3);
    end_stream(device, s);
    assert_int_equal(records, 2); /* on s, which records no graph */
    assert_ptr_equal(alloc(allocator, 3 * MIB), block);
    assert_int_equal(stat_of(allocator, "active.all.current"), 3); /* both, block, known */
    FAILS_SAYING(MEMOPT_BUSY, "graph", memopt_stream_release_sync(device, graph));
    captured = NULL;
    OK(memopt_allocator_trim_sync(allocator, 0, NULL)); /* the capture is over */
    assert_true(records >= 3);
    assert_int_equal(stat_of(allocator, "active.all.current"), 2);
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_allocator_free(allocator, known));
    OK(memopt_device_sync(device));
}

/* --- between the leave and the end ------------------------------------------------------------ */

typedef struct scene {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream s;
    void *own, *recorded, *cached;
    int trim, calls;
} scene;

static void make_scene(scene *x, const char *config)
{
    *x = (scene){.device = open_watched(1)};
    x->allocator = new_allocator(x->device, config);
    x->s = new_stream(x->device);
    x->own = alloc_on(x->allocator, 3 * MIB, x->s);
    x->cached = alloc_on(x->allocator, 5 * MIB, x->s);
    x->recorded = alloc(x->allocator, 7 * MIB);
    OK(memopt_device_sync(x->device));
    OK(memopt_fill(x->device, x->own, 1, 64 * KIB, x->s));
    OK(memopt_fill(x->device, x->recorded, 1, 64 * KIB, x->s));
    OK(memopt_fill(x->device, x->cached, 1, 64 * KIB, x->s));
    OK(memopt_allocator_record_stream(x->allocator, x->recorded, x->s));
    OK(memopt_allocator_free(x->allocator, x->cached));
}

/* What another thread may do meanwhile: the stream's work is not done, so nothing of it is free. */
static void meanwhile(void *user)
{
    scene *x = user;
    void *blocks[3];
    static const uint64_t sizes[] = {3 * MIB, 5 * MIB, 7 * MIB};
    on_sync = NULL;
    x->calls++;
    dead = x->s;
    OK(memopt_allocator_free(x->allocator, x->own));
    OK(memopt_allocator_free(x->allocator, x->recorded));
    assert_true(stat_of(x->allocator, "active.all.current") == 1);
    OK(mo_allocator_check(x->allocator));
    for (int i = 0; i < 3; i++) {
        blocks[i] = alloc(x->allocator, sizes[i]);
        OK(memopt_fill(x->device, blocks[i], 9, sizes[i], NULL));
        assert_ptr_not_equal(blocks[i], x->own);
        assert_ptr_not_equal(blocks[i], x->cached);
        assert_ptr_not_equal(blocks[i], x->recorded);
    }
    if (x->trim) { /* waits for the device, since it may not wait for the stream */
        uint64_t used = info_of(x->device).used;
        OK(memopt_allocator_trim_sync(x->allocator, 0, NULL));
        assert_true(info_of(x->device).used < used);
        assert_int_equal(stat_of(x->allocator, "active.all.current"), 3);
    }
    for (int i = 0; i < 3; i++) {
        unsigned char *bytes = blocks[i];
        OK(memopt_device_sync(x->device));
        assert_int_equal(bytes[0], 9);
        assert_int_equal(bytes[sizes[i] - 1], 9);
        OK(memopt_allocator_free(x->allocator, blocks[i]));
    }
    dead = NULL; /* the device itself still has to end it */
}

TEST(test_meanwhile)
{
    for (int c = 0; c < 4; c++) {
        scene x;
        make_scene(&x, configs[c % 2]);
        x.trim = c / 2;
        on_sync = meanwhile;
        on_sync_user = &x;
        end_stream(x.device, x.s);
        assert_int_equal(x.calls, 1);
        assert_int_equal(stat_of(x.allocator, "active.all.current"), 0);
        OK(memopt_device_sync(x.device));
        finish(x.allocator, x.device);
    }
}

static void replace_allocator(void *user)
{
    scene *x = user;
    on_sync = NULL;
    x->calls++;
    OK(memopt_allocator_free(x->allocator, x->own));
    OK(memopt_allocator_free(x->allocator, x->recorded));
    dead = x->s;
    OK(memopt_allocator_destroy(x->allocator));
    dead = NULL;
    x->allocator = new_allocator(x->device, "");
    x->own = alloc(x->allocator, 1000);
}

TEST(allocators_come_and_go_meanwhile)
{
    for (int c = 0; c < 2; c++) {
        scene x;
        make_scene(&x, configs[c]);
        on_sync = replace_allocator;
        on_sync_user = &x;
        end_stream(x.device, x.s);
        assert_int_equal(x.calls, 1);
        OK(memopt_allocator_free(x.allocator, x.own));
        OK(memopt_device_sync(x.device));
        finish(x.allocator, x.device);
    }
}

/* --- a stream that cannot be waited for ------------------------------------------------------- */

/* Its memory stays apart until the device has been waited for. by_release: told by its owner. */
static void end_unwaited(const char *config, int by_release, int by_pressure)
{
    scene x;
    uint64_t released = 0;
    make_scene(&x, config);
    sync_says = MEMOPT_DRIVER_ERROR;
    if (by_release)
        FAILS_SAYING(MEMOPT_DRIVER_ERROR, "as the test says",
                     memopt_stream_release_sync(x.device, x.s));
    else
        FAILS_SAYING(MEMOPT_DRIVER_ERROR, "as the test says", memopt_stream_destroy(x.device, x.s));
    sync_says = MEMOPT_OK;
    dead = x.s;
    OK(memopt_allocator_free(x.allocator, x.own));
    OK(memopt_allocator_free(x.allocator, x.recorded));
    OK(mo_allocator_check(x.allocator));
    assert_int_equal(stat_of(x.allocator, "active.all.current"), 1);
    void *other = alloc(x.allocator, 5 * MIB);
    assert_ptr_not_equal(other, x.cached);
    OK(memopt_allocator_free(x.allocator, other));
    if (by_pressure) {
        other = alloc(x.allocator, 60 * MIB);
        OK(memopt_allocator_free(x.allocator, other));
    } else {
        OK(memopt_allocator_trim_sync(x.allocator, 0, &released));
        assert_true(released >= 20 * MIB);
    }
    assert_int_equal(stat_of(x.allocator, "active.all.current"), 0);
    dead = NULL;
    if (by_release)
        OK(memopt_stream_destroy(x.device, x.s));
    OK(memopt_device_sync(x.device));
    finish(x.allocator, x.device);
}

TEST(unwaited)
{
    for (int i = 0; i < 8; i++)
        end_unwaited(configs[i % 2], i / 2 % 2, i / 4);
}

/* An old stream that could not be waited for does not become free with the next of its handle. */
ALLOCATOR_TEST(unwaited_keeps_apart_from_the_next, allocator, open_watched(1), CLASSIC)
{
    memopt_stream s = new_stream(device);
    void *first = alloc_on(allocator, 3 * MIB, s);
    OK(memopt_allocator_free(allocator, first));
    sync_says = MEMOPT_DRIVER_ERROR;
    FAILS_SAYING(MEMOPT_DRIVER_ERROR, "test", memopt_stream_release_sync(device, s));
    sync_says = MEMOPT_OK;
    void *second = alloc_on(allocator, 3 * MIB, s);
    assert_ptr_not_equal(second, first);
    OK(memopt_allocator_free(allocator, second));
    OK(memopt_stream_release_sync(device, s));
    assert_ptr_equal(alloc(allocator, 3 * MIB), second);
    void *third = alloc(allocator, 19 * MIB);
    assert_true((char *)third + 19 * MIB <= (char *)first || (char *)third > (char *)first);
    OK(memopt_allocator_free(allocator, second));
    OK(memopt_allocator_free(allocator, third));
    end_stream(device, s);
}

/* --- arguments -------------------------------------------------------------------------------- */

ALLOCATOR_TEST(arguments, allocator, open_watched(0), CLASSIC)
{
    memopt_stream s = new_stream(device), unknown = (memopt_stream)&records;
    REFUSED_SAYING("device is NULL", memopt_stream_release_sync(NULL, s));
    REFUSED_SAYING("default", memopt_stream_release_sync(device, NULL));
    REFUSED_SAYING("not a live stream", memopt_stream_release_sync(device, unknown));
    void *block = alloc_on(allocator, 1000, s);
    OK(memopt_allocator_free(allocator, block));
    REFUSED_SAYING("not a live stream", memopt_stream_destroy(device, unknown));
    assert_ptr_equal(alloc_on(allocator, 1000, s), block);
    OK(memopt_allocator_free(allocator, block));
    FAILS_SAYING(MEMOPT_BUSY, "1 allocators, optimizers and offloaders",
                 memopt_device_close(device));
    end_stream(device, s);
    REFUSED_SAYING("not a live stream", memopt_stream_destroy(device, s));
}
