/* Moving values from the host to the disk; see offload.h. */
#include "offload/offload.h"

#include "base/checked.h"

/* --- lists of values by age */

static mo_packed *at(memopt_offloader *offloader, uint64_t link)
{
    return link == 0 ? NULL : &offloader->packed[link - 1];
}

static mo_age_list *list_of(memopt_offloader *offloader, const mo_packed *value)
{
    int list = value->slot != NULL         ? MO_LIST_STORED
               : value->range->slab->small ? MO_LIST_SMALL
                                           : MO_LIST_LARGE;
    return &offloader->lists[list];
}

/* Puts a value into its list: as the newest, or as the oldest. */
static void link_value(memopt_offloader *offloader, mo_packed *value, int oldest)
{
    mo_age_list *list = list_of(offloader, value);
    uint64_t link = (uint64_t)(value - offloader->packed) + 1;
    value->older = oldest ? 0 : list->newest;
    value->newer = oldest ? list->oldest : 0;
    if (value->older != 0)
        at(offloader, value->older)->newer = link;
    else
        list->oldest = link;
    if (value->newer != 0)
        at(offloader, value->newer)->older = link;
    else
        list->newest = link;
    if (value->slot != NULL)
        offloader->stored_bytes += value->bytes;
}

static void unlink_value(memopt_offloader *offloader, mo_packed *value)
{
    mo_age_list *list = list_of(offloader, value);
    if (value->older != 0)
        at(offloader, value->older)->newer = value->newer;
    else
        list->oldest = value->newer;
    if (value->newer != 0)
        at(offloader, value->newer)->older = value->older;
    else
        list->newest = value->older;
    if (value->slot != NULL)
        offloader->stored_bytes -= value->bytes;
}

/* --- to the file */

/* The oldest value first, because backward starts with the newest. Large values first, because a
 * small one makes room only for small ones. */
static mo_packed *oldest_on_host(memopt_offloader *offloader)
{
    mo_packed *large = at(offloader, offloader->lists[MO_LIST_LARGE].oldest);
    return large != NULL ? large : at(offloader, offloader->lists[MO_LIST_SMALL].oldest);
}

/* Begins to write a value to the file. LIMIT_REACHED without a message if the file has no room. */
static memopt_status store(memopt_offloader *offloader, mo_packed *value)
{
    mo_disk *disk = offloader->disk;
    mo_disk_slot *slot = NULL;
    MO_TRY(mo_timeline_reserve(&disk->line));
    MO_TRY(mo_timeline_order(&offloader->out, value->written, disk->line.stream));
    MO_TRY(mo_disk_write(disk, value->range->base, value->bytes, &slot));
    unlink_value(offloader, value);
    value->slot = slot;
    value->range->stored = slot->mark;
    link_value(offloader, value, 0);
    return MEMOPT_OK;
}

/* The write has ended: frees the host memory, or keeps the value there if the write failed. */
static memopt_status settle(memopt_offloader *offloader, mo_packed *value)
{
    memopt_status status = mo_disk_result(value->slot);
    unlink_value(offloader, value);
    offloader->disk->troubled = status != MEMOPT_OK;
    if (status != MEMOPT_OK) {
        mo_disk_release(value->slot);
        value->slot = NULL;
        link_value(offloader, value, 1);
        return status;
    }
    mo_host_pool_give(&offloader->pool, value->range);
    value->range = NULL;
    offloader->stats.disk_tickets++;
    offloader->stats.disk_bytes_used += value->bytes;
    return MEMOPT_OK;
}

memopt_status mo_spill_wait(memopt_offloader *offloader, const mo_disk_slot *slot)
{
    int done = 0;
    memopt_status status = mo_timeline_query(&offloader->disk->line, slot->mark, &done);
    if (status != MEMOPT_OK || done)
        return status;
    offloader->stats.disk_waits++;
    return mo_timeline_sync(&offloader->disk->line, slot->mark);
}

