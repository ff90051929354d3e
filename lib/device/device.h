/*
 * The one internal interface between primitives and back ends.
 *
 * A back end is a mo_device_ops table; its handle starts with a struct memopt_device. Every
 * operation may be called from any thread. Primitives call the mo_* and memopt_* functions below
 * and in memopt/device.h, never the table: those check arguments, count the fault points that
 * torture tests use, and fall back where an optional operation is missing.
 *
 * Contract of all operations: on failure nothing is changed, the back end has called mo_fail (or
 * mo_fail_driver), and outputs are untouched. None synchronises unless its line says so. None
 * changes the caller's current device or context.
 */
#ifndef MO_DEVICE_DEVICE_H
#define MO_DEVICE_DEVICE_H

#include "kernels/core/kernel_launch.h"
#include "memopt/device.h"

#include "base/error.h"

/* Physical memory that can be mapped. */
typedef struct mo_vm_handle_opaque *mo_vm_handle;

typedef struct mo_device_ops {
    /* Waits for all work and ends the handle, whatever it returns. Pre: nothing is live (the front
     * end has checked). */
    memopt_status (*close)(memopt_device *device);
    /* Fills every field but struct_size. */
    memopt_status (*properties)(memopt_device *device, memopt_device_properties *out);
    /* Fills total and free; the front end keeps the rest. */
    memopt_status (*memory_info)(memopt_device *device, memopt_memory_info *out);
    /* Optional: UNSUPPORTED. Changes how many threads run kernels, and the property; 0: as many as
     * by default. A kernel that runs keeps its threads. */
    memopt_status (*set_threads)(memopt_device *device, uint32_t threads);
    /* Waits for all streams. This and every other synchronising operation returns DEVICE_FAULT once
     * where misuse of device memory was found since the last one, and DEVICE_LOST for good. */
    memopt_status (*sync)(memopt_device *device);

    /* Plain device memory. size is a positive multiple of 512, and memory is aligned to that at
     * least. OUT_OF_DEVICE_MEMORY with asked, free and total in the message. mem_free: pre: the
     * whole of one allocation; waits for work that may use it. */
    memopt_status (*mem_alloc)(memopt_device *device, uint64_t size, void **out_pointer);
    memopt_status (*mem_free)(memopt_device *device, void *pointer, uint64_t size);

    /* Virtual memory; sizes and addresses are multiples of the granularity. NULL (all or none)
     * where the device has none. reserve: addresses without memory. unreserve: pre: nothing mapped
     * in them; whole ranges only. create: physical memory, counted against the capacity;
     * OUT_OF_DEVICE_MEMORY when spent. map: pre: [address, +size) lies in one reservation and is
     * unmapped; size is the handle's whole size. The memory is not accessible yet. A handle may be
     * mapped at several addresses. set_access: pre: the range is mapped (one or several adjacent
     * mappings). unmap: pre: exactly the range of one mapping; the caller has made sure that no
     * work uses it. Contents of the handle survive while it is not released. release: pre: not
     * mapped anywhere. The pages go back to the system at once. */
    memopt_status (*vm_reserve)(memopt_device *device, uint64_t size, void **out_address);
    memopt_status (*vm_unreserve)(memopt_device *device, void *address, uint64_t size);
    memopt_status (*vm_create)(memopt_device *device, uint64_t size, mo_vm_handle *out_handle);
    memopt_status (*vm_map)(memopt_device *device, void *address, uint64_t size,
                            mo_vm_handle handle);
    memopt_status (*vm_set_access)(memopt_device *device, void *address, uint64_t size);
    memopt_status (*vm_unmap)(memopt_device *device, void *address, uint64_t size);
    /* Optional: adjacent mappings of `mapping` bytes each in one call of the driver, all or none.
     * UNSUPPORTED, without a message, where the driver takes one by one only. */
    memopt_status (*vm_unmap_run)(memopt_device *device, void *address, uint64_t size,
                                  uint64_t mapping);
    memopt_status (*vm_release)(memopt_device *device, mo_vm_handle handle, uint64_t size);

    /* Sharing with other processes. Optional: UNSUPPORTED, also where the driver cannot do it.
     * vm_export: a file descriptor of the handle's memory, which the caller closes. While it, a
     * copy or an import of it is there, in any process, the memory stays, also behind a release.
     * vm_import: one more handle of such memory, which is not counted as used; the caller still
     * closes the descriptor. INVALID_ARGUMENT where it is none of such memory. identity: 16 bytes
     * that are the same in two processes whose devices can share, never all zero. */
    memopt_status (*vm_export)(memopt_device *device, mo_vm_handle handle, uint64_t size,
                               int *out_file);
    memopt_status (*vm_import)(memopt_device *device, int file, uint64_t size,
                               mo_vm_handle *out_handle);
    memopt_status (*identity)(memopt_device *device, uint8_t *out_bytes);

    /* Streams. A GPU back end takes any stream of its context, also foreign ones; a back end that
     * can tell a dead stream says INVALID_ARGUMENT, in each operation that takes one and without
     * touching it. stream_destroy: pre: a live stream of stream_create, whose work the front end
     * has waited for; the stream is gone whatever it returns. stream_query: OK, or NOT_READY
     * without mo_fail; never waits. stream_wait_event: pre: the event is this device's; it takes
     * the event's last record at the time of the call, and one never recorded is complete. */
    memopt_status (*stream_create)(memopt_device *device, memopt_stream *out_stream);
    memopt_status (*stream_destroy)(memopt_device *device, memopt_stream stream);
    memopt_status (*stream_sync)(memopt_device *device, memopt_stream stream);
    memopt_status (*stream_query)(memopt_device *device, memopt_stream stream);
    memopt_status (*stream_wait_event)(memopt_device *device, memopt_stream stream,
                                       memopt_event *event);
    /* 1 in *out_capturing while the stream records a graph. Optional: 0. */
    memopt_status (*stream_capturing)(memopt_device *device, memopt_stream stream,
                                      int32_t *out_capturing);

    /* Events. The back end's event starts with a struct memopt_event, with device and timing filled
     * in. event_destroy does not disturb work that waits; the event is gone whatever it returns.
     * event_record: on failure the event keeps its last record. event_query: as stream_query.
     * event_elapsed: pre: both have timing and are of this device; NOT_READY without mo_fail. */
    memopt_status (*event_create)(memopt_device *device, int32_t timing, memopt_event **out_event);
    memopt_status (*event_destroy)(memopt_device *device, memopt_event *event);
    memopt_status (*event_record)(memopt_device *device, memopt_event *event, memopt_stream stream);
    memopt_status (*event_query)(memopt_device *device, memopt_event *event);
    memopt_status (*event_sync)(memopt_device *device, memopt_event *event);
    memopt_status (*event_elapsed)(memopt_device *device, memopt_event *start, memopt_event *end,
                                   double *out_seconds);

    /* Work in stream order; pre: ranges are not NULL, do not wrap around and (copy) do not overlap,
     * unless bytes is 0: then only the stream is checked, as with items = 0. launch copies the
     * argument struct before it returns. host_callback: the function runs with no lock held. */
    memopt_status (*copy)(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream);
    memopt_status (*fill)(memopt_device *device, void *destination, uint8_t value, uint64_t bytes,
                          memopt_stream stream);
    memopt_status (*host_callback)(memopt_device *device, memopt_stream stream,
                                   void (*function)(void *user), void *user);
    memopt_status (*launch)(memopt_device *device, memopt_stream stream, const mo_kernel *kernel,
                            const void *args, uint64_t items);

    /* Page-locked host memory. host_alloc, host_free: whole pages of the system. host_register: any
     * range, not overlapping another one. */
    memopt_status (*host_alloc)(memopt_device *device, uint64_t bytes, void **out_pointer);
    memopt_status (*host_free)(memopt_device *device, void *pointer, uint64_t bytes);
    memopt_status (*host_register)(memopt_device *device, void *pointer, uint64_t bytes);
    memopt_status (*host_unregister)(memopt_device *device, void *pointer, uint64_t bytes);

    /* Sub-allocators report that [pointer, +bytes) is now in use or free, in the order of `stream`.
     * The adversarial CPU device poisons and watches such ranges; optional elsewhere. They cannot
     * fail: a back end that cannot record drops the note. */
    void (*note_alloc)(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);
    void (*note_free)(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);

    /* Work that the caller enqueues next on the stream uses [pointer, +bytes); `mode` is a
     * memopt_race_mode. Only where memopt_device.race is not NULL. */
    memopt_status (*uses)(memopt_device *device, memopt_stream stream, const char *what,
                          const void *pointer, uint64_t bytes, memopt_race_mode mode);

    /* OK where kernels and copies of the device can use all of [pointer, +bytes); else
     * INVALID_ARGUMENT, whose message starts with subject and index and names the device that owns
     * the memory, or says that no device does. Memory that a driver does not know passes. Has no
     * effect on anything, not on a capture either. Optional: nothing is checked. */
    memopt_status (*reachable)(memopt_device *device, const char *subject, uint64_t index,
                               const void *pointer, uint64_t bytes);

    /* True once the device is known to be lost to this process. Optional: never. */
    int (*lost)(memopt_device *device);
} mo_device_ops;

