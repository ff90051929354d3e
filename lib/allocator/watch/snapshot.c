/* A copy of all blocks at one moment, handed to a visitor without a lock. */
#include "allocator/blocks/state.h"

#include "base/lock.h"
#include "base/memory.h"

#include <stdlib.h>

static uint64_t count_blocks(const memopt_allocator *allocator)
{
    uint64_t count = 0;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next)
        for (mo_block *block = segment->first; block != NULL; block = block->next)
            count++;
    return count;
}

static uint32_t public_state(const mo_block *block)
{
    switch ((mo_block_state)block->state) {
    case MO_BLOCK_LIVE:
        return MEMOPT_BLOCK_ACTIVE_ALLOCATED;
    case MO_BLOCK_PENDING:
        return MEMOPT_BLOCK_ACTIVE_PENDING_FREE;
    case MO_BLOCK_UNMAPPED:
    case MO_BLOCK_STALE:
        return MEMOPT_BLOCK_UNMAPPED;
    case MO_BLOCK_CLAIMED:
        return block->mapped ? MEMOPT_BLOCK_INACTIVE : MEMOPT_BLOCK_UNMAPPED;
    case MO_BLOCK_ASLEEP:
    case MO_BLOCK_FREE:
    default:
        return MEMOPT_BLOCK_INACTIVE;
    }
}

static memopt_block_info describe(const memopt_allocator *allocator, const mo_block *block)
{
    const mo_segment *segment = block->segment;
    memopt_block_info info = {
        .struct_size = sizeof info,
        .segment_address = segment->address,
        .segment_bytes = segment->mapped,
        .stream = segment->pool->life == MO_STREAM_LIVE ? segment->pool->stream : NULL,
        .segment_large = segment->pool->kind == MO_POOL_LARGE,
        .segment_expandable = (uint32_t)mo_segment_is_expandable(segment),
        .address = block->address,
        .bytes = block->size,
        .requested_bytes = block->requested,
        .state = public_state(block),
        .tag = block->tag,
        .context = block->context,
        .age = allocator->clock - block->freed_at,
    };
    return info;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const memopt_block_info *)a)->address;
    uintptr_t y = (uintptr_t)((const memopt_block_info *)b)->address;
    return (x > y) - (x < y);
}

/* The copy; *out_count blocks. Memory is asked for without the lock, so it may take some rounds. */
static memopt_block_info *copy_blocks(memopt_allocator *allocator, uint64_t *out_count)
{
    memopt_block_info *infos = NULL;
    uint64_t room = 64;
    for (;;) {
        uint64_t count = 0;
        infos = mo_calloc(room, sizeof *infos);
        if (infos == NULL)
            return NULL;
        mo_lock(&allocator->lock);
        uint64_t needed = count_blocks(allocator);
        if (needed <= room)
            for (mo_segment *s = allocator->segments; s != NULL; s = s->next)
                for (mo_block *block = s->first; block != NULL; block = block->next)
                    infos[count++] = describe(allocator, block);
        mo_unlock(&allocator->lock);
        if (needed <= room) {
            *out_count = count;
            return infos;
        }
        mo_free(infos);
        room = needed + needed / 8;
    }
}

memopt_status memopt_allocator_snapshot(memopt_allocator *allocator, memopt_block_visitor visitor,
                                        void *user)
{
    uint64_t count;
    if (allocator == NULL || visitor == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_snapshot: %s is NULL",
                       allocator == NULL ? "allocator" : "visitor");
    MO_TRY(mo_check_process(allocator->device, "allocator_snapshot"));
    memopt_block_info *infos = copy_blocks(allocator, &count);
    if (infos == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    qsort(infos, count, sizeof *infos, by_address);
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = visitor(user, &infos[i]);
    mo_free(infos);
    return mo_callback_status(status, "allocator_snapshot: the visitor");
}
