/*
 * A simulated libnvidia-ml.so.1. Strict about what NVML documents: initialised first, handles that
 * it gave out, versions of structs, sizes of buffers.
 */
#include "monitor_sim.h"

#include <stdio.h>
#include <string.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    INSUFFICIENT_SIZE = 7,
    ARGUMENT_VERSION_MISMATCH = 25
};

#define EXPORT SIM_EXPORT

static int users;

/* Starts that were not ended. */
EXPORT int memopt_sim_users(void)
{
    return users;
}
static char handles[16]; /* a device's handle is the address of its element */

#define ENTER(name)                                                                                \
    do {                                                                                           \
        int enter_code_ = sim_monitor_call(name);                                                  \
        if (enter_code_ != 0)                                                                      \
            return enter_code_;                                                                    \
        if (users <= 0) {                                                                          \
            sim_monitor_violation("%s before nvmlInit", name);                                     \
            return UNINITIALIZED;                                                                  \
        }                                                                                          \
    } while (0)

/* The index of a handle, or -1 and a violation. */
static int index_of(const void *device, const char *call)
{
    const char *handle = device;
    if (handle >= handles && handle < handles + sim_device_count())
        return (int)(handle - handles);
    sim_monitor_violation("%s: not a device's handle", call);
    return -1;
}

#define DEVICE(name)                                                                               \
    ENTER(name);                                                                                   \
    int i = index_of(device, name);                                                                \
    if (i < 0)                                                                                     \
    return INVALID_ARGUMENT

EXPORT int nvmlInit_v2(void)
{
    int code = sim_monitor_call("nvmlInit");
    if (code == 0)
        users++;
    return code;
}

EXPORT int nvmlInit(void)
{
    return nvmlInit_v2();
}

EXPORT int nvmlShutdown(void)
{
    ENTER("nvmlShutdown");
    users--;
    return OK;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code == 3    ? "Not Supported"
           : code == 4  ? "Insufficient Permissions"
           : code == 9  ? "Driver Not Loaded"
           : code == 15 ? "GPU is lost"
           : code == 18 ? "Driver/library version mismatch"
                        : "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned bytes)
{
    ENTER("nvmlSystemGetDriverVersion");
    const char *text = "580.65.06";
    if (strlen(text) >= bytes)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER("nvmlDeviceGetCount");
    *out = (unsigned)sim_device_count();
    return OK;
}

EXPORT int nvmlDeviceGetCount(unsigned *out)
{
    return nvmlDeviceGetCount_v2(out);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    ENTER("nvmlDeviceGetHandleByIndex");
    if (index >= (unsigned)sim_device_count())
        return INVALID_ARGUMENT;
    *out = &handles[index];
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

static int give_text(const char *text, char *out, unsigned bytes)
{
    if (strlen(text) >= bytes)
        return INSUFFICIENT_SIZE;
    memset(out, 'x', bytes); /* all of it is the library's to write */
    strcpy(out, text);
    return OK;
}

EXPORT int nvmlDeviceGetName(void *device, char *out, unsigned bytes)
{
    DEVICE("nvmlDeviceGetName");
    return give_text(sim_text("MEMOPT_SIM_NAME", "libmemopt simulated device"), out, bytes);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *out, unsigned bytes)
{
    char text[64];
    DEVICE("nvmlDeviceGetUUID");
    snprintf(text, sizeof text, "GPU-00000000-1111-2222-3333-44444444444%d", i);
    return give_text(text, out, bytes);
}

typedef struct pci {
    char old[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} pci;

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, pci *out)
{
    DEVICE("nvmlDeviceGetPciInfo");
    *out = (pci){.domain = 1, .bus = 0x3bu + (unsigned)i, .device = 2};
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return OK;
}

typedef struct memory {
    unsigned long long total, free, used;
} memory;

EXPORT int nvmlDeviceGetMemoryInfo(void *device, memory *out)
{
    DEVICE("nvmlDeviceGetMemoryInfo");
    uint64_t used = sim_used(i) + (32u << 20);
    *out = (memory){sim_total(), sim_total() - used, used};
    return OK;
}

typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *out)
{
    DEVICE("nvmlDeviceGetMemoryInfo_v2");
    if (out->version != ((unsigned)sizeof *out | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    out->total = sim_total();
    out->reserved = 32u << 20;
    out->used = sim_used(i);
    out->free = out->total - out->reserved - out->used;
    return OK;
}

typedef struct utilization {
    unsigned gpu, memory;
} utilization;

EXPORT int nvmlDeviceGetUtilizationRates(void *device, utilization *out)
{
    DEVICE("nvmlDeviceGetUtilizationRates");
    out->gpu = (unsigned)sim_number("MEMOPT_SIM_UTILIZATION", 37) + (unsigned)i;
    out->memory = 12;
    return OK;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out)
{
    DEVICE("nvmlDeviceGetTemperature");
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *out = 54 + (unsigned)i;
    return OK;
}

/* Milliwatts, as NVML counts. */
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *out)
{
    DEVICE("nvmlDeviceGetPowerUsage");
    *out = 123500;
    return OK;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out)
{
    DEVICE("nvmlDeviceGetEnforcedPowerLimit");
    *out = 300000;
    return OK;
}

/* Writes entries of `size` bytes as drivers do: field by field, padding left alone. */
static int list(int device, int graphics, unsigned size, unsigned *count, void *out)
{
    sim_process all[MOST_PROCESSES];
    size_t found = 0, n = sim_processes(all);
    for (size_t p = 0; p < n; p++)
        if (all[p].device == device && (graphics ? all[p].graphics : all[p].compute))
            all[found++] = all[p];
    unsigned room = *count;
    *count = (unsigned)found;
    if (room < found)
        return INSUFFICIENT_SIZE;
    if (out == NULL && found > 0)
        return INVALID_ARGUMENT;
    for (size_t p = 0; p < found; p++) {
        char *entry = (char *)out + p * size;
        const uint32_t instances[2] = {UINT32_MAX, UINT32_MAX};
        const uint64_t hidden = 0, bytes = all[p].known ? all[p].bytes : UINT64_MAX;
        memcpy(entry, &all[p].pid, 4);
        memcpy(entry + 8, &bytes, 8);
        if (size >= 24)
            memcpy(entry + 16, instances, 8);
        if (size >= 32)
            memcpy(entry + 24, &hidden, 8);
    }
    return OK;
}

#define LISTS(name, suffix, graphics, size)                                                        \
    EXPORT int name##suffix(void *device, unsigned *count, void *out);                             \
    EXPORT int name##suffix(void *device, unsigned *count, void *out)                              \
    {                                                                                              \
        DEVICE(#name);                                                                             \
        return list(i, graphics, (unsigned)(size), count, out);                                    \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, _v3, 0, sim_number("MEMOPT_SIM_ENTRY_BYTES", 24))
LISTS(nvmlDeviceGetComputeRunningProcesses, _v2, 0, 24)
LISTS(nvmlDeviceGetComputeRunningProcesses, , 0, 16)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, _v3, 1, sim_number("MEMOPT_SIM_ENTRY_BYTES", 24))
LISTS(nvmlDeviceGetGraphicsRunningProcesses, _v2, 1, 24)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, , 1, 16)
