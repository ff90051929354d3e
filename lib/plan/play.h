/*
 * A training step being played: the tape, the model's weights, and what its layers share.
 *
 * mo_play owns the tape, the weights' list and the layers. Layers are laid out once (build_*.c);
 * block_*.c run them, stem.c what is before them and head.c what is after.
 */
#ifndef MO_PLAN_PLAY_H
#define MO_PLAN_PLAY_H

#include "plan/ops.h"
#include "plan/optimizer.h"
#include "plan/settings.h"

typedef struct mo_engine mo_engine;
typedef struct mo_play mo_play;
typedef struct mo_stack mo_stack;

typedef struct mo_layer {
    mo_stack *stack;
    uint32_t number; /* in the list of layers of the plan */
    mo_norm norm1, norm2, query_norm, key_norm;
    mo_linear query, key, value, output; /* query holds all three where they are fused */
    mo_linear gate, up, down; /* of the MLP; up and down alone where it is plain, gate holds both
                                 where they are fused */
    mo_linear router;
    mo_value experts_up, experts_down; /* of all experts */
} mo_layer;

/* Layers of one shape, and what they share while they run. */
struct mo_stack {
    mo_play *play;
    mo_layer *layers;
    uint64_t layer_count, skipped; /* skipped: the last ones, whose output nobody takes */
    uint64_t hidden, heads, kv_heads, head_dim, ffn, experts, experts_per_token;
    uint64_t rows, sequence; /* sequences and their tokens */
    uint32_t family, activation, kin;
    int gated, post_norm, causal, rotary, fused_qkv, cache;
    uint32_t attention;
    double attention_dropout, hidden_dropout, activation_dropout, router_jitter;
    uint64_t size, scores; /* elements of all heads' vectors, and of their scores */
    mo_value cosine, sine; /* of rotary positions */
    mo_value mask;         /* over scores; MO_NONE */
    mo_value numbers;      /* of positions */
};

/* What is told of a layer. */
typedef struct mo_layer_info {
    uint64_t saved, output; /* bytes alive after its forward that were not before */
    uint64_t after;         /* all alive after its forward */
    double flops;
    uint32_t recomputed, kind;
} mo_layer_info;

/* Weights that are gathered together, and their gradients (shard.c). */
typedef struct mo_shard {
    uint64_t bytes, learning;        /* of all devices, rounded up to equal shards; and those of
                                        gradients at rest */
    uint64_t cast;                   /* of one device's shards that are cast to be gathered */
    uint32_t flat, whole, gradients; /* storages */
    uint32_t leaves;                 /* the first of its list: index + 1 */
    uint32_t ran, reduced;           /* 1: in forward; in backward */
} mo_shard;

typedef struct mo_held {
    mo_value *values;
    uint64_t count, capacity;
} mo_held;

struct mo_play {
    mo_tape tape;
    const mo_settings *settings;
    uint32_t weight_width, compute; /* compute: 0 or the width of autocast */
    mo_weight *weights;
    uint64_t weight_count, weight_capacity;
    uint64_t buffer_bytes;
    mo_engine *engine; /* of DeepSpeed; NULL: it is not used */
    mo_shard *shards;  /* NULL: FSDP does not share weights out */
    uint64_t shard_count;
    uint32_t filled, reduced; /* storages of the last group's buffers */
    mo_stack text, vision;
    mo_value embedding, positions, types, projection_in, projection_out, patches, patch_bias,
        class_token, vision_positions;
    mo_norm embedding_norm, final_norm, vision_norm;
    mo_linear head, transform, pooler, vision_projection, vision_projection_out;
    mo_norm transform_norm;
    mo_value ids, labels, pixels;
    mo_held leaves;      /* embeddings that are an input with a gradient */
    mo_held frames;      /* what the model's code holds until it returns */
    mo_held outputs;     /* what its outputs hold: the cache, logits */
    mo_held block;       /* what attention's code holds until it returns */
    mo_held layer;       /* what a layer's code holds until it returns */
    mo_held inputs;      /* FSDP's casts of the model's inputs, held until it returns */
    mo_layer_info *info; /* of the layers of the plan */
    uint64_t saved;      /* activations when the forward of the layers ends */
    double again_flops;  /* of what is run again */
    /* The layers' schedule where checkpointing is by budget; of the plan. */
    memopt_schedule *schedule;
    uint64_t step_bytes; /* that the optimizer's step makes */
    int frozen;          /* weights made now do not learn */
    uint64_t returned;   /* bytes of what the model returns but for its cache */
    int unused;          /* nor those that ask for it: what they make is not in the loss */
};

