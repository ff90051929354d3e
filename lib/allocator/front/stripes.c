/*
 * What stripes count and have in store, when the gate closes and opens. Called with the gate
 * closed; the stripes are empty.
 */
#include "allocator/blocks/stripe.h"

#include "allocator/blocks/pool.h"
#include "allocator/streams/events.h"

#include "base/checked.h"

#include <stddef.h>

/* Block structs and new addresses that a stripe is given, and the structs that it may keep. */
enum { STRUCTS = 256, MOST_STRUCTS = 4096, LEFT_STRUCTS = 8, ENTRIES = 1024 };

static memopt_allocator *owner_of(mo_gate *gate)
{
    return (memopt_allocator *)(void *)((char *)gate - offsetof(memopt_allocator, lock));
}

/* --- closing ---------------------------------------------------------------------------------- */

static void add_to(mo_stat *stat, int64_t change, uint64_t added)
{
    stat->current += (uint64_t)change;
    stat->added += added;
}

/* Adds what the stripe has counted of one kind. No peak is reached: that is what rooms are for. */
static void settle_kind(mo_stats *stats, mo_stripe *stripe, unsigned kind)
{
    int64_t change[MO_STRIPE_COUNTS];
    uint64_t *added = stripe->added[kind];
    mo_stat *to = stats->by_pool[kind];
    for (unsigned i = 0; i < MO_STRIPE_COUNTS; i++) {
        change[i] = stripe->was[kind][i] - stripe->room[kind][i];
        stripe->was[kind][i] = stripe->room[kind][i];
    }
    add_to(&to[MO_STAT_ALLOCATION], change[MO_STRIPE_BLOCKS], added[MO_STRIPE_BLOCKS]);
    add_to(&to[MO_STAT_ACTIVE], change[MO_STRIPE_BLOCKS], added[MO_STRIPE_BLOCKS]);
    add_to(&to[MO_STAT_ALLOCATED_BYTES], change[MO_STRIPE_BYTES], added[MO_STRIPE_BYTES]);
    add_to(&to[MO_STAT_ACTIVE_BYTES], change[MO_STRIPE_BYTES], added[MO_STRIPE_BYTES]);
    add_to(&to[MO_STAT_REQUESTED_BYTES], change[MO_STRIPE_ASKED], added[MO_STRIPE_ASKED]);
    add_to(&to[MO_STAT_INACTIVE_SPLIT], change[MO_STRIPE_HOLES], added[MO_STRIPE_HOLES]);
    add_to(&to[MO_STAT_INACTIVE_SPLIT_BYTES], change[MO_STRIPE_HOLE_BYTES],
           added[MO_STRIPE_HOLE_BYTES]);
    for (unsigned i = 0; i < MO_STRIPE_COUNTS; i++)
        added[i] = 0;
}

static void settle_tags(memopt_allocator *allocator, mo_stripe *stripe)
{
    for (; stripe->tags_used != 0; stripe->tags_used &= stripe->tags_used - 1) {
        unsigned tag = (unsigned)__builtin_ctzll(stripe->tags_used);
        allocator->tags[tag].current += (uint64_t)(stripe->tag[tag].was - stripe->tag[tag].room);
        allocator->tags[tag].blocks += (uint64_t)stripe->tag[tag].blocks;
        stripe->tag[tag].was = stripe->tag[tag].room;
        stripe->tag[tag].blocks = 0;
    }
}

void mo_stripe_put_kept(memopt_allocator *allocator, mo_stripe *stripe)
{
    mo_block *kept = stripe->kept;
    if (stripe->last == NULL)
        return;
    mo_stripe_settle_again(stripe);
    stripe->last = stripe->kept = NULL;
    if (kept == NULL)
        return;
    mo_stripe_count_free(stripe, kept->segment->pool->kind, kept);
    kept->requested = 0;
    mo_pool_put_in(allocator, stripe, kept);
}

static void settle(memopt_allocator *allocator, mo_stripe *stripe)
{
    mo_stripe_put_kept(allocator, stripe);
    if (stripe->slab.unused_count > MOST_STRUCTS)
        mo_slab_move(&stripe->slab, &allocator->slab, stripe->slab.unused_count / 2);
    for (unsigned i = 0; i < MO_STRIPE_COUNTS; i++)
        stripe->added[MO_POOL_ALL][i] =
            stripe->added[MO_POOL_SMALL][i] + stripe->added[MO_POOL_LARGE][i];
    allocator->live.count += (uint64_t)(stripe->was[MO_POOL_ALL][MO_STRIPE_BLOCKS] -
                                        stripe->room[MO_POOL_ALL][MO_STRIPE_BLOCKS]);
    for (unsigned kind = 0; kind < MO_POOL_KINDS; kind++)
        settle_kind(&allocator->stats, stripe, kind);
    settle_tags(allocator, stripe);
    allocator->clock += stripe->allocations;
    stripe->allocations = 0;
    stripe->used = 0;
}

void mo_stripes_entered(mo_gate *gate)
{
    memopt_allocator *allocator = owner_of(gate);
    for (uint32_t i = 0; i < gate->stripes; i++)
        if (allocator->stripes[i].used)
            settle(allocator, &allocator->stripes[i]);
}

