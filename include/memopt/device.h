/**
 * @file device.h
 * @brief Devices, streams, events, copies and page-locked host memory.
 *
 * A device is opened by name: "cpu", "cuda:0", "hip:1". On "cpu", device memory is host memory with
 * a capacity that the caller can set. It is reserved, mapped and unmapped as on a GPU: a program
 * that fits there fits a card of that size. All other memory of the process, that of malloc() too,
 * may be given wherever a function asks for device memory there; it does not count.
 *
 * **Streams.** On a GPU, a ::memopt_stream is the driver's own handle (`CUstream`, `cudaStream_t`,
 * `hipStream_t`). NULL is the device's default stream. Work on one stream runs in order. A stream
 * waits for another one only if the program asks for it. This holds for NULL too: it never
 * synchronises implicitly, except, on a GPU, with blocking streams that other code created. On
 * "cpu", work on the NULL stream runs on the calling thread before the call returns; each other
 * stream has a worker thread.
 *
 * **Threads.** Every function here may be called from any thread at any time. One exception: while
 * a handle is destroyed or closed, no other call may use it.
 *
 * **Processes.** The child of a fork cannot use what its parent opened or made: each call with a
 * device of the parent's, or with any handle that was made on it, returns #MEMOPT_UNSUPPORTED at
 * once and changes nothing; destroy and close too. The child may open devices of its own: "cpu"
 * always, a GPU only if no parent started its driver. Memory of expandable segments on "cpu" is
 * shared with the child: what the child writes there, the parent sees.
 */
#ifndef MEMOPT_DEVICE_H
#define MEMOPT_DEVICE_H

#include <memopt/base.h>
#include <memopt/race.h>

MEMOPT_BEGIN_DECLS

/** @brief An open device. */
typedef struct memopt_device memopt_device;
/** @brief A stream: the driver's own handle; NULL is the default stream. */
typedef struct memopt_stream_opaque *memopt_stream;
/** @brief A point in a stream's work. */
typedef struct memopt_event memopt_event;

/** @brief How the streams of a "cpu" device run. */
typedef uint32_t memopt_stream_order;

/** @brief The values of ::memopt_stream_order. */
enum {
    /** Work runs as soon as possible: work on the NULL stream before the call returns, other
     * streams on a worker thread each. */
    MEMOPT_STREAM_ORDER_EAGER = 0,
    /**
     * For tests. Work runs at the latest legal moment: when something waits for it, after all other
     * streams that may legally run first. Freed memory is poisoned. Work that touches freed memory
     * makes the next synchronising call fail with #MEMOPT_DEVICE_FAULT. The NULL stream is
     * asynchronous too, as on a GPU.
     */
    MEMOPT_STREAM_ORDER_ADVERSARIAL = 1
};

/** @brief Whether a "cpu" device finds stream races. */
typedef uint32_t memopt_race_search;

/** @brief The values of ::memopt_race_search. */
enum {
    MEMOPT_RACE_SEARCH_DEFAULT = 0, /**< On where the environment has MEMOPT_RACE=1. */
    MEMOPT_RACE_SEARCH_ON = 1,      /**< On: see memopt_device_get_race(). */
    MEMOPT_RACE_SEARCH_OFF = 2,     /**< Off. */
    MEMOPT_RACE_SEARCH_QUIET = 3    /**< On, but no call fails: read the finder's reports. */
};

