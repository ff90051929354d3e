/*
 * The model's state, for the files of the oracle.
 *
 * Locks, for runs with threads: a slot's, a member's `use`, a stream's `use`. Who holds a slot only
 * tries the others, and leaves the operation where one is taken. Who holds a member or a stream for
 * writing may wait for slots. Without threads none is ever contended.
 */
#ifndef TEST_ORACLE_WORLD_H
#define TEST_ORACLE_WORLD_H

#include "oracle.h"
#include "picture.h"

#include "allocator/blocks/state.h"

#include "memopt/share.h"
#include "support/pausing.h"

#include <pthread.h>
#include <stdatomic.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum { ORACLE_ROOTS = 3, ORACLE_REFUSED = MEMOPT_STATUS_USER + 7, ORACLE_TAGS = 7 };

#define CAPACITY (24 * MIB)
#define MOST_BYTES (3 * MIB) /* of a block of which all is written */
#define EDGE UINT64_C(4096)  /* of others: what is written at each end */
/* A thread's own: a block, and what readers on the default stream copy. */
#define STAGING_BYTES (MOST_BYTES + EDGE)
#define PINNED_LIMIT (16 * MIB)

typedef struct slot {
    pthread_mutex_t lock;
    unsigned char *at; /* NULL: free */
    uint64_t bytes, usable;
    uint8_t member, stream;
    uint8_t last;   /* the stream of the last write */
    uint8_t used;   /* streams that have used it since, as bits */
    uint8_t value;  /* of every byte that is written */
    uint8_t orphan; /* its stream has ended */
    uint8_t lost;   /* the contents are not known */
    uint8_t whole;  /* all of it is written */
    uint8_t tag;
    uint64_t birth; /* the number of its block */
} slot;

typedef struct member {
    pthread_rwlock_t use;
    memopt_allocator *handle; /* NULL: there is none */
    int expandable, retain, history;
    uint64_t paused;                  /* tags, as bits */
    uint64_t groups[ORACLE_TAGS + 1]; /* those that one call has paused, and come back together */
    uint64_t left;                    /* bytes held after the last pause */
    uint64_t limit, count, requested, peak, allocations; /* by the model; live blocks */
    uint64_t held;                                       /* before the operation */
    uint8_t streams;                                     /* that it has seen, as bits */
} member;

/* A block that is exported, imported, or both. It may be freed before its export ends, and that
 * before its import does. */
typedef struct oracle_share {
    pthread_mutex_t lock;
    memopt_export *out;
    memopt_import *in;
    unsigned char *at; /* where the import has it */
    uint64_t pages;    /* bytes of its pages */
    uint8_t slot;
    int known;  /* what the import must hold */
    int freed;  /* the slot has another block, or none */
    slot block; /* as it was then; before, its birth and its size */
} oracle_share;

typedef struct fill {
    void *at;
    uint64_t bytes;
    uint8_t value;
} fill;

enum { MOST_FILLS = 512 };

/* The one graph of a world: recorded by a driver, or on the cpu device by the model itself. */
typedef struct graph {
    int capturing;
    uint8_t stream;
    void *executable; /* the driver's; NULL: none */
    uint64_t count;   /* of fills; 0: there is no graph */
    fill fills[MOST_FILLS];
} graph;

typedef struct oracle_observer {
    struct world *w;
    memopt_allocator *of; /* the allocator or pool that it was added to; NULL: it is not there */
    uint64_t number, order, refuse, events;
    int gap; /* it has refused: what it knows is not all */
    uint8_t member;
    picture seen;
} oracle_observer;

/* What belongs to a thread. */
typedef struct hand {
    struct world *w;
    memopt_event *event;
    unsigned char *staging; /* page-locked, STAGING_BYTES */
} hand;

