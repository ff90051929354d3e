/* The handle of a tape. What replay.c relies on is checked here, event by event. */
#include "fit/tape.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MOST_EVENTS = 1 << 24, NEW = 0, LIVES = 1, OVER = 2, COPIES = 2 + MO_FIT_DEPTH };
static const uint64_t most_bytes = (uint64_t)1 << 62;

/* What is known at an event. */
typedef struct reader {
    memopt_fit *f;
    uint8_t *packs;  /* by pack: NEW, LIVES, OVER */
    uint32_t module; /* the innermost */
    int backward;
} reader;

static memopt_status bad_event(uint64_t number, const memopt_fit_event *e, const char *what)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "fit: event %" PRIu64 " (kind %" PRIu32 ", subject %" PRIu32 "): %s", number,
                   e->kind, e->subject, what);
}

static int storage_lives(const memopt_fit *f, uint32_t storage)
{
    return storage < f->storage_count && f->birth[storage] != MEMOPT_FIT_NONE &&
           f->death[storage] == MEMOPT_FIT_NONE;
}

static const char *read_storage(reader *r, uint32_t number, const memopt_fit_event *e)
{
    memopt_fit *f = r->f;
    if (e->subject >= f->storage_count)
        return "there is no such storage";
    uint32_t *place = e->kind == MEMOPT_FIT_BIRTH ? &f->birth[e->subject] : &f->death[e->subject];
    if (e->kind == MEMOPT_FIT_BIRTH && *place != MEMOPT_FIT_NONE)
        return "the storage is born twice";
    if (e->kind == MEMOPT_FIT_DEATH && !storage_lives(f, e->subject))
        return "the storage is not alive";
    *place = number;
    return NULL;
}

static const char *read_pack(reader *r, const memopt_fit_event *e)
{
    if (e->subject >= r->f->event_count)
        return "the pack's number is not below the number of events";
    uint8_t *pack = &r->packs[e->subject];
    if (e->kind == MEMOPT_FIT_PACK) {
        if (*pack != NEW)
            return "the pack is packed twice";
        if (!storage_lives(r->f, e->storage))
            return "the storage that it packs is not alive";
        if (e->subject >= r->f->pack_count)
            r->f->pack_count = e->subject + 1;
    } else if (*pack != LIVES) {
        return "the pack is not packed, or is released already";
    }
    *pack = e->kind == MEMOPT_FIT_RELEASE ? OVER : LIVES;
    return NULL;
}

static const char *read_module(reader *r, uint32_t number, const memopt_fit_event *e)
{
    memopt_fit *f = r->f;
    if (r->backward)
        return "a module runs after forward";
    if (e->subject >= f->event_count)
        return "the module's number is not below the number of events";
    mo_fit_module *m = &f->modules[e->subject];
    if (e->kind == MEMOPT_FIT_ENTER) {
        if (m->enter != MEMOPT_FIT_NONE)
            return "the module is entered twice; each call has a number of its own";
        *m = (mo_fit_module){number, MEMOPT_FIT_NONE, r->module};
        r->module = e->subject;
        if (e->subject >= f->module_count)
            f->module_count = e->subject + 1;
        return NULL;
    }
    if (r->module != e->subject)
        return "this is not the module that was entered last";
    m->leave = number;
    r->module = m->parent;
    return NULL;
}

static const char *read_event(reader *r, uint32_t number, const memopt_fit_event *e)
{
    switch (e->kind) {
    case MEMOPT_FIT_BIRTH:
    case MEMOPT_FIT_DEATH:
        return read_storage(r, number, e);
    case MEMOPT_FIT_PACK:
    case MEMOPT_FIT_UNPACK:
    case MEMOPT_FIT_RELEASE:
        return read_pack(r, e);
    case MEMOPT_FIT_ENTER:
    case MEMOPT_FIT_LEAVE:
        return read_module(r, number, e);
    case MEMOPT_FIT_BACKWARD:
        if (r->backward || r->module != MEMOPT_FIT_NONE)
            return "backward begins twice, or within a module";
        r->backward = 1;
        return NULL;
    default:
        return "there is no such kind";
    }
}

static memopt_status read_events(memopt_fit *f)
{
    reader r = {.f = f, .packs = mo_calloc((uint64_t)f->event_count + 1, 1)};
    r.module = MEMOPT_FIT_NONE;
    memopt_status status = r.packs == NULL ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK;
    for (uint32_t i = 0; status == MEMOPT_OK && i < f->event_count; i++) {
        const char *what = read_event(&r, i, &f->events[i]);
        if (what != NULL)
            status = bad_event(i, &f->events[i], what);
    }
    if (status == MEMOPT_OK && r.module != MEMOPT_FIT_NONE)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "fit: module %" PRIu32 " is entered and not left",
                         r.module);
    mo_free(r.packs);
    return status;
}

