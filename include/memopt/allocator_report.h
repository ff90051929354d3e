/**
 * @file allocator_report.h
 * @brief What can be seen of an allocator: statistics, blocks, traces, its history, and why memory
 *        ran out.
 *
 * allocator.h includes it. Every function may be called from any thread at any time, but not during
 * the allocator's destruction. None of them waits for device work or enqueues any.
 */
#ifndef MEMOPT_ALLOCATOR_REPORT_H
#define MEMOPT_ALLOCATOR_REPORT_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief Memory that a tag's blocks take. */
typedef struct memopt_tag_stats {
    size_t struct_size;     /**< Set by the caller. */
    const char *name;       /**< The tag's name; lives as long as the allocator. */
    uint64_t current_bytes; /**< Requested bytes alive now. */
    uint64_t peak_bytes;    /**< The maximum of current_bytes since the last reset. */
    uint64_t blocks;        /**< Blocks alive now. */
    uint64_t outside_bytes; /**< What memopt_allocator_set_outside() told last. @since 0.9 */
} memopt_tag_stats;

/** @brief Initialiser of ::memopt_tag_stats. */
#define MEMOPT_TAG_STATS_INIT                                                                      \
    {                                                                                              \
        sizeof(memopt_tag_stats), NULL, 0, 0, 0, 0                                                 \
    }

/**
 * @brief Reads the statistics of a tag's blocks.
 * @param allocator the allocator.
 * @param tag a built-in or registered tag.
 * @param[in,out] out_stats the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND tag is not registered. To visit all tags, count up from 0 until this
 *         status.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_tag_stats(memopt_allocator *allocator, memopt_tag tag,
                                                        memopt_tag_stats *out_stats);

/**
 * @brief Reads all statistics at one moment, with their names: keys of PyTorch's memory_stats() such
 *        as "reserved_bytes.all.peak". Names and their order do not change in a process.
 * @param allocator the allocator; may be NULL if out_values is NULL.
 * @param count the number of names and values to write, from the first.
 * @param[out] out_names room for `count` static strings; may be NULL.
 * @param[out] out_values room for `count` values; may be NULL.
 * @param[out] out_total the number of statistics; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL while out_values is not, or both out_names and
 *         out_values are NULL while count is not 0.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_stats(memopt_allocator *allocator, uint64_t count,
                                                    const char **out_names, uint64_t *out_values,
                                                    uint64_t *out_total);

/**
 * @brief Reads one statistic by name.
 * @param allocator the allocator.
 * @param name a name such as "reserved_bytes.all.peak".
 * @param[out] out_value its value.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND no statistic has this name.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_stat(memopt_allocator *allocator, const char *name,
                                                   uint64_t *out_value);

/**
 * @brief Sets every peak, those of tags included, to the current value.
 * @param allocator the allocator.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_reset_peaks(memopt_allocator *allocator);

/** @brief Why an allocation has failed: what would have served it. */
typedef uint32_t memopt_oom_cause;

/** @brief The values of ::memopt_oom_cause. */
enum {
    MEMOPT_OOM_GROWTH = 0, /**< Live memory: less must be alive (recomputation, offload, 8-bit
                                states, a smaller batch). */
    MEMOPT_OOM_FRAGMENTATION = 1, /**< Enough is free, in holes beside blocks that live long. */
    MEMOPT_OOM_SEGMENTS = 2,      /**< Enough is free in holes of classic segments:
                                       expandable_segments:True uses them. */
    MEMOPT_OOM_LEAK = 3,          /**< Blocks of one tag and size that are added steadily and never
                                       freed, while others come and go. */
    MEMOPT_OOM_STREAM = 4,        /**< Frees that wait for a stream, and the cache, which is kept
                                       while a stream records a graph. */
    MEMOPT_OOM_ROUNDING = 5,      /**< What roundup_power2_divisions or max_split_size_mb add to
                                       blocks. */
    MEMOPT_OOM_POOL = 6,          /**< What other pools have free and keep. */
    MEMOPT_OOM_LIMIT = 7,   /**< A limit, or per_process_memory_fraction, of the allocator, the
                                 pool or its parent; the device has enough. */
    MEMOPT_OOM_OUTSIDE = 8, /**< Memory of the device that does not come from this allocator or
                                 its pools. */
    MEMOPT_OOM_REQUEST = 9  /**< The request is larger than the device. */
};

