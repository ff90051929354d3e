/**
 * @file allocator.h
 * @brief A caching, stream-ordered allocator of device memory with expandable segments.
 *
 * Freed blocks are cached and reused without a driver call. A block belongs to the stream that it
 * was allocated on. It may be freed while that stream still works on it, because the next owner on
 * the same stream comes later in stream order. If other streams use a block, call
 * memopt_allocator_record_stream() before the block is freed.
 *
 * **Threads.** Every function may be called from any thread at any time. One exception: no other
 * call may run during destroy. Callbacks are called without a lock held. A call that the cache can
 * serve never waits for a call that is in the driver.
 *
 * **Streams.** Allocating and freeing are host operations. Only the free of a block with recorded
 * streams enqueues something: one event on each of those streams. Only trim, destroy and an
 * allocation under memory pressure wait for device work, and only for the events and streams that
 * they need. While a stream records a graph, the allocator records and queries no event of it;
 * while one that it, its parent or a pool knows does, it waits for nothing and gives no memory
 * back. Frees that need events of a stream that records are completed after the capture.
 *
 * **Pools.** memopt_pool_create() makes a pool of an allocator: one more allocator that shares the
 * device and the limit with its parent. Every function here takes a pool.
 *
 * **A stream's end.** Blocks may outlive the stream that they were allocated on or recorded for.
 * memopt_stream_destroy() handles that; for streams that other code created, call
 * memopt_stream_release_sync(). Then any other stream can get the stream's free blocks. Its
 * recorded uses count as complete, including those of frees that a capture defers. Its live blocks
 * belong to no stream from then on and are freed later like any other.
 *
 * **Page-locked memory.** With #MEMOPT_MEMORY_PINNED an allocator caches page-locked host memory:
 * locking pages takes a driver call and up to a millisecond for each 4 MiB. The host reads and
 * writes such memory at once, not in stream order. So a freed block is reused only when the work of
 * the stream it was allocated for, and of all recorded ones, is complete at the host. Any stream
 * can get it then. Requests above 1 MiB get a segment of their own, rounded up to 4 KiB. The limit
 * is one of host memory. Expandable segments, pausing and a memory fraction are of device memory
 * only.
 */
#ifndef MEMOPT_ALLOCATOR_H
#define MEMOPT_ALLOCATOR_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

/** @brief A caching allocator of one device. */
typedef struct memopt_allocator memopt_allocator;

/**
 * @brief A pool: an allocator that belongs to a parent.
 *
 * It has its own blocks, cache, statistics, trace and limit. It shares the parent's device, limit,
 * tags and callbacks. A block is freed through the handle that it was allocated from.
 */
typedef memopt_allocator memopt_pool;

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
 * @brief Called when no cached block fits, before the allocator asks the device for more memory and
 *        before it gives cached memory back.
 * @param user the pointer given in the options.
 * @param bytes_needed the size that could not be served.
 * @return the bytes that the callback has freed, through this handle or another one; 0 if none. The
 *        value is only logged: the cache is searched again in any case.
 *
 * It may call the allocator, for example to free blocks. Allocations that it makes do without
 * callbacks. It runs on the thread that allocates. It may run on several threads at once.
 */
typedef uint64_t (*memopt_pressure_callback)(void *user, uint64_t bytes_needed);

/**
 * @brief Called when an allocation fails for good.
 * @param user the pointer given in the options.
 * @param asked the requested bytes.
 * @param free_bytes device memory free at that moment; UINT64_MAX of page-locked memory and with a
 *        provider.
 * @param report the text that memopt_last_error() will return; valid during the call only.
 *
 * It may call the allocator. Freeing memory here does not retry the allocation.
 */
typedef void (*memopt_oom_callback)(void *user, uint64_t asked, uint64_t free_bytes,
                                    const char *report);

/** @brief What kind of memory an allocator caches. */
typedef uint32_t memopt_allocator_memory;

/** @brief The values of ::memopt_allocator_memory. */
enum {
    MEMOPT_MEMORY_DEVICE = 0, /**< Device memory. */
    MEMOPT_MEMORY_PINNED = 1  /**< Page-locked host memory, as of memopt_host_alloc(). */
};

