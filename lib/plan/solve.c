/* The handle of a solution: the run as given, then smaller micro-batches, then changes. */
#include "plan/solve.h"
#include "plan/settings.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>

struct memopt_plan_solution {
    memopt_plan_target_options options;
    mo_case given;
    mo_case chosen;
    mo_found found;
    memopt_plan_fit fit;
};

/* The case with every default filled in, so that changes see what they change; and played or
 * measured once, since what is wrong with it is to be told. */
static memopt_status fill_in(mo_case *c)
{
    mo_settings s;
    mo_cost cost;
    memopt_status status = mo_case_is_measured(c)
                               ? mo_settings_measured(&s, &c->run, &c->card)
                               : mo_settings_read(&s, &c->model, &c->run, &c->card);
    if (status != MEMOPT_OK)
        return status;
    c->model = s.model;
    c->run = s.run;
    c->card = s.card;
    c->model.struct_size = sizeof c->model;
    c->run.struct_size = sizeof c->run;
    c->card.struct_size = sizeof c->card;
    return mo_case_cost_now(c, &cost);
}

static memopt_status check(const memopt_plan_target_options *o, const mo_case *c)
{
    if (c->card.capacity == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the card has no capacity, so that everything fits; set capacity");
    if (o->keep_batch > 1 || o->keep_dtype > 1 || o->keep_optimizer > 1 || o->keep_weights > 1 ||
        o->all_changes > 1 || o->reserved != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: a choice of the target is neither 0 nor 1, or reserved is not 0");
    if (o->effective_batch > UINT64_C(1) << 40)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: an effective batch of %" PRIu64 "; it must be at most 2^40",
                       o->effective_batch);
    if (o->max_micro_batch > MO_LARGEST_BATCH)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: max_micro_batch is %" PRIu64 "; at most %" PRIu64 " are looked for",
                       o->max_micro_batch, MO_LARGEST_BATCH);
    return MEMOPT_OK;
}

/* The largest micro-batch of a step of several: gradients stay from one to the next. */
static memopt_status largest_of_several(const mo_case *c, uint64_t most, uint64_t *batch)
{
    mo_case several = *c;
    if (several.run.accumulation < 2)
        several.run.accumulation = 2;
    return mo_largest_batch(&several, most, batch);
}

static mo_split keep_batch(uint64_t target, uint64_t batch, uint64_t world)
{
    uint64_t step = batch * world, steps = (target + step / 2) / step;
    steps = steps == 0 ? 1 : steps;
    return (mo_split){batch, steps, steps * step};
}

/* The micro-batch, at most `most`, and accumulation for `target`; 0: what fits as it is. */
static memopt_status split_for(memopt_plan_solution *s, uint64_t target, uint64_t most,
                               mo_split *split)
{
    const mo_case *c = &s->chosen;
    uint64_t world = c->run.world_size, steps = c->run.accumulation;
    uint64_t largest = s->fit.largest_micro_batch, several = 0;
    most = mo_min_u64(most, largest);
    *split = (mo_split){most, steps, most * steps * world};
    if (target == 0 || most == 0)
        return MEMOPT_OK;
    if (most * world >= target || steps > 1)
        several = most; /* one is enough, or several were counted already */
    else {
        memopt_status status = largest_of_several(c, most, &several);
        if (status != MEMOPT_OK)
            return status;
        s->fit.largest_micro_batch = several == 0 ? largest : several;
    }
    int kept = s->options.keep_batch && several < most;
    if (several == 0 || kept) /* a single micro-batch fits, and nothing beside it */
        *split = (mo_split){most, 1, most * world};
    else if (s->options.keep_batch)
        *split = keep_batch(target, several, world);
    else
        *split = mo_split_batch(target, several, world);
    return MEMOPT_OK;
}

/* Micro-batch and accumulation of the chosen case, whose batch fits. */
static memopt_status choose_batch(memopt_plan_solution *s, uint64_t target, uint64_t most)
{
    mo_case *c = &s->chosen;
    mo_split split;
    memopt_status status = mo_largest_batch(c, MO_LARGEST_BATCH, &s->fit.largest_micro_batch);
    if (status == MEMOPT_OK)
        status = split_for(s, target, s->options.keep_batch ? c->run.batch : most, &split);
    if (status != MEMOPT_OK || split.batch == 0)
        return status;
    c->run.batch = split.batch;
    c->run.accumulation = split.accumulation;
    s->fit.micro_batch = split.batch;
    s->fit.accumulation = split.accumulation;
    s->fit.effective_batch = split.effective;
    s->fit.target_batch = target == 0 ? split.effective : target;
    s->fit.remainder = (int64_t)split.effective - (int64_t)s->fit.target_batch;
    return MEMOPT_OK;
}

