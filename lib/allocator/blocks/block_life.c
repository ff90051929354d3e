/* A block's way into use and back to its pool: the table follows it, and others are told. */
#include "allocator/blocks/block_life.h"

#include "allocator/blocks/pool.h"

/* The next ones should be served in the stripe. */
static void ask(memopt_allocator *allocator, const mo_block *block)
{
    allocator->asking = &allocator->stripes[block->segment->pool->stripe];
    allocator->asking_tag = block->tag;
}

void *mo_block_activate(memopt_allocator *allocator, mo_block *block, const mo_request *request)
{
    const mo_event event = {
        .what = MO_ALLOC, .block = block, .request = request, .stream = request->stream};
    block->state = MO_BLOCK_LIVE;
    block->requested = request->asked;
    block->tag = request->tag;
    block->context = request->context;
    block->freed_at = allocator->clock; /* how old it is, for reports */
    block->stripe = (uint8_t)request->pool->stripe;
    allocator->live.room -= mo_block_table_enter(&allocator->live, block);
    allocator->live.count++;
    ask(allocator, block);
    allocator->clock++;
    mo_tell(allocator, &event);
    return block->address;
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
    mo_pause *pause = pause_of(allocator, block);
    const mo_event event = {.what = MO_END, .block = block, .asleep = pause != NULL};
    if (block->exports != 0) {
        block->state = MO_BLOCK_PENDING;
        block->pending = MO_BLOCK_EXPORTED;
        return;
    }
    mo_tell(allocator, &event);
    block->freed_at = allocator->clock;
    block->requested = 0;
    if (block->planned && allocator->plan->hold(&allocator->slab, block))
        return;
    if (pause != NULL)
        mo_block_put_to_sleep(pause, block);
    else
        mo_pool_put(allocator, block);
}

void mo_block_discard(memopt_allocator *allocator, mo_block *block)
{
    allocator->live.count--;
    ask(allocator, block);
    mo_tell_block(allocator, MO_FREE, block);
    if (block->state == MO_BLOCK_LIVE)
        mo_block_retire(allocator, block);
}
