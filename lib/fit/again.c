/*
 * Modules that run again. A recomputed module holds its inputs. One within another one has them packed
 * by that one: they are there from the outer run until its own run is over.
 */
#include "fit/again.h"

static const memopt_fit_choice *choice_of(const mo_fit_run *r, uint32_t module)
{
    return &r->f->choices[r->of_module[module] - 1];
}

static uint32_t depth_of(const mo_fit_run *r, uint32_t module)
{
    uint32_t depth = 0;
    for (; r->outer[module] != MEMOPT_FIT_NONE; module = r->outer[module])
        depth++;
    return depth;
}

int mo_fit_in_forward(const mo_fit_run *r, uint32_t module)
{
    uint32_t frame = r->frame;
    while (frame != MEMOPT_FIT_NONE && frame != module)
        frame = r->outer[frame];
    return frame == module;
}

/* What a storage is while a module runs again: as the innermost run has it in which it is born. */
static uint32_t instance_in(const mo_fit_run *r, uint32_t storage, uint32_t module)
{
    for (; module != MEMOPT_FIT_NONE; module = r->outer[module])
        if (r->f->birth[storage] > r->f->modules[module].enter)
            return mo_fit_instance(storage, MO_FIT_AGAIN + depth_of(r, module));
    return mo_fit_instance(storage, MO_FIT_ORIGINAL);
}

void mo_fit_enter(mo_fit_run *r, uint32_t module)
{
    r->module = module;
    if (r->of_module[module] == 0)
        return;
    const memopt_fit_choice *c = choice_of(r, module);
    r->outer[module] = r->frame;
    if (r->frame == MEMOPT_FIT_NONE) {
        mo_fit_hold_inputs(r, c);
    } else {
        r->given[module] = MO_PACK_WAITS;
        r->left[r->frame]++;
    }
    r->frame = module;
    mo_fit_grow(r, c->extra_bytes);
}

/* Inputs of a module within one that runs again are there, or not any more. */
static void give(mo_fit_run *r, uint32_t module, uint8_t from, uint8_t to)
{
    const memopt_fit_choice *c = choice_of(r, module);
    if (r->given[module] != from)
        return;
    r->given[module] = to;
    for (uint32_t i = 0; i < c->input_count; i++) {
        uint32_t instance = instance_in(r, r->f->inputs[c->first_input + i], r->outer[module]);
        if (to == MO_PACK_FILLED)
            mo_fit_hold(r, instance);
        else
            mo_fit_drop(r, instance);
    }
}

static void end_frame(mo_fit_run *r, uint32_t module);

void mo_fit_release_one(mo_fit_run *r, uint32_t module)
{
    if (--r->left[module] == 0 && !mo_fit_in_forward(r, module))
        end_frame(r, module);
}

static void end_frame(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = choice_of(r, module);
    r->live -= c->extra_bytes;
    if (r->outer[module] == MEMOPT_FIT_NONE) {
        mo_fit_drop_inputs(r, c);
        return;
    }
    give(r, module, MO_PACK_FILLED, MO_PACK_NONE);
    r->given[module] = MO_PACK_NONE;
    mo_fit_release_one(r, r->outer[module]);
}

void mo_fit_leave(mo_fit_run *r, uint32_t module)
{
    r->module = r->f->modules[module].parent;
    if (r->frame != module)
        return;
    r->frame = r->outer[module];
    if (r->left[module] == 0)
        end_frame(r, module);
}

static void fill(mo_fit_run *r, const memopt_fit_event *e, uint32_t module)
{
    if (r->packs[e->subject] != MO_PACK_WAITS || r->pack_module[e->subject] != module)
        return;
    uint32_t instance = instance_in(r, e->storage, module);
    if (!mo_fit_exists(r, instance))
        instance = mo_fit_instance(e->storage, MO_FIT_AGAIN + depth_of(r, module));
    mo_fit_hold(r, instance);
    r->packs[e->subject] = MO_PACK_FILLED;
    r->pack_holds[e->subject] = instance;
}

/* Whether an event of a module that runs again saves what is still needed. */
static int is_waited_for(const mo_fit_run *r, const memopt_fit_event *e, uint32_t module)
{
    if (e->kind == MEMOPT_FIT_PACK)
        return r->packs[e->subject] == MO_PACK_WAITS && r->pack_module[e->subject] == module;
    return e->kind == MEMOPT_FIT_ENTER && r->of_module[e->subject] != 0 &&
           r->given[e->subject] == MO_PACK_WAITS && r->outer[e->subject] == module;
}

static void enter_again(mo_fit_run *r, uint32_t inner, uint32_t module)
{
    r->module = inner;
    if (r->of_module[inner] == 0 || r->outer[inner] != module)
        return;
    mo_fit_grow(r, choice_of(r, inner)->extra_bytes); /* until this run ends */
    give(r, inner, MO_PACK_WAITS, MO_PACK_FILLED);
}

static void event_again(mo_fit_run *r, const memopt_fit_event *e, uint32_t module, uint32_t copy)
{
    if (e->kind == MEMOPT_FIT_BIRTH)
        mo_fit_bear(r, mo_fit_instance(e->subject, copy));
    else if (e->kind == MEMOPT_FIT_DEATH)
        mo_fit_die(r, mo_fit_instance(e->subject, copy));
    else if (e->kind == MEMOPT_FIT_PACK)
        fill(r, e, module);
    else if (e->kind == MEMOPT_FIT_ENTER)
        enter_again(r, e->subject, module);
    else if (e->kind == MEMOPT_FIT_LEAVE)
        r->module = r->f->modules[e->subject].parent;
}

void mo_fit_run_again(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = choice_of(r, module);
    const memopt_fit_event *events = r->f->events;
    uint32_t begin = r->f->modules[module].enter, end = r->f->modules[module].leave;
    uint32_t outer = r->module, copy = MO_FIT_AGAIN + depth_of(r, module);
    uint64_t extra = c->extra_bytes;
    if (r->given[module] == MO_PACK_WAITS && !r->done[r->outer[module]])
        mo_fit_run_again(r, r->outer[module]);
    while (!is_waited_for(r, &events[end], module))
        end--;
    r->done[module] = 1;
    r->result.seconds += c->seconds;
    r->module = module;
    mo_fit_grow(r, c->extra_bytes);
    for (uint32_t i = begin + 1; i <= end; i++)
        event_again(r, &events[i], module, copy);
    for (uint32_t i = begin + 1; i <= end; i++) {
        uint32_t inner = events[i].subject;
        if (events[i].kind == MEMOPT_FIT_BIRTH)
            mo_fit_die(r, mo_fit_instance(inner, copy));
        else if (events[i].kind == MEMOPT_FIT_ENTER && r->of_module[inner] != 0 &&
                 r->outer[inner] == module)
            extra += choice_of(r, inner)->extra_bytes;
    }
    r->live -= extra;
    r->module = outer;
    give(r, module, MO_PACK_FILLED, MO_PACK_NONE);
}
