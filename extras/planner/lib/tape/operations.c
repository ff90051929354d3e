/*
 * One operation of torch each: what it makes and what its backward needs.
 */
#include "tape/operations.h"

/* A new value of the tape's category. */
static mo_plan_value made(mo_plan_tape *t, const char *label, uint64_t elements, uint32_t width)
{
    t->label = label;
    return mo_plan_value_new(t, elements, width, t->category);
}

/* What a tensor of x's size takes. */
static uint64_t size_of(const mo_plan_tape *t, mo_plan_value x)
{
    return mo_plan_bytes_of(t, x);
}

/* An operation of one input whose gradient is new. */
static mo_plan_value unary(mo_plan_tape *t, mo_plan_value x, const char *label, uint64_t elements,
                           uint32_t width, int save_input, int save_output, uint64_t temp)
{
    t->label = label;
    int last = !save_output && mo_plan_needs(t, x); /* what runs again may end with it */
    mo_plan_value out = last ? mo_plan_value_of_inputs(t, elements, width, t->category)
                             : mo_plan_value_new(t, elements, width, t->category);
    mo_plan_tape_record(t, &(mo_plan_record){.label = label,
                                             .out = {out},
                                             .in = {x},
                                             .grad = {size_of(t, x)},
                                             .saved = {save_input ? x : MO_PLAN_NONE,
                                                       save_output ? out : MO_PLAN_NONE},
                                             .temp = temp});
    return out;
}

mo_plan_value mo_plan_op_cast(mo_plan_tape *t, mo_plan_value x, uint32_t width)
{
    if (mo_plan_width(t, x) == width)
        return mo_plan_value_view(t, x, mo_plan_elements(t, x));
    mo_plan_category category = t->category;
    if (t->storages[t->values[x].storage].category != MO_PLAN_LOGITS)
        t->category =
            MO_PLAN_ACTIVATIONS; /* casts of weights and of hidden states are, at a head too */
    mo_plan_value out = unary(t, x, "a cast", mo_plan_elements(t, x), width, 0, 0, 0);
    t->category = category;
    return out;
}

mo_plan_value mo_plan_op_scale(mo_plan_tape *t, mo_plan_value x)
{
    return unary(t, x, "a product", mo_plan_elements(t, x), mo_plan_width(t, x), 0, 0, 0);
}

mo_plan_value mo_plan_op_of_input(mo_plan_tape *t, mo_plan_value x, const char *label)
{
    return unary(t, x, label, mo_plan_elements(t, x), mo_plan_width(t, x), 1, 0, 0);
}

mo_plan_value mo_plan_op_of_output(mo_plan_tape *t, mo_plan_value x, const char *label)
{
    return unary(t, x, label, mo_plan_elements(t, x), mo_plan_width(t, x), 0, 1, 0);
}

mo_plan_value mo_plan_op_power(mo_plan_tape *t, mo_plan_value x)
{
    return unary(t, x, "a power", mo_plan_elements(t, x), mo_plan_width(t, x), 1, 0,
                 2 * size_of(t, x));
}

mo_plan_value mo_plan_op_mean(mo_plan_tape *t, mo_plan_value x, uint64_t elements)
{
    return unary(t, x, "a mean", elements, mo_plan_width(t, x), 0, 0, 0);
}

mo_plan_value mo_plan_op_resize(mo_plan_tape *t, mo_plan_value x, uint64_t elements,
                                const char *label)
{
    return unary(t, x, label, elements, mo_plan_width(t, x), 0, 0, 0);
}

mo_plan_value mo_plan_op_softmax(mo_plan_tape *t, mo_plan_value x)
{
    return unary(t, x, "softmax", mo_plan_elements(t, x), mo_plan_width(t, x), 0, 1, 0);
}