/* Frees the host memory of one value. LIMIT_REACHED without a message if none can be freed. */
static memopt_status make_room(memopt_offloader *offloader)
{
    mo_packed *value = at(offloader, offloader->lists[MO_LIST_STORED].oldest);
    memopt_status failed = MEMOPT_OK;
    for (;;) {
        memopt_status status = MEMOPT_OK;
        if (value == NULL && failed != MEMOPT_OK)
            return failed;
        if (value == NULL) {
            value = oldest_on_host(offloader);
            status = value == NULL ? MEMOPT_LIMIT_REACHED : store(offloader, value);
        }
        if (status == MEMOPT_OK)
            status = mo_spill_wait(offloader, value->slot);
        if (status != MEMOPT_OK)
            return status;
        failed = settle(offloader, value);
        if (failed == MEMOPT_OK)
            return MEMOPT_OK;
        value = at(offloader, offloader->lists[MO_LIST_STORED].oldest);
    }
}

memopt_status mo_spill_drop_stored(memopt_offloader *offloader)
{
    for (;;) {
        mo_packed *value = at(offloader, offloader->lists[MO_LIST_STORED].oldest);
        int done = 0;
        if (value == NULL)
            return MEMOPT_LIMIT_REACHED;
        memopt_status status = mo_timeline_query(&offloader->disk->line, value->slot->mark, &done);
        if (status != MEMOPT_OK || !done)
            return status != MEMOPT_OK ? status : MEMOPT_LIMIT_REACHED;
        if (settle(offloader, value) == MEMOPT_OK)
            return MEMOPT_OK;
    }
}

memopt_status mo_spill_take(memopt_offloader *offloader, uint64_t bytes, mo_host_range **out_range)
{
    mo_host_pool *pool = &offloader->pool;
    if (bytes > pool->limit)
        return MEMOPT_LIMIT_REACHED;
    for (;;) {
        memopt_status status = mo_host_pool_take(pool, bytes, 0, out_range);
        if (status != MEMOPT_LIMIT_REACHED)
            return status;
        status = make_room(offloader);
        if (status == MEMOPT_LIMIT_REACHED) /* what was freed may still be read by copies back */
            return mo_host_pool_take(pool, bytes, 1, out_range);
        if (status != MEMOPT_OK)
            return status;
    }
}

/* --- ahead of need */

/* Writes the oldest values before the host is full, so that host memory can then be freed at once.
 * Keeps a quarter of what fixed
 * values leave of the limit written. Does nothing if jobs run inline, since the work may be
 * unnecessary. A failure is reported when the value is needed. */
static void write_ahead(memopt_offloader *offloader)
{
    uint64_t share =
        offloader->pool.limit - mo_min_u64(offloader->pool.limit, offloader->fixed_bytes);
    uint64_t threshold = share - share / 4;
    if ((offloader->options.flags & MEMOPT_OFFLOADER_NULL_STREAM) != 0 || offloader->disk->troubled)
        return;
    while (offloader->pool.used - offloader->fixed_bytes - offloader->stored_bytes > threshold) {
        mo_packed *value = oldest_on_host(offloader);
        if (value == NULL || store(offloader, value) != MEMOPT_OK)
            return;
    }
}

void mo_spill_packed(memopt_offloader *offloader, memopt_ticket ticket)
{
    mo_packed *value = NULL;
    if (!offloader->spills ||
        mo_tickets_find(offloader, ticket, "offloader_pack", &value) != MEMOPT_OK)
        return;
    link_value(offloader, value, 0);
    write_ahead(offloader);
}

void mo_spill_forget(memopt_offloader *offloader, mo_packed *value)
{
    if (value->range != NULL && value->fixed) {
        offloader->fixed_bytes -= value->bytes;
    } else if (value->range != NULL && offloader->spills) {
        unlink_value(offloader, value);
    } else if (value->range == NULL && value->slot != NULL) {
        offloader->stats.disk_tickets--;
        offloader->stats.disk_bytes_used -= value->bytes;
    }
    if (value->slot != NULL)
        mo_disk_release(value->slot);
    value->slot = NULL;
}