static memopt_status bad_choice(uint32_t number, const char *what, uint64_t value)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "fit: choice %" PRIu32 ": %s (%" PRIu64 ")", number,
                   what, value);
}

static int module_runs(const memopt_fit *f, uint32_t module)
{
    return module < f->module_count && f->modules[module].enter != MEMOPT_FIT_NONE;
}

static memopt_status check_target(const memopt_fit *f, uint32_t number)
{
    const memopt_fit_choice *c = &f->choices[number];
    int module = c->kind == MEMOPT_FIT_RECOMPUTE ||
                 (c->kind == MEMOPT_FIT_REMAKE && c->module != MEMOPT_FIT_NONE);
    if (c->kind < MEMOPT_FIT_RECOMPUTE || c->kind > MEMOPT_FIT_DISK)
        return bad_choice(number, "there is no such kind", c->kind);
    if (module && !module_runs(f, c->module))
        return bad_choice(number, "its module is not on the tape", c->module);
    if (c->kind != MEMOPT_FIT_RECOMPUTE &&
        (c->storage >= f->storage_count || f->birth[c->storage] == MEMOPT_FIT_NONE))
        return bad_choice(number, "its storage is not on the tape", c->storage);
    if (!isfinite(c->seconds) || c->seconds < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "fit: choice %" PRIu32 " takes %g seconds; times must be finite and not "
                       "negative",
                       number, c->seconds);
    return MEMOPT_OK;
}

static memopt_status check_choice(const memopt_fit *f, uint32_t number)
{
    MO_TRY(check_target(f, number));
    const memopt_fit_choice *c = &f->choices[number];
    if ((uint64_t)c->first_input + c->input_count > f->input_count)
        return bad_choice(number, "its inputs end beyond those given",
                          (uint64_t)c->first_input + c->input_count);
    for (uint32_t i = 0; i < c->input_count; i++) {
        uint32_t input = f->inputs[c->first_input + i];
        if (input >= f->storage_count || f->birth[input] == MEMOPT_FIT_NONE)
            return bad_choice(number, "an input is not on the tape", input);
        if (c->kind == MEMOPT_FIT_RECOMPUTE && (f->birth[input] > f->modules[c->module].enter ||
                                                f->death[input] < f->modules[c->module].enter))
            return bad_choice(number, "an input does not live at the module's entry", input);
    }
    return MEMOPT_OK;
}

static memopt_status check_bytes(const memopt_fit *f)
{
    uint64_t total = f->fixed;
    int fits = total <= most_bytes;
    /* Each storage as it is, made again, and run again at each depth. */
    for (uint64_t i = 0; fits && i < (uint64_t)COPIES * f->storage_count; i++)
        fits = mo_add_u64(total, f->bytes[i / COPIES], &total) && total <= most_bytes;
    for (uint32_t i = 0; fits && i < COPIES * f->choice_count; i++)
        fits = mo_add_u64(total, f->choices[i / COPIES].extra_bytes, &total) && total <= most_bytes;
    return fits ? MEMOPT_OK
                : mo_fail(MEMOPT_INVALID_ARGUMENT, "fit: the sizes together do not fit 62 bits");
}

static int has_input(const memopt_fit *f, const memopt_fit_choice *c, uint32_t storage)
{
    for (uint32_t i = 0; i < c->input_count; i++)
        if (f->inputs[c->first_input + i] == storage)
            return 1;
    return 0;
}

static int exclude(const memopt_fit *f, const memopt_fit_choice *a, const memopt_fit_choice *b)
{
    int module_a = a->kind == MEMOPT_FIT_RECOMPUTE, module_b = b->kind == MEMOPT_FIT_RECOMPUTE;
    if (module_a && module_b)
        return a->module == b->module || mo_fit_within(f, f->modules[a->module].enter, b->module) ||
               mo_fit_within(f, f->modules[b->module].enter, a->module);
    if (module_a)
        return b->kind == MEMOPT_FIT_REMAKE && a->module != b->module &&
               mo_fit_within(f, f->birth[b->storage], a->module);
    if (module_b)
        return exclude(f, b, a);
    return a->storage == b->storage ||
           (a->kind == MEMOPT_FIT_REMAKE && has_input(f, a, b->storage)) ||
           (b->kind == MEMOPT_FIT_REMAKE && has_input(f, b, a->storage));
}

uint32_t mo_fit_depth(const memopt_fit *f, const uint8_t *set, uint32_t choice)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < f->choice_count; i++)
        depth +=
            set[i] && mo_fit_nest(f, choice, i) &&
            mo_fit_within(f, f->modules[f->choices[choice].module].enter, f->choices[i].module);
    return depth;
}

