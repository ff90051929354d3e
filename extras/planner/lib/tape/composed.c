/*
 * Linear layers with LoRA, norms and activations, written as the operations that they are made of.
 */
#include "tape/operations.h"

/* x W (+ b): the gradient of a weight has its own width. */
static mo_plan_value product(mo_plan_tape *t, mo_plan_value x, mo_plan_value weight,
                             mo_plan_value bias, uint64_t in, uint64_t out)
{
    uint64_t rows = mo_plan_elements(t, x) / in;
    t->label = "a linear layer";
    mo_plan_value y = mo_plan_value_of_inputs(t, mo_plan_tape_mul(t, rows, out),
                                              mo_plan_width(t, x), t->category);
    if (!t->in_backward)
        t->flops += 2.0 * (double)rows * (double)in * (double)out;
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "a linear layer",
                             .out[0] = y,
                             .in[0] = x,
                             .in[1] = weight,
                             .in[2] = bias,
                             .grad = {mo_plan_bytes_of(t, x), mo_plan_bytes_of(t, weight),
                                      mo_plan_bytes_of(t, bias)},
                             .saved[0] = mo_plan_needs(t, weight) ? x : MO_PLAN_NONE,
                             .saved[1] = mo_plan_needs(t, x) ? weight : MO_PLAN_NONE});
    return y;
}

/* A product of operands that are cast to the width. As torch evaluates its arguments the input is
 * cast last, and so its gradient is the first to be cast back. */
static mo_plan_value cast_product(mo_plan_tape *t, mo_plan_value x, mo_plan_value weight,
                                  mo_plan_value bias, uint64_t in, uint64_t out, uint32_t width)
{
    mo_plan_value b = bias == MO_PLAN_NONE ? MO_PLAN_NONE : mo_plan_op_cast(t, bias, width);
    mo_plan_value w = mo_plan_op_cast(t, weight, width);
    mo_plan_value input = mo_plan_op_cast(t, x, width);
    mo_plan_value y = product(t, input, w, b, in, out);
    if (mo_plan_width(t, weight) != width) { /* autocast keeps casts of weights that learn alone */
        mo_plan_tape_cache(t, mo_plan_needs(t, weight) ? w : MO_PLAN_NONE);
        mo_plan_tape_cache(t, mo_plan_needs(t, bias) ? b : MO_PLAN_NONE);
    }
    MO_PLAN_DROP(t, input, w, b);
    return y;
}

/* bitsandbytes' 8 bits: forward makes the weight whole (where autocast then casts both operands),
 * or on a GPU the input narrow and a product of int32; backward makes the weight whole. The input
 * is kept as no tensor that torch knows to be saved, so that checkpoints do not let it go. */
static mo_plan_value int8_product(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x)
{
    uint32_t own = mo_plan_width(t, x), width = t->compute && !t->gpu ? t->compute : own;
    uint64_t size = mo_plan_elements(t, x), count = mo_plan_elements(t, l->weight);
    uint64_t out = mo_plan_tape_mul(t, size / l->in, l->out), casts = width == own ? 0 : width;
    uint64_t flash = t->gpu ? 3 * size + 6 * out : count * own + casts * (count + size);
    t->label = "an 8-bit layer";
    mo_plan_value y = mo_plan_value_of_inputs(t, out, width, t->category);
    mo_plan_tape_flash(t, flash, t->category);
    mo_plan_tape_keep(t, x);
    mo_plan_tape_record(t, &(mo_plan_record){.label = "an 8-bit layer",
                                             .out[0] = y,
                                             .in[0] = x,
                                             .grad[0] = mo_plan_bytes_of(t, x),
                                             .saved[0] = t->in_backward ? MO_PLAN_NONE : x,
                                             .temp = count * own + (casts ? out * own : 0)});
    return y;
}

/* A product with a frozen weight of 4 bits, in a type of its own. Its kernel makes the weight whole
 * inside, which a CPU's recorder does not see; backward makes it whole again. */
static mo_plan_value int4_product(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x)
{
    int is_nf4 = l->stored == MO_PLAN_STORED_NF4;
    uint32_t own = mo_plan_width(t, x), width = is_nf4 ? t->base_width : own;
    uint64_t out = mo_plan_tape_mul(t, mo_plan_elements(t, x) / l->in, l->out);
    uint64_t whole = mo_plan_tape_mul(t, mo_plan_elements(t, l->weight), width) + l->scales;
    mo_plan_value input = mo_plan_op_cast(t, x, width);
    t->label = "a 4-bit layer";
    mo_plan_value y = mo_plan_value_of_inputs(t, out, width, t->category);
    mo_plan_tape_flash(t, t->gpu ? whole : 0, t->category);
    mo_plan_tape_record(t, &(mo_plan_record){.label = "a 4-bit layer",
                                             .out[0] = y,
                                             .in[0] = input,
                                             .grad[0] = mo_plan_bytes_of(t, input),
                                             .temp = whole});
    y = mo_plan_next(t, y, mo_plan_op_cast(t, y, own));
    mo_plan_drop(t, input);
    if (is_nf4 && l->down != MO_PLAN_NONE) /* PEFT clones it */
        y = mo_plan_next(t, y, mo_plan_op_copy(t, y));
    return y;
}

