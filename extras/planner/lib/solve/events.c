/*
 * The blocks of a run's first two steps, in order: the weights, a step without optimizer states,
 * which come before its optimizer runs, and a step with them. What a step leaves behind beside
 * weights and states goes when it ends, as gradients do that are set to None.
 *
 * The tape plays the second step; the first has the same blocks, but its states come later. With
 * several micro-batches it plays the last one, whose gradients are there already. A tape of the
 * same run with one micro-batch then plays the first, in whose backward they come.
 */
#include "solve/plan.h"

#include "parallel/parallel.h"

/* A tape's events. A block's number is that of the event that begins it, from `base` + 1 on, or,
 * where `same` is not 0, that of the same gradient on the other tape. */
typedef struct mo_plan_part {
    const mo_plan_tape *tape;
    uint64_t base;
    const uint64_t *same; /* by event; or NULL */
} mo_plan_part;

typedef struct mo_plan_lister {
    uint8_t *alive; /* by number */
    mo_plan_blocks *to;
    memopt_status status;
} mo_plan_lister;

static int stays(const mo_plan_event *e)
{
    return e->phase == MO_PLAN_PHASE_LOAD &&
           (e->category == MO_PLAN_PARAMETERS || e->category == MO_PLAN_OPTIMIZER);
}

/* event: from 1. */
static uint64_t number_of(const mo_plan_part *part, uint64_t event)
{
    uint64_t same = part->same != NULL ? part->same[event - 1] : 0;
    return same != 0 ? same : part->base + event;
}

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
static void load(mo_plan_lister *l, const mo_plan_part *part, mo_plan_category category)
{
    for (uint64_t i = 0; i < part->tape->event_count; i++) {
        const mo_plan_event *e = &part->tape->events[i];
        if (e->bytes > 0 && stays(e) && e->category == (uint32_t)category)
            add(l, number_of(part, i + 1), e->bytes);
    }
}

/* The events of the phases before the optimizer's step, or of that. */
static void run(mo_plan_lister *l, const mo_plan_part *part, int optimizer)
{
    for (uint64_t i = 0; i < part->tape->event_count; i++) {
        const mo_plan_event *e = &part->tape->events[i];
        if ((e->phase == MO_PLAN_PHASE_STEP) != optimizer)
            continue;
        if (e->bytes == 0)
            add(l, number_of(part, e->begins), 0);
        else if (!stays(e))
            add(l, number_of(part, i + 1), e->bytes);
    }
}

/* Frees what a step leaves behind; of a micro-batch, what the next one does not take up. */
static void end(mo_plan_lister *l, const mo_plan_part *part)
{
    for (uint64_t i = 0; i < part->tape->event_count; i++)
        if (!stays(&part->tape->events[i]) && (part->same == NULL || part->same[i] == 0))
            add(l, part->base + i + 1, 0);
}

static void two_steps(mo_plan_lister *l, const mo_plan_part *last, const mo_plan_part *first)
{
    load(l, last, MO_PLAN_PARAMETERS);
    for (int step = 0; step < 2; step++) {
        if (first != NULL) {
            run(l, first, 0);
            end(l, first);
        }
        run(l, last, 0);
        load(l, last, MO_PLAN_OPTIMIZER);
        run(l, last, 1);
        end(l, last);
    }
}

static uint32_t gradient_event(const mo_plan_tape *t, uint64_t leaf)
{
    uint32_t storage = t->leaves[leaf].storage;
    return storage != MO_PLAN_NONE ? t->storages[storage].event : 0;
}

static memopt_status list(const mo_plan_tape *last, const mo_plan_tape *first, mo_plan_blocks *out)
{
    uint64_t firsts = first != NULL ? first->event_count : 0;
    uint64_t *same = mo_calloc(firsts + 1, sizeof *same);
    mo_plan_lister l = {mo_calloc(last->event_count + firsts + 1, 1), out, MEMOPT_OK};
    if (same == NULL || l.alive == NULL) {
        l.status = MEMOPT_OUT_OF_HOST_MEMORY;
    } else {
        mo_plan_part ending = {last, 0, NULL}, beginning = {first, last->event_count, same};
        for (uint64_t i = 0; first != NULL && i < first->leaf_count && i < last->leaf_count; i++) {
            uint32_t event = gradient_event(first, i);
            if (event != 0)
                same[event - 1] = gradient_event(last, i);
        }
        two_steps(&l, &ending, first != NULL ? &beginning : NULL);
    }
    mo_free(l.alive);
    mo_free(same);
    return l.status;
}

static memopt_status play(mo_plan_play *p, const mo_plan_settings *settings)
{
    memopt_status status = mo_plan_play_build(p, settings, mo_plan_engine_of(&settings->run));
    return status == MEMOPT_OK ? mo_plan_play_step(p) : status;
}

memopt_status mo_plan_list_blocks(const mo_plan_settings *settings, mo_plan_blocks *out)
{
    mo_plan_settings s = *settings, one;
    mo_plan_play last, first;
    s.listing = 1;
    one = s;
    one.run.accumulation = 1;
    memopt_status status = play(&last, &s);
    if (status == MEMOPT_OK && s.run.accumulation < 2) {
        status = list(&last.tape, NULL, out);
    } else if (status == MEMOPT_OK) {
        status = play(&first, &one);
        if (status == MEMOPT_OK)
            status = list(&last.tape, &first.tape, out);
        mo_plan_play_end(&first);
    }
    mo_plan_play_end(&last);
    return status;
}
