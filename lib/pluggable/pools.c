/*
 * Memory of recorded graphs. A graph replays into the addresses that it was recorded with, so
 * allocations while a stream records come from the graph's own pool of the device's allocator,
 * whose memory serves nothing else while the graph exists: freed blocks serve the same pool only,
 * which retains its memory. It is trimmed only after its release, with the device waited for, since
 * a replay may still run on any stream.
 */
#include "base/lock.h"
#include "pluggable/pluggable.h"

#include "base/memory.h"
#include "device/device.h"

static mo_graph_pool *find(mo_plug_slot *slot, uint64_t high, uint64_t low)
{
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL && !(pool->holds > 0 && pool->id[0] == high && pool->id[1] == low))
        pool = pool->next;
    return pool;
}

static mo_graph_pool *find_owner(mo_plug_slot *slot, const void *pointer)
{
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL && !mo_allocator_owns(pool->allocator, pointer))
        pool = pool->next;
    return pool;
}

static int is_idle(const mo_graph_pool *pool)
{
    return pool->holds == 0 && pool->live == 0;
}

static uint64_t held_bytes(mo_graph_pool *pool)
{
    uint64_t bytes = 0;
    memopt_allocator_get_stat(pool->allocator, "reserved_bytes.all.current", &bytes);
    return bytes;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* The pool that takes allocations, with one block more. */
static mo_graph_pool *claim_open(mo_plug_slot *slot)
{
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL && pool->open == 0)
        pool = pool->next;
    if (pool != NULL)
        pool->live++;
    mo_unlock(&mo_plug_lock);
    return pool;
}

int mo_plug_pool_alloc(mo_plug_slot *slot, uint64_t bytes, memopt_tag tag, memopt_stream stream,
                       void **out_pointer, memopt_status *out_status)
{
    int32_t recording = 0;
    if (bytes == 0 || atomic_load_explicit(&slot->open_count, memory_order_acquire) == 0)
        return 0;
    *out_status = mo_stream_capturing(mo_allocator_device(slot->first), stream, &recording);
    if (*out_status != MEMOPT_OK)
        return 1;
    mo_graph_pool *pool = recording ? claim_open(slot) : NULL;
    if (pool == NULL)
        return 0;
    *out_status = memopt_allocator_alloc(pool->allocator, bytes, tag, stream, out_pointer);
    if (*out_status != MEMOPT_OK) {
        mo_lock(&mo_plug_lock);
        pool->live--;
        mo_unlock(&mo_plug_lock);
    }
    return 1;
}

int mo_plug_pool_free(mo_plug_slot *slot, void *pointer, memopt_status *out_status)
{
    if (atomic_load_explicit(&slot->pool_count, memory_order_acquire) == 0)
        return 0;
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = find_owner(slot, pointer);
    if (pool != NULL) {
        *out_status = memopt_allocator_free(pool->allocator, pointer);
        if (*out_status == MEMOPT_OK)
            pool->live--;
    }
    mo_unlock(&mo_plug_lock);
    return pool != NULL;
}

int mo_plug_pool_record(mo_plug_slot *slot, void *pointer, memopt_stream stream,
                        memopt_status *out_status)
{
    if (atomic_load_explicit(&slot->pool_count, memory_order_acquire) == 0)
        return 0;
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = find_owner(slot, pointer);
    if (pool != NULL)
        *out_status = memopt_allocator_record_stream(pool->allocator, pointer, stream);
    mo_unlock(&mo_plug_lock);
    return pool != NULL;
}

/* --- memory of released pools ----------------------------------------------------------------- */

/* Claims a pool that is released, has no block and holds memory. */
static mo_graph_pool *claim_idle(mo_plug_slot *slot, int with_memory)
{
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL && !(is_idle(pool) && (!with_memory || held_bytes(pool) > 0)))
        pool = pool->next;
    if (pool != NULL) {
        pool->holds = 1;
        pool->id[0] = pool->id[1] = UINT64_MAX;
    }
    mo_unlock(&mo_plug_lock);
    return pool;
}

static void unclaim(mo_graph_pool *pool)
{
    mo_lock(&mo_plug_lock);
    pool->holds = 0;
    mo_unlock(&mo_plug_lock);
}

static memopt_status give_back(mo_graph_pool *pool, uint64_t *released)
{
    uint64_t bytes = 0;
    if (held_bytes(pool) == 0)
        return MEMOPT_OK;
    memopt_status status = memopt_device_sync(mo_allocator_device(pool->allocator));
    if (status == MEMOPT_OK)
        status = memopt_allocator_trim_sync(pool->allocator, 0, &bytes);
    *released += bytes;
    return status;
}

uint64_t mo_plug_pools_held(mo_plug_slot *slot)
{
    uint64_t bytes = 0;
    mo_lock(&mo_plug_lock);
    for (mo_graph_pool *pool = slot->pools; pool != NULL; pool = pool->next)
        bytes += held_bytes(pool);
    mo_unlock(&mo_plug_lock);
    return bytes;
}

