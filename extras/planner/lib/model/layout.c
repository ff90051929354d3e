/*
 * Lays a model's weights out on the tape: embeddings, layers, head, in the order of its code.
 */
#include "model/play.h"

#include <string.h>

static int yes(uint32_t choice)
{
    return choice == MO_PLAN_YES;
}

static enum mo_plan_norm_kind norm_of(const mo_plan_stack *s)
{
    return s->rotary ? MO_PLAN_NORM_RMS : MO_PLAN_NORM_LAYER;
}

static void build_mlp(mo_plan_play *p, mo_plan_stack *s, mo_plan_layer *l, uint32_t adapted)
{
    const mo_plan_model *m = &p->settings->model;
    if (s->experts > 0) {
        uint32_t to = m->lora_targets; /* the weight of two projections has the ranks of both */
        uint64_t up = (to & MO_PLAN_TARGET_GATE ? 1u : 0u) + (to & MO_PLAN_TARGET_UP ? 1u : 0u);
        uint64_t down = to & MO_PLAN_TARGET_DOWN ? 1 : 0;
        l->router = mo_plan_play_linear(p, s->hidden, s->experts, 0,
                                        MO_PLAN_NO_TARGET | MO_PLAN_TARGET_ALL_LINEAR);
        l->experts_up =
            mo_plan_play_experts(p, s->experts, s->hidden, 2 * s->ffn, up * m->lora_rank);
        l->experts_down =
            mo_plan_play_experts(p, s->experts, s->ffn, s->hidden, down * m->lora_rank);
        return;
    }
    int mlp_bias = s != &p->text || yes(m->mlp_bias);
    if (s->gated)
        l->gate =
            mo_plan_play_linear(p, s->hidden, s->ffn, mlp_bias, adapted & MO_PLAN_TARGET_GATE);
    l->up = mo_plan_play_linear(p, s->hidden, s->ffn, mlp_bias, adapted & MO_PLAN_TARGET_UP);
    l->down = mo_plan_play_linear(p, s->ffn, s->hidden, mlp_bias, adapted & MO_PLAN_TARGET_DOWN);
}

static void build_attention(mo_plan_play *p, mo_plan_stack *s, mo_plan_layer *l, uint32_t adapted)
{
    const mo_plan_model *m = &p->settings->model;
    uint64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int text = s == &p->text;
    int bias = !text || yes(m->attention_bias), output_bias = !text || yes(m->output_bias);
    if (s->fused_qkv) {
        l->query = mo_plan_play_linear(
            p, s->hidden, q + 2 * kv, bias,
            adapted & (MO_PLAN_TARGET_QUERY | MO_PLAN_TARGET_KEY | MO_PLAN_TARGET_VALUE));
    } else {
        l->query = mo_plan_play_linear(p, s->hidden, q, bias, adapted & MO_PLAN_TARGET_QUERY);
        l->key = mo_plan_play_linear(p, s->hidden, kv, bias, adapted & MO_PLAN_TARGET_KEY);
        l->value = mo_plan_play_linear(p, s->hidden, kv, bias, adapted & MO_PLAN_TARGET_VALUE);
    }
    if (yes(m->qk_norm) && text) {
        l->query_norm = mo_plan_play_norm(p, s->head_dim, MO_PLAN_NORM_RMS);
        l->key_norm = mo_plan_play_norm(p, s->head_dim, MO_PLAN_NORM_RMS);
    }
    l->output = mo_plan_play_linear(p, q, s->hidden, output_bias, adapted & MO_PLAN_TARGET_OUTPUT);
}

/* The norms that are declared at a place. */
static void build_norms(mo_plan_play *p, mo_plan_stack *s, mo_plan_layer *l, uint32_t place)
{
    if (s->family->norm1 == place)
        l->norm1 = mo_plan_play_norm(p, s->hidden, norm_of(s));
    if (s->family->norm2 == place)
        l->norm2 = mo_plan_play_norm(p, s->hidden, norm_of(s));
}

/* A layer's weights, in the order in which its code declares them: the optimizer walks them so. */
static void build_layer(mo_plan_play *p, mo_plan_stack *s, mo_plan_layer *l)
{
    const mo_plan_model *m = &p->settings->model;
    int text = s == &p->text;
    /* Names of queries, keys and values are those of the text in CLIP's tower too, others differ.
     */
    uint32_t tower = m->vision_mode == MO_PLAN_TOWER_FROZEN ? 0
                     : m->lora_targets & MO_PLAN_TARGET_ALL_LINEAR
                         ? UINT32_MAX
                         : MO_PLAN_TARGET_QUERY | MO_PLAN_TARGET_KEY | MO_PLAN_TARGET_VALUE;
    uint32_t adapted = text ? UINT32_MAX : tower;
    l->stack = s;
    l->number = p->tape.layer;
    build_norms(p, s, l, MO_PLAN_BEFORE_ATTENTION);
    build_attention(p, s, l, adapted);
    build_norms(p, s, l, MO_PLAN_AFTER_ATTENTION);
    build_mlp(p, s, l, adapted);
    build_norms(p, s, l, MO_PLAN_AFTER_MLP);
}

