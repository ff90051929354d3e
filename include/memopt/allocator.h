/**
 * @file allocator.h
 * @brief A caching, stream-ordered allocator of device memory with expandable segments.
 *
 * Freed blocks are kept and given out again without a driver call. A block belongs to the stream it
 * was allocated on: it may be freed while that stream still works on it, since the next owner on
 * the same stream comes later in order. Work on any other stream must be told with
 * memopt_allocator_record_stream() before the block is freed.
 *
 * **Threads.** Every function may be called from any thread at any time, except destroy while
 * another call is running. Callbacks are called without a lock held. A call that is served from the
 * cache never waits for one that is in the driver.
 *
 * **Streams.** Allocating and freeing are host operations: nothing is enqueued but, at the free of
 * a block with recorded streams, an event on each of them. Only trim, destroy and an allocation
 * under memory pressure wait for device work, and those for the events and streams they need. While
 * one of the streams that the allocator knows records a graph, no event is recorded, asked or
 * waited for, and no memory is given back; frees that need events are finished after the capture.
 *
 * **A stream's end.** Blocks may outlive the stream that they were allocated on or recorded for.
 * memopt_stream_destroy() takes care of that, and memopt_stream_release_sync() for streams that
 * others made. The stream's free blocks can then be given out on any other stream, its recorded
 * uses are over, also those of frees that a capture defers, and its live blocks are freed later as
 * any other, without a stream of their own.
 */
#ifndef MEMOPT_ALLOCATOR_H
#define MEMOPT_ALLOCATOR_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

/** @brief A caching allocator of one device. */
typedef struct memopt_allocator memopt_allocator;

/** @brief What a block is for; statistics are kept by tag. */
typedef uint32_t memopt_tag;

/** @brief The built-in tags; others come from memopt_allocator_register_tag(). */
enum {
    MEMOPT_TAG_OTHER = 0,       /**< Untagged. */
    MEMOPT_TAG_WEIGHTS = 1,     /**< Parameters. */
    MEMOPT_TAG_GRADIENTS = 2,   /**< Gradients. */
    MEMOPT_TAG_OPTIMIZER = 3,   /**< Optimizer states. */
    MEMOPT_TAG_ACTIVATIONS = 4, /**< Values kept for backward. */
    MEMOPT_TAG_USER = 5         /**< The first registered tag. */
};

/**
 * @brief Called when no cached block fits, before the device is asked for more and before anything
 * of the cache is given back.
 * @param user as given in the options.
 * @param bytes_needed the size that could not be served.
 * @return the bytes that the callee has freed through this or another handle, for the log; 0 if
 *         none. The cache is searched again whatever it says.
 *
 * It may call the allocator (free, above all), but must not allocate from it. It runs on the thread
 * that allocates, and may run on several at once.
 */
typedef uint64_t (*memopt_pressure_callback)(void *user, uint64_t bytes_needed);

/**
 * @brief Called when an allocation fails for good.
 * @param user as given in the options.
 * @param asked bytes of the request.
 * @param free_bytes device memory free at that moment.
 * @param report the text that memopt_last_error() will give; valid during the call only.
 *
 * It may call the allocator; what it frees does not rescue the failing call.
 */
typedef void (*memopt_oom_callback)(void *user, uint64_t asked, uint64_t free_bytes,
                                    const char *report);

/** @brief How to make an allocator; zero means the default. */
typedef struct memopt_allocator_options {
    size_t struct_size;                /**< sizeof(memopt_allocator_options). */
    uint64_t limit;                    /**< Most bytes to hold from the device; 0: no limit. */
    memopt_pressure_callback pressure; /**< Free-memory callback, or NULL. */
    void *pressure_user;               /**< Handed to pressure. */
    memopt_oom_callback oom;           /**< Out-of-memory observer, or NULL. */
    void *oom_user;                    /**< Handed to oom. */
} memopt_allocator_options;

/** @brief Initialiser of ::memopt_allocator_options. */
#define MEMOPT_ALLOCATOR_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_allocator_options), 0, NULL, NULL, NULL, NULL                                \
    }

