/*
 * The cache of compiled kernels: where it lies, what damages it, who writes it at the same time.
 * The device has capability 7.0 and the compiler is a simulated NVRTC 12, which counts.
 */
#define _GNU_SOURCE /* F_OFD_SETLK */
#include "gpu_compile.h"

#include "memopt/allocator.h"
#include "memopt/optim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH = 512 };

static char top[] = "/tmp/memopt-test-cache-XXXXXX";
static char folder[PATH];

static int compiled(void)
{
    return compiler_says("cuda", "memopt_sim_rtc_compiled");
}

/* Opens a device, launches, closes; how often that compiled. */
static int run_once(void)
{
    int before = compiled();
    memopt_device *device = open_device("cuda:0");
    OK(launch(device));
    OK(memopt_device_close(device));
    return compiled() - before;
}

/* The files of a folder, and the path of the last; -1 where there is no such folder. */
static int files_in(const char *path, char *out)
{
    int count = 0;
    DIR *listing = opendir(path);
    if (listing == NULL)
        return -1;
    for (struct dirent *e; (e = readdir(listing)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(out, 2 * PATH, "%s/%s", path, e->d_name);
            count++;
        }
    closedir(listing);
    return count;
}

/* A fresh cache folder, named by the environment. */
static void fresh(const char *name)
{
    snprintf(folder, sizeof folder, "%s/%s", top, name);
    assert_int_equal(setenv("MEMOPT_CACHE_DIR", folder, 1), 0);
}

/* Its one file. */
static const char *only_file(void)
{
    static char path[2 * PATH];
    assert_int_equal(files_in(folder, path), 1);
    return path;
}

static long read_file(const char *path, char *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, size, file);
    fclose(file);
    return (long)count;
}

static void write_file(const char *path, const char *bytes, long count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, (size_t)count, file), count);
    fclose(file);
}

static int prepare(void **state)
{
    return mkdtemp(top) == NULL;
}

