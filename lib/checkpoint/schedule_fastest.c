/*
 * Least time: seconds(i, j, m) in m slots of memory beside value i, infinite where it does not fit.
 *
 *   seconds(i, i, m) = forward(i) + backward(i)   if save(i, i) fits m
 *   seconds(i, j, m) = min of  forward(i) + backward(i) + seconds(i+1, j, m − saved(i))
 *                      if save(i, j) fits m,
 *                      and, for k in i+1 … j where run(i, k, j) fits m,
 *                      forward(i … k−1) + seconds(k, j, m − value(k)) + seconds(i, k−1, m)
 *
 * Sizes are rounded up to slots, so what fits here fits in bytes. Times are kept as floats of the
 * whole time, which halves the table; the cut is recomputed from them. The loop over m is
 * innermost: it is what the compiler turns into vectors.
 */
#include "checkpoint/schedule.h"

#include "base/checked.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

/* seconds(i, j, m) for all m, from 0 to slots. */
static float *row(const mo_cuts *cuts, uint64_t i, uint64_t j)
{
    return (float *)cuts->table + mo_chain_cell(cuts->chain, i, j) * (cuts->slots + 1);
}

/* A separate row at the end of the table. */
static float *zeros(const mo_cuts *cuts)
{
    return (float *)cuts->table + cuts->chain->cell_count * (cuts->slots + 1);
}

static uint64_t size(const mo_cuts *cuts, uint64_t bytes)
{
    return mo_ceil_div_u64(bytes, cuts->unit);
}

static float seconds_of(double seconds)
{
    return (float)seconds;
}

/* What a cut of [i, j] costs in m slots is base + second[m − shift] + first[m] from m = from on. */
typedef struct option {
    float base;
    uint64_t shift, from;
    const float *first, *second;
} option;

static option save_option(const mo_cuts *cuts, uint64_t i, uint64_t j)
{
    const memopt_chain_stage *s = &cuts->chain->stages[i];
    uint64_t shift = size(cuts, s->saved_bytes);
    uint64_t from = mo_max_u64(shift, size(cuts, mo_chain_save(cuts->chain, i, j)));
    return (option){seconds_of(s->forward_seconds + s->backward_seconds), shift, from, zeros(cuts),
                    row(cuts, i + 1, j)};
}

/* `run` is run(i, k, j), `forward` the time of i … k−1. */
static option keep_option(const mo_cuts *cuts, uint64_t i, uint64_t j, uint64_t k, uint64_t run,
                          double forward)
{
    uint64_t shift = size(cuts, mo_chain_value(cuts->chain, k));
    return (option){seconds_of(forward), shift, mo_max_u64(shift, size(cuts, run)),
                    row(cuts, i, k - 1), row(cuts, k, j)};
}

static void improve(const mo_cuts *cuts, float *restrict best, const option *o)
{
    const float *restrict first = o->first, *restrict second = o->second;
    float base = o->base;
    if (o->from > cuts->slots)
        return;
    second -= (ptrdiff_t)o->shift;
    for (uint64_t m = o->from; m <= cuts->slots; m++) {
        float seconds = base + first[m] + second[m];
        best[m] = seconds < best[m] ? seconds : best[m];
    }
}

/* Calls visit for each cut of [i, j]; it stops where visit returns 1, and returns that cut. */
static uint64_t each_option(const mo_cuts *cuts, uint64_t i, uint64_t j,
                            int (*visit)(const mo_cuts *cuts, const option *o, void *user),
                            void *user)
{
    const mo_chain *c = cuts->chain;
    option o = save_option(cuts, i, j);
    if (visit(cuts, &o, user))
        return i;
    uint64_t gradient = mo_chain_value(c, j + 1);
    uint64_t most = mo_chain_value(c, i + 1) + c->stages[i].forward_extra_bytes;
    double forward = c->stages[i].forward_seconds;
    for (uint64_t k = i + 1; k <= j; k++) {
        o = keep_option(cuts, i, j, k, gradient + most, forward);
        if (visit(cuts, &o, user))
            return k;
        most = mo_max_u64(most, mo_chain_value(c, k) + mo_chain_value(c, k + 1) +
                                    c->stages[k].forward_extra_bytes);
        forward += c->stages[k].forward_seconds;
    }
    return j;
}

static int take_best(const mo_cuts *cuts, const option *o, void *best)
{
    improve(cuts, best, o);
    return 0;
}

typedef struct wanted {
    uint64_t memory;
    float seconds;
} wanted;

static int is_wanted(const mo_cuts *cuts, const option *o, void *user)
{
    const wanted *w = user;
    (void)cuts;
    return w->memory >= o->from &&
           o->base + o->first[w->memory] + o->second[w->memory - o->shift] == w->seconds;
}

static uint64_t cut(const mo_cuts *cuts, uint64_t i, uint64_t j, uint64_t memory)
{
    wanted w = {memory, row(cuts, i, j)[memory]};
    return each_option(cuts, i, j, is_wanted, &w);
}

static void solve_single(const mo_cuts *cuts, uint64_t i)
{
    const memopt_chain_stage *s = &cuts->chain->stages[i];
    uint64_t from = size(cuts, mo_chain_save(cuts->chain, i, i));
    float seconds = seconds_of(s->forward_seconds + s->backward_seconds);
    float *out = row(cuts, i, i);
    for (uint64_t m = 0; m <= cuts->slots; m++)
        out[m] = m < from ? INFINITY : seconds;
}

static void solve(const mo_cuts *cuts, uint64_t i, uint64_t j)
{
    float *best = row(cuts, i, j);
    if (i == j) {
        solve_single(cuts, i);
        return;
    }
    for (uint64_t m = 0; m <= cuts->slots; m++)
        best[m] = INFINITY;
    (void)each_option(cuts, i, j, take_best, best);
}

memopt_status mo_schedule_fastest(const mo_chain *c, uint64_t budget, uint64_t slots,
                                  mo_cuts *out_cuts, int *out_fits)
{
    uint64_t memory = budget - c->input_bytes;
    uint64_t unit = mo_max_u64(mo_ceil_div_u64(memory, slots), 1);
    mo_cuts cuts = {.cut = cut, .size = size, .chain = c, .unit = unit, .slots = memory / unit};
    uint64_t cells;
    if (!mo_mul_u64(c->cell_count + 1, cuts.slots + 1, &cells))
        cells = UINT64_MAX / sizeof(float);
    cuts.table = mo_malloc(cells * sizeof(float));
    if (cuts.table == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memset(zeros(&cuts), 0, (cuts.slots + 1) * sizeof(float));
    for (uint64_t i = c->count, solved = 0; i-- > 0;)
        for (uint64_t j = i; j < c->count; j++)
            if (mo_chain_cell(c, i, j) == solved) { /* else an equal range was solved */
                solve(&cuts, i, j);
                solved++;
            }
    *out_fits = row(&cuts, 0, c->count - 1)[cuts.slots] < INFINITY;
    if (*out_fits)
        *out_cuts = cuts;
    else
        mo_free(cuts.table);
    return MEMOPT_OK;
}
