/* Pausing a pool: its memory goes, its addresses stay, and a resume brings both together again. */
#include "support.h"

#include "support/sweep.h"
#include "support/watched.h"

enum { BLOCKS = 12 };

typedef struct scene {
    memopt_device *device;
    memopt_allocator *parent;
    memopt_pool *pool;
    memopt_stream stream;
    unsigned char *blocks[BLOCKS];
} scene;

static uint64_t size_of(int i)
{
    static const uint64_t sizes[] = {1000, 70000, MIB + 512, 512, 2 * MIB, 5 * MIB + 512};
    return sizes[i % 6];
}

/* A pool whose blocks, of two streams and with gaps between them, hold their numbers. */
static scene begin(uint32_t order, uint64_t seed, uint32_t retain)
{
    scene s = {open_cpu(CAPACITY, order, seed), NULL, NULL, NULL, {NULL}};
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    void *gaps[BLOCKS];
    options.name = "generator";
    options.retain = retain;
    s.parent = new_allocator(s.device, EXPANDABLE);
    OK(memopt_pool_create(s.parent, &options, &s.pool));
    OK(memopt_stream_create(s.device, &s.stream));
    for (int i = 0; i < BLOCKS; i++) {
        memopt_stream stream = i % 2 == 0 ? NULL : s.stream;
        s.blocks[i] = alloc_on(s.pool, size_of(i), stream);
        gaps[i] = alloc_on(s.pool, 100000, stream);
        OK(memopt_fill(s.device, s.blocks[i], (uint8_t)(i + 1), size_of(i), stream));
    }
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_allocator_free(s.pool, gaps[i]));
    return s;
}

static int holds(const unsigned char *block, int value, uint64_t bytes)
{
    return block[0] == value && memcmp(block, block + 1, bytes - 1) == 0;
}

static void check_contents(const scene *s)
{
    OK(memopt_device_sync(s->device));
    for (int i = 0; i < BLOCKS; i++)
        if (s->blocks[i] != NULL)
            assert_true(holds(s->blocks[i], i + 1, size_of(i)));
}

static void drop(scene *s, int i)
{
    OK(memopt_allocator_free(s->pool, s->blocks[i]));
    s->blocks[i] = NULL;
}

static void end(scene *s)
{
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_allocator_free(s->pool, s->blocks[i]));
    OK(mo_allocator_check(s->pool));
    OK(memopt_allocator_destroy(s->pool));
    OK(memopt_stream_destroy(s->device, s->stream));
    assert_int_equal(info_of(s->device).used, held_by(s->parent));
    finish(s->parent, s->device);
}

/* --- the whole way --------------------------------------------------------------------------- */

/* In any order of streams: what was under way is complete, all memory of the device serves others,
 * and what comes back is what went. */
TEST(contents_are_kept)
{
    for (uint64_t seed = 0; seed < (is_long() ? 6 : 2); seed++) {
        uint32_t order = seed == 0 ? MEMOPT_STREAM_ORDER_EAGER : MEMOPT_STREAM_ORDER_ADVERSARIAL;
        scene s = begin(order, seed, 0);
        uint64_t before = held_by(s.pool), live = stat_of(s.pool, "allocated_bytes.all.current");
        uint64_t released = 0, active = stat_of(s.pool, "allocation.all.current");
        for (int round = 0; round < 3; round++) {
            OK(pause_pool(s.pool, MEMOPT_PAUSE_KEEP, &released));
            assert_true(round > 0 || released == before);
            assert_int_equal(pool_is_paused(s.pool), 1);
            assert_int_equal(held_by(s.pool), 0);
            assert_int_equal(stat_of(s.pool, "allocated_bytes.all.current"), live);
            assert_int_equal(stat_of(s.pool, "allocation.all.current"), active);
            assert_true(info_of(s.device).pinned >= live && info_of(s.device).pinned <= before);
            OK(mo_allocator_check(s.pool));
            OK(memopt_allocator_trim_sync(s.parent, 0, NULL));
            assert_int_equal(info_of(s.device).used, 0);
            void *all = alloc(s.parent, CAPACITY);
            OK(memopt_fill(s.device, all, 0x55, MIB, NULL));
            OK(memopt_allocator_free(s.parent, all)); /* cached: the resume takes it */
            OK(memopt_pool_resume_sync(s.pool, 0));
            assert_int_equal(pool_is_paused(s.pool), 0);
            assert_int_equal(info_of(s.device).pinned, 0);
            assert_true(held_by(s.pool) <= before &&
                        held_by(s.pool) + held_by(s.parent) <= CAPACITY);
            OK(mo_allocator_check(s.pool));
            check_contents(&s);
        }
        void *more = alloc(s.pool, 7 * MIB);
        OK(memopt_allocator_free(s.pool, more));
        end(&s);
    }
}

/* --- calls on a paused pool ------------------------------------------------------------------- */

