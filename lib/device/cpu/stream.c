/*
 * Streams of the "cpu" device: the work they take, and, in eager order, a worker for each. A stream
 * leaves mo_cpu_device.streams before it is freed.
 */
#include "device/cpu/adversary.h"
#include "device/cpu/cpu.h"
#include "device/cpu/race.h"

#include "base/lock.h"
#include "base/memory.h"

#include <string.h>

static void queue_init(mo_cpu_stream *stream, mo_cpu_device *cpu)
{
    *stream = (mo_cpu_stream){.device = cpu};
    stream->tail = &stream->head;
    pthread_cond_init(&stream->work, NULL);
}

memopt_status mo_cpu_streams_init(mo_cpu_device *cpu)
{
    if (!mo_ranges_init(&cpu->streams))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (cpu->queued && !mo_cpu_adversary_init(&cpu->adversary)) {
        mo_ranges_fini(&cpu->streams);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->progress, NULL);
    queue_init(&cpu->default_stream, cpu);
    return MEMOPT_OK;
}

void mo_cpu_streams_fini(mo_cpu_device *cpu)
{
    mo_ranges_fini(&cpu->streams);
    if (cpu->queued)
        mo_cpu_adversary_fini(&cpu->adversary);
    pthread_cond_destroy(&cpu->default_stream.work);
    pthread_cond_destroy(&cpu->progress);
    pthread_mutex_destroy(&cpu->lock);
}

/* --- work ---------------------------------------------------------------------------------- */

memopt_status mo_cpu_copy(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream)
{
    mo_cpu_op op = {
        .kind = MO_CPU_COPY, .destination = destination, .source = source, .bytes = bytes};
    return mo_cpu_submit(mo_cpu(device), stream, &op);
}

memopt_status mo_cpu_fill(memopt_device *device, void *destination, uint8_t value, uint64_t bytes,
                          memopt_stream stream)
{
    mo_cpu_op op = {
        .kind = MO_CPU_FILL, .destination = destination, .value = value, .bytes = bytes};
    return mo_cpu_submit(mo_cpu(device), stream, &op);
}

memopt_status mo_cpu_host_callback(memopt_device *device, memopt_stream stream,
                                   void (*function)(void *user), void *user)
{
    mo_cpu_op op = {.kind = MO_CPU_CALLBACK, .function = function, .user = user};
    return mo_cpu_submit(mo_cpu(device), stream, &op);
}

memopt_status mo_cpu_launch(memopt_device *device, memopt_stream stream, const mo_kernel *kernel,
                            const void *args, uint64_t items)
{
    mo_cpu_op op = {.kind = MO_CPU_LAUNCH, .kernel = kernel, .args = args, .items = items};
    return mo_cpu_submit(mo_cpu(device), stream, &op);
}

memopt_status mo_cpu_work(memopt_device *device, memopt_stream stream, uint64_t nanoseconds)
{
    mo_cpu_op op = {.kind = MO_CPU_LAUNCH, .items = 1, .length = nanoseconds};
    return mo_cpu_submit(mo_cpu(device), stream, &op);
}

/* --- workers and waiting ------------------------------------------------------------------- */

static void *worker_main(void *argument)
{
    mo_cpu_stream *stream = argument;
    mo_cpu_device *cpu = stream->device;
    mo_lock(&cpu->lock);
    for (;;) {
        while (stream->head == NULL && !stream->closing)
            pthread_cond_wait(&stream->work, &cpu->lock);
        mo_cpu_op *op = stream->head;
        if (op == NULL)
            break;
        if (op->kind == MO_CPU_WAIT) {
            while (!op->marker->done)
                pthread_cond_wait(&cpu->progress, &cpu->lock);
        } else if (op->kind != MO_CPU_RECORD) {
            mo_unlock(&cpu->lock);
            mo_cpu_run(cpu, op);
            mo_lock(&cpu->lock);
        }
        mo_cpu_retire(stream);
    }
    mo_unlock(&cpu->lock);
    return NULL;
}

static void append_stream(mo_cpu_device *cpu, mo_cpu_stream *stream)
{
    mo_cpu_stream **link = &cpu->default_stream.next;
    while (*link != NULL)
        link = &(*link)->next;
    *link = stream;
    stream->ordinal = ++cpu->next_ordinal;
}

