/*
 * A model's checks and defaults: what a family does by default, and what can be told from what.
 */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "plan/settings.h"

/* The largest counts that make sense; what is above is a mistake. */
#define MAX_WIDTH (UINT64_C(1) << 20)
#define MAX_VOCABULARY (UINT64_C(1) << 28)
#define MAX_PARAMETERS (UINT64_C(1) << 50)

static int is_llama(const memopt_plan_model *m)
{
    return m->family == MEMOPT_PLAN_LLAMA || m->family == MEMOPT_PLAN_MIXTRAL;
}

static void fill(uint64_t *value, uint64_t other)
{
    if (*value == 0)
        *value = other;
}

static void choose(uint32_t *choice, int is_yes)
{
    if (*choice == MEMOPT_PLAN_DEFAULT)
        *choice = is_yes ? MEMOPT_PLAN_YES : MEMOPT_PLAN_NO;
}

static memopt_status check_enums(const memopt_plan_model *m)
{
    const struct {
        const char *name;
        uint64_t value, last;
    } all[] = {{"family", m->family, MEMOPT_PLAN_VIT},
               {"head", m->head, MEMOPT_PLAN_HEAD_NONE},
               {"activation", m->activation, MEMOPT_PLAN_ACTIVATION_GELU_FAST},
               {"gated", m->gated, MEMOPT_PLAN_YES},
               {"tied", m->tied, MEMOPT_PLAN_YES},
               {"attention_bias", m->attention_bias, MEMOPT_PLAN_YES},
               {"output_bias", m->output_bias, MEMOPT_PLAN_YES},
               {"mlp_bias", m->mlp_bias, MEMOPT_PLAN_YES},
               {"qk_norm", m->qk_norm, MEMOPT_PLAN_YES},
               {"pooler", m->pooler, MEMOPT_PLAN_YES},
               {"post_norm", m->post_norm, MEMOPT_PLAN_YES},
               {"kin", m->kin, MEMOPT_PLAN_KIN_QWEN_MOE},
               {"vision_mode", m->vision_mode, MEMOPT_PLAN_TOWER_FROZEN},
               {"vision_activation", m->vision_activation, MEMOPT_PLAN_ACTIVATION_GELU_FAST},
               {"lora_targets", m->lora_targets, 255}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_status status = mo_settings_range(all[i].name, all[i].value, 0, all[i].last);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

static memopt_status check_doubles(const memopt_plan_model *m)
{
    const struct {
        const char *name;
        double value;
    } all[] = {
        {"embedding_dropout", m->embedding_dropout}, {"attention_dropout", m->attention_dropout},
        {"hidden_dropout", m->hidden_dropout},       {"activation_dropout", m->activation_dropout},
        {"lora_dropout", m->lora_dropout},           {"router_jitter", m->router_jitter}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i].value >= 0 && all[i].value < 1))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "plan: %s is %g; it must be at least 0 and below 1", all[i].name,
                           all[i].value);
    return MEMOPT_OK;
}

static void default_choices(memopt_plan_model *m)
{
    int decoder = m->family != MEMOPT_PLAN_BERT && m->family != MEMOPT_PLAN_VIT;
    static const uint32_t activations[] = {
        MEMOPT_PLAN_ACTIVATION_SILU, MEMOPT_PLAN_ACTIVATION_SILU, MEMOPT_PLAN_ACTIVATION_GELU_NEW,
        MEMOPT_PLAN_ACTIVATION_RELU, MEMOPT_PLAN_ACTIVATION_GELU, MEMOPT_PLAN_ACTIVATION_GELU};
    if (m->activation == MEMOPT_PLAN_ACTIVATION_DEFAULT)
        m->activation = activations[m->family];
    if (m->head == MEMOPT_PLAN_HEAD_DEFAULT)
        m->head = decoder                         ? MEMOPT_PLAN_HEAD_CAUSAL_LM
                  : m->family == MEMOPT_PLAN_BERT ? MEMOPT_PLAN_HEAD_MASKED_LM
                                                  : MEMOPT_PLAN_HEAD_IMAGE;
    choose(&m->gated, is_llama(m));
    choose(&m->tied, !is_llama(m) && m->family != MEMOPT_PLAN_VIT);
    choose(&m->attention_bias, !is_llama(m));
    choose(&m->output_bias, !is_llama(m) || m->attention_bias == MEMOPT_PLAN_YES);
    choose(&m->mlp_bias, !is_llama(m));
    choose(&m->qk_norm, 0);
    choose(&m->post_norm, m->family == MEMOPT_PLAN_BERT);
    int bare = m->head == MEMOPT_PLAN_HEAD_CONTRASTIVE || m->head == MEMOPT_PLAN_HEAD_NONE;
    choose(&m->pooler, (m->family == MEMOPT_PLAN_BERT && m->head == MEMOPT_PLAN_HEAD_SEQUENCE) ||
                           (bare && m->family >= MEMOPT_PLAN_BERT));
    if (m->lora_rank > 0 && m->lora_targets == 0)
        m->lora_targets = MEMOPT_PLAN_TARGET_QUERY | MEMOPT_PLAN_TARGET_VALUE;
}