memopt_status mo_plug_pools_trim(mo_plug_slot *slot, uint64_t *released)
{
    memopt_status status = MEMOPT_OK;
    /* No wait is possible while a graph is recorded: the next call does it. */
    if (atomic_load(&slot->pool_count) == 0 || atomic_load(&slot->open_count) != 0)
        return MEMOPT_OK;
    for (;;) {
        mo_graph_pool *pool = claim_idle(slot, 1);
        if (pool == NULL)
            return status;
        status = give_back(pool, released);
        int stuck = held_bytes(pool) > 0;
        unclaim(pool);
        if (stuck || status != MEMOPT_OK)
            return status;
    }
}

/* --- begin, end, release ---------------------------------------------------------------------- */

static memopt_status make_pool(mo_plug_slot *slot, mo_graph_pool **out_pool)
{
    mo_graph_pool *pool = mo_calloc(1, sizeof *pool);
    if (pool == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_plug_make_pool(slot->first, &pool->allocator);
    if (status != MEMOPT_OK) {
        mo_free(pool);
        return status;
    }
    pool->holds = 1;
    mo_lock(&mo_plug_lock);
    pool->next = slot->pools;
    slot->pools = pool;
    atomic_fetch_add(&slot->pool_count, 1);
    mo_unlock(&mo_plug_lock);
    *out_pool = pool;
    return MEMOPT_OK;
}

/* A claimed pool without memory. */
static memopt_status fresh_pool(mo_plug_slot *slot, mo_graph_pool **out_pool)
{
    uint64_t released = 0;
    mo_graph_pool *pool = claim_idle(slot, 0);
    if (pool == NULL)
        return make_pool(slot, out_pool);
    memopt_status status = give_back(pool, &released);
    if (status == MEMOPT_OK && held_bytes(pool) == 0) {
        *out_pool = pool;
        return MEMOPT_OK;
    }
    unclaim(pool);
    return status == MEMOPT_OK ? make_pool(slot, out_pool) : status;
}

/* Lock held: the pool takes allocations, before all others. */
static void open_pool(mo_plug_slot *slot, mo_graph_pool *pool)
{
    mo_graph_pool **link = &slot->pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    pool->next = slot->pools;
    slot->pools = pool;
    pool->open++;
    atomic_fetch_add(&slot->open_count, 1);
}

void memopt_pluggable_begin_pool(int32_t device, uint64_t id_high, uint64_t id_low, void *filter)
{
    mo_plug_slot *slot;
    mo_graph_pool *pool = NULL;
    (void)filter;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status != MEMOPT_OK)
        return;
    mo_lock(&mo_plug_lock);
    pool = find(slot, id_high, id_low);
    if (pool != NULL) {
        pool->holds++;
        open_pool(slot, pool);
    }
    mo_unlock(&mo_plug_lock);
    if (pool != NULL)
        return;
    status = fresh_pool(slot, &pool);
    if (status != MEMOPT_OK)
        return;
    mo_lock(&mo_plug_lock);
    pool->id[0] = id_high;
    pool->id[1] = id_low;
    open_pool(slot, pool);
    mo_unlock(&mo_plug_lock);
}

/* Lock held. */
static void close_pool(mo_plug_slot *slot, mo_graph_pool *pool)
{
    if (pool->open > 0) {
        pool->open--;
        atomic_fetch_sub(&slot->open_count, 1);
    }
}

void memopt_pluggable_end_pool(int32_t device, uint64_t id_high, uint64_t id_low)
{
    mo_plug_slot *slot;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status != MEMOPT_OK)
        return;
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = find(slot, id_high, id_low);
    if (pool != NULL)
        close_pool(slot, pool);
    mo_unlock(&mo_plug_lock);
}

void memopt_pluggable_release_pool(int32_t device, uint64_t id_high, uint64_t id_low)
{
    mo_plug_slot *slot;
    uint64_t released = 0;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status == MEMOPT_OK) {
        mo_lock(&mo_plug_lock);
        mo_graph_pool *pool = find(slot, id_high, id_low);
        if (pool != NULL && --pool->holds == 0)
            while (pool->open > 0)
                close_pool(slot, pool);
        mo_unlock(&mo_plug_lock);
        status = mo_plug_pools_trim(slot, &released);
    }
}

memopt_status mo_plug_pools_end(mo_plug_slot *slot)
{
    memopt_status status = MEMOPT_OK;
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL) {
        mo_graph_pool *next = pool->next;
        memopt_status ended = memopt_allocator_destroy(pool->allocator);
        status = status != MEMOPT_OK ? status : ended;
        mo_free(pool);
        pool = next;
    }
    slot->pools = NULL;
    atomic_store(&slot->pool_count, 0);
    atomic_store(&slot->open_count, 0);
    return status;
}
