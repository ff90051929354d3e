/*
 * Attention as transformers writes it: projections, rotary positions, the cache, and the scores
 * eager, by torch's math kernel, or by a flash kernel.
 *
 * Queries, keys and values are views of the projections' outputs in which a sequence's heads are
 * not contiguous; products of matrices copy such operands unless there is one sequence. Gradients
 * of the views are copied back, but not where a flash kernel makes them in the same order.
 */
#include "model/play.h"

typedef struct mo_plan_heads {
    mo_plan_value q, k, v;
    int apart; /* k and v have memory of their own: contiguous */
} mo_plan_heads;

enum mo_plan_core { MO_PLAN_CORE_FLASH, MO_PLAN_CORE_MATH, MO_PLAN_CORE_EAGER };

/* Which kernel computes the scores. The CPU's flash kernel has no dropout. */
static enum mo_plan_core core_of(const mo_plan_stack *s)
{
    if (s->attention == MO_PLAN_ATTENTION_EAGER)
        return MO_PLAN_CORE_EAGER;
    if (s->attention == MO_PLAN_ATTENTION_FLASH || s->play->tape.gpu || !(s->attention_dropout > 0))
        return MO_PLAN_CORE_FLASH;
    return MO_PLAN_CORE_MATH;
}

/* Two parts of a last dimension in a new tensor; their gradients are parts of the incoming one. */
static mo_plan_value joined(mo_plan_tape *t, mo_plan_value a, mo_plan_value b)
{
    t->label = "rotary positions";
    mo_plan_value out = mo_plan_value_new(t, mo_plan_elements(t, a) + mo_plan_elements(t, b),
                                          mo_plan_width(t, a), t->category);
    if (out != MO_PLAN_NONE)
        mo_plan_tape_record(t, &(mo_plan_record){.label = "rotary positions",
                                                 .out[0] = out,
                                                 .in = {a, b},
                                                 .grad = {MO_PLAN_ALIAS, MO_PLAN_ALIAS}});
    return out;
}

/* (−x2, x1) of x = (x1, x2). */
static mo_plan_value rotate_half(mo_plan_tape *t, mo_plan_value x)
{
    uint64_t half = mo_plan_elements(t, x) / 2;
    mo_plan_value x1 = mo_plan_op_slice(t, x, half), x2 = mo_plan_op_slice(t, x, half);
    mo_plan_value negative = mo_plan_op_scale(t, x2);
    mo_plan_value out = joined(t, negative, x1);
    MO_PLAN_DROP(t, negative, x1, x2);
    return out;
}

static mo_plan_value rotary(mo_plan_stack *s, mo_plan_value x)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value straight = mo_plan_op_mul(t, x, s->cosine);
    mo_plan_value half = rotate_half(t, x);
    mo_plan_value turned = mo_plan_op_mul(t, half, s->sine);
    mo_plan_drop(t, half);
    mo_plan_value out = mo_plan_op_add(t, straight, turned);
    MO_PLAN_DROP(t, straight, turned);
    return out;
}

/* The views of the projections that the scores are made from. */
static mo_plan_heads project(mo_plan_layer *l, mo_plan_value x, enum mo_plan_core core)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    int copies = core != MO_PLAN_CORE_FLASH;
    mo_plan_value parts[MO_PLAN_RECORD_OUTPUTS];
    if (s->fused_qkv) {
        mo_plan_value all = mo_plan_op_linear(t, &l->query, x);
        if (all == MO_PLAN_NONE)
            return (mo_plan_heads){0};
        mo_plan_op_split(t, all, 3, parts);
        mo_plan_drop(t, all);
    } else {
        parts[0] = mo_plan_op_linear(t, &l->query, x);
        if (s->family->scales_queries)
            parts[0] = mo_plan_next(t, parts[0], mo_plan_op_scale(t, parts[0]));
        if (l->query_norm.weight != MO_PLAN_NONE)
            parts[0] = mo_plan_next(t, parts[0], mo_plan_op_norm(t, &l->query_norm, parts[0]));
        parts[1] = mo_plan_op_linear(t, &l->key, x);
        if (l->key_norm.weight != MO_PLAN_NONE)
            parts[1] = mo_plan_next(t, parts[1], mo_plan_op_norm(t, &l->key_norm, parts[1]));
        parts[2] = mo_plan_op_linear(t, &l->value, x);
    }
    for (int i = 0; i < 3; i++)
        if (i < 2 ? copies || s->rotary : copies)
            parts[i] = mo_plan_next(t, parts[i], mo_plan_op_copy_back(t, parts[i]));
    return (mo_plan_heads){parts[0], parts[1], parts[2], 0};
}

