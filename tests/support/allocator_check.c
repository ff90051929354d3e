/*
 * The invariant checker of tests: walks over every segment, block, bin and table entry, and
 * recomputes the statistics.
 */
#include "support/allocator_check.h"

#include "allocator/watch/stats.h"

#include "allocator/steps/lane.h"
#include "base/lock.h"

#include <string.h>

#define BROKEN(...) mo_fail(MEMOPT_INTERNAL, "allocator check: " __VA_ARGS__)

typedef struct totals {
    uint64_t live, free;
    uint64_t values[MO_POOL_KINDS][MO_STAT_COUNT];
    uint64_t tag_bytes[MO_TAGS], tag_blocks[MO_TAGS];
} totals;

static void count(totals *sum, unsigned kind, enum mo_stat_id id, uint64_t amount)
{
    sum->values[MO_POOL_ALL][id] += amount;
    sum->values[kind][id] += amount;
}

static void count_block(totals *sum, const mo_block *block)
{
    unsigned kind = block->segment->pool->kind;
    if (block->state == MO_BLOCK_LIVE) {
        sum->live++;
        count(sum, kind, MO_STAT_ALLOCATION, 1);
        count(sum, kind, MO_STAT_ALLOCATED_BYTES, block->size);
        count(sum, kind, MO_STAT_REQUESTED_BYTES, block->requested);
        sum->tag_bytes[block->tag] += block->requested;
        sum->tag_blocks[block->tag]++;
    }
    if (block->state == MO_BLOCK_LIVE || block->state == MO_BLOCK_PENDING) {
        count(sum, kind, MO_STAT_ACTIVE, 1);
        count(sum, kind, MO_STAT_ACTIVE_BYTES, block->size);
    }
    if (block->state == MO_BLOCK_FREE) {
        sum->free++;
        if (!mo_segment_is_expandable(block->segment) && block->size != block->segment->size) {
            count(sum, kind, MO_STAT_INACTIVE_SPLIT, 1);
            count(sum, kind, MO_STAT_INACTIVE_SPLIT_BYTES, block->size);
        }
    }
}

static memopt_status check_neighbours(const mo_block *block)
{
    const mo_block *next = block->next;
    if (next == NULL)
        return MEMOPT_OK;
    if (next->prev != block || next->address != block->address + block->size)
        return BROKEN("the blocks at %p and %p do not join", (void *)block->address,
                      (void *)next->address);
    int joins = block->state == MO_BLOCK_FREE || block->state == MO_BLOCK_UNMAPPED ||
                (block->planned == MO_PLANNED_GAP && next->planned == MO_PLANNED_GAP);
    if (block->state == next->state && joins)
        return BROKEN("the blocks at %p and %p should be one", (void *)block->address,
                      (void *)next->address);
    return MEMOPT_OK;
}

/* True if the address is in a region of the segment's lane. */
static int in_region(const mo_segment *segment, const char *address)
{
    const mo_lane *lane = segment->pool->lane;
    for (uint32_t i = 0; lane != NULL && i < lane->region_count; i++)
        if (lane->regions[i].segment == segment && lane->regions[i].start <= address &&
            address < lane->regions[i].end)
            return 1;
    return 0;
}

static memopt_status check_block(const memopt_allocator *allocator, const mo_segment *segment,
                                 const mo_block *block)
{
    uint64_t offset = (uint64_t)(block->address - segment->address);
    if (block->segment != segment || block->size == 0 || block->size % MO_BLOCK_UNIT != 0 ||
        (uintptr_t)block->address % MO_BLOCK_UNIT != 0)
        return BROKEN("the block at %p is malformed", (void *)block->address);
    if (block->state == MO_BLOCK_UNMAPPED &&
        (offset % allocator->granularity != 0 || block->size % allocator->granularity != 0))
        return BROKEN("the unmapped block at %p is not whole pages", (void *)block->address);
    if ((block->state == MO_BLOCK_LIVE) !=
        (mo_block_table_find(&allocator->live, block->address) == block))
        return BROKEN("the block at %p is live or in the table, not both", (void *)block->address);
    if (block->state == MO_BLOCK_LIVE && block->requested > block->size)
        return BROKEN("the block at %p is smaller than asked for", (void *)block->address);
    if (block->state == MO_BLOCK_PENDING && block->pending == 0)
        return BROKEN("the block at %p waits for nothing", (void *)block->address);
    if (block->state == MO_BLOCK_STALE &&
        (offset % allocator->granularity != 0 || block->size % allocator->granularity != 0))
        return BROKEN("the stale block at %p is not whole pages", (void *)block->address);
    int held = block->planned == MO_PLANNED_GAP;
    if (held != (block->state == MO_BLOCK_CLAIMED))
        return BROKEN("the block at %p is claimed by nobody", (void *)block->address);
    if (held && (segment->pool->lane == NULL || !segment->pool->lane->armed))
        return BROKEN("the block at %p is held for no plan", (void *)block->address);
    if (held && !(in_region(segment, block->address) &&
                  in_region(segment, block->address + block->size - 1)))
        return BROKEN("the block at %p is held outside of its plan", (void *)block->address);
    return check_neighbours(block);
}

