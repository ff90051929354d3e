/**
 * @file cast.h
 * @brief Casts between element types, non-finite check, norm, clip, and the dynamic loss scaler.
 *
 * All of it runs in stream order on device memory and never synchronises unless its name says so.
 * Results are the same bits on every back end, thread count and instruction set; the numerics guide
 * is the specification.
 *
 * **Threads.** A scaler may be used by one thread at a time; the stateless functions by any.
 *
 * **Streams.** A scaler's scale, flag and scratch are shared by all its calls: where they go to
 * different streams, order them by events.
 */
#ifndef MEMOPT_CAST_H
#define MEMOPT_CAST_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

/** @brief How a value between two representable ones is rounded. */
typedef uint32_t memopt_rounding;

/** @brief The values of ::memopt_rounding. */
enum {
    MEMOPT_ROUND_NEAREST_EVEN = 0, /**< IEEE round to nearest, ties to even. */
    MEMOPT_ROUND_STOCHASTIC = 1    /**< Up or down with probability by distance. */
};

/** @brief How to cast; zero means the default. */
typedef struct memopt_cast_options {
    size_t struct_size; /**< sizeof(memopt_cast_options). */
    uint32_t rounding;  /**< A ::memopt_rounding. */
    uint32_t saturate;  /**< 1: what overflows an 8-bit float, infinity included, becomes its
                             largest number; 0: e4m3 gets NaN, e5m2 infinity. */
    uint64_t seed;      /**< Stochastic: the key of the counter-based generator. */
    uint64_t sequence;  /**< Stochastic: a number of the caller's, such as the step. */
} memopt_cast_options;

/** @brief Initialiser of ::memopt_cast_options. */
#define MEMOPT_CAST_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_cast_options), 0, 0, 0, 0                                                    \
    }

/**
 * @brief Casts tensors, many in one call (few launches, however many tensors).
 *
 * Types: f32, f16, bf16, f8_e4m3 and f8_e5m2 in any combination; each value is rounded once. Where
 * the destination holds every value of the source, the rounding mode plays no part; the same type
 * copies bits. Under stochastic rounding element i of tensor t always takes the same random bits,
 * which depend on (seed, sequence, t, i) alone.
 * @param device the device.
 * @param destinations `count` tensors. A destination may start where its source starts if their
 *        element sizes are equal (a cast in place); otherwise it must not overlap its source, nor
 *        any other tensor of the call. Sources may overlap each other.
 * @param sources `count` tensors; sources[i].count = destinations[i].count.
 * @param count how many tensors, below 2^32; 0 does nothing.
 * @param options NULL for defaults.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL, counts differ, a misaligned or overlapping range, an option
 *         out of range; the message names the tensor's index. Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type that is not one of the five. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told. Nothing is enqueued.
 * @retval MEMOPT_DRIVER_ERROR as told; some destinations may be written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_cast(memopt_device *device, const memopt_tensor *destinations,
                                     const memopt_tensor *sources, uint64_t count,
                                     const memopt_cast_options *options, memopt_stream stream);

/**
 * @brief Adds tensors to others, many in one call: destination = destination + scale * source.
 *
 * Each element is one fused multiply-add in f32, rounded once to the destination's type. This is
 * how gradients of micro-batches in a narrow type are gathered in a wider one. A NaN that arises or
 * is passed on is the quiet NaN 0x7fc00000 in the destination's type.
 * @param device the device.
 * @param destinations `count` tensors of f32, f16 or bf16; each overlaps nothing else of the call.
 * @param sources `count` tensors of f32, f16 or bf16; sources[i].count = destinations[i].count.
 *        Sources may overlap each other.
 * @param count how many tensors, below 2^32; 0 does nothing.
 * @param scale what the sources are multiplied by, finite.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL, counts differ, a misaligned or overlapping range, a scale
 *         that is not finite; the message names the tensor's index. Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type that is not one of the three. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told. Nothing is enqueued.
 * @retval MEMOPT_DRIVER_ERROR as told; some destinations may be written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_accumulate(memopt_device *device, const memopt_tensor *destinations,
                                           const memopt_tensor *sources, uint64_t count,
                                           float scale, memopt_stream stream);

/**
 * @brief Multiplies tensors in place by a factor that lies in device memory, noting non-finite
 *        elements, many tensors in one call.
 *
 * For a caller that keeps scale and flag in memory of its own; memopt_scaler_unscale() does the
 * same with a scaler's. An element is judged before it is multiplied. The product is computed in
 * f32 and rounded once to the element's type. Where the factor is 1 and found_inf is NULL nothing
 * is touched.
 * @param device the device.
 * @param tensors `count` tensors of f32, f16 or bf16; none overlaps another.
 * @param count how many; 0 does nothing.
 * @param factor one f32 in device memory, read in stream order.
 * @param found_inf one f32 in device memory that becomes 1.0f if any element is not finite and
 *        stays as it is otherwise; NULL: nothing is noted.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL, or a misaligned or overlapping tensor; the message names
 *         its index. Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type that is not one of the three. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told. Nothing is enqueued.
 * @retval MEMOPT_DRIVER_ERROR as told; some tensors may be multiplied.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scale(memopt_device *device, const memopt_tensor *tensors,
                                      uint64_t count, const float *factor, float *found_inf,
                                      memopt_stream stream);

/**
 * @brief Notes non-finite elements without changing them: memopt_scale() without the product.
 * @param device the device.
 * @param tensors `count` tensors of f32, f16 or bf16.
 * @param count how many; 0 does nothing.
 * @param found_inf one f32 in device memory that becomes 1.0f if any element is not finite and
 *        stays as it is otherwise.
 * @param stream the stream.
 * @return the status as of memopt_scale().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_check_finite(memopt_device *device, const memopt_tensor *tensors,
                                             uint64_t count, float *found_inf,
                                             memopt_stream stream);

/** @brief A dynamic loss scaler with the reductions that go with it. */
typedef struct memopt_scaler memopt_scaler;

