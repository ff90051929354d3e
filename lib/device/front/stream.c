/* The front end's part for streams, events and the work on them. */
#include "device/front/handle.h"

#include "base/checked.h"
#include "base/lock.h"
#include "kernels/reduce/reduce.h"

#include "memopt/experimental/hooks.h"

#include <inttypes.h>

static memopt_status enter(memopt_device *device, const char *operation)
{
    MO_NOT_NULL(operation, device);
    return mo_device_enter(device, operation, MEMOPT_DRIVER_ERROR);
}

static memopt_status enter_event(const memopt_event *event, const char *operation)
{
    MO_NOT_NULL(operation, event);
    return mo_device_enter(event->device, operation, MEMOPT_DRIVER_ERROR);
}

static void count_event(memopt_device *device, int created)
{
    mo_lock(&device->lock);
    device->account.events += created ? 1 : UINT64_MAX;
    mo_unlock(&device->lock);
}

/* --- streams: creating, ending, listeners ------------------------------------------------- */

void mo_stream_listen(memopt_device *device, mo_stream_listener *listener)
{
    mo_lock(&device->listening);
    listener->next = device->listeners;
    device->listeners = listener;
    mo_unlock(&device->listening);
}

void mo_stream_unlisten(memopt_device *device, mo_stream_listener *listener)
{
    mo_lock(&device->listening);
    mo_stream_listener **place = &device->listeners;
    while (*place != listener)
        place = &(*place)->next;
    *place = listener->next;
    mo_unlock(&device->listening);
}

static void tell_ending(memopt_device *device, memopt_stream stream)
{
    mo_lock(&device->listening);
    for (mo_stream_listener *each = device->listeners; each != NULL; each = each->next)
        each->ending(each, stream);
    mo_unlock(&device->listening);
}

static void tell_ended(memopt_device *device, memopt_stream stream, int complete)
{
    mo_lock(&device->listening);
    for (mo_stream_listener *each = device->listeners; each != NULL; each = each->next)
        each->ended(each, stream, complete);
    mo_unlock(&device->listening);
    mo_scratch_stream_ended(device, stream, complete);
}

memopt_status memopt_stream_create(memopt_device *device, memopt_stream *out_stream)
{
    memopt_stream stream;
    MO_NOT_NULL("stream_create", out_stream);
    MO_TRY(enter(device, "stream_create"));
    MO_TRY(device->ops->stream_create(device, &stream));
    mo_lock(&device->lock);
    int kept = mo_ranges_insert(&device->account.streams, (uintptr_t)stream, 1, NULL);
    mo_unlock(&device->lock);
    if (!kept) {
        (void)device->ops->stream_destroy(device, stream);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    *out_stream = stream;
    return MEMOPT_OK;
}

/* Takes the stream out of the set; 0 if it is not in there. */
static int take_stream(memopt_device *device, memopt_stream stream)
{
    mo_lock(&device->lock);
    mo_range *range = mo_ranges_find(&device->account.streams, (uintptr_t)stream);
    if (range != NULL)
        mo_ranges_remove(&device->account.streams, range);
    mo_unlock(&device->lock);
    return range != NULL;
}

/* Waits for the stream's work; the listeners stop using the stream. */
static memopt_status take_leave(memopt_device *device, memopt_stream stream)
{
    memopt_status waited = MEMOPT_OK;
    tell_ending(device, stream);
    if (!mo_device_lost(device))
        waited = device->ops->stream_sync(device, stream);
    tell_ended(device, stream, mo_work_is_over(waited));
    return waited;
}

memopt_status memopt_stream_release_sync(memopt_device *device, memopt_stream stream)
{
    int32_t capturing = 0;
    if (device == NULL || stream == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "stream_release_sync: %s",
                       device == NULL ? "device is NULL"
                                      : "stream is NULL; the default stream cannot end");
    MO_TRY(mo_check_process(device, "stream_release_sync"));
    if (!mo_device_lost(device) && mo_stream_capturing(device, stream, &capturing) == MEMOPT_OK &&
        capturing)
        return mo_fail(MEMOPT_BUSY,
                       "stream_release_sync: stream %p records a graph; end the capture first",
                       (void *)stream);
    return take_leave(device, stream);
}

memopt_status memopt_stream_destroy(memopt_device *device, memopt_stream stream)
{
    MO_NOT_NULL("stream_destroy", device);
    MO_TRY(mo_check_process(device, "stream_destroy"));
    if (stream == NULL)
        return MEMOPT_OK;
    if (!take_stream(device, stream))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "stream_destroy: %p is not a live stream that this device made",
                       (void *)stream);
    memopt_status waited = take_leave(device, stream);
    memopt_status status = device->ops->stream_destroy(device, stream);
    if (status == MEMOPT_OK)
        status = waited;
    /* The stream is gone: only a call that finds no stream may return INVALID_ARGUMENT. */
    return status == MEMOPT_INVALID_ARGUMENT ? MEMOPT_DRIVER_ERROR : status;
}

