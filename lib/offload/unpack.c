/* Bringing values back and ending tickets; see offload.h for the order of the work. */
#include "offload/offload.h"

#include "allocator/allocator.h"
#include "base/error.h"
#include "device/device.h"

/* A copy back. */
typedef struct transfer {
    mo_packed *value;
    void *destination;
    memopt_stream stream; /* in whose order destination is free */
    mo_fetch where;       /* who owns the destination */
    int wait;             /* 1: wait for host memory to read the disk into */
} transfer;

/* Makes `back` wait until the value is in `range`; the caller where that is pageable, since a driver may
 * read pageable memory when a copy is enqueued. */
static memopt_status follow_value(memopt_offloader *offloader, const mo_packed *value,
                                  const mo_host_range *range)
{
    int from_disk = value->range == NULL;
    mo_timeline *line = from_disk ? &offloader->disk->line : &offloader->out;
    uint64_t mark = from_disk ? value->slot->mark : value->written;
    return range->slab->block != NULL ? mo_timeline_sync(line, mark)
                                      : mo_timeline_order(line, mark, offloader->back.stream);
}

/* Enqueues the copy from host memory that has, or will have, the value, and then the mark. */
static memopt_status enqueue_copy(memopt_offloader *offloader, const transfer *t,
                                  mo_host_range *range, uint64_t *out_mark)
{
    memopt_stream back = offloader->back.stream;
    MO_TRY(mo_offload_follow(offloader, t->stream, back));
    MO_TRY(follow_value(offloader, t->value, range));
    MO_TRY(memopt_copy(offloader->device, t->destination, range->base, t->value->bytes, back));
    MO_TRY(mo_timeline_mark(&offloader->back, out_mark));
    range->read = *out_mark;
    return MEMOPT_OK;
}

/* Enqueues what brings a value to its destination. On failure nothing is pending. */
static memopt_status enqueue_back(memopt_offloader *offloader, const transfer *t,
                                  uint64_t *out_mark)
{
    mo_packed *value = t->value;
    mo_host_range *range = value->range;
    memopt_status status = MEMOPT_OK;
    if (value->hosted == MEMOPT_HOST_WRITE)
        return mo_fail(MEMOPT_BUSY,
                       "offload: the host writes ticket %llu (%s); call "
                       "memopt_offloader_host_end() before it is copied",
                       (unsigned long long)value->ticket, MO_SIZE(value->bytes));
    if (range == NULL)
        status = mo_fetch_start(offloader, value, t->where, &range);
    if (status == MEMOPT_OK) {
        status = enqueue_copy(offloader, t, range, out_mark);
        if (value->range == NULL)
            mo_host_pool_give(&offloader->pool, range);
    } else if (status == MEMOPT_LIMIT_REACHED && t->wait) {
        *out_mark = 0;
        status = mo_fetch_slowly(offloader, value, t->destination, t->stream);
    }
    if (status == MEMOPT_OK)
        offloader->stats.copied_back_bytes += value->bytes;
    return status;
}

/* Frees the ticket's device memory behind every stream that uses it. */
static memopt_status drop_device(memopt_offloader *offloader, mo_packed *value,
                                 memopt_stream stream)
{
    const memopt_stream users[] = {stream, offloader->back.stream};
    int on_back = value->origin == MO_ORIGIN_HOST && !value->awaited;
    mo_taken *taken;
    if (value->origin == MO_ORIGIN_KEPT && stream != mo_offload_writer(offloader, value))
        MO_TRY(mo_timeline_order(&offloader->out, value->written, stream));
    MO_TRY(mo_allocator_take(offloader->allocator, value->device, value->bytes, &taken));
    MO_TRY(mo_allocator_record_taken(offloader->allocator, taken, users, on_back ? 2 : 1));
    mo_allocator_free_taken(offloader->allocator, taken);
    return MEMOPT_OK;
}

/* The oldest of the values that came ahead: no stream of the caller waits for them. Those that the
 * disk is reading stay. NULL: there is none. */
static mo_packed *farthest_ahead(memopt_offloader *offloader)
{
    mo_packed *oldest = NULL;
    for (uint64_t i = 0; i < offloader->packed_count; i++) {
        mo_packed *value = &offloader->packed[i];
        if (value->ticket != 0 && value->device != NULL && value->origin == MO_ORIGIN_HOST &&
            !value->awaited && value->fetching == MO_FETCH_NONE &&
            (oldest == NULL || value->ticket < oldest->ticket))
            oldest = value;
    }
    return oldest;
}

