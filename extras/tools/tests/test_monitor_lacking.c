/*
 * Monitors on libraries that lack one entry point each. Without an argument this program makes such
 * libraries of the simulated ones, and runs itself with each; the argument then names what is
 * lacking.
 */
#define _GNU_SOURCE /* nftw */

#include "monitor_support.h"
#include "support/made_root.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/wait.h>

static const char *program, *lacked;

typedef struct lack {
    const char *symbol;
    int gpu, required;
    uint32_t fields; /* that are not told any more */
} lack;

static const lack lacks[] = {
    {"nvmlInit_v2", 0, 0, 0}, /* the older form does */
    {"nvmlShutdown", 0, 1, 0},
    {"nvmlDeviceGetCount_v2", 0, 0, 0},
    {"nvmlDeviceGetHandleByIndex_v2", 0, 0, 0},
    {"nvmlSystemGetDriverVersion", 0, 0, 0},
    {"nvmlErrorString", 0, 0, 0},
    {"nvmlDeviceGetName", 0, 0, MEMOPT_MONITOR_NAME},
    {"nvmlDeviceGetUUID", 0, 0, MEMOPT_MONITOR_UUID},
    {"nvmlDeviceGetPciInfo_v3", 0, 0, MEMOPT_MONITOR_PCI},
    {"nvmlDeviceGetMemoryInfo_v2", 0, 0, MEMOPT_MONITOR_MEMORY_RESERVED},
    {"nvmlDeviceGetMemoryInfo", 0, 0, 0}, /* the newer form does */
    {"nvmlDeviceGetUtilizationRates", 0, 0,
     MEMOPT_MONITOR_UTILIZATION | MEMOPT_MONITOR_MEMORY_UTILIZATION},
    {"nvmlDeviceGetTemperature", 0, 0, MEMOPT_MONITOR_TEMPERATURE},
    {"nvmlDeviceGetPowerUsage", 0, 0, MEMOPT_MONITOR_POWER},
    {"nvmlDeviceGetEnforcedPowerLimit", 0, 0, MEMOPT_MONITOR_POWER_LIMIT},
    {"nvmlDeviceGetComputeRunningProcesses_v3", 0, 0, 0},
    {"rsmi_init", 1, 1, 0},
    {"rsmi_shut_down", 1, 1, 0},
    {"rsmi_num_monitor_devices", 1, 1, 0},
    {"rsmi_status_string", 1, 0, 0},
    {"rsmi_version_get", 1, 0, 0},
    {"rsmi_dev_name_get", 1, 0, MEMOPT_MONITOR_NAME},
    {"rsmi_dev_unique_id_get", 1, 0, MEMOPT_MONITOR_UUID},
    {"rsmi_dev_pci_id_get", 1, 0, MEMOPT_MONITOR_PCI},
    {"rsmi_dev_memory_total_get", 1, 0, MEMOPT_MONITOR_MEMORY},
    {"rsmi_dev_memory_usage_get", 1, 0, MEMOPT_MONITOR_MEMORY},
    {"rsmi_dev_busy_percent_get", 1, 0, MEMOPT_MONITOR_UTILIZATION},
    {"rsmi_dev_memory_busy_percent_get", 1, 0, MEMOPT_MONITOR_MEMORY_UTILIZATION},
    {"rsmi_dev_temp_metric_get", 1, 0, MEMOPT_MONITOR_TEMPERATURE},
    {"rsmi_dev_power_get", 1, 0, 0}, /* the average does */
    {"rsmi_dev_power_cap_get", 1, 0, MEMOPT_MONITOR_POWER_LIMIT},
};

/* Runs in a process of its own, whose loader finds a library without `lacked`. */
TEST(one_is_lacking)
{
    for (size_t k = 0; k < sizeof lacks / sizeof lacks[0]; k++) {
        const lack *l = &lacks[k];
        if (strcmp(l->symbol, lacked) != 0)
            continue;
        memopt_monitor_info info = info_about(gpus[l->gpu]);
        char wanted[80];
        int older = strstr(l->symbol, "_v") != NULL && strstr(l->symbol, "PciInfo") == NULL &&
                    strstr(l->symbol, "MemoryInfo") == NULL && strstr(l->symbol, "_ver") == NULL;
        snprintf(wanted, sizeof wanted, "%s%s", l->symbol, l->required ? " (required)" : "");
        assert_string_equal(info.missing, older ? "" : wanted);
        if (l->required) {
            assert_int_equal(info.status, MEMOPT_DRIVER_MISSING);
            memopt_monitor *monitor;
            FAILS(MEMOPT_DRIVER_MISSING, memopt_monitor_open(gpus[l->gpu], &monitor));
            SAYS(wanted);
            return;
        }
        assert_int_equal(info.status, MEMOPT_OK);
        memopt_monitor_reading r = read_once(gpus[l->gpu], 0);
        uint32_t all = l->gpu == 0 ? ALL | MEMOPT_MONITOR_MEMORY_RESERVED : ALL;
        assert_int_equal(r.fields, all & ~l->fields);
        assert_int_equal(r.denied | r.failed, 0);
        assert_int_equal(list_once(gpus[l->gpu], 0).count, l->gpu == 0 ? 2 : 1);
        return;
    }
    fail_msg("%s is not in the table", lacked);
}

/* Copies a library with the name of one entry point spoiled, so that the loader does not find it.
 */
static void copy_without(const char *source, const char *symbol, const char *target)
{
    struct stat about;
    int in = open(source, O_RDONLY);
    assert_true(in >= 0 && fstat(in, &about) == 0);
    size_t size = (size_t)about.st_size, length = strlen(symbol) + 1;
    char *bytes = malloc(size);
    assert_non_null(bytes);
    assert_int_equal(read(in, bytes, size), size);
    close(in);
    int found = 0;
    for (size_t i = 1; i + length <= size; i++)
        if (bytes[i - 1] == '\0' && memcmp(bytes + i, symbol, length) == 0) {
            bytes[i] = '_';
            found = 1;
        }
    assert_true(found);
    int out = open(target, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    assert_true(out >= 0 && write(out, bytes, size) == (ssize_t)size);
    close(out);
    free(bytes);
}

TEST_WITH(every_entry_point_may_lack, make_root, remove_root)
{
    for (size_t k = 0; k < sizeof lacks / sizeof lacks[0]; k++) {
        char target[512];
        memopt_monitor_info info = info_about(gpus[lacks[k].gpu]);
        snprintf(target, sizeof target, "%s/%s", root, libraries[lacks[k].gpu]);
        copy_without(info.library, lacks[k].symbol, target);
        pid_t child = fork();
        if (child == 0) {
            setenv("MEMOPT_DRIVER_PATH", root, 1);
            execl(program, program, lacks[k].symbol, (char *)NULL);
            _exit(127);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0)
            fail_msg("without %s", lacks[k].symbol);
        assert_int_equal(unlink(target), 0);
    }
}

int main(int count, char **values)
{
    program = values[0];
    lacked = count > 1 ? values[1] : NULL;
    return run_tests_named(lacked == NULL ? "every_" : "one_", NULL, NULL);
}
