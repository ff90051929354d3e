/**
 * @file optim.h
 * @brief Optimizers with states of 4, 8, 16 or 32 bits and one fused multi-tensor step.
 *
 * The step count, the learning rates and the flags that a step reads are in device memory, so a
 * step never synchronises. The allocator provides states under the tag `optimizer`. On the "cpu"
 * device, parameters, gradients and states may lie in memory from malloc(): steps work on it in
 * place.
 *
 * **Threads.** One thread at a time per optimizer, any thread.
 */
#ifndef MEMOPT_OPTIM_H
#define MEMOPT_OPTIM_H

#include <memopt/allocator.h>
#include <memopt/cast.h>

MEMOPT_BEGIN_DECLS

/** @brief An optimizer over groups of parameters. */
typedef struct memopt_optimizer memopt_optimizer;

/** @brief The update rule. */
typedef uint32_t memopt_optimizer_kind;

/** @brief The values of ::memopt_optimizer_kind. A rule has 32-bit, 8-bit and
 * companded states where nothing else is said. */
enum {
    MEMOPT_OPTIMIZER_ADAMW = 1, /**< Adam with decoupled weight decay (Loshchilov & Hutter 2019):
                                     two moments, every state format. */
    MEMOPT_OPTIMIZER_LION = 2,  /**< Sign of an interpolated momentum, decoupled weight decay (Chen
                                     et al. 2023): one moment. */
    MEMOPT_OPTIMIZER_SGD = 3,   /**< Gradient descent with momentum as torch.optim.SGD defines it
                                     (Sutskever et al. 2013): one moment; none while the momentum
                                     is 0. */
    MEMOPT_OPTIMIZER_ADAM = 4,  /**< Adam with the decay in the gradient (Kingma & Ba 2015), as
                                     torch.optim.Adam: two moments. */
    MEMOPT_OPTIMIZER_SCHEDULE_FREE = 5, /**< Schedule-free AdamW (Defazio et al. 2024): a second
                                             moment and the sequence z, 32-bit. */
    MEMOPT_OPTIMIZER_RMSPROP = 6,       /**< RMSprop (Hinton 2012) as torch.optim.RMSprop without
                                             momentum: a second moment alone. */
    MEMOPT_OPTIMIZER_ADAGRAD = 7, /**< Adagrad (Duchi et al. 2011) as torch.optim.Adagrad: a sum of
                                       squares, coded as a second moment. */
    MEMOPT_OPTIMIZER_RMSPROP_MOMENTUM = 8, /**< RMSprop with a momentum, as torch.optim.RMSprop's:
                                                two moments. */
    MEMOPT_OPTIMIZER_ADEMAMIX =
        9, /**< AdEMAMix (Pagliardini et al. 2024): a fast and a slow mean of
                                       gradients, both coded as first moments; a mean of
                                       squares. */
    MEMOPT_OPTIMIZER_ADAFACTOR = 10 /**< Adafactor (Shazeer & Stern 2018) as torch.optim.Adafactor:
                                         means of squares of rows and of columns, of a vector of
                                         elements, 32-bit. Without a model copy, pages, split
                                         weights and stochastic rounding. @since 0.9 */
};

/** @brief How states are kept. */
typedef uint32_t memopt_state_format;

/** @brief The values of ::memopt_state_format. */
enum {
    MEMOPT_STATE_F32 = 1, /**< 32-bit floats. */
    /** Block-wise 8-bit codes with an absmax per block of 256. A first moment's code, a signed byte,
     * stands for (code / 127)^3, a second one's for ((code + 3) / 258)^4. Between two codes of a
     * second moment its own lowest bits draw the upper or the lower one, so that a mean which
     * changes slowly stays the mean. */
    MEMOPT_STATE_8BIT = 8,
    /** Block-wise 8-bit codes of the dynamic map with an absmax per block of 256 (Dettmers et al.
     * 2022): for states of bitsandbytes. */
    MEMOPT_STATE_8BIT_DYNAMIC = 2,
    /** Block-wise 4-bit codes with an absmax per block of 128. A byte holds two codes, the even
     * element in the upper half. A first moment's code is 7 plus a whole number near 7 * 2y / (1 +
     * |y|); a second one's stands for (code + 1) / 16 (Li et al. 2023). */
    MEMOPT_STATE_4BIT = 7,
    /** bf16 floats, rounded stochastically: to nearest a mean that changes slowly would stop. The
     * random bits depend on the element's new moments and the step alone, not on a seed or a place. */
    MEMOPT_STATE_BF16 = 6
    /* 3, 4 and 5 are reserved: the dynamic map of 4 bits, e4m3 and even companded codes, of older
     * versions. */
};

