/*
 * What is after the layers: the last norm, the head and its loss. Everything as large as tokens ×
 * vocabulary is of the category logits.
 */
#include "model/play.h"

/* Logits in fp32, labels shifted and padded, cross entropy. BERT's code computes the loss in the
 * logits' own type. */
static mo_plan_value token_loss(mo_plan_play *p, mo_plan_value logits, int shifted)
{
    mo_plan_tape *t = &p->tape;
    int own_type = p->text.family->loss_own_type && !p->compute;
    mo_plan_value wide = mo_plan_op_cast(t, logits, own_type ? mo_plan_width(t, logits) : 4);
    mo_plan_value labels = p->labels, padded = MO_PLAN_NONE;
    if (shifted) {
        uint64_t n = mo_plan_elements(t, p->labels);
        padded = mo_plan_value_new(t, n + p->text.rows, 8, MO_PLAN_BATCH);
        labels = mo_plan_value_new(t, n, 8, MO_PLAN_BATCH);
    }
    mo_plan_value loss = mo_plan_op_loss(t, wide, labels);
    if (shifted)
        mo_plan_drop(t, labels);
    MO_PLAN_DROP(t, padded, wide);
    return loss;
}

/* Tokens of a chunk: their logits take about what all hidden states take. */
static uint64_t chunk_of(const mo_plan_play *p, uint64_t tokens)
{
    uint64_t even = mo_ceil_div_u64(tokens * p->head.in, p->head.out), chunk = 256;
    while (chunk < even)
        chunk *= 2;
    return mo_min_u64(tokens, chunk);
}

/* Bytes of autocast's cast of the head. Of one that learns it is kept to the end of forward. */
static uint64_t cast_head(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    if (p->compute == 0 || p->compute == p->weight_width)
        return 0;
    mo_plan_value cast = mo_plan_op_cast(t, p->head.weight, p->compute);
    uint64_t bytes = mo_plan_bytes_of(t, cast);
    if (mo_plan_needs(t, p->head.weight))
        mo_plan_tape_cache(t, cast);
    mo_plan_drop(t, cast);
    return bytes;
}

/* Each chunk's gradients are computed with it: those of the hidden states and of the head are kept.
 */
static void record_fused(mo_plan_play *p, mo_plan_value x, mo_plan_value loss)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_value of_x =
        mo_plan_value_new(t, mo_plan_elements(t, x), mo_plan_width(t, x), MO_PLAN_ACTIVATIONS);
    mo_plan_value of_head = MO_PLAN_NONE;
    if (mo_plan_needs(t, p->head.weight))
        of_head = mo_plan_value_new(t, mo_plan_elements(t, p->head.weight), p->weight_width,
                                    MO_PLAN_GRADIENTS);
    /* Two copies in fp32: logits, and their log-softmax or gradient. */
    uint64_t logits =
        mo_plan_tape_mul(t, chunk_of(p, mo_plan_elements(t, x) / p->head.in), p->head.out);
    uint64_t cast = cast_head(p), most = mo_plan_tape_mul(t, logits, 8);
    uint64_t product = mo_plan_tape_mul(t, logits / p->head.out, p->head.in * p->compute);
    if (cast > 0 && mo_plan_needs(t, p->head.weight))
        cast = 0;   /* it is kept; one that does not learn is there for each product alone */
    if (p->compute) /* logits' gradient and a cast of it, and the hidden states' */
        most = mo_max_u64(most, cast + mo_plan_tape_mul(t, logits, 6) + product);
    mo_plan_tape_flash(t, most, MO_PLAN_LOGITS);
    if (t->status == MEMOPT_OK)
        mo_plan_tape_record(t, &(mo_plan_record){.label = "the fused loss",
                                                 .out[0] = loss,
                                                 .in = {x, p->head.weight},
                                                 .grad = {mo_plan_bytes_of(t, x),
                                                          mo_plan_bytes_of(t, p->head.weight)},
                                                 .saved = {of_x, of_head}});
    MO_PLAN_DROP(t, of_x, of_head);
}

/* Each chunk is run again in backward: its logits, their log-softmax and the gradients of both. The
 * head's gradient is a sum over chunks, where two and their sum meet. */
