/*
 * The front of monitors: which source a back end is read from, arguments, names of processes.
 * Nothing here is shared between monitors, so there is no lock.
 */
#include "monitor/source.h"

#include "base/library.h"
#include "base/memory.h"
#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef memopt_status (*open_source)(memopt_monitor_info *info, memopt_monitor **out_monitor);

#if defined MO_WITHOUT_CUDA || defined MO_WITHOUT_HIP
static memopt_status not_built(memopt_monitor_info *info, memopt_monitor **out_monitor)
{
    (void)out_monitor;
    snprintf(info->problem, sizeof info->problem, "this build was made without it");
    return MEMOPT_UNSUPPORTED;
}
#endif

static memopt_status open_host(memopt_monitor_info *info, memopt_monitor **out_monitor)
{
    return mo_host_monitor_open("", info, out_monitor);
}

#ifndef MO_WITHOUT_HIP
/* The library if it works, else the driver's files if they exist. */
static memopt_status open_hip(memopt_monitor_info *info, memopt_monitor **out_monitor)
{
    memopt_monitor_info files = MEMOPT_MONITOR_INFO_INIT;
    memopt_status status = mo_rocm_smi_open(info, out_monitor);
    if (status == MEMOPT_OK || status == MEMOPT_OUT_OF_HOST_MEMORY)
        return status;
    memopt_status second = mo_amdgpu_open("", &files, out_monitor);
    mo_append(info->tried, sizeof info->tried, ", %s", files.tried);
    if (second == MEMOPT_DRIVER_MISSING)
        mo_append(info->problem, sizeof info->problem, "; %s", files.problem);
    if (second != MEMOPT_OK)
        return second == MEMOPT_OUT_OF_HOST_MEMORY ? second : status;
    info->driver_code = 0;
    memcpy(info->source, files.source, sizeof info->source);
    memcpy(info->library, files.library, sizeof info->library);
    memcpy(info->version, files.version, sizeof info->version);
    return MEMOPT_OK;
}
#endif

static const struct {
    const char *name;
    open_source open;
} backends[] = {
    {"cpu", open_host},
#ifdef MO_WITHOUT_CUDA
    {"cuda", not_built},
#else
    {"cuda", mo_nvml_open},
#endif
#ifdef MO_WITHOUT_HIP
    {"hip", not_built},
#else
    {"hip", open_hip},
#endif
};

/* Opens the back end's source. Writes the last error only for an unknown name and without host
 * memory. */
static memopt_status open_named(const char *name, memopt_monitor_info *info,
                                memopt_monitor **out_monitor)
{
    *info = (memopt_monitor_info){.struct_size = sizeof *info};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(name, backends[i].name) != 0)
            continue;
        info->status = backends[i].open(info, out_monitor);
        if (info->status == MEMOPT_OK) {
            (*out_monitor)->backend = backends[i].name;
            info->device_count = (*out_monitor)->device_count;
        }
        return info->status;
    }
    return mo_fail(MEMOPT_NOT_FOUND,
                   "monitor: no back end is called \"%s\"; use \"cpu\", \"cuda\" or \"hip\"", name);
}

memopt_status memopt_monitor_get_info(const char *backend, memopt_monitor_info *out_info)
{
    memopt_monitor_info info = MEMOPT_MONITOR_INFO_INIT;
    memopt_monitor *monitor = NULL;
    if (backend == NULL || out_info == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "monitor_get_info: backend or out_info is NULL");
    if (out_info->struct_size < sizeof(size_t)) /* before a library is loaded */
        return mo_result_write(out_info, &info, sizeof info, "memopt_monitor_info");
    memopt_status status = open_named(backend, &info, &monitor);
    if (status == MEMOPT_NOT_FOUND || status == MEMOPT_OUT_OF_HOST_MEMORY)
        return status;
    if (monitor != NULL)
        monitor->ops->close(monitor);
    return mo_result_write(out_info, &info, sizeof info, "memopt_monitor_info");
}

