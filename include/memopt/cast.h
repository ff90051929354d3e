/**
 * @file cast.h
 * @brief Casts between element types, non-finite check, norm, clip, and the dynamic loss scaler.
 *
 * Everything runs in stream order on device memory. A call synchronises only if its name ends in
 * `_sync`, or if it says so. Results have the same bits on every back end, thread count and
 * instruction set; the numerics guide is the specification.
 *
 * **Threads.** A scaler may be used by one thread at a time, the stateless functions by any number
 * of threads.
 *
 * **Streams.** All calls of a scaler share its scale and flag. If they use
 * different streams, order the streams by events.
 */
#ifndef MEMOPT_CAST_H
#define MEMOPT_CAST_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief How a value between two representable ones is rounded. */
typedef uint32_t memopt_rounding;

/** @brief The values of ::memopt_rounding. */
enum {
    MEMOPT_ROUND_NEAREST_EVEN = 0, /**< IEEE round to nearest, ties to even. */
    MEMOPT_ROUND_STOCHASTIC = 1    /**< Up or down, with a probability that depends on the distance.
                                    */
};

/** @brief How to cast; zero means the default. */
typedef struct memopt_cast_options {
    size_t struct_size; /**< sizeof(memopt_cast_options). */
    uint32_t rounding;  /**< A ::memopt_rounding. */
    uint32_t saturate;  /**< 1: a value that overflows an 8-bit float, infinity included, becomes
                             its largest number. 0: infinity in e5m2, NaN in the others. */
    uint64_t seed;      /**< Stochastic: the key of the counter-based generator. */
    uint64_t sequence;  /**< Stochastic: a number that the caller chooses, such as the step. */
    /** As many f32 in device memory as there are tensors, or NULL. Each is raised to the largest
     * magnitude of its source, if that is larger; a NaN is larger than all numbers. Set them to 0
     * first. */
    float *amax;
} memopt_cast_options;

/** @brief Initialiser of ::memopt_cast_options. */
#define MEMOPT_CAST_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_cast_options), 0, 0, 0, 0, NULL                                              \
    }

/**
 * @brief Casts many tensors in one call, in a few launches.
 *
 * Types: f32, f16, bf16, f8_e4m3, f8_e5m2, f8_e4m3fnuz and f8_e5m2fnuz in any combination. Each
 * value is rounded once. If the destination type can represent every value of the source type, the
 * rounding mode has no effect. If the types are equal, the bits are copied. Under stochastic
 * rounding, element i of tensor t always gets the same random bits: they depend only on (seed,
 * sequence, t, i).
 * @param device the device.
 * @param destinations `count` tensors. A destination may start at the address of its source if
 *        their element sizes are equal (a cast in place). Otherwise it must overlap neither its
 *        source nor any other tensor of the call. Sources may overlap each other. NULL with `amax`
 *        in the options: nothing is cast, and only the largest magnitudes are found.
 * @param sources `count` tensors; sources[i].count = destinations[i].count.
 * @param count the number of tensors tensors, below 2^32; 0 does nothing.
 * @param options NULL for defaults.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, counts differ, a range is misaligned or
 *         overlaps another, or an option is out of range. The message names the tensor's index.
 *         Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type is not one of the seven. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error(). Nothing is
 *         enqueued.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(); some destinations may be
 *         written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_cast(memopt_device *device, const memopt_tensor *destinations,
                                     const memopt_tensor *sources, uint64_t count,
                                     const memopt_cast_options *options, memopt_stream stream);

/** @brief A block-scaled format of a matrix: codes of 8 or 4 bits, and a scale for each block. */
typedef uint32_t memopt_block_format;