TEST(statuses)
{
    scene s = begin(MEMOPT_STREAM_ORDER_EAGER, 0, 0);
    void *none = NULL;
    uint64_t released = 7;
    (void)watch(s.device);
    REFUSED(pause_pool(NULL, MEMOPT_PAUSE_KEEP, &released));
    REFUSED_SAYING("how is 3", pause_pool(s.pool, 3, &released));
    REFUSED(memopt_pool_resume_sync(NULL, 0));
    FAILS_SAYING(MEMOPT_BUSY, "\"generator\" is not paused", memopt_pool_resume_sync(s.pool, 0));
    assert_int_equal(pool_is_paused(NULL), 0);
    captured = s.stream;
    FAILS_SAYING(MEMOPT_BUSY, "graph", pause_pool(s.pool, 0, &released));
    FAILS_SAYING(MEMOPT_BUSY, "graph", pause_pool(s.parent, 0, &released));
    captured = NULL;
    assert_int_equal(released, 7);
    OK(pause_pool(s.pool, MEMOPT_PAUSE_KEEP, NULL));
    captured = s.stream;
    FAILS_SAYING(MEMOPT_BUSY, "graph", memopt_pool_resume_sync(s.pool, 0));
    captured = NULL;
    FAILS_SAYING(MEMOPT_BUSY, "\"generator\" is paused already",
                 pause_pool(s.pool, MEMOPT_PAUSE_KEEP, &released));
    FAILS_SAYING(MEMOPT_BUSY, "\"generator\" is paused; resume it",
                 memopt_allocator_alloc(s.pool, 512, 0, NULL, &none));
    FAILS(MEMOPT_BUSY, memopt_allocator_alloc(s.pool, 20 * MIB, 0, NULL, &none));
    FAILS_SAYING(MEMOPT_BUSY, "blocks are still allocated", memopt_allocator_destroy(s.pool));
    OK(memopt_allocator_trim_sync(s.pool, 0, &released));
    assert_int_equal(released, 0);
    OK(memopt_pool_resume_sync(s.pool, 0));
    check_contents(&s);
    end(&s);
}

ALLOCATOR_TEST(classic_segments, allocator, eager(CAPACITY), CLASSIC)
{
    unsigned char *block = alloc(allocator, 3 * MIB);
    memset(block, 3, 3 * MIB);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "20.00 MiB in classic segments",
                 pause_pool(allocator, MEMOPT_PAUSE_KEEP, NULL));
    assert_int_equal(pool_is_paused(allocator), 0);
    assert_true(holds(block, 3, 3 * MIB));
}

TEST(the_end_while_paused)
{
    for (int by_force = 0; by_force < 2; by_force++) {
        for (int keep = 0; keep < 2; keep++) {
            scene s = begin(MEMOPT_STREAM_ORDER_ADVERSARIAL, 3, 0);
            OK(pause_pool(s.pool, (memopt_pause)keep, NULL));
            for (int i = 0; i < BLOCKS && !by_force; i++)
                drop(&s, i);
            OK(by_force ? memopt_allocator_destroy_force(s.pool)
                        : memopt_allocator_destroy(s.pool));
            OK(memopt_stream_destroy(s.device, s.stream));
            finish(s.parent, s.device); /* the device closes: nothing is left */
        }
    }
}

/* A graph's pool keeps its free memory, at the addresses that replays write to. */
TEST(retained_memory_comes_back)
{
    scene s = begin(MEMOPT_STREAM_ORDER_EAGER, 0, 1);
    unsigned char *scratch = alloc(s.pool, 6 * MIB);
    OK(memopt_allocator_free(s.pool, scratch));
    uint64_t before = held_by(s.pool);
    OK(pause_pool(s.pool, MEMOPT_PAUSE_KEEP, NULL));
    assert_int_equal(info_of(s.device).used, 0);
    OK(memopt_pool_resume_sync(s.pool, 0));
    assert_int_equal(held_by(s.pool), before);
    memset(scratch, 1, 6 * MIB); /* as a replay would */
    check_contents(&s);
    end(&s);
}

/* --- too little memory ------------------------------------------------------------------------ */

TEST(resume_without_memory)
{
    for (int limited = 0; limited < 2; limited++) {
        scene s = begin(MEMOPT_STREAM_ORDER_EAGER, 0, 0);
        OK(pause_pool(s.pool, MEMOPT_PAUSE_KEEP, NULL));
        if (limited)
            OK(memopt_allocator_set_limit(s.parent, 40 * MIB));
        void *live = alloc(s.parent, limited ? 24 * MIB : 50 * MIB);
        uint64_t before = info_of(s.device).used;
        FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "\"generator\" lacks",
                     memopt_pool_resume_sync(s.pool, 0));
        assert_int_equal(pool_is_paused(s.pool), 1);
        assert_int_equal(info_of(s.device).used, before);
        OK(mo_allocator_check(s.pool));
        OK(memopt_allocator_free(s.parent, live));
        OK(memopt_pool_resume_sync(s.pool, 0));
        check_contents(&s);
        OK(memopt_allocator_set_limit(s.parent, 0));
        end(&s);
    }
}

