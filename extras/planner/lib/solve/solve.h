/*
 * What fits, and which file owns what:
 *
 *   solve.c    the order: the run as given, smaller micro-batches, changes
 *   cost.c     what a case needs: played, or measured by the caller; each is asked for once
 *   batch.c    the largest micro-batch; accumulation for an effective batch
 *   changes.c  each change: what it does to a case, its words, its time
 *   search.c   which changes to take
 *
 * A case is a model, run and card; a change makes another case of it. Only cost.c knows where a
 * case's bytes come from.
 */
#ifndef MO_PLAN_SOLVE_H
#define MO_PLAN_SOLVE_H

#include "solve/plan.h"

/* No micro-batch above this is looked for. */
#define MO_PLAN_LARGEST_BATCH ((uint64_t)65536)

/* What a run takes, by phase; UNSUPPORTED and INVALID_ARGUMENT: nothing is known of such a run. */
typedef memopt_status (*mo_plan_measure)(void *user, const mo_plan_settings *settings,
                                         mo_plan_bytes *phases);

/* Where the bytes of cases come from, and those that were asked for already. */
typedef struct mo_plan_known mo_plan_known;
typedef struct mo_plan_measured_run mo_plan_measured_run;
typedef struct mo_plan_source {
    mo_plan_measure measure; /* NULL: models are played */
    void *user;
    mo_plan_known *known;
    mo_plan_measured_run *runs; /* what measure said */
    uint64_t known_count, known_capacity, run_count, run_capacity;
} mo_plan_source;

typedef struct mo_plan_case {
    mo_plan_model model; /* of one that is measured, the adapters */
    mo_plan_run run;
    mo_plan_card card;
    mo_plan_source *source; /* NULL: it is played, each time anew */
} mo_plan_case;

/* What a case takes. */
typedef struct mo_plan_cost {
    uint64_t peak;
    uint64_t limit;
    double time; /* seconds of a step; of one that is measured, beside one without savers */
} mo_plan_cost;

/* --- cost.c --- */

memopt_status mo_plan_case_cost(const mo_plan_case *c, mo_plan_cost *cost);
int mo_plan_case_is_measured(const mo_plan_case *c);
int mo_plan_cost_fits(const mo_plan_cost *cost);
/* The time of one that is measured, which no measuring tells; 0 of others. */
double mo_plan_case_least_time(const mo_plan_case *c);
/* Forgets everything. */
void mo_plan_source_end(mo_plan_source *source);

/* --- batch.c --- */

/* The largest micro-batch from 1 to `most` that fits; 0: none does. */
memopt_status mo_plan_largest_batch(const mo_plan_case *c, uint64_t most, uint64_t *batch);

typedef struct mo_plan_split {
    uint64_t batch, accumulation, effective;
} mo_plan_split;

/* The accumulation of a fixed micro-batch that comes nearest to `target`; of two, the smaller. */
mo_plan_split mo_plan_split_of(uint64_t target, uint64_t batch, uint64_t world);
/* The micro-batch, at most `most`, and accumulation whose product with `world` meets `target`, or
 * comes nearest to it. */
mo_plan_split mo_plan_split_batch(uint64_t target, uint64_t most, uint64_t world);

/* --- changes.c --- */

/* A change of the run that saves memory. One that is applied is measured on top of those before it,
 * an alternative on the run as given. */
typedef enum mo_plan_change_kind {
    MO_PLAN_CHANGE_MICRO_BATCH,
    MO_PLAN_CHANGE_DTYPE,
    MO_PLAN_CHANGE_OPTIMIZER,
    MO_PLAN_CHANGE_CHECKPOINTING,
    MO_PLAN_CHANGE_OFFLOAD,
    MO_PLAN_CHANGE_ATTENTION,
    MO_PLAN_CHANGE_LOSS,
    MO_PLAN_CHANGE_SEQUENCE,
    MO_PLAN_CHANGE_SHARDING,
    MO_PLAN_CHANGE_LORA,
    MO_PLAN_CHANGE_ALLOCATOR,
    MO_PLAN_CHANGE_QUANTIZE,
    MO_PLAN_CHANGE_NEGATIVES,
    MO_PLAN_CHANGE_IMAGES
} mo_plan_change_kind;

typedef struct mo_plan_change {
    uint32_t kind;
    uint32_t applied;
    uint32_t training; /* 0: the same numbers, 1: other rounding, 2: another training */
    char change[96];   /* in words: "optimizer adamw → adamw8bit" */
    char option[48];   /* of `memopt plan`: "--optimizer adamw8bit" */
    uint64_t saves_bytes, peak_bytes;
    double time_factor; /* of a step with it, relative to that before */
} mo_plan_change;

