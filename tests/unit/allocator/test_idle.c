/*
 * Idle release: what nobody used for the time goes back at a later allocation, what is used stays.
 * The clock is the test's. The argument is the device; on a GPU the driver is a simulated one.
 */
#include "support.h"

#include "allocator/memory/idle.h"
#include "device/front/handle.h"

#define SECOND UINT64_C(1000000000)

static const char *device_name = "cpu";
static uint64_t now_is, looks;

static uint64_t now(void)
{
    looks++;
    return now_is;
}

static memopt_device *open_here(void)
{
    memopt_device *device = NULL;
    now_is = 100 * SECOND;
    if (strcmp(device_name, "cpu") == 0)
        return eager(CAPACITY);
    OK(memopt_device_open(device_name, NULL, &device));
    return device;
}

/* An allocation from the cache, which looks. */
static void touch(memopt_allocator *allocator)
{
    OK(memopt_allocator_free(allocator, alloc(allocator, 1000)));
}

/* Seconds pass, with sixteen looks in each. */
static void pass(memopt_allocator *allocator, uint64_t seconds)
{
    for (uint64_t i = 0; i < 16 * seconds; i++) {
        now_is += SECOND / 16;
        touch(allocator);
    }
}

#define IDLE_EXPANDABLE "expandable_segments:True,idle_release_seconds:2"
#define IDLE_CLASSIC "idle_release_seconds:2"

/* Free for two seconds, it goes; at one it stays, and so does what is used again and again. */
ALLOCATOR_TEST(idle_goes, allocator, open_here(), IDLE_EXPANDABLE, IDLE_CLASSIC)
{
    memopt_stream stream = stream_on(device);
    touch(allocator);
    void *live = alloc(allocator, 12 * MIB);
    uint64_t base = held_by(allocator);
    void *busy = alloc_on(allocator, 14 * MIB, stream);
    OK(memopt_allocator_free(allocator, alloc(allocator, 16 * MIB)));
    assert_int_equal(held_by(allocator), base + 30 * MIB);
    for (int i = 0; i < 4; i++) {
        OK(memopt_allocator_free(allocator, busy));
        pass(allocator, 1);
        assert_int_equal(held_by(allocator), base + (i < 2 ? 30 : 14) * MIB);
        busy = alloc_on(allocator, 14 * MIB, stream);
    }
    assert_int_equal(held_by(allocator), base + 14 * MIB);
    OK(memopt_allocator_free(allocator, busy));
    OK(memopt_allocator_free(allocator, live));
    pass(allocator, 3);
    assert_int_equal(held_by(allocator), base - 12 * MIB); /* the small block's */
}

/* One member's allocations serve all that have the key, but for what is retained or paused. */
ALLOCATOR_TEST(family, allocator, open_here(), IDLE_EXPANDABLE)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    memopt_pool *pools[4];
    for (int i = 0; i < 4; i++) {
        options.retain = i == 1;
        options.config = i == 2 ? EXPANDABLE : NULL;
        OK(memopt_pool_create(allocator, &options, &pools[i]));
        void *kept = alloc(pools[i], 2 * MIB);
        OK(memopt_allocator_free(pools[i], alloc(pools[i], 8 * MIB)));
        assert_true(held_by(pools[i]) >= 10 * MIB);
        if (i != 3)
            OK(memopt_allocator_free(pools[i], kept));
        else
            OK(pause_pool(pools[i], MEMOPT_PAUSE_DISCARD, NULL));
    }
    pass(allocator, 3);
    assert_int_equal(held_by(pools[0]), 0);
    assert_true(held_by(pools[1]) >= 10 * MIB && held_by(pools[2]) >= 10 * MIB);
    assert_int_equal(pool_is_paused(pools[3]), 1);
    OK(memopt_pool_resume_sync(pools[3], 0));
    assert_int_equal(held_by(pools[3]), 2 * MIB);
    for (int i = 0; i < 3; i++)
        OK(memopt_allocator_destroy(pools[i]));
    OK(memopt_allocator_destroy_force(pools[3]));
}

/* A stream that works keeps its memory: nobody waits for it. */
static void hold(void *user)
{
    while (!atomic_load((atomic_int *)user))
        ;
}

ALLOCATOR_TEST(no_wait, allocator, open_here(), IDLE_EXPANDABLE)
{
    atomic_int go = 0;
    if (strcmp(device_name, "cpu") != 0)
        return; /* the simulated devices do not work while nobody waits */
    memopt_stream stream = stream_on(device);
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 8 * MIB, stream)));
    touch(allocator);
    uint64_t before = held_by(allocator);
    OK(memopt_stream_host_callback(device, stream, hold, &go));
    pass(allocator, 4);
    assert_int_equal(held_by(allocator), before);
    atomic_store(&go, 1);
    OK(memopt_stream_sync(device, stream));
    pass(allocator, 1);
    assert_int_equal(held_by(allocator), before - 8 * MIB);
}

/* Without the key no clock is read, and with it one in a quarter of the time looks further. */
static uint64_t clock_of(memopt_allocator *allocator)
{
    mo_lock(&allocator->lock); /* with what its stripes have counted */
    uint64_t clock = allocator->clock;
    mo_unlock(&allocator->lock);
    return clock;
}

ALLOCATOR_TEST(costs, on, open_here(), IDLE_EXPANDABLE)
{
    memopt_allocator *off = new_allocator(device, EXPANDABLE);
    looks = 0;
    touch(off);
    assert_int_equal(looks, 0);
    touch(on);
    uint64_t clock = clock_of(on);
    for (int i = 0; i < 100; i++)
        touch(on);
    assert_int_equal(looks, 101);
    assert_int_equal(clock_of(on), clock + 100); /* no mark */
    now_is += SECOND / 2 + 1;
    touch(on);
    assert_int_equal(clock_of(on), clock + 103);
    OK(memopt_allocator_destroy(off));
}

/* The n-th operation of the device fails while idle memory goes: the allocation is had all the
 * same, and what did not go is used or goes later. */
TEST(faults)
{
    for (int classic = 0; classic < 2; classic++)
        for (int64_t n = 1, struck = 1; struck; n++) {
            memopt_device *device = open_here();
            memopt_allocator *allocator =
                new_allocator(device, classic ? IDLE_CLASSIC : IDLE_EXPANDABLE);
            touch(allocator);
            uint64_t base = held_by(allocator);
            OK(memopt_allocator_free(allocator, alloc(allocator, 16 * MIB)));
            pass(allocator, 1);
            mo_device_fail_at(device, n);
            pass(allocator, 2);
            struck = mo_device_fault_struck(device);
            mo_device_fail_at(device, 0);
            OK(mo_allocator_check(allocator));
            pass(allocator, 3);
            assert_int_equal(held_by(allocator), base);
            assert_true(!struck || n < 200);
            finish(allocator, device);
        }
}

static int set_clock(void **state)
{
    mo_idle_set_clock(now);
    return 0;
}

int main(int count, char **values)
{
    if (count > 1)
        device_name = values[1];
    return run_all_tests(set_clock, NULL);
}
