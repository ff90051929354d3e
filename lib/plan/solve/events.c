/*
 * The blocks of a run's first two steps, in order: the weights, a step without optimizer states,
 * which come before its optimizer runs, and a step with them. What a step leaves behind beside
 * weights and states goes when it ends, as gradients do that are set to None.
 *
 * The tape plays the second step; the first has the same blocks, but its states come later.
 */
#include "plan/solve/plan.h"

#include "plan/parallel/parallel.h"

typedef struct mo_plan_lister {
    const mo_plan_event *from;
    uint64_t from_count;
    uint8_t *alive; /* of each event of the tape */
    mo_plan_blocks *to;
    memopt_status status;
} mo_plan_lister;

static int stays(const mo_plan_event *e)
{
    return e->phase == MO_PLAN_PHASE_LOAD &&
           (e->category == MO_PLAN_PARAMETERS || e->category == MO_PLAN_OPTIMIZER);
}

/* number: of the event that begins the block, from 1. */
static void add(mo_plan_lister *l, uint64_t number, uint64_t bytes)
{
    mo_plan_blocks *to = l->to;
    if (l->status != MEMOPT_OK || l->alive[number - 1] == (bytes > 0))
        return;
    if (!mo_grow((void **)&to->blocks, &to->capacity, to->count + 1, sizeof *to->blocks)) {
        l->status = MEMOPT_OUT_OF_HOST_MEMORY;
        return;
    }
    l->alive[number - 1] = bytes > 0;
    to->blocks[to->count++] = (mo_plan_block){number, bytes};
}

/* What is loaded and stays, of one category. */
static void load(mo_plan_lister *l, mo_plan_category category)
{
    for (uint64_t i = 0; i < l->from_count; i++) {
        const mo_plan_event *e = &l->from[i];
        if (e->bytes > 0 && stays(e) && e->category == (uint32_t)category)
            add(l, i + 1, e->bytes);
    }
}

/* The events of the phases before the optimizer's step, or of that. */
static void run(mo_plan_lister *l, int optimizer)
{
    for (uint64_t i = 0; i < l->from_count; i++) {
        const mo_plan_event *e = &l->from[i];
        if ((e->phase == MO_PLAN_PHASE_STEP) != optimizer)
            continue;
        if (e->bytes == 0)
            add(l, e->begins, 0);
        else if (!stays(e))
            add(l, i + 1, e->bytes);
    }
}

static void end_step(mo_plan_lister *l)
{
    for (uint64_t i = 0; i < l->from_count; i++)
        if (!stays(&l->from[i]))
            add(l, i + 1, 0);
}

static memopt_status two_steps(const mo_plan_tape *t, mo_plan_blocks *out)
{
    mo_plan_lister l = {t->events, t->event_count, mo_calloc(t->event_count + 1, 1), out,
                        MEMOPT_OK};
    if (l.alive == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    load(&l, MO_PLAN_PARAMETERS);
    for (int step = 0; step < 2; step++) {
        run(&l, 0);
        load(&l, MO_PLAN_OPTIMIZER);
        run(&l, 1);
        end_step(&l);
    }
    mo_free(l.alive);
    return l.status;
}

memopt_status mo_plan_list_blocks(const mo_plan_settings *settings, mo_plan_blocks *out)
{
    mo_plan_settings s = *settings;
    mo_plan_play p;
    s.listing = 1;
    memopt_status status = mo_plan_play_build(&p, &s, mo_plan_engine_of(&s.run));
    if (status == MEMOPT_OK)
        status = mo_plan_play_step(&p);
    if (status == MEMOPT_OK)
        status = two_steps(&p.tape, out);
    mo_plan_play_end(&p);
    return status;
}
