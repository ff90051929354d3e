/**
 * @file trace.h
 * @brief Traces of allocations: read, replayed through the allocator without a GPU, and the
 * smallest device that they complete on.
 *
 * A trace is a list of allocations and frees, by an id (an address, mostly), a size and a stream.
 * A replay does them in order on a "cpu" device of its own, whose memory is never touched: it takes
 * addresses and page tables, not the trace's gigabytes.
 *
 * **Threads.** What changes a trace: one thread at a time. Replays and searches of one trace may
 * run at the same time.
 *
 * **Streams.** Stream 0 is the default stream; any other number is a stream of its own. A block
 * that is freed on another stream than its own is recorded for that stream first; the stream's work
 * counts as done, so that no figure depends on timing. Of equally good holes the one at the lower
 * address is taken, and addresses of classic segments are the system's: there figures can differ by
 * a fraction of a percent between processes.
 */
#ifndef MEMOPT_TRACE_H
#define MEMOPT_TRACE_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief Allocations and frees in order. */
typedef struct memopt_trace memopt_trace;

/** @brief What an event does. */
typedef uint32_t memopt_trace_action;

/** @brief The values of ::memopt_trace_action. */
enum {
    MEMOPT_TRACE_ALLOC = 1, /**< A block begins. */
    MEMOPT_TRACE_FREE = 2,  /**< A block ends. */
    /** An allocation failed when the trace was recorded; see memopt_trace_options::with_failed. Its
     * id is not read. */
    MEMOPT_TRACE_FAILED = 3
};

/** @brief As the stream of a free: the one that the block was allocated on. */
#define MEMOPT_TRACE_OWN_STREAM UINT64_MAX

/** @brief One event. */
typedef struct memopt_trace_event {
    uint64_t id;     /**< Names the block from its allocation to its free; then it can be another
                          block's. */
    uint64_t bytes;  /**< The size asked for; not read in a free. */
    uint64_t stream; /**< Any number; 0 is the default stream. */
    uint64_t action; /**< A ::memopt_trace_action. */
} memopt_trace_event;

/** @brief What a trace holds, and what in it was not as it should be. */
typedef struct memopt_trace_info {
    size_t struct_size;         /**< Set by the caller. */
    uint64_t events;            /**< Allocations and frees that a replay does. */
    uint64_t allocations;       /**< Allocations among them. */
    uint64_t streams;           /**< Different streams. */
    uint64_t peak_live_bytes;   /**< The most requested bytes alive at once. */
    uint64_t peak_live_blocks;  /**< The most blocks alive at once. */
    uint64_t live_bytes;        /**< Requested bytes alive at the end. */
    uint64_t live_blocks;       /**< Blocks alive at the end. */
    uint64_t lines;             /**< Lines of text read, headers included. */
    uint64_t unknown_frees;     /**< Frees, left out, of what the trace never allocated: blocks from
                                     before the recording. */
    uint64_t first_unknown;     /**< The record of the first: its line in a text, else the number of
                                     the added event, from 1; 0 if none. */
    uint64_t double_frees;      /**< Frees, left out, of what was freed before. */
    uint64_t first_double;      /**< The record of the first; 0 if none. */
    uint64_t lost_frees;        /**< Allocations with the id of a living block: its free is missing,
                                     and was put before them. */
    uint64_t first_lost;        /**< The record of the first; 0 if none. */
    uint64_t empty_allocations; /**< Allocations of no bytes, left out with their frees. */
    uint64_t failed_allocations; /**< Allocations that failed when the trace was recorded. */
    uint64_t failed_bytes;       /**< The largest of them. */
} memopt_trace_info;

/** @brief How to make a trace; zero means the default. */
typedef struct memopt_trace_options {
    size_t struct_size; /**< sizeof(memopt_trace_options). */
    /** 1: allocations that failed when the trace was recorded (lines "allocate failure") are
     * replayed, and freed at once, so that a replay tells what they would have needed. 0: they are
     * only counted. */
    uint32_t with_failed;
} memopt_trace_options;

/** @brief Initialiser of ::memopt_trace_options. */
#define MEMOPT_TRACE_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_trace_options), 0                                                            \
    }