/* Frees the device memory of such values, `bytes` of it if there is so much: backward needs the
 * oldest last. */
static memopt_status give_way(memopt_offloader *offloader, uint64_t bytes, uint64_t *out_bytes)
{
    uint64_t freed = 0;
    mo_packed *value = NULL;
    while (freed < bytes && (value = farthest_ahead(offloader)) != NULL) {
        MO_TRY(drop_device(offloader, value, mo_offload_writer(offloader, value)));
        value->device = NULL;
        value->prefetched = 0;
        freed += value->bytes;
    }
    *out_bytes = freed;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_give_way(memopt_offloader *offloader, uint64_t bytes,
                                        uint64_t *out_bytes)
{
    MO_NOT_NULL("offloader_give_way", offloader, out_bytes);
    MO_TRY(mo_check_process(offloader->device, "offloader_give_way"));
    if (offloader->prefetching) {
        *out_bytes = 0;
        return MEMOPT_OK;
    }
    return give_way(offloader, bytes, out_bytes);
}

/* Device memory for a value. What is needed takes that of values which came ahead of need, and a
 * prefetch does not. */
static memopt_status find_room(memopt_offloader *offloader, const mo_packed *value,
                               memopt_stream stream, int needed, void **out_device)
{
    for (;;) {
        offloader->prefetching = !needed;
        memopt_status status = memopt_allocator_alloc(offloader->allocator, value->bytes,
                                                      MEMOPT_TAG_ACTIVATIONS, stream, out_device);
        offloader->prefetching = 0;
        uint64_t freed = 0;
        if (status != MEMOPT_OUT_OF_DEVICE_MEMORY || !needed)
            return status;
        if (give_way(offloader, value->bytes, &freed) != MEMOPT_OK || freed == 0)
            return status;
    }
}

/* Starts bringing a value to new device memory, allocated in the order of `stream`. */
static memopt_status bring(memopt_offloader *offloader, mo_packed *value, memopt_stream stream,
                           int wait)
{
    void *device = NULL;
    uint64_t mark = 0;
    MO_TRY(mo_timeline_reserve(&offloader->back));
    MO_TRY(find_room(offloader, value, stream, wait, &device));
    transfer t = {value, device, stream, MO_FETCH_OWN, wait};
    memopt_status status = enqueue_back(offloader, &t, &mark);
    if (status != MEMOPT_OK) {
        (void)memopt_allocator_free(offloader->allocator, device);
        return status;
    }
    value->device = device;
    value->brought = mark;
    value->awaited = 0;
    value->prefetched = 0;
    return MEMOPT_OK;
}

/* Checks that the value arrived. If the disk did not return it, frees its new memory behind the
 * copy. */
static memopt_status arrive(memopt_offloader *offloader, mo_packed *value)
{
    memopt_status status = mo_fetch_finish(offloader, value);
    if (status == MEMOPT_OK || value->fetching != MO_FETCH_NONE || value->device == NULL)
        return status;
    if (memopt_allocator_record_stream(offloader->allocator, value->device,
                                       offloader->back.stream) != MEMOPT_OK)
        (void)mo_timeline_sync(&offloader->back, value->brought);
    if (memopt_allocator_free(offloader->allocator, value->device) == MEMOPT_OK)
        value->device = NULL;
    return status;
}

/* Tells the allocator that `stream` uses the ticket's device memory. */
static memopt_status record_user(memopt_offloader *offloader, const mo_packed *value,
                                 memopt_stream stream)
{
    if (value->origin == MO_ORIGIN_BORROWED)
        return MEMOPT_OK;
    return memopt_allocator_record_stream(offloader->allocator, value->device, stream);
}

/* Makes the ticket's device memory readable in the order of `stream`. */
static memopt_status make_ready(memopt_offloader *offloader, mo_packed *value, memopt_stream stream)
{
    memopt_status status = record_user(offloader, value, stream);
    if (status != MEMOPT_OK)
        return status;
    if (value->origin == MO_ORIGIN_HOST) {
        status = mo_timeline_order(&offloader->back, value->brought, stream);
        if (status == MEMOPT_OK)
            value->awaited = 1;
        return status;
    }
    return stream == mo_offload_writer(offloader, value)
               ? MEMOPT_OK
               : mo_timeline_order(&offloader->out, value->written, stream);
}

memopt_status memopt_offloader_prefetch(memopt_offloader *offloader, memopt_ticket ticket)
{
    mo_packed *value = NULL;
    memopt_status status = mo_tickets_find(offloader, ticket, "offloader_prefetch", &value);
    if (status != MEMOPT_OK || value->device != NULL)
        return status;
    memopt_stream stream = mo_offload_writer(offloader, value);
    status = mo_offload_check_stream(offloader, stream, "offloader_prefetch");
    if (status == MEMOPT_OK)
        status = bring(offloader, value, stream, 0);
    if (status == MEMOPT_LIMIT_REACHED && value->slot != NULL)
        return MEMOPT_OK; /* unpack will wait for the disk */
    if (status == MEMOPT_OK)
        value->prefetched = 1;
    return status;
}

/* Counts the first use of a value that was prefetched. */
static void count_hit(memopt_offloader *offloader, mo_packed *value)
{
    offloader->stats.prefetch_hits += (uint64_t)value->prefetched;
    value->prefetched = 0;
}

memopt_status memopt_offloader_unpack(memopt_offloader *offloader, memopt_ticket ticket,
                                      memopt_stream stream, void **out_data)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_unpack", &value));
    MO_NOT_NULL("offloader_unpack", out_data);
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_unpack"));
    if (value->device == NULL)
        MO_TRY(bring(offloader, value, stream, 1));
    MO_TRY(arrive(offloader, value));
    MO_TRY(make_ready(offloader, value, stream));
    count_hit(offloader, value);
    *out_data = value->device;
    return MEMOPT_OK;
}

