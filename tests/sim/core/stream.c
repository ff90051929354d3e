/*
 * Streams, events and the adversarial scheduler.
 *
 * Every operation carries the clock of all that it comes after: what was enqueued on its stream
 * before, what its stream waited for, and what the host had seen done. It may run as soon as the
 * streams have come that far. Nothing runs until a thread waits for it; then, before each operation
 * that is needed, the seed may let another stream run one of its own that is allowed, late ones
 * first. With MEMOPT_SIM_EAGER=1 operations run when they are enqueued.
 *
 * `busy` is the right to run operations, held by one thread at a time while it gives up the lock
 * around host functions.
 */
#include "core/control.h"
#include "core/sim.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_MAGIC 0x73747265616D3031u
#define EVENT_MAGIC 0x6576656E74303031u

static sim_stream *slots[SIM_SLOTS];
static uint32_t slot_clocks[SIM_SLOTS]; /* where the slot's last stream ended */
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static int busy;
static uint64_t enqueued; /* operations of all streams */

void sim_join(sim_clock *into, const sim_clock *other)
{
    for (int i = 0; i < SIM_SLOTS; i++)
        if (into->at[i] < other->at[i])
            into->at[i] = other->at[i];
}

/* --- the scheduler ------------------------------------------------------------------------- */

/* The first slot that has not come as far as the stream's next operation needs; -1: none. */
static int blocker(const sim_stream *stream)
{
    const sim_op *op = stream->head;
    for (int i = 0; i < SIM_SLOTS; i++)
        if (i != stream->slot && op->needs.at[i] > slot_clocks[i] &&
            (slots[i] == NULL || op->needs.at[i] > slots[i]->completed))
            return slots[i] != NULL ? i : -1;
    return -1;
}

/* The stream whose next operation has to run for `stream` to go on. */
static sim_stream *runnable(sim_stream *stream)
{
    for (int at = blocker(stream); at >= 0; at = blocker(stream))
        stream = slots[at];
    return stream;
}

/* Another stream that may run now: the one whose next operation is the latest, or by the seed. */
static sim_stream *overtaker(const sim_stream *needed)
{
    sim_stream *chosen = NULL;
    uint64_t found = 0;
    if (sim_random() % 2 == 0)
        return NULL;
    for (sim_stream *s = sim_streams; s != NULL; s = s->next)
        if (s != needed && s->head != NULL && blocker(s) < 0 &&
            (chosen == NULL || s->head->site > chosen->head->site || sim_random() % ++found == 0))
            chosen = s;
    return chosen;
}

static void run_head(sim_stream *stream)
{
    sim_op *op = stream->head;
    sim_op_run(op);
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    stream->completed = op->clock;
    sim_op_free(op);
}

static void force(sim_stream *stream, uint32_t target)
{
    if (stream->completed >= target)
        return;
    while (busy)
        pthread_cond_wait(&progress, &sim_lock);
    busy = 1;
    while (stream->completed < target) {
        sim_stream *needed = runnable(stream);
        sim_stream *other = overtaker(needed);
        run_head(other != NULL ? other : needed);
    }
    busy = 0;
    pthread_cond_broadcast(&progress);
}

/* The host has seen the stream's work up to `clock`, and so all that came before it. */
static void host_saw(const sim_clock *clock)
{
    sim_join(&sim_host_clock, clock);
}

SIM_EXPORT void memopt_sim_advance(uint64_t operations)
{
    pthread_mutex_lock(&sim_lock);
    enqueued += operations;
    pthread_mutex_unlock(&sim_lock);
}

/* The program polls; now and then the device gets on. With a lag it has come so far. */
static int polled_enough(uint64_t number, uint32_t *polls)
{
    enum { MOST_POLLS = 8 };
    if (sim_options.lag != 0)
        return sim_options.lag <= enqueued && number <= enqueued - sim_options.lag;
    if (++*polls < MOST_POLLS && sim_random() % 4 != 0)
        return 0;
    *polls = 0;
    return 1;
}

/* --- streams ------------------------------------------------------------------------------- */

