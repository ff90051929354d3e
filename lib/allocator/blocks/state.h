/*
 * The allocator's state. Each file's functions are declared in its own header, and no files use
 * each other in a circle:
 *
 * front/    lifetime: making and ending allocators and pools. allocator: the public functions of
 *           blocks. stripe_blocks: the fast path, blocks taken and put back in a stripe. stripes:
 *           what stripes count and have in store, when the gate closes and opens. request: what a
 *           request needs. pressure: the slow path, the order of attempts when no cached block
 *           fits. trim: giving cached memory back on request
 * steps/    steps: marks between the steps of a training loop. step_plan: the plan of a step that
 *           repeats, and its memory. step_draft: ... from a recorded step to places. step_room:
 *           room for them. step_lanes: serving allocations from places. step_recorder: recording.
 *           placement: dynamic storage allocation, offline. Others know lane.h and mo_step_calls
 * pause/    pause: pausing and resuming. sleep: which pages go, and the free blocks in them.
 *           paused_pages: those pages. kept: their contents
 * share/    export, import: blocks of several processes. share_message, share_socket: how they
 *           travel
 * memory/   segment: growing, giving back and ending segments, of the kind in use:
 *           segment_classic, of one device allocation; segment_expandable, of reserved addresses,
 *           mapped page by page. segment_common: what both share, and limits. growth: pages for a
 *           new block, made, or moved from free ones. pages: single pages. place: where an
 *           expandable segment holds a new block. stale: old addresses of pages that moved while
 *           their stream was at work. source: memory of classic segments. family: an allocator and
 *           its pools, what one does with the others' memory. give_back: down to a target. idle:
 *           what was free for a time. observers: callbacks that follow ranges with memory
 * streams/  events: recorded streams and deferred frees. streams: streams that end. stream_state:
 *           what the driver says of one
 * watch/    sinks: stats, tags, notes (what the device is told), history (the ring of the last
 *           events; watch has its public functions), recorder (a trace). snapshot, report, cause
 *           (why an allocation has failed): what can be seen from outside
 * blocks/   block_life: a block's way into use and back to its pool. pool: taking, splitting,
 *           putting back and joining blocks. bins: free blocks by best fit. block: block structs,
 *           the table of live blocks. sink: who is told of it. It includes no other folder
 *
 * Two locks, taken in this order:
 *   slow   of the family: one thread at a time grows, gives back or waits, in any member of it;
 *          held over driver calls. It is a turn, not a mutex: the callbacks of range observers run
 *          in it, under no lock. The other callbacks run without it.
 *   lock   of a member: all of the state below; held for microseconds, never over a driver call
 *          that may block. No thread holds those of two members. It is a gate: who holds it has
 *          closed it, and the fast path runs in stripes beside it while it is open. A stripe guards
 *          the pools of its streams, their segments and blocks, and changes nothing else but slots
 *          of the table.
 * The slow path claims blocks (MO_BLOCK_CLAIMED) before it releases `lock` to call the driver, so
 * that the fast path of other threads continues and cannot use them.
 */
#ifndef MO_ALLOCATOR_STATE_H
#define MO_ALLOCATOR_STATE_H

#include "allocator/blocks/bins.h"
#include "allocator/blocks/counters.h"
#include "allocator/blocks/sink.h"
#include "base/config.h"
#include "base/gate.h"
#include "base/turn.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>

#define MO_MIB (UINT64_C(1) << 20)

/* Requests up to this go to the small pool. */
#define MO_SMALL_LIMIT MO_MIB
/* The same where segments are expandable, and the next: blocks of such different sizes get
 * addresses apart, so that small ones that stay do not keep pages between larger ones that go. */
#define MO_SMALL_LIMIT_EXPANDABLE (MO_MIB / 16)
#define MO_MEDIUM_LIMIT (3 * MO_MIB)
/* Where pages do not move while their stream is at work, what is freed serves fewer sizes if they
 * are apart. */
