/*
 * Serving the allocations of a step from their places. A place lies in a gap of its region, which
 * is the next neighbour of the nearest block in a place below it, or the front of the region. That
 * is mostly the same as in the last step; else it is found by a bit for each rank. So nothing is
 * searched for that grows with the number of blocks, and frees may come in any order.
 */
#include "allocator/steps/step_lanes.h"

#include "allocator/blocks/pool.h"
#include "allocator/blocks/stripe.h"
#include "allocator/streams/events.h"

#include "base/memory.h"

#include <string.h>

/* Blocks of other origin between a place and the one below it that are passed by. */
enum { MOST_STRAYS = 16 };

/* --- ranks ------------------------------------------------------------------------------------ */

int mo_lane_make_ranks(mo_lane *lane)
{
    uint64_t bits = lane->slot_count;
    for (int level = 0; level < MO_RANK_LEVELS; level++) {
        bits = bits / 64 + 1;
        lane->ranks[level] = mo_calloc(bits, sizeof **lane->ranks);
        if (lane->ranks[level] == NULL)
            return 0;
    }
    return 1;
}

static void set_rank(mo_lane *lane, uint32_t rank)
{
    for (int level = 0; level < MO_RANK_LEVELS; level++, rank /= 64) {
        uint64_t *word = &lane->ranks[level][rank / 64];
        int was_set = *word != 0;
        *word |= UINT64_C(1) << (rank % 64);
        if (was_set)
            return;
    }
}

static void clear_rank(mo_lane *lane, uint32_t rank)
{
    for (int level = 0; level < MO_RANK_LEVELS; level++, rank /= 64) {
        uint64_t *word = &lane->ranks[level][rank / 64];
        *word &= ~(UINT64_C(1) << (rank % 64));
        if (*word != 0)
            return;
    }
}

static uint32_t highest(uint64_t word)
{
    return 63u - (uint32_t)__builtin_clzll(word);
}

/* The highest rank below `rank` that is set; UINT32_MAX if there is none. */
static uint32_t rank_below(const mo_lane *lane, uint32_t rank)
{
    uint32_t at = rank;
    for (int level = 0; level < MO_RANK_LEVELS; level++, at /= 64) {
        uint64_t word = lane->ranks[level][at / 64] & ((UINT64_C(1) << (at % 64)) - 1);
        if (word == 0)
            continue;
        at = at / 64 * 64 + highest(word);
        for (; level > 0; level--)
            at = at * 64 + highest(lane->ranks[level - 1][at]);
        return at;
    }
    return UINT32_MAX;
}

/* --- serving ---------------------------------------------------------------------------------- */

static int holds(const mo_block *block, const char *address, uint64_t size)
{
    return block->address <= address && block->address + block->size >= address + size;
}

static int is_gap(const mo_block *block)
{
    return block != NULL && block->planned == MO_PLANNED_GAP;
}

/* The gap at the slot's address, if it is where it was last time; else NULL. */
static mo_block *gap_as_before(const mo_lane *lane, const mo_slot *slot)
{
    mo_block *block = slot->below == MO_FRONT ? lane->regions[slot->region].front
                                              : lane->slots[slot->below].block;
    if (slot->below != MO_FRONT && block != NULL)
        block = block->next;
    return is_gap(block) && holds(block, slot->address, MO_BLOCK_UNIT) ? block : NULL;
}

/* The block at the slot's address, looked for from the nearest place below; NULL where it is not
 * near. */
static mo_block *block_of(const mo_lane *lane, mo_slot *slot)
{
    const mo_region *region = &lane->regions[slot->region];
    mo_block *block = gap_as_before(lane, slot);
    if (block != NULL)
        return block;
    uint32_t below = rank_below(lane, slot->rank);
    int in_region = below != UINT32_MAX && below >= region->first_rank;
    slot->below = in_region ? lane->by_rank[below] : MO_FRONT;
    block = in_region ? lane->slots[slot->below].block : region->front;
    for (int i = 0; block != NULL && i < MOST_STRAYS; i++) {
        if (slot->address < block->address)
            block = block->prev;
        else if (slot->address >= block->address + block->size)
            block = block->next;
        else
            return block;
    }
    return NULL;
}

