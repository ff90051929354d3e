/* Monitors on the simulated libraries, whose answers the environment sets. */
#include "monitor_support.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct control {
    void (*fail_at)(const char *call, int64_t n, int32_t code);
    int64_t (*pending)(void), (*calls)(void);
    int (*take_violation)(char *out, uint64_t bytes);
    int (*users)(void);
} control;

static control find_control(int gpu)
{
    control sim;
    void *library = dlopen(libraries[gpu], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail_msg("%s", dlerror());
    *(void **)&sim.fail_at = dlsym(library, "memopt_sim_fail_at");
    *(void **)&sim.pending = dlsym(library, "memopt_sim_fault_pending");
    *(void **)&sim.calls = dlsym(library, "memopt_sim_calls");
    *(void **)&sim.take_violation = dlsym(library, "memopt_sim_take_violation");
    *(void **)&sim.users = dlsym(library, "memopt_sim_users");
    assert_non_null(sim.fail_at);
    assert_non_null(sim.users);
    return sim;
}

static void no_violation(int gpu)
{
    char text[256];
    if (find_control(gpu).take_violation(text, sizeof text))
        fail_msg("%s", text);
}

/* Every start of the library was ended. */
static void ended(int gpu)
{
    no_violation(gpu);
    assert_int_equal(find_control(gpu).users(), 0);
}

static int clean(void **state)
{
    static const char *const variables[] = {
        "MEMOPT_SIM_FAIL", "MEMOPT_SIM_ENTRY_BYTES", "MEMOPT_SIM_PROCESSES", "MEMOPT_SIM_STARTING",
        "MEMOPT_SIM_EDGE", "MEMOPT_SIM_DEVICES",     "MEMOPT_SIM_NAME",      "MEMOPT_SIM_USED"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

TEST_WITH(simulated_values, clean, clean)
{
    for (int i = 0; i < 2; i++) {
        int32_t count = 0;
        memopt_monitor *monitor = open_monitor(gpus[i]);
        memopt_monitor_info info = info_about(gpus[i]);
        assert_int_equal(info.status, MEMOPT_OK);
        assert_int_equal(info.device_count, 2);
        assert_string_equal(info.missing, "");
        assert_string_equal(info.problem, "");
        assert_string_equal(info.source, i == 0 ? "nvml" : "rocm_smi");
        assert_string_equal(info.version, i == 0 ? "580.65.06" : "7.3.0");
        contains(info.library, libraries[i]);
        OK(memopt_monitor_get_device_count(monitor, &count));
        assert_int_equal(count, 2);
        memopt_monitor_reading r = read_device(monitor, 1);
        assert_int_equal(r.fields, i == 0 ? ALL | MEMOPT_MONITOR_MEMORY_RESERVED : ALL);
        assert_int_equal(r.denied | r.failed, 0);
        assert_string_equal(r.name, "libmemopt simulated device");
        assert_string_equal(r.uuid, i == 0 ? "GPU-00000000-1111-2222-3333-444444444441"
                                           : "GPU-123456789abc0001");
        assert_string_equal(r.pci, i == 0 ? "0001:3c:02.0" : "0001:44:02.0");
        assert_int_equal(r.memory_total, 1024 * MIB);
        assert_int_equal(r.memory_used, 272 * MIB);
        assert_int_equal(r.memory_free, i == 0 ? 720 * MIB : 752 * MIB);
        assert_int_equal(r.memory_reserved, i == 0 ? 32 * MIB : 0);
        assert_true(r.utilization == 38 && r.memory_utilization == 12 && r.temperature == 55);
        assert_true(r.power == 123.5 && r.power_limit == 300);
        assert_int_equal(find_control(i).users(), 1);
        OK(memopt_monitor_close(monitor));
        ended(i);
    }
}

TEST_WITH(simulated_processes, clean, clean)
{
    setenv("MEMOPT_SIM_PROCESSES",
           "4000001:64M:c,4000002:16M:g,4000001:1M:g,4000003:?:c,4000004:3M:c@1", 1);
    static const char *const sizes[] = {"16", "24", "32"}; /* what drivers have written */
    for (int s = 0; s < 3; s++) {
        setenv("MEMOPT_SIM_ENTRY_BYTES", sizes[s], 1);
        processes p = list_once("cuda", 0);
        assert_int_equal(p.count, 3);
        is_process(&p.seen[0], 4000001, MEMOPT_PROCESS_COMPUTE | MEMOPT_PROCESS_GRAPHICS, 64 * MIB);
        is_process(&p.seen[1], 4000002, MEMOPT_PROCESS_GRAPHICS, 16 * MIB);
        is_process(&p.seen[2], 4000003, MEMOPT_PROCESS_COMPUTE, -1);
        p = list_once("cuda", 1);
        assert_int_equal(p.count, 1);
        is_process(&p.seen[0], 4000004, MEMOPT_PROCESS_COMPUTE, 3 * MIB);
    }
    processes p = list_once("hip", 0);
    assert_int_equal(p.count, 2);
    is_process(&p.seen[0], 4000001, MEMOPT_PROCESS_COMPUTE, 64 * MIB);
    is_process(&p.seen[1], 4000003, MEMOPT_PROCESS_COMPUTE, -1);
    p = list_once("hip", 1);
    assert_int_equal(p.count, 2); /* of 4000003 it is not known which device it uses */
    is_process(&p.seen[0], 4000004, MEMOPT_PROCESS_COMPUTE, 3 * MIB);
    setenv("MEMOPT_SIM_PROCESSES", "", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(list_once(gpus[i], 0).count, 0);
}

/* Found as the loader finds it, ROCm SMI is started only where it has something to read: without a
 * card it writes to standard error. */
TEST_WITH(not_started_in_vain, clean, clean)
{
    char path[1024];
    int there = access("/sys/class/kfd/kfd/topology/nodes", F_OK) == 0 &&
                access("/sys/class/drm", F_OK) == 0;
    int64_t calls = find_control(1).calls();
    snprintf(path, sizeof path, "%s", getenv("MEMOPT_DRIVER_PATH"));
    unsetenv("MEMOPT_DRIVER_PATH");
    memopt_monitor_info hip = info_about("hip"), cuda = info_about("cuda");
    setenv("MEMOPT_DRIVER_PATH", path, 1);
    assert_int_equal(find_control(1).calls() != calls, there);
    assert_true(there || strncmp(hip.problem, "/sys/class/", 11) == 0);
    assert_int_equal(cuda.status, MEMOPT_OK);
}

/* Between asking how many there are and asking who, more have started. */
TEST_WITH(processes_start_meanwhile, clean, clean)
{
    setenv("MEMOPT_SIM_STARTING", "7", 1);
    for (int i = 0; i < 2; i++)
        for (int turn = 0; turn < 4; turn++)
            assert_true(list_once(gpus[i], 0).count > (uint32_t)(turn * 7));
    no_violation(0);
    no_violation(1);
}

TEST_WITH(own_name_is_found, clean, clean)
{
    char text[64];
    snprintf(text, sizeof text, "%d:64M:c", (int)getpid());
    setenv("MEMOPT_SIM_PROCESSES", text, 1);
    for (int i = 0; i < 2; i++) {
        processes p = list_once(gpus[i], 0);
        assert_int_equal(p.count, 1);
        assert_string_equal(p.seen[0].name, "tools_monitor_s"); /* 15 characters are kept */
    }
}

/* Each field by itself: refused for want of permission, not supported, failed. */
TEST_WITH(fields_fail_by_themselves, clean, clean)
{
    static const struct {
        const char *call;
        uint32_t fields;
    } nvml[] = {{"nvmlDeviceGetName", MEMOPT_MONITOR_NAME},
                {"nvmlDeviceGetUUID", MEMOPT_MONITOR_UUID},
                {"nvmlDeviceGetPciInfo", MEMOPT_MONITOR_PCI},
                {"nvmlDeviceGetUtilizationRates",
                 MEMOPT_MONITOR_UTILIZATION | MEMOPT_MONITOR_MEMORY_UTILIZATION},
                {"nvmlDeviceGetTemperature", MEMOPT_MONITOR_TEMPERATURE},
                {"nvmlDeviceGetPowerUsage", MEMOPT_MONITOR_POWER},
                {"nvmlDeviceGetEnforcedPowerLimit", MEMOPT_MONITOR_POWER_LIMIT}},
      rsmi[] = {{"rsmi_dev_name_get", MEMOPT_MONITOR_NAME},
                {"rsmi_dev_unique_id_get", MEMOPT_MONITOR_UUID},
                {"rsmi_dev_pci_id_get", MEMOPT_MONITOR_PCI},
                {"rsmi_dev_memory_total_get", MEMOPT_MONITOR_MEMORY},
                {"rsmi_dev_memory_usage_get", MEMOPT_MONITOR_MEMORY},
                {"rsmi_dev_busy_percent_get", MEMOPT_MONITOR_UTILIZATION},
                {"rsmi_dev_memory_busy_percent_get", MEMOPT_MONITOR_MEMORY_UTILIZATION},
                {"rsmi_dev_temp_metric_get", MEMOPT_MONITOR_TEMPERATURE},
                {"rsmi_dev_power_cap_get", MEMOPT_MONITOR_POWER_LIMIT}};
    enum { DENIED = 4, FAILED = 999 };
    for (size_t k = 0; k < 7 + 9; k++) {
        int hip = k >= 7;
        const char *call = hip ? rsmi[k - 7].call : nvml[k].call;
        uint32_t fields = hip ? rsmi[k - 7].fields : nvml[k].fields;
        uint32_t all = hip ? ALL : ALL | MEMOPT_MONITOR_MEMORY_RESERVED;
        const int codes[] = {DENIED, hip ? 2 : 3, FAILED};
        for (int c = 0; c < 3; c++) {
            char text[96];
            snprintf(text, sizeof text, "%s:*=%d", call, codes[c]);
            setenv("MEMOPT_SIM_FAIL", text, 1);
            memopt_monitor_reading r = read_once(gpus[hip], 0);
            assert_int_equal(r.fields, all & ~fields);
            assert_int_equal(r.denied, c == 0 ? fields : 0);
            assert_int_equal(r.failed, c == 2 ? fields : 0);
            assert_int_equal(r.driver_code, c == 1 ? 0 : codes[c]);
            if (c != 1)
                contains(r.problem, c == 0 ? "ermission" : "nknown");
            if (fields & MEMOPT_MONITOR_POWER_LIMIT)
                assert_true(isnan(r.power_limit) && r.power == 123.5);
        }
    }
}

/* The problem that is told is the first one. */
TEST_WITH(several_fields_fail, clean, clean)
{
    setenv("MEMOPT_SIM_FAIL",
           "nvmlDeviceGetUUID:*=4,nvmlDeviceGetPowerUsage:*=999,rsmi_dev_pci_id_get:*=4,"
           "rsmi_dev_power_cap_get:*=6",
           1);
    for (int i = 0; i < 2; i++) {
        memopt_monitor_reading r = read_once(gpus[i], 0);
        assert_int_equal(r.denied, i == 0 ? MEMOPT_MONITOR_UUID : MEMOPT_MONITOR_PCI);
        assert_int_equal(r.failed, i == 0 ? MEMOPT_MONITOR_POWER : MEMOPT_MONITOR_POWER_LIMIT);
        assert_int_equal(r.driver_code, 4);
        assert_memory_equal(r.problem, i == 0 ? "uuid: " : "bus address: ", 6);
    }
}

TEST_WITH(second_choices, clean, clean)
{
    setenv("MEMOPT_SIM_FAIL", "nvmlDeviceGetMemoryInfo_v2:*=25,rsmi_dev_power_get:*=2", 1);
    setenv("MEMOPT_SIM_EDGE", "0", 1);
    memopt_monitor_reading r = read_once("cuda", 0);
    assert_int_equal(r.fields & (MEMOPT_MONITOR_MEMORY | MEMOPT_MONITOR_MEMORY_RESERVED),
                     MEMOPT_MONITOR_MEMORY);
    assert_int_equal(r.memory_used, 288 * MIB);
    assert_int_equal(r.memory_reserved, 0);
    r = read_once("hip", 0);
    assert_true(r.temperature == 59 && r.power == 124.5);
    /* A name that the buffer cuts is told all the same. */
    setenv("MEMOPT_SIM_NAME",
           "1234567890123456789012345678901234567890123456789012345678901234567890"
           "1234567890123456789012345678901234567890",
           1);
    r = read_once("hip", 0);
    assert_int_equal(strlen(r.name), sizeof r.name - 1);
}

TEST_WITH(whole_devices_fail, clean, clean)
{
    memopt_monitor *monitor;
    memopt_monitor_reading r = {.struct_size = sizeof r};
    processes p = {.count = 0};
    /* One device that this user may not open, among others. */
    setenv("MEMOPT_SIM_FAIL", "nvmlDeviceGetHandleByIndex:*=4", 1);
    r = read_once("cuda", 1);
    assert_int_equal(r.fields, 0);
    assert_int_equal(r.denied, ALL | MEMOPT_MONITOR_MEMORY_RESERVED);
    monitor = open_monitor("cuda");
    FAILS(MEMOPT_DRIVER_ERROR, memopt_monitor_processes(monitor, 0, take_process, &p));
    SAYS("Insufficient Permissions (4)");
    static const char *const lost[] = {"nvmlDeviceGetHandleByIndex:*=15",
                                       "nvmlDeviceGetPowerUsage:*=16",
                                       "nvmlDeviceGetMemoryInfo_v2:*=15"};
    for (int i = 0; i < 3; i++) {
        setenv("MEMOPT_SIM_FAIL", lost[i], 1);
        r.name[0] = '!';
        FAILS(MEMOPT_DEVICE_LOST, memopt_monitor_get_reading(monitor, 0, &r));
        assert_true(r.name[0] == '!');
    }
    OK(memopt_monitor_close(monitor));
    setenv("MEMOPT_SIM_FAIL",
           "nvmlDeviceGetComputeRunningProcesses:*=3,nvmlDeviceGetGraphicsRunningProcesses:*=3,"
           "rsmi_compute_process_info_get:*=2",
           1);
    for (int i = 0; i < 2; i++) {
        monitor = open_monitor(gpus[i]);
        FAILS(MEMOPT_UNSUPPORTED, memopt_monitor_processes(monitor, 0, take_process, &p));
        OK(memopt_monitor_close(monitor));
    }
    assert_int_equal(p.count, 0);
}

/* A library that is there and does not start: the code decides what it is. */
TEST_WITH(starting_fails, clean, clean)
{
    static const struct {
        const char *fail, *backend, *says;
        memopt_status status;
        int32_t code;
    } cases[] = {
        {"nvmlInit:*=9", "cuda", "Driver Not Loaded (9)", MEMOPT_DRIVER_MISSING, 9},
        {"nvmlInit:*=18", "cuda", "version mismatch (18)", MEMOPT_DRIVER_MISSING, 18},
        {"nvmlInit:*=999", "cuda", "Unknown Error (999)", MEMOPT_DRIVER_ERROR, 999},
        {"nvmlDeviceGetCount:*=4", "cuda", "does not count", MEMOPT_DRIVER_ERROR, 4},
        {"rsmi_init:*=8", "hip", "RSMI_STATUS_INIT_ERROR", MEMOPT_DRIVER_MISSING, 8},
        {"rsmi_num_monitor_devices:*=1", "hip", "does not count", MEMOPT_DRIVER_ERROR, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memopt_monitor *monitor = (memopt_monitor *)1;
        setenv("MEMOPT_SIM_FAIL", cases[i].fail, 1);
        memopt_monitor_info info = info_about(cases[i].backend);
        if (strcmp(info.source, "sysfs") == 0)
            continue; /* this machine's own card is read instead */
        assert_int_equal(info.status, cases[i].status);
        assert_int_equal(info.driver_code, cases[i].code);
        assert_int_equal(info.device_count, 0);
        contains(info.problem, cases[i].says);
        FAILS(cases[i].status, memopt_monitor_open(cases[i].backend, &monitor));
        SAYS(cases[i].says);
        assert_true(monitor == (memopt_monitor *)1);
    }
    setenv("MEMOPT_SIM_FAIL", "nvmlInit:*=28", 1); /* a driver and no device */
    assert_int_equal(info_about("cuda").status, MEMOPT_OK);
    assert_int_equal(info_about("cuda").device_count, 0);
    setenv("MEMOPT_SIM_FAIL", "", 1);
    setenv("MEMOPT_SIM_DEVICES", "0", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(info_about(gpus[i]).status, MEMOPT_OK);
    ended(0);
    ended(1);
}

/* The n-th call of the library fails, for every n and several codes: a status with a message or a
 * reading that tells it, nothing leaks, the library is used as it must be, and the next run works.
 */
TEST_WITH(torture_libraries, clean, clean)
{
    static const int32_t codes[] = {1, 2, 3, 4, 7, 11, 15, 20, 999};
    for (int i = 0; i < 2; i++) {
        control sim = find_control(i);
        torture_allocations(gpus[i]);
        int64_t before = sim.calls(), blocks = mo_memory_live_blocks(), failures = 0;
        OK(scenario(gpus[i]));
        int64_t calls = sim.calls() - before;
        assert_true(calls > 12);
        for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++)
            for (int64_t n = 1; n <= calls; n++) {
                sim.fail_at("*", n, codes[c]);
                memopt_status status = scenario(gpus[i]);
                if (status != MEMOPT_OK) {
                    failures++;
                    FAILS(status, status); /* the last error is of this failure */
                    contains(memopt_last_error(), "monitor");
                }
                sim.fail_at("*", 0, 0);
                assert_int_equal(mo_memory_live_blocks(), blocks);
                OK(scenario(gpus[i]));
            }
        assert_true(failures > 0);
        no_violation(i);
    }
}
