/*
 * Forks. A child has the parent's handles, but none of its threads, and its mutexes as they were.
 * So a device remembers the process that opened it, as the number of forks before it. The handler
 * that counts runs in the child before fork() returns there.
 */
#include "device/front/handle.h"

static atomic_uint forks;
static int watching;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch(void)
{
    watching = pthread_atfork(NULL, NULL, count_fork) == 0;
}

int mo_process_watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
    return watching || mo_fail(MEMOPT_OUT_OF_HOST_MEMORY,
                               "device_open: the system has no memory to register a handler of "
                               "forks") == MEMOPT_OK;
}

uint32_t mo_process_forks(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

int mo_device_inherited(const memopt_device *device)
{
    return device->process != mo_process_forks();
}

memopt_status mo_fail_inherited(const char *call)
{
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s: a parent of this process opened the device before a fork; a child cannot "
                   "use its parent's handles: open a device in the child",
                   call);
}