/** @brief How to open a device; zero means the default. */
typedef struct memopt_device_options {
    size_t struct_size; /**< sizeof(memopt_device_options). */
    /** Device memory in bytes ("cpu" only), rounded down to a multiple of the granularity, at least
     * one page of it. 0: the machine's physical memory. */
    uint64_t capacity;
    /** Threads that run kernels ("cpu" only), at most 1024. 0: the value of the environment
     * variable MEMOPT_NUM_THREADS, else of OMP_NUM_THREADS, else one per processor that the
     * process may use. The affinity mask and the CPU quota of the control group (rounded up) limit
     * that number. */
    uint32_t threads;
    uint32_t stream_order; /**< A ::memopt_stream_order ("cpu" only). */
    uint64_t seed;         /**< Seed of the adversarial order's choices. */
    uint64_t granularity;  /**< Bytes of a page ("cpu" only): a power of two ≥ 4096. 0: 2 MiB. */
    /** How far the device's work lags behind the host ("cpu" only), as that of a busy GPU does: an
     * operation is complete once so many more have been enqueued on the device's streams, or once
     * something waits for it. Allocations and frees of allocators count as operations. UINT64_MAX:
     * nothing is complete before something waits for it. Queries answer accordingly, and work runs
     * in the order of the calls, on the NULL stream too. 0: no lag. Equal calls give equal runs. */
    uint64_t lag;
    memopt_race_search race; /**< Whether stream races are found ("cpu" only). */
    /** 1: the device's memory is the host's own (GB10, APUs), so that both are one budget. An
     * offloader then keeps values on the device, since a copy on the host would free nothing;
     * #MEMOPT_OVERFLOW_SPILL still moves them to the disk. On "cpu" page-locked memory of
     * memopt_host_alloc() is part of the capacity. 0: two memories. */
    uint32_t unified;
} memopt_device_options;

/** @brief Initialiser of ::memopt_device_options. */
#define MEMOPT_DEVICE_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_device_options), 0, 0, 0, 0, 0, 0, 0, 0                                      \
    }

/** @brief What a device is and can do. */
typedef struct memopt_device_properties {
    size_t struct_size;      /**< Set by the caller. */
    char name[64];           /**< The name that the driver gives. */
    char backend[8];         /**< "cpu", "cuda" or "hip". */
    char isa[24];            /**< The instruction set of the kernels: "scalar", "neon", "avx2",
                                  "avx512", "sm_90", "gfx1030". */
    int32_t index;           /**< The number behind the colon; 0 for "cpu". */
    uint32_t threads;        /**< Kernel threads ("cpu") or multiprocessors (GPU). */
    uint32_t warp_size;      /**< Threads in lock-step: 32 or 64; 1 on "cpu". */
    uint32_t virtual_memory; /**< 1 where memory can be mapped page by page. */
    uint64_t total_memory;   /**< Bytes of device memory. */
    uint64_t granularity;    /**< Bytes of the pages that are mapped; 2 MiB or more on a GPU. */
    /** The variant of the kernels that fits the device. On "cpu": the instruction set, as
     * MEMOPT_ISA names it: "scalar", "neon", "avx2", "avx512-base", "avx512-vbmi" or "avx512-bf16".
     * On a GPU: the built-in image ("fatbin", "ptx75", "gfx90a"), or "source" if no image fits and
     * a run-time compiler must make one, or "". */
    char kernels[24];
    /** What keeps the device below what it has; "" if nothing does. On "cpu": why kernels do not
     * use a faster variant, such as "avx512-base needs avx512f, which this machine lacks" or
     * "MEMOPT_ISA=avx2; this machine has avx512-bf16". On a GPU: why its virtual memory is not
     * used although the driver has it, such as "HIP 7.2 is older than 7.14, …". */
    char limit[160];
} memopt_device_properties;

/** @brief Initialiser of ::memopt_device_properties. */
#define MEMOPT_DEVICE_PROPERTIES_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_device_properties), "", "", "", 0, 0, 0, 0, 0, 0, "", ""                     \
    }

/** @brief Device and pinned memory in bytes. */
typedef struct memopt_memory_info {
    size_t struct_size;   /**< Set by the caller. */
    uint64_t total;       /**< Device memory in all. */
    uint64_t free;        /**< Device memory that any program could allocate now. */
    uint64_t used;        /**< Device memory that this handle holds (mapped or allocated). */
    uint64_t used_peak;   /**< The most that this handle has held. */
    uint64_t reserved_va; /**< Virtual addresses that this handle has reserved. */
    uint64_t pinned;      /**< Page-locked host bytes that this handle allocated. */
    uint64_t pinned_peak; /**< The most page-locked host bytes that this handle had allocated. */
    uint64_t registered;  /**< Host bytes of the caller registered as page-locked. */
} memopt_memory_info;