static void default_tables(memopt_plan_model *m)
{
    static const uint64_t words[] = {32000, 32000, 50257, 50272, 30522, 0};
    static const uint64_t positions[] = {0, 0, 1024, 2048, 512, 0};
    if (m->family == MEMOPT_PLAN_VIT)
        m->vocabulary = 0;
    else
        fill(&m->vocabulary, words[m->family]);
    if (positions[m->family] == 0)
        m->positions = 0;
    else
        fill(&m->positions, positions[m->family]);
    if (m->family == MEMOPT_PLAN_BERT)
        fill(&m->token_types, 2);
    fill(&m->labels, m->head == MEMOPT_PLAN_HEAD_IMAGE ? 1000 : 2);
    if (m->family == MEMOPT_PLAN_MIXTRAL)
        fill(&m->experts, 8);
    if (m->experts > 0)
        fill(&m->experts_per_token, 2);
    fill(&m->image_size, 224);
    fill(&m->patch_size, 16);
    fill(&m->channels, 3);
}

static uint64_t default_ffn(const memopt_plan_model *m)
{
    if (m->gated != MEMOPT_PLAN_YES)
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

static void default_shape(memopt_plan_model *m)
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
        if (m->vision_activation == MEMOPT_PLAN_ACTIVATION_DEFAULT)
            m->vision_activation = MEMOPT_PLAN_ACTIVATION_QUICK_GELU;
        if (m->patch_size > 0 && m->patch_size <= m->image_size)
            fill(&m->vision_tokens,
                 (m->image_size / m->patch_size) * (m->image_size / m->patch_size));
    }
}

/* Weights of the model as its shape says, as a real number: for finding a shape. */
static double count_of(const memopt_plan_model *m, double hidden, double layers, double ffn)
{
    double kv = m->heads && m->kv_heads ? (double)m->kv_heads / (double)m->heads : 1;
    double mats = m->gated == MEMOPT_PLAN_YES ? 3 : 2;
    double experts = m->experts > 0 ? (double)m->experts : 1;
    double layer = hidden * hidden * (2 + 2 * kv) + mats * experts * hidden * ffn +
                   (m->experts > 0 ? hidden * experts : 0) + 2 * hidden;
    int head = m->head == MEMOPT_PLAN_HEAD_CAUSAL_LM || m->head == MEMOPT_PLAN_HEAD_MASKED_LM;
    double tables = m->tied == MEMOPT_PLAN_YES || !head ? 1 : 2;
    return layers * layer + tables * (double)m->vocabulary * hidden +
           (double)m->positions * hidden + hidden;
}

static double likely_ffn(const memopt_plan_model *m, double hidden)
{
    if (m->ffn > 0)
        return (double)m->ffn;
    return m->gated == MEMOPT_PLAN_YES ? hidden * 8 / 3 : 4 * hidden;
}

/* Models grow faster in width than in depth: 64 of width a layer where they are small, 128 where
 * they are large (GPT-2 small 768 / 12, Llama 7B 4096 / 32). */
static double likely_layers(const memopt_plan_model *m, double hidden)
{
    return m->layers > 0 ? (double)m->layers : fmax(1, floor(hidden / fmin(128, 64 + hidden / 64)));
}

