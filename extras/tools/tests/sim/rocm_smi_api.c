/*
 * A simulated librocm_smi64.so. Strict about what ROCm SMI documents: initialised first, indices in
 * range, sizes of buffers.
 */
#include "monitor_sim.h"

#include <stdio.h>
#include <string.h>

enum {
    OK = 0,
    INVALID_ARGS = 1,
    NOT_SUPPORTED = 2,
    INIT_ERROR = 8,
    NOT_FOUND = 10,
    INSUFFICIENT_SIZE = 11
};

#define EXPORT SIM_EXPORT

static int users;

/* Starts that were not ended. */
EXPORT int memopt_sim_users(void)
{
    return users;
}

#define ENTER(name)                                                                                \
    do {                                                                                           \
        int enter_code_ = sim_monitor_call(name);                                                  \
        if (enter_code_ != 0)                                                                      \
            return enter_code_;                                                                    \
        if (users <= 0) {                                                                          \
            sim_monitor_violation("%s before rsmi_init", name);                                    \
            return INIT_ERROR;                                                                     \
        }                                                                                          \
    } while (0)

#define DEVICE(name)                                                                               \
    ENTER(name);                                                                                   \
    if (device >= (uint32_t)sim_device_count()) {                                                  \
        sim_monitor_violation("%s: no device %u", name, device);                                   \
        return INVALID_ARGS;                                                                       \
    }

EXPORT int rsmi_init(uint64_t flags)
{
    int code = sim_monitor_call("rsmi_init");
    if (flags != 0)
        return INVALID_ARGS;
    if (code == 0)
        users++;
    return code;
}

EXPORT int rsmi_shut_down(void)
{
    ENTER("rsmi_shut_down");
    users--;
    return OK;
}

EXPORT int rsmi_status_string(int code, const char **out)
{
    *out = code == 4   ? "RSMI_STATUS_PERMISSION: Permission denied"
           : code == 8 ? "RSMI_STATUS_INIT_ERROR: An error occurred during initialization"
                       : "RSMI_STATUS_UNKNOWN_ERROR: An unknown error occurred";
    return OK;
}

typedef struct version {
    uint32_t major, minor, patch;
    const char *build;
} version;

EXPORT int rsmi_version_get(version *out)
{
    int code = sim_monitor_call("rsmi_version_get");
    if (code == OK)
        *out = (version){7, 3, 0, "sim"};
    return code;
}

EXPORT int rsmi_num_monitor_devices(uint32_t *out)
{
    ENTER("rsmi_num_monitor_devices");
    *out = (uint32_t)sim_device_count();
    return OK;
}

EXPORT int rsmi_dev_name_get(uint32_t device, char *out, size_t bytes)
{
    DEVICE("rsmi_dev_name_get");
    const char *text = sim_text("MEMOPT_SIM_NAME", "libmemopt simulated device");
    snprintf(out, bytes, "%s", text);
    return strlen(text) < bytes ? OK : INSUFFICIENT_SIZE;
}

EXPORT int rsmi_dev_unique_id_get(uint32_t device, uint64_t *out)
{
    DEVICE("rsmi_dev_unique_id_get");
    *out = 0x123456789abc0000u + device;
    return OK;
}

EXPORT int rsmi_dev_pci_id_get(uint32_t device, uint64_t *out)
{
    DEVICE("rsmi_dev_pci_id_get");
    /* A partition's number in bits 28 to 31 is no part of the address. */
    *out = (uint64_t)1 << 32 | 3u << 28 | (0x43u + device) << 8 | 2u << 3;
    return OK;
}

EXPORT int rsmi_dev_memory_total_get(uint32_t device, int type, uint64_t *out)
{
    DEVICE("rsmi_dev_memory_total_get");
    *out = sim_total();
    return type == 0 ? OK : INVALID_ARGS;
}

EXPORT int rsmi_dev_memory_usage_get(uint32_t device, int type, uint64_t *out)
{
    DEVICE("rsmi_dev_memory_usage_get");
    *out = sim_used((int)device);
    return type == 0 ? OK : INVALID_ARGS;
}

