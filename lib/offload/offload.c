/* Making, ending and describing an offloader; offload.h describes the order of its work. */
#include "offload/offload.h"

#include "allocator/allocator.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/device.h"

static memopt_status check_options(const memopt_offloader_options *options)
{
    int spills = options->overflow == MEMOPT_OVERFLOW_SPILL;
    if (options->overflow > MEMOPT_OVERFLOW_SPILL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: overflow %u is not a memopt_overflow (0 to 3)",
                       options->overflow);
    if (spills != (options->disk_path != NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_create: %s; set both or neither",
                       spills ? "overflow is spill, but disk_path is NULL"
                              : "disk_path is given, but overflow is not spill");
    if (spills && options->host_limit == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: host_limit is 0 (no limit), so nothing would go to the "
                       "disk; set host_limit");
    if (!spills && options->disk_limit != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: disk_limit is given without disk_path");
    if ((options->flags & ~(uint32_t)MEMOPT_OFFLOADER_NULL_STREAM) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_create: flags %#x has unknown bits",
                       options->flags);
    return MEMOPT_OK;
}

/* Ends what has been made so far. Waits for the copies before the host memory goes. */
static memopt_status dismantle(memopt_offloader *offloader)
{
    mo_offload_unlisten(offloader);
    memopt_status first = mo_timeline_close(&offloader->out);
    mo_keep_first(&first, mo_timeline_close(&offloader->back));
    mo_keep_first(&first, mo_disk_close(offloader->disk));
    mo_host_pool_close(&offloader->pool);
    mo_keep_first(&first, memopt_event_destroy(offloader->ready));
    mo_free(offloader->packed);
    mo_free(offloader);
    return first;
}

/* Makes the parts. */
static memopt_status assemble(memopt_offloader *offloader)
{
    const memopt_offloader_options *options = &offloader->options;
    memopt_device *device = offloader->device;
    int own_stream = (options->flags & MEMOPT_OFFLOADER_NULL_STREAM) == 0;
    memopt_status status = mo_timeline_open(&offloader->out, device, own_stream);
    if (status == MEMOPT_OK)
        status = mo_timeline_open(&offloader->back, device, own_stream);
    if (status == MEMOPT_OK && options->disk_path != NULL)
        status = mo_disk_open(device, options->disk_path,
                              options->disk_limit == 0 ? INT64_MAX : options->disk_limit,
                              own_stream, &offloader->disk);
    offloader->options.disk_path = NULL; /* the caller's */
    mo_host_pool_open(&offloader->pool, device, &offloader->out, &offloader->back,
                      offloader->disk == NULL ? NULL : &offloader->disk->line,
                      options->host_limit == 0 ? UINT64_MAX : options->host_limit,
                      options->pinned_limit == 0 ? UINT64_MAX : options->pinned_limit);
    return status == MEMOPT_OK ? memopt_event_create(device, 0, &offloader->ready) : status;
}

memopt_status memopt_offloader_create(memopt_device *device, memopt_allocator *allocator,
                                      const memopt_offloader_options *options,
                                      memopt_offloader **out_offloader)
{
    memopt_offloader_options read;
    MO_NOT_NULL("offloader_create", device, allocator, out_offloader);
    MO_TRY(mo_check_process(device, "offloader_create"));
    if (mo_allocator_device(allocator) != device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_create: the allocator is of another device");
    MO_TRY(mo_options_read(&read, sizeof read, options, "memopt_offloader_options"));
    MO_TRY(check_options(&read));
    memopt_offloader *offloader = mo_calloc(1, sizeof *offloader);
    if (offloader == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    offloader->device = device;
    offloader->allocator = allocator;
    offloader->options = read;
    offloader->spills = read.overflow == MEMOPT_OVERFLOW_SPILL;
    offloader->stats.struct_size = sizeof offloader->stats;
    mo_offload_listen(offloader);
    memopt_status status = assemble(offloader);
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
    MO_TRY(mo_check_process(offloader->device, "offloader_destroy"));
    if (offloader->stats.tickets != 0)
        return mo_fail(MEMOPT_BUSY,
                       "offload: %llu tickets are not released (%s on the host, %s kept on the "
                       "device); release them or use memopt_offloader_destroy_force()",
                       (unsigned long long)offloader->stats.tickets, MO_SIZE(offloader->pool.used),
                       MO_SIZE(offloader->stats.kept_bytes));
    int lost = mo_device_lost(offloader->device);
    return mo_end_status(lost, dismantle(offloader));
}

/* Ends a ticket without its owner. unpack recorded the streams that use its memory. The offloader's
 * own stream is alive and comes after the work that wrote the value.
 */
static memopt_status abandon(memopt_offloader *offloader, mo_packed *value)
{
    memopt_stream last = offloader->out.stream;
    memopt_status status = mo_offload_drop(offloader, value, last);
    if (status == MEMOPT_OK)
        return status;
    /* The block would leak with the ticket: try again after all work has ended. */
    (void)memopt_device_sync(offloader->device);
    return mo_offload_drop(offloader, value, last) == MEMOPT_OK ? MEMOPT_OK : status;
}

memopt_status memopt_offloader_destroy_force(memopt_offloader *offloader)
{
    memopt_status first = MEMOPT_OK;
    if (offloader == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(offloader->device, "offloader_destroy_force"));
    int lost = mo_device_lost(offloader->device);
    for (uint64_t i = 0; i < offloader->packed_count; i++) {
        if (offloader->packed[i].ticket == 0)
            continue;
        mo_keep_first(&first, abandon(offloader, &offloader->packed[i]));
    }
    mo_keep_first(&first, dismantle(offloader));
    return mo_end_status(lost, first);
}

memopt_status memopt_offloader_trim_sync(memopt_offloader *offloader, uint64_t *out_released)
{
    uint64_t released = 0;
    MO_NOT_NULL("offloader_trim_sync", offloader);
    MO_TRY(mo_check_process(offloader->device, "offloader_trim_sync"));
    MO_TRY(mo_host_pool_trim(&offloader->pool, &released));
    if (offloader->disk != NULL)
        mo_disk_trim(offloader->disk);
    if (out_released != NULL)
        *out_released = released;
    return MEMOPT_OK;
}

static void describe_disk(mo_disk *disk, memopt_offloader_stats *stats)
{
    mo_disk_sweep(disk);
    stats->disk_bytes = disk->extents.used;
    stats->disk_bytes_peak = disk->extents.used_peak;
    stats->disk_written_bytes = atomic_load_explicit(&disk->written, memory_order_relaxed);
    stats->disk_read_bytes = atomic_load_explicit(&disk->read, memory_order_relaxed);
}

memopt_status memopt_offloader_get_stats(memopt_offloader *offloader,
                                         memopt_offloader_stats *out_stats)
{
    MO_NOT_NULL("offloader_get_stats", offloader);
    MO_TRY(mo_check_process(offloader->device, "offloader_get_stats"));
    memopt_offloader_stats now = offloader->stats;
    now.host_bytes = offloader->pool.held;
    now.host_bytes_peak = offloader->pool.held_peak;
    now.host_bytes_used = offloader->pool.used;
    now.waits = offloader->pool.waits;
    now.pageable_bytes = offloader->pool.pageable;
    if (offloader->disk != NULL)
        describe_disk(offloader->disk, &now);
    return mo_result_write(out_stats, &now, sizeof now, "memopt_offloader_stats");
}
