/*
 * The streamer: carries out what the schedule decides, by copies of the offloader.
 *
 * Order. The streamer has a stream of its own, `order`, which does no work but says when the arena's
 * memory is free. What waits for what:
 *
 *   end      order waits for the caller's stream.
 *   leave    order waits for the layer's copies to the arena and, if it was written, to the store.
 *            Then its memory is free in order.
 *   fetch    the copies start after order's work so far.
 *   begin    the caller's stream waits for the layer's copies to the arena and to the store.
 *
 * A layer leaves only without uses, so a place is never taken that a later end would free.
 */
#include "memopt/stream.h"
#include "stream/rehearse.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/device.h"

#include <inttypes.h>
#include <string.h>

typedef struct part {
    memopt_stream_part of;
    uint64_t offset; /* in the layer */
} part;

typedef struct streamed {
    part *parts;
    uint32_t count;
    int written; /* copies to the store may read its memory */
} streamed;

struct memopt_streamer {
    memopt_device *device;
    memopt_offloader *offloader;
    unsigned char *arena;
    memopt_stream order;
    memopt_event *ready; /* recorded on a caller's stream and waited for at once */
    mo_schedule schedule;
    streamed *layers;
    uint64_t layer_capacity;
    memopt_stream_stats stats;
};

/* --- moving layers */

static unsigned char *part_memory(const memopt_streamer *s, uint32_t number, uint32_t i)
{
    return s->arena + s->schedule.layers[number].offset + s->layers[number].parts[i].offset;
}

/* Later work of order comes after the layer's copies, whether they went well or not. */
static memopt_status wait_for_copies(memopt_streamer *s, uint32_t number)
{
    const streamed *l = &s->layers[number];
    for (uint32_t i = 0; i < l->count; i++) {
        memopt_ticket ticket = l->parts[i].of.ticket;
        memopt_status status = memopt_offloader_wait_unpacked(s->offloader, ticket, s->order);
        if (status == MEMOPT_OK && l->written)
            status = memopt_offloader_wait_packed(s->offloader, ticket, s->order);
        if (status == MEMOPT_NOT_FOUND) /* released: its copies cannot be named any more */
            status = memopt_device_sync(s->device);
        if (status != MEMOPT_OK && status != MEMOPT_IO_ERROR && status != MEMOPT_CORRUPT)
            return status;
    }
    return MEMOPT_OK;
}

static void note_absent(memopt_streamer *s, uint32_t number)
{
    const mo_placed *placed = &s->schedule.layers[number];
    mo_note_free(s->device, s->arena + placed->offset, placed->bytes, s->order);
}

static memopt_status leave(memopt_streamer *s, uint32_t number)
{
    MO_TRY(wait_for_copies(s, number));
    note_absent(s, number);
    s->layers[number].written = 0;
    mo_schedule_remove(&s->schedule, number);
    return MEMOPT_OK;
}

/* Those that the schedule has chosen. */
static memopt_status make_room(memopt_streamer *s)
{
    for (uint32_t i = s->schedule.placed_count; i-- > 0;)
        if (s->schedule.layers[s->schedule.placed[i]].goes)
            MO_TRY(leave(s, s->schedule.placed[i]));
    return MEMOPT_OK;
}

/* Starts the copy of a part. `needed`: without host memory to read the disk into, waits for it. */
static memopt_status fetch_part(memopt_streamer *s, uint32_t number, uint32_t i, int needed)
{
    const memopt_stream_part *of = &s->layers[number].parts[i].of;
    void *to = part_memory(s, number, i);
    memopt_status status =
        memopt_offloader_prefetch_into(s->offloader, of->ticket, to, of->bytes, s->order);
    if (status != MEMOPT_LIMIT_REACHED || !needed)
        return status;
    memopt_offloader_request request = MEMOPT_OFFLOADER_REQUEST_INIT;
    request.offloader = s->offloader;
    request.stream = s->order;
    request.data = to;
    request.bytes = of->bytes;
    request.ticket = of->ticket;
    return memopt_offloader_request_unpack(&request);
}

/* Starts the copies of a layer to a place from which the others were chosen to leave. On failure it
 * has no place. */
