/*
 * What the front end keeps in every device handle and event. A back end's own structs start with
 * these; no other code uses them.
 */
#ifndef MO_DEVICE_FRONT_HANDLE_H
#define MO_DEVICE_FRONT_HANDLE_H

#include "device/device.h"
#include "device/front/ranges.h"

#include <pthread.h>
#include <stdatomic.h>

/* What is live; guarded by memopt_device.lock. */
typedef struct mo_device_account {
    uint64_t used, used_peak; /* bytes of plain allocations and of physical memory */
    uint64_t reserved_va;
    uint64_t pinned, pinned_peak;
    uint64_t registered;
    uint64_t allocations, handles, reservations, events;
    mo_ranges streams; /* made by stream_create, each of size 1 */
    mo_ranges pinned_ranges, registered_ranges;
} mo_device_account;

struct memopt_device {
    const mo_device_ops *ops;
    uint32_t process;                    /* mo_process_forks() when it was opened */
    int takes_notes;                     /* of allocations and frees; fixed once opened */
    int unified;                         /* its memory is the host's; fixed once opened */
    memopt_race *race;                   /* NULL: none; fixed once opened */
    memopt_device_properties properties; /* fixed once opened, but threads: guarded by lock */
    pthread_mutex_t lock;                /* innermost: nothing is called under it */
    mo_device_account account;
    mo_scratch *scratch;       /* scratch.c; guarded by lock */
    pthread_mutex_t listening; /* held over the listeners' functions; before any lock of theirs */
    mo_stream_listener *listeners;
    atomic_int_fast64_t fault_countdown; /* 0: no fault armed */
    atomic_int fault_struck;
};

struct memopt_event {
    memopt_device *device;
    int32_t timing;
};

/* The back end calls these when it makes and ends its handle. Pre: init: ops->properties works;
 * fini: nothing is live. */
memopt_status mo_device_init(memopt_device *device, const mo_device_ops *ops);
void mo_device_fini(memopt_device *device);

/* OK, or the armed fault's error if this operation is the one that a test wants to fail: then
 * `status` (DRIVER_ERROR, or the status of running out of memory there). */
#ifdef MEMOPT_TEST_HOOKS
memopt_status mo_device_fault(memopt_device *device, const char *operation, memopt_status status);
#else
#define mo_device_fault(device, operation, status) ((void)(operation), (void)(status), MEMOPT_OK)
#endif

/* The start of each operation: UNSUPPORTED in a child process of the one that opened the device, or
 * the armed fault's error. `operation` begins the message. */
static inline memopt_status mo_device_enter(memopt_device *device, const char *operation,
                                            memopt_status fault)
{
    if (mo_device_inherited(device))
        return mo_fail_inherited(operation);
    return mo_device_fault(device, operation, fault);
}

/* --- scratch.c */

/* Pre: a wait for the stream is over; 0 in `complete`: it failed, and work may go on. */
void mo_scratch_stream_ended(memopt_device *device, memopt_stream stream, int complete);
/* How many allocations it has. Pre: locked. */
uint64_t mo_scratch_count(const memopt_device *device);
/* Frees all. Pre: no call of the device runs. */
void mo_scratch_end(memopt_device *device);

/* --- process.c */

/* Begins to count forks; 0 when host memory is out. */
int mo_process_watch_forks(void);
/* How many forks lie between the first process that counted and this one. */
uint32_t mo_process_forks(void);

/* The back ends. options are complete: every default that holds for all back ends is filled in. */
memopt_status mo_cpu_open(const memopt_device_options *options, memopt_device **out_device);

#endif
