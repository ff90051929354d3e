/*
 * Lays a model's weights out on the tape: embeddings, layers, head, in the order of its code.
 */
#include "plan/play.h"

#include <string.h>

static int yes(uint32_t choice)
{
    return choice == MEMOPT_PLAN_YES;
}

static enum mo_norm_kind norm_of(const mo_play *p, const mo_stack *s)
{
    if (!s->rotary)
        return MO_NORM_LAYER;
    return p->settings->model.kin == MEMOPT_PLAN_KIN_GEMMA ? MO_NORM_GEMMA : MO_NORM_RMS;
}

static void build_mlp(mo_play *p, mo_stack *s, mo_layer *l)
{
    const memopt_plan_model *m = &p->settings->model;
    if (s->experts > 0) {
        l->router = mo_play_linear(p, s->hidden, s->experts, 0, 0);
        l->experts_up = mo_play_weight_of(p, mo_tape_mul(&p->tape, s->experts, 2 * s->ffn),
                                          s->hidden, s->experts);
        l->experts_down =
            mo_play_weight_of(p, mo_tape_mul(&p->tape, s->experts, s->hidden), s->ffn, s->experts);
        return;
    }
    int mlp_bias = s != &p->text || yes(m->mlp_bias);
    uint32_t adapted = s == &p->text ? UINT32_MAX : 0;
    if (s->kin == MEMOPT_PLAN_KIN_PHI3) {
        l->gate = mo_play_linear(p, s->hidden, 2 * s->ffn, mlp_bias,
                                 adapted & (MEMOPT_PLAN_TARGET_GATE | MEMOPT_PLAN_TARGET_UP));
    } else {
        if (s->gated)
            l->gate =
                mo_play_linear(p, s->hidden, s->ffn, mlp_bias, adapted & MEMOPT_PLAN_TARGET_GATE);
        l->up = mo_play_linear(p, s->hidden, s->ffn, mlp_bias, adapted & MEMOPT_PLAN_TARGET_UP);
    }
    l->down = mo_play_linear(p, s->ffn, s->hidden, mlp_bias, adapted & MEMOPT_PLAN_TARGET_DOWN);
}

static void build_attention(mo_play *p, mo_stack *s, mo_layer *l, uint32_t adapted)
{
    const memopt_plan_model *m = &p->settings->model;
    uint64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int text = s == &p->text, phi3 = s->kin == MEMOPT_PLAN_KIN_PHI3;
    int bias = !text || yes(m->attention_bias), output_bias = !text || yes(m->output_bias);
    if (phi3)
        l->output =
            mo_play_linear(p, q, s->hidden, output_bias, adapted & MEMOPT_PLAN_TARGET_OUTPUT);
    if (s->fused_qkv) {
        l->query = mo_play_linear(p, s->hidden, q + 2 * kv, bias,
                                  adapted & (MEMOPT_PLAN_TARGET_QUERY | MEMOPT_PLAN_TARGET_KEY |
                                             MEMOPT_PLAN_TARGET_VALUE));
    } else {
        l->query = mo_play_linear(p, s->hidden, q, bias, adapted & MEMOPT_PLAN_TARGET_QUERY);
        l->key = mo_play_linear(p, s->hidden, kv, bias, adapted & MEMOPT_PLAN_TARGET_KEY);
        l->value = mo_play_linear(p, s->hidden, kv, bias, adapted & MEMOPT_PLAN_TARGET_VALUE);
    }
    if (yes(m->qk_norm) && text) {
        l->query_norm = mo_play_norm(p, s->head_dim, MO_NORM_RMS);
        l->key_norm = mo_play_norm(p, s->head_dim, MO_NORM_RMS);
    }
    if (!phi3)
        l->output =
            mo_play_linear(p, q, s->hidden, output_bias, adapted & MEMOPT_PLAN_TARGET_OUTPUT);
}

