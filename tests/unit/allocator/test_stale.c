/*
 * Pages that move while their stream is at work. The device lags: nothing is complete that is not
 * waited for, and work on memory that was unmapped too early is a fault of the device.
 */
#include "support.h"

#include "device/cpu/cpu.h"

enum { CAPACITY_MIB = 64 };

static memopt_device *open_busy(uint64_t lag)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    options.capacity = CAPACITY_MIB * MIB;
    options.threads = 1;
    options.lag = lag;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static uint64_t waits_of(memopt_device *device)
{
    return mo_cpu(device)->waits.waits;
}

/* What work that the host is ahead of reads and writes. */
typedef struct use {
    char *memory, *seen;
    uint64_t bytes;
    char value;
} use;

static use use_block(memopt_device *device, void *memory, uint64_t bytes, char value,
                     memopt_stream stream)
{
    use u = {memory, malloc(bytes), bytes, value};
    assert_non_null(u.seen);
    OK(memopt_fill(device, memory, (uint8_t)value, bytes, stream));
    OK(memopt_copy(device, u.seen, memory, bytes, stream));
    return u;
}

static void check_use(use *u)
{
    for (uint64_t i = 0; i < u->bytes; i += 4096)
        assert_int_equal(u->seen[i], u->value);
    free(u->seen);
}

/* 20 MiB and 24 MiB of a stream are free, not side by side, and its work is not done. */
typedef struct scene {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
    void *between;
    use first, last;
} scene;

static void begin(scene *s, uint64_t lag)
{
    s->device = open_busy(lag);
    s->allocator = new_allocator(s->device, EXPANDABLE);
    OK(memopt_stream_create(s->device, &s->stream));
    void *a = alloc_on(s->allocator, 20 * MIB, s->stream);
    s->between = alloc_on(s->allocator, 16 * MIB, s->stream);
    void *b = alloc_on(s->allocator, 24 * MIB, s->stream);
    s->first = use_block(s->device, a, 20 * MIB, 1, s->stream);
    s->last = use_block(s->device, b, 24 * MIB, 2, s->stream);
    OK(memopt_allocator_free(s->allocator, a));
    OK(memopt_allocator_free(s->allocator, b));
}

static void end(scene *s)
{
    OK(memopt_device_sync(s->device));
    check_use(&s->first);
    check_use(&s->last);
    OK(memopt_allocator_free(s->allocator, s->between));
    OK(mo_allocator_check(s->allocator));
    OK(memopt_allocator_destroy(s->allocator));
    OK(memopt_stream_destroy(s->device, s->stream));
    OK(memopt_device_close(s->device));
}

/* A block that needs pages of both is there without a wait, on its own stream or on another one. */
TEST(nothing_is_waited_for)
{
    for (int own = 0; own < 2; own++) {
        scene s;
        begin(&s, UINT64_MAX);
        memopt_stream stream = own ? s.stream : NULL;
        void *block = alloc_on(s.allocator, 40 * MIB, stream);
        use third = use_block(s.device, block, 40 * MIB, 3, stream);
        assert_int_equal(waits_of(s.device), 0);
        assert_non_null(s.allocator->stale);
        assert_true(held_by(s.allocator) <= CAPACITY_MIB * MIB);
        OK(mo_allocator_check(s.allocator));
        /* Another call of the slow path leaves what is in use. */
        void *rest = alloc_on(s.allocator, 8 * MIB, stream), *none;
        OK(memopt_device_sync(s.device));
        check_use(&third);
        /* After it, it unmaps what is over. */
        FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
              memopt_allocator_alloc(s.allocator, 2 * MIB, 0, stream, &none));
        assert_null(s.allocator->stale);
        OK(memopt_allocator_free(s.allocator, rest));
        OK(memopt_allocator_free(s.allocator, block));
        end(&s);
    }
}

/* A trim waits for old addresses, since a handle that is mapped cannot go back. */
TEST(trim)
{
    scene s;
    begin(&s, UINT64_MAX);
    OK(memopt_allocator_free(s.allocator, alloc_on(s.allocator, 40 * MIB, s.stream)));
    uint64_t released = 0;
    OK(memopt_allocator_trim_sync(s.allocator, 0, &released));
    assert_null(s.allocator->stale);
    assert_int_equal(held_by(s.allocator), 16 * MIB);
    end(&s);
}

TEST(test_pause)
{
    scene s;
    begin(&s, UINT64_MAX);
    void *block = alloc_on(s.allocator, 40 * MIB, s.stream);
    use third = use_block(s.device, block, 40 * MIB, 3, s.stream);
    OK(pause_pool(s.allocator, MEMOPT_PAUSE_KEEP, NULL));
    assert_null(s.allocator->stale);
    OK(memopt_pool_resume_sync(s.allocator, 0));
    assert_int_equal(((char *)block)[40 * MIB - 1], 3);
    check_use(&third);
    OK(memopt_allocator_free(s.allocator, block));
    end(&s);
}

/* Frees of the stream's end: old addresses outlive it. */
TEST(the_stream_ends)
{
    scene s;
    begin(&s, UINT64_MAX);
    void *block = alloc_on(s.allocator, 40 * MIB, s.stream);
    OK(memopt_stream_destroy(s.device, s.stream));
    OK(memopt_allocator_free(s.allocator, block));
    OK(memopt_stream_create(s.device, &s.stream));
    OK(memopt_allocator_free(s.allocator, alloc_on(s.allocator, 44 * MIB, s.stream)));
    assert_null(s.allocator->stale);
    end(&s);
}

/* An observer that refuses keeps the old addresses, until it agrees or the allocator ends. */
static int refusals;

static memopt_status refuse(void *user, const memopt_range_event *event)
{
    if (event->kind != MEMOPT_RANGE_UNMAPPING || refusals == 0)
        return MEMOPT_OK;
    refusals--;
    return MEMOPT_BUSY;
}

TEST(an_observer_refuses)
{
    for (int agrees = 0; agrees < 2; agrees++) {
        scene s;
        uint64_t number;
        begin(&s, UINT64_MAX);
        OK(memopt_allocator_add_range_observer(s.allocator, refuse, NULL, &number));
        void *block = alloc_on(s.allocator, 40 * MIB, s.stream);
        OK(memopt_device_sync(s.device));
        refusals = agrees ? 2 : 1000;
        for (int i = 0; i < 3; i++) {
            (void)memopt_allocator_trim_sync(s.allocator, 0, NULL);
            OK(mo_allocator_check(s.allocator));
        }
        assert_int_equal(s.allocator->stale == NULL, agrees);
        refusals = 0;
        OK(memopt_allocator_free(s.allocator, block));
        OK(memopt_allocator_remove_range_observer(s.allocator, number));
        end(&s);
    }
}
