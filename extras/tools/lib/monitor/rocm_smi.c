/*
 * Monitoring through ROCm SMI, which is loaded at run time and counts its users: every open monitor
 * is one.
 */
#include "monitor/source.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* rsmi_status_t. */
enum {
    RSMI_OK = 0,
    RSMI_NOT_SUPPORTED = 2,
    RSMI_PERMISSION = 4,
    RSMI_OUT_OF_RESOURCES = 5,
    RSMI_INIT_ERROR = 8,
    RSMI_NOT_YET_IMPLEMENTED = 9,
    RSMI_NOT_FOUND = 10,
    RSMI_INSUFFICIENT_SIZE = 11,
    RSMI_NO_DATA = 14
};

enum { VRAM = 0, EDGE = 0, JUNCTION = 1, CURRENT = 0, PROCESS_TRIES = 8, SPARE_ENTRIES = 8 };

typedef struct rsmi_process {
    uint32_t pid, pasid;
    uint64_t vram, sdma;
    uint32_t occupancy;
    /* A later library may write more of one process. */
    uint64_t spare[8];
} rsmi_process;

/* An entry of the list of all processes; of it only the pid is used. */
typedef struct rsmi_entry {
    uint32_t pid, pasid;
    uint64_t vram, sdma;
    uint32_t occupancy;
} rsmi_entry;

typedef struct rsmi_version {
    uint32_t major, minor, patch;
    const char *build;
} rsmi_version;

/* X(field, parameters, required, name without "rsmi_") */
#define RSMI_CALLS(X)                                                                              \
    X(init, (uint64_t flags), 1, "init")                                                           \
    X(shut_down, (void), 1, "shut_down")                                                           \
    X(count, (uint32_t * out), 1, "num_monitor_devices")                                           \
    X(status_string, (int code, const char **out), 0, "status_string")                             \
    X(version, (rsmi_version * out), 0, "version_get")                                             \
    X(name, (uint32_t device, char *out, size_t bytes), 0, "dev_name_get")                         \
    X(unique_id, (uint32_t device, uint64_t * out), 0, "dev_unique_id_get")                        \
    X(pci, (uint32_t device, uint64_t * out), 0, "dev_pci_id_get")                                 \
    X(memory_total, (uint32_t device, int type, uint64_t *out), 0, "dev_memory_total_get")         \
    X(memory_used, (uint32_t device, int type, uint64_t *out), 0, "dev_memory_usage_get")          \
    X(busy, (uint32_t device, uint32_t * out), 0, "dev_busy_percent_get")                          \
    X(memory_busy, (uint32_t device, uint32_t * out), 0, "dev_memory_busy_percent_get")            \
    X(temperature, (uint32_t device, uint32_t sensor, int metric, int64_t *out), 0,                \
      "dev_temp_metric_get")                                                                       \
    X(power, (uint32_t device, uint64_t * out, int *type), 0, "dev_power_get")                     \
    X(power_average, (uint32_t device, uint32_t sensor, uint64_t * out), 0, "dev_power_ave_get")   \
    X(power_cap, (uint32_t device, uint32_t sensor, uint64_t * out), 0, "dev_power_cap_get")       \
    X(processes, (rsmi_entry * out, uint32_t * count), 0, "compute_process_info_get")              \
    X(process, (uint32_t pid, uint32_t device, rsmi_process * out), 0,                             \
      "compute_process_info_by_device_get")

typedef struct rsmi_calls {
#define FIELD(field, parameters, required, name) int(*field) parameters;
    RSMI_CALLS(FIELD)
#undef FIELD
} rsmi_calls;

static const mo_monitor_symbol symbols[] = {
#define SYMBOL(field, parameters, required, name)                                                  \
    {{"rsmi_" name, NULL, NULL}, offsetof(rsmi_calls, field), required},
    RSMI_CALLS(SYMBOL)
#undef SYMBOL
};

typedef struct rsmi_monitor {
    memopt_monitor base;
    rsmi_calls call;
    int started;
} rsmi_monitor;

/* .so.1 is Debian's name of it, whatever the version. */
static const char *const libraries[] = {"librocm_smi64.so.7", "librocm_smi64.so.6",
                                        "librocm_smi64.so.5", "librocm_smi64.so.1",
                                        "librocm_smi64.so",   NULL};

static const char *const folders[] = {"/sys/class/kfd/kfd/topology/nodes", "/sys/class/drm", NULL};

#define ASK(monitor, field, ...)                                                                   \
    ((monitor)->call.field != NULL ? (monitor)->call.field(__VA_ARGS__) : RSMI_NOT_SUPPORTED)

static const char *says(const rsmi_calls *call, int code)
{
    const char *text = NULL;
    if (call->status_string == NULL || call->status_string(code, &text) != RSMI_OK)
        text = NULL;
    return text != NULL ? text : "an error";
}

