/**
 * @file optim.h
 * @brief Optimizers with states of 4, 8 or 32 bits and one fused multi-tensor step.
 *
 * Step count, learning rates and flags that a step reads live in device memory, so a step never
 * synchronises. States come from the allocator under the tag `optimizer`.
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

/** @brief The values of ::memopt_optimizer_kind. */
enum {
    MEMOPT_OPTIMIZER_ADAMW = 1, /**< Adam with decoupled weight decay (Loshchilov & Hutter 2019):
                                     two moments, every state format. */
    MEMOPT_OPTIMIZER_LION = 2,  /**< Sign of an interpolated momentum, decoupled weight decay (Chen
                                     et al. 2023): one moment, 32-bit or 8-bit. */
    MEMOPT_OPTIMIZER_SGD = 3    /**< Gradient descent with momentum as torch.optim.SGD defines it
                                     (Sutskever et al. 2013): one moment, 32-bit or 8-bit; none
                                     while the momentum is 0. */
};

/** @brief How states are kept. */
typedef uint32_t memopt_state_format;

/** @brief The values of ::memopt_state_format. */
enum {
    MEMOPT_STATE_F32 = 1,  /**< 32-bit floats. */
    MEMOPT_STATE_8BIT = 2, /**< Block-wise codes of the dynamic map with an absmax per block of 256
                                (Dettmers et al. 2022). */
    MEMOPT_STATE_4BIT = 3, /**< Block-wise codes of 4 bits with an absmax per block of 128, two a
                                byte, the even element in the upper half (Li et al. 2023). */
    MEMOPT_STATE_F8 = 4    /**< e4m3 floats with a scale, absmax / 448, per block of 256. */
};

/** @brief How to make an optimizer; zero means the default. */
typedef struct memopt_optimizer_options {
    size_t struct_size;           /**< sizeof(memopt_optimizer_options). */
    uint32_t kind;                /**< A ::memopt_optimizer_kind; 0: AdamW. */
    uint32_t state_format;        /**< A ::memopt_state_format; 0: 32-bit. */
    uint32_t block_size;          /**< Elements per absmax or scale; 0: the format's: 128 with
                                       4-bit states, else 256 (no other is supported). */
    uint32_t stochastic_rounding; /**< 1: bf16/f16 parameters are rounded stochastically. */
    uint64_t min_8bit_size;       /**< Whatever the format: smaller tensors keep 32-bit states; 0:
                                       4096; 1: none does. */
    uint64_t seed;                /**< Key of the generator for stochastic rounding. */
} memopt_optimizer_options;

/** @brief Initialiser of ::memopt_optimizer_options. */
#define MEMOPT_OPTIMIZER_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(memopt_optimizer_options), 0, 0, 0, 0, 0, 0                                         \
    }

/**
 * @brief Hyperparameters of a group. There are no defaults behind zero here: use an initialiser.
 *
 * With g the unscaled, clipped gradient (negated to maximize) of a parameter p and m, v its states:
 *
 * - AdamW: m = β1 m + (1 − β1) g; v = β2 v + (1 − β2) g²;
 *   p ← p − lr λ p − lr (m / (1 − β1^t)) / (√(v / (1 − β2^t)) + eps).
 * - Lion: p ← p − lr λ p − lr sign(β1 m + (1 − β1) g); then m = β2 m + (1 − β2) g.
 * - SGD: d = g + λ p; m = μ m + (1 − dampening) d, in the first step with a momentum m = d;
 *   p ← p − lr m, with Nesterov p ← p − lr (d + μ m).
 *
 * λ is weight_decay, μ momentum. A rule ignores what its formula does not name, but every value
 * must be in its range.
 */
typedef struct memopt_optimizer_group {
    size_t struct_size;  /**< sizeof(memopt_optimizer_group). */
    double lr;           /**< Learning rate, finite, ≥ 0. */
    double beta1;        /**< AdamW: decay of the first moment; Lion: weight of the moment in the
                              update. In [0, 1). */
    double beta2;        /**< AdamW: decay of the second moment; Lion: of the moment. In [0, 1). */
    double eps;          /**< AdamW: added to the root, finite, ≥ 0. */
    double weight_decay; /**< Decay, finite, ≥ 0; decoupled, with SGD part of the gradient. */
    uint32_t maximize;   /**< 1: climb instead of descend. */
    uint32_t nesterov;   /**< SGD: 1: Nesterov's form; needs momentum > 0 and dampening 0. */
    double momentum;     /**< SGD: decay of the momentum buffer, finite, ≥ 0. */
    double dampening;    /**< SGD: what a later gradient is damped by, finite. Without effect where
                              momentum is 0. */
    /** One f32 in device memory that each step reads as the learning rate in place of lr, so that a
     * captured step can be replayed with another. Nothing checks its value. It must stay until the
     * group has another one or the optimizer has ended, and is not exported. NULL: lr. */
    const float *device_lr;
} memopt_optimizer_group;

