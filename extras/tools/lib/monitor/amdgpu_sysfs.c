/*
 * Monitoring of AMD devices through the files of their kernel driver, for machines without ROCm
 * SMI: /sys/class/drm/card*\/device for the device, its hwmon folder for the sensors, and
 * /sys/class/kfd for the processes that compute on it. Devices are sorted by bus address.
 */
#include "monitor/source.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };

typedef struct amdgpu_device {
    unsigned domain, bus, slot, function;
    uint64_t kfd_id;        /* of the compute driver; 0: it does not know the device */
    char path[PATH_BYTES];  /* …/card0/device */
    char hwmon[PATH_BYTES]; /* "" if none */
} amdgpu_device;

typedef struct amdgpu_monitor {
    memopt_monitor base;
    char root[PATH_BYTES];
    amdgpu_device *devices;
    uint64_t capacity;
} amdgpu_monitor;

/* Joins a folder and a name; a path that does not fit names no file. */
static const char *join(char *path, const char *folder, const char *name)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES)
        path[0] = '\0';
    return path;
}

/* --- finding devices ----------------------------------------------------------------------- */

/* The value behind "key" at the start of a line, up to its end, into text[size]. 1 if there. */
static int find_line(const char *lines, const char *key, char *text, size_t size)
{
    size_t length = strlen(key);
    for (const char *line = lines; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            snprintf(text, size, "%.*s", (int)strcspn(line + length, "\n"), line + length);
            return 1;
        }
    }
    return 0;
}

/* Is it a card of the amdgpu driver, and at which address? */
static int describe(amdgpu_device *device)
{
    char path[PATH_BYTES], lines[1024], value[64];
    if (mo_read_text(join(path, device->path, "uevent"), lines, sizeof lines) != 0)
        return 0;
    if (!find_line(lines, "DRIVER=", value, sizeof value) || strcmp(value, "amdgpu") != 0)
        return 0;
    return find_line(lines, "PCI_SLOT_NAME=", value, sizeof value) &&
           sscanf(value, "%x:%x:%x.%x", &device->domain, &device->bus, &device->slot,
                  &device->function) == 4;
}

static void find_hwmon(amdgpu_device *device)
{
    char folder[PATH_BYTES];
    DIR *entries = opendir(join(folder, device->path, "hwmon"));
    const struct dirent *entry;
    device->hwmon[0] = '\0';
    while (entries != NULL && device->hwmon[0] == '\0' && (entry = readdir(entries)) != NULL)
        if (strncmp(entry->d_name, "hwmon", 5) == 0)
            (void)join(device->hwmon, folder, entry->d_name);
    if (entries != NULL)
        closedir(entries);
}

