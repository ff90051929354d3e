/**
 * @file device.h
 * @brief Devices, streams, events, copies and page-locked host memory.
 *
 * A device is opened by name: "cpu", "cuda:0", "hip:1". On "cpu", device memory is host memory of a
 * settable capacity that is reserved, mapped and unmapped as on a GPU; a program that fits there
 * fits a card of that size.
 *
 * **Streams.** A ::memopt_stream is the driver's own handle (`CUstream`, `cudaStream_t`,
 * `hipStream_t`) on a GPU; NULL is the device's default stream. Work on one stream runs in order;
 * streams do not wait for each other unless told to (NULL included: it never synchronises
 * implicitly, except with blocking streams that others made on a GPU). On "cpu" the NULL stream
 * runs on the calling thread before the call returns and other streams run on a worker each.
 *
 * **Threads.** Every function here may be called from any thread at any time, except that a handle
 * must not be in use by another call while it is destroyed or closed.
 */
#ifndef MEMOPT_DEVICE_H
#define MEMOPT_DEVICE_H

#include <memopt/base.h>

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
    /** As soon as possible: the NULL stream inline, the others on a worker thread each. */
    MEMOPT_STREAM_ORDER_EAGER = 0,
    /**
     * For tests: no work runs before something waits for it (the latest legal moment), every other
     * stream that may legally run first does, freed memory is poisoned, and work that touches
     * freed memory makes the next synchronising call fail with #MEMOPT_DEVICE_FAULT. The NULL
     * stream is asynchronous too, as on a GPU.
     */
    MEMOPT_STREAM_ORDER_ADVERSARIAL = 1
};

/** @brief How to open a device; zero means the default. */
typedef struct memopt_device_options {
    size_t struct_size; /**< sizeof(memopt_device_options). */
    /** Device memory in bytes ("cpu" only). 0: the machine's physical memory. It is rounded down to
     * the granularity and must be at least one granule. */
    uint64_t capacity;
    /** Threads that run kernels ("cpu" only), at most 1024. 0: what the environment variable
     * MEMOPT_NUM_THREADS says, else OMP_NUM_THREADS, else one per processor that the process may
     * use, by its affinity mask and its control group's CPU quota (rounded up). */
    uint32_t threads;
    uint32_t stream_order; /**< A ::memopt_stream_order ("cpu" only). */
    uint64_t seed;         /**< Seed of the adversarial order's choices. */
    uint64_t granularity;  /**< Bytes of a page ("cpu" only): a power of two ≥ 4096. 0: 2 MiB. */
} memopt_device_options;

/** @brief Initialiser of ::memopt_device_options. */
#define MEMOPT_DEVICE_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_device_options), 0, 0, 0, 0, 0                                               \
    }

/** @brief What a device is and can do. */
typedef struct memopt_device_properties {
    size_t struct_size; /**< Set by the caller. */
    char name[64];      /**< As the driver calls it. */
    char backend[8];    /**< "cpu", "cuda" or "hip". */
    char isa[24];       /**< What kernels run as: "scalar", "avx2", "avx512", "sm_90", "gfx1030". */
    int32_t index;      /**< The number behind the colon; 0 for "cpu". */
    uint32_t threads;   /**< Kernel threads ("cpu"), else multiprocessors. */
    uint32_t warp_size; /**< Threads in lock-step: 32 or 64; 1 on "cpu". */
    uint32_t virtual_memory; /**< 1 where memory can be mapped page by page. */
    uint64_t total_memory;   /**< Bytes of device memory. */
    uint64_t granularity;    /**< Bytes of the smallest page that can be mapped. */
    /** Which form of the kernels fits. On "cpu" the instruction set that MEMOPT_ISA may name:
     * "scalar", "avx2", "avx512-base", "avx512-vbmi" or "avx512-bf16"; on a GPU the built-in image
     * ("fatbin", "ptx75", "gfx90a"), "source" where none fits and a run-time compiler must make
     * one, or "". */
    char kernels[24];
    /** What keeps kernels from a better form ("cpu"), such as "avx512-base needs avx512f, which
     * this machine lacks" or "MEMOPT_ISA=avx2; this machine has avx512-bf16"; "" where nothing
     * does. */
    char limit[160];
} memopt_device_properties;