/** @brief Initialiser of ::memopt_optimizer_group with torch's AdamW defaults. */
#define MEMOPT_OPTIMIZER_GROUP_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0.9, 0.999, 1e-8, 1e-2, 0, 0, 0, 0, NULL             \
    }

/** @brief Initialiser of ::memopt_optimizer_group with the defaults of the paper on Lion. */
#define MEMOPT_OPTIMIZER_GROUP_LION_INIT                                                           \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-4, 0.9, 0.99, 0, 0, 0, 0, 0, 0, NULL                    \
    }

/** @brief Initialiser of ::memopt_optimizer_group with torch's SGD defaults and momentum 0.9. */
#define MEMOPT_OPTIMIZER_GROUP_SGD_INIT                                                            \
    {                                                                                              \
        sizeof(memopt_optimizer_group), 1e-3, 0, 0, 0, 0, 0, 0, 0.9, 0, NULL                       \
    }

/**
 * @brief Makes an optimizer without groups or parameters.
 * @param allocator where states come from; it must outlive the optimizer.
 * @param options NULL for defaults.
 * @param[out] out_optimizer the optimizer; ended by memopt_optimizer_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or an option is out of range.
 * @retval MEMOPT_UNSUPPORTED an option that this version lacks, or a state format that the kind
 * does not have.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_create(memopt_allocator *allocator,
                                                 const memopt_optimizer_options *options,
                                                 memopt_optimizer **out_optimizer);

/**
 * @brief Ends an optimizer and frees its states in order of the streams that used them, without
 *        waiting. A stream that was ended before is left out.
 * @param optimizer the optimizer; NULL is fine.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT
 *         the use of a stream could not be told to the allocator, and the device was waited for
 *         instead, or that failed; the handle is gone all the same. On a device that was known to
 *         be lost it succeeds.
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
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_add_group(memopt_optimizer *optimizer,
                                                    const memopt_optimizer_group *group,
                                                    uint32_t *out_group);

/**
 * @brief Changes a group's hyperparameters for later steps.
 *
 * Parameters of SGD that were added while the momentum was 0 have no momentum buffer. With a
 * momentum they get one, of zeros, at their next step. Where the momentum is 0 again it stays as
 * it is, and a later momentum goes on with it.
 * @param optimizer the optimizer.
 * @param group its number.
 * @param values the new hyperparameters.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, no such group, or a value is out of range.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_set_group(memopt_optimizer *optimizer, uint32_t group,
                                                    const memopt_optimizer_group *values);

/**
 * @brief Reads a group's hyperparameters.
 * @param optimizer the optimizer.
 * @param group its number.
 * @param[in,out] out_values struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, no such group, or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_group(memopt_optimizer *optimizer, uint32_t group,
                                                    memopt_optimizer_group *out_values);

/**
 * @brief Adds a parameter with states of zero.
 * @param optimizer the optimizer.
 * @param group its group.
 * @param parameter f32, f16 or bf16 in device memory, at least one element; it must stay where it
 *        is.
 * @param model_copy f16 or bf16 tensor of the same count that receives the rounded parameter at
 * each step (mixed precision with an f32 master), or NULL.
 * @param stream the stream in whose order the states are zeroed.
 * @param[out] out_index the parameter's number, from 0.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, no such group, a misaligned tensor, one that
 *         overlaps another parameter or model copy, or a model_copy of another count.
 * @retval MEMOPT_UNSUPPORTED an element type that cannot be trained.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as told;
 *         nothing added.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_add_parameter(memopt_optimizer *optimizer, uint32_t group,
                                                        const memopt_tensor *parameter,
                                                        const memopt_tensor *model_copy,
                                                        memopt_stream stream, uint64_t *out_index);

/**
 * @brief Adds a parameter whose states and step count lie in memory of the caller's, as they are.
 *
 * Nothing is allocated, zeroed or copied: the values there are what the next step starts from. The
 * memory must stay until the optimizer has ended and the work that uses it is done.
 * @param optimizer the optimizer.
 * @param group its group.
 * @param parameter as of memopt_optimizer_add_parameter().
 * @param model_copy as of memopt_optimizer_add_parameter(), or NULL.
 * @param states the state tensors in device memory, with the order, element types and counts that
 *        memopt_optimizer_get_state() lists. Moments of f32 make the parameter one with 32-bit
 * states and others one with the optimizer's format, whatever min_8bit_size says. New states are
 *        zeros; where moments are coded, the code of zero (see memopt_state_map()).
 * @param state_count how many: AdamW has 2 with 32-bit states, else 4; Lion and SGD have 1 and 2.
 *        SGD in a group without momentum needs none: then 0, and states may be NULL.
 * @param steps one u64 in device memory: the steps taken, below 2^53. With SGD and states the
 *        highest bit is set as well where none of those steps had a momentum, so that the next one
 *        that has is not damped; steps set it and clear it.
 * @param stream a stream in whose order the memory is ready.
 * @param[out] out_index the parameter's number, from 0.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT as of memopt_optimizer_add_parameter(); or a wrong number of
 *         states, a state of another type or count, a misaligned one, or states that overlap one
 *         another, steps, the parameter or its model copy.
 * @retval MEMOPT_UNSUPPORTED an element type that cannot be trained.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told; nothing added.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_add_parameter_with_state(
    memopt_optimizer *optimizer, uint32_t group, const memopt_tensor *parameter,
    const memopt_tensor *model_copy, const memopt_tensor *states, uint64_t state_count,
    uint64_t *steps, memopt_stream stream, uint64_t *out_index);

/** @brief What a step does beside the update; zero means the default. */
typedef struct memopt_step_options {
    size_t struct_size; /**< sizeof(memopt_step_options). */
    /** Gradients are scaled by this scaler's scale: the step unscales them (in registers; the
     * gradients stay as they are), and notes non-finite ones in its flag. NULL: unscaled. */
    memopt_scaler *scaler;
    /** Clip the gradients' global norm to this, after unscaling; 0: no clipping. */
    double max_norm;
    /** 1: check the gradients, and leave everything as it is if one is not finite. With a scaler or
     * max_norm the check is always made. */
    uint32_t skip_non_finite;
    /** 1: the scaler's flag already holds the verdict on these gradients and they are unscaled
     * (memopt_scaler_unscale() was called); neither check nor unscale again. */
    uint32_t already_unscaled;
    /** One f32 in device memory that receives the global norm before clipping; or NULL. */
    float *out_norm;
    /** One f32 in device memory: gradients are scaled by it and the step unscales them, as with a
     * scaler's scale. NULL: unscaled. Not together with a scaler. */
    const float *grad_scale;
    /** One f32 in device memory, a verdict of the caller's: unless it is 0, the step leaves
     * everything as it is. A check of the step's own (skip_non_finite, max_norm) sets it to 1.0f.
     * NULL: none. Not together with a scaler. */
    float *found_inf;
} memopt_step_options;

