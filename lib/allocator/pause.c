/*
 * Pausing and resuming: the physical pages of a member go and come back, its addresses stay.
 *
 * The order makes every failure harmless. A pause first does all that can fail: it waits for the
 * device, gives the cache back and copies the contents out. Then it unmaps, and what the driver
 * refuses to unmap merely stays. A resume maps, then copies back, and until both are done the
 * contents stay in host memory and what was mapped can be unmapped again.
 *
 * Blocks may be freed all along. While pages move (MOVING) a freed block is held back, since its
 * range may be copied, and retired afterwards.
 *
 * The contents of a block are kept at its distance from the first block that has pages, unmapped
 * ranges not counted. Frees do not change that: while paused, nothing is mapped or unmapped.
 */
#include "allocator/pause.h"

#include "allocator/block_life.h"
#include "allocator/family.h"
#include "allocator/give_back.h"
#include "allocator/observers.h"
#include "allocator/paused_pages.h"

#include "base/lock.h"
#include "base/memory.h"

#include <inttypes.h>

/* --- contents ------------------------------------------------------------------------------------
 */

/* Live blocks next to each other. */
typedef struct range {
    char *address;
    uint64_t bytes;
    uint64_t offset; /* in the kept contents */
} range;

typedef struct ranges {
    range *list;
    uint64_t count;
    uint64_t bytes; /* of all blocks that have pages */
} ranges;

/* Walks over the blocks; writes the ranges if there is a list for them. */
static void walk(const memopt_allocator *allocator, ranges *out)
{
    out->count = out->bytes = 0;
    for (const mo_segment *s = allocator->segments; s != NULL; s = s->next) {
        int joins = 0;
        for (const mo_block *block = s->first; block != NULL; block = block->next) {
            int live = block->state == MO_BLOCK_LIVE;
            if (live && joins && out->list != NULL)
                out->list[out->count - 1].bytes += block->size;
            if (live && !joins && out->list != NULL)
                out->list[out->count] = (range){block->address, block->size, out->bytes};
            if (live && !joins)
                out->count++;
            if (block->state != MO_BLOCK_UNMAPPED)
                out->bytes += block->size;
            joins = live;
        }
    }
}

/* The list is freed by the caller. Lock held. */
static memopt_status find_ranges(const memopt_allocator *allocator, ranges *out)
{
    *out = (ranges){NULL, 0, 0};
    walk(allocator, out);
    out->list = mo_calloc(out->count + 1, sizeof *out->list);
    if (out->list == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    walk(allocator, out);
    return MEMOPT_OK;
}

/* True if copies are over for sure. Without lock. */
static int quiet(memopt_allocator *allocator)
{
    return mo_work_is_over(memopt_device_sync(allocator->device));
}

/* Copies the ranges out or back in, and waits for it. Without lock. */
static memopt_status copy(memopt_allocator *allocator, const ranges *all, int out)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < all->count && status == MEMOPT_OK; i++) {
        const range *each = &all->list[i];
        char *kept = allocator->pause.kept + each->offset;
        status = memopt_copy(allocator->device, out ? kept : each->address,
                             out ? each->address : kept, each->bytes, NULL);
    }
    memopt_status waited = memopt_stream_sync(allocator->device, NULL);
    mo_keep_first(&status, waited);
    allocator->pause.in_flight = !mo_work_is_over(waited) && !quiet(allocator);
    return status;
}

/* Lock held, released meanwhile. */
static memopt_status move_contents(memopt_allocator *allocator, int out)
{
    ranges all;
    memopt_status status = find_ranges(allocator, &all);
    if (status != MEMOPT_OK)
        return status;
    mo_unlock(&allocator->lock);
    if (out && all.count > 0) {
        void *kept = NULL;
        status = memopt_host_alloc(allocator->device, all.bytes, &kept);
        allocator->pause.kept = kept;
    }
    if (status == MEMOPT_OK && all.count > 0)
        status = copy(allocator, &all, out);
    mo_free(all.list);
    mo_lock(&allocator->lock);
    return status;
}

/* Without lock. Gone whatever the driver says, unless copies may still use it. */
static memopt_status drop_contents(memopt_allocator *allocator)
{
    if (allocator->pause.in_flight && !quiet(allocator))
        return MEMOPT_DRIVER_ERROR; /* the next call tries again */
    allocator->pause.in_flight = 0;
    void *kept = allocator->pause.kept;
    allocator->pause.kept = NULL;
    return memopt_host_free(allocator->device, kept);
}

/* --- the two ways --------------------------------------------------------------------------------
 */

/* Lock held. */
static void settle(memopt_allocator *allocator, mo_activity activity)
{
    mo_block *next;
    allocator->pause.activity = activity;
    for (mo_block *block = allocator->pause.held_back; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        block->pending = 0;
        mo_block_retire(allocator, block);
    }
    allocator->pause.held_back = NULL;
}

static uint64_t classic_bytes(const memopt_allocator *allocator)
{
    uint64_t bytes = 0;
    for (const mo_segment *s = allocator->segments; s != NULL; s = s->next)
        bytes += mo_segment_is_expandable(s) ? 0 : s->mapped;
    return bytes;
}

static memopt_status fail_classic(const memopt_allocator *allocator)
{
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "pool_pause: \"%s\" holds %s in classic segments, whose addresses go with their "
                   "memory; create it with expandable_segments:True",
                   allocator->name, MO_SIZE(classic_bytes(allocator)));
}

/* Waits for all work, then gives back what no block uses, unless the member retains it. Lock held,
 * released meanwhile. */