/* The gradient of an operand: the incoming one where it has its size and width, else new. */
static uint64_t pass(const mo_plan_tape *t, mo_plan_value x, mo_plan_value out)
{
    return mo_plan_elements(t, x) == mo_plan_elements(t, out) &&
                   mo_plan_width(t, x) == mo_plan_width(t, out)
               ? MO_PLAN_ALIAS
               : mo_plan_bytes_of(t, x);
}

static uint32_t wider(const mo_plan_tape *t, mo_plan_value a, mo_plan_value b)
{
    uint32_t x = mo_plan_width(t, a), y = mo_plan_width(t, b);
    return x > y ? x : y;
}

mo_plan_value mo_plan_op_add(mo_plan_tape *t, mo_plan_value a, mo_plan_value b)
{
    uint64_t n = mo_max_u64(mo_plan_elements(t, a), mo_plan_elements(t, b));
    mo_plan_value out = made(t, "a sum", n, wider(t, a, b));
    mo_plan_tape_record(t, &(mo_plan_record){.label = "a sum",
                                             .out[0] = out,
                                             .in[0] = a,
                                             .in[1] = b,
                                             .grad = {pass(t, a, out), pass(t, b, out)}});
    return out;
}

/* Backward of a product makes both gradients in its own size and type; then, without what was
 * saved, one after the other is summed where it was broadcast and cast where it was narrower. */
static void gradients_of_product(mo_plan_tape *t, mo_plan_record *r, mo_plan_value out)
{
    uint64_t full = size_of(t, out), made_first = 0, settled = 0, late = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t own = size_of(t, r->in[i]);
        r->grad[i] = own;
        if (mo_plan_needs(t, r->in[i])) {
            made_first += full;
            settled += own;
        }
    }
    uint64_t now = made_first;
    for (int i = 0; i < 2; i++)
        if (mo_plan_needs(t, r->in[i]) && r->grad[i] != full) {
            late = mo_max_u64(late, now + r->grad[i]);
            now -= full - r->grad[i];
        }
    r->temp = made_first - settled;
    r->late = late > settled ? late - settled : 0;
}

mo_plan_value mo_plan_op_mul(mo_plan_tape *t, mo_plan_value a, mo_plan_value b)
{
    uint64_t n = mo_max_u64(mo_plan_elements(t, a), mo_plan_elements(t, b));
    mo_plan_value out = made(t, "a product", n, wider(t, a, b));
    mo_plan_record r = {.label = "a product",
                        .out[0] = out,
                        .in = {a, b},
                        .saved[0] = mo_plan_needs(t, b) ? a : MO_PLAN_NONE,
                        .saved[1] = mo_plan_needs(t, a) ? b : MO_PLAN_NONE};
    gradients_of_product(t, &r, out);
    mo_plan_tape_record(t, &r);
    return out;
}

/* A CPU's mask is a tensor of the input's type that backward multiplies by. */
mo_plan_value mo_plan_op_dropout(mo_plan_tape *t, mo_plan_value x, double p)
{
    if (!(p > 0))
        return mo_plan_value_view(t, x, mo_plan_elements(t, x));
    mo_plan_value mask =
        made(t, "dropout", mo_plan_elements(t, x), t->gpu ? 1 : mo_plan_width(t, x));
    uint64_t n = mo_plan_elements(t, x);
    mo_plan_value out = t->gpu ? mo_plan_value_new(t, n, mo_plan_width(t, x), t->category)
                               : mo_plan_value_of_inputs(t, n, mo_plan_width(t, x), t->category);
    mo_plan_tape_record(t, &(mo_plan_record){.label = "dropout",
                                             .out[0] = out,
                                             .in[0] = x,
                                             .grad[0] = size_of(t, x),
                                             .saved[0] = mask});
    mo_plan_drop(t, mask);
    return out;
}

mo_plan_value mo_plan_op_copy(mo_plan_tape *t, mo_plan_value x)
{
    mo_plan_value out = made(t, "a copy", mo_plan_elements(t, x), mo_plan_width(t, x));
    mo_plan_tape_record(
        t,
        &(mo_plan_record){.label = "a copy", .out[0] = out, .in[0] = x, .grad[0] = MO_PLAN_ALIAS});
    return out;
}

