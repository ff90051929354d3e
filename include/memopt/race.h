/**
 * @file race.h
 * @brief A finder of stream races: operations on the same bytes that nothing orders.
 *
 * A program tells the finder what its host does, in that order: which operation it enqueues on which
 * stream with which memory, which waits and events it makes, what it allocates and frees. The finder
 * executes nothing and looks at no memory. It judges all orders that the streams' rules permit, so a
 * race is found in every run, whatever the timing. memopt_device_get_race() gives the finder that a
 * "cpu" device feeds.
 *
 * **Actors.** The host is actor #MEMOPT_RACE_HOST; streams are those of memopt_race_add_stream().
 * Operations of a stream run in order. What the host enqueues comes after all that the host has
 * done and waited for before.
 *
 * **Found.** Two accesses to a byte, at least one of them a write, by different actors, where the
 * second is not ordered behind the first; and a block of device memory that its stream's allocator
 * may hand out again while another stream uses it. Of the accesses to a byte before a write that
 * replaces it, and of the reads of one stream, only the last ones are kept: there is a report
 * whenever there is a race, but not one for each pair.
 *
 * **Bounded memory.** Beyond memopt_race_options::max_bytes the finder forgets the accesses that
 * were longest ago. memopt_race_stats::forgotten counts them. What is forgotten can hide a race and
 * never makes a false one. So does what finds no host memory.
 *
 * **Tags.** A tag is a number of the caller's for an operation: a line, a stack, a pointer to a
 * name. Reports repeat it.
 *
 * **Threads.** Every function may be called from any thread. The host is one actor, whatever the
 * number of its threads.
 * @since 0.9
 */
#ifndef MEMOPT_RACE_H
#define MEMOPT_RACE_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief A finder. */
typedef struct memopt_race memopt_race;

/** @brief The actor that is the host. */
#define MEMOPT_RACE_HOST 0
/** @brief The most streams of a finder. */
#define MEMOPT_RACE_MOST_STREAMS 1023
/** @brief The most dimensions of a memopt_race_access. */
#define MEMOPT_RACE_MOST_DIMS 64

/** @brief What an access does; bits. */
typedef uint32_t memopt_race_mode;

/** @brief The values of ::memopt_race_mode. */
enum {
    MEMOPT_RACE_READ = 1, /**< Reads. */
    MEMOPT_RACE_WRITE = 2 /**< Writes. */
};

/** @brief Whose allocator a block is of. */
typedef uint32_t memopt_race_memory;

/** @brief The values of ::memopt_race_memory. */
enum {
    MEMOPT_RACE_OUTSIDE = 0, /**< Memory that is no block. */
    MEMOPT_RACE_DEVICE = 1,  /**< Device memory: a free block may go to the next allocation of its
                                  stream at once. */
    MEMOPT_RACE_PINNED = 2   /**< Page-locked memory: its allocator waits for its uses by itself. */
};

/** @brief What a report is about. */
typedef uint32_t memopt_race_kind;

/**
 * @brief The values of ::memopt_race_kind. In the first three the second access may be the host's,
 *        and one that reads and writes counts as a write.
 */
enum {
    MEMOPT_RACE_READ_AFTER_WRITE = 1, /**< The second access reads what the first one writes. */
    MEMOPT_RACE_WRITE_AFTER_READ = 2, /**< The second access overwrites what the first one reads. */
    MEMOPT_RACE_WRITE_AFTER_WRITE = 3, /**< Both write. */
    /** A block was freed while another stream used it; the second operation is the allocation that
     * may get it. */
    MEMOPT_RACE_FREED_IN_USE = 4
};

/** @brief How to make a finder; zero means the default. */
typedef struct memopt_race_options {
    size_t struct_size; /**< sizeof(memopt_race_options). */
    /** The most bytes for accesses. 0: 1/20 of the most bytes of blocks that were live at once,
     * and at least 16 MiB. */
    uint64_t max_bytes;
    uint64_t max_reports; /**< The most reports that are kept. 0: 1000. */
    /** 1: equal addresses are the same memory, in whichever block, so that a new block inherits the
     * uses of what was there; 0: it has none. */
    uint32_t inherit;
    uint32_t reserved; /**< 0. */
} memopt_race_options;

/** @brief Initialiser of ::memopt_race_options. */
#define MEMOPT_RACE_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_race_options), 0, 0, 0, 0                                                    \
    }

