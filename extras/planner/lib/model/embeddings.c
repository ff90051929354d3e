/*
 * What is before the layers: embeddings, positions, token types, patches, masks, rotary tables.
 */
#include "model/play.h"

/* Rotary tables in fp32, then in the type of the weights. */
static void rotary_tables(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_stack *s = &p->text;
    uint64_t n = mo_plan_tape_mul(t, s->sequence, s->head_dim);
    t->label = "rotary positions";
    mo_plan_tape_flash(t, mo_plan_tape_mul(t, n, 4 * 4), MO_PLAN_ACTIVATIONS);
    s->cosine = mo_plan_value_new(t, n, p->weight_width, MO_PLAN_ACTIVATIONS);
    s->sine = mo_plan_value_new(t, n, p->weight_width, MO_PLAN_ACTIVATIONS);
}

/* Whether a mask over the scores is made, and how many sequences it is made for: without padding
 * one serves all, and is seen by each. */
static void make_mask(mo_plan_play *p, mo_plan_stack *s)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_run *r = &p->settings->run;
    int padded = r->attention_mask == MO_PLAN_YES && s == &p->text;
    int window = p->settings->model.sliding_window > 0 && s->causal &&
                 s->sequence >= p->settings->model.sliding_window;
    int is_eager = s->attention == MO_PLAN_ATTENTION_EAGER;
    uint64_t square = mo_plan_tape_mul(t, s->sequence, s->sequence);
    if (s->attention == MO_PLAN_ATTENTION_FLASH || !(padded || (s->causal && (is_eager || window))))
        return;
    t->label = "the mask";
    mo_plan_value yes = mo_plan_value_new(t, mo_plan_tape_mul(t, padded ? s->rows : 1, square), 1,
                                          MO_PLAN_ACTIVATIONS);
    if (is_eager) { /* of the embeddings' type */
        int wide = p->compute && t->gpu && s->family->wide_mask;
        s->mask = mo_plan_value_new(t, mo_plan_tape_mul(t, s->rows, square),
                                    wide ? 4 : p->weight_width, MO_PLAN_ACTIVATIONS);
        mo_plan_drop(t, yes);
    } else {
        s->mask = mo_plan_value_view(t, yes, mo_plan_tape_mul(t, s->rows, square));
        mo_plan_drop(t, yes);
    }
}

static void drop_stack(mo_plan_play *p, mo_plan_stack *s)
{
    MO_PLAN_DROP(&p->tape, s->numbers, s->cosine, s->sine, s->mask);
}

void mo_plan_play_drop_mask(mo_plan_play *p)
{
    mo_plan_stack *s = &p->text;
    MO_PLAN_DROP(&p->tape, s->mask, s->cosine, s->sine);
    s->mask = s->cosine = s->sine = MO_PLAN_NONE;
}

void mo_plan_play_drop_tables(mo_plan_play *p)
{
    drop_stack(p, &p->text);
    drop_stack(p, &p->vision);
    mo_plan_play_release(p, &p->leaves, 0);
}

/* Images through a convolution whose steps are as wide as its window. */
static mo_plan_value convolve(mo_plan_play *p, uint64_t count, uint64_t hidden, uint32_t width)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_value given =
        mo_plan_op_cast(t, p->pixels, p->weight_width); /* by the model; then by autocast */
    mo_plan_value bias = mo_plan_op_cast(t, p->patch_bias, width),
                  weight = mo_plan_op_cast(t, p->patches, width);
    mo_plan_value pixels = mo_plan_op_cast(t, given, width);
    t->label = "the patches";
    mo_plan_value x =
        mo_plan_value_new(t, mo_plan_tape_mul(t, count, hidden), width, MO_PLAN_ACTIVATIONS);
    if (x == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    t->flops += 2.0 * (double)count * (double)mo_plan_elements(t, weight);
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = "the patches",
                             .out[0] = x,
                             .in = {weight, bias},
                             .grad = {mo_plan_bytes_of(t, weight), mo_plan_bytes_of(t, bias)},
                             .saved = {pixels, weight}});
    if (width != mo_plan_width(t, p->patches) && mo_plan_needs(t, p->patches))
        mo_plan_tape_cache(t, weight);
    p->engine->inputs(p, given);
    if (p->text.family->images)
        mo_plan_play_hold(p, &p->frames, given); /* the model's frame has cast them */
    else
        mo_plan_drop(t, given);
    MO_PLAN_DROP(t, pixels, weight, bias);
    return x;
}