static memopt_status fetch(memopt_streamer *s, uint32_t number, uint64_t offset, int needed)
{
    const streamed *l = &s->layers[number];
    memopt_status status = make_room(s);
    if (status != MEMOPT_OK)
        return status;
    mo_schedule_put(&s->schedule, number, offset);
    mo_note_alloc(s->device, s->arena + offset, s->schedule.layers[number].bytes, s->order);
    for (uint32_t i = 0; i < l->count && status == MEMOPT_OK; i++)
        status = fetch_part(s, number, i, needed);
    if (status == MEMOPT_OK) {
        s->stats.copies++;
        s->stats.copied_bytes += s->schedule.layers[number].bytes;
        return MEMOPT_OK;
    }
    mo_error_record reason = *mo_error_here();
    if (wait_for_copies(s, number) != MEMOPT_OK)
        (void)memopt_device_sync(s->device);
    *mo_error_here() = reason;
    note_absent(s, number);
    mo_schedule_remove(&s->schedule, number);
    return status;
}

/* Fetches what is expected next, as far as there is room. */
static void fetch_ahead(memopt_streamer *s)
{
    uint64_t offset;
    uint32_t next;
    mo_error_record before = *mo_error_here();
    while ((next = mo_schedule_ahead(&s->schedule, &offset)) != MO_NO_LAYER)
        if (fetch(s, next, offset, 0) != MEMOPT_OK) {
            *mo_error_here() = before; /* the call that needs the layer tells */
            return;
        }
}

/* --- making and ending */

static memopt_status dismantle(memopt_streamer *s)
{
    memopt_status first = MEMOPT_OK;
    for (uint32_t i = 0; i < s->schedule.count; i++) {
        if (s->schedule.layers[i].placed)
            mo_keep_first(&first, wait_for_copies(s, i));
        mo_free(s->layers[i].parts);
    }
    if (first != MEMOPT_OK) /* a copy may still write to the arena */
        (void)memopt_device_sync(s->device);
    if (s->order != NULL)
        mo_keep_first(&first, memopt_stream_destroy(s->device, s->order));
    mo_keep_first(&first, memopt_event_destroy(s->ready));
    mo_keep_first(&first, mo_mem_free(s->device, s->arena, s->schedule.budget));
    mo_schedule_close(&s->schedule);
    mo_free(s->layers);
    mo_free(s);
    return first;
}

static memopt_status assemble(memopt_streamer *s)
{
    void *arena = NULL;
    MO_TRY(memopt_stream_create(s->device, &s->order));
    MO_TRY(memopt_event_create(s->device, 0, &s->ready));
    MO_TRY(mo_mem_alloc(s->device, s->schedule.budget, &arena));
    s->arena = arena;
    mo_note_free(s->device, s->arena, s->schedule.budget, s->order);
    return MEMOPT_OK;
}

memopt_status memopt_streamer_create(memopt_device *device, memopt_offloader *offloader,
                                     uint64_t budget, memopt_streamer **out_streamer)
{
    MO_NOT_NULL("streamer_create", device, offloader, out_streamer);
    MO_TRY(mo_check_process(device, "streamer_create"));
    if (budget < MO_ARENA_UNIT)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "streamer_create: budget is %llu bytes; it must be 512 at least",
                       (unsigned long long)budget);
    memopt_streamer *s = mo_calloc(1, sizeof *s);
    if (s == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    s->device = device;
    s->offloader = offloader;
    s->stats.struct_size = sizeof s->stats;
    mo_schedule_open(&s->schedule, budget / MO_ARENA_UNIT * MO_ARENA_UNIT);
    memopt_status status = assemble(s);
    if (status != MEMOPT_OK) {
        (void)dismantle(s);
        return status;
    }
    *out_streamer = s;
    return MEMOPT_OK;
}

memopt_status memopt_streamer_destroy(memopt_streamer *streamer)
{
    if (streamer == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(streamer->device, "streamer_destroy"));
    for (uint32_t i = 0; i < streamer->schedule.count; i++)
        if (streamer->schedule.layers[i].uses != 0)
            return mo_fail(
                MEMOPT_BUSY,
                "streamer_destroy: layer %u has begun %u times without an end; end it, or "
                "use memopt_streamer_destroy_force()",
                i, streamer->schedule.layers[i].uses);
    int lost = mo_device_lost(streamer->device);
    return mo_end_status(lost, dismantle(streamer));
}

