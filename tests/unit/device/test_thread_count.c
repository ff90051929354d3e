/*
 * How many threads a "cpu" device has by default. Control groups are files below a made-up root;
 * the affinity mask is this program's own, or made up.
 */
#define _GNU_SOURCE /* nftw, sched_setaffinity */

#include "support/made_root.h"

#include "device/cpu/cpu.h"

#include <sched.h>
#include <sys/syscall.h>

/* --- a made-up affinity mask ---------------------------------------------------------------- */

/* Processors of the mask, the last ones that a kernel of MACHINE processors knows; 0: the system
 * is asked. Stands in for the C library's function of this name. */
enum { MACHINE = 8192 };
static int made_up;

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask)
{
    if (made_up != 0 && size < MACHINE / 8) {
        errno = EINVAL; /* as the kernel says where the mask is too small for its processors */
        return -1;
    }
    memset(mask, 0, size);
    if (made_up == 0)
        return syscall(SYS_sched_getaffinity, pid, size, mask) < 0 ? -1 : 0;
    for (int i = 0; i < made_up; i++)
        CPU_SET_S((size_t)(MACHINE - 1 - i), size, mask);
    return 0;
}

static uint32_t count(const char **why)
{
    return mo_cpu_default_threads(root, why);
}

#define COUNTS(number, text)                                                                       \
    do {                                                                                           \
        const char *why = "";                                                                      \
        assert_int_equal(count(&why), number);                                                     \
        assert_string_equal(why, text);                                                            \
    } while (0)
#define BY_MASK "the affinity mask"
#define BY_QUOTA "the control group's CPU quota"

static int make_machine(void **state)
{
    made_up = 16;
    unsetenv("MEMOPT_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    return make_root(state);
}

static int forget_machine(void **state)
{
    made_up = 0;
    unsetenv("MEMOPT_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    return remove_root(state);
}

/* --- the mask ------------------------------------------------------------------------------- */

TEST_WITH(the_mask_counts, make_machine, forget_machine)
{
    COUNTS(16, BY_MASK);
    made_up = 1000; /* none of them among the first 1024 */
    COUNTS(1000, BY_MASK);
    made_up = 4000;
    COUNTS(1024, BY_MASK);
}

/* A device that is opened once this thread may use one processor only, wherever that is. */
TEST_WITH(a_device_follows_the_real_mask, make_machine, forget_machine)
{
    cpu_set_t before[16], one[16];
    memopt_device *device;
    memopt_device_properties p = {.struct_size = sizeof p};
    made_up = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, before), 0);
    memset(one, 0, sizeof one);
    size_t first = 0;
    while (!CPU_ISSET_S(first, sizeof before, before))
        first++;
    CPU_SET_S(first, sizeof one, one);
    assert_int_equal(sched_setaffinity(0, sizeof one, one), 0);
    OK(memopt_device_open("cpu", NULL, &device));
    assert_int_equal(sched_setaffinity(0, sizeof before, before), 0);
    OK(memopt_device_get_properties(device, &p));
    assert_int_equal(p.threads, 1);
    OK(memopt_device_close(device));
}

/* --- quotas --------------------------------------------------------------------------------- */

#define MOUNT_2 "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

/* The least quota on the way up counts, rounded up. */
TEST_WITH(quotas_of_version_2, make_machine, forget_machine)
{
    put("proc/self/mountinfo", "24 1 0:22 / /sys rw shared:7 - sysfs sysfs rw\n" MOUNT_2);
    put("proc/self/cgroup", "0::/user.slice/job\n");
    COUNTS(16, BY_MASK); /* no file */
    put("sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
    COUNTS(16, BY_MASK);
    put("sys/fs/cgroup/user.slice/job/cpu.max", "550000 100000\n");
    COUNTS(6, BY_QUOTA);
    put("sys/fs/cgroup/user.slice/cpu.max", "200000 100000\n");
    COUNTS(2, BY_QUOTA);
    put("sys/fs/cgroup/cpu.max", "5000 100000\n"); /* a container sees its own limit at the top */
    COUNTS(1, BY_QUOTA);
    put("sys/fs/cgroup/cpu.max", "6400000 100000\n");
    COUNTS(2, BY_QUOTA);
    made_up = 1;
    COUNTS(1, BY_MASK);
}

#define MOUNT_1                                                                                    \
    "40 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                            \
    "41 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"

TEST_WITH(quotas_of_version_1, make_machine, forget_machine)
{
    put("proc/self/mountinfo", MOUNT_1);
    put("proc/self/cgroup", "5:cpuset:/set\n4:cpu,cpuacct:/job/step\n0::/\n");
    static const char *const others[] = {"cpuset/job/step", "cpu,cpuacct/set"}; /* not its own */
    for (int i = 0; i < 2; i++) {
        char name[100];
        snprintf(name, sizeof name, "sys/fs/cgroup/%s/cpu.cfs_quota_us", others[i]);
        put(name, "100000\n");
        snprintf(name, sizeof name, "sys/fs/cgroup/%s/cpu.cfs_period_us", others[i]);
        put(name, "100000\n");
    }
    put("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n");
    COUNTS(16, BY_MASK);
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "120000\n");
    COUNTS(16, BY_MASK); /* no period */
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
    COUNTS(3, BY_QUOTA);
}

