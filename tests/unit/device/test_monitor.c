/*
 * Monitors. The first argument says which libraries the environment makes the loader find:
 *   none    whatever the machine has; the machine itself and made-up /sys and /proc are read
 *   sim     the simulated ones, whose answers the environment sets
 *   empty   libraries without entry points
 *   lacks   the simulated ones without the entry point that the second argument names
 */
#define _GNU_SOURCE /* nftw */

#include "support.h"

#include "base/memory.h"
#include "device/monitor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const gpus[] = {"cuda", "hip"};
static const char *const libraries[] = {"libnvidia-ml.so.1", "librocm_smi64.so"};
static const char *program, *lacked;

enum {
    ALL = MEMOPT_MONITOR_NAME | MEMOPT_MONITOR_UUID | MEMOPT_MONITOR_PCI | MEMOPT_MONITOR_MEMORY |
          MEMOPT_MONITOR_UTILIZATION | MEMOPT_MONITOR_MEMORY_UTILIZATION |
          MEMOPT_MONITOR_TEMPERATURE | MEMOPT_MONITOR_POWER | MEMOPT_MONITOR_POWER_LIMIT
};

/* --- helpers --------------------------------------------------------------------------------- */

static memopt_monitor *open_monitor(const char *backend)
{
    memopt_monitor *monitor = NULL;
    OK(memopt_monitor_open(backend, &monitor));
    return monitor;
}

static memopt_monitor_info info_about(const char *backend)
{
    memopt_monitor_info info = {.struct_size = sizeof info};
    OK(memopt_monitor_get_info(backend, &info));
    return info;
}

static memopt_monitor_reading read_device(memopt_monitor *monitor, int32_t index)
{
    memopt_monitor_reading reading = {.struct_size = sizeof reading};
    OK(memopt_monitor_read(monitor, index, &reading));
    return reading;
}

/* A reading of one device by a monitor of its own. */
static memopt_monitor_reading read_once(const char *backend, int32_t index)
{
    memopt_monitor *monitor = open_monitor(backend);
    memopt_monitor_reading reading = read_device(monitor, index);
    OK(memopt_monitor_close(monitor));
    return reading;
}

static void contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}

typedef struct processes {
    memopt_process_info seen[64];
    uint32_t count, stop_after;
} processes;

static memopt_status take_process(void *user, const memopt_process_info *process)
{
    processes *p = user;
    if (p->count < 64)
        p->seen[p->count] = *process;
    p->count++;
    return p->stop_after != 0 && p->count == p->stop_after ? MEMOPT_STATUS_USER + 5 : MEMOPT_OK;
}

static processes list_once(const char *backend, int32_t index)
{
    processes p = {.count = 0};
    memopt_monitor *monitor = open_monitor(backend);
    OK(memopt_monitor_processes(monitor, index, take_process, &p));
    OK(memopt_monitor_close(monitor));
    return p;
}

static void is_process(const memopt_process_info *process, int32_t pid, uint32_t kind,
                       int64_t bytes)
{
    assert_int_equal(process->struct_size, sizeof *process);
    assert_int_equal(process->pid, pid);
    assert_int_equal(process->kind, kind);
    assert_int_equal(process->used_known, bytes >= 0);
    assert_int_equal(process->used_bytes, bytes >= 0 ? bytes : 0);
}

/* --- arguments, any machine ------------------------------------------------------------------ */

static void arguments(void **state)
{
    (void)state;
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
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_device_count(monitor, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_device_count(NULL, &count));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_read(NULL, 0, &reading));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_read(monitor, 0, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_processes(monitor, 0, NULL, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_processes(NULL, 0, take_process, NULL));
    for (int32_t index = -1; index <= 1; index += 2) {
        FAILS(MEMOPT_NOT_FOUND, memopt_monitor_read(monitor, index, &reading));
        SAYS("there is 1 device");
        FAILS(MEMOPT_NOT_FOUND, memopt_monitor_processes(monitor, index, take_process, NULL));
    }
    reading.struct_size = 3;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_monitor_read(monitor, 0, &reading));
    /* An older caller's struct ends before pci. */
    reading.struct_size = offsetof(memopt_monitor_reading, pci);
    strcpy(reading.pci, "untouched");
    OK(memopt_monitor_read(monitor, 0, &reading));
    assert_true(reading.fields & MEMOPT_MONITOR_MEMORY);
    assert_string_equal(reading.pci, "untouched");
    OK(memopt_monitor_close(monitor));
}

