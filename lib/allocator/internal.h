/*
 * The allocator's state, and which file owns what:
 *
 *   allocator.c           the public functions of blocks; the fast path
 *   pool.c                pools: taking, splitting, putting back and joining blocks
 *   block.[ch], bins.[ch] block structs, the table of live blocks, free blocks by best fit
 *   segment.c             the list of segments; what both kinds share
 *   segment_classic.c     segments of one device allocation
 *   segment_expandable.c  segments of reserved addresses, mapped page by page
 *   pressure.c            the slow path: the order of attempts when no cached block fits
 *   events.c              recorded streams and deferred frees
 *   streams.c             streams that end while memory of theirs is cached, live or pending
 *   stats.c tags.c snapshot.c report.c check.c   what can be seen from outside
 *
 * Two locks, taken in this order:
 *   slow   one thread at a time grows, gives back or waits; held over driver calls, never over a
 *          user's callback.
 *   lock   all of the state below; held for microseconds, never over a driver call that may block.
 * The slow path claims blocks (MO_BLOCK_CLAIMED) before it releases `lock` to call the driver, so
 * that the fast path of other threads goes on and cannot touch them.
 */
#ifndef MO_ALLOCATOR_INTERNAL_H
#define MO_ALLOCATOR_INTERNAL_H

#include "allocator/bins.h"
#include "allocator/stats.h"
#include "base/config.h"
#include "device/device.h"

#include <pthread.h>

#define MO_MIB (UINT64_C(1) << 20)

/* Requests up to this go to the small pool. */
#define MO_SMALL_LIMIT MO_MIB
/* Bytes of a classic segment of the small pool; larger ones are rounded to this as well. */
#define MO_SMALL_SEGMENT (2 * MO_MIB)
/* From here a request gets a classic segment of its own size. */
#define MO_OWN_SEGMENT (10 * MO_MIB)

/* Whether a stream may still be touched. What belongs to one that ends is parked until its work is
 * complete, and then free of any order. */
typedef enum mo_stream_life {
    MO_STREAM_LIVE,   /* the handle may be used */
    MO_STREAM_ENDING, /* the handle may not; its work may still run */
    MO_STREAM_ENDED   /* its work is complete; the handle may be another stream's by now */
} mo_stream_life;

typedef struct mo_pool {
    memopt_stream stream;
    mo_stream_life life;
    int awaited;       /* ENDING: a wait for the device that covers its work is under way */
    unsigned kind;     /* MO_POOL_SMALL or MO_POOL_LARGE */
    uint64_t drained;  /* the last release pass that waited for the stream */
    uint64_t segments; /* how many belong to it */
    struct mo_pool *next;
    mo_bins bins;
} mo_pool;

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
} mo_segment;

/* One recorded stream of one block. Its event is kept when the struct is reused. */
typedef struct mo_stream_use {
    struct mo_stream_use *next;
    struct mo_use_queue *queue;
    memopt_event *event;
    mo_block *block;
} mo_stream_use;

/* Frees that wait for a stream, oldest first. */
typedef struct mo_use_queue {
    struct mo_use_queue *next;
    memopt_stream stream;
    mo_stream_life life;
    int awaited;   /* as in a pool */
    uint64_t uses; /* live and pending ones of this stream */
    mo_stream_use *head;
    mo_stream_use **tail;
} mo_use_queue;

typedef struct mo_events {
    uint64_t pending;        /* uses in queues, deferred or being waited for */
    mo_use_queue *queues;    /* one per recorded stream */
    mo_stream_use *deferred; /* not recorded yet: freed during a capture or while its stream ends */
    mo_stream_use *unused;
} mo_events;

enum { MO_TAGS = 64, MO_TAG_NAME = 32 };

typedef struct mo_tag {
    uint64_t current;
    uint64_t peak;
    uint64_t blocks;
    char name[MO_TAG_NAME];
} mo_tag;

struct memopt_allocator {
    pthread_mutex_t slow;
    pthread_mutex_t lock;
    memopt_device *device;
    memopt_allocator_options options;
    uint64_t limit;
    uint64_t granularity;
    uint64_t device_total;
    int expandable;
    uint64_t max_split; /* UINT64_MAX: unlimited */
    uint64_t large_segment;
    uint64_t non_split_rounding;
    mo_config config;

    mo_stream_listener listener; /* of streams that the device ends */