static void record_chunked(mo_plan_play *p, mo_plan_value x, mo_plan_value loss)
{
    mo_plan_tape *t = &p->tape;
    uint64_t tokens = mo_plan_elements(t, x) / p->head.in, chunk = chunk_of(p, tokens);
    uint64_t logits = mo_plan_tape_mul(t, chunk, p->head.out);
    uint64_t sums = 0, casts = cast_head(p), part = 0, most = mo_plan_tape_mul(t, logits, 12);
    uint64_t only = 0;
    uint64_t of_head = mo_plan_needs(t, p->head.weight) ? mo_plan_bytes_of(t, p->head.weight) : 0;
    mo_plan_tape_flash(t, mo_plan_tape_mul(t, logits, 8), MO_PLAN_LOGITS);
    if (chunk < tokens)
        sums = mo_plan_tape_mul(t, of_head, 2);
    else if (of_head > 0) { /* of the only chunk it is made once the logits are one gradient, and
                               the head's cast has gone */
        only = mo_plan_tape_mul(t, logits, 4) + mo_plan_elements(t, p->head.weight) * p->compute;
        most = most > of_head ? most - of_head : 0;
    }
    if (chunk < tokens) /* one chunk's gradient is not there yet when most is */
        part = mo_plan_tape_mul(t, chunk, p->head.in * mo_plan_width(t, x));
    if (p->compute && mo_plan_needs(t, p->head.weight)) /* its gradient needs the tokens' cast */
        casts += mo_plan_tape_mul(t, chunk, p->head.in * p->compute);
    mo_plan_value chunks =
        mo_plan_op_slice(t, x, mo_plan_elements(t, x)); /* whose gradients are joined */
    t->category = MO_PLAN_LOGITS;
    mo_plan_tape_record(
        t, &(mo_plan_record){
               .label = "a chunk of the loss",
               .out[0] = loss,
               .in = {chunks, p->head.weight},
               .grad = {mo_plan_bytes_of(t, x) - part, mo_plan_bytes_of(t, p->head.weight)},
               .saved = {x, p->head.weight, p->labels},
               .temp = mo_max_u64(casts + mo_max_u64(most, sums), only)});
    t->category = MO_PLAN_ACTIVATIONS;
    mo_plan_drop(t, chunks);
    p->again_flops += 2.0 * (double)tokens * (double)p->head.in * (double)p->head.out;
}

