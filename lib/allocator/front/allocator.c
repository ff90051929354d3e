/* The public functions of blocks. */
#include "allocator/allocator.h"
#include "allocator/blocks/pool.h"
#include "allocator/front/pressure.h"
#include "allocator/front/request.h"
#include "allocator/front/stripe_blocks.h"
#include "allocator/memory/idle.h"
#include "allocator/memory/segment_common.h"
#include "allocator/streams/events.h"
#include "allocator/watch/history.h"

#include "base/lock.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>

/* --- allocating ------------------------------------------------------------------------------- */

/* From the cache; OK without a block if there is none. */
static memopt_status alloc_cached(memopt_allocator *allocator, mo_request *request,
                                  void **out_pointer)
{
    MO_TRY(mo_request_enter(allocator, request));
    mo_events_process_next(allocator);
    mo_block *block =
        request->pool->lane != NULL ? allocator->plan->serve(allocator, request) : NULL;
    if (block == NULL && request->slot == 0)
        block = mo_request_serve(allocator, request);
    return block == NULL ? MEMOPT_OK : mo_block_give(allocator, block, request, out_pointer);
}

memopt_status memopt_allocator_alloc(memopt_allocator *allocator, uint64_t bytes, memopt_tag tag,
                                     memopt_stream stream, void **out_pointer)
{
    void *pointer = NULL;
    MO_NOT_NULL("allocator_alloc", allocator, out_pointer);
    MO_TRY(mo_check_process(allocator->device, "allocator_alloc"));
    if (bytes == 0) {
        *out_pointer = NULL;
        return MEMOPT_OK;
    }
    mo_request request = {.asked = bytes,
                          .size = mo_round_size(allocator, bytes),
                          .tag = tag,
                          .stream = stream,
                          .context = mo_history_ask(allocator)};
    if (request.size == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_alloc: %" PRIu64 " bytes overflow when rounded", bytes);
    mo_idle_check(allocator);
    pointer = mo_stripe_alloc(allocator, &request);
    if (pointer != NULL) {
        *out_pointer = pointer;
        return MEMOPT_OK;
    }
    mo_lock(&allocator->lock);
    int known = tag < allocator->tag_count;
    memopt_status status = known ? alloc_cached(allocator, &request, &pointer) : MEMOPT_OK;
    mo_unlock(&allocator->lock);
    if (!known)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_alloc: tag %" PRIu32 " is not registered; see "
                       "memopt_allocator_register_tag",
                       tag);
    if (status == MEMOPT_OK && pointer == NULL)
        status = mo_alloc_slow(allocator, &request, &pointer);
    if (status == MEMOPT_OK)
        *out_pointer = pointer;
    return status;
}

/* --- freeing ---------------------------------------------------------------------------------- */

enum { REASON_BYTES = 128 };

/* Describes a pointer that is not the start of a live block; lock held. */
static void explain(const memopt_allocator *allocator, const void *pointer, char *reason)
{
    const mo_block *block = mo_block_at(allocator, pointer);
    if (block == NULL)
        snprintf(reason, REASON_BYTES, "does not come from this allocator");
    else if (block->state == MO_BLOCK_LIVE)
        snprintf(reason, REASON_BYTES,
                 "lies %" PRIu64 " bytes inside the live block at %p; pass the block's start",
                 (uint64_t)((const char *)pointer - block->address), (void *)block->address);
    else
        snprintf(reason, REASON_BYTES, "is in free memory (a double free?)");
}

static memopt_status fail_not_live(const char *function, const void *pointer, const char *reason)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: pointer %p %s", function, pointer, reason);
}

/* Finds a live block and takes the lock; a failure leaves it free. */
static memopt_status lock_block(memopt_allocator *allocator, const void *pointer,
                                const char *function, mo_block **out_block)
{
    char reason[REASON_BYTES];
    MO_NOT_NULL(function, allocator);
    MO_TRY(mo_check_process(allocator->device, function));
    mo_lock(&allocator->lock);
    *out_block = mo_block_table_find(&allocator->live, pointer);
    if (*out_block != NULL)
        return MEMOPT_OK;
    explain(allocator, pointer, reason);
    mo_unlock(&allocator->lock);
    return fail_not_live(function, pointer, reason);
}

/* Once its uses are recorded. */
static void end_block(memopt_allocator *allocator, mo_block *block)
{
    if (block->uses != NULL)
        mo_events_free(allocator, block);
    mo_block_discard(allocator, block);
}

