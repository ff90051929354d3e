/*
 * Drafts of plans: from a recorded step to places.
 *
 * A block that ends in its step lives from its allocation to its end. One that is alive at the mark
 * lives on into the next step, to the event at which the same block of the step before has ended;
 * where that is still alive, or not known, the block gets no place. Where streams delayed an end,
 * twice that delay is allowed for.
 *
 * Places lie in gaps between blocks that stay and in one open range for each lane: see step_room.c.
 */
#include "allocator/steps/step_draft.h"

#include "allocator/steps/step_lanes.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of whole pages up to which gaps are used as a whole: each is tried. */
static const uint64_t widths[] = {0, 4 * MO_MIB, 16 * MO_MIB, UINT64_MAX};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* --- lifetimes -------------------------------------------------------------------------------- */

/* An event of the step, or of the next one from `span` on. */
static uint64_t end_of(const mo_step_entry *entry)
{
    return (uint64_t)entry->died + (entry->delayed ? entry->died - entry->freed : 0);
}

/* 0 if the block gets no place. */
static int lifetime(const mo_step_entry *entry, const mo_step_entry *earlier, uint32_t span,
                    mo_rect *out)
{
    uint64_t units = entry->size / MO_BLOCK_UNIT, end;
    if (units > UINT32_MAX)
        return 0;
    *out = (mo_rect){(uint32_t)units, entry->born, 0, 0};
    if (entry->fate == MO_FATE_GONE) {
        end = end_of(entry);
    } else {
        if (earlier == NULL || earlier->fate != MO_FATE_NEXT || earlier->died > entry->born)
            return 0;
        end = span + end_of(earlier);
    }
    if (end >= (uint64_t)span + entry->born)
        *out = (mo_rect){out->size, 0, span, 0}; /* always */
    else
        out->end = (uint32_t)(end >= span ? end - span : end);
    return 1;
}

