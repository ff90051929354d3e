/*
 * The schedule's handle. Three attempts, the cheapest first: nothing is recomputed; the fastest in
 * slots; least memory. Each is replayed, so that its reported bytes are exact.
 */
#include "checkpoint/schedule.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct memopt_schedule {
    mo_chain chain;
    mo_schedule_steps steps;
    memopt_schedule_info info;
    uint64_t next;
};

/* Tables and work of the default slots: about a second and 128 MiB at most. */
static const uint64_t default_slots = 500, most_slots = 65536;
static const double most_work = 2e9, most_cells = 32e6;

static uint64_t slots_for(uint64_t count, uint64_t asked)
{
    double n = (double)count, by_work = most_work / (n * n * n / 6);
    double by_cells = most_cells / (n * (n + 1) / 2);
    double fewest = fmin(fmin(by_work, by_cells), (double)default_slots);
    return asked != 0 ? asked : (uint64_t)fmax(fewest, 16);
}

static memopt_status check_stage(const memopt_chain_stage *s, uint64_t index, uint64_t *total)
{
    if (!isfinite(s->forward_seconds) || !isfinite(s->backward_seconds) || s->forward_seconds < 0 ||
        s->backward_seconds < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "schedule: stage %" PRIu64
                       ": forward takes %g and backward %g; times must be "
                       "finite and not negative",
                       index, s->forward_seconds, s->backward_seconds);
    if (s->saved_bytes < s->output_bytes)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "schedule: stage %" PRIu64 " saves %" PRIu64 " bytes, less than its output "
                       "of %" PRIu64 "; saved_bytes includes the output",
                       index, s->saved_bytes, s->output_bytes);
    /* Value and gradient, in a run and in backward: four times the output covers every sum. */
    for (int i = 0; i < 4; i++)
        if (!mo_add_u64(*total, s->output_bytes, total))
            *total = UINT64_MAX;
    if (!mo_add_u64(*total, s->saved_bytes, total) ||
        !mo_add_u64(*total, s->forward_extra_bytes, total) ||
        !mo_add_u64(*total, s->backward_extra_bytes, total))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "schedule: the sizes up to stage %" PRIu64 " do not fit 64 bits", index);
    return MEMOPT_OK;
}

static memopt_status check(const memopt_chain_stage *stages, uint64_t count,
                           const memopt_schedule_options *options)
{
    if (count < 1 || count > MO_CHAIN_LIMIT)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "schedule: %" PRIu64 " stages; the count must be 1 to %d: join neighbours",
                       count, MO_CHAIN_LIMIT);
    if (options->slots > most_slots || options->input_gradient > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "schedule: slots is %" PRIu32 " (at most %" PRIu64
                       ") and input_gradient %" PRIu32 " (0 or 1)",
                       options->slots, most_slots, options->input_gradient);
    uint64_t total = 0;
    memopt_status status = MEMOPT_OK;
    for (int i = 0; i < 4; i++)
        if (!mo_add_u64(total, options->input_bytes, &total))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "schedule: an input of %" PRIu64 " bytes is too large",
                           options->input_bytes);
    for (uint64_t i = 0; status == MEMOPT_OK && i < count; i++)
        status = check_stage(&stages[i], i, &total);
    return status;
}

/* The steps of a solver's cuts, whose table is freed. */
static memopt_status take(memopt_schedule *s, mo_cuts *cuts, uint64_t memory)
{
    s->steps.count = 0;
    memopt_status status = mo_schedule_expand(cuts, memory, &s->steps);
    mo_free(cuts->table);
    return status;
}

/* Everything saved, else the fastest, else `minimum`, which fits. */
static memopt_status solve_within(memopt_schedule *s, uint64_t budget, uint64_t slots,
                                  mo_cuts *minimum)
{
    mo_cuts fastest;
    int fits = 0;
    memopt_status status = mo_schedule_fastest(&s->chain, budget, slots, &fastest, &fits);
    if (status != MEMOPT_OK || fits) {
        mo_free(minimum->table);
        return status != MEMOPT_OK ? status : take(s, &fastest, fastest.slots);
    }
    return take(s, minimum, UINT64_MAX);
}

