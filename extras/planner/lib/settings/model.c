/*
 * A model's checks and defaults: what a family does by default, and what follows from what.
 */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "settings/settings.h"

/* The largest width that is looked for. */
#define MAX_WIDTH (UINT64_C(1) << 20)

static void fill(uint64_t *value, uint64_t other)
{
    if (*value == 0)
        *value = other;
}

static void choose(uint32_t *choice, int is_yes)
{
    if (*choice == MO_PLAN_DEFAULT)
        *choice = is_yes ? MO_PLAN_YES : MO_PLAN_NO;
}

static void default_targets(mo_plan_model *m)
{
    if (m->lora_rank > 0 && m->lora_targets == 0)
        m->lora_targets = MO_PLAN_TARGET_QUERY | MO_PLAN_TARGET_VALUE;
    if (m->lora_targets & MO_PLAN_TARGET_ALL_LINEAR)
        m->lora_targets |= MO_PLAN_TARGET_HEAD - 1;
}

static void default_choices(mo_plan_model *m)
{
    const mo_plan_family *f = mo_plan_family_of(m);
    if (m->activation == MO_PLAN_ACTIVATION_DEFAULT)
        m->activation = f->activation;
    if (m->head == MO_PLAN_HEAD_DEFAULT)
        m->head = f->head;
    choose(&m->gated, f->gated);
    choose(&m->tied, f->tied);
    choose(&m->attention_bias, f->biased);
    choose(&m->output_bias, f->biased || m->attention_bias == MO_PLAN_YES);
    choose(&m->mlp_bias, f->biased);
    choose(&m->qk_norm, 0);
    choose(&m->post_norm, f->post_norm);
    int bare = m->head == MO_PLAN_HEAD_CONTRASTIVE || m->head == MO_PLAN_HEAD_NONE;
    int pooled = m->head == MO_PLAN_HEAD_SEQUENCE && !f->images;
    choose(&m->pooler, f->encoder && (bare || pooled));
    default_targets(m);
}

static void default_tables(mo_plan_model *m)
{
    const mo_plan_family *f = mo_plan_family_of(m);
    if (f->images)
        m->vocabulary = 0;
    else
        fill(&m->vocabulary, f->vocabulary);
    if (f->positions == 0)
        m->positions = 0;
    else
        fill(&m->positions, f->positions);
    fill(&m->token_types, f->token_types);
    fill(&m->labels, m->head == MO_PLAN_HEAD_IMAGE ? 1000 : 2);
    fill(&m->experts, f->experts);
    if (m->experts > 0)
        fill(&m->experts_per_token, 2);
    fill(&m->image_size, 224);
    fill(&m->patch_size, 16);
    fill(&m->channels, 3);
}

static uint64_t default_ffn(const mo_plan_model *m)
{
    if (m->gated != MO_PLAN_YES)
        return 4 * m->hidden;
    return (m->hidden * 8 / 3 + 255) / 256 * 256;
}

static uint64_t default_heads(uint64_t hidden)
{
    uint64_t heads = hidden / 64;
    while (heads > 1 && hidden % heads != 0)
        heads--;
    return heads > 0 ? heads : 1;
}

static void default_shape(mo_plan_model *m)
{
    fill(&m->heads, default_heads(m->hidden));
    fill(&m->kv_heads, m->heads);
    fill(&m->ffn, default_ffn(m));
    fill(&m->embedding, m->hidden);
    if (m->head_dim == 0 && m->heads > 0)
        m->head_dim = m->hidden / m->heads;
    if (m->vision_layers > 0) {
        fill(&m->vision_hidden, 1024);
        fill(&m->vision_heads, default_heads(m->vision_hidden));
        fill(&m->vision_ffn, 4 * m->vision_hidden);
        if (m->vision_activation == MO_PLAN_ACTIVATION_DEFAULT)
            m->vision_activation = MO_PLAN_ACTIVATION_QUICK_GELU;
        if (m->patch_size > 0 && m->patch_size <= m->image_size)
            fill(&m->vision_tokens,
                 (m->image_size / m->patch_size) * (m->image_size / m->patch_size));
    }
}

/* Weights of the model as its shape says, as a real number: for finding a shape. */
static double count_of(const mo_plan_model *m, double hidden, double layers, double ffn)
{
    double kv = m->heads && m->kv_heads ? (double)m->kv_heads / (double)m->heads : 1;
    double mats = m->gated == MO_PLAN_YES ? 3 : 2;
    double experts = m->experts > 0 ? (double)m->experts : 1;
    double layer = hidden * hidden * (2 + 2 * kv) + mats * experts * hidden * ffn +
                   (m->experts > 0 ? hidden * experts : 0) + 2 * hidden;
    int head = m->head == MO_PLAN_HEAD_CAUSAL_LM || m->head == MO_PLAN_HEAD_MASKED_LM;
    double tables = m->tied == MO_PLAN_YES || !head ? 1 : 2;
    return layers * layer + tables * (double)m->vocabulary * hidden +
           (double)m->positions * hidden + hidden;
}