/* The largest width that stays within the total. */
static uint64_t width_of_total(const memopt_plan_model *m)
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
static void shape_of_total(memopt_plan_model *m)
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
static memopt_status rest_of_total(mo_settings *s)
{
    const memopt_plan_model *m = &s->model;
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

static memopt_status check_shape(const memopt_plan_model *m)
{
    const struct {
        const char *name;
        uint64_t value, low, high;
    } all[] = {{"hidden", m->hidden, 1, MAX_WIDTH},
               {"layers", m->layers, 1, MO_PLAN_MAX_LAYERS},
               {"heads", m->heads, 1, m->hidden},
               {"kv_heads", m->kv_heads, 1, m->heads},
               {"head_dim", m->head_dim, 1, MAX_WIDTH},
               {"ffn", m->ffn, 1, MAX_WIDTH * 8},
               {"vocabulary", m->vocabulary, m->family == MEMOPT_PLAN_VIT ? 0 : 1, MAX_VOCABULARY},
               {"positions", m->positions, 0, MAX_VOCABULARY},
               {"token_types", m->token_types, 0, MAX_VOCABULARY},
               {"embedding", m->embedding, 1, MAX_WIDTH},
               {"labels", m->labels, 1, MAX_VOCABULARY},
               {"experts", m->experts, 0, 4096},
               {"image_size", m->image_size, 1, 1 << 16},
               {"patch_size", m->patch_size, 1, m->image_size},
               {"channels", m->channels, 1, 4096},
               {"vision_layers", m->vision_layers, 0, MO_PLAN_MAX_LAYERS},
               {"vision_hidden", m->vision_hidden, 0, MAX_WIDTH},
               {"vision_ffn", m->vision_ffn, 0, MAX_WIDTH * 8},
               {"vision_tokens", m->vision_tokens, 0, 1 << 24},
               {"vision_skipped", m->vision_skipped, 0, m->vision_layers},
               {"lora_rank", m->lora_rank, 0, m->hidden}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_status status =
            mo_settings_range(all[i].name, all[i].value, all[i].low, all[i].high);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

static memopt_status check_ratios(const memopt_plan_model *m, int dim_given)
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
    if (m->kv_heads != m->heads && m->family >= MEMOPT_PLAN_GPT2)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu key and value heads of %llu: this family has as many as heads",
                       (unsigned long long)m->kv_heads, (unsigned long long)m->heads);
    if (is_llama(m) && m->head_dim % 2 != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: heads are %llu wide; rotary positions need an even width",
                       (unsigned long long)m->head_dim);
    if (m->experts > 0 && m->experts_per_token > m->experts)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: each token visits %llu of %llu experts",
                       (unsigned long long)m->experts_per_token, (unsigned long long)m->experts);
    if (m->experts > 0 && m->gated != MEMOPT_PLAN_YES)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu experts without gates; experts are "
                       "gated",
                       (unsigned long long)m->experts);
    if (m->vision_layers > 0 && (m->vision_heads == 0 || m->vision_hidden % m->vision_heads != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu heads of the vision tower do not divide its width of %llu",
                       (unsigned long long)m->vision_heads, (unsigned long long)m->vision_hidden);
    return MEMOPT_OK;
}

/* What head and family do not have together. */
static memopt_status check_family(const memopt_plan_model *m)
{
    int images = m->family == MEMOPT_PLAN_VIT;
    int text_head = m->head == MEMOPT_PLAN_HEAD_CAUSAL_LM ||
                    m->head == MEMOPT_PLAN_HEAD_MASKED_LM || m->head == MEMOPT_PLAN_HEAD_TOKEN;
    if (images && text_head)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: head %u is over tokens, which ViT lacks",
                       m->head);
    if (!images && m->head == MEMOPT_PLAN_HEAD_IMAGE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: an image head needs family ViT");
    if (images && m->vision_layers > 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: ViT is a vision model; it has no vision tower of %llu layers",
                       (unsigned long long)m->vision_layers);
    uint32_t whose = m->kin == MEMOPT_PLAN_KIN_QWEN_MOE ? MEMOPT_PLAN_MIXTRAL : MEMOPT_PLAN_LLAMA;
    if (m->kin != MEMOPT_PLAN_KIN_NONE && m->family != whose)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: kin %u is of family %u, not of %u", m->kin,
                       whose, m->family);
    if (m->embedding != m->hidden && m->family != MEMOPT_PLAN_OPT)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: embeddings of width %llu in a model of width %llu: only OPT projects "
                       "them",
                       (unsigned long long)m->embedding, (unsigned long long)m->hidden);
    return MEMOPT_OK;
}

memopt_status mo_settings_model(mo_settings *s)
{
    memopt_plan_model *m = &s->model;
    memopt_status status = check_enums(m);
    if (status == MEMOPT_OK)
        status = check_doubles(m);
    if (status != MEMOPT_OK)
        return status;
    if (m->hidden == 0 && m->parameters == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: neither the width (hidden) nor the number of parameters is given");
    status = mo_settings_range("parameters", m->parameters, 0, MAX_PARAMETERS);
    if (status == MEMOPT_OK && m->hidden > 0)
        status = mo_settings_range("hidden", m->hidden, 1, MAX_WIDTH);
    if (status == MEMOPT_OK && m->heads > 0)
        status = mo_settings_range("heads", m->heads, 1, MAX_WIDTH);
    if (status != MEMOPT_OK)
        return status;
    default_choices(m);
    default_tables(m);
    if (m->parameters > 0)
        shape_of_total(m);
    fill(&m->layers, mo_max_u64(1, m->hidden / 64));
    int dim_given = m->head_dim > 0;
    default_shape(m);
    status = check_shape(m);
    if (status == MEMOPT_OK)
        status = check_ratios(m, dim_given);
    if (status == MEMOPT_OK)
        status = check_family(m);
    return status == MEMOPT_OK ? rest_of_total(s) : status;
}
