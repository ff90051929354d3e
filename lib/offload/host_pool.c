/* Taking and giving back host memory under the limit; see host_pool.h. */
#include "offload/host_pool.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { SLACK = 64, SHARED_SLAB_MAX = 4 * 1024 * 1024 };

void mo_host_pool_open(mo_host_pool *pool, memopt_device *device, mo_timeline *out,
                       mo_timeline *back, mo_timeline *disk, uint64_t limit, uint64_t pin_limit)
{
    memset(pool, 0, sizeof *pool);
    pool->device = device;
    pool->out = out;
    pool->back = back;
    pool->disk = disk;
    pool->limit = limit;
    pool->pin_limit = pool->pin_limit_given = pin_limit;
}

void mo_host_pool_close(mo_host_pool *pool)
{
    for (uint64_t i = 0; i < pool->slab_count; i++) {
        mo_host_slab *slab = pool->slabs[i];
        for (mo_host_range *range = slab->first; range != NULL;) {
            mo_host_range *next = range->next;
            mo_free(range);
            range = next;
        }
        mo_host_slab_free(pool, slab);
    }
    while (pool->spare != NULL) {
        mo_host_range *next = pool->spare->next;
        mo_free(pool->spare);
        pool->spare = next;
    }
    mo_free(pool->small.items);
    mo_free(pool->large.items);
    mo_free(pool->slabs);
    memset(pool, 0, sizeof *pool);
}

static memopt_status copies_done(mo_host_pool *pool, const mo_host_slab *slab, int *out_done)
{
    MO_TRY(mo_timeline_query(pool->out, slab->first->written, out_done));
    if (*out_done)
        MO_TRY(mo_timeline_query(pool->back, slab->first->read, out_done));
    return *out_done && pool->disk != NULL
               ? mo_timeline_query(pool->disk, slab->first->stored, out_done)
               : MEMOPT_OK;
}

/* The position of the least recently used idle slab; with `complete` only of those whose copies are
 * done. slab_count if there is none. */
static memopt_status oldest_idle(mo_host_pool *pool, int complete, uint64_t *out_position)
{
    uint64_t best = pool->slab_count;
    for (uint64_t i = 0; i < pool->slab_count; i++) {
        const mo_host_slab *slab = pool->slabs[i];
        int eligible = 1;
        if (!mo_host_slab_idle(slab) ||
            (best < pool->slab_count && pool->slabs[best]->last_use < slab->last_use))
            continue;
        MO_TRY(complete ? copies_done(pool, slab, &eligible) : MEMOPT_OK);
        if (eligible)
            best = i;
    }
    *out_position = best;
    return MEMOPT_OK;
}

/* Gives idle slabs back, without waiting, until `bytes` more would fit in `allowed`. */
static memopt_status evict(mo_host_pool *pool, uint64_t bytes, uint64_t allowed)
{
    while (bytes > allowed || pool->held > allowed - bytes) {
        uint64_t position;
        MO_TRY(oldest_idle(pool, 1, &position));
        if (position == pool->slab_count)
            return MEMOPT_OK;
        mo_host_pool_drop_slab(pool, position);
    }
    return MEMOPT_OK;
}

/* Waits for the copies of the oldest idle slab; *out_found = 0 where none is idle. */
static memopt_status wait_for_idle(mo_host_pool *pool, int *out_found)
{
    uint64_t position;
    MO_TRY(oldest_idle(pool, 0, &position));
    *out_found = position < pool->slab_count;
    if (!*out_found)
        return MEMOPT_OK;
    const mo_host_range *range = pool->slabs[position]->first;
    memopt_status status = mo_timeline_sync(pool->out, range->written);
    if (status == MEMOPT_OK)
        status = mo_timeline_sync(pool->back, range->read);
    return status == MEMOPT_OK && pool->disk != NULL ? mo_timeline_sync(pool->disk, range->stored)
                                                     : status;
}

static int fits(const mo_host_pool *pool, uint64_t bytes)
{
    return bytes <= pool->limit && pool->held <= pool->limit - bytes;
}

/* Whether so many bytes more may be page-locked. */
static int may_pin(const mo_host_pool *pool, uint64_t bytes)
{
    return bytes <= pool->pin_limit && pool->held - pool->pageable <= pool->pin_limit - bytes;
}

/* Bytes of the slab to make for a value: its own for a large one; a whole number of this value and
 * about a 64th of the small memory held for a small one. */
