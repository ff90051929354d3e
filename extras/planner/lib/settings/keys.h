/*
 * The settings of a plan, as one table: the structs, the parser, its messages, the JSON and the
 * documentation all come from it.
 *
 * X(kind, name, limit, help). A value of 0 is the default. Kinds:
 *   COUNT   a whole number up to `limit`; k, M, B and T may follow
 *   SIZE    bytes, with a unit or without; up to `limit`
 *   SHARE   a number from 0 to below 1
 *   NUMBER  a number from 0 to `limit`
 *   CHOICE  one of the words of `limit`; the first one is the default
 *   FLAGS   some of the words of `limit`, separated by commas
 *   SWITCH  yes or no
 *   DTYPE   fp32, fp16 or bf16
 */
#ifndef MO_PLAN_KEYS_H
#define MO_PLAN_KEYS_H

#include "memopt/base.h"

#include <stddef.h>

#define MO_PLAN_ACTIVATIONS_WORDS "default|silu|gelu|gelu-new|relu|quick-gelu|tanh|gelu-fast"

/* clang-format off */
#define MO_PLAN_MODEL_KEYS(X)                                                                      \
    X(CHOICE, family, "llama|mixtral|gpt2|opt|bert|vit", "family of the layers' code")             \
    X(CHOICE, variant, "none|qwen-moe|roberta",                                                    \
      "code that differs from the family's own")                                                   \
    X(CHOICE, head, "default|causal-lm|masked-lm|sequence|token|image|contrastive|none",           \
      "what follows the layers; default: causal LM, BERT: masked LM, ViT: images")                 \
    X(COUNT, parameters, 1125899906842624, "total of weights, if the shape is not known")          \
    X(COUNT, layers, 4096, "layers of the model; default: hidden / 64")                            \
    X(COUNT, hidden, 1048576, "width of the hidden states")                                        \
    X(COUNT, heads, 1048576, "attention heads; default: hidden / 64")                              \
    X(COUNT, kv_heads, 1048576, "key and value heads; default: heads")                             \
    X(COUNT, head_dim, 1048576, "width of a head; default: hidden / heads")                        \
    X(COUNT, ffn, 8388608,                                                                         \
      "width of the MLP or of an expert; default: 4 x hidden, gated: 8/3 x hidden up to 256")      \
    X(COUNT, vocabulary, 268435456, "tokens; default: the family's")                               \
    X(COUNT, positions, 268435456, "learned positions; default: the family's")                     \
    X(COUNT, token_types, 268435456, "token types of BERT; default: 2")                            \
    X(COUNT, embedding, 1048576, "width of OPT's token embeddings; default: hidden")               \
    X(COUNT, labels, 268435456, "classes of a classification head; default: 2, images: 1000")      \
    X(COUNT, experts, 4096, "experts per layer; default: none, Mixtral: 8")                        \
    X(COUNT, experts_per_token, 4096, "experts that a token visits; default: 2")                   \
    X(CHOICE, activation, MO_PLAN_ACTIVATIONS_WORDS, "activation of the MLP")                      \
    X(SWITCH, gated, 0, "the MLP multiplies gate and up")                                          \
    X(SWITCH, tied, 0, "the head shares the embeddings' weight")                                   \
    X(SWITCH, attention_bias, 0, "biases of query, key and value")                                 \
    X(SWITCH, output_bias, 0, "bias of attention's output projection")                             \
    X(SWITCH, mlp_bias, 0, "biases of the MLP")                                                    \
    X(SWITCH, qk_norm, 0, "norms of queries and keys")                                             \
    X(SWITCH, pooler, 0, "the pooler of BERT and ViT exists")                                      \
    X(SWITCH, post_norm, 0, "norms follow attention and MLP, and none is at the end")              \
    X(COUNT, sliding_window, 268435456, "tokens that attention reaches back; default: all")        \
    X(SHARE, embedding_dropout, 1, "dropout after the embeddings")                                 \
    X(SHARE, attention_dropout, 1, "dropout of attention weights")                                 \
    X(SHARE, hidden_dropout, 1, "dropout after attention and MLP")                                 \
    X(SHARE, activation_dropout, 1, "dropout inside the MLP")                                      \
    X(COUNT, image_size, 65536, "pixels of an image's side; default: 224")                         \
    X(COUNT, patch_size, 65536, "pixels of a patch's side; default: 16")                           \
    X(COUNT, channels, 4096, "colours; default: 3")                                                \
    X(COUNT, vision_layers, 4096, "layers of a vision tower; default: no tower")                   \
    X(COUNT, vision_hidden, 1048576, "width of the tower; default: 1024")                          \
    X(COUNT, vision_heads, 1048576, "heads of the tower; default: its width / 64")                 \
    X(COUNT, vision_ffn, 8388608, "MLP of the tower; default: 4 x its width")                      \
    X(COUNT, vision_tokens, 16777216, "tokens that an image adds; default: its patches")           \
    X(CHOICE, vision_mode, "trained|frozen", "whether the tower learns; its projector does")       \
    X(CHOICE, vision_activation, MO_PLAN_ACTIVATIONS_WORDS, "default: quick-gelu, as CLIP")        \
    X(COUNT, vision_skipped, 4096, "last layers of the tower whose output is not used")            \
    X(COUNT, lora_rank, 1048576, "rank of LoRA adapters; default: all weights learn")              \
    X(FLAGS, lora_targets, "query|key|value|output|gate|up|down|head|all-linear",                  \
      "layers with adapters; all-linear: all but the head; default: query,value")                  \
    X(SHARE, lora_dropout, 1, "dropout before the adapters")                                       \
    X(CHOICE, quantize, "none|nf4|nf4-double|int8|gptq|awq",                                       \
      "how linear layers under LoRA are stored; nf4-double: absmax too (bitsandbytes)")