/* From the ticket's device memory, directly on the caller's stream. */
static memopt_status copy_from_device(memopt_offloader *offloader, mo_packed *value,
                                      void *destination, memopt_stream stream)
{
    memopt_status status = arrive(offloader, value);
    if (status == MEMOPT_OK)
        status = make_ready(offloader, value, stream);
    if (status != MEMOPT_OK || destination == value->device)
        return status;
    return memopt_copy(offloader->device, destination, value->device, value->bytes, stream);
}

/* The same on `back`, so that all copies into the caller's memory are in one order. */
static memopt_status start_from_device(memopt_offloader *offloader, mo_packed *value,
                                       void *destination, memopt_stream stream)
{
    memopt_stream back = offloader->back.stream;
    MO_TRY(mo_timeline_reserve(&offloader->back));
    MO_TRY(mo_offload_follow(offloader, stream, back));
    MO_TRY(copy_from_device(offloader, value, destination, back));
    return mo_timeline_mark(&offloader->back, &value->into);
}

static memopt_status start_from_host(memopt_offloader *offloader, const transfer *t)
{
    MO_TRY(mo_timeline_reserve(&offloader->back));
    return enqueue_back(offloader, t, &t->value->into);
}

static memopt_status copy_from_host(memopt_offloader *offloader, mo_packed *value,
                                    void *destination, memopt_stream stream)
{
    transfer t = {value, destination, stream, MO_FETCH_OWN, 1};
    MO_TRY(start_from_host(offloader, &t));
    memopt_status status = mo_timeline_order(&offloader->back, value->into, stream);
    if (status == MEMOPT_OK)
        status = mo_fetch_finish(offloader, value);
    if (status != MEMOPT_OK) /* no copy into the caller's memory may be pending after an error */
        (void)mo_timeline_sync(&offloader->back, value->into);
    return status;
}

