/*
 * A run is the memory that a replay works in; it serves one thread, for as many replays as wanted.
 * A storage has several instances in it; one is freed when it is not alive and no pack, no recomputed
 * module and no recipe holds it.
 */
#ifndef MO_FIT_RUN_H
#define MO_FIT_RUN_H

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

enum { MO_FIT_ORIGINAL = 0, MO_FIT_MADE = 1, MO_FIT_AGAIN = 2 };

memopt_status mo_fit_run_open(const memopt_fit *f, mo_fit_run *run);
void mo_fit_run_close(mo_fit_run *run);
/* Notes what is there at so many bytes as were wanted. */
void mo_fit_note_peak(mo_fit_run *r);

static inline uint32_t mo_fit_instance(uint32_t storage, uint32_t copy)
{
    return MO_FIT_COPIES * storage + copy;
}

static inline uint64_t mo_fit_size(const mo_fit_run *r, uint32_t instance)
{
    return r->f->bytes[instance / MO_FIT_COPIES];
}

static inline int mo_fit_exists(const mo_fit_run *r, uint32_t instance)
{
    return r->alive[instance] || r->holds[instance] != 0;
}

static inline void mo_fit_grow(mo_fit_run *r, uint64_t bytes)
{
    r->live += bytes;
    if (r->live > r->top)
        r->top = r->live;
    if (r->live >= r->wanted)
        mo_fit_note_peak(r);
}

static inline void mo_fit_bear(mo_fit_run *r, uint32_t instance)
{
    r->alive[instance] = 1;
    mo_fit_grow(r, mo_fit_size(r, instance));
}

static inline void mo_fit_die(mo_fit_run *r, uint32_t instance)
{
    if (!r->alive[instance])
        return;
    r->alive[instance] = 0;
    if (r->holds[instance] == 0)
        r->live -= mo_fit_size(r, instance);
}

static inline void mo_fit_hold(mo_fit_run *r, uint32_t instance)
{
    int is_new = !mo_fit_exists(r, instance);
    r->holds[instance]++;
    if (is_new)
        mo_fit_grow(r, mo_fit_size(r, instance));
}

static inline void mo_fit_drop(mo_fit_run *r, uint32_t instance)
{
    if (--r->holds[instance] == 0 && !r->alive[instance])
        r->live -= mo_fit_size(r, instance);
}
/* --- inputs of a choice ------------------------------------------------------------------------ */

static inline int mo_fit_inputs_exist(const mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        if (!mo_fit_exists(r, mo_fit_instance(r->f->inputs[c->first_input + i], MO_FIT_ORIGINAL)))
            return 0;
    return 1;
}

static inline void mo_fit_hold_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        mo_fit_hold(r, mo_fit_instance(r->f->inputs[c->first_input + i], MO_FIT_ORIGINAL));
}

static inline void mo_fit_drop_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        mo_fit_drop(r, mo_fit_instance(r->f->inputs[c->first_input + i], MO_FIT_ORIGINAL));
}

#endif
