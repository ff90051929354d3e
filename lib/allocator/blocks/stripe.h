/*
 * A stripe: the fast path of the streams that belong to it. The thread in it takes blocks from
 * these streams' pools and puts them back, beside other threads in theirs and without a write to
 * memory that those use.
 *
 * Counts are exact all the same. A stripe counts for itself; whoever closes the gate adds that to
 * the statistics. Peaks need no look at other stripes: each stripe has room by which its counts may
 * rise, and the sum of all rooms never exceeds what the sums lie below their peaks. Frees make
 * room. A stripe without room leaves the request to the closed gate, where the peak may rise.
 *
 * A kept block (stripe_blocks.c) counts as allocated until it is put back: it needs no room to be
 * taken again, and only the number of such turns is added then.
 */
#ifndef MO_ALLOCATOR_STRIPE_H
#define MO_ALLOCATOR_STRIPE_H

#include "allocator/blocks/state.h"

/* After so many allocations at most the next one closes the gate, so that no stripe's clock is far
 * behind the others'. */
enum { MO_STRIPE_ALLOCATIONS = 4096 };

/* Puts the kept block back, if there is one, and forgets the last one. */
void mo_stripe_put_kept(memopt_allocator *allocator, mo_stripe *stripe);

/* The gate's functions; see stripes.c. */
void mo_stripes_entered(mo_gate *gate);
int mo_stripes_leaving(mo_gate *gate);

/* NULL: the gate does not open soon, or the stream has no stripe yet. */
static inline mo_stripe *mo_stripe_enter(memopt_allocator *allocator, unsigned number)
{
    if (number == 0)
        return NULL;
    mo_stripe *stripe = &allocator->stripes[number - 1];
    return mo_gate_enter(&allocator->lock, &stripe->taken) ? stripe : NULL;
}

static inline void mo_stripe_leave(mo_stripe *stripe)
{
    mo_gate_leave(&stripe->taken);
}

/* Counts an allocation; 0, and nothing, if there is no room for it. */
static inline int mo_stripe_count_alloc(const memopt_allocator *allocator, mo_stripe *stripe,
                                        unsigned kind, uint64_t size, uint64_t asked,
                                        memopt_tag tag)
{
    int64_t *all = stripe->room[MO_POOL_ALL], *own = stripe->room[kind];
    int64_t bytes = (int64_t)size, wanted = (int64_t)asked;
    if (stripe->allocations >= allocator->stripe_most || all[MO_STRIPE_BLOCKS] < 1 ||
        all[MO_STRIPE_BYTES] < bytes || all[MO_STRIPE_ASKED] < wanted ||
        own[MO_STRIPE_BLOCKS] < 1 || own[MO_STRIPE_BYTES] < bytes ||
        own[MO_STRIPE_ASKED] < wanted || stripe->tag[tag].room < wanted)
        return 0;
    all[MO_STRIPE_BLOCKS]--;
    own[MO_STRIPE_BLOCKS]--;
    all[MO_STRIPE_BYTES] -= bytes;
    own[MO_STRIPE_BYTES] -= bytes;
    all[MO_STRIPE_ASKED] -= wanted;
    own[MO_STRIPE_ASKED] -= wanted;
    stripe->added[kind][MO_STRIPE_BLOCKS]++;
    stripe->added[kind][MO_STRIPE_BYTES] += size;
    stripe->added[kind][MO_STRIPE_ASKED] += asked;
    stripe->tag[tag].room -= wanted;
    stripe->tag[tag].blocks++;
    stripe->tags_used |= UINT64_C(1) << tag;
    stripe->allocations++;
    stripe->used = 1;
    return 1;
}

static inline void mo_stripe_count_free(mo_stripe *stripe, unsigned kind, const mo_block *block)
{
    int64_t *all = stripe->room[MO_POOL_ALL], *own = stripe->room[kind];
    int64_t bytes = (int64_t)block->size, wanted = (int64_t)block->requested;
    all[MO_STRIPE_BLOCKS]++;
    own[MO_STRIPE_BLOCKS]++;
    all[MO_STRIPE_BYTES] += bytes;
    own[MO_STRIPE_BYTES] += bytes;
    all[MO_STRIPE_ASKED] += wanted;
    own[MO_STRIPE_ASKED] += wanted;
    stripe->tag[block->tag].room += wanted;
    stripe->tag[block->tag].blocks--;
    stripe->tags_used |= UINT64_C(1) << block->tag;
    stripe->used = 1;
}

/* The kept block is taken again, as it was; 0 if the gate should be closed first. */
static inline int mo_stripe_count_again(const memopt_allocator *allocator, mo_stripe *stripe)
{
    if (stripe->allocations >= allocator->stripe_most)
        return 0;
    stripe->allocations++;
    return 1;
}

/* Adds the turns of the last block. */
static inline void mo_stripe_settle_again(mo_stripe *stripe)
{
    const mo_block *last = stripe->last;
    uint64_t turns = stripe->allocations - stripe->since;
    if (turns == 0)
        return;
    uint64_t *added = stripe->added[last->segment->pool->kind];
    added[MO_STRIPE_BLOCKS] += turns;
    added[MO_STRIPE_BYTES] += turns * last->size;
    added[MO_STRIPE_ASKED] += turns * last->requested;
}

/* True if so many free parts of classic segments and bytes of them may be added. */
static inline int mo_stripe_has_hole_room(const mo_stripe *stripe, unsigned kind, int64_t parts,
                                          int64_t bytes)
{
    const int64_t *all = stripe->room[MO_POOL_ALL], *own = stripe->room[kind];
    return all[MO_STRIPE_HOLES] >= parts && own[MO_STRIPE_HOLES] >= parts &&
           all[MO_STRIPE_HOLE_BYTES] >= bytes && own[MO_STRIPE_HOLE_BYTES] >= bytes;
}

/* A free part of a classic segment is one more, or, with sign -1, one less. */
static inline void mo_stripe_count_hole(mo_stripe *stripe, unsigned kind, uint64_t size,
                                        int64_t sign)
{
    int64_t bytes = sign * (int64_t)size;
    stripe->room[MO_POOL_ALL][MO_STRIPE_HOLES] -= sign;
    stripe->room[kind][MO_STRIPE_HOLES] -= sign;
    stripe->room[MO_POOL_ALL][MO_STRIPE_HOLE_BYTES] -= bytes;
    stripe->room[kind][MO_STRIPE_HOLE_BYTES] -= bytes;
    if (sign > 0) {
        stripe->added[kind][MO_STRIPE_HOLES]++;
        stripe->added[kind][MO_STRIPE_HOLE_BYTES] += size;
    }
}

#endif