memopt_status mo_cpu_stream_create(memopt_device *device, memopt_stream *out_stream)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_stream *stream = mo_malloc(sizeof *stream);
    if (stream == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    queue_init(stream, cpu);
    mo_lock(&cpu->lock);
    int kept = mo_ranges_insert(&cpu->streams, (uintptr_t)stream, sizeof *stream, NULL);
    int error =
        kept && !cpu->queued ? pthread_create(&stream->worker, NULL, worker_main, stream) : 0;
    if (error != 0)
        mo_ranges_remove(&cpu->streams, mo_ranges_find(&cpu->streams, (uintptr_t)stream));
    else if (kept) {
        append_stream(cpu, stream);
        mo_cpu_race_stream_begins(cpu, stream);
    }
    mo_unlock(&cpu->lock);
    if (!kept || error != 0) {
        pthread_cond_destroy(&stream->work);
        mo_free(stream);
        return kept ? mo_fail_driver(MEMOPT_DRIVER_ERROR, error, strerror(error),
                                     "cpu: the system cannot create a thread for a stream")
                    : MEMOPT_OUT_OF_HOST_MEMORY;
    }
    *out_stream = (memopt_stream)stream;
    return MEMOPT_OK;
}

/* Waits until `target` operations of the stream are done. Pre: the lock is held. The stream's end
 * waits for all waiters, so that a wait for the device can still use the stream when it resumes. */
static void wait_completed(mo_cpu_stream *stream, uint64_t target)
{
    mo_cpu_device *cpu = stream->device;
    MO_PRE(mo_is_locked(&cpu->lock));
    stream->waiters++;
    if (cpu->queued)
        mo_cpu_force(cpu, stream, target);
    while (stream->completed < target)
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    stream->waiters--;
    if (stream->closing)
        pthread_cond_broadcast(&cpu->progress);
}

memopt_status mo_cpu_stream_destroy(memopt_device *device, memopt_stream handle)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_lock(&cpu->lock);
    mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream == NULL) {
        mo_unlock(&cpu->lock);
        return MEMOPT_INVALID_ARGUMENT;
    }
    wait_completed(stream, stream->submitted);
    mo_cpu_race_stream_ends(cpu, stream);
    mo_ranges_remove(&cpu->streams, mo_ranges_find(&cpu->streams, (uintptr_t)handle));
    mo_cpu_stream **link = &cpu->default_stream.next;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    stream->closing = 1;
    pthread_cond_signal(&stream->work);
    while (stream->waiters > 0)
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    mo_unlock(&cpu->lock);
    if (!cpu->queued)
        pthread_join(stream->worker, NULL);
    pthread_cond_destroy(&stream->work);
    mo_free(stream);
    return mo_cpu_take_violation(cpu);
}

memopt_status mo_cpu_stream_sync(memopt_device *device, memopt_stream handle)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_lock(&cpu->lock);
    mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL) {
        wait_completed(stream, stream->submitted);
        mo_cpu_race_host_waits(cpu, stream);
    }
    mo_unlock(&cpu->lock);
    return stream == NULL ? MEMOPT_INVALID_ARGUMENT : mo_cpu_take_violation(cpu);
}

/* Nothing is captured here; the stream is checked. */
memopt_status mo_cpu_stream_capturing(memopt_device *device, memopt_stream handle,
                                      int32_t *out_capturing)
{
    MO_TRY(mo_cpu_stream_check(mo_cpu(device), handle));
    *out_capturing = 0;
    return MEMOPT_OK;
}

memopt_status mo_cpu_stream_query(memopt_device *device, memopt_stream handle)
{
    mo_cpu_device *cpu = mo_cpu(device);
    memopt_status status = MEMOPT_INVALID_ARGUMENT;
    mo_lock(&cpu->lock);
    mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL) {
        mo_cpu_ask(cpu);
        if (cpu->adversarial && stream->completed < stream->submitted &&
            mo_cpu_is_past(cpu, stream->due) && mo_cpu_polled_enough(cpu, &stream->polls))
            mo_cpu_force(cpu, stream, stream->submitted);
        status = stream->completed == stream->submitted ? MEMOPT_OK : MEMOPT_NOT_READY;
        if (status == MEMOPT_OK)
            mo_cpu_race_host_waits(cpu, stream);
    }
    mo_unlock(&cpu->lock);
    return status;
}

/* A stream that another thread creates or destroys meanwhile is not waited for: the wait releases
 * the lock, so the next stream is found by age. */
void mo_cpu_settle(mo_cpu_device *cpu)
{
    mo_lock(&cpu->lock);
    if (cpu->queued)
        mo_cpu_force_all(cpu);
    mo_cpu_stream *stream = &cpu->default_stream;
    while (stream != NULL) {
        uint64_t ordinal = stream->ordinal;
        wait_completed(stream, stream->submitted);
        mo_cpu_race_host_waits(cpu, stream);
        for (stream = &cpu->default_stream; stream != NULL && stream->ordinal <= ordinal;)
            stream = stream->next;
    }
    mo_unlock(&cpu->lock);
}

memopt_status mo_cpu_sync(memopt_device *device)
{
    mo_cpu_settle(mo_cpu(device));
    return mo_cpu_take_violation(mo_cpu(device));
}
