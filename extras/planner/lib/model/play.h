/*
 * A training step being played: the tape, the model's weights, and what its layers share.
 *
 * mo_plan_play owns the tape, the weights' list and the layers. Layers are laid out once
 * (layout.c);
 * layer.c runs them, embeddings.c what is before them and head.c what is after.
 */
#ifndef MO_PLAN_PLAY_H
#define MO_PLAN_PLAY_H

#include "model/engine.h"
#include "settings/settings.h"
#include "tape/operations.h"

typedef struct mo_plan_stack mo_plan_stack;

typedef struct mo_plan_layer {
    mo_plan_stack *stack;
    uint32_t number; /* in the list of layers of the plan */
    mo_plan_norm norm1, norm2, query_norm, key_norm;
    mo_plan_linear query, key, value, output; /* query holds all three where they are fused */
    mo_plan_linear gate, up, down; /* of the MLP; up and down alone where it is plain, gate holds
                                 both where they are fused */
    mo_plan_linear router;
    mo_plan_linear experts_up, experts_down; /* of all experts */
} mo_plan_layer;

/* Layers of one shape, and what they share while they run. */
struct mo_plan_stack {
    mo_plan_play *play;
    mo_plan_layer *layers;
    uint64_t layer_count, skipped; /* skipped: the last ones, whose output is not used */
    uint64_t hidden, heads, kv_heads, head_dim, ffn, experts, experts_per_token;
    uint64_t rows, sequence; /* sequences and their tokens */
    const mo_plan_family *family;
    const mo_plan_variant *variant;
    uint32_t activation;
    int gated, post_norm, causal, rotary, fused_qkv, cache;
    uint32_t attention;
    double attention_dropout, hidden_dropout, activation_dropout;
    uint64_t size, scores;      /* elements of all heads' vectors, and of their scores */
    mo_plan_value cosine, sine; /* of rotary positions */
    mo_plan_value mask;         /* over scores; MO_PLAN_NONE */
    mo_plan_value numbers;      /* of positions */
};

/* Entries of the list of layers. */
enum { MO_PLAN_LAYER_EMBEDDING, MO_PLAN_LAYER_BLOCK, MO_PLAN_LAYER_VISION, MO_PLAN_LAYER_HEAD };

/* What is known of one. */
typedef struct mo_plan_layer_info {
    uint64_t saved, output; /* bytes alive after its forward that were not before */
    double flops;
    uint32_t recomputed, kind;
} mo_plan_layer_info;

typedef struct mo_plan_held {
    mo_plan_value *values;
    uint64_t count, capacity;
} mo_plan_held;

struct mo_plan_play {
    mo_plan_tape tape;
    const mo_plan_settings *settings;
    uint32_t weight_width, compute; /* compute: 0 or the width of autocast */
    mo_plan_weight *weights;
    uint64_t weight_count, weight_capacity;
    uint64_t buffer_bytes;
    const mo_plan_engine *engine;
    void *engine_state;
    mo_plan_stack text, vision;
    mo_plan_value embedding, positions, types, projection_in, projection_out, patches, patch_bias,
        class_token, vision_positions;
    mo_plan_norm embedding_norm, final_norm, vision_norm;
    mo_plan_linear head, transform, pooler, vision_projection, vision_projection_out;
    mo_plan_norm transform_norm;
    mo_plan_value ids, labels, pixels;
    mo_plan_held leaves;      /* embeddings that are an input with a gradient */
    mo_plan_held frames;      /* what the model's code holds until it returns */
    mo_plan_held outputs;     /* what its outputs hold: the cache, logits */
    mo_plan_held block;       /* what attention's code holds until it returns */
    mo_plan_held layer;       /* what a layer's code holds until it returns */
    mo_plan_layer_info *info; /* of the layers of the plan */
    uint64_t saved;           /* activations when the forward of the layers ends */
    double again_flops;       /* of what is run again */
    uint64_t step_bytes;      /* that the optimizer's step makes */
    uint64_t *roots;          /* of it, of each weight at once */
    uint64_t root_count;
    int frozen;        /* weights made now do not learn */
    uint64_t returned; /* bytes of what the model returns but for its cache */
    int unused;        /* nor those that ask for it: what they make is not in the loss */
};

