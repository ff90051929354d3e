/*
 * The fast path: a cached block or a place of a plan is given out, or a block that no other stream
 * uses is freed, in the stripe of its stream. Whatever needs more is left to the closed gate. The
 * blocks are the same as there.
 *
 * A block that is freed right after it was taken is kept as it is: taking the same size again would
 * join it, find it and cut it off once more. Anything else that happens in the stripe, or the
 * gate's closing, puts it back first.
 */
#include "allocator/front/stripe_blocks.h"

#include "allocator/blocks/pool.h"
#include "allocator/blocks/stripe.h"
#include "allocator/steps/lane.h"

#include "base/log.h"

static inline mo_stripe *enter(memopt_allocator *allocator, unsigned number)
{
    mo_stripe *stripe = mo_stripe_enter(allocator, number);
    if (stripe != NULL && allocator->notes)
        mo_log_held.locks++;
    return stripe;
}

static inline void leave(const memopt_allocator *allocator, mo_stripe *stripe)
{
    mo_stripe_leave(stripe);
    if (allocator->notes && --mo_log_held.locks == 0 && mo_log_held.lines != 0)
        mo_log_flush();
}

static inline void forget_last(memopt_allocator *allocator, mo_stripe *stripe)
{
    if (stripe->kept == NULL && stripe->allocations == stripe->since)
        stripe->last = NULL; /* nothing to put back or to add */
    else
        mo_stripe_put_kept(allocator, stripe);
}

/* In a classic segment: the free parts that would have been made meanwhile. Before a block that was
 * cut off there is no free one. */
static void count_holes(mo_stripe *stripe, const mo_block *kept)
{
    const mo_block *rest = kept->next, *after = rest;
    uint64_t *added = stripe->added[kept->segment->pool->kind];
    uint64_t joined = kept->size;
    if (mo_segment_is_expandable(kept->segment))
        return;
    if (rest != NULL && rest->state == MO_BLOCK_FREE) {
        added[MO_STRIPE_HOLES]++;
        added[MO_STRIPE_HOLE_BYTES] += rest->size;
        joined += rest->size;
        after = rest->next;
    }
    if (kept->prev != NULL || after != NULL) {
        added[MO_STRIPE_HOLES]++;
        added[MO_STRIPE_HOLE_BYTES] += joined;
    }
}

/* Counts the free and the allocation of the kept block. 0: there is no room for the latter, and the
 * block is put back. */
static int count_kept(memopt_allocator *allocator, mo_stripe *stripe, const mo_request *request)
{
    mo_block *kept = stripe->kept;
    unsigned kind = kept->segment->pool->kind;
    if (kept->requested == request->asked && kept->tag == request->tag)
        return mo_stripe_count_again(allocator, stripe);
    mo_stripe_settle_again(stripe);
    mo_stripe_count_free(stripe, kind, kept);
    if (mo_stripe_count_alloc(allocator, stripe, kind, kept->size, request->asked, request->tag)) {
        stripe->since = stripe->allocations;
        return 1;
    }
    stripe->last = stripe->kept = NULL;
    kept->requested = 0;
    mo_pool_put_in(allocator, stripe, kept);
    return 0;
}

/* The kept block, if taking the request's size would give it. */
static mo_block *take_kept(memopt_allocator *allocator, mo_stripe *stripe,
                           const mo_request *request)
{
    mo_block *kept = stripe->kept;
    if (kept == NULL || stripe->size != request->size || stripe->stream != request->stream ||
        !count_kept(allocator, stripe, request))
        return NULL;
    stripe->kept = NULL;
    count_holes(stripe, kept);
    /* What it was cut off would have been joined with it. */
    if (kept->next != NULL && kept->next->state == MO_BLOCK_FREE)
        kept->next->freed_at = kept->freed_at;
    return kept;
}

/* Cutting a classic segment that is all free makes the first part of it. */
static int may_cut(const mo_stripe *stripe, const mo_block *block, unsigned kind, uint64_t size)
{
    return size == block->size || block->split || mo_segment_is_expandable(block->segment) ||
           mo_stripe_has_hole_room(stripe, kind, 1, (int64_t)(block->size - size));
}

/* A free block of a classic segment joins those beside it, and all of a segment is no part. */
static int may_put(const mo_stripe *stripe, const mo_block *block, unsigned kind)
{
    const mo_block *beside[2] = {block->prev, block->next};
    uint64_t joined = block->size;
    int64_t parts = 1;
    if (mo_segment_is_expandable(block->segment))
        return 1;
    for (int i = 0; i < 2; i++)
        if (beside[i] != NULL && beside[i]->state == MO_BLOCK_FREE) {
            parts--;
            joined += beside[i]->size;
        }
    return joined == block->segment->size ||
           mo_stripe_has_hole_room(stripe, kind, parts, (int64_t)block->size);
}