static memopt_status quiesce(memopt_allocator *allocator, uint64_t *released)
{
    mo_unlock(&allocator->lock);
    memopt_status status = memopt_device_sync(allocator->device);
    if (status == MEMOPT_OK)
        status = drop_contents(allocator); /* of a pause that failed */
    mo_lock(&allocator->lock);
    if (status != MEMOPT_OK)
        return status;
    if (!allocator->retain)
        status = mo_give_back(allocator, 0, released);
    return status;
}

/* Pages go; lock held, released meanwhile. */
static memopt_status unmap(memopt_allocator *allocator, uint64_t *released)
{
    mo_unlock(&allocator->lock);
    int any;
    memopt_status status = mo_paused_unmap(allocator, &any);
    mo_lock(&allocator->lock);
    *released += mo_paused_count(allocator);
    return any ? MEMOPT_OK : status; /* a page that stays does no harm */
}

/* Lock held, released meanwhile. */
static memopt_status pause_member(memopt_allocator *allocator, int keep, uint64_t *released)
{
    if (!allocator->config.expandable_segments)
        return fail_classic(allocator);
    allocator->pause.activity = MO_MOVING;
    memopt_status status = quiesce(allocator, released);
    if (status == MEMOPT_OK && classic_bytes(allocator) != 0)
        status = fail_classic(allocator); /* the driver has refused to map more */
    if (status == MEMOPT_OK)
        status = mo_paused_list(allocator);
    if (status == MEMOPT_OK && keep)
        status = move_contents(allocator, 1);
    if (status == MEMOPT_OK)
        status = unmap(allocator, released);
    if (status != MEMOPT_OK) {
        mo_paused_forget(allocator);
        mo_unlock(&allocator->lock);
        (void)drop_contents(allocator);
        mo_lock(&allocator->lock);
    }
    settle(allocator, status == MEMOPT_OK ? MO_PAUSED : MO_ACTIVE);
    return status;
}

/* Lock held, released meanwhile. */
static memopt_status resume_member(memopt_allocator *allocator)
{
    allocator->pause.activity = MO_MOVING;
    memopt_status status = mo_paused_map(allocator);
    if (status == MEMOPT_OK && allocator->pause.kept != NULL)
        status = move_contents(allocator, 0);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        (void)drop_contents(allocator);
    else if (!allocator->pause.in_flight)
        mo_paused_unmap_fresh(allocator);
    mo_lock(&allocator->lock);
    (void)mo_paused_count(allocator);
    if (status == MEMOPT_OK)
        mo_paused_forget(allocator);
    settle(allocator, status == MEMOPT_OK ? MO_ACTIVE : MO_PAUSED);
    return status;
}

memopt_status mo_pause_end(memopt_allocator *allocator)
{
    if (allocator->pause.in_flight)
        (void)quiet(allocator);
    allocator->pause.in_flight = 0; /* there is no later */
    if (allocator->pause.activity == MO_PAUSED) {
        mo_paused_unmap_fresh(allocator); /* handles that the driver did not take */
        mo_paused_forget(allocator);
    }
    return drop_contents(allocator);
}

/* --- calls ---------------------------------------------------------------------------------------
 */

/* Takes `slow`; a failure leaves it free. */
static memopt_status enter(memopt_pool *pool, const char *function, int paused)
{
    if (pool == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: pool is NULL", function);
    if (mo_device_inherited(pool->device))
        return mo_fail_inherited(function);
    memopt_status status = mo_family_enter(pool->family, function);
    if (status != MEMOPT_OK)
        return status;
    int is_paused = pool->pause.activity == MO_PAUSED;
    int capturing = is_paused == paused && mo_family_capturing(pool->family);
    if (is_paused == paused && !capturing)
        return MEMOPT_OK;
    mo_family_leave(pool->family);
    if (capturing)
        return mo_fail(MEMOPT_BUSY, "%s: a stream records a graph; call it after the capture",
                       function);
    return mo_fail(MEMOPT_BUSY, "%s: \"%s\" is %s", function, pool->name,
                   paused ? "not paused" : "paused already");
}

memopt_status memopt_pool_pause_sync(memopt_pool *pool, memopt_pause how, uint64_t *out_released)
{
    uint64_t released = 0;
    if (how != MEMOPT_PAUSE_DISCARD && how != MEMOPT_PAUSE_KEEP)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pool_pause: how is %" PRIu32 "; give MEMOPT_PAUSE_DISCARD or _KEEP", how);
    memopt_status status = enter(pool, "pool_pause", 0);
    if (status != MEMOPT_OK)
        return status;
    mo_lock(&pool->lock);
    status = pause_member(pool, how == MEMOPT_PAUSE_KEEP, &released);
    mo_unlock(&pool->lock);
    mo_family_leave(pool->family);
    if (status == MEMOPT_OK && out_released != NULL)
        *out_released = released;
    return status;
}

memopt_status memopt_pool_resume_sync(memopt_pool *pool)
{
    memopt_status status = enter(pool, "pool_resume", 1);
    if (status != MEMOPT_OK)
        return status;
    mo_lock(&pool->lock);
    status = resume_member(pool);
    mo_unlock(&pool->lock);
    mo_family_leave(pool->family);
    return status;
}

int32_t memopt_pool_is_paused(memopt_pool *pool)
{
    if (pool == NULL || mo_device_inherited(pool->device))
        return 0;
    mo_lock(&pool->lock);
    int paused = pool->pause.activity == MO_PAUSED;
    mo_unlock(&pool->lock);
    return paused;
}