/** @brief How to make a scaler; zero means the default. */
typedef struct memopt_scaler_options {
    size_t struct_size;       /**< sizeof(memopt_scaler_options). */
    double init_scale;        /**< First scale; 0: 65536. */
    double growth_factor;     /**< Growth; 0: 2. Must be above 1. */
    double backoff_factor;    /**< Shrink on overflow; 0: 0.5. In (0, 1). */
    uint32_t growth_interval; /**< Clean steps before growth; 0: 2000. */
    uint32_t disabled;        /**< 1: the scale stays 1 (norm, clip and check still work). */
} memopt_scaler_options;

/** @brief Initialiser of ::memopt_scaler_options. */
#define MEMOPT_SCALER_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_scaler_options), 0, 0, 0, 0, 0                                               \
    }

/** @brief A scaler's state, as torch's GradScaler keeps it. */
typedef struct memopt_scaler_state {
    size_t struct_size;       /**< sizeof(memopt_scaler_state). */
    double scale;             /**< The scale. */
    double growth_factor;     /**< As in the options. */
    double backoff_factor;    /**< As in the options. */
    uint32_t growth_interval; /**< As in the options. */
    uint32_t growth_tracker;  /**< Clean steps since the last change. */
} memopt_scaler_state;

/**
 * @brief Makes a scaler. Its scale and found-inf flag live in device memory.
 *
 * Waits for the default stream once, so that the scaler can be used on any stream at once.
 * @param device the device; it must outlive the scaler.
 * @param options NULL for defaults.
 * @param[out] out_scaler the scaler; ended by memopt_scaler_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or an option is out of range.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_create(memopt_device *device,
                                              const memopt_scaler_options *options,
                                              memopt_scaler **out_scaler);

/**
 * @brief Ends a scaler after waiting for work that uses it.
 * @param scaler the scaler; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT the wait said so; the handle
 *         and its device memory are gone all the same. On a device that was known to be lost it
 *         succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_destroy(memopt_scaler *scaler);

/**
 * @brief Where the scale lies, for a loss kernel of the caller's to multiply by.
 * @param scaler the scaler.
 * @return one f32 in device memory, living as long as the scaler; NULL if scaler is NULL.
 * @since 0.9
 */
