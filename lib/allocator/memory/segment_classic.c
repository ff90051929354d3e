/*
 * Classic segments: one allocation of the device or of page-locked memory each, given back when one
 * free block covers it.
 */
#include "allocator/memory/segment_kinds.h"

#include "allocator/blocks/pool.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/source.h"

#include "base/lock.h"
#include "base/memory.h"

/* With the observers' consent, or if the driver does not take it back again; without lock. */
static memopt_status get_memory(memopt_allocator *allocator, uint64_t bytes, void **out_address)
{
    MO_TRY(mo_source_get(allocator, bytes, out_address));
    memopt_status status = mo_observe_mapped(allocator, *out_address, bytes);
    if (status == MEMOPT_OK || mo_source_put(allocator, *out_address, bytes) == MEMOPT_OK ||
        mo_source_forgets(allocator))
        return status;
    mo_observe_stays(allocator, *out_address, bytes);
    return MEMOPT_OK;
}

/* One driver call without the lock; the segment is entered when it has succeeded. */
static memopt_status grow(memopt_allocator *allocator, const mo_request *request,
                          mo_block **out_block)
{
    uint64_t bytes = mo_segment_size(allocator, request);
    MO_TRY(mo_may_grow(allocator, bytes));
    mo_segment *segment = mo_calloc(1, sizeof *segment);
    if (segment == NULL || !mo_slab_reserve(&allocator->slab, 1)) {
        mo_free(segment);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    mo_block *block = mo_slab_take(&allocator->slab);
    mo_unlock(&allocator->lock);
    void *address;
    memopt_status status = get_memory(allocator, bytes, &address);
    mo_lock(&allocator->lock);
    if (status != MEMOPT_OK) {
        mo_slab_return(&allocator->slab, block);
        mo_free(segment);
        return status;
    }
    segment->pool = request->pool;
    segment->address = block->address = address;
    segment->size = block->size = bytes;
    segment->first = block;
    block->segment = segment;
    block->freed_at = allocator->clock;
    block->state = MO_BLOCK_CLAIMED;
    block->mapped = 1;
    mo_segment_link(allocator, segment);
    mo_count_mapped(allocator, segment, bytes, 1);
    if (bytes >= allocator->max_split)
        mo_stat_add_one(&allocator->stats.oversize[MO_STAT_OVERSIZE_SEGMENTS], 1);
    *out_block = block;
    return MEMOPT_OK;
}

static uint64_t spare(const memopt_allocator *allocator, const mo_block *block)
{
    (void)allocator;
    return block->size == block->segment->size ? block->size : 0;
}

/* Takes wholly free segments out of the bins, chained by their blocks' right; *claimed counts
 * bytes. */
static void claim(memopt_allocator *allocator, const mo_release *what, mo_release_turn turn,
                  uint64_t *claimed, mo_block **claims)
{
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        mo_block *block = segment->first;
        if (*claimed >= what->wanted)
            return;
        if (mo_segment_is_expandable(segment) || spare(allocator, block) == 0 ||
            segment->drafts > 0 || !mo_release_matches(what, turn, block))
            continue;
        mo_pool_remove(allocator, block);
        block->state = MO_BLOCK_CLAIMED;
        block->right = *claims;
        *claims = block;
        *claimed += block->size;
    }
}

/* With the observers' consent; without lock. */
static memopt_status free_memory(memopt_allocator *allocator, const mo_segment *segment,
                                 int *out_gone)
{
    MO_TRY(mo_observe_unmapping(allocator, segment->address, segment->size));
    memopt_status status = mo_source_put(allocator, segment->address, segment->size);
    *out_gone = status == MEMOPT_OK || mo_source_forgets(allocator);
    if (!*out_gone)
        mo_observe_stays(allocator, segment->address, segment->size);
    return status;
}

/* Enters and leaves with the lock held. */
static memopt_status give_back(memopt_allocator *allocator, mo_segment *segment)
{
    mo_block *block = segment->first;
    int gone = 0;
    memopt_status status = mo_drain_pool(allocator, segment->pool);
    if (status == MEMOPT_OK) {
        mo_unlock(&allocator->lock);
        status = free_memory(allocator, segment, &gone);
        mo_lock(&allocator->lock);
    }
    if (!gone) {
        mo_pool_insert(allocator, block);
        return status;
    }
    mo_segment_unlink(allocator, segment);
    mo_count_unmapped(allocator, segment, segment->size, 1);
    if (segment->size >= allocator->max_split)
        allocator->stats.oversize[MO_STAT_OVERSIZE_SEGMENTS].current--;
    mo_slab_return(&allocator->slab, block);
    mo_free(segment);
    return status;
}

static memopt_status release(memopt_allocator *allocator, const mo_release *what,
                             uint64_t *released)
{
    memopt_status result = MEMOPT_OK;
    mo_block *claims = NULL, *next;
    uint64_t claimed = 0;
    for (mo_release_turn turn = MO_RELEASE_FIRST; turn < MO_RELEASE_TURNS; turn++)
        claim(allocator, what, turn, &claimed, &claims);
    for (mo_block *block = claims; block != NULL; block = next) {
        uint64_t bytes = block->size;
        next = block->right;
        memopt_status status = give_back(allocator, block->segment);
        if (status == MEMOPT_OK)
            *released += bytes;
        else if (result == MEMOPT_OK)
            result = status;
    }
    return result;
}

static memopt_status end(memopt_allocator *allocator, mo_segment *segment)
{
    mo_observe_gone(allocator, segment->address, segment->size);
    memopt_status status = mo_source_put(allocator, segment->address, segment->size);
    for (mo_block *block = segment->first, *next; block != NULL; block = next) {
        next = block->next;
        mo_slab_return(&allocator->slab, block);
    }
    mo_segment_unlink(allocator, segment);
    mo_free(segment);
    return status;
}

const mo_segment_kind mo_segment_classic = {grow, spare, release, end};
