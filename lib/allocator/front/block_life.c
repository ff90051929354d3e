/* A block's way into use and back to its pool: the counts, the table and the tags follow it. */
#include "allocator/front/block_life.h"

#include "allocator/blocks/pool.h"
#include "allocator/steps/step_lanes.h"
#include "allocator/steps/step_recorder.h"
#include "allocator/streams/stream_state.h"
#include "allocator/watch/recorder.h"
#include "allocator/watch/tags.h"

static memopt_status fail_paused(const memopt_allocator *allocator, memopt_tag tag)
{
    if (allocator->paused_tags == UINT64_MAX)
        return mo_fail(MEMOPT_BUSY, "allocator_alloc: \"%s\" is paused; resume it first",
                       allocator->name);
    return mo_fail(MEMOPT_BUSY, "allocator_alloc: tag %s of \"%s\" is paused; resume it first",
                   allocator->tags[tag].name, allocator->name);
}

/* Room in the table that stripes had is gone when it is made again. */
static int reserve_entry(memopt_allocator *allocator)
{
    if (allocator->live.room != 0)
        return 1;
    if (!mo_block_table_make_room(&allocator->live))
        return 0;
    for (uint32_t i = 0; i < allocator->lock.stripes; i++)
        allocator->stripes[i].entries = 0;
    return 1;
}

/* The first request of a stream shows whether there is one. */
memopt_status mo_request_enter(memopt_allocator *allocator, mo_request *request)
{
    if (mo_tag_is_paused(allocator, request->tag))
        return fail_paused(allocator, request->tag);
    mo_sizes sizes = mo_pool_sizes(allocator, request->size);
    mo_pool *pool = request->pool = allocator->pinned
                                        ? mo_pool_ended(allocator, sizes) /* no stream's */
                                        : mo_pool_get(allocator, request->stream, sizes);
    if (pool == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (pool->segments == 0 && pool->life == MO_STREAM_LIVE) {
        memopt_status status = mo_stream_check(allocator, request->stream);
        if (status != MEMOPT_OK) {
            pool->life = MO_STREAM_ENDED;
            return status;
        }
    }
    return mo_slab_reserve(&allocator->slab, 2) && reserve_entry(allocator)
               ? MEMOPT_OK
               : MEMOPT_OUT_OF_HOST_MEMORY;
}

static mo_block *serve_from_hole(memopt_allocator *allocator, mo_request *request)
{
    const mo_block *hole = mo_pool_hole(allocator, request->stream, request->size);
    if (hole == NULL)
        return NULL;
    request->pool = hole->segment->pool;
    return mo_pool_take(allocator, request->pool, request->size);
}

mo_block *mo_request_serve(memopt_allocator *allocator, mo_request *request)
{
    mo_block *block = mo_pool_serve(allocator, request->pool, request->size);
    if (block != NULL || request->pool->sizes != MO_SIZES_SMALL || !allocator->expandable)
        return block;
    return serve_from_hole(allocator, request);
}

/* The next ones should be served in the stripe. */
static void ask(memopt_allocator *allocator, const mo_block *block)
{
    allocator->asking = &allocator->stripes[block->segment->pool->stripe];
    allocator->asking_tag = block->tag;
}

void *mo_block_activate(memopt_allocator *allocator, mo_block *block, const mo_request *request)
{
    unsigned kind = request->pool->kind;
    mo_stats *stats = &allocator->stats;
    block->state = MO_BLOCK_LIVE;
    block->requested = request->asked;
    block->tag = request->tag;
    block->context = request->context;
    block->freed_at = allocator->clock; /* how old it is, for reports */
    block->stripe = (uint8_t)request->pool->stripe;
    allocator->live.room -= mo_block_table_enter(&allocator->live, block);
    allocator->live.count++;
    ask(allocator, block);
    mo_stat_add(stats, kind, MO_STAT_ALLOCATION, 1);
    mo_stat_add(stats, kind, MO_STAT_ACTIVE, 1);
    mo_stat_add(stats, kind, MO_STAT_ALLOCATED_BYTES, block->size);
    mo_stat_add(stats, kind, MO_STAT_ACTIVE_BYTES, block->size);
    mo_stat_add(stats, kind, MO_STAT_REQUESTED_BYTES, request->asked);
    if (block->size >= allocator->max_split)
        mo_stat_add_one(&stats->oversize[MO_STAT_OVERSIZE_ALLOCATIONS], 1);
    mo_tag_add(allocator, request->tag, request->asked);
    allocator->clock++;
    if (allocator->steps != NULL)
        mo_step_note_alloc(allocator, block, request);
    if (allocator->recorded)
        mo_recorder_alloc(allocator, block, request->stream);
    if (!allocator->foreign)
        mo_note_alloc(allocator->device, block->address, block->size, request->stream);
    return block->address;
}

void mo_block_count_free(memopt_allocator *allocator, const mo_block *block)
{
    unsigned kind = block->segment->pool->kind;
    mo_stats *stats = &allocator->stats;
    mo_stat_subtract(stats, kind, MO_STAT_ALLOCATION, 1);
    mo_stat_subtract(stats, kind, MO_STAT_ALLOCATED_BYTES, block->size);
    mo_stat_subtract(stats, kind, MO_STAT_REQUESTED_BYTES, block->requested);
    if (block->size >= allocator->max_split)
        stats->oversize[MO_STAT_OVERSIZE_ALLOCATIONS].current--;
    mo_tag_subtract(allocator, block->tag, block->requested);
}

void mo_block_put_to_sleep(mo_pause *pause, mo_block *block)
{
    block->state = MO_BLOCK_ASLEEP;
    block->right = pause->asleep;
    pause->asleep = block;
}

/* The pause of the block's tag; NULL if it is not paused, or the pages that go are not chosen yet:
 * what is freed until then goes as free memory. */
static mo_pause *pause_of(const memopt_allocator *allocator, const mo_block *block)
{
    mo_pause *pause = mo_tag_is_paused(allocator, block->tag) ? allocator->pauses : NULL;
    while (pause != NULL && (pause->tags >> block->tag & 1) == 0)
        pause = pause->next;
    return pause != NULL && pause->pages != NULL ? pause : NULL;
}

void mo_block_retire(memopt_allocator *allocator, mo_block *block)
{
    mo_pool *pool = block->segment->pool;
    mo_pause *pause = pause_of(allocator, block);
    if (block->exports != 0) {
        block->state = MO_BLOCK_PENDING;
        block->pending = MO_BLOCK_EXPORTED;
        return;
    }
    mo_stat_subtract(&allocator->stats, pool->kind, MO_STAT_ACTIVE, 1);
    mo_stat_subtract(&allocator->stats, pool->kind, MO_STAT_ACTIVE_BYTES, block->size);
    block->freed_at = allocator->clock;
    block->requested = 0;
    if (block->entry != 0)
        mo_step_note_end(allocator, block);
    int held = block->planned && mo_lane_vacate(block);
    if (pause != NULL) {
        mo_block_put_to_sleep(pause, block);
        return;
    }
    if (pool->life == MO_STREAM_LIVE && !allocator->foreign)
        mo_note_free(allocator->device, block->address, block->size, pool->stream);
    if (held)
        mo_lane_hold(&allocator->slab, block);
    else
        mo_pool_put(allocator, block);
}

void mo_block_discard(memopt_allocator *allocator, mo_block *block)
{
    allocator->live.count--;
    ask(allocator, block);
    mo_block_count_free(allocator, block);
    if (allocator->recorded)
        mo_recorder_free(allocator, block);
    if (block->state == MO_BLOCK_LIVE)
        mo_block_retire(allocator, block);
}
