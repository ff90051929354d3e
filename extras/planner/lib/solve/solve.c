/* The order of the search: the run as given, then smaller micro-batches, then changes. */
#include "solve/solve.h"

#include "base/checked.h"

#include <string.h>

/* The case with every default filled in, so that changes see what they change; and played or
 * measured once, since a mistake in it is to be reported. */
static memopt_status fill_in(mo_plan_case *c)
{
    mo_plan_settings s;
    mo_plan_cost cost;
    MO_TRY(mo_plan_case_is_measured(c)
               ? mo_plan_settings_fill_measured(&s, &c->model, &c->run, &c->card)
               : mo_plan_settings_fill(&s, &c->model, &c->run, &c->card));
    c->model = s.model;
    c->run = s.run;
    c->card = s.card;
    return mo_plan_case_cost(c, &cost);
}

/* The largest micro-batch of a step of several: gradients stay from one to the next. */
static memopt_status largest_of_several(const mo_plan_case *c, uint64_t most, uint64_t *batch)
{
    mo_plan_case several = *c;
    if (several.run.accumulation < 2)
        several.run.accumulation = 2;
    return mo_plan_largest_batch(&several, most, batch);
}

/* The micro-batch, at most `most`, and accumulation that come nearest to the target. */
static mo_plan_split nearest(const mo_plan_solution *s, uint64_t most)
{
    uint64_t world = s->given.run.world_size;
    return s->target.keep_batch ? mo_plan_split_of(s->effective_batch, most, world)
                                : mo_plan_split_batch(s->effective_batch, most, world);
}

/* The same of the chosen case, with what fits it; without a target, what fits as it is. */
static memopt_status split_for(mo_plan_solution *s, uint64_t most, mo_plan_split *split)
{
    const mo_plan_case *c = &s->chosen;
    uint64_t world = c->run.world_size, steps = c->run.accumulation, largest = 0, several = 0;
    MO_TRY(mo_plan_largest_batch(c, MO_PLAN_LARGEST_BATCH, &largest));
    most = mo_min_u64(most, largest);
    *split = (mo_plan_split){most, steps, most * steps * world};
    if (s->effective_batch == 0 || most == 0)
        return MEMOPT_OK;
    *split = nearest(s, most);
    if (split->accumulation < 2)
        return MEMOPT_OK; /* one is enough */
    MO_TRY(largest_of_several(c, MO_PLAN_LARGEST_BATCH, &several));
    if (several == 0) {
        *split = (mo_plan_split){most, 1, most * world}; /* it fits alone, and nothing beside it */
        return MEMOPT_OK;
    }
    *split = nearest(s, mo_min_u64(most, several));
    return MEMOPT_OK;
}

/* Micro-batch and accumulation of the chosen case, whose batch fits. */
static memopt_status choose_batch(mo_plan_solution *s)
{
    mo_plan_case *c = &s->chosen;
    mo_plan_split split;
    MO_TRY(split_for(s, s->target.keep_batch ? c->run.batch : s->most, &split));
    if (split.batch == 0)
        return MEMOPT_OK;
    c->run.batch = split.batch;
    c->run.accumulation = split.accumulation;
    s->fit.micro_batch = split.batch;
    s->fit.accumulation = split.accumulation;
    s->fit.effective_batch = split.effective;
    s->fit.target_batch = s->effective_batch == 0 ? split.effective : s->effective_batch;
    s->fit.remainder = (int64_t)split.effective - (int64_t)s->fit.target_batch;
    return MEMOPT_OK;
}

/* A smaller micro-batch that fits on its own is the change to make. */
static memopt_status shrink(mo_plan_solution *s, int *done)
{
    uint64_t batch = s->given.run.batch, fitting = 0;
    *done = 0;
    if (s->target.keep_batch || batch < 2)
        return MEMOPT_OK;
    MO_TRY(largest_of_several(&s->given, batch - 1, &fitting));
    if (fitting == 0)
        return MEMOPT_OK;
    mo_plan_split split = mo_plan_split_batch(s->effective_batch, fitting, s->given.run.world_size);
    s->chosen = s->given;
    s->chosen.run.batch = split.batch;
    s->chosen.run.accumulation = split.accumulation;
    s->found.fits = 1;
    *done = 1;
    return MEMOPT_OK;
}

/* Whether the effective batch needs several micro-batches and not even two of one sample fit, so
 * that what fits as given is of no use. */
static memopt_status lacks_room(const mo_plan_solution *s, int *lacks)
{
    uint64_t single = 0, several = 0;
    *lacks = 0;
    if (s->given.run.accumulation > 1)
        return MEMOPT_OK;
    MO_TRY(mo_plan_largest_batch(&s->given, s->most, &single));
    if (s->effective_batch == 0 || nearest(s, single).accumulation < 2)
        return MEMOPT_OK;
    MO_TRY(largest_of_several(&s->given, 1, &several));
    *lacks = several == 0;
    return MEMOPT_OK;
}

/* Micro-batches that the target asks for with the batch as given, and at least `least`. */
static void accumulate(mo_plan_solution *s, uint64_t least)
{
    mo_plan_run *run = &s->given.run;
    mo_plan_split split = mo_plan_split_of(s->effective_batch, run->batch, run->world_size);
    run->accumulation = mo_max_u64(split.accumulation, least);
}

