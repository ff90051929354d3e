/* Opens and closes a device of the CUDA or HIP back end; its table of operations. */
#include "device/gpu/gpu.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The image that will be tried first. */
static const char *best_image(const mo_gpu_device *gpu)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const mo_images *images = vendor->images;
    const char *target = images->source_bytes != 0 ? "source" : "";
    uint32_t best = 0;
    for (uint32_t i = 0; i < images->count; i++) {
        uint32_t rating = vendor->rate_image(gpu, images->images[i].target);
        if (rating > best) {
            best = rating;
            target = images->images[i].target;
        }
    }
    return target;
}

memopt_status mo_gpu_properties(memopt_device *device, memopt_device_properties *out)
{
    const mo_gpu_device *gpu = mo_gpu(device);
    snprintf(out->name, sizeof out->name, "%s", gpu->name);
    snprintf(out->backend, sizeof out->backend, "%s", gpu->driver->vendor->name);
    snprintf(out->isa, sizeof out->isa, "%.*s", (int)sizeof out->isa - 1, gpu->target);
    out->index = gpu->index;
    out->threads = gpu->multiprocessors;
    out->warp_size = gpu->warp_size;
    out->virtual_memory = gpu->can_map != 0;
    out->total_memory = gpu->total_memory;
    out->granularity = gpu->granularity;
    snprintf(out->kernels, sizeof out->kernels, "%s", best_image(gpu));
    snprintf(out->limit, sizeof out->limit, "%s", gpu->no_map);
    return MEMOPT_OK;
}

memopt_status mo_gpu_memory_info(memopt_device *device, memopt_memory_info *out)
{
    size_t free_bytes = 0, total = 0;
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "memory_info", 0))
        in.code = in.call->memory_info(&free_bytes, &total);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY));
    out->free = free_bytes;
    out->total = total;
    return MEMOPT_OK;
}

memopt_status mo_gpu_sync(memopt_device *device)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "device_sync", 0))
        in.code = in.call->synchronize();
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

static int init_sets(mo_gpu_device *gpu)
{
    mo_ranges *const sets[] = {&gpu->plain, &gpu->reservations, &gpu->mappings};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (!mo_ranges_init(sets[i])) {
            while (i-- > 0)
                mo_ranges_fini(sets[i]);
            return 0;
        }
    }
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_cond_init(&gpu->loaded, NULL);
    return 1;
}

static void fini_sets(mo_gpu_device *gpu)
{
    mo_ranges_fini(&gpu->plain);
    mo_ranges_fini(&gpu->reservations);
    mo_ranges_fini(&gpu->mappings);
    pthread_mutex_destroy(&gpu->lock);
    pthread_cond_destroy(&gpu->loaded);
}

static int gpu_lost(memopt_device *device)
{
    return atomic_load(&mo_gpu(device)->lost) != 0;
}

memopt_status mo_gpu_close(memopt_device *device)
{
    mo_gpu_device *gpu = mo_gpu(device);
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    void *saved;
    mo_gpu_part(gpu);
    /* A loss that was known before is not a failure of the close. */
    memopt_status status = gpu_lost(device) ? MEMOPT_OK : mo_gpu_sync(device);
    if ((gpu->kernel_count != 0 || gpu->image != NULL) &&
        vendor->enter_context(gpu, &saved) == MO_GPU_SUCCESS) {
        mo_gpu_unload(gpu);
        vendor->leave_context(gpu, saved);
    }
    vendor->close_context(gpu);
    fini_sets(gpu);
    mo_device_fini(device);
    mo_free(gpu);
    return status;
}

/* clang-format off */
#define ENTRY(name) .name = mo_gpu_##name,
static const mo_device_ops gpu_ops = {
    MO_DEVICE_OPS(ENTRY)
    .reachable = mo_gpu_reachable,
    .lost = gpu_lost,
};
/* clang-format on */

/* A GPU has no settings; all of them belong to "cpu". */
static memopt_status refuse_options(const mo_gpu_driver *driver,
                                    const memopt_device_options *options)
{
    const char *set = options->capacity != 0       ? "capacity"
                      : options->threads != 0      ? "threads"
                      : options->stream_order != 0 ? "stream_order"
                      : options->seed != 0         ? "seed"
                      : options->granularity != 0  ? "granularity"
                      : options->race % 2 != 0     ? "race"
                                                   : NULL;
    if (set == NULL)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_UNSUPPORTED, "device_open: the option %s is for \"cpu\", not for \"%s\"",
                   set, driver->vendor->name);
}

static memopt_status check_index(mo_gpu_driver *driver, int32_t index)
{
    char why[MO_LIBRARY_TEXT];
    int32_t count = 0;
    memopt_status status = mo_gpu_count(driver, &count);
    if (status != MEMOPT_OK || index < count)
        return status;
    if (count == 0) {
        mo_gpu_why_no_device(driver->vendor, why);
        return mo_fail(MEMOPT_NOT_FOUND, "device: \"%s:%d\" does not exist: %s",
                       driver->vendor->name, index, why);
    }
    return mo_fail(MEMOPT_NOT_FOUND, "device: \"%s:%d\" does not exist; the driver has %d device%s",
                   driver->vendor->name, index, count, count == 1 ? "" : "s");
}

static memopt_status ask_device(mo_gpu_device *gpu)
{
    mo_gpu_scope in;
    if (!mo_gpu_enter(&in, &gpu->base, "device_open", 0))
        return in.status;
    in.code = gpu->driver->vendor->describe(gpu);
    if (in.code == MO_GPU_SUCCESS)
        mo_gpu_check_vm(&in);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_open(mo_gpu_driver *driver, int32_t index,
                          const memopt_device_options *options, memopt_device **out_device)
{
    MO_TRY(refuse_options(driver, options));
    MO_TRY(check_index(driver, index));
    mo_gpu_device *gpu = mo_calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    gpu->driver = driver;
    gpu->index = index;
    if (!init_sets(gpu)) {
        mo_free(gpu);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    memopt_status status = mo_gpu_result(gpu, driver->vendor->open_context(gpu),
                                         MEMOPT_OUT_OF_DEVICE_MEMORY, "device_open");
    if (status != MEMOPT_OK)
        goto free_handle;
    status = ask_device(gpu);
    if (status == MEMOPT_OK)
        status = mo_device_init(&gpu->base, &gpu_ops);
    if (status != MEMOPT_OK)
        goto close_context;
    gpu->base.unified = options->unified != 0;
    mo_gpu_join(gpu);
    mo_log(MEMOPT_LOG_INFO, "%s:%d: opened %s, %s, warps of %" PRIu32 ", %s%s%s%s",
           driver->vendor->name, index, gpu->name, gpu->isa, gpu->warp_size,
           MO_SIZE(gpu->total_memory), gpu->can_map ? "" : ", no virtual memory",
           gpu->no_map[0] == '\0' ? "" : ": ", gpu->no_map);
    *out_device = &gpu->base;
    return MEMOPT_OK;

close_context:
    driver->vendor->close_context(gpu);
free_handle:
    fini_sets(gpu);
    mo_free(gpu);
    return status;
}
