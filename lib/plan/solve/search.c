/*
 * Which changes to take. Tier by tier, the cheapest first; within a tier the one that saves most
 * for its time. When it fits, changes that turn out not to be needed are taken back, the dearest
 * first, and what remains is measured once more in its order.
 */
#include "plan/solve/solve.h"

#include <string.h>

typedef struct search {
    mo_plan_case start; /* as given */
    const mo_plan_target *options;
    int taken[MO_PLAN_CHANGES]; /* indices of changes, in order */
    int count;
} search;

typedef struct tried {
    mo_plan_case changed;
    mo_plan_change change;
    mo_plan_cost cost;
} tried;

/* The time of a step with the change, relative to that before. */
static void set_time(tried *t, const mo_plan_cost *before)
{
    t->change.time_factor *= t->cost.time / before->time;
    if (t->change.time_factor < 1)
        t->change.time_factor = 1;
}

/* One change on top of a case that costs `before`; *useful: it applies and saves. */
static memopt_status try_change(const search *s, int index, const mo_plan_case *c,
                                const mo_plan_cost *before, tried *t, int *useful)
{
    *useful = 0;
    if (!mo_plan_change_make(index, c, s->options, &t->changed, &t->change))
        return MEMOPT_OK;
    memopt_status status = mo_plan_case_cost(&t->changed, &t->cost);
    if (status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED)
        return MEMOPT_OK; /* it does not go with the rest of the run */
    if (status != MEMOPT_OK)
        return status;
    t->change.peak_bytes = t->cost.peak;
    set_time(t, before);
    /* What moves the peak by less than a thousandth is not worth a change. */
    if (t->cost.peak < before->peak && before->peak - t->cost.peak > before->peak / 1000) {
        t->change.saves_bytes = before->peak - t->cost.peak;
        *useful = 1;
    }
    return MEMOPT_OK;
}

static int is_taken(const search *s, int index)
{
    for (int i = 0; i < s->count; i++)
        if (s->taken[i] == index)
            return 1;
    return 0;
}

/* Bytes saved for what it costs. */
static double worth(const tried *t)
{
    return (double)t->change.saves_bytes / (t->change.time_factor - 1 + 0.01);
}

/* The best change of a tier on top of `c`, or none. */
static memopt_status best_of_tier(search *s, mo_plan_tier tier, const mo_plan_case *c,
                                  const mo_plan_cost *cost, tried *best, int *index)
{
    *index = -1;
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        tried t;
        int useful = 0;
        if (mo_plan_change_tier(i) != tier || is_taken(s, i))
            continue;
        MO_PLAN_TRY(try_change(s, i, c, cost, &t, &useful));
        if (!useful)
            continue;
        /* One that makes it fit goes before one that saves more for its time but does not. */
        int fits = mo_plan_cost_fits(&t.cost),
            best_fits = *index >= 0 && mo_plan_cost_fits(&best->cost);
        int better = fits != best_fits ? fits : *index < 0 || worth(&t) > worth(best);
        if (better) {
            *best = t;
            *index = i;
        }
    }
    return MEMOPT_OK;
}

/* Takes changes until it fits or none is left. */
static memopt_status take(search *s, mo_plan_case *c, mo_plan_cost *cost)
{
    for (int tier = 0; tier < MO_PLAN_TIERS; tier++) {
        for (;;) {
            tried best;
            int index = -1;
            if (mo_plan_cost_fits(cost))
                return MEMOPT_OK;
            MO_PLAN_TRY(best_of_tier(s, (mo_plan_tier)tier, c, cost, &best, &index));
            if (index < 0)
                break;
            s->taken[s->count++] = index;
            *c = best.changed;
            *cost = best.cost;
        }
    }
    return MEMOPT_OK;
}

/* The case with the changes taken but `without`, in their order, and what each does. */
static memopt_status measure(const search *s, int without, mo_plan_case *c, mo_plan_cost *cost,
                             mo_plan_found *found)
{
    *c = s->start;
    found->count = 0;
    found->time = 1;
    MO_PLAN_TRY(mo_plan_case_cost(c, cost));
    for (int i = 0; i < s->count; i++) {
        tried t;
        int useful = 0;
        if (i == without)
            continue;
        MO_PLAN_TRY(try_change(s, s->taken[i], c, cost, &t, &useful));
        if (!useful)
            continue; /* what it saved, another does now */
        t.change.applied = 1;
        found->changes[found->count++] = t.change;
        found->time *= t.change.time_factor;
        *c = t.changed;
        *cost = t.cost;
    }
    return MEMOPT_OK;
}

/* Takes back what is not needed. */
static memopt_status prune(search *s, mo_plan_case *c, mo_plan_cost *cost, mo_plan_found *found)
{
    for (int i = s->count - 1; i >= 0; i--) {
        MO_PLAN_TRY(measure(s, i, c, cost, found));
        if (!mo_plan_cost_fits(cost))
            continue;
        for (int k = i; k + 1 < s->count; k++)
            s->taken[k] = s->taken[k + 1];
        s->count--;
    }
    return measure(s, -1, c, cost, found);
}