static int clean(void **state)
{
    char command[PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    return system(command);
}

/* --- several processes, before a driver is loaded ------------------------------------------- */

static int child_status(pid_t child)
{
    int state = 0;
    assert_int_equal(waitpid(child, &state, 0), child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 100;
}

/* Each writes contents of its own length and letter; whoever reads finds one of them, whole. */
static int write_and_read(int me)
{
    static char data[1 << 17];
    uint64_t mine = 40000 + 20000 * (uint64_t)me;
    int found = 0;
    memset(data, 'a' + me, sizeof data);
    for (int i = 0; i < 150; i++) {
        void *binary = NULL;
        uint64_t bytes = 0;
        mo_gpu_cache_write("race", data, mine);
        if (!mo_gpu_cache_read("race", &binary, &bytes))
            return 1;
        const char *text = binary;
        int who = text[0] - 'a';
        if (who < 0 || who > 3 || bytes != 40000 + 20000 * (uint64_t)who)
            return 2;
        for (uint64_t k = 0; k < bytes; k++)
            if (text[k] != 'a' + who)
                return 3;
        found |= 1 << who;
        mo_free(binary);
    }
    return found == 0 ? 4 : 0;
}

TEST(races)
{
    pid_t children[4];
    char path[2 * PATH];
    fresh("race");
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(write_and_read(i));
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(child_status(children[i]), 0);
    assert_int_equal(files_in(folder, path), 1);
}

/* A line of the log, the number of lines, and where one byte is written for "waits". */
static char line[1200];
static int lines, *waits_to;

static void hear(void *user, memopt_log_level level, const char *message)
{
    snprintf(line, sizeof line, "%s", message);
    lines++;
    if (waits_to != NULL && strstr(message, "waits for another process") != NULL)
        assert_int_equal(write(*waits_to, "w", 1), 1);
}

static int no_locks;

/* In the place of libc's, for this program. */
int fcntl(int file, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (no_locks && command == F_OFD_SETLK) {
        errno = ENOLCK;
        return -1;
    }
    return (int)syscall(SYS_fcntl, file, command, argument);
}

/* A process that opens a device and launches; its status is how often it compiled. Pre: this one
 * has loaded no driver yet. */
static pid_t start(int *tell_waits)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    memopt_device *device = NULL;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* one may hang */
    waits_to = tell_waits;
    (void)memopt_set_log(hear, NULL, MEMOPT_LOG_WARNING);
    if (memopt_device_open("cuda:0", NULL, &device) != MEMOPT_OK || launch(device) != MEMOPT_OK ||
        memopt_device_close(device) != MEMOPT_OK)
        _exit(99);
    _exit(compiled());
}

TEST(first_use_together)
{
    pid_t children[3];
    fresh("together");
    int sum = 0;
    for (int i = 0; i < 3; i++)
        children[i] = start(NULL);
    for (int i = 0; i < 3; i++)
        sum += child_status(children[i]);
    assert_int_equal(sum, 1); /* one has compiled */
    only_file();
}

/* The process that compiles is killed in the middle: the one that waits for it compiles. */
TEST(killed_in_the_middle)
{
    char begun[2 * PATH];
    struct stat info;
    int waits[2], state_of_it = 0;
    char byte;
    fresh("killed");
    snprintf(begun, sizeof begun, "%s/begun", top);
    setenv("MEMOPT_SIM_NVRTC_HANG", begun, 1);
    pid_t first = start(NULL);
    unsetenv("MEMOPT_SIM_NVRTC_HANG");
    while (stat(begun, &info) != 0) {
        assert_int_equal(waitpid(first, &state_of_it, WNOHANG), 0);
        usleep(1000);
    }
    assert_int_equal(pipe(waits), 0);
    pid_t second = start(&waits[1]);
    close(waits[1]); /* so that the end of the process ends what is read */
    assert_int_equal(read(waits[0], &byte, 1), 1); /* it says that it waits */
    assert_int_equal(waitpid(second, &state_of_it, WNOHANG), 0);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_int_equal(child_status(second), 1);
    assert_int_equal(child_status(first), 100);
    close(waits[0]);
    only_file();
}

/* A folder without locks: each compiles for itself, at once. */
TEST(without_locks)
{
    char lock[2 * PATH];
    pid_t children[2];
    fresh("lockless");
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(lock, sizeof lock, "%s/.lock", folder);
    assert_int_equal(mkdir(lock, 0700), 0);
    for (int i = 0; i < 2; i++) {
        setenv("MEMOPT_CACHE_DIR", i == 0 ? folder : "/proc/self/none", 1);
        children[i] = start(NULL);
        assert_int_equal(child_status(children[i]), 1);
    }
    no_locks = 1; /* as a file system says that has none */
    fresh("lockless too");
    children[0] = start(NULL);
    no_locks = 0;
    assert_int_equal(child_status(children[0]), 1);
    only_file();
}

/* One line before a compilation, with all that one wants to know; none where the kernel is kept. */
TEST(announced)
{
    fresh("announced");
    lines = 0;
    OK(memopt_set_log(hear, NULL, MEMOPT_LOG_WARNING));
    assert_int_equal(run_once(), 1);
    assert_int_equal(lines, 1);
    assert_int_equal(run_once(), 0);
    assert_int_equal(lines, 1);
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF));
    contains(line, "cuda:0: ");
    contains(line,
             "libnvrtc.so.12 (version 12.8) compiles the kernel mo_cast for sm_70, about 1 to 6");
    contains(line, folder);
}

/* --- where --------------------------------------------------------------------------------- */