/* Layers that run again need an input with a gradient: frozen embeddings, of words and of images,
 * are made a leaf, as `enable_input_require_grads` does it, which the graph holds to the end of
 * backward. `gradient_checkpointing_enable` calls it, adapters or not. */
static int inputs_learn(const mo_plan_play *p)
{
    return p->settings->run.checkpointing != MO_PLAN_CHECKPOINT_NONE;
}

static void input_learns(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    if (!inputs_learn(p) || mo_plan_needs(t, x) || t->status != MEMOPT_OK)
        return;
    mo_plan_value_input_learns(t, x);
    mo_plan_play_hold(p, &p->leaves, mo_plan_value_view(t, x, mo_plan_elements(t, x)));
}

/* Patches of images, a class token in front, positions. */
static mo_plan_value patches(mo_plan_play *p, mo_plan_stack *s, mo_plan_value positions,
                             double dropout)
{
    mo_plan_tape *t = &p->tape;
    uint32_t width = p->compute ? p->compute : p->weight_width;
    mo_plan_value x = convolve(p, s->rows * (s->sequence - 1), s->hidden, width);
    input_learns(p, x);
    t->label = "the class token";
    mo_plan_value joined =
        mo_plan_value_new(t, mo_plan_tape_mul(t, s->rows * s->sequence, s->hidden), p->weight_width,
                          MO_PLAN_ACTIVATIONS);
    mo_plan_tape_record(
        t, &(mo_plan_record){
               .label = "the class token",
               .out[0] = joined,
               .in = {x, p->class_token},
               .grad = {width == p->weight_width ? MO_PLAN_ALIAS : mo_plan_bytes_of(t, x),
                        s->rows == 1 ? mo_plan_bytes_of(t, joined)
                                     : mo_plan_bytes_of(t, p->class_token)}});
    mo_plan_drop(t, x);
    mo_plan_value sum = mo_plan_op_add(t, joined, positions);
    mo_plan_drop(t, joined);
    return mo_plan_next(t, sum, mo_plan_op_dropout(t, sum, dropout));
}

/* What was recorded since is given up: what it holds stays held by the model's code. */
static void hold_recorded(mo_plan_play *p, const mo_plan_mark *mark)
{
    mo_plan_tape *t = &p->tape;
    for (uint64_t i = mark->nodes; i < t->node_count && t->status == MEMOPT_OK; i++) {
        const mo_plan_node *n = &t->nodes[i];
        for (uint8_t k = 0; k < n->saved_count; k++) {
            const mo_plan_saved *saved = &t->saved[n->saved + k];
            mo_plan_value v =
                saved->host ? MO_PLAN_NONE : mo_plan_value_new(t, 0, 1, MO_PLAN_ACTIVATIONS);
            if (v == MO_PLAN_NONE)
                continue;
            mo_plan_storage_drop(t, t->values[v].storage);
            mo_plan_storage_hold(t, saved->storage);
            t->values[v].storage = saved->storage;
            mo_plan_play_hold(p, &p->frames, v);
        }
        const uint32_t none[MO_PLAN_RECORD_SAVED] = {0};
        mo_plan_node_drop_saved(t, n, none);
    }
    mo_plan_tape_rewind(t, mark);
}