typedef struct world {
    const oracle_case *c;
    oracle_seen *seen;
    int threads, adversarial;
    memopt_device *device;
    memopt_stream streams[ORACLE_STREAMS];
    pthread_rwlock_t stream_use[ORACLE_STREAMS];
    member members[ORACLE_MEMBERS];
    slot slots[ORACLE_SLOTS];
    graph graph;
    unsigned char *mailbox; /* page-locked: what readers copy, EDGE for each stream */
    uint64_t pinned_base;   /* of all hands and the mailbox */
    int64_t host_blocks;    /* before the world */
    /* Observers: one of each root, and those that come and go. */
    pthread_mutex_t observing;
    oracle_observer roots[ORACLE_ROOTS], extra[ORACLE_OBSERVERS];
    oracle_share shares[ORACLE_SHARES];
    atomic_ulong births;
    uint64_t generation[ORACLE_ROOTS], last_order[ORACLE_ROOTS], orders;
    /* Of the operation under way. */
    uint32_t fault_kind;
    int64_t fault_n; /* 0: none is to be armed */
    int struck;      /* one has, in this operation */
    int refused;     /* an observer has */
    int faulted;     /* in this run a fault struck */
    int disturbed;   /* that, or an observer refused */
    uint64_t unmaps; /* of this operation */
    int64_t provider_fault;
    uint64_t provided; /* bytes that the provider has given */
    atomic_uint value; /* of the last block */
} world;

static inline int has(const world *w, oracle_feature feature)
{
    return (int)(w->c->features >> feature & 1);
}

static inline void saw(const world *w, oracle_feature feature)
{
    if (!w->threads)
        w->seen->features |= 1u << feature;
}

static inline int is_paused(const world *w, const slot *s)
{
    return (int)(w->members[s->member].paused >> s->tag & 1);
}

static inline uint32_t root_of(uint32_t index)
{
    return index < ORACLE_PINNED_ROOT ? 0 : index < ORACLE_PROVIDER_ROOT ? 1 : 2;
}

static inline int is_root(uint32_t index)
{
    return index == ORACLE_ROOT || index == ORACLE_PINNED_ROOT || index == ORACLE_PROVIDER_ROOT;
}

static inline int is_pinned(uint32_t index)
{
    return root_of(index) == 1;
}

/* --- world.c --- */

