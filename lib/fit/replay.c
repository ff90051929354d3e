/*
 * The replay. A storage has several instances (replay.h); one is freed when it is not alive
 * and no pack, no recomputed module and no recipe holds it.
 */
#include "fit/replay.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

enum { ORIGINAL = 0, MADE = 1, AGAIN = 2 };

static uint32_t instance_of(uint32_t storage, uint32_t copy)
{
    return MO_FIT_COPIES * storage + copy;
}

static uint64_t size_of(const mo_fit_run *r, uint32_t instance)
{
    return r->f->bytes[instance / MO_FIT_COPIES];
}

static int exists(const mo_fit_run *r, uint32_t instance)
{
    return r->alive[instance] || r->holds[instance] != 0;
}

static void note_peak(mo_fit_run *r)
{
    uint32_t largest = MEMOPT_FIT_NONE;
    for (uint32_t i = 0; i < MO_FIT_COPIES * r->f->storage_count; i++)
        if (exists(r, i) && (largest == MEMOPT_FIT_NONE || size_of(r, i) > r->f->bytes[largest]))
            largest = i / MO_FIT_COPIES;
    r->result.peak_module = r->module;
    r->result.peak_storage = largest;
    r->wanted = UINT64_MAX;
}

static void grow(mo_fit_run *r, uint64_t bytes)
{
    r->live += bytes;
    if (r->live > r->top)
        r->top = r->live;
    if (r->live >= r->wanted)
        note_peak(r);
}

static void bear(mo_fit_run *r, uint32_t instance)
{
    r->alive[instance] = 1;
    grow(r, size_of(r, instance));
}

static void die(mo_fit_run *r, uint32_t instance)
{
    if (!r->alive[instance])
        return;
    r->alive[instance] = 0;
    if (r->holds[instance] == 0)
        r->live -= size_of(r, instance);
}

static void hold(mo_fit_run *r, uint32_t instance)
{
    int is_new = !exists(r, instance);
    r->holds[instance]++;
    if (is_new)
        grow(r, size_of(r, instance));
}

static void drop(mo_fit_run *r, uint32_t instance)
{
    if (--r->holds[instance] == 0 && !r->alive[instance])
        r->live -= size_of(r, instance);
}

/* --- inputs of a choice ------------------------------------------------------------------------ */

static int inputs_exist(const mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        if (!exists(r, instance_of(r->f->inputs[c->first_input + i], ORIGINAL)))
            return 0;
    return 1;
}

static void hold_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        hold(r, instance_of(r->f->inputs[c->first_input + i], ORIGINAL));
}

static void drop_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        drop(r, instance_of(r->f->inputs[c->first_input + i], ORIGINAL));
}

/* --- recomputed modules ------------------------------------------------------------------------ */

/* A recomputed module holds its inputs. One within another one has them packed by that one: they are
 * there from the outer run until its own run is over. */

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

static int is_in_forward(const mo_fit_run *r, uint32_t module)
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
            return instance_of(storage, AGAIN + depth_of(r, module));
    return instance_of(storage, ORIGINAL);
}

static void enter(mo_fit_run *r, uint32_t module)
{
    r->module = module;
    if (r->of_module[module] == 0)
        return;
    const memopt_fit_choice *c = choice_of(r, module);
    r->outer[module] = r->frame;
    if (r->frame == MEMOPT_FIT_NONE) {
        hold_inputs(r, c);
    } else {
        r->given[module] = MO_PACK_WAITS;
        r->left[r->frame]++;
    }
    r->frame = module;
    grow(r, c->extra_bytes);
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
            hold(r, instance);
        else
            drop(r, instance);
    }
}

static void end_frame(mo_fit_run *r, uint32_t module);

static void release_one(mo_fit_run *r, uint32_t module)
{
    if (--r->left[module] == 0 && !is_in_forward(r, module))
        end_frame(r, module);
}

static void end_frame(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = choice_of(r, module);
    r->live -= c->extra_bytes;
    if (r->outer[module] == MEMOPT_FIT_NONE) {
        drop_inputs(r, c);
        return;
    }
    give(r, module, MO_PACK_FILLED, MO_PACK_NONE);
    r->given[module] = MO_PACK_NONE;
    release_one(r, r->outer[module]);
}