/* True if a pause has taken the page. */
static int is_taken(const memopt_allocator *allocator, const mo_segment *segment, uint64_t number)
{
    for (const mo_pause *pause = allocator->pauses; pause != NULL; pause = pause->next)
        for (uint64_t i = 0; i < pause->page_count; i++)
            if (pause->pages[i].segment == segment && pause->pages[i].page == number)
                return 1;
    return 0;
}

/* Free memory is there. */
static memopt_status check_free(const memopt_allocator *allocator, const mo_block *block)
{
    uint64_t unit = allocator->granularity;
    uint64_t start = (uint64_t)(block->address - block->segment->address);
    for (uint64_t page = start / unit; page * unit < start + block->size; page++)
        if (is_taken(allocator, block->segment, page))
            return BROKEN("the free block at %p lies in a page that a pause has taken",
                          (void *)block->address);
    return MEMOPT_OK;
}

static memopt_status check_slot(const mo_lane *lane, uint32_t i)
{
    const mo_slot *slot = &lane->slots[i];
    const mo_block *block = slot->block;
    uint64_t bit = lane->ranks[0][slot->rank / 64] >> (slot->rank % 64) & 1;
    if (slot->address != NULL && lane->by_rank[slot->rank] != i)
        return BROKEN("the place %u has another one's rank", i);
    if (block == NULL)
        return slot->address == NULL || bit == 0 ? MEMOPT_OK
                                                 : BROKEN("the empty place %u is marked", i);
    if (bit == 0 || block->planned != MO_PLANNED_BLOCK || block->slot != i ||
        block->address != slot->address || block->size > mo_slot_bytes(slot) ||
        (block->state != MO_BLOCK_LIVE && block->state != MO_BLOCK_PENDING))
        return BROKEN("the block of place %u at %p is not there", i, (void *)slot->address);
    return MEMOPT_OK;
}

static memopt_status check_region(const mo_region *region)
{
    const mo_block *block = region->segment == NULL ? NULL : region->segment->first;
    while (block != NULL && block != region->front)
        block = block->next;
    return region->front == NULL || (block != NULL && block->address >= region->start)
               ? MEMOPT_OK
               : BROKEN("the front of the region at %p is elsewhere", (void *)region->start);
}

static memopt_status check_lanes(const memopt_allocator *allocator)
{
    memopt_status status = MEMOPT_OK;
    const mo_lane *lane = allocator->steps == NULL ? NULL : allocator->steps->lanes;
    for (; lane != NULL; lane = lane->next) {
        for (uint32_t i = 0; i < lane->region_count && status == MEMOPT_OK; i++)
            status = check_region(&lane->regions[i]);
        for (uint32_t i = 0; i < lane->slot_count && status == MEMOPT_OK; i++)
            status = check_slot(lane, i);
    }
    return status;
}

static memopt_status check_pages(const memopt_allocator *allocator, const mo_segment *segment)
{
    const mo_block *listed = segment->unmapped;
    uint64_t page_bytes = allocator->granularity;
    for (const mo_block *block = segment->first; block != NULL; block = block->next) {
        uint64_t start = (uint64_t)(block->address - segment->address);
        if (block->state == MO_BLOCK_FREE && allocator->pauses != NULL) {
            memopt_status status = check_free(allocator, block);
            if (status != MEMOPT_OK)
                return status;
        }
        if (block->state == MO_BLOCK_UNMAPPED) {
            if (block != listed)
                return BROKEN("the unmapped block at %p is not in its list's place",
                              (void *)block->address);
            listed = listed->right;
            continue;
        }
        if (block->state == MO_BLOCK_STALE)
            continue;
        for (uint64_t page = start / page_bytes; page * page_bytes < start + block->size; page++)
            if (segment->pages[page] == NULL && !is_taken(allocator, segment, page))
                return BROKEN("page %llu of the segment at %p is in use without memory",
                              (unsigned long long)page, (void *)segment->address);
    }
    return listed == NULL ? MEMOPT_OK : BROKEN("the list of unmapped blocks is too long");
}

