/*
 * A gap is a run of free and unmapped blocks between others. A block of it lies at one of the gap's
 * ends, where it shares a page with a neighbour, or at an end of one of its free blocks, where it
 * uses pages that have memory.
 */
#include "allocator/memory/place.h"

#include "allocator/memory/segment_common.h"

#include "base/checked.h"

static int usable(const mo_block *block)
{
    return block != NULL && (block->state == MO_BLOCK_FREE || block->state == MO_BLOCK_UNMAPPED);
}

static char *end_of(const mo_block *block)
{
    return block->address + block->size;
}

/* Bytes of the pages of an unmapped block that [start, end) touches. */
static uint64_t pages_in(const memopt_allocator *allocator, const mo_block *block,
                         const char *start, const char *end)
{
    uint64_t page = allocator->granularity;
    uint64_t from = start > block->address ? (uint64_t)(start - block->address) / page : 0;
    uint64_t to = end < end_of(block) ? mo_ceil_div_u64((uint64_t)(end - block->address), page)
                                      : block->size / page;
    return (to - from) * page;
}

/* Fills in the place at [start, +size), which lies in the gap of `first`, the block that holds
 * start. 0 if the gap is too short. */
static int measure(const memopt_allocator *allocator, mo_block *first, char *start, uint64_t size,
                   mo_place *out)
{
    char *end = start + size;
    mo_block *last = first;
    *out = (mo_place){first, 0, start, 0, 0, 0};
    for (;; last = last->next) {
        if (!usable(last))
            return 0;
        out->count++;
        if (last->state == MO_BLOCK_UNMAPPED)
            out->missing += pages_in(allocator, last, start, end);
        if (end_of(last) >= end)
            break;
    }
    /* The page of a gap's first or last bytes may be a neighbour's, too. */
    uint64_t page = allocator->granularity;
    const mo_segment *segment = first->segment;
    uint64_t from = (uint64_t)(start - segment->address) / page;
    uint64_t to = mo_ceil_div_u64((uint64_t)(end - segment->address), page);
    out->pinned = to - from;
    if (!usable(first->prev) && first->address > segment->address + from * page)
        out->pinned--;
    if (!usable(last->next) && end_of(last) < segment->address + to * page && out->pinned > 0)
        out->pinned--;
    out->price = out->pinned + out->missing / page;
    return 1;
}

static int better(const mo_place *a, const mo_place *b)
{
    return a->price != b->price ? a->price < b->price : a->start < b->start;
}

typedef struct search {
    const memopt_allocator *allocator;
    uint64_t size;
    int found;
    mo_place best;
} search;

static void consider(search *s, mo_block *first, char *start)
{
    mo_place place;
    if (measure(s->allocator, first, start, s->size, &place) &&
        (!s->found || better(&place, &s->best))) {
        s->best = place;
        s->found = 1;
    }
}

/* The bytes before the end of `last`, unless the gap is too short. */
static void consider_before(search *s, mo_block *last)
{
    mo_block *first = last;
    while ((uint64_t)(end_of(last) - first->address) < s->size) {
        first = first->prev;
        if (!usable(first))
            return;
    }
    consider(s, first, end_of(last) - s->size);
}

static void consider_gap(search *s, mo_block *first)
{
    mo_block *block = first;
    consider(s, block, block->address);
    for (; usable(block); block = block->next) {
        int free = block->state == MO_BLOCK_FREE;
        if (free && block != first)
            consider(s, block, block->address);
        if (free || (block->next != NULL && !usable(block->next)))
            consider_before(s, block);
    }
}

/* The first block of the gap whose first unmapped block this is; NULL if it is not the first. */
static mo_block *gap_of(mo_block *unmapped)
{
    mo_block *first = unmapped;
    if (usable(first->prev))
        first = first->prev;
    return usable(first->prev) ? NULL : first;
}

static int next_segment(const mo_segment *segment, const mo_pool *pool)
{
    return segment->pool == pool && mo_segment_is_expandable(segment);
}

int mo_place_lowest(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size,
                    mo_place *out_place)
{
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        mo_block *block = next_segment(segment, pool) ? segment->unmapped : NULL;
        for (; block != NULL; block = block->right) {
            mo_block *first = gap_of(block);
            if (first != NULL && measure(allocator, first, first->address, size, out_place))
                return 1;
        }
    }
    return 0;
}

int mo_place_tightest(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size,
                      mo_place *out_place)
{
    search s = {allocator, size, 0, {NULL, 0, NULL, 0, 0, 0}};
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        mo_block *block = next_segment(segment, pool) ? segment->unmapped : NULL;
        for (; block != NULL; block = block->right) {
            mo_block *first = gap_of(block);
            if (first != NULL)
                consider_gap(&s, first);
        }
    }
    *out_place = s.best;
    return s.found;
}

int mo_place_at(const memopt_allocator *allocator, mo_block *first, char *start, uint64_t size,
                mo_place *out_place)
{
    return measure(allocator, first, start, size, out_place);
}