static double likely_ffn(const mo_plan_model *m, double hidden)
{
    if (m->ffn > 0)
        return (double)m->ffn;
    return m->gated == MO_PLAN_YES ? hidden * 8 / 3 : 4 * hidden;
}

/* Models grow faster in width than in depth: 64 of width a layer where they are small, 128 where
 * they are large (GPT-2 small 768 / 12, Llama 7B 4096 / 32). */
static double likely_layers(const mo_plan_model *m, double hidden)
{
    return m->layers > 0 ? (double)m->layers : fmax(1, floor(hidden / fmin(128, 64 + hidden / 64)));
}

/* The largest width that stays within the total. */
static uint64_t width_of_total(const mo_plan_model *m)
{
    uint64_t unit = m->heads > 0 ? m->heads * 8 : 64, hidden = unit;
    for (; hidden + unit <= MAX_WIDTH; hidden += unit) {
        double next = (double)(hidden + unit);
        if (count_of(m, next, likely_layers(m, next), likely_ffn(m, next)) > (double)m->parameters)
            break;
    }
    return hidden;
}

/* Width, depth and the width of the MLP that meet the total from below; what is given stays. */
static void shape_of_total(mo_plan_model *m)
{
    double total = (double)m->parameters;
    uint64_t given = m->hidden;
    if (m->hidden == 0)
        m->hidden = width_of_total(m);
    double hidden = (double)m->hidden, ffn = likely_ffn(m, hidden);
    if (m->layers == 0 && given > 0) {
        double none = count_of(m, hidden, 0, ffn), one = count_of(m, hidden, 1, ffn) - none;
        m->layers = (uint64_t)fmin(MO_PLAN_MAX_LAYERS, fmax(1, floor((total - none) / one)));
    } else if (m->layers == 0) {
        m->layers = (uint64_t)fmin(MO_PLAN_MAX_LAYERS, likely_layers(m, hidden));
    }
    if (m->ffn == 0) {
        double layers = (double)m->layers, none = count_of(m, hidden, layers, 0);
        double unit = count_of(m, hidden, layers, 8) - none;
        double width = 8 * floor((total - none) / unit);
        if (width >= hidden && width <= 16 * hidden)
            m->ffn = (uint64_t)width;
    }
}

/* What the shape lacks to the total is spread over the layers. */
static memopt_status rest_of_total(mo_plan_settings *s)
{
    const mo_plan_model *m = &s->model;
    double has = count_of(m, (double)m->hidden, (double)m->layers, (double)m->ffn);
    double total = (double)m->parameters;
    if (m->parameters == 0)
        return MEMOPT_OK;
    if (has > total * 1.02 && has - total > 4096)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu parameters in all, but %llu layers of width %llu with a "
                       "vocabulary of %llu have %.0f; give fewer layers, less width or leave one "
                       "of them out",
                       (unsigned long long)m->parameters, (unsigned long long)m->layers,
                       (unsigned long long)m->hidden, (unsigned long long)m->vocabulary, has);
    if (total > has)
        s->extra_per_layer = (uint64_t)ceil((total - has) / (double)m->layers);
    return MEMOPT_OK;
}

/* What PEFT refuses of experts whose weights are one. */
static memopt_status check_adapters(const mo_plan_model *m)
{
    const uint32_t halves = MO_PLAN_TARGET_GATE | MO_PLAN_TARGET_UP;
    uint32_t of_up = m->lora_targets & halves;
    if (m->lora_rank == 0 || m->experts == 0)
        return MEMOPT_OK;
    if (of_up != 0 && of_up != halves)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: model.lora_targets has one of gate and up, which are one weight of "
                       "all experts; give both or none");
    if (m->lora_dropout > 0 && (of_up != 0 || (m->lora_targets & MO_PLAN_TARGET_DOWN)))
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: model.lora_dropout is %g, but adapters of experts have none; leave it "
            "out, or gate, up and down",
            m->lora_dropout);
    return MEMOPT_OK;
}