/* --- opening ---------------------------------------------------------------------------------- */

static uint64_t below_peak(const mo_stat *stat)
{
    return stat->peak - stat->current;
}

/* By how much the count of all stripes may rise. */
static int64_t slack(const mo_stats *stats, unsigned kind, unsigned count)
{
    const mo_stat *of = stats->by_pool[kind];
    switch (count) {
    case MO_STRIPE_BLOCKS:
        return (int64_t)mo_min_u64(below_peak(&of[MO_STAT_ALLOCATION]),
                                   below_peak(&of[MO_STAT_ACTIVE]));
    case MO_STRIPE_BYTES:
        return (int64_t)mo_min_u64(below_peak(&of[MO_STAT_ALLOCATED_BYTES]),
                                   below_peak(&of[MO_STAT_ACTIVE_BYTES]));
    case MO_STRIPE_ASKED:
        return (int64_t)below_peak(&of[MO_STAT_REQUESTED_BYTES]);
    case MO_STRIPE_HOLES:
        return (int64_t)below_peak(&of[MO_STAT_INACTIVE_SPLIT]);
    default:
        return (int64_t)below_peak(&of[MO_STAT_INACTIVE_SPLIT_BYTES]);
    }
}

/* Takes rooms back where they are more than `most` together; the one that asks gets all that is
 * left of it, or half if there are others. */
static void share(memopt_allocator *allocator, int64_t most, unsigned kind, unsigned count)
{
    int64_t sum = 0;
    uint32_t stripes = allocator->lock.stripes;
    for (uint32_t i = 0; i < stripes; i++)
        sum += allocator->stripes[i].room[kind][count];
    if (sum > most) {
        for (uint32_t i = 0; i < stripes; i++)
            allocator->stripes[i].room[kind][count] = allocator->stripes[i].was[kind][count] = 0;
        sum = 0;
    }
    if (allocator->asking == NULL)
        return;
    int64_t *room = &allocator->asking->room[kind][count];
    *room += stripes == 1 ? most - sum : (most - sum) / 2;
    allocator->asking->was[kind][count] = *room;
}

static void share_tag(memopt_allocator *allocator, unsigned tag, int asked)
{
    const mo_tag *entry = &allocator->tags[tag];
    int64_t sum = 0, most = (int64_t)(entry->peak - entry->current);
    uint32_t stripes = allocator->lock.stripes;
    for (uint32_t i = 0; i < stripes; i++)
        sum += allocator->stripes[i].tag[tag].room;
    if (sum > most) {
        for (uint32_t i = 0; i < stripes; i++)
            allocator->stripes[i].tag[tag].room = allocator->stripes[i].tag[tag].was = 0;
        sum = 0;
    }
    if (!asked)
        return;
    int64_t *room = &allocator->asking->tag[tag].room;
    *room += stripes == 1 ? most - sum : (most - sum) / 2;
    allocator->asking->tag[tag].was = *room;
}

static void share_rooms(memopt_allocator *allocator)
{
    for (unsigned kind = 0; kind < MO_POOL_KINDS; kind++)
        for (unsigned count = 0; count < MO_STRIPE_COUNTS; count++)
            share(allocator, slack(&allocator->stats, kind, count), kind, count);
    if (allocator->asking != NULL)
        allocator->tags_raised |= UINT64_C(1) << allocator->asking_tag;
    for (; allocator->tags_raised != 0; allocator->tags_raised &= allocator->tags_raised - 1) {
        unsigned tag = (unsigned)__builtin_ctzll(allocator->tags_raised);
        share_tag(allocator, tag, allocator->asking != NULL && tag == allocator->asking_tag);
    }
    allocator->stats.raised = 0;
}

/* Nothing is allocated here: what is there may do for a while. */
static void supply(memopt_allocator *allocator, mo_stripe *stripe)
{
    if (stripe->slab.unused_count < LEFT_STRUCTS && allocator->slab.unused_count > LEFT_STRUCTS)
        mo_slab_move(&allocator->slab, &stripe->slab,
                     mo_min_u64(STRUCTS, allocator->slab.unused_count - LEFT_STRUCTS));
    if (stripe->entries == 0) {
        stripe->entries = mo_min_u64(ENTRIES, (allocator->live.room + 3) / 4);
        allocator->live.room -= stripe->entries;
    }
}

/* What needs more than a stripe has. */
static int must_stay_closed(const memopt_allocator *allocator)
{
    return allocator->pinned || mo_events_in(&allocator->events, allocator->clock) == 0 ||
           !mo_sinks_open(allocator);
}

int mo_stripes_leaving(mo_gate *gate)
{
    memopt_allocator *allocator = owner_of(gate);
    if (must_stay_closed(allocator))
        return 1;
    allocator->stripe_most =
        mo_min_u64(mo_events_in(&allocator->events, allocator->clock), MO_STRIPE_ALLOCATIONS);
    if (allocator->asking != NULL || allocator->stats.raised || allocator->tags_raised != 0)
        share_rooms(allocator);
    if (allocator->asking != NULL)
        supply(allocator, allocator->asking);
    allocator->asking = NULL;
    return 0;
}
