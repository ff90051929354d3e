/**
 * @file offload.h
 * @brief Save-on-CPU: parks device values in page-locked host memory between forward and backward.
 *
 * Copies run on two streams of the offloader's own (to the host, and back), tied to the caller's by
 * events; no call waits for the device, or for a disk, unless its line says so.
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
 * copy back starts after the work that was, at the call, on the stream whose memory it writes: what
 * is enqueued after a prefetch overlaps with it. Streams that are handed in must exist until the
 * ticket is released.
 *
 * **Host memory** is page-locked, of the size of the values (rounded to a page; values below
 * 128 KiB share pages), used again for later values, and never more than the limit.
 *
 * **Disk.** With ::MEMOPT_OVERFLOW_SPILL the oldest values go on from the host to a file. It is
 * written and read by functions of the host on a third stream, ahead of need; where the driver has
 * none (#MEMOPT_BACKEND_HOST_FUNCTIONS), and with #MEMOPT_OFFLOADER_NULL_STREAM on "cpu", by the
 * thread that calls. A value stays on the host until its write is known to have succeeded, and what
 * is read is compared with what was written, so a disk that is full or broken costs no value that
 * it had not taken, and never gives another one. In a child process after a fork values on the disk
 * cannot be read.
 *
 * **Graphs.** While the stream that is handed in (for a prefetch: the one that packed) records a
 * graph, pack, prefetch, unpack and the waits return #MEMOPT_UNSUPPORTED and leave the capture as
 * it is: a replay would copy from and to host memory that has gone to other values by then.
 *
 * **Threads.** One thread at a time per offloader; pack and unpack may be on different threads.
 */
#ifndef MEMOPT_OFFLOAD_H
#define MEMOPT_OFFLOAD_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief A store of offloaded values. */
typedef struct memopt_offloader memopt_offloader;

/** @brief A packed value; 0 is never one. Tickets are not used again within an offloader's life. */
typedef uint64_t memopt_ticket;

/** @brief What to do when a value does not fit below the host limit. */
typedef uint32_t memopt_overflow;

/** @brief The values of ::memopt_overflow. */
enum {
    MEMOPT_OVERFLOW_KEEP = 0, /**< Keep it on the device. */
    /** Wait for host memory that released tickets are about to give back; where nothing is on its
     * way, fail as with ::MEMOPT_OVERFLOW_FAIL. */
    MEMOPT_OVERFLOW_WAIT = 1,
    MEMOPT_OVERFLOW_FAIL = 2, /**< Fail with #MEMOPT_LIMIT_REACHED; nothing is changed. */
    /** Move the oldest values on the host to the disk. Where that has no room either (disk_limit),
     * or the value is larger than the host limit, keep the new one on the device. */
    MEMOPT_OVERFLOW_SPILL = 3
};

/** @brief Flags of ::memopt_offloader_options. */
typedef uint32_t memopt_offloader_flags;

/** @brief The values of ::memopt_offloader_flags. */
enum {
    /** Copies run on the device's NULL stream instead of two streams of the offloader's own. On
     * "cpu" they are done when the call returns and need no threads: for values whose owner does
     * not know streams. On a GPU nothing overlaps. */
    MEMOPT_OFFLOADER_NULL_STREAM = 1
};

/** @brief How to make an offloader; zero means the default. */
typedef struct memopt_offloader_options {
    size_t struct_size;  /**< sizeof(memopt_offloader_options). */
    uint64_t host_limit; /**< Most page-locked bytes to hold, cached ones included; 0: no limit. */
    uint64_t min_bytes;  /**< Smaller values stay on the device, and cost no host memory. */
    uint32_t overflow;   /**< A ::memopt_overflow. */
    uint32_t flags;      /**< Of ::memopt_offloader_flags. */
    /** Where ::MEMOPT_OVERFLOW_SPILL puts values, which needs it and a host_limit: a directory, or
     * the name of a file to make. The file has no name any more when the call returns, so nothing
     * is left however the process ends. Copied. */
    const char *disk_path;
    uint64_t disk_limit; /**< Most bytes of that file, in blocks of 4096; 0: no limit. */
} memopt_offloader_options;

/** @brief Initialiser of ::memopt_offloader_options. */
#define MEMOPT_OFFLOADER_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_offloader_options), 0, 0, 0, 0, NULL, 0                                      \
    }