static memopt_status solve(memopt_schedule *s, const memopt_schedule_options *options)
{
    mo_cuts minimum;
    uint64_t floor = 0, budget = options->budget == 0 ? UINT64_MAX : options->budget;
    MO_TRY(mo_schedule_save_all(&s->chain, &s->steps));
    MO_TRY(mo_schedule_minimum(&s->chain, &minimum, &floor));
    mo_schedule_replay(&s->chain, &s->steps, &s->info);
    s->info.seconds_plain = s->info.seconds;
    s->info.minimum_budget = mo_min_u64(floor, s->info.peak_bytes);
    if (s->info.peak_bytes <= budget) {
        mo_free(minimum.table);
        return MEMOPT_OK;
    }
    if (budget < floor) {
        mo_free(minimum.table);
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "schedule: the budget is %" PRIu64 " bytes; %" PRIu64
                       " stages need at least %" PRIu64 ", without recomputation %" PRIu64,
                       budget, s->chain.count, floor, s->info.peak_bytes);
    }
    MO_TRY(solve_within(s, budget, slots_for(s->chain.count, options->slots), &minimum));
    mo_schedule_replay(&s->chain, &s->steps, &s->info);
    return MEMOPT_OK;
}

static memopt_status copy_chain(memopt_schedule *s, const memopt_chain_stage *stages,
                                uint64_t count, const memopt_schedule_options *options)
{
    uint64_t bytes = count * sizeof *stages; /* count was checked */
    s->chain.stages = mo_malloc(bytes);
    if (s->chain.stages == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memcpy(s->chain.stages, stages, bytes);
    s->chain.count = count;
    s->chain.input_bytes = options->input_bytes;
    s->chain.input_gradient = (int)options->input_gradient;
    return mo_chain_find_cells(&s->chain);
}

memopt_status memopt_schedule_create(const memopt_chain_stage *stages, uint64_t count,
                                     const memopt_schedule_options *options,
                                     memopt_schedule **out_schedule)
{
    memopt_schedule_options o;
    MO_TRY(mo_options_read(&o, sizeof o, options, "memopt_schedule_options"));
    MO_NOT_NULL("schedule", stages, out_schedule);
    MO_TRY(check(stages, count, &o));
    memopt_schedule *s = mo_calloc(1, sizeof *s);
    if (s == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = copy_chain(s, stages, count, &o);
    if (status == MEMOPT_OK)
        status = solve(s, &o);
    if (status == MEMOPT_OK)
        *out_schedule = s;
    else
        (void)memopt_schedule_destroy(s);
    return status;
}

memopt_status memopt_schedule_destroy(memopt_schedule *schedule)
{
    if (schedule == NULL)
        return MEMOPT_OK;
    mo_free(schedule->chain.stages);
    mo_free(schedule->chain.cells);
    mo_free(schedule->steps.items);
    mo_free(schedule);
    return MEMOPT_OK;
}

memopt_status memopt_schedule_get_info(const memopt_schedule *schedule,
                                       memopt_schedule_info *out_info)
{
    MO_NOT_NULL("schedule info", schedule, out_info);
    return mo_result_write(out_info, &schedule->info, sizeof schedule->info,
                           "memopt_schedule_info");
}

memopt_status memopt_schedule_next(memopt_schedule *schedule, memopt_schedule_step *out_step)
{
    MO_NOT_NULL("schedule step", schedule, out_step);
    if (schedule->next == schedule->steps.count)
        return MEMOPT_NOT_READY;
    const mo_step *step = &schedule->steps.items[schedule->next];
    memopt_schedule_step full = {.operation = step->operation, .stage = step->stage};
    MO_TRY(mo_result_write(out_step, &full, sizeof full, "memopt_schedule_step"));
    schedule->next++;
    return MEMOPT_OK;
}
