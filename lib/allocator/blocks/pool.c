/* Pools: how sizes are rounded, and how free blocks are taken, cut, joined and put back. */
#include "allocator/blocks/pool.h"

#include "allocator/blocks/stripe.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/precondition.h"

static void link_by_stream(memopt_allocator *allocator, mo_pool *pool, memopt_stream stream)
{
    mo_pool **bucket = &allocator->by_stream[mo_stream_bucket(stream)];
    pool->bucket = bucket;
    pool->same = *bucket;
    *bucket = pool;
}

static void unlink_by_stream(mo_pool *pool)
{
    mo_pool **place = pool->bucket;
    while (*place != pool)
        place = &(*place)->same;
    *place = pool->same;
}

/* Streams get stripes in turn. All streams of a bucket have the same one. */
static unsigned stripe_of(memopt_allocator *allocator, memopt_stream stream)
{
    _Atomic uint8_t *number = &allocator->stripe_of[mo_stream_bucket(stream)];
    mo_gate *gate = &allocator->lock;
    if (*number == 0) {
        unsigned next = allocator->streams_seen++ % MO_GATE_STRIPES;
        gate->stripe[next] = &allocator->stripes[next].taken;
        gate->stripes = next < gate->stripes ? gate->stripes : next + 1;
        *number = (uint8_t)(next + 1);
    }
    return *number - 1u;
}

/* A new pool, or the empty one of a stream that has ended. */
static mo_pool *spare_pool(memopt_allocator *allocator)
{
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        if (pool->life == MO_STREAM_ENDED && pool->segments == 0) {
            unlink_by_stream(pool);
            return pool;
        }
    }
    mo_pool *pool = mo_calloc(1, sizeof *pool);
    if (pool != NULL) {
        pool->next = allocator->pools;
        allocator->pools = pool;
    }
    return pool;
}

mo_pool *mo_pool_find(const memopt_allocator *allocator, memopt_stream stream, mo_sizes sizes)
{
    mo_pool *pool = allocator->by_stream[mo_stream_bucket(stream)];
    while (pool != NULL &&
           (pool->stream != stream || pool->sizes != sizes || pool->life != MO_STREAM_LIVE))
        pool = pool->same;
    return pool;
}

mo_pool *mo_pool_get(memopt_allocator *allocator, memopt_stream stream, mo_sizes sizes)
{
    mo_pool *pool = mo_pool_find(allocator, stream, sizes);
    if (pool != NULL)
        return pool;
    pool = spare_pool(allocator);
    if (pool == NULL)
        return NULL;
    pool->stream = stream;
    pool->life = MO_STREAM_LIVE;
    pool->sizes = sizes;
    pool->kind = mo_sizes_kind(sizes);
    pool->drained = 0;
    pool->lane = NULL;
    pool->stripe = stripe_of(allocator, stream);
    link_by_stream(allocator, pool, stream);
    return pool;
}

void mo_pools_trim(memopt_allocator *allocator)
{
    mo_pool **place = &allocator->pools;
    while (*place != NULL) {
        mo_pool *pool = *place;
        if (pool->segments != 0) {
            place = &pool->next;
            continue;
        }
        *place = pool->next;
        unlink_by_stream(pool);
        mo_free(pool);
    }
}

/* The divisions of the power of two below a size. */
static uint64_t divisions_of(const memopt_allocator *allocator, uint64_t bytes)
{
    unsigned octave = 63u - (unsigned)__builtin_clzll(bytes);
    unsigned slot = octave < 20 ? 0 : octave - 20;
    if (slot >= MO_CONFIG_SLOTS)
        slot = MO_CONFIG_SLOTS - 1;
    return allocator->config.roundup_power2_divisions.slot[slot];
}

uint64_t mo_round_size(const memopt_allocator *allocator, uint64_t bytes)
{
    uint64_t unit = MO_BLOCK_UNIT, rounded;
    uint64_t divisions = divisions_of(allocator, bytes);
    if (divisions > 1 && bytes > MO_BLOCK_UNIT * divisions) {
        uint64_t power = UINT64_C(1) << (63 - __builtin_clzll(bytes));
        unit = mo_max_u64(power / divisions, MO_BLOCK_UNIT);
    }
    return mo_round_up_u64(bytes, unit, &rounded) && rounded < UINT64_MAX / 4 ? rounded : 0;
}