/* Layers after the one whose output is taken: they run, and what they keep for backward goes when
 * the model's code returns, like their output. */
static void run_skipped(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_stack *s = &p->vision;
    mo_plan_mark mark = mo_plan_tape_mark(t);
    x = mo_plan_value_view(t, x, mo_plan_elements(t, x));
    for (uint64_t i = s->layer_count - s->skipped; i < s->layer_count; i++) {
        mo_plan_layer *l = &s->layers[i];
        if (t->status != MEMOPT_OK)
            break;
        t->layer = l->number;
        p->engine->before_forward(p, l->number);
        x = mo_plan_next(t, x,
                         mo_plan_tape_region_forward(t, mo_plan_run_layer, l, &x, 1,
                                                     mo_plan_layer_runs_again(p, i)));
        p->engine->after_forward(p, l->number);
        p->info[l->number] =
            (mo_plan_layer_info){.output = mo_plan_bytes_of(t, x), .kind = MO_PLAN_LAYER_VISION};
    }
    if (x != MO_PLAN_NONE)
        t->values[x].node = MO_PLAN_NONE;
    hold_recorded(p, &mark);
    mo_plan_play_hold(p, &p->frames, x);
}

/* CLIP's tower over all images, and the projector, a small MLP, to the width of the text. */
static mo_plan_value tower(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_model *m = &p->settings->model;
    uint8_t recording = t->recording;
    if (m->vision_mode == MO_PLAN_TOWER_FROZEN && !inputs_learn(p))
        t->recording = 0;
    mo_plan_value x = patches(p, &p->vision, p->vision_positions, 0);
    if (t->status == MEMOPT_OK)
        x = mo_plan_next(t, x, mo_plan_op_norm(t, &p->vision_norm, x));
    x = mo_plan_play_stack(p, &p->vision, x);
    run_skipped(p, x);
    t->layer = 0;
    t->recording = recording;
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    mo_plan_play_hold(p, &p->frames, mo_plan_value_view(t, x, mo_plan_elements(t, x)));
    uint64_t rows = mo_plan_tape_mul(t, p->vision.rows, m->vision_tokens);
    x = mo_plan_next(
        t, x, mo_plan_op_resize(t, x, mo_plan_tape_mul(t, rows, m->vision_hidden), "image tokens"));
    x = mo_plan_next(t, x, mo_plan_op_linear(t, &p->vision_projection, x));
    x = mo_plan_next(t, x, mo_plan_op_activation(t, x, MO_PLAN_ACTIVATION_GELU));
    return mo_plan_next(t, x, mo_plan_op_linear(t, &p->vision_projection_out, x));
}

/* Image tokens take the places that the text keeps for them. Llava's outputs hold them as well. */
static mo_plan_value with_images(mo_plan_play *p, mo_plan_value text)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_value images = tower(p);
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    mo_plan_value joined = mo_plan_op_copy_both(t, images), places;
    mo_plan_play_hold(p, &p->frames, images);
    if (t->status == MEMOPT_OK)
        joined = mo_plan_next(t, joined, mo_plan_op_cast(t, joined, mo_plan_width(t, text)));
    t->label = "image tokens in the text";
    places = mo_plan_value_new(t, mo_plan_tape_mul(t, p->text.rows, p->text.sequence), 1,
                               MO_PLAN_ACTIVATIONS);
    mo_plan_value x = mo_plan_value_new(t, mo_plan_elements(t, text), mo_plan_width(t, text),
                                        MO_PLAN_ACTIVATIONS);
    if (x == MO_PLAN_NONE)
        return MO_PLAN_NONE;
    mo_plan_tape_record(
        t, &(mo_plan_record){.label = t->label,
                             .out[0] = x,
                             .in = {text, joined},
                             .grad = {mo_plan_bytes_of(t, text), mo_plan_bytes_of(t, joined)},
                             .saved[0] = places});
    MO_PLAN_DROP(t, places, text);
    mo_plan_play_returns(p, joined);
    return x;
}

