/**
 * @file checkpoint.h
 * @brief Checkpoint regions: run a segment of the forward pass without keeping its activations, and
 *        run it again in backward.
 *
 * A region is a callback that computes one segment, for example a layer. The trainer keeps the
 * inputs and the outputs of the segment. For values that only backward needs, the callback leases
 * memory from the region with memopt_region_alloc(). The trainer's loop is:
 *
 *     forward:   for each layer: memopt_region_forward(region[i], stream)
 *     backward:  for each layer, last first:
 *                    memopt_region_recompute(region[i], stream)   leases are live again
 *                    ... backward of the layer, reads the leases ...
 *                    memopt_region_release(region[i])             leases are gone
 *
 * Between forward and backward the trainer keeps the region's inputs unchanged, weights included,
 * and its outputs. Leases of the forward run end when memopt_region_forward() returns. With
 * ::MEMOPT_REGION_KEEP the same code keeps the leases and recomputes nothing: one option switches
 * checkpointing on and off.
 *
 * Regions can be nested: a callback may run other regions forward. When the outer region is
 * recomputed, its callback runs the inner ones forward again; each inner region is then recomputed
 * in its own backward.
 *
 * **Streams.** All work is enqueued on the stream that the caller passes. Leases belong to that
 * stream and are freed in its order. If recompute uses another stream than forward, the caller
 * orders the two streams, as for the region's inputs. If other streams use a lease, call
 * memopt_allocator_record_stream(). No call waits for the device unless its description says so.
 *
 * **Threads.** One thread at a time per region. Any thread may call, and forward and backward may
 * run on different threads.
 *
 * A ::memopt_schedule decides which layers to recompute. From the time and memory of each stage of
 * a chain it computes the fastest order of forward and backward runs that stays within a byte
 * budget. The trainer asks it for one step after the other.
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
    MEMOPT_PASS_FORWARD = 0,  /**< The first run; leases end with it, unless the region keeps them.
                               */
    MEMOPT_PASS_RECOMPUTE = 1 /**< The run before backward; leases live until release. */
};

/** @brief What a region does with its leases. */
typedef uint32_t memopt_region_mode;

/** @brief The values of ::memopt_region_mode. */
enum {
    MEMOPT_REGION_RECOMPUTE = 0, /**< Drop leases after forward, recompute them for backward. */
    /** Keep the leases: memopt_region_recompute() does nothing, except after a release (a second
     * backward pass). */
    MEMOPT_REGION_KEEP = 1
};

/** @brief How recomputed values are compared with those of the first run. */
typedef uint32_t memopt_region_check_mode;

/** @brief The values of ::memopt_region_check_mode. */
enum {
    MEMOPT_CHECK_NONE = 0, /**< No comparison. */
    /** A 64-bit hash per 4 KiB, kept in device memory (0.2 %). A mismatch is reported with the
     * region, the tensor and the 4 KiB in which it lies. */
    MEMOPT_CHECK_HASH = 1,
    /** A copy in host memory. A mismatch is reported with the first differing byte and both values.
     * */
    MEMOPT_CHECK_EXACT = 2
};

/**
 * @brief Callbacks of a region. Each returns #MEMOPT_OK or a value that the outer call returns
 *        unchanged. They must not throw: see memopt_region_reset().
 */
typedef struct memopt_region_callbacks {
    size_t struct_size; /**< sizeof(memopt_region_callbacks). */
    /** Enqueues the segment on stream. Must enqueue the same work each time. Required. */
    memopt_status (*run)(void *user, memopt_region *region, memopt_region_pass pass,
                         memopt_stream stream);
    /** Writes the state of the caller's random generators, random_bytes bytes. It must not depend
     * on work that is still enqueued. NULL: no state. */
    memopt_status (*random_save)(void *user, void *state);
    /** Sets the state again. Required if random_save is set. */
    memopt_status (*random_restore)(void *user, const void *state);
    /** Passed to all of them. */
    void *user;
} memopt_region_callbacks;

/** @brief Initialiser of ::memopt_region_callbacks. */
#define MEMOPT_REGION_CALLBACKS_INIT                                                               \
    {                                                                                              \
        sizeof(memopt_region_callbacks), NULL, NULL, NULL, NULL                                    \
    }

