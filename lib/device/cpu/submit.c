/*
 * How work comes into the queues of the "cpu" device: run at once where the order allows it, else
 * appended to its stream's.
 */
#include "device/cpu/adversary.h"
#include "device/cpu/race.h"

#include "base/lock.h"
#include "base/memory.h"

#include <string.h>

/* A copy for the queue, the kernel's arguments behind it. */
static mo_cpu_op *op_copy(const mo_cpu_op *op)
{
    size_t args_size = op->kernel != NULL ? op->kernel->args_size : 0;
    mo_cpu_op *copy = mo_malloc(sizeof *copy + args_size);
    if (copy == NULL)
        return NULL;
    *copy = *op;
    copy->next = NULL;
    if (args_size != 0) {
        memcpy(copy + 1, op->args, args_size);
        copy->args = copy + 1;
    }
    return copy;
}

static void run_inline(mo_cpu_device *cpu, const mo_cpu_op *op)
{
    if (op->kind != MO_CPU_RECORD && op->kind != MO_CPU_WAIT) {
        mo_cpu_run(cpu, op);
        return;
    }
    mo_lock(&cpu->lock);
    if (op->kind == MO_CPU_RECORD)
        mo_cpu_marker_complete(cpu, op->marker);
    while (!op->marker->done)
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    mo_unlock(&cpu->lock);
}

static int does_nothing(const mo_cpu_op *op)
{
    return ((op->kind == MO_CPU_COPY || op->kind == MO_CPU_FILL) && op->bytes == 0) ||
           (op->kind == MO_CPU_LAUNCH && op->items == 0);
}

memopt_status mo_cpu_submit(mo_cpu_device *cpu, memopt_stream handle, const mo_cpu_op *op)
{
    if (does_nothing(op))
        return mo_cpu_stream_check(cpu, handle);
    if (handle == NULL && !cpu->queued) {
        mo_cpu_op now = *op;
        if (cpu->race != NULL) {
            mo_lock(&cpu->lock);
            now.number = ++cpu->adversary.next_number;
            mo_cpu_race_enqueue(cpu, &cpu->default_stream, &now);
            mo_unlock(&cpu->lock);
        }
        run_inline(cpu, &now);
        return MEMOPT_OK;
    }
    mo_cpu_op *queued = op_copy(op);
    if (queued == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_lock(&cpu->lock);
    mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL) {
        if (queued->marker != NULL)
            queued->marker->references++;
        queued->number = ++cpu->adversary.next_number;
        queued->due = mo_cpu_due(cpu, stream, queued);
        mo_cpu_race_enqueue(cpu, stream, queued);
        if (queued->kind == MO_CPU_RECORD) {
            queued->marker->stream = stream;
            queued->marker->number = queued->number;
            queued->marker->due = queued->due;
        }
        stream->last_number = queued->number;
        stream->due = queued->due;
        *stream->tail = queued;
        stream->tail = &queued->next;
        stream->submitted++;
        pthread_cond_signal(&stream->work);
        if (cpu->lag != 0 && !cpu->adversarial)
            mo_cpu_catch_up(cpu);
    }
    mo_unlock(&cpu->lock);
    if (stream == NULL) {
        mo_free(queued);
        return MEMOPT_INVALID_ARGUMENT;
    }
    return MEMOPT_OK;
}

/* --- notes --------------------------------------------------------------------------------- */

static void tell_race(mo_cpu_device *cpu, memopt_stream handle, const mo_cpu_op *note)
{
    if (cpu->race == NULL)
        return;
    mo_lock(&cpu->lock);
    const mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL)
        mo_cpu_race_note(cpu, stream, note);
    mo_unlock(&cpu->lock);
}

memopt_status mo_cpu_uses(memopt_device *device, memopt_stream handle, const char *what,
                          const void *pointer, uint64_t bytes, memopt_race_mode mode)
{
    mo_cpu_device *cpu = mo_cpu(device);
    const memopt_race_access use = {.address = (uintptr_t)pointer, .bytes = bytes, .mode = mode};
    mo_lock(&cpu->lock);
    const mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL)
        mo_cpu_race_uses(cpu, stream, what, &use);
    mo_unlock(&cpu->lock);
    return stream != NULL ? MEMOPT_OK : MEMOPT_INVALID_ARGUMENT;
}

void mo_cpu_note_free(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream)
{
    mo_cpu_op op = {.kind = MO_CPU_NOTE_FREE, .destination = pointer, .bytes = bytes};
    tell_race(mo_cpu(device), stream, &op);
    if (mo_cpu(device)->queued)
        (void)mo_cpu_submit(mo_cpu(device), stream, &op);
}

/* A lost note of a free only hides misuse; a lost note of an allocation would report false misuse.
 * So without memory for the note, the stream runs up to here and the note is made now. */
void mo_cpu_note_alloc(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream handle)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_cpu_op op = {.kind = MO_CPU_NOTE_ALLOC, .destination = pointer, .bytes = bytes};
    tell_race(cpu, handle, &op);
    if (!cpu->queued || mo_cpu_submit(cpu, handle, &op) != MEMOPT_OUT_OF_HOST_MEMORY)
        return;
    mo_lock(&cpu->lock);
    mo_cpu_stream *stream = mo_cpu_find_stream(cpu, handle);
    if (stream != NULL) {
        mo_cpu_force(cpu, stream, stream->submitted);
        mo_ranges_subtract(&cpu->adversary.freed, (uintptr_t)pointer, bytes);
    }
    mo_unlock(&cpu->lock);
}