/* How much a change costs beside memory; cheaper ones are taken first. */
typedef enum mo_plan_tier {
    MO_PLAN_TIER_FREE,    /* the same numbers at the same speed */
    MO_PLAN_TIER_STATES,  /* other rounding of what is computed or of the optimizer's states */
    MO_PLAN_TIER_TIME,    /* the same numbers, slower */
    MO_PLAN_TIER_WEIGHTS, /* from here on another training: other rounding of the weights */
    MO_PLAN_TIER_MEANING, /* fewer weights learn */
    MO_PLAN_TIER_STORED,  /* other rounding of the weights that do not learn, and slower */
    MO_PLAN_TIER_SHORTER, /* shorter samples: what was asked for no longer fits in them */
    MO_PLAN_TIERS
} mo_plan_tier;

enum { MO_PLAN_CHANGES = 21 };

/* Makes the change `index` (below MO_PLAN_CHANGES) of a case: 0 if it does not apply to it or
 * `options` forbid it. out->saves_bytes and peak_bytes are left to the caller. */
int mo_plan_change_make(int index, const mo_plan_case *c, const mo_plan_target *options,
                        mo_plan_case *changed, mo_plan_change *out);
mo_plan_tier mo_plan_change_tier(int index);
/* What it costs beside memory and time: numbers whose sum is that of a set. The low byte counts the
 * changes; above MO_PLAN_LOSS_ROUNDING are those that round, by tier, and above
 * MO_PLAN_LOSS_TRAINING those that make another training. A larger number is worse. */
uint64_t mo_plan_change_loss(int index);
enum { MO_PLAN_LOSS_ROUNDING = 8, MO_PLAN_LOSS_TRAINING = 8 * MO_PLAN_TIER_WEIGHTS };
/* Another micro-batch and accumulation: one change, in words. */
enum { MO_PLAN_CHANGE_BATCH = 0 };
void mo_plan_change_batch(mo_plan_case *c, uint64_t batch, uint64_t accumulation,
                          mo_plan_change *out);

/* --- search.c --- */

typedef struct mo_plan_found {
    mo_plan_change changes[2 * MO_PLAN_CHANGES]; /* those applied, and alternatives */
    uint64_t count;
    uint32_t taken; /* bit i: the change i is applied */
    int fits;       /* with the changes that are applied */
    uint64_t floor; /* the least that was reached; of use where it does not fit */
    double time;    /* of the applied changes together */
} mo_plan_found;

/* The changes that make `c` fit; `c` becomes the case with them. No set that differs by one change
 * is better. Where nothing fits, all that save are applied and listed. */
memopt_status mo_plan_search_changes(mo_plan_case *c, const mo_plan_target *options,
                                     mo_plan_found *found);
/* Lists the changes on the way from `given` to `c`, whose micro-batch and accumulation were chosen
 * after the search: that goes first, and each saves what it does on top of those before it. Those
 * taken are improved once more, for this micro-batch. */
memopt_status mo_plan_search_list(const mo_plan_case *given, mo_plan_case *c,
                                  const mo_plan_target *options, mo_plan_found *found);
/* Appends every change of a kind that is not among them, measured on `c` alone. */
memopt_status mo_plan_search_alternatives(const mo_plan_case *c, const mo_plan_target *options,
                                          mo_plan_found *found);

/* --- solve.c --- */

/* What was found. Names in the JSON: results.c. */
typedef struct mo_plan_fit {
    uint32_t fits;        /* 1: the run as given fits; one without a batch: with some micro-batch */
    uint32_t fits_after;  /* 1: it fits after the changes that are applied */
    uint64_t micro_batch; /* best for the effective batch; 0: none */
    uint64_t largest_micro_batch; /* that fits at all */
    uint64_t accumulation;
    uint64_t effective_batch; /* samples of a step on all devices */
    uint64_t target_batch;    /* what was asked for */
    int64_t remainder;        /* effective_batch − target_batch */
    uint64_t peak_bytes;      /* with micro_batch */
    uint64_t floor_bytes;     /* the least that all changes together reach; 0: it was not needed */
    uint64_t limit_bytes;
    double time_factor;          /* of all changes together */
    uint64_t start_batch;        /* changes are counted from this micro-batch */
    uint64_t start_accumulation; /* and this accumulation */
    uint64_t start_peak_bytes;   /* the peak without any change */
} mo_plan_fit;

typedef struct mo_plan_solution {
    mo_plan_target target;
    mo_plan_case given;  /* that changes are counted from */
    mo_plan_case chosen; /* that is to be run */
    int batch_given;
    uint64_t effective_batch; /* 0: what the largest micro-batch gives */
    uint64_t most;            /* the micro-batch is not larger */
    mo_plan_found found;
    mo_plan_fit fit;
} mo_plan_solution;

/* Solves for a card with a capacity. measure NULL: models are played. The solution owns nothing. */
memopt_status mo_plan_find_fit(const mo_plan_given *given, mo_plan_measure measure, void *user,
                               mo_plan_solution *out);

#endif