#define MO_PLAN_RUN_KEYS(X)                                                                        \
    X(COUNT, batch, 16777216, "samples of a micro-batch on one device; default: 1, or what fits")  \
    X(COUNT, sequence, 16777216, "tokens of the longest sample; default: 512")                     \
    X(COUNT, sequence_mean, 16777216, "mean tokens of a sample, for mean_bytes")                   \
    X(COUNT, images, 16777216, "images or frames per sample")                                      \
    X(COUNT, positives, 16777216, "contrastive: positives per sample; default: 1")                 \
    X(COUNT, negatives, 16777216, "contrastive: negatives per sample")                             \
    X(COUNT, accumulation, 16777216, "micro-batches per step; default: 1")                         \
    X(COUNT, world_size, 1048576, "devices; default: 1")                                           \
    X(DTYPE, weight_dtype, 0, "of the weights; default: fp32")                                     \
    X(DTYPE, compute_dtype, 0, "autocast to it; default: none")                                    \
    X(DTYPE, gradient_dtype, 0, "of gradients at rest; default: the weights'")                     \
    X(DTYPE, master_dtype, 0, "of a master copy of the weights; default: no copy")                 \
    X(DTYPE, state_dtype, 0, "of 32-bit optimizer states")                                         \
    X(DTYPE, adapter_dtype, 0, "of LoRA's adapters; default: fp32, as PEFT keeps them")            \
    X(DTYPE, base_dtype, 0,                                                                        \
      "nf4 computes in it (bnb_4bit_compute_dtype); default: autocast's, else the weights'")       \
    X(DTYPE, image_dtype, 0, "of the images of a batch; default: fp32")                            \
    X(DTYPE, gather_dtype, 0, "FSDP gathers weights in it and computes in it")                     \
    X(CHOICE, optimizer,                                                                           \
      "adamw|adamw-foreach|adamw-fused|adamw8bit|adamw4bit|adamwfp8|adamw-memopt|lion|lion8bit|"   \
      "sgd|sgd-momentum|sgd8bit|adafactor|none", "the optimizer")                                  \
    X(CHOICE, attention, "sdpa|eager|flash", "how attention is computed")                          \
    X(CHOICE, checkpointing, "none|full|selective|every", "layers that run again in backward")     \
    X(COUNT, checkpoint_every, 16777216, "for every: one layer of so many is kept; default: 2")    \
    X(FLAGS, offload, "activations|optimizer", "what goes to the host")                            \
    X(SIZE, host_limit, 1125899906842624, "offload: what exceeds it goes to disk")                 \
    X(CHOICE, sharding, "ddp|zero1|zero2|zero3", "what the devices divide among them")             \
    X(CHOICE, loss, "plain|fused|chunked", "how the loss over the vocabulary is computed")         \
    X(SWITCH, use_cache, 0, "decoders fill their cache of keys and values; default: yes")          \
    X(SWITCH, attention_mask, 0, "yes: the batch is padded; no: it has no mask")                   \
    X(COUNT, min_8bit_size, 1125899906842624, "smaller tensors keep 32-bit states; default: 4096") \
    X(SWITCH, bucket_view, 0, "gradients are views of DDP's buckets; default: no")                 \
    X(SWITCH, gradient_sync, 0, "no: FSDP reduces with the last micro-batch only; default: yes")

#define MO_PLAN_CARD_KEYS(X)                                                                       \
    X(SIZE, capacity, 1125899906842624, "bytes of memory; default: no limit")                      \
    X(NUMBER, margin, 1, "share of the capacity to use; default: 0.85")                            \
    X(CHOICE, device, "default|cpu|cuda|hip",                                                      \
      "whose kernels and overhead to count; default: cuda with a capacity, else cpu")              \
    X(SWITCH, bf16, 0, "it computes in bf16; default: yes")                                        \
    X(CHOICE, allocator, "classic|expandable", "segments of the caching allocator")                \
    X(SIZE, context_bytes, 1125899906842624, "the driver's context; default: 450 MiB, HIP: 300")   \
    X(SIZE, workspace_bytes, 1125899906842624, "workspaces of products; default: 72 MiB")          \
    X(SIZE, other_bytes, 1125899906842624, "memory that other programs use")                       \
    X(SWITCH, cuda_graphs, 0, "steps are captured: a private pool of activations; default: no")    \
    X(SWITCH, unified, 0, "its memory is the host's own (GB10, APUs): no copy saves; default: no") \
    X(NUMBER, link_bytes_per_second, 1e18, "host link, one way; default: 12e9")                    \
    X(NUMBER, disk_bytes_per_second, 1e18, "disk; default: 2e9")                                   \
    X(NUMBER, flops_per_second, 1e30, "sustained rate of training; default: 60e12")

