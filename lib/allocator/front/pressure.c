/*
 * The attempts when no cached block fits, in the order of PyTorch's allocator. Each may release the
 * lock for a callback or a driver call; each ends with another search of the pool, because other
 * threads free meanwhile.
 */
#include "allocator/front/pressure.h"

#include "allocator/blocks/pool.h"
#include "allocator/front/request.h"
#include "allocator/memory/family.h"
#include "allocator/memory/growth.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/segment.h"
#include "allocator/memory/stale.h"
#include "allocator/streams/events.h"
#include "allocator/streams/streams.h"
#include "allocator/watch/cause.h"
#include "allocator/watch/report.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/turn.h"

#include <inttypes.h>

/* OK with *out_block set: found. OK without: go on. OUT_OF_DEVICE_MEMORY: go on. Else: fail. */
typedef memopt_status attempt(memopt_allocator *allocator, mo_request *request,
                              mo_block **out_block);

static memopt_status search(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    (void)mo_stale_collect(allocator, 0);
    MO_TRY(mo_request_enter(allocator, request));
    mo_events_process(allocator);
    *out_block = mo_request_serve(allocator, request);
    return MEMOPT_OK;
}

/* The families whose callbacks this thread is in. An allocation made inside one goes without it, so
 * that a callback that allocates ends. */
typedef struct callback {
    const mo_family *family;
    const struct callback *outer;
} callback;

static _Thread_local const callback *innermost;

static int in_callback(const memopt_allocator *allocator)
{
    const callback *at = innermost;
    while (at != NULL && at->family != allocator->family)
        at = at->outer;
    return at != NULL;
}

static memopt_status ask_callback(memopt_allocator *allocator, mo_request *request,
                                  mo_block **out_block)
{
    if (allocator->options.pressure == NULL || in_callback(allocator))
        return MEMOPT_OK;
    const callback here = {allocator->family, innermost};
    mo_unlock(&allocator->lock);
    mo_family_leave(allocator->family);
    innermost = &here;
    uint64_t freed = allocator->options.pressure(allocator->options.pressure_user, request->asked);
    innermost = here.outer;
    (void)mo_turn_take(&allocator->family->slow);
    mo_lock(&allocator->lock);
    mo_log(MEMOPT_LOG_DEBUG, "allocator: the pressure callback freed %" PRIu64 " bytes", freed);
    return search(allocator, request, out_block);
}

/* Pending frees of the stream's own blocks, behind a wait on the device. What other streams have
 * enqueued by now is seldom far behind what this one will do next, while the host sees both late. */
static memopt_status wait_on_device(memopt_allocator *allocator, mo_request *request,
                                    mo_block **out_block)
{
    if (allocator->events.first == NULL || allocator->pinned || mo_family_records(allocator))
        return MEMOPT_OK;
    MO_TRY(mo_request_enter(allocator, request));
    const mo_pool *pool = request->pool;
    while (*out_block == NULL && mo_events_order(allocator, pool, request->size))
        *out_block = mo_request_serve(allocator, request);
    return MEMOPT_OK;
}

/* A free block of the stream's other sizes, rather than pages taken from it. Small blocks do not go
 * there, where they would keep pages. */
static memopt_status borrow(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    mo_sizes sizes = request->pool->sizes;
    if (sizes == MO_SIZES_SMALL || !allocator->expandable || allocator->medium_limit == 0 ||
        !mo_growth_moves(allocator, request->pool, request->size))
        return MEMOPT_OK;
    sizes = sizes == MO_SIZES_LARGE ? MO_SIZES_MEDIUM : MO_SIZES_LARGE;
    mo_pool *pool = mo_pool_find(allocator, request->stream, sizes);
    if (pool == NULL)
        return MEMOPT_OK;
    if (!mo_slab_reserve(&allocator->slab, 2))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *out_block = mo_pool_take(allocator, pool, request->size);
    if (*out_block != NULL)
        request->pool = pool;
    return MEMOPT_OK;
}

/* The new memory is for this request, whatever the rules for cached blocks say. If the stream ended
 * meanwhile it belongs to another pool than the request, and is cached. */
static memopt_status grow(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    mo_block *block;
    MO_TRY(mo_segment_grow(allocator, request, &block));
    if (mo_request_enter(allocator, request) == MEMOPT_OK &&
        block->segment->pool == request->pool) {
        mo_pool_cut(allocator, block, request->size);
        *out_block = block;
        return MEMOPT_OK;
    }
    mo_pool_put(allocator, block);
    return search(allocator, request, out_block);
}

