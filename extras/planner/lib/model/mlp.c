/*
 * The MLP, gated or plain, and the mixture of experts.
 *
 * Experts run as grouped products over tokens sorted by expert, so that sizes do not depend on the
 * routing: each token visits experts_per_token of them.
 */
#include "model/play.h"

static mo_plan_value gated(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value gate = mo_plan_op_linear(t, &l->gate, x);
    mo_plan_value active = mo_plan_op_activation(t, gate, s->activation);
    mo_plan_drop(t, gate);
    mo_plan_value up = mo_plan_op_linear(t, &l->up, x);
    mo_plan_value product = mo_plan_op_mul(t, active, up);
    MO_PLAN_DROP(t, active, up);
    return mo_plan_next(t, product, mo_plan_op_linear(t, &l->down, product));
}

mo_plan_value mo_plan_run_mlp(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    if (s->gated)
        return gated(l, x);
    mo_plan_value wide = mo_plan_op_linear(t, &l->up, x);
    wide = mo_plan_next(t, wide, mo_plan_op_activation(t, wide, s->activation));
    wide = mo_plan_next(t, wide, mo_plan_op_dropout(t, wide, s->activation_dropout));
    mo_plan_value out = mo_plan_op_linear(t, &l->down, wide);
    if (s->family->holds_mlp) /* its code has a name for it until the last norm is done */
        mo_plan_play_hold(s->play, &s->play->layer, wide);
    else
        mo_plan_drop(t, wide);
    return out;
}

/* All experts' weights. PEFT adds the product of LoRA's two to them in a copy as large, of their
 * type under autocast too. */
static mo_plan_value weights_of(mo_plan_tape *t, const mo_plan_linear *l)
{
    if (l->down == MO_PLAN_NONE)
        return mo_plan_value_view(t, l->weight, mo_plan_elements(t, l->weight));
    uint32_t width = mo_plan_width(t, l->weight);
    mo_plan_value up = mo_plan_op_cast(t, l->up, width), down = mo_plan_op_cast(t, l->down, width);
    mo_plan_value sum =
        mo_plan_value_new(t, mo_plan_elements(t, l->weight), width, MO_PLAN_ACTIVATIONS);
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "the experts' adapters",
                             .out[0] = sum,
                             .in = {up, down},
                             .grad = {mo_plan_bytes_of(t, up), mo_plan_bytes_of(t, down)},
                             .saved = {up, down}});
    MO_PLAN_DROP(t, up, down);
    return sum;
}

/* A product of each row with the matrix of its expert, in the weights' type: autocast leaves it
 * alone. */
static mo_plan_value grouped(mo_plan_play *p, mo_plan_value x, const mo_plan_linear *l)
{
    mo_plan_tape *t = &p->tape;
    uint64_t in = l->in, out = l->out;
    mo_plan_value weight = weights_of(t, l);
    mo_plan_value input = mo_plan_op_cast(t, x, mo_plan_width(t, weight));
    uint64_t rows = mo_plan_elements(t, input) / in;
    t->label = "the experts";
    mo_plan_value y = mo_plan_value_of_inputs(t, mo_plan_tape_mul(t, rows, out),
                                              mo_plan_width(t, input), t->category);
    if (!t->in_backward)
        t->flops += 2.0 * (double)rows * (double)in * (double)out;
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "the experts",
                             .out[0] = y,
                             .in[0] = weight,
                             .in[1] = input,
                             .grad = {mo_plan_bytes_of(t, weight), mo_plan_bytes_of(t, input)},
                             .saved[0] = mo_plan_needs(t, weight) ? input : MO_PLAN_NONE,
                             .saved[1] = mo_plan_needs(t, input) ? weight : MO_PLAN_NONE});
    MO_PLAN_DROP(t, input, weight);
    return y;
}