_Noreturn void oracle_fail(const world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define REQUIRE(w, condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            oracle_fail(w, "%s:%d: %s", __FILE__, __LINE__, #condition);                           \
    } while (0)
/* A call that succeeds, or the run fails. */
#define OK(w, call) oracle_ok(w, call, #call, __LINE__)
void oracle_ok(const world *w, memopt_status status, const char *call, int line);

void world_open(world *w, const oracle_case *c, oracle_seen *seen, int threads);
/* Ends everything; nothing may be left. */
void world_close(world *w);
void hand_open(hand *h, world *w);
void hand_close(hand *h);
/* Creates a root or a pool. */
memopt_status member_create(world *w, uint32_t index, uint64_t kind);
uint64_t world_stat(const world *w, uint32_t index, const char *name);
/* What a simulated driver has seen that a real one would let pass. */
void check_violations(const world *w);

/* A call of the allocator, with the fault that is armed, if any. */
#define CALL(w, call) (fault_arm(w), fault_strike(w, (call)))
void fault_arm(world *w);
memopt_status fault_strike(world *w, memopt_status status);
/* OK, or one of the two statuses, or what a fault or a refusal gives. 1 if OK. */
int expected(const world *w, memopt_status status, memopt_status a, memopt_status b);

/* --- model.c --- */

/* Everything that must hold between operations. */
void model_check(world *w);
/* Which blocks: all, those of some tags, or those whose pages a pause of the tags leaves. */
typedef enum model_blocks { MODEL_ALL, MODEL_TAGGED, MODEL_STAYING } model_blocks;
/* Bytes of pages that hold such a block of an expandable member; exported ones that were freed
 * count. */
uint64_t model_pages(const world *w, uint32_t index, model_blocks which, uint64_t tags);

/* --- blocks.c --- */

void do_alloc(hand *h, const oracle_op *op);
void do_free(hand *h, const oracle_op *op);
void do_bad_free(hand *h, const oracle_op *op);
void do_write(hand *h, const oracle_op *op);
void do_use(hand *h, const oracle_op *op);
void do_verify(hand *h, const oracle_op *op);
void do_sync(hand *h, const oracle_op *op);
/* A live block that can be touched, or may be paused: its slot and its member are held then. */
slot *enter_block(world *w, const oracle_op *op, int also_paused);
void leave_block(world *w, slot *s);
/* What a slot must hold, read on a stream. The slot and the member are held. */
void verify_slot(hand *h, slot *s, uint32_t stream);
/* The same, without the allocator, where an import has it. */
void verify_bytes(hand *h, const slot *s, const unsigned char *at, uint32_t stream);
/* Its own stream writes it, there or where an import has it; the slot and the member are held. */
void write_slot(hand *h, slot *s, unsigned char *at);
/* Frees, if the call lets it; the slot is held. */
void free_slot(world *w, slot *s);

/* --- members.c --- */

/* The member is there and held, with `alone` for writing; 0: it is not. */
int enter_member(world *w, uint32_t index, int alone);
void leave_member(world *w, uint32_t index);
/* A stream that the member's family has seen records a graph: nothing goes back then. */
int records(const world *w, uint32_t index);

void do_trim(hand *h, const oracle_op *op);
void do_limit(hand *h, const oracle_op *op);
void do_pool(hand *h, const oracle_op *op);
void do_drop(hand *h, const oracle_op *op);
void do_end_stream(hand *h, const oracle_op *op);
void do_history(hand *h, const oracle_op *op);
void do_step(hand *h, const oracle_op *op);

/* --- pauses.c --- */

void do_pause(hand *h, const oracle_op *op);
void do_resume(hand *h, const oracle_op *op);
void do_pause_tags(hand *h, const oracle_op *op);
void do_resume_tags(hand *h, const oracle_op *op);

/* --- shares.c --- */

void do_export(hand *h, const oracle_op *op);
void do_end_export(hand *h, const oracle_op *op);
void do_import(hand *h, const oracle_op *op);
void do_end_import(hand *h, const oracle_op *op);
/* Of the whole world, while nothing runs: all end, and imports hold what they must. */
void shares_end(hand *h);
void shares_verify(hand *h);
int is_exported(const world *w, const slot *s);
/* Blocks of a member that were freed and are kept by an export; `out`: one share of each. */
uint32_t shares_freed(const world *w, uint32_t index, const slot **out);
uint64_t shares_imported(const world *w);
/* The slot's block is about to be freed; some tags of a member were paused. */
void shares_block_freed(world *w, const slot *s);
void shares_paused(world *w, uint32_t index, uint64_t tags);
int shares_of(const world *w, uint32_t index);

/* --- graph.c --- */

void do_capture(hand *h, const oracle_op *op);
void do_end_capture(hand *h, const oracle_op *op);
void do_replay(hand *h, const oracle_op *op);
/* Fills, now or whenever the graph is replayed. */
void graph_fill(world *w, void *at, uint8_t value, uint64_t bytes, uint32_t stream);
/* The graph is no more; it is not being recorded. */
void graph_drop(world *w);
/* The cpu device records none: its operations ask the model instead. */
int graph_is_capturing(const world *w, memopt_stream stream);

/* --- observe.c --- */

void observe_root(world *w, uint32_t root);
void do_observe(hand *h, const oracle_op *op);
void do_unobserve(hand *h, const oracle_op *op);
/* Observers of a pool end with it. */
void observers_of_pool_end(world *w, uint32_t index);
/* What observers know is what the driver has. */
void observers_check(world *w);

/* --- run.c --- */

void oracle_step(hand *h, const oracle_op *op);

#endif