mo_plan_value mo_plan_op_copy_both(mo_plan_tape *t, mo_plan_value x)
{
    return unary(t, x, "a copy", mo_plan_elements(t, x), mo_plan_width(t, x), 0, 0, 0);
}

static mo_plan_value view_of(mo_plan_tape *t, mo_plan_value x, uint64_t elements, const char *label)
{
    mo_plan_value out = mo_plan_value_view(t, x, elements);
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = label, .out[0] = out, .in[0] = x, .grad[0] = size_of(t, x)});
    return out;
}

mo_plan_value mo_plan_op_copy_back(mo_plan_tape *t, mo_plan_value x)
{
    return view_of(t, x, mo_plan_elements(t, x), "a copy");
}

mo_plan_value mo_plan_op_slice(mo_plan_tape *t, mo_plan_value x, uint64_t elements)
{
    return view_of(t, x, elements, "a slice");
}

mo_plan_value mo_plan_op_expand(mo_plan_tape *t, mo_plan_value x, uint64_t elements)
{
    return view_of(t, x, elements, "repeated heads");
}

void mo_plan_op_split(mo_plan_tape *t, mo_plan_value x, int parts,
                      mo_plan_value out[MO_PLAN_RECORD_OUTPUTS])
{
    mo_plan_record r = {.label = "a split", .in[0] = x, .grad[0] = size_of(t, x)};
    for (int i = 0; i < MO_PLAN_RECORD_OUTPUTS; i++)
        out[i] = i < parts ? mo_plan_value_view(t, x, mo_plan_elements(t, x) / (uint64_t)parts)
                           : MO_PLAN_NONE;
    for (int i = 0; i < parts; i++)
        r.out[i] = out[i];
    mo_plan_tape_record(t, &r);
}

mo_plan_value mo_plan_op_bmm(mo_plan_tape *t, mo_plan_value a, mo_plan_value b, uint64_t elements,
                             double flops)
{
    mo_plan_value out = made(t, "a matrix product", elements, wider(t, a, b));
    t->flops += t->in_backward ? 0 : flops;
    mo_plan_tape_record(t, &(mo_plan_record){.label = "a matrix product",
                                             .out[0] = out,
                                             .in[0] = a,
                                             .in[1] = b,
                                             .grad = {size_of(t, a), size_of(t, b)},
                                             .saved[0] = mo_plan_needs(t, b) ? a : MO_PLAN_NONE,
                                             .saved[1] = mo_plan_needs(t, a) ? b : MO_PLAN_NONE});
    return out;
}

mo_plan_value mo_plan_op_embedding(mo_plan_tape *t, mo_plan_value table, mo_plan_value ids,
                                   uint64_t elements)
{
    mo_plan_value out = made(t, "the embeddings", elements, mo_plan_width(t, table));
    mo_plan_tape_record(t, &(mo_plan_record){.label = "the embeddings",
                                             .out[0] = out,
                                             .in[0] = table,
                                             .grad[0] = size_of(t, table),
                                             .saved[0] = ids});
    return out;
}

/* Cross entropy of fp32 logits: log-softmax, then the mean of what the targets pick. */
mo_plan_value mo_plan_op_loss(mo_plan_tape *t, mo_plan_value x, mo_plan_value target)
{
    mo_plan_value logp =
        unary(t, x, "log-softmax", mo_plan_elements(t, x), mo_plan_width(t, x), 0, 1, 0);
    mo_plan_value out = mo_plan_value_new(t, 2, mo_plan_width(t, x), MO_PLAN_LOGITS);
    mo_plan_tape_record(t, &(mo_plan_record){.label = "the loss",
                                             .out[0] = out,
                                             .in[0] = logp,
                                             .grad[0] = size_of(t, logp),
                                             .saved[0] = logp,
                                             .saved[1] = target});
    mo_plan_drop(t, logp);
    return out;
}
