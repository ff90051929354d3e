/* Opens and closes the "cpu" device; its table of operations. */
#include "device/cpu/adversary.h"
#include "device/cpu/race.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_GRANULARITY = 2 << 20, LEAST_GRANULARITY = 4096 };

memopt_status mo_cpu_properties(memopt_device *device, memopt_device_properties *out)
{
    const mo_cpu_device *cpu = mo_cpu(device);
    snprintf(out->name, sizeof out->name, "%s", cpu->model);
    snprintf(out->backend, sizeof out->backend, "cpu");
    snprintf(out->isa, sizeof out->isa, "%s", mo_isa_family(cpu->isa));
    out->index = 0;
    out->threads = atomic_load(&cpu->pool.thread_count);
    out->warp_size = 1;
    out->virtual_memory = 1;
    out->total_memory = cpu->memory.capacity;
    out->granularity = cpu->memory.granularity;
    snprintf(out->kernels, sizeof out->kernels, "%s", mo_isa_name(cpu->isa));
    snprintf(out->limit, sizeof out->limit, "%s", cpu->isa_limit);
    return MEMOPT_OK;
}

memopt_status mo_cpu_memory_info(memopt_device *device, memopt_memory_info *out)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    mo_lock(&memory->lock);
    mo_cpu_reap(memory);
    out->total = memory->capacity;
    out->free = memory->capacity - memory->used;
    mo_unlock(&memory->lock);
    return MEMOPT_OK;
}

static memopt_status check_threads(const char *call, uint32_t threads)
{
    if (threads > MO_MOST_THREADS)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %" PRIu32 " threads, at most %d", call,
                       threads, MO_MOST_THREADS);
    return MEMOPT_OK;
}

static memopt_status cpu_set_threads(memopt_device *device, uint32_t threads)
{
    MO_TRY(check_threads("device_set_threads", threads));
    const char *why;
    mo_cpu_pool_resize(mo_cpu(device), threads != 0 ? threads : mo_cpu_default_threads("", &why));
    return MEMOPT_OK;
}

memopt_status mo_cpu_close(memopt_device *device)
{
    mo_cpu_device *cpu = mo_cpu(device);
    memopt_status status = mo_cpu_sync(device);
    mo_cpu_race_fini(cpu);
    mo_cpu_streams_fini(cpu);
    mo_cpu_pool_fini(&cpu->pool);
    mo_cpu_memory_fini(&cpu->memory);
    mo_device_fini(device);
    mo_free(cpu);
    return status;
}

/* clang-format off */
#define ENTRY(name) .name = mo_cpu_##name,
static const mo_device_ops cpu_ops = {
    MO_DEVICE_OPS(ENTRY)
    .set_threads = cpu_set_threads,
    .note_alloc = mo_cpu_note_alloc,
    .note_free = mo_cpu_note_free,
    .uses = mo_cpu_uses,
};
/* clang-format on */

static uint64_t physical_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;
}

/* Fills in the defaults, but for the threads, and refuses what is out of range. */
static memopt_status complete_options(memopt_device_options *options)
{
    uint64_t physical = physical_memory();
    if (options->granularity == 0)
        options->granularity = DEFAULT_GRANULARITY;
    if (options->granularity < LEAST_GRANULARITY ||
        options->granularity % (uint64_t)sysconf(_SC_PAGESIZE) != 0 ||
        (options->granularity & (options->granularity - 1)) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "device_open: granularity %" PRIu64
                       " is not a power of two of at least a page",
                       options->granularity);
    if (options->capacity == 0)
        options->capacity = physical;
    options->capacity -= options->capacity % options->granularity;
    if (options->capacity == 0 || options->capacity > INT64_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "device_open: the capacity must be at least one granule of %s and below 8 "
                       "EiB",
                       MO_SIZE(options->granularity));
    if (options->stream_order > MEMOPT_STREAM_ORDER_ADVERSARIAL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "device_open: stream_order %" PRIu32 " is not a memopt_stream_order",
                       options->stream_order);
    if (options->race > MEMOPT_RACE_SEARCH_QUIET)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "device_open: race %" PRIu32 " is not a memopt_race_search", options->race);
    MO_TRY(check_threads("device_open", options->threads));
    if (options->capacity > physical)
        mo_log(MEMOPT_LOG_WARNING, "cpu: a capacity of %s is more than the machine's %s",
               MO_SIZE(options->capacity), MO_SIZE(physical));
    return MEMOPT_OK;
}

memopt_status mo_cpu_open(const memopt_device_options *given, memopt_device **out_device)
{
    memopt_device_options options = *given;
    const char *why = "asked for";
    MO_TRY(complete_options(&options));
    if (options.threads == 0)
        options.threads = mo_cpu_default_threads("", &why);
    mo_cpu_device *cpu = mo_calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    cpu->isa = mo_cpu_choose_isa(cpu->isa_limit, sizeof cpu->isa_limit);
    cpu->adversarial = options.stream_order == MEMOPT_STREAM_ORDER_ADVERSARIAL;
    cpu->lag = options.lag;
    cpu->queued = cpu->adversarial || cpu->lag != 0;
    cpu->adversary.random = options.seed;
    mo_cpu_model(cpu->model, sizeof cpu->model);
    memopt_status status = mo_cpu_memory_init(&cpu->memory, options.capacity, options.granularity);
    if (status != MEMOPT_OK)
        goto free_handle;
    status = mo_cpu_streams_init(cpu);
    if (status != MEMOPT_OK)
        goto end_memory;
    mo_cpu_pool_init(&cpu->pool, options.threads);
    status = mo_device_init(&cpu->base, &cpu_ops);
    if (status != MEMOPT_OK)
        goto end_pool;
    status = mo_cpu_race_init(cpu, options.race);
    if (status != MEMOPT_OK)
        goto end_device;
    cpu->base.unified = options.unified != 0;
    cpu->base.takes_notes = cpu->queued || cpu->race != NULL;
    mo_log(MEMOPT_LOG_INFO, "cpu: opened %s, %s, %" PRIu32 " threads (%s), %s in granules of %s%s",
           cpu->model, mo_isa_name(cpu->isa), options.threads, why, MO_SIZE(options.capacity),
           MO_SIZE(options.granularity), cpu->adversarial ? ", adversarial order" : "");
    *out_device = &cpu->base;
    return MEMOPT_OK;

end_device:
    mo_device_fini(&cpu->base);
end_pool:
    mo_cpu_pool_fini(&cpu->pool);
    mo_cpu_streams_fini(cpu);
end_memory:
    mo_cpu_memory_fini(&cpu->memory);
free_handle:
    mo_free(cpu);
    return status;
}
