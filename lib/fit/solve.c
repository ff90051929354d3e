/*
 * The solver. From the floor, which holds the budget or nothing does, a first set is pruned. Then
 * Lagrangian multipliers weight the moments: with them every choice has a price, the best set by
 * prices is found over the modules' tree, repaired and pruned. At last single choices are forced,
 * and those of the best set forbidden.
 */
#include "fit/search.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 40 };

typedef struct solver {
    mo_fit_search s;
    void *memory;                      /* of all arrays */
    double *prices, *weights;          /* by choice; by moment */
    double *plain, *over;              /* by moment: bytes without choices; beyond the budget */
    double *subtree;                   /* by module: the best sum of prices in it */
    uint32_t *of_module;               /* by module: its RECOMPUTE and one more, or 0 */
    uint8_t *best, *set, *fixed, *own; /* sets; own: modules whose price is best */
    double seconds;                    /* of best */
} solver;

static memopt_status begin(solver *v, const memopt_fit *f, const memopt_fit_options *o)
{
    uint64_t n = f->choice_count, m = f->module_count;
    *v = (solver){.seconds = 0};
    MO_TRY(mo_fit_search_open(f, o, &v->s));
    v->memory = mo_calloc(2 * n + 3 * v->s.moments + 3 * m + 1, 8);
    if (v->memory == NULL) {
        mo_fit_search_close(&v->s);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    v->prices = v->memory;
    v->weights = v->prices + n;
    v->plain = v->weights + v->s.moments;
    v->over = v->plain + v->s.moments;
    v->subtree = v->over + v->s.moments;
    v->of_module = (uint32_t *)(v->subtree + m);
    v->own = (uint8_t *)(v->of_module + m);
    v->best = v->own + m;
    v->set = v->best + n;
    v->fixed = v->set + n; /* two sets long: the floor works there */
    for (uint32_t i = 0; i < n; i++)
        if (f->choices[i].kind == MEMOPT_FIT_RECOMPUTE)
            v->of_module[f->choices[i].module] = i + 1;
    for (uint64_t t = 0; t < v->s.moments; t++)
        v->plain[t] = (double)v->s.curve[t];
    return MEMOPT_OK;
}

static void end(solver *v)
{
    mo_free(v->memory);
    mo_fit_search_close(&v->s);
}

static int has_work(const solver *v)
{
    return v->s.work < v->s.most_work;
}

/* Keeps `set`, which holds, if it is faster than the best. */
static int offer(solver *v, uint8_t *set)
{
    double seconds = mo_fit_prune(&v->s, set);
    if (seconds >= v->seconds * (1 - 1e-9))
        return 0;
    v->seconds = seconds;
    memcpy(v->best, set, v->s.f->choice_count);
    return 1;
}

/* --- the set of least price -------------------------------------------------------------------- */

static void find_prices(solver *v)
{
    for (uint32_t i = 0; i < v->s.f->choice_count; i++) {
        const int64_t *row = mo_fit_delta(&v->s, i);
        double price = v->s.seconds[i];
        for (uint64_t t = 0; t < v->s.moments; t++)
            if (v->weights[t] > 0)
                price += v->weights[t] * (double)row[t];
        v->prices[i] = price;
    }
}

/* From the leaves up: whether a module's own price is below that of what is within. */
static void price_modules(solver *v)
{
    const memopt_fit *f = v->s.f;
    memset(v->subtree, 0, f->module_count * sizeof *v->subtree);
    for (uint32_t i = f->event_count; i-- > 0;) {
        uint32_t module = f->events[i].subject;
        if (f->events[i].kind != MEMOPT_FIT_ENTER)
            continue;
        double own = v->of_module[module] ? v->prices[v->of_module[module] - 1] : 0;
        v->own[module] = own < 0 && own <= v->subtree[module];
        double least = v->own[module] ? own : v->subtree[module];
        if (f->modules[module].parent != MEMOPT_FIT_NONE)
            v->subtree[f->modules[module].parent] += least;
    }
}

static void choose_modules(solver *v)
{
    const memopt_fit *f = v->s.f;
    uint32_t covered = 0; /* events up to this one are within a chosen module */
    for (uint32_t i = 0; i < f->event_count; i++) {
        uint32_t module = f->events[i].subject;
        if (f->events[i].kind != MEMOPT_FIT_ENTER || i < covered || !v->own[module])
            continue;
        v->set[v->of_module[module] - 1] = 1;
        covered = f->modules[module].leave;
    }
}

static void choose_values(solver *v)
{
    const memopt_fit *f = v->s.f;
    for (uint32_t i = 0; i < f->choice_count; i++) {
        double others = 0;
        if (f->choices[i].kind == MEMOPT_FIT_RECOMPUTE || v->prices[i] >= 0)
            continue;
        for (uint32_t j = 0; j < f->choice_count; j++)
            if (v->set[j] && mo_fit_excludes(f, i, j))
                others += v->prices[j];
        if (v->prices[i] < others)
            mo_fit_add(&v->s, v->set, i);
    }
}

/* --- the multipliers --------------------------------------------------------------------------- */

/* A step of the subgradient, as long as Polyak has it. */
static void reweigh(solver *v, double length)
{
    double bound = 0, square = 0;
    for (uint64_t t = 0; t < v->s.moments; t++)
        v->over[t] = v->plain[t] - (double)v->s.budget;
    for (uint32_t i = 0; i < v->s.f->choice_count; i++) {
        const int64_t *row = mo_fit_delta(&v->s, i);
        if (!v->set[i])
            continue;
        bound += v->s.seconds[i];
        for (uint64_t t = 0; t < v->s.moments; t++)
            v->over[t] += (double)row[t];
    }
    for (uint64_t t = 0; t < v->s.moments; t++) {
        bound += v->weights[t] * v->over[t];
        if (v->weights[t] > 0 || v->over[t] > 0)
            square += v->over[t] * v->over[t];
    }
    double step = v->seconds - bound;
    step = length * (step > v->seconds * 0.01 ? step : v->seconds * 0.01);
    for (uint64_t t = 0; square > 0 && t < v->s.moments; t++) {
        double w = v->weights[t] + step / square * v->over[t];
        v->weights[t] = w > 0 ? w : 0;
    }
}

static void search_by_prices(solver *v)
{
    uint32_t n = v->s.f->choice_count;
    double length = 1;
    for (int round = 0; round < ROUNDS && has_work(v); round++, length *= 0.93) {
        memset(v->set, 0, n);
        find_prices(v);
        price_modules(v);
        choose_modules(v);
        choose_values(v);
        reweigh(v, length);
        memset(v->fixed, 0, n);
        if (mo_fit_repair(&v->s, v->set, v->fixed))
            (void)offer(v, v->set);
    }
}

/* --- single changes ---------------------------------------------------------------------------- */

/* With one move from the best set, whose choice then stays. 1 if that is faster. */
static int change(solver *v, uint32_t move)
{
    uint32_t n = v->s.f->choice_count;
    memcpy(v->set, v->best, n);
    memset(v->fixed, 0, n);
    v->fixed[move % n] = 1;
    return mo_fit_move(&v->s, v->set, move) && mo_fit_repair(&v->s, v->set, v->fixed) &&
           offer(v, v->set);
}

static void search_by_changes(solver *v)
{
    uint32_t n = v->s.f->choice_count;
    int better = 1;
    while (better && has_work(v)) {
        better = 0;
        for (uint32_t k = 0; k < 2 * n && has_work(v); k++)
            better |= change(v, v->s.order[k % n] + k / n * n);
    }
}

/* --- the call ---------------------------------------------------------------------------------- */

/* "module 5", or "none". */
static const char *numbered(char text[32], const char *what, uint32_t number)
{
    (void)snprintf(text, 32, "%s %" PRIu32, what, number);
    return number == MEMOPT_FIT_NONE ? "none" : text;
}

static memopt_status refuse(solver *v, uint64_t budget)
{
    const memopt_fit *f = v->s.f;
    char module[32], storage[32];
    mo_fit_run_explain(&v->s.run, v->best);
    const memopt_fit_result *r = &v->s.run.result;
    const char *when = "forward";
    for (uint64_t i = 0; i < r->peak_event; i++)
        if (f->events[i].kind == MEMOPT_FIT_BACKWARD)
            when = "backward";
    return mo_fail(MEMOPT_LIMIT_REACHED,
                   "fit: the budget is %" PRIu64 " bytes; the least that was found is %" PRIu64
                   ", of which %" PRIu64 " are fixed; it is at event %" PRIu64
                   " in %s; running then: %s; largest then: %s",
                   budget, r->peak_bytes, f->fixed, r->peak_event, when,
                   numbered(module, "module", r->peak_module),
                   numbered(storage, "storage", r->peak_storage));
}

static memopt_status solve(solver *v, uint64_t budget)
{
    uint32_t n = v->s.f->choice_count;
    v->seconds = 0;
    if (budget != 0 && mo_fit_take(&v->s, v->best)) /* nothing is chosen */
        return MEMOPT_OK;
    mo_fit_floor(&v->s, budget, v->best, v->fixed);
    if (budget == 0)
        return MEMOPT_OK;
    if (!mo_fit_take(&v->s, v->best))
        return refuse(v, budget);
    v->seconds = mo_fit_prune(&v->s, v->best);
    memset(v->fixed, 0, n);
    v->s.work = 0;
    search_by_prices(v);
    search_by_changes(v);
    return MEMOPT_OK;
}

static memopt_status answer(solver *v, uint32_t *out_chosen, uint64_t *out_count,
                            memopt_fit_result *out_result)
{
    uint64_t count = 0;
    mo_fit_run_explain(&v->s.run, v->best);
    MO_TRY(
        mo_result_write(out_result, &v->s.run.result, sizeof v->s.run.result, "memopt_fit_result"));
    for (uint32_t i = 0; i < v->s.f->choice_count; i++)
        if (v->best[i])
            out_chosen[count++] = i;
    *out_count = count;
    return MEMOPT_OK;
}

memopt_status memopt_fit_solve(const memopt_fit *fit, const memopt_fit_options *options,
                               uint32_t *out_chosen, uint64_t *out_count,
                               memopt_fit_result *out_result)
{
    memopt_fit_options o;
    solver v;
    MO_TRY(mo_options_read(&o, sizeof o, options, "memopt_fit_options"));
    MO_NOT_NULL("fit solve", fit, out_count, out_result);
    if (out_chosen == NULL && fit->choice_count != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "fit solve: out_chosen is NULL; it needs room for %" PRIu32 " choices",
                       fit->choice_count);
    MO_TRY(begin(&v, fit, &o));
    memopt_status status = solve(&v, o.budget);
    if (status == MEMOPT_OK)
        status = answer(&v, out_chosen, out_count, out_result);
    end(&v);
    return status;
}
