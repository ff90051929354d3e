/**
 * @file trace.h
 * @brief Traces of allocations: read them, replay them through the allocator without a GPU, and
 *        find the smallest device on which they complete.
 *
 * A trace is a list of allocations, frees and recorded streams. Each has an id (usually an
 * address), a size and a stream. A replay performs them in order on its own "cpu" device. It never
 * touches that memory: it needs addresses and page tables, not the gigabytes of the trace.
 *
 * **Threads.** One thread at a time may change a trace. Replays and searches of one trace may run
 * concurrently.
 *
 * **Streams.** Stream 0 is the default stream; every other number is a stream of its own. A block
 * may be recorded for any number of streams. If it is freed on another stream than its own, it is
 * first recorded for that stream too. Their work counts as complete, so no figure depends on
 * timing. Of two equally good holes the replay takes the one at the lower address. The system
 * chooses the addresses of classic segments, so their figures can differ by a fraction of a percent
 * between processes.
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
    /** An allocation failed when the trace was recorded; see memopt_trace_options::with_failed. The
     * id is ignored. */
    MEMOPT_TRACE_FAILED = 3,
    /** The block's memory is used on this stream too; see memopt_allocator_record_stream(). Nothing
     * if it does not live or the stream is its own. */
    MEMOPT_TRACE_RECORD_STREAM = 4
};

/** @brief As the stream of a free: the stream on which the block was allocated. */
#define MEMOPT_TRACE_OWN_STREAM UINT64_MAX

/** @brief One event. */
typedef struct memopt_trace_event {
    uint64_t id;     /**< Identifies the block from its allocation to its free; then another block
                          may use it. */
    uint64_t bytes;  /**< The requested size; ignored in a free and a recorded stream. */
    uint64_t stream; /**< Any number; 0 is the default stream. */
    uint64_t action; /**< A ::memopt_trace_action. */
} memopt_trace_event;

/** @brief Contents of a trace and irregularities found in it. */
typedef struct memopt_trace_info {
    size_t struct_size;         /**< Set by the caller. */
    uint64_t events;            /**< The allocations, frees and recorded streams that a replay
                                     performs. */
    uint64_t allocations;       /**< Allocations among them. */
    uint64_t streams;           /**< Different streams. */
    uint64_t peak_live_bytes;   /**< The most requested bytes alive at once. */
    uint64_t peak_live_blocks;  /**< The most blocks alive at once. */
    uint64_t live_bytes;        /**< Requested bytes alive at the end. */
    uint64_t live_blocks;       /**< Blocks alive at the end. */
    uint64_t lines;             /**< Lines of text read, headers included. */
    uint64_t unknown_frees;     /**< Frees of blocks that the trace never allocated, from before the
                                     recording. They are left out. */
    uint64_t first_unknown;     /**< The record of the first one: its line in a text, else the
                                     number of the added event, from 1; 0 if none. */
    uint64_t double_frees;      /**< Frees of blocks that were already freed. They are left out. */
    uint64_t first_double;      /**< The record of the first; 0 if none. */
    uint64_t lost_frees;        /**< Allocations with the id of a live block. Its free is missing
                                     and is inserted before them. */
    uint64_t first_lost;        /**< The record of the first; 0 if none. */
    uint64_t empty_allocations; /**< Allocations of 0 bytes. They and their frees are left out. */
    uint64_t failed_allocations; /**< Allocations that failed when the trace was recorded. */
    uint64_t failed_bytes;       /**< The largest of them. */
} memopt_trace_info;

/** @brief Initialiser of ::memopt_trace_info. */
#define MEMOPT_TRACE_INFO_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_trace_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0               \
    }