/* The figures of this machine, against what the system says by other ways. */
static void this_machine(void **state)
{
    (void)state;
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
            assert_string_equal(p.seen[i].name, "test_monitor");
        }
    }
    assert_true(found || p.count > 64);
    p = (processes){.stop_after = 1};
    monitor = open_monitor("cpu");
    assert_int_equal(memopt_monitor_processes(monitor, 0, take_process, &p),
                     MEMOPT_STATUS_USER + 5);
    assert_int_equal(p.count, 1);
    OK(memopt_monitor_close(monitor));
}

/* Without libraries nothing is opened, and it is told what was tried. */
static void nothing_there(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        memopt_monitor *monitor = (memopt_monitor *)1;
        memopt_monitor_info info = info_about(gpus[i]);
        if (info.status == MEMOPT_OK) {
            print_message("%s: this machine has devices to monitor; skipped\n", gpus[i]);
            continue;
        }
        assert_int_equal(info.status, MEMOPT_DRIVER_MISSING);
        contains(info.tried, libraries[i]);
        contains(info.problem, lacked == NULL ? "cannot open shared object file" : "entry points");
        if (i == 1) { /* Debian's name, and what is read without a library */
            contains(info.tried, lacked == NULL ? "librocm_smi64.so.1" : libraries[1]);
            contains(info.tried, "/sys/class/drm");
        }
        FAILS(MEMOPT_DRIVER_MISSING, memopt_monitor_open(gpus[i], &monitor));
        SAYS(info.problem);
        assert_true(monitor == (memopt_monitor *)1);
    }
}

static void empty_libraries(void **state)
{
    lacked = "";
    nothing_there(state);
    contains(info_about("cuda").missing, "nvmlInit_v2 (required), nvmlShutdown (required)");
    contains(info_about("hip").missing, "rsmi_init (required)");
}

/* --- made-up files --------------------------------------------------------------------------- */

static char root[] = "/tmp/memopt-monitor-XXXXXX";

/* Writes a file below the root, with the folders on the way. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + sizeof root; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            fail_msg("%s: %s", path, strerror(errno));
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void take_away(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(unlink(path), 0);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about, (void)kind, (void)where;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root + sizeof root - 7, "XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
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

static void amdgpu_files(void **state)
{
    (void)state;
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
static void unreadable_files(void **state)
{
    (void)state;
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

static void cards_are_sorted(void **state)
{
    static const char *const places[] = {"0000:43:00.0", "0000:03:00.0", "0001:01:00.0",
                                         "0000:03:00.1", "0000:03:1f.0", "0000:c1:00.0"};
    static const char *const sorted[] = {"0000:03:00.0", "0000:03:00.1", "0000:03:1f.0",
                                         "0000:43:00.0", "0000:c1:00.0", "0001:01:00.0"};
    (void)state;
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

static void no_cards(void **state)
{
    (void)state;
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

static void host_files(void **state)
{
    (void)state;
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

/* --- simulated libraries --------------------------------------------------------------------- */

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
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