/* True if garbage collection may free the block: whole segments, or pages of an expandable one. */
static int collectable(const memopt_allocator *allocator, const mo_block *block)
{
    const mo_segment *segment = block->segment;
    if (block->state != MO_BLOCK_FREE || segment->pool->kind != MO_POOL_LARGE)
        return 0;
    return mo_segment_is_expandable(segment) ? block->size >= allocator->granularity
                                             : block->size == segment->size;
}

/* The mean age of what could be collected, in allocations; 0 in *out_count if there is nothing. */
static uint64_t mean_age(const memopt_allocator *allocator, uint64_t *out_count)
{
    uint64_t sum = 0, count = 0;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        for (mo_block *block = segment->first; block != NULL; block = block->next) {
            if (collectable(allocator, block)) {
                sum += allocator->clock - block->freed_at;
                count++;
            }
        }
    }
    *out_count = count;
    return count > 0 ? sum / count : 0;
}

static uint64_t above(const memopt_allocator *allocator, uint64_t held, double threshold)
{
    uint64_t most = mo_min_u64(mo_allowed(allocator), allocator->device_total);
    uint64_t aim = (uint64_t)(threshold * (double)most);
    return held > aim ? held - aim : 0;
}

/* The bytes that the member or its family holds above the threshold. */
static uint64_t excess(const memopt_allocator *allocator, double threshold)
{
    const mo_family *family = allocator->family;
    uint64_t own = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    return mo_max_u64(above(allocator, own, threshold),
                      above(family->parent, family->held, threshold));
}

/* Above the threshold, free blocks of at least the mean age go back until it is met. */
static memopt_status collect(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    double threshold = allocator->config.garbage_collection_threshold;
    (void)request;
    (void)out_block;
    if (threshold <= 0 || mo_family_records(allocator))
        return MEMOPT_OK;
    for (;;) {
        uint64_t count, released = 0, wanted = excess(allocator, threshold);
        uint64_t age = mean_age(allocator, &count);
        if (wanted == 0 || count == 0)
            return MEMOPT_OK;
        mo_release what = MO_RELEASE_ALL;
        what.wanted = wanted;
        what.freed_before = allocator->clock - age;
        what.large_only = 1;
        memopt_status status = mo_segment_release(allocator, &what, &released);
        if (status != MEMOPT_OK || released == 0)
            return status;
    }
}

/* Blocks that max_split_size_mb keeps whole: those of this pool, as far as needed. */
static memopt_status release_oversize(memopt_allocator *allocator, mo_request *request,
                                      mo_block **out_block)
{
    uint64_t released = 0;
    allocator->stats.counter[MO_STAT_NUM_ALLOC_RETRIES]++;
    if (allocator->max_split == UINT64_MAX || allocator->expandable || mo_family_records(allocator))
        return MEMOPT_OK;
    mo_release what = MO_RELEASE_ALL;
    what.pool = request->pool;
    what.at_least = allocator->max_split;
    what.wanted = mo_max_u64(request->size, allocator->max_split);
    memopt_status status = mo_segment_release(allocator, &what, &released);
    if (status != MEMOPT_OK || released == 0)
        return status;
    return grow(allocator, request, out_block);
}

static memopt_status grow_planned(memopt_allocator *allocator, mo_request *request,
                                  mo_block **out_block)
{
    if (request->slot == 0 || allocator->plan == NULL)
        return MEMOPT_OK;
    return allocator->plan->grow(allocator, request, out_block);
}

/* Memory that is held for a plan's places serves any request. */
static memopt_status leave_plan(memopt_allocator *allocator, mo_request *request,
                                mo_block **out_block)
{
    if (!mo_plan_leave(allocator, UINT64_MAX))
        return MEMOPT_OK;
    memopt_status status = search(allocator, request, out_block);
    return status != MEMOPT_OK || *out_block != NULL ? status : grow(allocator, request, out_block);
}

/* Pending frees of all streams, each behind a wait of its own; growth takes their pages. */
static memopt_status wait_on_devices(memopt_allocator *allocator, mo_request *request,
                                     mo_block **out_block)
{
    int ordered = 0;
    if (!allocator->expandable || allocator->events.first == NULL || mo_family_records(allocator))
        return MEMOPT_OK;
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (pool->life == MO_STREAM_LIVE)
            ordered += mo_events_order(allocator, pool, UINT64_MAX);
    return ordered > 0 ? grow(allocator, request, out_block) : MEMOPT_OK;
}