/** @brief How to make an optimizer; zero means the default. */
typedef struct memopt_optimizer_options {
    size_t struct_size;           /**< sizeof(memopt_optimizer_options). */
    uint32_t kind;                /**< A ::memopt_optimizer_kind; 0: AdamW. */
    uint32_t state_format;        /**< A ::memopt_state_format; 0: 32-bit. */
    uint32_t stochastic_rounding; /**< 1: bf16/f16 parameters are rounded stochastically. */
    /** Bytes of a residual, 1 or 2, that a bf16 parameter keeps as its last state,
     * "weight_residual", so that steps add to a weight of 24 or 32 bits: the parameter is that
     * weight rounded to nearest, and updates below half its last place are not lost. It takes the
     * place of an f32 master. With 2 bytes the weight is that master, in 4 bytes in all, not 6: the
     * parameter is what a cast gives, and where that is a tie (one step in 131,072) the master
     * moves by its last place. With 1 byte it is the master rounded to 24 bits after each step, in
     * 3 bytes, ties away from zero.
     * f32 parameters stay as they are; f16 ones and stochastic_rounding cannot be combined with it.
     * After something else has written a parameter, the residual still counts: at most half a last
     * place. */
    uint32_t split_weights;
    uint64_t min_8bit_size; /**< Smaller tensors keep 32-bit states, whatever the format. 0:
                                       4096; 1: no tensor does. A group may have its own. */
    uint64_t seed;          /**< Key of the generator for stochastic rounding. Element i of
                                       parameter n draws the same bits from it in every optimizer: a
                                       ::memopt_shard draws those of its place in the whole. */
    /** Not 0: states are in page-locked host memory, and a step brings them to the device page by
     * page, each of at most so many bytes or of one parameter. Two areas of the largest page are
     * all that the device holds of them, beside 8 bytes a parameter; copies in and out overlap with
     * the step on two streams of the optimizer. The bits are those of states on the device. A
     * step's stream waits for its copies out. It cannot be captured, and where the device or its
     * driver fails in the middle of one, pages may be of two steps: then steps and exports return
     * #MEMOPT_CORRUPT until an import. memopt_optimizer_destroy() waits for the copies. */
    uint64_t page_bytes;
    /** 1: an update is not longer than its parameter allows (memopt_optimizer_group::max_ratio).
     * AdamW becomes LAMB (You et al., "Large batch optimization for deep learning: training BERT in
     * 76 minutes", 2020), SGD becomes LARS (You et al., "Large batch training of convolutional
     * networks", 2017); other kinds do not have it. Without split_weights and page_bytes. A device
     * or driver that fails in the middle of a step is as with page_bytes. @since 0.9 */
    uint32_t trust;
} memopt_optimizer_options;

/** @brief Initialiser of ::memopt_optimizer_options. */
#define MEMOPT_OPTIMIZER_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_optimizer_options), 0, 0, 0, 0, 0, 0, 0, 0                                   \
    }

