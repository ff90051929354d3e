/*
 * Streams, events and the work on them. Foreign streams are used unchecked.
 */
#include "device/gpu/gpu.h"

#include "base/memory.h"

static mo_gpu_stream native(memopt_stream stream)
{
    return (mo_gpu_stream)(void *)stream;
}

static mo_gpu_event_object *object_of(memopt_event *event)
{
    return (mo_gpu_event_object *)(void *)event;
}

/* --- streams ------------------------------------------------------------------------------- */

memopt_status mo_gpu_stream_create(memopt_device *device, memopt_stream *out_stream)
{
    mo_gpu_stream stream = NULL;
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "stream_create", 0))
        in.code = in.call->stream_create(&stream, MO_GPU_STREAM_NON_BLOCKING);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    *out_stream = (memopt_stream)(void *)stream;
    return MEMOPT_OK;
}

memopt_status mo_gpu_stream_destroy(memopt_device *device, memopt_stream stream)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "stream_destroy", MO_GPU_ENDS))
        in.code = in.call->stream_destroy(native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_stream_sync(memopt_device *device, memopt_stream stream)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "stream_sync", 0))
        in.code = in.call->stream_sync(native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_stream_query(memopt_device *device, memopt_stream stream)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "stream_query", 0))
        in.code = in.call->stream_query(native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_stream_wait_event(memopt_device *device, memopt_stream stream,
                                       memopt_event *event)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "stream_wait_event", 0))
        in.code = in.call->stream_wait(native(stream), object_of(event)->event, 0);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}

/* The default stream cannot be queried while another one captures; the caller sees a capture. */
memopt_status mo_gpu_stream_capturing(memopt_device *device, memopt_stream stream,
                                      int32_t *out_capturing)
{
    const mo_gpu_driver *driver = mo_gpu(device)->driver;
    int state = MO_GPU_CAPTURE_NONE;
    mo_gpu_scope in;
    if (!mo_gpu_has(driver, MO_GPU_GROUP_CAPTURE)) {
        *out_capturing = 0;
        return MEMOPT_OK;
    }
    if (mo_gpu_enter(&in, device, "stream_capturing", 0))
        in.code = in.call->stream_capturing(native(stream), &state);
    if (in.code == MO_GPU_CAPTURE_IMPLICIT) {
        driver->vendor->clear_error(driver);
        in.code = MO_GPU_SUCCESS;
        state = 1;
    }
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    *out_capturing = state != MO_GPU_CAPTURE_NONE;
    return MEMOPT_OK;
}

/* --- events -------------------------------------------------------------------------------- */

memopt_status mo_gpu_event_create(memopt_device *device, int32_t timing, memopt_event **out_event)
{
    mo_gpu_scope in;
    mo_gpu_event_object *object = mo_calloc(1, sizeof *object);
    if (object == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    object->base.device = device;
    object->base.timing = timing;
    if (mo_gpu_enter(&in, device, "event_create", 0))
        in.code = in.call->event_create(&object->event, timing ? 0 : MO_GPU_EVENT_DISABLE_TIMING);
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
    if (status == MEMOPT_OK)
        *out_event = &object->base;
    else
        mo_free(object);
    return status;
}

memopt_status mo_gpu_event_destroy(memopt_device *device, memopt_event *event)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "event_destroy", MO_GPU_ENDS))
        in.code = in.call->event_destroy(object_of(event)->event);
    mo_free(event);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "event_record", 0))
        in.code = in.call->event_record(object_of(event)->event, native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}

memopt_status mo_gpu_event_query(memopt_device *device, memopt_event *event)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "event_query", MO_GPU_RELAXED))
        in.code = in.call->event_query(object_of(event)->event);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_event_sync(memopt_device *device, memopt_event *event)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "event_sync", MO_GPU_RELAXED))
        in.code = in.call->event_sync(object_of(event)->event);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_event_elapsed(memopt_device *device, memopt_event *start, memopt_event *end,
                                   double *out_seconds)
{
    float milliseconds = 0.0f;
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "event_elapsed", 0))
        in.code =
            in.call->event_elapsed(&milliseconds, object_of(start)->event, object_of(end)->event);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY));
    *out_seconds = (double)milliseconds * 1e-3;
    return MEMOPT_OK;
}

/* --- work ---------------------------------------------------------------------------------- */

memopt_status mo_gpu_copy(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream)
{
    int32_t capturing;
    mo_gpu_scope in;
    if (bytes == 0)
        return mo_gpu_stream_capturing(device, stream, &capturing); /* checks the stream */
    MO_TRY(mo_gpu_check_copy(mo_gpu(device), destination, source, bytes));
    if (mo_gpu_enter(&in, device, "copy", 0))
        in.code = in.gpu->driver->vendor->copy(in.gpu, destination, source, bytes, native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}

memopt_status mo_gpu_fill(memopt_device *device, void *destination, uint8_t value, uint64_t bytes,
                          memopt_stream stream)
{
    int32_t capturing;
    mo_gpu_scope in;
    if (bytes == 0)
        return mo_gpu_stream_capturing(device, stream, &capturing);
    if (mo_gpu_enter(&in, device, "fill", 0))
        in.code = in.call->fill(destination, value, bytes, native(stream));
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}

/* What a driver without host functions gets instead: a stream callback that calls the function. */
typedef struct deferred_call {
    void (*function)(void *user);
    void *user;
} deferred_call;

static void run_deferred(mo_gpu_stream stream, int status, void *user)
{
    deferred_call call = *(deferred_call *)user;
    (void)stream, (void)status;
    mo_free(user);
    call.function(call.user);
}

static void add_callback(mo_gpu_scope *in, memopt_stream stream, void (*function)(void *user),
                         void *user)
{
    deferred_call *deferred = mo_malloc(sizeof *deferred);
    if (deferred == NULL) {
        in->status = MEMOPT_OUT_OF_HOST_MEMORY;
        return;
    }
    *deferred = (deferred_call){function, user};
    in->code = in->call->stream_callback(native(stream), run_deferred, deferred, 0);
    if (in->code != MO_GPU_SUCCESS)
        mo_free(deferred);
}

memopt_status mo_gpu_host_callback(memopt_device *device, memopt_stream stream,
                                   void (*function)(void *user), void *user)
{
    const mo_gpu_device *gpu = mo_gpu(device);
    mo_gpu_scope in;
    int direct = mo_gpu_has(gpu->driver, MO_GPU_GROUP_HOST);
    if (!direct && !mo_gpu_has(gpu->driver, MO_GPU_GROUP_CALLBACK))
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "stream_host_callback: the driver of %s:%d cannot call host functions",
                       gpu->driver->vendor->name, gpu->index);
    if (!mo_gpu_enter(&in, device, "stream_host_callback", 0))
        return in.status;
    if (direct)
        in.code = in.call->host_function(native(stream), function, user);
    else
        add_callback(&in, stream, function, user);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}
