/* Places in the arena and the order of use; see schedule.h. */
#include "stream/schedule.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <math.h>
#include <string.h>

void mo_schedule_open(mo_schedule *schedule, uint64_t budget)
{
    memset(schedule, 0, sizeof *schedule);
    schedule->budget = budget;
    schedule->before = schedule->now = MO_NO_LAYER;
}

void mo_schedule_close(mo_schedule *schedule)
{
    mo_free(schedule->layers);
    mo_free(schedule->placed);
    memset(schedule, 0, sizeof *schedule);
}

memopt_status mo_schedule_add(mo_schedule *schedule, uint64_t bytes, uint32_t *out_layer)
{
    uint64_t needed = (uint64_t)schedule->count + 1;
    MO_PRE(bytes <= schedule->budget && bytes % MO_STREAM_STEP == 0);
    if (!mo_grow((void **)&schedule->layers, &schedule->layer_capacity, needed,
                 sizeof *schedule->layers) ||
        !mo_grow((void **)&schedule->placed, &schedule->placed_capacity, needed,
                 sizeof *schedule->placed))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_placed *added = &schedule->layers[schedule->count];
    memset(added, 0, sizeof *added);
    added->bytes = bytes;
    for (int i = 0; i < MO_FOLLOWERS; i++)
        added->followers[i] = (mo_follower){MO_NO_LAYER, MO_NO_LAYER};
    *out_layer = schedule->count++;
    return MEMOPT_OK;
}

/* --- the order of use */

static void learn(mo_schedule *schedule, uint32_t before, uint32_t now, uint32_t next)
{
    if (now == MO_NO_LAYER)
        return;
    mo_placed *layer = &schedule->layers[now];
    for (int i = 0; i < MO_FOLLOWERS; i++)
        if (layer->followers[i].next != MO_NO_LAYER && layer->followers[i].before == before) {
            layer->followers[i].next = next;
            return;
        }
    layer->followers[layer->replaced] = (mo_follower){before, next};
    layer->replaced = (layer->replaced + 1) % MO_FOLLOWERS;
}

static uint32_t predict(const mo_schedule *schedule, uint32_t before, uint32_t now)
{
    for (int i = 0; now != MO_NO_LAYER && i < MO_FOLLOWERS; i++)
        if (schedule->layers[now].followers[i].before == before)
            return schedule->layers[now].followers[i].next;
    return MO_NO_LAYER;
}

void mo_schedule_use(mo_schedule *schedule, uint32_t layer)
{
    learn(schedule, schedule->before, schedule->now, layer);
    schedule->before = schedule->now;
    schedule->now = layer;
    schedule->layers[layer].used_at = ++schedule->clock;
}

void mo_schedule_expect(mo_schedule *schedule, const uint32_t *layers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        learn(schedule, layers[i], layers[(i + 1) % count], layers[(i + 2) % count]);
    if (schedule->now == MO_NO_LAYER) { /* as if a round had just ended */
        schedule->before = layers[(count - 1 + count - 1) % count];
        schedule->now = layers[count - 1];
    }
}

/* Sets next_use of all layers. */
static void look_ahead(mo_schedule *schedule)
{
    uint32_t before = schedule->before, now = schedule->now, known = 0;
    uint64_t far = 4 * (uint64_t)schedule->count + 4;
    for (uint32_t i = 0; i < schedule->count; i++)
        schedule->layers[i].next_use = UINT64_MAX;
    for (uint64_t steps = 1; steps <= far && known < schedule->count; steps++) {
        uint32_t next = predict(schedule, before, now);
        if (next == MO_NO_LAYER)
            return;
        if (schedule->layers[next].next_use == UINT64_MAX) {
            schedule->layers[next].next_use = steps;
            known++;
        }
        before = now;
        now = next;
    }
}

/* --- places */

void mo_schedule_put(mo_schedule *schedule, uint32_t layer, uint64_t offset)
{
    mo_placed *put = &schedule->layers[layer];
    uint32_t at = schedule->placed_count;
    MO_PRE(!put->placed && offset + put->bytes <= schedule->budget);
    for (; at > 0 && schedule->layers[schedule->placed[at - 1]].offset > offset; at--)
        schedule->placed[at] = schedule->placed[at - 1];
    schedule->placed[at] = layer;
    schedule->placed_count++;
    put->placed = 1;
    put->offset = offset;
    schedule->bytes += put->bytes;
    schedule->bytes_peak = mo_max_u64(schedule->bytes_peak, schedule->bytes);
}

void mo_schedule_remove(mo_schedule *schedule, uint32_t layer)
{
    mo_placed *removed = &schedule->layers[layer];
    uint32_t at = 0;
    MO_PRE(removed->placed && removed->uses == 0);
    while (schedule->placed[at] != layer)
        at++;
    schedule->placed_count--;
    memmove(&schedule->placed[at], &schedule->placed[at + 1],
            (schedule->placed_count - at) * sizeof *schedule->placed);
    removed->placed = removed->goes = 0;
    schedule->bytes -= removed->bytes;
}

/* The first gap between the layers that stay. */
static int first_fit(const mo_schedule *schedule, uint64_t bytes, uint64_t *out_offset)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < schedule->placed_count; i++) {
        const mo_placed *layer = &schedule->layers[schedule->placed[i]];
        if (layer->goes)
            continue;
        if (layer->offset - end >= bytes) {
            *out_offset = end;
            return 1;
        }
        end = layer->offset + layer->bytes;
    }
    *out_offset = end;
    return schedule->budget - end >= bytes;
}

