/**
 * @file trust.h
 * @brief Trust ratios: LAMB's and LARS's bound of an update by its parameter's norm.
 *
 * Y. You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020
 * (LAMB), and "Large batch training of convolutional networks", 2017 (LARS). Of each tensor, with p
 * the parameter, u its update and ‖·‖ the 2-norm:
 *
 * - u ← u + λ p;
 * - r = max_ratio ‖p‖ / ‖u‖, at most 1 if it clips; 1 where a norm is 0;
 * - p ← p − lr r u.
 *
 * LAMB's update is AdamW's, LARS's is SGD's momentum. A step of an optimizer on zeros leaves minus
 * its updates there, whatever the format of its states:
 *
 * 1. create a ::memopt_optimizer of that kind with a learning rate of 1 and no decay, and give it
 *    f32 tensors for the updates as its parameters;
 * 2. in each step fill them with zeros (memopt_fill_tensors()), call memopt_optimizer_step(), then
 *    memopt_trust_squares() and memopt_trust_apply() with `negated` 1.
 *
 * LARS adds its decay to the gradient: memopt_accumulate() with the parameters before the step, and
 * a `weight_decay` of 0 here. Its f32 momentum can be given as the update itself, with `negated` 0.
 *
 * Of a parameter that is cut into shards every process calls memopt_trust_squares() on its shard,
 * the processes add up the squares, and memopt_trust_apply() steps as on the whole.
 *
 * The order of additions, and so every bit, is the same on all back ends
 * (docs/guide/numerics-optimizers.md).
 */
#ifndef MEMOPT_TRUST_H
#define MEMOPT_TRUST_H

#include <memopt/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @brief The hyperparameters. Zero is not a default here: use the initialiser, which has LAMB's.
 */
typedef struct memopt_trust {
    size_t struct_size;  /**< sizeof(memopt_trust). */
    double lr;           /**< The learning rate, at least 0. */
    double weight_decay; /**< λ, at least 0. */
    double max_ratio;    /**< At least 0; 0: r is 1. LAMB's is 1, LARS's 0.001 to 0.02. */
    uint32_t clip;    /**< 1: r is at most 1. 0: every update gets that norm, as in the papers. */
    uint32_t negated; /**< 1: the tensors hold −u. */
    /** One f32 in device memory; if it is not 0, parameters and updates keep their bits. NULL:
     * none.
     */
    const float *found_inf;
} memopt_trust;

/** @brief Initialiser of ::memopt_trust. */
#define MEMOPT_TRUST_INIT                                                                          \
    {                                                                                              \
        sizeof(memopt_trust), 1e-3, 0, 1, 1, 0, NULL                                               \
    }

/**
 * @brief Bytes of scratch that memopt_trust_squares() and memopt_trust_apply() need.
 * @param parameters `count` tensors, of which the counts are read. May be NULL if count is 0.
 * @param count the number of tensors.
 * @param[out] out_bytes the size: 8 for each 16,384 elements of each tensor, and 4 a tensor.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or the size is 2^64 or more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trust_get_scratch(const memopt_tensor *parameters, uint64_t count,
                                                  uint64_t *out_bytes);

/**
 * @brief Adds the decay to the updates, and finds the sums of squares of parameters and updates.
 * @param device the device of all memory.
 * @param what the hyperparameters; read before the call returns.
 * @param parameters `count` tensors of f32, f16 or bf16, which are only read.
 * @param updates `count` tensors of f32 with as many elements as their parameters.
 * @param count the number of tensors, below 2^32; 0 does nothing.
 * @param[out] squares device memory of 2 × count f64: those of the parameters, then those of the
 *        updates. Tensors of no elements have 0.
 * @param scratch device memory, aligned to 8; the call's own until its work is done.
 * @param scratch_bytes its size, at least memopt_trust_get_scratch().
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, misaligned or not the device's, counts differ,
 *         an update overlaps another tensor, scratch is too small, or a hyperparameter is out of
 *         range (the message has the number). Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type that is not supported. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR host allocation or driver failure; see
 *         memopt_last_error().
 *
 * Any thread may call it, for a tensor one at a time. It does not wait for the device, and can be
 * captured in a graph.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trust_squares(memopt_device *device, const memopt_trust *what,
                                              const memopt_tensor *parameters,
                                              const memopt_tensor *updates, uint64_t count,
                                              double *squares, void *scratch,
                                              uint64_t scratch_bytes, memopt_stream stream);

/**
 * @brief Takes each update, times the learning rate and its trust ratio, from its parameter: one
 *        fused multiply-add in f32, rounded once, to nearest.
 * @param device the device of all memory.
 * @param what the hyperparameters, as memopt_trust_squares() had them; weight_decay is not used.
 * @param parameters `count` tensors of f32, f16 or bf16.
 * @param updates `count` tensors as memopt_trust_squares() left them, which are only read.
 * @param count the number of tensors, below 2^32; 0 does nothing.
 * @param squares what memopt_trust_squares() wrote, of shards the sums over all of them.
 * @param scratch device memory, aligned to 8; the call's own until its work is done.
 * @param scratch_bytes its size, at least memopt_trust_get_scratch().
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT as memopt_trust_squares(); a parameter overlaps another tensor.
 *         Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type that is not supported. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR host allocation or driver failure; see
 *         memopt_last_error().
 *
 * Threads and streams are as of memopt_trust_squares().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_trust_apply(memopt_device *device, const memopt_trust *what,
                                            const memopt_tensor *parameters,
                                            const memopt_tensor *updates, uint64_t count,
                                            const double *squares, void *scratch,
                                            uint64_t scratch_bytes, memopt_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* MEMOPT_TRUST_H */