memopt_status memopt_stream_sync(memopt_device *device, memopt_stream stream)
{
    MO_TRY(enter(device, "stream_sync"));
    return device->ops->stream_sync(device, stream);
}

memopt_status memopt_stream_query(memopt_device *device, memopt_stream stream)
{
    MO_TRY(enter(device, "stream_query"));
    return device->ops->stream_query(device, stream);
}

memopt_status memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                       memopt_event *event)
{
    if (event == NULL || event->device != device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "stream_wait_event: event is %s",
                       event == NULL ? "NULL" : "of another device");
    MO_TRY(enter(device, "stream_wait_event"));
    return device->ops->stream_wait_event(device, stream, event);
}

memopt_status memopt_stream_host_callback(memopt_device *device, memopt_stream stream,
                                          void (*function)(void *user), void *user)
{
    if (function == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "stream_host_callback: function is NULL");
    MO_TRY(enter(device, "stream_host_callback"));
    return device->ops->host_callback(device, stream, function, user);
}

memopt_status mo_stream_capturing(memopt_device *device, memopt_stream stream,
                                  int32_t *out_capturing)
{
    if (device->ops->stream_capturing != NULL)
        return device->ops->stream_capturing(device, stream, out_capturing);
    *out_capturing = 0;
    return MEMOPT_OK;
}

memopt_status memopt_event_create(memopt_device *device, int32_t timing, memopt_event **out_event)
{
    if (out_event == NULL || (timing != 0 && timing != 1))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "event_create: out_event is NULL or timing is %" PRId32 ", not 0 or 1",
                       timing);
    MO_TRY(enter(device, "event_create"));
    MO_TRY(device->ops->event_create(device, timing, out_event));
    count_event(device, 1);
    return MEMOPT_OK;
}

memopt_status memopt_event_destroy(memopt_event *event)
{
    if (event == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(event->device, "event_destroy"));
    memopt_device *device = event->device;
    memopt_status status = device->ops->event_destroy(device, event);
    count_event(device, 0);
    return status;
}

memopt_status memopt_event_record(memopt_event *event, memopt_stream stream)
{
    MO_TRY(enter_event(event, "event_record"));
    return event->device->ops->event_record(event->device, event, stream);
}

memopt_status memopt_event_query(memopt_event *event)
{
    MO_TRY(enter_event(event, "event_query"));
    return event->device->ops->event_query(event->device, event);
}

memopt_status memopt_event_sync(memopt_event *event)
{
    MO_TRY(enter_event(event, "event_sync"));
    return event->device->ops->event_sync(event->device, event);
}

memopt_status memopt_event_elapsed(memopt_event *start, memopt_event *end, double *out_seconds)
{
    if (start == NULL || end == NULL || out_seconds == NULL || start->device != end->device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "event_elapsed: an event or out_seconds is NULL, or the events are of two "
                       "devices");
    if (!start->timing || !end->timing)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "event_elapsed: the %s event was made without timing",
                       start->timing ? "end" : "start");
    MO_TRY(enter_event(start, "event_elapsed"));
    return start->device->ops->event_elapsed(start->device, start, end, out_seconds);
}