uint64_t mo_segment_size(const memopt_allocator *allocator, const mo_request *request)
{
    uint64_t bytes = mo_max_u64(request->size, MO_SMALL_SEGMENT);
    if (allocator->pinned && request->size > MO_SMALL_LIMIT)
        return mo_round_up_u64(request->size, MO_PINNED_UNIT, &bytes) ? bytes : UINT64_MAX;
    if (request->size > MO_SMALL_LIMIT && request->size < MO_OWN_SEGMENT && !request->least)
        bytes = mo_max_u64(request->size, allocator->large_segment);
    if (!mo_round_up_u64(bytes, MO_SMALL_SEGMENT, &bytes) ||
        !mo_round_up_u64(bytes, allocator->granularity, &bytes))
        return UINT64_MAX;
    return bytes;
}

static int is_free(const mo_block *block)
{
    return block != NULL && block->state == MO_BLOCK_FREE;
}

/* The bins for a free block of this place and size. */
static mo_bins *bins_for(const memopt_allocator *allocator, const mo_block *block)
{
    mo_pool *pool = block->segment->pool;
    uint64_t page = allocator->granularity;
    uint64_t start = (uint64_t)(block->address - block->segment->address);
    if (block->size >= 2 * page || !mo_segment_is_expandable(block->segment))
        return &pool->bins;
    if (block->size < page)
        return &pool->holes;
    int whole = mo_ceil_div_u64(start, page) < (start + block->size) / page;
    return whole ? &pool->bins : &pool->holes;
}

/* With the gate closed there is no stripe, and the allocator's own counts and structs are used. */
static mo_slab *slab_of(memopt_allocator *allocator, mo_stripe *stripe)
{
    return stripe != NULL ? &stripe->slab : &allocator->slab;
}

static void insert(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block)
{
    mo_pool *pool = block->segment->pool;
    block->state = MO_BLOCK_FREE;
    block->mapped = 1;
    mo_bins_insert(bins_for(allocator, block), block);
    block->split =
        !mo_segment_is_expandable(block->segment) && (block->prev != NULL || block->next != NULL);
    if (block->split && stripe != NULL) {
        mo_stripe_count_hole(stripe, pool->kind, block->size, 1);
    } else if (block->split) {
        mo_stat_add(&allocator->stats, pool->kind, MO_STAT_INACTIVE_SPLIT, 1);
        mo_stat_add(&allocator->stats, pool->kind, MO_STAT_INACTIVE_SPLIT_BYTES, block->size);
    }
}

static void take_out(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block)
{
    mo_pool *pool = block->segment->pool;
    mo_bins_remove(bins_for(allocator, block), block);
    if (block->split && stripe != NULL) {
        mo_stripe_count_hole(stripe, pool->kind, block->size, -1);
    } else if (block->split) {
        mo_stat_subtract(&allocator->stats, pool->kind, MO_STAT_INACTIVE_SPLIT, 1);
        mo_stat_subtract(&allocator->stats, pool->kind, MO_STAT_INACTIVE_SPLIT_BYTES, block->size);
    }
    block->split = 0;
}

void mo_pool_insert(memopt_allocator *allocator, mo_block *block)
{
    insert(allocator, NULL, block);
}

void mo_pool_remove(memopt_allocator *allocator, mo_block *block)
{
    take_out(allocator, NULL, block);
}

/* A block of max_split bytes or more is kept whole for requests of its own class. */
int mo_pool_serves(const memopt_allocator *allocator, const mo_block *block, uint64_t size)
{
    if (allocator->max_split == UINT64_MAX || mo_segment_is_expandable(block->segment))
        return 1;
    if (size < allocator->max_split)
        return block->size < allocator->max_split;
    return block->size < size + allocator->non_split_rounding;
}

static int worth_splitting(const memopt_allocator *allocator, const mo_block *block, uint64_t size)
{
    uint64_t rest = block->size - size;
    if (mo_segment_is_expandable(block->segment) || block->segment->pool->kind == MO_POOL_SMALL)
        return rest >= MO_BLOCK_UNIT;
    return rest > MO_SMALL_LIMIT && size < allocator->max_split;
}

uint64_t mo_pool_cut_size(const memopt_allocator *allocator, const mo_block *block, uint64_t size)
{
    return worth_splitting(allocator, block, size) ? size : block->size;
}