memopt_status memopt_streamer_destroy_force(memopt_streamer *streamer)
{
    if (streamer == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(streamer->device, "streamer_destroy_force"));
    int lost = mo_device_lost(streamer->device);
    memopt_status first = memopt_device_sync(streamer->device);
    mo_keep_first(&first, dismantle(streamer));
    return mo_end_status(lost, first);
}

/* --- layers */

/* The layer's bytes in the arena; 0 where they do not fit 64 bits. */
static uint64_t layer_bytes(const memopt_stream_part *parts, uint32_t count)
{
    uint64_t all = 0, rounded;
    for (uint32_t i = 0; i < count; i++)
        if (!mo_round_up_u64(parts[i].bytes, MO_STREAM_STEP, &rounded) ||
            !mo_add_u64(all, rounded, &all))
            return 0;
    return all;
}

static memopt_status check_parts(memopt_streamer *s, const memopt_stream_part *parts,
                                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].bytes == 0)
            return mo_fail(MEMOPT_INVALID_ARGUMENT, "streamer_add: part %u of %u has 0 bytes", i,
                           count);
        memopt_status status = memopt_offloader_query_packed(s->offloader, parts[i].ticket);
        if (status != MEMOPT_OK && status != MEMOPT_NOT_READY)
            return status;
    }
    uint64_t bytes = layer_bytes(parts, count);
    if (bytes == 0 || bytes > s->schedule.budget)
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "streamer_add: layer %u has %s in %u parts at steps of 256 bytes, more than "
                       "the budget of %s",
                       s->schedule.count, MO_SIZE(bytes == 0 ? UINT64_MAX : bytes), count,
                       MO_SIZE(s->schedule.budget));
    return MEMOPT_OK;
}

static part *copy_parts(const memopt_stream_part *parts, uint32_t count)
{
    uint64_t offset = 0;
    part *copy = mo_calloc(count, sizeof *copy);
    for (uint32_t i = 0; copy != NULL && i < count; i++) {
        copy[i] = (part){parts[i], offset};
        offset += mo_ceil_div_u64(parts[i].bytes, MO_STREAM_STEP) * MO_STREAM_STEP;
    }
    return copy;
}

memopt_status memopt_streamer_add(memopt_streamer *streamer, const memopt_stream_part *parts,
                                  uint32_t count, uint32_t *out_layer)
{
    memopt_streamer *s = streamer;
    MO_NOT_NULL("streamer_add", streamer, parts, out_layer);
    MO_TRY(mo_check_process(s->device, "streamer_add"));
    if (count == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "streamer_add: count is 0; a layer has a part");
    if (s->schedule.count > INT32_MAX)
        return mo_fail(MEMOPT_LIMIT_REACHED, "streamer_add: %u layers are there already",
                       s->schedule.count);
    MO_TRY(check_parts(s, parts, count));
    if (!mo_grow((void **)&s->layers, &s->layer_capacity, (uint64_t)s->schedule.count + 1,
                 sizeof *s->layers))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    streamed added = {copy_parts(parts, count), count, 0};
    if (added.parts == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint32_t number = 0;
    memopt_status status = mo_schedule_add(&s->schedule, layer_bytes(parts, count), &number);
    if (status != MEMOPT_OK) {
        mo_free(added.parts);
        return status;
    }
    s->layers[number] = added;
    *out_layer = number;
    return MEMOPT_OK;
}

/* --- use */

static memopt_status check_layer(const memopt_streamer *streamer, uint32_t number, const char *call)
{
    MO_NOT_NULL(call, streamer);
    MO_TRY(mo_check_process(streamer->device, call));
    if (number >= streamer->schedule.count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: layer %u is not one of the %u layers", call,
                       number, streamer->schedule.count);
    return MEMOPT_OK;
}

static memopt_status check_stream(const memopt_streamer *s, memopt_stream stream, const char *call)
{
    int32_t capturing = 0;
    MO_TRY(mo_stream_capturing(s->device, stream, &capturing));
    return !capturing ? MEMOPT_OK
                      : mo_fail(MEMOPT_UNSUPPORTED,
                                "%s: stream %p records a graph, and a layer has another address "
                                "each time",
                                call, (void *)stream);
}

static memopt_status check_used(const memopt_streamer *s, uint32_t number, const char *call)
{
    return s->schedule.layers[number].uses != 0
               ? MEMOPT_OK
               : mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: layer %u is not in use; begin it first",
                         call, number);
}