/**
 * @brief Makes an empty trace.
 * @param options NULL for defaults.
 * @param[out] out_trace the trace; ended by memopt_trace_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_trace is NULL, or options->struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED options has an unknown part set.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_create(const memopt_trace_options *options,
                                             memopt_trace **out_trace);

/**
 * @brief Ends a trace.
 * @param trace the trace; NULL is fine.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_destroy(memopt_trace *trace);

/**
 * @brief Appends events.
 * @param trace the trace.
 * @param events `count` events in order; may be NULL if count is 0.
 * @param count how many.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an event has no ::memopt_trace_action
 *         or allocates on #MEMOPT_TRACE_OWN_STREAM; nothing was added.
 * @retval MEMOPT_LIMIT_REACHED more than 2^32 - 2 blocks alive or streams, or 2^64 bytes alive; the
 *         events before the one that the message names were added.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory; nothing was added.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_add(memopt_trace *trace, const memopt_trace_event *events,
                                          uint64_t count);

/**
 * @brief Appends the events of a piece of CSV text. Pieces may end anywhere; memopt_trace_end_csv()
 * comes after the last.
 *
 * The first line names the columns, in any order and case: `Action`, `Pointer` and `Size` have to
 * be among them, `Stream` may be (else every stream is 0), others are not read. An action is
 * `allocate` (`alloc`), `free` (`deallocate`) or `allocate failure`; a pointer is hexadecimal; a
 * size is bytes; a stream is decimal, or hexadecimal with 0x. Lines end with LF or CR LF; empty
 * ones, blanks around a field, double quotes around it and a byte order mark are skipped.
 * @param trace the trace.
 * @param text `bytes` bytes; may be NULL if bytes is 0.
 * @param bytes how many.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_CORRUPT a line is malformed; the message has its number and says what is wrong.
 * Also where 1048576 more lines are empty than there are events.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as of memopt_trace_add().
 *
 * After a failure the events of the lines before are in the trace and can be replayed; reading on
 * fails in the same way.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_parse_csv(memopt_trace *trace, const char *text,
                                                uint64_t bytes);

/**
 * @brief Ends a CSV text: reads its last line where that has no line end. Another text, with a
 * header of its own, may follow.
 * @param trace the trace.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT trace is NULL.
 * @retval MEMOPT_CORRUPT there was no header, or the last line is malformed: the text was cut off.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as of memopt_trace_add().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_end_csv(memopt_trace *trace);

/**
 * @brief Appends the events of a CSV file, from where it stands to its end.
 * @param trace the trace.
 * @param file an open file descriptor; it stays open.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT trace is NULL.
 * @retval MEMOPT_IO_ERROR it cannot be read; the driver code is errno.
 * @retval MEMOPT_CORRUPT, MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as of
 *         memopt_trace_parse_csv() and memopt_trace_end_csv().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_read_csv(memopt_trace *trace, int32_t file);

/**
 * @brief What a trace holds.
 * @param trace the trace.
 * @param[in,out] out_info struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_get_info(const memopt_trace *trace,
                                               memopt_trace_info *out_info);

/** @brief How far a replay or a search is. */
typedef struct memopt_replay_progress_info {
    size_t struct_size; /**< Set by the library. */
    uint64_t done;      /**< Events done so far, of all passes. */
    uint64_t total;     /**< Events in all; an estimate where a search is going on. */
    uint64_t capacity;  /**< The device's capacity now. */
} memopt_replay_progress_info;

/**
 * @brief Told every 65536 events, and at the end of each pass.
 * @param user as given.
 * @param info valid during the call only.
 * @return #MEMOPT_OK to go on; anything else ends the replay and comes out unchanged.
 */
typedef memopt_status (*memopt_replay_progress)(void *user,
                                                const memopt_replay_progress_info *info);

/** @brief What was alive and held during some events. */
typedef struct memopt_replay_sample {
    uint64_t event;          /**< The last of these events, from 1. */
    uint64_t live_bytes;     /**< The most requested bytes alive at once. */
    uint64_t reserved_bytes; /**< The most bytes held from the device. */
} memopt_replay_sample;