void mo_pool_cut(memopt_allocator *allocator, mo_block *block, uint64_t size)
{
    MO_PRE(allocator->slab.unused_count > 0);
    if (worth_splitting(allocator, block, size))
        mo_pool_put(allocator, mo_block_split(&allocator->slab, block, size));
}

void mo_pool_take_in(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block, uint64_t size)
{
    take_out(allocator, stripe, block);
    block->state = MO_BLOCK_CLAIMED;
    if (size != block->size)
        insert(allocator, stripe, mo_block_split(&stripe->slab, block, size));
}

/* Much larger holes are left to blocks of their size. */
mo_block *mo_pool_hole(const memopt_allocator *allocator, memopt_stream stream, uint64_t size)
{
    for (mo_sizes sizes = MO_SIZES_MEDIUM; sizes < MO_SIZES_CLASSES; sizes++) {
        const mo_pool *pool = mo_pool_find(allocator, stream, sizes);
        mo_block *hole = pool == NULL ? NULL : mo_bins_best_fit(&pool->holes, size);
        if (hole != NULL && hole->size <= 2 * size)
            return hole;
    }
    return NULL;
}

/* A block below two pages may lie in a hole, where it takes no page from others. */
static mo_block *best_fit(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size)
{
    mo_block *hole = NULL;
    if (size < 2 * allocator->granularity)
        hole = mo_bins_best_fit(&pool->holes, size);
    return hole != NULL ? hole : mo_bins_best_fit(&pool->bins, size);
}

mo_block *mo_pool_choose(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size)
{
    mo_block *block = best_fit(allocator, pool, size);
    if (block != NULL || pool->sizes != MO_SIZES_SMALL || !allocator->expandable ||
        allocator->ended[MO_SIZES_SMALL].segments != 0)
        return block;
    return mo_pool_hole(allocator, pool->stream, size);
}

mo_block *mo_pool_take(memopt_allocator *allocator, mo_pool *pool, uint64_t size)
{
    mo_block *block = best_fit(allocator, pool, size);
    if (block == NULL || !mo_pool_serves(allocator, block, size))
        return NULL;
    mo_pool_remove(allocator, block);
    block->state = MO_BLOCK_CLAIMED;
    mo_pool_cut(allocator, block, size);
    return block;
}

/* Work on the memory is complete, so its next use needs no order. The device records the free
 * blocks for the new stream, so that tests can check their use. */
void mo_pool_move_segment(memopt_allocator *allocator, mo_segment *segment, mo_pool *pool)
{
    for (mo_block *block = segment->first; block != NULL; block = block->next)
        if (is_free(block))
            mo_pool_remove(allocator, block);
    segment->pool->segments--;
    segment->pool = pool;
    pool->segments++;
    for (mo_block *block = segment->first; block != NULL; block = block->next) {
        block->stripe = (uint8_t)pool->stripe;
        if (!is_free(block))
            continue;
        mo_pool_insert(allocator, block);
        if (pool->life == MO_STREAM_LIVE && !allocator->foreign)
            mo_note_free(allocator->device, block->address, block->size, pool->stream);
    }
}

mo_block *mo_pool_serve(memopt_allocator *allocator, mo_pool *pool, uint64_t size)
{
    mo_pool *ended = mo_pool_ended(allocator, pool->sizes);
    mo_block *block = mo_pool_take(allocator, pool, size);
    if (block != NULL || ended->segments == 0)
        return block;
    block = best_fit(allocator, ended, size);
    if (block == NULL || !mo_pool_serves(allocator, block, size))
        return NULL;
    mo_pool_move_segment(allocator, block->segment, pool);
    return mo_pool_take(allocator, pool, size);
}

static void put(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block)
{
    if (is_free(block->next)) {
        take_out(allocator, stripe, block->next);
        mo_block_absorb_next(slab_of(allocator, stripe), block);
    }
    if (is_free(block->prev)) {
        mo_block *prev = block->prev;
        take_out(allocator, stripe, prev);
        mo_block_absorb_next(slab_of(allocator, stripe), prev);
        block = prev;
    }
    insert(allocator, stripe, block);
}

void mo_pool_put(memopt_allocator *allocator, mo_block *block)
{
    put(allocator, NULL, block);
}

void mo_pool_put_in(memopt_allocator *allocator, mo_stripe *stripe, mo_block *block)
{
    put(allocator, stripe, block);
}