static void build_stack(mo_plan_play *p, mo_plan_stack *s, uint64_t layers)
{
    s->play = p;
    s->layers = mo_calloc(layers, sizeof *s->layers);
    if (s->layers == NULL) {
        mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    s->layer_count = layers;
    s->size = mo_plan_tape_mul(&p->tape, mo_plan_tape_mul(&p->tape, s->rows, s->sequence),
                               mo_plan_tape_mul(&p->tape, s->heads, s->head_dim));
    s->scores = mo_plan_tape_mul(&p->tape, mo_plan_tape_mul(&p->tape, s->rows, s->heads),
                                 mo_plan_tape_mul(&p->tape, s->sequence, s->sequence));
    for (uint64_t i = 0; i < layers && p->tape.status == MEMOPT_OK; i++, p->tape.layer++) {
        p->unused = i + s->skipped >= layers; /* no gradient reaches it */
        build_layer(p, s, &s->layers[i]);
    }
    p->unused = 0;
}

/* The shape of the layers, from the model's. */
static void text_shape(mo_plan_play *p)
{
    const mo_plan_settings *s = p->settings;
    const mo_plan_model *m = &s->model;
    int again = s->run.checkpointing == MO_PLAN_CHECKPOINT_FULL ||
                s->run.checkpointing == MO_PLAN_CHECKPOINT_EVERY;
    const mo_plan_family *f = mo_plan_family_of(m);
    const mo_plan_variant *v = mo_plan_variant_of(m);
    p->text = (mo_plan_stack){.hidden = m->hidden,
                              .heads = m->heads,
                              .kv_heads = m->kv_heads,
                              .head_dim = m->head_dim,
                              .ffn = m->ffn,
                              .experts = m->experts,
                              .experts_per_token = m->experts_per_token,
                              .rows = s->rows,
                              .sequence = s->tokens,
                              .family = f,
                              .activation = m->activation,
                              .gated = yes(m->gated),
                              .post_norm = yes(m->post_norm),
                              .causal = f->decoder,
                              .rotary = f->rotary,
                              .variant = v,
                              .fused_qkv = f->fused_qkv,
                              .cache = f->decoder && yes(s->run.use_cache) && !again,
                              .attention = s->run.attention,
                              .attention_dropout = m->attention_dropout,
                              .hidden_dropout = f->rotary ? 0 : m->hidden_dropout,
                              .activation_dropout = m->activation_dropout};
}

/* CLIP's tower in front of the text, and Llava's projector. */
static void build_tower(mo_plan_play *p)
{
    const mo_plan_settings *s = p->settings;
    const mo_plan_model *m = &s->model;
    int frozen = p->frozen;
    if (m->vision_layers == 0)
        return;
    p->vision = (mo_plan_stack){.hidden = m->vision_hidden,
                                .heads = m->vision_heads,
                                .kv_heads = m->vision_heads,
                                .head_dim = m->vision_hidden / m->vision_heads,
                                .ffn = m->vision_ffn,
                                .skipped = m->vision_skipped,
                                .rows = s->images,
                                .sequence = s->patches + 1,
                                .family = mo_plan_family_at(MO_PLAN_VIT),
                                .variant = mo_plan_variant_at(MO_PLAN_VARIANT_NONE),
                                .activation = m->vision_activation,
                                .attention = s->run.attention};
    p->frozen |= m->vision_mode == MO_PLAN_TOWER_FROZEN;
    p->class_token = mo_plan_play_weight(p, m->vision_hidden, 0);
    p->vision_positions = mo_plan_play_weight(p, s->patches + 1, m->vision_hidden);
    p->patches =
        mo_plan_play_weight(p, m->vision_hidden, m->channels * m->patch_size * m->patch_size);
    p->vision_norm = mo_plan_play_norm(p, m->vision_hidden, MO_PLAN_NORM_LAYER);
    mo_plan_play_buffer(p, 8 * (s->patches + 1)); /* numbers of positions */
    p->tape.layer = 1;
    build_stack(p, &p->vision, m->vision_layers);
    p->tape.layer = 0;
    p->unused = 1;
    (void)mo_plan_play_norm(p, m->vision_hidden,
                            MO_PLAN_NORM_LAYER); /* of the pooled token, which Llava leaves alone */
    p->unused = 0;
    p->frozen = frozen && m->vision_mode != MO_PLAN_TOWER_FROZEN;
    p->vision_projection =
        mo_plan_play_linear(p, m->vision_hidden, m->hidden, 1, MO_PLAN_TARGET_ALL_LINEAR);
    p->vision_projection_out =
        mo_plan_play_linear(p, m->hidden, m->hidden, 1, MO_PLAN_TARGET_ALL_LINEAR);
    p->frozen = frozen;
}

/* Of one image the gradient of the class token is a view of that of all tokens, and keeps it. */
static uint64_t class_gradient(const mo_plan_play *p)
{
    const mo_plan_settings *s = p->settings;
    return s->tokens * s->model.hidden * memopt_dtype_size(s->run.gradient_dtype);
}

static void build_embeddings(mo_plan_play *p)
{
    const mo_plan_model *m = &p->settings->model;
    uint64_t patch = m->channels * m->patch_size * m->patch_size;
    p->tape.layer = 0;
    if (p->text.family->images) {
        p->class_token = mo_plan_play_weight_of(p, m->hidden, 0, 1);
        if (p->settings->rows == 1 && p->tape.leaf_count > 0)
            p->tape.leaves[p->tape.leaf_count - 1].bytes = class_gradient(p);
        p->positions = mo_plan_play_weight_of(p, p->settings->tokens, m->hidden, 1);
        p->patches = mo_plan_play_weight(p, m->hidden, patch);
        p->patch_bias = mo_plan_play_weight(p, m->hidden, 0);
        return;
    }
    p->embedding = mo_plan_play_weight(p, m->vocabulary, m->embedding);
    if (m->embedding != m->hidden)
        p->projection_in = mo_plan_play_weight(p, m->hidden, m->embedding);
    if (m->positions > 0)
        p->positions =
            mo_plan_play_weight(p, m->positions + p->text.family->position_rows, m->hidden);
    if (p->text.family->norms_embeddings) {
        p->types = mo_plan_play_weight(p, m->token_types, m->hidden);
        p->embedding_norm = mo_plan_play_norm(p, m->hidden, MO_PLAN_NORM_LAYER);
        mo_plan_play_buffer(p, m->positions * 16);
    }
    if (p->text.rotary)
        mo_plan_play_buffer(p, m->head_dim / 2 * 4 * 2);
}

static void build_vocabulary_head(mo_plan_play *p)
{
    const mo_plan_model *m = &p->settings->model;
    if (m->head == MO_PLAN_HEAD_MASKED_LM) {
        p->transform = mo_plan_play_linear(p, m->hidden, m->hidden, 1, MO_PLAN_TARGET_ALL_LINEAR);
        p->transform_norm = mo_plan_play_norm(p, m->hidden, MO_PLAN_NORM_LAYER);
    }
    if (yes(m->tied)) {
        p->head.in = m->embedding;
        p->head.out = m->vocabulary;
        p->head.weight = p->embedding;
    } else {
        p->head = mo_plan_play_linear(p, m->embedding, m->vocabulary, 0, MO_PLAN_TARGET_HEAD);
    }
    if (m->head == MO_PLAN_HEAD_MASKED_LM)
        p->head.bias = mo_plan_play_weight(p, m->vocabulary, 0);
}

static void build_head(mo_plan_play *p)
{
    const mo_plan_model *m = &p->settings->model;
    int frozen = p->frozen;
    if (!p->text.post_norm)
        p->final_norm = mo_plan_play_norm(p, m->hidden, norm_of(&p->text));
    if (m->embedding != m->hidden)
        p->projection_out = mo_plan_play_weight(p, m->embedding, m->hidden);
    switch (m->head) {
    case MO_PLAN_HEAD_CAUSAL_LM:
    case MO_PLAN_HEAD_MASKED_LM:
        build_vocabulary_head(p);
        break;
    case MO_PLAN_HEAD_CONTRASTIVE:
    case MO_PLAN_HEAD_NONE:
        p->unused = 1; /* what it makes is not in the loss */
        if (yes(m->pooler))
            p->pooler = mo_plan_play_linear(p, m->hidden, m->hidden, 1, MO_PLAN_TARGET_ALL_LINEAR);
        p->unused = 0;
        break;
    default:
        p->frozen = 0; /* a new head learns, with LoRA too */
        if (yes(m->pooler))
            p->pooler = mo_plan_play_linear(p, m->hidden, m->hidden, 1, 0);
        p->head = mo_plan_play_linear(p, m->hidden, m->labels,
                                      p->text.family->encoder || m->head == MO_PLAN_HEAD_TOKEN, 0);
        p->frozen = frozen;
    }
}

/* What the shape lacks to the total that was given: one vector per layer. */
static void build_rest(mo_plan_play *p)
{
    for (uint64_t i = 0; p->settings->extra_per_layer > 0 && i < p->text.layer_count; i++) {
        p->tape.layer = p->text.layers[i].number;
        (void)mo_plan_play_weight(p, p->settings->extra_per_layer, 0);
    }
}

/* Numbers of a few elements that no operation here stands for: counted once, for the step. */
enum { SCALARS = 8192 };

static void build_batch(mo_plan_play *p)
{
    const mo_plan_settings *s = p->settings;
    mo_plan_tape *t = &p->tape;
    uint64_t image =
        mo_plan_tape_mul(t, s->model.channels, s->model.image_size * s->model.image_size);
    t->label = "the batch";
    (void)mo_plan_storage_new(t, SCALARS, MO_PLAN_ACTIVATIONS);
    if (p->text.family->images || s->model.vision_layers > 0)
        p->pixels =
            mo_plan_value_new(t, mo_plan_tape_mul(t, s->images, image),
                              (uint32_t)memopt_dtype_size(s->run.image_dtype), MO_PLAN_BATCH);
    if (p->text.family->images) {
        p->labels = mo_plan_value_new(t, s->rows, 8, MO_PLAN_BATCH);
        return;
    }
    uint64_t tokens = mo_plan_tape_mul(t, s->rows, s->tokens);
    int per_token = s->model.head <= MO_PLAN_HEAD_MASKED_LM || s->model.head == MO_PLAN_HEAD_TOKEN;
    p->ids = mo_plan_value_new(t, tokens, 8, MO_PLAN_BATCH);
    p->labels = mo_plan_value_new(t, per_token ? tokens : s->rows, 8, MO_PLAN_BATCH);
    /* What tokenizers give beside the numbers of tokens: a mask, and BERT's types. */
    if (s->run.attention_mask != MO_PLAN_NO)
        (void)mo_plan_value_new(t, tokens, p->text.family->token_types > 0 ? 16 : 8, MO_PLAN_BATCH);
}

memopt_status mo_plan_play_build(mo_plan_play *p, const mo_plan_settings *s,
                                 const mo_plan_engine *engine)
{
    uint64_t layers = s->model.layers + s->model.vision_layers + 2;
    memset(p, 0, sizeof *p);
    p->settings = s;
    p->engine = engine;
    p->weight_width = (uint32_t)memopt_dtype_size(s->run.weight_dtype);
    p->compute = (uint32_t)memopt_dtype_size(s->run.compute_dtype);
    p->frozen = s->model.lora_rank > 0;
    if (mo_plan_tape_init(&p->tape, (uint32_t)layers) != MEMOPT_OK)
        return p->tape.status;
    p->tape.listing = (uint8_t)s->listing;
    p->info = mo_calloc(layers, sizeof *p->info);
    if (p->info == NULL)
        return mo_plan_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
    if (mo_plan_tape_fail(&p->tape, engine->create(p, layers)) != MEMOPT_OK)
        return p->tape.status;
    p->tape.gpu = (uint8_t)mo_plan_card_is_gpu(&s->card);
    p->tape.compute = p->compute;
    p->tape.adapter_dropout = s->model.lora_dropout;
    p->tape.base_width = (uint32_t)memopt_dtype_size(s->run.base_dtype);
    if (s->run.base_dtype == 0)
        p->tape.base_width = p->compute ? p->compute : p->weight_width;
    text_shape(p);
    build_embeddings(p);
    build_tower(p);
    p->tape.layer = 1 + (uint32_t)s->model.vision_layers;
    build_stack(p, &p->text, s->model.layers);
    build_head(p);
    build_rest(p);
    build_batch(p);
    p->tape.offload = (s->run.offload & MO_PLAN_OFFLOAD_ACTIVATIONS) != 0;
    return engine->check(p);
}

void mo_plan_play_end(mo_plan_play *p)
{
    mo_free(p->text.layers);
    mo_free(p->vision.layers);
    mo_free(p->weights);
    mo_free(p->roots);
    if (p->engine != NULL)
        p->engine->destroy(p);
    mo_free(p->info);
    mo_free(p->frames.values);
    mo_free(p->outputs.values);
    mo_free(p->block.values);
    mo_free(p->layer.values);
    mo_free(p->leaves.values);
    mo_plan_tape_end(&p->tape);
    memset(p, 0, sizeof *p);
}