/** @brief What was found when an allocation failed. Ages are counted in allocations. */
typedef struct memopt_oom_report {
    size_t struct_size;       /**< Set by the caller. */
    uint64_t number;          /**< Allocations that have failed so far, this one included. */
    uint64_t clock;           /**< Allocations that have succeeded so far. */
    memopt_oom_cause cause;   /**< What would have served the request. */
    memopt_tag tag;           /**< What it was for. */
    uint64_t asked_bytes;     /**< The requested size. */
    uint64_t missing_bytes;   /**< What it lacked, after all attempts. */
    uint64_t total_bytes;     /**< The device's memory. */
    uint64_t free_bytes;      /**< Of it, free. */
    uint64_t limit_bytes;     /**< The smallest limit; UINT64_MAX: none. */
    uint64_t held_bytes;      /**< What the allocator and its pools hold from the device. */
    uint64_t live_bytes;      /**< Here: in live blocks. */
    uint64_t requested_bytes; /**< Of these, requested. */
    uint64_t pending_bytes;   /**< Freed, but in use by other streams. */
    uint64_t cached_bytes;    /**< Free and cached. */
    uint64_t spare_bytes;     /**< Of these, what could go back to the device; the rest are holes.
                               */
    uint64_t largest_free_bytes; /**< The largest free block. */
    uint64_t rounding_bytes;     /**< What roundup_power2_divisions and max_split_size_mb add. */
    uint64_t unsplit_bytes;      /**< Of these, max_split_size_mb. */
    uint64_t leaked_bytes;       /**< Live blocks that look like a leak. */
    uint64_t pool_bytes;         /**< What the parent and other pools have free and keep. */
    uint64_t outside_bytes;      /**< What neither the allocator nor its pools hold. */
    memopt_tag holder_tag;  /**< Whose live blocks are in the way: of the cause, those that leak,
                                 lie beside holes, or are most. */
    uint64_t holder_bytes;  /**< Their requested bytes. */
    uint64_t holder_blocks; /**< How many they are. */
    uint64_t holder_oldest; /**< The age of the oldest. */
    uint64_t holder_newest; /**< The age of the newest. */
} memopt_oom_report;

/** @brief Initialiser of ::memopt_oom_report. */
#define MEMOPT_OOM_REPORT_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_oom_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0, 0                                                                          \
    }

/**
 * @brief Says why the last failed allocation failed, in numbers; memopt_last_error() says it in
 *        words.
 * @param allocator the allocator, or the pool that the allocation was made from.
 * @param[in,out] out_report the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND no allocation has failed for lack of memory.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 *
 * The cause is the largest amount of memory that covers what the request lacked and that something
 * other than fewer live blocks would have freed. A leak is recognised by the ages of live blocks:
 * it needs some hundred allocations, most of them freed, and cannot be told from a cache that only
 * grows.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_oom_report(memopt_allocator *allocator,
                                                         memopt_oom_report *out_report);

/** @brief The state of a block in a snapshot. */
typedef uint32_t memopt_block_state;

/** @brief The values of ::memopt_block_state. */
enum {
    MEMOPT_BLOCK_INACTIVE = 0,            /**< Free and cached. */
    MEMOPT_BLOCK_ACTIVE_ALLOCATED = 1,    /**< In use. */
    MEMOPT_BLOCK_ACTIVE_PENDING_FREE = 2, /**< Freed, but a recorded stream still uses it. */
    MEMOPT_BLOCK_UNMAPPED = 3             /**< Reserved addresses of an expandable segment without
                                               memory. */
};