static int compare(const void *left, const void *right)
{
    const amdgpu_device *a = left, *b = right;
    const unsigned x[] = {a->domain, a->bus, a->slot, a->function};
    const unsigned y[] = {b->domain, b->bus, b->slot, b->function};
    for (int i = 0; i < 4; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* "card12", not "card12-DP-1". */
static int is_card(const char *name)
{
    uint64_t number;
    return strncmp(name, "card", 4) == 0 && mo_parse_number(name + 4, &number);
}

static memopt_status find_cards(amdgpu_monitor *monitor, DIR *entries, const char *folder)
{
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        amdgpu_device device = {0};
        char card[PATH_BYTES];
        if (!is_card(entry->d_name))
            continue;
        (void)join(device.path, join(card, folder, entry->d_name), "device");
        if (!describe(&device))
            continue;
        void *devices = monitor->devices;
        if (!mo_grow(&devices, &monitor->capacity, (uint64_t)monitor->base.device_count + 1,
                     sizeof device))
            return MEMOPT_OUT_OF_HOST_MEMORY;
        monitor->devices = devices;
        find_hwmon(&device);
        monitor->devices[monitor->base.device_count++] = device;
    }
    if (monitor->base.device_count > 1)
        qsort(monitor->devices, (size_t)monitor->base.device_count, sizeof *monitor->devices,
              compare);
    return MEMOPT_OK;
}

/* --- the compute driver's numbers ------------------------------------------------------------ */

/* One node of the topology: gives its id to the device at its address. */
static void take_node(amdgpu_monitor *monitor, const char *node)
{
    char path[PATH_BYTES], lines[4096], value[32];
    uint64_t id = 0, location = 0, domain = 0;
    if (mo_read_number(join(path, node, "gpu_id"), &id) != 0 || id == 0 ||
        mo_read_text(join(path, node, "properties"), lines, sizeof lines) != 0)
        return;
    if (!find_line(lines, "location_id ", value, sizeof value) ||
        !mo_parse_number(value, &location))
        return;
    if (find_line(lines, "domain ", value, sizeof value))
        (void)mo_parse_number(value, &domain);
    for (int32_t i = 0; i < monitor->base.device_count; i++) {
        amdgpu_device *device = &monitor->devices[i];
        unsigned place = device->bus << 8 | device->slot << 3 | device->function;
        if (device->kfd_id == 0 && device->domain == domain && place == (location & 0xffff))
            device->kfd_id = id;
    }
}

static void find_nodes(amdgpu_monitor *monitor)
{
    char folder[PATH_BYTES], node[PATH_BYTES];
    const struct dirent *entry;
    DIR *entries = opendir(join(folder, monitor->root, "sys/class/kfd/kfd/topology/nodes"));
    while (entries != NULL && (entry = readdir(entries)) != NULL)
        if (entry->d_name[0] != '.')
            take_node(monitor, join(node, folder, entry->d_name));
    if (entries != NULL)
        closedir(entries);
}

/* --- reading ------------------------------------------------------------------------------- */

/* Reads one number and notes the field; 1 on success. `folder` "" has no files. */
static int take_number(const char *folder, const char *name, uint32_t field, const char *what,
                       memopt_monitor_reading *out, uint64_t *number)
{
    char path[PATH_BYTES];
    int error = folder[0] == '\0' ? ENOENT : mo_read_number(join(path, folder, name), number);
    mo_monitor_note(out, field, mo_monitor_errno_outcome(error), error, what, strerror(error));
    return error == 0;
}

/* The same with a second file where the first is not there. */
static int take_either(const char *folder, const char *first, const char *second, uint32_t field,
                       const char *what, memopt_monitor_reading *out, uint64_t *number)
{
    return take_number(folder, first, field, what, out, number) ||
           (((out->denied | out->failed) & field) == 0 &&
            take_number(folder, second, field, what, out, number));
}

static void read_identity(const amdgpu_device *device, memopt_monitor_reading *out)
{
    char path[PATH_BYTES], text[sizeof out->name];
    int error = mo_read_text(join(path, device->path, "product_name"), text, sizeof text);
    if (error == 0 && text[0] != '\0')
        snprintf(out->name, sizeof out->name, "%s", text);
    else if ((error = mo_read_text(join(path, device->path, "device"), text, sizeof text)) == 0)
        snprintf(out->name, sizeof out->name, "AMD device %.32s", text);
    mo_monitor_note(out, MEMOPT_MONITOR_NAME, mo_monitor_errno_outcome(error), error, "name",
                    strerror(error));
    error = mo_read_text(join(path, device->path, "unique_id"), text, sizeof text);
    mo_monitor_note(out, MEMOPT_MONITOR_UUID, mo_monitor_errno_outcome(error), error, "unique id",
                    strerror(error));
    if (error == 0)
        snprintf(out->uuid, sizeof out->uuid, "GPU-%.64s", text);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.%x", device->domain, device->bus,
             device->slot, device->function);
    out->fields |= MEMOPT_MONITOR_PCI;
}

static void read_memory(const amdgpu_device *device, memopt_monitor_reading *out)
{
    char path[PATH_BYTES];
    uint64_t total = 0, used = 0;
    int error = mo_read_number(join(path, device->path, "mem_info_vram_total"), &total);
    if (error == 0)
        error = mo_read_number(join(path, device->path, "mem_info_vram_used"), &used);
    mo_monitor_note(out, MEMOPT_MONITOR_MEMORY, mo_monitor_errno_outcome(error), error, "memory",
                    strerror(error));
    if (error == 0) {
        out->memory_total = total;
        out->memory_used = used;
        out->memory_free = used < total ? total - used : 0;
    }
}

static memopt_status amdgpu_read(memopt_monitor *base, int32_t index, memopt_monitor_reading *out)
{
    const amdgpu_device *d = &((amdgpu_monitor *)(void *)base)->devices[index];
    uint64_t number = 0;
    read_identity(d, out);
    read_memory(d, out);
    if (take_number(d->path, "gpu_busy_percent", MEMOPT_MONITOR_UTILIZATION, "utilization", out,
                    &number))
        out->utilization = (double)number;
    if (take_number(d->path, "mem_busy_percent", MEMOPT_MONITOR_MEMORY_UTILIZATION,
                    "memory utilization", out, &number))
        out->memory_utilization = (double)number;
    /* temp1 is the edge's sensor, which accelerators lack, temp2 the junction's. */
    if (take_either(d->hwmon, "temp1_input", "temp2_input", MEMOPT_MONITOR_TEMPERATURE,
                    "temperature", out, &number))
        out->temperature = (double)number / 1000.0;
    if (take_either(d->hwmon, "power1_average", "power1_input", MEMOPT_MONITOR_POWER, "power", out,
                    &number))
        out->power = (double)number / 1e6;
    if (take_number(d->hwmon, "power1_cap", MEMOPT_MONITOR_POWER_LIMIT, "power limit", out,
                    &number))
        out->power_limit = (double)number / 1e6;
    return MEMOPT_OK;
}