#define MO_MEDIUM_LIMIT_FIXED MO_MIB
/* Bytes of a classic segment of the small pool; larger ones are rounded to this as well. */
#define MO_SMALL_SEGMENT (2 * MO_MIB)
/* From here a request gets a classic segment of its own size. */
#define MO_OWN_SEGMENT (10 * MO_MIB)
/* What segments of page-locked memory are rounded to. */
#define MO_PINNED_UNIT UINT64_C(4096)

/* Whether a stream's handle may still be used. Memory of an ending stream is held until its work is
 * complete; then any stream may use it. */
typedef enum mo_stream_life {
    MO_STREAM_LIVE,   /* the handle may be used */
    MO_STREAM_ENDING, /* the handle may not; its work may still run */
    MO_STREAM_ENDED   /* its work is complete; the handle may be another stream's by now */
} mo_stream_life;

/* By the sizes of requests. Statistics count what is not small as large. */
typedef enum mo_sizes {
    MO_SIZES_SMALL,
    MO_SIZES_MEDIUM,
    MO_SIZES_LARGE,
    MO_SIZES_CLASSES
} mo_sizes;

static inline unsigned mo_sizes_kind(mo_sizes sizes)
{
    return sizes == MO_SIZES_SMALL ? MO_POOL_SMALL : MO_POOL_LARGE;
}

typedef struct mo_pool {
    memopt_stream stream;
    mo_stream_life life;
    int awaited; /* ENDING: a wait for the device that covers its work is under way */
    mo_sizes sizes;
    unsigned kind;     /* its statistics: MO_POOL_SMALL or MO_POOL_LARGE */
    uint64_t drained;  /* the last release pass that waited for the stream */
    uint64_t segments; /* how many belong to it */
    struct mo_pool *next;
    unsigned stripe;         /* the stream's */
    struct mo_pool **bucket; /* by its stream; it stays there when the stream has ended */
    struct mo_pool *same;    /* the next there */
    struct mo_lane *lane;    /* of its stream; NULL: none was needed yet. See lane.h */
    mo_bins bins;
    mo_bins holes; /* expandable: free blocks without a whole page of their own */
} mo_pool;

/* Pools are found by their stream in buckets. */
enum { MO_STREAM_BUCKETS = 1024 };

static inline unsigned mo_stream_bucket(memopt_stream stream)
{
    return (unsigned)((uint64_t)(uintptr_t)stream * UINT64_C(0x9E3779B97F4A7C15) >> 54);
}

typedef struct mo_segment {
    struct mo_segment *prev;
    struct mo_segment *next;
    mo_pool *pool;
    char *address;
    uint64_t size;   /* bytes of addresses */
    uint64_t mapped; /* bytes with memory; equals size in a classic segment */
    mo_block *first;
    mo_block *unmapped;  /* expandable: the unmapped blocks by address */
    mo_vm_handle *pages; /* expandable: NULL where unmapped; NULL in a classic segment */
    uint32_t places;     /* parts of it that a plan uses */
    uint32_t drafts;     /* parts that a plan in the making may use: it stays meanwhile */
} mo_segment;

/* One recorded stream of one block. Its event is kept when the struct is reused. */
typedef struct mo_stream_use {
    struct mo_stream_use *next;
    struct mo_use_queue *queue;
    memopt_event *event;
    mo_block *block;
    uint64_t number; /* in the order of the records in its queue */
    int recorded;    /* the event was, for the block's free */
} mo_stream_use;

/* Frees that wait for a stream, oldest first. */
typedef struct mo_use_queue {
    struct mo_use_queue *next;
    struct mo_use_queue **bucket; /* by its stream, as a pool */
    struct mo_use_queue *same;
    struct mo_use_queue *later; /* the next with pending uses */
    struct mo_use_queue *earlier;
    int listed; /* among those with pending uses */
    uint64_t records;
    memopt_stream stream;
    mo_stream_life life;
    int awaited;   /* as in a pool */
    uint64_t uses; /* live and pending ones of this stream */
    mo_stream_use *head;
    mo_stream_use **tail;
    mo_stream_use *deferred; /* not recorded yet: freed during a capture or while its stream ends */
} mo_use_queue;