static mo_plan_value base_product(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x)
{
    if (l->stored == MO_PLAN_STORED_WHOLE)
        return cast_product(t, x, l->weight, l->bias, l->in, l->out,
                            t->compute ? t->compute : mo_plan_width(t, l->weight));
    if (!t->in_backward)
        t->flops += 2.0 * (double)mo_plan_elements(t, x) * (double)l->out;
    return l->stored == MO_PLAN_STORED_INT8 ? int8_product(t, l, x) : int4_product(t, l, x);
}

/* Adds to y what LoRA's two make of x. As PEFT does it: x is cast to their type, and the sum back
 * to that of y, beside a quantised weight what is added; autocast casts each operand of a product
 * once more, and on a GPU is left to do so alone beside a quantised weight. Takes y over. */
static mo_plan_value adapted(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x,
                             mo_plan_value y)
{
    uint64_t rank = mo_plan_elements(t, l->down) / l->in;
    uint32_t width = mo_plan_width(t, l->down);
    uint32_t narrow = mo_plan_width(t, y);
    int quantized = l->stored != MO_PLAN_STORED_WHOLE, left = quantized && t->compute && t->gpu;
    mo_plan_value own = mo_plan_op_cast(t, x, left ? mo_plan_width(t, x) : width);
    mo_plan_value low = mo_plan_op_dropout(t, own, t->adapter_dropout);
    uint32_t operands = t->compute ? t->compute : width;
    mo_plan_value middle = cast_product(t, low, l->down, MO_PLAN_NONE, l->in, rank, operands);
    mo_plan_drop(t, low);
    mo_plan_value high = cast_product(t, middle, l->up, MO_PLAN_NONE, rank, l->out, operands);
    mo_plan_drop(t, middle);
    high = mo_plan_next(t, high, mo_plan_op_scale(t, high));
    if (quantized && !left)
        high = mo_plan_next(t, high, mo_plan_op_cast(t, high, narrow));
    mo_plan_value sum = mo_plan_op_add(t, y, high);
    MO_PLAN_DROP(t, high, y);
    if (!left)
        sum = mo_plan_next(t, sum, mo_plan_op_cast(t, sum, narrow));
    mo_plan_drop(t, own);
    return sum;
}

mo_plan_value mo_plan_op_linear(mo_plan_tape *t, const mo_plan_linear *l, mo_plan_value x)
{
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    mo_plan_value y = base_product(t, l, x);
    return l->down == MO_PLAN_NONE ? y : adapted(t, l, x, y);
}

/* x in fp32, divided by the root of its mean square; the code has the mean meanwhile. */
static mo_plan_value rms_scaled(mo_plan_tape *t, const mo_plan_norm *n, mo_plan_value x,
                                mo_plan_value *mean)
{
    uint64_t rows = mo_plan_elements(t, x) / mo_plan_elements(t, n->weight);
    mo_plan_value h = mo_plan_op_cast(t, x, 4);
    mo_plan_value square = mo_plan_op_power(t, h);
    *mean = mo_plan_op_mean(t, square, rows);
    mo_plan_drop(t, square);
    mo_plan_value shifted = mo_plan_op_copy(t, *mean);
    mo_plan_value root = mo_plan_op_of_output(t, shifted, "a root");
    mo_plan_drop(t, shifted);
    mo_plan_value scaled = mo_plan_op_mul(t, h, root);
    MO_PLAN_DROP(t, h, root);
    return scaled;
}

/* Cast back, then weighted. */
static mo_plan_value rms_norm(mo_plan_tape *t, const mo_plan_norm *n, mo_plan_value x)
{
    uint32_t width = mo_plan_width(t, x);
    mo_plan_value mean = MO_PLAN_NONE, scaled = rms_scaled(t, n, x, &mean);
    mo_plan_value back = mo_plan_op_cast(t, scaled, width);
    mo_plan_value out = mo_plan_op_mul(t, back, n->weight);
    MO_PLAN_DROP(t, back, scaled, mean);
    return out;
}

