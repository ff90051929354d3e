/**
 * @file adam_mini.h
 * @brief Adam-mini's step on one parameter: AdamW with one second moment for a block of rows in
 * place of one for each element.
 *
 * Y. Zhang et al., "Adam-mini: use fewer learning rates to gain more", 2024. With x the gradient,
 * in step t:
 *
 * - of each block: v = beta2 v + (1 − beta2) (mean of x² in the block);
 * - m = beta1 m + (1 − beta1) x;
 * - p ← p (1 − lr λ) − lr / (1 − beta1^t) m / (√(v / (1 − beta2^t)) + eps).
 *
 * Which blocks a parameter has is the caller's choice: the authors take the rows of a head of
 * queries and keys, each row of other matrices, and each element of biases. The order of additions,
 * and so every bit, is the same on all back ends (docs/guide/numerics-optimizers.md).
 */
#ifndef MEMOPT_ADAM_MINI_H
#define MEMOPT_ADAM_MINI_H

#include <memopt/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @brief A parameter with its state and the hyperparameters of a step. Zero is not a default here:
 * use the initialiser, which has the authors'. */
typedef struct memopt_adam_mini {
    size_t struct_size;      /**< sizeof(memopt_adam_mini). */
    memopt_tensor parameter; /**< Whole blocks of `rows` times `columns` elements, one after the
                                  other: f32, f16 or bf16. Rounded once, to nearest. */
    memopt_tensor gradient;  /**< As many elements of f32, f16 or bf16. It is only read. */
    /** The first moment, as many elements: f32, 0 before step 1; or u8, 8-bit codes of
     * MEMOPT_STATE_8BIT (signed) in blocks of 256 of a row, whose last one may be shorter. Before
     * step 1 scales of 0 make zeros of any codes. */
    memopt_tensor mean;
    float *scales;       /**< Of u8 the largest magnitude in each 256 of each row, in order; of f32
                              NULL. */
    float *square_mean;  /**< The second moment of each block, 0 before step 1. */
    uint64_t rows;       /**< Of a block. */
    uint64_t columns;    /**< Of a row. */
    uint64_t step;       /**< The number t of this step, from 1. */
    double lr;           /**< The learning rate, at least 0. */
    double beta1;        /**< In [0, 1). */
    double beta2;        /**< In [0, 1). */
    double eps;          /**< At least 0. */
    double weight_decay; /**< λ, at least 0. */
    double gradient_scale; /**< Every gradient is multiplied by this. */
    uint32_t maximize;     /**< 1: climb. */
    /** One f32 in device memory; if it is not 0, parameter and state keep their bits. NULL: none.
     */
    const float *found_inf;
} memopt_adam_mini;

/** @brief Initialiser of ::memopt_adam_mini. */
#define MEMOPT_ADAM_MINI_INIT                                                                      \
    {                                                                                              \
        sizeof(memopt_adam_mini), {NULL, 0, MEMOPT_DTYPE_F32}, {NULL, 0, MEMOPT_DTYPE_F32},        \
            {NULL, 0, MEMOPT_DTYPE_F32}, NULL, NULL, 0, 0, 0, 1e-3, 0.9, 0.999, 1e-8, 0, 1, 0,     \
            NULL                                                                                   \
    }

/**
 * @brief Bytes of scratch that memopt_adam_mini_step() needs.
 * @param what the shape: parameter.count, rows and columns are read.
 * @param[out] out_bytes the size: 0 where blocks have at most 16,384 elements; else about 8 bytes
 * for each 16,384 elements, and 4 for each block.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the elements are not whole blocks, or there
 *         are 2^60 elements or more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_adam_mini_get_scratch(const memopt_adam_mini *what,
                                                      uint64_t *out_bytes);

/**
 * @brief One step of one parameter. It reads the gradient twice, of blocks of at most 16,384
 * elements the second time from a cache, and everything else once.
 * @param device the device of all memory.
 * @param what the parameter, its gradient and state, and the hyperparameters; read before the call
 *        returns. A parameter of no elements does nothing.
 * @param scratch device memory, aligned to 8; the call's own until its work is done. May be NULL
 *        where none is needed.
 * @param scratch_bytes its size, at least memopt_adam_mini_get_scratch().
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, misaligned or not the device's, memory
 * overlaps, scratch is too small, the elements are not whole blocks, or a hyperparameter is out of
 * range (the message has the number).
 * @retval MEMOPT_UNSUPPORTED an element type that is not supported.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR host
 *         allocation or driver failure; see memopt_last_error().
 *
 * Any thread may call it, for one parameter at a time. It does not wait for the device, and can be
 * captured in a graph, which repeats the step of the same number.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_adam_mini_step(memopt_device *device, const memopt_adam_mini *what,
                                               void *scratch, uint64_t scratch_bytes,
                                               memopt_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* MEMOPT_ADAM_MINI_H */
