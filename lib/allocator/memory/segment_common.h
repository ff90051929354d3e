/* The list of segments, limits, and what both kinds share. Called with the lock held. */
#ifndef MO_ALLOCATOR_SEGMENT_COMMON_H
#define MO_ALLOCATOR_SEGMENT_COMMON_H

#include "allocator/blocks/state.h"

/* Which free memory to give back. */
typedef struct mo_release {
    uint64_t wanted;       /* stop when this many bytes are given back */
    uint64_t at_least;     /* classic: only blocks of this size and more */
    mo_pool *pool;         /* only this pool; NULL: all */
    uint64_t freed_before; /* only blocks that were freed up to this clock */
    uint64_t freed_first;  /* those that were freed up to this clock go before the others */
    int large_only;
} mo_release;

#define MO_RELEASE_ALL                                                                             \
    {                                                                                              \
        UINT64_MAX, 0, NULL, UINT64_MAX, 0, 0                                                      \
    }

/* Which of them to claim: those that go first, then the others. */
typedef enum mo_release_turn {
    MO_RELEASE_FIRST,
    MO_RELEASE_REST,
    MO_RELEASE_TURNS
} mo_release_turn;

/* True if `block` is one that `what` is about in this turn. */
int mo_release_matches(const mo_release *what, mo_release_turn turn, const mo_block *block);
/* Waits for the work of the pool's stream, once per release pass; releases lock meanwhile. */
memopt_status mo_drain_pool(memopt_allocator *allocator, mo_pool *pool);

/* True if the pool's pages can be taken without a wait, which mo_drain_pool then knows in this
 * pass. */
int mo_pool_idle(memopt_allocator *allocator, mo_pool *pool);

/* Bytes that may be held from the device, by the parent's whole family: the limit and the fraction.
 */
uint64_t mo_allowed(const memopt_allocator *allocator);
/* Bytes that may be held in addition: by the member, and with its family's. Slow held. */
uint64_t mo_own_room(const memopt_allocator *allocator);
uint64_t mo_room(const memopt_allocator *allocator);
/* OK if `bytes` more may be asked of the device. */
memopt_status mo_may_grow(memopt_allocator *allocator, uint64_t bytes);
/* Counts bytes that came from or went to the device in `calls` driver calls. Slow held. */
void mo_count_mapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                     uint64_t calls);
void mo_count_unmapped(memopt_allocator *allocator, mo_segment *segment, uint64_t bytes,
                       uint64_t calls);

void mo_segment_link(memopt_allocator *allocator, mo_segment *segment);
void mo_segment_unlink(memopt_allocator *allocator, mo_segment *segment);
/* The segment and block that hold an address, whatever the block's state; NULL if none. */
mo_block *mo_block_at(const memopt_allocator *allocator, const void *address);

#endif