static void leave(mo_fit_run *r, uint32_t module)
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
    if (!exists(r, instance))
        instance = instance_of(e->storage, AGAIN + depth_of(r, module));
    hold(r, instance);
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
    grow(r, choice_of(r, inner)->extra_bytes); /* until this run ends */
    give(r, inner, MO_PACK_WAITS, MO_PACK_FILLED);
}

static void event_again(mo_fit_run *r, const memopt_fit_event *e, uint32_t module, uint32_t copy)
{
    if (e->kind == MEMOPT_FIT_BIRTH)
        bear(r, instance_of(e->subject, copy));
    else if (e->kind == MEMOPT_FIT_DEATH)
        die(r, instance_of(e->subject, copy));
    else if (e->kind == MEMOPT_FIT_PACK)
        fill(r, e, module);
    else if (e->kind == MEMOPT_FIT_ENTER)
        enter_again(r, e->subject, module);
    else if (e->kind == MEMOPT_FIT_LEAVE)
        r->module = r->f->modules[e->subject].parent;
}

/* Runs a module's events again, up to the last that saves what is needed; then what only the run held dies. */
static void run_again(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = choice_of(r, module);
    const memopt_fit_event *events = r->f->events;
    uint32_t begin = r->f->modules[module].enter, end = r->f->modules[module].leave;
    uint32_t outer = r->module, copy = AGAIN + depth_of(r, module);
    uint64_t extra = c->extra_bytes;
    if (r->given[module] == MO_PACK_WAITS && !r->done[r->outer[module]])
        run_again(r, r->outer[module]);
    while (!is_waited_for(r, &events[end], module))
        end--;
    r->done[module] = 1;
    r->result.seconds += c->seconds;
    r->module = module;
    grow(r, c->extra_bytes);
    for (uint32_t i = begin + 1; i <= end; i++)
        event_again(r, &events[i], module, copy);
    for (uint32_t i = begin + 1; i <= end; i++) {
        uint32_t inner = events[i].subject;
        if (events[i].kind == MEMOPT_FIT_BIRTH)
            die(r, instance_of(inner, copy));
        else if (events[i].kind == MEMOPT_FIT_ENTER && r->of_module[inner] != 0 &&
                 r->outer[inner] == module)
            extra += choice_of(r, inner)->extra_bytes;
    }
    r->live -= extra;
    r->module = outer;
    give(r, module, MO_PACK_FILLED, MO_PACK_NONE);
}

/* --- packs ------------------------------------------------------------------------------------- */

static void move(mo_fit_run *r, const memopt_fit_choice *c)
{
    int is_disk = c->kind == MEMOPT_FIT_DISK;
    uint64_t *now = is_disk ? &r->disk : &r->host;
    uint64_t *most = is_disk ? &r->result.disk_bytes : &r->result.host_bytes;
    if (r->moved[c->storage]++ == 0)
        *now += r->f->bytes[c->storage];
    if (*now > *most)
        *most = *now;
}

static void move_no_more(mo_fit_run *r, const memopt_fit_choice *c)
{
    uint64_t *now = c->kind == MEMOPT_FIT_DISK ? &r->disk : &r->host;
    if (--r->moved[c->storage] == 0)
        *now -= r->f->bytes[c->storage];
}

static void pack(mo_fit_run *r, const memopt_fit_event *e)
{
    uint32_t choice = r->of_storage[e->storage];
    const memopt_fit_choice *c = choice == 0 ? NULL : &r->f->choices[choice - 1];
    r->pack_module[e->subject] = r->frame;
    if (r->frame != MEMOPT_FIT_NONE) {
        r->packs[e->subject] = MO_PACK_WAITS;
        r->left[r->frame]++;
    } else if (c != NULL && e->subject >= c->first_pack && inputs_exist(r, c)) {
        r->packs[e->subject] = MO_PACK_RECIPE;
        r->pack_holds[e->subject] = choice - 1;
        hold_inputs(r, c);
        if (mo_fit_moves(c))
            move(r, c);
    } else {
        r->packs[e->subject] = MO_PACK_KEPT;
        r->pack_holds[e->subject] = instance_of(e->storage, ORIGINAL);
        hold(r, instance_of(e->storage, ORIGINAL));
    }
}