/**
 * @brief Functions that give an allocator its memory in place of the device's driver.
 *
 * They are called where the driver would be: rarely, on the thread that allocates, trims or
 * destroys, and by one thread at a time. They may call nothing of the same allocator or its pools
 * but memopt_allocator_free() and allocations that the cache serves; other calls return
 * #MEMOPT_BUSY.
 */
typedef struct memopt_memory_provider {
    size_t struct_size; /**< sizeof(memopt_memory_provider). */
    /**
     * Gives `bytes` bytes (a multiple of 2 MiB, or of 4 KiB of page-locked memory) at a multiple of
     * 512 that the device can use. #MEMOPT_OUT_OF_DEVICE_MEMORY or #MEMOPT_OUT_OF_HOST_MEMORY:
     * there is no more; the allocator then gives free memory back and asks again. Any other status
     * ends the allocation and is what it returns.
     */
    memopt_status (*alloc)(void *user, uint64_t bytes, void **out_pointer);
    /**
     * Takes memory back, with the same address and bytes. All work on it is complete. After a
     * failure the allocator keeps it, or drops it if the allocator is being destroyed.
     */
    memopt_status (*free)(void *user, void *pointer, uint64_t bytes);
    void *user; /**< Handed to both. */
} memopt_memory_provider;

/** @brief Initialiser of ::memopt_memory_provider. */
#define MEMOPT_MEMORY_PROVIDER_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_memory_provider), NULL, NULL, NULL                                           \
    }

/** @brief How to make an allocator; zero means the default. */
typedef struct memopt_allocator_options {
    size_t struct_size;                     /**< sizeof(memopt_allocator_options). */
    uint64_t limit;                         /**< Most bytes to hold from the device, pools included;
                                                 0: no limit. */
    memopt_pressure_callback pressure;      /**< Free-memory callback, or NULL. */
    void *pressure_user;                    /**< Handed to pressure. */
    memopt_oom_callback oom;                /**< Out-of-memory observer, or NULL. */
    void *oom_user;                         /**< Handed to oom. */
    uint32_t memory;                        /**< A ::memopt_allocator_memory; with a provider, what
                                                 kind of memory that gives. */
    const memopt_memory_provider *provider; /**< Where memory comes from, copied; NULL: the driver.
                                                 With one, there are no expandable segments, and no
                                                 memory fraction. */
} memopt_allocator_options;

/** @brief Initialiser of ::memopt_allocator_options. */
#define MEMOPT_ALLOCATOR_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_allocator_options), 0, NULL, NULL, NULL, NULL, 0, NULL                       \
    }

/**
 * @brief Creates an allocator.
 * @param device the device; it must outlive the allocator.
 * @param config a configuration string in the format of PYTORCH_CUDA_ALLOC_CONF:
 *        "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8"; one
 *        key, idle_release_seconds, is this library's own. NULL and a trailing comma are accepted. The
 *        allocator guide lists every key. Keys that concern only PyTorch's internals are accepted
 *        without effect and logged.
 * @param options NULL for defaults.
 * @param[out] out_allocator the allocator; destroy it with memopt_allocator_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT device or out_allocator is NULL, options->struct_size is too
 *         small, or config has an unknown key (the message names the nearest valid one) or a value
 *         out of range, or options->memory is no ::memopt_allocator_memory, or a function of
 *         options->provider is NULL.
 * @retval MEMOPT_UNSUPPORTED config asks for expandable segments on a device without virtual
 *         memory, or for expandable segments or a memory fraction of page-locked memory or with a
 *         provider, or options sets a field that this version does not know.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_create(memopt_device *device, const char *config,
                                                 const memopt_allocator_options *options,
                                                 memopt_allocator **out_allocator);

/** @brief How to make a pool; zero means the default. */
typedef struct memopt_pool_options {
    size_t struct_size; /**< sizeof(memopt_pool_options). */
    const char *name; /**< Who uses the pool, for messages: at most 31 characters, which are copied.
                           NULL: "". */
    const char *config; /**< As for memopt_allocator_create(); NULL: as the parent. */
    uint64_t limit;  /**< Most bytes that the pool may hold from the device; 0: the parent's limit
                          only. */
    uint32_t retain; /**< 1: its free memory stays with it until it is trimmed, also when the
                          parent or another pool runs out of memory. Memory that recorded graphs
                          use must stay. */
} memopt_pool_options;

