/*
 * The optimizer's kernels: argument structs and the tables in device memory that they read.
 *
 * One step is: the reductions of reduce.h (optional) -> prologue (one item) -> step (one item per
 * chunk; see chunks.h, so that no table grows with the elements). Tables are written by the upload
 * kernel, whose payload travels in its argument struct: nothing to keep alive, nothing to wait for.
 *
 * The prologue writes only scratch (coefficients, control block, verdicts); parameters, states and
 * step counts are written by the step kernel alone, so a step whose last launch fails has changed
 * nothing.
 */
#ifndef MO_KERNELS_OPTIM_H
#define MO_KERNELS_OPTIM_H

#include "kernels/optim/rule.h"
#include "kernels/reduce/reduce.h"

/* One parameter; addresses are device memory. */
typedef struct mo_optim_tensor {
    void *parameter;
    void *copy;     /* or NULL */
    void *m;        /* codes or f32; NULL: SGD without momentum, which keeps nothing */
    void *v;        /* NULL where the rule has one moment; so is absmax2 */
    float *absmax1; /* a scale per block; NULL: 32-bit states */
    float *absmax2;
    uint64_t *steps; /* steps taken, perhaps with MO_STEPS_NOT_BEGUN */
    int32_t parameter_dtype, copy_dtype;
    uint32_t group;
    uint32_t format; /* of the states: MO_STATE_… */
} mo_optim_tensor;

/* A gradient is a mo_segment whose `reserved` is the number of its parameter; a parameter that sits
 * the step out has none. The reductions and the step share this table and its chunks. */

/* What the prologue tells the step. */
typedef struct mo_optim_control {
    uint32_t skip; /* 1: leave everything as it is */
    uint32_t reserved;
} mo_optim_control;

enum { MO_UPLOAD_BYTES = 3968, MO_OPTIM_THREADS = 256 };

typedef struct mo_optim_upload_args {
    void *destination;
    uint64_t bytes;
    unsigned char payload[MO_UPLOAD_BYTES];
} mo_optim_upload_args;

typedef struct mo_optim_prologue_args {
    const mo_optim_tensor *tensors;
    const mo_segment *gradients;
    const mo_rule_group *groups;
    mo_rule_coef *coefs; /* by gradient */
    mo_optim_control *control;
    const double *square_sum; /* of all gradients as they are; NULL: not taken */
    const float *scale;       /* NULL: gradients are not scaled */
    float *found_inf;         /* NULL: no scaler */
    float *out_norm;          /* or NULL */
    double max_norm;          /* 0: no clipping */
    uint32_t count;           /* gradients */
    uint32_t check;           /* 1: a square_sum that is not finite skips the step */
    uint32_t rule, reserved;
} mo_optim_prologue_args;

typedef struct mo_optim_step_args {
    const mo_optim_tensor *tensors;
    const mo_segment *gradients;
    const mo_rule_coef *coefs;
    const mo_optim_control *control;
    uint64_t seed;
    uint32_t count; /* gradients */
    uint32_t stochastic;
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

/* The step kernels are one for a rule and a format of states other than 32-bit; each also takes
 * tensors with 32-bit states. So one launch does an optimizer. The first is AdamW's 8-bit one. */
extern const mo_kernel mo_kernel_optim_upload, mo_kernel_optim_prologue, mo_kernel_optim_step,
    mo_kernel_step_adamw4, mo_kernel_step_adamwf8, mo_kernel_step_lion8, mo_kernel_step_sgd8;

extern const mo_kernel mo_kernel_quantize, mo_kernel_dequantize, mo_kernel_quantize4,
    mo_kernel_dequantize4, mo_kernel_quantizef8, mo_kernel_dequantizef8;

#endif