    mo_slab slab;
    mo_table live;
    mo_pool *pools;   /* by stream */
    mo_pool ended[2]; /* small and large: memory whose streams have ended */
    mo_segment *segments;
    uint64_t clock; /* allocations so far; ages free blocks */
    uint64_t release_pass;
    mo_events events;
    mo_stats stats;
    uint32_t tag_count;
    mo_tag tags[MO_TAGS];
};

/* What is asked for, on its way through the slow path. */
typedef struct mo_request {
    uint64_t asked;
    uint64_t size; /* rounded */
    memopt_tag tag;
    memopt_stream stream;
    mo_pool *pool;
    int least; /* 1: a segment no larger than the block needs */
} mo_request;

/* --- pool.c: under lock ---------------------------------------------------------------------- */

/* Finds or makes the pool of a live stream; NULL: no host memory. */
mo_pool *mo_pool_get(memopt_allocator *allocator, memopt_stream stream, unsigned kind);
/* The size of a block for `bytes`; 0 where it overflows. */
uint64_t mo_round_size(const memopt_allocator *allocator, uint64_t bytes);
/* Bytes of memory the device must give for a block of this size in a classic segment. */
uint64_t mo_segment_size(const memopt_allocator *allocator, const mo_request *request);
/* Takes the best fit out of the bins, cut to size; NULL if none. Pre: one block reserved. */
mo_block *mo_pool_take(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* The same, taking over a segment of a stream that has ended where the pool has nothing. */
mo_block *mo_pool_serve(memopt_allocator *allocator, mo_pool *pool, uint64_t size);
/* Joins a block that is in no structure with its free neighbours and puts it into the bins. */
void mo_pool_put(memopt_allocator *allocator, mo_block *block);
/* Ends pools without a segment; slow held. */
void mo_pools_trim(memopt_allocator *allocator);
/* The segment's blocks belong to another pool of the same kind from now on. */
void mo_pool_move_segment(memopt_allocator *allocator, mo_segment *segment, mo_pool *pool);
/* The pool of memory whose streams have ended. */
static inline mo_pool *mo_pool_ended(memopt_allocator *allocator, unsigned kind)
{
    return &allocator->ended[kind - MO_POOL_SMALL];
}
/* Into and out of the bins, without joining. */
void mo_pool_insert(memopt_allocator *allocator, mo_block *block);
void mo_pool_remove(memopt_allocator *allocator, mo_block *block);

/* --- segments: slow and lock held; those that call the driver release and retake lock --------- */

/* Makes memory for one block of the request's size in its pool; a free block that fits is in the
 * bins when it succeeds. OUT_OF_DEVICE_MEMORY without a last error of its own where a limit is hit.
 */
memopt_status mo_segment_grow(memopt_allocator *allocator, const mo_request *request);
memopt_status mo_classic_grow(memopt_allocator *allocator, const mo_request *request);
memopt_status mo_expandable_grow(memopt_allocator *allocator, const mo_request *request);

/* Gives the addresses of wholly unmapped expandable segments back. */
memopt_status mo_expandable_trim(memopt_allocator *allocator);

/* Which free memory to give back. */
typedef struct mo_release {
    uint64_t wanted;       /* stop when this many bytes are given back */
    uint64_t at_least;     /* classic: only blocks of this size and more */
    mo_pool *pool;         /* only this pool; NULL: all */
    uint64_t freed_before; /* only blocks that were freed up to this clock */
    int large_only;
} mo_release;

#define MO_RELEASE_ALL                                                                             \
    {                                                                                              \
        UINT64_MAX, 0, NULL, UINT64_MAX, 0                                                         \
    }

/* Gives free memory back after waiting for the streams it belongs to; *released counts bytes. On
 * failure what was not given back is in the bins again. */
memopt_status mo_release_memory(memopt_allocator *allocator, const mo_release *what,
                                uint64_t *released);
memopt_status mo_classic_release(memopt_allocator *allocator, const mo_release *what,
                                 uint64_t *released);
memopt_status mo_expandable_release(memopt_allocator *allocator, const mo_release *what,
                                    uint64_t *released);
/* True if `block` is one that `what` is about. */
int mo_release_matches(const mo_release *what, const mo_block *block);
/* Waits for the work of the pool's stream, once per release pass; releases lock meanwhile. */
memopt_status mo_drain_pool(memopt_allocator *allocator, mo_pool *pool);

/* Bytes that may be held from the device: the limit and the fraction. */
uint64_t mo_allowed(const memopt_allocator *allocator);
/* OK if `bytes` more may be asked of the device. */
memopt_status mo_may_grow(memopt_allocator *allocator, uint64_t bytes);
/* Counts bytes that came from or went to the device in `calls` driver calls. */
void mo_count_mapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                     uint64_t calls);
void mo_count_unmapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                       uint64_t calls);