static int not_told(int code)
{
    return code == RSMI_NOT_SUPPORTED || code == RSMI_NOT_YET_IMPLEMENTED ||
           code == RSMI_NOT_FOUND || code == RSMI_NO_DATA;
}

/* --- reading ------------------------------------------------------------------------------- */

static int note(const rsmi_monitor *monitor, memopt_monitor_reading *out, uint32_t field, int code,
                const char *what)
{
    mo_field_outcome outcome = code == RSMI_OK           ? MO_FIELD_HERE
                               : not_told(code)          ? MO_FIELD_NOT_TOLD
                               : code == RSMI_PERMISSION ? MO_FIELD_DENIED
                                                         : MO_FIELD_FAILED;
    mo_monitor_note(out, field, outcome, code, what,
                    code == RSMI_OK ? "" : says(&monitor->call, code));
    return code == RSMI_OK;
}

static void read_identity(const rsmi_monitor *m, uint32_t device, memopt_monitor_reading *out)
{
    uint64_t number = 0;
    char name[sizeof out->name] = "";
    int code = ASK(m, name, device, name, sizeof name);
    if (code == RSMI_INSUFFICIENT_SIZE) /* truncated, but valid */
        code = RSMI_OK;
    if (note(m, out, MEMOPT_MONITOR_NAME, code, "name"))
        snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof name - 1, name);
    if (note(m, out, MEMOPT_MONITOR_UUID, ASK(m, unique_id, device, &number), "unique id"))
        snprintf(out->uuid, sizeof out->uuid, "GPU-%016" PRIx64, number);
    if (note(m, out, MEMOPT_MONITOR_PCI, ASK(m, pci, device, &number), "bus address"))
        snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.%x", (unsigned)(number >> 32),
                 (unsigned)(number >> 8 & 0xff), (unsigned)(number >> 3 & 0x1f),
                 (unsigned)(number & 7));
}

static void read_memory(const rsmi_monitor *m, uint32_t device, memopt_monitor_reading *out)
{
    uint64_t total = 0, used = 0;
    int code = ASK(m, memory_total, device, VRAM, &total);
    if (code == RSMI_OK)
        code = ASK(m, memory_used, device, VRAM, &used);
    if (note(m, out, MEMOPT_MONITOR_MEMORY, code, "memory")) {
        out->memory_total = total;
        out->memory_used = used;
        out->memory_free = used < total ? total - used : 0;
    }
}

/* The edge sensor is missing on accelerators, which have the junction's. */
static int ask_temperature(const rsmi_monitor *m, uint32_t device, int64_t *out)
{
    int code = ASK(m, temperature, device, EDGE, CURRENT, out);
    return not_told(code) ? ASK(m, temperature, device, JUNCTION, CURRENT, out) : code;
}

static int ask_power(const rsmi_monitor *m, uint32_t device, uint64_t *out)
{
    int type = 0;
    int code = ASK(m, power, device, out, &type);
    return not_told(code) ? ASK(m, power_average, device, 0, out) : code;
}

static void read_sensors(const rsmi_monitor *m, uint32_t device, memopt_monitor_reading *out)
{
    uint32_t percent = 0;
    int64_t millidegrees = 0;
    uint64_t microwatts = 0;
    if (note(m, out, MEMOPT_MONITOR_UTILIZATION, ASK(m, busy, device, &percent), "utilization"))
        out->utilization = percent;
    if (note(m, out, MEMOPT_MONITOR_MEMORY_UTILIZATION, ASK(m, memory_busy, device, &percent),
             "memory utilization"))
        out->memory_utilization = percent;
    if (note(m, out, MEMOPT_MONITOR_TEMPERATURE, ask_temperature(m, device, &millidegrees),
             "temperature"))
        out->temperature = (double)millidegrees / 1000.0;
    if (note(m, out, MEMOPT_MONITOR_POWER, ask_power(m, device, &microwatts), "power"))
        out->power = (double)microwatts / 1e6;
    if (note(m, out, MEMOPT_MONITOR_POWER_LIMIT, ASK(m, power_cap, device, 0, &microwatts),
             "power limit"))
        out->power_limit = (double)microwatts / 1e6;
}

static memopt_status rsmi_read(memopt_monitor *base, int32_t index, memopt_monitor_reading *out)
{
    const rsmi_monitor *monitor = (const rsmi_monitor *)(const void *)base;
    read_identity(monitor, (uint32_t)index, out);
    read_memory(monitor, (uint32_t)index, out);
    read_sensors(monitor, (uint32_t)index, out);
    return MEMOPT_OK;
}

/* --- processes ----------------------------------------------------------------------------- */

/* All computing processes on any device. OK or OUT_OF_HOST_MEMORY; *out_entries is ended by
 * mo_free, and *out_code is the library's. */
