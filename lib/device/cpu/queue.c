/*
 * The queues of the "cpu" device: what an operation does, and how it comes out of a stream's queue.
 *
 * Invariants: the head of a queue is the operation that runs or runs next; `completed` counts the
 * removed operations, so submitted == completed means idle. A handle is looked up in
 * mo_cpu_device.streams before it is trusted.
 */
#include "device/cpu/race.h"

#include "base/lock.h"
#include "base/memory.h"

#include <string.h>
#include <time.h>

mo_cpu_stream *mo_cpu_find_stream(mo_cpu_device *cpu, memopt_stream handle)
{
    MO_PRE(mo_is_locked(&cpu->lock));
    if (handle == NULL)
        return &cpu->default_stream;
    if (mo_ranges_find(&cpu->streams, (uintptr_t)handle) != NULL)
        return (mo_cpu_stream *)handle;
    mo_fail(MEMOPT_INVALID_ARGUMENT, "stream: %p is not a live stream of this cpu device",
            (void *)handle);
    return NULL;
}

memopt_status mo_cpu_stream_check(mo_cpu_device *cpu, memopt_stream handle)
{
    mo_lock(&cpu->lock);
    const mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    mo_unlock(&cpu->lock);
    return stream != NULL ? MEMOPT_OK : MEMOPT_INVALID_ARGUMENT;
}

/* --- markers ------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void mo_cpu_marker_drop(mo_cpu_marker *marker)
{
    MO_PRE(mo_log_held.locks != 0);
    if (marker == NULL || --marker->references != 0)
        return;
    if (marker->race_event != 0)
        (void)memopt_race_drop_event(marker->race, marker->race_event);
    mo_free(marker);
}

void mo_cpu_marker_complete(mo_cpu_device *cpu, mo_cpu_marker *marker)
{
    marker->time = cpu->clock.runs ? 1e-9 * (double)marker->due : now();
    marker->done = 1;
    marker->stream = NULL;
    pthread_cond_broadcast(&cpu->progress);
}

/* --- operations ---------------------------------------------------------------------------- */

void mo_cpu_run(mo_cpu_device *cpu, const mo_cpu_op *op)
{
    switch (op->kind) {
    case MO_CPU_COPY:
        memcpy(op->destination, op->source, op->bytes);
        break;
    case MO_CPU_FILL:
        memset(op->destination, op->value, op->bytes);
        break;
    case MO_CPU_CALLBACK:
        mo_cpu_race_callback(cpu, op->race_event);
        op->function(op->user);
        break;
    case MO_CPU_LAUNCH:
        if (op->kernel != NULL)
            mo_cpu_launch_now(cpu, op->kernel, op->args, op->items);
        break;
    case MO_CPU_RECORD:
    case MO_CPU_WAIT:
    case MO_CPU_NOTE_ALLOC:
    case MO_CPU_NOTE_FREE:
        break;
    }
}

void mo_cpu_retire(mo_cpu_stream *stream)
{
    mo_cpu_op *op = stream->head;
    MO_PRE(op != NULL && mo_is_locked(&stream->device->lock));
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = &stream->head;
    stream->completed++;
    if (op->kind == MO_CPU_RECORD)
        mo_cpu_marker_complete(stream->device, op->marker);
    mo_cpu_marker_drop(op->marker);
    mo_free(op);
    pthread_cond_broadcast(&stream->device->progress);
}
