/**
 * @file adafactor.h
 * @brief Adafactor's step on one parameter: a second moment of rows and columns in place of one for
 *        each element.
 *
 * N. Shazeer and M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML
 * 2018. With x the gradient, in step t, and f = t^beta2_decay:
 *
 * - rows: r = r + f (mean of x² in the row − r); columns c the same;
 * - v(i, j) = r(i) c(j) / max(mean of r, eps[0]), of a vector its c; u = x / max(√v, eps[0]);
 * - rate = max(RMS(p), eps[1]) min(lr, 1 / √t) / max(1, RMS(u) / d);
 * - p ← p (1 − lr λ) − rate u.
 *
 * It is torch.optim.Adafactor's rule; RMS is the root of the mean square. The order of additions,
 * and so every bit, is the same on all back ends (docs/guide/numerics-optimizers.md).
 */
#ifndef MEMOPT_ADAFACTOR_H
#define MEMOPT_ADAFACTOR_H

#include <memopt/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @brief A parameter with its state and the hyperparameters of a step. Zero is not a default here:
 *        use the initialiser, which has torch's. */
typedef struct memopt_adafactor {
    size_t struct_size; /**< sizeof(memopt_adafactor). */
    /** Some matrices of `rows` times `columns`, one after the other, or with `rows` 1 and `row_var`
     * NULL vectors of `columns`: f32, f16 or bf16, contiguous. Rounded once, to nearest. */
    memopt_tensor parameter;
    memopt_tensor gradient; /**< As many elements of f32, f16 or bf16. It is only read. */
    float *row_var;      /**< A mean of squares for each row of each matrix, 0 before step 1; NULL:
                              vectors. */
    float *column_var;   /**< For each column of each matrix, each element of a vector. */
    uint64_t rows;       /**< Of a matrix. */
    uint64_t columns;    /**< Of a matrix. */
    uint64_t step;       /**< The number t of this step, from 1. */
    double lr;           /**< The learning rate, at least 0. */
    double beta2_decay;  /**< At most 0. */
    double eps[2];       /**< The least √v and the least RMS of a parameter that counts. */
    double d;            /**< The longest RMS of an update, at least 1. */
    double weight_decay; /**< λ, at least 0. */
    double gradient_scale; /**< Every gradient is multiplied by this f32. */
    uint32_t maximize;     /**< 1: climb. */
    /** One f32 in device memory; if it is not 0, parameter and state keep their bits. NULL: none.
     */
    const float *found_inf;
} memopt_adafactor;

/** @brief Initialiser of ::memopt_adafactor. */
#define MEMOPT_ADAFACTOR_INIT                                                                      \
    {                                                                                              \
        sizeof(memopt_adafactor), {NULL, 0, MEMOPT_DTYPE_F32}, {NULL, 0, MEMOPT_DTYPE_F32}, NULL,  \
            NULL, 0, 0, 0, 1e-2, -0.8, {1.1920928955078125e-7, 1e-3}, 1, 0, 1, 0, NULL             \
    }

/**
 * @brief Bytes of scratch that memopt_adafactor_step() needs.
 * @param what the shape: parameter.count, rows, columns, and whether row_var is NULL, are read.
 * @param[out] out_bytes the size: about 4 bytes for each 64 elements and 8 for each row of a
 *        matrix.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the elements are not whole matrices, or there
 *         are 2^60 elements or more.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_adafactor_get_scratch(const memopt_adafactor *what,
                                                      uint64_t *out_bytes);

/**
 * @brief One step of one parameter. It reads the gradient three times and the parameter twice.
 * @param device the device of all memory.
 * @param what the parameter, its gradient and state, and the hyperparameters; read before the call
 *        returns. A parameter of no elements does nothing.
 * @param scratch device memory, aligned to 8; the call's own until its work is done.
 * @param scratch_bytes its size, at least memopt_adafactor_get_scratch().
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, misaligned or not the device's, memory
 *         overlaps, scratch is too small, the elements are not whole matrices, or a hyperparameter
 *         is out of range (the message has the number).
 * @retval MEMOPT_UNSUPPORTED an element type that is not supported.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR host
 *         allocation or driver failure; see memopt_last_error().
 *
 * Any thread may call it, for one parameter at a time. It does not wait for the device, and can be
 * captured in a graph, which repeats the step of the same number.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_adafactor_step(memopt_device *device, const memopt_adafactor *what,
                                               void *scratch, uint64_t scratch_bytes,
                                               memopt_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* MEMOPT_ADAFACTOR_H */