/* The layer that is needed last of those that may go and stay so far; NULL: there is none. */
static mo_placed *needed_last(mo_schedule *schedule, uint64_t later_than)
{
    mo_placed *last = NULL;
    for (uint32_t i = 0; i < schedule->placed_count; i++) {
        mo_placed *layer = &schedule->layers[schedule->placed[i]];
        if (layer->uses != 0 || layer->goes || layer->next_use <= later_than)
            continue;
        if (last == NULL || layer->next_use > last->next_use ||
            (layer->next_use == last->next_use && layer->used_at < last->used_at))
            last = layer;
    }
    return last;
}

/* Those that are chosen, but not in the way, stay. */
static void keep_others(mo_schedule *schedule, int found, uint64_t offset, uint64_t bytes)
{
    for (uint32_t i = 0; i < schedule->placed_count; i++) {
        mo_placed *layer = &schedule->layers[schedule->placed[i]];
        layer->goes = layer->goes && found && layer->offset < offset + bytes &&
                      offset < layer->offset + layer->bytes;
    }
}

static int place(mo_schedule *schedule, uint32_t layer, uint64_t later_than, uint64_t *out_offset)
{
    uint64_t bytes = schedule->layers[layer].bytes;
    int found = first_fit(schedule, bytes, out_offset);
    while (!found) {
        mo_placed *last = needed_last(schedule, later_than);
        if (last == NULL)
            break;
        last->goes = 1;
        found = first_fit(schedule, bytes, out_offset);
    }
    keep_others(schedule, found, *out_offset, bytes);
    return found;
}

int mo_schedule_place(mo_schedule *schedule, uint32_t layer, uint64_t *out_offset)
{
    MO_PRE(!schedule->layers[layer].placed);
    look_ahead(schedule);
    return place(schedule, layer, 0, out_offset);
}

uint32_t mo_schedule_ahead(mo_schedule *schedule, uint64_t *out_offset)
{
    uint32_t next = MO_NO_LAYER;
    look_ahead(schedule);
    for (uint32_t i = 0; i < schedule->count; i++) {
        const mo_placed *layer = &schedule->layers[i];
        if (!layer->placed && layer->next_use != UINT64_MAX &&
            (next == MO_NO_LAYER || layer->next_use < schedule->layers[next].next_use))
            next = i;
    }
    if (next != MO_NO_LAYER && !place(schedule, next, schedule->layers[next].next_use, out_offset))
        next = MO_NO_LAYER;
    return next;
}

/* --- a rehearsal */

typedef struct rehearsal {
    mo_schedule schedule;
    mo_round round;
    double link;      /* bytes a second; infinite: copies take no time */
    double free, now; /* when the link is free, and the work done */
} rehearsal;

static void move_in(rehearsal *r, uint32_t layer, uint64_t offset)
{
    mo_schedule *s = &r->schedule;
    mo_placed *in = &s->layers[layer];
    for (uint32_t i = s->placed_count; i-- > 0;) {
        const mo_placed *out = &s->layers[s->placed[i]];
        if (!out->goes)
            continue;
        r->free = out->ended > r->free ? out->ended : r->free;
        mo_schedule_remove(s, s->placed[i]);
    }
    mo_schedule_put(s, layer, offset);
    r->round.copies++;
    r->round.bytes += in->bytes;
    in->ready = r->free += (double)in->bytes / r->link;
}

static void fetch_all(rehearsal *r)
{
    uint64_t offset;
    for (uint32_t next; (next = mo_schedule_ahead(&r->schedule, &offset)) != MO_NO_LAYER;)
        move_in(r, next, offset);
}

static void rehearse_use(rehearsal *r, uint32_t layer, double work)
{
    uint64_t offset;
    mo_placed *used = &r->schedule.layers[layer];
    if (!used->placed && mo_schedule_place(&r->schedule, layer, &offset))
        move_in(r, layer, offset);
    mo_schedule_use(&r->schedule, layer);
    used->uses = 1;
    r->now = (used->ready > r->now ? used->ready : r->now) + work;
    used->ended = r->now;
    fetch_all(r);
    used->uses = 0;
    fetch_all(r);
}

static memopt_status add_all(mo_schedule *copy, const mo_schedule *from)
{
    uint32_t layer;
    for (uint32_t i = 0; i < from->count; i++)
        MO_TRY(mo_schedule_add(copy, from->layers[i].bytes, &layer));
    return MEMOPT_OK;
}

memopt_status mo_schedule_rehearse(const mo_schedule *schedule, const uint32_t *layers,
                                   uint32_t count, const mo_pace *pace, mo_round *out_round)
{
    enum { ROUNDS = 4 }; /* the last one begins where it ends */
    uint32_t both = 2 * schedule->count;
    rehearsal r = {.link = pace == NULL ? INFINITY : pace->link};
    mo_schedule_open(&r.schedule, schedule->budget);
    memopt_status status = add_all(&r.schedule, schedule);
    for (int n = 0; status == MEMOPT_OK && n < ROUNDS; n++) {
        const double start = r.now;
        r.round = (mo_round){0};
        for (uint32_t i = 0; i < (layers != NULL ? count : both); i++) {
            uint32_t pass = i < schedule->count ? i : both - 1 - i;
            rehearse_use(&r, layers != NULL ? layers[i] : pass, pace == NULL ? 0 : pace->work[i]);
        }
        r.round.resident = r.schedule.placed_count;
        r.round.seconds = r.now - start;
    }
    mo_schedule_close(&r.schedule);
    if (status == MEMOPT_OK)
        *out_round = r.round;
    return status;
}