/**
 * @brief Makes an allocator.
 * @param device the device; it must outlive the allocator.
 * @param config the field's configuration string, as in PYTORCH_CUDA_ALLOC_CONF:
 *        "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8"; NULL or
 *        "" for defaults. White space and a trailing comma are ignored. See the allocator guide
 *        for every key; those that concern only PyTorch's insides are taken without an effect,
 *        with a line in the log.
 * @param options NULL for defaults.
 * @param[out] out_allocator the allocator; ended by memopt_allocator_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or out_allocator is NULL, options->struct_size is too
 *         small, or config has an unknown key (the message names the nearest valid one) or a value
 *         out of range.
 * @retval MEMOPT_UNSUPPORTED expandable segments are asked for on a device without virtual memory,
 *         or options has an unknown part set.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_create(memopt_device *device, const char *config,
                                                 const memopt_allocator_options *options,
                                                 memopt_allocator **out_allocator);

/**
 * @brief Says whether a configuration string is right, without a device.
 * @param config as of memopt_allocator_create(); NULL is right.
 * @retval MEMOPT_OK it is.
 * @retval MEMOPT_INVALID_ARGUMENT it has an unknown key (the message names the nearest valid one)
 * or a value out of range.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_check_config(const char *config);

/**
 * @brief Gives all memory back to the device and ends the allocator. Waits for pending frees and
 * for the work of the streams whose memory goes back.
 * @param allocator the allocator; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY blocks are still allocated; the message counts them by tag; nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait or a driver call said
 *         so; the handle and its blocks are gone all the same. On a device that was known to be
 *         lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_destroy(memopt_allocator *allocator);

/**
 * @brief The same, freeing blocks that are still allocated. Waits for the device first.
 * @param allocator the allocator; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait or a driver call said
 *         so; the handle and its blocks are gone all the same. On a device that was known to be
 *         lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_destroy_force(memopt_allocator *allocator);

/**
 * @brief The device that an allocator takes its memory from.
 * @param allocator the allocator.
 * @return the device given to memopt_allocator_create(); NULL if allocator is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_device *memopt_allocator_get_device(const memopt_allocator *allocator);

/**
 * @brief Allocates device memory for work on a stream.
 * @param allocator the allocator.
 * @param bytes the size, rounded up to 512 bytes (or as roundup_power2_divisions says); 0 gives a
 *        NULL pointer and MEMOPT_OK.
 * @param tag what it is for.
 * @param stream the stream whose work will use it first.
 * @param[out] out_pointer the block, aligned to 512 bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the tag is not registered, or bytes overflows
 *         when rounded.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY the order of attempts on memory pressure is exhausted; the
 *         message says asked, free, cached, the largest free block, the top tags and what to try.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST as told; nothing
 *         allocated.
 * @retval MEMOPT_DEVICE_FAULT under pressure, when waiting for work showed misuse of device memory;
 *         nothing allocated.
 *
 * The order of attempts when no cached block fits: pending frees whose events are complete; the
 * pressure callback; garbage collection; the device; oversize blocks; waiting for pending frees;
 * giving cached memory back and the device once more; a classic segment no larger than the block;
 * the cache once more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_alloc(memopt_allocator *allocator, uint64_t bytes,
                                                memopt_tag tag, memopt_stream stream,
                                                void **out_pointer);

/**
 * @brief Frees a block. Work of its stream that uses it may still be pending.
 * @param allocator the allocator.
 * @param pointer as given by memopt_allocator_alloc(); NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, or pointer is not a live block of it (a double
 *         free, a foreign pointer, or one into a block; the message tells which).
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR an event of a recorded stream could not be
 *         recorded; the block stays allocated. Never for a block without recorded streams.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_free(memopt_allocator *allocator, void *pointer);

/**
 * @brief Says that work on another stream uses a block, so that after its free it is given out
 * again only when that work is done.
 * @param allocator the allocator.
 * @param pointer a live block.
 * @param stream the other stream; the block's own is fine and does nothing, as does one recorded
 *        already. It may be destroyed before the block is freed: see
 *        memopt_stream_release_sync().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL or pointer is not a live block of it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR no memory or no event to note it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                        memopt_stream stream);

/**
 * @brief The usable size of a live block and where it starts.
 * @param allocator the allocator.
 * @param pointer an address inside a live block.
 * @param[out] out_base the block's first byte; may be NULL.
 * @param[out] out_bytes the block's size as rounded; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL or no live block holds the address.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_block(memopt_allocator *allocator,
                                                    const void *pointer, void **out_base,
                                                    uint64_t *out_bytes);

/**
 * @brief Gives cached memory that no block uses back to the device. Waits for pending frees.
 * @param allocator the allocator.
 * @param[out] out_released bytes given back; may be NULL.
 * @retval MEMOPT_OK done (nothing is given back while a known stream records a graph).
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT
 *         as told; what was not given back stays cached.
 *
 * Classic segments go back when they are wholly free, expandable ones page by page.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_trim_sync(memopt_allocator *allocator,
                                                    uint64_t *out_released);

/**
 * @brief Sets the most bytes to hold from the device, from now on.
 * @param allocator the allocator.
 * @param limit bytes; 0: no limit. Below what is held now, growth stops until enough is freed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_set_limit(memopt_allocator *allocator, uint64_t limit);

/**
 * @brief Registers a tag.
 * @param allocator the allocator.
 * @param name up to 31 characters; a name registered before gives the same tag.
 * @param[out] out_tag the tag.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or name is empty or too long.
 * @retval MEMOPT_LIMIT_REACHED 64 tags are registered.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_register_tag(memopt_allocator *allocator,
                                                       const char *name, memopt_tag *out_tag);

/** @brief What a tag's blocks take. */
typedef struct memopt_tag_stats {
    size_t struct_size;     /**< Set by the caller. */
    const char *name;       /**< The tag's name; lives as long as the allocator. */
    uint64_t current_bytes; /**< Requested bytes alive now. */
    uint64_t peak_bytes;    /**< The most requested bytes alive at once since the last reset. */
    uint64_t blocks;        /**< Blocks alive now. */
} memopt_tag_stats;

