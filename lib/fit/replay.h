/*
 * What a step takes with some choices. A run is the memory that a replay works in; it serves one
 * thread, for as many replays as wanted.
 */
#ifndef MO_FIT_REPLAY_H
#define MO_FIT_REPLAY_H

#include "fit/tape.h"

/* What a pack holds. */
enum { MO_FIT_COPIES = 2 + MO_FIT_DEPTH };
enum { MO_PACK_NONE, MO_PACK_KEPT, MO_PACK_WAITS, MO_PACK_FILLED, MO_PACK_RECIPE, MO_PACK_MADE };

typedef struct mo_fit_run {
    const memopt_fit *f;
    void *memory;         /* of all arrays */
    uint32_t *of_module;  /* by module: its RECOMPUTE and one more, or 0 */
    uint32_t *of_storage; /* by storage: its REMAKE, OFFLOAD or DISK and one more, or 0 */
    /* By instance: MO_FIT_COPIES * storage + 0 as born on the tape, + 1 made again or brought back,
     * + 2 by a module that runs again, + 3 by one within such a module. */
    uint32_t *holds;
    uint32_t *left;        /* by module: packs of a recomputed one that are not released */
    uint32_t *outer;       /* by recomputed module: the one that it is in, or NONE */
    uint32_t *moved;       /* by storage: packs that hold its copy on host or disk */
    uint32_t *pack_holds;  /* by pack: the instance, or the choice of a recipe */
    uint32_t *pack_module; /* by pack: the recomputed module that it is in, or NONE */
    uint8_t *alive;        /* by instance */
    uint8_t *packs;        /* by pack: MO_PACK_… */
    uint8_t *done;         /* by module: it has run again */
    uint8_t *given;        /* by recomputed module within one: MO_PACK_… of its inputs */
    uint64_t state_bytes;  /* of what each replay begins with as zeros */
    uint32_t frame;        /* the innermost recomputed module that is in its forward, or NONE */
    uint32_t module;       /* the innermost that runs */
    uint64_t live, top, host, disk;
    uint64_t wanted; /* at so many live bytes, peak_module and peak_storage are noted */
    memopt_fit_result result;
} mo_fit_run;

memopt_status mo_fit_run_open(const memopt_fit *f, mo_fit_run *run);
void mo_fit_run_close(mo_fit_run *run);

/* Replays the choices whose flags are set, which must not exclude each other: run->result, without
 * what is there at the peak. `curve` (may be NULL): the most live bytes of every 2^shift events. */
void mo_fit_run_replay(mo_fit_run *run, const uint8_t *chosen, uint64_t *curve, uint32_t shift);
/* The same with what is there at the peak. */
void mo_fit_run_explain(mo_fit_run *run, const uint8_t *chosen);

#endif