static memopt_status free_block(memopt_allocator *allocator, mo_block *block)
{
    if (block->uses != NULL)
        MO_TRY(mo_events_record(allocator, block));
    end_block(allocator, block);
    return MEMOPT_OK;
}

memopt_status memopt_allocator_free(memopt_allocator *allocator, void *pointer)
{
    mo_block *block;
    if (allocator != NULL && pointer == NULL)
        return MEMOPT_OK;
    if (allocator != NULL && !mo_device_inherited(allocator->device) &&
        mo_stripe_free(allocator, pointer))
        return MEMOPT_OK;
    MO_TRY(lock_block(allocator, pointer, "allocator_free", &block));
    memopt_status status = free_block(allocator, block);
    mo_unlock(&allocator->lock);
    return status;
}

memopt_status memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                             memopt_stream stream)
{
    mo_block *block;
    MO_TRY(lock_block(allocator, pointer, "allocator_record_stream", &block));
    memopt_status status = mo_events_note(allocator, block, stream);
    mo_unlock(&allocator->lock);
    return status;
}

memopt_status mo_allocator_take(memopt_allocator *allocator, const void *pointer, uint64_t bytes,
                                mo_taken **out_taken)
{
    mo_block *block;
    MO_TRY(lock_block(allocator, pointer, "allocator_take", &block));
    uint64_t size = block->size;
    mo_unlock(&allocator->lock);
    if (bytes > size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_take: %" PRIu64 " bytes of a block of %" PRIu64 " bytes", bytes,
                       size);
    *out_taken = (mo_taken *)block;
    return MEMOPT_OK;
}

memopt_status mo_allocator_record_taken(memopt_allocator *allocator, mo_taken *taken,
                                        const memopt_stream *streams, uint64_t count)
{
    mo_block *block = (mo_block *)taken;
    memopt_status status = MEMOPT_OK;
    if (allocator == NULL || taken == NULL || (streams == NULL && count != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_record_taken: a pointer is NULL");
    MO_TRY(mo_check_process(allocator->device, "allocator_record_taken"));
    mo_lock(&allocator->lock);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = mo_events_note(allocator, block, streams[i]);
    if (status == MEMOPT_OK)
        status = mo_events_record(allocator, block);
    mo_unlock(&allocator->lock);
    return status;
}

void mo_allocator_free_taken(memopt_allocator *allocator, mo_taken *taken)
{
    mo_lock(&allocator->lock);
    end_block(allocator, (mo_block *)taken);
    mo_unlock(&allocator->lock);
}

memopt_device *mo_allocator_device(const memopt_allocator *allocator)
{
    return allocator->device;
}

memopt_status memopt_allocator_get_info(memopt_allocator *allocator,
                                        memopt_allocator_info *out_info)
{
    MO_NOT_NULL("allocator_get_info", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_info"));
    memopt_allocator_info info = {
        .struct_size = sizeof info, .device = allocator->device, .name = allocator->name};
    mo_lock(&allocator->lock);
    info.paused_tags = allocator->paused_tags;
    mo_unlock(&allocator->lock);
    return mo_result_write(out_info, &info, sizeof info, "memopt_allocator_info");
}

memopt_status memopt_allocator_get_block(memopt_allocator *allocator, const void *pointer,
                                         void **out_base, uint64_t *out_bytes)
{
    char reason[REASON_BYTES];
    MO_NOT_NULL("allocator_get_block", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_block"));
    mo_lock(&allocator->lock);
    const mo_block *block = mo_block_table_find(&allocator->live, pointer);
    if (block == NULL)
        block = mo_block_at(allocator, pointer);
    int live = block != NULL && block->state == MO_BLOCK_LIVE;
    if (live && out_base != NULL)
        *out_base = block->address;
    if (live && out_bytes != NULL)
        *out_bytes = block->size;
    if (!live)
        explain(allocator, pointer, reason);
    mo_unlock(&allocator->lock);
    return live ? MEMOPT_OK : fail_not_live("allocator_get_block", pointer, reason);
}

int mo_allocator_owns(memopt_allocator *allocator, const void *pointer)
{
    if (allocator == NULL || mo_device_inherited(allocator->device))
        return 0;
    mo_lock(&allocator->lock);
    int owned = mo_block_table_find(&allocator->live, pointer) != NULL;
    mo_unlock(&allocator->lock);
    return owned;
}
