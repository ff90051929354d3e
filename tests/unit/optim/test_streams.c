/* An optimizer whose stream has ended does not use the handle again. */
#include "fixture.h"

#include "device/front/handle.h"

static mo_device_ops ops;
static const mo_device_ops *real;
static memopt_stream dead;

static memopt_status event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    assert_true(dead == NULL || stream != dead);
    return real->event_record(device, event, stream);
}

static memopt_status stream_query(memopt_device *device, memopt_stream stream)
{
    assert_true(dead == NULL || stream != dead);
    return real->stream_query(device, stream);
}

static memopt_status failing_sync(memopt_device *device, memopt_stream stream)
{
    (void)real->stream_sync(device, stream);
    return mo_fail(MEMOPT_DRIVER_ERROR, "stream_sync: as the test says");
}

/* fails: the end of the stream cannot be waited for, so the free waits for the device. */
static void end_stream_first(int fails)
{
    world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1);
    memopt_tensor t = {NULL, 5000, MEMOPT_DTYPE_F32};
    uint64_t index;
    memopt_stream other = stream_on(w.device);
    real = w.device->ops;
    ops = *real;
    ops.event_record = event_record;
    ops.stream_query = stream_query;
    w.device->ops = &ops;
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    OK(memopt_allocator_alloc(w.allocator, 4 * t.count, 0, w.stream, &t.data));
    OK(memopt_optimizer_add_parameter(o, 0, &t, NULL, other, &index));
    if (fails) {
        ops.stream_sync = failing_sync;
        assert_int_equal(memopt_stream_destroy(w.device, other), MEMOPT_DRIVER_ERROR);
        ops.stream_sync = real->stream_sync;
    } else {
        OK(memopt_stream_destroy(w.device, other));
    }
    dead = other;
    end_optimizer(&w, o);
    OK(memopt_allocator_free(w.allocator, t.data));
    OK(memopt_allocator_trim_sync(w.allocator, 0, NULL));
    dead = NULL;
    w.device->ops = real;
    close_world(&w);
}

TEST(ended_stream)
{
    end_stream_first(0);
    end_stream_first(1);
}
