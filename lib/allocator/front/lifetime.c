/*
 * Making and ending allocators and pools. A pool is an allocator that belongs to its parent's
 * family; all else is the same.
 */
#include "allocator/blocks/block_life.h"
#include "allocator/blocks/stripe.h"
#include "allocator/memory/idle.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/segment.h"
#include "allocator/memory/segment_common.h"
#include "allocator/memory/source.h"
#include "allocator/pause/pause.h"
#include "allocator/share/export.h"
#include "allocator/streams/events.h"
#include "allocator/streams/streams.h"
#include "allocator/watch/history.h"
#include "allocator/watch/notes.h"
#include "allocator/watch/recorder.h"
#include "allocator/watch/report.h"
#include "allocator/watch/stats.h"
#include "allocator/watch/tags.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/turn.h"

#include <inttypes.h>
#include <string.h>

/* --- families --------------------------------------------------------------------------------- */

static mo_family *new_family(memopt_allocator *parent)
{
    mo_family *family = mo_calloc(1, sizeof *family);
    if (family == NULL)
        return NULL;
    mo_turn_init(&family->slow);
    family->parent = parent;
    return family;
}

/* Slow held, or no other thread knows the family. */
static void join(mo_family *family, memopt_allocator *allocator)
{
    allocator->family = family;
    allocator->next_member = family->members;
    family->members = allocator;
}

/* From here on other members do not touch it. */
static void hide(memopt_allocator *allocator)
{
    (void)mo_turn_take(&allocator->family->slow);
    memopt_allocator **place = &allocator->family->members;
    while (*place != allocator)
        place = &(*place)->next_member;
    *place = allocator->next_member;
    allocator->ending = 1;
    mo_turn_give(&allocator->family->slow);
}

/* The member has given back the bytes that it held. The last one ends the family. */
static void leave(const memopt_allocator *allocator)
{
    mo_family *family = allocator->family;
    int is_pool = allocator != family->parent;
    (void)mo_turn_take(&family->slow);
    family->held -= mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    family->outside -= allocator->outside;
    family->pools -= is_pool ? 1 : 0;
    mo_observers_end(allocator);
    mo_turn_give(&family->slow);
    if (is_pool)
        return;
    mo_turn_end(&family->slow);
    mo_free(family);
}

/* --- making ----------------------------------------------------------------------------------- */

static void apply_config(memopt_allocator *allocator)
{
    const mo_config *config = &allocator->config;
    allocator->expandable = config->expandable_segments;
    allocator->small_limit =
        config->expandable_segments ? MO_SMALL_LIMIT_EXPANDABLE : MO_SMALL_LIMIT;
    allocator->aliases = config->expandable_segments && mo_vm_aliases(allocator->device);
    if (config->expandable_segments)
        allocator->medium_limit = allocator->aliases ? MO_MEDIUM_LIMIT : MO_MEDIUM_LIMIT_FIXED;
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

static memopt_status check_memory(const char *function, const memopt_allocator_options *options,
                                  const mo_config *config)
{
    if (options->memory > MEMOPT_MEMORY_PINNED)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: memory is %" PRIu32 "; it is 0 (device) or 1 (page-locked)", function,
                       options->memory);
    if (options->memory == MEMOPT_MEMORY_DEVICE && options->provider == NULL)
        return MEMOPT_OK;
    if (config->expandable_segments)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: expandable_segments:True is for the device's own memory; leave the key "
                       "out for page-locked or a provider's memory",
                       function);
    if (config->per_process_memory_fraction < 1)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: per_process_memory_fraction is a part of the device's memory; give "
                       "page-locked or a provider's memory a limit in bytes",
                       function);
    return MEMOPT_OK;
}

static memopt_status check_segments(const char *function, memopt_device *device,
                                    const mo_config *config)
{
    if (!config->expandable_segments || mo_vm_supported(device))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s: expandable_segments:True needs virtual memory, which this device lacks; "
                   "leave the key out",
                   function);
}