/**
 * @brief What a tag's blocks take.
 * @param allocator the allocator.
 * @param tag a built-in or registered tag.
 * @param[in,out] out_stats struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND tag is not registered (count up from 0 until this comes).
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_tag_stats(memopt_allocator *allocator, memopt_tag tag,
                                                        memopt_tag_stats *out_stats);

/**
 * @brief The name of the statistic at a position.
 * @param index from 0.
 * @return a static string such as "reserved_bytes.all.peak" (the field's keys); NULL behind the
 * last.
 * @since 0.9
 */
MEMOPT_API const char *memopt_allocator_stat_name(uint64_t index);

/**
 * @brief All statistics at one moment, in the order of memopt_allocator_stat_name().
 * @param allocator the allocator.
 * @param[out] out_values room for `count` values.
 * @param count how many to write, from the first.
 * @param[out] out_total how many there are; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, or out_values is NULL while count is not 0.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_stats(memopt_allocator *allocator, uint64_t count,
                                                    uint64_t *out_values, uint64_t *out_total);

/**
 * @brief One statistic by name.
 * @param allocator the allocator.
 * @param name such as "reserved_bytes.all.peak".
 * @param[out] out_value its value.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND no statistic has this name.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_stat(memopt_allocator *allocator, const char *name,
                                                   uint64_t *out_value);

/**
 * @brief Makes every peak (tags included) the current value.
 * @param allocator the allocator.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_reset_peaks(memopt_allocator *allocator);

/** @brief The state of a block in a snapshot. */
typedef uint32_t memopt_block_state;

/** @brief The values of ::memopt_block_state. */
enum {
    MEMOPT_BLOCK_INACTIVE = 0,            /**< Free, cached. */
    MEMOPT_BLOCK_ACTIVE_ALLOCATED = 1,    /**< In use. */
    MEMOPT_BLOCK_ACTIVE_PENDING_FREE = 2, /**< Freed, but a recorded stream still works on it. */
    MEMOPT_BLOCK_UNMAPPED = 3             /**< Addresses of an expandable segment without memory. */
};

/** @brief One block of a snapshot with its segment. */
typedef struct memopt_block_info {
    size_t struct_size;          /**< Set by the library. */
    void *segment_address;       /**< The segment's first byte. */
    uint64_t segment_bytes;      /**< The segment's size (mapped bytes where it is expandable). */
    memopt_stream stream;        /**< The stream the segment's blocks belong to; NULL also where it
                                      has ended. */
    uint32_t segment_large;      /**< 1: large pool, 0: small pool. */
    uint32_t segment_expandable; /**< 1 where it grows page by page. */
    void *address;               /**< The block's first byte. */
    uint64_t bytes;              /**< The block's size. */
    uint64_t requested_bytes;    /**< What was asked for; 0 where it is not in use. */
    uint32_t state;              /**< A ::memopt_block_state. */
    memopt_tag tag;              /**< What it is for. */
} memopt_block_info;

/**
 * @brief Receives the blocks of a snapshot, segment by segment, by address.
 * @param user as given.
 * @param block valid during the call only.
 * @return #MEMOPT_OK to go on; anything else ends the walk and comes out unchanged.
 */
typedef memopt_status (*memopt_block_visitor)(void *user, const memopt_block_info *block);

/**
 * @brief Walks over all blocks as they were at one moment.
 * @param allocator the allocator.
 * @param visitor called without a lock held; it may call the allocator.
 * @param user handed to visitor.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the copy of the state.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_snapshot(memopt_allocator *allocator,
                                                   memopt_block_visitor visitor, void *user);

MEMOPT_END_DECLS

#endif /* MEMOPT_ALLOCATOR_H */
