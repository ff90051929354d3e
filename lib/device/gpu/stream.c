/*
 * Streams, events and the work on them. Streams of others are taken as they are.
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
    mo_gpu_device *gpu = mo_gpu(device);
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    mo_gpu_stream stream = NULL;
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "stream_create", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = call->stream_create(&stream, MO_GPU_STREAM_NON_BLOCKING);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "stream_create");
    mo_gpu_leave(gpu, saved);
    if (status == MEMOPT_OK)
        *out_stream = (memopt_stream)(void *)stream;
    return status;
}

memopt_status mo_gpu_stream_destroy(memopt_device *device, memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int dead = 0;
    memopt_status status = mo_gpu_enter_end(gpu, "stream_destroy", &saved, &dead);
    if (status != MEMOPT_OK || dead)
        return status;
    int code = mo_gpu_call(gpu)->stream_destroy(native(stream));
    status = mo_gpu_end_result(gpu, code, "stream_destroy");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_stream_sync(memopt_device *device, memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "stream_sync", &saved);
    if (status != MEMOPT_OK)
        return status;
    status = mo_gpu_result(gpu, mo_gpu_call(gpu)->stream_sync(native(stream)),
                           MEMOPT_OUT_OF_DEVICE_MEMORY, "stream_sync");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_stream_query(memopt_device *device, memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "stream_query", &saved);
    if (status != MEMOPT_OK)
        return status;
    status = mo_gpu_result(gpu, mo_gpu_call(gpu)->stream_query(native(stream)),
                           MEMOPT_OUT_OF_DEVICE_MEMORY, "stream_query");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_stream_wait_event(memopt_device *device, memopt_stream stream,
                                       memopt_event *event)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "stream_wait_event", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->stream_wait(native(stream), object_of(event)->event, 0);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "stream_wait_event");
    mo_gpu_leave(gpu, saved);
    return status;
}

/* The default stream may not be asked about while another one captures; to a caller that is a
 * capture under way. */
memopt_status mo_gpu_stream_capturing(memopt_device *device, memopt_stream stream,
                                      int32_t *out_capturing)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int state = MO_GPU_CAPTURE_NONE;
    if (!mo_gpu_has(gpu->driver, MO_GPU_GROUP_CAPTURE)) {
        *out_capturing = 0;
        return MEMOPT_OK;
    }
    memopt_status status = mo_gpu_enter(gpu, "stream_capturing", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->stream_capturing(native(stream), &state);
    if (code == MO_GPU_CAPTURE_IMPLICIT) {
        gpu->driver->vendor->clear_error(gpu->driver);
        state = 1;
    } else
        status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "stream_capturing");
    mo_gpu_leave(gpu, saved);
    if (status == MEMOPT_OK)
        *out_capturing = state != MO_GPU_CAPTURE_NONE;
    return status;
}

/* --- events -------------------------------------------------------------------------------- */

memopt_status mo_gpu_event_create(memopt_device *device, int32_t timing, memopt_event **out_event)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    mo_gpu_event_object *object = mo_calloc(1, sizeof *object);
    if (object == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    object->base.device = device;
    object->base.timing = timing;
    memopt_status status = mo_gpu_enter(gpu, "event_create", &saved);
    if (status == MEMOPT_OK) {
        unsigned flags = timing ? 0 : MO_GPU_EVENT_DISABLE_TIMING;
        status = mo_gpu_result(gpu, mo_gpu_call(gpu)->event_create(&object->event, flags),
                               MEMOPT_OUT_OF_HOST_MEMORY, "event_create");
        mo_gpu_leave(gpu, saved);
    }
    if (status == MEMOPT_OK)
        *out_event = &object->base;
    else
        mo_free(object);
    return status;
}