/* An allocator of no family yet; NULL: no host memory. */
static memopt_allocator *make(memopt_device *device, const mo_config *config,
                              const memopt_allocator_options *options)
{
    memopt_allocator *allocator = mo_calloc(1, sizeof *allocator);
    if (allocator == NULL)
        return NULL;
    mo_gate_init(&allocator->lock, mo_stripes_entered, mo_stripes_leaving);
    allocator->device = device;
    allocator->options = *options;
    allocator->config = *config;
    allocator->granularity = mo_device_granularity(device);
    allocator->pinned = options->memory == MEMOPT_MEMORY_PINNED;
    allocator->foreign = allocator->pinned || options->provider != NULL;
    allocator->device_total = allocator->foreign ? UINT64_MAX : mo_device_total_memory(device);
    allocator->stale_end = &allocator->stale;
    apply_config(allocator);
    mo_stats_init(allocator);
    mo_tags_init(allocator);
    mo_notes_init(allocator);
    mo_idle_init(allocator);
    for (mo_sizes sizes = MO_SIZES_SMALL; sizes < MO_SIZES_CLASSES; sizes++) {
        allocator->ended[sizes].sizes = sizes;
        allocator->ended[sizes].kind = mo_sizes_kind(sizes);
        allocator->ended[sizes].life = MO_STREAM_ENDED;
    }
    return allocator;
}

memopt_status memopt_allocator_create(memopt_device *device, const char *config,
                                      const memopt_allocator_options *options,
                                      memopt_allocator **out_allocator)
{
    mo_config parsed;
    memopt_allocator_options copy;
    memopt_memory_provider provider;
    MO_NOT_NULL("allocator_create", device, out_allocator);
    MO_TRY(mo_check_process(device, "allocator_create"));
    MO_TRY(mo_config_parse(config, &parsed));
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_allocator_options"));
    MO_TRY(mo_source_read(&copy, &provider));
    MO_TRY(check_memory("allocator_create", &copy, &parsed));
    MO_TRY(check_segments("allocator_create", device, &parsed));
    memopt_allocator *allocator = make(device, &parsed, &copy);
    mo_family *family = allocator == NULL ? NULL : new_family(allocator);
    if (family == NULL) {
        mo_free(allocator);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    family->provider = provider;
    join(family, allocator);
    mo_streams_listen(allocator);
    *out_allocator = allocator;
    return MEMOPT_OK;
}

static memopt_status check_pool(const memopt_allocator *parent, const memopt_pool_options *options,
                                mo_config *out_config)
{
    size_t length = options->name == NULL ? 0 : strlen(options->name);
    if (parent != parent->family->parent)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pool_create: parent is the pool \"%s\" itself; give the allocator that it "
                       "was made from",
                       parent->name);
    if (length >= MO_POOL_NAME)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pool_create: the name has %zu characters; give it at most %d", length,
                       MO_POOL_NAME - 1);
    *out_config = parent->config;
    if (options->config == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_config_parse(options->config, out_config));
    MO_TRY(check_memory("pool_create", &parent->options, out_config));
    return check_segments("pool_create", parent->device, out_config);
}

/* A new pool takes what it has from its parent and joins the family. */
static memopt_status admit(memopt_allocator *pool, memopt_allocator *parent)
{
    MO_TRY(mo_family_enter(parent->family, "pool_create"));
    memopt_status status = mo_history_inherit(pool, parent);
    if (status == MEMOPT_OK) {
        mo_tags_copy(pool, parent);
        join(parent->family, pool);
        parent->family->pools++;
    }
    mo_family_leave(parent->family);
    return status;
}

memopt_status memopt_pool_create(memopt_allocator *parent, const memopt_pool_options *options,
                                 memopt_pool **out_pool)
{
    mo_config config;
    memopt_pool_options copy;
    MO_NOT_NULL("pool_create", parent, out_pool);
    MO_TRY(mo_check_process(parent->device, "pool_create"));
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_pool_options"));
    MO_TRY(check_pool(parent, &copy, &config));
    memopt_allocator_options as_parent = parent->options;
    as_parent.limit = copy.limit;
    memopt_allocator *pool = make(parent->device, &config, &as_parent);
    if (pool == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (copy.name != NULL)
        memcpy(pool->name, copy.name, strlen(copy.name));
    pool->retain = copy.retain != 0;
    memopt_status status = admit(pool, parent);
    if (status != MEMOPT_OK) {
        mo_gate_end(&pool->lock);
        mo_free(pool);
        return status;
    }
    mo_streams_listen(pool);
    *out_pool = pool;
    return MEMOPT_OK;
}

/* --- ending ----------------------------------------------------------------------------------- */

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
            allocator->live.count--;
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
    (void)mo_turn_take(&allocator->family->slow);
    mo_lock(&allocator->lock);
    do {
        waited = mo_events_wait_one(allocator, NULL, &found);
        mo_keep_first(&result, waited);
    } while (found && mo_work_is_over(waited));
    mo_keep_first(&result, mo_streams_settle(allocator));
    mo_keep_first(&result, mo_segment_release(allocator, &all, &released));
    /* What was freed beside blocks that sleep has stayed, and may be in use. */
    for (mo_pool *p = allocator->pauses != NULL ? allocator->pools : NULL; p != NULL; p = p->next)
        mo_keep_first(&result, mo_drain_pool(allocator, p));
    mo_unlock(&allocator->lock);
    mo_turn_give(&allocator->family->slow);
    return result;
}

