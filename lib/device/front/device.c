/*
 * The front end of a device: open handles, properties, what is live. Argument checks and accounting
 * happen here, once for all back ends; memory.c, stream.c and host_memory.c hold the rest of it.
 */
#include "device/front/handle.h"

#include "base/lock.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

static void fini_sets(memopt_device *device)
{
    mo_ranges_fini(&device->account.pinned_ranges);
    mo_ranges_fini(&device->account.registered_ranges);
    mo_ranges_fini(&device->account.streams);
}

memopt_status mo_device_init(memopt_device *device, const mo_device_ops *ops)
{
    MO_PRE(ops->properties != NULL);
    if (!mo_process_watch_forks())
        return MEMOPT_OUT_OF_HOST_MEMORY;
    device->ops = ops;
    device->race = NULL;
    device->process = mo_process_forks();
    device->properties = (memopt_device_properties){.struct_size = sizeof device->properties};
    MO_TRY(ops->properties(device, &device->properties));
    device->account = (mo_device_account){0};
    if (!mo_ranges_init(&device->account.pinned_ranges) ||
        !mo_ranges_init(&device->account.registered_ranges) ||
        !mo_ranges_init(&device->account.streams)) {
        fini_sets(device);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->listening, NULL);
    device->listeners = NULL;
    device->scratch = NULL;
    atomic_init(&device->fault_countdown, 0);
    atomic_init(&device->fault_struck, 0);
    return MEMOPT_OK;
}

void mo_device_fini(memopt_device *device)
{
    MO_PRE(device->listeners == NULL && device->account.streams.count == 0);
    fini_sets(device);
    pthread_mutex_destroy(&device->listening);
    pthread_mutex_destroy(&device->lock);
}

static uint64_t count_listeners(memopt_device *device)
{
    uint64_t found = 0;
    mo_lock(&device->listening);
    for (const mo_stream_listener *each = device->listeners; each != NULL; each = each->next)
        found++;
    mo_unlock(&device->listening);
    return found;
}

memopt_status memopt_device_close(memopt_device *device)
{
    if (device == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(device, "device_close"));
    uint64_t allocators = count_listeners(device);
    mo_lock(&device->lock);
    mo_device_account live = device->account;
    live.allocations -= mo_scratch_count(device);
    mo_unlock(&device->lock);
    if (allocators + live.allocations + live.handles + live.reservations + live.streams.count +
            live.events + live.pinned_ranges.count + live.registered_ranges.count !=
        0)
        return mo_fail(MEMOPT_BUSY,
                       "device_close: %" PRIu64 " allocators, optimizers and offloaders, %" PRIu64
                       " allocations and %" PRIu64 " mapped memory handles (%s), %" PRIu64
                       " reservations, %" PRIu64 " streams, %" PRIu64 " events, %" PRIu64
                       " page-locked and %" PRIu64
                       " registered host ranges are left; end them first",
                       allocators, live.allocations, live.handles, MO_SIZE(live.used),
                       live.reservations, live.streams.count, live.events, live.pinned_ranges.count,
                       live.registered_ranges.count);
    mo_scratch_end(device);
    return device->ops->close(device);
}

memopt_status memopt_device_get_properties(memopt_device *device,
                                           memopt_device_properties *out_properties)
{
    MO_NOT_NULL("device_get_properties", device);
    MO_TRY(mo_check_process(device, "device_get_properties"));
    mo_lock(&device->lock);
    memopt_device_properties properties = device->properties;
    mo_unlock(&device->lock);
    return mo_result_write(out_properties, &properties, sizeof properties,
                           "memopt_device_properties");
}

memopt_status memopt_device_set_threads(memopt_device *device, uint32_t threads)
{
    MO_NOT_NULL("device_set_threads", device);
    MO_TRY(mo_check_process(device, "device_set_threads"));
    if (device->ops->set_threads == NULL)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "device_set_threads: the device is %s; only on \"cpu\" do threads run "
                       "kernels",
                       device->properties.backend);
    return device->ops->set_threads(device, threads);
}

memopt_status memopt_device_get_memory_info(memopt_device *device, memopt_memory_info *out_info)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    MO_NOT_NULL("device_get_memory_info", device);
    MO_TRY(mo_check_process(device, "device_get_memory_info"));
    MO_TRY(mo_device_enter(device, "memory_info", MEMOPT_DRIVER_ERROR));
    MO_TRY(device->ops->memory_info(device, &info));
    mo_lock(&device->lock);
    info.used = device->account.used;
    info.used_peak = device->account.used_peak;
    info.reserved_va = device->account.reserved_va;
    info.pinned = device->account.pinned;
    info.pinned_peak = device->account.pinned_peak;
    info.registered = device->account.registered;
    mo_unlock(&device->lock);
    return mo_result_write(out_info, &info, sizeof info, "memopt_memory_info");
}

memopt_status memopt_device_sync(memopt_device *device)
{
    MO_NOT_NULL("device_sync", device);
    MO_TRY(mo_device_enter(device, "device_sync", MEMOPT_DRIVER_ERROR));
    return device->ops->sync(device);
}

memopt_status memopt_device_get_race(memopt_device *device, memopt_race **out_race)
{
    MO_NOT_NULL("device_get_race", device, out_race);
    MO_TRY(mo_check_process(device, "device_get_race"));
    if (device->race == NULL)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "device_get_race: the device finds no races; open \"cpu\" with race = 1, or "
                       "with MEMOPT_RACE=1 in the environment");
    *out_race = device->race;
    return MEMOPT_OK;
}

int mo_device_lost(memopt_device *device)
{
    return device->ops->lost != NULL && device->ops->lost(device);
}

uint64_t mo_device_granularity(memopt_device *device)
{
    return device->properties.granularity;
}

uint64_t mo_device_total_memory(memopt_device *device)
{
    return device->properties.total_memory;
}
