/**
 * @file stream.h
 * @brief Weights that stream: layers whose weights are in host memory or a file, and on the device
 *        only while they are needed, in a fixed number of bytes.
 *
 *     for each layer: memopt_streamer_add(streamer, parts, count, &layer)
 *     in each pass:   memopt_streamer_begin(streamer, layer, stream, pointers)
 *                     enqueue the layer's work, which reads the pointers
 *                     memopt_streamer_end(streamer, layer, stream)
 *
 * The weights are values of an offloader: of memopt_offloader_reserve(), memopt_offloader_map_file()
 * or packed. The streamer only copies them; the tickets stay the caller's, and must outlive it.
 *
 * **Memory.** One arena of the device, allocated once. A layer takes the sum of its parts, each at a
 * multiple of 256 bytes; layers lie one behind the other, first fit. So streamed weights never take
 * more than the budget, and one layer always finds a place while no other is in use.
 *
 * **Order of use.** The streamer learns which layer follows which, and fetches ahead. It keeps what
 * is needed first. With n layers of one size, of which k fit, a training step (forward over all,
 * backward in the other order) copies 2 (n - k) layers from its second time on, and from its first
 * if memopt_streamer_expect() has told the order. An order that changes costs late copies and no
 * error.
 *
 * **Order on the device.** A copy into the arena starts after the work that used the memory before:
 * what was, at memopt_streamer_end(), on the stream that it names. Work enqueued after
 * memopt_streamer_begin() runs after the layer's copies. No call waits for the device; one waits for
 * the disk where its value comes from there.
 *
 * **Absent weights.** On "cpu" in the adversarial order memory of the arena without a layer is
 * filled with NaN and watched, so a pointer that is used outside of its begin and end is found.
 *
 * **Graphs.** While the stream records a graph, begin, end and write return #MEMOPT_UNSUPPORTED:
 * a layer has another address each time.
 *
 * **Threads.** One thread at a time per streamer and its offloader. In a process that was forked from
 * the one that opened the device every call returns #MEMOPT_UNSUPPORTED.
 */
#ifndef MEMOPT_STREAM_H
#define MEMOPT_STREAM_H

#include <memopt/offload.h>

MEMOPT_BEGIN_DECLS

/** @brief Layers whose weights stream through a budget of device memory. */
typedef struct memopt_streamer memopt_streamer;

/** @brief One array of weights of a layer. */
typedef struct memopt_stream_part {
    memopt_ticket ticket; /**< The value in the streamer's offloader. */
    uint64_t bytes;       /**< Its size; a smaller number makes memopt_streamer_begin() fail. */
} memopt_stream_part;

