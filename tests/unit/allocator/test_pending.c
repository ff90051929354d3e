/*
 * Blocks that another stream still uses when they are freed: their own stream gets them behind a
 * wait on the device. The device lags, so a wait of the host would be counted; in the adversarial
 * order work that does not wait for the other stream would come too early.
 */
#include "support.h"

#include "device/cpu/cpu.h"
#include "support/unit.h"

enum { SEEDS = 8 };

typedef struct scene {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream own, others[2];
} scene;

/* Seed 0: a device that completes nothing by itself. */
static void begin(scene *s, uint64_t capacity, uint64_t seed, const char *config)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = capacity;
    options.threads = 1;
    options.lag = seed == 0 ? UINT64_MAX : 0;
    options.stream_order = seed == 0 ? MEMOPT_STREAM_ORDER_EAGER : MEMOPT_STREAM_ORDER_ADVERSARIAL;
    options.seed = seed;
    OK(memopt_device_open("cpu", &options, &s->device));
    s->allocator = new_allocator(s->device, config);
    OK(memopt_stream_create(s->device, &s->own));
    for (int i = 0; i < 2; i++)
        OK(memopt_stream_create(s->device, &s->others[i]));
}

static void end(scene *s)
{
    OK(memopt_stream_destroy(s->device, s->own));
    for (int i = 0; i < 2; i++)
        OK(memopt_stream_destroy(s->device, s->others[i]));
    finish(s->allocator, s->device);
}

static uint64_t waits_of(const scene *s)
{
    return mo_cpu(s->device)->waits.waits;
}

/* The stream fills the block, and reads it back. */
static void use(const scene *s, void *block, uint64_t bytes, int value, memopt_stream stream,
                char *seen)
{
    OK(memopt_fill(s->device, block, (uint8_t)value, bytes, stream));
    OK(memopt_copy(s->device, seen, block, bytes, stream));
}

static void check(const char *seen, uint64_t bytes, int value)
{
    for (uint64_t i = 0; i < bytes; i += 4096)
        assert_int_equal(seen[i], value);
}

/* Two neighbours, each used by another stream, then one block of the size of both, or of one. */
static void reuse(uint64_t seed, const char *config, int both)
{
    enum { PART = 10 * MIB };
    static char seen[2][PART], later[2 * PART];
    memopt_event *ready;
    scene s;
    begin(&s, 64 * MIB, seed, config);
    char *whole = alloc_on(s.allocator, 2 * PART, s.own), *parts[2];
    OK(memopt_allocator_free(s.allocator, whole));
    for (int i = 0; i < 2; i++)
        parts[i] = alloc_on(s.allocator, PART, s.own);
    OK(memopt_event_create(s.device, 0, &ready));
    OK(memopt_event_record(ready, s.own));
    for (int i = 0; i < 2; i++) {
        OK(memopt_stream_wait_event(s.device, s.others[i], ready));
        use(&s, parts[i], PART, 1 + i, s.others[i], seen[i]);
        OK(memopt_allocator_record_stream(s.allocator, parts[i], s.others[i]));
        OK(memopt_allocator_free(s.allocator, parts[i]));
    }
    OK(memopt_event_destroy(ready));
    uint64_t bytes = both ? 2 * PART : PART;
    void *next = alloc_on(s.allocator, bytes, s.own);
    if (both || seed == 0) /* one: the part that was freed first */
        assert_ptr_equal(next, whole);
    use(&s, next, bytes, 3, s.own, later);
    if (seed == 0) /* the one that was not needed waits still */
        assert_int_equal(stat_of(s.allocator, "active.all.current"), both ? 1 : 2);
    assert_int_equal(stat_of(s.allocator, "reserved_bytes.all.current"), 2 * PART);
    assert_int_equal(waits_of(&s), 0);
    OK(memopt_device_sync(s.device));
    for (int i = 0; i < 2; i++)
        check(seen[i], PART, 1 + i);
    check(later, bytes, 3);
    OK(memopt_allocator_free(s.allocator, next));
    end(&s);
}

TEST(the_own_stream_gets_them_without_a_wait_of_the_host)
{
    (void)no_fixture;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int both = 0; both < 2; both++) {
            reuse(seed, "expandable_segments:True", both);
            reuse(seed, "", both);
        }
}

/* At the limit another stream gets their pages, behind both. */
TEST(another_stream_gets_their_pages)
{
    enum { BYTES = 40 * MIB };
    static char seen[BYTES], later[BYTES];
    (void)no_fixture;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        scene s;
        begin(&s, 64 * MIB, seed, "expandable_segments:True");
        void *block = alloc_on(s.allocator, BYTES, s.own);
        use(&s, block, BYTES, 1, s.others[0], seen);
        OK(memopt_allocator_record_stream(s.allocator, block, s.others[0]));
        OK(memopt_allocator_free(s.allocator, block));
        void *next = alloc_on(s.allocator, BYTES, s.others[1]);
        use(&s, next, BYTES, 2, s.others[1], later);
        assert_int_equal(waits_of(&s), 0);
        OK(memopt_device_sync(s.device));
        check(seen, BYTES, 1);
        check(later, BYTES, 2);
        OK(memopt_allocator_free(s.allocator, next));
        end(&s);
    }
}