/** @brief Initialiser of ::memopt_memory_info. */
#define MEMOPT_MEMORY_INFO_INIT                                                                    \
    {                                                                                              \
        sizeof(memopt_memory_info), 0, 0, 0, 0, 0, 0, 0, 0                                         \
    }

/** @brief What a back end's driver can do; bits of memopt_backend_info::features. */
typedef uint32_t memopt_backend_feature;

/** @brief The values of ::memopt_backend_feature. */
enum {
    MEMOPT_BACKEND_VIRTUAL_MEMORY = 1,  /**< The driver maps memory page by page. */
    MEMOPT_BACKEND_HOST_FUNCTIONS = 2,  /**< Host functions run in stream order. */
    MEMOPT_BACKEND_GRAPH_CAPTURE = 4,   /**< Streams can be captured into graphs. */
    MEMOPT_BACKEND_RUNTIME_COMPILER = 8 /**< Kernels can be compiled for a device with no image. */
};

/**
 * @brief What the library found about a back end. Lists are separated by ", ". A text that does not
 *        fit is cut.
 */
typedef struct memopt_backend_info {
    size_t struct_size; /**< Set by the caller. */
    /** #MEMOPT_OK: devices can be opened, if there are any. Otherwise the status that opening a
     * device returns: #MEMOPT_UNSUPPORTED (not in this build), #MEMOPT_DRIVER_MISSING or
     * #MEMOPT_DRIVER_ERROR. */
    memopt_status status;
    int32_t driver_code;    /**< The driver's code of the problem; 0 if it has none. */
    int32_t driver_version; /**< The driver's version in its own form, e.g. 12040; 0 if it is not
                                 loaded. */
    int32_t device_count;   /**< The number of devices. */
    uint32_t features;      /**< Bits of ::memopt_backend_feature. */
    char library[256];      /**< The driver's file that was opened; "" if none. */
    char tried[512];        /**< The names that were tried; "" if the program had loaded one. */
    /** Why the back end does not work, in the words of the loader or driver. With #MEMOPT_OK and no
     * device: "no AMD device" or "no NVIDIA device", and why if the system tells it. Otherwise "".
     */
    char problem[512];
    char missing[512];  /**< Entry points that the driver lacks. If a required one is missing, the
                             driver is not used. */
    char targets[512];  /**< The targets of the built-in kernels, e.g. "gfx90a, gfx1100". */
    char compiler[256]; /**< The run-time compiler's file; "" if none was found. */
} memopt_backend_info;

/** @brief Initialiser of ::memopt_backend_info. */
#define MEMOPT_BACKEND_INFO_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_backend_info), 0, 0, 0, 0, 0, "", "", "", "", "", ""                         \
    }