/** @brief How to make a region; zero means the default. */
typedef struct memopt_region_options {
    size_t struct_size;    /**< sizeof(memopt_region_options). */
    const char *name;      /**< For messages; copied; NULL: "region". */
    uint32_t mode;         /**< A ::memopt_region_mode. */
    uint32_t check;        /**< A ::memopt_region_check_mode. */
    uint64_t random_bytes; /**< Size of the random state; 0: none. */
} memopt_region_options;

/** @brief Initialiser of ::memopt_region_options. */
#define MEMOPT_REGION_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_region_options), NULL, 0, 0, 0                                               \
    }

/**
 * @brief Creates a region.
 * @param device the device.
 * @param allocator the source of leases. It must be of the same device and must outlive the region.
 * @param callbacks the callbacks; copied.
 * @param options NULL for defaults.
 * @param[out] out_region the region; destroy it with memopt_region_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer or a required callback is NULL, an option is out of
 *         range, only one of random_bytes and random_save is set, or the allocator is of another
 *         device.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_create(memopt_device *device, memopt_allocator *allocator,
                                              const memopt_region_callbacks *callbacks,
                                              const memopt_region_options *options,
                                              memopt_region **out_region);

/**
 * @brief Destroys a region and its leases. With a check mode it waits for the check's own work.
 * @param region the region; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY its callback is running. Nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT the wait or the free of a
 *         lease failed; the region is destroyed anyway. A lease that could not be freed stays a
 *         live block of the allocator. If the device was already known to be lost, the call
 *         succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_destroy(memopt_region *region);

/**
 * @brief Runs the segment for the first time: saves the random state, calls run, drops the leases.
 *
 * With ::MEMOPT_CHECK_EXACT, if a declared value has grown, the call waits for the previous run.
 * @param region a region that backward does not use: recomputed regions are released first. It may
 *        be run forward several times before a recompute, for an evaluation for example; then the
 *        last run counts, and leases that an earlier one kept (::MEMOPT_REGION_KEEP) end.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL.
 * @retval MEMOPT_BUSY the region was recomputed and not released, or its callback is running.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error().
 * @return otherwise the callback's own value. After any of the last three, the region is as if it
 *        had never run, and the caller's random state is the one before the call.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_forward(memopt_region *region, memopt_stream stream);

/**
 * @brief Runs the segment again with the random state of the first run, keeps the leases, compares
 *        the declared values, and restores the caller's random state.
 *
 * With a check mode the call waits for the stream: once with ::MEMOPT_CHECK_HASH, for each value
 * with ::MEMOPT_CHECK_EXACT. In keep mode the segment is not run; the kept leases become usable on
 * the stream.
 * @param region a region that was run forward.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued; leases are valid in stream order.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL or was not run forward.
 * @retval MEMOPT_BUSY the region holds leases already, or its callback is running.
 * @retval MEMOPT_MISMATCH recomputed values differ, or the run declared or leased other things than
 *         the first run. The message names the region and the place. The leases are released.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DEVICE_FAULT,
 *         MEMOPT_DRIVER_ERROR a host allocation, a device allocation or the driver failed or device
 *         memory was misused; see memopt_last_error().
 * @return otherwise the callback's own value. After every failure the region and the random state
 *        are as before the call.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_recompute(memopt_region *region, memopt_stream stream);

/**
 * @brief Ends the leases after backward has been enqueued. Then the region can be run forward
 *        again, or, if its inputs are unchanged, be recomputed again.
 * @param region the region.
 * @retval MEMOPT_OK done, also without leases.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL.
 * @retval MEMOPT_BUSY its callback is running.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_release(memopt_region *region);

/**
 * @brief Makes a region as if it had never run, whatever it is in, after a callback was left by a
 *        C++ exception or a longjmp.
 *
 * Callbacks must return. One that is left otherwise leaves its region, and the regions around it,
 * as if the callback still ran: every call returns #MEMOPT_BUSY. The reset ends all leases and
 * restores the caller's random state if the pass had changed it. Call it outside of the region's
 * callback.
 * @param region the region.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT region is NULL.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT
 *         the driver or a host allocation failed; see memopt_last_error(). The region is reset; a
 *         lease that could not be freed is freed by a later call.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the region.
 * @return otherwise the value that random_restore returned; the region is reset.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_reset(memopt_region *region);

/**
 * @brief Leases memory for a value that backward needs. Call it only inside the region's callback.
 * @param region the region.
 * @param bytes the size. The n-th lease of each run must have the same size. 0 gives NULL.
 * @param[out] out_pointer the memory, aligned to 512 bytes, on the run's stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or no callback of this region is running.
 * @retval MEMOPT_MISMATCH the first run leased another size at this position.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_alloc(memopt_region *region, uint64_t bytes,
                                             void **out_pointer);

/**
 * @brief Declares a computed value for the content check. Call it only inside the region's
 *        callback, after the work that computes the value is enqueued. The value at this point of
 *        the stream is checked; later work may overwrite it.
 *
 * Both runs must declare the same values in the same order. memopt_region_recompute() reports a
 * value that differs; this call does not, so the callback runs to its end.
 * @param region the region.
 * @param name the name in messages; copied.
 * @param tensor device memory.
 * @retval MEMOPT_OK done. Without a check mode the call does nothing.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, tensor is invalid, or no callback of this
 *         region is running.
 * @retval MEMOPT_MISMATCH the first run declared another name or size at this position.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DEVICE_FAULT,
 *         MEMOPT_DRIVER_ERROR a host allocation, a device allocation or the driver failed or device
 *         memory was misused; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_check(memopt_region *region, const char *name,
                                             const memopt_tensor *tensor);

/** @brief Counters of a region. */
typedef struct memopt_region_stats {
    size_t struct_size;     /**< Set by the caller. */
    uint64_t forwards;      /**< Forward runs. */
    uint64_t recomputes;    /**< Recompute runs. */
    uint64_t leased_bytes;  /**< Bytes leased now. */
    uint64_t dropped_bytes; /**< Bytes of leases that the last forward run dropped. */
    uint64_t checked_bytes; /**< Bytes compared so far. */
} memopt_region_stats;

