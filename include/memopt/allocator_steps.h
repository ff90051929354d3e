/**
 * @file allocator_steps.h
 * @brief The learned plan: a training step that repeats gets its memory laid out once.
 *
 * allocator.h includes it. A trainer marks the end of each step. When two steps in a row have made
 * the same allocations, the allocator lays the step's blocks out by their sizes and lifetimes. From
 * then on the n-th allocation of a step has its place: no search, no driver call, and hardly more
 * memory than its blocks need. A step that differs is served as without a plan from there on, until
 * the next mark; nothing moves. Steps of two or three kinds that take turns (lengths of batches)
 * are laid out together, once they have been through their turns twice.
 *
 * **Streams.** Each stream's allocations are compared and placed apart, in memory of the stream as
 * always. So threads with streams of their own do not disturb each other's order. Where
 * memopt_allocator_record_stream() delays a block's end, twice the delay that was seen is allowed
 * for; a place that is not free yet is passed by for this time.
 *
 * **Memory.** The memory that a plan holds for its places is cached memory: it serves other
 * allocations once its step has differed or before memory runs out, and goes back by
 * memopt_allocator_trim_sync(), by a pool that needs it, and by idle_release_seconds. The next mark
 * takes it again.
 */
#ifndef MEMOPT_ALLOCATOR_STEPS_H
#define MEMOPT_ALLOCATOR_STEPS_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief What a mark says. */
typedef uint32_t memopt_step;

/** @brief The values of ::memopt_step. */
enum {
    MEMOPT_STEP_NEXT = 0,  /**< A step ends and another one begins. */
    MEMOPT_STEP_LEARN = 1, /**< The same; the step that ends is planned at once, if it is the first
                                one or differs from the plan, without waiting for a second one like
                                it. Blocks that are alive at its end get no place unless the step
                                before was the same. */
    MEMOPT_STEP_END = 2    /**< No more steps: the plan is dropped. Its memory is cached memory. */
};

/**
 * @brief Marks the end of a step and the beginning of the next one.
 *
 * The first mark begins. After that, steps are recorded until there is a plan, and again after a
 * step that differed from it. A plan is made when a recorded step equals the one before: in sizes
 * after rounding, by stream and order. If they repeat after two or three marks instead, so many
 * steps count as one in all that follows, until they repeat otherwise; a step that is not the
 * plan's ends that early, so that the plan begins again with the next mark. Plans that did not last make the next one need more equal
 * steps, up to 64. After 16 steps in a row that differed it is dropped.
 * @param allocator the allocator, or a pool. Each has steps and a plan of its own.
 * @param what a ::memopt_step.
 * @retval MEMOPT_OK done; memopt_allocator_get_step_plan() tells whether there is a plan.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL or what is no ::memopt_step.
 * @retval MEMOPT_BUSY the call comes from a range observer or the provider.
 * @retval MEMOPT_UNSUPPORTED the allocator caches page-locked memory, or this is the child of a
 *         fork of the process that made it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT
 *         what a plan needs could not be had; there is none, and allocations are served without.
 *         The next mark tries again.
 * @since 0.9
 *
 * A mark enqueues nothing. The one that makes a plan gives cached memory back, waits for the
 * streams that this needs, and takes up to a second; so may the two after it, a little. All others
 * wait for nothing. The places together take no more than the most that was held before and 1/64 of
 * it, and a page for each stream, or no plan is made. What they lack is mapped when a block needs
 * it. While a stream that the allocator, its parent or a pool of it knows records a graph no plan is
 * made, and while tags are paused none is made or used. Thread-safe; a step should be marked when no
 * other thread allocates for it.
 */
MEMOPT_API memopt_status memopt_allocator_mark_step(memopt_allocator *allocator, memopt_step what);

/** @brief The plan of an allocator's steps. */
typedef struct memopt_step_plan {
    size_t struct_size;     /**< Set by the caller. */
    uint64_t steps;         /**< Steps that have ended. */
    uint64_t planned_steps; /**< Of those, the ones that went wholly as planned. */
    uint64_t plans;         /**< Plans made. */
    uint64_t active;      /**< 1: there is a plan. All below is 0 without one, but the last two. */
    uint64_t allocations; /**< Allocations of a planned step. */
    uint64_t unplanned;   /**< Of those, the ones without a place: their blocks live for longer
                               than a step. */
    uint64_t least_bytes; /**< The most bytes, after rounding, that its blocks have alive at once,
                               added over streams: no layout needs less. */
    uint64_t bytes;       /**< The ranges that the plan takes, in whole pages. Where there are
                               holes between blocks that stay, it uses those in addition. */
    uint64_t served;      /**< Allocations served from their places so far. */
    uint64_t missed;      /**< Allocations so far whose places were in use; served without. */
} memopt_step_plan;

/** @brief Initialiser of ::memopt_step_plan. */
#define MEMOPT_STEP_PLAN_INIT                                                                      \
    {                                                                                              \
        sizeof(memopt_step_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                     \
    }

/**
 * @brief Reads what there is of a plan.
 * @param allocator the allocator, or a pool.
 * @param[in,out] out_plan the caller sets struct_size; the call fills at most that many bytes. All
 *        is 0 if no step was marked.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_get_step_plan(memopt_allocator *allocator,
                                                        memopt_step_plan *out_plan);

MEMOPT_END_DECLS

#endif /* MEMOPT_ALLOCATOR_STEPS_H */
