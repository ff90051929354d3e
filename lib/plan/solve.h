/*
 * What fits, and which file owns what:
 *
 *   solve.c          the handle, and the order: as given, smaller micro-batches, changes
 *   solve_cost.c     what a case takes: played, or told by the caller; each is asked for once
 *   solve_batch.c    the largest micro-batch; accumulation for an effective batch
 *   solve_changes.c  each change: what it does to a case, its words, its time
 *   solve_search.c   which changes to take
 *
 * A case is a model, run and card; a change makes another case of it. Only solve_cost.c knows how
 * a case's bytes come about.
 */
#ifndef MO_PLAN_SOLVE_H
#define MO_PLAN_SOLVE_H

#include "memopt/plan.h"

#include "base/error.h"

/* No micro-batch above this is looked for. */
#define MO_LARGEST_BATCH ((uint64_t)65536)

/* Where the bytes of cases come from, and those that were asked for already. */
typedef struct mo_known mo_known;
typedef struct mo_told mo_told;
typedef struct mo_source {
    memopt_plan_measure measure; /* NULL: models are played */
    void *user;
    mo_known *known;
    mo_told *told; /* what measure said */
    uint64_t known_count, known_capacity, told_count, told_capacity;
} mo_source;

typedef struct mo_case {
    memopt_plan_model model; /* without meaning where the source measures */
    memopt_plan_run run;
    memopt_plan_card card;
    mo_source *source; /* NULL: it is played, each time anew */
} mo_case;

/* What a case takes. A schedule that cannot meet its budget takes UINT64_MAX. */
typedef struct mo_cost {
    uint64_t peak;
    uint64_t limit;
    double time; /* seconds of a step */
} mo_cost;

/* --- solve_cost.c --- */

memopt_status mo_case_cost(const mo_case *c, mo_cost *cost);
/* The same without memory, and an error where a schedule cannot meet its budget. */
memopt_status mo_case_cost_now(const mo_case *c, mo_cost *cost);
int mo_case_is_measured(const mo_case *c);
int mo_cost_fits(const mo_cost *cost);
/* Forgets everything. */
void mo_source_end(mo_source *source);

/* --- solve_batch.c --- */

/* The largest micro-batch from 1 to `most` that fits; 0: none does. */
memopt_status mo_largest_batch(const mo_case *c, uint64_t most, uint64_t *batch);

typedef struct mo_split {
    uint64_t batch, accumulation, effective;
} mo_split;

/* The accumulation of a fixed micro-batch that comes nearest to `target`; of two, the smaller. */
mo_split mo_split_of(uint64_t target, uint64_t batch, uint64_t world);
/* The micro-batch, at most `most`, and accumulation whose product with `world` meets `target`, or
 * comes nearest to it. */
mo_split mo_split_batch(uint64_t target, uint64_t most, uint64_t world);

/* --- solve_changes.c --- */

/* How much a change costs beside memory; cheaper ones are taken first. */
typedef enum mo_tier {
    MO_TIER_FREE,    /* the same numbers at the same speed */
    MO_TIER_STATES,  /* other rounding of what is computed or of the optimizer's states */
    MO_TIER_WEIGHTS, /* other rounding of the weights */
    MO_TIER_TIME,    /* the same numbers, slower */
    MO_TIER_MEANING, /* another training: shorter samples, fewer weights */
    MO_TIERS
} mo_tier;

enum { MO_CHANGES = 18 };

/* Makes the change `index` (below MO_CHANGES) of a case: 0 if it does not apply to it or `options`
 * forbid it. out->saves_bytes and peak_bytes are left to the caller. */
int mo_change_make(int index, const mo_case *c, const memopt_plan_target_options *options,
                   mo_case *changed, memopt_plan_change *out);
mo_tier mo_change_tier(int index);
/* Another micro-batch and accumulation: one change, told in words. */
enum { MO_CHANGE_BATCH = 0 };
void mo_change_batch(mo_case *c, uint64_t batch, uint64_t accumulation, memopt_plan_change *out);

/* --- solve_search.c --- */

typedef struct mo_found {
    memopt_plan_change changes[2 * MO_CHANGES]; /* those applied, and alternatives */
    uint64_t count;
    int taken[MO_CHANGES]; /* indices of those applied, in their order */
    int taken_count;
    int fits;       /* with the changes that are applied */
    uint64_t floor; /* the least that was reached; of use where it does not fit */
    double time;    /* of the applied changes together */
} mo_found;

/* The changes that make `c` fit, in the order in which they are to be made; `c` becomes the case
 * with them. Where nothing fits, all that save are applied. */
memopt_status mo_search_changes(mo_case *c, const memopt_plan_target_options *options,
                                mo_found *found);
/* Lists the changes that were taken once more, on the way from `given` to `c`, whose micro-batch
 * and accumulation were chosen after the search: that goes first, and each saves what it does on
 * top of those before it. Changes that save nothing any more are left out of `c` where it fits
 * without them. */
memopt_status mo_search_tell(const mo_case *given, mo_case *c,
                             const memopt_plan_target_options *options, mo_found *found);
/* Appends every change of a kind that is not among them, measured on `c` alone. */
memopt_status mo_search_alternatives(const mo_case *c, const memopt_plan_target_options *options,
                                     mo_found *found);

#endif
