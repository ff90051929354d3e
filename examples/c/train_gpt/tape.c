/*
 * Writing a tape and planning from it (tape.h).
 */
#include "tape.h"

#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* A byte that is copied costs as much time as so many operations of a matrix product. Only the ratio
 * matters: it decides whether a layer is recomputed or its values are sent away. */
#define OPERATIONS_PER_BYTE 20

typedef struct place {
    const char *name;
    uint32_t number;
    uint64_t first_event;
} place;

struct tape {
    memopt_fit_event *events;
    uint64_t *bytes; /* by storage, as the next */
    const char **whats;
    memopt_fit_choice *choices;
    uint32_t **targets; /* by choice: what is set to 1 if it is chosen */
    place *places;
    uint64_t event_count, storage_count, choice_count, place_count;
    uint32_t packs;
    memopt_status status;
};

tape *tape_create(void)
{
    return calloc(1, sizeof(tape));
}

void tape_free(tape *t)
{
    if (!t)
        return;
    free(t->events);
    free(t->bytes);
    free(t->whats);
    free(t->choices);
    free(t->targets);
    free(t->places);
    free(t);
}

/* --- writing ------------------------------------------------------------------------------- */

/* Room for element number `count`: arrays double. 0 after an error. */
static int has_room(tape *t, void *array, uint64_t count, size_t size)
{
    void *old, *grown;
    if (t->status != MEMOPT_OK || (count & (count - 1)) != 0)
        return t->status == MEMOPT_OK;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, (count ? 2 * count : 1) * size);
    if (!grown) {
        t->status = gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "tape: no memory for %llu elements",
                             (unsigned long long)count);
        return 0;
    }
    memcpy(array, &grown, sizeof grown);
    return 1;
}

static void write_event(tape *t, uint32_t kind, uint64_t subject, uint64_t storage)
{
    if (has_room(t, &t->events, t->event_count, sizeof *t->events))
        t->events[t->event_count++] =
            (memopt_fit_event){kind, (uint32_t)subject, (uint32_t)storage};
}

static void write_choice(tape *t, const memopt_fit_choice *choice, uint32_t *target)
{
    if (!has_room(t, &t->choices, t->choice_count, sizeof *t->choices) ||
        !has_room(t, &t->targets, t->choice_count, sizeof *t->targets))
        return;
    t->choices[t->choice_count] = *choice;
    t->targets[t->choice_count++] = target;
}

/* A block's pointer is its storage's number + 1. */
static uint64_t storage_of(const void *block)
{
    return (uint64_t)(uintptr_t)block - 1;
}

void *tape_birth(tape *t, uint64_t bytes, const char *what)
{
    uint64_t storage = t->storage_count;
    if (has_room(t, &t->bytes, storage, sizeof *t->bytes) &&
        has_room(t, &t->whats, storage, sizeof *t->whats)) {
        t->bytes[storage] = bytes;
        t->whats[storage] = what;
        t->storage_count++;
    }
    write_event(t, MEMOPT_FIT_BIRTH, storage, 0);
    return (void *)(uintptr_t)(storage + 1);
}

void tape_death(tape *t, const void *block)
{
    write_event(t, MEMOPT_FIT_DEATH, storage_of(block), 0);
}

uint64_t tape_pack(tape *t, const void *block, uint32_t *away)
{
    uint64_t storage = storage_of(block);
    memopt_fit_choice choice = {.kind = MEMOPT_FIT_OFFLOAD,
                                .module = MEMOPT_FIT_NONE,
                                .storage = (uint32_t)storage,
                                .first_pack = t->packs};
    if (t->status != MEMOPT_OK)
        return 0;
    choice.seconds = 2.0 * OPERATIONS_PER_BYTE * (double)t->bytes[storage]; /* there and back */
    if (away)
        write_choice(t, &choice, away);
    write_event(t, MEMOPT_FIT_PACK, t->packs++, storage);
    return t->packs;
}

void tape_unpack(tape *t, uint64_t pack)
{
    write_event(t, MEMOPT_FIT_UNPACK, pack - 1, 0);
}

void tape_release(tape *t, uint64_t pack)
{
    write_event(t, MEMOPT_FIT_RELEASE, pack - 1, 0);
}

void tape_enter(tape *t, uint32_t layer, double operations, uint32_t *again)
{
    memopt_fit_choice choice = {
        .kind = MEMOPT_FIT_RECOMPUTE, .module = layer, .seconds = operations};
    write_choice(t, &choice, again);
    write_event(t, MEMOPT_FIT_ENTER, layer, 0);
}

