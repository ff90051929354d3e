/* The public functions that create, destroy and configure an allocator, and that allocate and free
 * blocks. */
#include "allocator/block_life.h"
#include "allocator/events.h"
#include "allocator/pool.h"
#include "allocator/pressure.h"
#include "allocator/recorder.h"
#include "allocator/report.h"
#include "allocator/segment.h"
#include "allocator/streams.h"
#include "allocator/tags.h"
#include "memopt/experimental/hooks.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>

/* --- making and ending
 * ----------------------------------------------------------------------------- */

static void apply_config(memopt_allocator *allocator)
{
    const mo_config *config = &allocator->config;
    allocator->expandable = config->expandable_segments;
    allocator->small_limit =
        config->expandable_segments ? MO_SMALL_LIMIT_EXPANDABLE : MO_SMALL_LIMIT;
    allocator->large_segment = config->large_segment_size_mb * MO_MIB;
    allocator->max_split =
        config->max_split_size_mb != 0 ? config->max_split_size_mb * MO_MIB : UINT64_MAX;
    allocator->non_split_rounding = config->max_non_split_rounding_mb != 0
                                        ? config->max_non_split_rounding_mb * MO_MIB
                                        : allocator->large_segment;
    allocator->stats.counter[MO_STAT_MAX_SPLIT_SIZE] = allocator->max_split;
    allocator->limit = allocator->options.limit;
}

memopt_status memopt_allocator_check_config(const char *config)
{
    mo_config parsed;
    return mo_config_parse(config, &parsed);
}

memopt_status memopt_allocator_create(memopt_device *device, const char *config,
                                      const memopt_allocator_options *options,
                                      memopt_allocator **out_allocator)
{
    mo_config parsed;
    memopt_allocator_options copy;
    if (device == NULL || out_allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_create: %s is NULL",
                       device == NULL ? "device" : "out_allocator");
    if (mo_device_inherited(device))
        return mo_fail_inherited("allocator_create");
    memopt_status status = mo_config_parse(config, &parsed);
    if (status == MEMOPT_OK)
        status = mo_options_read(&copy, sizeof copy, options, "memopt_allocator_options");
    if (status != MEMOPT_OK)
        return status;
    if (parsed.expandable_segments && !mo_vm_supported(device))
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "allocator_create: expandable_segments:True needs virtual memory, which "
                       "this device lacks; leave the key out");
    memopt_allocator *allocator = mo_calloc(1, sizeof *allocator);
    if (allocator == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    pthread_mutex_init(&allocator->slow, NULL);
    pthread_mutex_init(&allocator->lock, NULL);
    allocator->device = device;
    allocator->options = copy;
    allocator->config = parsed;
    allocator->granularity = mo_device_granularity(device);
    allocator->device_total = mo_device_total_memory(device);
    apply_config(allocator);
    mo_tags_init(allocator);
    for (unsigned i = 0; i < 2; i++) {
        allocator->ended[i].kind = MO_POOL_SMALL + i;
        allocator->ended[i].life = MO_STREAM_ENDED;
    }
    mo_streams_listen(allocator);
    *out_allocator = allocator;
    return MEMOPT_OK;
}

/* Frees blocks that are still allocated; the device has been waited for. */
static void retire_live(memopt_allocator *allocator)
{
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        for (mo_block *block = segment->first; block != NULL; block = block->next) {
            if (block->state != MO_BLOCK_LIVE)
                continue;
            mo_block *prev = block->prev; /* if it is free, it absorbs the freed block */
            mo_block *resume = prev != NULL && prev->state == MO_BLOCK_FREE ? prev : block;
            mo_events_drop(allocator, block);
            mo_block_table_remove(&allocator->live, block->address);
            mo_block_retire(allocator, block);
            block = resume;
        }
    }
}

/* Waits for pending frees and ending streams, then gives back what is free. */
static memopt_status drain(memopt_allocator *allocator)
{
    mo_release all = MO_RELEASE_ALL;
    uint64_t released = 0;
    int found;
    memopt_status result = MEMOPT_OK, waited;
    mo_lock(&allocator->slow);
    mo_lock(&allocator->lock);
    do {
        waited = mo_events_wait_one(allocator, NULL, &found);
        mo_keep_first(&result, waited);
    } while (found && mo_work_is_over(waited));
    mo_keep_first(&result, mo_streams_settle(allocator));
    mo_keep_first(&result, mo_segment_release(allocator, &all, &released));
    mo_unlock(&allocator->lock);
    mo_unlock(&allocator->slow);
    return result;
}