/** @brief The values of ::memopt_block_format. */
enum {
    MEMOPT_BLOCKS_MXFP8_E4M3 = 1,   /**< OCP MX: 32 columns, e4m3 codes, an e8m0 scale. */
    MEMOPT_BLOCKS_MXFP8_E5M2 = 2,   /**< OCP MX: 32 columns, e5m2 codes, an e8m0 scale. */
    MEMOPT_BLOCKS_MXFP4 = 3,        /**< OCP MX: 32 columns, e2m1 codes, an e8m0 scale. */
    MEMOPT_BLOCKS_NVFP4 = 4,        /**< NVIDIA: 16 columns, e2m1 codes, an e4m3 scale, and the
                                         largest magnitude of the tensor. */
    MEMOPT_BLOCKS_E4M3_1X128 = 5,   /**< 128 columns, e4m3 codes, an f32 scale. */
    MEMOPT_BLOCKS_E4M3_128X128 = 6, /**< 128 rows by 128 columns, e4m3 codes, an f32 scale. */
    MEMOPT_BLOCKS_E4M3_TENSOR = 7,  /**< The whole matrix, e4m3 codes, an f32 scale from the largest
                                         magnitude of the tensor. */
    MEMOPT_BLOCKS_E5M2_TENSOR = 8,  /**< The same with e5m2 codes. */
    MEMOPT_BLOCKS_NF4_32 = 9,       /**< QLoRA's, as bitsandbytes keeps it: 32 columns, places in
                                         a map of 16 numbers, an f32 scale. @since 0.9 */
    MEMOPT_BLOCKS_NF4 = 10,         /**< 64 columns, as most checkpoints have. */
    MEMOPT_BLOCKS_NF4_128 = 11,     /**< 128 columns. */
    MEMOPT_BLOCKS_NF4_256 = 12,     /**< 256 columns. */
    MEMOPT_BLOCKS_NF4_512 = 13,     /**< 512 columns. */
    MEMOPT_BLOCKS_NF4_1024 = 14,    /**< 1024 columns. */
    MEMOPT_BLOCKS_NF4_2048 = 15,    /**< 2048 columns. */
    MEMOPT_BLOCKS_NF4_4096 = 16,    /**< 4096 columns. */
    MEMOPT_BLOCKS_DYNAMIC8 = 17     /**< bitsandbytes' 8 bits: 256 columns, places in the signed
                                         dynamic map of 256 numbers, an f32 scale. */
};

/** @brief The sizes of a block-scaled matrix. */
typedef struct memopt_blocks_layout {
    size_t struct_size;      /**< sizeof(memopt_blocks_layout). */
    uint64_t block_rows;     /**< Rows of a block; the last block of a column may have fewer. */
    uint64_t block_columns;  /**< Columns of a block; the last block of a row may have fewer. */
    uint64_t code_bits;      /**< Bits of a code: 8 or 4. */
    uint64_t code_row_bytes; /**< From one row of codes to the next. */
    uint64_t code_bytes;     /**< All codes. */
    uint64_t scale_size;     /**< Bytes of a scale: 1 or 4. */
    uint64_t scale_rows;     /**< Rows of scales. */
    uint64_t scale_columns;  /**< Scales of a row, one behind the other. */
    uint64_t scale_bytes;    /**< All scales. */
} memopt_blocks_layout;

/** @brief Initialiser of ::memopt_blocks_layout. */
#define MEMOPT_BLOCKS_LAYOUT_INIT                                                                  \
    {                                                                                              \
        sizeof(memopt_blocks_layout), 0, 0, 0, 0, 0, 0, 0, 0, 0                                    \
    }

/**
 * @brief A block-scaled matrix in device memory. Codes and scales lie row by row.
 *
 * The code of 4 bits of an even column is the lower half of its byte, of NF4 the upper half. Each row
 * begins with a byte of its own; the other half of a row's last byte is the code of 0 if the number of
 * columns is odd. bitsandbytes' blocks go on from row to row: its tensors are matrices of one row.
 */
typedef struct memopt_blocks {
    void *codes;  /**< memopt_blocks_layout::code_bytes bytes. */
    void *scales; /**< memopt_blocks_layout::scale_bytes bytes, aligned to a scale. */
    /** NVFP4 and the formats of one scale: one f32 in device memory, read in stream order: the
     * largest magnitude of the whole tensor, as memopt_cast() finds it, or of the step before. The
     * tensor's scale is this number over 2688 (NVFP4), 448 (e4m3) or 57344 (e5m2). NULL: the
     * tensor's scale is 1. NF4: a number that is subtracted from each scale before it is stored, and
     * added when it is read (double quantisation: the mean of the scales, which are then kept as a
     * DYNAMIC8 matrix of one row); NULL: 0. The other formats: NULL. To bring a matrix of one scale
     * back it is not read. */
    const float *tensor_amax;
    uint64_t rows;              /**< Rows. */
    uint64_t columns;           /**< Columns: elements that lie side by side in memory. */
    memopt_block_format format; /**< The format. */
} memopt_blocks;

