/* The rows of families and of variants. */
#include "settings/families.h"

static const mo_plan_family families[MO_PLAN_FAMILIES] = {
    [MO_PLAN_LLAMA] = {.head = MO_PLAN_HEAD_CAUSAL_LM,
                       .activation = MO_PLAN_ACTIVATION_SILU,
                       .vocabulary = 32000,
                       .gated = 1,
                       .decoder = 1,
                       .rotary = 1,
                       .norm1 = MO_PLAN_AFTER_MLP,
                       .norm2 = MO_PLAN_AFTER_MLP},
    [MO_PLAN_MIXTRAL] = {.head = MO_PLAN_HEAD_CAUSAL_LM,
                         .activation = MO_PLAN_ACTIVATION_SILU,
                         .vocabulary = 32000,
                         .experts = 8,
                         .gated = 1,
                         .decoder = 1,
                         .rotary = 1,
                         .norm1 = MO_PLAN_AFTER_MLP,
                         .norm2 = MO_PLAN_AFTER_MLP},
    [MO_PLAN_GPT2] = {.head = MO_PLAN_HEAD_CAUSAL_LM,
                      .activation = MO_PLAN_ACTIVATION_GELU_NEW,
                      .vocabulary = 50257,
                      .positions = 1024,
                      .tied = 1,
                      .biased = 1,
                      .decoder = 1,
                      .fused_qkv = 1,
                      .norm1 = MO_PLAN_BEFORE_ATTENTION,
                      .norm2 = MO_PLAN_AFTER_ATTENTION,
                      .inputs_first = 1,
                      .names_results = 1,
                      .softmax_own_type = 1,
                      .softmax_to_values = 1},
    [MO_PLAN_OPT] = {.head = MO_PLAN_HEAD_CAUSAL_LM,
                     .activation = MO_PLAN_ACTIVATION_RELU,
                     .vocabulary = 50272,
                     .positions = 2048,
                     .tied = 1,
                     .biased = 1,
                     .decoder = 1,
                     .norm1 = MO_PLAN_AFTER_ATTENTION,
                     .norm2 = MO_PLAN_AFTER_MLP,
                     .projects_embeddings = 1,
                     .scales_queries = 1,
                     .position_rows = 2,
                     .position_numbers = 3,
                     .position_each = 1},
    [MO_PLAN_BERT] = {.head = MO_PLAN_HEAD_MASKED_LM,
                      .activation = MO_PLAN_ACTIVATION_GELU,
                      .vocabulary = 30522,
                      .positions = 512,
                      .token_types = 2,
                      .tied = 1,
                      .biased = 1,
                      .post_norm = 1,
                      .encoder = 1,
                      .norm1 = MO_PLAN_AFTER_ATTENTION,
                      .norm2 = MO_PLAN_AFTER_MLP,
                      .norms_embeddings = 1,
                      .softmax_own_type = 1,
                      .holds_mlp = 1,
                      .loss_own_type = 1,
                      .wide_mask = 1,
                      .head_dropout = 1},
    [MO_PLAN_VIT] = {.head = MO_PLAN_HEAD_IMAGE,
                     .activation = MO_PLAN_ACTIVATION_GELU,
                     .biased = 1,
                     .images = 1,
                     .encoder = 1,
                     .norm1 = MO_PLAN_AFTER_ATTENTION,
                     .norm2 = MO_PLAN_AFTER_ATTENTION},
};

static const mo_plan_variant variants[MO_PLAN_VARIANTS] = {
    [MO_PLAN_VARIANT_QWEN_MOE] = {.family = MO_PLAN_MIXTRAL, .narrow_router = 1},
    [MO_PLAN_VARIANT_ROBERTA] = {.family = MO_PLAN_BERT, .numbered_positions = 1},
};

const mo_plan_family *mo_plan_family_at(uint32_t family)
{
    return &families[family];
}

const mo_plan_family *mo_plan_family_of(const mo_plan_model *m)
{
    return &families[m->family];
}

const mo_plan_variant *mo_plan_variant_at(uint32_t variant)
{
    return &variants[variant];
}

const mo_plan_variant *mo_plan_variant_of(const mo_plan_model *m)
{
    return &variants[m->variant];
}