/** @brief Initialiser of ::memopt_region_stats. */
#define MEMOPT_REGION_STATS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_region_stats), 0, 0, 0, 0, 0                                                 \
    }

/**
 * @brief Reads the counters of a region.
 * @param region the region.
 * @param[in,out] out_stats the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_region_get_stats(memopt_region *region,
                                                 memopt_region_stats *out_stats);

/** @brief Bytes of a tensor that one content hash stands for. */
#define MEMOPT_CONTENT_GRANULE 4096u

/**
 * @brief Hashes a tensor: 64 bits for each #MEMOPT_CONTENT_GRANULE bytes, the same on every back
 *        end.
 *
 * This is the hash of #MEMOPT_CHECK_HASH, for programs that keep their activations elsewhere. Two
 * granules that differ in exactly one aligned 8-byte word never have the same hash. Other different
 * granules have the same hash with a probability of about 2^-64. The hash finds mistakes; it does
 * not protect against forgery.
 * @param device the device.
 * @param[out] hashes device memory for ceil(bytes / #MEMOPT_CONTENT_GRANULE) hashes, aligned to 8.
 * @param tensor any element type, in device memory, at any address.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued; nothing for an empty tensor.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or misaligned, the element type is invalid, the
 *         size does not fit 64 bits, or hashes overlaps the tensor.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR a host allocation or the driver failed;
 *         see memopt_last_error(); nothing enqueued.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_content_hash(memopt_device *device, uint64_t *hashes,
                                             const memopt_tensor *tensor, memopt_stream stream);

/**
 * @brief A schedule: the order of operations with which a chain of stages trains within a byte
 *        budget.
 */
typedef struct memopt_schedule memopt_schedule;

/**
 * @brief Cost of one stage of a chain. Stage i reads value i and computes value i + 1; value 0 is
 *        the chain's input. A value and its gradient have the same size.
 */