/** @brief How to quantise; zero means the default. */
typedef struct memopt_blocks_options {
    size_t struct_size;    /**< sizeof(memopt_blocks_options). */
    uint32_t rounding;     /**< A ::memopt_rounding, of the codes. */
    uint32_t power_of_two; /**< 1: an f32 scale is rounded up to a power of two. */
    uint64_t seed;         /**< Stochastic: the key of the counter-based generator. */
    uint64_t sequence;     /**< Stochastic: a number that the caller chooses, such as the step. */
    /** As many f32 in device memory as there are tensors, or NULL. Each is raised to the largest
     * magnitude of its tensor, if that is larger; a NaN is larger than all numbers. Set them to 0
     * first. */
    float *amax;
} memopt_blocks_options;

/** @brief Initialiser of ::memopt_blocks_options. */
#define MEMOPT_BLOCKS_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_blocks_options), 0, 0, 0, 0, NULL                                            \
    }

/**
 * @brief The sizes of a block-scaled matrix.
 * @param format a ::memopt_block_format.
 * @param rows rows.
 * @param columns columns.
 * @param[in,out] out_layout the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_layout is NULL, struct_size is too small, format is none, or
 *         there are 2^64 elements or more. Any thread may call it; it uses no device.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_blocks_get_layout(memopt_block_format format, uint64_t rows,
                                                  uint64_t columns,
                                                  memopt_blocks_layout *out_layout);

/**
 * @brief Quantises many matrices in one call, in a few launches.
 *
 * Each value is multiplied by the inverse of its block's scale and rounded once; what exceeds the
 * largest code becomes it. A block that holds a NaN or an infinity gets a NaN as its scale, so all
 * of it comes back as NaN. (A format of one scale takes it from tensor_amax: only if that is not
 * finite is the scale a NaN.) NF4 and DYNAMIC8 take the nearest number of their map; they have no
 * stochastic rounding. The numerics guide has the rules of the scales, bit by bit.
 * @param device the device.
 * @param destinations `count` matrices, of any formats; codes and scales are written. They overlap
 *        nothing else of the call.
 * @param sources `count` tensors of f32, f16 or bf16, rows by columns elements each, row by row.
 *        Sources may overlap each other.
 * @param count the number of matrices, below 2^32; 0 does nothing.
 * @param options NULL for defaults.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a format is none, sizes differ, a range is
 *         misaligned or overlaps another, or an option is out of range. The message names the
 *         matrix's index. Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type is not one of the three. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error(). Nothing is
 *         enqueued.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(); some destinations may be
 *         written.
 *
 * Any thread may call it. It does not wait, and can be captured in a graph.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_blocks_quantize(memopt_device *device,
                                                const memopt_blocks *destinations,
                                                const memopt_tensor *sources, uint64_t count,
                                                const memopt_blocks_options *options,
                                                memopt_stream stream);

/**
 * @brief Brings block-scaled matrices back: the value of each code times its block's scale, in f32,
 *        rounded once to nearest even.
 * @param device the device.
 * @param destinations `count` tensors of f32, f16 or bf16, written. They overlap nothing else of
 *        the call.
 * @param sources `count` matrices, of any formats; read. They may overlap each other.
 * @param count the number of matrices, below 2^32; 0 does nothing.
 * @param stream the stream.
 * @return the status as for memopt_blocks_quantize(). Every NaN is the quiet NaN 0x7fc00000 in the
 *         destination's type.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_blocks_dequantize(memopt_device *device,
                                                  const memopt_tensor *destinations,
                                                  const memopt_blocks *sources, uint64_t count,
                                                  memopt_stream stream);

/**
 * @brief Adds tensors to others, many in one call: destination = destination + scale * source.
 *
 * Each element is one fused multiply-add in f32, rounded once to the destination's type. Use it to
 * accumulate gradients of micro-batches from a narrow type in a wider one. Every NaN in the result
 * is the quiet NaN 0x7fc00000 in the destination's type.
 * @param device the device.
 * @param destinations `count` tensors of f32, f16 or bf16; each overlaps nothing else of the call.
 * @param sources `count` tensors of f32, f16 or bf16; sources[i].count = destinations[i].count.
 *        Sources may overlap each other.
 * @param count the number of tensors tensors, below 2^32; 0 does nothing.
 * @param scale the factor of the sources, finite.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, counts differ, a range is misaligned or
 *         overlaps another, or scale is not finite. The message names the tensor's index. Nothing
 *         is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type is not one of the three. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error(). Nothing is
 *         enqueued.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(); some destinations may be
 *         written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_accumulate(memopt_device *device, const memopt_tensor *destinations,
                                           const memopt_tensor *sources, uint64_t count,
                                           float scale, memopt_stream stream);

/**
 * @brief Multiplies many tensors in place by a factor in device memory, and sets a flag if an
 *        element is not finite.
 *
 * For callers that keep scale and flag in their own memory; memopt_scaler_unscale() does the same
 * with those of a scaler. An element is checked before it is multiplied. The product is computed in
 * f32 and rounded once to the element's type. If the factor is 1 and found_inf is NULL, nothing is
 * written.
 * @param device the device.
 * @param tensors `count` tensors of f32, f16 or bf16; none overlaps another.
 * @param count the number of tensors; 0 does nothing.
 * @param factor one f32 in device memory, read in stream order.
 * @param found_inf one f32 in device memory. It becomes 1.0f if any element is not finite;
 *        otherwise it is not changed. NULL: no check.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or a tensor is misaligned or overlaps another;
 *         the message names its index. Nothing is enqueued.
 * @retval MEMOPT_UNSUPPORTED an element type is not one of the three. Nothing is enqueued.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error(). Nothing is
 *         enqueued.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error(); some tensors may be
 *         multiplied.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scale(memopt_device *device, const memopt_tensor *tensors,
                                      uint64_t count, const float *factor, float *found_inf,
                                      memopt_stream stream);

/**
 * @brief Sets a flag, such as memopt_scaler_get_found_inf(), if an element is not finite:
 *        memopt_scale() without the multiplication.
 * @param device the device.
 * @param tensors `count` tensors of f32, f16 or bf16.
 * @param count the number of tensors; 0 does nothing.
 * @param found_inf one f32 in device memory. It becomes 1.0f if any element is not finite;
 *        otherwise it is not changed.
 * @param stream the stream.
 * @return the status as for memopt_scale().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_check_finite(memopt_device *device, const memopt_tensor *tensors,
                                             uint64_t count, float *found_inf,
                                             memopt_stream stream);

/**
 * @brief The Euclidean norm over all elements of all tensors, summed in double in a fixed order, and
 *        clipping by it.
 *
 * Clipping scales all tensors by min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_. The
 * coefficient is computed in double from the norm in double and rounded to f32 once; where it is 1
 * nothing is written. An infinite element makes it 0, a NaN makes it NaN, as in torch with
 * error_if_nonfinite=False.
 * @param device the device.
 * @param norm the norm, before clipping: one f32 in device memory. Written; may be NULL where the
 *        call clips.
 * @param tensors `count` tensors of f32, f16 or bf16. Where the call clips, none overlaps another.
 * @param count how many; 0 gives 0.
 * @param max_norm clip the norm to this; 0: the tensors are only read.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, misaligned or not the device's, max_norm is not
 *         finite or below 0, or tensors that are clipped overlap.
 * @retval MEMOPT_UNSUPPORTED an element type that is not supported.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR host
 *         allocation or driver failure; see memopt_last_error().
 *
 * Any thread may call it. It does not wait, and can be captured in a graph. The device provides 8
 * bytes of scratch for each 16,384 elements or part of them of a tensor, rounded up to a power of
 * two of 4,096 at least, and keeps it: one for each stream, whose next call uses it again, and one
 * for each call that was captured, until the device closes.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_norm(memopt_device *device, float *norm,
                                     const memopt_tensor *tensors, uint64_t count, double max_norm,
                                     memopt_stream stream);

/**
 * @brief The square of memopt_norm() as the f64 that it is before the root: sums of parts or of
 *        shards can be added, and memopt_optimizer_step() clips and checks by one.
 * @param device the device.
 * @param sum one f64 in device memory. Written; not finite if an element is not.
 * @param tensors as of memopt_norm().
 * @param count how many; 0 gives 0.
 * @param stream the stream.
 * @return the status as of memopt_norm(). Any thread may call it; it does not wait.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_square_sum(memopt_device *device, double *sum,
                                           const memopt_tensor *tensors, uint64_t count,
                                           memopt_stream stream);

/** @brief A dynamic loss scaler. */
typedef struct memopt_scaler memopt_scaler;