static void turn_heads(mo_plan_stack *s, mo_plan_heads *h)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value q = rotary(s, h->q), k = rotary(s, h->k);
    MO_PLAN_DROP(t, h->q, h->k);
    h->q = q;
    h->k = k;
}

/* Autocast computes products of matrices and flash attention in its type. */
static void narrow_heads(mo_plan_stack *s, mo_plan_heads *h)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value *all[3] = {&h->q, &h->k, &h->v};
    for (int i = 0; i < 3 && s->play->compute; i++) {
        if (mo_plan_width(t, *all[i]) == s->play->compute)
            continue;
        mo_plan_value cast = mo_plan_op_cast(t, *all[i], s->play->compute);
        mo_plan_play_hold(s->play, &s->play->block, *all[i]);
        *all[i] = cast;
    }
}

/* The kernel's own casts go with it; what they are of is held by the code. */
static void drop_narrow(mo_plan_stack *s, mo_plan_heads *h, const mo_plan_heads *wide)
{
    mo_plan_value *all[3] = {&h->q, &h->k, &h->v};
    const mo_plan_value before[3] = {wide->q, wide->k, wide->v};
    for (int i = 0; i < 3; i++) {
        if (*all[i] == before[i])
            continue;
        mo_plan_drop(&s->play->tape, *all[i]);
        *all[i] = MO_PLAN_NONE;
    }
}

/* The cache joins what is new to what it had: copies that it holds until the outputs go. */
static void cache_heads(mo_plan_stack *s, mo_plan_heads *h)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value k = mo_plan_op_copy(t, h->k);
    h->v = mo_plan_next(t, h->v, mo_plan_op_cast(t, h->v, mo_plan_width(t, h->k)));
    mo_plan_value v = mo_plan_op_copy(t, h->v);
    MO_PLAN_DROP(t, h->k, h->v);
    h->k = k;
    h->v = v;
    h->apart = 1;
    if (!t->in_backward) {
        mo_plan_play_hold(s->play, &s->play->outputs,
                          mo_plan_value_view(t, k, mo_plan_elements(t, k)));
        mo_plan_play_hold(s->play, &s->play->outputs,
                          mo_plan_value_view(t, v, mo_plan_elements(t, v)));
    }
}

/* Keys and values once per query head; the gradient is summed over the heads that share one. The
 * caller's code has the old ones meanwhile. in_kernel: by torch's math kernel itself. */
static void repeat_heads(mo_plan_stack *s, mo_plan_heads *h, int in_kernel)
{
    mo_plan_tape *t = &s->play->tape;
    if (s->kv_heads == s->heads)
        return;
    if (s->kv_heads == 1 && !in_kernel) { /* one for all: no copy, but not contiguous either */
        h->k = mo_plan_next(t, h->k, mo_plan_op_expand(t, h->k, s->size));
        h->v = mo_plan_next(t, h->v, mo_plan_op_expand(t, h->v, s->size));
        h->apart = 0;
        return;
    }
    mo_plan_value k = mo_plan_op_resize(t, h->k, s->size, "repeated keys");
    mo_plan_value v = mo_plan_op_resize(t, h->v, s->size, "repeated values");
    mo_plan_play_hold(s->play, &s->play->block, h->k);
    mo_plan_play_hold(s->play, &s->play->block, h->v);
    h->k = k;
    h->v = v;
    h->apart = 1;
}

static mo_plan_value flash(mo_plan_stack *s, const mo_plan_heads *h)
{
    mo_plan_tape *t = &s->play->tape;
    t->label = "attention";
    mo_plan_value out =
        mo_plan_value_new(t, mo_plan_elements(t, h->q), mo_plan_width(t, h->q), t->category);
    mo_plan_value sums = mo_plan_value_new(t, s->rows * s->heads * s->sequence, 4, t->category);
    mo_plan_value mask =
        MO_PLAN_NONE; /* the kernel adds numbers: what it is given is a yes or no */
    if (s->mask != MO_PLAN_NONE)
        mask =
            mo_plan_value_new(t, mo_plan_elements(t, s->mask), mo_plan_width(t, h->q), t->category);
    if (!t->in_backward)
        t->flops += 4.0 * (double)s->sequence * (double)mo_plan_elements(t, h->q);
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "attention",
                             .out[0] = out,
                             .in = {h->q, h->k, h->v},
                             .grad = {mo_plan_bytes_of(t, h->q), mo_plan_bytes_of(t, h->k),
                                      mo_plan_bytes_of(t, h->v)},
                             .saved = {h->q, h->k, h->v, out, sums, mask}});
    MO_PLAN_DROP(t, sums, mask);
    return out;
}

