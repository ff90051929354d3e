/* Packing: from the device to the host; see offload.h for the order of the work. */
#include "offload/offload.h"

#include "allocator/allocator.h"
#include "base/error.h"
#include "device/device.h"

/* What a pack is about to do. */
typedef struct request {
    void *data;
    uint64_t bytes;
    memopt_stream stream;
    int owned;       /* data is a block to take over */
    mo_taken *taken; /* that block, once it is found */
} request;

static memopt_status check_request(memopt_offloader *offloader, request *r, const char *call,
                                   const void *out)
{
    if (offloader == NULL || r->data == NULL || out == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is NULL", call,
                       offloader == NULL ? "offloader"
                       : r->data == NULL ? "data"
                                         : "an output pointer");
    MO_TRY(mo_check_process(offloader->device, call));
    if (r->bytes == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: bytes is 0; a value has at least 1", call);
    MO_TRY(mo_offload_check_stream(offloader, r->stream, call));
    return r->owned ? mo_allocator_take(offloader->allocator, r->data, r->bytes, &r->taken)
                    : mo_reachable(offloader->device, "offloader_request_pack: value", 0, r->data,
                                   r->bytes);
}

static memopt_status limit_reached(const memopt_offloader *offloader, uint64_t bytes)
{
    const mo_host_pool *pool = &offloader->pool;
    return mo_fail(MEMOPT_LIMIT_REACHED,
                   "offload: %s to pack, but %s of the host limit of %s are held, %s of them by "
                   "%llu live tickets; release tickets, raise host_limit, or use the keep policy",
                   MO_SIZE(bytes), MO_SIZE(pool->held), MO_SIZE(pool->limit), MO_SIZE(pool->used),
                   (unsigned long long)offloader->stats.tickets);
}

/* Finds host memory for the value, or leaves *out_range NULL if the value stays on the device. */
static memopt_status choose_place(memopt_offloader *offloader, uint64_t bytes,
                                  mo_host_range **out_range)
{
    uint32_t policy = offloader->options.overflow;
    int nothing_gained = mo_device_unified(offloader->device) && policy != MEMOPT_OVERFLOW_SPILL;
    if (bytes < offloader->options.min_bytes || nothing_gained) {
        *out_range = NULL;
        return MEMOPT_OK;
    }
    memopt_status status =
        policy == MEMOPT_OVERFLOW_SPILL
            ? mo_spill_take(offloader, bytes, out_range)
            : mo_host_pool_take(&offloader->pool, bytes, policy == MEMOPT_OVERFLOW_WAIT, out_range);
    if (status != MEMOPT_LIMIT_REACHED)
        return status;
    if (policy == MEMOPT_OVERFLOW_WAIT || policy == MEMOPT_OVERFLOW_FAIL)
        return limit_reached(offloader, bytes);
    *out_range = NULL;
    return MEMOPT_OK;
}

/* Enqueues the copy, none where range is NULL, and the mark behind it. A block that is taken over is
 * recorded before the mark: who waits for the mark finds it free. */
static memopt_status enqueue(memopt_offloader *offloader, const request *r,
                             const mo_host_range *range, uint64_t *out_mark)
{
    const memopt_stream out = offloader->out.stream;
    MO_TRY(mo_offload_follow(offloader, r->stream, out));
    if (range != NULL) {
        MO_TRY(mo_timeline_order(&offloader->back, range->read, out));
        if (offloader->disk != NULL)
            MO_TRY(mo_timeline_order(&offloader->disk->line, range->stored, out));
        MO_TRY(memopt_copy(offloader->device, range->base, r->data, r->bytes, out));
    }
    if (range != NULL && r->owned) {
        memopt_status status = mo_allocator_record_taken(offloader->allocator, r->taken, &out, 1);
        if (status != MEMOPT_OK) {
            (void)memopt_stream_sync(offloader->device, out);
            return status;
        }
    }
    return mo_timeline_mark(&offloader->out, out_mark);
}

static void count(memopt_offloader *offloader, const mo_packed *value)
{
    memopt_offloader_stats *stats = &offloader->stats;
    stats->packs++;
    if (value->range != NULL) {
        stats->copied_out_bytes += value->bytes;
        return;
    }
    stats->kept_bytes += value->bytes;
    if (value->bytes < offloader->options.min_bytes)
        stats->kept_small++;
    else
        stats->kept_overflow++;
}

static memopt_status pack(memopt_offloader *offloader, const request *r, memopt_ticket *out_ticket,
                          int32_t *out_kept)
{
    mo_host_range *range = NULL;
    uint64_t mark = 0;
    MO_TRY(mo_tickets_reserve(offloader));
    MO_TRY(mo_timeline_reserve(&offloader->out));
    MO_TRY(choose_place(offloader, r->bytes, &range));
    memopt_status status = enqueue(offloader, r, range, &mark);
    if (status != MEMOPT_OK) {
        if (range != NULL)
            mo_host_pool_give(&offloader->pool, range);
        return status;
    }
    if (range != NULL)
        range->written = mark;
    if (range != NULL && r->owned)
        mo_allocator_free_taken(offloader->allocator, r->taken);
    mo_packed value = {0};
    value.bytes = r->bytes;
    value.range = range;
    value.device = range != NULL ? NULL : r->data;
    value.pack_stream = r->stream;
    value.written = mark;
    value.origin = range != NULL ? MO_ORIGIN_HOST : r->owned ? MO_ORIGIN_KEPT : MO_ORIGIN_BORROWED;
    count(offloader, &value);
    *out_ticket = mo_tickets_add(offloader, &value);
    if (range != NULL)
        mo_spill_packed(offloader, *out_ticket);
    *out_kept = range == NULL;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_pack(memopt_offloader *offloader, void *data, uint64_t bytes,
                                    memopt_stream stream, memopt_ticket *out_ticket)
{
    request r = {data, bytes, stream, 1, NULL};
    int32_t kept;
    MO_TRY(check_request(offloader, &r, "offloader_pack", out_ticket));
    return pack(offloader, &r, out_ticket, &kept);
}

memopt_status mo_offloader_pack_borrowed(memopt_offloader *offloader, const void *data,
                                         uint64_t bytes, memopt_stream stream,
                                         memopt_ticket *out_ticket, int32_t *out_kept)
{
    /* Only unpack returns the pointer, unchanged, to the caller. */
    request r = {(void *)(uintptr_t)data, bytes, stream, 0, NULL};
    MO_TRY(check_request(offloader, &r, "offloader_request_pack",
                         out_ticket != NULL ? (const void *)out_kept : NULL));
    return pack(offloader, &r, out_ticket, out_kept);
}

/* What a rewrite may not meet. */
static memopt_status check_rewrite(const memopt_offloader *offloader, const mo_packed *value,
                                   const void *data)
{
    if (value->range == NULL || !value->fixed)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "offloader_rewrite: ticket %llu is not one of memopt_offloader_reserve(); "
                       "pack the new value and release the old one",
                       (unsigned long long)value->ticket);
    if (value->hosted != 0)
        return mo_fail(MEMOPT_BUSY,
                       "offloader_rewrite: the host has access to ticket %llu (%s); call "
                       "memopt_offloader_host_end() first",
                       (unsigned long long)value->ticket, MO_SIZE(value->bytes));
    if (value->device != NULL && value->device != data)
        return mo_fail(
            MEMOPT_BUSY,
            "offloader_rewrite: ticket %llu is also at %p on the device; rewrite it from "
            "there, or call memopt_offloader_evict() first",
            (unsigned long long)value->ticket, value->device);
    return mo_reachable(offloader->device, "offloader_rewrite: data of ticket", value->ticket, data,
                        value->bytes);
}

memopt_status memopt_offloader_rewrite(memopt_offloader *offloader, memopt_ticket ticket,
                                       const void *data, memopt_stream stream)
{
    mo_packed *value = NULL;
    uint64_t mark = 0;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_rewrite", &value));
    MO_NOT_NULL("offloader_rewrite", data);
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_rewrite"));
    MO_TRY(check_rewrite(offloader, value, data));
    MO_TRY(mo_timeline_reserve(&offloader->out));
    if (value->device != NULL) /* evict and release free it: only after this copy */
        MO_TRY(memopt_allocator_record_stream(offloader->allocator, value->device,
                                              offloader->out.stream));
    request r = {(void *)(uintptr_t)data, value->bytes, stream, 0, NULL};
    MO_TRY(enqueue(offloader, &r, value->range, &mark));
    value->range->written = value->written = mark;
    offloader->stats.copied_out_bytes += value->bytes;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_wait_packed(memopt_offloader *offloader, memopt_ticket ticket,
                                           memopt_stream stream)
{
    mo_packed *value = NULL;
    memopt_status status = mo_tickets_find(offloader, ticket, "offloader_wait_packed", &value);
    if (status != MEMOPT_OK || value->range == NULL)
        return status;
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_wait_packed"));
    return mo_timeline_order(&offloader->out, value->written, stream);
}

memopt_status memopt_offloader_query_packed(memopt_offloader *offloader, memopt_ticket ticket)
{
    mo_packed *value = NULL;
    int done = 1;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_query_packed", &value));
    if (value->range != NULL)
        MO_TRY(mo_timeline_query(&offloader->out, value->written, &done));
    return done ? MEMOPT_OK : MEMOPT_NOT_READY;
}
