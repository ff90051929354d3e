/*
 * What the families of models do: one row each. What the code of transformers does differently
 * from family to family is a member here, and nowhere else a comparison of families.
 */
#ifndef MO_PLAN_FAMILIES_H
#define MO_PLAN_FAMILIES_H

#include "settings/keys.h"

/* Positions of the words of the table of keys. */
enum {
    MO_PLAN_LLAMA,
    MO_PLAN_MIXTRAL,
    MO_PLAN_GPT2,
    MO_PLAN_OPT,
    MO_PLAN_BERT,
    MO_PLAN_VIT,
    MO_PLAN_FAMILIES
};
enum { MO_PLAN_VARIANT_NONE, MO_PLAN_VARIANT_QWEN_MOE, MO_PLAN_VARIANT_ROBERTA, MO_PLAN_VARIANTS };
enum {
    MO_PLAN_HEAD_DEFAULT,
    MO_PLAN_HEAD_CAUSAL_LM,
    MO_PLAN_HEAD_MASKED_LM,
    MO_PLAN_HEAD_SEQUENCE,
    MO_PLAN_HEAD_TOKEN,
    MO_PLAN_HEAD_IMAGE,
    MO_PLAN_HEAD_CONTRASTIVE,
    MO_PLAN_HEAD_NONE
};
enum {
    MO_PLAN_ACTIVATION_DEFAULT,
    MO_PLAN_ACTIVATION_SILU,
    MO_PLAN_ACTIVATION_GELU,
    MO_PLAN_ACTIVATION_GELU_NEW,   /* eight operations in Python */
    MO_PLAN_ACTIVATION_RELU,       /* keeps its output */
    MO_PLAN_ACTIVATION_QUICK_GELU, /* x · sigmoid(1.702 x) in Python */
    MO_PLAN_ACTIVATION_TANH,       /* keeps its output */
    MO_PLAN_ACTIVATION_GELU_FAST   /* the FastGELU of transformers, in Python */
};

/* LayerNorm, and RMSNorm as transformers writes it for Llama. */
enum mo_plan_norm_kind { MO_PLAN_NORM_RMS, MO_PLAN_NORM_LAYER };

/* Where a layer declares a norm: the optimizer walks the weights in this order. */
enum mo_plan_norm_place { MO_PLAN_BEFORE_ATTENTION, MO_PLAN_AFTER_ATTENTION, MO_PLAN_AFTER_MLP };

typedef struct mo_plan_family {
    /* defaults of settings */
    uint32_t head, activation;
    uint64_t vocabulary, positions, token_types, experts;
    uint8_t gated, tied, biased, post_norm;
    /* what the model is */
    uint8_t images;       /* 1: of patches of images, without tokens */
    uint8_t decoder;      /* 1: causal, with a cache */
    uint8_t rotary;       /* 1: rotary positions; heads share keys and values; no dropout of hidden
                             states; else positions are learned */
    uint8_t encoder;      /* 1: a head takes the first token, has a bias, and there is a pooler */
    uint8_t fused_qkv;    /* 1: one projection makes queries, keys and values */
    uint8_t norm1, norm2; /* mo_plan_norm_place */
    uint8_t inputs_first; /* 1: weights of linear layers have their inputs first (Conv1D) */
    uint8_t projects_embeddings; /* 1: embeddings of another width are projected */
    uint8_t norms_embeddings;    /* 1: after the embeddings, which are a module of their own */
    /* what its code does */
    uint8_t names_results;     /* 1: a layer has names for the results of attention and MLP */
    uint8_t scales_queries;    /* 1: in a product of its own */
    uint8_t softmax_own_type;  /* 1: eager softmax in the type of the scores */
    uint8_t softmax_to_values; /* 1: its result is cast to the values' type */
    uint8_t holds_mlp;         /* 1: the MLP's inner values live to the end of the layer */
    uint8_t loss_own_type;     /* 1: the loss is computed in the logits' type */
    uint8_t wide_mask;         /* 1: autocast on a GPU makes the mask over scores fp32 */
    uint8_t head_dropout;      /* 1: before a classification head */
    uint8_t position_rows;     /* rows of positions that no token uses */
    uint8_t position_numbers;  /* numbers of 8 bytes per token that positions are made of */
    uint8_t position_each;     /* 1: positions are looked up for each sequence */
} mo_plan_family;

const mo_plan_family *mo_plan_family_at(uint32_t family);
const mo_plan_family *mo_plan_family_of(const mo_plan_model *m);

/* How the code of a variant differs from its family's. */
typedef struct mo_plan_variant {
    uint32_t family;            /* the only one that it belongs to */
    uint8_t narrow_router;      /* 1: the router's scores are cast back to the layers' type */
    uint8_t numbered_positions; /* 1: positions are numbered sample by sample */
} mo_plan_variant;

const mo_plan_variant *mo_plan_variant_at(uint32_t variant);
const mo_plan_variant *mo_plan_variant_of(const mo_plan_model *m);

#endif