/* The chosen case: as given, with a smaller micro-batch, or with changes. */
static memopt_status find(mo_plan_solution *s)
{
    mo_plan_cost cost;
    int done = 0, lacks = 0;
    s->found = (mo_plan_found){.time = 1};
    if (s->target.effective_batch != 0) /* it decides, not the run */
        s->given.run.accumulation = 1;
    if (s->target.effective_batch != 0 && s->batch_given)
        accumulate(s, 1);
    MO_TRY(mo_plan_case_cost(&s->given, &cost));
    s->fit.limit_bytes = cost.limit;
    s->chosen = s->given;
    if (mo_plan_cost_fits(&cost))
        MO_TRY(lacks_room(s, &lacks));
    s->fit.fits = mo_plan_cost_fits(&cost) && !lacks;
    s->found.fits = (int)s->fit.fits;
    if (s->found.fits)
        return MEMOPT_OK;
    if (!lacks)
        MO_TRY(shrink(s, &done));
    if (done)
        return MEMOPT_OK;
    if (s->effective_batch != 0) /* of several, gradients will stay from one to the next */
        accumulate(s, nearest(s, s->given.run.batch).accumulation > 1 ? 2 : 1);
    s->chosen = s->given;
    return mo_plan_search_changes(&s->chosen, &s->target, &s->found);
}

/* What changes are counted from: the run as given; with the micro-batch that was found where it
 * fits or was given none. */
static memopt_status list_changes(mo_plan_solution *s)
{
    mo_plan_cost cost;
    mo_plan_target options = s->target;
    if (!s->batch_given)
        options.keep_batch = 1; /* a smaller one is no change of what was asked for */
    options.keep_training = 0;  /* it is listed, and not taken */
    if (s->fit.fits || (!s->batch_given && s->found.fits)) {
        s->given.run.batch = s->chosen.run.batch;
        s->given.run.accumulation = s->chosen.run.accumulation;
    }
    MO_TRY(mo_plan_case_cost(&s->given, &cost));
    s->fit.start_batch = s->given.run.batch;
    s->fit.start_accumulation = s->given.run.accumulation;
    s->fit.start_peak_bytes = cost.peak;
    if (s->found.fits && !s->fit.fits)
        MO_TRY(mo_plan_search_list(&s->given, &s->chosen, &s->target, &s->found));
    return s->target.all_changes ? mo_plan_search_alternatives(&s->given, &options, &s->found)
                                 : MEMOPT_OK;
}

static memopt_status solve(mo_plan_solution *s)
{
    const mo_plan_run *run = &s->given.run;
    mo_plan_cost cost = {0};
    s->effective_batch = s->target.effective_batch;
    if (s->effective_batch == 0 && s->batch_given)
        s->effective_batch = run->batch * run->accumulation * run->world_size;
    s->most = s->target.max_micro_batch == 0 ? MO_PLAN_LARGEST_BATCH : s->target.max_micro_batch;
    if (s->batch_given)
        s->most = mo_min_u64(s->most, run->batch);
    else
        s->target.keep_batch = 0;
    s->fit.target_batch = s->effective_batch;
    MO_TRY(find(s));
    if (s->found.fits)
        MO_TRY(choose_batch(s));
    MO_TRY(list_changes(s));
    if (s->found.fits) /* of the run that is proposed */
        MO_TRY(
            mo_plan_largest_batch(&s->chosen, MO_PLAN_LARGEST_BATCH, &s->fit.largest_micro_batch));
    MO_TRY(mo_plan_case_cost(&s->chosen, &cost));
    s->fit.fits_after = (uint32_t)s->found.fits;
    s->fit.peak_bytes = cost.peak;
    s->fit.floor_bytes = s->found.fits ? 0 : s->found.floor;
    s->fit.time_factor = s->found.time;
    return MEMOPT_OK;
}

/* Switches as 0 or 1. */
static mo_plan_target target_of(const mo_plan_given *given)
{
    mo_plan_target t = given->target;
    t.keep_batch = t.keep_batch == MO_PLAN_YES;
    t.keep_dtype = t.keep_dtype == MO_PLAN_YES;
    t.keep_optimizer = t.keep_optimizer == MO_PLAN_YES;
    t.keep_training = t.keep_training == MO_PLAN_YES;
    t.all_changes = t.all_changes == MO_PLAN_YES;
    return t;
}

memopt_status mo_plan_find_fit(const mo_plan_given *given, mo_plan_measure measure, void *user,
                               mo_plan_solution *out)
{
    mo_plan_source source = {.measure = measure, .user = user};
    if (given->card.capacity == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the card has no capacity, so everything fits; set card.capacity");
    memset(out, 0, sizeof *out); /* padding too: cases are compared as bytes */
    out->target = target_of(given);
    out->given.model = given->model;
    out->given.run = given->run;
    out->given.card = given->card;
    out->given.source = &source;
    out->batch_given = given->run.batch != 0;
    memopt_status status = fill_in(&out->given);
    if (status == MEMOPT_OK)
        status = solve(out);
    mo_plan_source_end(&source);
    out->given.source = out->chosen.source = NULL;
    return status;
}