/* A container that is shown its part of the hierarchy only, at an odd place. */
TEST_WITH(a_part_of_the_hierarchy, make_machine, forget_machine)
{
    char long_line[6000];
    memset(long_line, 'x', sizeof long_line);
    memcpy(long_line, "29 1 0:9 / / rw - overlay ", 26);
    strcpy(long_line + sizeof long_line - 200,
           "\n31 1 0:3 /box/a\\134x2db /my\\040groups rw - cgroup2 none rw\n");
    put("proc/self/mountinfo", long_line);
    put("proc/self/cgroup", "0::/box/a\\x2db/job\n");
    put("my groups/job/cpu.max", "400000 100000\n");
    COUNTS(4, BY_QUOTA);
    put("proc/self/cgroup", "0::/box/a\\x2db\n");
    put("my groups/cpu.max", "300000 100000\n");
    COUNTS(3, BY_QUOTA);
    put("proc/self/cgroup", "0::/box/a\\x2dbc\n"); /* another group, which is not shown */
    put("my groupsc/cpu.max", "100000 100000\n");
    COUNTS(16, BY_MASK);
}

TEST_WITH(odd_files, make_machine, forget_machine)
{
    static const char *const limits[] = {"", "x\n", "100000\n", "100000 0\n", "-5 100000\n"};
    put("proc/self/mountinfo", "\n30\n30 24 - cgroup2\n" MOUNT_2);
    put("proc/self/cgroup", "\n0\n0:\n0::/job\n");
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        put("sys/fs/cgroup/job/cpu.max", limits[i]);
        COUNTS(16, BY_MASK);
    }
    put("sys/fs/cgroup/job/cpu.max", "0 100000\n");
    COUNTS(1, BY_QUOTA);
}

/* --- the environment ------------------------------------------------------------------------ */

static char warned[400];

static void take_warning(void *user, memopt_log_level level, const char *message)
{
    snprintf(warned, sizeof warned, "%s", message);
}

TEST_WITH(the_environment_comes_first, make_machine, forget_machine)
{
    static const char *const no_numbers[] = {"0", "-2", "1025", "4 cores", "4,2", "many"};
    OK(memopt_set_log(take_warning, NULL, MEMOPT_LOG_WARNING));
    setenv("OMP_NUM_THREADS", " 3,2", 1);
    COUNTS(3, "OMP_NUM_THREADS");
    for (size_t i = 0; i < sizeof no_numbers / sizeof no_numbers[0]; i++) {
        warned[0] = '\0';
        setenv("MEMOPT_NUM_THREADS", no_numbers[i], 1);
        COUNTS(3, "OMP_NUM_THREADS");
        contains(warned, no_numbers[i]);
        contains(warned, "is not a number from 1 to 1024");
    }
    warned[0] = '\0';
    setenv("MEMOPT_NUM_THREADS", "", 1);
    COUNTS(3, "OMP_NUM_THREADS");
    setenv("MEMOPT_NUM_THREADS", "24", 1);
    COUNTS(24, "MEMOPT_NUM_THREADS");
    unsetenv("MEMOPT_NUM_THREADS");
    setenv("OMP_NUM_THREADS", "9999", 1);
    COUNTS(1024, "OMP_NUM_THREADS");
    setenv("OMP_NUM_THREADS", "all", 1);
    COUNTS(16, BY_MASK);
    assert_string_equal(warned, "");
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF));
}

/* What a program asks for counts more; with 0 it gets the default again. */
TEST_WITH(a_device_follows_the_environment, make_machine, forget_machine)
{
    memopt_device_properties p = {.struct_size = sizeof p};
    setenv("MEMOPT_NUM_THREADS", "3", 1);
    for (uint32_t asked = 0; asked < 2; asked++) {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        memopt_device *device;
        options.threads = 7 * asked;
        OK(memopt_device_open("cpu", &options, &device));
        OK(memopt_device_get_properties(device, &p));
        assert_int_equal(p.threads, asked ? 7 : 3);
        OK(memopt_device_set_threads(device, 0));
        OK(memopt_device_get_properties(device, &p));
        assert_int_equal(p.threads, 3);
        OK(memopt_device_close(device));
    }
}
