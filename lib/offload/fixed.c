/* Values with a fixed place: reserved host memory, and parts of files; see offload.h. */
#include "offload/offload.h"

#include "base/error.h"

static memopt_ticket add(memopt_offloader *offloader, mo_packed *value)
{
    value->fixed = 1;
    value->origin = MO_ORIGIN_HOST;
    value->pack_stream = offloader->out.stream; /* no stream of the caller wrote it */
    return mo_tickets_add(offloader, value);
}

/* --- reserved host memory */

/* Host memory that no copy uses. The caller may wait, so it is taken as the wait policy does. */
static memopt_status take(memopt_offloader *offloader, uint64_t bytes, mo_host_range **out_range)
{
    mo_host_pool *pool = &offloader->pool;
    memopt_status status = offloader->spills ? mo_spill_take(offloader, bytes, out_range)
                                             : mo_host_pool_take(pool, bytes, 1, out_range);
    if (status != MEMOPT_LIMIT_REACHED)
        return status;
    return mo_fail(MEMOPT_LIMIT_REACHED,
                   "offloader_reserve: %s asked, but %s of the host limit of %s are held, %s of "
                   "them by live tickets; release tickets or raise host_limit",
                   MO_SIZE(bytes), MO_SIZE(pool->held), MO_SIZE(pool->limit), MO_SIZE(pool->used));
}

/* The calling thread waits for the copies that write the range, and `writes`, those that read it. */
static memopt_status wait_for_copies(memopt_offloader *offloader, const mo_host_range *range,
                                     int writes)
{
    MO_TRY(mo_timeline_sync(&offloader->out, range->written));
    if (!writes)
        return MEMOPT_OK;
    MO_TRY(mo_timeline_sync(&offloader->back, range->read));
    return offloader->disk == NULL ? MEMOPT_OK
                                   : mo_timeline_sync(&offloader->disk->line, range->stored);
}

memopt_status memopt_offloader_reserve(memopt_offloader *offloader, uint64_t bytes,
                                       memopt_ticket *out_ticket, void **out_host)
{
    mo_packed value = {0};
    MO_NOT_NULL("offloader_reserve", offloader, out_ticket, out_host);
    MO_TRY(mo_check_process(offloader->device, "offloader_reserve"));
    if (bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_reserve: bytes is 0; a value has at least 1");
    MO_TRY(mo_tickets_reserve(offloader));
    MO_TRY(take(offloader, bytes, &value.range));
    memopt_status status = wait_for_copies(offloader, value.range, 1);
    if (status != MEMOPT_OK) {
        mo_host_pool_give(&offloader->pool, value.range);
        return status;
    }
    value.bytes = bytes;
    value.hosted = MEMOPT_HOST_WRITE;
    offloader->fixed_bytes += bytes;
    *out_ticket = add(offloader, &value);
    *out_host = value.range->base;
    return MEMOPT_OK;
}

static memopt_status check_access(const mo_packed *value, memopt_host_access access)
{
    if (access != MEMOPT_HOST_READ && access != MEMOPT_HOST_WRITE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_host: access %u is not a memopt_host_access (1 or 2)", access);
    if (value->range == NULL || !value->fixed)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "offloader_host: ticket %llu is not one of memopt_offloader_reserve()",
                       (unsigned long long)value->ticket);
    if (value->hosted != 0)
        return mo_fail(MEMOPT_BUSY,
                       "offloader_host: the host has access to ticket %llu already; call "
                       "memopt_offloader_host_end() first",
                       (unsigned long long)value->ticket);
    if (access == MEMOPT_HOST_WRITE && value->device != NULL)
        return mo_fail(MEMOPT_BUSY,
                       "offloader_host: ticket %llu (%s) is also at %p on the device, which would "
                       "keep the old value; call memopt_offloader_evict() first",
                       (unsigned long long)value->ticket, MO_SIZE(value->bytes), value->device);
    return MEMOPT_OK;
}

memopt_status memopt_offloader_host(memopt_offloader *offloader, memopt_ticket ticket,
                                    memopt_host_access access, void **out_host)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_host", &value));
    MO_NOT_NULL("offloader_host", out_host);
    MO_TRY(check_access(value, access));
    MO_TRY(wait_for_copies(offloader, value->range, access == MEMOPT_HOST_WRITE));
    value->hosted = access;
    *out_host = value->range->base;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_host_end(memopt_offloader *offloader, memopt_ticket ticket)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_host_end", &value));
    if (value->hosted == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_host_end: the host has no access to ticket %llu",
                       (unsigned long long)ticket);
    value->hosted = 0;
    return MEMOPT_OK;
}

/* --- files */

/* The timeline of reads, where the offloader has no disk tier. */
static memopt_status open_disk(memopt_offloader *offloader)
{
    int own_stream = (offloader->options.flags & MEMOPT_OFFLOADER_NULL_STREAM) == 0;
    if (offloader->disk != NULL)
        return MEMOPT_OK;
    MO_TRY(mo_disk_open(offloader->device, NULL, 0, own_stream, &offloader->disk));
    offloader->pool.disk = &offloader->disk->line;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_map_file(memopt_offloader *offloader, const char *path,
                                        uint64_t offset, uint64_t bytes, memopt_ticket *out_ticket)
{
    mo_packed value = {0};
    MO_NOT_NULL("offloader_map_file", offloader, path, out_ticket);
    MO_TRY(mo_check_process(offloader->device, "offloader_map_file"));
    if (bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_map_file: bytes is 0; a value has at least 1");
    MO_TRY(mo_tickets_reserve(offloader));
    MO_TRY(open_disk(offloader));
    MO_TRY(mo_disk_map(offloader->disk, path, offset, bytes, &value.slot));
    value.bytes = bytes;
    offloader->stats.disk_tickets++;
    offloader->stats.disk_bytes_used += bytes;
    *out_ticket = add(offloader, &value);
    return MEMOPT_OK;
}
