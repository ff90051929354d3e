/*
 * The MLP, gated or plain, and the mixture of experts.
 *
 * Experts run as grouped products over tokens sorted by expert, so that sizes do not depend on the
 * routing: each token visits experts_per_token of them.
 */
#include "plan/play.h"

static mo_value turn(mo_tape *t, mo_value old, mo_value new_one)
{
    mo_drop(t, old);
    return new_one;
}

static mo_value gated(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    double dropout = s->play->settings->model.lora_dropout;
    mo_value gate = mo_op_linear(t, &l->gate, x, compute, dropout);
    mo_value active = mo_op_activation(t, gate, s->activation);
    mo_drop(t, gate);
    mo_value up = mo_op_linear(t, &l->up, x, compute, dropout);
    mo_value product = mo_op_mul(t, active, up);
    mo_drop(t, active);
    mo_drop(t, up);
    return turn(t, product, mo_op_linear(t, &l->down, product, compute, dropout));
}

/* Gate and up of one projection, halved. */
static mo_value gated_halves(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    double dropout = s->play->settings->model.lora_dropout;
    mo_value both = mo_op_linear(t, &l->gate, x, compute, dropout), parts[MO_RECORD_OUTPUTS];
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_op_split(t, both, 2, parts);
    mo_drop(t, both);
    mo_value active = mo_op_activation(t, parts[0], s->activation);
    mo_value product = mo_op_mul(t, parts[1], active);
    mo_drop(t, active);
    mo_drop(t, parts[1]);
    mo_value out = mo_op_linear(t, &l->down, product, compute, dropout);
    mo_drop(t, product);
    mo_drop(t, parts[0]); /* the code has a name for it, and with it for both */
    return out;
}

mo_value mo_mlp(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    double dropout = s->play->settings->model.lora_dropout;
    if (s->gated)
        return s->kin == MEMOPT_PLAN_KIN_PHI3 ? gated_halves(l, x) : gated(l, x);
    mo_value wide = mo_op_linear(t, &l->up, x, compute, dropout);
    wide = turn(t, wide, mo_op_activation(t, wide, s->activation));
    wide = turn(t, wide, mo_op_dropout(t, wide, s->activation_dropout));
    mo_value out = mo_op_linear(t, &l->down, wide, compute, dropout);
    if (s->family == MEMOPT_PLAN_BERT) /* its code has a name for it until the last norm is done */
        mo_play_hold(s->play, &s->play->layer, wide);
    else
        mo_drop(t, wide);
    return out;
}

/* A product of each row with the matrix of its expert, in the weights' type: autocast leaves it
 * alone. */
static mo_value grouped(mo_play *p, mo_value x, mo_value weight, uint64_t in, uint64_t out)
{
    mo_tape *t = &p->tape;
    mo_value input = mo_op_cast(t, x, mo_width(t, weight));
    uint64_t rows = mo_elements(t, input) / in;
    t->label = "the experts";
    mo_value y = mo_value_of_inputs(t, mo_tape_mul(t, rows, out), mo_width(t, input), t->category);
    if (y == MO_NONE)
        return MO_NONE;
    if (!t->in_backward)
        t->flops += 2.0 * (double)rows * (double)in * (double)out;
    mo_tape_record(t, &(mo_record){.label = "the experts",
                                   .out[0] = y,
                                   .in[0] = weight,
                                   .in[1] = input,
                                   .grad = {mo_bytes(t, weight), mo_bytes(t, input)},
                                   .saved[0] = mo_needs(t, weight) ? input : MO_NONE,
                                   .saved[1] = mo_needs(t, input) ? weight : MO_NONE});
    mo_drop(t, input);
    return y;
}

/* Rows of x in another order or number; backward puts them into zeros of x's size. */
static mo_value gather(mo_tape *t, mo_value x, uint64_t elements, mo_value order)
{
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    t->label = "the experts' tokens";
    mo_value y = mo_value_of_inputs(t, elements, mo_width(t, x), t->category);
    if (y == MO_NONE)
        return MO_NONE;
    mo_tape_record(t, &(mo_record){.label = "the experts' tokens",
                                   .out[0] = y,
                                   .in[0] = x,
                                   .grad[0] = mo_bytes(t, x),
                                   .saved[0] = order,
                                   .temp = mo_bytes(t, x)});
    return y;
}

/* The router's weights of the chosen experts, and their numbers sorted for the groups. */
static mo_value route(mo_layer *l, mo_value x, mo_value *order)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint64_t chosen = s->rows * s->sequence * s->experts_per_token;
    mo_value logits = mo_op_linear(t, &l->router, x, s->play->compute, 0);
    mo_value wide = mo_op_cast(t, logits, 4);
    mo_value chances = mo_op_softmax(t, wide);
    mo_drop(t, wide);
    mo_value top = mo_op_resize(t, chances, chosen, "the router");
    mo_drop(t, chances);
    /* Numbers of experts, sorted numbers and their order, and where each came from: 8 bytes. */
    *order = mo_value_new(t, 4 * chosen, 8, t->category);
    mo_value total = mo_op_mean(t, top, chosen / s->experts_per_token);
    mo_value scores = mo_op_mul(t, top, total);
    mo_drop(t, total);
    if (s->kin == MEMOPT_PLAN_KIN_QWEN_MOE)
        scores = turn(t, scores, mo_op_cast(t, scores, mo_width(t, logits)));
    /* What the codes of router and experts hold meanwhile: sorted numbers, and as floats too. */
    mo_play_hold(s->play, &s->play->layer, top);
    mo_play_hold(s->play, &s->play->layer, mo_value_new(t, chosen, 8, t->category));
    mo_play_hold(s->play, &s->play->layer, mo_value_new(t, chosen + s->experts, 4, t->category));
    mo_play_hold(s->play, &s->play->layer, logits); /* the router returns them */
    return scores;
}

mo_value mo_experts(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint64_t k = s->experts_per_token, size = mo_elements(t, x);
    mo_value order = MO_NONE, parts[MO_RECORD_OUTPUTS];
    mo_value scores = route(l, x, &order);
    mo_value tokens = gather(t, x, mo_tape_mul(t, size, k), order);
    mo_value both = grouped(s->play, tokens, l->experts_up, s->hidden, 2 * s->ffn);
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_op_split(t, both, 2, parts);
    mo_drop(t, both);
    mo_value active = mo_op_activation(t, parts[0], s->activation);
    mo_value product = mo_op_mul(t, active, parts[1]);
    mo_drop(t, active);
    mo_drop(t, parts[0]);
    mo_drop(t, parts[1]);
    mo_value down = grouped(s->play, product, l->experts_down, s->ffn, s->hidden);
    mo_drop(t, product);
    mo_value weighted = mo_op_mul(t, down, scores);
    mo_drop(t, down);
    /* The places to put them back to come from all numbers in their order. */
    mo_tape_flash(t, mo_tape_mul(t, mo_elements(t, scores), 8), t->category);
    mo_value back = gather(t, weighted, mo_elements(t, weighted), order);
    mo_drop(t, weighted);
    mo_value sum = mo_op_resize(t, back, size, "the sum of the experts");
    mo_drop(t, back);
    sum = turn(t, sum, mo_op_cast(t, sum, mo_width(t, x)));
    mo_drop(t, tokens);
    mo_drop(t, scores);
    mo_drop(t, order);
    return sum;
}
