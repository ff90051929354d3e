/*
 * What is before the layers: embeddings, positions, token types, patches, masks, rotary tables.
 */
#include "plan/play.h"

static mo_value turn(mo_tape *t, mo_value old, mo_value new_one)
{
    mo_drop(t, old);
    return new_one;
}

/* Rotary tables in fp32, then in the type of the weights. */
static void rotary_tables(mo_play *p)
{
    mo_tape *t = &p->tape;
    mo_stack *s = &p->text;
    uint64_t n = mo_tape_mul(t, s->sequence, s->head_dim);
    t->label = "rotary positions";
    mo_tape_flash(t, mo_tape_mul(t, n, 4 * 4), MO_ACTIVATIONS);
    s->cosine = mo_value_new(t, n, p->weight_width, MO_ACTIVATIONS);
    s->sine = mo_value_new(t, n, p->weight_width, MO_ACTIVATIONS);
}

/* Whether a mask over the scores is made, and how many sequences it is made for: without padding
 * one serves all, and is seen by each. */
static void make_mask(mo_play *p, mo_stack *s)
{
    mo_tape *t = &p->tape;
    const memopt_plan_run *r = &p->settings->run;
    int padded = r->attention_mask == MEMOPT_PLAN_YES && s == &p->text;
    int window = p->settings->model.sliding_window > 0 && s->causal &&
                 s->sequence >= p->settings->model.sliding_window;
    int is_eager = s->attention == MEMOPT_PLAN_ATTENTION_EAGER;
    uint64_t square = mo_tape_mul(t, s->sequence, s->sequence);
    if (s->attention == MEMOPT_PLAN_ATTENTION_FLASH ||
        !(padded || (s->causal && (is_eager || window))))
        return;
    t->label = "the mask";
    mo_value yes = mo_value_new(t, mo_tape_mul(t, padded ? s->rows : 1, square), 1, MO_ACTIVATIONS);
    if (is_eager) { /* of the embeddings' type */
        int wide = p->compute && !t->narrow_norms && s->family == MEMOPT_PLAN_BERT;
        s->mask = mo_value_new(t, mo_tape_mul(t, s->rows, square), wide ? 4 : p->weight_width,
                               MO_ACTIVATIONS);
        mo_drop(t, yes);
    } else {
        s->mask = mo_value_view(t, yes, mo_tape_mul(t, s->rows, square));
        mo_drop(t, yes);
    }
}

static void drop_stack(mo_play *p, mo_stack *s)
{
    mo_drop(&p->tape, s->numbers);
    mo_drop(&p->tape, s->cosine);
    mo_drop(&p->tape, s->sine);
    mo_drop(&p->tape, s->mask);
}

void mo_play_drop_mask(mo_play *p)
{
    mo_stack *s = &p->text;
    mo_drop(&p->tape, s->mask);
    mo_drop(&p->tape, s->cosine);
    mo_drop(&p->tape, s->sine);
    s->mask = s->cosine = s->sine = MO_NONE;
}

void mo_play_drop_tables(mo_play *p)
{
    drop_stack(p, &p->text);
    drop_stack(p, &p->vision);
    mo_play_let_go(p, &p->leaves, 0);
}

/* Images through a convolution whose steps are as wide as its window. */
static mo_value convolve(mo_play *p, uint64_t count, uint64_t hidden, uint32_t width)
{
    mo_tape *t = &p->tape;
    mo_value given = mo_op_cast(t, p->pixels, p->weight_width); /* by the model; then by autocast */
    mo_value bias = mo_op_cast(t, p->patch_bias, width), weight = mo_op_cast(t, p->patches, width);
    mo_value pixels = mo_op_cast(t, given, width);
    t->label = "the patches";
    mo_value x = mo_value_new(t, mo_tape_mul(t, count, hidden), width, MO_ACTIVATIONS);
    if (x == MO_NONE)
        return MO_NONE;
    t->flops += 2.0 * (double)count * (double)mo_elements(t, weight);
    mo_tape_record(t, &(mo_record){.label = "the patches",
                                   .out[0] = x,
                                   .in = {weight, bias},
                                   .grad = {mo_bytes(t, weight), mo_bytes(t, bias)},
                                   .saved = {pixels, weight}});
    if (width != mo_width(t, p->patches) && mo_needs(t, p->patches))
        mo_tape_cache(t, weight);
    if (p->shards != NULL && p->settings->run.gather_dtype != 0) /* the root has cast its inputs */
        mo_play_hold(p, &p->inputs, mo_value_view(t, given, mo_elements(t, given)));
    if (p->settings->model.family == MEMOPT_PLAN_VIT)
        mo_play_hold(p, &p->frames, given); /* the model's frame has cast them */
    else
        mo_drop(t, given);
    mo_drop(t, pixels);
    mo_drop(t, weight);
    mo_drop(t, bias);
    return x;
}

/* Layers that run again need an input with a gradient: frozen embeddings, of words and of images,
 * are made a leaf, as `enable_input_require_grads` does it, which the graph holds to the end of
 * backward. `gradient_checkpointing_enable` calls it, adapters or not. */
