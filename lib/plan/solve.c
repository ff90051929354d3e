/* The handle of a solution: the run as given, then smaller micro-batches, then changes. */
#include "plan/solve.h"
#include "plan/settings.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>

struct memopt_plan_solution {
    memopt_plan_target_options options;
    mo_case given;  /* that changes are counted from */
    mo_case chosen; /* that is to be run */
    int batch_given;
    uint64_t target; /* effective batch; 0: what the largest micro-batch gives */
    uint64_t most;   /* the micro-batch is not larger */
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
    status = mo_case_cost(c, &cost);
    return status == MEMOPT_OK && cost.peak == UINT64_MAX ? mo_case_cost_now(c, &cost) : status;
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

/* The micro-batch, at most `most`, and accumulation that come nearest to the target. */
static mo_split nearest(const memopt_plan_solution *s, uint64_t most)
{
    uint64_t world = s->given.run.world_size;
    return s->options.keep_batch ? mo_split_of(s->target, most, world)
                                 : mo_split_batch(s->target, most, world);
}

/* The same of the chosen case, with what fits it; without a target, what fits as it is. */
static memopt_status split_for(memopt_plan_solution *s, uint64_t most, mo_split *split)
{
    const mo_case *c = &s->chosen;
    uint64_t world = c->run.world_size, steps = c->run.accumulation, largest = 0, several = 0;
    memopt_status status = mo_largest_batch(c, MO_LARGEST_BATCH, &largest);
    most = mo_min_u64(most, largest);
    *split = (mo_split){most, steps, most * steps * world};
    if (status != MEMOPT_OK || s->target == 0 || most == 0)
        return status;
    *split = nearest(s, most);
    if (split->accumulation < 2)
        return MEMOPT_OK; /* one is enough */
    status = largest_of_several(c, MO_LARGEST_BATCH, &several);
    if (status != MEMOPT_OK)
        return status;
    if (several == 0) {
        *split = (mo_split){most, 1, most * world}; /* it fits alone, and nothing beside it */
        return MEMOPT_OK;
    }
    *split = nearest(s, mo_min_u64(most, several));
    return MEMOPT_OK;
}

/* Micro-batch and accumulation of the chosen case, whose batch fits. */
static memopt_status choose_batch(memopt_plan_solution *s)
{
    mo_case *c = &s->chosen;
    mo_split split;
    memopt_status status = split_for(s, s->options.keep_batch ? c->run.batch : s->most, &split);
    if (status != MEMOPT_OK || split.batch == 0)
        return status;
    c->run.batch = split.batch;
    c->run.accumulation = split.accumulation;
    s->fit.micro_batch = split.batch;
    s->fit.accumulation = split.accumulation;
    s->fit.effective_batch = split.effective;
    s->fit.target_batch = s->target == 0 ? split.effective : s->target;
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
    mo_split split = mo_split_batch(s->target, fitting, s->given.run.world_size);
    s->chosen = s->given;
    s->chosen.run.batch = split.batch;
    s->chosen.run.accumulation = split.accumulation;
    s->found.fits = 1;
    *done = 1;
    return MEMOPT_OK;
}

/* Whether the effective batch needs several micro-batches and not even two of one sample fit, so
 * that what fits as given is of no use. */
static memopt_status lacks_room(const memopt_plan_solution *s, int *lacks)
{
    uint64_t single = 0, several = 0;
    *lacks = 0;
    if (s->given.run.accumulation > 1)
        return MEMOPT_OK;
    memopt_status status = mo_largest_batch(&s->given, s->most, &single);
    if (status != MEMOPT_OK || s->target == 0 || nearest(s, single).accumulation < 2)
        return status;
    status = largest_of_several(&s->given, 1, &several);
    *lacks = status == MEMOPT_OK && several == 0;
    return status;
}

/* Micro-batches that the target asks for with the batch as given, and at least `least`. */
static void accumulate(memopt_plan_solution *s, uint64_t least)
{
    memopt_plan_run *run = &s->given.run;
    mo_split split = mo_split_of(s->target, run->batch, run->world_size);
    run->accumulation = mo_max_u64(split.accumulation, least);
}

/* The chosen case: as given, with a smaller micro-batch, or with changes. */
static memopt_status find(memopt_plan_solution *s)
{
    mo_cost cost;
    int done = 0, lacks = 0;
    s->found = (mo_found){.time = 1};
    if (s->options.effective_batch != 0) /* it decides, not the run */
        s->given.run.accumulation = 1;
    if (s->options.effective_batch != 0 && s->batch_given)
        accumulate(s, 1);
    memopt_status status = mo_case_cost(&s->given, &cost);
    if (status != MEMOPT_OK)
        return status;
    s->fit.limit_bytes = cost.limit;
    s->chosen = s->given;
    if (mo_cost_fits(&cost))
        status = lacks_room(s, &lacks);
    s->fit.fits = mo_cost_fits(&cost) && !lacks;
    s->found.fits = (int)s->fit.fits;
    if (status != MEMOPT_OK || s->found.fits)
        return status;
    if (!lacks)
        status = shrink(s, &done);
    if (status != MEMOPT_OK || done)
        return status;
    if (s->target != 0) /* of several, gradients will stay from one to the next */
        accumulate(s, nearest(s, s->given.run.batch).accumulation > 1 ? 2 : 1);
    s->chosen = s->given;
    return mo_search_changes(&s->chosen, &s->options, &s->found);
}

/* What changes are counted from: the run as given; with the micro-batch that was found where it
 * fits or was given none. */
static memopt_status tell(memopt_plan_solution *s)
{
    mo_cost cost;
    memopt_plan_target_options options = s->options;
    if (!s->batch_given)
        options.keep_batch = 1; /* a smaller one is no change of what was asked for */
    if (s->fit.fits || (!s->batch_given && s->found.fits)) {
        s->given.run.batch = s->chosen.run.batch;
        s->given.run.accumulation = s->chosen.run.accumulation;
    }
    memopt_status status = mo_case_cost(&s->given, &cost);
    s->fit.start_batch = s->given.run.batch;
    s->fit.start_accumulation = s->given.run.accumulation;
    s->fit.start_peak_bytes = cost.peak;
    if (status == MEMOPT_OK && s->found.fits && !s->fit.fits)
        status = mo_search_tell(&s->given, &s->chosen, &s->options, &s->found);
    if (status == MEMOPT_OK && s->options.all_changes)
        status = mo_search_alternatives(&s->given, &options, &s->found);
    return status;
}

static memopt_status solve(memopt_plan_solution *s)
{
    const memopt_plan_run *run = &s->given.run;
    mo_cost cost = {0};
    s->target = s->options.effective_batch;
    if (s->target == 0 && s->batch_given)
        s->target = run->batch * run->accumulation * run->world_size;
    s->most = s->options.max_micro_batch == 0 ? MO_LARGEST_BATCH : s->options.max_micro_batch;
    if (s->batch_given)
        s->most = mo_min_u64(s->most, run->batch);
    else
        s->options.keep_batch = 0;
    s->fit.target_batch = s->target;
    memopt_status status = find(s);
    if (status == MEMOPT_OK && s->found.fits)
        status = choose_batch(s);
    if (status == MEMOPT_OK)
        status = tell(s);
    if (status == MEMOPT_OK && s->found.fits) /* of the run that is proposed */
        status = mo_largest_batch(&s->chosen, MO_LARGEST_BATCH, &s->fit.largest_micro_batch);
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
    s->batch_given = s->given.run.batch != 0;
    memopt_status status = check(&s->options, &s->given);
    if (status == MEMOPT_OK)
        status = fill_in(&s->given);
    return status == MEMOPT_OK ? solve(s) : status;
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
