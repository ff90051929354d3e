/*
 * The parts of a race finder: clocks (clock.c), memory, its accesses and reports (memory.c); race.c
 * has the public calls, which lock.
 *
 * A clock says for each actor up to which of its operations one is ordered behind it. Every use keeps
 * the number of its operation, so "ordered before" is one comparison. Uses of a range are kept by the
 * exact bytes that an operation named, so ranges may overlap; a write without gaps removes what it
 * covers. All is guarded by memopt_race.lock; nothing is called under it.
 */
#ifndef MO_RACE_FINDER_H
#define MO_RACE_FINDER_H

#include "race/shape.h"
#include "race/span.h"

#include "base/error.h"

#include <pthread.h>

/* The last access of an actor to a range; seq 0: none. */
typedef struct mo_race_use {
    uint64_t seq, tag;
    uint32_t actor, write;
    struct mo_race_use *next;
} mo_race_use;

typedef struct mo_race_range {
    mo_span span;                        /* extra: the shape's hash */
    struct mo_race_range *newer, *older; /* of all */
    struct mo_race_range *dead;          /* of those that a write covers */
    mo_race_shape *shape;                /* NULL: all bytes of the span */
    mo_race_use write, reads;            /* the first read is here; each is of another actor */
} mo_race_range;

/* A stream's last use of a block that was freed. */
typedef struct mo_race_last {
    mo_race_use use;
    uint64_t lo, hi;
    struct mo_race_last *next;
} mo_race_last;

typedef struct mo_race_block {
    mo_span span;
    memopt_race_memory memory;
    uint32_t stream;
    mo_race_use *recorded; /* one of each stream */
    int unknown;           /* a recorded stream found no memory: the block may be in use */
    mo_race_last *last;    /* once it is free… */
    uint64_t freed_tag;
    struct mo_race_block *next; /* …and its stream has not allocated since */
} mo_race_block;

/* Behind the end all is 0. An actor's has room for all actors. */
typedef struct mo_race_clock {
    uint64_t *at, size;
} mo_race_clock;

typedef struct mo_race_actor {
    mo_race_clock clock; /* its own number: its operations so far */
    mo_race_block *freed, **freed_tail;
} mo_race_actor;

typedef struct mo_race_event {
    mo_race_clock clock;
    int live;
    uint64_t next; /* unused number, from 1 */
} mo_race_event;

struct memopt_race {
    pthread_mutex_t lock;
    memopt_race_options options;
    memopt_race_stats stats;
    /* clock.c */
    mo_race_actor *actors;
    uint64_t actor_count, actor_capacity;
    mo_race_event *events;
    uint64_t event_count, event_capacity, unused_event;
    /* memory.c */
    memopt_race_report *found;
    uint64_t found_capacity;
    mo_span *blocks, *ranges;
    mo_race_range *newest, *oldest;
    uint64_t live_bytes, live_bytes_peak;
};

/* Host memory that stats.bytes counts. */
void *mo_race_take(memopt_race *race, uint64_t bytes);
void mo_race_give(memopt_race *race, void *pointer, uint64_t bytes);
int mo_race_grow(memopt_race *race, void **array, uint64_t *capacity, uint64_t needed,
                 uint64_t element_size);

/* --- clock.c. Pre: actors and events exist. */

memopt_status mo_race_clocks_init(memopt_race *race);
void mo_race_clocks_fini(memopt_race *race);
memopt_status mo_race_clocks_add(memopt_race *race, uint32_t *out_stream);
/* A stream comes after all that the host has waited for. */
void mo_race_follow_host(memopt_race *race, uint32_t stream);
void mo_race_join(memopt_race *race, uint32_t waiter, const mo_race_clock *clock);
memopt_status mo_race_event_record(memopt_race *race, uint32_t stream, uint64_t *event);
void mo_race_event_drop(memopt_race *race, uint64_t event);
/* Whether the actor's next operation comes after the use. */
static inline int mo_race_is_after(const memopt_race *race, uint32_t actor, const mo_race_use *use)
{
    return actor == use->actor || race->actors[actor].clock.at[use->actor] >= use->seq;
}

/* --- memory.c */

void mo_race_memory_fini(memopt_race *race);
/* Checks an access of an operation, and keeps it unless it is the host's. shape NULL: one run. */
void mo_race_touch(memopt_race *race, const mo_race_use *use, const mo_race_shape *shape,
                   uint64_t lo, uint64_t hi);
void mo_race_block_begin(memopt_race *race, uint64_t lo, uint64_t hi, memopt_race_memory memory,
                         uint32_t stream, uint64_t tag);
void mo_race_block_end(memopt_race *race, uint64_t address, uint64_t tag);
void mo_race_block_recorded(memopt_race *race, uint64_t address, uint32_t stream);

#endif