/** @brief How to make a trace; zero means the default. */
typedef struct memopt_trace_options {
    size_t struct_size; /**< sizeof(memopt_trace_options). */
    /** 1: allocations that failed when the trace was recorded (lines "allocate failure") are
     * replayed and freed at once. A replay then shows what they would have needed. 0: they are
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
 * @param[out] out_trace the trace; destroy it with memopt_trace_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_trace is NULL, or options->struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED options sets a field that this version does not know.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_create(const memopt_trace_options *options,
                                             memopt_trace **out_trace);

/**
 * @brief Destroys a trace.
 * @param trace the trace; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_destroy(memopt_trace *trace);

/**
 * @brief Appends events.
 * @param trace the trace.
 * @param events `count` events in order; may be NULL if count is 0.
 * @param count the number of events.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or an event has no valid ::memopt_trace_action
 *         or allocates on or records #MEMOPT_TRACE_OWN_STREAM; nothing was added.
 * @retval MEMOPT_LIMIT_REACHED more than 2^32 - 2 live blocks, 2^31 - 1 streams or 2^64 live bytes;
 *         the events before the one that the message names were added.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; nothing was added.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_add(memopt_trace *trace, const memopt_trace_event *events,
                                          uint64_t count);

/**
 * @brief Appends the events of a piece of CSV text. A piece may end anywhere. Call
 *        memopt_trace_end_csv() after the last one.
 *
 * The first line names the columns, in any order and case. `Action`, `Pointer` and `Size` are
 * required. `Stream` is optional; without it every stream is 0. Other columns are ignored. An
 * action is `allocate` (`alloc`), `free` (`deallocate`), `record stream` or `allocate failure`. A
 * pointer is hexadecimal, a size is in bytes, a stream is decimal, or hexadecimal with 0x. Lines
 * end with LF or CR LF. Empty lines, blanks around a field, double quotes around it and a byte
 * order mark are skipped.
 * @param trace the trace.
 * @param text `bytes` bytes; may be NULL if bytes is 0.
 * @param bytes the number of bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_CORRUPT a line is malformed; the message has its number and the reason. Also if
 *         there are 1048576 more empty lines than events.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as for memopt_trace_add().
 *
 * After a failure the events of the earlier lines are in the trace and can be replayed; further
 * pieces fail in the same way.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_parse_csv(memopt_trace *trace, const char *text,
                                                uint64_t bytes);

/**
 * @brief Ends a CSV text: reads its last line if that has no line end. Another text, with its own
 *        header, may follow.
 * @param trace the trace.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT trace is NULL.
 * @retval MEMOPT_CORRUPT there was no header, or the last line is malformed: the text was cut off.
 * @retval MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as for memopt_trace_add().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_end_csv(memopt_trace *trace);

/**
 * @brief Appends the events of a CSV file, from its current position to its end.
 * @param trace the trace.
 * @param file an open file descriptor; it stays open.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT trace is NULL.
 * @retval MEMOPT_IO_ERROR the file cannot be read; the driver code is errno.
 * @retval MEMOPT_CORRUPT, MEMOPT_LIMIT_REACHED, MEMOPT_OUT_OF_HOST_MEMORY as for
 *         memopt_trace_parse_csv() and memopt_trace_end_csv().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_read_csv(memopt_trace *trace, int32_t file);

/**
 * @brief Reads the contents of a trace.
 * @param trace the trace.
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_get_info(const memopt_trace *trace,
                                               memopt_trace_info *out_info);

/** @brief Progress of a replay or a search. */
typedef struct memopt_replay_progress_info {
    size_t struct_size; /**< Set by the library. */
    uint64_t done;      /**< Events done so far, of all passes. */
    uint64_t total;     /**< Total events; an estimate during a search. */
    uint64_t capacity;  /**< The capacity of the current device. */
} memopt_replay_progress_info;

/** @brief Initialiser of ::memopt_replay_progress_info. */
#define MEMOPT_REPLAY_PROGRESS_INFO_INIT                                                           \
    {                                                                                              \
        sizeof(memopt_replay_progress_info), 0, 0, 0                                               \
    }

/**
 * @brief Called every 65536 events, and at the end of each pass.
 * @param user the pointer given in the options.
 * @param info valid during the call only.
 * @return #MEMOPT_OK to continue. Any other value ends the replay and is returned unchanged.
 */
typedef memopt_status (*memopt_replay_progress)(void *user,
                                                const memopt_replay_progress_info *info);

/** @brief Live and held memory during some events. */
typedef struct memopt_replay_sample {
    uint64_t event;          /**< The last of these events, from 1. */
    uint64_t live_bytes;     /**< The most requested bytes alive at once. */
    uint64_t reserved_bytes; /**< The most bytes held from the device. */
} memopt_replay_sample;

/** @brief How to replay; zero means the default. */
typedef struct memopt_replay_options {
    size_t struct_size;              /**< sizeof(memopt_replay_options). */
    const char *config;              /**< As for memopt_allocator_create(). */
    uint64_t capacity;               /**< Bytes of the device, rounded down to its granularity; 0:
                                          more than the trace needs. */
    uint64_t warm_passes;            /**< The number of additional passes with a filled cache, to
                                          measure times. */
    memopt_replay_sample *samples;   /**< Room for sample_room samples, or NULL. A separate pass
                                          takes them, so they do not change times. */
    uint64_t sample_room;            /**< The most samples to take, over equal numbers of events. */
    memopt_replay_progress progress; /**< Called with the progress, or NULL. */
    void *progress_user;             /**< Passed to progress. */
    uint64_t steps;                  /**< Not 0: the trace is replayed once more, as a step that
                                          repeats: once to learn it, then so many times with the
                                          plan of memopt_allocator_mark_step(). */
    uint64_t lag;                    /**< As memopt_device_options::lag: the device's work lags so
                                          many events behind the host, as on a busy GPU. 0: streams
                                          are idle. */
} memopt_replay_options;

/** @brief Initialiser of ::memopt_replay_options. */
#define MEMOPT_REPLAY_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_replay_options), NULL, 0, 0, NULL, 0, NULL, NULL, 0, 0                       \
    }