/* --- processes ----------------------------------------------------------------------------- */

static memopt_status add_process(const char *folder, const char *name, uint64_t kfd_id,
                                 mo_process_list *list)
{
    char process[PATH_BYTES], path[PATH_BYTES], file[40];
    uint64_t pid, bytes = 0;
    if (!mo_parse_number(name, &pid) || pid > INT32_MAX)
        return MEMOPT_OK;
    snprintf(file, sizeof file, "vram_%" PRIu64, kfd_id);
    int error = mo_read_number(join(path, join(process, folder, name), file), &bytes);
    if (error == EACCES || error == EPERM) /* it is there, whatever it uses */
        bytes = UINT64_MAX;
    else if (error != 0 || bytes == 0) /* it has ended, or uses another device */
        return MEMOPT_OK;
    return mo_process_add(list, (int32_t)pid, MEMOPT_PROCESS_COMPUTE, bytes)
               ? MEMOPT_OK
               : MEMOPT_OUT_OF_HOST_MEMORY;
}

static memopt_status amdgpu_processes(memopt_monitor *base, int32_t index, mo_process_list *list)
{
    const amdgpu_monitor *monitor = (const amdgpu_monitor *)(const void *)base;
    const amdgpu_device *device = &monitor->devices[index];
    char folder[PATH_BYTES];
    const struct dirent *entry;
    memopt_status status = MEMOPT_OK;
    DIR *entries = opendir(join(folder, monitor->root, "sys/class/kfd/kfd/proc"));
    int error = entries == NULL ? errno : 0;
    if (error == EACCES)
        return mo_fail_driver(MEMOPT_DRIVER_ERROR, error, strerror(error),
                              "monitor: hip:%d: its processes: %s: %s", (int)index, folder,
                              strerror(error));
    if (entries == NULL || device->kfd_id == 0) {
        if (entries != NULL)
            closedir(entries);
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "monitor: hip:%d: its processes are unknown: the compute driver (KFD) is "
                       "missing or does not know the device",
                       (int)index);
    }
    while (status == MEMOPT_OK && (entry = readdir(entries)) != NULL)
        status = add_process(folder, entry->d_name, device->kfd_id, list);
    closedir(entries);
    return status;
}

/* --- opening ------------------------------------------------------------------------------- */

static void amdgpu_close(memopt_monitor *base)
{
    amdgpu_monitor *monitor = (amdgpu_monitor *)(void *)base;
    mo_free(monitor->devices);
    mo_free(monitor);
}

static const mo_monitor_ops amdgpu_ops = {
    .close = amdgpu_close, .read = amdgpu_read, .processes = amdgpu_processes};

memopt_status mo_amdgpu_open(const char *root, memopt_monitor_info *info,
                             memopt_monitor **out_monitor)
{
    char folder[PATH_BYTES], path[PATH_BYTES];
    snprintf(info->source, sizeof info->source, "sysfs");
    snprintf(info->tried, sizeof info->tried, "/sys/class/drm");
    DIR *entries = opendir(join(folder, root, "sys/class/drm"));
    if (entries == NULL) {
        snprintf(info->problem, sizeof info->problem, "/sys/class/drm: %s", strerror(errno));
        return MEMOPT_DRIVER_MISSING;
    }
    amdgpu_monitor *monitor = mo_calloc(1, sizeof *monitor);
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (monitor != NULL) {
        monitor->base.ops = &amdgpu_ops;
        snprintf(monitor->root, sizeof monitor->root, "%s", root);
        status = find_cards(monitor, entries, folder);
    }
    closedir(entries);
    if (status == MEMOPT_OK && monitor->base.device_count == 0) {
        snprintf(info->problem, sizeof info->problem, "/sys/class/drm has no amdgpu card");
        status = MEMOPT_DRIVER_MISSING;
    }
    if (status != MEMOPT_OK) {
        if (monitor != NULL)
            amdgpu_close(&monitor->base);
        return status;
    }
    find_nodes(monitor);
    snprintf(info->library, sizeof info->library, "%.*s", (int)sizeof info->library - 1, folder);
    if (mo_read_text(join(path, root, "sys/module/amdgpu/version"), info->version,
                     sizeof info->version) != 0)
        info->version[0] = '\0';
    *out_monitor = &monitor->base;
    return MEMOPT_OK;
}
