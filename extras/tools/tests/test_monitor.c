/* Monitors on any machine: arguments, its own figures, and libraries that are not there or, with
 * the argument `empty`, that have no entry points. */
#include "monitor_support.h"

#include <math.h>
#include <unistd.h>

static int empty; /* the libraries are */

TEST(arguments)
{
    memopt_monitor *monitor = (memopt_monitor *)1;
    memopt_monitor_info info = {.struct_size = sizeof info};
    memopt_monitor_reading reading = {.struct_size = sizeof reading};
    int32_t count = -1;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_open(NULL, &monitor));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_open("cpu", NULL));
    FAILS(MEMOPT_NOT_FOUND, memopt_monitor_open("cpu:0", &monitor));
    SAYS("\"cpu:0\"");
    assert_true(monitor == (memopt_monitor *)1);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_info("cpu", NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_info(NULL, &info));
    FAILS(MEMOPT_NOT_FOUND, memopt_monitor_get_info("tpu", &info));
    info.struct_size = 7;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_info("cpu", &info));
    OK(memopt_monitor_close(NULL));
    monitor = open_monitor("cpu");
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_device_count(monitor, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_device_count(NULL, &count));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_reading(NULL, 0, &reading));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_reading(monitor, 0, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_processes(monitor, 0, NULL, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_processes(NULL, 0, take_process, NULL));
    for (int32_t index = -1; index <= 1; index += 2) {
        FAILS(MEMOPT_NOT_FOUND, memopt_monitor_get_reading(monitor, index, &reading));
        SAYS("there is 1 device");
        FAILS(MEMOPT_NOT_FOUND, memopt_monitor_processes(monitor, index, take_process, NULL));
    }
    reading.struct_size = 3;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_get_reading(monitor, 0, &reading));
    /* An older caller's struct ends before pci. */
    reading.struct_size = offsetof(memopt_monitor_reading, pci);
    strcpy(reading.pci, "untouched");
    OK(memopt_monitor_get_reading(monitor, 0, &reading));
    assert_true(reading.fields & MEMOPT_MONITOR_MEMORY);
    assert_string_equal(reading.pci, "untouched");
    OK(memopt_monitor_close(monitor));
}

/* The figures of this machine, against what the system says by other ways. */
TEST(this_machine)
{
    memopt_monitor *monitor = open_monitor("cpu");
    memopt_monitor_reading reading = read_device(monitor, 0);
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(reading.fields & MEMOPT_MONITOR_NAME);
    assert_true(reading.name[0] != '\0');
    assert_int_equal(reading.memory_total, physical);
    assert_true(reading.memory_used > 0 && reading.memory_free > 0);
    assert_int_equal(reading.memory_used + reading.memory_free, reading.memory_total);
    assert_int_equal(reading.fields & MEMOPT_MONITOR_POWER, 0);
    assert_true(isnan(reading.power));
    OK(memopt_monitor_close(monitor));
    int found = 0;
    processes p = list_once("cpu", 0);
    assert_true(p.count > 0);
    for (uint32_t i = 0; i < p.count && i < 64; i++) {
        assert_int_equal(p.seen[i].kind, MEMOPT_PROCESS_HOST);
        assert_true(i == 0 || p.seen[i].used_bytes <= p.seen[i - 1].used_bytes);
        if (p.seen[i].pid == (int32_t)getpid()) {
            found = 1;
            assert_string_equal(p.seen[i].name, "tools_monitor");
        }
    }
    assert_true(found || p.count > 64);
    p = (processes){.stop_after = 1};
    monitor = open_monitor("cpu");
    assert_int_equal(memopt_monitor_processes(monitor, 0, take_process, &p),
                     MEMOPT_STATUS_USER + 5);
    assert_non_null(strstr(memopt_last_error(), "the visitor returned status 65541"));
    assert_int_equal(p.count, 1);
    OK(memopt_monitor_close(monitor));
}

/* Without libraries nothing is opened, and it is told what was tried. */
TEST(nothing_there)
{
    for (int i = 0; i < 2; i++) {
        memopt_monitor *monitor = (memopt_monitor *)1;
        memopt_monitor_info info = info_about(gpus[i]);
        if (info.status == MEMOPT_OK) {
            print_message("%s: this machine has devices to monitor; skipped\n", gpus[i]);
            continue;
        }
        assert_int_equal(info.status, MEMOPT_DRIVER_MISSING);
        contains(info.tried, libraries[i]);
        contains(info.problem, !empty ? "in no folder of MEMOPT_DRIVER_PATH" : "entry points");
        if (i == 1) { /* Debian's name, and what is read without a library */
            contains(info.tried, !empty ? "librocm_smi64.so.1" : libraries[1]);
            contains(info.tried, "/sys/class/drm");
        }
        FAILS(MEMOPT_DRIVER_MISSING, memopt_monitor_open(gpus[i], &monitor));
        SAYS(info.problem);
        assert_true(monitor == (memopt_monitor *)1);
    }
    if (!empty)
        return;
    contains(info_about("cuda").missing, "nvmlInit_v2 (required), nvmlShutdown (required)");
    contains(info_about("hip").missing, "rsmi_init (required)");
}

TEST(torture_host)
{
    torture_allocations("cpu");
}

int main(int count, char **values)
{
    empty = count > 1 && strcmp(values[1], "empty") == 0;
    return run_all_tests(NULL, NULL);
}
