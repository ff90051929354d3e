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

#include <stdatomic.h>

/* Every block's size and address are multiples of it. */
#define MO_BLOCK_UNIT UINT64_C(512)

typedef enum mo_block_state {
    MO_BLOCK_FREE,     /* mapped, in its pool's bins */
    MO_BLOCK_LIVE,     /* allocated; in the table */
    MO_BLOCK_PENDING,  /* freed; work of a recorded stream may use it still */
    MO_BLOCK_UNMAPPED, /* addresses without memory; in its segment's list of these */
    MO_BLOCK_CLAIMED,  /* held by the slow path while the lock is released, or for a plan's places;
                        * in no structure */
    MO_BLOCK_ASLEEP,   /* free, in pages that a pause has taken; in that pause's list */
    MO_BLOCK_STALE     /* free pages that serve other addresses by now; in the list of stale.c */
} mo_block_state;

/* mo_block.pending of a freed block that waits for its exports only. */
#define MO_BLOCK_EXPORTED UINT32_MAX

struct mo_segment;
struct mo_stream_use;

/* What its neighbours and the bins read comes first. */
typedef struct mo_block {
    char *address;
    uint64_t size;
    struct mo_block *left; /* FREE: children in the bins. UNMAPPED: neighbours in the list. */
    struct mo_block
        *right; /* CLAIMED, ASLEEP, STALE: the next of its list. Unused: the slab's next. */
    struct mo_block *prev; /* neighbours by address in the segment */
    struct mo_block *next;
    struct mo_segment *segment;
    uint8_t state;
    uint8_t mapped;         /* CLAIMED: whether it has memory */
    uint8_t split;          /* FREE: counted as inactive_split */
    _Atomic uint8_t stripe; /* LIVE: its pool's; also read without a lock */
    memopt_tag tag;
    uint64_t requested;         /* LIVE, PENDING: bytes asked for */
    uint64_t freed_at;          /* the allocator's clock: FREE, at its last free; LIVE, PENDING: at
                                 * its allocation */
    struct mo_stream_use *uses; /* LIVE, PENDING: recorded streams. STALE: behind its last use */
    uint32_t pending;           /* PENDING: events not complete yet */
    uint32_t context;           /* LIVE, PENDING: of its allocation; see memopt_history_event */
    uint32_t entry;             /* LIVE, PENDING: of a recorded step; 0: none */
    uint32_t slot;              /* of a plan, if it is in one's place */
    uint8_t planned;            /* what it is to a plan; see lane.h */
    uint8_t exports;            /* LIVE, PENDING: it keeps its memory while there are any */
} mo_block;

/* --- slabs ---------------------------------------------------------------------------------- */

typedef struct mo_slab {
    mo_block *unused;
    uint64_t unused_count;
    struct mo_slab_chunk *chunks;
} mo_slab;

/* Takes one that was reserved, with every field zero. */
mo_block *mo_slab_take(mo_slab *slab);
void mo_slab_return(mo_slab *slab, mo_block *block);
/* Moves up to `count` unused ones. */
void mo_slab_move(mo_slab *from, mo_slab *to, uint64_t count);
/* Makes sure that `count` blocks can be taken. 1 on success, else 0 (the last error is set). */
int mo_slab_refill(mo_slab *slab, uint64_t count);
static inline int mo_slab_reserve(mo_slab *slab, uint64_t count)
{
    return slab->unused_count >= count || mo_slab_refill(slab, count);
}
void mo_slab_end(mo_slab *slab);

/* --- splitting and joining ------------------------------------------------------------------ */

/* Cuts block to `size` bytes; returns the rest, its next neighbour, in the same state but in no
 * structure. Its struct was reserved. */
mo_block *mo_block_split(mo_slab *slab, mo_block *block, uint64_t size);
/* Adds the next neighbour's bytes to block and returns its struct to the slab. */
void mo_block_absorb_next(mo_slab *slab, mo_block *block);

/* --- the table of live blocks ----------------------------------------------------------------
 *
 * From an address to the block that starts there. Open addressing with linear probing. A slot keeps
 * its address when the block is freed, and the block may have become another one: so what is found
 * counts only if it is live and has that address. Memory that is used again and again leaves the
 * table as it is. When too many slots are taken, it is made again, of the live blocks.
 *
 * Threads in different stripes enter blocks and search at the same time; all else is done with the
 * gate closed. A search may run beside the making anew and find nothing: whoever has to know
 * searches again with the gate closed. So slots stay in memory until the table ends. */

typedef struct mo_block_slots mo_block_slots;

typedef struct mo_block_table {
    _Atomic(mo_block_slots *) slots; /* NULL: none yet */
    mo_block_slots *spare;           /* as many as those, or NULL */
    mo_block_slots *older;           /* fewer */
    uint64_t count;                  /* live blocks */
    uint64_t room;                   /* addresses that may still be entered */
} mo_block_table;

/* Makes room for some addresses. 1 on success, else 0. */
int mo_block_table_make_room(mo_block_table *table);
/* Enters a live block. Pre: there is room; the result, 1 or 0, is taken off it. */
uint64_t mo_block_table_enter(mo_block_table *table, mo_block *block);
/* The block that was entered at an address last; it may be another one by now. */
mo_block *mo_block_table_look(const mo_block_table *table, const void *address);
/* The live block at an address; NULL if none. */
static inline mo_block *mo_block_table_find(const mo_block_table *table, const void *address)
{
    mo_block *block = mo_block_table_look(table, address);
    return block != NULL && block->address == address && block->state == MO_BLOCK_LIVE ? block
                                                                                       : NULL;
}
void mo_block_table_end(mo_block_table *table);

#endif