/**
 * @brief Describes a back end: its driver, missing entry points, the built-in kernels.
 *
 * Loads the driver and the run-time compiler if they are not loaded yet. A missing driver is not a
 * failure of this call: see memopt_backend_info::status.
 * @param backend "cpu", "cuda" or "hip".
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such back end; the message lists the existing ones.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_backend_get_info(const char *backend,
                                                 memopt_backend_info *out_info);

/**
 * @brief Opens a device.
 * @param name "cpu", "cuda:N" or "hip:N". Without ":N", N is 0.
 * @param options NULL for defaults.
 * @param[out] out_device the device; close it with memopt_device_close().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or an option is out of range.
 * @retval MEMOPT_UNSUPPORTED an option is unknown or this back end does not support it, or this
 *         build of the library does not contain the back end.
 * @retval MEMOPT_NOT_FOUND there is no such back end or device index.
 * @retval MEMOPT_DRIVER_MISSING the driver cannot be loaded.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @retval MEMOPT_DRIVER_ERROR the driver or the system returned an error.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_open(const char *name, const memopt_device_options *options,
                                            memopt_device **out_device);

/**
 * @brief Closes a device after waiting for all its work.
 * @param device the device; NULL does nothing.
 * @retval MEMOPT_OK closed.
 * @retval MEMOPT_BUSY allocations, streams, events or page-locked memory of the device still exist;
 *         the message counts them. Nothing changed.
 * @retval MEMOPT_DEVICE_FAULT closed; misuse of device memory was found (adversarial order).
 * @retval MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR closed; waiting for pending work failed (reported
 *         once).
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_close(memopt_device *device);

/**
 * @brief What a device is and can do.
 * @param device the device.
 * @param[in,out] out_properties the caller sets struct_size; the call fills at most that many
 *        bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_get_properties(memopt_device *device,
                                                      memopt_device_properties *out_properties);

/**
 * @brief Sets the number of threads that run kernels on a "cpu" device. Results have the same bits
 *        with any number.
 *
 * Waits for a kernel that runs on several threads now. The next kernel uses the new number, also on
 * streams with pending work. memopt_device_get_properties() returns the new number.
 * @param device a "cpu" device.
 * @param threads 1 to 1024, the calling thread included; 0: the default of
 *        memopt_device_options::threads, determined again.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, or threads is above 1024; nothing is changed.
 * @retval MEMOPT_UNSUPPORTED the device is a GPU.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_set_threads(memopt_device *device, uint32_t threads);

/**
 * @brief Reads the state of device and page-locked memory: total, free, used by this handle.
 * @param device the device.
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_DRIVER_ERROR the driver returned an error.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_get_memory_info(memopt_device *device,
                                                       memopt_memory_info *out_info);

/**
 * @brief Waits for all work on every stream of the device that this handle knows, NULL included.
 * @param device the device.
 * @retval MEMOPT_OK all done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL.
 * @retval MEMOPT_DEVICE_FAULT misuse of device memory or a race was found; the message names the
 *         operations.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed or the device is lost.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_sync(memopt_device *device);

/**
 * @brief The race finder of a "cpu" device that was opened with memopt_device_options::race, or with
 *        MEMOPT_RACE=1 in the environment.
 *
 * The device tells it of copies, fills, launches of this library with their tensors, events, waits,
 * blocks of allocators, and what the host waits for; a query that succeeds and a host callback that
 * has run count as waits of the host. It cannot see what the host or kernels of the caller read and
 * write: memopt_race_run() and memopt_stream_uses() tell it. When there are new reports, the next
 * synchronising call returns #MEMOPT_DEVICE_FAULT once. Its message names the operations, the
 * streams, the bytes and the missing wait. With #MEMOPT_STREAM_ORDER_ADVERSARIAL too, operations
 * have the same numbers, and the bytes of a report come out wrong.
 * @param device the device.
 * @param[out] out_race the finder, which ends with the device.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_UNSUPPORTED the device finds no races.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_get_race(memopt_device *device, memopt_race **out_race);

/**
 * @brief Tells that work which is enqueued next on a stream uses memory: a kernel of the caller's,
 *        or what a host callback reads and writes. For memopt_device_get_race(); on other devices it
 *        only checks its arguments.
 * @param device the device.
 * @param stream the stream; NULL is the default stream.
 * @param what names the work in messages: "my_kernel". Read during the call.
 * @param pointer the first byte.
 * @param bytes the number of bytes; 0 does nothing.
 * @param mode bits of ::memopt_race_mode.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or what is NULL, mode is not 1 to 3, the range is NULL or
 *         beyond the address space, or, where races are found, stream is not a live stream of the
 *         device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_uses(memopt_device *device, memopt_stream stream,
                                            const char *what, const void *pointer, uint64_t bytes,
                                            memopt_race_mode mode);

/**
 * @brief Creates a stream that runs concurrently with all others.
 * @param device the device.
 * @param[out] out_stream the stream; destroy it with memopt_stream_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_create(memopt_device *device, memopt_stream *out_stream);

/**
 * @brief Destroys a stream after waiting for its work. The allocators, optimizers and offloaders of
 *        this device handle stop using it, as in memopt_stream_release_sync().
 * @param device the stream's device.
 * @param stream the stream; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST waiting for the work failed;
 *         the stream is destroyed anyway. If the device was already known to be lost, the call
 *         succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_destroy(memopt_device *device, memopt_stream stream);

/**
 * @brief Announces the end of a stream that other code created. The library stops using the stream.
 *        Waits for its work.
 *
 * Call it for streams that memopt_stream_create() did not create, before `cudaStreamDestroy`,
 * `hipStreamDestroy` or a similar call. A driver may reuse the handle of a destroyed stream for a
 * new one, and may crash when it gets the handle of a destroyed one. Without this call, an
 * allocator that was given the stream cannot detect either case. memopt_stream_destroy() does the
 * same for its stream.
 *
 * All allocators, optimizers and offloaders of this device handle stop using the stream: its cached
 * memory becomes available to every stream, and its recorded uses count as complete. If the same
 * handle value is used later, it is treated as a new stream.
 * @param device the device.
 * @param stream the stream, alive, not NULL. No other call may use it meanwhile.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or stream is NULL, or stream is not a live stream (as far
 *         as the back end can tell).
 * @retval MEMOPT_BUSY the stream records a graph. Nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT waiting for the work failed.
 *         The library stops using the stream anyway. After #MEMOPT_DRIVER_ERROR, the stream's
 *         memory is reused only after a wait for the whole device; allocators do that under memory
 *         pressure, in a trim and when they are destroyed. If the device was already known to be
 *         lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_release_sync(memopt_device *device, memopt_stream stream);

/**
 * @brief Waits for all work that was enqueued on a stream before the call.
 * @param device the stream's device.
 * @param stream the stream; NULL is the default stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed, the
 *         device is lost or device memory was misused; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_sync(memopt_device *device, memopt_stream stream);

/**
 * @brief Asks whether a stream's work is done, without waiting.
 * @param device the stream's device.
 * @param stream the stream.
 * @retval MEMOPT_OK the work is done.
 * @retval MEMOPT_NOT_READY work is pending. The last error is not written.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_query(memopt_device *device, memopt_stream stream);

/**
 * @brief Makes later work of a stream wait for an event's last record.
 * @param device the device.
 * @param stream the stream that waits.
 * @param event the event. An event that was never recorded counts as complete.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a handle is NULL or of another device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(); nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                                  memopt_event *event);

/**
 * @brief Calls a host function, in stream order, after the work that is on the stream now.
 * @param device the device.
 * @param stream the stream.
 * @param function called once, on a thread of the library or of the driver. It must not call the
 *        library or wait for device work.
 * @param user passed to function.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device or function is NULL, or stream is not a live stream of it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(); nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_host_callback(memopt_device *device, memopt_stream stream,
                                                     void (*function)(void *user), void *user);

/**
 * @brief Creates an event.
 * @param device the device.
 * @param timing 1 if memopt_event_elapsed() will use the event, else 0 (cheaper).
 * @param[out] out_event the event; destroy it with memopt_event_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or timing is not 0 or 1.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_create(memopt_device *device, int32_t timing,
                                             memopt_event **out_event);

/**
 * @brief Destroys an event. Work that waits for it still waits as before.
 * @param event the event; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; the event is destroyed anyway. On a lost device
 *         the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_destroy(memopt_event *event);

/**
 * @brief Records an event behind the work that is on a stream now. A later record replaces this
 *        one.
 * @param event the event.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL or stream is not a live stream of its device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(). The event keeps its earlier record.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_record(memopt_event *event, memopt_stream stream);

/**
 * @brief Asks whether an event's last record is complete, without waiting.
 * @param event the event.
 * @retval MEMOPT_OK the record is complete, or the event was never recorded.
 * @retval MEMOPT_NOT_READY the record is not complete. The last error is not written.
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed or the device is lost; see
 *         memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_query(memopt_event *event);

/**
 * @brief Waits until an event's last record is complete.
 * @param event the event.
 * @retval MEMOPT_OK the record is complete, or the event was never recorded.
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed, the
 *         device is lost or device memory was misused; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_sync(memopt_event *event);

/**
 * @brief Measures the time between the records of two events.
 * @param start the earlier event, created with timing.
 * @param end the later event, created with timing.
 * @param[out] out_seconds the time in seconds.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an event has no timing or was never recorded.
 * @retval MEMOPT_NOT_READY a record is not complete yet.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_elapsed(memopt_event *start, memopt_event *end,
                                              double *out_seconds);

/**
 * @brief Copies bytes in stream order. Source and destination are each device or host memory.
 *
 * The addresses determine the direction, also between two GPUs of one driver. Mapped memory
 * (expandable segments) of another GPU can be copied while both are open, if the driver says that
 * they can be peers. The ranges must not overlap. A copy from or to pageable
 * host memory may run before the call returns. The host range must stay valid until the copy is
 * done.
 * @param device the device.
 * @param destination the target: device, page-locked or pageable host memory.
 * @param source the source: device, page-locked or pageable host memory.
 * @param bytes the number of bytes; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, a pointer is NULL while bytes is not 0, the
 *         ranges overlap, or stream is not a live stream of the device.
 * @retval MEMOPT_UNSUPPORTED an end is mapped memory of a GPU that cannot be a peer.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(); nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_copy(memopt_device *device, void *destination, const void *source,
                                     uint64_t bytes, memopt_stream stream);

/**
 * @brief Copies as memopt_copy() does and waits for the stream: the call for a loss or another
 *        scalar that the host reads from the device.
 * @param device the device.
 * @param destination as for memopt_copy().
 * @param source as for memopt_copy().
 * @param bytes the number of bytes; with 0 it only waits.
 * @param stream the stream.
 * @retval MEMOPT_OK the bytes are there.
 * @retval MEMOPT_INVALID_ARGUMENT as for memopt_copy().
 * @retval MEMOPT_UNSUPPORTED as for memopt_copy(), and for every call with the device of a parent
 *         process.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST a
 *         host allocation or the driver failed, device memory was misused, or the device is lost;
 *         see memopt_last_error(). No copy is under way any more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_copy_sync(memopt_device *device, void *destination,
                                          const void *source, uint64_t bytes, memopt_stream stream);

/**
 * @brief Sets every byte of a range of device memory, in stream order.
 * @param device the device.
 * @param destination device memory.
 * @param value the byte, 0 to 255.
 * @param bytes the number of bytes; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, destination is NULL while bytes is not 0, value
 *         is out of range, or stream is not a live stream of the device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(); nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fill(memopt_device *device, void *destination, int32_t value,
                                     uint64_t bytes, memopt_stream stream);

/**
 * @brief Allocates page-locked host memory: aligned to a page, in whole pages.
 * @param device the device whose copies will use it.
 * @param bytes the number of bytes, at least 1.
 * @param[out] out_pointer the memory; free it with memopt_host_free().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is 0.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY the system or the driver has no memory left.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_alloc(memopt_device *device, uint64_t bytes,
                                           void **out_pointer);

/**
 * @brief Frees page-locked host memory. The caller ensures that no copy uses it any more.
 * @param device the device that it was allocated with.
 * @param pointer the memory from memopt_host_alloc(); NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, or pointer is not a page-locked allocation of
 *         this device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_free(memopt_device *device, void *pointer);

/**
 * @brief Page-locks the caller's host memory, so that copies from and to it are asynchronous.
 * @param device the device.
 * @param pointer the memory; any alignment (the system locks whole pages).
 * @param bytes the number of bytes, at least 1.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, bytes is 0, part of the range is not mapped,
 *         or the range overlaps memory that is already page-locked.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed, or the system refuses to lock the
 *         memory.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_register(memopt_device *device, void *pointer, uint64_t bytes);

/**
 * @brief Undoes memopt_host_register().
 * @param device the device.
 * @param pointer the address given to memopt_host_register().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or pointer is NULL, or pointer is not registered.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_unregister(memopt_device *device, void *pointer);

MEMOPT_END_DECLS

#endif /* MEMOPT_DEVICE_H */
