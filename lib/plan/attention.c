/*
 * Attention as transformers writes it: projections, rotary positions, the cache, and the scores
 * eager, by torch's math kernel, or by a flash kernel.
 *
 * Queries, keys and values are views of the projections' outputs in which a sequence's heads are
 * not contiguous; products of matrices copy such operands unless there is one sequence. Gradients
 * of the views are copied back, but not where a flash kernel makes them in the same order.
 */
#include "plan/play.h"

typedef struct mo_heads {
    mo_value q, k, v;
    int apart; /* k and v have memory of their own: contiguous */
} mo_heads;

enum mo_core { MO_CORE_FLASH, MO_CORE_MATH, MO_CORE_EAGER };

/* Which kernel computes the scores. The CPU's flash kernel has no dropout; a device that is not
 * told is taken to have none either. */
static enum mo_core core_of(const mo_stack *s)
{
    uint32_t device = s->play->settings->card.device;
    int gpu = device == MEMOPT_PLAN_DEVICE_CUDA || device == MEMOPT_PLAN_DEVICE_HIP;
    if (s->attention == MEMOPT_PLAN_ATTENTION_EAGER)
        return MO_CORE_EAGER;
    if (s->attention == MEMOPT_PLAN_ATTENTION_FLASH || gpu || !(s->attention_dropout > 0))
        return MO_CORE_FLASH;
    return MO_CORE_MATH;
}

static mo_value turn(mo_tape *t, mo_value old, mo_value new_one)
{
    mo_drop(t, old);
    return new_one;
}

/* Two parts of a last dimension in a new tensor; their gradients are parts of the incoming one. */
static mo_value joined(mo_tape *t, mo_value a, mo_value b)
{
    t->label = "rotary positions";
    mo_value out =
        mo_value_new(t, mo_elements(t, a) + mo_elements(t, b), mo_width(t, a), t->category);
    if (out != MO_NONE)
        mo_tape_record(t, &(mo_record){.label = "rotary positions",
                                       .out[0] = out,
                                       .in = {a, b, MO_NONE, MO_NONE},
                                       .grad = {MO_ALIAS, MO_ALIAS}});
    return out;
}

/* (−x2, x1) of x = (x1, x2). */
static mo_value rotate_half(mo_tape *t, mo_value x)
{
    uint64_t half = mo_elements(t, x) / 2;
    mo_value x1 = mo_op_slice(t, x, half), x2 = mo_op_slice(t, x, half);
    mo_value negative = mo_op_scale(t, x2);
    mo_value out = joined(t, negative, x1);
    mo_drop(t, negative);
    mo_drop(t, x1);
    mo_drop(t, x2);
    return out;
}

/* rest: the part of x that is not rotated, of no elements, and which is joined to the rotated part
 * all the same; MO_NONE where the code knows no parts. */
static mo_value rotary(mo_stack *s, mo_value x, mo_value rest)
{
    mo_tape *t = &s->play->tape;
    mo_value straight = mo_op_mul(t, x, s->cosine);
    mo_value half = rotate_half(t, x);
    mo_value turned = mo_op_mul(t, half, s->sine);
    mo_drop(t, half);
    mo_value out = mo_op_add(t, straight, turned);
    mo_drop(t, straight);
    mo_drop(t, turned);
    return rest == MO_NONE ? out : turn(t, out, joined(t, out, rest));
}

/* Queries, keys and values of one projection: GPT-2 splits it, Phi-3 takes a slice for each, whose
 * gradients are as large as all three. */
static void part_heads(mo_stack *s, mo_value all, mo_value parts[MO_RECORD_OUTPUTS])
{
    mo_tape *t = &s->play->tape;
    uint64_t kv = s->size / s->heads * s->kv_heads;
    if (s->kin != MEMOPT_PLAN_KIN_PHI3) {
        mo_op_split(t, all, 3, parts);
        mo_drop(t, all);
        return;
    }
    for (int i = 0; i < 3; i++)
        parts[i] = mo_op_slice(t, all, i == 0 ? s->size : kv);
    mo_play_hold(s->play, &s->play->block, all);
}