/* Saves its input, and mean and deviation of each row. */
static mo_plan_value layer_norm(mo_plan_tape *t, const mo_plan_norm *n, mo_plan_value x)
{
    uint64_t rows = mo_plan_elements(t, x) / mo_plan_elements(t, n->weight);
    mo_plan_value out =
        mo_plan_value_new(t, mo_plan_elements(t, x), mo_plan_width(t, x), t->category);
    uint32_t narrow = !t->gpu && mo_plan_width(t, n->weight) < 4 ? mo_plan_width(t, x) : 4;
    mo_plan_value mean = mo_plan_value_new(t, rows, narrow, t->category);
    mo_plan_value deviation = mo_plan_value_new(t, rows, narrow, t->category);
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "a norm",
                             .out[0] = out,
                             .in[0] = x,
                             .in[1] = n->weight,
                             .in[2] = n->bias,
                             .grad = {mo_plan_bytes_of(t, x), mo_plan_bytes_of(t, n->weight),
                                      mo_plan_bytes_of(t, n->bias)},
                             .saved = {x, mean, deviation}});
    MO_PLAN_DROP(t, mean, deviation);
    return out;
}

mo_plan_value mo_plan_op_norm(mo_plan_tape *t, const mo_plan_norm *n, mo_plan_value x)
{
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (n->kind == MO_PLAN_NORM_RMS)
        return rms_norm(t, n, x);
    if (t->compute == 0 || !t->gpu)
        return layer_norm(t, n, x);
    mo_plan_value wide =
        mo_plan_op_cast(t, x, 4); /* autocast computes norms in fp32, but not on a CPU */
    mo_plan_value out = layer_norm(t, n, wide);
    mo_plan_drop(t, wide);
    return out;
}

/* 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), an operation at a time. On a GPU autocast computes
 * powers in fp32, and so what follows. */
static mo_plan_value gelu_new(mo_plan_tape *t, mo_plan_value x)
{
    mo_plan_value half = mo_plan_op_scale(t, x);
    mo_plan_value v = mo_plan_op_cast(t, x, t->gpu && t->compute ? 4 : mo_plan_width(t, x));
    v = mo_plan_next(t, v, mo_plan_op_power(t, v));
    v = mo_plan_next(t, v, mo_plan_op_scale(t, v));
    v = mo_plan_next(t, v, mo_plan_op_add(t, x, v));
    v = mo_plan_next(t, v, mo_plan_op_scale(t, v));
    v = mo_plan_next(t, v, mo_plan_op_of_output(t, v, "tanh"));
    v = mo_plan_next(t, v, mo_plan_op_copy(t, v));
    mo_plan_value out = mo_plan_op_mul(t, half, v);
    MO_PLAN_DROP(t, half, v);
    return out;
}

/* 0.5 x (1 + tanh(0.798 x (1 + 0.0447 x x))). */
static mo_plan_value gelu_fast(mo_plan_tape *t, mo_plan_value x)
{
    mo_plan_value half = mo_plan_op_scale(t, x), linear = mo_plan_op_scale(t, x);
    mo_plan_value v = mo_plan_op_scale(t, x);
    v = mo_plan_next(t, v, mo_plan_op_mul(t, v, x));
    v = mo_plan_next(t, v, mo_plan_op_copy(t, v));
    mo_plan_value inner = mo_plan_op_mul(t, linear, v);
    MO_PLAN_DROP(t, v, linear);
    v = mo_plan_op_of_output(t, inner, "tanh");
    mo_plan_drop(t, inner);
    v = mo_plan_next(t, v, mo_plan_op_copy(t, v));
    mo_plan_value out = mo_plan_op_mul(t, half, v);
    MO_PLAN_DROP(t, half, v);
    return out;
}

static mo_plan_value quick_gelu(mo_plan_tape *t, mo_plan_value x)
{
    mo_plan_value scaled = mo_plan_op_scale(t, x);
    mo_plan_value gate = mo_plan_op_of_output(t, scaled, "sigmoid");
    mo_plan_drop(t, scaled);
    mo_plan_value out = mo_plan_op_mul(t, x, gate);
    mo_plan_drop(t, gate);
    return out;
}

mo_plan_value mo_plan_op_activation(mo_plan_tape *t, mo_plan_value x, uint32_t activation)
{
    switch (activation) {
    case MO_PLAN_ACTIVATION_GELU_NEW:
        return gelu_new(t, x);
    case MO_PLAN_ACTIVATION_GELU_FAST:
        return gelu_fast(t, x);
    case MO_PLAN_ACTIVATION_QUICK_GELU:
        return quick_gelu(t, x);
    case MO_PLAN_ACTIVATION_RELU:
        return mo_plan_op_of_output(t, x, "relu");
    case MO_PLAN_ACTIVATION_TANH:
        return mo_plan_op_of_output(t, x, "tanh");
    default:
        return mo_plan_op_of_input(t, x, "the activation");
    }
}