static memopt_status find_exclusions(memopt_fit *f)
{
    f->words = mo_ceil_div_u64(f->choice_count, 64);
    f->excludes = mo_calloc(f->choice_count * f->words + 1, sizeof *f->excludes);
    if (f->excludes == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint32_t a = 0; a < f->choice_count; a++)
        for (uint32_t b = 0; b < f->choice_count; b++)
            if (a != b && exclude(f, &f->choices[a], &f->choices[b]))
                f->excludes[a * f->words + b / 64] |= (uint64_t)1 << (b % 64);
    return MEMOPT_OK;
}

/* A copy, of at least one byte. */
static memopt_status copy(void **out, const void *from, uint64_t count, uint64_t size)
{
    *out = mo_calloc(count + 1, size);
    if (*out == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (count != 0)
        memcpy(*out, from, count * size);
    return MEMOPT_OK;
}

static memopt_status copy_tape(memopt_fit *f, const memopt_fit_tape *t)
{
    f->event_count = (uint32_t)t->event_count;
    f->storage_count = (uint32_t)t->storage_count;
    f->choice_count = (uint32_t)t->choice_count;
    f->input_count = (uint32_t)t->input_count;
    f->fixed = t->fixed_bytes;
    MO_TRY(copy((void **)&f->events, t->events, t->event_count, sizeof *t->events));
    MO_TRY(copy((void **)&f->bytes, t->storage_bytes, t->storage_count, sizeof *f->bytes));
    MO_TRY(copy((void **)&f->choices, t->choices, t->choice_count, sizeof *f->choices));
    MO_TRY(copy((void **)&f->inputs, t->inputs, t->input_count, sizeof *f->inputs));
    f->birth = mo_malloc((2 * t->storage_count + 1) * sizeof *f->birth);
    f->modules = mo_malloc((t->event_count + 1) * sizeof *f->modules);
    if (f->birth == NULL || f->modules == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    f->death = f->birth + t->storage_count;
    for (uint64_t i = 0; i < 2 * t->storage_count; i++)
        f->birth[i] = MEMOPT_FIT_NONE;
    for (uint64_t i = 0; i < t->event_count; i++)
        f->modules[i].enter = MEMOPT_FIT_NONE;
    return MEMOPT_OK;
}

static memopt_status build(memopt_fit *f, const memopt_fit_tape *tape)
{
    MO_TRY(copy_tape(f, tape));
    MO_TRY(read_events(f));
    for (uint32_t i = 0; i < f->choice_count; i++)
        MO_TRY(check_choice(f, i));
    MO_TRY(check_bytes(f));
    return find_exclusions(f);
}

static memopt_status check_counts(const memopt_fit_tape *t)
{
    if (t->event_count > MOST_EVENTS || t->storage_count > t->event_count ||
        t->choice_count > MO_FIT_CHOICES || t->input_count > UINT32_MAX / 8)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "fit: %" PRIu64 " events (at most %d), %" PRIu64
                       " storages (at most one an event), %" PRIu64
                       " choices (at most %d), %" PRIu64 " inputs",
                       t->event_count, MOST_EVENTS, t->storage_count, t->choice_count,
                       MO_FIT_CHOICES, t->input_count);
    if ((t->event_count != 0 && t->events == NULL) ||
        (t->storage_count != 0 && t->storage_bytes == NULL) ||
        (t->choice_count != 0 && t->choices == NULL) || (t->input_count != 0 && t->inputs == NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "fit: an array of the tape is NULL, and its count is not 0");
    return MEMOPT_OK;
}

memopt_status memopt_fit_create(const memopt_fit_tape *tape, memopt_fit **out_fit)
{
    memopt_fit_tape t;
    MO_NOT_NULL("fit", tape, out_fit);
    MO_TRY(mo_options_read(&t, sizeof t, tape, "memopt_fit_tape"));
    MO_TRY(check_counts(&t));
    memopt_fit *f = mo_calloc(1, sizeof *f);
    if (f == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = build(f, &t);
    if (status == MEMOPT_OK)
        *out_fit = f;
    else
        (void)memopt_fit_destroy(f);
    return status;
}

memopt_status memopt_fit_destroy(memopt_fit *fit)
{
    if (fit == NULL)
        return MEMOPT_OK;
    mo_free(fit->events);
    mo_free(fit->bytes);
    mo_free(fit->choices);
    mo_free(fit->inputs);
    mo_free(fit->birth);
    mo_free(fit->modules);
    mo_free(fit->excludes);
    mo_free(fit);
    return MEMOPT_OK;
}