static memopt_status list_all(const rsmi_monitor *m, rsmi_entry **out_entries, uint32_t *out_count,
                              int *out_code)
{
    uint32_t found = 0;
    *out_entries = NULL;
    *out_count = 0;
    *out_code = ASK(m, processes, NULL, &found);
    for (int i = 0; i < PROCESS_TRIES && *out_code == RSMI_OK; i++) {
        uint32_t capacity = found + SPARE_ENTRIES; /* others may start meanwhile */
        rsmi_entry *entries = mo_calloc(capacity, sizeof *entries);
        if (entries == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        uint32_t count = capacity;
        *out_code = m->call.processes(entries, &count);
        if (*out_code == RSMI_OK && count <= capacity) {
            *out_entries = entries;
            *out_count = count;
            return MEMOPT_OK;
        }
        mo_free(entries);
        if (*out_code == RSMI_INSUFFICIENT_SIZE)
            *out_code = m->call.processes(NULL, &found);
    }
    return MEMOPT_OK;
}

static memopt_status refuse(const rsmi_monitor *monitor, int32_t index, int code)
{
    const char *text = says(&monitor->call, code);
    if (not_told(code))
        return mo_fail_driver(MEMOPT_UNSUPPORTED, code, text,
                              "monitor: hip:%d: ROCm SMI does not report its processes: %s (%d)",
                              (int)index, text, code);
    return mo_fail_driver(
        code == RSMI_OUT_OF_RESOURCES ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_DRIVER_ERROR, code, text,
        "monitor: hip:%d: its processes: ROCm SMI says %s (%d)", (int)index, text, code);
}

static memopt_status rsmi_processes(memopt_monitor *base, int32_t index, mo_process_list *list)
{
    const rsmi_monitor *monitor = (const rsmi_monitor *)(const void *)base;
    rsmi_entry *entries = NULL;
    uint32_t count = 0;
    int code = RSMI_NOT_SUPPORTED;
    memopt_status status = MEMOPT_OK;
    if (monitor->call.process != NULL)
        status = list_all(monitor, &entries, &count, &code);
    if (status == MEMOPT_OK && code != RSMI_OK)
        status = refuse(monitor, index, code);
    for (uint32_t i = 0; i < count && status == MEMOPT_OK; i++) {
        rsmi_process process = {0};
        code = monitor->call.process(entries[i].pid, (uint32_t)index, &process);
        if (code == RSMI_NOT_FOUND) /* it has ended */
            continue;
        if (code == RSMI_OK && process.vram == 0) /* it uses another device */
            continue;
        /* Another user's process: exists, its bytes are unknown. */
        uint64_t bytes = code == RSMI_OK ? process.vram : UINT64_MAX;
        if (code != RSMI_OK && code != RSMI_PERMISSION)
            status = refuse(monitor, index, code);
        else if (!mo_process_merge(list, (int32_t)entries[i].pid, MEMOPT_PROCESS_COMPUTE, bytes))
            status = MEMOPT_OUT_OF_HOST_MEMORY;
    }
    mo_free(entries);
    return status;
}

/* --- opening ------------------------------------------------------------------------------- */

static void rsmi_close(memopt_monitor *base)
{
    rsmi_monitor *monitor = (rsmi_monitor *)(void *)base;
    if (monitor->started)
        (void)monitor->call.shut_down();
    mo_free(monitor);
}

static const mo_monitor_ops rsmi_ops = {
    .close = rsmi_close, .read = rsmi_read, .processes = rsmi_processes};

static memopt_status start(memopt_monitor *base, memopt_monitor_info *info)
{
    rsmi_monitor *monitor = (rsmi_monitor *)(void *)base;
    uint32_t count = 0;
    rsmi_version version = {0, 0, 0, NULL};
    const char *what = "does not start";
    int code = monitor->call.init(0);
    if (code == RSMI_OK) {
        monitor->started = 1;
        what = "does not count devices";
        code = monitor->call.count(&count);
    }
    if (code == RSMI_OK) {
        monitor->base.device_count = (int32_t)count;
        if (ASK(monitor, version, &version) == RSMI_OK)
            snprintf(info->version, sizeof info->version, "%u.%u.%u", version.major, version.minor,
                     version.patch);
        return MEMOPT_OK;
    }
    info->driver_code = code;
    snprintf(info->problem, sizeof info->problem, "%s %s: it says %s (%d)", info->library, what,
             says(&monitor->call, code), code);
    return code == RSMI_INIT_ERROR ? MEMOPT_DRIVER_MISSING : MEMOPT_DRIVER_ERROR;
}

static const mo_monitor_library library = {
    .source = "rocm_smi",
    .names = libraries,
    .needs = folders,
    .symbols = symbols,
    .symbol_count = sizeof symbols / sizeof symbols[0],
    .monitor_bytes = sizeof(rsmi_monitor),
    .calls = offsetof(rsmi_monitor, call),
    .ops = &rsmi_ops,
    .start = start,
};

memopt_status mo_rocm_smi_open(memopt_monitor_info *info, memopt_monitor **out_monitor)
{
    return mo_monitor_open_library(&library, info, out_monitor);
}