typedef struct memopt_chain_stage {
    double forward_seconds;        /**< Time of its forward, finite, ≥ 0, in any unit. */
    double backward_seconds;       /**< Time of its backward, in the same unit. */
    uint64_t output_bytes;         /**< Size of its output. */
    uint64_t saved_bytes;          /**< Size of everything that it keeps for backward except its
                                        input. Its output is included, so this is at least
                                        output_bytes. */
    uint64_t forward_extra_bytes;  /**< Additional memory of forward while it runs. */
    uint64_t backward_extra_bytes; /**< Memory of backward while it runs, in addition to what is
                                        saved and the gradients of its output and input. */
} memopt_chain_stage;

/** @brief How to make a schedule; zero means the default. */
typedef struct memopt_schedule_options {
    size_t struct_size; /**< sizeof(memopt_schedule_options). */
    /** The most bytes that the chain may take: values, saved values, gradients of values (that of
     * the last value from the start) and additional memory. 0: no limit. */
    uint64_t budget;
    uint64_t input_bytes; /**< Size of the chain's input; part of the budget. */
    /** 1: backward also computes the gradient of the chain's input. */
    uint32_t input_gradient;
    /** The number of slots into which the budget is divided when times are compared. 0: 500, fewer
     * for chains of more than 150 stages. More slots give a finer result and take longer. The most
     * is 65536. */
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

/** @brief Initialiser of ::memopt_schedule_step. */
#define MEMOPT_SCHEDULE_STEP_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_schedule_step), 0, 0                                                         \
    }

/** @brief Cost of a schedule. */
typedef struct memopt_schedule_info {
    size_t struct_size;      /**< Set by the caller. */
    uint64_t steps;          /**< The number of operations. */
    uint64_t peak_bytes;     /**< Maximum of live bytes: at most the budget. */
    uint64_t minimum_budget; /**< The smallest budget with which a schedule of this chain exists. */
    uint64_t recomputed;     /**< Forward runs in addition to one per stage. */
    double seconds;          /**< Time of all operations. */
    double seconds_plain;    /**< Time without recomputation. */
} memopt_schedule_info;

/** @brief Initialiser of ::memopt_schedule_info. */
#define MEMOPT_SCHEDULE_INFO_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_schedule_info), 0, 0, 0, 0, 0, 0                                             \
    }

/**
 * @brief Finds the fastest schedule of a chain within a byte budget.
 *
 * If everything fits, nothing is recomputed. Otherwise dynamic programming finds the optimal
 * persistent schedule (Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova, "Optimal checkpointing
 * for heterogeneous chains", 2019), with sizes rounded up to the slots of the budget. If a schedule
 * fits only without that rounding, the result is a schedule of least memory. Time O(count³ ·
 * slots), about a second at most with the default slots. Equal parts of the chain are solved once:
 * count equal stages take O(count² · slots), a few milliseconds.
 * @param stages the cost of each stage; copied.
 * @param count the number of stages, from 1 to 1024.
 * @param options the budget; NULL: no limit.
 * @param[out] out_schedule the schedule, before its first step; destroy it with
 *        memopt_schedule_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL; count or slots is out of range; a time is
 *         negative or not finite; saved_bytes is below output_bytes; or sizes do not fit 64 bits.
 *         The message names the stage.
 * @retval MEMOPT_LIMIT_REACHED no schedule fits; the message gives the budget that is needed.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_create(const memopt_chain_stage *stages, uint64_t count,
                                                const memopt_schedule_options *options,
                                                memopt_schedule **out_schedule);

/**
 * @brief Destroys a schedule.
 * @param schedule the schedule; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_destroy(memopt_schedule *schedule);

/**
 * @brief Reads the cost of a schedule.
 * @param schedule the schedule.
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_get_info(const memopt_schedule *schedule,
                                                  memopt_schedule_info *out_info);

/**
 * @brief Returns the next step. One thread at a time per schedule, any thread.
 * @param schedule the schedule.
 * @param[in,out] out_step the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_NOT_READY there are no more steps. The last error is not written.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_schedule_next(memopt_schedule *schedule,
                                              memopt_schedule_step *out_step);

MEMOPT_END_DECLS

#endif /* MEMOPT_CHECKPOINT_H */