sim_status sim_stream_create(sim_context *context, int blocking, sim_stream **out_stream)
{
    static int last_slot = SIM_SLOTS - 1; /* in turn, so that dead streams are remembered long */
    int slot = (last_slot + 1) % SIM_SLOTS;
    while (slots[slot] != NULL && slot != last_slot)
        slot = (slot + 1) % SIM_SLOTS;
    sim_stream *stream = slots[slot] == NULL ? sim_handle_new(sizeof *stream) : NULL;
    if (stream == NULL)
        return SIM_OUT_OF_MEMORY;
    last_slot = slot;
    stream->magic = STREAM_MAGIC;
    stream->context = context;
    stream->slot = (uint16_t)slot;
    stream->blocking = blocking;
    stream->submitted = stream->completed = slot_clocks[slot];
    stream->next = sim_streams;
    sim_streams = stream;
    slots[slot] = stream;
    *out_stream = stream;
    return SIM_OK;
}

/* Handles are never reused, so a dead one is known for what it is. */
sim_status sim_stream_check(const sim_stream *stream, const sim_context *context)
{
    if ((uintptr_t)stream < SIM_PAGE || (uintptr_t)stream % sizeof(void *) != 0 ||
        stream->magic != STREAM_MAGIC)
        return SIM_INVALID_HANDLE;
    if (stream->destroyed)
        return sim_options.dead_stream == 709 ? SIM_CONTEXT_DESTROYED : SIM_INVALID_HANDLE;
    return context == NULL || stream->context == context ? SIM_OK : SIM_INVALID_HANDLE;
}

/* All that the stream has been given, and what came before it. */
static sim_clock reach(const sim_stream *stream)
{
    sim_clock reached = stream->clock;
    reached.at[stream->slot] = stream->submitted;
    return reached;
}

/* The work that is left still runs; here before the call returns, which no program can tell. */
sim_status sim_stream_destroy(sim_stream *stream)
{
    sim_stream **link = &sim_streams;
    sim_capture_leave(stream);
    force(stream, stream->submitted);
    sim_clock reached = reach(stream);
    sim_join(&stream->context->ended, &reached);
    while (*link != NULL && *link != stream)
        link = &(*link)->next;
    if (*link == NULL)
        return SIM_INVALID_HANDLE;
    *link = stream->next;
    slot_clocks[stream->slot] = stream->completed;
    slots[stream->slot] = NULL;
    stream->destroyed = 1;
    return stream->context->sticky;
}

static void wait_for(sim_stream *stream)
{
    sim_clock reached = reach(stream);
    force(stream, stream->submitted);
    host_saw(&reached);
}

sim_status sim_stream_sync(sim_stream *stream)
{
    if (stream->capture != NULL)
        return sim_capture_break(stream->capture, SIM_CAPTURE_UNSUPPORTED);
    wait_for(stream);
    return stream->context->sticky;
}

sim_status sim_stream_query(sim_stream *stream)
{
    if (stream->capture != NULL)
        return sim_capture_break(stream->capture, SIM_CAPTURE_UNSUPPORTED);
    if (stream->completed < stream->submitted && !polled_enough(stream->number, &stream->polls))
        return SIM_NOT_READY;
    return sim_stream_sync(stream);
}

void sim_context_wait(const sim_context *context)
{
    for (int slot = 0; slot < SIM_SLOTS; slot++)
        if (slots[slot] != NULL && slots[slot]->context == context)
            wait_for(slots[slot]);
    host_saw(&context->ended);
}

sim_status sim_context_sync(sim_context *context)
{
    sim_status status = SIM_OK;
    for (sim_stream *s = sim_streams; s != NULL; s = s->next)
        if (s->context == context && s->capture != NULL)
            status = sim_capture_break(s->capture, SIM_CAPTURE_UNSUPPORTED);
    if (status != SIM_OK)
        return status;
    sim_context_wait(context);
    return context->sticky;
}

/* The legacy default stream comes after and before every blocking stream of its context. */
static void legacy_order(sim_stream *stream, sim_op *op)
{
    for (const sim_stream *s = sim_streams; s != NULL; s = s->next)
        if (s != stream && s->context == stream->context && s->capture == NULL &&
            (stream->legacy ? s->blocking : stream->blocking && s->legacy)) {
            sim_join(&op->needs, &s->clock);
            if (op->needs.at[s->slot] < s->submitted)
                op->needs.at[s->slot] = s->submitted;
        }
}

sim_status sim_submit(sim_stream *stream, sim_op *op)
{
    static const sim_clock nothing;
    return stream->capture != NULL ? sim_capture_append(stream, op)
                                   : sim_submit_after(stream, op, &nothing);
}