memopt_status mo_gpu_event_destroy(memopt_device *device, memopt_event *event)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int dead = 0;
    memopt_status status = mo_gpu_enter_end(gpu, "event_destroy", &saved, &dead);
    if (status == MEMOPT_OK && !dead) {
        status = mo_gpu_end_result(gpu, mo_gpu_call(gpu)->event_destroy(object_of(event)->event),
                                   "event_destroy");
        mo_gpu_leave(gpu, saved);
    }
    mo_free(event);
    return status;
}

memopt_status mo_gpu_event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "event_record", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->event_record(object_of(event)->event, native(stream));
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "event_record");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_event_query(memopt_device *device, memopt_event *event)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "event_query", &saved);
    if (status != MEMOPT_OK)
        return status;
    int mode = mo_gpu_relax(gpu), code = mo_gpu_call(gpu)->event_query(object_of(event)->event);
    mo_gpu_restrict(gpu, mode);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "event_query");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_event_sync(memopt_device *device, memopt_event *event)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "event_sync", &saved);
    if (status != MEMOPT_OK)
        return status;
    int mode = mo_gpu_relax(gpu), code = mo_gpu_call(gpu)->event_sync(object_of(event)->event);
    mo_gpu_restrict(gpu, mode);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "event_sync");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_event_elapsed(memopt_device *device, memopt_event *start, memopt_event *end,
                                   double *out_seconds)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    float milliseconds = 0.0f;
    memopt_status status = mo_gpu_enter(gpu, "event_elapsed", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->event_elapsed(&milliseconds, object_of(start)->event,
                                               object_of(end)->event);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "event_elapsed");
    mo_gpu_leave(gpu, saved);
    if (status == MEMOPT_OK)
        *out_seconds = (double)milliseconds * 1e-3;
    return status;
}

/* --- work ---------------------------------------------------------------------------------- */

memopt_status mo_gpu_copy(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    int32_t capturing;
    void *saved;
    if (bytes == 0)
        return mo_gpu_stream_capturing(device, stream, &capturing); /* checks the stream */
    memopt_status status = mo_gpu_enter(gpu, "copy", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = gpu->driver->vendor->copy(gpu, destination, source, bytes, native(stream));
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "copy");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_fill(memopt_device *device, void *destination, uint8_t value, uint64_t bytes,
                          memopt_stream stream)
{
    mo_gpu_device *gpu = mo_gpu(device);
    int32_t capturing;
    void *saved;
    if (bytes == 0)
        return mo_gpu_stream_capturing(device, stream, &capturing);
    memopt_status status = mo_gpu_enter(gpu, "fill", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->fill(destination, value, bytes, native(stream));
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "fill");
    mo_gpu_leave(gpu, saved);
    return status;
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

static memopt_status add_callback(mo_gpu_device *gpu, memopt_stream stream,
                                  void (*function)(void *user), void *user)
{
    deferred_call *deferred = mo_malloc(sizeof *deferred);
    if (deferred == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *deferred = (deferred_call){function, user};
    int code = mo_gpu_call(gpu)->stream_callback(native(stream), run_deferred, deferred, 0);
    if (code != MO_GPU_SUCCESS)
        mo_free(deferred);
    return mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "stream_host_callback");
}

memopt_status mo_gpu_host_callback(memopt_device *device, memopt_stream stream,
                                   void (*function)(void *user), void *user)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int direct = mo_gpu_has(gpu->driver, MO_GPU_GROUP_HOST);
    if (!direct && !mo_gpu_has(gpu->driver, MO_GPU_GROUP_CALLBACK))
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "stream_host_callback: the driver of %s:%d calls no functions of the host",
                       gpu->driver->vendor->name, gpu->index);
    memopt_status status = mo_gpu_enter(gpu, "stream_host_callback", &saved);
    if (status != MEMOPT_OK)
        return status;
    if (direct)
        status = mo_gpu_result(gpu, mo_gpu_call(gpu)->host_function(native(stream), function, user),
                               MEMOPT_OUT_OF_HOST_MEMORY, "stream_host_callback");
    else
        status = add_callback(gpu, stream, function, user);
    mo_gpu_leave(gpu, saved);
    return status;
}
