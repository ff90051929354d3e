/**
 * @file offload.h
 * @brief Save-on-CPU: moves device values to page-locked host memory between forward and backward.
 *
 * Copies run on two streams of the offloader, one to the host and one back. Events order them with
 * the caller's streams. No call waits for the device or for a disk unless its description says so.
 *
 *     forward:   for each layer: compute the activation on the stream
 *                                memopt_offloader_pack(activation)          it is the ticket's now
 *     backward:  for each layer, last first:
 *                    memopt_offloader_prefetch(ticket of the layer below)
 *                    memopt_offloader_unpack(ticket of this layer)          valid in stream order
 *                    ... backward of the layer, reads it ...
 *                    memopt_offloader_release(ticket of this layer)
 *
 * **Order.** A copy to the host starts after the work that was on the packing stream at the call. A
 * copy back starts after the work that was, at the call, on the stream that owns the target memory;
 * work enqueued after a prefetch overlaps with the copy. Streams that the caller passes must exist
 * until the ticket is released.
 *
 * **Host memory** has the size of the values, rounded up to a page; values below 128 KiB share pages.
 * It is reused for later values and never exceeds the limit. It is page-locked, as far as pinned_limit
 * and the system allow; the rest is pageable. Copies of pageable memory give the same bits and are
 * slower, and a GPU's driver may let the call that enqueues them wait. If the system refuses to
 * page-lock, one warning is logged, and the offloader asks for less from then on, until
 * memopt_offloader_trim_sync().
 *
 * **Disk.** With ::MEMOPT_OVERFLOW_SPILL the oldest values move on from the host to a file. Host
 * functions on a third stream write and read it ahead of need. If the driver has no host functions
 * (#MEMOPT_BACKEND_HOST_FUNCTIONS), and on "cpu" with #MEMOPT_OFFLOADER_NULL_STREAM, the calling
 * thread does it. A value stays on the host until its write has succeeded, and a checksum verifies
 * what is read. So a full or broken disk loses only values that it had already accepted, and never
 * returns wrong bytes.
 *
 * **Fixed values.** memopt_offloader_reserve() gives host memory for a value that the host fills, and
 * memopt_offloader_map_file() makes a part of a file a value. They are unpacked again and again, as
 * frozen weights are, and the spilling of others leaves them where they are.
 *
 * **Graphs.** While the stream that the caller passes (for a prefetch: the packing stream) records
 * a graph, pack, prefetch, unpack, rewrite and the waits return #MEMOPT_UNSUPPORTED and leave the capture as
 * it is. Reason: a replay would copy from and to host memory that other values use by then.
 *
 * **Threads.** One thread at a time per offloader. pack and unpack may run on different threads.
 */
#ifndef MEMOPT_OFFLOAD_H
#define MEMOPT_OFFLOAD_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief A store of offloaded values. */
typedef struct memopt_offloader memopt_offloader;

/** @brief A packed value. 0 is never a ticket. An offloader never reuses a ticket. */
typedef uint64_t memopt_ticket;

/** @brief What to do if a value does not fit below the host limit. */
typedef uint32_t memopt_overflow;

/** @brief The values of ::memopt_overflow. */
enum {
    MEMOPT_OVERFLOW_KEEP = 0, /**< Keep it on the device. */
    /** Wait for host memory that released tickets will give back. If no released ticket has memory
     * to give back, fail as with ::MEMOPT_OVERFLOW_FAIL. */
    MEMOPT_OVERFLOW_WAIT = 1,
    MEMOPT_OVERFLOW_FAIL = 2, /**< Fail with #MEMOPT_LIMIT_REACHED; nothing changed. */
    /** Move the oldest values on the host to the disk. If the disk has no room either (disk_limit),
     * or the value is larger than the host limit, keep the new value on the device. */
    MEMOPT_OVERFLOW_SPILL = 3
};

/** @brief Flags of ::memopt_offloader_options. */
typedef uint32_t memopt_offloader_flags;

/** @brief The values of ::memopt_offloader_flags. */
enum {
    /** Copies run on the device's NULL stream instead of two streams of the offloader. On "cpu"
     * they are complete when the call returns and need no threads: for callers that do not use
     * streams. On a GPU nothing overlaps. */
    MEMOPT_OFFLOADER_NULL_STREAM = 1
};

