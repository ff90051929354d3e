/* The replay: packs, and what each event of a tape does. */
#include "fit/replay.h"

#include "fit/again.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

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
    } else if (c != NULL && e->subject >= c->first_pack && mo_fit_inputs_exist(r, c)) {
        r->packs[e->subject] = MO_PACK_RECIPE;
        r->pack_holds[e->subject] = choice - 1;
        mo_fit_hold_inputs(r, c);
        if (mo_fit_moves(c))
            move(r, c);
    } else {
        r->packs[e->subject] = MO_PACK_KEPT;
        r->pack_holds[e->subject] = mo_fit_instance(e->storage, MO_FIT_ORIGINAL);
        mo_fit_hold(r, mo_fit_instance(e->storage, MO_FIT_ORIGINAL));
    }
}

static void unpack(mo_fit_run *r, uint32_t pack_number)
{
    uint32_t module = r->pack_module[pack_number];
    if (r->packs[pack_number] == MO_PACK_WAITS && !mo_fit_in_forward(r, module) && !r->done[module])
        mo_fit_run_again(r, module);
    if (r->packs[pack_number] != MO_PACK_RECIPE)
        return;
    const memopt_fit_choice *c = &r->f->choices[r->pack_holds[pack_number]];
    uint32_t instance = mo_fit_instance(c->storage, MO_FIT_MADE);
    int is_new = !mo_fit_exists(r, instance);
    uint64_t extra = is_new && c->kind == MEMOPT_FIT_REMAKE ? c->extra_bytes : 0;
    mo_fit_grow(r, extra);
    mo_fit_hold(r, instance);
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
        mo_fit_drop(r, held);
    if (state == MO_PACK_RECIPE || state == MO_PACK_MADE) {
        const memopt_fit_choice *c = &r->f->choices[held];
        if (state == MO_PACK_MADE)
            mo_fit_drop(r, mo_fit_instance(c->storage, MO_FIT_MADE));
        if (mo_fit_moves(c))
            move_no_more(r, c);
        mo_fit_drop_inputs(r, c);
    }
    if (module != MEMOPT_FIT_NONE)
        mo_fit_release_one(r, module);
}

static void event(mo_fit_run *r, const memopt_fit_event *e)
{
    switch (e->kind) {
    case MEMOPT_FIT_BIRTH:
        mo_fit_bear(r, mo_fit_instance(e->subject, MO_FIT_ORIGINAL));
        break;
    case MEMOPT_FIT_DEATH:
        mo_fit_die(r, mo_fit_instance(e->subject, MO_FIT_ORIGINAL));
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
        mo_fit_enter(r, e->subject);
        break;
    case MEMOPT_FIT_LEAVE:
        mo_fit_leave(r, e->subject);
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