/**
 * @brief Hyperparameters of a group. Zero does not mean a default here: use an initialiser.
 *
 * With g the unscaled, clipped gradient (negated to maximize) of a parameter p and m, v its states:
 *
 * - AdamW: m = β1 m + (1 − β1) g; v = β2 v + (1 − β2) g²; p ← p − lr λ p − lr (m / (1 − β1^t)) /
 *   (√(v / (1 − β2^t)) + eps).
 * - Adam: AdamW of g + λ p in place of g, without the decay of p.
 * - Lion: p ← p − lr λ p − lr sign(β1 m + (1 − β1) g); then m = β2 m + (1 − β2) g.
 * - SGD: d = g + λ p; m = μ m + (1 − dampening) d, in the first step with a momentum m = d; p ← p −
 *   lr m, with Nesterov p ← p − lr (d + μ m).
 * - Schedule-free AdamW: the parameter is y, and z begins as y. v = β2 v + (1 − β2) g²; u = g /
 *   (√(v / (1 − β2^t)) + eps) + λ y; with c the average: y ← (1 − c) y + c z + lr (β1 (1 − c) − 1)
 *   u; z ← z − lr u. Evaluate the model at x = z + (y − z) / β1.
 * - RMSprop: d = g + λ p; v = β2 v + (1 − β2) d²; u = d / (√v + eps); p ← p − lr u; with momentum
 *   m = μ m + u; p ← p − lr m. Adagrad: v = v + d² in place of the mean.
 * - AdEMAMix: m and v as AdamW's and a slow mean s = β3 s + (1 − β3) g; p ← p − lr λ p − lr (m /
 *   (1 − β1^t) + α s) / (√(v / (1 − β2^t)) + eps). In the first t_alpha steps α is
 *   alpha t / t_alpha; in the first t_beta3 steps the half-life of s grows linearly from β1's to
 *   β3's.
 * - Adafactor, with x = g and f = t^beta2_decay: of a matrix r = r + f (mean of x² in the row − r),
 *   columns c the same, v(i, j) = r(i) c(j) / max(mean of r, eps); of a vector v = v + f (x² − v);
 *   u = x / max(√v, eps); p ← p (1 − lr λ) − u max(RMS(p), eps2) min(lr, 1 / √t) / max(1, RMS(u) /
 *   d). RMS is the root of the mean square, over all matrices of a parameter. The order of
 *   additions, and so every bit, is the same on all back ends (docs/guide/numerics-optimizers.md).
 *
 * With trust, u is what AdamW without a decay takes from p, or SGD, at a rate of 1. LAMB: u ← u +
 * λ p. r = max_ratio ‖p‖ / ‖u‖ (2-norms of the parameter, of its shards together), at most 1 with
 * trust_clip; 1 where a norm is 0 or max_ratio is 0; p ← p − lr r u.
 *
 * λ is weight_decay, μ is momentum. A rule ignores values that its formula does not name, but every
 * value must be in its range.
 */
typedef struct memopt_optimizer_group {
    size_t struct_size; /**< sizeof(memopt_optimizer_group). */
    double lr;          /**< Learning rate, finite, ≥ 0. */
    double beta1; /**< Schedule-free AdamW: how near y is to x; AdamW, Adam, AdEMAMix: decay of the
                       first moment; Lion: weight of the moment in the update. In [0, 1). */
    double beta2; /**< AdamW, Adam, RMSprop, AdEMAMix: decay of the second moment; Lion: of the
                       moment. In [0, 1). */
    double eps;   /**< AdamW, Adam, RMSprop, Adagrad, AdEMAMix: added to the root; Adafactor: the
                       least root. Finite, ≥ 0. */
    double weight_decay; /**< Decay, finite, ≥ 0. Decoupled; with SGD, Adam, RMSprop and Adagrad
                              added to the gradient. */
    uint32_t maximize;   /**< 1: maximise instead of minimise. */
    uint32_t nesterov;   /**< SGD: 1: Nesterov's form. It needs momentum > 0 and dampening 0. */
    double momentum;     /**< SGD, RMSprop with momentum: decay of the buffer, finite, ≥ 0. */
    double dampening;    /**< SGD: damping of the gradient from the second step on, finite. No
                              effect if momentum is 0. */
    /** One f32 in device memory that each step reads as the learning rate instead of lr, so that a
     * captured step can be replayed with another rate. Its value is not checked and not exported.
     * The memory must exist until the group gets another device_lr or the optimizer is destroyed.
     * NULL: lr. */
    const float *device_lr;
    double average; /**< Schedule-free AdamW: the weight of z in this step's average, in [0, 1];
                         0: 1 / t, the mean of all. With a warm-up, the step's lr² over the sum of
                         those so far. It is not exported. */
    double beta3;   /**< AdEMAMix: decay of the slow mean. In [0, 1). */
    double alpha; /**< AdEMAMix: weight of the slow mean beside the fast one's 1, finite, ≥ 0. */
    double t_alpha; /**< AdEMAMix: steps in which alpha grows from 0, finite, ≥ 0; 0: it does not.
                         As t_beta3 it counts a parameter's own steps. */
    double t_beta3; /**< AdEMAMix: steps in which beta3 grows from beta1, finite, ≥ 0; 0: it does
                         not. Above 0 it needs a beta1 and a beta3 above 0. */
    /** Parameters of this group that are added with fewer elements keep 32-bit states. 0: as the
     * options say; 1: no parameter does; UINT64_MAX: all do. States that exist stay as they are. It
     * is not exported. @since 0.9 */
    uint64_t min_8bit_size;
    double beta2_decay; /**< Adafactor: the second moments take t^beta2_decay of the squares in step
                             t, finite, ≤ 0. @since 0.9 */
    double eps2;        /**< Adafactor: the least RMS of a parameter that counts, finite, ≥ 0.
                             @since 0.9 */
    double d;           /**< Adafactor: the longest RMS of an update, finite, ≥ 1; 0: any. @since
                             0.9 */
    double max_ratio;   /**< Trust: the norm of an update is at most this times the parameter's,
                             finite, ≥ 0; 0: any. It is not exported. @since 0.9 */
    uint32_t trust_clip; /**< Trust: 1: shorter updates stay as they are; 0: each gets that norm, as
                              in the papers. It is not exported. @since 0.9 */
    uint32_t uncorrected; /**< AdamW, Adam: 1: the moments are not corrected for their start at 0:
                               both 1 − β^t are 1. It is not exported. @since 0.9 */
} memopt_optimizer_group;