/** @brief Initialiser of ::memopt_pool_options. */
#define MEMOPT_POOL_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_pool_options), NULL, NULL, 0, 0                                              \
    }

/**
 * @brief Creates a pool of an allocator.
 * @param parent the allocator, which is no pool itself; it cannot be destroyed while the pool
 *        exists.
 * @param options NULL for defaults.
 * @param[out] out_pool the pool; destroy it with memopt_allocator_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT parent or out_pool is NULL, parent is a pool,
 *         options->struct_size is too small, options->name is too long, or options->config has an
 *         unknown key or a value out of range.
 * @retval MEMOPT_UNSUPPORTED options->config asks for expandable segments on a device without
 *         virtual memory, options sets a field that this version does not know, or this is the
 *         child of a fork of the process that made the allocator.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @since 0.9
 *
 * The parent's limit counts what the parent and its pools hold together. Before one of them reports
 * #MEMOPT_OUT_OF_DEVICE_MEMORY, free memory of the others goes back to the device: what is needed,
 * or all of it, but not that of pools with options->retain, and nothing while a stream that one of
 * them knows records a graph. The call waits for the work of the streams whose memory goes back.
 * The parent's pressure callback and out-of-memory observer are called for its pools, too.
 * memopt_tag numbers are the same in all of them.
 */
MEMOPT_API memopt_status memopt_pool_create(memopt_allocator *parent,
                                            const memopt_pool_options *options,
                                            memopt_pool **out_pool);

/** @brief What an allocator or a pool is. */
typedef struct memopt_allocator_info {
    size_t struct_size;    /**< Set by the caller. */
    memopt_device *device; /**< The device. */
    const char *name; /**< Of a pool, as its options gave it, as long as the pool lives; "" of an
                                allocator, or where there is none. */
    uint64_t paused_tags; /**< #MEMOPT_TAG_BIT of each paused tag; UINT64_MAX: all are, those of the
                                future, too. */
} memopt_allocator_info;

/** @brief Initialiser of ::memopt_allocator_info. */
#define MEMOPT_ALLOCATOR_INFO_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_allocator_info), NULL, NULL, 0                                               \
    }

/**
 * @brief Tells what an allocator or a pool is.
 * @param allocator the allocator, or a pool.
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_info(memopt_allocator *allocator,
                                                   memopt_allocator_info *out_info);

/** @brief What happens to the contents of a pool's blocks while it is paused. */
typedef uint32_t memopt_pause;

/** @brief The values of ::memopt_pause. */
enum {
    MEMOPT_PAUSE_DISCARD = 0, /**< They are lost: after the resume the bytes are undefined. */
    MEMOPT_PAUSE_KEEP = 1, /**< They move to page-locked host memory and come back bit for bit. */
    MEMOPT_PAUSE_FILE = 2  /**< They move to a file and come back bit for bit. */
};

/** @brief The bit of a tag in a set of tags. */
#define MEMOPT_TAG_BIT(tag) (UINT64_C(1) << (tag))

/** @brief What to pause, and how; zero means the default. */
typedef struct memopt_pause_options {
    size_t struct_size; /**< sizeof(memopt_pause_options). */
    uint64_t tags;    /**< Whose blocks: #MEMOPT_TAG_BIT of each tag; 0: all that are not paused. */
    const char *path; /**< For #MEMOPT_PAUSE_FILE, else NULL: a folder, or the name of a file that
                           does not exist. The file has no name as soon as it is open, so it ends
                           with the pause or the process. */
    memopt_pause how; /**< A ::memopt_pause. */
} memopt_pause_options;