/* Brings a layer that is needed now. */
static memopt_status bring(memopt_streamer *s, uint32_t number)
{
    uint64_t offset, in_use = 0;
    uint32_t used = 0;
    if (mo_schedule_place(&s->schedule, number, &offset)) {
        MO_TRY(fetch(s, number, offset, 1));
        s->stats.late++;
        return MEMOPT_OK;
    }
    for (uint32_t i = 0; i < s->schedule.count; i++)
        if (s->schedule.layers[i].uses != 0) {
            in_use += s->schedule.layers[i].bytes;
            used++;
        }
    return mo_fail(
        MEMOPT_LIMIT_REACHED,
        "streamer_begin: layer %u needs %s in one piece; %u layers in use have %s of the "
        "budget of %s; end one first",
        number, MO_SIZE(s->schedule.layers[number].bytes), used, MO_SIZE(in_use),
        MO_SIZE(s->schedule.budget));
}

/* The stream waits for the layer's copies. A layer that the disk did not return is absent again. */
static memopt_status make_ready(memopt_streamer *s, uint32_t number, memopt_stream stream)
{
    const streamed *l = &s->layers[number];
    memopt_status status = MEMOPT_OK;
    for (uint32_t i = 0; i < l->count && status == MEMOPT_OK; i++) {
        status = memopt_offloader_wait_unpacked(s->offloader, l->parts[i].of.ticket, stream);
        if (status == MEMOPT_OK && l->written) /* this use may change what is being copied */
            status = memopt_offloader_wait_packed(s->offloader, l->parts[i].of.ticket, stream);
    }
    if (status != MEMOPT_OK && s->schedule.layers[number].uses == 0) {
        mo_error_record reason = *mo_error_here();
        (void)leave(s, number);
        *mo_error_here() = reason;
    }
    return status;
}

memopt_status memopt_streamer_begin(memopt_streamer *streamer, uint32_t layer, memopt_stream stream,
                                    void **out_parts)
{
    memopt_streamer *s = streamer;
    MO_TRY(check_layer(streamer, layer, "streamer_begin"));
    MO_NOT_NULL("streamer_begin", out_parts);
    MO_TRY(check_stream(s, stream, "streamer_begin"));
    if (!s->schedule.layers[layer].placed)
        MO_TRY(bring(s, layer));
    MO_TRY(make_ready(s, layer, stream));
    s->schedule.layers[layer].uses++;
    s->stats.begins++;
    mo_schedule_use(&s->schedule, layer);
    for (uint32_t i = 0; i < s->layers[layer].count; i++)
        out_parts[i] = part_memory(s, layer, i);
    fetch_ahead(s);
    return MEMOPT_OK;
}

memopt_status memopt_streamer_end(memopt_streamer *streamer, uint32_t layer, memopt_stream stream)
{
    memopt_streamer *s = streamer;
    MO_TRY(check_layer(streamer, layer, "streamer_end"));
    MO_TRY(check_used(s, layer, "streamer_end"));
    MO_TRY(check_stream(s, stream, "streamer_end"));
    MO_TRY(memopt_event_record(s->ready, stream));
    MO_TRY(memopt_stream_wait_event(s->device, s->order, s->ready));
    if (--s->schedule.layers[layer].uses == 0)
        fetch_ahead(s);
    return MEMOPT_OK;
}

static memopt_status check_order(const memopt_streamer *s, const uint32_t *layers, uint32_t count,
                                 const char *call)
{
    for (uint32_t i = 0; i < count; i++)
        MO_TRY(check_layer(s, layers[i], call));
    return MEMOPT_OK;
}