memopt_status mo_plan_search_changes(mo_plan_case *c, const mo_plan_target *options,
                                     mo_plan_found *found)
{
    search s = {.start = *c, .options = options};
    mo_plan_cost cost;
    *found = (mo_plan_found){.time = 1};
    MO_PLAN_TRY(mo_plan_case_cost(c, &cost));
    MO_PLAN_TRY(take(&s, c, &cost));
    found->floor = cost.peak;
    MO_PLAN_TRY(mo_plan_cost_fits(&cost) ? prune(&s, c, &cost, found)
                                         : measure(&s, -1, c, &cost, found));
    found->fits = mo_plan_cost_fits(&cost);
    found->taken_count = s.count;
    memcpy(found->taken, s.taken, sizeof s.taken);
    return MEMOPT_OK;
}

/* The way from a case as given to `to`, change by change. */
typedef struct walk {
    const mo_plan_case *to;
    const mo_plan_target *options;
    mo_plan_found *found;
    mo_plan_case at;
    mo_plan_cost cost;
    int left[MO_PLAN_CHANGES + 1]; /* changes still to be made */
    int count;
} walk;

/* Makes a change and lists it: where it saves, or, `forced`, also where it does not. *made: 0 where
 * it was not made. */
static memopt_status step(walk *w, int index, int forced, int *made)
{
    tried t = {.changed = w->at, .change = {.time_factor = 1}};
    mo_plan_found *found = w->found;
    *made = 0;
    if (index == MO_PLAN_CHANGE_BATCH) /* its kind is 0 */
        mo_plan_change_batch(&t.changed, w->to->run.batch, w->to->run.accumulation, &t.change);
    else if (!mo_plan_change_make(index, &w->at, w->options, &t.changed, &t.change))
        return MEMOPT_OK;
    memopt_status status = mo_plan_case_cost(&t.changed, &t.cost);
    if (status != MEMOPT_OK || (t.cost.peak >= w->cost.peak && !forced))
        return status;
    set_time(&t, &w->cost);
    t.change.applied = 1;
    t.change.peak_bytes = t.cost.peak;
    t.change.saves_bytes = t.cost.peak < w->cost.peak ? w->cost.peak - t.cost.peak : 0;
    found->changes[found->count++] = t.change;
    found->time *= t.change.time_factor;
    w->at = t.changed;
    w->cost = t.cost;
    *made = 1;
    return MEMOPT_OK;
}

/* Goes through the changes that are left, once. What is not needed to fit stays left; the
 * micro-batch was decided on and is needed. */
static memopt_status steps(walk *w, int forced)
{
    int count = w->count;
    w->count = 0;
    for (int i = 0; i < count; i++) {
        int index = w->left[i], made = 0;
        if (index == MO_PLAN_CHANGE_BATCH || !mo_plan_cost_fits(&w->cost))
            MO_PLAN_TRY(step(w, index, forced, &made));
        if (!made)
            w->left[w->count++] = index;
    }
    return MEMOPT_OK;
}

memopt_status mo_plan_search_list(const mo_plan_case *given, mo_plan_case *c,
                                  const mo_plan_target *options, mo_plan_found *found)
{
    walk w = {.to = c, .options = options, .found = found, .at = *given};
    int before;
    if (given->run.batch != c->run.batch)
        w.left[w.count++] = MO_PLAN_CHANGE_BATCH;
    for (int i = 0; i < found->taken_count; i++)
        if (found->taken[i] != MO_PLAN_CHANGE_BATCH)
            w.left[w.count++] = found->taken[i];
    found->count = 0;
    found->time = 1;
    MO_PLAN_TRY(mo_plan_case_cost(&w.at, &w.cost));
    do { /* what saves nothing yet may do so on top of others */
        before = w.count;
        MO_PLAN_TRY(steps(&w, 0));
    } while (w.count < before);
    MO_PLAN_TRY(steps(&w, 1));
    *c = w.at;
    return MEMOPT_OK;
}

static int is_listed(const mo_plan_found *found, const mo_plan_change *change)
{
    for (uint64_t i = 0; i < found->count; i++)
        if (found->changes[i].kind == change->kind)
            return 1;
    return 0;
}

memopt_status mo_plan_search_alternatives(const mo_plan_case *c, const mo_plan_target *options,
                                          mo_plan_found *found)
{
    search s = {.start = *c, .options = options};
    mo_plan_found applied = *found;
    mo_plan_cost cost;
    MO_PLAN_TRY(mo_plan_case_cost(c, &cost));
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        tried t;
        int useful = 0;
        MO_PLAN_TRY(try_change(&s, i, c, &cost, &t, &useful));
        if (useful && !is_listed(&applied, &t.change))
            found->changes[found->count++] = t.change;
    }
    return MEMOPT_OK;
}