/* The views of the projections that the scores are made from. */
static mo_heads project(mo_layer *l, mo_value x, enum mo_core core)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    double dropout = s->play->settings->model.lora_dropout;
    int copies = core != MO_CORE_FLASH;
    mo_value parts[MO_RECORD_OUTPUTS];
    if (s->fused_qkv) {
        mo_value all = mo_op_linear(t, &l->query, x, compute, dropout);
        if (all == MO_NONE)
            return (mo_heads){MO_NONE, MO_NONE, MO_NONE, 0};
        part_heads(s, all, parts);
    } else {
        parts[0] = mo_op_linear(t, &l->query, x, compute, dropout);
        if (s->family == MEMOPT_PLAN_OPT)
            parts[0] = turn(t, parts[0], mo_op_scale(t, parts[0]));
        if (l->query_norm.weight != MO_NONE)
            parts[0] = turn(t, parts[0], mo_op_norm(t, &l->query_norm, parts[0], compute));
        parts[1] = mo_op_linear(t, &l->key, x, compute, dropout);
        if (l->key_norm.weight != MO_NONE)
            parts[1] = turn(t, parts[1], mo_op_norm(t, &l->key_norm, parts[1], compute));
        parts[2] = mo_op_linear(t, &l->value, x, compute, dropout);
    }
    for (int i = 0; i < 3; i++)
        if (i < 2 ? copies || s->rotary : copies)
            parts[i] = turn(t, parts[i], mo_op_copy_back(t, parts[i]));
    return (mo_heads){parts[0], parts[1], parts[2], 0};
}

static void turn_heads(mo_stack *s, mo_heads *h)
{
    mo_tape *t = &s->play->tape;
    int parts = s->kin == MEMOPT_PLAN_KIN_PHI3;
    mo_value rest_q = parts ? mo_op_slice(t, h->q, 0) : MO_NONE;
    mo_value rest_k = parts ? mo_op_slice(t, h->k, 0) : MO_NONE;
    mo_value q = rotary(s, h->q, rest_q), k = rotary(s, h->k, rest_k);
    mo_drop(t, rest_q);
    mo_drop(t, rest_k);
    mo_drop(t, h->q);
    mo_drop(t, h->k);
    h->q = q;
    h->k = k;
}

/* Autocast computes products of matrices and flash attention in its type. */
static void narrow_heads(mo_stack *s, mo_heads *h)
{
    mo_tape *t = &s->play->tape;
    mo_value *all[3] = {&h->q, &h->k, &h->v};
    for (int i = 0; i < 3 && s->play->compute; i++) {
        if (mo_width(t, *all[i]) == s->play->compute)
            continue;
        mo_value cast = mo_op_cast(t, *all[i], s->play->compute);
        mo_play_hold(s->play, &s->play->block, *all[i]);
        *all[i] = cast;
    }
}

/* The kernel's own casts go with it; what they are of is held by the code. */
static void drop_narrow(mo_stack *s, mo_heads *h, const mo_heads *wide)
{
    mo_value *all[3] = {&h->q, &h->k, &h->v};
    const mo_value before[3] = {wide->q, wide->k, wide->v};
    for (int i = 0; i < 3; i++) {
        if (*all[i] == before[i])
            continue;
        mo_drop(&s->play->tape, *all[i]);
        *all[i] = MO_NONE;
    }
}

/* The cache joins what is new to what it had: copies that it holds until the outputs go. */
static void cache_heads(mo_stack *s, mo_heads *h)
{
    mo_tape *t = &s->play->tape;
    mo_value k = mo_op_copy(t, h->k);
    h->v = turn(t, h->v, mo_op_cast(t, h->v, mo_width(t, h->k)));
    mo_value v = mo_op_copy(t, h->v);
    mo_drop(t, h->k);
    mo_drop(t, h->v);
    h->k = k;
    h->v = v;
    h->apart = 1;
    if (!t->in_backward) {
        mo_play_hold(s->play, &s->play->outputs, mo_value_view(t, k, mo_elements(t, k)));
        mo_play_hold(s->play, &s->play->outputs, mo_value_view(t, v, mo_elements(t, v)));
    }
}

/* Keys and values once per query head; the gradient is summed over the heads that share one. The
 * caller's code has the old ones meanwhile. in_kernel: by torch's math kernel itself. */
static void repeat_heads(mo_stack *s, mo_heads *h, int in_kernel)
{
    mo_tape *t = &s->play->tape;
    if (s->kv_heads == s->heads)
        return;
    if (s->kv_heads == 1 && !in_kernel) { /* one for all: no copy, but not contiguous either */
        h->k = turn(t, h->k, mo_op_expand(t, h->k, s->size));
        h->v = turn(t, h->v, mo_op_expand(t, h->v, s->size));
        h->apart = 0;
        return;
    }
    mo_value k = mo_op_resize(t, h->k, s->size, "repeated keys");
    mo_value v = mo_op_resize(t, h->v, s->size, "repeated values");
    mo_play_hold(s->play, &s->play->block, h->k);
    mo_play_hold(s->play, &s->play->block, h->v);
    h->k = k;
    h->v = v;
    h->apart = 1;
}