/** @brief How to replay; zero means the default. */
typedef struct memopt_replay_options {
    size_t struct_size;              /**< sizeof(memopt_replay_options). */
    const char *config;              /**< As of memopt_allocator_create(). */
    uint64_t capacity;               /**< Bytes of the device, rounded down to its granularity; 0:
                                          more than the trace takes. */
    uint64_t warm_passes;            /**< How often to replay once more with a filled cache, for
                                          times. */
    memopt_replay_sample *samples;   /**< Room for sample_room samples, or NULL. They come from a
                                          pass of their own, so they cost no times. */
    uint64_t sample_room;            /**< Most samples to take, over equal numbers of events. */
    memopt_replay_progress progress; /**< Told how far it is, or NULL. */
    void *progress_user;             /**< Handed to progress. */
} memopt_replay_options;

/** @brief Initialiser of ::memopt_replay_options. */
#define MEMOPT_REPLAY_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_replay_options), NULL, 0, 0, NULL, 0, NULL, NULL                             \
    }

/** @brief What a replay took. */
typedef struct memopt_replay_result {
    size_t struct_size;           /**< Set by the caller. */
    uint64_t capacity;            /**< Bytes of the device. */
    uint64_t events;              /**< Events done: all, or those before the one that failed. */
    uint64_t peak_live_bytes;     /**< The most requested bytes alive at once in the whole trace. */
    uint64_t peak_reserved_bytes; /**< The most bytes held from the device during these events. */
    double ratio;                 /**< peak_reserved_bytes over peak_live_bytes. */
    double first_ns_per_event;    /**< CPU time of the first pass, its device calls included. */
    double ns_per_event;          /**< CPU time of the fastest warm pass; of the first pass where
                                       there is no other. */
    uint64_t device_allocs;       /**< Device allocations (or mapped ranges) of the first pass. */
    uint64_t device_frees;        /**< Those given back. */
    uint64_t retries;           /**< Allocations that succeeded only after giving the cache back. */
    uint64_t sample_count;      /**< Samples written. */
    uint32_t out_of_memory;     /**< 1: an allocation failed and ended the replay. */
    uint64_t failed_bytes;      /**< What it asked for. */
    uint64_t failed_stream;     /**< On which stream of the trace. */
    uint64_t failed_live_bytes; /**< Requested bytes alive then. */
    uint64_t failed_reserved_bytes; /**< Bytes held from the device then, after all attempts. */
} memopt_replay_result;

/**
 * @brief Replays a trace: every allocation and free in order, on a "cpu" device and an allocator
 * that are made for it and ended after it.
 * @param trace the trace; it has an allocation.
 * @param options NULL for defaults.
 * @param[in,out] out_result struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done; also where memory ran out: out_of_memory says so.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, struct_size is too small, config is wrong, the
 *         capacity is below the device's granularity, or the trace has no allocation.
 * @retval MEMOPT_UNSUPPORTED options has an unknown part set.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR no memory, threads (each stream but the
 *         default one takes one) or addresses of the host.
 * @return progress's own value otherwise.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_replay(const memopt_trace *trace,
                                             const memopt_replay_options *options,
                                             memopt_replay_result *out_result);

/**
 * @brief Finds the smallest device that a trace completes on, in steps of 2 MiB.
 *
 * A bisection between the peak of live bytes and what is reserved on a device without limit: about
 * ten replays. It assumes that a device larger than one that the trace completes on will do as
 * well; where shapes vary, that can be off by a page or so. The trace does complete on the device
 * that is returned.
 * @param trace the trace; it has an allocation.
 * @param options NULL for defaults; capacity is the largest to try (0: no limit); warm_passes and
 *        samples are not used.
 * @param[out] out_capacity bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY it does not complete on the largest either; the message says
 *         where it stops.
 * @retval MEMOPT_INVALID_ARGUMENT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY,
 *         MEMOPT_DRIVER_ERROR as of memopt_trace_replay().
 * @return progress's own value otherwise.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_find_capacity(const memopt_trace *trace,
                                                    const memopt_replay_options *options,
                                                    uint64_t *out_capacity);

MEMOPT_END_DECLS

#endif /* MEMOPT_TRACE_H */