/* An operand of a product: copied where it is not contiguous. */
static mo_plan_value operand(mo_plan_stack *s, mo_plan_value x, int apart)
{
    mo_plan_tape *t = &s->play->tape;
    return apart || s->rows == 1 ? mo_plan_value_view(t, x, mo_plan_elements(t, x))
                                 : mo_plan_op_copy(t, x);
}

/* Softmax of scores: in fp32 and cast back to the queries' type where the family's code says so,
 * else in the type of the scores, which autocast leaves alone on a CPU. GPT-2 casts it to the type
 * of the values. */
static mo_plan_value weigh(mo_plan_stack *s, mo_plan_value scores, uint32_t of_queries,
                           uint32_t of_values)
{
    mo_plan_tape *t = &s->play->tape;
    int bare = s->family->softmax_own_type;
    int wide = !bare || (s->play->compute != 0 && t->gpu);
    mo_plan_value in = mo_plan_op_cast(t, scores, wide ? 4 : mo_plan_width(t, scores));
    mo_plan_value out = mo_plan_op_softmax(t, in);
    uint32_t width = bare ? mo_plan_width(t, in) : of_queries;
    mo_plan_drop(t, in);
    return mo_plan_next(t, out,
                        mo_plan_op_cast(t, out, s->family->softmax_to_values ? of_values : width));
}

static double product_flops(const mo_plan_stack *s)
{
    return 2.0 * (double)s->rows * (double)s->heads * (double)s->sequence * (double)s->sequence *
           (double)s->head_dim;
}

/* The product with the values. */
static mo_plan_value combine(mo_plan_stack *s, const mo_plan_heads *h, mo_plan_value weights)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value v = operand(s, h->v, h->apart);
    mo_plan_value out = mo_plan_op_bmm(t, weights, v, s->size, product_flops(s));
    mo_plan_drop(t, v);
    return out;
}

/* width: of the queries before autocast. */
static mo_plan_value eager(mo_plan_stack *s, mo_plan_heads *h, uint32_t width)
{
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value q = operand(s, h->q, 0), k = operand(s, h->k, h->apart);
    mo_plan_value scores = mo_plan_op_bmm(t, q, k, s->scores, product_flops(s));
    MO_PLAN_DROP(t, q, k);
    scores = mo_plan_next(t, scores, mo_plan_op_scale(t, scores));
    if (s->mask != MO_PLAN_NONE)
        scores = mo_plan_next(t, scores, mo_plan_op_add(t, scores, s->mask));
    mo_plan_value weights = weigh(s, scores, width, mo_plan_width(t, h->v));
    mo_plan_drop(t, scores);
    weights = mo_plan_next(t, weights, mo_plan_op_dropout(t, weights, s->attention_dropout));
    mo_plan_value operand_weights = mo_plan_op_cast(t, weights, mo_plan_width(t, h->v));
    mo_plan_value out = combine(s, h, operand_weights);
    out = mo_plan_next(t, out, mo_plan_op_copy_both(t, out)); /* one head after the other again */
    mo_plan_drop(t, operand_weights);
    mo_plan_play_hold(s->play, &s->play->layer, weights); /* it is returned: the layer has it */
    return out;
}

