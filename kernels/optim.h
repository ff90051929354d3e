/*
 * The optimizer's kernels: argument structs and the tables in device memory that they read.
 *
 * One step is: reduce (optional, one item per chunk) -> prologue (one item) -> step (one item per
 * chunk; see chunks.h, so no table grows with the elements). Tables are written by the upload
 * kernel, whose payload travels in its argument struct: nothing to keep alive, nothing to wait for.
 *
 * The prologue writes only scratch (coefficients, control block, verdicts); parameters, states and
 * step counts are written by the step kernel alone, so a step whose last launch fails has changed
 * nothing.
 */
#ifndef MO_KERNELS_OPTIM_H
#define MO_KERNELS_OPTIM_H

#include "kernels/adamw.h"
#include "kernels/chunks.h"
#include "kernels/kernel.h"

#include <stddef.h>

/* One parameter; addresses are device memory. */
typedef struct mo_optim_tensor {
    void *parameter;
    void *copy; /* or NULL */
    void *m;    /* u8 codes or f32 */
    void *v;
    float *absmax1; /* NULL: 32-bit states */
    float *absmax2;
    uint64_t *steps; /* steps taken */
    uint64_t count;
    uint64_t first_chunk; /* chunks of all tensors before this one */
    int32_t parameter_dtype, copy_dtype;
    uint32_t group, reserved;
} mo_optim_tensor;

typedef struct mo_optim_gradient {
    const void *data; /* NULL: the tensor sits this step out */
    int32_t dtype;
    uint32_t reserved;
} mo_optim_gradient;

/* What a chunk adds to the verdict on the gradients. */
typedef struct mo_optim_partial {
    double sum_of_squares;
    uint32_t non_finite;
    uint32_t reserved;
} mo_optim_partial;

/* What the prologue tells the step. */
typedef struct mo_optim_control {
    uint32_t skip; /* 1: leave everything as it is */
    uint32_t reserved;
} mo_optim_control;

enum { MO_UPLOAD_BYTES = 3968 };

typedef struct mo_optim_upload_args {
    void *destination;
    uint64_t bytes;
    unsigned char payload[MO_UPLOAD_BYTES];
} mo_optim_upload_args;

typedef struct mo_optim_reduce_args {
    const mo_optim_tensor *tensors;
    const mo_optim_gradient *gradients;
    mo_optim_partial *partials; /* by chunk */
    uint64_t tensor_count;
} mo_optim_reduce_args;

typedef struct mo_optim_prologue_args {
    const mo_optim_tensor *tensors;
    const mo_optim_gradient *gradients;
    const mo_adamw_group *groups;
    mo_adamw_coef *coefs; /* by tensor */
    mo_optim_control *control;
    const mo_optim_partial *partials; /* NULL: no check was made */
    const float *scale;               /* NULL: gradients are not scaled */
    float *found_inf;                 /* NULL: no scaler */
    float *out_norm;                  /* or NULL */
    uint64_t tensor_count, chunk_count;
    double max_norm; /* 0: no clipping */
} mo_optim_prologue_args;

typedef struct mo_optim_step_args {
    const mo_optim_tensor *tensors;
    const mo_optim_gradient *gradients;
    const mo_adamw_coef *coefs;
    const mo_optim_control *control;
    uint64_t tensor_count, seed;
    uint32_t stochastic, reserved;
} mo_optim_step_args;

/* Block-wise quantisation of one tensor; an item is a chunk. */
typedef struct mo_blockcode_args {
    void *values; /* f32, f16 or bf16 */
    uint8_t *codes;
    float *absmax;
    uint64_t count;
    int32_t dtype;
    uint32_t is_signed;
} mo_blockcode_args;

extern const mo_kernel mo_kernel_optim_upload, mo_kernel_optim_reduce, mo_kernel_optim_prologue,
    mo_kernel_optim_step, mo_kernel_quantize, mo_kernel_dequantize;

#endif