static int inputs_learn(const mo_play *p)
{
    return p->settings->run.checkpointing != MEMOPT_PLAN_CHECKPOINT_NONE;
}

static void input_learns(mo_play *p, mo_value x)
{
    mo_tape *t = &p->tape;
    if (!inputs_learn(p) || mo_needs(t, x) || t->status != MEMOPT_OK)
        return;
    mo_value_input_learns(t, x);
    mo_play_hold(p, &p->leaves, mo_value_view(t, x, mo_elements(t, x)));
}

/* Patches of images, a class token in front, positions. */
static mo_value patches(mo_play *p, mo_stack *s, mo_value positions, double dropout)
{
    mo_tape *t = &p->tape;
    uint32_t width = p->compute ? p->compute : p->weight_width;
    mo_value x = convolve(p, s->rows * (s->sequence - 1), s->hidden, width);
    input_learns(p, x);
    t->label = "the class token";
    mo_value joined = mo_value_new(t, mo_tape_mul(t, s->rows * s->sequence, s->hidden),
                                   p->weight_width, MO_ACTIVATIONS);
    if (joined == MO_NONE)
        return MO_NONE;
    mo_tape_record(t, &(mo_record){.label = "the class token",
                                   .out[0] = joined,
                                   .in = {x, p->class_token},
                                   .grad = {width == p->weight_width ? MO_ALIAS : mo_bytes(t, x),
                                            s->rows == 1 ? mo_bytes(t, joined)
                                                         : mo_bytes(t, p->class_token)}});
    mo_drop(t, x);
    mo_value sum = mo_op_add(t, joined, positions);
    mo_drop(t, joined);
    return turn(t, sum, mo_op_dropout(t, sum, dropout));
}

/* What was recorded since is given up: what it holds stays held by the model's code. */
static void hold_recorded(mo_play *p, const mo_mark *mark)
{
    mo_tape *t = &p->tape;
    for (uint64_t i = mark->nodes; i < t->node_count && t->status == MEMOPT_OK; i++) {
        const mo_node *n = &t->nodes[i];
        for (uint8_t k = 0; k < n->saved_count; k++) {
            const mo_saved *saved = &t->saved[n->saved + k];
            mo_value v = saved->host ? MO_NONE : mo_value_new(t, 0, 1, MO_ACTIVATIONS);
            if (v == MO_NONE)
                continue;
            mo_storage_drop(t, t->values[v].storage);
            mo_storage_hold(t, saved->storage);
            t->values[v].storage = saved->storage;
            mo_play_hold(p, &p->frames, v);
        }
        const uint32_t none[MO_RECORD_SAVED] = {0};
        mo_node_drop_saved(t, n, none);
    }
    mo_tape_rewind(t, mark);
}

/* Layers after the one whose output is taken: they run, and what they keep for backward goes when
 * the model's code returns, like their output. */
static void run_skipped(mo_play *p, mo_value x)
{
    mo_tape *t = &p->tape;
    mo_stack *s = &p->vision;
    mo_mark mark = mo_tape_mark(t);
    x = mo_value_view(t, x, mo_elements(t, x));
    for (uint64_t i = s->layer_count - s->skipped; i < s->layer_count; i++) {
        mo_layer *l = &s->layers[i];
        if (t->status != MEMOPT_OK)
            break;
        t->layer = l->number;
        mo_shard_forward(p, l->number);
        x = turn(t, x, mo_tape_region_forward(t, mo_block_run, l, &x, 1, mo_block_again(p, i)));
        mo_shard_forward_end(p, l->number);
        p->info[l->number] = (mo_layer_info){
            .output = mo_bytes(t, x), .after = t->total, .kind = MEMOPT_PLAN_LAYER_VISION};
    }
    if (x != MO_NONE)
        t->values[x].node = MO_NONE;
    hold_recorded(p, &mark);
    mo_play_hold(p, &p->frames, x);
}

/* CLIP's tower over all images, and the projector, a small MLP, to the width of the text. */
static mo_value tower(mo_play *p)
{
    mo_tape *t = &p->tape;
    const memopt_plan_model *m = &p->settings->model;
    uint8_t recording = t->recording;
    if (m->vision_mode == MEMOPT_PLAN_TOWER_FROZEN && !inputs_learn(p))
        t->recording = 0;
    mo_value x = patches(p, &p->vision, p->vision_positions, 0);
    if (t->status == MEMOPT_OK)
        x = turn(t, x, mo_op_norm(t, &p->vision_norm, x, p->compute));
    x = mo_play_stack(p, &p->vision, x);
    run_skipped(p, x);
    t->layer = 0;
    t->recording = recording;
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_play_hold(p, &p->frames, mo_value_view(t, x, mo_elements(t, x)));
    uint64_t rows = mo_tape_mul(t, p->vision.rows, m->vision_tokens);
    x = turn(t, x, mo_op_resize(t, x, mo_tape_mul(t, rows, m->vision_hidden), "image tokens"));
    x = turn(t, x, mo_op_linear(t, &p->vision_projection, x, p->compute, 0));
    x = turn(t, x, mo_op_activation(t, x, MEMOPT_PLAN_ACTIVATION_GELU));
    return turn(t, x, mo_op_linear(t, &p->vision_projection_out, x, p->compute, 0));
}