/** @brief Initialiser of ::memopt_pause_options. */
#define MEMOPT_PAUSE_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_pause_options), 0, NULL, MEMOPT_PAUSE_DISCARD                                \
    }

/** @brief What a pause has done. */
typedef struct memopt_pause_report {
    size_t struct_size;      /**< sizeof(memopt_pause_report). */
    uint64_t released_bytes; /**< Bytes given back to the device. */
    uint64_t shared_bytes;   /**< Bytes of pages that hold blocks of the tags and stay, because they
                                  hold other blocks, too. */
    uint64_t kept_bytes;     /**< Bytes of contents that moved. */
} memopt_pause_report;

/** @brief Initialiser of ::memopt_pause_report. */
#define MEMOPT_PAUSE_REPORT_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_pause_report), 0, 0, 0                                                       \
    }

/**
 * @brief Gives the physical memory of a pool's blocks back to the device, of all or of some tags.
 *        They keep their addresses, and memopt_pool_resume_sync() gives them memory again.
 * @param pool a pool, or an allocator (without its pools). Its segments are expandable ones.
 * @param options which tags, and what happens to the contents; NULL for defaults, which pauses all
 *        and discards.
 * @param[out] out_report what was done; may be NULL.
 * @retval MEMOPT_OK the tags are paused. A page that the driver has refused to unmap still counts
 *         in "reserved_bytes.all.current"; it does no harm.
 * @retval MEMOPT_INVALID_ARGUMENT pool is NULL, a struct_size is too small, a tag is not
 *         registered, options->how is no ::memopt_pause, or options->path is there without
 *         #MEMOPT_PAUSE_FILE, missing with it, or names a file that exists.
 * @retval MEMOPT_BUSY one of the tags is paused already, or a stream that the parent or one of its
 *         pools knows records a graph.
 * @retval MEMOPT_IO_ERROR the file could not be made or written, as when the disk is full.
 * @retval MEMOPT_UNSUPPORTED the configuration does not have expandable_segments:True, the driver
 *         has refused to map memory before, so that the pool has classic segments, this is the
 *         child of a fork of the process that made the pool, or options sets a field that this
 *         version does not know.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the contents or for the list of pages.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait, a copy or the driver
 *         failed; see memopt_last_error().
 * @since 0.9
 *
 * The call waits for all work of the device. The pages that go are those that hold blocks of the
 * tags and nothing else but free memory. Blocks of other tags stay usable, and more of them can be
 * allocated; an allocation with a paused tag gives #MEMOPT_BUSY. A page that blocks of other tags
 * share stays, and out_report->shared_bytes counts it: a pool for each tag shares none. No work may
 * use blocks of a paused tag, not even one whose pages have stayed: on a GPU it would fault. They
 * can be freed; their memory is used again after the resume.
 *
 * #MEMOPT_PAUSE_KEEP takes as much page-locked host memory as the pages hold. With
 * #MEMOPT_PAUSE_FILE the contents go through a buffer of 8 MiB and are synchronised with the disk
 * before the memory goes. The file is as large as the pages. After any failure the tags are not
 * paused, the blocks work as before and no file is left; cached memory may have gone back. The
 * other members of the pool's family work meanwhile, but calls that need the device wait.
 *
 * While all tags of a pool are paused, its memory serves the parent, other pools and other
 * processes, and a trim does nothing. Without live blocks it can be destroyed without a resume.
 * With memopt_pool_options::retain, free memory is paused too, so that graphs can be replayed after
 * the resume; without it, free memory is returned to the device. Thread-safe.
 */
MEMOPT_API memopt_status memopt_pool_pause_sync(memopt_pool *pool,
                                                const memopt_pause_options *options,
                                                memopt_pause_report *out_report);

