/*
 * The replay. Every storage has up to three instances (replay.h); one is freed when it is not alive
 * and no pack, no recomputed module and no recipe holds it.
 */
#include "fit/replay.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

enum { ORIGINAL = 0, AGAIN = 1, MADE = 2 };

static uint64_t size_of(const mo_fit_run *r, uint32_t instance)
{
    return r->f->bytes[instance / 3];
}

static int exists(const mo_fit_run *r, uint32_t instance)
{
    return r->alive[instance] || r->holds[instance] != 0;
}

static void note_peak(mo_fit_run *r)
{
    uint32_t largest = MEMOPT_FIT_NONE;
    for (uint32_t i = 0; i < 3 * r->f->storage_count; i++)
        if (exists(r, i) && (largest == MEMOPT_FIT_NONE || size_of(r, i) > r->f->bytes[largest]))
            largest = i / 3;
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
        if (!exists(r, 3 * r->f->inputs[c->first_input + i]))
            return 0;
    return 1;
}

static void hold_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        hold(r, 3 * r->f->inputs[c->first_input + i]);
}

static void drop_inputs(mo_fit_run *r, const memopt_fit_choice *c)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        drop(r, 3 * r->f->inputs[c->first_input + i]);
}

/* --- recomputed modules ------------------------------------------------------------------------ */

static void enter(mo_fit_run *r, uint32_t module)
{
    r->module = module;
    if (r->of_module[module] == 0)
        return;
    const memopt_fit_choice *c = &r->f->choices[r->of_module[module] - 1];
    r->frame = module;
    hold_inputs(r, c);
    grow(r, c->extra_bytes);
}

static void end_frame(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = &r->f->choices[r->of_module[module] - 1];
    drop_inputs(r, c);
    r->live -= c->extra_bytes;
}

static void leave(mo_fit_run *r, uint32_t module)
{
    r->module = r->f->modules[module].parent;
    if (r->frame != module)
        return;
    r->frame = MEMOPT_FIT_NONE;
    if (r->left[module] == 0)
        end_frame(r, module);
}

static void fill(mo_fit_run *r, const memopt_fit_event *e, uint32_t begin)
{
    uint32_t instance = 3 * e->storage;
    if (r->packs[e->subject] != MO_PACK_WAITS)
        return;
    if (r->f->birth[e->storage] > begin || !exists(r, instance))
        instance += AGAIN;
    hold(r, instance);
    r->packs[e->subject] = MO_PACK_FILLED;
    r->pack_holds[e->subject] = instance;
}

static void event_again(mo_fit_run *r, const memopt_fit_event *e, uint32_t begin)
{
    if (e->kind == MEMOPT_FIT_BIRTH)
        bear(r, 3 * e->subject + AGAIN);
    else if (e->kind == MEMOPT_FIT_DEATH)
        die(r, 3 * e->subject + AGAIN);
    else if (e->kind == MEMOPT_FIT_PACK)
        fill(r, e, begin);
    else if (e->kind == MEMOPT_FIT_ENTER)
        r->module = e->subject;
    else if (e->kind == MEMOPT_FIT_LEAVE)
        r->module = r->f->modules[e->subject].parent;
}

/* Runs a module's events again, up to the last pack that waits; then what only the run held dies. */
static void run_again(mo_fit_run *r, uint32_t module)
{
    const memopt_fit_choice *c = &r->f->choices[r->of_module[module] - 1];
    const memopt_fit_event *events = r->f->events;
    uint32_t begin = r->f->modules[module].enter, end = r->f->modules[module].leave;
    uint32_t outer = r->module;
    while (events[end].kind != MEMOPT_FIT_PACK || r->packs[events[end].subject] != MO_PACK_WAITS)
        end--;
    r->done[module] = 1;
    r->result.seconds += c->seconds;
    r->module = module;
    grow(r, c->extra_bytes);
    for (uint32_t i = begin + 1; i <= end; i++)
        event_again(r, &events[i], begin);
    for (uint32_t i = begin + 1; i <= end; i++)
        if (events[i].kind == MEMOPT_FIT_BIRTH)
            die(r, 3 * events[i].subject + AGAIN);
    r->live -= c->extra_bytes;
    r->module = outer;
}

/* --- packs ------------------------------------------------------------------------------------- */

static void take_to_host(mo_fit_run *r, uint32_t storage)
{
    if (r->on_host[storage]++ == 0)
        r->host += r->f->bytes[storage];
    if (r->host > r->result.host_bytes)
        r->result.host_bytes = r->host;
}

static void give_host(mo_fit_run *r, uint32_t storage)
{
    if (--r->on_host[storage] == 0)
        r->host -= r->f->bytes[storage];
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
        if (c->kind == MEMOPT_FIT_OFFLOAD)
            take_to_host(r, e->storage);
    } else {
        r->packs[e->subject] = MO_PACK_KEPT;
        r->pack_holds[e->subject] = 3 * e->storage + ORIGINAL;
        hold(r, 3 * e->storage + ORIGINAL);
    }
}

static void unpack(mo_fit_run *r, uint32_t pack_number)
{
    uint32_t module = r->pack_module[pack_number];
    if (r->packs[pack_number] == MO_PACK_WAITS && r->frame != module && !r->done[module])
        run_again(r, module);
    if (r->packs[pack_number] != MO_PACK_RECIPE)
        return;
    const memopt_fit_choice *c = &r->f->choices[r->pack_holds[pack_number]];
    uint32_t instance = 3 * c->storage + MADE;
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
            drop(r, 3 * c->storage + MADE);
        if (c->kind == MEMOPT_FIT_OFFLOAD)
            give_host(r, c->storage);
        drop_inputs(r, c);
    }
    if (module != MEMOPT_FIT_NONE && --r->left[module] == 0 && r->frame != module)
        end_frame(r, module);
}

static void event(mo_fit_run *r, const memopt_fit_event *e)
{
    switch (e->kind) {
    case MEMOPT_FIT_BIRTH:
        bear(r, 3 * e->subject + ORIGINAL);
        break;
    case MEMOPT_FIT_DEATH:
        die(r, 3 * e->subject + ORIGINAL);
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
    r->host = 0;
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
    uint64_t words = 2 * m + 5 * s, bytes = 3 * s + p + m;
    *run = (mo_fit_run){.f = f, .state_bytes = 4 * words + bytes};
    run->memory = mo_malloc(run->state_bytes + 8 * p + 8);
    if (run->memory == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint32_t *at = run->memory;
    run->of_module = at;
    run->left = run->of_module + m;
    run->of_storage = run->left + m;
    run->on_host = run->of_storage + s;
    run->holds = run->on_host + s;
    run->alive = (uint8_t *)(run->holds + 3 * s);
    run->packs = run->alive + 3 * s;
    run->done = run->packs + p;
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
            if (mo_fit_excludes(f, chosen[i], chosen[j]))
                return mo_fail(MEMOPT_INVALID_ARGUMENT,
                               "fit replay: choices %" PRIu32 " and %" PRIu32
                               " exclude each other; leave one out",
                               chosen[j], chosen[i]);
        flags[chosen[i]] = 1;
    }
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
