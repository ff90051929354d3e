/*
 * Linear layers with LoRA, norms and activations, written as the operations that they are made of.
 */
#include "plan/ops.h"

/* Replaces v by f's result. */
static mo_value next(mo_tape *t, mo_value v, mo_value result)
{
    mo_drop(t, v);
    return result;
}

/* x W (+ b): the gradient of a weight has its own width. */
static mo_value product(mo_tape *t, mo_value x, mo_value weight, mo_value bias, uint64_t in,
                        uint64_t out)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    uint64_t rows = mo_elements(t, x) / in;
    t->label = "a linear layer";
    mo_value y = mo_value_of_inputs(t, mo_tape_mul(t, rows, out), mo_width(t, x), t->category);
    if (y == MO_NONE)
        return MO_NONE;
    if (!t->in_backward)
        t->flops += 2.0 * (double)rows * (double)in * (double)out;
    mo_tape_record(t, &(mo_record){.label = "a linear layer",
                                   .out[0] = y,
                                   .in[0] = x,
                                   .in[1] = weight,
                                   .in[2] = bias,
                                   .grad = {mo_bytes(t, x), mo_bytes(t, weight), mo_bytes(t, bias)},
                                   .saved[0] = mo_needs(t, weight) ? x : MO_NONE,
                                   .saved[1] = mo_needs(t, x) ? weight : MO_NONE});
    return y;
}

/* A product of operands that are cast to the width. As torch evaluates its arguments the input is
 * cast last, and so its gradient is the first to be cast back. */
static mo_value cast_product(mo_tape *t, mo_value x, mo_value weight, mo_value bias, uint64_t in,
                             uint64_t out, uint32_t width)
{
    mo_value b = bias == MO_NONE ? MO_NONE : mo_op_cast(t, bias, width);
    mo_value w = mo_op_cast(t, weight, width);
    mo_value input = mo_op_cast(t, x, width);
    mo_value y = product(t, input, w, b, in, out);
    if (mo_width(t, weight) != width) { /* autocast keeps casts of weights that learn alone */
        mo_tape_cache(t, mo_needs(t, weight) ? w : MO_NONE);
        mo_tape_cache(t, mo_needs(t, bias) ? b : MO_NONE);
    }
    mo_drop(t, input);
    mo_drop(t, w);
    mo_drop(t, b);
    return y;
}

/* Adds to y what LoRA's two make of x. As PEFT does it: x is cast to their type, and the sum back
 * to that of y; autocast casts each operand of a product once more. Takes y over. */
static mo_value adapted(mo_tape *t, const mo_linear *l, mo_value x, mo_value y, uint32_t compute,
                        double dropout)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    uint64_t rank = mo_elements(t, l->down) / l->in;
    uint32_t width = mo_width(t, l->down);
    mo_value own = mo_op_cast(t, x, width);
    mo_value low = mo_op_dropout(t, own, dropout);
    uint32_t operands = compute ? compute : width;
    mo_value middle = cast_product(t, low, l->down, MO_NONE, l->in, rank, operands);
    mo_drop(t, low);
    mo_value high = cast_product(t, middle, l->up, MO_NONE, rank, l->out, operands);
    mo_drop(t, middle);
    high = next(t, high, mo_op_scale(t, high));
    mo_value sum = mo_op_add(t, y, high);
    uint32_t narrow = mo_width(t, y);
    mo_drop(t, high);
    mo_drop(t, y);
    sum = next(t, sum, mo_op_cast(t, sum, narrow));
    mo_drop(t, own);
    return sum;
}

mo_value mo_op_linear(mo_tape *t, const mo_linear *l, mo_value x, uint32_t compute,
                      double lora_dropout)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_value y = cast_product(t, x, l->weight, l->bias, l->in, l->out,
                              compute ? compute : mo_width(t, l->weight));
    return l->down == MO_NONE ? y : adapted(t, l, x, y, compute, lora_dropout);
}

/* x in fp32, divided by the root of its mean square; the code has the mean meanwhile. */
static mo_value rms_scaled(mo_tape *t, const mo_norm *n, mo_value x, mo_value *mean)
{
    uint64_t rows = mo_elements(t, x) / mo_elements(t, n->weight);
    mo_value h = mo_op_cast(t, x, 4);
    mo_value square = mo_op_power(t, h);
    *mean = mo_op_mean(t, square, rows);
    mo_drop(t, square);
    mo_value shifted = mo_op_copy(t, *mean);
    mo_value root = mo_op_of_output(t, shifted, "a root");
    mo_drop(t, shifted);
    mo_value scaled = mo_op_mul(t, h, root);
    mo_drop(t, h);
    mo_drop(t, root);
    return scaled;
}

/* Cast back, then weighted. */
static mo_value rms_norm(mo_tape *t, const mo_norm *n, mo_value x)
{
    uint32_t width = mo_width(t, x);
    mo_value mean = MO_NONE, scaled = rms_scaled(t, n, x, &mean);
    mo_value back = mo_op_cast(t, scaled, width);
    mo_value out = mo_op_mul(t, back, n->weight);
    mo_drop(t, back);
    mo_drop(t, scaled);
    mo_drop(t, mean);
    return out;
}