/**
 * @brief Gives the blocks of paused tags memory again. Tags that were paused by one call come back
 *        together.
 * @param pool the pool, or allocator.
 * @param tags #MEMOPT_TAG_BIT of each tag; 0: all that are paused.
 * @retval MEMOPT_OK their blocks have their addresses and the contents that were kept.
 * @retval MEMOPT_INVALID_ARGUMENT pool is NULL.
 * @retval MEMOPT_BUSY one of the tags is not paused, or a stream that the parent or one of its
 *         pools knows records a graph.
 * @retval MEMOPT_IO_ERROR the file could not be read.
 * @retval MEMOPT_CORRUPT what was read from the file is not what was written.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the pool.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY the device or a limit has too little left, also after the
 *         parent and its other pools have given back what they have free.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a
 *         host allocation, the driver, a copy or a wait failed; see memopt_last_error().
 * @since 0.9
 *
 * After a failure the tags whose pause could not be undone stay paused, and what is kept stays
 * kept, so the call can be repeated; what several calls have paused comes back pause by pause.
 * Waits for the copies on the default stream. Thread-safe.
 */
MEMOPT_API memopt_status memopt_pool_resume_sync(memopt_pool *pool, uint64_t tags);

/** @brief The values of memopt_range_event::kind. */
enum {
    MEMOPT_RANGE_MAPPED = 1,   /**< The range has got memory and can be used. */
    MEMOPT_RANGE_UNMAPPING = 2 /**< The range is about to lose its memory. No work uses it. */
};

/** @brief A range of addresses that has got memory or is about to lose it. */
typedef struct memopt_range_event {
    size_t struct_size;          /**< sizeof(memopt_range_event) of the library. */
    uint32_t kind;               /**< #MEMOPT_RANGE_MAPPED or #MEMOPT_RANGE_UNMAPPING. */
    memopt_allocator *allocator; /**< The allocator or pool that holds the range. */
    void *address;               /**< The first byte. */
    uint64_t bytes;              /**< The size. A range may end in part, or with its neighbours. */
    uint64_t generation; /**< The number of the event: larger than that of every earlier one of the
                              allocator and its pools. What is known of an address from an event
                              with a smaller number is out of date. */
} memopt_range_event;

/** @brief Initialiser of ::memopt_range_event. */
#define MEMOPT_RANGE_EVENT_INIT                                                                    \
    {                                                                                              \
        sizeof(memopt_range_event), 0, NULL, NULL, 0, 0                                            \
    }

/**
 * @brief Follows the ranges of an allocator, for registrations of memory (NCCL, RDMA) that must not
 *        outlive it.
 * @param user the pointer given with the function.
 * @param event what happens; it is valid during the call.
 * @return #MEMOPT_OK, or a status (from #MEMOPT_STATUS_USER on for one's own) to refuse. A refused
 *         #MEMOPT_RANGE_MAPPED range is unmapped again, and a refused #MEMOPT_RANGE_UNMAPPING range
 *         stays mapped; the call that caused the event fails with the status, but for a pause,
 *         which keeps the range and succeeds if any other one goes. The observer counts as not
 *         having seen a refused event; observers that had agreed get the opposite event. Where a
 *         failed growth is undone, where a range stays because the driver or another observer wants
 *         so, and where an allocator is destroyed, the status is ignored.
 *
 * It runs in the thread whose call caused the event, under no lock. Other threads allocate from the
 * cache and free meanwhile; calls that change the ranges of the allocator or its pools wait for it.
 * So it must not wait for another thread that makes such a call. It may itself call
 * memopt_allocator_free(), memopt_allocator_alloc() (which gives #MEMOPT_BUSY if the cache does not
 * suffice), and read statistics; all other calls with the allocator or its pools that would change
 * ranges or the list of observers fail with #MEMOPT_BUSY. While a stream records a graph it must
 * not do what the capture forbids.
 */
typedef memopt_status (*memopt_range_observer)(void *user, const memopt_range_event *event);

/**
 * @brief Adds an observer of the ranges of an allocator. First it is told of every range that is
 *        mapped now.
 * @param allocator an allocator, for its own ranges and those of all its pools, also of later ones;
 *        or a pool, for that pool's.
 * @param function the observer.
 * @param user passed to it.
 * @param[out] out_number the observer's number, for memopt_allocator_remove_range_observer().
 * @retval MEMOPT_OK it is called from now on, until it is removed or the allocator or pool is
 *         destroyed; the destruction unmaps what is left and tells it so.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_BUSY the call comes from an observer of the allocator.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for it.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @return also the status with which the observer has refused a range; it gets no further event.
 * @since 0.9
 *
 * Observers are called in the order in which they were added. Ranges are expandable segments'
 * pages, whole runs of them in one event, and classic segments as a whole. Trims, moved pages,
 * pauses, resumes and growth make events; allocations from the cache and frees do not. Thread-safe.
 */