typedef struct mo_events {
    uint64_t pending;     /* uses in queues, deferred or being waited for */
    uint64_t due;         /* the allocator's clock when an allocation asks for them next */
    uint64_t interval;    /* allocations between the last time and that */
    uint64_t listed;      /* queues with pending uses */
    mo_use_queue *queues; /* one per recorded stream */
    mo_use_queue *by_stream[MO_STREAM_BUCKETS];
    mo_use_queue *first; /* those with pending uses, in the order in which they are asked */
    mo_use_queue *last;
    mo_stream_use *unused;
} mo_events;

typedef struct mo_recorder mo_recorder;
typedef struct mo_history mo_history;
typedef struct mo_steps mo_steps;

enum { MO_TAGS = 64, MO_TAG_NAME = 32 };
#define MO_OUTSIDE_MOST (UINT64_C(1) << 48)

typedef struct mo_tag {
    uint64_t current;
    uint64_t peak;
    uint64_t blocks;
    uint64_t outside; /* what others hold and count here */
    char name[MO_TAG_NAME];
} mo_tag;

/* A page that a pause has taken. */
typedef struct mo_paused_page {
    mo_segment *segment;
    uint64_t page;   /* of the segment */
    uint8_t mapped;  /* it is where it was */
    uint8_t fresh;   /* the resume that runs has mapped it */
    uint8_t counted; /* as held */
    uint8_t told;    /* observers know it as mapped */
} mo_paused_page;

/* The contents of a pause's pages, page i of its list at i times the page's size: all of them in
 * `memory`, or in a file, with `memory` as the buffer. */
typedef struct mo_kept {
    char *memory;     /* page-locked; NULL: the contents are discarded */
    int file;         /* -1: none */
    uint64_t *hashes; /* of a file: one for each filling of the buffer */
    int in_flight;    /* copies from or to memory may run: a wait has failed */
} mo_kept;

/* A pause of some tags. With slow and lock held it comes, goes and changes. Without a tag it is
 * what is left of one that has failed: only kept.in_flight. */
typedef struct mo_pause {
    struct mo_pause *next;
    uint64_t tags;    /* bits */
    mo_block *asleep; /* ASLEEP ones, chained by right */
    mo_paused_page *pages;
    uint64_t page_count;
    mo_kept kept;
} mo_pause;

enum { MO_POOL_NAME = 32 };

/* When a member is looked at for idle memory; guarded by `slow`, and the period does not change. */
enum { MO_IDLE_MARKS = 4 };
typedef struct mo_idle {
    uint64_t period; /* nanoseconds between looks; 0: none */
    uint64_t due;    /* when the next one is */
    uint64_t time[MO_IDLE_MARKS];
    uint64_t clock[MO_IDLE_MARKS]; /* the allocator's at that time; 0: no mark */
    unsigned next;
} mo_idle;

/* What a stripe counts, of one kind of pool. */
enum {
    MO_STRIPE_BLOCKS, /* allocation, active */
    MO_STRIPE_BYTES,  /* allocated_bytes, active_bytes */
    MO_STRIPE_ASKED,  /* requested_bytes */
    MO_STRIPE_HOLES,  /* inactive_split */
    MO_STRIPE_HOLE_BYTES,
    MO_STRIPE_COUNTS
};

/* A way past the gate for the pools of some streams; see stripe.h. */
typedef struct mo_stripe {
    _Atomic uint32_t taken;
    uint32_t used;        /* since the gate was closed last */
    uint64_t allocations; /* since then */
    uint64_t entries;     /* addresses that it may enter into the table */
    uint64_t tags_used;   /* a bit each, since then */
    mo_slab slab;
    mo_block *last;       /* the block that was taken last, if no block was put back since */
    mo_block *kept;       /* that block once it is freed: CLAIMED, in no structure */
    uint64_t since;       /* allocations then: those after it took that block again */
    memopt_stream stream; /* what was asked for then */
    uint64_t size;
    int64_t room[MO_POOL_KINDS][MO_STRIPE_COUNTS]; /* by how much counts may rise */
    int64_t was[MO_POOL_KINDS][MO_STRIPE_COUNTS];  /* the room when the gate was closed last */
    uint64_t added[MO_POOL_KINDS][MO_STRIPE_COUNTS];
    struct {
        int64_t room, was, blocks;
    } tag[MO_TAGS];
    char apart[128]; /* from the next one's cache lines */
} mo_stripe;