void tape_leave(tape *t, uint32_t layer)
{
    write_event(t, MEMOPT_FIT_LEAVE, layer, 0);
}

void tape_backward(tape *t)
{
    write_event(t, MEMOPT_FIT_BACKWARD, 0, 0);
}

void tape_place(tape *t, const char *name, uint32_t number)
{
    if (has_room(t, &t->places, t->place_count, sizeof *t->places))
        t->places[t->place_count++] = (place){name, number, t->event_count};
}

/* --- planning ------------------------------------------------------------------------------ */

static memopt_status refuse(const tape *t, uint64_t fixed, uint64_t budget,
                            const memopt_fit_result *floor)
{
    char asked[SIZE_TEXT], least[SIZE_TEXT], always[SIZE_TEXT], rest[SIZE_TEXT], one[SIZE_TEXT];
    const char *what = "nothing";
    place at = {"the step", 0, 0};
    uint64_t largest = 0;
    for (uint64_t i = 0; i < t->place_count; i++)
        if (t->places[i].first_event <= floor->peak_event)
            at = t->places[i];
    if (floor->peak_storage != MEMOPT_FIT_NONE) {
        largest = t->bytes[floor->peak_storage];
        what = t->whats[floor->peak_storage];
    }
    return gpt_fail(
        MEMOPT_LIMIT_REACHED,
        "budget: %s is below the floor of %s (%llu bytes), which is reached in %s %u: %s "
        "are weights, gradients and optimizer states, %s are values of that moment, "
        "the largest of them %s of %s; raise --budget, or lower --batch or --context",
        size_text(asked, budget), size_text(least, floor->peak_bytes),
        (unsigned long long)floor->peak_bytes, at.name, at.number, size_text(always, fixed),
        size_text(rest, floor->peak_bytes - fixed), what, size_text(one, largest));
}

static void apply(const tape *t, const uint32_t *chosen, uint64_t count, fit_figures *f)
{
    for (uint64_t i = 0; i < count; i++) {
        *t->targets[chosen[i]] = 1;
        if (t->choices[chosen[i]].kind == MEMOPT_FIT_RECOMPUTE)
            f->recomputed++;
        else
            f->sent++;
    }
}

static memopt_status solve(const tape *t, const memopt_fit *fit, const memopt_fit_options *how,
                           uint32_t *chosen, fit_figures *f)
{
    memopt_fit_result result = MEMOPT_FIT_RESULT_INIT;
    memopt_fit_options least = *how;
    uint64_t count = 0;
    least.budget = 0;
    TRY(memopt_fit_replay(fit, NULL, 0, &result));
    f->plain = result.peak_bytes;
    memopt_status status = memopt_fit_solve(fit, how, chosen, &count, &result);
    if (status == MEMOPT_LIMIT_REACHED) {
        TRY(memopt_fit_solve(fit, &least, chosen, &count, &result));
        return refuse(t, f->fixed, how->budget, &result);
    }
    TRY(status);
    f->planned = result.peak_bytes;
    f->host = result.host_bytes;
    apply(t, chosen, count, f);
    return MEMOPT_OK;
}

memopt_status tape_fit(tape *t, uint64_t fixed, uint64_t budget, uint64_t host_limit,
                       fit_figures *out_figures)
{
    memopt_fit_options how = {sizeof how, budget, host_limit, 0};
    memopt_fit_tape given = MEMOPT_FIT_TAPE_INIT;
    memopt_fit *fit = NULL;
    fit_figures f = {.budget = budget, .fixed = fixed};
    TRY(t->status);
    given.events = t->events;
    given.event_count = t->event_count;
    given.storage_bytes = t->bytes;
    given.storage_count = t->storage_count;
    given.choices = t->choices;
    given.choice_count = t->choice_count;
    given.fixed_bytes = fixed;
    TRY(memopt_fit_create(&given, &fit));
    uint32_t *chosen = malloc((t->choice_count + 1) * sizeof *chosen);
    memopt_status status = chosen
                               ? solve(t, fit, &how, chosen, &f)
                               : gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "tape: no memory for a plan");
    free(chosen);
    TRY(memopt_fit_destroy(fit));
    if (status == MEMOPT_OK)
        *out_figures = f;
    return status;
}