/** @brief Initialiser of ::memopt_optimizer_group with torch's AdamW defaults. */
#define MEMOPT_OPTIMIZER_GROUP_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0.9, 0.999, 1e-8, 1e-2, 0, 0, 0, 0, NULL, 0, 0, 0,   \
            0, 0, 0, 0, 0, 0, 0, 0, 0                                                              \
    }

/** @brief Initialiser of ::memopt_optimizer_group with the defaults of the paper on Lion. */
#define MEMOPT_OPTIMIZER_GROUP_LION_INIT                                                           \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-4, 0.9, 0.99, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, 0                                                                       \
    }

/** @brief Initialiser of ::memopt_optimizer_group with torch's SGD defaults and momentum 0.9. */
#define MEMOPT_OPTIMIZER_GROUP_SGD_INIT                                                            \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0, 0, 0, 0, 0, 0, 0.9, 0, NULL, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0                                                                          \
    }

/** @brief Initialiser of ::memopt_optimizer_group with torch's RMSprop defaults. */
#define MEMOPT_OPTIMIZER_GROUP_RMSPROP_INIT                                                        \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-2, 0, 0.99, 1e-8, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0,   \
            0, 0, 0, 0, 0, 0, 0                                                                    \
    }

/** @brief Initialiser of ::memopt_optimizer_group with torch's Adagrad defaults. */
#define MEMOPT_OPTIMIZER_GROUP_ADAGRAD_INIT                                                        \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-2, 0, 0, 1e-10, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0, 0, 0                                                                       \
    }

/** @brief Initialiser of ::memopt_optimizer_group with the defaults of schedule-free AdamW. */
#define MEMOPT_OPTIMIZER_GROUP_SCHEDULE_FREE_INIT                                                  \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 2.5e-3, 0.9, 0.999, 1e-8, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, 0, 0, 0                                                                 \
    }

/** @brief Initialiser of ::memopt_optimizer_group with AdEMAMix's defaults: those of AdamW, and of
 *        the paper for the slow mean, without growth. */
#define MEMOPT_OPTIMIZER_GROUP_ADEMAMIX_INIT                                                       \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0.9, 0.999, 1e-8, 1e-2, 0, 0, 0, 0, NULL, 0, 0.9999, \
            5, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                           \
    }

/** @brief Initialiser of ::memopt_optimizer_group with torch's Adafactor defaults. */
#define MEMOPT_OPTIMIZER_GROUP_ADAFACTOR_INIT                                                      \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-2, 0, 0, 1.1920928955078125e-7, 0, 0, 0, 0, 0, NULL, 0, \
            0, 0, 0, 0, 0, -0.8, 1e-3, 1, 0, 0, 0                                                  \
    }

/** @brief Initialiser of ::memopt_optimizer_group with LAMB's defaults: AdamW's without a decay, and
 *        updates at most as long as their parameters. */
#define MEMOPT_OPTIMIZER_GROUP_LAMB_INIT                                                           \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0.9, 0.999, 1e-8, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0,   \
            0, 0, 0, 0, 0, 1, 1, 0                                                                 \
    }

/** @brief Initialiser of ::memopt_optimizer_group with LARS's defaults and momentum 0.9: updates at
 *        most as long as 0.02 of their parameters. */
