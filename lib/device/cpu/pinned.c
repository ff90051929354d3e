/*
 * Page-locked host memory of the "cpu" device. The accounting is a GPU's, or that of one memory where
 * the device is unified. If the system refuses to
 * lock (RLIMIT_MEMLOCK is often 8 MiB), the pages stay unlocked.
 */
#include "device/cpu/race.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Logged once per process: training continues, slower under memory pressure. */
static void refused(uint64_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    int error = errno;
    if (!atomic_flag_test_and_set(&said))
        mo_log(MEMOPT_LOG_INFO,
               "cpu: the system locks no %s of host memory (%s; see ulimit -l); it is used "
               "unlocked",
               MO_SIZE(bytes), strerror(error));
}

/* Page-locked memory of a unified device is part of its capacity. */
static memopt_status charge(memopt_device *device, uint64_t bytes)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OK;
    if (!device->unified)
        return status;
    mo_lock(&memory->lock);
    mo_cpu_reap(memory);
    if (bytes > memory->capacity - memory->used)
        status = mo_fail(MEMOPT_OUT_OF_HOST_MEMORY,
                         "cpu: %s to page-lock, %s free of the %s that host and device share",
                         MO_SIZE(bytes), MO_SIZE(memory->capacity - memory->used),
                         MO_SIZE(memory->capacity));
    else
        memory->used += bytes;
    mo_unlock(&memory->lock);
    return status;
}

static void refund(memopt_device *device, uint64_t bytes)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    if (!device->unified)
        return;
    mo_lock(&memory->lock);
    memory->used -= bytes;
    mo_unlock(&memory->lock);
}

/* The front end asks for whole pages. */
memopt_status mo_cpu_host_alloc(memopt_device *device, uint64_t bytes, void **out_pointer)
{
    void *pointer = MAP_FAILED;
    MO_TRY(charge(device, bytes));
    errno = ENOMEM;
    if (bytes <= SIZE_MAX / 2)
        pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) {
        refund(device, bytes);
        return mo_fail_driver(MEMOPT_OUT_OF_HOST_MEMORY, errno, strerror(errno),
                              "cpu: the system has no %s of host memory to page-lock",
                              MO_SIZE(bytes));
    }
    if (mlock(pointer, bytes) != 0)
        refused(bytes);
    *out_pointer = pointer;
    return MEMOPT_OK;
}

memopt_status mo_cpu_host_free(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_cpu_race_forget(mo_cpu(device), pointer, bytes, 1);
    munmap(pointer, bytes);
    refund(device, bytes);
    return MEMOPT_OK;
}

/* The whole pages that hold a range. */
static void *page_span(void *pointer, uint64_t bytes, uint64_t *out_span)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t before = (uintptr_t)pointer % page;
    *out_span = mo_ceil_div_u64(before + bytes, page) * page;
    return (char *)pointer - before;
}

memopt_status mo_cpu_host_register(memopt_device *device, void *pointer, uint64_t bytes)
{
    uint64_t span;
    (void)device;
    void *start = page_span(pointer, bytes, &span);
    /* msync of clean pages only checks whether they are mapped. */
    if (msync(start, span, MS_ASYNC) != 0)
        return mo_fail_driver(MEMOPT_INVALID_ARGUMENT, errno, strerror(errno),
                              "host_register: [%p, +%" PRIu64 ") is not all mapped memory", pointer,
                              bytes);
    if (mlock(start, span) != 0)
        refused(bytes);
    return MEMOPT_OK;
}

memopt_status mo_cpu_host_unregister(memopt_device *device, void *pointer, uint64_t bytes)
{
    uint64_t span;
    (void)device;
    void *start = page_span(pointer, bytes, &span);
    munlock(start, span);
    return MEMOPT_OK;
}
