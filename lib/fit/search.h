/*
 * A search over sets of choices. A set is an array of flags, one for each choice, in which no two
 * exclude each other. A move below choice_count adds this choice in place of those that it excludes, or
 * leaves it out; one from there on adds a module beside those around it and within it (mo_fit_nest()).
 * Single choices have curves: by how much each changes the live bytes of every
 * moment (2^shift events). Their sums guide the search, replays judge it.
 */
#ifndef MO_FIT_SEARCH_H
#define MO_FIT_SEARCH_H

#include "fit/replay.h"

typedef struct mo_fit_search {
    const memopt_fit *f;
    mo_fit_run run;
    void *memory;            /* of all arrays */
    int64_t *deltas;         /* a row of `moments` for each choice */
    uint64_t *curve, *trial; /* of the set that was taken last, and of the one replayed last */
    double *seconds;         /* by choice, alone */
    uint64_t *moved;         /* by choice, alone: bytes on host or disk */
    uint32_t *order;         /* by choice: by falling seconds */
    uint8_t *scratch;        /* flags for repair */
    uint64_t moments, budget, host_limit, disk_limit;
    uint64_t work, most_work; /* events replayed, and after how many to be content */
    uint32_t shift;
    int bytes_alone; /* seconds do not count: what is found is the same for any times */
} mo_fit_search;

memopt_status mo_fit_search_open(const memopt_fit *f, const memopt_fit_options *limits,
                                 mo_fit_search *s);
void mo_fit_search_close(mo_fit_search *s);

static inline const int64_t *mo_fit_delta(const mo_fit_search *s, uint32_t choice)
{
    return s->deltas + choice * s->moments;
}

/* What may be on the host, or on the disk, where a choice moves its value to. */
static inline uint64_t mo_fit_limit(const mo_fit_search *s, uint32_t choice)
{
    return s->f->choices[choice].kind == MEMOPT_FIT_DISK ? s->disk_limit : s->host_limit;
}

/* Whether the set replayed last holds the limits of host and disk. */
int mo_fit_has_room(const mo_fit_search *s);
/* Replays a set into s->trial and s->run.result; 1 if it holds the budget and these limits. */
int mo_fit_try(mo_fit_search *s, const uint8_t *set);
/* The same; s->trial becomes s->curve. */
int mo_fit_take(mo_fit_search *s, const uint8_t *set);
/* Adds a choice; those that it excludes leave the set. */
void mo_fit_add(const mo_fit_search *s, uint8_t *set, uint32_t choice);
/* Makes a move; 0 if there is no such move from this set. */
int mo_fit_move(const mo_fit_search *s, uint8_t *set, uint32_t move);
/* Changes the set until it holds, the most bytes for a second first (or the most bytes); never those choices whose
 * `fixed` flag is set. 0: no way was found. */
int mo_fit_repair(mo_fit_search *s, uint8_t *set, const uint8_t *fixed);
/* Leaves out what a set that holds does not need, the slowest first; its exact seconds. */
double mo_fit_prune(mo_fit_search *s, uint8_t *set);

/* floor.c: a set of few bytes within these limits, whatever times are: the first that takes no more than
 * `enough`, or the least that was found. `work` is memory for two sets. */
void mo_fit_floor(mo_fit_search *s, uint64_t enough, uint8_t *set, uint8_t *work);

#endif