MEMOPT_API memopt_status memopt_allocator_add_range_observer(memopt_allocator *allocator,
                                                             memopt_range_observer function,
                                                             void *user, uint64_t *out_number);

/**
 * @brief Removes an observer of ranges. When the call returns, it does not run and is not called
 *        again; it gets no event for what is mapped.
 * @param allocator the allocator or pool that it was added to, its parent or a pool of that.
 * @param number the observer's number.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @retval MEMOPT_NOT_FOUND there is no such observer; nothing changed.
 * @retval MEMOPT_BUSY the call comes from an observer of the allocator.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_remove_range_observer(memopt_allocator *allocator,
                                                                uint64_t number);

/**
 * @brief Checks a configuration string without a device.
 * @param config as for memopt_allocator_create(); NULL is valid.
 * @retval MEMOPT_OK it is valid.
 * @retval MEMOPT_INVALID_ARGUMENT it has an unknown key (the message names the nearest valid one)
 *         or a value out of range.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_check_config(const char *config);

/**
 * @brief Gives all memory back to the device and destroys the allocator. Waits for pending frees
 *        and for the work of the streams whose memory it gives back.
 * @param allocator the allocator; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY blocks are still allocated (the message counts them by tag), or pools of the
 *         allocator exist. Nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait or a driver call
 *         failed; the handle and its blocks are destroyed anyway. If the device was already known
 *         to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_destroy(memopt_allocator *allocator);

/**
 * @brief Destroys an allocator as memopt_allocator_destroy() does, but first waits for the device
 *        and frees the blocks that are still allocated.
 * @param allocator the allocator; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY pools of the allocator exist. Nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait or a driver call
 *         failed; the handle and its blocks are destroyed anyway. If the device was already known
 *         to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_destroy_force(memopt_allocator *allocator);

/**
 * @brief Allocates device memory for work on a stream.
 * @param allocator the allocator.
 * @param bytes the size. It is rounded up to 512 bytes, or as the key roundup_power2_divisions
 *        says. 0 gives a NULL pointer and #MEMOPT_OK.
 * @param tag the purpose of the block.
 * @param stream the stream whose work will use it first.
 * @param[out] out_pointer the block, aligned to 512 bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the tag is not registered, bytes overflows
 *         when rounded, or the driver can tell that there is no such stream.
 * @retval MEMOPT_BUSY the pool is paused; see memopt_pool_pause_sync().
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY every attempt listed below failed. The message gives the
 *         requested, free and cached bytes, the largest free block, the top tags and what to try.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed, or every attempt did and the
 *         allocator caches page-locked memory; nothing allocated.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed or the device is lost; see
 *         memopt_last_error(); nothing allocated.
 * @retval MEMOPT_DEVICE_FAULT under memory pressure, a wait found misuse of device memory; nothing
 *         allocated.
 *
 * If no cached block fits, the allocator tries in this order: complete the pending frees whose
 * events are done; call the pressure callback; collect garbage; allocate from the device; give
 * oversize blocks back; wait for pending frees; give cached memory back and allocate from the
 * device again; give back what the parent's other pools and the parent have free, and allocate from
 * the device again; use a classic segment no larger than the block; search the cache once more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_alloc(memopt_allocator *allocator, uint64_t bytes,
                                                memopt_tag tag, memopt_stream stream,
                                                void **out_pointer);

/**
 * @brief Frees a block. Work of its stream that uses it may still be pending.
 * @param allocator the allocator.
 * @param pointer the block from memopt_allocator_alloc(); NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, or pointer is not a live block of this
 *         allocator: a double free, a foreign pointer or an address inside a block. The message
 *         says which.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR the event of a recorded stream could not
 *         be recorded; the block stays allocated. This cannot happen to a block without recorded
 *         streams.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_free(memopt_allocator *allocator, void *pointer);

/**
 * @brief Records that another stream uses a block. After its free, the block is reused only when
 *        the work that was on that stream at the free is done, or behind it: where no cached block
 *        fits, the block's own stream waits for that work on the device and reuses the block.
 * @param allocator the allocator.
 * @param pointer a live block.
 * @param stream the other stream. The block's own stream and one that is already recorded are
 *        allowed and change nothing. The stream may be destroyed before the block is freed: see
 *        memopt_stream_release_sync().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, pointer is not a live block of this allocator,
 *         or the driver can tell that there is no such stream.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation failed or no event could
 *         be created; nothing recorded.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                        memopt_stream stream);

/**
 * @brief Finds the first byte and the usable size of a live block.
 * @param allocator the allocator.
 * @param pointer an address inside a live block.
 * @param[out] out_base the block's first byte; may be NULL.
 * @param[out] out_bytes the block's size after rounding; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL or no live block holds the address.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_block(memopt_allocator *allocator,
                                                    const void *pointer, void **out_base,
                                                    uint64_t *out_bytes);

/**
 * @brief Gives unused cached memory back to the device until the allocator holds at most `target`
 *        bytes: the statistic "reserved_bytes.all.current". What was freed longest ago goes first,
 *        and the rest stays cached. Live blocks are not touched.
 * @param allocator the allocator.
 * @param target bytes; 0: all that is unused goes. At or above what is held now, nothing is given
 *        back and nothing is waited for.
 * @param[out] out_released bytes given back; may be NULL.
 * @retval MEMOPT_OK done. If live blocks need more than target, all that is free was given back and
 *         more than target is held. While a stream that the allocator knows records a graph,
 *         nothing is given back.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a
 *         host allocation, the driver or a wait failed; see memopt_last_error(). Memory that was
 *         not given back stays cached.
 *
 * Memory of an expandable segment goes page by page, so less than a page more than needed is given
 * back; a classic segment goes as a whole. Ages are counted in allocations: frees between two of
 * them are equally old, and adjoining free blocks are as old as the one that was freed last. The
 * call waits for the work of the streams whose memory it gives back, and for pending frees only if
 * the memory that is free already does not suffice. It may be called from any thread; others may
 * allocate meanwhile, which may raise what is held again.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t target,
                                                    uint64_t *out_released);

/**
 * @brief Sets the limit on the bytes that the allocator and its pools hold from the device.
 * @param allocator the allocator; of a pool, the limit is its own.
 * @param limit bytes; 0: no limit. If the allocator holds more than limit now, it does not grow
 *        until enough is freed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_set_limit(memopt_allocator *allocator, uint64_t limit);

/**
 * @brief Tells of device memory that others hold and that counts as this allocator's: another
 *        library's in the same process, such as a context, a workspace or a cache. It counts below
 *        the limits of the allocator and its parent, and the out-of-memory message names it.
 * @param allocator the allocator or a pool.
 * @param tag what it is for; register a tag with the other library's name.
 * @param bytes how much it is now, in place of what was told before for this tag; 0: none. At most
 *        2^48. If more than the limit is held now, the allocator does not grow until enough is freed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, tag is not registered, or bytes is too large.
 * @retval MEMOPT_BUSY called by a range observer.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_set_outside(memopt_allocator *allocator, memopt_tag tag,
                                                      uint64_t bytes);

/**
 * @brief Registers a tag.
 * @param allocator the allocator.
 * @param name up to 31 characters. A name that is already registered gives the same tag.
 * @param[out] out_tag the tag.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or name is empty or too long.
 * @retval MEMOPT_LIMIT_REACHED 64 tags are already registered.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_register_tag(memopt_allocator *allocator,
                                                       const char *name, memopt_tag *out_tag);

MEMOPT_END_DECLS

#include <memopt/allocator_report.h>
#include <memopt/allocator_steps.h>

#endif /* MEMOPT_ALLOCATOR_H */