/** @brief How to make a scaler; zero means the default. */
typedef struct memopt_scaler_options {
    size_t struct_size;       /**< sizeof(memopt_scaler_options). */
    double init_scale;        /**< The first scale; 0: 65536. */
    double growth_factor;     /**< The factor of growth; 0: 2. Must be above 1. */
    double backoff_factor;    /**< The factor after an overflow; 0: 0.5. In (0, 1). */
    uint32_t growth_interval; /**< Steps without overflow before growth; 0: 2000. */
    uint32_t disabled;        /**< 1: the scale stays 1 (norm, clip and check still work). */
    /** Where the scaler's memory comes from; it must outlive the scaler. NULL: the device. */
    memopt_allocator *allocator;
    memopt_tag tag; /**< The tag of that memory; 0: "other". Only with an allocator. */
} memopt_scaler_options;

/** @brief Initialiser of ::memopt_scaler_options. */
#define MEMOPT_SCALER_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(memopt_scaler_options), 0, 0, 0, 0, 0, NULL, 0                                      \
    }

/** @brief A scaler's state, with the fields of torch's GradScaler. */
typedef struct memopt_scaler_state {
    size_t struct_size;       /**< sizeof(memopt_scaler_state). */
    double scale;             /**< The scale. */
    double growth_factor;     /**< As in the options. */
    double backoff_factor;    /**< As in the options. */
    uint32_t growth_interval; /**< As in the options. */
    uint32_t growth_tracker;  /**< Steps without overflow since the last change. */
} memopt_scaler_state;