/** @brief Device and pinned memory in bytes. */
typedef struct memopt_memory_info {
    size_t struct_size;   /**< Set by the caller. */
    uint64_t total;       /**< Device memory in all. */
    uint64_t free;        /**< Device memory that could be allocated now, by anyone. */
    uint64_t used;        /**< Device memory that this handle holds (mapped or allocated). */
    uint64_t used_peak;   /**< The most that this handle has held. */
    uint64_t reserved_va; /**< Virtual addresses that this handle has reserved. */
    uint64_t pinned;      /**< Page-locked host bytes that this handle allocated. */
    uint64_t pinned_peak; /**< The most page-locked host bytes that this handle had allocated. */
    uint64_t registered;  /**< Host bytes of the caller registered as page-locked. */
} memopt_memory_info;

/**
 * @brief The number of devices of a back end.
 * @param backend "cpu" (always 1), "cuda" or "hip".
 * @param[out] out_count how many there are; 0 is a success.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND there is no such back end; the message names those there are.
 * @retval MEMOPT_UNSUPPORTED this build of the library was made without that back end.
 * @retval MEMOPT_DRIVER_MISSING its driver cannot be loaded; memopt_last_error() says why.
 * @retval MEMOPT_DRIVER_ERROR its driver does not start, or refused.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_count(const char *backend, int32_t *out_count);

/** @brief What a back end's driver can do; bits of memopt_backend_info::features. */
typedef uint32_t memopt_backend_feature;

/** @brief The values of ::memopt_backend_feature. */
enum {
    MEMOPT_BACKEND_VIRTUAL_MEMORY = 1,  /**< The driver maps memory page by page. */
    MEMOPT_BACKEND_HOST_FUNCTIONS = 2,  /**< Functions of the host run in stream order. */
    MEMOPT_BACKEND_GRAPH_CAPTURE = 4,   /**< Streams can be captured into graphs. */
    MEMOPT_BACKEND_RUNTIME_COMPILER = 8 /**< Kernels can be compiled for a device with no image. */
};

/** @brief What was found of a back end. Lists are separated by ", "; texts are cut where they do
 * not fit. */
typedef struct memopt_backend_info {
    size_t struct_size; /**< Set by the caller. */
    /** #MEMOPT_OK: devices can be opened, if there are any. Otherwise what opening one returns:
     * #MEMOPT_UNSUPPORTED (left out of this build), #MEMOPT_DRIVER_MISSING or
     * #MEMOPT_DRIVER_ERROR. */
    memopt_status status;
    int32_t driver_code;    /**< The driver's own code of the problem; 0 if it has none. */
    int32_t driver_version; /**< As the driver counts, e.g. 12040; 0 where it is not loaded. */
    int32_t device_count;   /**< Devices. */
    uint32_t features;      /**< Bits of ::memopt_backend_feature. */
    char library[256];      /**< The driver's file that was opened; "" if none. */
    char tried[512];        /**< The names that were tried. */
    /** Why it does not work, with the loader's or driver's words; with #MEMOPT_OK: why there is no
     * device, where the system tells that, or "". */
    char problem[512];
    char missing[512];  /**< Entry points it lacks; without the required ones it is not used. */
    char targets[512];  /**< What kernels are built in for, e.g. "gfx90a, gfx1100". */
    char compiler[256]; /**< The run-time compiler's file; "" if none was found. */
} memopt_backend_info;

