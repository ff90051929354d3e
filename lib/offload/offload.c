/* Making, ending and describing an offloader; the order of its work is told in offload.h. */
#include "offload/offload.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/device.h"

uint32_t mo_offload_omitted;

static memopt_status check_options(const memopt_offloader_options *options)
{
    if (options->overflow > MEMOPT_OVERFLOW_FAIL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: overflow %u is no memopt_overflow (0 to 2)",
                       options->overflow);
    if ((options->flags & ~(uint32_t)MEMOPT_OFFLOADER_NULL_STREAM) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_create: flags %#x has unknown ones",
                       options->flags);
    return MEMOPT_OK;
}

/* Ends what has been made so far. Waits for the copies before the host memory goes. */
static memopt_status dismantle(memopt_offloader *offloader)
{
    memopt_status first = mo_timeline_close(&offloader->out);
    memopt_status status = mo_timeline_close(&offloader->back);
    if (first == MEMOPT_OK)
        first = status;
    mo_host_pool_close(&offloader->pool);
    status = memopt_event_destroy(offloader->ready);
    if (first == MEMOPT_OK)
        first = status;
    mo_free(offloader->packed);
    mo_free(offloader);
    return first;
}

memopt_status memopt_offloader_create(memopt_device *device, memopt_allocator *allocator,
                                      const memopt_offloader_options *options,
                                      memopt_offloader **out_offloader)
{
    memopt_offloader_options read;
    if (device == NULL || allocator == NULL || out_offloader == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_create: %s is NULL",
                       device == NULL      ? "device"
                       : allocator == NULL ? "allocator"
                                           : "out_offloader");
    if (memopt_allocator_device(allocator) != device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: the allocator is of another device");
    memopt_status status = mo_options_read(&read, sizeof read, options, "memopt_offloader_options");
    if (status == MEMOPT_OK)
        status = check_options(&read);
    if (status != MEMOPT_OK)
        return status;

    memopt_offloader *offloader = mo_calloc(1, sizeof *offloader);
    if (offloader == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    offloader->device = device;
    offloader->allocator = allocator;
    offloader->options = read;
    offloader->stats.struct_size = sizeof offloader->stats;
    mo_host_pool_open(&offloader->pool, device, &offloader->out, &offloader->back,
                      read.host_limit == 0 ? UINT64_MAX : read.host_limit);
    int own_stream = (read.flags & MEMOPT_OFFLOADER_NULL_STREAM) == 0;
    status = mo_timeline_open(&offloader->out, device, own_stream);
    if (status == MEMOPT_OK)
        status = mo_timeline_open(&offloader->back, device, own_stream);
    if (status == MEMOPT_OK)
        status = memopt_event_create(device, 0, &offloader->ready);
    if (status != MEMOPT_OK) {
        (void)dismantle(offloader);
        return status;
    }
    *out_offloader = offloader;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_destroy(memopt_offloader *offloader)
{
    if (offloader == NULL)
        return MEMOPT_OK;
    if (offloader->stats.tickets != 0)
        return mo_fail(MEMOPT_BUSY,
                       "offload: %llu tickets are not released (%s on the host, %s kept on the "
                       "device); release them or use memopt_offloader_destroy_force()",
                       (unsigned long long)offloader->stats.tickets, MO_SIZE(offloader->pool.used),
                       MO_SIZE(offloader->stats.kept_bytes));
    int lost = mo_device_lost(offloader->device);
    return mo_end_status(lost, dismantle(offloader));
}

/* Ends a ticket without its owner. Streams that use its memory were told to the allocator by
 * unpack; what wrote a kept value is behind the offloader's own stream by now, which is alive for
 * sure. */
static memopt_status abandon(memopt_offloader *offloader, mo_packed *value)
{
    memopt_stream last =
        value->origin == MO_ORIGIN_HOST ? value->device_stream : offloader->out.stream;
    memopt_status status = mo_offload_drop(offloader, value, last);
    if (status == MEMOPT_OK)
        return status;
    /* The block would be lost with the ticket: once more, when nothing uses it any longer. */
    (void)memopt_device_sync(offloader->device);
    return mo_offload_drop(offloader, value, last) == MEMOPT_OK ? MEMOPT_OK : status;
}

memopt_status memopt_offloader_destroy_force(memopt_offloader *offloader)
{
    memopt_status first = MEMOPT_OK;
    if (offloader == NULL)
        return MEMOPT_OK;
    int lost = mo_device_lost(offloader->device);
    for (uint64_t i = 0; i < offloader->packed_count; i++) {
        if (offloader->packed[i].ticket == 0)
            continue;
        memopt_status status = abandon(offloader, &offloader->packed[i]);
        if (first == MEMOPT_OK)
            first = status;
    }
    memopt_status status = dismantle(offloader);
    return mo_end_status(lost, first != MEMOPT_OK ? first : status);
}

memopt_status mo_offload_check_stream(const memopt_offloader *offloader, memopt_stream stream,
                                      const char *call)
{
    int32_t capturing = 0;
    memopt_status status = mo_stream_capturing(offloader->device, stream, &capturing);
    if (status == MEMOPT_OK && capturing)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: stream %p records a graph; a replay would copy from and to memory that "
                       "has gone to other values. Offload outside of the capture",
                       call, (void *)stream);
    return status;
}

memopt_status mo_offload_follow(memopt_offloader *offloader, memopt_stream stream,
                                memopt_stream waiter)
{
    if (stream == waiter)
        return MEMOPT_OK;
    memopt_status status = memopt_event_record(offloader->ready, stream);
    if (status == MEMOPT_OK)
        status = memopt_stream_wait_event(offloader->device, waiter, offloader->ready);
    return status;
}

memopt_status memopt_offloader_trim(memopt_offloader *offloader, uint64_t *out_released)
{
    uint64_t released = 0;
    if (offloader == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_trim: offloader is NULL");
    memopt_status status = mo_host_pool_trim(&offloader->pool, &released);
    if (status == MEMOPT_OK && out_released != NULL)
        *out_released = released;
    return status;
}

memopt_status memopt_offloader_get_stats(memopt_offloader *offloader,
                                         memopt_offloader_stats *out_stats)
{
    if (offloader == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_get_stats: offloader is NULL");
    memopt_offloader_stats now = offloader->stats;
    now.host_bytes = offloader->pool.held;
    now.host_bytes_peak = offloader->pool.held_peak;
    now.host_bytes_used = offloader->pool.used;
    now.waits = offloader->pool.waits;
    return mo_result_write(out_stats, &now, sizeof now, "memopt_offloader_stats");
}
