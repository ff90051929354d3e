/* A device and an allocator to replay a trace on, and one pass over its events. */
#include "trace/replayer.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static const uint64_t least_ample = (uint64_t)64 << 30, most_ample = (uint64_t)1 << 62;

uint64_t mo_trace_ample(const memopt_trace *trace)
{
    uint64_t ample;
    if (!mo_mul_u64(trace->info.peak_live_bytes, 4, &ample))
        return most_ample;
    return mo_min_u64(mo_max_u64(ample, least_ample), most_ample);
}

static memopt_status make_streams(mo_trace_machine *machine)
{
    for (uint64_t i = 1; i < machine->trace->stream_count; i++) {
        memopt_status status = memopt_stream_create(machine->device, &machine->streams[i]);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

memopt_status mo_trace_machine_open(mo_trace_machine *machine, const memopt_trace *trace,
                                    const memopt_replay_options *options, uint64_t capacity,
                                    mo_trace_meter *meter)
{
    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    device.capacity = capacity > 0 ? capacity : mo_trace_ample(trace);
    device.threads = 1;
    device.lag = options->lag;
    memset(machine, 0, sizeof *machine);
    machine->lag = options->lag;
    machine->trace = trace;
    machine->meter = meter;
    machine->streams = mo_calloc(trace->stream_count, sizeof *machine->streams);
    machine->blocks = mo_calloc(trace->slots, sizeof *machine->blocks);
    memopt_status status = machine->streams == NULL || machine->blocks == NULL
                               ? MEMOPT_OUT_OF_HOST_MEMORY
                               : memopt_device_open("cpu", &device, &machine->device);
    if (status == MEMOPT_OK)
        status =
            memopt_allocator_create(machine->device, options->config, NULL, &machine->allocator);
    if (status == MEMOPT_OK)
        status = make_streams(machine);
    memopt_memory_info memory = MEMOPT_MEMORY_INFO_INIT;
    if (status == MEMOPT_OK)
        status = memopt_device_get_memory_info(machine->device, &memory);
    machine->capacity = memory.total;
    if (status != MEMOPT_OK)
        mo_trace_machine_close(machine);
    return status;
}

void mo_trace_machine_close(mo_trace_machine *machine)
{
    (void)memopt_allocator_destroy_force(machine->allocator);
    for (uint64_t i = 1; machine->streams != NULL && i < machine->trace->stream_count; i++)
        if (machine->streams[i] != NULL)
            (void)memopt_stream_destroy(machine->device, machine->streams[i]);
    (void)memopt_device_close(machine->device);
    mo_free(machine->streams);
    mo_free(machine->blocks);
    memset(machine, 0, sizeof *machine);
}

memopt_status mo_trace_machine_stat(mo_trace_machine *machine, const char *name,
                                    uint64_t *out_value)
{
    return memopt_allocator_get_stat(machine->allocator, name, out_value);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* what others run does not count */
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* A free of a block that other streams use waits for them, so that a replay does not depend on
 * their workers' speed; work that lags does not depend on it. */
static memopt_status free_place(mo_trace_machine *machine, mo_trace_place *place)
{
    mo_trace_place old = *place;
    *place = (mo_trace_place){NULL, 0};
    memopt_status status = memopt_allocator_free(machine->allocator, old.address);
    return status == MEMOPT_OK && old.used && machine->lag == 0
               ? memopt_device_sync(machine->device)
               : status;
}

static memopt_status do_step(mo_trace_machine *machine, const mo_trace_step *step)
{
    mo_trace_place *place = &machine->blocks[step->block];
    memopt_status status = MEMOPT_OK;
    if (step->bytes > 0)
        return memopt_allocator_alloc(machine->allocator, step->bytes, MEMOPT_TAG_OTHER,
                                      machine->streams[step->stream], &place->address);
    if (step->stream != MO_TRACE_SAME) {
        place->used = 1;
        status = memopt_allocator_record_stream(machine->allocator, place->address,
                                                machine->streams[step->stream & ~MO_TRACE_USE]);
    }
    if (status != MEMOPT_OK || mo_trace_is_use(step))
        return status;
    return free_place(machine, place);
}

/* Events from `at` on; *out_at is the one that failed, or `to`. */
static memopt_status run(mo_trace_machine *machine, uint64_t at, uint64_t to, uint64_t *out_at)
{
    const mo_trace_step *steps = machine->trace->steps;
    memopt_status status = MEMOPT_OK;
    for (; at < to; at++) {
        status = do_step(machine, &steps[at]);
        if (status != MEMOPT_OK)
            break;
    }
    *out_at = at;
    return status;
}

/* A size that no allocator counts to fits no device either; rounding up less than doubles it. */
static int does_not_fit(memopt_status status, uint64_t bytes)
{
    return (status == MEMOPT_OUT_OF_DEVICE_MEMORY && bytes > 0) ||
           (status == MEMOPT_INVALID_ARGUMENT && bytes > most_ample / 2);
}

static memopt_status free_all(mo_trace_machine *machine)
{
    for (uint64_t i = 0; i < machine->trace->slots; i++) {
        memopt_status status = free_place(machine, &machine->blocks[i]);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

static memopt_status tell(const mo_trace_machine *machine, uint64_t done)
{
    const mo_trace_meter *meter = machine->meter;
    memopt_replay_progress_info info = {sizeof info, meter->before + done, meter->total,
                                        machine->capacity};
    if (info.total < info.done)
        info.total = info.done;
    return meter->progress == NULL ? MEMOPT_OK
                                   : mo_callback_status(meter->progress(meter->user, &info),
                                                        "replay: the progress callback");
}

memopt_status mo_trace_machine_pass(mo_trace_machine *machine, uint64_t step, mo_trace_range range,
                                    void *user, mo_trace_pass *out_pass)
{
    const memopt_trace *trace = machine->trace;
    mo_trace_pass pass = {0};
    memopt_status status = MEMOPT_OK;
    int failed = 0;
    while (pass.done < trace->count && status == MEMOPT_OK && !failed) {
        double start = now();
        status = run(machine, pass.done, mo_min_u64(pass.done + step, trace->count), &pass.done);
        pass.ns += now() - start;
        failed = status != MEMOPT_OK && does_not_fit(status, trace->steps[pass.done].bytes);
        if (failed)
            status = MEMOPT_OK;
        if (status == MEMOPT_OK && range != NULL)
            status = range(machine, pass.done, user);
        if (status == MEMOPT_OK)
            status = tell(machine, failed ? trace->count : pass.done);
    }
    if (status == MEMOPT_OK && failed)
        status = mo_trace_machine_stat(machine, "requested_bytes.all.current", &pass.failed_live);
    if (status == MEMOPT_OK && failed)
        status =
            mo_trace_machine_stat(machine, "reserved_bytes.all.current", &pass.failed_reserved);
    if (status == MEMOPT_OK)
        status = free_all(machine);
    machine->meter->before += trace->count;
    *out_pass = pass;
    return status;
}