/**
 * @brief Creates a streamer and allocates its arena.
 * @param device the device.
 * @param offloader the store of the weights, of the same device. It must outlive the streamer.
 * @param budget the most bytes of device memory for streamed weights, at least 512; rounded down to
 *        a multiple of 512.
 * @param[out] out_streamer the streamer; destroy it with memopt_streamer_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or budget is below 512.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY the device has no room for the budget.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed; see
 *         memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_create(memopt_device *device, memopt_offloader *offloader,
                                                uint64_t budget, memopt_streamer **out_streamer);

/**
 * @brief Destroys a streamer after waiting for its copies and for the work that ended with
 *        memopt_streamer_end(). The tickets stay.
 * @param streamer the streamer; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY a layer has begun and not ended; the message names it. Nothing changed.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR waiting failed; the streamer
 *         and its memory are gone anyway. If the device was already known to be lost, the call
 *         succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_destroy(memopt_streamer *streamer);

/**
 * @brief Destroys a streamer as memopt_streamer_destroy() does, also with layers in use: it then
 *        waits for all work of the device.
 * @param streamer the streamer; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DEVICE_FAULT, MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR as for
 *         memopt_streamer_destroy().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_destroy_force(memopt_streamer *streamer);

/**
 * @brief Adds a layer. Copies nothing.
 * @param streamer the streamer.
 * @param parts the layer's arrays. Copied.
 * @param count the number of parts, at least 1.
 * @param[out] out_layer its number: layers count from 0.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, count is 0, or a part has 0 bytes.
 * @retval MEMOPT_LIMIT_REACHED the layer alone is larger than the budget; the message has both. Or
 *         2^31 layers are there.
 * @retval MEMOPT_NOT_FOUND a part's ticket is not in the offloader.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed; see
 *         memopt_last_error(). After a failure there is no new layer.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_add(memopt_streamer *streamer,
                                             const memopt_stream_part *parts, uint32_t count,
                                             uint32_t *out_layer);

/**
 * @brief Tells the order of use, before the first pass or when it changes; and starts the first
 *        copies. Without it the order is learned.
 * @param streamer the streamer.
 * @param layers the numbers in the order of their begins: one round, which is repeated. For training
 *        0, 1, … n - 1, n - 1, … 1, 0.
 * @param count the number of begins in a round, at least 1.
 * @retval MEMOPT_OK done. Copies that could not start are tried again when they are needed.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, count is 0, or a number is not that of a layer.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_expect(memopt_streamer *streamer, const uint32_t *layers,
                                                uint32_t count);

/**
 * @brief Gives a layer's weights in device memory, valid in the order of a stream until
 *        memopt_streamer_end(). A layer may begin several times, on several streams; each begin has
 *        an end.
 *
 * Layers that are not in use may leave the device for it. Copies of the layers that are expected
 * next start before the call returns. If one of these cannot start, that shows when it is needed.
 * @param streamer the streamer.
 * @param layer its number.
 * @param stream the stream that will use the weights.
 * @param[out] out_parts as many pointers as the layer has parts, aligned to 256 bytes. The memory is
 *        the streamer's; it may be written if memopt_streamer_write() follows.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, there is no such layer, or a part has fewer bytes
 *         than its ticket.
 * @retval MEMOPT_LIMIT_REACHED layers in use leave no room; the message has the numbers. End one.
 * @retval MEMOPT_BUSY the host is writing a part; see memopt_offloader_host().
 * @retval MEMOPT_NOT_FOUND a part's ticket was released.
 * @retval MEMOPT_IO_ERROR, MEMOPT_CORRUPT a part could not be read from the disk; the call may be
 *         repeated.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed; see
 *         memopt_last_error(). After a failure the layer is not in use by this call.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_begin(memopt_streamer *streamer, uint32_t layer,
                                               memopt_stream stream, void **out_parts);

/**
 * @brief Ends a use of a layer: its memory may be used again behind the stream's work so far.
 * @param streamer the streamer.
 * @param layer its number.
 * @param stream the stream that used the weights since the begin; it has to be behind all such work.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT streamer is NULL, there is no such layer, or it is not in use.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(). The layer is still in use.
 * @retval MEMOPT_UNSUPPORTED the stream records a graph.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_end(memopt_streamer *streamer, uint32_t layer,
                                             memopt_stream stream);

/**
 * @brief Copies a layer's weights from the device to their store, after work of the stream that
 *        changed them. The layer is in use. Its parts are of memopt_offloader_reserve(), and it is
 *        memopt_offloader_rewrite() that copies them.
 *
 * The weights must not change again before the layer's next begin, unless the stream waits by
 * memopt_offloader_wait_packed() of the parts.
 * @param streamer the streamer.
 * @param layer its number.
 * @param stream the stream whose work so far wrote them.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT streamer is NULL, there is no such layer, or it is not in use.
 * @retval MEMOPT_BUSY, MEMOPT_NOT_FOUND, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY,
 *         MEMOPT_DRIVER_ERROR as for memopt_offloader_rewrite(). Parts before the one that failed
 *         are copied; the call may be repeated.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_write(memopt_streamer *streamer, uint32_t layer,
                                               memopt_stream stream);

/**
 * @brief Forgets a layer's copy on the device, after the host has changed its store. Copies of the
 *        layers that are expected next start.
 * @param streamer the streamer.
 * @param layer its number.
 * @retval MEMOPT_OK done, also if there was no copy.
 * @retval MEMOPT_INVALID_ARGUMENT streamer is NULL or there is no such layer.
 * @retval MEMOPT_BUSY the layer is in use.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(). The copy is still there.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_evict(memopt_streamer *streamer, uint32_t layer);

/** @brief What a round of use will cost. */
typedef struct memopt_stream_plan {
    size_t struct_size;     /**< Set by the caller. */
    uint64_t budget;        /**< Bytes of the arena. */
    uint64_t layers;        /**< The number of layers. */
    uint64_t layer_bytes;   /**< Of all of them, at steps of 256. */
    uint64_t largest_bytes; /**< Of the largest one. */
    uint64_t resident;      /**< Layers on the device at the end of a round. */
    uint64_t copies;        /**< Layers copied to the device in a round. */
    uint64_t
        copied_bytes; /**< Their bytes. Divided by the link's rate: the least time of a round. */
} memopt_stream_plan;