/* Numbers that bound each other; then the limits of what was filled in. */
static memopt_status check_shape(const mo_plan_model *m)
{
    const struct {
        const char *name;
        uint64_t value;
        const char *other;
        uint64_t high;
    } all[] = {{"model.heads", m->heads, "model.hidden", m->hidden},
               {"model.kv_heads", m->kv_heads, "model.heads", m->heads},
               {"model.patch_size", m->patch_size, "model.image_size", m->image_size},
               {"model.vision_skipped", m->vision_skipped, "model.vision_layers", m->vision_layers},
               {"model.lora_rank", m->lora_rank, "model.hidden", m->hidden},
               {"model.experts_per_token", m->experts > 0 ? m->experts_per_token : 0,
                "model.experts", m->experts}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_status status =
            mo_plan_at_most(all[i].name, all[i].value, all[i].other, all[i].high);
        if (status != MEMOPT_OK)
            return status;
    }
    MO_TRY(check_adapters(m));
    mo_plan_given given = {.model = *m};
    return mo_plan_check_limits(&given);
}

static memopt_status check_ratios(const mo_plan_model *m, int dim_given)
{
    if (!dim_given && m->hidden % m->heads != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu heads do not divide the width of %llu; give heads that do, or "
                       "head_dim",
                       (unsigned long long)m->heads, (unsigned long long)m->hidden);
    if (m->heads % m->kv_heads != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu key and value heads do not divide %llu heads",
                       (unsigned long long)m->kv_heads, (unsigned long long)m->heads);
    if (m->kv_heads != m->heads && !mo_plan_family_of(m)->rotary)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: model.kv_heads is %llu, but heads of family %s do not share keys and "
                       "values; leave it out or give %llu",
                       (unsigned long long)m->kv_heads, MO_PLAN_WORD(model.family, m->family),
                       (unsigned long long)m->heads);
    if (mo_plan_family_of(m)->rotary && m->head_dim % 2 != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: heads are %llu wide; rotary positions need an even width",
                       (unsigned long long)m->head_dim);
    if (m->gated != MO_PLAN_YES && m->experts > 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: model.gated is no, but the MLP of experts has gates; leave it out");
    if (m->vision_layers > 0 && (m->vision_heads == 0 || m->vision_hidden % m->vision_heads != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu heads of the vision tower do not divide its width of %llu",
                       (unsigned long long)m->vision_heads, (unsigned long long)m->vision_hidden);
    return MEMOPT_OK;
}

/* What head and family do not have together. */
static memopt_status check_family(const mo_plan_model *m)
{
    const mo_plan_family *f = mo_plan_family_of(m);
    const char *family = MO_PLAN_WORD(model.family, m->family);
    uint32_t whose = mo_plan_variant_of(m)->family;
    int text_head = m->head == MO_PLAN_HEAD_CAUSAL_LM || m->head == MO_PLAN_HEAD_MASKED_LM ||
                    m->head == MO_PLAN_HEAD_TOKEN;
    if (f->images && text_head)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the head %s is over tokens, and %s has no tokens",
                       MO_PLAN_WORD(model.head, m->head), family);
    if (!f->images && m->head == MO_PLAN_HEAD_IMAGE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: an image head needs family vit, not %s",
                       family);
    if (f->images && m->vision_layers > 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %s is a vision model; it has no vision tower of %llu layers", family,
                       (unsigned long long)m->vision_layers);
    if (m->variant != MO_PLAN_VARIANT_NONE && m->family != whose)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: the variant %s needs family %s, not %s",
                       MO_PLAN_WORD(model.variant, m->variant), MO_PLAN_WORD(model.family, whose),
                       family);
    if (m->embedding != m->hidden && !f->projects_embeddings)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: embeddings of width %llu in a model of width %llu: only opt projects "
                       "them",
                       (unsigned long long)m->embedding, (unsigned long long)m->hidden);
    return MEMOPT_OK;
}

memopt_status mo_plan_model_check_learns(const mo_plan_model *m)
{
    if (m->quantize == MO_PLAN_QUANTIZE_NONE || m->lora_rank > 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "plan: weights of %s do not learn; give model.lora_rank",
                   MO_PLAN_WORD(model.quantize, m->quantize));
}

memopt_status mo_plan_model_fill_measured(mo_plan_settings *s, const mo_plan_model *model)
{
    s->model.lora_rank = model->lora_rank;
    s->model.lora_targets = model->lora_targets;
    s->model.lora_dropout = model->lora_dropout;
    s->model.quantize = model->quantize;
    default_targets(&s->model);
    return mo_plan_model_check_learns(&s->model);
}

memopt_status mo_plan_model_fill(mo_plan_settings *s)
{
    mo_plan_model *m = &s->model;
    if (m->hidden == 0 && m->parameters == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the model has no size; give model.hidden or model.parameters");
    default_choices(m);
    default_tables(m);
    if (m->parameters > 0)
        shape_of_total(m);
    fill(&m->layers, mo_max_u64(1, m->hidden / 64));
    int dim_given = m->head_dim > 0;
    default_shape(m);
    MO_TRY(check_shape(m));
    MO_TRY(check_ratios(m, dim_given));
    MO_TRY(check_family(m));
    return rest_of_total(s);
}