/* What a place without its block needs. */
typedef enum need {
    NEEDS_NOTHING,
    NEEDS_HOLD,   /* free memory of it is not held: a block across the region's end was freed */
    NEEDS_MEMORY, /* it is free, and not all of it is mapped */
    NEEDS_FREE    /* another block is in it */
} need;

static need need_of(const mo_block *block, const mo_slot *slot, uint64_t size)
{
    need most = NEEDS_NOTHING;
    for (; block != NULL && block->address < slot->address + size; block = block->next) {
        if (block->state == MO_BLOCK_UNMAPPED)
            most = NEEDS_MEMORY;
        else if (block->state == MO_BLOCK_FREE)
            most = most == NEEDS_MEMORY ? most : NEEDS_HOLD;
        else if (block->planned != MO_PLANNED_GAP)
            return NEEDS_FREE;
    }
    return most;
}

/* Holds a block for places, joined with such neighbours; returns what it is part of. */
static mo_block *put_gap(mo_slab *slab, mo_block *block)
{
    block->state = MO_BLOCK_CLAIMED;
    block->mapped = 1;
    block->planned = MO_PLANNED_GAP;
    if (is_gap(block->next))
        mo_block_absorb_next(slab, block);
    if (!is_gap(block->prev))
        return block;
    block = block->prev;
    mo_block_absorb_next(slab, block);
    return block;
}

mo_block *mo_lane_occupy(mo_slab *slab, mo_lane *lane, mo_slot *slot, mo_block *block,
                         uint64_t size)
{
    block->planned = MO_PLANNED_BLOCK;
    if (block->address < slot->address) {
        uint64_t before = (uint64_t)(slot->address - block->address);
        mo_block *part = mo_block_split(slab, block, before);
        part->planned = MO_PLANNED_BLOCK;
        (void)put_gap(slab, block);
        block = part;
    }
    if (size < block->size)
        (void)put_gap(slab, mo_block_split(slab, block, size));
    block->slot = (uint32_t)(slot - lane->slots);
    slot->block = block;
    set_rank(lane, slot->rank);
    return block;
}

mo_block *mo_lane_cut_gap(memopt_allocator *allocator, mo_block *gap, const char *start,
                          const char *end)
{
    if (gap->address + gap->size > end)
        mo_block_split(&allocator->slab, gap, (uint64_t)(end - gap->address))->planned =
            MO_PLANNED_GAP;
    if (gap->address >= start)
        return gap;
    return mo_block_split(&allocator->slab, gap, (uint64_t)(start - gap->address));
}

static int serves(const mo_block *block, const mo_slot *slot, uint64_t size)
{
    return is_gap(block) && holds(block, slot->address, size);
}

/* The gap that holds the slot's place; NULL if it is not free. */
static mo_block *gap_of(const mo_lane *lane, mo_slot *slot, uint64_t size)
{
    mo_block *block = slot->block == NULL ? block_of(lane, slot) : NULL;
    return serves(block, slot, size) ? block : NULL;
}

/* The slot of the lane's next allocation, which may have no place; NULL if the step differs from
 * the plan. */
static mo_slot *next_slot(const mo_lane *lane, uint64_t size)
{
    if (lane->at == lane->slot_count || size > mo_slot_bytes(&lane->slots[lane->at]))
        return NULL;
    return &lane->slots[lane->at];
}

mo_block *mo_lane_take(memopt_allocator *allocator, mo_stripe *stripe, const mo_pool *pool,
                       const mo_request *request, mo_take_cached *cached)
{
    mo_lane *lane = pool->lane;
    mo_slot *slot = next_slot(lane, request->size);
    mo_block *block = NULL;
    if (slot == NULL)
        return NULL;
    if (slot->address == NULL) {
        block = cached(allocator, stripe, pool, request);
        lane->at += block != NULL;
        return block;
    }
    block = gap_of(lane, slot, request->size);
    if (block == NULL || request->size >= allocator->max_split ||
        !mo_stripe_count_alloc(allocator, stripe, block->segment->pool->kind, request->size,
                               request->asked, request->tag))
        return NULL;
    lane->at++;
    lane->served++;
    lane->used = allocator->clock + stripe->allocations;
    return mo_lane_occupy(&stripe->slab, lane, slot, block, request->size);
}