/** @brief Initialiser of ::memopt_scaler_state. */
#define MEMOPT_SCALER_STATE_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_scaler_state), 0, 0, 0, 0, 0                                                 \
    }

/**
 * @brief Creates a scaler. Its scale and found-inf flag are in device memory.
 *
 * Waits for the default stream once, so that any stream can use the scaler at once.
 * @param device the device; it must outlive the scaler.
 * @param options NULL for defaults.
 * @param[out] out_scaler the scaler; destroy it with memopt_scaler_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, an option is out of range, or the allocator is
 *         of another device or does not know the tag.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_create(memopt_device *device,
                                              const memopt_scaler_options *options,
                                              memopt_scaler **out_scaler);

/**
 * @brief Destroys a scaler after waiting for the work that uses it.
 * @param scaler the scaler; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT waiting for pending work
 *         failed; the handle and its device memory are destroyed anyway. If the device was already
 *         known to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_destroy(memopt_scaler *scaler);

/**
 * @brief Returns the address of the scale, for the caller's loss kernel to multiply by.
 * @param scaler the scaler.
 * @return one f32 in device memory that exists as long as the scaler; NULL if scaler is NULL.
 * @since 0.9
 */
MEMOPT_API const float *memopt_scaler_get_scale(const memopt_scaler *scaler);

/**
 * @brief Returns the address of the found-inf flag: 1.0f if a check since the last update found a
 *        non-finite gradient, else 0.0f.
 *
 * The caller's own checks may set it to 1.0f in stream order.
 * @param scaler the scaler.
 * @return one f32 in device memory that exists as long as the scaler; NULL if scaler is NULL.
 * @since 0.9
 */
MEMOPT_API float *memopt_scaler_get_found_inf(const memopt_scaler *scaler);

/**
 * @brief Multiplies gradients by float(1 / double(scale)) in place and sets the found-inf flag if
 *        one is not finite.
 *
 * An element is checked before it is multiplied. The product is computed in f32 and rounded once to
 * the element's type. The tensors must not overlap.
 * @param scaler the scaler.
 * @param gradients `count` tensors of f32, f16 or bf16.
 * @param count the number of tensors; 0 does nothing.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or a tensor is misaligned; the message names
 *         its index.
 * @retval MEMOPT_UNSUPPORTED this element type cannot be unscaled.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_unscale(memopt_scaler *scaler,
                                               const memopt_tensor *gradients, uint64_t count,
                                               memopt_stream stream);

/**
 * @brief Completes a step: reduces the scale after an overflow, or increases it after
 *        growth_interval steps without overflow (only if it stays finite), and clears the found-inf
 *        flag.
 * @param scaler the scaler.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT scaler is NULL.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_update(memopt_scaler *scaler, memopt_stream stream);

/**
 * @brief Reads the state behind the work that is on the stream now. Waits for the stream.
 * @param scaler the scaler.
 * @param stream the stream.
 * @param[in,out] out_state the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT the driver failed or device memory was misused;
 *         see memopt_last_error().
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
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT the driver failed or device memory was misused;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_scaler_set_state_sync(memopt_scaler *scaler,
                                                      const memopt_scaler_state *state,
                                                      memopt_stream stream);

MEMOPT_END_DECLS

#endif /* MEMOPT_CAST_H */
