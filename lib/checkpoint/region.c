/* Making, ending and describing a region; region.h describes the states. */
#include "checkpoint/region.h"

#include "allocator/allocator.h"

#include "base/memory.h"
#include "base/options.h"
#include "device/device.h"

static memopt_status check_options(const memopt_region_callbacks *callbacks,
                                   const memopt_region_options *options)
{
    if (callbacks->run == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "region_create: the run callback is NULL");
    if ((callbacks->random_save == NULL) != (callbacks->random_restore == NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_create: random_save and random_restore must be set together");
    if ((callbacks->random_save == NULL) != (options->random_bytes == 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_create: random_bytes is %llu but random_save is %s; set both or "
                       "neither",
                       (unsigned long long)options->random_bytes,
                       callbacks->random_save == NULL ? "NULL" : "set");
    if (options->mode > MEMOPT_REGION_KEEP)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_create: mode %u is not a memopt_region_mode (0 or 1)",
                       options->mode);
    if (options->check > MEMOPT_CHECK_EXACT)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_create: check %u is not a memopt_region_check_mode (0 to 2)",
                       options->check);
    return MEMOPT_OK;
}

/* Frees the existing parts; each may be missing. */
static void free_host_memory(memopt_region *region)
{
    mo_free(region->leases);
    mo_free(region->checks);
    mo_free(region->random_first);
    mo_free(region->random_now);
    mo_free(region->name);
    mo_free(region);
}

static memopt_status fill(memopt_region *region, const memopt_region_options *options)
{
    region->name = mo_strdup(options->name != NULL ? options->name : "region");
    if (region->name == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    region->random_bytes = options->random_bytes;
    if (options->random_bytes != 0) {
        region->random_first = mo_malloc(options->random_bytes);
        region->random_now = mo_malloc(options->random_bytes);
        if (region->random_first == NULL || region->random_now == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    region->mode = (memopt_region_mode)options->mode;
    region->check_mode = (memopt_region_check_mode)options->check;
    if (region->check_mode != MEMOPT_CHECK_NONE)
        return memopt_event_create(region->device, 0, &region->settled);
    return MEMOPT_OK;
}

memopt_status memopt_region_create(memopt_device *device, memopt_allocator *allocator,
                                   const memopt_region_callbacks *callbacks,
                                   const memopt_region_options *options, memopt_region **out_region)
{
    memopt_region_options read_options;
    memopt_region_callbacks read_callbacks;
    MO_NOT_NULL("region_create", device, allocator, callbacks, out_region);
    MO_TRY(mo_check_process(device, "region_create"));
    if (mo_allocator_device(allocator) != device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "region_create: the allocator is of another device");
    MO_TRY(mo_options_read(&read_callbacks, sizeof read_callbacks, callbacks,
                           "memopt_region_callbacks"));
    MO_TRY(mo_options_read(&read_options, sizeof read_options, options, "memopt_region_options"));
    MO_TRY(check_options(&read_callbacks, &read_options));
    memopt_region *region = mo_calloc(1, sizeof *region);
    if (region == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    region->device = device;
    region->allocator = allocator;
    region->callbacks = read_callbacks;
    region->stats.struct_size = sizeof region->stats;
    memopt_status status = fill(region, &read_options);
    if (status != MEMOPT_OK) {
        free_host_memory(region);
        return status;
    }
    *out_region = region;
    return MEMOPT_OK;
}

memopt_status memopt_region_destroy(memopt_region *region)
{
    if (region == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(region->device, "region_destroy"));
    if (region->activity != MO_ACTIVITY_NONE)
        return mo_fail(MEMOPT_BUSY,
                       "checkpoint: region '%s' cannot be destroyed while its callback is running",
                       region->name);
    int lost = mo_device_lost(region->device);
    memopt_status status = mo_region_drop_leases(region);
    mo_keep_first(&status, mo_region_checks_destroy(region));
    free_host_memory(region);
    return mo_end_status(lost, status);
}

memopt_status memopt_region_get_stats(memopt_region *region, memopt_region_stats *out_stats)
{
    MO_NOT_NULL("region_get_stats", region);
    MO_TRY(mo_check_process(region->device, "region_get_stats"));
    memopt_region_stats now = region->stats;
    now.leased_bytes = mo_region_leased_bytes(region);
    return mo_result_write(out_stats, &now, sizeof now, "memopt_region_stats");
}