/** @brief Initialiser of ::memopt_stream_plan. */
#define MEMOPT_STREAM_PLAN_INIT                                                                    \
    {                                                                                              \
        sizeof(memopt_stream_plan), 0, 0, 0, 0, 0, 0, 0                                            \
    }

/**
 * @brief Says what a round will cost once it is known, by a rehearsal without a device.
 * @param streamer the streamer.
 * @param layers the order of begins in a round; NULL: forward over all layers, then backward.
 * @param count their number; 0 with NULL.
 * @param[in,out] out_plan the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a number is not that of a layer, or struct_size
 *         is too small.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_get_plan(const memopt_streamer *streamer,
                                                  const uint32_t *layers, uint32_t count,
                                                  memopt_stream_plan *out_plan);

/**
 * @brief Says how long a round takes at best with this budget, by the same rehearsal: copies run one
 *        after the other at the link's rate, each behind the uses of the layers whose place it takes;
 *        uses run one after the other, each behind its layer's copy.
 *
 * That is more than the work and more than the copies alone: at the turn of a training step all that
 * fits is needed soon, and the link waits.
 * @param streamer the streamer.
 * @param layers the order of begins in a round; NULL: forward over all layers, then backward.
 * @param count their number; 0 with NULL.
 * @param work the seconds of work of each begin in that order, at least 0: `count`, or with NULL
 *        twice the number of layers.
 * @param link bytes a second of copies to the device, above 0; infinity: copies take no time.
 * @param[out] out_seconds of a round that follows others.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, layers and count do not agree, a layer does not
 *         exist, or a number is out of range.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_get_limit(const memopt_streamer *streamer,
                                                   const uint32_t *layers, uint32_t count,
                                                   const double *work, double link,
                                                   double *out_seconds);

/**
 * @brief Says what a budget would cost before there is a streamer, as memopt_streamer_get_plan() and
 *        memopt_streamer_get_limit() do of one: rounds of forward over all layers, then backward.
 *        Allocates nothing of a device. May be called by any thread.
 * @param layers the bytes of each layer, above 0: the sum of its parts at steps of 256.
 * @param count the number of layers, 1 to 2^31 - 1.
 * @param budget the bytes of the arena; rounded down to a multiple of 512.
 * @param work the seconds of work of each begin in that order, at least 0: twice `count`.
 * @param link bytes a second of copies to the device, above 0; infinity: copies take no time.
 * @param[in,out] out_plan the caller sets struct_size; the call fills at most that many bytes.
 * @param[out] out_seconds of a round that follows others.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a number is out of range, or struct_size is too
 *         small.
 * @retval MEMOPT_LIMIT_REACHED a layer is larger than the budget; the message has both.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_rehearse(const uint64_t *layers, uint32_t count,
                                                  uint64_t budget, const double *work, double link,
                                                  memopt_stream_plan *out_plan,
                                                  double *out_seconds);

/** @brief Statistics of a streamer. */
typedef struct memopt_stream_stats {
    size_t struct_size;           /**< Set by the caller. */
    uint64_t resident;            /**< Layers on the device, or on their way. */
    uint64_t resident_bytes;      /**< Their bytes. */
    uint64_t resident_bytes_peak; /**< The maximum of resident_bytes: never above the budget. */
    uint64_t begins;              /**< Begins so far. */
    uint64_t late;                /**< Begins whose copy had not started before. */
    uint64_t copies;              /**< Layers copied to the device so far. */
    uint64_t copied_bytes;        /**< Their bytes. */
    uint64_t written_bytes;       /**< Bytes of memopt_streamer_write() so far. */
} memopt_stream_stats;

/** @brief Initialiser of ::memopt_stream_stats. */
#define MEMOPT_STREAM_STATS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_stream_stats), 0, 0, 0, 0, 0, 0, 0, 0                                        \
    }

/**
 * @brief Reads the statistics of a streamer.
 * @param streamer the streamer.
 * @param[in,out] out_stats the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_streamer_get_stats(const memopt_streamer *streamer,
                                                   memopt_stream_stats *out_stats);

MEMOPT_END_DECLS

#endif /* MEMOPT_STREAM_H */