/** @brief Result of a replay. */
typedef struct memopt_replay_result {
    size_t struct_size;           /**< Set by the caller. */
    uint64_t capacity;            /**< Bytes of the device. */
    uint64_t events;              /**< Events performed: all, or those before the one that failed.
                                   */
    uint64_t peak_live_bytes;     /**< The most requested bytes alive at once in the whole trace. */
    uint64_t peak_reserved_bytes; /**< The most bytes held from the device during these events. */
    double ratio;                 /**< peak_reserved_bytes over peak_live_bytes. */
    double first_ns_per_event;    /**< CPU time of the first pass, device calls included. */
    double ns_per_event;          /**< CPU time of the fastest warm pass, or of the first pass if
                                       there is no other. */
    uint64_t device_allocs;       /**< Device allocations (or mapped ranges) of the first pass. */
    uint64_t device_frees;        /**< Of those, the ones given back. */
    uint64_t retries;           /**< Allocations that succeeded only after giving the cache back. */
    uint64_t sample_count;      /**< Samples written. */
    uint32_t out_of_memory;     /**< 1: an allocation failed and ended the replay. */
    uint64_t failed_bytes;      /**< The size that it requested. */
    uint64_t failed_stream;     /**< The stream of the trace. */
    uint64_t failed_live_bytes; /**< Requested bytes alive at that time. */
    uint64_t failed_reserved_bytes; /**< Bytes held from the device at that time, after all
                                         attempts. */
    /* With options->steps, of the steps with the plan; 0 where one of them failed. */
    uint64_t planned_steps;          /**< Steps that went wholly as planned. */
    uint64_t planned_reserved_bytes; /**< The most bytes held from the device. */
    double planned_ratio;            /**< planned_reserved_bytes over peak_live_bytes. */
    double planned_ns_per_event;     /**< CPU time of the fastest step. */
    uint64_t planned_device_calls; /**< Device allocations and frees (or ranges) of all of them. */
    uint64_t plan_bytes;           /**< The ranges that the plan takes. */
    uint64_t plan_least_bytes;     /**< What no plan can do with less than. */
} memopt_replay_result;

/** @brief Initialiser of ::memopt_replay_result. */
#define MEMOPT_REPLAY_RESULT_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_replay_result), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0                                                                                \
    }

/**
 * @brief Replays a trace: every allocation, recorded stream and free in order, on its own "cpu"
 *        device and allocator.
 * @param trace the trace. It must contain an allocation.
 * @param options NULL for defaults.
 * @param[in,out] out_result the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done, also if memory ran out: see out_of_memory.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, struct_size is too small, config is invalid,
 *         the capacity is below the device's granularity, or the trace has no allocation.
 * @retval MEMOPT_UNSUPPORTED options sets a field that this version does not know.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR the host has too little memory, threads
 *         (one per stream except the default one) or addresses.
 * @return otherwise the value that progress returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_replay(const memopt_trace *trace,
                                             const memopt_replay_options *options,
                                             memopt_replay_result *out_result);

/**
 * @brief Finds the smallest device on which a trace completes, in steps of 2 MiB.
 *
 * A bisection between the peak of live bytes and the bytes reserved on a device without limit:
 * about ten replays. It assumes that a trace also completes on every larger device. If sizes vary,
 * the result can be too large by about a page. The trace always completes on the returned device.
 * @param trace the trace. It must contain an allocation.
 * @param options NULL for defaults. capacity is the largest device to try (0: no limit);
 *        warm_passes and samples are ignored.
 * @param[out] out_capacity the capacity in bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY the trace does not complete on the largest device; the
 *         message says where it stops.
 * @retval MEMOPT_INVALID_ARGUMENT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY,
 *         MEMOPT_DRIVER_ERROR as for memopt_trace_replay().
 * @return otherwise the value that progress returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trace_find_capacity(const memopt_trace *trace,
                                                    const memopt_replay_options *options,
                                                    uint64_t *out_capacity);

MEMOPT_END_DECLS

#endif /* MEMOPT_TRACE_H */