/* Weighted in fp32 by one more than the weight, then cast back. */
static mo_value gemma_norm(mo_tape *t, const mo_norm *n, mo_value x)
{
    mo_value mean = MO_NONE, scaled = rms_scaled(t, n, x, &mean);
    mo_drop(t, mean);
    mo_value wide = mo_op_cast(t, n->weight, 4);
    mo_value more = mo_op_copy(t, wide);
    mo_drop(t, wide);
    mo_value out = mo_op_mul(t, scaled, more);
    mo_drop(t, scaled);
    mo_drop(t, more);
    return next(t, out, mo_op_cast(t, out, mo_width(t, x)));
}

/* Saves its input and two numbers per row. */
static mo_value layer_norm(mo_tape *t, const mo_norm *n, mo_value x)
{
    uint64_t rows = mo_elements(t, x) / mo_elements(t, n->weight);
    mo_value out = mo_value_new(t, mo_elements(t, x), mo_width(t, x), t->category);
    uint32_t narrow = t->narrow_norms && mo_width(t, n->weight) < 4 ? mo_width(t, x) : 4;
    mo_value rest = mo_value_new(t, 2 * rows, narrow, t->category);
    if (rest == MO_NONE)
        return MO_NONE;
    mo_tape_record(
        t, &(mo_record){.label = "a norm",
                        .out[0] = out,
                        .in[0] = x,
                        .in[1] = n->weight,
                        .in[2] = n->bias,
                        .grad = {mo_bytes(t, x), mo_bytes(t, n->weight), mo_bytes(t, n->bias)},
                        .saved[0] = x,
                        .saved[1] = rest});
    mo_drop(t, rest);
    return out;
}

mo_value mo_op_norm(mo_tape *t, const mo_norm *n, mo_value x, uint32_t compute)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    if (n->kind == MO_NORM_RMS)
        return rms_norm(t, n, x);
    if (n->kind == MO_NORM_GEMMA)
        return gemma_norm(t, n, x);
    if (compute == 0 || t->narrow_norms)
        return layer_norm(t, n, x);
    mo_value wide = mo_op_cast(t, x, 4); /* autocast computes norms in fp32, but not on a CPU */
    mo_value out = layer_norm(t, n, wide);
    mo_drop(t, wide);
    return out;
}

/* 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), an operation at a time. */
static mo_value gelu_new(mo_tape *t, mo_value x)
{
    mo_value half = mo_op_scale(t, x);
    mo_value v = mo_op_power(t, x);
    v = next(t, v, mo_op_scale(t, v));
    v = next(t, v, mo_op_add(t, x, v));
    v = next(t, v, mo_op_scale(t, v));
    v = next(t, v, mo_op_of_output(t, v, "tanh"));
    v = next(t, v, mo_op_copy(t, v));
    mo_value out = mo_op_mul(t, half, v);
    mo_drop(t, half);
    mo_drop(t, v);
    return out;
}

/* 0.5 x (1 + tanh(0.798 x (1 + 0.0447 x x))). */
static mo_value gelu_fast(mo_tape *t, mo_value x)
{
    mo_value half = mo_op_scale(t, x), linear = mo_op_scale(t, x);
    mo_value v = mo_op_scale(t, x);
    v = next(t, v, mo_op_mul(t, v, x));
    v = next(t, v, mo_op_copy(t, v));
    mo_value inner = mo_op_mul(t, linear, v);
    mo_drop(t, v);
    mo_drop(t, linear);
    v = mo_op_of_output(t, inner, "tanh");
    mo_drop(t, inner);
    v = next(t, v, mo_op_copy(t, v));
    mo_value out = mo_op_mul(t, half, v);
    mo_drop(t, half);
    mo_drop(t, v);
    return out;
}

static mo_value quick_gelu(mo_tape *t, mo_value x)
{
    mo_value scaled = mo_op_scale(t, x);
    mo_value gate = mo_op_of_output(t, scaled, "sigmoid");
    mo_drop(t, scaled);
    mo_value out = mo_op_mul(t, x, gate);
    mo_drop(t, gate);
    return out;
}

mo_value mo_op_activation(mo_tape *t, mo_value x, uint32_t activation)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    switch (activation) {
    case MEMOPT_PLAN_ACTIVATION_GELU_NEW:
        return gelu_new(t, x);
    case MEMOPT_PLAN_ACTIVATION_GELU_FAST:
        return gelu_fast(t, x);
    case MEMOPT_PLAN_ACTIVATION_QUICK_GELU:
        return quick_gelu(t, x);
    case MEMOPT_PLAN_ACTIVATION_RELU:
        return mo_op_of_output(t, x, "relu");
    case MEMOPT_PLAN_ACTIVATION_TANH:
        return mo_op_of_output(t, x, "tanh");
    default:
        return mo_op_of_input(t, x, "the activation");
    }
}
