/*
 * Operations on a tape: each makes what torch's operation of the name makes, leaves a node that
 * saves what autograd saves, and takes no input away: the caller drops what its program drops.
 * All return MO_PLAN_NONE after an error.
 */
#ifndef MO_PLAN_OPS_H
#define MO_PLAN_OPS_H

#include "settings/families.h"
#include "tape/tape.h"

/* How a weight is stored: as it is, or in few bits. What bitsandbytes and PEFT do with each is told
 * in composed.c. */
enum mo_plan_stored {
    MO_PLAN_STORED_WHOLE,
    MO_PLAN_STORED_NF4,
    MO_PLAN_STORED_INT8,
    MO_PLAN_STORED_INT4
};

/* A weight matrix of in × out elements, its bias, LoRA's two, and casts of them. */
typedef struct mo_plan_linear {
    mo_plan_value weight, bias, down, up;
    uint64_t in, out;
    enum mo_plan_stored stored;
    uint64_t scales; /* bytes of fp32 that are made again where scales are in 8 bits (nf4-double) */
} mo_plan_linear;

typedef struct mo_plan_norm {
    mo_plan_value weight, bias;
    enum mo_plan_norm_kind kind;
} mo_plan_norm;

/* The result of an operation on `old`, which the program has no more. */
static inline mo_plan_value mo_plan_next(mo_plan_tape *t, mo_plan_value old, mo_plan_value result)
{
    mo_plan_drop(t, old);
    return result;
}

/* --- one operation each (operations.c) ------------------------------------------------------- */
/* To another element width; a view where it is the same. */
mo_plan_value mo_plan_op_cast(mo_plan_tape *t, mo_plan_value x, uint32_t width);
mo_plan_value mo_plan_op_add(mo_plan_tape *t, mo_plan_value a, mo_plan_value b);
/* b may be smaller (broadcast). */
mo_plan_value mo_plan_op_mul(mo_plan_tape *t, mo_plan_value a, mo_plan_value b);
/* By a number: nothing is saved. */
mo_plan_value mo_plan_op_scale(mo_plan_tape *t, mo_plan_value x);
/* A function whose backward needs its input, or its output. */
mo_plan_value mo_plan_op_of_input(mo_plan_tape *t, mo_plan_value x, const char *label);
mo_plan_value mo_plan_op_of_output(mo_plan_tape *t, mo_plan_value x, const char *label);
/* x to a power: two temporaries in backward. */
mo_plan_value mo_plan_op_power(mo_plan_tape *t, mo_plan_value x);
mo_plan_value mo_plan_op_dropout(mo_plan_tape *t, mo_plan_value x, double p);
/* A contiguous copy of a view; its gradient is the incoming one (copy), a copy too (copy_both), or
 * only the gradient is copied (copy_back). */
mo_plan_value mo_plan_op_copy(mo_plan_tape *t, mo_plan_value x);
mo_plan_value mo_plan_op_copy_both(mo_plan_tape *t, mo_plan_value x);
mo_plan_value mo_plan_op_copy_back(mo_plan_tape *t, mo_plan_value x);
/* Part of x, or x in front of a constant: a new tensor that saves nothing, and whose gradient has
 * x's size. */
mo_plan_value mo_plan_op_resize(mo_plan_tape *t, mo_plan_value x, uint64_t elements,
                                const char *label);
/* A view of part of x; its gradient is as large as x. */
mo_plan_value mo_plan_op_slice(mo_plan_tape *t, mo_plan_value x, uint64_t elements);
/* A view of x, seen several times; the gradient is summed to x's size. */
mo_plan_value mo_plan_op_expand(mo_plan_tape *t, mo_plan_value x, uint64_t elements);
/* Views of equal parts of x, whose gradients are joined to one of x's size. */
void mo_plan_op_split(mo_plan_tape *t, mo_plan_value x, int parts,
                      mo_plan_value out[MO_PLAN_RECORD_OUTPUTS]);
/* Mean over groups of x: the gradient is expanded. */
mo_plan_value mo_plan_op_mean(mo_plan_tape *t, mo_plan_value x, uint64_t elements);
/* Products of matrices; batches of rows × inner and inner × columns. */
mo_plan_value mo_plan_op_bmm(mo_plan_tape *t, mo_plan_value a, mo_plan_value b, uint64_t elements,
                             double flops);
mo_plan_value mo_plan_op_softmax(mo_plan_tape *t, mo_plan_value x);
/* Rows of a table by ids. */
mo_plan_value mo_plan_op_embedding(mo_plan_tape *t, mo_plan_value table, mo_plan_value ids,
                                   uint64_t elements);
mo_plan_value mo_plan_op_loss(mo_plan_tape *t, mo_plan_value x, mo_plan_value target);

/* --- made of several (composed.c) ---------------------------------------------------------- */
mo_plan_value mo_plan_op_linear(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x);
mo_plan_value mo_plan_op_norm(mo_plan_tape *t, const mo_plan_norm *n, mo_plan_value x);
mo_plan_value mo_plan_op_activation(mo_plan_tape *t, mo_plan_value x, uint32_t activation);

#endif
