/**
 * @file checkpoint.h
 * @brief Checkpoint regions: run a segment of the forward pass without keeping its activations, and
 *        run it again in backward when they are needed.
 *
 * A region is a callback that computes one segment (a layer, say) from inputs that the trainer
 * keeps to outputs that the trainer keeps. What it keeps for backward it leases from the region
 * with memopt_region_alloc(). The trainer's loop is then
 *
 *     forward:   for each layer: memopt_region_forward(region[i], stream)
 *     backward:  for each layer, last first:
 *                    memopt_region_recompute(region[i], stream)   leases are live again
 *                    ... backward of the layer, reads the leases ...
 *                    memopt_region_release(region[i])             leases are gone
 *
 * What the trainer holds between the two: the region's inputs (its weights included), unchanged,
 * and its outputs. Leases of the forward run end when memopt_region_forward() returns. With
 * ::MEMOPT_REGION_KEEP the same code keeps the leases and recomputes nothing, so that switching
 * checkpointing on and off is one option.
 *
 * Regions nest: a callback may run other regions forward; when it is run again they run forward
 * again, and their own recompute follows inside the backward.
 *
 * **Streams.** Everything is enqueued on the stream handed in; leases belong to it and are freed in
 * its order. Where recompute is on another stream than forward, the caller orders the two, as for
 * the region's inputs. Work of further streams on a lease is the caller's to tell, with
 * memopt_allocator_record_stream(). No call waits for the device unless its line says so.
 *
 * **Threads.** One thread at a time per region, any thread; forward and backward may be on
 * different ones.
 *
 * Which layers to recompute is what a ::memopt_schedule says: given what each stage of a chain
 * takes, it is the fastest order of forward runs and backward runs that stays within a byte budget.
 * The trainer asks it for one step after the other.
 */
#ifndef MEMOPT_CHECKPOINT_H
#define MEMOPT_CHECKPOINT_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief A checkpointed segment of a forward pass. */
typedef struct memopt_region memopt_region;

/** @brief Why a region's callback is called. */
typedef int32_t memopt_region_pass;

/** @brief The values of ::memopt_region_pass. */
enum {
    MEMOPT_PASS_FORWARD = 0,  /**< The first run; leases end with it (unless the region keeps). */
    MEMOPT_PASS_RECOMPUTE = 1 /**< The run before backward; leases live until release. */
};

/** @brief What a region does with its leases. */
typedef uint32_t memopt_region_mode;

/** @brief The values of ::memopt_region_mode. */
enum {
    MEMOPT_REGION_RECOMPUTE = 0, /**< Drop after forward, recompute for backward. */
    /** Keep: recompute() does nothing, except after a release (a second backward pass). */
    MEMOPT_REGION_KEEP = 1
};

/** @brief How recomputed values are compared with those of the first run. */
typedef uint32_t memopt_region_check_mode;

/** @brief The values of ::memopt_region_check_mode. */
enum {
    MEMOPT_CHECK_NONE = 0, /**< Not at all. */
    /** A 64-bit hash per 4 KiB, kept in device memory (0.2 %): a difference is found, and named by
     * region, tensor and the 4 KiB it lies in. */
    MEMOPT_CHECK_HASH = 1,
    /** A copy in host memory: the first differing byte is named with both values. */
    MEMOPT_CHECK_EXACT = 2
};

/** @brief What a region calls. All return #MEMOPT_OK or a value that comes out unchanged. */
typedef struct memopt_region_callbacks {
    size_t struct_size; /**< sizeof(memopt_region_callbacks). */
    /** Enqueues the segment on stream. Must enqueue the same work each time. Required. */
    memopt_status (*run)(void *user, memopt_region *region, memopt_region_pass pass,
                         memopt_stream stream);
    /** Writes the state of the caller's random generators (random_bytes bytes); NULL if none. It
     * must not depend on work that is still enqueued. */
    memopt_status (*random_save)(void *user, void *state);
    /** Sets it again. Required where random_save is set. */
    memopt_status (*random_restore)(void *user, const void *state);
    /** Handed to all of them. */
    void *user;
} memopt_region_callbacks;