void mo_segment_link(memopt_allocator *allocator, mo_segment *segment);
void mo_segment_unlink(memopt_allocator *allocator, mo_segment *segment);
/* The segment and block that hold an address, whatever the block's state; NULL if none. */
mo_block *mo_block_at(const memopt_allocator *allocator, const void *address);

static inline int mo_segment_is_expandable(const mo_segment *segment)
{
    return segment->pages != NULL;
}

/* Ends all segments, whatever their blocks' state; nobody else uses the allocator any more. */
memopt_status mo_segments_end(memopt_allocator *allocator);
memopt_status mo_classic_end(memopt_allocator *allocator, mo_segment *segment);
memopt_status mo_expandable_end(memopt_allocator *allocator, mo_segment *segment);

/* --- pressure.c --------------------------------------------------------------------------------
 */

/* The order of attempts. Enters and leaves without a lock. */
memopt_status mo_alloc_slow(memopt_allocator *allocator, mo_request *request, void **out_pointer);

/* --- allocator.c -------------------------------------------------------------------------------
 */

/* Enters a taken block as live; lock held. */
void *mo_block_activate(memopt_allocator *allocator, mo_block *block, const mo_request *request);
/* A freed block whose streams are done goes back to its pool; lock held. */
void mo_block_retire(memopt_allocator *allocator, mo_block *block);
/* Finds the request's pool and makes sure that it can be served without host memory; 0 if not. Lock
 * held; needed again whenever both locks were released, since a trim may have ended the pool. */
int mo_request_enter(memopt_allocator *allocator, mo_request *request);

/* --- events.c: lock held ------------------------------------------------------------------------
 */

memopt_status mo_events_note(memopt_allocator *allocator, mo_block *block, memopt_stream stream);
/* Starts the deferred free of a block with uses. On failure the block is live as before. */
memopt_status mo_events_free(memopt_allocator *allocator, mo_block *block);
/* Retires every block whose events are complete. */
void mo_events_process(memopt_allocator *allocator);
/* Waits for one pending use, of a block of `pool` if not NULL; releases lock meanwhile. *out_found
 * is 0 if there is none. Slow held. */
memopt_status mo_events_wait_one(memopt_allocator *allocator, const mo_pool *pool, int *out_found);
/* Returns the uses of a block that is freed by force. */
void mo_events_drop(memopt_allocator *allocator, mo_block *block);
/* True while a stream that the allocator knows records a graph. */
int mo_capturing(memopt_allocator *allocator);
/* Ends the queues of streams that no block is recorded on. */
void mo_events_trim(memopt_allocator *allocator);
/* An event of the pool, for the slow path; given back by mo_events_return. */
memopt_status mo_events_borrow(memopt_allocator *allocator, mo_stream_use **out_use);
void mo_events_return(memopt_allocator *allocator, mo_stream_use *use);
memopt_status mo_events_end(memopt_allocator *allocator);
/* The work of the queue's stream is complete: so are all uses of it. */
void mo_events_settle(memopt_allocator *allocator, mo_use_queue *queue);

/* --- streams.c ----------------------------------------------------------------------------------
 */

/* Starts and stops to be told of streams that the device ends. Without lock. */
void mo_streams_listen(memopt_allocator *allocator);
void mo_streams_unlisten(memopt_allocator *allocator);
/* Waits for the work of streams that are ending, or whose end could not be waited for; releases
 * lock meanwhile. Slow and lock held. */
memopt_status mo_streams_settle(memopt_allocator *allocator);

/* --- tags.c, report.c, check.c
 * -------------------------------------------------------------------- */

void mo_tags_init(memopt_allocator *allocator);
void mo_tag_add(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);
void mo_tag_subtract(memopt_allocator *allocator, memopt_tag tag, uint64_t bytes);

enum { MO_REPORT_BYTES = 1024 };
/* Writes the out-of-memory message; lock held. */
void mo_report_oom(memopt_allocator *allocator, const mo_request *request, uint64_t device_free,
                   char text[MO_REPORT_BYTES]);
/* Writes "weights 3 blocks, 1.20 GiB; ..." of the `most` largest tags; lock held. */
void mo_report_tags(const memopt_allocator *allocator, unsigned most, char *text, size_t size);

/* Walks over everything: INTERNAL with what is broken, else OK. Takes the locks. */
memopt_status mo_allocator_check(memopt_allocator *allocator);

#endif
