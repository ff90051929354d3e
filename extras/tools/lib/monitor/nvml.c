/*
 * Monitoring through NVML, which is loaded at run time. NVML counts its users: every open monitor
 * is one. Its functions may be called from any thread.
 */
#include "monitor/source.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* nvmlReturn_t. */
enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_LIBRARY_NOT_FOUND = 12,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_VERSION_MISMATCH = 18,
    NVML_MEMORY = 20,
    NVML_ARGUMENT_VERSION = 25,
    NVML_GPU_NOT_FOUND = 28
};

enum { TEMPERATURE_OF_DIE = 0, PROCESS_TRIES = 8, MOST_ENTRY_BYTES = 32, SPARE_ENTRIES = 8 };

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml_memory_v2 {
    unsigned version; /* size and 2 << 24 */
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;

typedef struct nvml_utilization {
    unsigned gpu, memory;
} nvml_utilization;

typedef struct nvml_pci {
    char old_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvml_pci;

typedef void *nvml_device;

/* X(field, parameters, required, name, older name or NULL, still older) */
#define NVML_CALLS(X)                                                                              \
    X(init, (void), 1, "nvmlInit_v2", "nvmlInit", NULL)                                            \
    X(shut_down, (void), 1, "nvmlShutdown", NULL, NULL)                                            \
    X(count, (unsigned *out), 1, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", NULL)              \
    X(handle, (unsigned index, nvml_device *out), 1, "nvmlDeviceGetHandleByIndex_v2",              \
      "nvmlDeviceGetHandleByIndex", NULL)                                                          \
    X(driver_version, (char *out, unsigned bytes), 0, "nvmlSystemGetDriverVersion", NULL, NULL)    \
    X(name, (nvml_device device, char *out, unsigned bytes), 0, "nvmlDeviceGetName", NULL, NULL)   \
    X(uuid, (nvml_device device, char *out, unsigned bytes), 0, "nvmlDeviceGetUUID", NULL, NULL)   \
    X(pci, (nvml_device device, nvml_pci * out), 0, "nvmlDeviceGetPciInfo_v3", NULL, NULL)         \
    X(memory, (nvml_device device, nvml_memory * out), 0, "nvmlDeviceGetMemoryInfo", NULL, NULL)   \
    X(memory_v2, (nvml_device device, nvml_memory_v2 * out), 0, "nvmlDeviceGetMemoryInfo_v2",      \
      NULL, NULL)                                                                                  \
    X(utilization, (nvml_device device, nvml_utilization * out), 0,                                \
      "nvmlDeviceGetUtilizationRates", NULL, NULL)                                                 \
    X(temperature, (nvml_device device, int sensor, unsigned *out), 0, "nvmlDeviceGetTemperature", \
      NULL, NULL)                                                                                  \
    X(power, (nvml_device device, unsigned *out), 0, "nvmlDeviceGetPowerUsage", NULL, NULL)        \
    X(power_limit, (nvml_device device, unsigned *out), 0, "nvmlDeviceGetEnforcedPowerLimit",      \
      NULL, NULL)                                                                                  \
    X(compute, (nvml_device device, unsigned *count, void *out), 0,                                \
      "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",        \
      "nvmlDeviceGetComputeRunningProcesses")                                                      \
    X(graphics, (nvml_device device, unsigned *count, void *out), 0,                               \
      "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",      \
      "nvmlDeviceGetGraphicsRunningProcesses")

typedef struct nvml_calls {
#define FIELD(field, parameters, required, name, older, oldest) int(*field) parameters;
    NVML_CALLS(FIELD)
#undef FIELD
    const char *(*error_string)(int code);
} nvml_calls;

static const mo_monitor_symbol symbols[] = {
#define SYMBOL(field, parameters, required, name, older, oldest)                                   \
    {{name, older, oldest}, offsetof(nvml_calls, field), required},
    NVML_CALLS(SYMBOL)
#undef SYMBOL
        {{"nvmlErrorString", NULL, NULL}, offsetof(nvml_calls, error_string), 0},
};

typedef struct nvml_monitor {
    memopt_monitor base;
    nvml_calls call;
    int started; /* shut_down is owed */
} nvml_monitor;

static const char *const libraries[] = {"libnvidia-ml.so.1", NULL};

static const char *says(const nvml_calls *call, int code)
{
    const char *text = call->error_string != NULL ? call->error_string(code) : NULL;
    return text != NULL ? text : "an error";
}

/* --- reading ------------------------------------------------------------------------------- */

/* What concerns the device as a whole. */
static memopt_status refuse(const nvml_monitor *monitor, int32_t index, int code, const char *what)
{
    const char *text = says(&monitor->call, code);
    int lost = code == NVML_GPU_LOST || code == NVML_RESET_REQUIRED;
    memopt_status status = lost                  ? MEMOPT_DEVICE_LOST
                           : code == NVML_MEMORY ? MEMOPT_OUT_OF_HOST_MEMORY
                                                 : MEMOPT_DRIVER_ERROR;
    return mo_fail_driver(status, code, text, "monitor: cuda:%d: %s: NVML says %s (%d)%s",
                          (int)index, what, text, code, lost ? "; the device is lost" : "");
}

/* Does the code end the whole reading? */
static int is_fatal(int code)
{
    return code == NVML_GPU_LOST || code == NVML_RESET_REQUIRED || code == NVML_MEMORY;
}

static int not_told(int code)
{
    return code == NVML_NOT_SUPPORTED || code == NVML_FUNCTION_NOT_FOUND;
}

/* Notes a field; 1 where its value is here. *fatal gets a code that ends the reading. */
static int note(const nvml_monitor *monitor, memopt_monitor_reading *out, uint32_t field, int code,
                const char *what, int *fatal)
{
    mo_field_outcome outcome = code == NVML_OK              ? MO_FIELD_HERE
                               : not_told(code)             ? MO_FIELD_NOT_TOLD
                               : code == NVML_NO_PERMISSION ? MO_FIELD_DENIED
                                                            : MO_FIELD_FAILED;
    mo_monitor_note(out, field, outcome, code, what,
                    code == NVML_OK ? "" : says(&monitor->call, code));
    if (is_fatal(code))
        *fatal = code;
    return code == NVML_OK;
}

/* A call that the library may lack. */
#define ASK(monitor, field, ...)                                                                   \
    ((monitor)->call.field != NULL ? (monitor)->call.field(__VA_ARGS__) : NVML_FUNCTION_NOT_FOUND)

static void read_identity(const nvml_monitor *m, nvml_device device, memopt_monitor_reading *out,
                          int *fatal)
{
    nvml_pci pci = {.bus_id = ""};
    char name[sizeof out->name] = "", uuid[sizeof out->uuid] = "";
    if (note(m, out, MEMOPT_MONITOR_NAME, ASK(m, name, device, name, sizeof name), "name", fatal))
        snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof name - 1, name);
    if (note(m, out, MEMOPT_MONITOR_UUID, ASK(m, uuid, device, uuid, sizeof uuid), "uuid", fatal))
        snprintf(out->uuid, sizeof out->uuid, "%.*s", (int)sizeof uuid - 1, uuid);
    /* NVML writes the domain with eight digits; the system and the other back end with four. */
    if (note(m, out, MEMOPT_MONITOR_PCI, ASK(m, pci, device, &pci), "bus address", fatal))
        snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
}

static void read_memory(const nvml_monitor *m, nvml_device device, memopt_monitor_reading *out,
                        int *fatal)
{
    nvml_memory_v2 two = {.version = (unsigned)sizeof two | 2u << 24};
    nvml_memory one = {0, 0, 0};
    int code = ASK(m, memory_v2, device, &two);
    if (code == NVML_OK) {
        (void)note(m, out, MEMOPT_MONITOR_MEMORY | MEMOPT_MONITOR_MEMORY_RESERVED, code, "", fatal);
        out->memory_total = two.total;
        out->memory_used = two.used;
        out->memory_free = two.free;
        out->memory_reserved = two.reserved;
        return;
    }
    /* Drivers that have the newer call by name only still answer the older one. */
    if (not_told(code) || code == NVML_ARGUMENT_VERSION)
        code = ASK(m, memory, device, &one);
    if (note(m, out, MEMOPT_MONITOR_MEMORY, code, "memory", fatal)) {
        out->memory_total = one.total;
        out->memory_used = one.used;
        out->memory_free = one.free;
    }
}

static void read_sensors(const nvml_monitor *m, nvml_device device, memopt_monitor_reading *out,
                         int *fatal)
{
    nvml_utilization load = {0, 0};
    unsigned number = 0;
    if (note(m, out, MEMOPT_MONITOR_UTILIZATION | MEMOPT_MONITOR_MEMORY_UTILIZATION,
             ASK(m, utilization, device, &load), "utilization", fatal)) {
        out->utilization = load.gpu;
        out->memory_utilization = load.memory;
    }
    if (note(m, out, MEMOPT_MONITOR_TEMPERATURE,
             ASK(m, temperature, device, TEMPERATURE_OF_DIE, &number), "temperature", fatal))
        out->temperature = number;
    if (note(m, out, MEMOPT_MONITOR_POWER, ASK(m, power, device, &number), "power", fatal))
        out->power = number / 1000.0;
    if (note(m, out, MEMOPT_MONITOR_POWER_LIMIT, ASK(m, power_limit, device, &number),
             "power limit", fatal))
        out->power_limit = number / 1000.0;
}

static memopt_status nvml_read(memopt_monitor *base, int32_t index, memopt_monitor_reading *out)
{
    static const uint32_t all = MEMOPT_MONITOR_MEMORY_RESERVED * 2 - 1;
    const nvml_monitor *monitor = (const nvml_monitor *)(const void *)base;
    nvml_device device = NULL;
    int fatal = NVML_OK;
    int code = monitor->call.handle((unsigned)index, &device);
    if (code == NVML_NO_PERMISSION) { /* one device of several may be another user's */
        (void)note(monitor, out, all, code, "the device", &fatal);
        return MEMOPT_OK;
    }
    if (code != NVML_OK)
        return refuse(monitor, index, code, "opening it");
    read_identity(monitor, device, out, &fatal);
    read_memory(monitor, device, out, &fatal);
    read_sensors(monitor, device, out, &fatal);
    return fatal == NVML_OK ? MEMOPT_OK : refuse(monitor, index, fatal, "reading it");
}

/* --- processes ----------------------------------------------------------------------------- */

/*
 * How many bytes an entry takes. Under one and the same name drivers have written entries of 16, 24
 * and 32 bytes (pid, bytes, then what came later), so it follows from how many bytes (`written`) of
 * the pattern-filled buffer changed for `count` entries.
 */
static size_t entry_bytes(const unsigned char *buffer, size_t bytes, unsigned char pattern,
                          unsigned count)
{
    size_t written = bytes;
    while (written > 0 && buffer[written - 1] == pattern)
        written--;
    for (size_t size = 16; size <= MOST_ENTRY_BYTES; size += 8)
        if (written > size * count - 8 && written <= size * count)
            return size;
    return 24;
}

static int add_entries(mo_process_list *list, const unsigned char *buffer, size_t size,
                       unsigned count, uint32_t kind)
{
    for (unsigned i = 0; i < count; i++) {
        uint32_t pid;
        unsigned long long used;
        memcpy(&pid, buffer + i * size, sizeof pid);
        memcpy(&used, buffer + i * size + 8, sizeof used);
        if (!mo_process_merge(list, (int32_t)pid, kind, used))
            return 0;
    }
    return 1;
}

typedef int (*list_call)(nvml_device device, unsigned *count, void *out);

/* Repeats until there is room for all. *out_code is the driver's; OK or OUT_OF_HOST_MEMORY. */
static memopt_status add_processes(list_call call, nvml_device device, uint32_t kind,
                                   mo_process_list *list, int *out_code)
{
    enum { PATTERN = 0xa5 };
    unsigned capacity = SPARE_ENTRIES;
    *out_code = NVML_INSUFFICIENT_SIZE;
    for (int i = 0; i < PROCESS_TRIES && *out_code == NVML_INSUFFICIENT_SIZE; i++) {
        unsigned count = capacity;
        size_t bytes = (size_t)capacity * MOST_ENTRY_BYTES;
        unsigned char *buffer = mo_malloc(bytes);
        if (buffer == NULL)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        memset(buffer, PATTERN, bytes);
        *out_code = call(device, &count, buffer);
        int added = 1;
        if (*out_code == NVML_OK && count > 0 && count <= capacity)
            added =
                add_entries(list, buffer, entry_bytes(buffer, bytes, PATTERN, count), count, kind);
        mo_free(buffer);
        if (!added)
            return MEMOPT_OUT_OF_HOST_MEMORY;
        if (*out_code == NVML_INSUFFICIENT_SIZE) /* others may start meanwhile */
            capacity =
                (count > capacity && count < 1u << 20 ? count : capacity * 2) + SPARE_ENTRIES;
    }
    return MEMOPT_OK;
}

static memopt_status nvml_processes(memopt_monitor *base, int32_t index, mo_process_list *list)
{
    const nvml_monitor *monitor = (const nvml_monitor *)(const void *)base;
    const struct {
        list_call call;
        uint32_t kind;
    } kinds[] = {{monitor->call.compute, MEMOPT_PROCESS_COMPUTE},
                 {monitor->call.graphics, MEMOPT_PROCESS_GRAPHICS}};
    nvml_device device = NULL;
    int told = 0;
    int code = monitor->call.handle((unsigned)index, &device);
    if (code != NVML_OK)
        return refuse(monitor, index, code, "opening it");
    for (size_t i = 0; i < 2; i++) {
        if (kinds[i].call == NULL)
            continue;
        memopt_status status = add_processes(kinds[i].call, device, kinds[i].kind, list, &code);
        if (status != MEMOPT_OK)
            return status;
        if (code == NVML_OK)
            told = 1;
        else if (!not_told(code))
            return refuse(monitor, index, code, "its processes");
    }
    if (told)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_UNSUPPORTED, "monitor: cuda:%d: NVML does not report its processes",
                   (int)index);
}

/* --- opening ------------------------------------------------------------------------------- */

static void nvml_close(memopt_monitor *base)
{
    nvml_monitor *monitor = (nvml_monitor *)(void *)base;
    if (monitor->started)
        (void)monitor->call.shut_down();
    mo_free(monitor);
}

static const mo_monitor_ops nvml_ops = {
    .close = nvml_close, .read = nvml_read, .processes = nvml_processes};

/* Starts the library and counts devices; a failure goes to info. */
static memopt_status start(memopt_monitor *base, memopt_monitor_info *info)
{
    nvml_monitor *monitor = (nvml_monitor *)(void *)base;
    nvml_calls *call = &monitor->call;
    unsigned count = 0;
    const char *what = "does not start";
    int code = call->init();
    if (code == NVML_GPU_NOT_FOUND) /* a driver and no device */
        return MEMOPT_OK;
    if (code == NVML_OK) {
        monitor->started = 1;
        what = "does not count devices";
        code = call->count(&count);
    }
    if (code == NVML_OK) {
        monitor->base.device_count = (int32_t)count;
        if (ASK(monitor, driver_version, info->version, (unsigned)sizeof info->version) != NVML_OK)
            info->version[0] = '\0';
        return MEMOPT_OK;
    }
    info->driver_code = code;
    snprintf(info->problem, sizeof info->problem, "%s %s: it says %s (%d)", info->library, what,
             says(call, code), code);
    return code == NVML_DRIVER_NOT_LOADED || code == NVML_LIBRARY_NOT_FOUND ||
                   code == NVML_VERSION_MISMATCH
               ? MEMOPT_DRIVER_MISSING
               : MEMOPT_DRIVER_ERROR;
}

static const mo_monitor_library library = {
    .source = "nvml",
    .names = libraries,
    .symbols = symbols,
    .symbol_count = sizeof symbols / sizeof symbols[0],
    .monitor_bytes = sizeof(nvml_monitor),
    .calls = offsetof(nvml_monitor, call),
    .ops = &nvml_ops,
    .start = start,
};

memopt_status mo_nvml_open(memopt_monitor_info *info, memopt_monitor **out_monitor)
{
    return mo_monitor_open_library(&library, info, out_monitor);
}