/* Token embeddings plus those of positions and types. What the model's frame holds is kept. */
static mo_plan_value tokens(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_stack *s = &p->text;
    const mo_plan_model *m = &p->settings->model;
    uint64_t count = mo_plan_tape_mul(t, s->rows, s->sequence);
    t->label = "token numbers";
    /* Positions and what is made on the way to them: 8 bytes each, a handful of tensors. */
    uint64_t per_token =
        p->text.family->position_numbers + (p->text.variant->numbered_positions ? 2u : 0u);
    mo_plan_value small = mo_plan_value_new(
        t, mo_plan_tape_mul(t, per_token, count) + 4 * s->sequence, 8, MO_PLAN_ACTIVATIONS);
    s->numbers = small;
    mo_plan_value x =
        mo_plan_op_embedding(t, p->embedding, p->ids, mo_plan_tape_mul(t, count, m->embedding));
    input_learns(p, x);
    if (p->projection_in != MO_PLAN_NONE) {
        mo_plan_linear l = {0};
        l.weight = p->projection_in;
        l.in = m->embedding;
        l.out = m->hidden;
        x = mo_plan_next(t, x, mo_plan_op_linear(t, &l, x));
    }
    if (p->vision.layer_count > 0)
        x = with_images(p, x);
    if (p->types != MO_PLAN_NONE && t->status == MEMOPT_OK) {
        mo_plan_value types = mo_plan_op_embedding(t, p->types, small, mo_plan_elements(t, x));
        mo_plan_value sum = mo_plan_op_add(t, x, types);
        mo_plan_play_hold(p, &p->frames, types);
        mo_plan_play_hold(p, &p->frames, x);
        x = sum;
    }
    if (p->positions != MO_PLAN_NONE && t->status == MEMOPT_OK) {
        uint64_t n =
            p->text.family->position_each ? mo_plan_elements(t, x) : s->sequence * m->hidden;
        mo_plan_value positions = mo_plan_op_embedding(t, p->positions, small, n);
        mo_plan_value sum = mo_plan_op_add(t, x, positions);
        mo_plan_play_hold(p, &p->frames, positions);
        if (p->text.family->norms_embeddings)
            mo_plan_drop(t, x);
        else
            mo_plan_play_hold(p, &p->frames, x);
        x = sum;
    }
    return x;
}

/* The model's frame holds the embeddings, and the layers take them: x is returned. */
static mo_plan_value held_by_frame(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_play_hold(p, &p->frames,
                      mo_plan_value_view(&p->tape, x, mo_plan_elements(&p->tape, x)));
    return x;
}

mo_plan_value mo_plan_play_embeddings(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    const mo_plan_model *m = &p->settings->model;
    uint64_t mark = p->frames.count;
    t->layer = 0;
    if (p->text.family->images) {
        make_mask(p, &p->text);
        return held_by_frame(p, patches(p, &p->text, p->positions, m->embedding_dropout));
    }
    mo_plan_value x = tokens(p);
    if (p->text.rotary) { /* the code holds its layers' input while they run */
        mo_plan_play_hold(p, &p->frames, mo_plan_value_view(t, x, mo_plan_elements(t, x)));
        rotary_tables(p);
    }
    make_mask(p, &p->text);
    if (p->embedding_norm.weight != MO_PLAN_NONE && t->status == MEMOPT_OK)
        x = mo_plan_next(t, x, mo_plan_op_norm(t, &p->embedding_norm, x));
    x = mo_plan_next(t, x, mo_plan_op_dropout(t, x, m->embedding_dropout));
    if (p->text.family->norms_embeddings) /* its embeddings are a module of their own */
        mo_plan_play_release(p, &p->frames, mark);
    if (p->text.family->norms_embeddings || p->text.rotary)
        x = held_by_frame(p, x);
    return x;
}
