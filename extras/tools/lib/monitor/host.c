/*
 * Monitoring of the machine itself through /proc: the one device of the back end "cpu". Its load is
 * counted from the previous reading on.
 */
#include "monitor/source.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

typedef struct host_monitor {
    memopt_monitor base;
    char root[PATH_BYTES];
    uint64_t busy, all; /* clock ticks at the previous reading */
} host_monitor;

static int read_file(const host_monitor *monitor, const char *name, char *text, size_t size)
{
    char path[PATH_BYTES + 80];
    snprintf(path, sizeof path, "%s/proc/%s", monitor->root, name);
    return mo_read_text(path, text, size);
}

/* --- memory -------------------------------------------------------------------------------- */

/* "MemTotal:       32768 kB" → bytes; 1 if the line is there. */
static int find_kib(const char *lines, const char *key, uint64_t *out_bytes)
{
    unsigned long long kib;
    const char *line = strstr(lines, key);
    if (line == NULL || sscanf(line + strlen(key), "%llu", &kib) != 1)
        return 0;
    *out_bytes = (uint64_t)kib << 10;
    return 1;
}

static void read_memory(const host_monitor *monitor, memopt_monitor_reading *out)
{
    char lines[1024];
    uint64_t total = 0, available = 0;
    int error = read_file(monitor, "meminfo", lines, sizeof lines);
    if (error == 0 &&
        (!find_kib(lines, "MemTotal:", &total) || !find_kib(lines, "MemAvailable:", &available)))
        error = EINVAL;
    mo_monitor_note(out, MEMOPT_MONITOR_MEMORY, mo_monitor_errno_outcome(error), error, "memory",
                    strerror(error));
    if (error == 0) {
        out->memory_total = total;
        out->memory_free = available;
        out->memory_used = available < total ? total - available : 0;
    }
}

/* --- name and load ------------------------------------------------------------------------- */

static void read_name(const host_monitor *monitor, memopt_monitor_reading *out)
{
    char lines[4096];
    const char *start = NULL;
    int error = read_file(monitor, "cpuinfo", lines, sizeof lines);
    if (error == 0 && (start = strstr(lines, "model name")) != NULL)
        start = strchr(start, ':');
    if (start != NULL)
        start += 1 + strspn(start + 1, " \t");
    else if (error == 0)
        start = "cpu"; /* processors of other families have no such line */
    if (start != NULL)
        snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(start, "\n"), start);
    mo_monitor_note(out, MEMOPT_MONITOR_NAME, mo_monitor_errno_outcome(error), error, "name",
                    strerror(error));
}

/* Ticks of all cores since the start: user, nice, system, idle, iowait, irq, softirq, steal. */
static int read_ticks(const host_monitor *monitor, uint64_t *out_busy, uint64_t *out_all)
{
    char line[512];
    unsigned long long t[8] = {0};
    int error = read_file(monitor, "stat", line, sizeof line);
    if (error != 0)
        return error;
    if (sscanf(line, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
               &t[4], &t[5], &t[6], &t[7]) < 4)
        return EINVAL;
    *out_all = 0;
    for (int i = 0; i < 8; i++)
        *out_all += t[i];
    *out_busy = *out_all - t[3] - t[4];
    return 0;
}

static void read_load(host_monitor *monitor, memopt_monitor_reading *out)
{
    uint64_t busy = 0, all = 0;
    int error = read_ticks(monitor, &busy, &all);
    mo_field_outcome outcome = mo_monitor_errno_outcome(error);
    if (error == 0 && (all <= monitor->all || busy < monitor->busy))
        outcome = MO_FIELD_NOT_TOLD; /* no tick has passed */
    mo_monitor_note(out, MEMOPT_MONITOR_UTILIZATION, outcome, error, "utilization",
                    strerror(error));
    if (outcome != MO_FIELD_HERE)
        return;
    double share = (double)(busy - monitor->busy) / (double)(all - monitor->all);
    out->utilization = share < 1.0 ? 100.0 * share : 100.0;
    monitor->busy = busy;
    monitor->all = all;
}

static memopt_status host_read(memopt_monitor *base, int32_t index, memopt_monitor_reading *out)
{
    host_monitor *monitor = (host_monitor *)(void *)base;
    (void)index;
    read_name(monitor, out);
    read_memory(monitor, out);
    read_load(monitor, out);
    return MEMOPT_OK;
}

/* --- processes ----------------------------------------------------------------------------- */

/* 1 also where the process has ended meanwhile; 0: out of host memory. */
static int add_process(const host_monitor *monitor, const char *pid, mo_process_list *list)
{
    char name[64], text[128];
    unsigned long long size, resident;
    uint64_t number;
    if (!mo_parse_number(pid, &number) || number > INT32_MAX)
        return 1;
    snprintf(name, sizeof name, "%.20s/statm", pid);
    if (read_file(monitor, name, text, sizeof text) != 0 ||
        sscanf(text, "%llu %llu", &size, &resident) != 2 || resident == 0) /* a kernel thread */
        return 1;
    if (!mo_process_add(list, (int32_t)number, MEMOPT_PROCESS_HOST,
                        resident * (uint64_t)sysconf(_SC_PAGESIZE)))
        return 0;
    memopt_process_info *process = &list->items[list->count - 1];
    snprintf(name, sizeof name, "%.20s/comm", pid);
    (void)read_file(monitor, name, process->name, sizeof process->name);
    return 1;
}

static memopt_status host_processes(memopt_monitor *base, int32_t index, mo_process_list *list)
{
    const host_monitor *monitor = (const host_monitor *)(const void *)base;
    char path[PATH_BYTES + 8];
    const struct dirent *entry;
    int room = 1;
    (void)index;
    snprintf(path, sizeof path, "%s/proc", monitor->root);
    DIR *entries = opendir(path);
    if (entries == NULL)
        return mo_fail_driver(MEMOPT_DRIVER_ERROR, errno, strerror(errno),
                              "monitor: cpu: its processes: /proc: %s", strerror(errno));
    while (room && (entry = readdir(entries)) != NULL)
        room = add_process(monitor, entry->d_name, list);
    closedir(entries);
    return room ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

/* --- opening ------------------------------------------------------------------------------- */

static void host_close(memopt_monitor *base)
{
    mo_free((host_monitor *)(void *)base);
}

static const mo_monitor_ops host_ops = {
    .close = host_close, .read = host_read, .processes = host_processes};

memopt_status mo_host_monitor_open(const char *root, memopt_monitor_info *info,
                                   memopt_monitor **out_monitor)
{
    char text[64];
    host_monitor *monitor = mo_calloc(1, sizeof *monitor);
    if (monitor == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    monitor->base.ops = &host_ops;
    monitor->base.device_count = 1;
    snprintf(monitor->root, sizeof monitor->root, "%s", root);
    snprintf(info->source, sizeof info->source, "proc");
    snprintf(info->tried, sizeof info->tried, "/proc");
    int error = read_file(monitor, "meminfo", text, sizeof text);
    if (error != 0) {
        snprintf(info->problem, sizeof info->problem, "/proc/meminfo: %s", strerror(error));
        mo_free(monitor);
        return MEMOPT_DRIVER_MISSING;
    }
    snprintf(info->library, sizeof info->library, "%.200s/proc", root);
    if (read_file(monitor, "sys/kernel/osrelease", info->version, sizeof info->version) != 0)
        info->version[0] = '\0';
    (void)read_ticks(monitor, &monitor->busy, &monitor->all);
    *out_monitor = &monitor->base;
    return MEMOPT_OK;
}