static mo_value flash(mo_stack *s, const mo_heads *h)
{
    mo_tape *t = &s->play->tape;
    t->label = "attention";
    mo_value out = mo_value_new(t, mo_elements(t, h->q), mo_width(t, h->q), t->category);
    mo_value sums = mo_value_new(t, s->rows * s->heads * s->sequence, 4, t->category);
    mo_value mask = MO_NONE; /* the kernel adds numbers: what it is given is a yes or no */
    if (s->mask != MO_NONE)
        mask = mo_value_new(t, mo_elements(t, s->mask), mo_width(t, h->q), t->category);
    if (sums == MO_NONE)
        return MO_NONE;
    if (!t->in_backward)
        t->flops += 4.0 * (double)s->sequence * (double)mo_elements(t, h->q);
    mo_tape_record(t,
                   &(mo_record){.label = "attention",
                                .out[0] = out,
                                .in = {h->q, h->k, h->v, MO_NONE},
                                .grad = {mo_bytes(t, h->q), mo_bytes(t, h->k), mo_bytes(t, h->v)},
                                .saved = {h->q, h->k, h->v, out, sums, mask}});
    mo_drop(t, sums);
    mo_drop(t, mask);
    /* The output lies as the queries do. Joined from parts they lie one head after the other. */
    return s->kin == MEMOPT_PLAN_KIN_PHI3 ? turn(t, out, mo_op_copy(t, out)) : out;
}

/* An operand of a product: copied where it is not contiguous. */
static mo_value operand(mo_stack *s, mo_value x, int apart)
{
    mo_tape *t = &s->play->tape;
    return apart || s->rows == 1 ? mo_value_view(t, x, mo_elements(t, x)) : mo_op_copy(t, x);
}

/* Softmax of scores: in fp32 and cast back to the queries' type where the family's code says so,
 * else in the type of the scores, which autocast leaves alone on a CPU. GPT-2 casts it to the type
 * of the values. */
static mo_value weigh(mo_stack *s, mo_value scores, uint32_t of_queries, uint32_t of_values)
{
    mo_tape *t = &s->play->tape;
    int bare = s->family == MEMOPT_PLAN_GPT2 || s->family == MEMOPT_PLAN_BERT;
    int wide = !bare || (s->play->compute != 0 && !t->narrow_norms);
    mo_value in = mo_op_cast(t, scores, wide ? 4 : mo_width(t, scores));
    mo_value out = mo_op_softmax(t, in);
    uint32_t width = bare ? mo_width(t, in) : of_queries;
    mo_drop(t, in);
    return turn(t, out, mo_op_cast(t, out, s->family == MEMOPT_PLAN_GPT2 ? of_values : width));
}

static double product_flops(const mo_stack *s)
{
    return 2.0 * (double)s->rows * (double)s->heads * (double)s->sequence * (double)s->sequence *
           (double)s->head_dim;
}

/* The product with the values. */
static mo_value combine(mo_stack *s, const mo_heads *h, mo_value weights)
{
    mo_tape *t = &s->play->tape;
    mo_value v = operand(s, h->v, h->apart);
    mo_value out = mo_op_bmm(t, weights, v, s->size, product_flops(s));
    mo_drop(t, v);
    return out;
}

/* width: of the queries before autocast. */
static mo_value eager(mo_stack *s, mo_heads *h, uint32_t width)
{
    mo_tape *t = &s->play->tape;
    mo_value q = operand(s, h->q, 0), k = operand(s, h->k, h->apart);
    mo_value scores = mo_op_bmm(t, q, k, s->scores, product_flops(s));
    mo_drop(t, q);
    mo_drop(t, k);
    scores = turn(t, scores, mo_op_scale(t, scores));
    if (s->mask != MO_NONE)
        scores = turn(t, scores, mo_op_add(t, scores, s->mask));
    mo_value weights = weigh(s, scores, width, mo_width(t, h->v));
    mo_drop(t, scores);
    weights = turn(t, weights, mo_op_dropout(t, weights, s->attention_dropout));
    mo_value operand_weights = mo_op_cast(t, weights, mo_width(t, h->v));
    mo_value out = combine(s, h, operand_weights);
    out = turn(t, out, mo_op_copy_both(t, out)); /* one head after the other again */
    mo_drop(t, operand_weights);
    mo_play_hold(s->play, &s->play->layer, weights); /* it is returned: the layer has it */
    return out;
}