EXPORT int rsmi_dev_busy_percent_get(uint32_t device, uint32_t *out)
{
    DEVICE("rsmi_dev_busy_percent_get");
    *out = (uint32_t)sim_number("MEMOPT_SIM_UTILIZATION", 37) + device;
    return OK;
}

EXPORT int rsmi_dev_memory_busy_percent_get(uint32_t device, uint32_t *out)
{
    DEVICE("rsmi_dev_memory_busy_percent_get");
    *out = 12;
    return OK;
}

/* Thousandths of a degree. MEMOPT_SIM_EDGE=0: an accelerator, which has no sensor at the edge. */
EXPORT int rsmi_dev_temp_metric_get(uint32_t device, uint32_t sensor, int metric, int64_t *out)
{
    DEVICE("rsmi_dev_temp_metric_get");
    if (sensor > 6 || metric != 0)
        return INVALID_ARGS;
    if (sensor == 0 && sim_number("MEMOPT_SIM_EDGE", 1) == 0)
        return NOT_SUPPORTED;
    *out = (int64_t)(54 + device) * 1000 + (sensor == 1 ? 5000 : 0);
    return OK;
}

/* Microwatts; the setting is in milliwatts. */
EXPORT int rsmi_dev_power_get(uint32_t device, uint64_t *out, int *type)
{
    DEVICE("rsmi_dev_power_get");
    if (type == NULL)
        return INVALID_ARGS;
    *out = 123500 * 1000;
    *type = 1;
    return OK;
}

EXPORT int rsmi_dev_power_ave_get(uint32_t device, uint32_t sensor, uint64_t *out)
{
    DEVICE("rsmi_dev_power_ave_get");
    *out = (123500 + 1000) * 1000;
    return sensor == 0 ? OK : INVALID_ARGS;
}

EXPORT int rsmi_dev_power_cap_get(uint32_t device, uint32_t sensor, uint64_t *out)
{
    DEVICE("rsmi_dev_power_cap_get");
    *out = 300000 * 1000;
    return sensor == 0 ? OK : INVALID_ARGS;
}

typedef struct process {
    uint32_t pid, pasid;
    uint64_t vram, sdma;
    uint32_t occupancy;
} process;

/* Each pid once; `found` of them that compute. */
static size_t computing(sim_process all[MOST_PROCESSES])
{
    size_t found = 0, n = sim_processes(all);
    for (size_t p = 0; p < n; p++) {
        size_t seen = 0;
        while (seen < found && all[seen].pid != all[p].pid)
            seen++;
        if (all[p].compute && seen == found)
            all[found++] = all[p];
    }
    return found;
}

/* As the real one: where there is too little room, *count is left alone. */
EXPORT int rsmi_compute_process_info_get(process *out, uint32_t *count)
{
    sim_process all[MOST_PROCESSES];
    ENTER("rsmi_compute_process_info_get");
    size_t found = computing(all);
    for (size_t p = 0; out != NULL && p < found && p < *count; p++)
        out[p] = (process){.pid = all[p].pid, .pasid = (uint32_t)p};
    if (out != NULL && *count < found)
        return INSUFFICIENT_SIZE;
    *count = (uint32_t)found;
    return OK;
}

/* A process that is on another device uses 0 bytes of this one. */
EXPORT int rsmi_compute_process_info_by_device_get(uint32_t pid, uint32_t device, process *out)
{
    sim_process all[MOST_PROCESSES];
    DEVICE("rsmi_compute_process_info_by_device_get");
    size_t n = sim_processes(all);
    int there = 0;
    *out = (process){.pid = pid};
    for (size_t p = 0; p < n; p++) {
        if (all[p].pid != pid || !all[p].compute)
            continue;
        there = 1;
        if (!all[p].known)
            return 4; /* another user's */
        if (all[p].device == (int)device)
            out->vram += all[p].bytes;
    }
    return there ? OK : NOT_FOUND;
}