/* The operations that all back ends have, as mo_cpu_<name> and mo_gpu_<name>. */
/* clang-format off */
#define MO_DEVICE_OPS(X) \
    X(close) X(properties) X(memory_info) X(sync) X(mem_alloc) X(mem_free) \
    X(vm_reserve) X(vm_unreserve) X(vm_create) X(vm_map) X(vm_set_access) X(vm_unmap) \
    X(vm_unmap_run) X(vm_release) X(vm_export) X(vm_import) X(identity) \
    X(stream_create) X(stream_destroy) X(stream_sync) X(stream_query) X(stream_wait_event) \
    X(stream_capturing) X(event_create) X(event_destroy) X(event_record) X(event_query) \
    X(event_sync) X(event_elapsed) X(copy) X(fill) X(host_callback) X(launch) \
    X(host_alloc) X(host_free) X(host_register) X(host_unregister)
/* clang-format on */
/* Declares the function of an operation. */
#define MO_DEVICE_OP(function, name) __typeof__(*((mo_device_ops *)0)->name) function

/* --- what primitives call beyond memopt/device.h ------------------------------------------- */

/* 1 in the child of a fork, for a device that the parent opened. Threads and locks of the parent
 * are not there, and shared memory is the parent's: each public function that takes a handle calls
 * mo_check_process before anything else, destroy and close too. */