/** @brief One block of a snapshot with its segment. */
typedef struct memopt_block_info {
    size_t struct_size;          /**< Set by the library. */
    void *segment_address;       /**< The segment's first byte. */
    uint64_t segment_bytes;      /**< The segment's size; of an expandable one, the mapped bytes. */
    memopt_stream stream;        /**< The stream that the segment's blocks belong to; NULL also
                                      after that stream has ended. */
    uint32_t segment_large;      /**< 1: large pool, 0: small pool. */
    uint32_t segment_expandable; /**< 1: it grows page by page; 0: classic. */
    void *address;               /**< The block's first byte. */
    uint64_t bytes;              /**< The block's size. */
    uint64_t requested_bytes;    /**< The requested size; 0 if the block is not in use. */
    uint32_t state;              /**< A ::memopt_block_state. */
    memopt_tag tag;              /**< What it is for. */
    uint32_t context;            /**< The number of its allocation; see memopt_history_options. */
    uint64_t age; /**< Allocations since it was allocated, or freed if it is free; with
                       several streams up to 4096 for each of them more. */
} memopt_block_info;

/** @brief Initialiser of ::memopt_block_info. */
#define MEMOPT_BLOCK_INFO_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_block_info), NULL, 0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0                     \
    }

/**
 * @brief Receives the blocks of a snapshot, segment by segment, in order of addresses.
 * @param user the pointer given to memopt_allocator_snapshot().
 * @param block valid during the call only.
 * @return #MEMOPT_OK to continue. Any other value ends the walk and is returned unchanged.
 */
typedef memopt_status (*memopt_block_visitor)(void *user, const memopt_block_info *block);

/**
 * @brief Visits all blocks as they were at one moment.
 * @param allocator the allocator.
 * @param visitor called without a lock held; it may call the allocator.
 * @param user passed to visitor.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the copy of the state.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_snapshot(memopt_allocator *allocator,
                                                   memopt_block_visitor visitor, void *user);

/**
 * @brief Records a trace: a line of CSV for each allocation, recorded stream and free, which `memopt
 *        replay` and memopt_trace_read_csv() read. Destroying the allocator ends it too.
 *
 * The columns are Thread, Time (microseconds since the start), Action, Pointer, Size (as
 * requested), Stream and Tag. Blocks that are alive are recorded first, as allocations. Everything
 * that takes its memory from the allocator is included: leases of regions, states of optimizers,
 * values of offloaders. Failed allocations are recorded as such. A block has a line for each stream
 * that is recorded for it, once.
 *
 * The recording takes 64 KiB of host memory. The call whose line fills them, about each thousandth,
 * writes them to the file while other threads wait for it. If the file cannot be written, recording
 * ends, the program goes on, and the call that ends the trace tells.
 * @param allocator the allocator.
 * @param path the file that the trace begins; an existing one is replaced. NULL: the trace ends, and
 *        its file is closed.
 * @param[out] out_events with path NULL: the number of lines without the header; may be NULL.
 * @retval MEMOPT_OK recording; or the file is complete.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @retval MEMOPT_BUSY the allocator is being recorded already.
 * @retval MEMOPT_NOT_FOUND path is NULL, and no trace is being recorded.
 * @retval MEMOPT_IO_ERROR the file cannot be opened; or, with path NULL, a write failed, now or
 *         earlier: the disk is full, for example. The driver code is errno. The recording has ended;
 *         the file has the events before that, in whole lines.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_trace(memopt_allocator *allocator, const char *path,
                                                uint64_t *out_events);

/** @brief What happened in an event of a history. */
typedef uint32_t memopt_history_action;