/* 0: the lane's next allocation has a place that is not free. */
static int is_ready(const mo_lane *lane, uint64_t size)
{
    mo_slot *slot = next_slot(lane, size);
    return slot == NULL || slot->address == NULL || gap_of(lane, slot, size) != NULL;
}

/* The armed lane of the request. A place that is not free may be a pending free's. */
static mo_lane *lane_of(memopt_allocator *allocator, const mo_request *request)
{
    mo_lane *lane = request->pool->lane;
    if (lane->armed && !is_ready(lane, request->size)) {
        mo_events_process(allocator);
        lane = request->pool->lane;
    }
    return lane != NULL && lane->armed ? lane : NULL;
}

static int arm_region(memopt_allocator *allocator, mo_region *region);

mo_block *mo_lane_serve(memopt_allocator *allocator, mo_request *request)
{
    mo_lane *lane = lane_of(allocator, request);
    mo_slot *slot = lane != NULL ? next_slot(lane, request->size) : NULL;
    if (lane == NULL)
        return NULL;
    if (slot == NULL) {
        mo_lane_disarm(allocator, lane);
        lane->left = 1;
        return NULL;
    }
    lane->at++;
    if (slot->address == NULL)
        return NULL;
    mo_block *block = slot->block == NULL ? block_of(lane, slot) : NULL;
    need needs = block == NULL ? NEEDS_MEMORY : need_of(block, slot, request->size);
    if (needs == NEEDS_HOLD && arm_region(allocator, &lane->regions[slot->region]) &&
        mo_slab_reserve(&allocator->slab, 2))
        block = block_of(lane, slot);
    if (serves(block, slot, request->size)) {
        request->pool = block->segment->pool;
        allocator->steps->info.served++;
        allocator->steps->used = allocator->clock;
        return mo_lane_occupy(&allocator->slab, lane, slot, block, request->size);
    }
    if (slot->block == NULL && lane->regions[slot->region].segment != NULL && needs == NEEDS_MEMORY)
        request->slot = lane->at;
    else
        lane->missed++;
    return NULL;
}

mo_slot *mo_lane_waiting(const mo_request *request)
{
    mo_lane *lane = request->pool->lane;
    if (request->slot == 0 || lane == NULL || !lane->armed || lane->at < request->slot)
        return NULL;
    mo_slot *slot = &lane->slots[request->slot - 1];
    return slot->block == NULL && slot->address != NULL && request->size <= mo_slot_bytes(slot) &&
                   lane->regions[slot->region].segment != NULL
               ? slot
               : NULL;
}

int mo_lane_hold(mo_slab *slab, mo_block *block)
{
    mo_lane *lane = block->segment->pool->lane;
    if (block->planned == MO_PLANNED_BLOCK) {
        mo_slot *slot = &lane->slots[block->slot];
        slot->block = NULL;
        clear_rank(lane, slot->rank);
    }
    block->planned = MO_PLANNED_NOT;
    if (!lane->armed)
        return 0;
    (void)put_gap(slab, block);
    return 1;
}

/* --- arming ----------------------------------------------------------------------------------- */

static mo_block *block_in(const mo_region *region, const char *address)
{
    mo_block *block = region->segment->first;
    while (block != NULL && block->address + block->size <= address)
        block = block->next;
    return block;
}

/* Cuts a free block to the region; the rest stays free. Returns the part. */
static mo_block *claim(memopt_allocator *allocator, const mo_region *region, mo_block *block)
{
    mo_pool_remove(allocator, block);
    if (block->address + block->size > region->end)
        mo_pool_insert(allocator, mo_block_split(&allocator->slab, block,
                                                 (uint64_t)(region->end - block->address)));
    if (block->address < region->start) {
        mo_block *part =
            mo_block_split(&allocator->slab, block, (uint64_t)(region->start - block->address));
        mo_pool_insert(allocator, block);
        block = part;
    }
    return block;
}

/* A block keeps its struct while the lane is armed, but for unmapped and straddling ones. */
static void find_front(mo_region *region)
{
    mo_block *block = block_in(region, region->start);
    if (block != NULL && block->address < region->start)
        block = block->next;
    region->front =
        block == NULL || block->address >= region->end || !block->planned ? NULL : block;
}