static memopt_status make_rects(mo_draft *draft, uint32_t span)
{
    mo_placement *placement = &draft->placement;
    placement->rects = mo_calloc(draft->count, sizeof *placement->rects);
    draft->which = mo_calloc(draft->count, sizeof *draft->which);
    if (placement->rects == NULL || draft->which == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    placement->span = span;
    for (uint32_t i = 0; i < draft->count; i++) {
        const mo_step_entry *earlier = draft->earlier == NULL ? NULL : draft->earlier[i];
        draft->slots[i].units =
            (uint32_t)mo_min_u64(draft->entries[i]->size / MO_BLOCK_UNIT, UINT32_MAX);
        draft->slots[i].below = MO_FRONT;
        if (!lifetime(draft->entries[i], earlier, span, &placement->rects[placement->count]))
            continue;
        draft->entries[i]->placed = 1;
        draft->living += draft->entries[i]->fate != MO_FATE_GONE ? draft->entries[i]->size : 0;
        draft->which[placement->count++] = i;
    }
    return MEMOPT_OK;
}

/* --- drafts ----------------------------------------------------------------------------------- */

static mo_draft *draft_of(const mo_drafts *drafts, const mo_lane *lane)
{
    return &drafts->list[lane->at];
}

static memopt_status begin(mo_drafts *drafts, mo_lane *lane, uint64_t page, int earlier)
{
    lane->at = drafts->count; /* its number meanwhile */
    mo_draft *draft = &drafts->list[drafts->count++];
    draft->lane = lane;
    draft->page = page;
    draft->count = (uint32_t)lane->count;
    draft->slots = mo_calloc(draft->count, sizeof *draft->slots);
    draft->entries = mo_calloc(draft->count, sizeof *draft->entries);
    if (earlier)
        draft->earlier = mo_calloc(draft->count, sizeof *draft->earlier);
    return draft->slots == NULL || draft->entries == NULL || (earlier && draft->earlier == NULL)
               ? MEMOPT_OUT_OF_HOST_MEMORY
               : MEMOPT_OK;
}

static int takes_part(const mo_lane *lane)
{
    return lane->count > 0 && !lane->ended;
}

static memopt_status begin_all(const mo_steps *steps, uint64_t page, mo_drafts *drafts)
{
    memopt_status status = MEMOPT_OK;
    uint32_t lanes = 0;
    for (mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next)
        lanes++;
    drafts->list = mo_calloc(lanes, sizeof *drafts->list);
    if (drafts->list == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (mo_lane *lane = steps->lanes; lane != NULL && status == MEMOPT_OK; lane = lane->next) {
        int alike = steps->has_before && lane->count == lane->count_before &&
                    lane->whole == lane->whole_before;
        if (takes_part(lane))
            status = begin(drafts, lane, page, alike);
    }
    return status;
}

static void share_out(mo_steps *steps, const mo_drafts *drafts)
{
    for (uint32_t i = 0; i < steps->now.count; i++) {
        mo_step_entry *entry = &steps->now.entries[i];
        entry->placed = 0;
        if (!takes_part(entry->lane))
            continue;
        mo_draft *draft = draft_of(drafts, entry->lane);
        draft->entries[draft->filled++] = entry;
    }
    for (uint32_t i = 0; i < steps->before.count; i++) {
        const mo_step_entry *entry = &steps->before.entries[i];
        if (!takes_part(entry->lane))
            continue;
        mo_draft *draft = draft_of(drafts, entry->lane);
        if (draft->earlier != NULL)
            draft->earlier[draft->filled_earlier++] = entry;
    }
}

memopt_status mo_drafts_make(memopt_allocator *allocator, mo_drafts *out)
{
    mo_steps *steps = allocator->steps;
    memopt_status status = begin_all(steps, allocator->granularity, out);
    if (status == MEMOPT_OK)
        share_out(steps, out);
    for (uint32_t i = 0; i < out->count; i++) {
        out->list[i].lane->at = 0;
        if (status == MEMOPT_OK)
            status = make_rects(&out->list[i], steps->now.clock);
        if (status == MEMOPT_OK)
            status = mo_room_find(allocator, out->list[i].lane, &out->list[i].room);
    }
    return status;
}

/* --- choosing --------------------------------------------------------------------------------- */

static uint64_t base_of(const mo_draft *draft)
{
    const mo_region *open = &draft->regions[draft->hole_count];
    return open->segment == NULL ? 0 : (uint64_t)(open->start - open->segment->address);
}

/* Up to the end of a page. */
uint64_t mo_draft_bytes(const mo_draft *draft)
{
    uint64_t from = base_of(draft), bytes = (uint64_t)draft->placement.top * MO_BLOCK_UNIT;
    uint64_t page = draft->page;
    return bytes == 0 ? 0 : mo_ceil_div_u64(from + bytes, page) * page - from;
}

/* The region that an offset of the placement is in, and the offset in it. */
static uint32_t region_of(const mo_draft *draft, uint64_t offset, uint64_t *out_within)
{
    uint64_t at = 0;
    uint32_t region = 0;
    for (; region < draft->hole_count && offset >= at + draft->holes[region]; region++)
        at += (uint64_t)draft->holes[region] + 1;
    *out_within = offset - at;
    return region;
}

/* Cuts the gaps to what is used of them, up to the end of a page; returns what they cost. */
static uint64_t trim_gaps(mo_draft *draft)
{
    uint64_t cost = 0, within;
    memset(draft->used, 0, draft->hole_count * sizeof *draft->used);
    for (uint32_t i = 0; i < draft->placement.count; i++) {
        const mo_rect *rect = &draft->placement.rects[i];
        uint32_t region = region_of(draft, rect->offset, &within);
        if (region < draft->hole_count)
            draft->used[region] = mo_max_u64(draft->used[region], within + rect->size);
    }
    for (uint32_t i = 0; i < draft->hole_count; i++) {
        mo_region *region = &draft->regions[i];
        char *end = region->start + draft->used[i] * MO_BLOCK_UNIT;
        cost += mo_room_cost(region, end, draft->page);
        if (mo_segment_is_expandable(region->segment) && end > region->start)
            end = mo_room_page_end(region, end, draft->page);
        region->end = end;
    }
    return cost;
}

/* Which gaps are whole regions, the places then, and the whole pages they cost. */
typedef struct choice {
    uint64_t cost;
    uint64_t width;
    uint32_t base, top;
    uint32_t *offsets;
} choice;

static void divide(mo_draft *draft, uint64_t width)
{
    mo_room_divide(&draft->room, width, draft->regions, draft->holes, &draft->hole_count);
    draft->placement.hole_count = draft->hole_count;
}

static memopt_status try_width(mo_draft *draft, uint64_t width, choice *best)
{
    mo_placement *placement = &draft->placement;
    divide(draft, width);
    MO_TRY(mo_placement_find(placement));
    uint64_t cost = trim_gaps(draft) + mo_draft_bytes(draft);
    if (cost >= best->cost)
        return MEMOPT_OK;
    best->cost = cost;
    best->width = width;
    best->base = placement->base;
    best->top = placement->top;
    for (uint32_t i = 0; i < placement->count; i++)
        best->offsets[i] = placement->rects[i].offset;
    return MEMOPT_OK;
}

/* Where there are no whole pages in gaps, all widths are the same. */
static memopt_status try_widths(mo_draft *draft, choice *best)
{
    uint64_t widest = 0;
    memopt_status status = MEMOPT_OK;
    for (uint32_t i = 0; i < draft->room.gap_count; i++)
        widest = mo_max_u64(widest, mo_gap_width(&draft->room.gaps[i]));
    for (int i = 0; i < WIDTHS && status == MEMOPT_OK; i++)
        if (i == 0 || widest > widths[i - 1])
            status = try_width(draft, widths[i], best);
    return status;
}

static void take_choice(mo_draft *draft, const choice *best)
{
    mo_placement *placement = &draft->placement;
    divide(draft, best->width);
    placement->base = best->base;
    placement->top = best->top;
    for (uint32_t i = 0; i < placement->count; i++)
        placement->rects[i].offset = best->offsets[i];
    draft->cost = trim_gaps(draft) + mo_draft_bytes(draft);
}

static memopt_status place(mo_draft *draft)
{
    mo_placement *placement = &draft->placement;
    const uint64_t most = 2 * (uint64_t)draft->room.gap_count + 1;
    choice best = {UINT64_MAX, 0, 0, 0, mo_calloc(placement->count + 1, sizeof *best.offsets)};
    draft->regions = mo_calloc(most, sizeof *draft->regions);
    draft->holes = mo_calloc(most, sizeof *draft->holes);
    draft->used = mo_calloc(most, sizeof *draft->used);
    placement->holes = draft->holes;
    placement->grain = (uint32_t)(draft->page / MO_BLOCK_UNIT);
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (best.offsets != NULL && draft->regions != NULL && draft->holes != NULL &&
        draft->used != NULL)
        status = try_widths(draft, &best);
    if (status == MEMOPT_OK)
        take_choice(draft, &best);
    mo_free(best.offsets);
    return status;
}

memopt_status mo_drafts_place(mo_drafts *drafts)
{
    memopt_status status = MEMOPT_OK;
    for (uint32_t i = 0; i < drafts->count && status == MEMOPT_OK; i++)
        status = place(&drafts->list[i]);
    return status;
}

void mo_drafts_end(mo_drafts *drafts)
{
    for (uint32_t i = 0; i < drafts->count; i++) {
        mo_draft *draft = &drafts->list[i];
        mo_free(draft->slots);
        mo_free(draft->entries);
        mo_free(draft->earlier);
        mo_free(draft->which);
        mo_free(draft->placement.rects);
        mo_room_end(&draft->room);
        mo_free(draft->regions);
        mo_free(draft->holes);
        mo_free(draft->used);
    }
    mo_free(drafts->list);
    drafts->list = NULL;
    drafts->count = 0;
}

/* --- places ----------------------------------------------------------------------------------- */

static void find_place(const mo_draft *draft, uint64_t offset, mo_slot *slot)
{
    uint64_t within;
    slot->region = region_of(draft, offset, &within);
    slot->address = draft->regions[slot->region].start + within * MO_BLOCK_UNIT;
}

typedef struct ranked {
    const mo_slot *slot;
    uint32_t index;
} ranked;

static int by_place(const void *a, const void *b)
{
    const mo_slot *x = ((const ranked *)a)->slot, *y = ((const ranked *)b)->slot;
    if (x->region != y->region)
        return x->region < y->region ? -1 : 1;
    if (x->address != y->address)
        return x->address < y->address ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int rank(mo_draft *draft)
{
    mo_lane *lane = draft->lane;
    uint32_t count = draft->placement.count, next = 0;
    ranked *list = mo_calloc((uint64_t)count + 1, sizeof *list);
    lane->by_rank = mo_calloc((uint64_t)count + 1, sizeof *lane->by_rank);
    if (list == NULL || lane->by_rank == NULL || !mo_lane_make_ranks(lane)) {
        mo_free(list);
        return 0;
    }
    for (uint32_t i = 0; i < count; i++)
        list[i] = (ranked){&lane->slots[draft->which[i]], draft->which[i]};
    qsort(list, count, sizeof *list, by_place);
    for (uint32_t i = 0; i < count; i++) {
        lane->by_rank[i] = list[i].index;
        lane->slots[list[i].index].rank = i;
        for (; next <= list[i].slot->region; next++)
            lane->regions[next].first_rank = i;
    }
    mo_free(list);
    return 1;
}

static void describe(const mo_draft *draft, memopt_step_plan *info)
{
    info->allocations += draft->count;
    info->unplanned += draft->count - draft->placement.count;
    info->least_bytes += draft->placement.bound * MO_BLOCK_UNIT;
    info->bytes += draft->cost;
}

memopt_status mo_draft_install(memopt_allocator *allocator, mo_draft *draft)
{
    mo_lane *lane = draft->lane;
    mo_region *open = &draft->regions[draft->hole_count];
    uint64_t bytes = mo_draft_bytes(draft);
    if (bytes > 0)
        open->end = open->start + bytes;
    for (uint32_t i = 0; i < draft->placement.count; i++)
        find_place(draft, draft->placement.rects[i].offset, &draft->slots[draft->which[i]]);
    lane->slots = draft->slots;
    lane->slot_count = draft->count;
    lane->regions = draft->regions;
    lane->region_count = draft->hole_count + (bytes > 0 ? 1 : 0);
    draft->slots = NULL;
    draft->regions = NULL;
    for (uint32_t i = 0; i < lane->region_count; i++)
        if (lane->regions[i].segment != NULL && lane->regions[i].end > lane->regions[i].start)
            lane->regions[i].segment->places++;
    describe(draft, &allocator->steps->info);
    return rank(draft) ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}