/**
 * @brief Makes an offloader with its copy streams.
 * @param device the device.
 * @param allocator where packed blocks come from and unpacked ones go; of the same device; it must
 *        outlive the offloader.
 * @param options NULL for defaults.
 * @param[out] out_offloader the offloader; ended by memopt_offloader_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an option is out of range, or the allocator is
 *         of another device.
 * @retval MEMOPT_IO_ERROR no file can be made at disk_path.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_create(memopt_device *device, memopt_allocator *allocator,
                                                 const memopt_offloader_options *options,
                                                 memopt_offloader **out_offloader);

/**
 * @brief Ends an offloader after waiting for its copies.
 * @param offloader the offloader; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY tickets are not released; the message counts them; nothing changed.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR the wait said so; the
 * handle, its streams and its host memory are gone all the same. On a device that was known to be
 *         lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_destroy(memopt_offloader *offloader);

/**
 * @brief The same, releasing every ticket first.
 *
 * Device memory of the tickets is freed in the order of the streams that they were unpacked on.
 * @param offloader the offloader; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR the wait said so; the
 * handle, its streams and its host memory are gone all the same. On a device that was known to be
 *         lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_destroy_force(memopt_offloader *offloader);

/**
 * @brief Packs a block of the offloader's allocator and takes it over: it is copied to the host
 * after the stream's work so far and freed when the copy is done.
 *
 * With ::MEMOPT_OVERFLOW_WAIT it may wait for copies of released tickets, with
 * ::MEMOPT_OVERFLOW_SPILL also for the disk to write an older value; else it waits for nothing.
 * @param offloader the offloader.
 * @param data a live block's first byte. On success it belongs to the ticket.
 * @param bytes how many of its bytes to keep, at least 1 and at most the block's size.
 * @param stream the stream whose work so far wrote it.
 * @param[out] out_ticket the ticket; ended by memopt_offloader_release().
 * @retval MEMOPT_OK enqueued, or kept on the device (min_bytes, or overflow with the keep policy).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, data is not a live block, or bytes is out of
 *         range.
 * @retval MEMOPT_LIMIT_REACHED the host limit, by policy, or 2^24 tickets are live; the message has
 *         the numbers.
 * @retval MEMOPT_IO_ERROR there is no host memory, and the disk could not be written; the message
 *         and memopt_last_error_info() have the system's reason. All older values are where they
 *         were.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told. On failure the block is still the
 *         caller's, unchanged; the stream may have been made to wait for a copy that had begun.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_pack(memopt_offloader *offloader, void *data,
                                               uint64_t bytes, memopt_stream stream,
                                               memopt_ticket *out_ticket);

/**
 * @brief Packs device memory that stays the caller's (a framework's tensor).
 *
 * The caller must not overwrite or free it before the copy is done: enqueue
 * memopt_offloader_wait_packed() on the stream that will, or keep it until
 * memopt_offloader_query_packed() is #MEMOPT_OK.
 * @param offloader the offloader.
 * @param data device memory.
 * @param bytes how many, at least 1.
 * @param stream the stream whose work so far wrote it.
 * @param[out] out_ticket the ticket.
 * @param[out] out_kept 1 where the value was not copied (min_bytes or overflow): then the caller
 *        must keep it unchanged until memopt_offloader_release(), and free it himself behind the
 *        streams that unpacked it. Else 0.
 * @retval MEMOPT_OK as told.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is 0.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_IO_ERROR, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as
 *         told; nothing changed.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_pack_borrowed(memopt_offloader *offloader,
                                                        const void *data, uint64_t bytes,
                                                        memopt_stream stream,
                                                        memopt_ticket *out_ticket,
                                                        int32_t *out_kept);

/**
 * @brief Makes later work of a stream wait until a ticket's copy to the host is done.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_wait_packed(memopt_offloader *offloader,
                                                      memopt_ticket ticket, memopt_stream stream);

/**
 * @brief Asks whether a ticket's copy to the host is done, without waiting.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @retval MEMOPT_OK it is, or there is none to make.
 * @retval MEMOPT_NOT_READY it is not (the last error is not written).
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_query_packed(memopt_offloader *offloader,
                                                       memopt_ticket ticket);

/**
 * @brief Starts bringing a value back, so that a later unpack need not wait.
 *
 * Device memory is allocated in the order of the stream that packed the value; the copy starts when
 * that stream's work so far is done. So call it before enqueuing the work to overlap with. The disk
 * is read at once, into host memory; where there is none to be had, the value is left as it is, and
 * the call succeeds.
 * @param offloader the offloader.
 * @param ticket the ticket; one that is on the device or on its way is left as it is.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; the
 *         value is still on the host.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT as memopt_offloader_prefetch_into().
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_prefetch(memopt_offloader *offloader,
                                                   memopt_ticket ticket);

/**
 * @brief Gives a value back on the device, valid in the order of a stream. It may be asked again,
 * also for other streams, and gives the same memory until release. Work of every stream that it was
 * unpacked on may use the memory until memopt_offloader_release() is called.
 *
 * A value on the disk is waited for until it has been read; where there is no host memory to read
 * it into, until it has been copied, too.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream that will use it.
 * @param[out] out_data device memory that belongs to the ticket.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; the
 *         value is still on the host.
 * @retval MEMOPT_IO_ERROR the disk could not be read; it may be asked again.
 * @retval MEMOPT_CORRUPT the disk gave other bytes than were written; it may be asked again.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph, or the value is on the disk and this is a
 *         child of the process that stored it; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_unpack(memopt_offloader *offloader, memopt_ticket ticket,
                                                 memopt_stream stream, void **out_data);

/**
 * @brief Copies a value into device memory of the caller's, in the order of a stream.
 *
 * It starts after the stream's work so far; later work of the stream comes after it. A value on the
 * disk is waited for as in memopt_offloader_unpack(); on failure destination's contents are
 * undefined.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param destination device memory for all of the ticket's bytes.
 * @param bytes its size, at least the ticket's.
 * @param stream the stream that will use it (and that destination is free on).
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is too small.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT as memopt_offloader_unpack().
 * @retval MEMOPT_UNSUPPORTED as memopt_offloader_unpack().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_unpack_into(memopt_offloader *offloader,
                                                      memopt_ticket ticket, void *destination,
                                                      uint64_t bytes, memopt_stream stream);

/**
 * @brief Starts copying a value into device memory of the caller's.
 *
 * The copy starts after the stream's work so far and is done in the order of the streams that
 * memopt_offloader_wait_unpacked() is called for; until then the memory must stay as it is.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param destination device memory for all of the ticket's bytes.
 * @param bytes its size, at least the ticket's.
 * @param stream the stream that destination is free on.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is too small.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_LIMIT_REACHED the value is on the disk, and there is no host memory to read it
 * into; nothing changed.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT an earlier copy of the ticket could not be read, as
 *         memopt_offloader_wait_unpacked() says, too; nothing was started.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_prefetch_into(memopt_offloader *offloader,
                                                        memopt_ticket ticket, void *destination,
                                                        uint64_t bytes, memopt_stream stream);

/**
 * @brief Makes later work of a stream wait until the copies of a ticket into the caller's memory
 *        are done. For a value on the disk it waits until that has been read.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT the disk did not give the value: the memory has undefined
 *         contents. It is told once.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_wait_unpacked(memopt_offloader *offloader,
                                                        memopt_ticket ticket, memopt_stream stream);

/**
 * @brief Ends a ticket: its device memory is freed after the work so far of the stream and of those
 *        that it was unpacked on; its host memory is kept for the next value of that size, or given
 *        back where it would keep more than the limit (or than the payload's peak) page-locked.
 * @param offloader the offloader.
 * @param ticket the ticket.
 * @param stream the stream that used the unpacked value last.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_NOT_FOUND no such ticket (released before, for example).
 * @retval MEMOPT_DRIVER_ERROR as told; the ticket is still there.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_release(memopt_offloader *offloader, memopt_ticket ticket,
                                                  memopt_stream stream);

/**
 * @brief Ends several tickets, as memopt_offloader_release() does each, in their order.
 * @param offloader the offloader.
 * @param tickets the tickets; may be NULL where count is 0.
 * @param count how many.
 * @param stream the stream that used the unpacked values last.
 * @param[out] out_released how many have ended, also where one of them could not: those before it.
 * @retval MEMOPT_OK all of them.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL; out_released is not written.
 * @retval MEMOPT_NOT_FOUND, MEMOPT_DRIVER_ERROR of the first that could not; it and those behind it
 *         are as they were.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_release_many(memopt_offloader *offloader,
                                                       const memopt_ticket *tickets, uint64_t count,
                                                       memopt_stream stream,
                                                       uint64_t *out_released);

/**
 * @brief What is to be packed or unpacked, for callers that move many values: a struct that is kept
 *        from one value to the next, in which only what differs is written anew.
 *
 * Where each argument of a call costs something, as in bindings for other languages, this is the
 * cheapest way. One request serves both directions; it belongs to the caller, and nothing keeps its
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
    void *data;           /**< Device memory: of the value, which is only read; or where it goes. */
    uint64_t bytes;       /**< How many. */
    memopt_ticket ticket; /**< Written by a pack, read by an unpack. */
    uint64_t kept;        /**< Written by a pack: 1 where the value was not copied, else 0. */
} memopt_offloader_request;