/**
 * @brief Memory that an operation uses: elements of `bytes` bytes at
 *        address + Σ index[d] * strides[d], for 0 ≤ index[d] < shape[d]; without dimensions the
 *        bytes [address, address + bytes).
 *
 * Strides may be 0, negative, and in any order. An element count of 0 uses nothing.
 */
typedef struct memopt_race_access {
    uint64_t address;       /**< Of the element with all indices 0. */
    uint64_t bytes;         /**< Of one element; with no dimensions, of all. 0: nothing is used. */
    const int64_t *shape;   /**< dims elements, each at least 0. Read during the call. */
    const int64_t *strides; /**< dims elements, in bytes. Read during the call. */
    uint32_t dims;          /**< 0 to #MEMOPT_RACE_MOST_DIMS. */
    memopt_race_mode mode;  /**< Bits of ::memopt_race_mode, at least one. */
} memopt_race_access;

/** @brief One of the two operations of a report. */
typedef struct memopt_race_side {
    uint64_t tag;   /**< The operation's. */
    uint32_t actor; /**< A stream, or #MEMOPT_RACE_HOST. */
    uint32_t write; /**< 1: it writes; 0: it reads. */
} memopt_race_side;

/** @brief A race. */
typedef struct memopt_race_report {
    size_t struct_size;        /**< Set by the caller. */
    memopt_race_kind kind;     /**< What it is. */
    memopt_race_memory memory; /**< Where it is. */
    /** The bytes that both use, from the first to the last one: not each between them is common
     * where an access has strides. Of #MEMOPT_RACE_FREED_IN_USE those of the first access. */
    uint64_t address;
    uint64_t bytes;         /**< Their number. */
    uint64_t block_address; /**< The block; 0 outside of blocks. */
    uint64_t block_bytes;   /**< Its size; 0 outside of blocks. */
    memopt_race_side first; /**< The access that came first. */
    /** The one that is not ordered behind it. Of #MEMOPT_RACE_FREED_IN_USE the allocation. */
    memopt_race_side second;
    uint64_t freed_tag; /**< Of #MEMOPT_RACE_FREED_IN_USE: the tag of the free. */
    uint32_t waiter;    /**< This actor lacks a wait… */
    uint32_t waited;    /**< …for this stream, between the two. */
} memopt_race_report;

/** @brief Initialiser of ::memopt_race_report. */
#define MEMOPT_RACE_REPORT_INIT                                                                    \
    {                                                                                              \
        sizeof(memopt_race_report), 0, 0, 0, 0, 0, 0, {0, 0, 0}, {0, 0, 0}, 0, 0, 0                \
    }

/** @brief What a finder has seen and holds. */
typedef struct memopt_race_stats {
    size_t struct_size;  /**< Set by the caller. */
    uint64_t operations; /**< Operations of streams and of the host. */
    uint64_t blocks;     /**< Live blocks. */
    uint64_t ranges;     /**< Ranges whose last accesses are kept. */
    uint64_t bytes;      /**< Host memory of the finder, in bytes. */
    uint64_t bytes_peak; /**< The most that it was. */
    /** What was given up: ranges forgotten, blocks displaced by others at their addresses, pairs of
     * strided accesses that were too large to compare or have gaps in two dimensions, reports beyond
     * max_reports. */
    uint64_t forgotten;
    uint64_t reports; /**< Reports kept. */
} memopt_race_stats;

/** @brief Initialiser of ::memopt_race_stats. */
#define MEMOPT_RACE_STATS_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_race_stats), 0, 0, 0, 0, 0, 0, 0                                             \
    }