/* --- weights (weights.c) --------------------------------------------------------------------- */
/* A weight of rows × columns (columns 0: a vector of rows). */
mo_value mo_play_weight(mo_play *p, uint64_t rows, uint64_t columns);
/* The same with another first size, which FSDP shares out: so many equal parts. */
mo_value mo_play_weight_of(mo_play *p, uint64_t rows, uint64_t columns, uint64_t chunks);
mo_linear mo_play_linear(mo_play *p, uint64_t in, uint64_t out, int bias, uint32_t target);
mo_norm mo_play_norm(mo_play *p, uint64_t size, enum mo_norm_kind kind);
void mo_play_buffer(mo_play *p, uint64_t bytes);
/* Holds a value until mo_play_let_go: takes over the caller's handle. */
void mo_play_hold(mo_play *p, mo_held *held, mo_value v);
/* Holds a tensor that the model returns until its outputs are given up: takes it over. */
void mo_play_returns(mo_play *p, mo_value v);
/* Drops what was held after the first `from`. */
void mo_play_let_go(mo_play *p, mo_held *held, uint64_t from);

/* --- weights that are shared out (shard.c); without, these do nothing --------------------------
 */
memopt_status mo_shard_init(mo_play *p, uint64_t layers);
void mo_shard_end(mo_play *p);
/* The group of a layer's weights. */
uint32_t mo_shard_group(const mo_play *p, uint32_t layer);
/* Bytes of an element of a gathered weight. */
uint32_t mo_shard_width(const mo_play *p, const mo_weight *w);
/* Whether gradients of micro-batches before the last are not reduced: they are whole, in the type
 * they rest in, until the last one's are. */
int mo_shard_waits(const mo_play *p);
/* Elements of a weight on one device. */
uint64_t mo_shard_count(const mo_play *p, const mo_weight *w);
/* Puts a weight into its layer's group. */
void mo_shard_add(mo_play *p, const mo_weight *w);
/* Gradients of earlier micro-batches. */
void mo_shard_gradients(mo_play *p);
/* Around a layer's forward; the root's is layer 0. */
void mo_shard_forward(mo_play *p, uint32_t layer);
void mo_shard_forward_end(mo_play *p, uint32_t layer);
/* The same around its backward, called from it when the gradients of these are there. */
void mo_shard_hook_output(mo_play *p, uint32_t layer, mo_value x);
void mo_shard_hook_input(mo_play *p, uint32_t layer, mo_value x);
/* Forward has ended with the loss. */
void mo_shard_loss(mo_play *p, mo_value loss);
/* Around a layer's backward that a schedule runs. */
void mo_shard_backward(mo_play *p, uint32_t layer);
void mo_shard_backward_end(mo_play *p, uint32_t layer);
/* Backward has ended. */
void mo_shard_finish(mo_play *p);

/* --- DeepSpeed's ZeRO (deepspeed.c); without, these do nothing but for start and step ------------
 */
memopt_status mo_engine_init(mo_play *p, uint64_t layers);
void mo_engine_end(mo_play *p);
/* Whether weights are there only while they are gathered. */
int mo_engine_shares_weights(const mo_play *p);
/* What it keeps: weights, states, gradients of earlier micro-batches. */
void mo_engine_start(mo_play *p);
/* Before a layer's forward, and from its output on back, its backward. */
void mo_engine_forward(mo_play *p, uint32_t layer);
void mo_engine_forward_end(mo_play *p, uint32_t layer);
void mo_engine_hook_output(mo_play *p, uint32_t layer, mo_value x);
/* Backward has ended. */
void mo_engine_finish(mo_play *p);
/* The optimizer's step. */
void mo_engine_step(mo_play *p);

/* --- the model (build.c) ---------------------------------------------------------------------- */
memopt_status mo_play_build(mo_play *p, const mo_settings *s);
void mo_play_end(mo_play *p);

/* --- running (stem.c, block.c, attention.c, mlp.c, experts.c, head.c) ------------------------- */
/* Inputs of the layers. */
mo_value mo_play_stem(mo_play *p);
/* Drops the tables and masks that the layers share. */
void mo_play_drop_tables(mo_play *p);
/* Drops the mask over the scores and the rotary tables alone. */
void mo_play_drop_mask(mo_play *p);
/* Whether a stack's layer is run again in backward. */
int mo_block_again(const mo_play *p, uint64_t number);
/* Runs a stack over x, which it takes over. */
mo_value mo_play_stack(mo_play *p, mo_stack *s, mo_value x);
mo_value mo_block_run(mo_tape *t, void *layer, const mo_value *inputs);
mo_value mo_attention(mo_layer *l, mo_value x);
mo_value mo_mlp(mo_layer *l, mo_value x);
mo_value mo_experts(mo_layer *l, mo_value x);
mo_value mo_play_head(mo_play *p, mo_value x);

/* Forward, loss and backward by the play's schedule (budget.c). */
void mo_play_scheduled(mo_play *p);
/* The schedule of a play's layers, from what they took in a step that was played without. */
memopt_status mo_play_schedule(const mo_play *played, uint64_t budget, memopt_schedule **out);

/* Forward has ended with the loss: what wrappers do then (step.c). */
void mo_play_wrapped(mo_play *p, mo_value loss);
/* A whole step (step.c): weights, states, forward, backward, optimizer. */
memopt_status mo_play_step(mo_play *p);

#endif