static int arm_region(memopt_allocator *allocator, mo_region *region)
{
    if (region->segment == NULL || region->end == region->start)
        return 1;
    for (mo_block *block = block_in(region, region->start);
         block != NULL && block->address < region->end; block = block->next) {
        int lives = block->state == MO_BLOCK_LIVE || block->state == MO_BLOCK_PENDING;
        if (lives && block->planned == MO_PLANNED_NOT && block->address >= region->start &&
            block->address + block->size <= region->end)
            block->planned = MO_PLANNED_GUEST;
        if (block->state != MO_BLOCK_FREE)
            continue;
        if (!mo_slab_reserve(&allocator->slab, 2))
            return 0;
        block = put_gap(&allocator->slab, claim(allocator, region, block));
    }
    find_front(region);
    return 1;
}

int mo_lane_arm(memopt_allocator *allocator, mo_lane *lane)
{
    int done = 1;
    if (lane->slots == NULL || lane->ended)
        return 1;
    lane->armed = 1;
    for (uint32_t i = 0; i < lane->region_count && done; i++)
        done = arm_region(allocator, &lane->regions[i]);
    return done;
}

static void disarm_region(memopt_allocator *allocator, mo_region *region)
{
    mo_block *next;
    region->front = NULL;
    if (region->segment == NULL)
        return;
    for (mo_block *block = block_in(region, region->start);
         block != NULL && block->address < region->end; block = next) {
        next = block->next;
        if (next != NULL && next->state == MO_BLOCK_FREE)
            next = next->next; /* the block absorbs it */
        int held = block->planned == MO_PLANNED_GAP;
        if (held || block->planned == MO_PLANNED_GUEST)
            block->planned = MO_PLANNED_NOT;
        if (held)
            mo_pool_put(allocator, block);
    }
}

void mo_lane_disarm(memopt_allocator *allocator, mo_lane *lane)
{
    if (!lane->armed)
        return;
    lane->armed = 0;
    for (uint32_t i = 0; i < lane->region_count; i++)
        disarm_region(allocator, &lane->regions[i]);
}

int mo_lanes_leave(memopt_allocator *allocator, uint64_t since)
{
    const mo_steps *steps = allocator->steps;
    uint64_t used = steps->used;
    for (const mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next)
        used = mo_max_u64(used, lane->used);
    for (mo_lane *lane = used < since ? steps->lanes : NULL; lane != NULL; lane = lane->next) {
        lane->left |= lane->armed;
        mo_lane_disarm(allocator, lane);
    }
    return steps->planned;
}

/* --- forgetting ------------------------------------------------------------------------------- */

static void drop(memopt_allocator *allocator, mo_lane *lane)
{
    mo_lane_disarm(allocator, lane);
    for (uint32_t i = 0; i < lane->region_count; i++)
        if (lane->regions[i].segment != NULL && lane->regions[i].end > lane->regions[i].start)
            lane->regions[i].segment->places--;
    for (uint32_t i = 0; i < lane->slot_count; i++)
        if (lane->slots[i].block != NULL)
            lane->slots[i].block->planned = MO_PLANNED_NOT;
    for (int level = 0; level < MO_RANK_LEVELS; level++) {
        mo_free(lane->ranks[level]);
        lane->ranks[level] = NULL;
    }
    mo_free(lane->slots);
    mo_free(lane->by_rank);
    mo_free(lane->regions);
    lane->slots = NULL;
    lane->by_rank = NULL;
    lane->regions = NULL;
    lane->slot_count = lane->region_count = lane->at = 0;
}

void mo_lanes_drop(memopt_allocator *allocator)
{
    for (mo_lane *lane = allocator->steps->lanes; lane != NULL; lane = lane->next)
        drop(allocator, lane);
    allocator->steps->planned = 0;
}

void mo_lanes_end_stream(memopt_allocator *allocator, mo_pool *pool)
{
    mo_lane *lane = pool->lane;
    pool->lane = NULL;
    if (lane == NULL)
        return;
    drop(allocator, lane);
    lane->ended = 1;
}

/* Its blocks are free or unmapped, or the allocator ends. */
void mo_lanes_end_segment(const mo_segment *segment)
{
    mo_lane *lane = segment->pool->lane;
    for (uint32_t i = 0; lane != NULL && i < lane->region_count; i++) {
        if (lane->regions[i].segment != segment)
            continue;
        lane->regions[i].segment = NULL;
        lane->regions[i].front = NULL;
    }
}
