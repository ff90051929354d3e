/* What the allocator does when a back end differs: a stream that records a graph, a device without
 * virtual memory. The cpu device's operations are replaced one by one. */
#include "support.h"

#include "support/watched.h"

static int events_touched, states_asked;

static memopt_status stream_capturing(memopt_device *device, memopt_stream stream, int32_t *out)
{
    states_asked++;
    return says_captured(device, stream, out);
}

static memopt_status event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    events_touched++;
    return real->event_record(device, event, stream);
}

static memopt_status event_query(memopt_device *device, memopt_event *event)
{
    events_touched++;
    return real->event_query(device, event);
}

static memopt_status event_sync(memopt_device *device, memopt_event *event)
{
    events_touched++;
    return real->event_sync(device, event);
}

static memopt_device *open_watched(void)
{
    memopt_device *device = watch(eager(CAPACITY));
    ops.stream_capturing = stream_capturing;
    ops.event_record = event_record;
    ops.event_query = event_query;
    ops.event_sync = event_sync;
    events_touched = 0;
    return device;
}

static int waits;
static memopt_stream at_work;

static memopt_status busy(memopt_device *device, memopt_stream stream)
{
    return stream == at_work ? MEMOPT_NOT_READY : MEMOPT_OK;
}

static memopt_status stream_sync(memopt_device *device, memopt_stream stream)
{
    waits++;
    return real->stream_sync(device, stream);
}

static memopt_status device_sync(memopt_device *device)
{
    waits++;
    return real->sync(device);
}

/* Free pages of a stream that is at work are not taken while the device has others. At the limit the
 * stream that gets them waits for an event, on the device. */
ALLOCATOR_TEST(nothing_waits_while_there_is_room, allocator, open_watched(), EXPANDABLE)
{
    ops.stream_query = busy;
    ops.stream_sync = stream_sync;
    ops.sync = device_sync;
    waits = 0;
    at_work = stream_on(device);
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 20 * MIB, at_work)));
    (void)alloc(allocator, 24 * MIB);
    assert_int_equal(waits, 0);
    assert_int_equal(events_touched, 0);
    assert_int_equal(held_by(allocator), 44 * MIB);
    (void)alloc(allocator, 40 * MIB);
    assert_int_equal(held_by(allocator), 64 * MIB);
    assert_int_equal(events_touched, 1); /* recorded; the host does not wait for it */
    assert_int_equal(waits, 0);
}

/* During a capture: frees are deferred, nothing is asked or waited for, and memory still comes from
 * the cache and the device. Afterwards the deferred block is given out again. */
ALLOCATOR_TEST(capture_defers, allocator, open_watched(), BOTH)
{
    uint64_t released = 7;
    void *none = NULL;
    memopt_stream other = stream_on(device);
    void *block = alloc(allocator, 40 * MIB), *plain = alloc(allocator, 1000);
    OK(memopt_allocator_record_stream(allocator, block, other));
    captured = other;
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_allocator_free(allocator, plain)); /* no recorded stream: free at once */
    assert_ptr_equal(alloc(allocator, 1000), plain);
    assert_int_equal(stat_of(allocator, "active_bytes.large_pool.current"), 40 * MIB);
    (void)alloc(allocator, 12 * MIB);
    GIVES(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(allocator, 40 * MIB, 0, NULL, &none));
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_int_equal(released, 0);
    assert_int_equal(events_touched, 0);
    OK(mo_allocator_check(allocator));
    captured = NULL;
    assert_ptr_equal(alloc(allocator, 40 * MIB), block);
    assert_true(events_touched > 0);
}

/* One free that waits costs each allocation one question to the driver, whatever the number of
 * streams; a capture of another stream does not hold it up. */
ALLOCATOR_TEST(few_questions, allocator, open_watched(), CLASSIC)
{
    enum { STREAMS = 24 }; /* of 2 MiB each */
    memopt_stream streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        OK(memopt_stream_create(device, &streams[i]));
        void *block = alloc_on(allocator, 1000, streams[i]);
        OK(memopt_allocator_free(allocator, block));
    }
    void *block = alloc(allocator, 1000);
    OK(memopt_allocator_record_stream(allocator, block, streams[0]));
    captured = streams[1];
    states_asked = events_touched = 0;
    OK(memopt_allocator_free(allocator, block));
    assert_int_equal(states_asked, 1);
    assert_int_equal(events_touched, 1); /* recorded */
    OK(memopt_stream_sync(device, streams[0]));
    assert_ptr_equal(alloc(allocator, 1000), block);
    assert_int_equal(states_asked, 2);
    assert_int_equal(events_touched, 2);
    OK(memopt_allocator_free(allocator, block));
    captured = NULL;
}

static memopt_status never_over(memopt_device *device, memopt_event *event)
{
    events_touched++;
    return MEMOPT_NOT_READY;
}

/* However many frees wait, for however many streams, a pair makes at most two driver calls. */
ALLOCATOR_TEST(few_calls_with_many_pending, allocator, open_watched(), BOTH)
{
    enum { STREAMS = 24, EACH = 4, PAIRS = 100 };
    memopt_stream streams[STREAMS];
    void *waiting[STREAMS][EACH];
    ops.event_query = never_over;
    for (int i = 0; i < STREAMS; i++) {
        OK(memopt_stream_create(device, &streams[i]));
        for (int k = 0; k < EACH; k++) {
            waiting[i][k] = alloc(allocator, 1000);
            OK(memopt_allocator_record_stream(allocator, waiting[i][k], streams[i]));
        }
    }
    OK(memopt_allocator_free(allocator, alloc(allocator, 1000)));
    for (int i = 0; i < STREAMS; i++)
        for (int k = 0; k < EACH; k++)
            OK(memopt_allocator_free(allocator, waiting[i][k]));
    for (int i = 0; i < PAIRS; i++) {
        states_asked = events_touched = 0;
        OK(memopt_allocator_free(allocator, alloc(allocator, 1000)));
        assert_in_range(states_asked + events_touched, 1, 2);
    }
    ops.event_query = event_query;
}

TEST(without_virtual_memory)
{
    memopt_device *device = open_watched();
    memopt_allocator *allocator = NULL;
    ops.vm_reserve = NULL;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "virtual memory",
                 memopt_allocator_create(device, EXPANDABLE, NULL, &allocator));
    assert_null(allocator);
    allocator = new_allocator(device, "expandable_segments:False");
    (void)alloc(allocator, 1000);
    finish(allocator, device);
}