/* Image tokens take the places that the text keeps for them. Llava's outputs hold them as well. */
static mo_value with_images(mo_play *p, mo_value text)
{
    mo_tape *t = &p->tape;
    mo_value images = tower(p);
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    mo_value joined = mo_op_copy_both(t, images), places;
    mo_play_hold(p, &p->frames, images);
    if (t->status == MEMOPT_OK)
        joined = turn(t, joined, mo_op_cast(t, joined, mo_width(t, text)));
    t->label = "image tokens in the text";
    places = mo_value_new(t, mo_tape_mul(t, p->text.rows, p->text.sequence), 1, MO_ACTIVATIONS);
    mo_value x = mo_value_new(t, mo_elements(t, text), mo_width(t, text), MO_ACTIVATIONS);
    if (x == MO_NONE)
        return MO_NONE;
    mo_tape_record(t, &(mo_record){.label = t->label,
                                   .out[0] = x,
                                   .in = {text, joined},
                                   .grad = {mo_bytes(t, text), mo_bytes(t, joined)},
                                   .saved[0] = places});
    mo_drop(t, places);
    mo_drop(t, text);
    mo_play_returns(p, joined);
    return x;
}

/* Token embeddings plus those of positions and types. What the model's frame holds is kept. */
static mo_value tokens(mo_play *p)
{
    mo_tape *t = &p->tape;
    mo_stack *s = &p->text;
    const memopt_plan_model *m = &p->settings->model;
    uint64_t count = mo_tape_mul(t, s->rows, s->sequence);
    t->label = "token numbers";
    /* Positions and what is made on the way to them: 8 bytes each, a handful of tensors. */
    uint64_t per_token = m->family == MEMOPT_PLAN_OPT        ? 3
                         : m->kin == MEMOPT_PLAN_KIN_ROBERTA ? 2
                                                             : 0;
    mo_value small =
        mo_value_new(t, mo_tape_mul(t, per_token, count) + 4 * s->sequence, 8, MO_ACTIVATIONS);
    s->numbers = small;
    mo_value x = mo_op_embedding(t, p->embedding, p->ids, mo_tape_mul(t, count, m->embedding));
    input_learns(p, x);
    if (p->projection_in != MO_NONE) {
        mo_linear l = MO_NO_LINEAR;
        l.weight = p->projection_in;
        l.in = m->embedding;
        l.out = m->hidden;
        x = turn(t, x, mo_op_linear(t, &l, x, p->compute, 0));
    }
    if (p->vision.layer_count > 0)
        x = with_images(p, x);
    if (p->types != MO_NONE && t->status == MEMOPT_OK) {
        mo_value types = mo_op_embedding(t, p->types, small, mo_elements(t, x));
        mo_value sum = mo_op_add(t, x, types);
        mo_play_hold(p, &p->frames, types);
        mo_play_hold(p, &p->frames, x);
        x = sum;
    }
    if (p->positions != MO_NONE && t->status == MEMOPT_OK) {
        uint64_t n = m->family == MEMOPT_PLAN_OPT ? mo_elements(t, x) : s->sequence * m->hidden;
        mo_value positions = mo_op_embedding(t, p->positions, small, n);
        mo_value sum = mo_op_add(t, x, positions);
        mo_play_hold(p, &p->frames, positions);
        if (m->family == MEMOPT_PLAN_BERT)
            mo_drop(t, x);
        else
            mo_play_hold(p, &p->frames, x);
        x = sum;
    }
    return x;
}

/* The model's frame holds the embeddings, and the layers take them: x is returned. */
static mo_value held_by_frame(mo_play *p, mo_value x)
{
    mo_play_hold(p, &p->frames, mo_value_view(&p->tape, x, mo_elements(&p->tape, x)));
    return x;
}

mo_value mo_play_stem(mo_play *p)
{
    mo_tape *t = &p->tape;
    const memopt_plan_model *m = &p->settings->model;
    uint64_t mark = p->frames.count;
    t->layer = 0;
    if (m->family == MEMOPT_PLAN_VIT) {
        make_mask(p, &p->text);
        return held_by_frame(p, patches(p, &p->text, p->positions, m->embedding_dropout));
    }
    mo_value x = tokens(p);
    if (p->text.rotary) { /* the code holds its layers' input while they run */
        mo_play_hold(p, &p->frames, mo_value_view(t, x, mo_elements(t, x)));
        rotary_tables(p);
    }
    make_mask(p, &p->text);
    if (p->embedding_norm.weight != MO_NONE && t->status == MEMOPT_OK)
        x = turn(t, x, mo_op_norm(t, &p->embedding_norm, x, p->compute));
    x = turn(t, x, mo_op_dropout(t, x, m->embedding_dropout));
    if (m->family == MEMOPT_PLAN_BERT) /* its embeddings are a module of their own */
        mo_play_let_go(p, &p->frames, mark);
    if (m->family == MEMOPT_PLAN_BERT || p->text.rotary)
        x = held_by_frame(p, x);
    return x;
}