/* Returns everything to the device, and the first error unless the device was known to be lost. */
static memopt_status end(memopt_allocator *allocator, int lost)
{
    memopt_status status = drain(allocator);
    memopt_status recorded = mo_recorder_end(allocator, NULL);
    mo_streams_unlisten(allocator); /* no stream is used from here on */
    mo_keep_first(&status, mo_segments_end(allocator));
    mo_keep_first(&status, mo_events_end(allocator));
    while (allocator->pools != NULL) {
        mo_pool *pool = allocator->pools;
        allocator->pools = pool->next;
        mo_free(pool);
    }
    mo_slab_end(&allocator->slab);
    mo_block_table_end(&allocator->live);
    pthread_mutex_destroy(&allocator->lock);
    pthread_mutex_destroy(&allocator->slow);
    mo_free(allocator);
    status = mo_end_status(lost, status);
    return status != MEMOPT_OK ? status : recorded;
}

memopt_status memopt_allocator_destroy(memopt_allocator *allocator)
{
    char tags[400];
    if (allocator == NULL)
        return MEMOPT_OK;
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_destroy");
    mo_lock(&allocator->lock);
    uint64_t blocks = allocator->live.count;
    mo_report_tags(allocator, MO_TAGS, tags, sizeof tags);
    mo_unlock(&allocator->lock);
    if (blocks != 0)
        return mo_fail(MEMOPT_BUSY,
                       "allocator_destroy: %" PRIu64 " blocks are still allocated (%s); free them, "
                       "or call memopt_allocator_destroy_force",
                       blocks, tags);
    return end(allocator, mo_device_lost(allocator->device));
}

memopt_status memopt_allocator_destroy_force(memopt_allocator *allocator)
{
    if (allocator == NULL)
        return MEMOPT_OK;
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_destroy_force");
    int lost = mo_device_lost(allocator->device);
    memopt_status status = lost ? MEMOPT_OK : memopt_device_sync(allocator->device);
    mo_lock(&allocator->lock);
    retire_live(allocator);
    mo_unlock(&allocator->lock);
    mo_keep_first(&status, end(allocator, lost));
    return status;
}

