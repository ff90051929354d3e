/*
 * Making a plan, and giving its places memory.
 *
 * The memory is that of the lanes' segments as they are: cached memory in the open ranges stays,
 * what is free elsewhere goes back, and then what is missing is mapped, if all of that fits below
 * the most that was ever held. It does not where blocks of the last step are alive elsewhere; then
 * each place gets memory at its first use, mostly from where such blocks were.
 */
#include "allocator/steps/step_plan.h"

#include "allocator/blocks/pool.h"
#include "allocator/front/request.h"
#include "allocator/memory/growth.h"
#include "allocator/memory/segment.h"
#include "allocator/steps/step_draft.h"
#include "allocator/steps/step_lanes.h"
#include "allocator/steps/step_recorder.h"
#include "allocator/streams/events.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"

enum { SLACK_PART = 64 };

/* --- learning --------------------------------------------------------------------------------- */

static uint64_t held(const memopt_allocator *allocator)
{
    return mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
}

/* Bytes that may be added at once, when `released` have gone: no more than was ever held where
 * blocks that have places live elsewhere, since these leave that memory soon. */
static uint64_t may_add(const memopt_allocator *allocator, const mo_drafts *drafts,
                        uint64_t released)
{
    uint64_t peak = allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_RESERVED_BYTES].peak;
    uint64_t room = mo_room(allocator);
    for (uint32_t i = 0; i < drafts->count; i++)
        if (drafts->list[i].living > 0)
            room = mo_min_u64(room, peak - held(allocator));
    return room + released;
}

/* What streams shared by turns, each has for itself with a plan. More than it saves is no plan:
 * more than was ever held, but for a little and the last page of each lane. */
static int is_worth_it(const memopt_allocator *allocator, const mo_drafts *drafts)
{
    uint64_t peak = allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_RESERVED_BYTES].peak;
    uint64_t stays = held(allocator) - mo_segment_spare(allocator, UINT64_MAX), takes = 0;
    for (uint32_t i = 0; i < drafts->count; i++) {
        takes += drafts->list[i].cost;
        stays -= mo_min_u64(stays, drafts->list[i].living);
    }
    uint64_t slack = peak / SLACK_PART + drafts->count * allocator->granularity;
    return stays + takes <= peak + slack;
}

static mo_region *open_range(const mo_draft *draft)
{
    return &draft->regions[draft->hole_count];
}

static int needs_segment(const mo_draft *draft)
{
    return draft->slots != NULL && draft->placement.top > 0 && open_range(draft)->segment == NULL;
}