/* --- weights (weights.c) --------------------------------------------------------------------- */
/* A weight of rows × columns (columns 0: a vector of rows). */
mo_plan_value mo_plan_play_weight(mo_plan_play *p, uint64_t rows, uint64_t columns);
/* The same with another first size, which FSDP shares out: so many equal parts. */
mo_plan_value mo_plan_play_weight_of(mo_plan_play *p, uint64_t rows, uint64_t columns,
                                     uint64_t chunks);
/* Of a router, which is no layer of its own: never quantised. */
#define MO_PLAN_NO_TARGET (1u << 31)
mo_plan_linear mo_plan_play_linear(mo_plan_play *p, uint64_t in, uint64_t out, int bias,
                                   uint32_t target);
/* Of all experts in one; `rank` 0: without adapters. */
mo_plan_linear mo_plan_play_experts(mo_plan_play *p, uint64_t experts, uint64_t in, uint64_t out,
                                    uint64_t rank);
mo_plan_norm mo_plan_play_norm(mo_plan_play *p, uint64_t size, enum mo_plan_norm_kind kind);
void mo_plan_play_buffer(mo_plan_play *p, uint64_t bytes);
/* Holds a value until mo_plan_play_release: takes over the caller's handle. */
void mo_plan_play_hold(mo_plan_play *p, mo_plan_held *held, mo_plan_value v);
/* Holds a tensor that the model returns until its outputs are given up: takes it over. */
void mo_plan_play_returns(mo_plan_play *p, mo_plan_value v);
/* Drops what was held after the first `from`. */
void mo_plan_play_release(mo_plan_play *p, mo_plan_held *held, uint64_t from);

/* Whether a layer's number is that of a block, not of the embeddings or of the head. */
int mo_plan_play_in_layers(const mo_plan_play *p, uint32_t layer);

/* --- the model (layout.c) ----------------------------------------------------------------------
 */
/* The caller ends the play, whatever is returned. */
memopt_status mo_plan_play_build(mo_plan_play *p, const mo_plan_settings *s,
                                 const mo_plan_engine *engine);
void mo_plan_play_end(mo_plan_play *p);

/* --- running (embeddings.c, layer.c, attention.c, mlp.c, head.c) ------------------------- */
/* Inputs of the layers. */
mo_plan_value mo_plan_play_embeddings(mo_plan_play *p);
/* Drops the tables and masks that the layers share. */
void mo_plan_play_drop_tables(mo_plan_play *p);
/* Drops the mask over the scores and the rotary tables alone. */
void mo_plan_play_drop_mask(mo_plan_play *p);
/* Whether a stack's layer is run again in backward. */
int mo_plan_layer_runs_again(const mo_plan_play *p, uint64_t number);
/* Runs a stack over x, which it takes over. */
mo_plan_value mo_plan_play_stack(mo_plan_play *p, mo_plan_stack *s, mo_plan_value x);
mo_plan_value mo_plan_run_layer(mo_plan_tape *t, void *layer, const mo_plan_value *inputs);
mo_plan_value mo_plan_run_attention(mo_plan_layer *l, mo_plan_value x);
mo_plan_value mo_plan_run_mlp(mo_plan_layer *l, mo_plan_value x);
mo_plan_value mo_plan_run_experts(mo_plan_layer *l, mo_plan_value x);
mo_plan_value mo_plan_play_head(mo_plan_play *p, mo_plan_value x);

/* A whole step (step.c): weights, states, forward, backward, optimizer. */
memopt_status mo_plan_play_step(mo_plan_play *p);

#endif