/* A layer's weights, in the order in which its code declares them: the optimizer walks them so. */
static void build_layer(mo_play *p, mo_stack *s, mo_layer *l)
{
    const memopt_plan_model *m = &p->settings->model;
    const mo_linear none = MO_NO_LINEAR;
    const mo_norm no_norm = {MO_NONE, MO_NONE, MO_NORM_RMS};
    enum mo_norm_kind norm = norm_of(p, s);
    int text = s == &p->text, gpt2 = s->family == MEMOPT_PLAN_GPT2;
    /* Names of queries, keys and values are those of the text in CLIP's tower too, others differ.
     */
    uint32_t tower =
        m->vision_mode == MEMOPT_PLAN_TOWER_FROZEN
            ? 0
            : MEMOPT_PLAN_TARGET_QUERY | MEMOPT_PLAN_TARGET_KEY | MEMOPT_PLAN_TARGET_VALUE;
    uint32_t adapted = text ? UINT32_MAX : tower;
    l->stack = s;
    l->number = p->tape.layer;
    l->query = l->key = l->value = l->output = l->gate = l->up = l->down = l->router = none;
    l->query_norm = l->key_norm = no_norm;
    l->experts_up = l->experts_down = MO_NONE;
    if (gpt2)
        l->norm1 = mo_play_norm(p, s->hidden, norm);
    build_attention(p, s, l, adapted);
    if (!s->rotary && !gpt2)
        l->norm1 = mo_play_norm(p, s->hidden, norm);
    if (gpt2 || s->family == MEMOPT_PLAN_VIT)
        l->norm2 = mo_play_norm(p, s->hidden, norm);
    build_mlp(p, s, l);
    if (s->rotary)
        l->norm1 = mo_play_norm(p, s->hidden, norm);
    if (!gpt2 && s->family != MEMOPT_PLAN_VIT)
        l->norm2 = mo_play_norm(p, s->hidden, norm);
}