/* Installs and arms a lane. */
static memopt_status install(memopt_allocator *allocator, mo_draft *draft)
{
    if (draft->lane->ended)
        return MEMOPT_OK;
    MO_TRY(mo_draft_install(allocator, draft));
    return mo_lane_arm(allocator, draft->lane) ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

/* A new segment for the open range. OUT_OF_DEVICE_MEMORY where it would not fit. */
static memopt_status install_new(memopt_allocator *allocator, mo_draft *draft)
{
    mo_block *block;
    mo_request request = {.size = mo_draft_bytes(draft), .stream = draft->lane->stream, .least = 1};
    request.asked = request.size;
    if (draft->lane->ended)
        return MEMOPT_OK;
    MO_TRY(mo_request_enter(allocator, &request));
    MO_TRY(mo_segment_grow(allocator, &request, &block));
    open_range(draft)->segment = block->segment;
    open_range(draft)->start = block->address;
    mo_pool_put(allocator, block);
    return install(allocator, draft);
}

/* The block at an address of a region's segment. */
static mo_block *block_at(const mo_segment *segment, const char *address)
{
    mo_block *block = segment->first;
    while (block != NULL && block->address + block->size <= address)
        block = block->next;
    return block;
}

/* Maps what [start, start + size) lacks; *out_block, in no structure, begins there. OK without it
 * where not all of it is free. */
static memopt_status make_place(memopt_allocator *allocator, mo_segment *segment, char *start,
                                uint64_t size, mo_block **out_block)
{
    mo_place place;
    mo_request request = {.asked = size, .size = size, .stream = segment->pool->stream};
    *out_block = NULL;
    mo_block *first = block_at(segment, start);
    if (first == NULL || !mo_place_at(allocator, first, start, size, &place))
        return MEMOPT_OK;
    return mo_growth_make(allocator, &request, &place, out_block);
}

static uint64_t within(const mo_region *open, const mo_block *block)
{
    return mo_min_u64((uint64_t)(open->end - block->address), block->size);
}

/* Bytes of the range that lack memory; *out_first is the first block of them. */
static uint64_t missing_in(const mo_region *open, mo_block **out_first)
{
    uint64_t bytes = 0;
    *out_first = NULL;
    for (mo_block *block = block_at(open->segment, open->start);
         block != NULL && block->address < open->end; block = block->next) {
        if (block->state != MO_BLOCK_UNMAPPED)
            continue;
        if (*out_first == NULL)
            *out_first = block;
        bytes += within(open, block);
    }
    return bytes;
}

static uint64_t missing_of(const mo_lane *lane, const mo_region **out_region, mo_block **out_first)
{
    uint64_t bytes = 0;
    *out_first = NULL;
    for (uint32_t i = 0; i < lane->region_count; i++) {
        mo_block *first;
        const mo_region *region = &lane->regions[i];
        if (region->segment == NULL || !mo_segment_is_expandable(region->segment))
            continue;
        bytes += missing_in(region, &first);
        if (*out_first != NULL || first == NULL)
            continue;
        *out_first = first;
        *out_region = region;
    }
    return bytes;
}

/* All of the lane's regions. */
static memopt_status fill(memopt_allocator *allocator, const mo_drafts *drafts, mo_lane *lane)
{
    memopt_status status = MEMOPT_OK;
    const mo_region *region = NULL;
    mo_block *first, *made = NULL;
    do { /* without lock meanwhile: the stream may have ended */
        uint64_t missing = missing_of(lane, &region, &first);
        if (first == NULL || missing > may_add(allocator, drafts, 0))
            return MEMOPT_OK;
        status =
            make_place(allocator, region->segment, first->address, within(region, first), &made);
        if (made != NULL)
            mo_pool_put(allocator, made);
        if (!mo_lane_arm(allocator, lane)) /* at once: growth takes what is free */
            return MEMOPT_OUT_OF_HOST_MEMORY;
    } while (made != NULL);
    return status == MEMOPT_OUT_OF_DEVICE_MEMORY ? MEMOPT_OK : status; /* bit by bit, then */
}

static memopt_status fill_all(memopt_allocator *allocator, const mo_drafts *drafts)
{
    memopt_status status = MEMOPT_OK;
    for (mo_lane *lane = allocator->steps->lanes; lane != NULL && status == MEMOPT_OK;
         lane = lane->next)
        status = fill(allocator, drafts, lane);
    return status;
}

/* What is free and not held for places. */
static memopt_status give_back(memopt_allocator *allocator)
{
    mo_release all = MO_RELEASE_ALL;
    uint64_t released = 0;
    return mo_segment_release(allocator, &all, &released);
}

static int new_segments_fit(const memopt_allocator *allocator, const mo_drafts *drafts)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < drafts->count; i++)
        if (needs_segment(&drafts->list[i]))
            bytes += mo_draft_bytes(&drafts->list[i]);
    return bytes <= may_add(allocator, drafts, mo_segment_spare(allocator, UINT64_MAX));
}

static memopt_status take(memopt_allocator *allocator, mo_drafts *drafts)
{
    memopt_status status = MEMOPT_OK;
    for (uint32_t i = 0; i < drafts->count && status == MEMOPT_OK; i++)
        if (!needs_segment(&drafts->list[i]))
            status = install(allocator, &drafts->list[i]);
    if (status == MEMOPT_OK && !new_segments_fit(allocator, drafts))
        status = MEMOPT_OUT_OF_DEVICE_MEMORY;
    if (status == MEMOPT_OK)
        status = give_back(allocator);
    for (uint32_t i = 0; i < drafts->count && status == MEMOPT_OK; i++)
        if (needs_segment(&drafts->list[i]))
            status = install_new(allocator, &drafts->list[i]);
    return status == MEMOPT_OK ? fill_all(allocator, drafts) : status;
}

static void reset_info(memopt_step_plan *info)
{
    info->active = 0;
    info->allocations = info->unplanned = info->least_bytes = info->bytes = 0;
}

/* The places are found without lock: that takes up to a second. */
static memopt_status find_places(memopt_allocator *allocator, mo_drafts *drafts)
{
    (void)mo_lanes_leave(allocator, UINT64_MAX);
    mo_events_process(allocator);
    MO_TRY(mo_drafts_make(allocator, drafts));
    mo_unlock(&allocator->lock);
    memopt_status status = mo_drafts_place(drafts);
    mo_lock(&allocator->lock);
    return status;
}

