/* Slabs, their ranges, and the two indices of free ranges; see host_pool.h. */
#include "offload/host_pool.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/precondition.h"
#include "device/device.h"

#include <string.h>

enum { SPARE_RANGES = 2, EQUALS_LOOKED_AT = 8 };

/* --- indices */

static int before(const mo_host_range *range, uint64_t bytes, const unsigned char *base)
{
    return range->bytes != bytes ? range->bytes < bytes : (uintptr_t)range->base < (uintptr_t)base;
}

/* The first place whose range does not come before (bytes, base). */
static uint64_t lower_bound(const mo_host_index *index, uint64_t bytes, const unsigned char *base)
{
    uint64_t low = 0, high = index->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (before(index->items[middle], bytes, base))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void index_insert(mo_host_index *index, mo_host_range *range)
{
    uint64_t at = lower_bound(index, range->bytes, range->base);
    memmove(index->items + at + 1, index->items + at, (index->count - at) * sizeof *index->items);
    index->items[at] = range;
    index->count++;
}

static void index_remove_at(mo_host_index *index, uint64_t at)
{
    index->count--;
    memmove(index->items + at, index->items + at + 1, (index->count - at) * sizeof *index->items);
}

static mo_host_index *index_of(mo_host_pool *pool, const mo_host_slab *slab)
{
    return slab->small ? &pool->small : &pool->large;
}

static void index_remove(mo_host_pool *pool, const mo_host_range *range)
{
    mo_host_index *index = index_of(pool, range->slab);
    index_remove_at(index, lower_bound(index, range->bytes, range->base));
}

/* --- ranges */

memopt_status mo_host_pool_reserve(mo_host_pool *pool)
{
    uint64_t ranges = pool->range_count + SPARE_RANGES;
    if (!mo_grow((void **)&pool->small.items, &pool->small.capacity, ranges,
                 sizeof *pool->small.items) ||
        !mo_grow((void **)&pool->large.items, &pool->large.capacity, ranges,
                 sizeof *pool->large.items))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    while (pool->spare_count < SPARE_RANGES) {
        mo_host_range *range = mo_malloc(sizeof *range);
        if (range == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        range->next = pool->spare;
        pool->spare = range;
        pool->spare_count++;
    }
    return MEMOPT_OK;
}

static mo_host_range *new_range(mo_host_pool *pool, mo_host_slab *slab, unsigned char *base,
                                uint64_t bytes)
{
    mo_host_range *range = pool->spare;
    MO_PRE(range != NULL);
    pool->spare = range->next;
    pool->spare_count--;
    pool->range_count++;
    memset(range, 0, sizeof *range);
    range->slab = slab;
    range->base = base;
    range->bytes = bytes;
    range->free = 1;
    return range;
}

static void retire_range(mo_host_pool *pool, mo_host_range *range)
{
    range->next = pool->spare;
    pool->spare = range;
    pool->spare_count++;
    pool->range_count--;
}

/* Joins `range` with the next one; the union is in use as long as either was. */
static void join_next(mo_host_pool *pool, mo_host_range *range)
{
    mo_host_range *next = range->next;
    range->bytes += next->bytes;
    range->written = mo_max_u64(range->written, next->written);
    range->read = mo_max_u64(range->read, next->read);
    range->stored = mo_max_u64(range->stored, next->stored);
    range->next = next->next;
    if (range->next != NULL)
        range->next->prev = range;
    retire_range(pool, next);
}

void mo_host_pool_insert(mo_host_pool *pool, mo_host_range *range)
{
    range->free = 1;
    if (range->next != NULL && range->next->free) {
        index_remove(pool, range->next);
        join_next(pool, range);
    }
    if (range->prev != NULL && range->prev->free) {
        range = range->prev;
        index_remove(pool, range);
        join_next(pool, range);
    }
    index_insert(index_of(pool, range->slab), range);
}

/* Cuts off the unneeded end, which keeps the same marks. */
static void split(mo_host_pool *pool, mo_host_range *range, uint64_t need)
{
    mo_host_range *rest = new_range(pool, range->slab, range->base + need, range->bytes - need);
    rest->written = range->written;
    rest->read = range->read;
    rest->stored = range->stored;
    rest->prev = range;
    rest->next = range->next;
    if (rest->next != NULL)
        rest->next->prev = rest;
    range->next = rest;
    range->bytes = need;
    index_insert(index_of(pool, rest->slab), rest);
}

mo_host_range *mo_host_pool_find(mo_host_pool *pool, uint64_t need, int small)
{
    mo_host_index *index = small ? &pool->small : &pool->large;
    uint64_t at = lower_bound(index, need, NULL);
    if (at == index->count)
        return NULL;
    uint64_t bytes = index->items[at]->bytes;
    if (!small && bytes - need > need / 128)
        return NULL;
    /* Of equal ones, the range whose last read started first: its copy waits least. */
    uint64_t end = mo_min_u64(index->count, at + EQUALS_LOOKED_AT);
    for (uint64_t i = at + 1; i < end && index->items[i]->bytes == bytes; i++)
        if (index->items[i]->read < index->items[at]->read)
            at = i;
    mo_host_range *range = index->items[at];
    index_remove_at(index, at);
    range->free = 0;
    if (small && range->bytes > need)
        split(pool, range, need);
    return range;
}

/* --- slabs */

/* The system page-locks no more: what is asked is beyond the limit from here on. */
static memopt_status refused(mo_host_pool *pool, uint64_t bytes)
{
    uint64_t pinned = pool->held - pool->pageable;
    if (mo_device_unified(pool->device)) /* the device's own memory is in use: that changes */
        return MEMOPT_LIMIT_REACHED;
    pool->pin_limit = pinned + bytes - 1;
    if (!pool->refused)
        mo_log(MEMOPT_LOG_WARNING,
               "offload: the system does not page-lock %s of host memory beside %s; from here on "
               "values use pageable memory, whose copies are slower, up to host_limit",
               MO_SIZE(bytes), MO_SIZE(pinned));
    pool->refused = 1;
    return MEMOPT_LIMIT_REACHED;
}

/* At a page, as page-locked memory is: the disk tier reads and writes it directly. */
static memopt_status pageable_memory(mo_host_slab *slab, uint64_t bytes)
{
    uint64_t size;
    slab->block = mo_add_u64(bytes, MO_HOST_PAGE, &size) ? mo_malloc(size) : NULL;
    if (slab->block == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    slab->base =
        (unsigned char *)slab->block + MO_HOST_PAGE - (uintptr_t)slab->block % MO_HOST_PAGE;
    return MEMOPT_OK;
}

static memopt_status slab_memory(mo_host_pool *pool, mo_host_slab *slab, uint64_t bytes,
                                 int pageable)
{
    void *base = NULL;
    if (pageable) /* pageable memory of a unified device would be outside of its budget */
        return mo_device_unified(pool->device) ? MEMOPT_LIMIT_REACHED
                                               : pageable_memory(slab, bytes);
    memopt_status status = memopt_host_alloc(pool->device, bytes, &base);
    slab->base = base;
    return status == MEMOPT_OUT_OF_HOST_MEMORY ? refused(pool, bytes) : status;
}

void mo_host_slab_free(mo_host_pool *pool, mo_host_slab *slab)
{
    if (slab->block != NULL)
        mo_free(slab->block);
    else
        (void)memopt_host_free(pool->device, slab->base);
    mo_free(slab);
}

memopt_status mo_host_pool_add_slab(mo_host_pool *pool, uint64_t bytes, int small, int pageable)
{
    MO_PRE(pool->held <= pool->limit && bytes <= pool->limit - pool->held);
    if (!mo_grow((void **)&pool->slabs, &pool->slab_capacity, pool->slab_count + 1,
                 sizeof *pool->slabs))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_host_slab *slab = mo_calloc(1, sizeof *slab);
    if (slab == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = slab_memory(pool, slab, bytes, pageable);
    if (status != MEMOPT_OK) {
        mo_free(slab);
        return status;
    }
    slab->bytes = bytes;
    slab->small = small;
    slab->first = new_range(pool, slab, slab->base, bytes);
    pool->slabs[pool->slab_count++] = slab;
    pool->held += bytes;
    pool->held_small += small ? bytes : 0;
    pool->pageable += pageable ? bytes : 0;
    pool->held_peak = mo_max_u64(pool->held_peak, pool->held);
    index_insert(index_of(pool, slab), slab->first);
    return MEMOPT_OK;
}

int mo_host_slab_idle(const mo_host_slab *slab)
{
    return slab->first->free && slab->first->next == NULL;
}

void mo_host_pool_drop_slab(mo_host_pool *pool, uint64_t position)
{
    mo_host_slab *slab = pool->slabs[position];
    index_remove(pool, slab->first);
    retire_range(pool, slab->first);
    pool->held -= slab->bytes;
    pool->held_small -= slab->small ? slab->bytes : 0;
    pool->pageable -= slab->block != NULL ? slab->bytes : 0;
    pool->slabs[position] = pool->slabs[--pool->slab_count];
    mo_host_slab_free(pool, slab);
}