int mo_device_inherited(const memopt_device *device);
/* UNSUPPORTED; `call` begins the message. */
memopt_status mo_fail_inherited(const char *call);
static inline memopt_status mo_check_process(const memopt_device *device, const char *call)
{
    return mo_device_inherited(device) ? mo_fail_inherited(call) : MEMOPT_OK;
}

memopt_status mo_mem_alloc(memopt_device *device, uint64_t size, void **out_pointer);
memopt_status mo_mem_free(memopt_device *device, void *pointer, uint64_t size);

int mo_vm_supported(memopt_device *device);
/* 1 if a handle may be mapped at two addresses whose uses are ordered by streams. */
int mo_vm_aliases(memopt_device *device);
uint64_t mo_device_granularity(memopt_device *device);
uint64_t mo_device_total_memory(memopt_device *device);
memopt_status mo_vm_reserve(memopt_device *device, uint64_t size, void **out_address);
memopt_status mo_vm_unreserve(memopt_device *device, void *address, uint64_t size);
memopt_status mo_vm_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle);
memopt_status mo_vm_map(memopt_device *device, void *address, uint64_t size, mo_vm_handle handle);
memopt_status mo_vm_set_access(memopt_device *device, void *address, uint64_t size);
memopt_status mo_vm_unmap(memopt_device *device, void *address, uint64_t size);
/* The same for adjacent mappings of `mapping` bytes each, with one call where the driver permits.
 * *out_done: the bytes from the start that are unmapped, all of them if OK. */
memopt_status mo_vm_unmap_run(memopt_device *device, void *address, uint64_t size, uint64_t mapping,
                              uint64_t *out_done);
memopt_status mo_vm_release(memopt_device *device, mo_vm_handle handle, uint64_t size);
memopt_status mo_vm_export(memopt_device *device, mo_vm_handle handle, uint64_t size,
                           int *out_file);
memopt_status mo_vm_import(memopt_device *device, int file, uint64_t size,
                           mo_vm_handle *out_handle);
/* Ends a handle of mo_vm_import. */
memopt_status mo_vm_drop_import(memopt_device *device, mo_vm_handle handle, uint64_t size);
enum { MO_IDENTITY_BYTES = 16 };
memopt_status mo_device_identity(memopt_device *device, uint8_t *out_bytes);

memopt_status mo_stream_capturing(memopt_device *device, memopt_stream stream,
                                  int32_t *out_capturing);

/* The last check of memory that a caller hands in, before anything is enqueued that uses it: a
 * kernel that touches memory of another device, freed memory or pageable host memory would end the
 * context. `subject` and `index` start the message ("cast: source" and 3). A range that has passed
 * before costs no driver call while the device remembers it. bytes = 0 passes. */
memopt_status mo_reachable(memopt_device *device, const char *subject, uint64_t index,
                           const void *pointer, uint64_t bytes);