/* The loss over chunks of tokens: never all logits. x is taken over. */
static mo_plan_value loss_in_chunks(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    t->phase = MO_PLAN_PHASE_FORWARD;
    x = mo_plan_next(t, x, mo_plan_op_copy_both(t, x)); /* without each sequence's last token */
    t->phase = MO_PLAN_PHASE_LOSS;
    t->label = "a chunk of the loss";
    if (!t->in_backward)
        t->flops += 2.0 * (double)mo_plan_elements(t, x) * (double)p->head.out;
    mo_plan_value loss = mo_plan_value_new(t, 1, 4, MO_PLAN_LOGITS);
    if (loss == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    if (p->settings->run.loss == MO_PLAN_LOSS_CHUNKED)
        record_chunked(p, x, loss);
    else
        record_fused(p, x, loss);
    mo_plan_drop(t, x);
    return loss;
}

/* A head over the vocabulary. x is taken over. */
static mo_plan_value vocabulary(mo_plan_play *p, mo_plan_value x, int shifted)
{
    mo_plan_tape *t = &p->tape;
    if (p->settings->run.loss != MO_PLAN_LOSS_PLAIN)
        return loss_in_chunks(p, x);
    t->category = MO_PLAN_LOGITS;
    mo_plan_value logits = mo_plan_op_linear(t, &p->head, x);
    mo_plan_value loss = token_loss(p, logits, shifted);
    t->category = MO_PLAN_ACTIVATIONS;
    mo_plan_play_returns(p, logits);
    mo_plan_drop(t, x);
    return loss;
}

/* BERT's head transforms before it multiplies with the embeddings. */
static mo_plan_value masked(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    t->phase = MO_PLAN_PHASE_FORWARD;
    x = mo_plan_next(t, x, mo_plan_op_linear(t, &p->transform, x));
    x = mo_plan_next(t, x, mo_plan_op_activation(t, x, p->settings->model.activation));
    x = mo_plan_next(t, x, mo_plan_op_norm(t, &p->transform_norm, x));
    t->phase = MO_PLAN_PHASE_LOSS;
    return vocabulary(p, x, 0);
}

/* One vector per sequence: the first token's or the last's. */
static mo_plan_value first_token(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    return mo_plan_next(t, x, mo_plan_op_slice(t, x, p->text.rows * p->text.hidden));
}

static mo_plan_value classes(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_model *m = &p->settings->model;
    t->phase = MO_PLAN_PHASE_FORWARD; /* up to the head itself */
    if (m->head != MO_PLAN_HEAD_TOKEN && p->text.family->encoder)
        x = first_token(p, x);
    if (p->pooler.weight != MO_PLAN_NONE && m->head == MO_PLAN_HEAD_SEQUENCE) {
        x = mo_plan_next(t, x, mo_plan_op_linear(t, &p->pooler, x));
        x = mo_plan_next(t, x, mo_plan_op_activation(t, x, MO_PLAN_ACTIVATION_TANH));
    }
    if (p->text.family->head_dropout)
        x = mo_plan_next(t, x, mo_plan_op_dropout(t, x, m->hidden_dropout));
    t->phase = MO_PLAN_PHASE_LOSS;
    t->label = "a copy of the first token";
    if (p->text.family->images) /* rows of it are apart, as the product does not take them */
        mo_plan_tape_flash(t, mo_plan_bytes_of(t, x), MO_PLAN_ACTIVATIONS);
    t->category = MO_PLAN_LOGITS;
    mo_plan_value logits = mo_plan_op_linear(t, &p->head, x);
    mo_plan_drop(t, x);
    int in_fp32 = m->head == MO_PLAN_HEAD_TOKEN || p->compute != 0;
    mo_plan_value wide = mo_plan_op_cast(t, logits, in_fp32 ? 4 : mo_plan_width(t, logits));
    mo_plan_value loss = mo_plan_op_loss(t, wide, p->labels);
    mo_plan_drop(t, wide);
    t->category = MO_PLAN_ACTIVATIONS;
    mo_plan_play_returns(p, logits);
    return loss;
}

/* Scores of every anchor against the other sequences of the micro-batch: means of tokens in fp32,
 * of length 1, their products over a temperature. */
static mo_plan_value contrastive(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    uint64_t hidden = p->text.hidden, rows = p->text.rows, anchors = p->settings->run.batch;
    uint64_t others = rows > anchors ? rows - anchors : rows;
    uint32_t width = p->compute ? p->compute : 4;
    mo_plan_value v = mo_plan_next(t, x, mo_plan_op_mean(t, x, mo_plan_tape_mul(t, rows, hidden)));
    v = mo_plan_next(t, v, mo_plan_op_cast(t, v, 4));
    v = mo_plan_next(t, v, mo_plan_op_power(t, v));
    mo_plan_value a = mo_plan_op_slice(t, v, mo_plan_tape_mul(t, anchors, hidden));
    mo_plan_value b = mo_plan_op_slice(t, v, mo_plan_tape_mul(t, others, hidden));
    mo_plan_drop(t, v);
    a = mo_plan_next(t, a, mo_plan_op_cast(t, a, width));
    b = mo_plan_next(t, b, mo_plan_op_cast(t, b, width));
    t->category = MO_PLAN_LOGITS;
    double flops = 2.0 * (double)anchors * (double)others * (double)hidden;
    mo_plan_value scores = mo_plan_op_bmm(t, a, b, mo_plan_tape_mul(t, anchors, others), flops);
    MO_PLAN_DROP(t, a, b);
    scores = mo_plan_next(t, scores, mo_plan_op_scale(t, scores));
    mo_plan_play_returns(p, mo_plan_value_view(t, scores, mo_plan_elements(t, scores)));
    scores = mo_plan_next(t, scores, mo_plan_op_cast(t, scores, 4));
    mo_plan_value loss = mo_plan_op_loss(t, scores, p->labels);
    t->category = MO_PLAN_ACTIVATIONS;
    mo_plan_drop(t, scores);
    return loss;
}

/* x is taken over. */
static mo_plan_value scored(mo_plan_play *p, mo_plan_value x)
{
    switch (p->settings->model.head) {
    case MO_PLAN_HEAD_CAUSAL_LM:
        return vocabulary(p, x, 1);
    case MO_PLAN_HEAD_MASKED_LM:
        return masked(p, x);
    case MO_PLAN_HEAD_NONE:
        return mo_plan_next(&p->tape, x, mo_plan_op_mean(&p->tape, x, 1));
    default:
        return classes(p, x);
    }
}

mo_plan_value mo_plan_play_head(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    t->layer = t->layer_count - 1;
    t->phase = MO_PLAN_PHASE_FORWARD;
    if (p->final_norm.weight != MO_PLAN_NONE && t->status == MEMOPT_OK)
        x = mo_plan_next(t, x, mo_plan_op_norm(t, &p->final_norm, x));
    if (p->projection_out != MO_PLAN_NONE && t->status == MEMOPT_OK) {
        mo_plan_linear l = {0};
        l.weight = p->projection_out;
        l.in = p->text.hidden;
        l.out = p->settings->model.embedding;
        x = mo_plan_next(t, x, mo_plan_op_linear(t, &l, x));
    }
    mo_plan_play_release(p, &p->frames, 0);
    if (p->settings->run.checkpointing == MO_PLAN_CHECKPOINT_NONE)
        mo_plan_play_drop_mask(p); /* layers that run again hold it */
    t->phase = MO_PLAN_PHASE_LOSS;
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    if (p->settings->model.head == MO_PLAN_HEAD_CONTRASTIVE)
        return contrastive(p, x);
    /* The model with the head has the output of the one without until it returns. */
    mo_plan_play_hold(p, &p->frames, mo_plan_value_view(t, x, mo_plan_elements(t, x)));
    mo_plan_value loss = scored(p, x);
    mo_plan_play_release(p, &p->frames, 0);
    return loss;
}