memopt_status memopt_streamer_expect(memopt_streamer *streamer, const uint32_t *layers,
                                     uint32_t count)
{
    MO_NOT_NULL("streamer_expect", streamer, layers);
    MO_TRY(mo_check_process(streamer->device, "streamer_expect"));
    if (count == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "streamer_expect: count is 0; a round has a layer");
    MO_TRY(check_order(streamer, layers, count, "streamer_expect"));
    mo_schedule_expect(&streamer->schedule, layers, count);
    fetch_ahead(streamer);
    return MEMOPT_OK;
}

memopt_status memopt_streamer_write(memopt_streamer *streamer, uint32_t layer, memopt_stream stream)
{
    memopt_streamer *s = streamer;
    MO_TRY(check_layer(streamer, layer, "streamer_write"));
    MO_TRY(check_used(s, layer, "streamer_write"));
    MO_TRY(check_stream(s, stream, "streamer_write"));
    for (uint32_t i = 0; i < s->layers[layer].count; i++) {
        const memopt_stream_part *of = &s->layers[layer].parts[i].of;
        s->layers[layer].written = 1;
        MO_TRY(
            memopt_offloader_rewrite(s->offloader, of->ticket, part_memory(s, layer, i), stream));
        s->stats.written_bytes += of->bytes;
    }
    return MEMOPT_OK;
}

memopt_status memopt_streamer_evict(memopt_streamer *streamer, uint32_t layer)
{
    memopt_streamer *s = streamer;
    MO_TRY(check_layer(streamer, layer, "streamer_evict"));
    if (s->schedule.layers[layer].uses != 0)
        return mo_fail(MEMOPT_BUSY,
                       "streamer_evict: layer %u has begun %u times without an end; end it first",
                       layer, s->schedule.layers[layer].uses);
    if (s->schedule.layers[layer].placed)
        MO_TRY(leave(s, layer));
    fetch_ahead(s);
    return MEMOPT_OK;
}

/* --- figures */

static memopt_status rehearse(const memopt_streamer *s, const char *call, const uint32_t *layers,
                              uint32_t count, const mo_pace *pace, mo_round *out_round)
{
    MO_TRY(mo_check_process(s->device, call));
    if ((layers == NULL) != (count == 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: layers is %s, but count is %u", call,
                       layers == NULL ? "NULL" : "given", count);
    MO_TRY(check_order(s, layers, count, call));
    return mo_schedule_rehearse(&s->schedule, layers, count, pace, out_round);
}

memopt_status memopt_streamer_get_limit(const memopt_streamer *streamer, const uint32_t *layers,
                                        uint32_t count, const double *work, double link,
                                        double *out_seconds)
{
    const mo_pace pace = {work, link};
    mo_round round;
    MO_NOT_NULL("streamer_get_limit", streamer, out_seconds);
    MO_NOT_NULL("streamer_get_limit", work);
    MO_TRY(mo_check_pace("streamer_get_limit", &pace,
                         layers != NULL ? count : 2 * (uint64_t)streamer->schedule.count));
    MO_TRY(rehearse(streamer, "streamer_get_limit", layers, count, &pace, &round));
    *out_seconds = round.seconds;
    return MEMOPT_OK;
}

memopt_status memopt_streamer_get_plan(const memopt_streamer *streamer, const uint32_t *layers,
                                       uint32_t count, memopt_stream_plan *out_plan)
{
    mo_round round;
    MO_NOT_NULL("streamer_get_plan", streamer, out_plan);
    MO_TRY(rehearse(streamer, "streamer_get_plan", layers, count, NULL, &round));
    return mo_write_plan(&streamer->schedule, &round, out_plan);
}

memopt_status memopt_streamer_get_stats(const memopt_streamer *streamer,
                                        memopt_stream_stats *out_stats)
{
    MO_NOT_NULL("streamer_get_stats", streamer, out_stats);
    MO_TRY(mo_check_process(streamer->device, "streamer_get_stats"));
    memopt_stream_stats now = streamer->stats;
    now.resident = streamer->schedule.placed_count;
    now.resident_bytes = streamer->schedule.bytes;
    now.resident_bytes_peak = streamer->schedule.bytes_peak;
    return mo_result_write(out_stats, &now, sizeof now, "memopt_stream_stats");
}