static void build_stack(mo_play *p, mo_stack *s, uint64_t layers)
{
    s->play = p;
    s->cosine = s->sine = s->mask = s->numbers = MO_NONE;
    s->layers = mo_calloc(layers, sizeof *s->layers);
    if (s->layers == NULL) {
        mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    s->layer_count = layers;
    s->size = mo_tape_mul(&p->tape, mo_tape_mul(&p->tape, s->rows, s->sequence),
                          mo_tape_mul(&p->tape, s->heads, s->head_dim));
    s->scores = mo_tape_mul(&p->tape, mo_tape_mul(&p->tape, s->rows, s->heads),
                            mo_tape_mul(&p->tape, s->sequence, s->sequence));
    for (uint64_t i = 0; i < layers && p->tape.status == MEMOPT_OK; i++, p->tape.layer++) {
        p->unused = i + s->skipped >= layers; /* no gradient reaches it */
        build_layer(p, s, &s->layers[i]);
    }
    p->unused = 0;
}

/* The shape of the layers, from the model's. */
static void text_shape(mo_play *p)
{
    const mo_settings *s = p->settings;
    const memopt_plan_model *m = &s->model;
    int again = s->run.checkpointing == MEMOPT_PLAN_CHECKPOINT_FULL ||
                s->run.checkpointing == MEMOPT_PLAN_CHECKPOINT_EVERY ||
                s->run.checkpointing == MEMOPT_PLAN_CHECKPOINT_BUDGET;
    int decoder = m->family != MEMOPT_PLAN_BERT && m->family != MEMOPT_PLAN_VIT;
    int llama = m->family == MEMOPT_PLAN_LLAMA || m->family == MEMOPT_PLAN_MIXTRAL;
    p->text =
        (mo_stack){.hidden = m->hidden,
                   .heads = m->heads,
                   .kv_heads = m->kv_heads,
                   .head_dim = m->head_dim,
                   .ffn = m->ffn,
                   .experts = m->experts,
                   .experts_per_token = m->experts_per_token,
                   .rows = s->rows,
                   .sequence = s->tokens,
                   .family = m->family,
                   .activation = m->activation,
                   .gated = yes(m->gated),
                   .post_norm = yes(m->post_norm),
                   .causal = decoder,
                   .rotary = llama,
                   .kin = m->kin,
                   .fused_qkv = m->family == MEMOPT_PLAN_GPT2 || m->kin == MEMOPT_PLAN_KIN_PHI3,
                   .cache = decoder && yes(s->run.use_cache) && !again,
                   .attention = s->run.attention,
                   .attention_dropout = m->attention_dropout,
                   .hidden_dropout = llama ? 0 : m->hidden_dropout,
                   .activation_dropout = m->activation_dropout,
                   .router_jitter = m->router_jitter};
}

/* CLIP's tower in front of the text, and Llava's projector. */
static void build_tower(mo_play *p)
{
    const mo_settings *s = p->settings;
    const memopt_plan_model *m = &s->model;
    int frozen = p->frozen;
    if (m->vision_layers == 0)
        return;
    p->vision = (mo_stack){.hidden = m->vision_hidden,
                           .heads = m->vision_heads,
                           .kv_heads = m->vision_heads,
                           .head_dim = m->vision_hidden / m->vision_heads,
                           .ffn = m->vision_ffn,
                           .skipped = m->vision_skipped,
                           .rows = s->images,
                           .sequence = s->patches + 1,
                           .family = MEMOPT_PLAN_VIT,
                           .activation = m->vision_activation,
                           .attention = s->run.attention};
    p->frozen |= m->vision_mode == MEMOPT_PLAN_TOWER_FROZEN;
    p->class_token = mo_play_weight(p, m->vision_hidden, 0);
    p->vision_positions = mo_play_weight(p, s->patches + 1, m->vision_hidden);
    p->patches = mo_play_weight(p, m->vision_hidden, m->channels * m->patch_size * m->patch_size);
    p->vision_norm = mo_play_norm(p, m->vision_hidden, MO_NORM_LAYER);
    mo_play_buffer(p, 8 * (s->patches + 1)); /* numbers of positions */
    p->tape.layer = 1;
    build_stack(p, &p->vision, m->vision_layers);
    p->tape.layer = 0;
    p->unused = 1;
    (void)mo_play_norm(p, m->vision_hidden,
                       MO_NORM_LAYER); /* of the pooled token, which Llava leaves alone */
    p->unused = 0;
    p->frozen = frozen && m->vision_mode != MEMOPT_PLAN_TOWER_FROZEN;
    p->vision_projection = mo_play_linear(p, m->vision_hidden, m->hidden, 1, 0);
    p->vision_projection_out = mo_play_linear(p, m->hidden, m->hidden, 1, 0);
    p->frozen = frozen;
}

/* Of one image the gradient of the class token is a view of that of all tokens, and keeps it. */
static uint64_t class_gradient(const mo_play *p)
{
    const mo_settings *s = p->settings;
    return s->tokens * s->model.hidden * memopt_dtype_size(s->run.gradient_dtype);
}

static void build_embeddings(mo_play *p)
{
    const memopt_plan_model *m = &p->settings->model;
    uint64_t patch = m->channels * m->patch_size * m->patch_size;
    p->tape.layer = 0;
    if (m->family == MEMOPT_PLAN_VIT) {
        p->class_token = mo_play_weight_of(p, m->hidden, 0, 1);
        if (p->settings->rows == 1 && p->tape.leaf_count > 0)
            p->tape.leaves[p->tape.leaf_count - 1].bytes = class_gradient(p);
        p->positions = mo_play_weight_of(p, p->settings->tokens, m->hidden, 1);
        p->patches = mo_play_weight(p, m->hidden, patch);
        p->patch_bias = mo_play_weight(p, m->hidden, 0);
        return;
    }
    p->embedding = mo_play_weight(p, m->vocabulary, m->embedding);
    if (m->embedding != m->hidden)
        p->projection_in = mo_play_weight(p, m->hidden, m->embedding);
    if (m->positions > 0)
        p->positions =
            mo_play_weight(p, m->positions + (m->family == MEMOPT_PLAN_OPT ? 2 : 0), m->hidden);
    if (m->family == MEMOPT_PLAN_BERT) {
        p->types = mo_play_weight(p, m->token_types, m->hidden);
        p->embedding_norm = mo_play_norm(p, m->hidden, MO_NORM_LAYER);
        mo_play_buffer(p, m->positions * 16);
    }
    if (p->text.rotary)
        mo_play_buffer(p, m->head_dim / 2 * 4 * 2);
}

static void build_vocabulary_head(mo_play *p)
{
    const memopt_plan_model *m = &p->settings->model;
    p->head = (mo_linear)MO_NO_LINEAR;
    if (m->head == MEMOPT_PLAN_HEAD_MASKED_LM) {
        p->transform = mo_play_linear(p, m->hidden, m->hidden, 1, 0);
        p->transform_norm = mo_play_norm(p, m->hidden, MO_NORM_LAYER);
    }
    if (yes(m->tied)) {
        p->head.in = m->embedding;
        p->head.out = m->vocabulary;
        p->head.weight = p->embedding;
    } else {
        p->head = mo_play_linear(p, m->embedding, m->vocabulary, 0, MEMOPT_PLAN_TARGET_HEAD);
    }
    if (m->head == MEMOPT_PLAN_HEAD_MASKED_LM)
        p->head.bias = mo_play_weight(p, m->vocabulary, 0);
}

static void build_head(mo_play *p)
{
    const memopt_plan_model *m = &p->settings->model;
    int frozen = p->frozen;
    if (!p->text.post_norm)
        p->final_norm = mo_play_norm(p, m->hidden, norm_of(p, &p->text));
    if (m->embedding != m->hidden)
        p->projection_out = mo_play_weight(p, m->embedding, m->hidden);
    switch (m->head) {
    case MEMOPT_PLAN_HEAD_CAUSAL_LM:
    case MEMOPT_PLAN_HEAD_MASKED_LM:
        build_vocabulary_head(p);
        break;
    case MEMOPT_PLAN_HEAD_CONTRASTIVE:
    case MEMOPT_PLAN_HEAD_NONE:
        p->unused = 1; /* what it makes is not in the loss */
        if (yes(m->pooler))
            p->pooler = mo_play_linear(p, m->hidden, m->hidden, 1, 0);
        p->unused = 0;
        break;
    default:
        p->frozen = 0; /* a new head learns, with LoRA too */
        if (yes(m->pooler))
            p->pooler = mo_play_linear(p, m->hidden, m->hidden, 1, 0);
        p->head =
            mo_play_linear(p, m->hidden, m->labels,
                           m->family >= MEMOPT_PLAN_BERT || m->head == MEMOPT_PLAN_HEAD_TOKEN, 0);
        p->frozen = frozen;
    }
}

/* What the shape lacks to the total that was given: one vector per layer. */
static void build_rest(mo_play *p)
{
    for (uint64_t i = 0; p->settings->extra_per_layer > 0 && i < p->text.layer_count; i++) {
        p->tape.layer = p->text.layers[i].number;
        (void)mo_play_weight(p, p->settings->extra_per_layer, 0);
    }
}

/* Numbers of a few elements that no operation here stands for: counted once, for the step. */
enum { SCALARS = 8192 };

static void build_batch(mo_play *p)
{
    const mo_settings *s = p->settings;
    mo_tape *t = &p->tape;
    uint64_t image = mo_tape_mul(t, s->model.channels, s->model.image_size * s->model.image_size);
    t->label = "the batch";
    (void)mo_storage_new(t, SCALARS, MO_ACTIVATIONS);
    if (s->model.family == MEMOPT_PLAN_VIT || s->model.vision_layers > 0)
        p->pixels = mo_value_new(t, mo_tape_mul(t, s->images, image),
                                 (uint32_t)memopt_dtype_size(s->run.image_dtype), MO_BATCH);
    if (s->model.family == MEMOPT_PLAN_VIT) {
        p->labels = mo_value_new(t, s->rows, 8, MO_BATCH);
        return;
    }
    uint64_t tokens = mo_tape_mul(t, s->rows, s->tokens);
    int per_token =
        s->model.head <= MEMOPT_PLAN_HEAD_MASKED_LM || s->model.head == MEMOPT_PLAN_HEAD_TOKEN;
    p->ids = mo_value_new(t, tokens, 8, MO_BATCH);
    p->labels = mo_value_new(t, per_token ? tokens : s->rows, 8, MO_BATCH);
    /* What tokenizers give beside the numbers of tokens: a mask, and BERT's types. */
    if (s->run.attention_mask != MEMOPT_PLAN_NO)
        (void)mo_value_new(t, tokens, s->model.family == MEMOPT_PLAN_BERT ? 16 : 8, MO_BATCH);
}

/* Torch refuses types that are mixed among weights that learn: ZeroRedundancyOptimizer in all of
 * them, FSDP in a group. Only adapters have a type of their own, and only the root's group may have
 * others that learn beside them. */
static memopt_status check_types(mo_play *p)
{
    const memopt_plan_run *r = &p->settings->run;
    int zero1 = r->sharding == MEMOPT_PLAN_ZERO1, asks[2] = {0, 0};
    if (p->tape.status != MEMOPT_OK || r->world_size < 2 || r->sharding == MEMOPT_PLAN_DDP ||
        r->adapter_dtype == r->weight_dtype)
        return p->tape.status;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *w = &p->weights[i];
        if (zero1 || mo_shard_group(p, w->layer) == 0)
            asks[w->adapter] |= w->learns || w->unused;
    }
    if (!asks[0] || !asks[1])
        return MEMOPT_OK;
    return mo_tape_fail(
        &p->tape,
        mo_fail(MEMOPT_INVALID_ARGUMENT,
                "plan: adapters are %s and others that learn %s; %s takes weights of one type: use "
                "adapters of %s, or weights of %s",
                memopt_dtype_name(r->adapter_dtype), memopt_dtype_name(r->weight_dtype),
                zero1 ? "ZeroRedundancyOptimizer" : "a group of FSDP",
                memopt_dtype_name(r->weight_dtype), memopt_dtype_name(r->adapter_dtype)));
}