#define MEMOPT_OPTIMIZER_GROUP_LARS_INIT                                                           \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0, 0, 0, 0, 0, 0, 0.9, 0, NULL, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0.02, 1, 0                                                                       \
    }

/**
 * @brief Creates an optimizer without groups or parameters.
 * @param allocator the allocator of the states; it must outlive the optimizer.
 * @param options NULL for defaults.
 * @param[out] out_optimizer the optimizer; destroy it with memopt_optimizer_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or an option is out of range.
 * @retval MEMOPT_UNSUPPORTED this version does not support an option, or the kind does not support
 *         the state format.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_create(memopt_allocator *allocator,
                                                 const memopt_optimizer_options *options,
                                                 memopt_optimizer **out_optimizer);

/**
 * @brief Destroys an optimizer and frees its states in the order of the streams that used them,
 *        without waiting. Streams that no longer exist are skipped.
 * @param optimizer the optimizer; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT
 *         the use of a stream could not be recorded with the allocator, so the call waited for the
 *         device instead, or that wait failed. The optimizer is destroyed anyway. If the device was
 *         already known to be lost, the call succeeds.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_destroy(memopt_optimizer *optimizer);

/**
 * @brief Adds a group.
 * @param optimizer the optimizer.
 * @param group its hyperparameters.
 * @param[out] out_group its number, from 0.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or a value is out of range.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_add_group(memopt_optimizer *optimizer,
                                                    const memopt_optimizer_group *group,
                                                    uint32_t *out_group);

/**
 * @brief Changes a group's hyperparameters for later steps.
 *
 * SGD parameters that were added while momentum was 0 have no momentum buffer. If momentum is not 0
 * any more, their next step creates one, filled with zeros. If momentum becomes 0 again, the buffer
 * stays unchanged and a later momentum continues with it.
 * @param optimizer the optimizer.
 * @param group its number.
 * @param values the new hyperparameters.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the group does not exist, or a value is out of
 *         range.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_set_group(memopt_optimizer *optimizer, uint32_t group,
                                                    const memopt_optimizer_group *values);

/**
 * @brief Reads a group's hyperparameters.
 * @param optimizer the optimizer.
 * @param group its number.
 * @param[in,out] out_values the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the group does not exist, or struct_size is
 *         too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_group(memopt_optimizer *optimizer, uint32_t group,
                                                    memopt_optimizer_group *out_values);

/** @brief A shard begins and ends at multiples of so many elements, or where its parameter ends: so
 * no block of coded states is cut. @since 0.9 */
#define MEMOPT_SHARD_ALIGNMENT 256

/** @brief Which part of a whole parameter a process has. @since 0.9 */
typedef struct memopt_shard {
    uint64_t first; /**< The place of the shard's first element in the whole, from 0. */
    uint64_t whole; /**< The elements of the whole parameter, below 2^56; 0: it is not cut. */
} memopt_shard;

/** @brief What a parameter may have; zero means that it has not. */
typedef struct memopt_parameter_options {
    size_t struct_size; /**< sizeof(memopt_parameter_options). */
    /** An f16 or bf16 tensor of the parameter's count that each step fills with the rounded
     * parameter (mixed precision with an f32 master). Of no elements: none. */
    memopt_tensor model_copy;
    /** The states in the caller's memory, with `steps`: nothing is allocated, zeroed or copied, and
     * the next step starts from the values there. The memory must exist until the optimizer is
     * destroyed and the work that uses it is complete. It is device memory; with page_bytes host
     * memory, best page-locked, which the caller may use after a step's stream was waited for.
     *
     * Order, element types and counts are those that memopt_optimizer_get_state() lists. The element
     * type decides the format, whatever min_8bit_size says: f32 moments give 32-bit states, others
     * the optimizer's format. Fill new states with zeros; if moments are coded, fill them with the
     * code of zero (see memopt_state_map()). */
    const memopt_tensor *states;
    /** AdamW (schedule-free too) and Adam have 2 with 32-bit and bf16 states, else 4; AdEMAMix has 3
     * or 6; Lion and SGD have 1 with 32-bit states, else 2; Adafactor has 2, of a vector 1. SGD in a
     * group without momentum needs none: then it may be 0. With split_weights a bf16 parameter has
     * one more. */
    uint64_t state_count;
    /** One u64 in device memory: the steps taken, below 2^53. With SGD and states, also set the
     * highest bit if none of those steps had a momentum; then the next step with a momentum does not
     * damp the gradient. Steps set and clear this bit. NULL: the optimizer has states of its own,
     * which start as zeros. */
    uint64_t *steps;
    /** Adafactor: the parameter is some matrices of `rows` times `columns`, one after the other, each
     * below 2^32. 0: a vector. @since 0.9 */
    uint64_t rows;
    uint64_t columns; /**< See rows. @since 0.9 */
    /** The parameter is a shard of a whole one, which other processes have the rest of. The whole
     * decides the state format (min_8bit_size), blocks and random bits: states and values of all
     * shards together are, bit for bit, those of a process with all of it, whatever the cut. A
     * shard may be empty: the parameter has no element (its data does not matter), takes no
     * gradient and keeps its number; its step count stays. @since 0.9 */
    memopt_shard shard;
} memopt_parameter_options;