/* What others need of learned plans (steps/), from the first mark of a step on. Lock held, or in
 * the stripe of the lane's stream. */
typedef mo_block *mo_take_cached(memopt_allocator *allocator, mo_stripe *stripe,
                                 const struct mo_pool *pool, const struct mo_request *request);
typedef struct mo_step_calls {
    /* The block for the next allocation of the request's lane, at its place. NULL: it is served
     * online, or request->slot says that its place lacks memory. Two block structs are reserved. */
    mo_block *(*serve)(memopt_allocator *allocator, struct mo_request *request);
    /* The same in a stripe, whose lane is armed; `cached` finds one that has no place. NULL: more
     * is needed than a stripe has. */
    mo_block *(*take)(memopt_allocator *allocator, mo_stripe *stripe, const mo_pool *pool,
                      const struct mo_request *request, mo_take_cached *cached);
    /* A block with `planned` is no longer in use. 1: it is held for places, else it is in no
     * structure. */
    int (*hold)(mo_slab *slab, mo_block *block);
    /* Memory for the place that request->slot names; *out_block is the block there, or stays NULL.
     * Slow held, too; lock is released meanwhile. */
    memopt_status (*grow)(memopt_allocator *allocator, struct mo_request *request,
                          mo_block **out_block);
    /* Until the next mark nothing is held for places, unless one was used since that clock. 1:
     * there is a plan. */
    int (*leave)(memopt_allocator *allocator, uint64_t since);
    /* The stream of a pool ends, or a segment does; if both are NULL, there are no more steps. */
    void (*forget)(memopt_allocator *allocator, mo_pool *pool, const mo_segment *segment);
} mo_step_calls;

typedef struct mo_observer mo_observer;
typedef struct memopt_export memopt_export;

/* An allocator and its pools, which share a device and the allocator's limit. Guarded by `slow`. */
typedef struct mo_family {
    mo_turn slow;
    memopt_allocator *parent;
    memopt_allocator *members; /* the parent, too; without those that are being destroyed */
    uint64_t pools;            /* with those */
    uint64_t held;             /* bytes that the members hold from the device */
    uint64_t outside;          /* ... and that others hold for them */
    mo_observer *observers;    /* in the order of their registration */
    uint64_t observers_made;
    _Atomic uint64_t idle_due;       /* the first of the members' */
    uint64_t generation;             /* of the last range event */
    int refused;                     /* an observer has; reset before a growth */
    memopt_memory_provider provider; /* alloc is NULL: none. Does not change. */
} mo_family;

struct memopt_allocator {
    mo_family *family;
    memopt_allocator *next_member;
    mo_gate lock;
    memopt_device *device;
    memopt_allocator_options options; /* a pool has those of its parent */
    int pinned;                       /* its memory is page-locked host memory */
    int foreign;                      /* ... or a provider's: not the device's own */
    char name[MO_POOL_NAME];          /* "" of an allocator that is no pool */
    int retain;                       /* other members do not take its free memory */
    int ending;                       /* it is being destroyed: range observers cannot refuse */
    mo_pause *pauses;
    memopt_export *exports;
    uint64_t paused_tags; /* of all pauses: nothing is allocated with them */
    mo_idle idle;
    _Atomic uint64_t limit; /* of what the member holds; the parent's: the family */
    uint64_t outside;       /* the sum of the tags' */
    uint64_t granularity;
    uint64_t device_total;
    int expandable;        /* new segments are; not any more once the driver has refused one */
    uint64_t small_limit;  /* requests up to this go to the small pool */
    uint64_t medium_limit; /* and up to this to the medium one; 0: there is none */
    uint64_t max_split;    /* UINT64_MAX: unlimited */
    uint64_t large_segment;
    uint64_t non_split_rounding;
    mo_config config;

    mo_stream_listener listener; /* of streams that the device ends */

