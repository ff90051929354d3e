/* What the tests of monitors share: reading and listing in one call, and running out of memory. */
#ifndef TEST_MONITOR_SUPPORT_H
#define TEST_MONITOR_SUPPORT_H

#include "unit/device/support.h"

#include "base/memory.h"
#include "memopt/tools/monitor.h"

static const char *const gpus[] = {"cuda", "hip"};
static const char *const libraries[] = {"libnvidia-ml.so.1", "librocm_smi64.so"};

enum {
    ALL = MEMOPT_MONITOR_NAME | MEMOPT_MONITOR_UUID | MEMOPT_MONITOR_PCI | MEMOPT_MONITOR_MEMORY |
          MEMOPT_MONITOR_UTILIZATION | MEMOPT_MONITOR_MEMORY_UTILIZATION |
          MEMOPT_MONITOR_TEMPERATURE | MEMOPT_MONITOR_POWER | MEMOPT_MONITOR_POWER_LIMIT
};

static inline memopt_monitor *open_monitor(const char *backend)
{
    memopt_monitor *monitor = NULL;
    OK(memopt_monitor_open(backend, &monitor));
    return monitor;
}

static inline memopt_monitor_info info_about(const char *backend)
{
    memopt_monitor_info info = {.struct_size = sizeof info};
    OK(memopt_monitor_get_info(backend, &info));
    return info;
}

static inline memopt_monitor_reading read_device(memopt_monitor *monitor, int32_t index)
{
    memopt_monitor_reading reading = {.struct_size = sizeof reading};
    OK(memopt_monitor_get_reading(monitor, index, &reading));
    return reading;
}

/* A reading of one device by a monitor of its own. */
static inline memopt_monitor_reading read_once(const char *backend, int32_t index)
{
    memopt_monitor *monitor = open_monitor(backend);
    memopt_monitor_reading reading = read_device(monitor, index);
    OK(memopt_monitor_close(monitor));
    return reading;
}

typedef struct processes {
    memopt_process_info seen[64];
    uint32_t count, stop_after;
} processes;

static inline memopt_status take_process(void *user, const memopt_process_info *process)
{
    processes *p = user;
    if (p->count < 64)
        p->seen[p->count] = *process;
    p->count++;
    return p->stop_after != 0 && p->count == p->stop_after ? MEMOPT_STATUS_USER + 5 : MEMOPT_OK;
}

static inline processes list_once(const char *backend, int32_t index)
{
    processes p = {.count = 0};
    memopt_monitor *monitor = open_monitor(backend);
    OK(memopt_monitor_processes(monitor, index, take_process, &p));
    OK(memopt_monitor_close(monitor));
    return p;
}

static inline void is_process(const memopt_process_info *process, int32_t pid, uint32_t kind,
                              int64_t bytes)
{
    assert_int_equal(process->struct_size, sizeof *process);
    assert_int_equal(process->pid, pid);
    assert_int_equal(process->kind, kind);
    assert_int_equal(process->used_known, bytes >= 0);
    assert_int_equal(process->used_bytes, bytes >= 0 ? bytes : 0);
}

/* --- torture --------------------------------------------------------------------------------- */

/* Opens, reads and lists; the first failing status, and everything ended. */
static inline memopt_status scenario(const char *backend)
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
    status = memopt_monitor_get_reading(monitor, 0, &reading);
    if (status == MEMOPT_OK)
        status = memopt_monitor_processes(monitor, 0, take_process, &p);
    if (status != MEMOPT_OK)
        assert_int_equal(p.count, 0); /* nothing is visited where the list is not whole */
    OK(memopt_monitor_close(monitor));
    return status;
}

static inline void torture_allocations(const char *backend)
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

#endif