/* Waits for pending frees: first those of the request's own pool, one by one, until one fits. */
static memopt_status wait_for_events(memopt_allocator *allocator, mo_request *request,
                                     mo_block **out_block)
{
    int found;
    if (mo_family_records(allocator))
        return MEMOPT_OK;
    allocator->stats.counter[MO_STAT_NUM_SYNC_ALL_STREAMS]++;
    do {
        memopt_status status = mo_events_wait_one(allocator, request->pool, &found);
        if (status == MEMOPT_OK && found)
            status = search(allocator, request, out_block);
        if (status != MEMOPT_OK || *out_block != NULL)
            return status;
    } while (found);
    do {
        MO_TRY(mo_events_wait_one(allocator, NULL, &found));
    } while (found);
    MO_TRY(mo_streams_settle(allocator));
    return search(allocator, request, out_block);
}

/* Growth of expandable segments takes free pages itself: what the waits have freed. */
static memopt_status release_all(memopt_allocator *allocator, mo_request *request,
                                 mo_block **out_block)
{
    uint64_t released = 0;
    if (allocator->expandable)
        return grow(allocator, request, out_block);
    if (mo_family_records(allocator))
        return MEMOPT_OK;
    mo_release what = MO_RELEASE_ALL;
    MO_TRY(mo_segment_release(allocator, &what, &released));
    return grow(allocator, request, out_block);
}

/* A free block of the pool, once the work on it is over. */
static memopt_status take_from(memopt_allocator *allocator, mo_request *request, mo_pool *pool,
                               mo_block **out_block)
{
    if (pool->segments == 0)
        return MEMOPT_OK;
    if (!mo_slab_reserve(&allocator->slab, 2))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_block *block = mo_pool_take(allocator, pool, request->size);
    if (block == NULL)
        return MEMOPT_OK;
    memopt_status status =
        pool->stream == request->stream ? MEMOPT_OK : mo_drain_pool(allocator, pool);
    if (status == MEMOPT_OK)
        status = mo_request_enter(allocator, request);
    if (status != MEMOPT_OK) {
        mo_pool_put(allocator, block);
        return status;
    }
    request->pool = block->segment->pool;
    *out_block = block;
    return MEMOPT_OK;
}

/* Free blocks that gave growth no page, between the stream's blocks of other sizes. */
static memopt_status fill_hole(memopt_allocator *allocator, mo_request *request,
                               mo_block **out_block)
{
    memopt_status status = MEMOPT_OK;
    for (mo_sizes sizes = 0; allocator->expandable && sizes < MO_SIZES_CLASSES; sizes++) {
        mo_pool *pool = mo_pool_find(allocator, request->stream, sizes);
        if (pool != NULL && status == MEMOPT_OK && *out_block == NULL)
            status = take_from(allocator, request, pool, out_block);
    }
    return status;
}

/* The same of other streams, which lend it: the request's stream counts as recorded, so that they
 * get the memory back in order. */
static memopt_status fill_lent_hole(memopt_allocator *allocator, mo_request *request,
                                    mo_block **out_block)
{
    memopt_status status = MEMOPT_OK;
    if (!allocator->expandable || mo_family_records(allocator))
        return MEMOPT_OK;
    allocator->release_pass++; /* more may have been freed since the last wait */
    for (unsigned i = 0; i < MO_SIZES_CLASSES && status == MEMOPT_OK && *out_block == NULL; i++)
        status = take_from(allocator, request, &allocator->ended[i], out_block);
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        if (status != MEMOPT_OK || *out_block != NULL)
            break;
        if (pool->life == MO_STREAM_LIVE)
            status = take_from(allocator, request, pool, out_block);
    }
    return status;
}

/* Bytes that the device has left; unknown of other memory. */
static uint64_t free_memory(const memopt_allocator *allocator)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    if (allocator->foreign)
        return UINT64_MAX;
    (void)memopt_device_get_memory_info(allocator->device, &info);
    return info.free;
}

/* Bytes of the request that neither the device nor the limits have left, as far as can be told. */
static uint64_t missing_bytes(const memopt_allocator *allocator, const mo_request *request)
{
    uint64_t page = allocator->granularity;
    uint64_t needed = allocator->expandable ? mo_ceil_div_u64(request->size, page) * page
                                            : mo_segment_size(allocator, request);
    uint64_t left = mo_min_u64(free_memory(allocator), mo_room(allocator));
    return needed > left ? needed - left : needed;
}