/** @brief How to make a region; zero means the default. */
typedef struct memopt_region_options {
    size_t struct_size;    /**< sizeof(memopt_region_options). */
    const char *name;      /**< For messages; copied; NULL: "region". */
    uint32_t mode;         /**< A ::memopt_region_mode. */
    uint32_t check;        /**< A ::memopt_region_check_mode. */
    uint64_t random_bytes; /**< Size of the random state; 0: none is kept. */
} memopt_region_options;

/** @brief Initialiser of ::memopt_region_options. */
#define MEMOPT_REGION_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_region_options), NULL, 0, 0, 0                                               \
    }

/**
 * @brief Makes a region.
 * @param device the device.
 * @param allocator where leases come from; of the same device; it must outlive the region.
 * @param callbacks what to call; copied.
 * @param options NULL for defaults.
 * @param[out] out_region the region; ended by memopt_region_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer or a required callback is NULL, an option is out of
 *         range, random_bytes and random_save do not go together, or the allocator is of another
 *         device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_create(memopt_device *device, memopt_allocator *allocator,
                                              const memopt_region_callbacks *callbacks,
                                              const memopt_region_options *options,
                                              memopt_region **out_region);

/**
 * @brief Ends a region and its leases. With a check mode it waits for that mode's own work.
 * @param region the region; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY its callback is running; nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT the wait or a lease's free
 *         said so; the handle is gone all the same. A lease that could not be freed is left to the
 *         allocator as a live block. On a device that was known to be lost it succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_destroy(memopt_region *region);

/**
 * @brief Runs the segment for the first time: saves the random state, calls run, drops the leases.
 *
 * With ::MEMOPT_CHECK_EXACT it waits for the run before where a declared value has grown.
 * @param region a region that is not between forward and release (one that was run forward and not
 *        yet recomputed may be run forward again: the newer run counts).
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL.
 * @retval MEMOPT_BUSY it holds leases of an earlier run, or its callback is running.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @return a callback's own value otherwise. After any of the last three the region is as if never
 *         run, and the caller's random state is what it was before the call.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_forward(memopt_region *region, memopt_stream stream);

/**
 * @brief Runs the segment again with the random state of the first run, keeps the leases, compares
 *        what was declared, and puts the caller's random state back as it was.
 *
 * With a check mode other than none it waits for the stream, once (::MEMOPT_CHECK_HASH) or for each
 * value (::MEMOPT_CHECK_EXACT). In keep mode the kept leases become usable on the stream instead.
 * @param region a region that was run forward.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued; leases are valid in stream order.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL or was not run forward.
 * @retval MEMOPT_BUSY it holds leases already, or its callback is running.
 * @retval MEMOPT_MISMATCH recomputed values differ, or the run declared or leased other things than
 *         the first; the message names the region and the place. Leases are released.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DEVICE_FAULT,
 *         MEMOPT_DRIVER_ERROR as told.
 * @return a callback's own value otherwise. After every failure the region is as it was before, the
 *         random state too.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_recompute(memopt_region *region, memopt_stream stream);

/**
 * @brief Ends the leases after backward has been enqueued. The region can be run forward again, or,
 *        where its inputs still hold, recomputed again.
 * @param region the region.
 * @retval MEMOPT_OK done (also where there are no leases).
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL.
 * @retval MEMOPT_BUSY its callback is running.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_release(memopt_region *region);

/**
 * @brief Leases memory for a value that backward needs; only inside the region's callback.
 * @param region the region.
 * @param bytes the size; the n-th lease of each run must have the same size. 0 gives NULL.
 * @param[out] out_pointer the memory, aligned to 512 bytes, on the run's stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or no callback of this region is running.
 * @retval MEMOPT_MISMATCH the first run leased another size at this place.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_alloc(memopt_region *region, uint64_t bytes,
                                             void **out_pointer);

/**
 * @brief Declares a computed value for the content check; only inside the region's callback, after
 *        the work that computes it is enqueued. It counts as it is then: later work may overwrite
 *        it.
 *
 * Both runs declare the same values in the same order. A value that differs is told by
 * memopt_region_recompute(), not here, so that the callback runs to its end.
 * @param region the region.
 * @param name for messages; copied.
 * @param tensor device memory.
 * @retval MEMOPT_OK done (nothing is done with check mode none).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, tensor is not a tensor, or no callback of this
 *         region is running.
 * @retval MEMOPT_MISMATCH the first run declared another name or size at this place.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DEVICE_FAULT,
 *         MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_check(memopt_region *region, const char *name,
                                             const memopt_tensor *tensor);

/** @brief What a region has done. */
typedef struct memopt_region_stats {
    size_t struct_size;     /**< Set by the caller. */
    uint64_t forwards;      /**< Forward runs. */
    uint64_t recomputes;    /**< Recompute runs. */
    uint64_t leased_bytes;  /**< Bytes leased now. */
    uint64_t dropped_bytes; /**< Bytes of leases that the last forward run dropped. */
    uint64_t checked_bytes; /**< Bytes compared in all. */
} memopt_region_stats;