/* The best fit, cut and counted; NULL if there is none, or something is missing. */
static mo_block *take_cached(memopt_allocator *allocator, mo_stripe *stripe, const mo_pool *pool,
                             const mo_request *request)
{
    if (pool->segments == 0)
        return NULL;
    mo_block *block = mo_pool_choose(allocator, pool, request->size);
    if (block == NULL || !mo_pool_serves(allocator, block, request->size))
        return NULL;
    unsigned kind = block->segment->pool->kind;
    uint64_t size = mo_pool_cut_size(allocator, block, request->size);
    if (size >= allocator->max_split || !may_cut(stripe, block, kind, size) ||
        !mo_stripe_count_alloc(allocator, stripe, kind, size, request->asked, request->tag))
        return NULL;
    mo_pool_take_in(allocator, stripe, block, size);
    return block;
}

static mo_block *take(memopt_allocator *allocator, mo_stripe *stripe, const mo_request *request)
{
    const mo_pool *pool =
        mo_pool_find(allocator, request->stream, mo_pool_sizes(allocator, request->size));
    if (pool == NULL || stripe->slab.unused_count < 2 || stripe->entries == 0)
        return NULL;
    forget_last(allocator, stripe);
    int planned = pool->lane != NULL && pool->lane->armed;
    mo_block *block = planned ? allocator->plan->take(allocator, stripe, pool, request, take_cached)
                              : take_cached(allocator, stripe, pool, request);
    if (block == NULL)
        return NULL;
    if (!planned) {
        stripe->last = block;
        stripe->since = stripe->allocations;
        stripe->stream = request->stream;
        stripe->size = request->size;
    }
    stripe->entries -= mo_block_table_enter(&allocator->live, block);
    return block;
}

void *mo_stripe_alloc(memopt_allocator *allocator, const mo_request *request)
{
    unsigned bucket = mo_stream_bucket(request->stream);
    unsigned number = atomic_load_explicit(&allocator->stripe_of[bucket], memory_order_relaxed);
    mo_stripe *stripe = enter(allocator, number);
    if (stripe == NULL)
        return NULL;
    mo_block *block = NULL;
    if (request->tag < allocator->tag_count && !mo_tag_is_paused(allocator, request->tag) &&
        mo_sinks_have_room(allocator)) {
        block = take_kept(allocator, stripe, request);
        if (block == NULL)
            block = take(allocator, stripe, request);
    }
    void *address = NULL;
    if (block != NULL) {
        block->state = MO_BLOCK_LIVE;
        block->requested = request->asked;
        block->tag = request->tag;
        block->context = request->context;
        block->freed_at = allocator->clock + stripe->allocations - 1;
        atomic_store_explicit(&block->stripe, (uint8_t)(number - 1), memory_order_relaxed);
        address = block->address;
        if (allocator->beside != NULL)
            mo_tell_beside(allocator, &(mo_event){.what = MO_ALLOC,
                                                  .block = block,
                                                  .request = request,
                                                  .stream = request->stream});
    }
    leave(allocator, stripe);
    return address;
}

/* 0: not here. */
static int give_back(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block)
{
    mo_pool *pool = block->segment->pool;
    int held = block->planned && pool->lane->armed;
    if (block->uses != NULL || block->exports != 0 || mo_tag_is_paused(allocator, block->tag) ||
        block->size >= allocator->max_split || !mo_sinks_have_room(allocator) ||
        (!held && !may_put(stripe, block, pool->kind)))
        return 0;
    if (allocator->beside != NULL) {
        mo_event event = {.what = MO_FREE, .block = block, .stream = pool->stream};
        mo_tell_beside(allocator, &event);
        event.what = MO_END;
        mo_tell_beside(allocator, &event);
    }
    block->freed_at = allocator->clock + stripe->allocations;
    if (block == stripe->last) {
        block->state = MO_BLOCK_CLAIMED;
        stripe->kept = block;
        return 1;
    }
    mo_stripe_count_free(stripe, pool->kind, block);
    block->requested = 0;
    forget_last(allocator, stripe);
    if (!block->planned || !allocator->plan->hold(&stripe->slab, block))
        mo_pool_put_in(allocator, stripe, block);
    return 1;
}

int mo_stripe_free(memopt_allocator *allocator, void *pointer)
{
    mo_block *block = mo_block_table_look(&allocator->live, pointer);
    if (block == NULL)
        return 0;
    unsigned number = atomic_load_explicit(&block->stripe, memory_order_relaxed);
    mo_stripe *stripe = enter(allocator, number + 1);
    if (stripe == NULL)
        return 0;
    int done = atomic_load_explicit(&block->stripe, memory_order_relaxed) == number &&
               block->address == pointer && block->state == MO_BLOCK_LIVE &&
               give_back(allocator, stripe, block);
    leave(allocator, stripe);
    return done;
}
