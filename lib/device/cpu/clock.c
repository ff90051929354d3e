/*
 * Time on the "cpu" device, for benchmarks of what overlaps: nothing is measured. When an operation
 * is enqueued, the time at which it is complete follows from the rates, from what is before it on its
 * stream and its copy engine, and from what it waits for. The host's time moves by its calls and its
 * waits. With a lag in operations an operation's number stands for the time.
 */
#include "device/cpu/adversary.h"

#include "base/checked.h"
#include "base/lock.h"

static int is_device_memory(mo_cpu_memory *memory, const void *pointer)
{
    mo_lock(&memory->lock);
    int found = mo_ranges_overlapping(&memory->reservations, (uintptr_t)pointer, 1) != NULL ||
                mo_ranges_overlapping(&memory->plain, (uintptr_t)pointer, 1) != NULL;
    mo_unlock(&memory->lock);
    return found;
}

static uint64_t time_of(uint64_t bytes, double rate)
{
    return (uint64_t)((double)bytes / rate);
}

/* Of a copy: behind the others of its engine. */
static uint64_t copied(mo_cpu_device *cpu, const mo_cpu_op *op, uint64_t start)
{
    mo_cpu_clock *clock = &cpu->clock;
    int from = is_device_memory(&cpu->memory, op->source);
    int to = is_device_memory(&cpu->memory, op->destination);
    uint64_t *engine = from == to ? NULL : from ? &clock->out : &clock->in;
    double rate = from == to ? clock->rates.within : from ? clock->rates.out : clock->rates.in;
    if (engine != NULL)
        start = mo_max_u64(start, *engine);
    uint64_t end = start + clock->rates.setup + time_of(op->bytes, rate);
    if (engine != NULL)
        *engine = end;
    return end;
}

uint64_t mo_cpu_due(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op)
{
    const mo_cpu_rates *rates = &cpu->clock.rates;
    MO_PRE(mo_is_locked(&cpu->lock));
    if (!cpu->clock.runs)
        return op->number;
    if (op->kind == MO_CPU_NOTE_ALLOC || op->kind == MO_CPU_NOTE_FREE)
        return stream->due;
    cpu->clock.now += rates->call;
    uint64_t start = mo_max_u64(stream->due, cpu->clock.now);
    switch (op->kind) {
    case MO_CPU_COPY:
        return copied(cpu, op, start);
    case MO_CPU_FILL:
        return start + rates->setup + time_of(op->bytes, rates->within);
    case MO_CPU_LAUNCH:
        return start + (op->length != 0 ? op->length : rates->setup);
    case MO_CPU_WAIT:
        return mo_max_u64(start, op->marker->due);
    default:
        return start;
    }
}

uint64_t mo_cpu_wait_until(mo_cpu_device *cpu, uint64_t due)
{
    MO_PRE(mo_is_locked(&cpu->lock));
    if (!cpu->clock.runs || due <= cpu->clock.now)
        return 0;
    uint64_t waited = due - cpu->clock.now;
    cpu->clock.now = due;
    return waited;
}

void mo_cpu_keep_time(memopt_device *device, const mo_cpu_rates *rates)
{
    mo_cpu_device *cpu = mo_cpu(device);
    MO_PRE(cpu->lag != 0 && !cpu->adversarial && cpu->adversary.next_number == 0);
    cpu->clock.rates = *rates;
    cpu->clock.runs = 1;
}

uint64_t mo_cpu_now(memopt_device *device)
{
    mo_cpu_device *cpu = mo_cpu(device);
    mo_lock(&cpu->lock);
    uint64_t now = cpu->clock.now;
    mo_unlock(&cpu->lock);
    return now;
}