/* The ticket of a call that copies into the caller's memory. */
static memopt_status find_for(memopt_offloader *offloader, memopt_ticket ticket, const char *call,
                              const void *destination, uint64_t bytes, mo_packed **out_value)
{
    memopt_status status = mo_tickets_find(offloader, ticket, call, out_value);
    if (status == MEMOPT_OK && (destination == NULL || bytes < (*out_value)->bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s; the ticket has %llu bytes", call,
                       destination == NULL ? "destination is NULL" : "bytes is too small",
                       (unsigned long long)(*out_value)->bytes);
    return status;
}

memopt_status memopt_offloader_prefetch_into(memopt_offloader *offloader, memopt_ticket ticket,
                                             void *destination, uint64_t bytes,
                                             memopt_stream stream)
{
    mo_packed *value = NULL;
    MO_TRY(find_for(offloader, ticket, "offloader_prefetch_into", destination, bytes, &value));
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_prefetch_into"));
    transfer t = {value, destination, stream, MO_FETCH_INTO, 0};
    MO_TRY(value->device != NULL ? start_from_device(offloader, value, destination, stream)
                                 : start_from_host(offloader, &t));
    value->prefetched = 1;
    return MEMOPT_OK;
}

/* The disk's result of the copies into the caller's memory; a failure is reported once. */
static memopt_status look_at_copies(memopt_offloader *offloader, mo_packed *value)
{
    memopt_status status = mo_fetch_finish(offloader, value);
    if (status == MEMOPT_OK && value->spoilt)
        status = mo_fail(MEMOPT_IO_ERROR,
                         "offloader_wait_unpacked: a copy of %s of the ticket could "
                         "not be read from the disk",
                         MO_SIZE(value->bytes));
    if (value->fetching == MO_FETCH_NONE)
        value->spoilt = 0;
    return status;
}

memopt_status memopt_offloader_wait_unpacked(memopt_offloader *offloader, memopt_ticket ticket,
                                             memopt_stream stream)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_wait_unpacked", &value));
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_wait_unpacked"));
    memopt_status status = look_at_copies(offloader, value);
    /* what was not read is copied, too */
    mo_keep_first(&status, mo_timeline_order(&offloader->back, value->into, stream));
    MO_TRY(status);
    count_hit(offloader, value);
    return MEMOPT_OK;
}

memopt_status mo_offloader_unpack_into(memopt_offloader *offloader, memopt_ticket ticket,
                                       void *destination, uint64_t bytes, memopt_stream stream)
{
    mo_packed *value = NULL;
    MO_TRY(find_for(offloader, ticket, "offloader_request_unpack", destination, bytes, &value));
    MO_TRY(mo_offload_check_stream(offloader, stream, "offloader_request_unpack"));
    MO_TRY(mo_reachable(offloader->device, "offloader_request_unpack: destination of ticket",
                        ticket, destination, value->bytes));
    MO_TRY(value->device != NULL ? copy_from_device(offloader, value, destination, stream)
                                 : copy_from_host(offloader, value, destination, stream));
    count_hit(offloader, value);
    return MEMOPT_OK;
}

memopt_status memopt_offloader_evict(memopt_offloader *offloader, memopt_ticket ticket,
                                     memopt_stream stream)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_evict", &value));
    if (value->origin != MO_ORIGIN_HOST)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "offloader_evict: ticket %llu (%s) was kept on the device and is nowhere "
                       "else; release it",
                       (unsigned long long)ticket, MO_SIZE(value->bytes));
    if (value->device != NULL && value->fetching == MO_FETCH_OWN)
        (void)arrive(offloader, value); /* where the disk failed, the memory is gone */
    if (value->device == NULL)
        return MEMOPT_OK;
    MO_TRY(drop_device(offloader, value, stream));
    value->device = NULL;
    value->prefetched = 0;
    return MEMOPT_OK;
}

memopt_status mo_offload_drop(memopt_offloader *offloader, mo_packed *value, memopt_stream stream)
{
    if (value->device != NULL && value->origin != MO_ORIGIN_BORROWED)
        MO_TRY(drop_device(offloader, value, stream));
    mo_spill_forget(offloader, value);
    if (value->range != NULL)
        mo_host_pool_give(&offloader->pool, value->range);
    if (value->origin != MO_ORIGIN_HOST)
        offloader->stats.kept_bytes -= value->bytes;
    mo_tickets_remove(offloader, value);
    return MEMOPT_OK;
}

memopt_status memopt_offloader_release(memopt_offloader *offloader, memopt_ticket ticket,
                                       memopt_stream stream)
{
    mo_packed *value = NULL;
    MO_TRY(mo_tickets_find(offloader, ticket, "offloader_release", &value));
    return mo_offload_drop(offloader, value, stream);
}

memopt_status memopt_offloader_release_many(memopt_offloader *offloader,
                                            const memopt_ticket *tickets, uint64_t count,
                                            memopt_stream stream, uint64_t *out_released)
{
    memopt_status status = MEMOPT_OK;
    uint64_t released = 0;
    if (offloader == NULL || out_released == NULL || (tickets == NULL && count != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_release_many: %s is NULL",
                       offloader == NULL      ? "offloader"
                       : out_released == NULL ? "out_released"
                                              : "tickets");
    MO_TRY(mo_check_process(offloader->device, "offloader_release_many"));
    while (released < count && status == MEMOPT_OK) {
        status = memopt_offloader_release(offloader, tickets[released], stream);
        released += status == MEMOPT_OK;
    }
    *out_released = released;
    return status;
}