/* Bytes of pages that pauses have taken and the driver has let go. */
static uint64_t bytes_gone(const memopt_allocator *allocator, const mo_segment *segment)
{
    uint64_t gone = 0;
    for (const mo_pause *pause = allocator->pauses; pause != NULL; pause = pause->next)
        for (uint64_t i = 0; i < pause->page_count; i++) {
            const mo_paused_page *page = &pause->pages[i];
            gone += page->segment == segment && segment->pages[page->page] == NULL;
        }
    return gone * allocator->granularity;
}

static memopt_status check_segment(const memopt_allocator *allocator, const mo_segment *segment,
                                   totals *sum)
{
    uint64_t size = 0, mapped = 0;
    for (const mo_block *block = segment->first; block != NULL; block = block->next) {
        memopt_status status = check_block(allocator, segment, block);
        if (status != MEMOPT_OK)
            return status;
        size += block->size;
        int has_memory = block->state != MO_BLOCK_UNMAPPED && block->state != MO_BLOCK_STALE;
        mapped += has_memory ? block->size : 0;
        count_block(sum, block);
    }
    mapped -= bytes_gone(allocator, segment);
    if (segment->pool->life == MO_STREAM_ENDED &&
        segment->pool != &allocator->ended[segment->pool->sizes])
        return BROKEN("the segment at %p is of a stream that has ended", (void *)segment->address);
    if (segment->first->address != segment->address || segment->first->prev != NULL ||
        size != segment->size || mapped != segment->mapped)
        return BROKEN("the blocks of the segment at %p do not cover it", (void *)segment->address);
    count(sum, segment->pool->kind, MO_STAT_RESERVED_BYTES, mapped);
    if (mapped > 0)
        count(sum, segment->pool->kind, MO_STAT_SEGMENT, 1);
    return mo_segment_is_expandable(segment) ? check_pages(allocator, segment) : MEMOPT_OK;
}

/* A tree of the bins, in order behind *last; counts its blocks in *found. */
static memopt_status check_tree(const mo_pool *pool, const mo_block *tree, const mo_block **last,
                                uint64_t *found)
{
    if (tree == NULL)
        return MEMOPT_OK;
    memopt_status status = check_tree(pool, tree->left, last, found);
    if (status != MEMOPT_OK)
        return status;
    const mo_block *before = *last;
    int ordered = before == NULL || before->size < tree->size ||
                  (before->size == tree->size && before->address < tree->address);
    if (tree->state != MO_BLOCK_FREE || tree->segment->pool != pool || !ordered)
        return BROKEN("the block at %p is in the wrong bin", (void *)tree->address);
    *last = tree;
    (*found)++;
    return check_tree(pool, tree->right, last, found);
}

static memopt_status check_bins(const mo_pool *pool, uint64_t *found)
{
    const mo_bins *const bins[] = {&pool->bins, &pool->holes};
    for (size_t i = 0; i < 2; i++) {
        const mo_block *last = NULL;
        for (size_t bin = 0; bin < MO_BIN_COUNT; bin++) {
            memopt_status status = check_tree(pool, bins[i]->root[bin], &last, found);
            if (status != MEMOPT_OK)
                return status;
        }
    }
    return MEMOPT_OK;
}

static memopt_status check_totals(const memopt_allocator *allocator, const totals *sum)
{
    if (sum->live != allocator->live.count)
        return BROKEN("%llu blocks are live, the table has %llu", (unsigned long long)sum->live,
                      (unsigned long long)allocator->live.count);
    for (int pool = 0; pool < MO_POOL_KINDS; pool++)
        for (int id = 0; id < MO_STAT_COUNT; id++)
            if (allocator->stats.by_pool[pool][id].current != sum->values[pool][id])
                return BROKEN("%s is %llu, counted %llu",
                              mo_stat_name((uint64_t)(id * MO_POOL_KINDS + pool) * 4),
                              (unsigned long long)allocator->stats.by_pool[pool][id].current,
                              (unsigned long long)sum->values[pool][id]);
    for (uint32_t tag = 0; tag < allocator->tag_count; tag++)
        if (allocator->tags[tag].current != sum->tag_bytes[tag] ||
            allocator->tags[tag].blocks != sum->tag_blocks[tag])
            return BROKEN("tag %s does not match its blocks", allocator->tags[tag].name);
    return MEMOPT_OK;
}

/* What the stripes may add must not reach a peak. Once something has risen, that holds only when
 * the gate is open again. */