TEST(places)
{
    char at[PATH], path[2 * PATH];
    fresh("own/deep/folder");
    assert_int_equal(run_once(), 1);
    struct stat info;
    assert_int_equal(stat(only_file(), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(run_once(), 0);

    unsetenv("MEMOPT_CACHE_DIR");
    snprintf(at, sizeof at, "%s/xdg", top);
    setenv("XDG_CACHE_HOME", at, 1);
    assert_int_equal(run_once(), 1);
    snprintf(folder, sizeof folder, "%s/xdg/memopt", top);
    only_file();
    assert_int_equal(run_once(), 0);

    unsetenv("XDG_CACHE_HOME");
    snprintf(at, sizeof at, "%s/home", top);
    setenv("HOME", at, 1);
    assert_int_equal(run_once(), 1);
    snprintf(folder, sizeof folder, "%s/home/.cache/memopt", top);
    only_file();

    /* Off, and not where the program happens to run. */
    setenv("MEMOPT_CACHE_DIR", "", 1);
    assert_int_equal(run_once(), 1);
    setenv("MEMOPT_CACHE_DIR", "some/where", 1);
    assert_int_equal(run_once(), 1);
    assert_int_equal(files_in("some/where", path), -1);
    unsetenv("HOME");
    unsetenv("MEMOPT_CACHE_DIR");
    assert_int_equal(run_once(), 1);
}

/* --- damage -------------------------------------------------------------------------------- */

static void check_repair(const char *what, const char *good, long bytes)
{
    static char now[1 << 16];
    if (run_once() != 1)
        fail_msg("%s: the file was used", what);
    assert_int_equal(read_file(only_file(), now, sizeof now), bytes);
    assert_memory_equal(now, good, (size_t)bytes);
    if (run_once() != 0)
        fail_msg("%s: the new file is not used", what);
}

TEST(damage)
{
    static char good[1 << 16], bad[1 << 16];
    char path[2 * PATH], other[2 * PATH];
    fresh("damage");
    assert_int_equal(run_once(), 1);
    snprintf(path, sizeof path, "%s", only_file());
    long bytes = read_file(path, good, sizeof good);
    assert_true(bytes > 64 && bytes < (long)sizeof good);
    const long lengths[] = {0, 1, 23, 24, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_file(path, good, lengths[i]);
        check_repair("truncated", good, bytes);
    }
    const long flips[] = {0, 8, 15, 16, 23, 24, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        memcpy(bad, good, (size_t)bytes);
        bad[flips[i]] ^= 4;
        write_file(path, bad, bytes);
        check_repair("one bit", good, bytes);
    }
    /* Others could write it. */
    assert_int_equal(chmod(path, 0666), 0);
    check_repair("open to others", good, bytes);
    /* A link is not followed, and what it names stays. */
    snprintf(other, sizeof other, "%s/elsewhere", top);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    check_repair("a link", good, bytes);
    assert_int_equal(read_file(other, bad, sizeof bad), bytes);
    /* Whole, but of another key; and whole, but nothing that the driver takes. */
    mo_gpu_cache_write("other", good + 24, (uint64_t)bytes - 24);
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(rename(other, path), 0);
    check_repair("another key's", good, bytes);
    memset(bad, 'x', 100);
    mo_gpu_cache_write(strrchr(path, '/') + 1, bad, 100);
    check_repair("no image", good, bytes);
}

TEST(no_room)
{
    char path[2 * PATH];
    fresh("full");
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    memopt_device *device = open_device("cuda:0");
    static const char data[4096] = {1};
    small = (struct rlimit){1000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0); /* a write comes back short, then fails */
    mo_gpu_cache_write("key", data, sizeof data);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    OK(memopt_device_close(device));
    assert_int_equal(files_in(folder, path), 0); /* nothing half written lies about */
    /* A folder that cannot be there. */
    snprintf(path, sizeof path, "%s/file", top);
    write_file(path, data, 10);
    fresh("file/folder");
    assert_int_equal(run_once(), 1);
    assert_int_equal(run_once(), 1);
}

/* --- keys ---------------------------------------------------------------------------------- */

static void key_of(uint32_t capability, int driver, const char *source, const char *option,
                   const char *kernel, char *key)
{
    mo_gpu_vendor vendor = *mo_cuda_driver.vendor;
    mo_images images = {.source = source, .source_bytes = strlen(source)};
    mo_gpu_driver made = {.vendor = &vendor, .version = driver};
    mo_gpu_device *gpu = calloc(1, sizeof *gpu);
    mo_gpu_recipe recipe;
    vendor.images = &images;
    gpu->driver = &made;
    gpu->capability = capability;
    snprintf(gpu->target, sizeof gpu->target, "sm_%u", capability);
    OK(mo_gpu_find_recipe(gpu, &recipe));
    if (option != NULL)
        snprintf(recipe.target, sizeof recipe.target, "%s", option);
    mo_gpu_cache_key(gpu, &recipe, kernel, key);
    free(gpu);
}

/* A step of a tensor of these types. */
static void step(memopt_device *device, memopt_allocator *allocator, memopt_dtype type,
                 memopt_dtype slope)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_tensor p = {NULL, 64, type}, g = {NULL, 64, slope};
    memopt_optimizer *optimizer = NULL;
    uint32_t number = 0;
    uint64_t index = 0;
    OK(memopt_allocator_alloc(allocator, 256, MEMOPT_TAG_OTHER, NULL, &p.data));
    OK(memopt_allocator_alloc(allocator, 256, MEMOPT_TAG_OTHER, NULL, &g.data));
    OK(memopt_fill(device, p.data, 0, 256, NULL));
    OK(memopt_fill(device, g.data, 0, 256, NULL));
    OK(memopt_optimizer_create(allocator, &options, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    OK(memopt_optimizer_add_parameter(optimizer, 0, &p, NULL, NULL, &index));
    OK(memopt_optimizer_step(optimizer, &g, 1, NULL, NULL));
    OK(memopt_stream_sync(device, NULL));
    OK(memopt_optimizer_destroy(optimizer));
    OK(memopt_allocator_free(allocator, p.data));
    OK(memopt_allocator_free(allocator, g.data));
}

/* A step is compiled for the class of types that all tensors have, each once. */
TEST(a_program_for_a_class_of_types)
{
    static const struct {
        memopt_dtype type, slope;
        int programs;
    } steps[] = {
        {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_BF16, 1}, {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F32, 1},
        {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_BF16, 0}, {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F32, 0},
        {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, 0},  {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F32, 0}};
    memopt_allocator *allocator = NULL;
    char path[2 * PATH];
    fresh("types");
    memopt_device *device = open_device("cuda:0");
    OK(memopt_allocator_create(device, NULL, NULL, &allocator));
    step(device, allocator, MEMOPT_DTYPE_F16,
         MEMOPT_DTYPE_F16); /* for all types, with what comes before */
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int before = files_in(folder, path);
        step(device, allocator, steps[i].type, steps[i].slope);
        assert_int_equal(files_in(folder, path) - before, steps[i].programs);
    }
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

TEST(keys)
{
    char all[7][MO_GPU_KEY_BYTES], again[MO_GPU_KEY_BYTES];
    key_of(80, 12040, "a", NULL, "mo_cast", all[0]);
    key_of(86, 12040, "a", NULL, "mo_cast", all[1]);
    key_of(80, 12040, "b", NULL, "mo_cast", all[2]);
    key_of(80, 13000, "a", NULL, "mo_cast", all[3]); /* which is compiled by NVRTC 13 */
    key_of(80, 12040, "a", "--gpu-architecture=compute_80", "mo_cast", all[4]);
    key_of(80, 12040, "", NULL, "mo_cast", all[5]);
    key_of(80, 12040, "a", NULL, "mo_sum", all[6]);
    key_of(80, 12040, "a", NULL, "mo_cast", again);
    assert_string_equal(all[0], again);
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(all[i], all[k]);
}

int main(void)
{
    return run_all_tests(prepare, clean);
}