/** @brief Initialiser of ::memopt_step_options. */
#define MEMOPT_STEP_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_step_options), NULL, 0, 0, 0, NULL, NULL, NULL                               \
    }

/**
 * @brief One fused step over all parameters that have a gradient.
 *
 * If the check finds a non-finite gradient, parameters, states and step count stay bit-identical.
 * Parameter and model copy are rounded once, at the end.
 * @param optimizer the optimizer.
 * @param gradients by parameter number; data NULL: no gradient (its step count does not grow). f32,
 *        f16 or bf16, whatever the parameter's type.
 * @param count must be the number of parameters.
 * @param options NULL for defaults.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL, a wrong count, a misaligned gradient or one that overlaps
 * its parameter; the message names the parameter's number. Or SGD's group has a momentum by now and
 *         a parameter was added with no state (memopt_optimizer_add_parameter_with_state()).
 * @retval MEMOPT_UNSUPPORTED an element type that cannot be a gradient.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR as told; no
 *         parameter is changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_step(memopt_optimizer *optimizer,
                                               const memopt_tensor *gradients, uint64_t count,
                                               const memopt_step_options *options,
                                               memopt_stream stream);

/** @brief One state tensor of a parameter. */
typedef struct memopt_state_view {
    size_t struct_size; /**< Set by the caller. */
    const char *name;   /**< "exp_avg", "exp_avg_sq", "momentum_buffer" (SGD); "absmax1", "absmax2";
                             "scale1", "scale2" (::MEMOPT_STATE_F8): static. */
    memopt_tensor tensor; /**< Device memory of the optimizer, living as long as it; or of the
                               caller's (memopt_optimizer_add_parameter_with_state()). */
} memopt_state_view;