/* Returns everything to the device, and the first error unless the device was known to be lost. */
static memopt_status end(memopt_allocator *allocator, int lost)
{
    hide(allocator);
    mo_lock(&allocator->lock);
    mo_plan_forget(allocator, NULL, NULL);
    mo_unlock(&allocator->lock);
    memopt_status status = drain(allocator);
    memopt_status recorded = mo_recorder_end(allocator, NULL);
    mo_streams_unlisten(allocator); /* no stream is used from here on, and nobody calls */
    mo_history_end(allocator);
    (void)mo_turn_take(&allocator->family->slow); /* for the observers */
    mo_keep_first(&status, mo_pause_end(allocator));
    mo_keep_first(&status, mo_segments_end(allocator));
    mo_turn_give(&allocator->family->slow);
    mo_keep_first(&status, mo_events_end(allocator));
    while (allocator->pools != NULL) {
        mo_pool *pool = allocator->pools;
        allocator->pools = pool->next;
        mo_free(pool);
    }
    mo_slab_end(&allocator->slab);
    mo_block_table_end(&allocator->live);
    leave(allocator);
    mo_gate_end(&allocator->lock);
    mo_free(allocator);
    status = mo_end_status(lost, status);
    return status != MEMOPT_OK ? status : recorded;
}

/* BUSY if pools of it exist, or an observer or the provider calls. */
static memopt_status check_pools(memopt_allocator *allocator, const char *function)
{
    mo_family *family = allocator->family;
    MO_TRY(mo_family_enter(family, function));
    uint64_t pools = allocator == family->parent ? family->pools : 0;
    mo_family_leave(family);
    if (pools == 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_BUSY, "%s: %" PRIu64 " pools of it exist; destroy them first", function,
                   pools);
}

memopt_status memopt_allocator_destroy(memopt_allocator *allocator)
{
    char tags[400];
    if (allocator == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(allocator->device, "allocator_destroy"));
    MO_TRY(check_pools(allocator, "allocator_destroy"));
    mo_lock(&allocator->lock);
    uint64_t blocks = allocator->live.count;
    uint64_t exports = mo_exports_count(allocator);
    mo_report_tags(allocator, MO_TAGS, tags, sizeof tags);
    mo_unlock(&allocator->lock);
    if (blocks != 0)
        return mo_fail(MEMOPT_BUSY,
                       "allocator_destroy: %" PRIu64 " blocks are still allocated (%s); free them, "
                       "or call memopt_allocator_destroy_force",
                       blocks, tags);
    if (exports != 0)
        return mo_fail(MEMOPT_BUSY,
                       "allocator_destroy: %" PRIu64
                       " exports of freed blocks exist; destroy them, "
                       "or call memopt_allocator_destroy_force",
                       exports);
    return end(allocator, mo_device_lost(allocator->device));
}

memopt_status memopt_allocator_destroy_force(memopt_allocator *allocator)
{
    if (allocator == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(allocator->device, "allocator_destroy_force"));
    MO_TRY(check_pools(allocator, "allocator_destroy_force"));
    int lost = mo_device_lost(allocator->device);
    memopt_status status = lost ? MEMOPT_OK : memopt_device_sync(allocator->device);
    mo_lock(&allocator->lock);
    mo_plan_forget(allocator, NULL, NULL);
    mo_exports_detach(allocator);
    retire_live(allocator);
    mo_unlock(&allocator->lock);
    mo_keep_first(&status, end(allocator, lost));
    return status;
}

memopt_status memopt_allocator_set_limit(memopt_allocator *allocator, uint64_t limit)
{
    MO_NOT_NULL("allocator_set_limit", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_set_limit"));
    allocator->limit = limit;
    return MEMOPT_OK;
}
