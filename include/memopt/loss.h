/**
 * @file loss.h
 * @brief Softmax cross-entropy in pieces of the classes, in place.
 *
 * Logits are often a step's largest tensor: 8,192 tokens times 128,256 classes take 3.9 GiB in fp32. No
 * call here needs them whole. A program makes the logits of some classes, adds them, and makes the
 * next in the same memory; for the gradient it makes each piece again:
 *
 *     rows: 24 bytes for each row, filled with zero bytes
 *     for each piece:  logits = hidden × weightᵀ of these classes
 *                      memopt_cross_entropy_add(logits, targets, rows)
 *     memopt_cross_entropy_losses(rows, targets, losses)
 *     for each piece:  logits = hidden × weightᵀ of these classes
 *                      memopt_cross_entropy_gradient(logits, targets, rows, scale)   in place
 *                      gradients of hidden and of weight from it
 *
 * With one piece the logits are made once: add, losses, gradient in their place.
 *
 * **Numerics.** loss = log Σ exp(xⱼ) - x_target, with the largest logit taken out ("online" over the
 * pieces: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018). Exponentials are
 * fp32, sums of 1,024 classes fp32, sums of these double. Losses and gradients have equal bits on
 * every device and for every cut into pieces.
 *
 * **Special values.** A logit of -∞ has probability 0. A NaN or +∞ makes its row's loss and gradient
 * NaN. A negative target (as PyTorch's ignore_index) ignores its row: loss 0, gradient 0. A target
 * that was in no piece makes the loss NaN.
 *
 * **Threads, streams.** Every call may be made from any thread; it enqueues work on the stream and does
 * not wait. All pointers to data are device memory that must live until that work is complete.
 */
#ifndef MEMOPT_LOSS_H
#define MEMOPT_LOSS_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

/** @brief The logits of some classes: rows × columns, row by row. */
typedef struct memopt_logits {
    size_t struct_size; /**< sizeof(memopt_logits). */
    void *data;         /**< The first element, aligned to it. */
    uint64_t rows;      /**< Rows (tokens); 0: the call does nothing. */
    uint64_t columns;   /**< Classes of this piece, at least 1. */
    uint64_t stride;    /**< Elements from a row to the next, at least columns; 0: columns. */
    /** The class of the first column, a multiple of 1,024. With columns at most 2^31 - 1. */
    uint64_t first_class;
    memopt_dtype dtype; /**< f32, f16 or bf16. */
} memopt_logits;

/** @brief Initialiser of ::memopt_logits. */
#define MEMOPT_LOGITS_INIT                                                                         \
    {                                                                                              \
        sizeof(memopt_logits), NULL, 0, 0, 0, 0, MEMOPT_DTYPE_F32                                  \
    }

/** @brief What is known of a row, 24 bytes of device memory. Zero bytes: nothing was added yet. */
typedef struct memopt_cross_entropy_row {
    double sum;        /**< Σ exp(xⱼ - largest) of the classes so far. */
    float largest;     /**< The largest logit so far. */
    float target;      /**< The target's logit, where found. */
    uint32_t found;    /**< 1 once the target was in a piece. */
    uint32_t reserved; /**< 0. */
} memopt_cross_entropy_row;

/**
 * @brief Adds a piece of the classes to its rows. Pieces come in the order of their classes.
 * @param device the device.
 * @param logits the piece; read only.
 * @param targets the class of each row, negative to ignore the row.
 * @param[in,out] rows one for each row, aligned to 8 bytes.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, misaligned or not of this device, a size is out
 *         of range or does not fit the address space, or two of the arrays overlap.
 * @retval MEMOPT_UNSUPPORTED the element type is none of f32, f16 and bf16.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_cross_entropy_add(memopt_device *device,
                                                  const memopt_logits *logits,
                                                  const int32_t *targets,
                                                  memopt_cross_entropy_row *rows,
                                                  memopt_stream stream);

/**
 * @brief The loss of each row, when all classes have been added.
 * @param device the device.
 * @param rows what memopt_cross_entropy_add() has made; read only.
 * @param targets the same targets.
 * @param count the rows; 0: the call does nothing.
 * @param[out] losses one fp32 for each row, aligned to 4 bytes.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT, MEMOPT_DRIVER_ERROR as memopt_cross_entropy_add().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_cross_entropy_losses(memopt_device *device,
                                                     const memopt_cross_entropy_row *rows,
                                                     const int32_t *targets, uint64_t count,
                                                     float *losses, memopt_stream stream);

/**
 * @brief Writes the gradient of `scale` times the sum of all losses over a piece's logits:
 *        scale × (softmax - 1 at the target), rounded to the nearest of the type.
 * @param device the device.
 * @param[in,out] logits the piece, the same values as were added; becomes the gradient.
 * @param targets the same targets.
 * @param rows what memopt_cross_entropy_add() has made of all classes; read only.
 * @param scale 1 / rows for a mean, times the loss scale; finite.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT as memopt_cross_entropy_add(), or scale is not finite.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_DRIVER_ERROR as memopt_cross_entropy_add().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_cross_entropy_gradient(memopt_device *device,
                                                       const memopt_logits *logits,
                                                       const int32_t *targets,
                                                       const memopt_cross_entropy_row *rows,
                                                       float scale, memopt_stream stream);

MEMOPT_END_DECLS

#endif /* MEMOPT_LOSS_H */