/** @brief Initialiser of ::memopt_offloader_request. */
#define MEMOPT_OFFLOADER_REQUEST_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_offloader_request), NULL, NULL, NULL, 0, 0, 0                                \
    }

/**
 * @brief Packs device memory that stays the caller's, as memopt_offloader_pack_borrowed() does.
 * @param[in,out] request offloader, data, bytes and stream are read; ticket and kept are written,
 *        on success only.
 * @retval MEMOPT_OK as memopt_offloader_pack_borrowed(), which says what follows from kept, too.
 * @retval MEMOPT_INVALID_ARGUMENT request, its offloader or its data is NULL, bytes is 0, or
 *         struct_size is too small.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_IO_ERROR, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as
 *         memopt_offloader_pack_borrowed(); nothing changed.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph, or the request is larger than this library
 *         knows and not zero there; nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_request_pack(memopt_offloader_request *request);

/**
 * @brief Copies a value into device memory of the caller's, as memopt_offloader_unpack_into() does.
 * @param request offloader, ticket, data, bytes and stream are read; nothing is written.
 * @retval MEMOPT_OK as memopt_offloader_unpack_into().
 * @retval MEMOPT_INVALID_ARGUMENT request, its offloader or its data is NULL, bytes is less than
 *         the ticket's, or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND no such ticket.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_IO_ERROR, MEMOPT_CORRUPT as
 *         memopt_offloader_unpack_into().
 * @retval MEMOPT_UNSUPPORTED as memopt_offloader_unpack_into(), or the request is larger than this
 *         library knows and not zero there.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_request_unpack(const memopt_offloader_request *request);

/**
 * @brief Gives cached host memory back, and unused space at the end of the disk's file. Waits for
 *        copies that still use the memory.
 * @param offloader the offloader.
 * @param[out] out_released bytes given back; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT offloader is NULL.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_trim_sync(memopt_offloader *offloader,
                                                    uint64_t *out_released);

/** @brief What an offloader holds and has done. */
typedef struct memopt_offloader_stats {
    size_t struct_size;         /**< Set by the caller. */
    uint64_t tickets;           /**< Live tickets. */
    uint64_t host_bytes;        /**< Page-locked bytes held, cached ones included. */
    uint64_t host_bytes_peak;   /**< The most held. */
    uint64_t host_bytes_used;   /**< Payload bytes of live tickets on the host. */
    uint64_t kept_bytes;        /**< Payload bytes of live tickets kept on the device. */
    uint64_t copied_out_bytes;  /**< Bytes copied to the host in all. */
    uint64_t copied_back_bytes; /**< Bytes copied back in all. */
    uint64_t packs;             /**< Values packed in all. */
    uint64_t kept_small;        /**< Kept because of min_bytes. */
    uint64_t kept_overflow;     /**< Kept because of the host limit. */
    uint64_t prefetch_hits;     /**< Unpacks whose copy had been started by a prefetch. */
    uint64_t waits;             /**< Times a pack waited for host memory. */
    uint64_t disk_tickets;      /**< Live tickets whose value is on the disk and not on the host. */
    uint64_t disk_bytes_used;   /**< Payload bytes of those tickets. */
    /** Bytes of the file in use, in blocks of 4096: also of values that are on the host still. */
    uint64_t disk_bytes;
    uint64_t disk_bytes_peak;    /**< The most in use. */
    uint64_t disk_written_bytes; /**< Payload bytes written in all. */
    uint64_t disk_read_bytes;    /**< Payload bytes read back in all. */
    uint64_t disk_waits;         /**< Times a call waited for the disk. */
} memopt_offloader_stats;

/**
 * @brief What an offloader holds and has done.
 * @param offloader the offloader.
 * @param[in,out] out_stats struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_offloader_get_stats(memopt_offloader *offloader,
                                                    memopt_offloader_stats *out_stats);

MEMOPT_END_DECLS

#endif /* MEMOPT_OFFLOAD_H */