/**
 * @brief Makes a finder that has seen nothing and knows the host only.
 * @param options NULL for defaults.
 * @param[out] out_race the finder; end it with memopt_race_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_race is NULL, struct_size is too small, inherit is not 0 or 1,
 *         or reserved is not 0.
 * @retval MEMOPT_UNSUPPORTED an option is unknown.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_create(const memopt_race_options *options,
                                            memopt_race **out_race);

/**
 * @brief Ends a finder and all that it knows.
 * @param race the finder; NULL does nothing. No other call may use it meanwhile. Not a device's,
 *        which memopt_device_close() ends.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_destroy(memopt_race *race);

/**
 * @brief Adds a stream. Its work comes after all that the host has done and waited for so far.
 * @param race the finder.
 * @param[out] out_stream its number: 1, 2, …
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_LIMIT_REACHED there are #MEMOPT_RACE_MOST_STREAMS streams. When the host has waited
 *         for a stream that ends, its number can serve the next one.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_add_stream(memopt_race *race, uint32_t *out_stream);

/**
 * @brief A block begins: an allocation from the allocator of a stream.
 *
 * Nothing is known of its bytes, but for memopt_race_options::inherit. Reports
 * #MEMOPT_RACE_FREED_IN_USE for each block of device memory that was freed on this stream since its
 * last allocation, and each other stream that uses it, where neither memopt_race_record_stream()
 * covers the use nor a wait orders it before this call. A block
 * that is live at these addresses is displaced by the new one, as if it had never been.
 * @param race the finder.
 * @param address the first byte.
 * @param bytes the size; 0 makes no block.
 * @param memory #MEMOPT_RACE_DEVICE or #MEMOPT_RACE_PINNED.
 * @param stream the stream that it is allocated on. Not used for page-locked memory.
 * @param tag the allocation's.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL, the range wraps around, memory is neither, or there
 *         is no such stream. Nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_allocate(memopt_race *race, uint64_t address, uint64_t bytes,
                                              memopt_race_memory memory, uint32_t stream,
                                              uint64_t tag);

/**
 * @brief A block ends. Device memory may go to the next allocation of its stream.
 * @param race the finder.
 * @param address the block's first byte; where no block begins, nothing happens.
 * @param tag the free's.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_free(memopt_race *race, uint64_t address, uint64_t tag);

/**
 * @brief The allocator will not hand the block out before the work that is on a stream when it is
 *        freed is complete (PyTorch's `record_stream`).
 * @param race the finder.
 * @param address any byte of a block; where there is none, nothing happens.
 * @param stream the stream that uses it.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL or there is no such stream.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_record_stream(memopt_race *race, uint64_t address,
                                                   uint32_t stream);

/**
 * @brief The host enqueues an operation on a stream, or uses memory itself, now. Reports the races of
 *        its accesses.
 * @param race the finder.
 * @param actor the stream, or #MEMOPT_RACE_HOST.
 * @param tag the operation's.
 * @param accesses what it uses. An operation that reads and writes a range has one access with both
 *        bits.
 * @param count their number; 0: an operation without memory.
 * @retval MEMOPT_OK done; memopt_race_get_stats() tells whether there are new reports.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, there is no such actor, or an access is
 *         malformed: no mode, too many dimensions, a negative shape, a range that wraps around. The
 *         message has its index. Nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_run(memopt_race *race, uint32_t actor, uint64_t tag,
                                         const memopt_race_access *accesses, uint32_t count);

/**
 * @brief An actor waits for all work that is on a stream now.
 * @param race the finder.
 * @param waiter the stream whose later work waits, or the host.
 * @param waited the stream that is waited for. The host: nothing happens.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL or there is no such stream.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_wait(memopt_race *race, uint32_t waiter, uint32_t waited);

/**
 * @brief Records an event behind the work that is on a stream now.
 * @param race the finder.
 * @param stream the stream.
 * @param[in,out] event 0: a new event, whose number is written; else the event is recorded anew, and
 *        who waited for it before keeps the earlier record.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or there is no such stream or event.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for it. Nothing changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_record(memopt_race *race, uint32_t stream, uint64_t *event);

/**
 * @brief An actor waits for an event's last record: a stream, or the host that waits or has seen a
 *        query succeed.
 * @param race the finder.
 * @param waiter the stream whose later work waits, or the host.
 * @param event the event.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL, or there is no such actor or event.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_wait_event(memopt_race *race, uint32_t waiter, uint64_t event);

/**
 * @brief Ends an event. What waits for it still does.
 * @param race the finder.
 * @param event the event; 0 does nothing. Its number may be given out again.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT race is NULL or there is no such event.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_drop_event(memopt_race *race, uint64_t event);

/**
 * @brief What the finder has seen and holds.
 * @param race the finder.
 * @param[in,out] out_stats the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_get_stats(memopt_race *race, memopt_race_stats *out_stats);

/**
 * @brief Reads a report. Reports are kept in the order in which they were found, one for each
 *        kind and pair of tags.
 * @param race the finder.
 * @param index 0 to memopt_race_stats::reports - 1.
 * @param[in,out] out_report the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such report.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_race_get_report(memopt_race *race, uint64_t index,
                                                memopt_race_report *out_report);

MEMOPT_END_DECLS

#endif /* MEMOPT_RACE_H */
