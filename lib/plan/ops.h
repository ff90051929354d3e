/*
 * Operations on a tape: each makes what torch's operation of the name makes, leaves a node that
 * saves what autograd saves, and takes no input away: the caller drops what its program drops.
 * All return MO_NONE after an error.
 */
#ifndef MO_PLAN_OPS_H
#define MO_PLAN_OPS_H

#include "plan/tape.h"

/* A weight matrix of in × out elements, its bias, LoRA's two, and casts of them. */
typedef struct mo_linear {
    mo_value weight, bias, down, up;
    uint64_t in, out;
} mo_linear;

#define MO_NO_LINEAR                                                                               \
    {                                                                                              \
        MO_NONE, MO_NONE, MO_NONE, MO_NONE, 0, 0                                                   \
    }

/* LayerNorm, and RMSNorm as transformers writes it for Llama and for Gemma. */
enum mo_norm_kind { MO_NORM_RMS, MO_NORM_LAYER, MO_NORM_GEMMA };

typedef struct mo_norm {
    mo_value weight, bias;
    enum mo_norm_kind kind;
} mo_norm;

/* --- one operation each (ops_basic.c) ------------------------------------------------------- */
/* To another element width; a view where it is the same. */
mo_value mo_op_cast(mo_tape *t, mo_value x, uint32_t width);
mo_value mo_op_add(mo_tape *t, mo_value a, mo_value b);
/* b may be smaller (broadcast). */
mo_value mo_op_mul(mo_tape *t, mo_value a, mo_value b);
/* By a number: nothing is saved. */
mo_value mo_op_scale(mo_tape *t, mo_value x);
/* A function whose backward needs its input, or its output. */
mo_value mo_op_of_input(mo_tape *t, mo_value x, const char *label);
mo_value mo_op_of_output(mo_tape *t, mo_value x, const char *label);
/* x to a power: two temporaries in backward. */
mo_value mo_op_power(mo_tape *t, mo_value x);
mo_value mo_op_dropout(mo_tape *t, mo_value x, double p);
/* A contiguous copy of a view; its gradient is the incoming one (copy), a copy too (copy_both), or
 * only the gradient is copied (copy_back). */
mo_value mo_op_copy(mo_tape *t, mo_value x);
mo_value mo_op_copy_both(mo_tape *t, mo_value x);
mo_value mo_op_copy_back(mo_tape *t, mo_value x);
/* Part of x, or x in front of a constant: a new tensor that saves nothing, and whose gradient has
 * x's size. */
mo_value mo_op_resize(mo_tape *t, mo_value x, uint64_t elements, const char *label);
/* A view of part of x; its gradient is as large as x. */
mo_value mo_op_slice(mo_tape *t, mo_value x, uint64_t elements);
/* Views of equal parts of x, whose gradients are joined to one of x's size. */
void mo_op_split(mo_tape *t, mo_value x, int parts, mo_value out[MO_RECORD_OUTPUTS]);
/* Mean over groups of x: the gradient is expanded. */
mo_value mo_op_mean(mo_tape *t, mo_value x, uint64_t elements);
/* Products of matrices; batches of rows × inner and inner × columns. */
mo_value mo_op_bmm(mo_tape *t, mo_value a, mo_value b, uint64_t elements, double flops);
mo_value mo_op_softmax(mo_tape *t, mo_value x);
/* Rows of a table by ids. */
mo_value mo_op_embedding(mo_tape *t, mo_value table, mo_value ids, uint64_t elements);
mo_value mo_op_loss(mo_tape *t, mo_value x, mo_value target);

/* --- made of several (ops_layers.c) ---------------------------------------------------------- */
/* compute: 0, or the width of autocast to which inputs and weights are cast. */
mo_value mo_op_linear(mo_tape *t, const mo_linear *l, mo_value x, uint32_t compute,
                      double lora_dropout);
mo_value mo_op_norm(mo_tape *t, const mo_norm *n, mo_value x, uint32_t compute);
mo_value mo_op_activation(mo_tape *t, mo_value x, uint32_t activation);

#endif