/* torch's math kernel: queries and keys are scaled, in fp32 for 16-bit types. */
static mo_value math(mo_stack *s, mo_heads *h)
{
    mo_tape *t = &s->play->tape;
    uint32_t width = mo_width(t, h->q);
    mo_heads w = {mo_op_cast(t, h->q, 4), mo_op_cast(t, h->k, 4), mo_op_cast(t, h->v, 4), h->apart};
    mo_value scaled_q = mo_op_scale(t, w.q), scaled_k = mo_op_scale(t, w.k);
    mo_value mask = MO_NONE;
    if (s->mask != MO_NONE)
        mask = mo_value_new(t, mo_elements(t, s->mask), width, t->category);
    else if (s->causal)
        mask = mo_value_new(t, s->sequence * s->sequence, 4, t->category);
    mo_value q = operand(s, scaled_q, 0), k = operand(s, scaled_k, h->apart);
    mo_value scores = mo_op_bmm(t, q, k, s->scores, product_flops(s));
    mo_drop(t, q);
    mo_drop(t, k);
    mo_drop(t, scaled_k);
    if (mask != MO_NONE)
        scores = turn(t, scores, mo_op_add(t, scores, mask));
    mo_value weights = mo_op_softmax(t, scores);
    mo_drop(t, scores);
    weights = turn(t, weights, mo_op_dropout(t, weights, s->attention_dropout));
    /* The kernel returns the weights too, in the type of the queries; nobody takes them. */
    mo_value returned = mo_op_cast(t, weights, width);
    mo_value out = combine(s, &w, weights);
    out = turn(t, out, mo_op_cast(t, out, width));
    mo_drop(t, weights);
    mo_drop(t, returned);
    mo_drop(t, scaled_q);
    mo_drop(t, mask);
    mo_drop(t, w.q);
    mo_drop(t, w.k);
    mo_drop(t, w.v);
    return turn(t, out, mo_op_copy_both(t, out));
}

/* Queries, keys and values to the heads' outputs; leaves in h what the program holds meanwhile. */
static mo_value core(mo_layer *l, mo_heads *h)
{
    mo_stack *s = l->stack;
    if (s->rotary)
        turn_heads(s, h);
    if (s->cache)
        cache_heads(s, h);
    uint32_t width = mo_width(&s->play->tape, h->q);
    enum mo_core kernel = core_of(s);
    int by_program = kernel == MO_CORE_EAGER || s->mask != MO_NONE;
    if (by_program) /* before autocast sees them */
        repeat_heads(s, h, 0);
    mo_heads wide = *h;
    narrow_heads(s, h);
    if (kernel == MO_CORE_EAGER)
        return eager(s, h, width);
    if (kernel == MO_CORE_FLASH) {
        mo_value out = flash(s, h);
        if (s->play->compute)
            drop_narrow(s, h, &wide);
        return out;
    }
    if (!by_program)
        repeat_heads(s, h, 1);
    return math(s, h);
}

static void drop_heads(mo_tape *t, const mo_heads *h)
{
    mo_drop(t, h->q);
    mo_drop(t, h->k);
    mo_drop(t, h->v);
}

/* The region of selective checkpointing. */
static mo_value core_again(mo_tape *t, void *context, const mo_value *inputs)
{
    mo_heads h = {mo_value_view(t, inputs[0], mo_elements(t, inputs[0])),
                  mo_value_view(t, inputs[1], mo_elements(t, inputs[1])),
                  mo_value_view(t, inputs[2], mo_elements(t, inputs[2])), 0};
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_play *p = ((mo_layer *)context)->stack->play;
    mo_value out = core(context, &h);
    drop_heads(t, &h);
    mo_play_let_go(p, &p->block, 0);
    mo_play_let_go(p, &p->layer, 0);
    return out;
}

mo_value mo_attention(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    const mo_settings *settings = s->play->settings;
    mo_heads h = project(l, x, core_of(s));
    mo_value mixed;
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    if (settings->run.checkpointing == MEMOPT_PLAN_CHECKPOINT_SELECTIVE) {
        const mo_value inputs[MO_REGION_INPUTS] = {h.q, h.k, h.v};
        mixed = mo_tape_region_forward(t, core_again, l, inputs, 3, 1);
    } else {
        mixed = core(l, &h);
    }
    mo_value out =
        mo_op_linear(t, &l->output, mixed, s->play->compute, settings->model.lora_dropout);
    mo_drop(t, mixed);
    drop_heads(t, &h);
    mo_play_let_go(s->play, &s->play->block, 0);
    return out;
}