static uint64_t slab_bytes(const mo_host_pool *pool, uint64_t need, int small)
{
    if (!small)
        return need;
    uint64_t target = mo_min_u64(pool->held_small / SLACK, SHARED_SLAB_MAX);
    uint64_t values = mo_max_u64(target / need, 1);
    return (values * need + MO_HOST_PAGE - 1) / MO_HOST_PAGE * MO_HOST_PAGE;
}

/* Below the limit and, if possible, near the largest payload ever held. */
static memopt_status make_room(mo_host_pool *pool, uint64_t bytes, uint64_t payload)
{
    uint64_t peak = mo_max_u64(pool->used_peak, pool->used + payload);
    return evict(pool, bytes, mo_min_u64(pool->limit, peak + peak / SLACK));
}

/* Page-locked; LIMIT_REACHED without a message if that may or can not be. */
static memopt_status add_pinned(mo_host_pool *pool, uint64_t bytes, int small)
{
    return may_pin(pool, bytes) ? mo_host_pool_add_slab(pool, bytes, small, 0)
                                : MEMOPT_LIMIT_REACHED;
}

static memopt_status add_slab(mo_host_pool *pool, uint64_t bytes, int small)
{
    uint64_t held = pool->held;
    memopt_status status = add_pinned(pool, bytes, small);
    if (status != MEMOPT_LIMIT_REACHED)
        return status;
    MO_TRY(evict(pool, bytes, 0)); /* cached slabs of other sizes */
    if (pool->held != held)
        status = add_pinned(pool, bytes, small);
    return status != MEMOPT_LIMIT_REACHED ? status : mo_host_pool_add_slab(pool, bytes, small, 1);
}

static memopt_status grow(mo_host_pool *pool, uint64_t need, uint64_t payload, int small, int wait)
{
    int waited = 0;
    for (;;) {
        uint64_t bytes = slab_bytes(pool, need, small);
        memopt_status status = make_room(pool, bytes, payload);
        if (status != MEMOPT_OK)
            return status;
        if (small && (!fits(pool, bytes) || !may_pin(pool, bytes)))
            bytes = (need + MO_HOST_PAGE - 1) / MO_HOST_PAGE * MO_HOST_PAGE;
        if (fits(pool, bytes))
            return add_slab(pool, bytes, small);
        int found = 0;
        if (wait && bytes <= pool->limit)
            status = wait_for_idle(pool, &found);
        if (status != MEMOPT_OK)
            return status;
        if (!found)
            return MEMOPT_LIMIT_REACHED;
        pool->waits += !waited;
        waited = 1;
    }
}

memopt_status mo_host_pool_take(mo_host_pool *pool, uint64_t bytes, int wait,
                                mo_host_range **out_range)
{
    int small = bytes < MO_HOST_SMALL;
    uint64_t need;
    if (!mo_round_up_u64(bytes, small ? MO_HOST_UNIT : MO_HOST_PAGE, &need))
        return MEMOPT_LIMIT_REACHED;
    memopt_status status = mo_host_pool_reserve(pool);
    if (status != MEMOPT_OK)
        return status;
    mo_host_range *range = mo_host_pool_find(pool, need, small);
    if (range == NULL) {
        status = grow(pool, need, bytes, small, wait);
        if (status == MEMOPT_OK)
            status = mo_host_pool_reserve(pool); /* the slab took one of the two */
        if (status != MEMOPT_OK)
            return status;
        range = mo_host_pool_find(pool, need, small);
    }
    range->payload = bytes;
    pool->used += bytes;
    pool->used_peak = mo_max_u64(pool->used_peak, pool->used);
    *out_range = range;
    return MEMOPT_OK;
}

void mo_host_pool_give(mo_host_pool *pool, mo_host_range *range)
{
    pool->used -= range->payload;
    range->payload = 0;
    range->slab->last_use = ++pool->clock;
    mo_host_pool_insert(pool, range);
}

memopt_status mo_host_pool_trim(mo_host_pool *pool, uint64_t *out_released)
{
    uint64_t held = pool->held;
    memopt_status status = MEMOPT_OK;
    int found = 1;
    while (found) {
        status = wait_for_idle(pool, &found);
        if (status == MEMOPT_OK && found)
            status = evict(pool, 0, 0);
        if (status != MEMOPT_OK)
            return status;
    }
    pool->pin_limit = pool->pin_limit_given;
    *out_released = held - pool->held;
    return MEMOPT_OK;
}