/* Rows of x in another order or number; backward puts them into zeros of x's size. */
static mo_plan_value gather(mo_plan_tape *t, mo_plan_value x, uint64_t elements,
                            mo_plan_value order)
{
    t->label = "the experts' tokens";
    mo_plan_value y = mo_plan_value_of_inputs(t, elements, mo_plan_width(t, x), t->category);
    mo_plan_tape_record(t, &(mo_plan_record){.label = "the experts' tokens",
                                             .out[0] = y,
                                             .in[0] = x,
                                             .grad[0] = mo_plan_bytes_of(t, x),
                                             .saved[0] = order,
                                             .temp = mo_plan_bytes_of(t, x)});
    return y;
}

/* The router's weights of the chosen experts, and their numbers sorted for the groups. */
static mo_plan_value route(mo_plan_layer *l, mo_plan_value x, mo_plan_value *order)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    uint64_t chosen = s->rows * s->sequence * s->experts_per_token;
    mo_plan_value logits = mo_plan_op_linear(t, &l->router, x);
    mo_plan_value wide = mo_plan_op_cast(t, logits, 4);
    mo_plan_value chances = mo_plan_op_softmax(t, wide);
    mo_plan_drop(t, wide);
    mo_plan_value top = mo_plan_op_resize(t, chances, chosen, "the router");
    mo_plan_drop(t, chances);
    /* Numbers of experts, sorted numbers and their order, and where each came from: 8 bytes. */
    *order = mo_plan_value_new(t, 4 * chosen, 8, t->category);
    mo_plan_value total = mo_plan_op_mean(t, top, chosen / s->experts_per_token);
    mo_plan_value scores = mo_plan_op_mul(t, top, total);
    mo_plan_drop(t, total);
    if (s->variant->narrow_router)
        scores = mo_plan_next(t, scores, mo_plan_op_cast(t, scores, mo_plan_width(t, logits)));
    /* What the codes of router and experts hold meanwhile: sorted numbers, and as floats too. */
    mo_plan_play_hold(s->play, &s->play->layer, top);
    mo_plan_play_hold(s->play, &s->play->layer, mo_plan_value_new(t, chosen, 8, t->category));
    mo_plan_play_hold(s->play, &s->play->layer,
                      mo_plan_value_new(t, chosen + s->experts, 4, t->category));
    mo_plan_play_hold(s->play, &s->play->layer, logits); /* the router returns them */
    return scores;
}

mo_plan_value mo_plan_run_experts(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    uint64_t k = s->experts_per_token, size = mo_plan_elements(t, x);
    mo_plan_value order = MO_PLAN_NONE, parts[MO_PLAN_RECORD_OUTPUTS];
    mo_plan_value scores = route(l, x, &order);
    mo_plan_value tokens = gather(t, x, mo_plan_tape_mul(t, size, k), order);
    mo_plan_value both = grouped(s->play, tokens, &l->experts_up);
    mo_plan_op_split(t, both, 2, parts);
    mo_plan_drop(t, both);
    mo_plan_value active = mo_plan_op_activation(t, parts[0], s->activation);
    mo_plan_value product = mo_plan_op_mul(t, active, parts[1]);
    MO_PLAN_DROP(t, active, parts[0], parts[1]);
    mo_plan_value down = grouped(s->play, product, &l->experts_down);
    mo_plan_drop(t, product);
    mo_plan_value weighted = mo_plan_op_mul(t, down, scores);
    mo_plan_drop(t, down);
    /* The places to put them back to come from all numbers in their order. */
    mo_plan_tape_flash(t, mo_plan_tape_mul(t, mo_plan_elements(t, scores), 8), t->category);
    mo_plan_value back = gather(t, weighted, mo_plan_elements(t, weighted), order);
    mo_plan_drop(t, weighted);
    mo_plan_value sum = mo_plan_op_resize(t, back, size, "the sum of the experts");
    mo_plan_drop(t, back);
    sum = mo_plan_next(t, sum, mo_plan_op_cast(t, sum, mo_plan_width(t, x)));
    MO_PLAN_DROP(t, tokens, scores, order);
    return sum;
}