/** @brief How to make an offloader; zero means the default. */
typedef struct memopt_offloader_options {
    size_t struct_size;  /**< sizeof(memopt_offloader_options). */
    uint64_t host_limit; /**< The most host bytes to hold, cached and pageable ones included; 0: no
                              limit. */
    uint64_t min_bytes;  /**< Values below this size stay on the device and use no host memory. */
    uint32_t overflow;   /**< A ::memopt_overflow. */
    uint32_t flags;      /**< Bits of ::memopt_offloader_flags. */
    /** The place for values of ::MEMOPT_OVERFLOW_SPILL, which needs it and a host_limit: a
     * directory, or the name of a file to create. The file is unlinked before the call returns, so
     * nothing remains however the process ends. Copied. */
    const char *disk_path;
    uint64_t disk_limit; /**< The largest size of that file in bytes, in blocks of 4096; 0: no
                              limit. */
    uint64_t
        pinned_limit; /**< The most page-locked bytes to hold; what is more, up to host_limit, is
                                pageable. 0: as many as the system allows. */
} memopt_offloader_options;

/** @brief Initialiser of ::memopt_offloader_options. */
#define MEMOPT_OFFLOADER_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_offloader_options), 0, 0, 0, 0, NULL, 0, 0                                   \
    }

/**
 * @brief Creates an offloader with its copy streams.
 * @param device the device.
 * @param allocator the allocator of packed and unpacked blocks. It must be of the same device and
 *        must outlive the offloader.
 * @param options NULL for defaults.
 * @param[out] out_offloader the offloader; destroy it with memopt_offloader_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an option is out of range, or the allocator is
 *         of another device.
 * @retval MEMOPT_IO_ERROR no file can be created at disk_path.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_create(memopt_device *device, memopt_allocator *allocator,
                                                 const memopt_offloader_options *options,
                                                 memopt_offloader **out_offloader);

/**
 * @brief Destroys an offloader after waiting for its copies.
 * @param offloader the offloader; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY some tickets are not released; the message counts them. Nothing changed.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR waiting for pending work
 *         failed; the handle, its streams and its host memory are destroyed anyway. If the device
 *         was already known to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_destroy(memopt_offloader *offloader);

/**
 * @brief Releases every ticket, then destroys the offloader as memopt_offloader_destroy() does.
 *
 * Device memory of the tickets is freed in the order of the streams on which they were unpacked.
 * @param offloader the offloader; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR waiting for pending work
 *         failed; the handle, its streams and its host memory are destroyed anyway. If the device
 *         was already known to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_destroy_force(memopt_offloader *offloader);

/**
 * @brief Packs a block of the offloader's allocator and takes ownership of it. The block is copied
 *        to the host after the stream's work so far and freed when the copy is complete.
 *
 * With ::MEMOPT_OVERFLOW_WAIT the call may wait for copies of released tickets; with
 * ::MEMOPT_OVERFLOW_SPILL also until the disk has written an older value; and a failure waits for a copy that
 * had begun. Otherwise it does not wait.
 * @param offloader the offloader.
 * @param data a live block's first byte. On success the block belongs to the ticket.
 * @param bytes the number of its bytes to keep, at least 1 and at most the block's size.
 * @param stream the stream whose work so far wrote it.
 * @param[out] out_ticket the ticket; release it with memopt_offloader_release().
 * @retval MEMOPT_OK enqueued, or kept on the device (min_bytes, or overflow with the keep policy).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, data is not a live block, or bytes is out of
 *         range.
 * @retval MEMOPT_LIMIT_REACHED the policy does not allow more host memory, or 2^24 tickets are
 *         live; the message has the numbers.
 * @retval MEMOPT_IO_ERROR there is no host memory, and the disk could not be written. The message
 *         and memopt_last_error_info() have the system's reason. All older values stay where they
 *         were.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST a host allocation, the driver or
 *         the device failed; see memopt_last_error(). After every failure the caller still owns the block, and
 *         its contents are unchanged.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_pack(memopt_offloader *offloader, void *data,
                                               uint64_t bytes, memopt_stream stream,
                                               memopt_ticket *out_ticket);

/**
 * @brief Makes later work of a stream wait until a ticket's copy to the host is done.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_wait_packed(memopt_offloader *offloader,
                                                      memopt_ticket ticket, memopt_stream stream);

/**
 * @brief Asks whether a ticket's copy to the host is done, without waiting.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @retval MEMOPT_OK the copy is complete, or there is none to make.
 * @retval MEMOPT_NOT_READY the copy is pending. The last error is not written.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_query_packed(memopt_offloader *offloader,
                                                       memopt_ticket ticket);

/**
 * @brief Starts the copy back of a value, so that a later unpack does not wait.
 *
 * Device memory is allocated in the order of the stream that packed the value. The copy starts when
 * that stream's work so far is complete: call this before enqueuing the work that is to overlap
 * with it. The disk is read at once, into host memory. If no host memory is available, nothing
 * changes and the call succeeds.
 * @param offloader the offloader.
 * @param ticket the ticket. If its value is on the device or already being copied back, the call
 *        does nothing.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error(); the value
 *         is still on the host.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT as for memopt_offloader_prefetch_into().
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_prefetch(memopt_offloader *offloader,
                                                   memopt_ticket ticket);

/**
 * @brief Returns a value on the device, valid in the order of a stream. It may be called again,
 *        also for other streams, and returns the same memory until release. Work on every stream
 *        that the value was unpacked on may use the memory until memopt_offloader_release() is
 *        called.
 *
 * For a value on the disk, the call waits until it has been read. If there is no host memory to
 * read it into, the call also waits until it has been copied.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream that will use it.
 * @param[out] out_data device memory that belongs to the ticket.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error(); the value
 *         is still on the host.
 * @retval MEMOPT_IO_ERROR the disk could not be read; the call may be repeated.
 * @retval MEMOPT_CORRUPT the disk returned other bytes than were written; the call may be repeated.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph, or the value is on the disk and this
 *         process is a child of the one that stored it; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_unpack(memopt_offloader *offloader, memopt_ticket ticket,
                                                 memopt_stream stream, void **out_data);

/**
 * @brief Starts copying a value into the caller's device memory.
 *
 * The copy starts after the stream's work so far. It is complete in the order of the streams for
 * which memopt_offloader_wait_unpacked() is called. Until then nothing may use the memory.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param destination device memory for all of the ticket's bytes.
 * @param bytes the size of destination, at least the ticket's size.
 * @param stream the stream in whose order destination is free.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is too small.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_LIMIT_REACHED the value is on the disk, and there is no host memory to read it
 *         into; nothing changed.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT an earlier copy of the ticket could not be read
 *         (memopt_offloader_wait_unpacked() reports it too); nothing was started.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY a host allocation or the driver failed;
 *         see memopt_last_error().
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_prefetch_into(memopt_offloader *offloader,
                                                        memopt_ticket ticket, void *destination,
                                                        uint64_t bytes, memopt_stream stream);

/**
 * @brief Makes later work of a stream wait for the copies of a ticket into the caller's memory. For
 *        a value on the disk the call itself waits until it has been read.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT the value could not be read from the disk: the contents
 *         of the memory are undefined. The stream waits all the same. Reported once.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_wait_unpacked(memopt_offloader *offloader,
                                                        memopt_ticket ticket, memopt_stream stream);

/**
 * @brief Releases a ticket. Its device memory is freed behind the work so far of the stream and of
 *        the streams that it was unpacked on. Its host memory is cached for the next value of that
 *        size; it is given back if the cache would otherwise exceed the limit or the peak of the
 *        payload.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream that used the unpacked value last.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket, for example already released.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; the ticket still exists.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_release(memopt_offloader *offloader, memopt_ticket ticket,
                                                  memopt_stream stream);

/**
 * @brief Releases several tickets in their order, each as memopt_offloader_release() does.
 * @param offloader the offloader.
 * @param tickets the tickets; may be NULL if count is 0.
 * @param count the number of tickets.
 * @param stream the stream that used the unpacked values last.
 * @param[out] out_released the number of released tickets. Also written if one fails: then the
 *        number of tickets before it.
 * @retval MEMOPT_OK all are released.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL; out_released is not written.
 * @retval MEMOPT_NOT_FOUND, MEMOPT_DRIVER_ERROR the status of the first ticket that could not be
 *         released. This ticket and the later ones are unchanged.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_release_many(memopt_offloader *offloader,
                                                       const memopt_ticket *tickets, uint64_t count,
                                                       memopt_stream stream,
                                                       uint64_t *out_released);

/**
 * @brief Arguments of a pack or an unpack of memory that the caller owns. The caller keeps the struct
 *        from one value to the next and writes only the fields that change: the cheapest way if each
 *        argument of a call costs time, as in bindings for other languages.
 *
 * One request serves both directions. It belongs to the caller; the library does not keep its
 * address.
 *
 *     memopt_offloader_request request = MEMOPT_OFFLOADER_REQUEST_INIT;
 *     request.offloader = offloader;
 *     request.stream = stream;
 *     for each value: request.data, request.bytes = the value
 *                     memopt_offloader_request_pack(&request)         request.ticket is its ticket
 */