/** @brief Initialiser of ::memopt_parameter_options. */
#define MEMOPT_PARAMETER_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_parameter_options), {NULL, 0, 0}, NULL, 0, NULL, 0, 0,                       \
        {                                                                                          \
            0, 0                                                                                   \
        }                                                                                          \
    }

/**
 * @brief Adds a parameter.
 * @param optimizer the optimizer.
 * @param group its group.
 * @param parameter f32, f16 or bf16 in device memory, at least one element, but of an empty shard.
 *        It must not move.
 * @param options a model copy, states of the caller's, a shard; NULL: none of it.
 * @param stream the stream in whose order the states are zeroed, or the caller's are ready.
 * @param[out] out_index the parameter's number, from 0.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the group does not exist, a tensor is
 *         misaligned or overlaps another parameter or model copy, or model_copy has another count;
 *         or the number of states is wrong; or a state has a wrong type or count, is misaligned, or
 *         overlaps another state, steps, the parameter or its model copy; or rows and columns are
 *         not Adafactor's, or the elements are not such matrices; or a shard reaches beyond its
 *         whole, or an end of it is not a multiple of #MEMOPT_SHARD_ALIGNMENT.
 * @retval MEMOPT_UNSUPPORTED this element type cannot be trained, or not with split_weights; a model
 *         copy with Adafactor, or a shard that is neither empty nor all: its norms are of the whole;
 *         or options sets a field that this version does not know.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error(); nothing
 *         added.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_add_parameter(memopt_optimizer *optimizer, uint32_t group,
                                                        const memopt_tensor *parameter,
                                                        const memopt_parameter_options *options,
                                                        memopt_stream stream, uint64_t *out_index);

/** @brief Options of a step; zero means the default. */
typedef struct memopt_step_options {
    size_t struct_size; /**< sizeof(memopt_step_options). */
    /** The gradients are scaled by this scaler's scale. The step unscales them in registers, does
     * not change them in memory, and sets the scaler's flag if one is not finite. NULL: unscaled
     * gradients. */
    memopt_scaler *scaler;
    /** Clip the global norm of the gradients to this after unscaling; 0: no clipping. */
    double max_norm;
    /** 1: check the gradients, and change nothing if one is not finite. With a scaler or max_norm
     * the check is always made. */
    uint32_t skip_non_finite;
    /** 1: memopt_scaler_unscale() was already called on these gradients. They are unscaled and the
     * scaler's flag holds the result: the step neither checks nor unscales them. */
    uint32_t already_unscaled;
    /** One f32 in device memory that receives the global norm before clipping; or NULL. */
    float *out_norm;
    /** One f32 in device memory by which the gradients are scaled; the step unscales them, as with
     * a scaler. NULL: unscaled gradients. Cannot be combined with a scaler. */
    const float *grad_scale;
    /** One f32 in device memory, the caller's flag: if it is not 0, the step changes nothing. The
     * step's own check (skip_non_finite, max_norm) sets it to 1.0f. NULL: none. Cannot be combined
     * with a scaler. */
    float *found_inf;
    /** One f64 in device memory: the sum of the squares of the gradients' elements as
     * memopt_square_sum() gives it, read in place of the step's own over the gradients given to it.
     * So a step may be made in parts (some parameters' gradients in each call), or of a shard, with
     * one norm and one verdict for all: with it max_norm, out_norm and the check are about the sum.
     * NULL: the step takes the sum itself, which it refuses where a parameter is a shard: the sum is
     * one over all processes. Cannot be combined with already_unscaled. */
    const double *square_sum;
    /** Trust, of parameters that are cut into shards: 2 × count f64 in device memory, for the sums
     * of squares of the parameters, then of their updates. A step is made in two halves, of the same
     * gradients: the first finds the updates, moves the moments and writes the sums; then the
     * processes add up their sums there (those of absent gradients are not written); the second
     * steps the parameters by them. Between the halves, on one stream, no other step is made. All
     * updates are there at once: 4 bytes an element, LARS's 8 but for an f32 momentum without
     * Nesterov's form, which needs none. NULL: the step is whole, which it cannot be where a
     * parameter is a ::memopt_shard. The sums of shards are added in another order than a whole
     * parameter's: so LAMB and LARS are equal up to rounding, not to the bit. @since 0.9 */
    double *squares;
    uint32_t half; /**< With squares: 1 or 2; else 0. The second ignores the other options. @since
                        0.9 */
} memopt_step_options;

