/*
 * Blocks: runs of addresses in one state, and the table from a live block's pointer to it.
 *
 * A segment's blocks form a list in address order that covers it without a gap. No two free
 * blocks, and no two unmapped ones, are neighbours. Block structs come from slabs and are
 * reserved before a state change begins, so that no change fails half way.
 */
#ifndef MO_ALLOCATOR_BLOCK_H
#define MO_ALLOCATOR_BLOCK_H

#include "memopt/allocator.h"

/* Every block's size and address are multiples of it. */
#define MO_BLOCK_UNIT UINT64_C(512)

typedef enum mo_block_state {
    MO_BLOCK_FREE,     /* mapped, in its pool's bins */
    MO_BLOCK_LIVE,     /* allocated; in the table */
    MO_BLOCK_PENDING,  /* freed; work of a recorded stream may use it still */
    MO_BLOCK_UNMAPPED, /* addresses without memory; in its segment's list of these */
    MO_BLOCK_CLAIMED,  /* held by the slow path while the lock is released, or for a plan's places;
                        * in no structure */
    MO_BLOCK_ASLEEP    /* free, in pages that a pause has taken; in that pause's list */
} mo_block_state;

struct mo_segment;
struct mo_stream_use;

typedef struct mo_block {
    char *address;
    uint64_t size;
    struct mo_block *left;  /* FREE: children in the bins. UNMAPPED: neighbours in the list. */
    struct mo_block *right; /* CLAIMED, ASLEEP: the next of its list. Unused: the slab's next. */
    struct mo_block *prev;  /* neighbours by address in the segment */
    struct mo_block *next;
    struct mo_segment *segment;
    uint64_t requested;         /* LIVE, PENDING: bytes asked for */
    uint64_t freed_at;          /* the allocator's clock: FREE, at its last free; LIVE, PENDING: at
                                 * its allocation */
    struct mo_stream_use *uses; /* LIVE, PENDING: recorded streams */
    uint32_t pending;           /* PENDING: events not complete yet */
    memopt_tag tag;
    uint8_t state;
    uint8_t mapped;   /* CLAIMED: whether it has memory */
    uint8_t split;    /* FREE: counted as inactive_split */
    uint8_t planned;  /* what it is to a plan; see steps.h */
    uint32_t context; /* LIVE, PENDING: of its allocation; see memopt_history_event */
    uint32_t entry;   /* LIVE, PENDING: of a recorded step; 0: none */
    uint32_t slot;    /* of a plan, if it is in one's place */
} mo_block;

/* --- slabs ---------------------------------------------------------------------------------- */

typedef struct mo_slab {
    mo_block *unused;
    uint64_t unused_count;
    struct mo_slab_chunk *chunks;
} mo_slab;

/* Makes sure that `count` blocks can be taken. 1 on success, else 0 (the last error is set). */
int mo_slab_refill(mo_slab *slab, uint64_t count);
static inline int mo_slab_reserve(mo_slab *slab, uint64_t count)
{
    return slab->unused_count >= count || mo_slab_refill(slab, count);
}
/* Takes one that was reserved, with every field zero. */
mo_block *mo_slab_take(mo_slab *slab);
void mo_slab_return(mo_slab *slab, mo_block *block);
void mo_slab_end(mo_slab *slab);

/* --- splitting and joining ------------------------------------------------------------------ */

/* Cuts block to `size` bytes; returns the rest, its next neighbour, in the same state but in no
 * structure. Its struct was reserved. */
mo_block *mo_block_split(mo_slab *slab, mo_block *block, uint64_t size);
/* Adds the next neighbour's bytes to block and returns its struct to the slab. */
void mo_block_absorb_next(mo_slab *slab, mo_block *block);

/* --- the table of live blocks ---------------------------------------------------------------- */

/* Open addressing with linear probing, at most half full; deletion moves entries back. */
typedef struct mo_block_table {
    struct mo_block_table_slot {
        const void *address;
        mo_block *block;
    } * slots;
    uint64_t capacity; /* a power of two, or 0 */
    uint64_t count;
    unsigned shift; /* 64 - log2(capacity) */
} mo_block_table;

int mo_block_table_grow(mo_block_table *table);
/* Makes room for one more entry. 1 on success, else 0. */
static inline int mo_block_table_reserve(mo_block_table *table)
{
    return table->count * 2 < table->capacity || mo_block_table_grow(table);
}
void mo_block_table_insert(mo_block_table *table, mo_block *block);
mo_block *mo_block_table_find(const mo_block_table *table, const void *address);
void mo_block_table_remove(mo_block_table *table, const void *address);
void mo_block_table_end(mo_block_table *table);

#endif