/* --- what a driver refuses -------------------------------------------------------------------- */

static int countdown, refusals;

static int refused(void)
{
    return countdown > 0 && --countdown == 0 && refusals > 0 ? (refusals--, countdown = 1, 1) : 0;
}

static memopt_status vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    return refused() ? mo_fail(MEMOPT_DRIVER_ERROR, "vm_unmap: refused")
                     : real->vm_unmap(device, address, size);
}

static memopt_status vm_release(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    return refused() ? mo_fail(MEMOPT_DRIVER_ERROR, "vm_release: refused")
                     : real->vm_release(device, handle, size);
}

static memopt_status vm_map(memopt_device *device, void *address, uint64_t size, mo_vm_handle h)
{
    return refused() ? mo_fail(MEMOPT_DRIVER_ERROR, "vm_map: refused")
                     : real->vm_map(device, address, size, h);
}

/* From the n-th unmap or release on, `count` of them fail, in a pause and in a resume. Whatever
 * they are, no content is lost and the pool can be resumed. */
static int run_with_refusals(int n, int count)
{
    scene s = begin(MEMOPT_STREAM_ORDER_EAGER, 0, 0);
    uint64_t before = held_by(s.pool);
    OK(memopt_allocator_trim_sync(s.pool, 0, NULL));
    (void)watch(s.device);
    ops.vm_unmap = vm_unmap;
    ops.vm_release = vm_release;
    ops.vm_map = vm_map;
    refusals = count;
    countdown = n;
    memopt_status status = pause_pool(s.pool, MEMOPT_PAUSE_KEEP, NULL);
    OK(mo_allocator_check(s.pool));
    assert_int_equal(pool_is_paused(s.pool), status == MEMOPT_OK);
    assert_true(held_by(s.pool) <= before);
    if (status == MEMOPT_OK) {
        void *most = NULL;
        int left = countdown;
        countdown = 0; /* for the pool only */
        drop(&s, 5);   /* what the driver kept of it is no cache that others could take */
        status = memopt_allocator_alloc(s.parent, CAPACITY, 0, NULL, &most);
        assert_true(status == MEMOPT_OK || status == MEMOPT_OUT_OF_DEVICE_MEMORY);
        OK(memopt_allocator_free(s.parent, most));
        OK(memopt_allocator_trim_sync(s.parent, 0, NULL));
        OK(mo_allocator_check(s.pool));
        countdown = left;
        status = memopt_pool_resume_sync(s.pool, 0);
        OK(mo_allocator_check(s.pool));
        assert_int_equal(pool_is_paused(s.pool), status != MEMOPT_OK);
    }
    int struck = refusals < count;
    countdown = refusals = 0;
    if (pool_is_paused(s.pool))
        OK(memopt_pool_resume_sync(s.pool, 0));
    check_contents(&s);
    assert_int_equal(info_of(s.device).used, held_by(s.pool) + held_by(s.parent));
    end(&s);
    return struck;
}

TEST(test_refusals)
{
    for (int count = 1; count < 3; count++) {
        int64_t n = first_place();
        while (run_with_refusals((int)n, count))
            n = next_place(n);
        print_message("%d refusals in a row: %d places\n", count, (int)n - 1);
        assert_true(n > 20);
    }
    assert_true(run_with_refusals(1, 1000));
}

/* A pressure callback may pause a pool to make room. */
static memopt_pool *to_pause;

static uint64_t pause_for_room(void *user, uint64_t bytes)
{
    uint64_t released = 0;
    if (to_pause != NULL && !pool_is_paused(to_pause))
        OK(pause_pool(to_pause, MEMOPT_PAUSE_KEEP, &released));
    return released;
}

static memopt_allocator *calling(memopt_device *device, const char *config)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *allocator = NULL;
    options.pressure = pause_for_room;
    OK(memopt_allocator_create(device, config, &options, &allocator));
    return allocator;
}

ALLOCATOR_TEST_OF(a_callback_pauses, parent, eager(CAPACITY), calling(device, config), EXPANDABLE)
{
    memopt_pool *idle = pool_of(parent, NULL);
    unsigned char *block = alloc(idle, 40 * MIB);
    memset(block, 6, 40 * MIB);
    to_pause = idle;
    (void)alloc(parent, 60 * MIB);
    assert_int_equal(pool_is_paused(idle), 1);
    free_live(parent);
    OK(memopt_pool_resume_sync(idle, 0));
    assert_true(holds(block, 6, 40 * MIB));
    OK(memopt_allocator_destroy_force(idle));
}