static memopt_status check_stripes(const memopt_allocator *allocator)
{
    static const enum mo_stat_id of[MO_STRIPE_COUNTS] = {
        MO_STAT_ALLOCATION, MO_STAT_ALLOCATED_BYTES, MO_STAT_REQUESTED_BYTES,
        MO_STAT_INACTIVE_SPLIT, MO_STAT_INACTIVE_SPLIT_BYTES};
    if (allocator->stats.raised)
        return MEMOPT_OK;
    for (int kind = 0; kind < MO_POOL_KINDS; kind++)
        for (int count = 0; count < MO_STRIPE_COUNTS; count++) {
            const mo_stat *stat = &allocator->stats.by_pool[kind][of[count]];
            int64_t sum = 0;
            for (uint32_t i = 0; i < allocator->lock.stripes; i++) {
                const mo_stripe *stripe = &allocator->stripes[i];
                if (stripe->room[kind][count] < 0 || stripe->kept != NULL || stripe->used)
                    return BROKEN("stripe %u was not settled: room %lld for count %d of kind %d", i,
                                  (long long)stripe->room[kind][count], count, kind);
                sum += stripe->room[kind][count];
            }
            if (sum > (int64_t)(stat->peak - stat->current))
                return BROKEN("the stripes may raise count %d of kind %d by %lld, its peak is %lld "
                              "away",
                              count, kind, (long long)sum, (long long)(stat->peak - stat->current));
        }
    return MEMOPT_OK;
}

static uint64_t asleep(const memopt_allocator *allocator)
{
    uint64_t count = 0;
    for (const mo_segment *s = allocator->segments; s != NULL; s = s->next)
        for (const mo_block *b = s->first; b != NULL; b = b->next)
            count += b->state == MO_BLOCK_ASLEEP;
    return count;
}

static memopt_status check_pauses(const memopt_allocator *allocator)
{
    uint64_t tags = 0, listed = 0;
    for (const mo_pause *pause = allocator->pauses; pause != NULL; pause = pause->next) {
        if (pause->tags == 0 && (pause->page_count != 0 || !pause->kept.in_flight))
            return BROKEN("a pause has left something");
        if (pause->tags & tags)
            return BROKEN("a tag is paused twice");
        tags |= pause->tags;
        for (const mo_block *b = pause->asleep; b != NULL; b = b->right)
            listed++;
    }
    if (tags != allocator->paused_tags)
        return BROKEN("tags are paused by nobody");
    return listed == asleep(allocator) ? MEMOPT_OK : BROKEN("a block sleeps for no pause");
}

static memopt_status check_all(const memopt_allocator *allocator)
{
    totals sum;
    uint64_t in_bins = 0;
    memopt_status status = check_pauses(allocator);
    memset(&sum, 0, sizeof sum);
    for (const mo_segment *s = allocator->segments; s != NULL && status == MEMOPT_OK; s = s->next)
        status = check_segment(allocator, s, &sum);
    for (const mo_pool *p = allocator->pools; p != NULL && status == MEMOPT_OK; p = p->next)
        status = check_bins(p, &in_bins);
    for (int i = 0; i < MO_SIZES_CLASSES && status == MEMOPT_OK; i++)
        status = check_bins(&allocator->ended[i], &in_bins);
    if (status == MEMOPT_OK && in_bins != sum.free)
        status = BROKEN("%llu blocks are free, the bins have %llu", (unsigned long long)sum.free,
                        (unsigned long long)in_bins);
    if (status == MEMOPT_OK)
        status = check_lanes(allocator);
    if (status == MEMOPT_OK)
        status = check_totals(allocator, &sum);
    return status == MEMOPT_OK ? check_stripes(allocator) : status;
}

/* While a member is being destroyed the sum is not known. */
static memopt_status check_family(const mo_family *family)
{
    uint64_t held = 0, count = 0;
    for (const memopt_allocator *m = family->members; m != NULL; m = m->next_member, count++)
        held += mo_stat_current(&m->stats, MO_STAT_RESERVED_BYTES);
    if (count == family->pools + 1 && held != family->held)
        return BROKEN("the family holds %llu bytes, its members %llu",
                      (unsigned long long)family->held, (unsigned long long)held);
    return MEMOPT_OK;
}

memopt_status mo_allocator_check(memopt_allocator *allocator)
{
    (void)mo_turn_take(&allocator->family->slow);
    mo_lock(&allocator->lock);
    memopt_status status = check_all(allocator);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        status = check_family(allocator->family);
    mo_turn_give(&allocator->family->slow);
    return status;
}