memopt_status memopt_monitor_open(const char *backend, memopt_monitor **out_monitor)
{
    memopt_monitor_info info;
    memopt_monitor *monitor = NULL;
    if (backend == NULL || out_monitor == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "monitor_open: backend or out_monitor is NULL");
    memopt_status status = open_named(backend, &info, &monitor);
    if (status == MEMOPT_NOT_FOUND || status == MEMOPT_OUT_OF_HOST_MEMORY)
        return status;
    if (status != MEMOPT_OK) {
        int incomplete = strstr(info.missing, "(required)") != NULL;
        int host = strcmp(backend, "cpu") == 0;
        return mo_fail_driver(status, info.driver_code, info.driver_code != 0 ? info.problem : "",
                              "monitor: nothing to read %s devices from: %s%s%s; %s", backend,
                              info.problem, incomplete ? ": " : "", incomplete ? info.missing : "",
                              host ? "it needs /proc: mount -t proc proc /proc"
                                   : "install what is missing, or use \"cpu\"");
    }
    *out_monitor = monitor;
    return MEMOPT_OK;
}

memopt_status memopt_monitor_close(memopt_monitor *monitor)
{
    if (monitor != NULL)
        monitor->ops->close(monitor);
    return MEMOPT_OK;
}

memopt_status memopt_monitor_get_device_count(memopt_monitor *monitor, int32_t *out_count)
{
    if (monitor == NULL || out_count == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "monitor_get_device_count: %s is NULL",
                       monitor == NULL ? "monitor" : "out_count");
    *out_count = monitor->device_count;
    return MEMOPT_OK;
}

static memopt_status check_index(const memopt_monitor *monitor, int32_t index)
{
    if (index >= 0 && index < monitor->device_count)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_NOT_FOUND, "monitor: \"%s:%d\" does not exist; there %s %d device%s",
                   monitor->backend, (int)index, monitor->device_count == 1 ? "is" : "are",
                   (int)monitor->device_count, monitor->device_count == 1 ? "" : "s");
}

memopt_status memopt_monitor_get_reading(memopt_monitor *monitor, int32_t index,
                                         memopt_monitor_reading *out_reading)
{
    memopt_monitor_reading reading = {
        .struct_size = sizeof reading,
        .utilization = NAN,
        .memory_utilization = NAN,
        .temperature = NAN,
        .power = NAN,
        .power_limit = NAN,
    };
    if (monitor == NULL || out_reading == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "monitor_get_reading: %s is NULL",
                       monitor == NULL ? "monitor" : "out_reading");
    memopt_status status = check_index(monitor, index);
    if (status == MEMOPT_OK)
        status = monitor->ops->read(monitor, index, &reading);
    if (status != MEMOPT_OK)
        return status;
    return mo_result_write(out_reading, &reading, sizeof reading, "memopt_monitor_reading");
}

/* A process that has ended meanwhile, or is another container's, has no name. */
static void find_name(memopt_process_info *process)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)process->pid);
    (void)mo_read_text(path, process->name, sizeof process->name);
}

static memopt_status visit(mo_process_list *list, memopt_process_visitor visitor, void *user)
{
    memopt_status status = MEMOPT_OK;
    mo_process_sort(list);
    for (uint64_t i = 0; i < list->count && status == MEMOPT_OK; i++) {
        if (list->items[i].name[0] == '\0')
            find_name(&list->items[i]);
        status = visitor(user, &list->items[i]);
    }
    return mo_callback_status(status, "monitor_processes: the visitor");
}

memopt_status memopt_monitor_processes(memopt_monitor *monitor, int32_t index,
                                       memopt_process_visitor visitor, void *user)
{
    mo_process_list list = {0};
    if (monitor == NULL || visitor == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "monitor_processes: %s is NULL",
                       monitor == NULL ? "monitor" : "visitor");
    memopt_status status = check_index(monitor, index);
    if (status == MEMOPT_OK)
        status = monitor->ops->processes(monitor, index, &list);
    if (status == MEMOPT_OK)
        status = visit(&list, visitor, user);
    mo_free(list.items);
    return status;
}
