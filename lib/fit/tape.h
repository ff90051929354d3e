/*
 * Fitting a step into a budget, and which file owns what:
 *
 *   tape.c     the handle: checks and copies the tape, and which choices exclude each other
 *   run.h      the memory of replays, and which storages live in it
 *   again.c    modules that run again in it
 *   replay.c   what a step takes with some choices, exact to the byte; memopt_fit_replay()
 *   search.c   what each choice saves alone, moment by moment; sets of choices, their moves
 *   floor.c    choices of least bytes
 *   solve.c    choices of little time within a budget; memopt_fit_solve()
 *
 * A handle does not change after its creation, and has no lock.
 */
#ifndef MO_FIT_TAPE_H
#define MO_FIT_TAPE_H

#include "memopt/fit.h"

#include "base/error.h"

/* MO_FIT_DEPTH: so many recomputed modules may be within each other. */
enum { MO_FIT_CHOICES = 4096, MO_FIT_DEPTH = 2 };

typedef struct mo_fit_module {
    uint32_t enter, leave; /* events */
    uint32_t parent;       /* MEMOPT_FIT_NONE: none */
} mo_fit_module;

struct memopt_fit {
    memopt_fit_event *events;
    uint64_t *bytes; /* of each storage */
    memopt_fit_choice *choices;
    uint32_t *inputs;
    uint32_t *birth, *death; /* by storage: the event, or MEMOPT_FIT_NONE */
    mo_fit_module *modules;
    uint64_t *excludes; /* a bit for each pair of choices; a row has `words` words */
    uint64_t words, fixed;
    uint32_t event_count, storage_count, choice_count, input_count, pack_count, module_count;
};

/* Whether a value waits elsewhere. */
static inline int mo_fit_moves(const memopt_fit_choice *c)
{
    return c->kind == MEMOPT_FIT_OFFLOAD || c->kind == MEMOPT_FIT_DISK;
}

static inline int mo_fit_excludes(const memopt_fit *f, uint32_t a, uint32_t b)
{
    return (int)(f->excludes[a * f->words + b / 64] >> (b % 64) & 1);
}

/* Whether both run modules again, one within the other. The search takes one in place of the other, too, so such
 * pairs are among those that exclude each other there. */
static inline int mo_fit_nest(const memopt_fit *f, uint32_t a, uint32_t b)
{
    return mo_fit_excludes(f, a, b) && f->choices[a].kind == MEMOPT_FIT_RECOMPUTE &&
           f->choices[b].kind == MEMOPT_FIT_RECOMPUTE &&
           f->choices[a].module != f->choices[b].module;
}

static inline int mo_fit_within(const memopt_fit *f, uint32_t event, uint32_t module)
{
    return event > f->modules[module].enter && event < f->modules[module].leave;
}

/* In how many modules of a set, which run again, a choice's module is. */
uint32_t mo_fit_depth(const memopt_fit *f, const uint8_t *set, uint32_t choice);

#endif