typedef struct memopt_offloader_request {
    size_t struct_size;          /**< sizeof(memopt_offloader_request). */
    memopt_offloader *offloader; /**< The offloader. */
    memopt_stream stream; /**< The stream whose work so far wrote the value, or that will use it. */
    void *data;           /**< Device memory: the value to pack, which is only read, or the target
                               of an unpack. */
    uint64_t bytes;       /**< The number of bytes. */
    memopt_ticket ticket; /**< Written by a pack, read by an unpack. */
    uint64_t kept;        /**< Written by a pack: 1: the value was not copied; else 0. */
} memopt_offloader_request;

/** @brief Initialiser of ::memopt_offloader_request. */
#define MEMOPT_OFFLOADER_REQUEST_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_offloader_request), NULL, NULL, NULL, 0, 0, 0                                \
    }

/**
 * @brief Packs device memory that the caller continues to own, for example a framework's tensor.
 *
 * The caller must not overwrite or free the memory before the copy is complete. Either enqueue
 * memopt_offloader_wait_packed() on the stream that will do so, or keep the memory until
 * memopt_offloader_query_packed() returns #MEMOPT_OK.
 * @param[in,out] request offloader, data, bytes (at least 1) and stream are read. On success ticket
 *        and kept are written. kept 1: the value was not copied (min_bytes or overflow); the caller
 *        must keep it unchanged until memopt_offloader_release(), and then free it behind the
 *        streams that unpacked it. 0: it was copied.
 * @retval MEMOPT_OK the copy is enqueued, or the value is kept.
 * @retval MEMOPT_INVALID_ARGUMENT request, its offloader or its data is NULL, bytes is 0, or
 *         struct_size is too small.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_IO_ERROR, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as
 *         for memopt_offloader_pack(); nothing changed.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph, or the request is larger than this library
 *         knows and its additional bytes are not zero; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_request_pack(memopt_offloader_request *request);

/**
 * @brief Copies a value into the caller's device memory, in the order of a stream.
 *
 * The copy starts after the stream's work so far; later work of the stream runs after the copy. For
 * a value on the disk the call waits as memopt_offloader_unpack() does. On failure the contents of
 * the memory are undefined.
 * @param request offloader, ticket, stream, data (device memory that is free in the stream's order)
 *        and bytes (its size) are read. Nothing is written.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT request, its offloader or its data is NULL, bytes is less than
 *         the ticket's, or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY a host allocation or the driver failed;
 *         see memopt_last_error().
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT as for memopt_offloader_unpack().
 * @retval MEMOPT_UNSUPPORTED as for memopt_offloader_unpack(), or the request is larger than this
 *         library knows and its additional bytes are not zero.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_request_unpack(const memopt_offloader_request *request);

/** @brief What the host does with the memory of a value. */
typedef uint32_t memopt_host_access;

