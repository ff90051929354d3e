/*
 * Schedules of a chain under a byte budget, and which file owns what:
 *
 *   schedule.c           the handle: checks, the order of the attempts, the iterator
 *   schedule_chain.c     sizes and times of ranges of stages, and which ranges are alike
 *   schedule_minimum.c   least memory, exact to the byte
 *   schedule_fastest.c   least time in a number of slots of memory
 *   schedule_replay.c    from choices to steps, and what steps take when they are replayed
 *
 * A range [i, j] of stages is solved with two values alive: value i, counted by its caller, and the
 * gradient of value j + 1, counted by the range. Two ways: save what stage i needs and solve [i+1,
 * j] ("cut" i), or run i … k−1 keeping only values i and k, solve [k, j], and then [i, k−1] ("cut"
 * k > i). A table of cuts for all ranges is a schedule.
 *
 * What a range takes depends on its stages and the gradient that its first one makes, not on its
 * position. Ranges alike in both share one cell of a table, which is solved once: a chain of 80
 * equal stages has a few hundred cells in place of 3240.
 */
#ifndef MO_CHECKPOINT_SCHEDULE_H
#define MO_CHECKPOINT_SCHEDULE_H

#include "memopt/checkpoint.h"

#include "base/error.h"

enum { MO_CHAIN_LIMIT = 1024 };

typedef struct mo_chain {
    memopt_chain_stage *stages;
    uint64_t count;
    uint64_t input_bytes;
    int input_gradient;
    uint32_t *cells;     /* of each range, by its index: the cell of a solver's table */
    uint64_t cell_count; /* numbered in the order in which solvers go: i falls, j grows */
} mo_chain;

typedef struct mo_step {
    uint16_t operation, stage;
} mo_step;

typedef struct mo_schedule_steps {
    mo_step *items;
    uint64_t count, capacity;
} mo_schedule_steps;

/* The result of a solver: the cut of a range with `memory` of its own units, and what its parts may
 * use. */
typedef struct mo_cuts {
    uint64_t (*cut)(const struct mo_cuts *cuts, uint64_t i, uint64_t j, uint64_t memory);
    uint64_t (*size)(const struct mo_cuts *cuts, uint64_t bytes); /* in its units, rounded up */
    const mo_chain *chain;
    uint64_t unit;
    uint64_t slots;
    void *table;
} mo_cuts;

/* schedule_chain.c */
uint64_t mo_chain_value(const mo_chain *c, uint64_t i); /* bytes of value i */
/* What stage i takes in addition to value i when it saves: in its forward, while the gradient of
 * value j + 1 is alive, and in its backward. */
uint64_t mo_chain_save(const mo_chain *c, uint64_t i, uint64_t j);
/* Fills cells and cell_count of a chain whose other fields are set; cells are to be freed. */
memopt_status mo_chain_find_cells(mo_chain *c);
uint64_t mo_chain_cell(const mo_chain *c, uint64_t i, uint64_t j);

/* schedule_minimum.c: out_budget includes the chain's input. cuts->table is to be freed. */
memopt_status mo_schedule_minimum(const mo_chain *c, mo_cuts *out_cuts, uint64_t *out_budget);

/* schedule_fastest.c: *out_fits is 0 if rounding leaves no schedule and so no cuts. */
memopt_status mo_schedule_fastest(const mo_chain *c, uint64_t budget, uint64_t slots,
                                  mo_cuts *out_cuts, int *out_fits);

/* schedule_replay.c */
memopt_status mo_schedule_save_all(const mo_chain *c, mo_schedule_steps *steps);
memopt_status mo_schedule_expand(const mo_cuts *cuts, uint64_t memory, mo_schedule_steps *steps);
/* Fills what steps cost: steps, peak_bytes, recomputed, seconds. */
void mo_schedule_replay(const mo_chain *c, const mo_schedule_steps *steps,
                        memopt_schedule_info *info);

#endif