memopt_status mo_play_build(mo_play *p, const mo_settings *s)
{
    const mo_norm no_norm = {MO_NONE, MO_NONE, MO_NORM_RMS};
    const mo_linear none = MO_NO_LINEAR;
    uint64_t layers = s->model.layers + s->model.vision_layers + 2;
    memset(p, 0, sizeof *p);
    p->settings = s;
    p->embedding = p->positions = p->types = p->projection_in = p->projection_out = MO_NONE;
    p->patches = p->patch_bias = p->class_token = p->ids = p->labels = p->pixels = MO_NONE;
    p->vision_positions = MO_NONE;
    p->embedding_norm = p->final_norm = p->vision_norm = p->transform_norm = no_norm;
    p->head = p->transform = p->pooler = none;
    p->vision_projection = p->vision_projection_out = none;
    p->weight_width = (uint32_t)memopt_dtype_size(s->run.weight_dtype);
    p->compute = (uint32_t)memopt_dtype_size(s->run.compute_dtype);
    p->frozen = s->model.lora_rank > 0;
    if (mo_tape_init(&p->tape, (uint32_t)layers) != MEMOPT_OK)
        return p->tape.status;
    p->info = mo_calloc(layers, sizeof *p->info);
    if (p->info == NULL)
        return mo_tape_fail(&p->tape, MEMOPT_OUT_OF_HOST_MEMORY);
    if (mo_shard_init(p, layers) != MEMOPT_OK || mo_engine_init(p, layers) != MEMOPT_OK)
        return p->tape.status;
    p->tape.fused_dropout =
        s->card.device == MEMOPT_PLAN_DEVICE_CUDA || s->card.device == MEMOPT_PLAN_DEVICE_HIP;
    p->tape.narrow_norms = s->card.device == MEMOPT_PLAN_DEVICE_CPU;
    text_shape(p);
    build_embeddings(p);
    build_tower(p);
    p->tape.layer = 1 + (uint32_t)s->model.vision_layers;
    build_stack(p, &p->text, s->model.layers);
    build_head(p);
    build_rest(p);
    build_batch(p);
    p->tape.offload = (s->run.offload & MEMOPT_PLAN_OFFLOAD_ACTIVATIONS) != 0;
    return check_types(p);
}

void mo_play_end(mo_play *p)
{
    mo_free(p->text.layers);
    mo_free(p->vision.layers);
    mo_free(p->weights);
    mo_shard_end(p);
    mo_engine_end(p);
    mo_free(p->info);
    mo_free(p->frames.values);
    mo_free(p->outputs.values);
    mo_free(p->block.values);
    mo_free(p->layer.values);
    mo_free(p->inputs.values);
    mo_free(p->leaves.values);
    mo_tape_end(&p->tape);
    memset(p, 0, sizeof *p);
}