static void unpack(mo_fit_run *r, uint32_t pack_number)
{
    uint32_t module = r->pack_module[pack_number];
    if (r->packs[pack_number] == MO_PACK_WAITS && !is_in_forward(r, module) && !r->done[module])
        run_again(r, module);
    if (r->packs[pack_number] != MO_PACK_RECIPE)
        return;
    const memopt_fit_choice *c = &r->f->choices[r->pack_holds[pack_number]];
    uint32_t instance = instance_of(c->storage, MADE);
    int is_new = !exists(r, instance);
    uint64_t extra = is_new && c->kind == MEMOPT_FIT_REMAKE ? c->extra_bytes : 0;
    grow(r, extra);
    hold(r, instance);
    r->live -= extra;
    r->result.seconds += is_new ? c->seconds : 0;
    r->packs[pack_number] = MO_PACK_MADE;
}

static void release(mo_fit_run *r, uint32_t pack_number)
{
    uint8_t state = r->packs[pack_number];
    uint32_t module = r->pack_module[pack_number], held = r->pack_holds[pack_number];
    r->packs[pack_number] = MO_PACK_NONE;
    if (state == MO_PACK_KEPT || state == MO_PACK_FILLED)
        drop(r, held);
    if (state == MO_PACK_RECIPE || state == MO_PACK_MADE) {
        const memopt_fit_choice *c = &r->f->choices[held];
        if (state == MO_PACK_MADE)
            drop(r, instance_of(c->storage, MADE));
        if (mo_fit_moves(c))
            move_no_more(r, c);
        drop_inputs(r, c);
    }
    if (module != MEMOPT_FIT_NONE)
        release_one(r, module);
}

static void event(mo_fit_run *r, const memopt_fit_event *e)
{
    switch (e->kind) {
    case MEMOPT_FIT_BIRTH:
        bear(r, instance_of(e->subject, ORIGINAL));
        break;
    case MEMOPT_FIT_DEATH:
        die(r, instance_of(e->subject, ORIGINAL));
        break;
    case MEMOPT_FIT_PACK:
        pack(r, e);
        break;
    case MEMOPT_FIT_UNPACK:
        unpack(r, e->subject);
        break;
    case MEMOPT_FIT_RELEASE:
        release(r, e->subject);
        break;
    case MEMOPT_FIT_ENTER:
        enter(r, e->subject);
        break;
    case MEMOPT_FIT_LEAVE:
        leave(r, e->subject);
        break;
    default:
        break;
    }
}

/* --- a replay ---------------------------------------------------------------------------------- */

static void begin(mo_fit_run *r, const uint8_t *chosen)
{
    const memopt_fit *f = r->f;
    memset(r->memory, 0, r->state_bytes);
    r->frame = r->module = MEMOPT_FIT_NONE;
    r->live = r->top = f->fixed;
    r->host = r->disk = 0;
    r->result = (memopt_fit_result){.struct_size = sizeof r->result,
                                    .peak_bytes = f->fixed,
                                    .peak_module = MEMOPT_FIT_NONE,
                                    .peak_storage = MEMOPT_FIT_NONE};
    for (uint32_t i = 0; i < f->choice_count; i++) {
        const memopt_fit_choice *c = &f->choices[i];
        if (!chosen[i])
            continue;
        if (c->kind == MEMOPT_FIT_RECOMPUTE)
            r->of_module[c->module] = i + 1;
        else
            r->of_storage[c->storage] = i + 1;
    }
}

static void replay(mo_fit_run *r, const uint8_t *chosen, uint64_t *curve, uint32_t shift)
{
    begin(r, chosen);
    for (uint32_t i = 0; i < r->f->event_count; i++) {
        event(r, &r->f->events[i]);
        if (r->top > r->result.peak_bytes) {
            r->result.peak_bytes = r->top;
            r->result.peak_event = i;
        }
        if (curve != NULL && (i & ((1u << shift) - 1)) == 0)
            curve[i >> shift] = 0;
        if (curve != NULL && r->top > curve[i >> shift])
            curve[i >> shift] = r->top;
        r->top = r->live;
    }
}