/** @brief The values of ::memopt_host_access. */
enum {
    MEMOPT_HOST_READ = 1, /**< Reads. Copies to the device may run meanwhile. */
    MEMOPT_HOST_WRITE = 2 /**< Reads and writes. No copy runs meanwhile. */
};

/**
 * @brief Makes a value of page-locked host memory that the host fills: weights read from a file, for
 *        example. The value stays there until release: ::MEMOPT_OVERFLOW_SPILL never moves it to the
 *        disk, and min_bytes has no effect on it.
 *
 * The calling thread has the access of #MEMOPT_HOST_WRITE to the memory. It ends with
 * memopt_offloader_host_end(); after it the value can be unpacked and prefetched like a packed one,
 * as often as needed. memopt_offloader_prefetch() allocates its device memory in the order of a
 * stream of the offloader. With every policy the call may wait for copies of released tickets, and
 * with ::MEMOPT_OVERFLOW_SPILL for the disk.
 * @param offloader the offloader.
 * @param bytes the number of bytes, at least 1.
 * @param[out] out_ticket the ticket; release it with memopt_offloader_release().
 * @param[out] out_host the memory, with undefined contents, aligned to 64 bytes. It belongs to the
 *        ticket and is valid until its release; use it only during an access.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is 0.
 * @retval MEMOPT_LIMIT_REACHED the value does not fit below host_limit, or 2^24 tickets are live;
 *         the message has the numbers.
 * @retval MEMOPT_IO_ERROR an older value could not be written to the disk.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST a
 *         host allocation, the driver or a copy that was waited for failed; see memopt_last_error().
 *         There is no ticket then.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_reserve(memopt_offloader *offloader, uint64_t bytes,
                                                  memopt_ticket *out_ticket, void **out_host);

/**
 * @brief Makes a part of a file a value, without a copy of it: the file is the store. Each copy to
 *        the device reads it as a value on the disk is read.
 *
 * The file is only read. It may be unlinked meanwhile; its bytes must not change. The first read
 * decides what they are, and each later read compares. Values of one file share its descriptor.
 * Reads need host memory for the time of the copy, below host_limit; see memopt_offloader_unpack().
 * @param offloader the offloader, with any policy.
 * @param path the name of a regular file. Copied.
 * @param offset where the value begins in the file, in bytes.
 * @param bytes its size, at least 1.
 * @param[out] out_ticket the ticket; release it with memopt_offloader_release(). A copy of it
 *        returns #MEMOPT_IO_ERROR where the file has become too short or cannot be read, and
 *        #MEMOPT_CORRUPT where its bytes have changed.
 * @retval MEMOPT_OK done; nothing was read.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, bytes is 0, path is not a regular file, or the
 *         file ends before the value does.
 * @retval MEMOPT_IO_ERROR the file cannot be opened; the message and memopt_last_error_info() have
 *         the system's reason.
 * @retval MEMOPT_LIMIT_REACHED 2^24 tickets are live.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(). There is no ticket after a failure.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_map_file(memopt_offloader *offloader, const char *path,
                                                   uint64_t offset, uint64_t bytes,
                                                   memopt_ticket *out_ticket);

/**
 * @brief Gives the calling thread access to the host memory of a value of memopt_offloader_reserve().
 *        Waits for the copies that write the memory; for #MEMOPT_HOST_WRITE also for those that read
 *        it.
 *
 * The access ends with memopt_offloader_host_end() or the ticket's release. Until then a rewrite and
 * a second access return #MEMOPT_BUSY; during #MEMOPT_HOST_WRITE so does each call that would begin
 * a copy of the value. Copies that begin later have what was written.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param access what the host will do.
 * @param[out] out_host the memory, which belongs to the ticket.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or access is unknown.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_BUSY the host has access already; or it wants to write, and the value is also in
 *         device memory of the ticket, which memopt_offloader_evict() frees.
 * @retval MEMOPT_UNSUPPORTED the ticket is not one of memopt_offloader_reserve(), or this process was
 *         forked from the one that opened the device.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST waiting failed; see
 *         memopt_last_error(). There is no access then.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_host(memopt_offloader *offloader, memopt_ticket ticket,
                                               memopt_host_access access, void **out_host);

/**
 * @brief Ends the access of memopt_offloader_host() or memopt_offloader_reserve(). Does not wait.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL, or the host has no access.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_host_end(memopt_offloader *offloader,
                                                   memopt_ticket ticket);

/**
 * @brief Replaces a value of memopt_offloader_reserve() by device memory of the same size: trained
 *        weights go back into the same host memory.
 *
 * The copy starts after the stream's work so far and after the copies that read the old value. Later
 * copies back have the new one. As for memopt_offloader_request_pack(), data must not be overwritten
 * or freed before memopt_offloader_wait_packed() or memopt_offloader_query_packed() says so; memory
 * that memopt_offloader_unpack() returned for the ticket may be released or evicted at once.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param data device memory with the ticket's number of bytes; it is only read.
 * @param stream the stream whose work so far wrote it.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or the device cannot use data.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_BUSY the host has access to the memory; or the value is in device memory of the
 *         ticket, and data is not that.
 * @retval MEMOPT_UNSUPPORTED the ticket is not one of memopt_offloader_reserve(), the stream records a
 *         graph, or this process was forked from the one that opened the device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed; see
 *         memopt_last_error(). The value is the old one or, if only the end of the copy could not be
 *         recorded, the new one; no copy is pending.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_rewrite(memopt_offloader *offloader, memopt_ticket ticket,
                                                  const void *data, memopt_stream stream);

/**
 * @brief Frees a ticket's device memory without releasing the ticket: the value stays on the host or
 *        on the disk, and is copied again when it is needed. The memory is freed behind the work so
 *        far of the stream and of the streams that it was unpacked on. Does nothing if there is
 *        none. Waits for a read from the disk that is under way.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream that used the unpacked value last.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_UNSUPPORTED the value was kept on the device and is nowhere else, or this process
 *         was forked from the one that opened the device.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY the memory could not be freed; see
 *         memopt_last_error(). The value is as before.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_evict(memopt_offloader *offloader, memopt_ticket ticket,
                                                memopt_stream stream);

/**
 * @brief Frees device memory of values that memopt_offloader_prefetch() brought and nobody has
 *        unpacked since, the oldest first: backward needs them last. They stay on the host, and are
 *        copied again when they are needed.
 *
 * This is what a ::memopt_pressure_callback calls, so that a prefetch never makes an allocation fail.
 * memopt_offloader_unpack() does it by itself where it has no room. A prefetch does not: while it
 * allocates, nothing is freed.
 * @param offloader the offloader. An allocation by the thread that uses it may call this; otherwise,
 *        as everywhere, one thread at a time.
 * @param bytes how many bytes are needed; as many values are freed as have them, or all.
 * @param[out] out_bytes the bytes of the values that were freed. A value that is still being read
 *        from the disk is not. The allocator reuses the memory behind the copies that fill it.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY a value could not be freed; see
 *         memopt_last_error(). It is as before.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_give_way(memopt_offloader *offloader, uint64_t bytes,
                                                   uint64_t *out_bytes);

/**
 * @brief Gives cached host memory back, and unused space at the end of the file on the disk. Waits
 *        for copies that still use the memory. The system is asked to page-lock as much as at first.
 * @param offloader the offloader.
 * @param[out] out_released bytes given back; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_trim_sync(memopt_offloader *offloader,
                                                    uint64_t *out_released);

/** @brief Statistics of an offloader. */
typedef struct memopt_offloader_stats {
    size_t struct_size;         /**< Set by the caller. */
    uint64_t tickets;           /**< Live tickets. */
    uint64_t host_bytes;        /**< Host bytes held, cached and pageable ones included. */
    uint64_t host_bytes_peak;   /**< The maximum of host_bytes. */
    uint64_t host_bytes_used;   /**< Payload bytes of live tickets on the host. */
    uint64_t kept_bytes;        /**< Payload bytes of live tickets kept on the device. */
    uint64_t copied_out_bytes;  /**< Bytes copied to the host so far. */
    uint64_t copied_back_bytes; /**< Bytes copied back so far. */
    uint64_t packs;             /**< Values packed so far. */
    uint64_t kept_small;        /**< Values kept on the device because of min_bytes. */
    uint64_t kept_overflow;     /**< Values kept on the device because of the host limit. */
    uint64_t prefetch_hits;     /**< Unpacks whose copy a prefetch had started. */
    uint64_t waits;             /**< Times a pack waited for host memory. */
    uint64_t disk_tickets;      /**< Live tickets whose value is on the disk and not on the host. */
    uint64_t disk_bytes_used;   /**< Payload bytes of those tickets. */
    /** Bytes of the file in use, in blocks of 4096, including values that are also still on the
     * host. */
    uint64_t disk_bytes;
    uint64_t disk_bytes_peak;    /**< The maximum of disk_bytes. */
    uint64_t disk_written_bytes; /**< Payload bytes written so far. */
    uint64_t disk_read_bytes;    /**< Payload bytes read back so far. */
    uint64_t disk_waits;         /**< Times a call waited for the disk. */
    uint64_t pageable_bytes;     /**< Of host_bytes, those that are not page-locked. */
} memopt_offloader_stats;

/** @brief Initialiser of ::memopt_offloader_stats. */
#define MEMOPT_OFFLOADER_STATS_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_offloader_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/**
 * @brief Reads the statistics of an offloader.
 * @param offloader the offloader.
 * @param[in,out] out_stats the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_get_stats(memopt_offloader *offloader,
                                                    memopt_offloader_stats *out_stats);

MEMOPT_END_DECLS

#endif /* MEMOPT_OFFLOAD_H */