memopt_status memopt_copy(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream)
{
    uintptr_t from = (uintptr_t)source, to = (uintptr_t)destination;
    if (bytes != 0 && (source == NULL || destination == NULL || from > UINTPTR_MAX - bytes ||
                       to > UINTPTR_MAX - bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "copy: %" PRIu64 " bytes from %p to %p: NULL or beyond the address space",
                       bytes, source, destination);
    if (bytes != 0 && mo_ranges_overlap(source, bytes, destination, bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "copy: %" PRIu64 " bytes from %p to %p: the ranges overlap", bytes, source,
                       destination);
    MO_TRY(enter(device, "copy"));
    return device->ops->copy(device, destination, source, bytes, stream);
}

memopt_status memopt_copy_sync(memopt_device *device, void *destination, const void *source,
                               uint64_t bytes, memopt_stream stream)
{
    MO_TRY(memopt_copy(device, destination, source, bytes, stream));
    memopt_status status = memopt_stream_sync(device, stream);
    if (status != MEMOPT_OK)
        (void)memopt_device_sync(device); /* the copy may still write to the caller's stack */
    return status;
}

memopt_status memopt_fill(memopt_device *device, void *destination, int32_t value, uint64_t bytes,
                          memopt_stream stream)
{
    if (value < 0 || value > 255)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "fill: the value %" PRId32 " is not a byte", value);
    if (bytes != 0 && (destination == NULL || (uintptr_t)destination > UINTPTR_MAX - bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "fill: %" PRIu64 " bytes at %p: NULL or beyond the address space", bytes,
                       destination);
    MO_TRY(enter(device, "fill"));
    return device->ops->fill(device, destination, (uint8_t)value, bytes, stream);
}

memopt_status memopt_stream_uses(memopt_device *device, memopt_stream stream, const char *what,
                                 const void *pointer, uint64_t bytes, memopt_race_mode mode)
{
    MO_NOT_NULL("stream_uses", device, what);
    if (mode == 0 || mode > (MEMOPT_RACE_READ | MEMOPT_RACE_WRITE) ||
        (bytes != 0 && (pointer == NULL || (uintptr_t)pointer > UINTPTR_MAX - bytes)))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "stream_uses: %" PRIu64 " bytes at %p, mode %" PRIu32
                       ": NULL, beyond the address space, or a mode that is not 1 to 3",
                       bytes, pointer, mode);
    MO_TRY(mo_check_process(device, "stream_uses"));
    return device->race == NULL || bytes == 0
               ? MEMOPT_OK
               : device->ops->uses(device, stream, what, pointer, bytes, mode);
}

void mo_reads(memopt_device *device, memopt_stream stream, const char *what, const void *pointer,
              uint64_t bytes)
{
    if (device->race != NULL && pointer != NULL && bytes != 0)
        (void)device->ops->uses(device, stream, what, pointer, bytes, MEMOPT_RACE_READ);
}

void mo_writes(memopt_device *device, memopt_stream stream, const char *what, const void *pointer,
               uint64_t bytes)
{
    if (device->race != NULL && pointer != NULL && bytes != 0)
        (void)device->ops->uses(device, stream, what, pointer, bytes, MEMOPT_RACE_WRITE);
}

void mo_tensor_used(memopt_device *device, const char *what, const memopt_tensor *tensor,
                    int written, memopt_stream stream)
{
    (written ? mo_writes : mo_reads)(device, stream, what, tensor->data,
                                     tensor->count * memopt_dtype_size(tensor->dtype));
}

memopt_status mo_launch(memopt_device *device, memopt_stream stream, const mo_kernel *kernel,
                        const void *args, uint64_t items)
{
    if (kernel->args_size > MO_KERNEL_ARGS_MAX || kernel->cpu[MO_ISA_SCALAR] == NULL)
        return mo_fail(MEMOPT_INTERNAL,
                       "launch: kernel %s has %" PRIu32 " bytes of arguments (at most %d) or no "
                       "scalar form",
                       kernel->name, kernel->args_size, MO_KERNEL_ARGS_MAX);
    MO_TRY(enter(device, kernel->name));
    return device->ops->launch(device, stream, kernel, args, items);
}

memopt_status mo_launch_sum(memopt_device *device, memopt_stream stream, double *values,
                            uint64_t count, const double **out_total)
{
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK && count > 1) {
        uint64_t sums = mo_ceil_div_u64(count, MO_STRIPE_ELEMENTS);
        mo_sum_args level = {values, values + count, count};
        status = mo_launch(device, stream, &mo_kernel_sum, &level, sums);
        values += count;
        count = sums;
    }
    *out_total = values;
    return status;
}