/* Free memory of the family's other members: what the request lacks, then all of it. */
static memopt_status release_others(memopt_allocator *allocator, mo_request *request,
                                    mo_block **out_block)
{
    uint64_t wanted;
    if (mo_own_room(allocator) == 0 || request->size > mo_allowed(allocator) ||
        request->size > mo_allowed(allocator->family->parent) ||
        request->size > allocator->device_total)
        return MEMOPT_OK; /* it would not help */
    for (wanted = missing_bytes(allocator, request);; wanted = UINT64_MAX) {
        uint64_t released = 0;
        memopt_status status = mo_family_release(allocator, wanted, &released);
        if (status == MEMOPT_OK)
            status = mo_request_enter(allocator, request);
        if (status != MEMOPT_OK || released == 0)
            return status;
        status = grow(allocator, request, out_block);
        if (status != MEMOPT_OUT_OF_DEVICE_MEMORY || released < wanted)
            return status;
    }
}

/* A segment for many blocks does not fit the device any more; one for this block may. */
static memopt_status grow_least(memopt_allocator *allocator, mo_request *request,
                                mo_block **out_block)
{
    if (allocator->expandable)
        return MEMOPT_OK;
    request->least = 1;
    return grow(allocator, request, out_block);
}

static attempt *const attempts[] = {
    grow_planned,     /* the request's place in a plan, if it lacks memory */
    search,           /* pending frees whose events are complete, then best fit */
    ask_callback,     /* the user's callback, then best fit */
    collect,          /* garbage collection, if the threshold is set */
    wait_on_device,   /* pending frees of the stream's blocks, in its order */
    borrow,           /* a free block of other sizes, if growth would take pages */
    grow,             /* a device allocation or mapped pages */
    release_oversize, /* if max_split_size_mb is set */
    fill_hole,        /* a free block of the stream's other sizes, in pages that others keep */
    leave_plan,       /* what is held for a plan, then growth */
    wait_on_devices,  /* pending frees of other streams' blocks, then growth */
    wait_for_events,  /* pending frees that cannot be ordered so */
    release_all,      /* all unsplit segments, then growth */
    fill_lent_hole,   /* a free block of another stream, in pages that others keep */
    release_others,   /* what other members of the family have free, then growth */
    grow_least,       /* a classic segment of the block's own size */
    search,           /* what other threads freed meanwhile */
};

static memopt_status climb(memopt_allocator *allocator, mo_request *request, mo_block **out_block)
{
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        memopt_status status = attempts[i](allocator, request, out_block);
        if (status != MEMOPT_OK && status != MEMOPT_OUT_OF_DEVICE_MEMORY)
            return status;
        if (*out_block != NULL)
            return MEMOPT_OK;
    }
    return MEMOPT_OUT_OF_DEVICE_MEMORY;
}

/* Without a lock. */
static memopt_status fail_out_of_memory(memopt_allocator *allocator, uint64_t asked,
                                        uint64_t device_free, const char *report)
{
    if (allocator->options.oom != NULL && !in_callback(allocator)) {
        const callback here = {allocator->family, innermost};
        innermost = &here;
        allocator->options.oom(allocator->options.oom_user, asked, device_free, report);
        innermost = here.outer;
    }
    return mo_fail(allocator->pinned ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OUT_OF_DEVICE_MEMORY,
                   "%s", report);
}

memopt_status mo_alloc_slow(memopt_allocator *allocator, mo_request *request, void **out_pointer)
{
    char report[MO_REPORT_BYTES];
    mo_block *block = NULL;
    uint64_t left = 0;
    MO_TRY(mo_family_enter(allocator->family, "allocator_alloc"));
    mo_lock(&allocator->lock);
    memopt_status status = climb(allocator, request, &block);
    if (status == MEMOPT_OK) {
        status = mo_block_give(allocator, block, request, out_pointer);
    } else if (status == MEMOPT_OUT_OF_DEVICE_MEMORY) {
        allocator->stats.counter[MO_STAT_NUM_OOMS]++;
        const mo_event failed = {.what = MO_FAILED, .request = request, .stream = request->stream};
        mo_tell(allocator, &failed);
        left = free_memory(allocator);
        const mo_oom_outside outside = {left, mo_family_spare(allocator)};
        mo_cause_find(allocator, request, &outside, &allocator->oom);
        mo_report_oom(allocator, report);
    }
    mo_unlock(&allocator->lock);
    mo_family_leave(allocator->family);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return fail_out_of_memory(allocator, request->asked, left, report);
    return status;
}