/* torch's math kernel: queries and keys are scaled, in fp32 for 16-bit types. */
static mo_plan_value math(mo_plan_stack *s, mo_plan_heads *h)
{
    mo_plan_tape *t = &s->play->tape;
    uint32_t width = mo_plan_width(t, h->q);
    mo_plan_heads w = {mo_plan_op_cast(t, h->q, 4), mo_plan_op_cast(t, h->k, 4),
                       mo_plan_op_cast(t, h->v, 4), h->apart};
    mo_plan_value scaled_q = mo_plan_op_scale(t, w.q), scaled_k = mo_plan_op_scale(t, w.k);
    mo_plan_value mask = MO_PLAN_NONE;
    if (s->mask != MO_PLAN_NONE)
        mask = mo_plan_value_new(t, mo_plan_elements(t, s->mask), width, t->category);
    else if (s->causal)
        mask = mo_plan_value_new(t, s->sequence * s->sequence, 4, t->category);
    mo_plan_value q = operand(s, scaled_q, 0), k = operand(s, scaled_k, h->apart);
    mo_plan_value scores = mo_plan_op_bmm(t, q, k, s->scores, product_flops(s));
    MO_PLAN_DROP(t, q, k, scaled_k);
    if (mask != MO_PLAN_NONE)
        scores = mo_plan_next(t, scores, mo_plan_op_add(t, scores, mask));
    mo_plan_value weights = mo_plan_op_softmax(t, scores);
    mo_plan_drop(t, scores);
    weights = mo_plan_next(t, weights, mo_plan_op_dropout(t, weights, s->attention_dropout));
    /* The kernel returns the weights too, in the type of the queries; they are not used. */
    mo_plan_value returned = mo_plan_op_cast(t, weights, width);
    mo_plan_value out = combine(s, &w, weights);
    out = mo_plan_next(t, out, mo_plan_op_cast(t, out, width));
    MO_PLAN_DROP(t, weights, returned, scaled_q, mask, w.q, w.k, w.v);
    return mo_plan_next(t, out, mo_plan_op_copy_both(t, out));
}

/* Queries, keys and values to the heads' outputs; leaves in h what the program holds meanwhile. */
static mo_plan_value core(mo_plan_layer *l, mo_plan_heads *h)
{
    mo_plan_stack *s = l->stack;
    if (s->rotary)
        turn_heads(s, h);
    if (s->cache)
        cache_heads(s, h);
    uint32_t width = mo_plan_width(&s->play->tape, h->q);
    enum mo_plan_core kernel = core_of(s);
    int by_program = kernel == MO_PLAN_CORE_EAGER || s->mask != MO_PLAN_NONE;
    if (by_program) /* before autocast sees them */
        repeat_heads(s, h, 0);
    mo_plan_heads wide = *h;
    narrow_heads(s, h);
    if (kernel == MO_PLAN_CORE_EAGER)
        return eager(s, h, width);
    if (kernel == MO_PLAN_CORE_FLASH) {
        mo_plan_value out = flash(s, h);
        if (s->play->compute)
            drop_narrow(s, h, &wide);
        return out;
    }
    if (!by_program)
        repeat_heads(s, h, 1);
    return math(s, h);
}

static void drop_heads(mo_plan_tape *t, const mo_plan_heads *h)
{
    MO_PLAN_DROP(t, h->q, h->k, h->v);
}

/* The region of selective checkpointing. */
static mo_plan_value core_again(mo_plan_tape *t, void *context, const mo_plan_value *inputs)
{
    mo_plan_heads h = {mo_plan_value_view(t, inputs[0], mo_plan_elements(t, inputs[0])),
                       mo_plan_value_view(t, inputs[1], mo_plan_elements(t, inputs[1])),
                       mo_plan_value_view(t, inputs[2], mo_plan_elements(t, inputs[2])), 0};
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    mo_plan_play *p = ((mo_plan_layer *)context)->stack->play;
    mo_plan_value out = core(context, &h);
    drop_heads(t, &h);
    mo_plan_play_release(p, &p->block, 0);
    mo_plan_play_release(p, &p->layer, 0);
    return out;
}

mo_plan_value mo_plan_run_attention(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    const mo_plan_settings *settings = s->play->settings;
    mo_plan_heads h = project(l, x, core_of(s));
    mo_plan_value mixed;
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (settings->run.checkpointing == MO_PLAN_CHECKPOINT_SELECTIVE) {
        const mo_plan_value inputs[MO_PLAN_REGION_INPUTS] = {h.q, h.k, h.v};
        mixed = mo_plan_tape_region_forward(t, core_again, l, inputs, 3, 1);
    } else {
        mixed = core(l, &h);
    }
    mo_plan_value out = mo_plan_op_linear(t, &l->output, mixed);
    mo_plan_drop(t, mixed);
    drop_heads(t, &h);
    mo_plan_play_release(s->play, &s->play->block, 0);
    return out;
}