void mo_fit_run_replay(mo_fit_run *run, const uint8_t *chosen, uint64_t *curve, uint32_t shift)
{
    run->wanted = UINT64_MAX;
    replay(run, chosen, curve, shift);
}

void mo_fit_run_explain(mo_fit_run *run, const uint8_t *chosen)
{
    mo_fit_run_replay(run, chosen, NULL, 0);
    run->wanted = run->result.peak_bytes;
    replay(run, chosen, NULL, 0);
}

memopt_status mo_fit_run_open(const memopt_fit *f, mo_fit_run *run)
{
    uint64_t s = f->storage_count, p = f->pack_count, m = f->module_count;
    uint64_t words = 3 * m + (2 + MO_FIT_COPIES) * s, bytes = MO_FIT_COPIES * s + p + 2 * m;
    *run = (mo_fit_run){.f = f, .state_bytes = 4 * words + bytes};
    run->memory = mo_malloc(run->state_bytes + 8 * p + 8);
    if (run->memory == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint32_t *at = run->memory;
    run->of_module = at;
    run->left = run->of_module + m;
    run->outer = run->left + m;
    run->of_storage = run->outer + m;
    run->moved = run->of_storage + s;
    run->holds = run->moved + s;
    run->alive = (uint8_t *)(run->holds + MO_FIT_COPIES * s);
    run->packs = run->alive + MO_FIT_COPIES * s;
    run->done = run->packs + p;
    run->given = run->done + m;
    uint64_t state = (run->state_bytes + 3) / 4;
    run->pack_holds = at + state;
    run->pack_module = run->pack_holds + p;
    return MEMOPT_OK;
}

void mo_fit_run_close(mo_fit_run *run)
{
    mo_free(run->memory);
    run->memory = NULL;
}

static memopt_status choose(const memopt_fit *f, const uint32_t *chosen, uint64_t count,
                            uint8_t *flags)
{
    for (uint64_t i = 0; i < count; i++) {
        if (chosen[i] >= f->choice_count || flags[chosen[i]])
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "fit replay: choice %" PRIu32 " is given twice, or there are %" PRIu32
                           " only",
                           chosen[i], f->choice_count);
        for (uint64_t j = 0; j < i; j++)
            if (mo_fit_excludes(f, chosen[i], chosen[j]) && !mo_fit_nest(f, chosen[i], chosen[j]))
                return mo_fail(MEMOPT_INVALID_ARGUMENT,
                               "fit replay: choices %" PRIu32 " and %" PRIu32
                               " exclude each other; leave one out",
                               chosen[j], chosen[i]);
        flags[chosen[i]] = 1;
    }
    for (uint64_t i = 0; i < count; i++)
        if (mo_fit_depth(f, flags, chosen[i]) >= MO_FIT_DEPTH)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "fit replay: the module of choice %" PRIu32
                           " is within %d that run again; leave one out",
                           chosen[i], MO_FIT_DEPTH);
    return MEMOPT_OK;
}

memopt_status memopt_fit_replay(const memopt_fit *fit, const uint32_t *chosen, uint64_t count,
                                memopt_fit_result *out_result)
{
    MO_NOT_NULL("fit replay", fit, out_result);
    if (count != 0 && chosen == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "fit replay: chosen is NULL, and count %" PRIu64,
                       count);
    mo_fit_run run;
    uint8_t *flags = mo_calloc((uint64_t)fit->choice_count + 1, 1);
    if (flags == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = choose(fit, chosen, count, flags);
    if (status == MEMOPT_OK)
        status = mo_fit_run_open(fit, &run);
    if (status == MEMOPT_OK) {
        mo_fit_run_explain(&run, flags);
        status = mo_result_write(out_result, &run.result, sizeof run.result, "memopt_fit_result");
        mo_fit_run_close(&run);
    }
    mo_free(flags);
    return status;
}