sim_status sim_submit_after(sim_stream *stream, sim_op *op, const sim_clock *also)
{
    if (stream->context->sticky != SIM_OK) {
        sim_op_free(op);
        return stream->context->sticky;
    }
    sim_join(&stream->clock, &sim_host_clock);
    op->needs = stream->clock;
    sim_join(&op->needs, also);
    legacy_order(stream, op);
    op->clock = ++stream->submitted;
    stream->number = ++enqueued;
    op->needs.at[stream->slot] = op->clock;
    stream->clock = op->needs;
    op->site = sim_site_here(stream->slot, op->clock, sim_kernel_name(op));
    op->next = NULL;
    if (stream->tail != NULL)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    return SIM_OK;
}

/* --- events -------------------------------------------------------------------------------- */

sim_status sim_event_create(sim_context *context, int timing, sim_event **out_event)
{
    sim_event *event = sim_handle_new(sizeof *event);
    if (event == NULL)
        return SIM_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    event->context = context;
    event->timing = timing;
    *out_event = event;
    return SIM_OK;
}

sim_status sim_event_check(const sim_event *event)
{
    if ((uintptr_t)event < SIM_PAGE || (uintptr_t)event % sizeof(void *) != 0 ||
        event->magic != EVENT_MAGIC || event->destroyed)
        return SIM_INVALID_HANDLE;
    return SIM_OK;
}

/* The struct stays, for records that have not run yet and for checks. */
sim_status sim_event_destroy(sim_event *event)
{
    event->destroyed = 1;
    return SIM_OK;
}

sim_status sim_event_record(sim_event *event, sim_stream *stream)
{
    if (event->context != stream->context)
        return SIM_INVALID_HANDLE;
    if (stream->capture != NULL)
        return sim_capture_record(event, stream);
    sim_op *op = sim_op_new(SIM_RECORD, stream->context);
    if (op == NULL)
        return SIM_OUT_OF_MEMORY;
    op->event = event;
    op->event_record = event->records + 1;
    sim_status status = sim_submit(stream, op);
    if (status != SIM_OK)
        return status;
    event->records++;
    event->capture = NULL;
    event->stream = stream;
    event->slot = stream->slot;
    event->record_clock = stream->submitted;
    event->number = stream->number;
    event->clock = stream->clock;
    return SIM_OK;
}

static int event_done(const sim_event *event)
{
    if (event->stream == NULL)
        return 1;
    const sim_stream *owner = slots[event->slot];
    return owner == NULL || owner->completed >= event->record_clock;
}

sim_status sim_event_sync(sim_event *event)
{
    if (event->capture != NULL)
        return sim_capture_break(event->capture, SIM_CAPTURED_EVENT);
    if (event->stream == NULL)
        return event->context->sticky;
    sim_clock reached = event->clock;
    if (!event_done(event))
        force(slots[event->slot], event->record_clock);
    host_saw(&reached);
    return event->context->sticky;
}

sim_status sim_event_query(sim_event *event)
{
    if (event->capture == NULL && !event_done(event) &&
        !polled_enough(event->number, &event->polls))
        return SIM_NOT_READY;
    return sim_event_sync(event);
}

sim_status sim_event_elapsed(const sim_event *start, const sim_event *end, float *out_milliseconds)
{
    if (!start->timing || !end->timing || start->stream == NULL || end->stream == NULL ||
        start->context != end->context)
        return SIM_INVALID_HANDLE;
    if (!event_done(start) || !event_done(end))
        return SIM_NOT_READY;
    *out_milliseconds =
        (float)((double)(int64_t)(end->nanoseconds - start->nanoseconds) / 1000000.0);
    return start->context->sticky;
}

sim_status sim_stream_wait(sim_stream *stream, sim_event *event)
{
    if (stream->context->sticky != SIM_OK)
        return stream->context->sticky;
    if (event->capture != NULL || stream->capture != NULL)
        return sim_capture_wait(stream, event);
    if (event->stream == NULL)
        return SIM_OK;
    sim_op *op = sim_op_new(SIM_NOTHING, stream->context); /* the stream is not done before it */
    if (op == NULL)
        return SIM_OUT_OF_MEMORY;
    sim_join(&stream->clock, &event->clock);
    return sim_submit(stream, op);
}