/** @brief Initialiser of ::memopt_step_options. */
#define MEMOPT_STEP_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_step_options), NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0                \
    }

/**
 * @brief Runs one fused step over all parameters that have a gradient.
 *
 * If the check finds a gradient that is not finite, parameters, states and step counts keep their
 * bits. Parameter and model copy are rounded once, at the end.
 * @param optimizer the optimizer.
 * @param gradients the gradients by parameter number: f32, f16 or bf16, whatever the parameter's
 *        type. data NULL: the parameter has no gradient, and its step count does not grow. An f16
 *        or bf16 gradient may be the whole memory of its parameter's model copy: the step reads
 *        each element before it writes the copy's there. A step that is skipped leaves the gradient
 *        there, not the parameter.
 * @param count the number of gradients; must be the number of parameters.
 * @param options NULL for defaults.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT optimizer or gradients is NULL, count is wrong, a gradient is
 *         misaligned or overlaps its parameter or a part of its model copy (the message names the
 *         parameter's number), or an SGD group now has a momentum and
 *         one of its parameters was added with `steps` but without a state; or a second half is
 *         not of the first's gradients, or follows none; or a parameter is a shard, and the options
 *         ask for a sum over the gradients without square_sum, or for a whole step of trust.
 * @retval MEMOPT_UNSUPPORTED this element type cannot be a gradient; or, with page_bytes, the
 *         stream records a graph.
 * @retval MEMOPT_CORRUPT with page_bytes or trust: an earlier step ended in part; import a saved
 *         state.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR a host
 *         allocation, a device allocation or the driver failed; see memopt_last_error(). No
 *         parameter changed, but with page_bytes or trust see there.
 *
 * Adafactor keeps scratch of the allocator's: 5 MiB, or 4 bytes for each 60 elements of the largest
 * parameter and 12 for each of its rows. Trust has 4 bytes for each element of the
 * largest parameter, or 17 MiB; twice as much where memopt_step_options::squares says 8 bytes an
 * element. More than 40 MiB are there during a step only, unless a graph has recorded one.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_step(memopt_optimizer *optimizer,
                                               const memopt_tensor *gradients, uint64_t count,
                                               const memopt_step_options *options,
                                               memopt_stream stream);

/** @brief One state tensor of a parameter. */
typedef struct memopt_state_view {
    size_t struct_size;   /**< Set by the caller. */
    const char *name;     /**< A static string: "exp_avg", "exp_avg_slow" (AdEMAMix), "exp_avg_sq",
                               "momentum_buffer" (SGD), "z" (schedule-free AdamW), "square_avg"
                               (RMSprop), "sum" (Adagrad), "row_var", "col_var", "variance"
                               (Adafactor); "absmax1", "absmax2", "absmax3";
                               "power1", "power2", "power3" (the absmax of
                               ::MEMOPT_STATE_8BIT), "companded1", "companded2" (of
                               ::MEMOPT_STATE_4BIT);
                               "weight_residual" (split_weights: signed bytes, as u8; or i16). */
    memopt_tensor tensor; /**< Device memory (with page_bytes host memory). It belongs to the
                               optimizer and exists as long as it, or it belongs to the caller
                               (memopt_parameter_options::states). */
} memopt_state_view;

/** @brief Initialiser of ::memopt_state_view. */
#define MEMOPT_STATE_VIEW_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_state_view), NULL,                                                           \
        {                                                                                          \
            NULL, 0, 0                                                                             \
        }                                                                                          \
    }

