/*
 * Which changes to take. Tier by tier, the cheapest first; within a tier the one that saves most
 * for its time. After each the search begins again: what saved nothing before may save now. When
 * it fits, a set that is better and differs by one change (without one, with another in its place,
 * with one more) takes the place of the one that was found, until there is none.
 */
#include "solve/solve.h"

typedef struct search {
    mo_plan_case start; /* as given */
    const mo_plan_target *options;
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

/* What moves the peak by less is not worth a change, unless it makes the run fit. */
static uint64_t small_of(const mo_plan_cost *cost)
{
    return cost->peak / 1000;
}

/* What a case takes; *possible: 0 where its parts do not go together. */
static memopt_status cost_of(const mo_plan_case *c, mo_plan_cost *cost, int *possible)
{
    memopt_status status = mo_plan_case_cost(c, cost);
    *possible = status == MEMOPT_OK;
    return status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED ? MEMOPT_OK : status;
}

/* One change on top of a case that costs `before`; *useful: it applies and saves. */
static memopt_status try_change(const search *s, int index, const mo_plan_case *c,
                                const mo_plan_cost *before, tried *t, int *useful)
{
    *useful = 0;
    if (!mo_plan_change_make(index, c, s->options, &t->changed, &t->change))
        return MEMOPT_OK;
    MO_TRY(cost_of(&t->changed, &t->cost, useful));
    if (!*useful)
        return MEMOPT_OK;
    t->change.peak_bytes = t->cost.peak;
    set_time(t, before);
    *useful = t->cost.peak < before->peak;
    if (*useful)
        t->change.saves_bytes = before->peak - t->cost.peak;
    return MEMOPT_OK;
}

static int is_in(uint32_t set, int index)
{
    return (int)(set >> index & 1);
}

/* Bytes saved for what it costs. */
static double worth(const tried *t)
{
    return (double)t->change.saves_bytes / (t->change.time_factor - 1 + 0.01);
}

/* The best change of a tier on top of `c`, or none. */
static memopt_status best_of_tier(const search *s, uint32_t taken, int tier, const mo_plan_case *c,
                                  const mo_plan_cost *cost, tried *best, int *index)
{
    *index = -1;
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        tried t;
        int useful = 0;
        if ((int)mo_plan_change_tier(i) != tier || is_in(taken, i))
            continue;
        MO_TRY(try_change(s, i, c, cost, &t, &useful));
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
static memopt_status take(const search *s, uint32_t *taken, mo_plan_cost *cost)
{
    mo_plan_case c = s->start;
    int tier = 0;
    MO_TRY(mo_plan_case_cost(&c, cost));
    while (tier < MO_PLAN_TIERS && !mo_plan_cost_fits(cost)) {
        tried best;
        int index = -1;
        MO_TRY(best_of_tier(s, *taken, tier, &c, cost, &best, &index));
        tier = index < 0 ? tier + 1 : 0;
        if (index < 0)
            continue;
        *taken |= 1u << index;
        c = best.changed;
        *cost = best.cost;
    }
    return MEMOPT_OK;
}

/* A set of changes, made of the case as given. */
typedef struct plan {
    uint32_t set;
    mo_plan_case with;
    int fits;
    double factor; /* of its time, beyond what the case says */
    double time;   /* of a step */
    uint64_t loss; /* beside time: see mo_plan_change_loss() */
} plan;

/* Another training is worse than any time; then the faster one; then the one that loses less. */
static int is_cheaper(const plan *p, const plan *than)
{
    uint64_t other = p->loss >> MO_PLAN_LOSS_TRAINING, others = than->loss >> MO_PLAN_LOSS_TRAINING;
    if (other != others)
        return other < others;
    if (p->time < than->time * (1 - 1e-9) || p->time > than->time * (1 + 1e-9))
        return p->time < than->time;
    return p->loss < than->loss;
}

/* A cheaper one rounds more only in place of another training. */
static int is_better(const plan *p, const plan *than)
{
    return p->fits && is_cheaper(p, than) &&
           p->loss >> MO_PLAN_LOSS_ROUNDING <= than->loss >> MO_PLAN_LOSS_ROUNDING;
}

/* The case of a set and its least time; 0: one of the changes does not apply. */
static int make(const search *s, uint32_t set, plan *p)
{
    *p = (plan){.set = set, .with = s->start, .factor = 1, .fits = 1}; /* as far as is known */
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        mo_plan_case changed;
        mo_plan_change change;
        if (!is_in(set, i))
            continue;
        if (!mo_plan_change_make(i, &p->with, s->options, &changed, &change))
            return 0;
        p->with = changed;
        p->loss += mo_plan_change_loss(i);
        p->factor *= change.time_factor;
    }
    p->time = p->factor * mo_plan_case_least_time(&p->with);
    return 1;
}

/* Whether it fits, and the time of a step. */
static memopt_status measure(plan *p)
{
    mo_plan_cost cost;
    int possible = 0;
    MO_TRY(cost_of(&p->with, &cost, &possible));
    p->fits = possible && mo_plan_cost_fits(&cost);
    if (possible)
        p->time = p->factor * cost.time;
    return MEMOPT_OK;
}

/* Makes *best of a set that is better than `p` and cheaper than *best. */
static memopt_status try_set(const search *s, uint32_t set, const plan *p, plan *best)
{
    plan q;
    if (!make(s, set, &q) || !is_better(&q, p)) /* without asking what it takes */
        return MEMOPT_OK;
    MO_TRY(measure(&q));
    if (is_better(&q, p) && is_cheaper(&q, best))
        *best = q;
    return MEMOPT_OK;
}

/* The cheapest of the sets that are better than `p` and differ by one change; `p` where none is.
 * One change less goes first. */
static memopt_status best_other(const search *s, const plan *p, plan *best)
{
    *best = *p;
    for (int i = 0; i < MO_PLAN_CHANGES; i++)
        if (is_in(p->set, i))
            MO_TRY(try_set(s, p->set & ~(1u << i), p, best));
    if (best->set != p->set)
        return MEMOPT_OK;
    for (int more = 0; more < MO_PLAN_CHANGES; more++) {
        uint32_t with = p->set | 1u << more;
        if (with == p->set)
            continue;
        MO_TRY(try_set(s, with, p, best));
        for (int i = 0; i < MO_PLAN_CHANGES; i++)
            if (is_in(p->set, i))
                MO_TRY(try_set(s, with & ~(1u << i), p, best));
    }
    return MEMOPT_OK;
}

/* Improves a set that fits, until none that differs by one change is better; its case. */
static memopt_status improve(const search *s, uint32_t *set, mo_plan_case *with)
{
    plan p, best;
    (void)make(s, *set, &best);
    MO_TRY(measure(&best));
    do {
        p = best;
        MO_TRY(best_other(s, &p, &best));
    } while (best.set != p.set);
    *set = p.set;
    *with = p.with;
    return MEMOPT_OK;
}

/* The way from a case as given to one with changes, one by one. */
typedef struct walk {
    const mo_plan_run *to; /* its micro-batch and accumulation */
    const mo_plan_target *options;
    mo_plan_found *found;
    mo_plan_case at;
    mo_plan_cost cost;
} walk;

/* Makes a change and lists it: where it saves, or, `forced`, also where it does not. *made: 0 where
 * it was not made. */
static memopt_status step(walk *w, int index, int forced, int *made)
{
    tried t = {.changed = w->at, .change = {.time_factor = 1}};
    mo_plan_found *found = w->found;
    int possible = 0;
    *made = 0;
    if (index == MO_PLAN_CHANGE_BATCH) /* its kind is 0 */
        mo_plan_change_batch(&t.changed, w->to->batch, w->to->accumulation, &t.change);
    else if (!mo_plan_change_make(index, &w->at, w->options, &t.changed, &t.change))
        return MEMOPT_OK;
    MO_TRY(cost_of(&t.changed, &t.cost, &possible));
    if (!possible) /* yet */
        t.cost = w->cost;
    if (t.cost.peak + (found->fits ? 0 : small_of(&w->cost)) >= w->cost.peak && !forced)
        return MEMOPT_OK;
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

/* Makes those of *left that save, in the order of the table, and takes them out of it; some save on
 * top of others only. `forced`: makes all. */
static memopt_status steps(walk *w, uint32_t *left, int forced)
{
    uint32_t before;
    do {
        before = *left;
        for (int i = 0; i < MO_PLAN_CHANGES; i++) {
            int made = 0;
            if (is_in(before, i))
                MO_TRY(step(w, i, forced, &made));
            *left &= ~((uint32_t)made << i);
        }
    } while (*left != before);
    return MEMOPT_OK;
}

/* Lists a set on the way from `given`; *left: what saves nothing after all others. `first` of it
 * goes before the others, and what takes time after them: of smaller weights it takes less. */
static memopt_status walk_from(walk *w, const mo_plan_case *given, uint32_t set, uint32_t first,
                               uint32_t *left)
{
    uint32_t slow = 0;
    for (int i = 0; i < MO_PLAN_CHANGES; i++)
        slow |= (uint32_t)(mo_plan_change_tier(i) == MO_PLAN_TIER_TIME) << i;
    w->at = *given;
    w->found->count = 0;
    w->found->time = 1;
    MO_TRY(mo_plan_case_cost(&w->at, &w->cost));
    *left = first;
    MO_TRY(steps(w, left, 1));
    *left |= set & ~first & ~slow;
    MO_TRY(steps(w, left, 0));
    *left |= set & ~first & slow;
    return steps(w, left, 0);
}

/* Lists the changes of a set on the way from `given` to `c`. Where nothing fits, what saves nothing
 * is left out of both; else it is there for its time, and goes first. */
static memopt_status list(const mo_plan_case *given, uint32_t set, mo_plan_case *c,
                          const mo_plan_target *options, mo_plan_found *found)
{
    mo_plan_run to = c->run;
    walk w = {.to = &to, .options = options, .found = found};
    uint32_t left;
    MO_TRY(walk_from(&w, given, set, 0, &left));
    if (found->fits && left != 0)
        MO_TRY(walk_from(&w, given, set, left, &left));
    if (found->fits)
        MO_TRY(steps(&w, &left, 1));
    *c = w.at;
    return MEMOPT_OK;
}

memopt_status mo_plan_search_changes(mo_plan_case *c, const mo_plan_target *options,
                                     mo_plan_found *found)
{
    search s = {.start = *c, .options = options};
    mo_plan_cost cost;
    plan all;
    *found = (mo_plan_found){.time = 1};
    MO_TRY(take(&s, &found->taken, &cost));
    found->floor = cost.peak;
    found->fits = mo_plan_cost_fits(&cost);
    if (found->fits)
        return improve(&s, &found->taken, c);
    (void)make(&s, found->taken, &all);
    *c = all.with;
    return list(&s.start, found->taken, c, options, found);
}

memopt_status mo_plan_search_list(const mo_plan_case *given, mo_plan_case *c,
                                  const mo_plan_target *options, mo_plan_found *found)
{
    uint32_t batch = 1u << MO_PLAN_CHANGE_BATCH;
    mo_plan_target keep = *options;
    search s = {.start = *given, .options = &keep};
    keep.keep_batch = 1;
    s.start.run.batch = c->run.batch;
    s.start.run.accumulation = c->run.accumulation;
    found->taken &= ~batch;
    MO_TRY(improve(&s, &found->taken, c));
    if (given->run.batch != c->run.batch)
        found->taken |= batch;
    return list(given, found->taken, c, options, found);
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
    MO_TRY(mo_plan_case_cost(c, &cost));
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        tried t;
        int useful = 0;
        MO_TRY(try_change(&s, i, c, &cost, &t, &useful));
        if (useful && t.change.saves_bytes > small_of(&cost) && !is_listed(&applied, &t.change))
            found->changes[found->count++] = t.change;
    }
    return MEMOPT_OK;
}