/* A smaller micro-batch that fits on its own is the change to make. */
static memopt_status shrink(memopt_plan_solution *s, int *done)
{
    uint64_t batch = s->given.run.batch, fitting = 0;
    *done = 0;
    if (s->options.keep_batch || batch < 2)
        return MEMOPT_OK;
    memopt_status status = largest_of_several(&s->given, batch - 1, &fitting);
    if (status != MEMOPT_OK || fitting == 0)
        return status;
    uint64_t steps = s->given.run.accumulation;
    mo_split split = mo_split_batch(batch * steps, fitting, 1);
    mo_cost before, after = {0};
    s->chosen = s->given;
    s->chosen.run.batch = split.batch;
    s->chosen.run.accumulation = split.accumulation;
    status = mo_case_cost(&s->given, &before);
    if (status == MEMOPT_OK)
        status = mo_case_cost(&s->chosen, &after);
    if (status != MEMOPT_OK)
        return status;
    memopt_plan_change change = {.struct_size = sizeof change,
                                 .kind = MEMOPT_PLAN_CHANGE_MICRO_BATCH,
                                 .applied = 1,
                                 .saves_bytes = before.peak - after.peak,
                                 .peak_bytes = after.peak,
                                 .time_factor = 1};
    (void)snprintf(change.change, sizeof change.change,
                   "micro-batch %" PRIu64 " → %" PRIu64 ", accumulation %" PRIu64 " → %" PRIu64,
                   batch, split.batch, steps, split.accumulation);
    (void)snprintf(change.option, sizeof change.option,
                   "--batch %" PRIu64 " --accumulation %" PRIu64, split.batch, split.accumulation);
    s->found = (mo_found){.count = 1, .fits = 1, .time = 1};
    s->found.changes[0] = change;
    *done = 1;
    return MEMOPT_OK;
}

/* Whether the effective batch needs several micro-batches and not even two of one sample fit, so
 * that what fits as given is of no use. */
static memopt_status lacks_room(const memopt_plan_solution *s, uint64_t target, uint64_t most,
                                int *lacks)
{
    uint64_t single = 0, several = 0;
    *lacks = 0;
    if (s->given.run.accumulation > 1)
        return MEMOPT_OK;
    memopt_status status = mo_largest_batch(&s->given, most, &single);
    if (status != MEMOPT_OK || single * s->given.run.world_size >= target)
        return status;
    status = largest_of_several(&s->given, 1, &several);
    *lacks = status == MEMOPT_OK && several == 0;
    return status;
}

/* The chosen case: as given, with a smaller micro-batch, or with changes. */
static memopt_status find(memopt_plan_solution *s, uint64_t target, uint64_t most, int batch_given)
{
    mo_cost cost;
    int done = 0, lacks = 0;
    s->found = (mo_found){.time = 1};
    if (!batch_given)
        s->given.run.batch = 1;
    memopt_status status = mo_case_cost(&s->given, &cost);
    if (status != MEMOPT_OK)
        return status;
    s->fit.limit_bytes = cost.limit;
    s->chosen = s->given;
    if (mo_cost_fits(&cost))
        status = lacks_room(s, target, most, &lacks);
    s->fit.fits = mo_cost_fits(&cost) && !lacks;
    s->found.fits = (int)s->fit.fits;
    if (status != MEMOPT_OK || s->found.fits)
        return status;
    if (!lacks)
        status = shrink(s, &done);
    if (status != MEMOPT_OK || done)
        return status;
    s->chosen = s->given;
    if (target > s->given.run.batch * s->given.run.world_size && s->given.run.accumulation < 2)
        s->chosen.run.accumulation = 2; /* gradients will stay from one to the next */
    return mo_search_changes(&s->chosen, &s->options, &s->found);
}

static memopt_status solve(memopt_plan_solution *s, int batch_given)
{
    const memopt_plan_run *run = &s->given.run;
    uint64_t world = run->world_size;
    uint64_t target = s->options.effective_batch;
    if (target == 0 && batch_given)
        target = run->batch * run->accumulation * world;
    uint64_t most = s->options.max_micro_batch;
    if (most == 0)
        most = MO_LARGEST_BATCH;
    if (batch_given)
        most = mo_min_u64(most, run->batch);
    s->fit.target_batch = target;
    memopt_status status = find(s, target, most, batch_given);
    if (status == MEMOPT_OK && s->found.fits)
        status = choose_batch(s, target, most);
    if (status == MEMOPT_OK && s->options.all_changes)
        status = mo_search_alternatives(&s->given, &s->options, &s->found);
    mo_cost cost = {0};
    if (status == MEMOPT_OK)
        status = mo_case_cost(&s->chosen, &cost);
    s->fit.fits_after = (uint32_t)s->found.fits;
    s->fit.peak_bytes = cost.peak;
    s->fit.floor_bytes = s->found.fits ? 0 : s->found.floor;
    s->fit.change_count = s->found.count;
    s->fit.time_factor = s->found.time;
    s->fit.struct_size = sizeof s->fit;
    return status;
}