MEMOPT_API const float *memopt_scaler_get_scale(const memopt_scaler *scaler);

/**
 * @brief Where the found-inf flag lies: 1.0f where a check since the last update found a non-finite
 *        gradient, else 0.0f.
 *
 * Checks of the caller's own may set it to 1.0f in stream order.
 * @param scaler the scaler.
 * @return one f32 in device memory, living as long as the scaler; NULL if scaler is NULL.
 * @since 0.9
 */
MEMOPT_API float *memopt_scaler_get_found_inf(const memopt_scaler *scaler);

/**
 * @brief Multiplies gradients by float(1 / double(scale)) in place and notes non-finite ones.
 *
 * An element is judged before it is multiplied. The product is computed in f32 and rounded once to
 * the element's type. Nothing of the list may overlap.
 * @param scaler the scaler.
 * @param gradients `count` tensors of f32, f16 or bf16.
 * @param count how many; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL or a misaligned tensor; the message names its index.
 * @retval MEMOPT_UNSUPPORTED an element type that cannot be unscaled.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_unscale(memopt_scaler *scaler,
                                               const memopt_tensor *gradients, uint64_t count,
                                               memopt_stream stream);

/**
 * @brief Notes non-finite gradients without changing them.
 * @param scaler the scaler.
 * @param gradients `count` tensors of f32, f16 or bf16.
 * @param count how many; 0 does nothing.
 * @param stream the stream.
 * @return the status as of memopt_scaler_unscale().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_check(memopt_scaler *scaler, const memopt_tensor *gradients,
                                             uint64_t count, memopt_stream stream);

/**
 * @brief The Euclidean norm over all elements of all tensors, summed in double in a fixed order.
 * @param scaler the scaler (owns the scratch memory; the scale plays no part).
 * @param tensors `count` tensors of f32, f16 or bf16.
 * @param count how many; 0 gives 0.
 * @param out_norm one f32 in device memory.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY,
 *         MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as for memopt_scaler_unscale().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_norm(memopt_scaler *scaler, const memopt_tensor *tensors,
                                            uint64_t count, float *out_norm, memopt_stream stream);

/**
 * @brief Scales all tensors by min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_.
 *
 * The coefficient is computed in double from the norm in double and rounded to f32 once; where it
 * is 1 nothing is written. An infinite element makes it 0, a NaN makes it NaN, as in torch with
 * error_if_nonfinite=False. The found-inf flag stays as it is.
 * @param scaler the scaler (owns the scratch memory).
 * @param tensors `count` tensors of f32, f16 or bf16.
 * @param count how many; 0 does nothing but write 0 as the norm.
 * @param max_norm the bound, finite and above 0.
 * @param out_norm the norm before clipping: one f32 in device memory, or NULL.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY,
 *         MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as for memopt_scaler_unscale().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_clip(memopt_scaler *scaler, const memopt_tensor *tensors,
                                            uint64_t count, double max_norm, float *out_norm,
                                            memopt_stream stream);

/**
 * @brief Ends a step: shrinks the scale after an overflow, grows it after growth_interval clean
 *        steps (only if it stays finite), and clears the found-inf flag.
 * @param scaler the scaler.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT scaler is NULL.
 * @retval MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_update(memopt_scaler *scaler, memopt_stream stream);

/**
 * @brief Reads the state after the stream's work so far. Waits for the stream.
 * @param scaler the scaler.
 * @param[in,out] out_state struct_size set by the caller; filled as far as it reaches.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_get_state_sync(memopt_scaler *scaler, memopt_stream stream,
                                                      memopt_scaler_state *out_state);

/**
 * @brief Sets the state in stream order. Waits for the stream.
 * @param scaler the scaler.
 * @param state the state; every field is checked before anything changes.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or a field is out of range.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_set_state_sync(memopt_scaler *scaler,
                                                      const memopt_scaler_state *state,
                                                      memopt_stream stream);

MEMOPT_END_DECLS

#endif /* MEMOPT_CAST_H */