/**
 * @brief Returns a state tensor of a parameter, to be read or written in stream order.
 *
 * The moments come first: two of AdamW and Adam (schedule-free: z and one; RMSprop with momentum:
 * the buffer and the mean of squares; Adafactor: one for each row, one for each column), three of
 * AdEMAMix (fast, slow, squares), one of Lion, SGD, RMSprop, Adagrad and Adafactor's vectors. If they are coded, their f32 absmax per block follows, then the
 * residual of a split weight. SGD has no moment while the momentum of its group is 0. A moment is
 * f32 or bf16; or u8 codes (8-bit, companded); or ceil(count / 2) bytes with two codes each
 * (companded 4-bit).
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param index from 0.
 * @param[in,out] out_view the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the parameter does not exist, or struct_size
 *         is too small.
 * @retval MEMOPT_NOT_FOUND index is behind the last state.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_state(memopt_optimizer *optimizer, uint64_t parameter,
                                                    uint64_t index, memopt_state_view *out_view);

/**
 * @brief Reads the number of steps that a parameter has taken. Waits for the stream.
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param stream the stream.
 * @param[out] out_steps the count.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or the parameter does not exist.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT the driver failed or device memory was misused;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_steps_sync(memopt_optimizer *optimizer,
                                                         uint64_t parameter, memopt_stream stream,
                                                         uint64_t *out_steps);

/**
 * @brief Sets the number of steps that a parameter has taken. Waits for the stream.
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param steps the count, below 2^53.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT optimizer is NULL, the parameter does not exist, or steps is out
 *         of range.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT the driver failed or device memory was misused;
 *         see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_set_steps_sync(memopt_optimizer *optimizer,
                                                         uint64_t parameter, uint64_t steps,
                                                         memopt_stream stream);

/**
 * @brief Quantises a tensor in a state format.
 *
 * 8-bit: the code of the value of the dynamic map that is nearest to x / absmax (Dettmers et al.,
 * arXiv:2110.02861); ties go to the smaller magnitude. Companded: of x / absmax as the format says.
 * With 8 bits an unsigned value that is positive never gets code 0.
 * @param device the device.
 * @param state_format ::MEMOPT_STATE_8BIT_DYNAMIC, ::MEMOPT_STATE_8BIT or ::MEMOPT_STATE_4BIT.
 * @param codes u8 tensor of the same count, with 4 bits of ceil(count / 2). Written.
 * @param scales f32 tensor, one element per block of 256 (4-bit: 128): the absmax. Written.
 * @param source f32, f16 or bf16.
 * @param is_signed 1: a first moment; 0: a second moment, values ≥ 0.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a tensor is misaligned or overlaps another
 *         one, or a count is wrong.
 * @retval MEMOPT_UNSUPPORTED the format or an element type is not supported.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_quantize(memopt_device *device, uint32_t state_format,
                                         const memopt_tensor *codes, const memopt_tensor *scales,
                                         const memopt_tensor *source, int32_t is_signed,
                                         memopt_stream stream);

/**
 * @brief Dequantises: the code's value times its block's scale, one f32 multiplication, rounded
 *        once to the destination's type.
 * @param device the device.
 * @param state_format the format of the codes.
 * @param destination f32, f16 or bf16. Written.
 * @param codes as for memopt_quantize().
 * @param scales as for memopt_quantize().
 * @param is_signed as for memopt_quantize().
 * @param stream the stream.
 * @return the status as for memopt_quantize().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_dequantize(memopt_device *device, uint32_t state_format,
                                           const memopt_tensor *destination,
                                           const memopt_tensor *codes, const memopt_tensor *scales,
                                           int32_t is_signed, memopt_stream stream);

/**
 * @brief Returns the value of each code of a state format, before the multiplication by the scale.
 * @param state_format ::MEMOPT_STATE_8BIT_DYNAMIC (256 values), ::MEMOPT_STATE_8BIT (256) or
 *        ::MEMOPT_STATE_4BIT (16; code 15 of a first moment is not made).
 * @param is_signed 1: codes of a first moment; 0: of a second moment.
 * @param[out] out_values host memory for that many floats.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_values is NULL.
 * @retval MEMOPT_UNSUPPORTED the format has no codes.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_state_map(uint32_t state_format, int32_t is_signed,
                                          float *out_values);

MEMOPT_END_DECLS

#include <memopt/optim_files.h>

#endif /* MEMOPT_OPTIM_H */