/**
 * @brief A state tensor of a parameter, to read or write in stream order.
 *
 * First come the moments (AdamW has two, Lion and SGD one), then, where they are coded, their f32
 * absmax or scale per block. SGD has none while a group's momentum is 0. A moment is f32; u8 codes
 * (8-bit); u8 pairs of codes, ceil(count / 2) of them (4-bit); or e4m3.
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param index from 0.
 * @param[in,out] out_view struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, no such parameter, or struct_size is too
 * small.
 * @retval MEMOPT_NOT_FOUND index is behind the last.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_state(memopt_optimizer *optimizer, uint64_t parameter,
                                                    uint64_t index, memopt_state_view *out_view);

/**
 * @brief Steps that a parameter has taken. Waits for the stream.
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param stream the stream.
 * @param[out] out_steps the count.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or no such parameter.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_steps_sync(memopt_optimizer *optimizer,
                                                         uint64_t parameter, memopt_stream stream,
                                                         uint64_t *out_steps);

/**
 * @brief Sets the steps that a parameter has taken. Waits for the stream.
 * @param optimizer the optimizer.
 * @param parameter its number.
 * @param stream the stream.
 * @param steps the count, below 2^53.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT optimizer is NULL, no such parameter, or steps is out of range.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_set_steps_sync(memopt_optimizer *optimizer,
                                                         uint64_t parameter, uint64_t steps,
                                                         memopt_stream stream);

/**
 * @brief The bytes that memopt_optimizer_export_sync() will write.
 * @param optimizer the optimizer.
 * @param[out] out_bytes the size.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_get_export_size(memopt_optimizer *optimizer,
                                                          uint64_t *out_bytes);

/**
 * @brief Writes groups, step counts and states into host memory, in a versioned, checksummed format
 *        that is the same on every back end. Waits for the stream.
 * @param optimizer the optimizer.
 * @param buffer host memory.
 * @param bytes its size, at least memopt_optimizer_get_export_size().
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is too small.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_export_sync(memopt_optimizer *optimizer, uint64_t bytes,
                                                      memopt_stream stream, void *buffer);

/**
 * @brief Reads what memopt_optimizer_export_sync() wrote. Everything is checked before anything
 *        changes. Waits for the stream.
 * @param optimizer an optimizer with the same parameters (count, sizes, state formats).
 * @param buffer host memory.
 * @param bytes its size.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or the parameters are not the same; the
 * message names the first that differs.
 * @retval MEMOPT_CORRUPT the bytes are damaged, cut short, or not an export.
 * @retval MEMOPT_UNSUPPORTED the export is of a newer version of the format.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as told. If the
 * device fails while states are being copied, some may hold imported values: import again.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_import_sync(memopt_optimizer *optimizer,
                                                      const void *buffer, uint64_t bytes,
                                                      memopt_stream stream);

/**
 * @brief Quantises as a state format does.
 *
 * 8-bit: the nearest value of the dynamic map (Dettmers et al., arXiv:2110.02861) to x / absmax;
 * 4-bit: of the format's map; ties to the smaller magnitude. With an unsigned map a positive value
 * never gets code 0. e4m3: x / scale to nearest even, scale = absmax / 448.
 * @param device the device.
 * @param state_format ::MEMOPT_STATE_8BIT, ::MEMOPT_STATE_4BIT or ::MEMOPT_STATE_F8.
 * @param codes u8 tensor of the same count (8-bit) or of ceil(count / 2) (4-bit), or e4m3 tensor of
 *        the same count. Written.
 * @param scales f32 tensor, one per block of 256 (4-bit: 128): absmax, with e4m3 the scale.
 *        Written.
 * @param source f32, f16 or bf16.
 * @param is_signed 1: a first moment; 0: a second moment, values ≥ 0.
 * @param stream the stream.
 * @retval MEMOPT_OK enqueued.
 * @retval MEMOPT_INVALID_ARGUMENT NULL, misaligned or overlapping tensors, wrong counts.
 * @retval MEMOPT_UNSUPPORTED a format or an element type that is not supported.
 * @retval MEMOPT_DRIVER_ERROR the driver failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_quantize(memopt_device *device, uint32_t state_format,
                                         const memopt_tensor *codes, const memopt_tensor *scales,
                                         const memopt_tensor *source, int32_t is_signed,
                                         memopt_stream stream);

/**
 * @brief The inverse: the code's value times its block's scale, one f32 multiplication, rounded
 *        once to the destination.
 * @param device the device.
 * @param state_format as it was when the codes were made.
 * @param destination f32, f16 or bf16. Written.
 * @param codes as of memopt_quantize().
 * @param scales as of memopt_quantize().
 * @param is_signed as it was when the codes were made.
 * @param stream the stream.
 * @return the status as of memopt_quantize().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_dequantize(memopt_device *device, uint32_t state_format,
                                           const memopt_tensor *destination,
                                           const memopt_tensor *codes, const memopt_tensor *scales,
                                           int32_t is_signed, memopt_stream stream);

/**
 * @brief The values that the codes of a state format stand for, before the block's scale, by code.
 * @param state_format ::MEMOPT_STATE_8BIT (256 values), ::MEMOPT_STATE_4BIT (16) or
 *        ::MEMOPT_STATE_F8 (256; codes 0x7f and 0xff are NaN).
 * @param is_signed 1: of a first moment; 0: of a second.
 * @param[out] out_values room for as many floats of host memory.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_values is NULL.
 * @retval MEMOPT_UNSUPPORTED a format without codes.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_state_map(uint32_t state_format, int32_t is_signed,
                                          float *out_values);

MEMOPT_END_DECLS

#endif /* MEMOPT_OPTIM_H */