static void simulated_values(void **state)
{
    (void)state;
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
        OK(memopt_monitor_device_count(monitor, &count));
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

static void simulated_processes(void **state)
{
    (void)state;
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

/* Between asking how many there are and asking who, more have started. */
static void processes_start_meanwhile(void **state)
{
    (void)state;
    setenv("MEMOPT_SIM_STARTING", "7", 1);
    for (int i = 0; i < 2; i++)
        for (int turn = 0; turn < 4; turn++)
            assert_true(list_once(gpus[i], 0).count > (uint32_t)(turn * 7));
    no_violation(0);
    no_violation(1);
}

static void own_name_is_found(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "%d:64M:c", (int)getpid());
    setenv("MEMOPT_SIM_PROCESSES", text, 1);
    for (int i = 0; i < 2; i++) {
        processes p = list_once(gpus[i], 0);
        assert_int_equal(p.count, 1);
        assert_string_equal(p.seen[0].name, "test_monitor");
    }
}

/* Each field by itself: refused for want of permission, not supported, failed. */
static void fields_fail_by_themselves(void **state)
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
    (void)state;
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
static void several_fields_fail(void **state)
{
    (void)state;
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

static void second_choices(void **state)
{
    (void)state;
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

static void whole_devices_fail(void **state)
{
    (void)state;
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
        FAILS(MEMOPT_DEVICE_LOST, memopt_monitor_read(monitor, 0, &r));
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
static void starting_fails(void **state)
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
    (void)state;
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

/* --- torture --------------------------------------------------------------------------------- */

/* Opens, reads and lists; the first failing status, and everything ended. */
static memopt_status scenario(const char *backend)
{
    memopt_monitor *monitor = NULL;
    memopt_monitor_info info = {.struct_size = sizeof info};
    memopt_monitor_reading reading = {.struct_size = sizeof reading};
    processes p = {.count = 0};
    memopt_status status = memopt_monitor_get_info(backend, &info);
    if (status == MEMOPT_OK)
        status = memopt_monitor_open(backend, &monitor);
    if (status != MEMOPT_OK)
        return status;
    status = memopt_monitor_read(monitor, 0, &reading);
    if (status == MEMOPT_OK)
        status = memopt_monitor_processes(monitor, 0, take_process, &p);
    if (status != MEMOPT_OK)
        assert_int_equal(p.count, 0); /* nothing is visited where the list is not whole */
    OK(memopt_monitor_close(monitor));
    return status;
}

static void torture_allocations(const char *backend)
{
    int64_t blocks = mo_memory_live_blocks(), n = 1;
    OK(scenario(backend));
    for (;; n++) {
        mo_memory_fail_at(n);
        memopt_status status = scenario(backend);
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        assert_int_equal(mo_memory_live_blocks(), blocks);
        if (!struck)
            break;
        assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
        FAILS(MEMOPT_OUT_OF_HOST_MEMORY, status);
    }
    assert_true(n > 3);
    OK(scenario(backend));
}

static void torture_host(void **state)
{
    (void)state;
    torture_allocations("cpu");
}

static void torture_files(void **state)
{
    (void)state;
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

/* The n-th call of the library fails, for every n and several codes: a status with a message or a
 * reading that tells it, nothing leaks, the library is used as it must be, and the next run works.
 */
static void torture_libraries(void **state)
{
    static const int32_t codes[] = {1, 2, 3, 4, 7, 11, 15, 20, 999};
    (void)state;
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

/* --- lacking entry points -------------------------------------------------------------------- */

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
static void one_is_lacking(void **state)
{
    (void)state;
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

static void every_entry_point_may_lack(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof lacks / sizeof lacks[0]; k++) {
        char target[512];
        memopt_monitor_info info = info_about(gpus[lacks[k].gpu]);
        snprintf(target, sizeof target, "%s/%s", root, libraries[lacks[k].gpu]);
        copy_without(info.library, lacks[k].symbol, target);
        pid_t child = fork();
        if (child == 0) {
            setenv("LD_LIBRARY_PATH", root, 1);
            execl(program, program, "lacks", lacks[k].symbol, (char *)NULL);
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
#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)
#define SIMULATED(test) cmocka_unit_test_setup_teardown(test, clean, clean)
    const struct CMUnitTest none[] = {
        cmocka_unit_test(arguments), cmocka_unit_test(this_machine),
        WITH_ROOT(amdgpu_files),     WITH_ROOT(unreadable_files),
        WITH_ROOT(no_cards),         WITH_ROOT(cards_are_sorted),
        WITH_ROOT(host_files),       cmocka_unit_test(torture_host),
        WITH_ROOT(torture_files),    cmocka_unit_test(nothing_there),
    };
    const struct CMUnitTest sim[] = {
        SIMULATED(simulated_values),
        SIMULATED(simulated_processes),
        SIMULATED(processes_start_meanwhile),
        SIMULATED(own_name_is_found),
        SIMULATED(fields_fail_by_themselves),
        SIMULATED(second_choices),
        SIMULATED(several_fields_fail),
        SIMULATED(whole_devices_fail),
        SIMULATED(starting_fails),
        SIMULATED(torture_libraries),
        WITH_ROOT(every_entry_point_may_lack),
    };
    const struct CMUnitTest empty[] = {cmocka_unit_test(empty_libraries)};
    const struct CMUnitTest lacking[] = {cmocka_unit_test(one_is_lacking)};
    const char *mode = count > 1 ? values[1] : "none";
    program = values[0];
    lacked = count > 2 ? values[2] : NULL;
    if (strcmp(mode, "sim") == 0)
        return cmocka_run_group_tests(sim, NULL, NULL);
    if (strcmp(mode, "empty") == 0)
        return cmocka_run_group_tests(empty, NULL, NULL);
    if (strcmp(mode, "lacks") == 0)
        return cmocka_run_group_tests(lacking, NULL, NULL);
    return cmocka_run_group_tests(none, NULL, NULL);
}