/** @brief The values of ::memopt_history_action. */
enum {
    MEMOPT_HISTORY_ALLOC = 1,         /**< A block begins. */
    MEMOPT_HISTORY_FREE = 2,          /**< A block was freed. */
    MEMOPT_HISTORY_FAILED = 3,        /**< An allocation failed for lack of memory. */
    MEMOPT_HISTORY_RECORD_STREAM = 4, /**< Another stream uses a block. */
    MEMOPT_HISTORY_COMPLETED = 5, /**< No stream uses a freed block any more. Only of blocks with
                                       recorded streams; a free of others is complete at once. */
    MEMOPT_HISTORY_MAP = 6,       /**< Memory came from the device. */
    MEMOPT_HISTORY_UNMAP = 7      /**< Memory went back to the device. */
};

/** @brief An event of a history. */
typedef struct memopt_history_event {
    uint64_t time_ns;             /**< Nanoseconds since 1970. Events of different streams may be
                                       out of its order by the time that one takes. */
    void *address;                /**< The block; of memory, its segment; NULL of a failure. */
    uint64_t bytes;               /**< Requested; of memory, all. */
    memopt_stream stream;         /**< Of the allocation, or that was recorded. */
    memopt_history_action action; /**< What happened. */
    memopt_tag tag;               /**< What the block is for. */
    uint32_t context;             /**< The number that the callback gave; of a free, that of the
                                       block's allocation. */
    uint32_t thread;              /**< The system's number of the thread. */
} memopt_history_event;

/**
 * @brief Called at the beginning of each allocation, for a number that says who allocates: a place
 *        in a table of call stacks, for example.
 * @param user the pointer given in the options.
 * @return any number; 0 for nothing.
 *
 * It runs on the thread that allocates, without a lock held, and on several threads at once. It
 * must not allocate from the allocator. A call may still run when the history has ended, so user
 * stays valid until the allocator is destroyed.
 */
typedef uint32_t (*memopt_history_context)(void *user);

/** @brief How to keep a history; zero means the default. */
typedef struct memopt_history_options {
    size_t struct_size;             /**< sizeof(memopt_history_options). */
    uint64_t events;                /**< How many of the last events are kept, 48 bytes of host
                                         memory each; 0: 65,536. */
    memopt_history_context context; /**< Says who allocates, or NULL. */
    void *context_user;             /**< Handed to context. */
} memopt_history_options;

/** @brief Initialiser of ::memopt_history_options. */
#define MEMOPT_HISTORY_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_history_options), 0, NULL, NULL                                              \
    }

/**
 * @brief Keeps the last events in host memory. Nothing is written to a file, and an event takes some
 *        ten nanoseconds. Destroying the allocator ends it too.
 * @param allocator the allocator. Pools that are made of it from now on have a history of their
 *        own, with the same options.
 * @param options how; NULL: the history ends, and its memory is given back.
 * @retval MEMOPT_OK done. The first events are the memory that is held and the blocks that are
 *         alive.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, or options->struct_size is too small.
 * @retval MEMOPT_BUSY there is a history already.
 * @retval MEMOPT_NOT_FOUND options is NULL, and there is none.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for so many events.
 * @retval MEMOPT_UNSUPPORTED options sets a field that this version does not know, or this is the
 *         child of a fork of the process that made the allocator.
 *
 * It can be read at any time, also after an allocation has failed, until it ends.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_set_history(memopt_allocator *allocator,
                                                      const memopt_history_options *options);

/**
 * @brief Copies events of a history, oldest first. Events are numbered from 0.
 * @param allocator the allocator.
 * @param first the number of the first event to copy. Of those that the history has lost, the
 *        oldest that it still has is taken.
 * @param count the most events to copy.
 * @param[out] out_events room for `count` events; may be NULL if count is 0.
 * @param[out] out_first the number of the first event copied, or that the next one will have.
 * @param[out] out_count how many were copied; fewer than count if there are no more.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND there is no history.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 *
 * Allocations of other threads wait while it copies.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_read_history(memopt_allocator *allocator, uint64_t first,
                                                       uint64_t count,
                                                       memopt_history_event *out_events,
                                                       uint64_t *out_first, uint64_t *out_count);

MEMOPT_END_DECLS

#endif /* MEMOPT_ALLOCATOR_REPORT_H */