    int notes; /* the device wants to know of allocations and frees */
    mo_slab slab;
    mo_block_table live;
    mo_pool *pools; /* one per stream and class of sizes */
    mo_pool *by_stream[MO_STREAM_BUCKETS];
    mo_pool ended[MO_SIZES_CLASSES]; /* memory whose streams have ended */
    mo_segment *segments;
    uint64_t clock;       /* allocations so far; ages free blocks */
    uint64_t slack_pages; /* growth.c: what pages that keep moving have added */
    uint64_t move_credit; /* in allocations, at this clock: */
    uint64_t credit_clock;
    uint64_t release_pass;
    int aliases;          /* a page may be mapped at two addresses: see stale.c */
    mo_block *stale;      /* chained by right, oldest first */
    mo_block **stale_end; /* where the next one is linked */
    mo_events events;
    mo_stats stats;
    uint64_t most_active; /* the peak of active bytes before peaks were last reset */
    mo_sink *sinks;       /* who is told of events */
    mo_sink *beside;      /* those of them that are told in stripes, too */
    uint32_t told;        /* what any of them wants */
    mo_sink counting, tagging, noting;
    mo_recorder *recorder;            /* NULL: no trace is recorded */
    mo_history *history;              /* NULL: there is none */
    mo_history *histories;            /* with those that were stopped */
    _Atomic(const mo_history *) asks; /* the history, if it has a callback to call */
    memopt_oom_report oom;            /* of the last failed allocation; number 0: none */
    mo_steps *steps;                  /* NULL: no step was marked */
    const mo_step_calls *plan;        /* NULL then */
    uint32_t tag_count;
    uint64_t tags_raised; /* a bit each: since the gate was closed */
    mo_tag tags[MO_TAGS];
    _Atomic uint8_t stripe_of[MO_STREAM_BUCKETS]; /* 1 + the stripe; 0: no stream was seen */
    unsigned streams_seen;
    uint64_t stripe_most;  /* allocations of a stripe before the gate is closed */
    mo_stripe *asking;     /* the one that a request could not be served in; NULL: none */
    memopt_tag asking_tag; /* the request's */
    mo_stripe stripes[MO_GATE_STRIPES];
};

/* What is asked for, on its way through the slow path. */
typedef struct mo_request {
    uint64_t asked;
    uint64_t size; /* rounded */
    memopt_tag tag;
    memopt_stream stream;
    mo_pool *pool;
    int least; /* 1: a segment no larger than the block needs */
    uint32_t context;
    uint32_t slot; /* of a plan, from 1: its place lacks memory; 0: it has none */
} mo_request;

static inline void mo_tell(memopt_allocator *allocator, const mo_event *event)
{
    if ((allocator->told & MO_WANTS(event->what)) != 0)
        mo_tell_all(allocator, event);
}

static inline void mo_tell_block(memopt_allocator *allocator, mo_happening what, mo_block *block)
{
    const mo_event event = {.what = what, .block = block, .stream = block->segment->pool->stream};
    mo_tell(allocator, &event);
}

/* In a stripe: 1: all that would be told have room. */
static inline int mo_sinks_have_room(const memopt_allocator *allocator)
{
    for (const mo_sink *sink = allocator->beside; sink != NULL; sink = sink->next_beside)
        if (sink->count != NULL &&
            atomic_load_explicit(sink->count, memory_order_relaxed) >= sink->until)
            return 0;
    return 1;
}

static inline void mo_tell_beside(memopt_allocator *allocator, const mo_event *event)
{
    for (mo_sink *sink = allocator->beside; sink != NULL; sink = sink->next_beside)
        if ((sink->beside & MO_WANTS(event->what)) != 0)
            sink->tell(allocator, sink, event);
}

static inline int mo_plan_leave(memopt_allocator *allocator, uint64_t since)
{
    return allocator->plan != NULL && allocator->plan->leave(allocator, since);
}

static inline void mo_plan_forget(memopt_allocator *allocator, mo_pool *pool,
                                  const mo_segment *segment)
{
    if (allocator->plan != NULL)
        allocator->plan->forget(allocator, pool, segment);
}

static inline int mo_tag_is_paused(const memopt_allocator *allocator, memopt_tag tag)
{
    return allocator->paused_tags >> tag & 1;
}

static inline int mo_segment_is_expandable(const mo_segment *segment)
{
    return segment->pages != NULL;
}

#endif
