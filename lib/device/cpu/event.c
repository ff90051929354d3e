/*
 * Events of the "cpu" device. An event points to its last record, a marker in some stream's queue;
 * a waiter keeps the marker, so a later record or the event's end does not affect it.
 */
#include "device/cpu/adversary.h"
#include "device/cpu/race.h"

#include "base/lock.h"
#include "base/memory.h"

typedef struct mo_cpu_event {
    memopt_event base;
    mo_cpu_marker *marker; /* NULL: never recorded; guarded by mo_cpu_device.lock */
} mo_cpu_event;

memopt_status mo_cpu_event_create(memopt_device *device, int32_t timing, memopt_event **out_event)
{
    mo_cpu_event *event = mo_malloc(sizeof *event);
    if (event == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *event = (mo_cpu_event){{device, timing}, NULL};
    *out_event = &event->base;
    return MEMOPT_OK;
}

memopt_status mo_cpu_event_destroy(memopt_device *device, memopt_event *handle)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_event *event = (mo_cpu_event *)handle;
    mo_lock(&cpu->lock);
    mo_cpu_marker_drop(event->marker);
    mo_unlock(&cpu->lock);
    mo_free(event);
    return MEMOPT_OK;
}

memopt_status mo_cpu_event_record(memopt_device *device, memopt_event *handle, memopt_stream stream)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_event *event = (mo_cpu_event *)handle;
    mo_cpu_marker *marker = mo_calloc(1, sizeof *marker);
    if (marker == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    marker->references = 1;
    mo_cpu_op op = {.kind = MO_CPU_RECORD, .marker = marker};
    memopt_status status = mo_cpu_submit(cpu, stream, &op);
    mo_lock(&cpu->lock);
    mo_cpu_marker *unused = marker;
    if (status == MEMOPT_OK) {
        unused = event->marker;
        event->marker = marker;
    }
    mo_cpu_marker_drop(unused);
    mo_unlock(&cpu->lock);
    return status;
}

/* The event's last record with a reference for the caller, or NULL. */
static mo_cpu_marker *last_record(mo_cpu_device *cpu, const memopt_event *handle)
{
    mo_lock(&cpu->lock);
    mo_cpu_marker *marker = ((const mo_cpu_event *)handle)->marker;
    if (marker != NULL)
        marker->references++;
    mo_unlock(&cpu->lock);
    return marker;
}

memopt_status mo_cpu_stream_wait_event(memopt_device *device, memopt_stream stream,
                                       memopt_event *event)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_marker *marker = last_record(cpu, event);
    if (marker == NULL)
        return mo_cpu_stream_check(cpu, stream);
    mo_cpu_op op = {.kind = MO_CPU_WAIT, .marker = marker};
    memopt_status status = mo_cpu_submit(cpu, stream, &op);
    mo_lock(&cpu->lock);
    mo_cpu_marker_drop(marker);
    mo_unlock(&cpu->lock);
    return status;
}

memopt_status mo_cpu_event_query(memopt_device *device, memopt_event *event)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_marker *marker = last_record(cpu, event);
    if (marker == NULL)
        return MEMOPT_OK;
    mo_lock(&cpu->lock);
    mo_cpu_ask(cpu);
    if (cpu->adversarial && !marker->done && mo_cpu_is_past(cpu, marker->due) &&
        mo_cpu_polled_enough(cpu, &marker->polls))
        mo_cpu_force_marker(cpu, marker);
    memopt_status status = marker->done ? MEMOPT_OK : MEMOPT_NOT_READY;
    if (marker->done)
        mo_cpu_race_host_waits_for(cpu, marker);
    mo_cpu_marker_drop(marker);
    mo_unlock(&cpu->lock);
    return status;
}

memopt_status mo_cpu_event_sync(memopt_device *device, memopt_event *event)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_marker *marker = last_record(cpu, event);
    if (marker != NULL) {
        mo_lock(&cpu->lock);
        if (cpu->queued)
            mo_cpu_force_marker(cpu, marker);
        while (!marker->done)
            pthread_cond_wait(&cpu->progress, &cpu->lock);
        mo_cpu_race_host_waits_for(cpu, marker);
        mo_cpu_marker_drop(marker);
        mo_unlock(&cpu->lock);
    }
    return mo_cpu_take_violation(cpu);
}

memopt_status mo_cpu_event_elapsed(memopt_device *device, memopt_event *start, memopt_event *end,
                                   double *out_seconds)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_lock(&cpu->lock);
    const mo_cpu_marker *first = ((mo_cpu_event *)start)->marker;
    const mo_cpu_marker *last = ((mo_cpu_event *)end)->marker;
    int recorded = first != NULL && last != NULL;
    int done = recorded && first->done && last->done;
    double seconds = done ? last->time - first->time : 0;
    if (done) {
        mo_cpu_race_host_waits_for(cpu, first);
        mo_cpu_race_host_waits_for(cpu, last);
    }
    mo_unlock(&cpu->lock);
    if (!recorded)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "event_elapsed: an event was never recorded; record both first");
    if (!done)
        return MEMOPT_NOT_READY;
    *out_seconds = seconds;
    return MEMOPT_OK;
}
