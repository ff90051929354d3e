/*
 * The history: a ring of the last events in host memory, written under the allocator's lock or, at
 * places of their own, by threads in stripes. Nothing is allocated for an event, and none fails.
 * While the gate is open the ring does not come round: a stripe's thread leaves an event without
 * room to the closed gate.
 *
 * `history` points to the one that is written. One that was stopped gives its events back, but its
 * struct stays until the allocator ends: an allocation may be about to call its callback, which is
 * read without a lock.
 */
#define _GNU_SOURCE /* gettid's number */
#include "allocator/watch/history.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_EVENTS = 1 << 16 };

struct mo_history {
    mo_sink sink;
    mo_history *stopped; /* the one before it */
    memopt_history_options options;
    uint64_t time; /* when the history began or was last read */
    uint64_t tick; /* at that time */
    uint64_t room;
    _Atomic uint64_t count; /* events ever; the ring has the last `room` */
    uint64_t timed;         /* so many of them have times; later ones have ticks */
    memopt_history_event *events;
};

/* --- time ------------------------------------------------------------------------------------- */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A counter that runs evenly on all processors and takes less time to read than the clock. Events
 * have its value; reading them makes it a time. */
static uint64_t ticks(void)
{
#if defined __x86_64__
    return __builtin_ia32_rdtsc();
#elif defined __aarch64__
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return now();
#endif
}

/* Makes times of the ticks since the last reading, once for each event: it has the same time in
 * every reading. */
static void give_times(mo_history *history, uint64_t oldest)
{
    uint64_t time = now(), tick = ticks();
    int both = time > history->time && tick > history->tick;
    double length =
        both ? (double)(time - history->time) / (double)(tick - history->tick) : 0; /* of a tick */
    for (uint64_t i = mo_max_u64(history->timed, oldest); i < history->count; i++) {
        memopt_history_event *event = &history->events[i % history->room];
        uint64_t passed = event->time_ns > history->tick ? event->time_ns - history->tick : 0;
        event->time_ns = history->time + (uint64_t)((double)passed * length);
    }
    history->timed = history->count;
    history->time = time;
    history->tick = tick;
}

/* --- events ----------------------------------------------------------------------------------- */

uint32_t mo_this_thread(void)
{
    static _Thread_local uint32_t number;
    if (number == 0)
        number = (uint32_t)syscall(SYS_gettid);
    return number;
}

void mo_history_fields(const mo_event *event, memopt_history_event *out_fields)
{
    const mo_block *block = event->block;
    const mo_request *request = event->request;
    memopt_history_event fields = {.action = event->what, .stream = event->stream};
    if (block != NULL) {
        fields.address = block->address;
        fields.bytes = block->requested;
        fields.tag = block->tag;
        fields.context = block->context;
    } else if (request != NULL) {
        fields.bytes = request->asked;
        fields.tag = request->tag;
        fields.context = request->context;
    } else {
        fields.address = event->segment->address;
        fields.bytes = event->bytes;
    }
    *out_fields = fields;
}

static void add(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    mo_history *history = (mo_history *)sink;
    (void)allocator;
    uint64_t number = atomic_fetch_add_explicit(&history->count, 1, memory_order_relaxed);
    memopt_history_event *place = &history->events[number % history->room];
    mo_history_fields(event, place);
    place->time_ns = ticks();
    place->thread = mo_this_thread();
}

static int open_beside(mo_sink *sink)
{
    mo_history *history = (mo_history *)sink;
    uint64_t most = history->room > MO_GATE_STRIPES ? history->room - MO_GATE_STRIPES : 0;
    sink->until = history->count + most;
    return 1;
}

uint32_t mo_history_ask(memopt_allocator *allocator)
{
    const mo_history *asks = atomic_load_explicit(&allocator->asks, memory_order_acquire);
    return asks == NULL ? 0 : asks->options.context(asks->options.context_user);
}

/* --- begin and end ---------------------------------------------------------------------------- */

void mo_history_discard(mo_history *history)
{
    if (history == NULL)
        return;
    mo_free(history->events);
    mo_free(history);
}

memopt_status mo_history_make(const memopt_history_options *options, mo_history **out_history)
{
    mo_history *history = mo_calloc(1, sizeof *history);
    if (history == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    history->options = *options;
    history->time = now();
    history->tick = ticks();
    history->room = options->events == 0 ? DEFAULT_EVENTS : options->events;
    history->events = mo_calloc(history->room, sizeof *history->events);
    if (history->events == NULL) {
        mo_history_discard(history);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    history->sink = (mo_sink){.wants = MO_WANTS(MO_WAITS) - MO_WANTS(MO_ALLOC), /* up to there */
                              .beside = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_FREE),
                              .tell = add,

                              .open = open_beside,
                              .count = &history->count};
    *out_history = history;
    return MEMOPT_OK;
}

void *mo_history_stop(memopt_allocator *allocator)
{
    void *events = allocator->history->events;
    mo_sink_remove(allocator, &allocator->history->sink);
    allocator->history->events = NULL;
    allocator->history = NULL;
    atomic_store_explicit(&allocator->asks, NULL, memory_order_release);
    return events;
}

int mo_history_begin(memopt_allocator *allocator, mo_history *history)
{
    if (allocator->history != NULL)
        return 0;
    history->stopped = allocator->histories;
    allocator->history = allocator->histories = history;
    mo_sink_add(allocator, &history->sink);
    if (history->options.context != NULL)
        atomic_store_explicit(&allocator->asks, history, memory_order_release);
    mo_sink_tell_present(allocator, &history->sink);
    return 1;
}

memopt_status mo_history_inherit(memopt_allocator *pool, memopt_allocator *parent)
{
    memopt_history_options options;
    mo_history *history;
    mo_lock(&parent->lock);
    int wanted = parent->history != NULL;
    if (wanted)
        options = parent->history->options;
    mo_unlock(&parent->lock);
    memopt_status status = wanted ? mo_history_make(&options, &history) : MEMOPT_OK;
    if (wanted && status == MEMOPT_OK) {
        mo_lock(&pool->lock);
        (void)mo_history_begin(pool, history);
        mo_unlock(&pool->lock);
    }
    return status;
}

void mo_history_end(memopt_allocator *allocator)
{
    if (allocator->history != NULL)
        mo_sink_remove(allocator, &allocator->history->sink);
    while (allocator->histories != NULL) {
        mo_history *next = allocator->histories->stopped;
        mo_history_discard(allocator->histories);
        allocator->histories = next;
    }
    allocator->history = NULL;
}

/* --- reading ---------------------------------------------------------------------------------- */

void mo_history_copy(mo_history *history, uint64_t *first, uint64_t *count,
                     memopt_history_event *out_events)
{
    uint64_t oldest = history->count > history->room ? history->count - history->room : 0;
    *first = mo_min_u64(mo_max_u64(*first, oldest), history->count);
    *count = mo_min_u64(*count, history->count - *first);
    give_times(history, oldest);
    for (uint64_t i = 0; i < *count; i++)
        out_events[i] = history->events[(*first + i) % history->room];
}