memopt_status memopt_allocator_set_limit(memopt_allocator *allocator, uint64_t limit)
{
    if (allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_set_limit: allocator is NULL");
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_set_limit");
    mo_lock(&allocator->lock);
    allocator->limit = limit;
    mo_unlock(&allocator->lock);
    return MEMOPT_OK;
}

/* --- allocating
 * ---------------------------------------------------------------------------------------- */

/* From the cache; OK without a block if there is none. */
static memopt_status alloc_cached(memopt_allocator *allocator, mo_request *request,
                                  void **out_pointer)
{
    memopt_status status = mo_request_enter(allocator, request);
    if (status != MEMOPT_OK)
        return status;
    if (allocator->events.pending != 0)
        mo_events_process_next(allocator);
    mo_block *block = mo_request_serve(allocator, request);
    if (block != NULL)
        *out_pointer = mo_block_activate(allocator, block, request);
    return MEMOPT_OK;
}

memopt_status memopt_allocator_alloc(memopt_allocator *allocator, uint64_t bytes, memopt_tag tag,
                                     memopt_stream stream, void **out_pointer)
{
    void *pointer = NULL;
    if (allocator == NULL || out_pointer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_alloc: %s is NULL",
                       allocator == NULL ? "allocator" : "out_pointer");
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_alloc");
    if (bytes == 0) {
        *out_pointer = NULL;
        return MEMOPT_OK;
    }
    mo_request request = {bytes, mo_round_size(allocator, bytes), tag, stream, NULL, 0};
    if (request.size == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_alloc: %" PRIu64 " bytes overflow when rounded", bytes);
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

/* --- freeing
 * ------------------------------------------------------------------------------------------- */

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
    if (allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: allocator is NULL", function);
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited(function);
    mo_lock(&allocator->lock);
    *out_block = mo_block_table_find(&allocator->live, pointer);
    if (*out_block != NULL)
        return MEMOPT_OK;
    explain(allocator, pointer, reason);
    mo_unlock(&allocator->lock);
    return fail_not_live(function, pointer, reason);
}

static memopt_status free_block(memopt_allocator *allocator, mo_block *block)
{
    if (block->uses != NULL) {
        memopt_status status = mo_events_free(allocator, block);
        if (status != MEMOPT_OK)
            return status;
    }
    mo_block_table_remove(&allocator->live, block->address);
    mo_block_count_free(allocator, block);
    if (allocator->recorder != NULL)
        mo_recorder_free(allocator, block);
    if (block->state == MO_BLOCK_LIVE)
        mo_block_retire(allocator, block);
    return MEMOPT_OK;
}

memopt_status memopt_allocator_free(memopt_allocator *allocator, void *pointer)
{
    mo_block *block;
    if (allocator != NULL && pointer == NULL)
        return MEMOPT_OK;
    memopt_status status = lock_block(allocator, pointer, "allocator_free", &block);
    if (status != MEMOPT_OK)
        return status;
    status = free_block(allocator, block);
    mo_unlock(&allocator->lock);
    return status;
}

memopt_status memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                             memopt_stream stream)
{
    mo_block *block;
    memopt_status status = lock_block(allocator, pointer, "allocator_record_stream", &block);
    if (status != MEMOPT_OK)
        return status;
    status = mo_events_note(allocator, block, stream);
    mo_unlock(&allocator->lock);
    return status;
}

memopt_status memopt_allocator_free_behind(memopt_allocator *allocator, void *pointer,
                                           memopt_stream stream)
{
    mo_block *block;
    memopt_status status = lock_block(allocator, pointer, "allocator_free_behind", &block);
    if (status != MEMOPT_OK)
        return status;
    status = mo_events_note(allocator, block, stream);
    if (status == MEMOPT_OK)
        status = free_block(allocator, block);
    mo_unlock(&allocator->lock);
    return status;
}

memopt_device *memopt_allocator_get_device(const memopt_allocator *allocator)
{
    return allocator == NULL ? NULL : allocator->device;
}

memopt_status memopt_allocator_get_block(memopt_allocator *allocator, const void *pointer,
                                         void **out_base, uint64_t *out_bytes)
{
    char reason[REASON_BYTES];
    if (allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_get_block: allocator is NULL");
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_get_block");
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

/* --- giving back
 * ------------------------------------------------------------------------------------------ */

static uint64_t held_bytes(const memopt_allocator *allocator)
{
    return mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
}

/* Releases what is free now while more than `target` is held. */
static memopt_status release_to(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    mo_release what = MO_RELEASE_ALL;
    uint64_t held = held_bytes(allocator);
    if (held <= target)
        return MEMOPT_OK;
    if (target != 0)
        what.wanted = held - target;
    return mo_segment_release(allocator, &what, released);
}

/* Pending frees are waited for only if what is free already does not suffice. */
static memopt_status trim(memopt_allocator *allocator, uint64_t target, uint64_t *released)
{
    int found;
    memopt_status status = MEMOPT_OK;
    if (target != 0)
        status = release_to(allocator, target, released);
    if (status == MEMOPT_OK && (target == 0 || held_bytes(allocator) > target)) {
        do {
            status = mo_events_wait_one(allocator, NULL, &found);
        } while (status == MEMOPT_OK && found);
        if (status == MEMOPT_OK)
            status = mo_streams_settle(allocator);
        if (status == MEMOPT_OK)
            status = release_to(allocator, target, released);
    }
    if (status == MEMOPT_OK)
        status = mo_segments_trim(allocator);
    mo_pools_trim(allocator);
    mo_events_trim(allocator);
    return status;
}

static memopt_status trim_call(const char *function, memopt_allocator *allocator, uint64_t target,
                               uint64_t *out_released)
{
    uint64_t released = 0;
    memopt_status status = MEMOPT_OK;
    if (allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: allocator is NULL", function);
    if (mo_device_inherited(allocator->device))
        return mo_fail_inherited(function);
    mo_lock(&allocator->slow);
    mo_lock(&allocator->lock);
    if (!mo_capturing(allocator))
        status = trim(allocator, target, &released);
    mo_unlock(&allocator->lock);
    mo_unlock(&allocator->slow);
    if (status == MEMOPT_OK && out_released != NULL)
        *out_released = released;
    return status;
}

memopt_status memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t *out_released)
{
    return trim_call("allocator_trim_sync", allocator, 0, out_released);
}

memopt_status memopt_allocator_trim_to_sync(memopt_allocator *allocator, uint64_t target,
                                            uint64_t *out_released)
{
    return trim_call("allocator_trim_to_sync", allocator, target, out_released);
}

int32_t memopt_allocator_owns(memopt_allocator *allocator, const void *pointer)
{
    if (allocator == NULL || mo_device_inherited(allocator->device))
        return 0;
    mo_lock(&allocator->lock);
    int owned = mo_block_table_find(&allocator->live, pointer) != NULL;
    mo_unlock(&allocator->lock);
    return owned;
}
