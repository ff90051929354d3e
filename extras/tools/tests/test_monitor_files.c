/* Monitors that read files: made-up /sys and /proc. */
#define _GNU_SOURCE /* nftw */

#include "monitor_support.h"
#include "support/made_root.h"

#include "monitor/source.h"

#include <math.h>

static void take_away(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(unlink(path), 0);
}

/* Two amdgpu cards, the second at the lower address; another vendor's card; a connector. */
static void put_cards(void)
{
    put("sys/class/drm/version", "drm 1.1.0 20060810\n");
    put("sys/class/drm/card0/device/uevent", "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n");
    put("sys/class/drm/card1-DP-1/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:01:00.0\n");
    put("sys/class/drm/card1/device/uevent",
        "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME=0001:43:02.1\nMODALIAS=pci\n");
    put("sys/class/drm/card1/device/device", "0x73df\n");
    put("sys/class/drm/card1/device/unique_id", "a1b2c3d4e5f60718\n");
    put("sys/class/drm/card1/device/mem_info_vram_total", "12868124672\n");
    put("sys/class/drm/card1/device/mem_info_vram_used", "1073741824\n");
    put("sys/class/drm/card1/device/gpu_busy_percent", "37\n");
    put("sys/class/drm/card1/device/mem_busy_percent", "12\n");
    put("sys/class/drm/card1/device/hwmon/hwmon3/temp1_input", "54000\n");
    put("sys/class/drm/card1/device/hwmon/hwmon3/temp2_input", "59000\n");
    put("sys/class/drm/card1/device/hwmon/hwmon3/power1_average", "123500000\n");
    put("sys/class/drm/card1/device/hwmon/hwmon3/power1_cap", "186000000\n");
    put("sys/class/drm/card2/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.0\n");
    put("sys/class/drm/card2/device/product_name", "AMD Instinct MI210\n");
    put("sys/class/drm/card2/device/hwmon/hwmon1/temp2_input", "41000\n");
    put("sys/class/drm/card2/device/hwmon/hwmon1/power1_input", "90000000\n");
    put("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
    put("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "8642\n");
    put("sys/class/kfd/kfd/topology/nodes/1/properties",
        "cpu_cores_count 0\nsimd_count 80\nlocation_id 17169\ndomain 1\n");
    put("sys/class/kfd/kfd/proc/4000001/vram_8642", "67108864\n");
    put("sys/class/kfd/kfd/proc/4000002/vram_8642", "0\n");
    put("sys/class/kfd/kfd/proc/4000003/vram_9999", "5\n");
    put("sys/class/kfd/kfd/proc/4000004/vram_8642", "134217728\n");
    put("sys/module/amdgpu/version", "6.12.12\n");
}

static memopt_monitor *open_files(memopt_monitor_info *info)
{
    memopt_monitor *monitor = NULL;
    *info = (memopt_monitor_info){.struct_size = sizeof *info};
    assert_int_equal(mo_amdgpu_open(root, info, &monitor), MEMOPT_OK);
    monitor->backend = "hip";
    return monitor;
}

TEST_WITH(amdgpu_files, make_root, remove_root)
{
    memopt_monitor_info info;
    processes p = {.count = 0};
    put_cards();
    memopt_monitor *monitor = open_files(&info);
    assert_int_equal(monitor->device_count, 2);
    assert_string_equal(info.source, "sysfs");
    assert_string_equal(info.version, "6.12.12");
    memopt_monitor_reading one = read_device(monitor, 1), two = read_device(monitor, 0);
    assert_int_equal(one.fields, ALL);
    assert_int_equal(one.denied | one.failed, 0);
    assert_string_equal(one.name, "AMD device 0x73df");
    assert_string_equal(one.uuid, "GPU-a1b2c3d4e5f60718");
    assert_string_equal(one.pci, "0001:43:02.1");
    assert_int_equal(one.memory_total, 12868124672);
    assert_int_equal(one.memory_used, 1073741824);
    assert_int_equal(one.memory_free, 12868124672 - 1073741824);
    assert_true(one.utilization == 37 && one.memory_utilization == 12);
    assert_true(one.temperature == 54 && one.power == 123.5 && one.power_limit == 186);
    assert_string_equal(two.name, "AMD Instinct MI210");
    assert_string_equal(two.pci, "0000:c1:00.0");
    assert_int_equal(two.fields, MEMOPT_MONITOR_NAME | MEMOPT_MONITOR_PCI |
                                     MEMOPT_MONITOR_TEMPERATURE | MEMOPT_MONITOR_POWER);
    assert_true(two.temperature == 41 && two.power == 90 && isnan(two.utilization));
    assert_int_equal(two.denied | two.failed, 0);
    OK(memopt_monitor_processes(monitor, 1, take_process, &p));
    assert_int_equal(p.count, 2);
    is_process(&p.seen[0], 4000004, MEMOPT_PROCESS_COMPUTE, 134217728);
    is_process(&p.seen[1], 4000001, MEMOPT_PROCESS_COMPUTE, 67108864);
    FAILS(MEMOPT_UNSUPPORTED, memopt_monitor_processes(monitor, 0, take_process, &p));
    /* What changes is read anew; what is damaged is a failure of its field only. */
    put("sys/class/drm/card1/device/mem_info_vram_used", "99999999999\n");
    put("sys/class/drm/card1/device/gpu_busy_percent", "many\n");
    take_away("sys/class/drm/card1/device/hwmon/hwmon3/temp1_input");
    one = read_device(monitor, 1);
    assert_int_equal(one.memory_free, 0);
    assert_int_equal(one.failed, MEMOPT_MONITOR_UTILIZATION);
    assert_int_equal(one.driver_code, EINVAL);
    contains(one.problem, "utilization: ");
    assert_true(isnan(one.utilization) && one.temperature == 59);
    OK(memopt_monitor_close(monitor));
}

/* Root may read everything, so a folder in place of a file stands for what cannot be read. */
TEST_WITH(unreadable_files, make_root, remove_root)
{
    memopt_monitor_info info;
    put_cards();
    char path[512];
    snprintf(path, sizeof path, "%s/sys/class/drm/card1/device/unique_id", root);
    assert_int_equal(chmod(path, 0), 0);
    take_away("sys/class/drm/card1/device/mem_info_vram_used");
    put("sys/class/drm/card1/device/mem_info_vram_used/x", "");
    memopt_monitor *monitor = open_files(&info);
    memopt_monitor_reading reading = read_device(monitor, 1);
    if (geteuid() != 0)
        assert_int_equal(reading.denied, MEMOPT_MONITOR_UUID);
    assert_int_equal(reading.failed, MEMOPT_MONITOR_MEMORY);
    assert_int_equal(reading.memory_total, 0);
    assert_true(reading.fields & MEMOPT_MONITOR_POWER);
    OK(memopt_monitor_close(monitor));
    assert_int_equal(mo_monitor_errno_outcome(EACCES), MO_FIELD_DENIED);
    assert_int_equal(mo_monitor_errno_outcome(EPERM), MO_FIELD_DENIED);
    assert_int_equal(mo_monitor_errno_outcome(EIO), MO_FIELD_FAILED);
}

TEST_WITH(cards_are_sorted, make_root, remove_root)
{
    static const char *const places[] = {"0000:43:00.0", "0000:03:00.0", "0001:01:00.0",
                                         "0000:03:00.1", "0000:03:1f.0", "0000:c1:00.0"};
    static const char *const sorted[] = {"0000:03:00.0", "0000:03:00.1", "0000:03:1f.0",
                                         "0000:43:00.0", "0000:c1:00.0", "0001:01:00.0"};
    memopt_monitor_info info;
    for (int i = 0; i < 6; i++) {
        char name[64], text[80];
        snprintf(name, sizeof name, "sys/class/drm/card%d/device/uevent", i);
        snprintf(text, sizeof text, "DRIVER=amdgpu\nPCI_SLOT_NAME=%s\n", places[i]);
        put(name, text);
    }
    memopt_monitor *monitor = open_files(&info);
    assert_int_equal(monitor->device_count, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(read_device(monitor, i).pci, sorted[i]);
    OK(memopt_monitor_close(monitor));
}

TEST_WITH(no_cards, make_root, remove_root)
{
    memopt_monitor *monitor = NULL;
    memopt_monitor_info info = {.struct_size = sizeof info};
    assert_int_equal(mo_amdgpu_open(root, &info, &monitor), MEMOPT_DRIVER_MISSING);
    contains(info.problem, "No such file");
    put("sys/class/drm/card0/device/uevent", "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n");
    put("sys/class/drm/card1/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=nowhere\n");
    assert_int_equal(mo_amdgpu_open(root, &info, &monitor), MEMOPT_DRIVER_MISSING);
    contains(info.problem, "no amdgpu card");
    assert_null(monitor);
}

TEST_WITH(host_files, make_root, remove_root)
{
    memopt_monitor *monitor = NULL;
    processes p = {.count = 0};
    memopt_monitor_info info = {.struct_size = sizeof info};
    assert_int_equal(mo_host_monitor_open(root, &info, &monitor), MEMOPT_DRIVER_MISSING);
    put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    400 kB\n");
    put("proc/stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n");
    put("proc/cpuinfo", "processor : 0\nmodel name\t: Abacus 3000\nflags : x\n");
    put("proc/77/statm", "100 30 5 1 0 20 0\n");
    put("proc/77/comm", "trainer\n");
    put("proc/5/statm", "0 0 0 0 0 0 0\n");
    put("proc/sys/kernel/osrelease", "6.1\n");
    assert_int_equal(mo_host_monitor_open(root, &info, &monitor), MEMOPT_OK);
    monitor->backend = "cpu";
    memopt_monitor_reading reading = read_device(monitor, 0);
    assert_string_equal(reading.name, "Abacus 3000");
    assert_int_equal(reading.memory_total, 1000 * 1024);
    assert_int_equal(reading.memory_used, 600 * 1024);
    assert_int_equal(reading.memory_free, 400 * 1024);
    assert_int_equal(reading.fields & MEMOPT_MONITOR_UTILIZATION, 0); /* no tick has passed */
    put("proc/stat", "cpu  120 5 50 860 65 0 0 0 0 0\n");
    reading = read_device(monitor, 0);
    assert_true(reading.fields & MEMOPT_MONITOR_UTILIZATION);
    assert_true(reading.utilization == 25.0); /* 25 of 100 ticks */
    put("proc/stat", "cpu  125 5 50 950 65 0 0 5 0 0\n");
    assert_true(read_device(monitor, 0).utilization == 10.0); /* since the last reading */
    OK(memopt_monitor_processes(monitor, 0, take_process, &p));
    assert_int_equal(p.count, 1);
    is_process(&p.seen[0], 77, MEMOPT_PROCESS_HOST, 30 * sysconf(_SC_PAGESIZE));
    assert_string_equal(p.seen[0].name, "trainer");
    put("proc/meminfo", "MemTotal:       1000 kB\n");
    assert_int_equal(read_device(monitor, 0).failed, MEMOPT_MONITOR_MEMORY);
    OK(memopt_monitor_close(monitor));
}

TEST_WITH(torture_files, make_root, remove_root)
{
    int64_t blocks = mo_memory_live_blocks();
    put_cards();
    for (int64_t n = 1; n <= 2; n++) { /* the handle, the devices */
        memopt_monitor *monitor = NULL;
        memopt_monitor_info info = {.struct_size = sizeof info};
        mo_memory_fail_at(n);
        assert_int_equal(mo_amdgpu_open(root, &info, &monitor), MEMOPT_OUT_OF_HOST_MEMORY);
        assert_true(mo_memory_fault_struck());
        assert_int_equal(mo_memory_live_blocks(), blocks);
        assert_null(monitor);
    }
    mo_memory_fail_at(0);
    memopt_monitor_info info;
    processes p = {.count = 0};
    memopt_monitor *monitor = open_files(&info);
    mo_memory_fail_at(1);
    FAILS(MEMOPT_OUT_OF_HOST_MEMORY, memopt_monitor_processes(monitor, 1, take_process, &p));
    OK(memopt_monitor_processes(monitor, 1, take_process, &p));
    assert_int_equal(p.count, 2);
    OK(memopt_monitor_close(monitor));
    assert_int_equal(mo_memory_live_blocks(), blocks);
}