/**
 * @brief What a region has done.
 * @param region the region.
 * @param[in,out] out_stats struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_get_stats(memopt_region *region,
                                                 memopt_region_stats *out_stats);

/** @brief Bytes of a tensor that one content hash stands for. */
#define MEMOPT_CONTENT_GRANULE 4096u

/**
 * @brief Hashes a tensor's bytes: 64 bits for each #MEMOPT_CONTENT_GRANULE of it, the same on every
 *        back end.
 *
 * What #MEMOPT_CHECK_HASH uses, for programs that keep their activations elsewhere. Granules that
 * differ in one aligned 8-byte word never have the same hash, others meet with a chance of about
 * 2^-64; it finds mistakes, not forgery.
 * @param device the device.
 * @param tensor any element type, in device memory, at any address.
 * @param hashes device memory for ceil(bytes / #MEMOPT_CONTENT_GRANULE) hashes, aligned to 8.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued; nothing for an empty tensor.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or misaligned, the element type is none, the
 *         size does not fit 64 bits, or hashes overlaps the tensor.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR as told; nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_content_hash(memopt_device *device, uint64_t *hashes,
                                             const memopt_tensor *tensor, memopt_stream stream);

/** @brief What to run, and when, so that a chain of stages trains within a byte budget. */
typedef struct memopt_schedule memopt_schedule;

/**
 * @brief A stage of a chain: what it takes. Stage i reads value i and makes value i + 1; value 0 is
 *        the chain's input. Values and their gradients have the same size.
 */
typedef struct memopt_chain_stage {
    double forward_seconds;        /**< Time of its forward, finite, ≥ 0; any unit will do. */
    double backward_seconds;       /**< Time of its backward, in the same unit. */
    uint64_t output_bytes;         /**< Its output. */
    uint64_t saved_bytes;          /**< All that it keeps for backward beside its input; its output
                                        counts too, so this is at least output_bytes. */
    uint64_t forward_extra_bytes;  /**< What forward takes beyond that while it runs. */
    uint64_t backward_extra_bytes; /**< What backward takes beyond what is saved and the gradients
                                        of its output and input while it runs. */
} memopt_chain_stage;

/** @brief How to make a schedule; zero means the default. */
typedef struct memopt_schedule_options {
    size_t struct_size; /**< sizeof(memopt_schedule_options). */
    /** Bytes that the chain may take: values, what is saved, gradients of values (that of the last
     * one from the start), and extras. 0: no limit. */
    uint64_t budget;
    uint64_t input_bytes; /**< The chain's input; it counts against the budget. */
    /** 1: backward makes the gradient of the chain's input too. */
    uint32_t input_gradient;
    /** Steps into which the budget is cut when times are compared. 0: 500, fewer for chains of more
     * than 150 stages. More are finer and slower. At most 65536. */
    uint32_t slots;
} memopt_schedule_options;