static memopt_status read_case(const memopt_plan_model *model, const memopt_plan_run *run,
                               const memopt_plan_card *card, mo_case *c)
{
    memopt_status status = mo_options_read(&c->model, sizeof c->model, model, "memopt_plan_model");
    if (status == MEMOPT_OK)
        status = mo_options_read(&c->run, sizeof c->run, run, "memopt_plan_run");
    if (status == MEMOPT_OK)
        status = mo_options_read(&c->card, sizeof c->card, card, "memopt_plan_card");
    return status;
}

/* Makes the solution of s->given, which it fills in. */
static memopt_status run_solver(memopt_plan_solution *s)
{
    int batch_given = s->given.run.batch != 0;
    memopt_status status = check(&s->options, &s->given);
    if (status == MEMOPT_OK)
        status = fill_in(&s->given);
    return status == MEMOPT_OK ? solve(s, batch_given) : status;
}

static memopt_status solve_from(const memopt_plan_model *model, const memopt_plan_run *run,
                                const memopt_plan_card *card,
                                const memopt_plan_target_options *options, mo_source *source,
                                memopt_plan_solution **out_solution)
{
    if (out_solution == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: out_solution is NULL");
    memopt_plan_solution *s = mo_calloc(1, sizeof *s);
    if (s == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    s->given.source = source;
    memopt_status status = read_case(model, run, card, &s->given);
    if (status == MEMOPT_OK)
        status =
            mo_options_read(&s->options, sizeof s->options, options, "memopt_plan_target_options");
    if (status == MEMOPT_OK)
        status = run_solver(s);
    mo_source_end(source);
    s->given.source = s->chosen.source = NULL;
    if (status == MEMOPT_OK)
        *out_solution = s;
    else
        mo_free(s);
    return status;
}

memopt_status memopt_plan_solve(const memopt_plan_model *model, const memopt_plan_run *run,
                                const memopt_plan_card *card,
                                const memopt_plan_target_options *options,
                                memopt_plan_solution **out_solution)
{
    mo_source source = {.measure = NULL};
    if (model == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: model is NULL");
    return solve_from(model, run, card, options, &source, out_solution);
}

memopt_status memopt_plan_solve_measured(memopt_plan_measure measure, void *user,
                                         const memopt_plan_run *run, const memopt_plan_card *card,
                                         const memopt_plan_target_options *options,
                                         memopt_plan_solution **out_solution)
{
    mo_source source = {.measure = measure, .user = user};
    if (measure == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: measure is NULL");
    return solve_from(NULL, run, card, options, &source, out_solution);
}

memopt_status memopt_plan_solution_destroy(memopt_plan_solution *solution)
{
    mo_free(solution);
    return MEMOPT_OK;
}

memopt_status memopt_plan_solution_get_fit(const memopt_plan_solution *solution,
                                           memopt_plan_fit *out_fit)
{
    if (solution == NULL || out_fit == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: solution or out_fit is NULL");
    return mo_result_write(out_fit, &solution->fit, sizeof solution->fit, "memopt_plan_fit");
}

memopt_status memopt_plan_solution_get_change(const memopt_plan_solution *solution, uint64_t index,
                                              memopt_plan_change *out_change)
{
    if (solution == NULL || out_change == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: solution or out_change is NULL");
    if (index >= solution->found.count)
        return mo_fail(MEMOPT_NOT_FOUND, "plan: change %" PRIu64 " of %" PRIu64, index,
                       solution->found.count);
    return mo_result_write(out_change, &solution->found.changes[index],
                           sizeof solution->found.changes[index], "memopt_plan_change");
}

memopt_status memopt_plan_solution_get_settings(const memopt_plan_solution *solution,
                                                memopt_plan_model *out_model,
                                                memopt_plan_run *out_run)
{
    if (solution == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: solution is NULL");
    memopt_status status = MEMOPT_OK;
    if (out_model != NULL)
        status = mo_result_write(out_model, &solution->chosen.model, sizeof solution->chosen.model,
                                 "memopt_plan_model");
    if (status == MEMOPT_OK && out_run != NULL)
        status = mo_result_write(out_run, &solution->chosen.run, sizeof solution->chosen.run,
                                 "memopt_plan_run");
    return status;
}
