/* Passes over a trace: the first one, warm ones for their times, one that takes samples. */
#include "trace/replayer.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"

memopt_status mo_trace_options(const memopt_trace *trace, const memopt_replay_options *options,
                               const char *name, memopt_replay_options *out_options)
{
    if (trace == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: trace is NULL", name);
    memopt_status status =
        mo_options_read(out_options, sizeof *out_options, options, "memopt_replay_options");
    if (status == MEMOPT_OK && trace->info.allocations == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: the trace has no allocation", name);
    return status;
}

/* The first pass and the warm ones. */
static memopt_status run_timed(mo_trace_machine *machine, const memopt_replay_options *options,
                               memopt_replay_result *result)
{
    const struct {
        const char *name;
        uint64_t *value;
    } stats[] = {{"reserved_bytes.all.peak", &result->peak_reserved_bytes},
                 {"num_device_alloc", &result->device_allocs},
                 {"num_device_free", &result->device_frees},
                 {"num_alloc_retries", &result->retries}};
    uint64_t count = machine->trace->count;
    mo_trace_pass pass;
    memopt_status status = mo_trace_machine_pass(machine, MO_TRACE_RANGE, NULL, NULL, &pass);
    for (int i = 0; i < 4 && status == MEMOPT_OK; i++)
        status = mo_trace_machine_stat(machine, stats[i].name, stats[i].value);
    if (status != MEMOPT_OK)
        return status;
    result->events = pass.done;
    result->out_of_memory = pass.done < count;
    result->first_ns_per_event = pass.ns / (double)mo_max_u64(pass.done, 1);
    result->ns_per_event = result->first_ns_per_event;
    result->failed_live_bytes = pass.failed_live;
    result->failed_reserved_bytes = pass.failed_reserved;
    for (uint64_t i = 0; i < options->warm_passes && pass.done == count; i++) {
        status = mo_trace_machine_pass(machine, MO_TRACE_RANGE, NULL, NULL, &pass);
        if (status != MEMOPT_OK)
            return status;
        double ns = pass.ns / (double)count;
        if (pass.done == count && (i == 0 || ns < result->ns_per_event))
            result->ns_per_event = ns;
    }
    return MEMOPT_OK;
}

/* --- samples --------------------------------------------------------------------------------- */

typedef struct sampler {
    memopt_replay_sample *samples;
    uint64_t count;
} sampler;

static memopt_status take_sample(mo_trace_machine *machine, uint64_t last, void *user)
{
    sampler *s = user;
    memopt_replay_sample *sample = &s->samples[s->count];
    sample->event = last;
    memopt_status status =
        mo_trace_machine_stat(machine, "requested_bytes.all.peak", &sample->live_bytes);
    if (status == MEMOPT_OK)
        status = mo_trace_machine_stat(machine, "reserved_bytes.all.peak", &sample->reserved_bytes);
    if (status == MEMOPT_OK)
        status = memopt_allocator_reset_peaks(machine->allocator);
    s->count += status == MEMOPT_OK;
    return status;
}

/* result says how many events there will be. */
static memopt_status run_sampled(const memopt_trace *trace, const memopt_replay_options *options,
                                 mo_trace_meter *meter, memopt_replay_result *result)
{
    uint64_t step = mo_ceil_div_u64(result->events + result->out_of_memory, options->sample_room);
    sampler s = {options->samples, 0};
    mo_trace_machine machine;
    mo_trace_pass pass;
    memopt_status status =
        mo_trace_machine_open(&machine, trace, options, options->capacity, meter);
    if (status != MEMOPT_OK)
        return status;
    status = mo_trace_machine_pass(&machine, step, take_sample, &s, &pass);
    mo_trace_machine_close(&machine);
    result->sample_count = s.count;
    return status;
}

/* --- steps ----------------------------------------------------------------------------------- */

static memopt_status read_calls(mo_trace_machine *machine, uint64_t *out_calls)
{
    uint64_t frees = 0;
    memopt_status status = mo_trace_machine_stat(machine, "num_device_alloc", out_calls);
    if (status == MEMOPT_OK)
        status = mo_trace_machine_stat(machine, "num_device_free", &frees);
    *out_calls += frees;
    return status;
}

/* A pass as one step; *out_whole is 0 where memory ran out. */
static memopt_status run_step(mo_trace_machine *machine, memopt_step after, double *out_ns,
                              int *out_whole)
{
    uint64_t count = machine->trace->count;
    mo_trace_pass pass;
    memopt_status status = mo_trace_machine_pass(machine, MO_TRACE_RANGE, NULL, NULL, &pass);
    if (status == MEMOPT_OK)
        status = memopt_allocator_mark_step(machine->allocator, after);
    *out_ns = pass.ns / (double)count;
    *out_whole = status == MEMOPT_OK && pass.done == count;
    return status;
}

/* The steps after the one that was learned. */
static memopt_status run_planned(mo_trace_machine *machine, uint64_t steps,
                                 memopt_replay_result *result)
{
    uint64_t before = 0, after = 0;
    int whole = 1;
    memopt_status status = memopt_allocator_reset_peaks(machine->allocator);
    if (status == MEMOPT_OK)
        status = read_calls(machine, &before);
    for (uint64_t i = 0; i < steps && status == MEMOPT_OK && whole; i++) {
        double ns;
        status = run_step(machine, MEMOPT_STEP_NEXT, &ns, &whole);
        if (i == 0 || ns < result->planned_ns_per_event)
            result->planned_ns_per_event = ns;
    }
    if (status == MEMOPT_OK)
        status = read_calls(machine, &after);
    if (status == MEMOPT_OK && whole)
        status = mo_trace_machine_stat(machine, "reserved_bytes.all.peak",
                                       &result->planned_reserved_bytes);
    result->planned_device_calls = after - before;
    return status;
}

/* On a device of its own. */
static memopt_status run_steps(const memopt_trace *trace, const memopt_replay_options *options,
                               mo_trace_meter *meter, memopt_replay_result *result)
{
    memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
    mo_trace_machine machine;
    double ns;
    int whole = 0;
    memopt_status status =
        mo_trace_machine_open(&machine, trace, options, options->capacity, meter);
    if (status != MEMOPT_OK)
        return status;
    status = memopt_allocator_mark_step(machine.allocator, MEMOPT_STEP_NEXT);
    if (status == MEMOPT_OK)
        status = run_step(&machine, MEMOPT_STEP_LEARN, &ns, &whole);
    if (status == MEMOPT_OK && whole)
        status = run_planned(&machine, options->steps, result);
    if (status == MEMOPT_OK)
        status = memopt_allocator_get_step_plan(machine.allocator, &plan);
    mo_trace_machine_close(&machine);
    result->planned_steps = plan.planned_steps;
    result->plan_bytes = plan.bytes;
    result->plan_least_bytes = plan.least_bytes;
    result->planned_ratio =
        (double)result->planned_reserved_bytes / (double)trace->info.peak_live_bytes;
    return status;
}

/* --- all of it ------------------------------------------------------------------------------- */

static void finish(const memopt_trace *trace, memopt_replay_result *result)
{
    result->peak_live_bytes = trace->info.peak_live_bytes;
    result->ratio = (double)result->peak_reserved_bytes / (double)result->peak_live_bytes;
    if (!result->out_of_memory) {
        result->failed_bytes = 0;
        return;
    }
    const mo_trace_step *step = &trace->steps[result->events];
    result->failed_bytes = step->bytes;
    result->failed_stream = trace->stream_ids[step->stream];
}

memopt_status memopt_trace_replay(const memopt_trace *trace, const memopt_replay_options *options,
                                  memopt_replay_result *out_result)
{
    memopt_replay_options copy;
    memopt_replay_result result = MEMOPT_REPLAY_RESULT_INIT;
    memopt_status status = mo_trace_options(trace, options, "trace_replay", &copy);
    if (status == MEMOPT_OK) /* refuses a bad struct before the work */
        status = mo_result_write(out_result, out_result, sizeof(size_t), "memopt_replay_result");
    if (status != MEMOPT_OK)
        return status;
    int samples = copy.samples != NULL && copy.sample_room > 0;
    mo_trace_meter meter = {.progress = copy.progress, .user = copy.progress_user};
    uint64_t steps = copy.steps > 0 ? copy.steps + 1 : 0;
    if (!mo_mul_u64(trace->count, 1 + copy.warm_passes + steps + (uint64_t)samples, &meter.total))
        meter.total = UINT64_MAX;
    mo_trace_machine machine;
    status = mo_trace_machine_open(&machine, trace, &copy, copy.capacity, &meter);
    if (status != MEMOPT_OK)
        return status;
    result.capacity = machine.capacity;
    status = run_timed(&machine, &copy, &result);
    mo_trace_machine_close(&machine);
    if (status == MEMOPT_OK && copy.steps > 0)
        status = run_steps(trace, &copy, &meter, &result);
    if (status == MEMOPT_OK && samples)
        status = run_sampled(trace, &copy, &meter, &result);
    if (status != MEMOPT_OK)
        return status;
    finish(trace, &result);
    return mo_result_write(out_result, &result, sizeof result, "memopt_replay_result");
}