/* Listeners to the end of a stream: sub-allocators, whose memory is ordered by streams. For one
 * stream `ending` comes first: after it the listener must not use the handle again, while work that
 * is on the stream may still run. Then the stream is waited for, and `ended` comes before the
 * handle can be given to a new stream; complete = 0: the wait failed, and only a wait for the whole
 * device shows that the work is done. Each call goes to those who listen at that moment, so `ended`
 * may come without `ending`, and vice versa. Calls come one at a time, under only the lock that
 * keeps the listener alive. They must not create, end or wait for anything, nor (un)listen. */
typedef struct mo_stream_listener {
    void (*ending)(struct mo_stream_listener *listener, memopt_stream stream);
    void (*ended)(struct mo_stream_listener *listener, memopt_stream stream, int complete);
    struct mo_stream_listener *next; /* the front end's */
} mo_stream_listener;

/* While it listens the device cannot be closed. */
void mo_stream_listen(memopt_device *device, mo_stream_listener *listener);
/* When it returns, the listener is not running and will not be called again. */
void mo_stream_unlisten(memopt_device *device, mo_stream_listener *listener);

/* True once the device is known to be lost: nothing runs on it, but objects can still be ended. */
int mo_device_lost(memopt_device *device);
/* The status of ending something; `lost`: the device was known to be lost before, which is not a
 * failure of the end. */
static inline memopt_status mo_end_status(int lost, memopt_status status)
{
    return lost && status == MEMOPT_DEVICE_LOST ? MEMOPT_OK : status;
}
/* Whether a wait with this status means that the work is over: also 1 if the work failed. */
static inline int mo_work_is_over(memopt_status waited)
{
    return waited == MEMOPT_OK || waited == MEMOPT_DEVICE_FAULT || waited == MEMOPT_DEVICE_LOST;
}

/* Runs kernel over `items` items in stream order; items = 0 does nothing. args is kernel->args_size
 * bytes and is copied. */
memopt_status mo_launch(memopt_device *device, memopt_stream stream, const mo_kernel *kernel,
                        const void *args, uint64_t items);

/* Adds `count` values in device memory, count > 0, in the order of kernels/reduce/reduce.h;
 * mo_total_scratch(count) doubles lie there. *out_total is the address of the sum. */
memopt_status mo_launch_sum(memopt_device *device, memopt_stream stream, double *values,
                            uint64_t count, const double **out_total);

/* Device memory, aligned to 512, for the work that a call enqueues on a stream: it is the call's
 * until it returns it, behind its last launch. Returned before or not, it stays the work's; that of
 * a stream that records a graph, the graph's. *out_scratch may be NULL, also on success. */
typedef struct mo_scratch mo_scratch;
memopt_status mo_scratch_take(memopt_device *device, uint64_t bytes, memopt_stream stream,
                              mo_scratch **out_scratch, void **out_pointer);
void mo_scratch_return(memopt_device *device, mo_scratch *scratch);

/* 1 where it listens to the next two. */
int mo_device_finds_races(const memopt_device *device);
/* What the next launch uses, for the finder of races. `what` names the launch. NULL and 0 bytes are
 * nothing. Kernels' tables and scratch are not told: they are one stream's. */
void mo_reads(memopt_device *device, memopt_stream stream, const char *what, const void *pointer,
              uint64_t bytes);
void mo_writes(memopt_device *device, memopt_stream stream, const char *what, const void *pointer,
               uint64_t bytes);
void mo_tensor_used(memopt_device *device, const char *what, const memopt_tensor *tensor,
                    int written, memopt_stream stream);

/* Whether the device wants them; the others are no calls then. */
int mo_device_takes_notes(const memopt_device *device);

/* Whether the device's memory and the host's are one. */
int mo_device_unified(const memopt_device *device);
void mo_note_alloc(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);
void mo_note_free(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);

/* True if [a, +a_bytes) and [b, +b_bytes) share a byte. */
static inline int mo_ranges_overlap(const void *a, uint64_t a_bytes, const void *b,
                                    uint64_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* --- for tests, with MEMOPT_TEST_HOOKS ----------------------------------------------------- */

/* Makes the n-th device operation from now (any fallible operation of the table, sync and query
 * included; what ends or undoes something excluded) fail once with DRIVER_ERROR, or where it
 * allocates with OUT_OF_DEVICE_MEMORY (mem_alloc, vm_create) or OUT_OF_HOST_MEMORY (host_alloc);
 * 0 turns faults off. */
void mo_device_fail_at(memopt_device *device, int64_t n);
int mo_device_fault_struck(memopt_device *device);

#endif