/** @brief Initialiser of ::memopt_schedule_options. */
#define MEMOPT_SCHEDULE_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(memopt_schedule_options), 0, 0, 0, 0                                                \
    }

/** @brief An operation of a schedule. */
typedef uint32_t memopt_schedule_operation;

/** @brief The values of ::memopt_schedule_operation. */
enum {
    MEMOPT_SCHEDULE_FORWARD = 1,      /**< Run the stage, save nothing, drop its input. */
    MEMOPT_SCHEDULE_FORWARD_KEEP = 2, /**< Run the stage, save nothing, keep its input. */
    MEMOPT_SCHEDULE_FORWARD_SAVE = 3, /**< Run the stage and save what backward needs. */
    /** Run the stage's backward; then drop what it saved, its input and its output's gradient. */
    MEMOPT_SCHEDULE_BACKWARD = 4
};

/** @brief A step of a schedule. */
typedef struct memopt_schedule_step {
    size_t struct_size; /**< Set by the caller. */
    uint32_t operation; /**< A ::memopt_schedule_operation. */
    uint64_t stage;     /**< Which stage. */
} memopt_schedule_step;

/** @brief What a schedule costs. */
typedef struct memopt_schedule_info {
    size_t struct_size;      /**< Set by the caller. */
    uint64_t steps;          /**< Operations. */
    uint64_t peak_bytes;     /**< The most that is alive at once: at most the budget. */
    uint64_t minimum_budget; /**< The smallest budget that any schedule of this chain needs. */
    uint64_t recomputed;     /**< Forward runs beyond one a stage. */
    double seconds;          /**< Time of all operations. */
    double seconds_plain;    /**< Time without recomputation. */
} memopt_schedule_info;

/**
 * @brief Finds the fastest schedule of a chain within a byte budget.
 *
 * Where everything fits, nothing is recomputed. Else the optimal persistent schedule is found by
 * dynamic programming (Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova, "Optimal checkpointing
 * for heterogeneous chains", 2019), with sizes rounded up to the budget's slots; where only
 * rounding stands in the way, a schedule of least memory. Time O(count³ · slots), about a second at
 * most with the default slots; parts of the chain that are alike are solved once, so that count
 * equal stages take O(count² · slots), a few milliseconds.
 * @param stages what each stage takes; copied.
 * @param count stages, from 1 to 1024.
 * @param options the budget; NULL: no limit.
 * @param[out] out_schedule the schedule, before its first step; ended by
 *             memopt_schedule_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, count or slots is out of range, or a stage
 *         has a time that is negative or not finite, saves less than its output, or sizes do not
 *         fit 64 bits; the message names the stage.
 * @retval MEMOPT_LIMIT_REACHED no schedule fits; the message says which budget would do.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_create(const memopt_chain_stage *stages, uint64_t count,
                                                const memopt_schedule_options *options,
                                                memopt_schedule **out_schedule);

/**
 * @brief Ends a schedule.
 * @param schedule the schedule; NULL is fine.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_destroy(memopt_schedule *schedule);

/**
 * @brief What a schedule costs.
 * @param schedule the schedule.
 * @param[in,out] out_info struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_get_info(const memopt_schedule *schedule,
                                                  memopt_schedule_info *out_info);

/**
 * @brief The next step. One thread at a time per schedule, any thread.
 * @param schedule the schedule.
 * @param[in,out] out_step struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_NOT_READY there is none: the last has been given (the last error is not written).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_next(memopt_schedule *schedule,
                                              memopt_schedule_step *out_step);

/**
 * @brief Goes back before the first step.
 * @param schedule the schedule.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT schedule is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_rewind(memopt_schedule *schedule);

MEMOPT_END_DECLS

#endif /* MEMOPT_CHECKPOINT_H */