memopt_status mo_step_plan_learn(memopt_allocator *allocator)
{
    mo_drafts drafts = {NULL, 0};
    mo_steps *steps = allocator->steps;
    memopt_status status = find_places(allocator, &drafts);
    if (status == MEMOPT_OK) {
        mo_lanes_drop(allocator);
        reset_info(&steps->info);
        status = is_worth_it(allocator, &drafts) ? take(allocator, &drafts)
                                                 : MEMOPT_OUT_OF_DEVICE_MEMORY;
    }
    mo_drafts_end(&drafts);
    if (status == MEMOPT_OK) {
        steps->planned = 1;
        steps->info.active = 1;
        steps->info.plans++;
        mo_log(MEMOPT_LOG_INFO,
               "allocator: a step of %llu allocations is planned: %s for at least %s",
               (unsigned long long)steps->info.allocations, MO_SIZE(steps->info.bytes),
               MO_SIZE(steps->info.least_bytes));
        return MEMOPT_OK;
    }
    mo_lanes_drop(allocator);
    reset_info(&steps->info);
    if (status != MEMOPT_OUT_OF_DEVICE_MEMORY && status != MEMOPT_LIMIT_REACHED)
        return status;
    mo_log(MEMOPT_LOG_INFO, "allocator: no plan of the step: its range does not fit what was held");
    return MEMOPT_OK;
}

/* --- memory for one place --------------------------------------------------------------------- */

/* The block of the place goes to it, if the lane still wants it; else it is one like others. */
static memopt_status settle(memopt_allocator *allocator, mo_request *request, mo_block *block,
                            mo_block **out_block)
{
    memopt_status status = mo_request_enter(allocator, request);
    mo_slot *slot = status == MEMOPT_OK ? mo_lane_waiting(request) : NULL;
    mo_lane *lane = block->segment->pool->lane;
    if (slot == NULL || lane != request->pool->lane || block->address != slot->address) {
        mo_pool_put(allocator, block);
        return status;
    }
    const mo_region *region = &lane->regions[slot->region];
    if (block->address + block->size > region->end) /* growth gives whole pages */
        mo_pool_put(allocator, mo_block_split(&allocator->slab, block,
                                              (uint64_t)(region->end - block->address)));
    request->pool = block->segment->pool;
    allocator->steps->info.served++;
    *out_block = mo_lane_occupy(&allocator->slab, lane, slot, block, request->size);
    return MEMOPT_OK;
}

/* What is held in [start, end) is free. Only that, so that growth takes no other pages of the plan.
 * 0: no host memory. */
static int loosen(memopt_allocator *allocator, mo_region *region, const char *start,
                  const char *end)
{
    for (mo_block *block = block_at(region->segment, start); block != NULL && block->address < end;
         block = block->next) {
        if (block->planned != MO_PLANNED_GAP)
            continue;
        if (block == region->front)
            region->front = NULL; /* it may be joined with what is before it */
        if (!mo_slab_reserve(&allocator->slab, 2))
            return 0;
        block = mo_lane_cut_gap(allocator, block, start, end);
        block->planned = MO_PLANNED_NOT;
        mo_pool_put(allocator, block);
    }
    return 1;
}

memopt_status mo_step_grow(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    mo_block *block = NULL;
    memopt_status status = mo_request_enter(allocator, request); /* both locks were free */
    mo_slot *slot = status == MEMOPT_OK ? mo_lane_waiting(request) : NULL;
    if (slot == NULL)
        return status;
    mo_lane *lane = request->pool->lane;
    mo_region *region = &lane->regions[slot->region];
    mo_segment *segment = region->segment;
    char *start = slot->address;
    status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (loosen(allocator, region, start, start + request->size))
        status = make_place(allocator, segment, start, request->size, &block);
    if (block != NULL)
        status = settle(allocator, request, block, out_block);
    lane->missed += *out_block == NULL;
    if (lane->armed)
        (void)mo_lane_arm(allocator, lane); /* what is not held is free memory like other */
    request->slot = 0;
    return status;
}

/* --- the end ---------------------------------------------------------------------------------- */

void mo_steps_end(memopt_allocator *allocator)
{
    mo_steps *steps = allocator->steps;
    mo_lanes_drop(allocator);
    mo_step_stop(steps);
    mo_sink_remove(allocator, &steps->sink);
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        pool->lane = NULL;
    while (steps->lanes != NULL) {
        mo_lane *next = steps->lanes->next;
        mo_free(steps->lanes);
        steps->lanes = next;
    }
    mo_free(steps);
    allocator->steps = NULL;
    allocator->plan = NULL;
}
