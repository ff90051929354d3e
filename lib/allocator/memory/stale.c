/*
 * Pages that move without a wait.
 *
 * A page of a free block may still be used by work that its stream has not done. It serves a new
 * block nevertheless: its handle is mapped at the new address, too, and the order of the stream
 * keeps the two uses apart (CUDA Programming Guide, "Virtual Aliasing Support": two mappings of one
 * allocation are defined where their uses are ordered by streams or events). A block of another
 * stream waits for an event of the first one, on the device. Only the old mapping has to stay until
 * the work that uses it is complete. Until then its addresses are a STALE block, with an event
 * behind that work in `uses` and NULL in pages[].
 *
 * An undone move puts the handles back into pages[]. A stale block that gets only a part of them
 * back gives them to the device when it is unmapped.
 */
#include "allocator/memory/stale.h"

#include "allocator/blocks/pool.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/pages.h"
#include "allocator/memory/segment_common.h"
#include "allocator/streams/events.h"

#include "base/lock.h"

/* --- moves ---------------------------------------------------------------------------------------- */

memopt_status mo_stale_mark(memopt_allocator *allocator, const mo_pool *pool, memopt_stream user,
                            mo_stream_use **out_use)
{
    mo_stream_use *use;
    MO_TRY(mo_events_borrow(allocator, &use));
    memopt_status status = memopt_event_record(use->event, pool->stream);
    if (status == MEMOPT_OK && user != pool->stream)
        status = memopt_stream_wait_event(allocator->device, user, use->event);
    if (status == MEMOPT_OK)
        *out_use = use;
    else
        mo_events_return(allocator, use);
    return status;
}

void mo_stale_add(memopt_allocator *allocator, mo_block *block, mo_stream_use *use)
{
    mo_count_unmapped(allocator, block->segment, block->size, 0);
    block->state = MO_BLOCK_STALE;
    block->mapped = 0;
    block->uses = use;
    block->right = NULL;
    *allocator->stale_end = block;
    allocator->stale_end = &block->right;
}

static int has_all_pages(const memopt_allocator *allocator, const mo_block *block)
{
    uint64_t page = mo_page_of(allocator, block), end = page + block->size / allocator->granularity;
    while (page < end && block->segment->pages[page] != NULL)
        page++;
    return page == end;
}

static void drop_event(memopt_allocator *allocator, mo_block *block)
{
    if (block->uses != NULL)
        mo_events_return(allocator, block->uses);
    block->uses = NULL;
}

static void link_end(memopt_allocator *allocator)
{
    allocator->stale_end = &allocator->stale;
    while (*allocator->stale_end != NULL)
        allocator->stale_end = &(*allocator->stale_end)->right;
}

void mo_stale_restore(memopt_allocator *allocator)
{
    for (mo_block **place = &allocator->stale; *place != NULL;) {
        mo_block *block = *place;
        if (!has_all_pages(allocator, block)) {
            place = &block->right;
            continue;
        }
        *place = block->right;
        block->right = NULL;
        drop_event(allocator, block);
        block->mapped = 1;
        mo_count_mapped(allocator, block->segment, block->size, 0);
        mo_pool_put(allocator, block);
    }
    link_end(allocator);
}

/* --- unmapping ------------------------------------------------------------------------------------ */

/* Handles that came back alone. Those that the driver keeps are spare ones. Without lock. */
static void release_pages(memopt_allocator *allocator, const mo_block *block, uint64_t bytes)
{
    uint64_t page = mo_page_of(allocator, block), end = page + bytes / allocator->granularity;
    for (; page < end; page++)
        if (block->segment->pages[page] != NULL)
            (void)mo_page_release(allocator, block->segment, page);
}

/* Unmaps a block that is in no list, from its start; returns what stays, or NULL. */
static mo_block *unmap(memopt_allocator *allocator, mo_block *block, memopt_status *result)
{
    uint64_t done = 0;
    drop_event(allocator, block);
    if (!mo_slab_reserve(&allocator->slab, 1)) {
        mo_keep_first(result, MEMOPT_OUT_OF_HOST_MEMORY);
        return block;
    }
    mo_unlock(&allocator->lock);
    memopt_status status = mo_observe_unmapping(allocator, block->address, block->size);
    if (status == MEMOPT_OK) {
        status = mo_pages_unmap(allocator, block, &done);
        release_pages(allocator, block, done);
        mo_observe_stays(allocator, block->address + done, block->size - done);
    }
    mo_lock(&allocator->lock);
    mo_keep_first(result, status);
    if (done == 0)
        return block;
    mo_block *rest = done < block->size ? mo_block_split(&allocator->slab, block, done) : NULL;
    mo_pages_put_unmapped(allocator, block);
    return rest;
}

/* Whether the work of a block is complete; `wait`: waits for it. */
static int is_over(memopt_allocator *allocator, const mo_block *block, int wait)
{
    if (block->uses == NULL)
        return 1;
    if (!wait)
        return mo_work_is_over(memopt_event_query(block->uses->event));
    mo_unlock(&allocator->lock);
    memopt_status status = memopt_event_sync(block->uses->event);
    mo_lock(&allocator->lock);
    return mo_work_is_over(status);
}

memopt_status mo_stale_collect(memopt_allocator *allocator, int wait)
{
    const mo_segment *busy =
        NULL; /* one of a stream that is not done: what follows is not either */
    mo_block *left = NULL, **end = &left;
    memopt_status status = MEMOPT_OK;
    if (allocator->stale == NULL || mo_capturing(allocator))
        return MEMOPT_OK;
    while (allocator->stale != NULL) {
        mo_block *block = allocator->stale;
        allocator->stale = block->right;
        block->right = NULL;
        if (busy != NULL && busy->pool == block->segment->pool)
            ;
        else if (!is_over(allocator, block, wait))
            busy = block->segment;
        else
            block = unmap(allocator, block, &status);
        if (block == NULL)
            continue;
        *end = block;
        end = &block->right;
    }
    allocator->stale = left;
    allocator->stale_end = left != NULL ? end : &allocator->stale;
    return status;
}