#define MO_PLAN_TARGET_KEYS(X)                                                                     \
    X(COUNT, effective_batch, 1099511627776, "samples of a step on all devices")                   \
    X(COUNT, max_micro_batch, 65536, "largest micro-batch to look for")                            \
    X(COUNT, min_sequence, 16777216, "shortest sequence to propose; default: an eighth")           \
    X(SWITCH, keep_batch, 0, "do not propose a smaller run.batch")                                 \
    X(SWITCH, keep_dtype, 0, "do not propose another dtype")                                       \
    X(SWITCH, keep_optimizer, 0, "do not propose another optimizer")                               \
    X(SWITCH, keep_training, 0, "propose no other training: 16-bit weights, LoRA, shorter samples")  \
    X(SWITCH, all_changes, 0, "list every change, also if the run fits")
/* clang-format on */

#define MO_PLAN_TYPE_COUNT uint64_t
#define MO_PLAN_TYPE_SIZE uint64_t
#define MO_PLAN_TYPE_SHARE double
#define MO_PLAN_TYPE_NUMBER double
#define MO_PLAN_TYPE_CHOICE uint32_t
#define MO_PLAN_TYPE_FLAGS uint32_t
#define MO_PLAN_TYPE_SWITCH uint32_t
#define MO_PLAN_TYPE_DTYPE memopt_dtype
#define MO_PLAN_FIELD(kind, name, limit, help) MO_PLAN_TYPE_##kind name;

typedef struct mo_plan_model {
    MO_PLAN_MODEL_KEYS(MO_PLAN_FIELD)
} mo_plan_model;

typedef struct mo_plan_run {
    MO_PLAN_RUN_KEYS(MO_PLAN_FIELD)
} mo_plan_run;

typedef struct mo_plan_card {
    MO_PLAN_CARD_KEYS(MO_PLAN_FIELD)
} mo_plan_card;

typedef struct mo_plan_target {
    MO_PLAN_TARGET_KEYS(MO_PLAN_FIELD)
} mo_plan_target;

/* What the text of the settings says; 0 where it says nothing. */
typedef struct mo_plan_given {
    mo_plan_model model;
    mo_plan_run run;
    mo_plan_card card;
    mo_plan_target target;
} mo_plan_given;

/* One row of the table. */
typedef struct mo_plan_key {
    const char *name; /* "model.hidden"; the first member, for mo_nearest_word */
    const char *accepts;
    const char *help;
    double limit;
    size_t offset; /* in mo_plan_given */
    int type;      /* of keys.c */
} mo_plan_key;

/* "count", "size" …: the kind as a word. */
const char *mo_plan_key_kind(const mo_plan_key *key);
/* The row of an index, or NULL after the last. */
const mo_plan_key *mo_plan_key_at(uint64_t index);
/* The row of a field of mo_plan_given. */
const mo_plan_key *mo_plan_key_of(size_t offset);

/* Reads "key=value" entries that are separated by line ends or semicolons. INVALID_ARGUMENT names
 * the key, the value and what is accepted; *out is untouched then. */
memopt_status mo_plan_parse(const char *text, mo_plan_given *out);

/* INVALID_ARGUMENT for the first value that is above its limit: for values that were filled in. */
memopt_status mo_plan_check_limits(const mo_plan_given *given);

/* INVALID_ARGUMENT with the numbers unless value ≤ high. */
memopt_status mo_plan_at_most(const char *name, uint64_t value, const char *other, uint64_t high);

/* Writes a value as the parser reads it; 0 where there is none: it is the default. */
int mo_plan_key_text(const mo_plan_key *key, const mo_plan_given *given, char *text, size_t size);
/* Whether JSON puts its text into quotes. */
int mo_plan_key_is_number(const mo_plan_key *key);

/* A number as JSON and the parser read it, whatever the locale. */
void mo_plan_number_text(double number, char *text, size_t size);

/* The word of a CHOICE's value, for messages. */
const char *mo_plan_word(size_t offset, uint32_t value, char text[32]);
#define MO_PLAN_WORD(field, value)                                                                 \
    mo_plan_word(offsetof(mo_plan_given, field), (value), (char[32]){0})
/* "fp32" of a dtype. */
const char *mo_plan_dtype_word(memopt_dtype dtype);

#endif
