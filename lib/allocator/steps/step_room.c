/*
 * Room for the places of a lane: gaps between blocks that stay, in segments of its stream, and one
 * open range, the free end of an expandable segment.
 *
 * A gap's ends cost nothing, since pages that it shares with blocks are held anyway. So a gap is
 * better than the open range as long as its places fill it well.
 */
#include "allocator/steps/step_room.h"

#include "allocator/blocks/pool.h"

#include "base/checked.h"
#include "base/memory.h"

enum { MOST_GAPS = 1024, LEAST_GAP = 16 * MO_BLOCK_UNIT };

/* Free, or in use by a block that has a place and ends in the next step. */
static int usable(const memopt_allocator *allocator, const mo_block *block)
{
    if (block == NULL || block->state == MO_BLOCK_CLAIMED)
        return 0;
    if (block->state == MO_BLOCK_FREE || block->state == MO_BLOCK_UNMAPPED)
        return 1;
    return block->entry != 0 && (block->entry & MO_ENTRY_BEFORE) == 0 &&
           allocator->steps->now.entries[block->entry - 1].placed;
}

static void add_gap(const memopt_allocator *allocator, mo_room_for *room, mo_segment *segment,
                    char *start, char *end)
{
    mo_gap gap = {segment, start, end, end, end};
    uint64_t page = allocator->granularity;
    uint64_t from = (uint64_t)(start - segment->address), to = (uint64_t)(end - segment->address);
    uint64_t head = mo_ceil_div_u64(from, page) * page, tail = to / page * page;
    if (to - from < LEAST_GAP || room->gap_count == MOST_GAPS || start == room->open.start)
        return;
    if (mo_segment_is_expandable(segment) && head < tail) {
        gap.head = segment->address + head;
        gap.tail = segment->address + tail;
    }
    room->gaps[room->gap_count++] = gap;
    segment->drafts++;
}

static void add_gaps(const memopt_allocator *allocator, mo_room_for *room, mo_segment *segment)
{
    mo_block *last;
    for (mo_block *block = segment->first; block != NULL; block = last->next) {
        last = block;
        if (!usable(allocator, block))
            continue;
        while (usable(allocator, last->next))
            last = last->next;
        char *end = last->address + last->size;
        if (block->size < segment->size ||
            mo_segment_is_expandable(segment)) /* else it goes back */
            add_gap(allocator, room, segment, block->address, end);
    }
}

/* Where the free end of the segment begins; its end if there is none. */
static char *free_end(const memopt_allocator *allocator, const mo_segment *segment)
{
    char *start = NULL;
    for (const mo_block *block = segment->first; block != NULL; block = block->next) {
        if (!usable(allocator, block))
            start = NULL;
        else if (start == NULL)
            start = block->address;
    }
    return start == NULL ? segment->address + segment->size : start;
}

/* The open range: the largest free end of the pool's expandable segments. */
static void find_open(const memopt_allocator *allocator, const mo_pool *pool, mo_region *open)
{
    uint64_t most = 0;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        if (segment->pool != pool || !mo_segment_is_expandable(segment))
            continue;
        char *start = free_end(allocator, segment), *end = segment->address + segment->size;
        if ((uint64_t)(end - start) <= most)
            continue;
        most = (uint64_t)(end - start);
        *open = (mo_region){.segment = segment, .start = start, .end = end};
    }
}

memopt_status mo_room_find(memopt_allocator *allocator, mo_lane *lane, mo_room_for *out)
{
    out->gaps = mo_calloc(MOST_GAPS, sizeof *out->gaps);
    if (out->gaps == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (mo_sizes sizes = MO_SIZES_SMALL; sizes < MO_SIZES_CLASSES; sizes++) {
        mo_pool *pool = mo_pool_get(allocator, lane->stream, sizes);
        if (pool == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        pool->lane = lane;
    }
    find_open(allocator, mo_pool_find(allocator, lane->stream, MO_SIZES_LARGE), &out->open);
    if (out->open.segment == NULL)
        find_open(allocator, mo_pool_find(allocator, lane->stream, MO_SIZES_MEDIUM), &out->open);
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next)
        if (segment->pool->lane == lane)
            add_gaps(allocator, out, segment);
    if (out->open.segment != NULL)
        out->open.segment->drafts++;
    return MEMOPT_OK;
}

void mo_room_end(mo_room_for *room)
{
    for (uint32_t i = 0; i < room->gap_count; i++)
        room->gaps[i].segment->drafts--;
    if (room->open.segment != NULL)
        room->open.segment->drafts--;
    mo_free(room->gaps);
}

static void add_region(mo_segment *segment, char *start, char *end, mo_region *regions,
                       uint32_t *holes, uint32_t *count)
{
    uint64_t units = (uint64_t)(end - start) / MO_BLOCK_UNIT;
    units = mo_min_u64(units, UINT32_MAX / (4 * MOST_GAPS)); /* all of them are below 2^32 */
    if (units == 0)
        return;
    holes[*count] = (uint32_t)units;
    regions[(*count)++] =
        (mo_region){.segment = segment, .start = start, .end = start + units * MO_BLOCK_UNIT};
}

void mo_room_divide(const mo_room_for *room, uint64_t most, mo_region *regions, uint32_t *holes,
                    uint32_t *out_count)
{
    *out_count = 0;
    for (uint32_t i = 0; i < room->gap_count; i++) {
        const mo_gap *gap = &room->gaps[i];
        int all = mo_gap_width(gap) <= most;
        add_region(gap->segment, gap->start, all ? gap->end : gap->head, regions, holes, out_count);
        if (!all)
            add_region(gap->segment, gap->tail, gap->end, regions, holes, out_count);
    }
    regions[*out_count] = room->open;
}

uint64_t mo_room_cost(const mo_region *region, const char *end, uint64_t page)
{
    if (end <= region->start || !mo_segment_is_expandable(region->segment))
        return 0;
    const char *base = region->segment->address;
    uint64_t first = mo_ceil_div_u64((uint64_t)(region->start - base), page);
    uint64_t last = (uint64_t)(region->end - base) / page; /* the page of the gap's end is held */
    uint64_t used = mo_min_u64(mo_ceil_div_u64((uint64_t)(end - base), page), last);
    return used > first ? (used - first) * page : 0;
}

char *mo_room_page_end(const mo_region *region, const char *end, uint64_t page)
{
    uint64_t bytes = (uint64_t)(end - region->segment->address);
    char *page_end = region->segment->address + mo_ceil_div_u64(bytes, page) * page;
    return page_end < region->end ? page_end : region->end;
}
