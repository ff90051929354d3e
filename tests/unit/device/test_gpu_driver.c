/*
 * What is told about drivers that are missing, broken or incomplete. The argument says which driver
 * files the environment leads to: machine (this machine's own), none, broken (no library at all),
 * empty (a library without entry points); and of the simulated ones: partial (without an optional
 * entry point), plain (without virtual memory in the device), old-cuda and old-hip (CUDA 9.2, ROCm
 * 5.0: the oldest that do), ancient (ROCm 4), lacking (without an entry point that every driver
 * has), no-card and no-start (what newer and older HIP runtimes say where there is no card),
 * refusing and passing (CUDA fails to start once, for good or not), own (the program has drivers
 * loaded that lie where the loader does not look; their files follow).
 */
#include "support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/memory.h"

static const char *mode = "machine";
static char **own_files;
static const char *const backends[] = {"cuda", "hip"};

static memopt_backend_info info_about(const char *backend)
{
    memopt_backend_info info = {.struct_size = sizeof info};
    OK(memopt_backend_get_info(backend, &info));
    return info;
}

/* The words in `problem` are those of dlerror or name the file, and opening says the same. */
static void refused_as(memopt_status status, const char *backend, const char *word,
                       const char *missing)
{
    memopt_device *device = (memopt_device *)1;
    char name[16];
    int64_t blocks = mo_memory_live_blocks();
    snprintf(name, sizeof name, "%s:0", backend);
    memopt_backend_info info = info_about(backend);
    assert_int_equal(info.status, status);
    assert_int_equal(info.device_count, 0);
    assert_int_equal(info.driver_version, strcmp(mode, "ancient") == 0 ? 40421432 : 0);
    contains(info.tried, backend[0] == 'c' ? "libcuda.so.1" : "libamdhip64.so");
    contains(info.problem, word);
    contains(info.missing, missing);
    FAILS(status, memopt_device_open(name, NULL, &device));
    SAYS(info.problem);
    SAYS(missing);
    assert_true(device == (memopt_device *)1);
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

static void refused(const char *backend, const char *word, const char *missing)
{
    refused_as(MEMOPT_DRIVER_MISSING, backend, word, missing);
}

/* Whatever is installed here, what is told agrees with what the calls do. */
static void this_machine(const char *backend, const memopt_backend_info *info)
{
    if (info->status != MEMOPT_OK) {
        assert_true(info->problem[0] != '\0');
        refused_as(info->status, backend, info->library, "");
    }
}

/* Before a driver is loaded: one that failed to start is not started again, unless it may work then. */
TEST(starts_once)
{
    memopt_device *device = NULL;
    if (strcmp(mode, "refusing") != 0 && strcmp(mode, "passing") != 0)
        return;
    assert_non_null(dlopen("libcuda.so.1", RTLD_NOW)); /* stays, and counts calls */
    FAILS(MEMOPT_DRIVER_ERROR, memopt_device_open("cuda", NULL, &device));
    if (strcmp(mode, "passing") == 0) {
        OK(memopt_device_open("cuda", NULL, &device));
        OK(memopt_device_close(device));
        return;
    }
    FAILS(MEMOPT_DRIVER_ERROR, memopt_device_open("cuda", NULL, &device));
    SAYS("CUDA_ERROR_UNKNOWN (999)");
}

/* The same: the program's own drivers are used, and no second ones are loaded beside them. */
TEST(shares_what_is_loaded)
{
    memopt_device *device;
    if (strcmp(mode, "own") != 0)
        return;
    for (int i = 0; i < 2; i++) {
        assert_non_null(dlopen(own_files[i], RTLD_NOW));
        OK(memopt_device_open(backends[i], NULL, &device));
        OK(memopt_device_close(device));
        assert_string_equal(info_about(backends[i]).library, own_files[i]);
    }
    assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
    assert_null(dlopen("libamdhip64.so", RTLD_NOW | RTLD_NOLOAD)); /* as a compiler neither */
    assert_non_null(dlopen(own_files[2], RTLD_NOW));
    assert_string_equal(info_about("hip").compiler, own_files[2]);
}

TEST(drivers)
{
    for (size_t i = 0; i < 2; i++) {
        memopt_backend_info info = info_about(backends[i]);
        if (strcmp(mode, "machine") == 0)
            this_machine(backends[i], &info);
        else if (strcmp(mode, "none") == 0)
            refused(backends[i], "in no folder of MEMOPT_DRIVER_PATH", "");
        else if (strcmp(mode, "broken") == 0)
            refused(backends[i], i == 0 ? "broken/libcuda.so.1" : "broken/libamdhip64.so", "");
        else if (strcmp(mode, "empty") == 0)
            refused(backends[i], "lacks entry points",
                    i == 0 ? "cuMemAlloc (required)" : "hipMalloc (required)");
    }
}

/* Without virtual memory everything goes through plain allocations. */
static void works_without_virtual_memory(const char *backend)
{
    memopt_device *device;
    memopt_device_properties p = {.struct_size = sizeof p};
    void *pointer;
    unsigned char byte = 0;
    OK(memopt_device_open(backend, NULL, &device));
    OK(memopt_device_get_properties(device, &p));
    assert_int_equal(p.virtual_memory, 0);
    assert_true(p.granularity > 0);
    FAILS(MEMOPT_UNSUPPORTED, mo_vm_reserve(device, p.granularity, &pointer));
    OK(mo_mem_alloc(device, 1000, &pointer));
    OK(memopt_fill(device, pointer, 5, 1000, NULL));
    OK(memopt_copy(device, &byte, (char *)pointer + 999, 1, NULL));
    OK(memopt_stream_sync(device, NULL));
    assert_int_equal(byte, 5);
    OK(mo_mem_free(device, pointer, 1000));
    OK(memopt_device_close(device));
}

static void call_once(void *user)
{
    ++*(int *)user;
}

/* A driver from before virtual memory, host functions and capture modes: plain allocations, and
 * stream callbacks in place of host functions. */
static void works_with_an_old_driver(const char *backend, const char *isa, const char *const *lacks)
{
    memopt_device *device;
    memopt_device_properties p = {.struct_size = sizeof p};
    int called = 0;
    memopt_backend_info info = info_about(backend);
    OK(info.status);
    assert_int_equal(info.features & MEMOPT_BACKEND_VIRTUAL_MEMORY, 0);
    assert_int_not_equal(info.features & MEMOPT_BACKEND_HOST_FUNCTIONS, 0);
    for (; *lacks != NULL; lacks++)
        contains(info.missing, *lacks);
    works_without_virtual_memory(backend);
    OK(memopt_device_open(backend, NULL, &device));
    OK(memopt_device_get_properties(device, &p));
    assert_string_equal(p.isa, isa);
    assert_int_equal(p.warp_size, strcmp(backend, "hip") == 0 ? 64 : 32);
    memopt_stream stream = stream_on(device);
    OK(memopt_stream_host_callback(device, stream, call_once, &called));
    assert_int_equal(called, 0);
    OK(memopt_stream_sync(device, stream));
    assert_int_equal(called, 1);
    OK(memopt_stream_destroy(device, stream));
    OK(memopt_device_close(device));
}

TEST(old_drivers)
{
    static const char *const cuda[] = {"cuMemCreate", "cuLaunchHostFunc", "cuStreamIsCapturing",
                                       "cuThreadExchangeStreamCaptureMode", NULL};
    static const char *const hip[] = {"hipMemCreate", "hipLaunchHostFunc",
                                      "hipGetDevicePropertiesR0600", NULL};
    if (strcmp(mode, "old-cuda") == 0)
        works_with_an_old_driver("cuda", "sm_80", cuda);
    else if (strcmp(mode, "old-hip") == 0)
        works_with_an_old_driver("hip", "gfx90a", hip);
    else if (strcmp(mode, "ancient") == 0)
        refused("hip", "older than ROCm 5", "");
    else if (strcmp(mode, "lacking") == 0) {
        refused("cuda", "lacks entry points", "cuStreamWaitEvent (required)");
        refused("hip", "lacks entry points", "hipStreamWaitEvent (required)");
    }
}

/* A HIP runtime without a card, whatever it says then: it is told what the system lacks. */
TEST(no_card)
{
    memopt_device *device;
    memopt_backend_info info = info_about("hip");
    int lacking = access("/dev/kfd", R_OK | W_OK) != 0 && access("/dev/dxg", F_OK) != 0;
    const char *why = lacking ? "no AMD device: /dev/kfd: " : "no AMD device";
    if (strcmp(mode, "no-start") == 0 && !lacking) {
        refused_as(MEMOPT_DRIVER_ERROR, "hip", "hipErrorInvalidDevice (101)", "");
    } else if (strcmp(mode, "no-start") == 0 || strcmp(mode, "no-card") == 0) {
        OK(info.status);
        assert_int_equal(info.device_count, 0);
        contains(info.problem, why);
        FAILS_SAYING(MEMOPT_NOT_FOUND, info.problem, memopt_device_open("hip:0", NULL, &device));
        assert_null(strstr(memopt_last_error(), "install"));
    }
}

TEST(less_than_a_whole_driver)
{
    if (strcmp(mode, "partial") == 0) { /* the driver lacks an entry point */
        memopt_backend_info info = info_about("cuda");
        OK(info.status);
        assert_int_equal(info.features & MEMOPT_BACKEND_VIRTUAL_MEMORY, 0);
        contains(info.missing, "cuMemCreate");
        works_without_virtual_memory("cuda");
    } else if (strcmp(mode, "plain") == 0) { /* the device says that it cannot */
        works_without_virtual_memory("cuda");
        works_without_virtual_memory("hip");
    }
}

TEST(arguments)
{
    memopt_backend_info info = {.struct_size = sizeof info};
    REFUSED(memopt_backend_get_info(NULL, &info));
    REFUSED(memopt_backend_get_info("cuda", NULL));
    FAILS(MEMOPT_NOT_FOUND, memopt_backend_get_info("tpu", &info));
    info.struct_size = 3;
    REFUSED(memopt_backend_get_info("cuda", &info));
    info = (memopt_backend_info){.struct_size = offsetof(memopt_backend_info, library)};
    strcpy(info.library, "untouched");
    OK(memopt_backend_get_info("cpu", &info));
    assert_int_equal(info.device_count, 1);
    assert_string_equal(info.library, "untouched");
}

int main(int count, char **values)
{
    if (count > 1)
        mode = values[1];
    own_files = values + 2;
    return run_all_tests(NULL, NULL);
}