/**
 * @brief Tells what was found of a back end: its driver, what that lacks, the kernels built in.
 *
 * Loads the driver and the run-time compiler where that has not been done. That a driver is missing
 * is an answer, not a failure of this call: see memopt_backend_info::status.
 * @param backend "cpu", "cuda" or "hip".
 * @param[in,out] out_info struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such back end; the message names those there are.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_backend_get_info(const char *backend,
                                                 memopt_backend_info *out_info);

/**
 * @brief Opens a device.
 * @param name "cpu", "cuda:N" or "hip:N" (":N" may be left out and means 0).
 * @param options NULL for defaults.
 * @param[out] out_device the device; ended by memopt_device_close().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or an option is out of range.
 * @retval MEMOPT_UNSUPPORTED an unknown option is set, or one that this back end lacks, or this
 * build of the library was made without that back end.
 * @retval MEMOPT_NOT_FOUND no such back end or index.
 * @retval MEMOPT_DRIVER_MISSING its driver cannot be loaded.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @retval MEMOPT_DRIVER_ERROR the driver or the system refused.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_open(const char *name, const memopt_device_options *options,
                                            memopt_device **out_device);

/**
 * @brief Closes a device after waiting for all its work.
 * @param device the device; NULL is fine.
 * @retval MEMOPT_OK closed.
 * @retval MEMOPT_BUSY allocations, streams, events or page-locked memory of it are left; the
 * message counts them; nothing is changed.
 * @retval MEMOPT_DEVICE_FAULT closed, but misuse of device memory had been found (adversarial
 * order).
 * @retval MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR closed, but waiting for the work said so, for the
 * first time.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_close(memopt_device *device);

/**
 * @brief What a device is and can do.
 * @param device the device.
 * @param[in,out] out_properties struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_get_properties(memopt_device *device,
                                                      memopt_device_properties *out_properties);

/**
 * @brief Changes how many threads run kernels on a "cpu" device. Results are the same bits with any
 * number.
 *
 * Waits for a kernel that is running on several threads; the next one has the new number, also on
 * streams that have work. memopt_device_get_properties() tells it.
 * @param device a "cpu" device.
 * @param threads from 1 to 1024, the calling thread included; 0: as many as by default (see
 * memopt_device_options::threads), looked up anew.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, or threads is above 1024; nothing is changed.
 * @retval MEMOPT_UNSUPPORTED the device is a GPU.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_set_threads(memopt_device *device, uint32_t threads);

/**
 * @brief Device and page-locked memory: total, free, this handle's.
 * @param device the device.
 * @param[in,out] out_info struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_DRIVER_ERROR the driver refused.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_get_memory_info(memopt_device *device,
                                                       memopt_memory_info *out_info);

/**
 * @brief Waits for all work on every stream of the device that this handle knows, NULL included.
 * @param device the device.
 * @retval MEMOPT_OK all done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL.
 * @retval MEMOPT_DEVICE_FAULT misuse of device memory was found; the message names the operation.
 * @retval MEMOPT_DRIVER_ERROR or #MEMOPT_DEVICE_LOST as the driver says.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_device_sync(memopt_device *device);

/**
 * @brief Makes a stream that runs beside all others.
 * @param device the device.
 * @param[out] out_stream the stream; ended by memopt_stream_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_create(memopt_device *device, memopt_stream *out_stream);

/**
 * @brief Ends a stream after waiting for its work. The allocators, optimizers and offloaders of
 * this device handle take leave of it as in memopt_stream_release_sync().
 * @param device the stream's device.
 * @param stream the stream; NULL is fine and does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the wait said so; the stream
 *         is gone all the same. On a device that was known to be lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_destroy(memopt_device *device, memopt_stream stream);

/**
 * @brief Says that a stream which others made is about to be destroyed, so that the library does
 *        not use it again. Waits for its work.
 *
 * For streams that are not of memopt_stream_create(): call it before `cudaStreamDestroy`,
 * `hipStreamDestroy` or the like. A driver may give a new stream the handle of an old one, and may
 * crash on one that is gone; without this call an allocator that was given the stream knows
 * neither. memopt_stream_destroy() does the same for its stream.
 *
 * All allocators, optimizers and offloaders of this device handle take leave of the stream: cached
 * memory of it is for any stream, and what it was recorded for is done. If the handle is used again
 * it is a new stream to them.
 * @param device the device.
 * @param stream the stream, alive, not NULL. Nothing else is called with it meanwhile.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or stream is NULL, or stream is not a live stream (as far
 *         as the back end can tell).
 * @retval MEMOPT_BUSY the stream records a graph; nothing is changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT the wait said so. The
 *         library does not use the stream again all the same. After #MEMOPT_DRIVER_ERROR its memory
 *         is given out again only when the whole device has been waited for, which allocators do
 *         under memory pressure, when they are trimmed and at their end. On a device that is known
 *         to be lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_release_sync(memopt_device *device, memopt_stream stream);

/**
 * @brief Waits for all work that is on a stream now.
 * @param device the stream's device.
 * @param stream the stream; NULL is the default stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_sync(memopt_device *device, memopt_stream stream);

/**
 * @brief Asks whether a stream's work is done, without waiting.
 * @param device the stream's device.
 * @param stream the stream.
 * @retval MEMOPT_OK it is.
 * @retval MEMOPT_NOT_READY it is not (the last error is not written).
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL or stream is not a live stream of it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_query(memopt_device *device, memopt_stream stream);

/**
 * @brief Makes later work of a stream wait for an event's last record.
 * @param device the device.
 * @param stream the stream that waits.
 * @param event the event; one never recorded is already complete.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a handle is NULL or of another device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                                  memopt_event *event);

/**
 * @brief Calls a function of the host when a stream's work so far is done, in stream order.
 * @param device the device.
 * @param stream the stream.
 * @param function called once, on a thread of the library or the driver. It must not call the
 *        library, and must not wait for device work.
 * @param user handed to function.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device or function is NULL, or stream is not a live stream of it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_stream_host_callback(memopt_device *device, memopt_stream stream,
                                                     void (*function)(void *user), void *user);

/**
 * @brief Makes an event.
 * @param device the device.
 * @param timing 1 where memopt_event_elapsed() will be asked, else 0 (cheaper).
 * @param[out] out_event the event; ended by memopt_event_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or timing is not 0 or 1.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_create(memopt_device *device, int32_t timing,
                                             memopt_event **out_event);

/**
 * @brief Ends an event; work that waits for it is not disturbed.
 * @param event the event; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DRIVER_ERROR as told; the event is gone all the same. On a lost device it
 *         succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_destroy(memopt_event *event);

/**
 * @brief Marks the end of a stream's work so far. A later record replaces this one.
 * @param event the event.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL or stream is not a live stream of its device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; the event is as it was.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_record(memopt_event *event, memopt_stream stream);

/**
 * @brief Asks whether an event's last record is complete, without waiting.
 * @param event the event.
 * @retval MEMOPT_OK it is, or it was never recorded.
 * @retval MEMOPT_NOT_READY it is not (the last error is not written).
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_query(memopt_event *event);

/**
 * @brief Waits until an event's last record is complete.
 * @param event the event.
 * @retval MEMOPT_OK it is, or it was never recorded.
 * @retval MEMOPT_INVALID_ARGUMENT event is NULL.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_sync(memopt_event *event);

/**
 * @brief The time between two complete records.
 * @param start the earlier event, made with timing.
 * @param end the later event, made with timing.
 * @param[out] out_seconds the time in seconds.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an event has no timing or was never recorded.
 * @retval MEMOPT_NOT_READY one is not complete yet.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_event_elapsed(memopt_event *start, memopt_event *end,
                                              double *out_seconds);

/**
 * @brief Copies bytes between any two of device and host memory, in stream order.
 *
 * The direction is told by the pointers. The ranges must not overlap. A copy from or to pageable
 * host memory may run before the call returns; the host range must stay valid until the copy is
 * done.
 * @param device the device.
 * @param destination where to; device, page-locked or pageable host memory.
 * @param source where from.
 * @param bytes how many; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, a pointer is NULL while bytes is not 0, the
 * ranges overlap, or stream is not a live stream of it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_copy(memopt_device *device, void *destination, const void *source,
                                     uint64_t bytes, memopt_stream stream);

/**
 * @brief Sets every byte of a range of device memory, in stream order.
 * @param device the device.
 * @param destination device memory.
 * @param value the byte, 0 to 255.
 * @param bytes how many; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, destination is NULL while bytes is not 0, value
 * is out of range, or stream is not a live stream of it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fill(memopt_device *device, void *destination, int32_t value,
                                     uint64_t bytes, memopt_stream stream);

/**
 * @brief Allocates page-locked host memory, aligned to a page and counted in whole pages.
 * @param device the device whose copies will use it.
 * @param bytes how many, at least 1.
 * @param[out] out_pointer the memory; ended by memopt_host_free().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is 0.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY the system or the driver has none left.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_alloc(memopt_device *device, uint64_t bytes,
                                           void **out_pointer);

/**
 * @brief Frees page-locked host memory. The caller has made sure that no copy uses it any more.
 * @param device the device it was allocated with.
 * @param pointer as given by memopt_host_alloc(); NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device is NULL, or pointer is none of its page-locked
 * allocations.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_free(memopt_device *device, void *pointer);

/**
 * @brief Page-locks host memory of the caller, so that copies from and to it are asynchronous.
 * @param device the device.
 * @param pointer the memory; any alignment (the system locks whole pages).
 * @param bytes how many, at least 1.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, bytes is 0, part of the range is not mapped
 * memory, or it overlaps one that is page-locked already.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the bookkeeping, or it cannot be locked.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_register(memopt_device *device, void *pointer, uint64_t bytes);

/**
 * @brief Undoes memopt_host_register().
 * @param device the device.
 * @param pointer as given there.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or pointer is NULL, or pointer is not registered.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_host_unregister(memopt_device *device, void *pointer);

MEMOPT_END_DECLS

#endif /* MEMOPT_DEVICE_H */
