/**
 * @file plan.h
 * @brief What a training step of a model needs, before it runs; what fits a device; and what to
 *        change where nothing fits.
 *
 * A plan is made of three descriptions: the model (::memopt_plan_model), the run
 * (::memopt_plan_run) and the card (::memopt_plan_card). Nothing is allocated on a device and no
 * device is opened: the training step is *played* with sizes only. The layers of the model are
 * written down as the operations that PyTorch's autograd sees for the model families of the
 * `transformers` package; each operation says what it makes, what it keeps for backward and what
 * its backward makes. Playing the step forward, backward and through the optimizer gives the bytes
 * alive after every operation.
 *
 * **What is exact.** Without offload of states, memopt_plan_bytes::total less
 * memopt_plan_bytes::overhead is what a tracker of live tensor bytes measures on a step of such a
 * model (`transformers` 5.23, torch 2.15, states of the optimizer already there, gradients set to
 * None after the step, the loss alone kept of the model's outputs): parameters, gradients,
 * optimizer states, what autograd keeps, logits, the batch. Numbers of a few elements are counted
 * from above, so the peak is not below the truth, and in the families listed above it by less than
 * a thousandth (tests/plan measures it). memopt_plan_report::held_bytes is for programs that hold
 * the outputs.
 *
 * **What is an upper bound.** Attention "sdpa" with dropout where the device is not told or is the
 * CPU, which has no flash kernel for it; mixtures of experts are counted as
 * the grouped products that `transformers` runs by default, for which the routing does not matter;
 * everything in memopt_plan_bytes::overhead; what DeepSpeed's stage 3 gathers: of a layer's forward
 * and of its backward the most is there throughout. Of several devices it is the fullest that is
 * told.
 *
 * **What is an estimate.** Descriptions by totals alone: a Llama-like model with these totals.
 * Contrastive heads and the fused loss: played in the same
 * way, but of no particular code. Offload of activations: every saved value of 1 KiB or more goes
 * to the host and comes back for the operation that needs it, one at a time.
 *
 * **What is assumed about time.** A time factor is time relative to the same run without
 * recomputation and offload. Backward takes twice forward; recomputation adds the forward of what
 * is recomputed; copies to the host overlap with compute and add what the link cannot hide. Each
 * report says its assumption in words.
 *
 * **Threads.** Functions are thread-safe; one thread at a time per handle, from any thread. No
 * stream or device is touched.
 */
#ifndef MEMOPT_PLAN_H
#define MEMOPT_PLAN_H

#include <memopt/checkpoint.h>
#include <memopt/optim.h>

MEMOPT_BEGIN_DECLS

/** @brief What a run of a model takes. */
typedef struct memopt_plan memopt_plan;

/** @brief What fits, and the changes that make it fit. */
typedef struct memopt_plan_solution memopt_plan_solution;

/* --- the model --- */

/** @brief The family whose code the layers follow. */
typedef enum memopt_plan_family {
    MEMOPT_PLAN_LLAMA = 0,   /**< Pre-norm decoder: RMS norms, rotary positions, gated MLP without
                                  biases: Llama, Mistral, Qwen2 and Qwen3 and their kin. */
    MEMOPT_PLAN_MIXTRAL = 1, /**< The same with a mixture of experts in place of the MLP. */
    MEMOPT_PLAN_GPT2 = 2,    /**< Pre-norm decoder: layer norms, learned positions, fused QKV. */
    MEMOPT_PLAN_OPT = 3,     /**< Pre-norm decoder: layer norms, learned positions, biases. */
    MEMOPT_PLAN_BERT = 4,    /**< Post-norm encoder with token types. */
    MEMOPT_PLAN_VIT = 5      /**< Pre-norm encoder of image patches. */
} memopt_plan_family;

/** @brief What is on top of the layers. */
typedef enum memopt_plan_head {
    MEMOPT_PLAN_HEAD_DEFAULT = 0,     /**< Decoders: causal LM; BERT: masked LM; ViT: images. */
    MEMOPT_PLAN_HEAD_CAUSAL_LM = 1,   /**< Next token over the vocabulary. */
    MEMOPT_PLAN_HEAD_MASKED_LM = 2,   /**< Token over the vocabulary, with BERT's transform. */
    MEMOPT_PLAN_HEAD_SEQUENCE = 3,    /**< One of memopt_plan_model::labels per sequence. */
    MEMOPT_PLAN_HEAD_TOKEN = 4,       /**< One of memopt_plan_model::labels per token. */
    MEMOPT_PLAN_HEAD_IMAGE = 5,       /**< One of memopt_plan_model::labels per image. */
    MEMOPT_PLAN_HEAD_CONTRASTIVE = 6, /**< Pooled vectors, scores of anchors against all positives
                                           and negatives of the micro-batch. */
    MEMOPT_PLAN_HEAD_NONE = 7         /**< The mean of the last hidden states is the loss. */
} memopt_plan_head;

/** @brief The activation of the MLP, by what autograd keeps for it. */
typedef enum memopt_plan_activation {
    MEMOPT_PLAN_ACTIVATION_DEFAULT = 0,    /**< SiLU, GPT-2: new GELU, OPT: ReLU, else GELU. */
    MEMOPT_PLAN_ACTIVATION_SILU = 1,       /**< One operation; keeps its input. */
    MEMOPT_PLAN_ACTIVATION_GELU = 2,       /**< One operation (erf or tanh); keeps its input. */
    MEMOPT_PLAN_ACTIVATION_GELU_NEW = 3,   /**< Written in Python: eight operations. */
    MEMOPT_PLAN_ACTIVATION_RELU = 4,       /**< Keeps its output. */
    MEMOPT_PLAN_ACTIVATION_QUICK_GELU = 5, /**< x · sigmoid(1.702 x) in Python. */
    MEMOPT_PLAN_ACTIVATION_TANH = 6,       /**< Keeps its output. */
    MEMOPT_PLAN_ACTIVATION_GELU_FAST = 7   /**< The FastGELU of `transformers`, in Python. */
} memopt_plan_activation;

/** @brief Yes or no, or what the family does. */
typedef enum memopt_plan_choice {
    MEMOPT_PLAN_DEFAULT = 0, /**< As the family's configuration does by default. */
    MEMOPT_PLAN_NO = 1,      /**< No. */
    MEMOPT_PLAN_YES = 2      /**< Yes. */
} memopt_plan_choice;

/** @brief Whose code it is, where it differs from that of its family. */
typedef enum memopt_plan_kin {
    MEMOPT_PLAN_KIN_NONE = 0, /**< Theirs; Mistral, Qwen2 and 3 and SmolLM3 have it. */
    MEMOPT_PLAN_KIN_GEMMA =
        1,                    /**< Gemma: norms are weighted in f32, by one more than the weight. */
    MEMOPT_PLAN_KIN_PHI3 = 2, /**< Phi-3: queries, keys and values are slices of one projection,
                                   gate and up halves of another. */
    MEMOPT_PLAN_KIN_QWEN_MOE = 3, /**< Qwen3's mixture: the router's weights are of the layers'
                                       type, where Mixtral's are f32. */
    MEMOPT_PLAN_KIN_GRANITE = 4,  /**< Granite: what attention and MLP add is scaled. */
    MEMOPT_PLAN_KIN_ROBERTA = 5   /**< RoBERTa and its kin: positions are numbered sample by sample.
                                   */
} memopt_plan_kin;

/** @brief Linear layers that LoRA adapts; bits of memopt_plan_model::lora_targets. */
typedef enum memopt_plan_target {
    MEMOPT_PLAN_TARGET_QUERY = 1,  /**< Query projection. */
    MEMOPT_PLAN_TARGET_KEY = 2,    /**< Key projection. */
    MEMOPT_PLAN_TARGET_VALUE = 4,  /**< Value projection. */
    MEMOPT_PLAN_TARGET_OUTPUT = 8, /**< Output projection of attention. */
    MEMOPT_PLAN_TARGET_GATE = 16,  /**< Gate projection of a gated MLP. */
    MEMOPT_PLAN_TARGET_UP = 32,    /**< Up projection, or the first layer of a plain MLP. */
    MEMOPT_PLAN_TARGET_DOWN = 64,  /**< Down projection, or the second layer of a plain MLP. */
    MEMOPT_PLAN_TARGET_HEAD = 128  /**< The head over the vocabulary. */
} memopt_plan_target;

/** @brief What of a vision tower learns. */
typedef enum memopt_plan_tower_mode {
    MEMOPT_PLAN_TOWER_TRAINED = 0, /**< All of it. */
    MEMOPT_PLAN_TOWER_FROZEN = 1   /**< Nothing: it runs without autograd, unless layers run again;
                                        its projector learns. */
} memopt_plan_tower_mode;

/**
 * @brief A model. Counts of zero are filled in from others or by the family's default; what was
 *        filled in is told by memopt_plan_get_settings().
 *
 * Needed is either hidden or parameters. From parameters alone: a Llama-like model with 64-wide
 * heads whose depth is about hidden / 64, with the vocabulary of 32000 unless one is given.
 */
typedef struct memopt_plan_model {
    size_t struct_size;         /**< sizeof(memopt_plan_model). */
    uint32_t family;            /**< A ::memopt_plan_family. */
    uint32_t head;              /**< A ::memopt_plan_head. */
    uint64_t parameters;        /**< Weights in all, where only totals are known: hidden, layers and
                                     ffn that are 0 are chosen to meet it, and a difference that
                                     remains is spread over the layers. 0: what the shape gives. */
    uint64_t layers;            /**< Layers, at most 4096. */
    uint64_t hidden;            /**< Width. */
    uint64_t heads;             /**< Attention heads; 0: hidden / 64, at least 1. */
    uint64_t kv_heads;          /**< Key and value heads, a divisor of heads; 0: heads. */
    uint64_t head_dim;          /**< Width of a head; 0: hidden / heads. */
    uint64_t ffn;               /**< Width of the MLP; of an expert where there are experts. 0: 4 ×
                                     hidden, gated: 8/3 × hidden rounded up to 256. */
    uint64_t vocabulary;        /**< Tokens; 0: the family's (32000, GPT-2 50257, OPT 50272, BERT
                                     30522). */
    uint64_t positions;         /**< Learned positions; 0: the family's (GPT-2 1024, OPT 2048, BERT
                                     512), and not below the run's sequence. */
    uint64_t token_types;       /**< BERT's; 0: 2. */
    uint64_t embedding;         /**< Width of the token embeddings where they are projected to
                                     hidden (OPT); 0: hidden. */
    uint64_t labels;            /**< Classes of a classification head; 0: 2, images: 1000. */
    uint64_t experts;           /**< Experts per layer; 0: none (Mixtral: 8). */
    uint64_t experts_per_token; /**< Of them each token visits; 0: 2. */
    uint32_t activation;        /**< A ::memopt_plan_activation. */
    uint32_t gated;             /**< A ::memopt_plan_choice: gate · up in the MLP. */
    uint32_t tied;              /**< A ::memopt_plan_choice: the head shares the embeddings' weight
                                     (Llama, Mixtral: no by default; GPT-2, OPT, BERT: yes). */
    uint32_t attention_bias;    /**< A ::memopt_plan_choice: biases of query, key and value. */
    uint32_t output_bias;       /**< A ::memopt_plan_choice: bias of attention's output projection;
                                     default: as attention_bias for Llama's kin (Qwen2: no). */
    uint32_t mlp_bias;          /**< A ::memopt_plan_choice: biases of the MLP. */
    uint32_t qk_norm;           /**< A ::memopt_plan_choice: norms of queries and keys per head
                                     (Qwen3). */
    uint32_t pooler;            /**< A ::memopt_plan_choice: BERT's and ViT's pooler is there. */
    uint64_t sliding_window;    /**< Attention reaches so far back; 0: all the way. */
    double embedding_dropout;   /**< Dropout after the embeddings; only whether it is > 0 counts. */
    double attention_dropout;   /**< Dropout of attention weights. */
    double hidden_dropout;      /**< Dropout after attention and MLP. */
    double activation_dropout;  /**< Dropout between the layers of the MLP. */
    uint64_t image_size;        /**< ViT and vision tower: pixels of a side, which come as f32;
                                       0: 224. */
    uint64_t patch_size;        /**< Pixels of a patch's side; 0: 16. */
    uint64_t channels;          /**< Colours; 0: 3. */
    uint64_t vision_layers;     /**< A vision tower's layers; 0: no tower. */
    uint64_t vision_hidden;     /**< Its width; 0: 1024. */
    uint64_t vision_heads;      /**< Its heads; 0: vision_hidden / 64. */
    uint64_t vision_ffn;        /**< Its MLP; 0: 4 × vision_hidden. */
    uint64_t vision_tokens;     /**< Tokens that an image or frame adds to the sequence; 0: its
                                     patches. */
    uint32_t vision_mode;       /**< A ::memopt_plan_tower_mode. */
    uint32_t lora_targets;      /**< Bits of ::memopt_plan_target; 0: query and value. */
    uint64_t lora_rank;         /**< Rank of LoRA adapters; all else is frozen. 0: no LoRA, all
                                     weights learn. */
    double lora_dropout;        /**< Dropout before the adapters. */
    double router_jitter;       /**< Noise on the router's input; 0: none. */
    uint32_t post_norm; /**< A ::memopt_plan_choice: norms after attention and MLP, none at the
                             end (BERT; OPT 350M). */
    uint32_t kin;       /**< A ::memopt_plan_kin. */
    uint32_t vision_activation; /**< A ::memopt_plan_activation of the vision tower; default:
                                   CLIP's, quick GELU. */
    uint32_t vision_skipped;    /**< Last layers of the tower whose output nobody takes: Llava takes
                                     that of the last but one, so 1. They run, but do not learn. */
} memopt_plan_model;

/** @brief Initialiser of ::memopt_plan_model. */
#define MEMOPT_PLAN_MODEL_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_plan_model), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0              \
    }

/* --- the run --- */

/** @brief The optimizer, by the states it keeps and what its step makes. */
typedef enum memopt_plan_optimizer {
    MEMOPT_PLAN_ADAMW = 0,         /**< torch.optim.AdamW, one tensor at a time. */
    MEMOPT_PLAN_ADAMW_FOREACH = 1, /**< The same with foreach: temporaries of all weights. */
    MEMOPT_PLAN_ADAMW_FUSED = 2,   /**< The same fused: no temporaries. */
    MEMOPT_PLAN_ADAMW_8BIT = 3,    /**< Ours: two 8-bit moments. */
    MEMOPT_PLAN_ADAMW_4BIT = 4,    /**< Ours: two 4-bit moments. */
    MEMOPT_PLAN_ADAMW_FP8 = 5,     /**< Ours: two e4m3 moments. */
    MEMOPT_PLAN_ADAMW_OURS = 6,    /**< Ours: two 32-bit moments. */
    MEMOPT_PLAN_LION = 7,          /**< Ours: one 32-bit moment. */
    MEMOPT_PLAN_LION_8BIT = 8,     /**< Ours: one 8-bit moment. */
    MEMOPT_PLAN_SGD = 9,           /**< torch.optim.SGD without momentum: no state. */
    MEMOPT_PLAN_SGD_MOMENTUM = 10, /**< torch.optim.SGD with momentum. */
    MEMOPT_PLAN_SGD_8BIT = 11,     /**< Ours: 8-bit momentum. */
    MEMOPT_PLAN_ADAFACTOR = 12,    /**< Factored second moment, no first. */
    MEMOPT_PLAN_NO_OPTIMIZER = 13  /**< Forward and backward only. */
} memopt_plan_optimizer;

/** @brief How attention is computed. */
typedef enum memopt_plan_attention {
    MEMOPT_PLAN_ATTENTION_SDPA = 0,  /**< torch's scaled_dot_product_attention: a flash kernel where
                                          there is one (memopt_plan_card::device). */
    MEMOPT_PLAN_ATTENTION_EAGER = 1, /**< Scores are materialised: sequence² per head. */
    MEMOPT_PLAN_ATTENTION_FLASH = 2  /**< A flash kernel whatever the dropout (flash_attn). */
} memopt_plan_attention;

/** @brief Which layers are run again in backward. */
typedef enum memopt_plan_checkpointing {
    MEMOPT_PLAN_CHECKPOINT_NONE = 0,      /**< None. */
    MEMOPT_PLAN_CHECKPOINT_FULL = 1,      /**< Every layer (`gradient_checkpointing`). */
    MEMOPT_PLAN_CHECKPOINT_SELECTIVE = 2, /**< Attention of every layer, between the projections. */
    MEMOPT_PLAN_CHECKPOINT_EVERY = 3,     /**< Of each memopt_plan_run::checkpoint_every layers one
                                               is kept, the others are run again. */
    MEMOPT_PLAN_CHECKPOINT_BUDGET = 4     /**< The fastest schedule of the layers within
                                               memopt_plan_run::checkpoint_budget bytes. */
} memopt_plan_checkpointing;

/** @brief Where tensors that are not needed at once are kept; bits of memopt_plan_run::offload. */
typedef enum memopt_plan_offload {
    MEMOPT_PLAN_OFFLOAD_ACTIVATIONS = 1, /**< What backward needs goes to the host (save_on_cpu). */
    MEMOPT_PLAN_OFFLOAD_OPTIMIZER = 2    /**< Optimizer states and step on the host. */
} memopt_plan_offload;

/** @brief How several devices share the work. */
typedef enum memopt_plan_sharding {
    MEMOPT_PLAN_DDP = 0,   /**< Replicas; gradients reduced in buckets. */
    MEMOPT_PLAN_ZERO1 = 1, /**< Optimizer states are sharded, by whole weights (torch's
                                `ZeroRedundancyOptimizer` with DDP). */
    MEMOPT_PLAN_ZERO2 = 2, /**< Gradients too, and weights outside a step: FSDP that keeps what it
                                gathered from forward to backward (`reshard_after_forward=False`).
                                */
    MEMOPT_PLAN_ZERO3 = 3  /**< Weights too: FSDP that gathers a layer when it is used. */
} memopt_plan_sharding;

/** @brief Whose ZeRO it is. */
typedef enum memopt_plan_engine {
    MEMOPT_PLAN_ENGINE_TORCH = 0,    /**< torch's: as ::memopt_plan_sharding says of each. */
    MEMOPT_PLAN_ENGINE_DEEPSPEED = 1 /**< DeepSpeed's (0.19) of the same stage: flat buffers in
                                          equal parts, a copy of its part of the weights in f32,
                                          whatever they are of, a bucket for gradients. */
} memopt_plan_engine;

/** @brief Where 0 stands for a default: nothing at all, as 0 does to DeepSpeed. */
#define MEMOPT_PLAN_NOTHING UINT64_MAX

/** @brief How the loss over the vocabulary is computed. */
typedef enum memopt_plan_loss {
    MEMOPT_PLAN_LOSS_PLAIN = 0,  /**< As `transformers` does: logits, a copy in fp32, cross
                                      entropy. */
    MEMOPT_PLAN_LOSS_FUSED = 1,  /**< In chunks of tokens, gradients with the loss (Liger and its
                                      kin); logits never exist as a whole. */
    MEMOPT_PLAN_LOSS_CHUNKED = 2 /**< In chunks of tokens, each of them a checkpoint that is run
                                      again in backward. */
} memopt_plan_loss;

/**
 * @brief A run; zero means the default.
 *
 * Pure low precision: weight_dtype bf16, the rest 0. Autocast: weight_dtype f32, compute_dtype
 * bf16; over weights that are bf16 already it leaves norms and losses in f32. Low-precision weights
 * with a master copy: weight_dtype bf16, master_dtype f32.
 */
typedef struct memopt_plan_run {
    size_t struct_size;         /**< sizeof(memopt_plan_run). */
    uint64_t batch;             /**< Samples of a micro-batch on one device; 0: 1. */
    uint64_t sequence;          /**< Tokens of the longest sample, to which a batch is padded;
                                     images of ViT have none. 0: 512, or the model's positions if
                                     fewer. */
    uint64_t sequence_mean;     /**< Mean tokens of a sample, for memopt_plan_report::mean_bytes; 0:
                                     sequence. */
    uint64_t images;            /**< Images or frames per sample, through the vision tower; 0: 1
                                     with a tower. Each adds vision_tokens to the sequence. */
    uint64_t positives;         /**< Contrastive: positives per sample; 0: 1. */
    uint64_t negatives;         /**< Contrastive: negatives per sample. */
    uint64_t accumulation;      /**< Micro-batches per step; 0: 1. From 2 on, gradients are alive
                                     during forward. */
    uint64_t world_size;        /**< Devices; 0: 1. */
    memopt_dtype weight_dtype;  /**< Of weights; 0: f32. */
    memopt_dtype compute_dtype; /**< Autocast to it; 0: none. Of two 16-bit types one must be
                                     chosen for it, for the weights and for the adapters. */
    memopt_dtype gradient_dtype; /**< Of gradients at rest; 0: weight_dtype. Where it is that, those
                                      of adapters are of adapter_dtype. */
    memopt_dtype master_dtype;   /**< Of a master copy of the weights; 0: there is none. Adapters as
                                      wide as it have none. */
    memopt_dtype state_dtype;    /**< Of 32-bit optimizer states; 0: f32 for ours and with a master
                                      copy, else weight_dtype as torch does, and adapter_dtype for
                                      adapters. */
    uint32_t optimizer;          /**< A ::memopt_plan_optimizer. */
    uint32_t attention;          /**< A ::memopt_plan_attention. */
    uint32_t checkpointing;      /**< A ::memopt_plan_checkpointing. */
    uint32_t offload;            /**< Bits of ::memopt_plan_offload. */
    uint32_t sharding;           /**< A ::memopt_plan_sharding. */
    uint32_t loss;               /**< A ::memopt_plan_loss. */
    uint32_t use_cache;          /**< A ::memopt_plan_choice: decoders fill their cache of keys and
                                      values, as their configurations say by default; layers that
                                      run again do not. Default: yes. */
    uint32_t keep_outputs;       /**< A ::memopt_plan_choice: the model's outputs (logits) are held
                                      during backward; default: no, as a trainer that keeps the loss
                                      alone. */
    uint32_t attention_mask;     /**< A ::memopt_plan_choice: yes: the batch is padded and carries a
                                      mask with zeros in it, which is made a mask over the scores;
                                      no: it carries none; default: it carries one, all ones. */
    uint64_t checkpoint_every;   /**< For every-k; 0: 2. */
    uint64_t checkpoint_budget;  /**< For budget: bytes that the chain of layers may take. */
    uint64_t host_limit;         /**< Offload: bytes on the host, the rest goes to disk; 0: all on
                                      the host. */
    uint64_t min_8bit_size;      /**< Smaller tensors keep 32-bit states; 0: 4096. */
    uint64_t bucket_bytes;       /**< Of the bucket in which gradients are reduced, at most 2^50.
                                      DeepSpeed makes it whole, however few they are: its
                                      `reduce_bucket_size` times the bytes of an element; 0: 5e8
                                      elements. DDP's: 0: 25 MiB; what all of its buckets take
                                      together does not hang on it. */
    memopt_dtype image_dtype;    /**< Of the images of a batch, which the model casts to its own;
                                      0: f32, as image processors give them. */
    uint32_t gradient_sync;      /**< A ::memopt_plan_choice, for ZeRO 2 and 3 with accumulation:
                                      no: gradients are reduced with the last micro-batch's alone
                                      and are whole until then (`set_requires_gradient_sync(False)`,
                                      as accelerate and `transformers.Trainer` do); default: yes,
                                      each micro-batch's are, as torch does by itself. */
    memopt_dtype gather_dtype;   /**< ZeRO 2 and 3: what weights and adapters are gathered in, and
                                      so computed in (FSDP's `MixedPrecisionPolicy(param_dtype=)`);
                                      0: each its own type. */
    uint32_t bucket_view;        /**< A ::memopt_plan_choice: gradients are views of DDP's buckets
                                      (`gradient_as_bucket_view`); default: no, as torch's. */
    memopt_dtype adapter_dtype;  /**< Of LoRA's adapters, which compute in it as well where there is
                                      no autocast: their input is cast to it and their output back.
                                      0: f32, whatever the weights are, as PEFT keeps them. */
    uint32_t reserved_end;       /**< Must be 0. */
    uint32_t zero_engine;        /**< A ::memopt_plan_engine: whose ZeRO it is. DeepSpeed has the
                                      stages 1 to 3, on any number of devices. It fixes types:
                                      weights, adapters and gradients are of weight_dtype, states
                                      and the copy of the weights are f32, and there is no autocast
                                      (its own, `torch_autocast`, is not told of here). States on
                                      the host are not told of either, nor, at stage 3, a schedule
                                      of checkpoints by budget. The fields below are read for it
                                      alone. What is not among them is as it is by default, gradients
                                      are of the weights' type where they accumulate, and a step is
                                      not its first ones, in which it learns the order of modules. */
    uint32_t contiguous_gradients; /**< A ::memopt_plan_choice: DeepSpeed copies gradients into its
                                        bucket (`contiguous_gradients`); default: yes. */
    uint32_t overlap_comm;    /**< A ::memopt_plan_choice: DeepSpeed reduces while backward goes
                                   on (`overlap_comm`): with two buckets at stages 1 and 2.
                                   Default: at stage 3. */
    uint32_t reserved_zero;   /**< Must be 0. */
    uint64_t prefetch_bucket; /**< Stage 3: elements that are asked for ahead
                                   (`stage3_prefetch_bucket_size`), or ::MEMOPT_PLAN_NOTHING; 0:
                                   5e7. */
    uint64_t persistence_threshold; /**< Stage 3: weights of no more elements stay gathered
                                         (`stage3_param_persistence_threshold`), or
                                         ::MEMOPT_PLAN_NOTHING; 0: 1e5. */
    uint64_t live_parameters; /**< Stage 3: while so many elements are gathered, none are asked
                                   for ahead (`stage3_max_live_parameters`), or
                                   ::MEMOPT_PLAN_NOTHING; 0: 1e9. */
    uint64_t reuse_distance;  /**< Stage 3: weights stay gathered that are used again within so
                                   many elements (`stage3_max_reuse_distance`), or
                                   ::MEMOPT_PLAN_NOTHING; 0: 1e9. */
    uint64_t sub_group;       /**< Stage 3: elements that a device steps at once
                                   (`sub_group_size`); 0: 1e9. */
} memopt_plan_run;

/** @brief Initialiser of ::memopt_plan_run. */
#define MEMOPT_PLAN_RUN_INIT                                                                       \
    {                                                                                              \
        sizeof(memopt_plan_run), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                             \
    }

/* --- the card --- */

/** @brief What kind of device the run is on: what its kernels need, and its overhead. */
typedef enum memopt_plan_device {
    MEMOPT_PLAN_DEVICE_ANY = 0,  /**< Not told: kernels as on the CPU, which need the most; overhead
                                      of a GPU if capacity is given, else none. */
    MEMOPT_PLAN_DEVICE_CPU = 1,  /**< Host memory: no overhead. */
    MEMOPT_PLAN_DEVICE_CUDA = 2, /**< NVIDIA. */
    MEMOPT_PLAN_DEVICE_HIP = 3   /**< AMD. */
} memopt_plan_device;

/** @brief How the device's memory is handed out. */
typedef enum memopt_plan_allocator {
    MEMOPT_PLAN_ALLOCATOR_CLASSIC = 0,   /**< A caching allocator with segments of fixed size. */
    MEMOPT_PLAN_ALLOCATOR_EXPANDABLE = 1 /**< `expandable_segments:True`. */
} memopt_plan_allocator;

/** @brief A card; zero means the default. */
typedef struct memopt_plan_card {
    size_t struct_size;           /**< sizeof(memopt_plan_card). */
    uint64_t capacity;            /**< Bytes of memory; 0: no limit. */
    double margin;                /**< Share of the capacity that may be used; 0: 0.85. In (0, 1].
                                   */
    uint32_t device;              /**< A ::memopt_plan_device. */
    uint32_t allocator;           /**< A ::memopt_plan_allocator. */
    uint64_t context_bytes;       /**< The driver's context and loaded kernels; 0: 450 MiB with
                                       CUDA or a device that is not told, 300 MiB with HIP; none
                                       on the CPU. */
    uint64_t workspace_bytes;     /**< Workspaces of matrix products; 0: 72 MiB on a GPU. */
    uint64_t other_bytes;         /**< What others use already. */
    double link_bytes_per_second; /**< Host link, one way; 0: 12e9 (PCIe 3 × 16). */
    double disk_bytes_per_second; /**< Disk; 0: 2e9. */
    double flops_per_second;      /**< Sustained rate of training; 0: 60e12. */
} memopt_plan_card;

/** @brief Initialiser of ::memopt_plan_card. */
#define MEMOPT_PLAN_CARD_INIT                                                                      \
    {                                                                                              \
        sizeof(memopt_plan_card), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                     \
    }

/* --- the report --- */

/** @brief The moments of a step. */
typedef enum memopt_plan_phase {
    MEMOPT_PLAN_PHASE_LOAD = 0,     /**< Weights are there, and states of earlier steps. */
    MEMOPT_PLAN_PHASE_FORWARD = 1,  /**< Through the layers, up to the head. */
    MEMOPT_PLAN_PHASE_LOSS = 2,     /**< Head, logits and loss, forward. */
    MEMOPT_PLAN_PHASE_BACKWARD = 3, /**< Backward, that of the loss included. */
    MEMOPT_PLAN_PHASE_STEP = 4      /**< The optimizer's step. */
} memopt_plan_phase;

/** @brief Number of ::memopt_plan_phase values. */
#define MEMOPT_PLAN_PHASES 5

/** @brief Bytes by category at one moment. */
typedef struct memopt_plan_bytes {
    uint64_t parameters;  /**< Weights and buffers of the model, weights gathered for use. */
    uint64_t gradients;   /**< Of weights. */
    uint64_t optimizer;   /**< States, the master copy, and what the step makes. */
    uint64_t activations; /**< What autograd keeps, values and their gradients in flight. */
    uint64_t logits;      /**< Everything as large as tokens × vocabulary (or labels). */
    uint64_t batch;       /**< Inputs and labels. */
    uint64_t overhead;    /**< Context, workspaces, rounding of the allocator, what others use. */
    uint64_t total;       /**< Their sum. */
} memopt_plan_bytes;

/** @brief What a plan says. All bytes are those of one device. */
typedef struct memopt_plan_report {
    size_t struct_size;                           /**< Set by the caller. */
    memopt_plan_bytes peak;                       /**< At the moment when most is alive. */
    memopt_plan_bytes phases[MEMOPT_PLAN_PHASES]; /**< At the fullest moment of each phase. */
    uint32_t peak_phase;                          /**< The ::memopt_plan_phase of the peak. */
    uint32_t fits;                  /**< 1: the peak is within limit_bytes, or there is none. */
    uint64_t limit_bytes;           /**< capacity × margin; 0: no limit. */
    uint64_t mean_bytes;            /**< Peak of a batch of memopt_plan_run::sequence_mean. */
    uint64_t parameter_count;       /**< Weights, each once, of the whole model. */
    uint64_t trainable_count;       /**< Of them learning. */
    uint64_t buffer_bytes;          /**< Buffers of the model; part of parameters. */
    uint64_t activation_bytes;      /**< Kept for backward when the forward of the layers ends. */
    uint64_t host_bytes;            /**< Resident on the host at the peak of it. */
    uint64_t host_pinned_bytes;     /**< Of them page-locked. */
    uint64_t disk_bytes;            /**< On disk. */
    uint64_t link_bytes;            /**< Copied over the host link in a step, both ways. */
    uint64_t samples;               /**< Samples of a step on all devices: batch × accumulation ×
                                         world size. */
    uint64_t layer_count;           /**< Entries for memopt_plan_get_layer(). */
    uint64_t recomputed_layers;     /**< Layers that are run again. */
    double forward_flops;           /**< Of the forward pass of a micro-batch on one device. */
    double time_factor;             /**< Time of a step relative to one without recomputation and
                                         offload, ≥ 1. */
    double recompute_factor;        /**< Of it, by recomputation alone. */
    double offload_factor;          /**< Of it, by copies alone. */
    double step_seconds;            /**< A step at memopt_plan_card::flops_per_second. */
    char peak_reason[256];          /**< What is alive at the peak, in words. */
    char time_assumption[256];      /**< What the factor assumes, in words. */
    char overhead_reason[256];      /**< What overhead is made of, in words. */
    uint64_t held_bytes;            /**< The peak of a program that holds the model's
                                         outputs to the end of the step, as loops do that
                                         keep them in a variable. */
    uint64_t activation_peak_bytes; /**< The most activations alive at any moment of the step, be it
                                     the fullest moment of its phase or not. */
} memopt_plan_report;

/** @brief What an entry of the list of layers is. */
typedef enum memopt_plan_layer_kind {
    MEMOPT_PLAN_LAYER_EMBEDDING = 0, /**< Embeddings (patches, positions, token types). */
    MEMOPT_PLAN_LAYER_BLOCK = 1,     /**< Attention and MLP. */
    MEMOPT_PLAN_LAYER_VISION = 2,    /**< A block of the vision tower. */
    MEMOPT_PLAN_LAYER_HEAD = 3       /**< Last norm, head and loss. */
} memopt_plan_layer_kind;

/** @brief What one layer takes, on one device. */
typedef struct memopt_plan_layer {
    size_t struct_size;         /**< Set by the caller. */
    char name[48];              /**< Such as "layers.3". */
    uint32_t kind;              /**< A ::memopt_plan_layer_kind. */
    uint32_t recomputed;        /**< 1: it is run again in backward. */
    uint64_t parameter_count;   /**< Its weights; a shared one counts where it is first used. */
    uint64_t parameter_bytes;   /**< Bytes of them. */
    uint64_t gradient_bytes;    /**< Of their gradients. */
    uint64_t optimizer_bytes;   /**< Of their states. */
    uint64_t output_bytes;      /**< Of its output. */
    uint64_t saved_bytes;       /**< Kept from its forward to its backward, with its output, on the
                                     device. */
    uint64_t plain_saved_bytes; /**< The same without checkpointing and offload. */
    uint64_t forward_bytes;     /**< All alive at the fullest moment of its forward. */
    uint64_t backward_bytes;    /**< All alive at the fullest moment of its backward. */
    double forward_flops;       /**< Of its forward. */
} memopt_plan_layer;

/**
 * @brief Estimates a run.
 * @param model the model.
 * @param run the run; NULL: defaults.
 * @param card the card; NULL: defaults (no limit, no overhead).
 * @param[out] out_plan the plan; ended by memopt_plan_destroy().
 * @retval MEMOPT_OK done (also where it does not fit: memopt_plan_report::fits).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or a value is out of range or does not go with
 *         another; the message names them with their numbers.
 * @retval MEMOPT_UNSUPPORTED a field of a newer version is set, or what is not told of with
 *         DeepSpeed (memopt_plan_run::zero_engine).
 * @retval MEMOPT_LIMIT_REACHED the budget for checkpointing is below what any schedule needs; the
 *         message says how much that is.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_create(const memopt_plan_model *model,
                                            const memopt_plan_run *run,
                                            const memopt_plan_card *card, memopt_plan **out_plan);

/**
 * @brief Ends a plan.
 * @param plan the plan; NULL is fine.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_destroy(memopt_plan *plan);

/**
 * @brief What a plan says.
 * @param plan the plan.
 * @param[in,out] out_report struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_report(const memopt_plan *plan,
                                                memopt_plan_report *out_report);

/**
 * @brief One layer of a plan, from the embeddings to the head.
 * @param plan the plan.
 * @param index from 0 to memopt_plan_report::layer_count − 1.
 * @param[in,out] out_layer struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such layer.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_layer(const memopt_plan *plan, uint64_t index,
                                               memopt_plan_layer *out_layer);

/**
 * @brief The model, run and card of a plan with every default filled in.
 * @param plan the plan.
 * @param[in,out] out_model struct_size set by the caller; NULL: not asked for.
 * @param[in,out] out_run struct_size set by the caller; NULL: not asked for.
 * @param[in,out] out_card struct_size set by the caller; NULL: not asked for.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT plan is NULL or a struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_settings(const memopt_plan *plan,
                                                  memopt_plan_model *out_model,
                                                  memopt_plan_run *out_run,
                                                  memopt_plan_card *out_card);

/**
 * @brief Adds what a card takes beside tensors to bytes that were measured or traced elsewhere.
 * @param card the card; NULL: defaults (no limit, no overhead).
 * @param[in,out] bytes live tensors by category; overhead and total are set.
 * @param[out] out_limit capacity × margin, or 0 where there is no limit; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT bytes is NULL or a value of the card is out of range.
 * @retval MEMOPT_UNSUPPORTED a field of a newer version is set.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_add_overhead(const memopt_plan_card *card,
                                                  memopt_plan_bytes *bytes, uint64_t *out_limit);

/**
 * @brief A plan of bytes that were measured or traced elsewhere: overhead, the peak and whether it
 *        fits, as memopt_plan_create() tells them. It has no layers, its time factors are 1, and
 *        what is not known is 0: the counts of weights, mean_bytes and held_bytes among them.
 * @param phases ::MEMOPT_PLAN_PHASES entries by ::memopt_plan_phase: live tensors of one device at
 *        the fullest moment of each phase; overhead and total are not read.
 * @param run the run; NULL: defaults.
 * @param card the card; NULL: defaults (no limit, no overhead).
 * @param[out] out_plan the plan; ended by memopt_plan_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a value is out of range, or a sum does not
 *         fit 64 bits.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_create_measured(const memopt_plan_bytes *phases,
                                                     const memopt_plan_run *run,
                                                     const memopt_plan_card *card,
                                                     memopt_plan **out_plan);

/**
 * @brief The name of a phase.
 * @param phase a ::memopt_plan_phase.
 * @return a static string: "load", "forward", "loss", "backward", "step"; "invalid" for another
 *         value. Thread-safe.
 * @since 0.9
 */
MEMOPT_API const char *memopt_plan_phase_name(uint32_t phase);

/* --- what fits --- */

/** @brief What to ask of memopt_plan_solve(); zero means the default. */
typedef struct memopt_plan_target_options {
    size_t struct_size;       /**< sizeof(memopt_plan_target_options). */
    uint64_t effective_batch; /**< Samples of a step on all devices; 0: batch × accumulation ×
                                   world size of the run, or, where it has no batch, what the
                                   largest micro-batch gives. */
    uint64_t max_micro_batch; /**< The micro-batch is not larger; 0: 65536.
                                   memopt_plan_run::batch bounds it too, where it is given. */
    uint64_t min_sequence;    /**< Changes do not make the sequence shorter; 0: an eighth of it. */
    uint32_t keep_batch;      /**< 1: memopt_plan_run::batch, where it is given, is not made smaller
                                   either. */
    uint32_t keep_dtype;      /**< 1: no change of dtypes is proposed. */
    uint32_t keep_optimizer;  /**< 1: no change of the optimizer is proposed. */
    uint32_t keep_weights;    /**< 1: LoRA is not proposed. */
    uint32_t all_changes;     /**< 1: every change is listed, also where the run fits. */
    uint32_t reserved;        /**< Must be 0. */
} memopt_plan_target_options;

/** @brief Initialiser of ::memopt_plan_target_options. */
#define MEMOPT_PLAN_TARGET_OPTIONS_INIT                                                            \
    {                                                                                              \
        sizeof(memopt_plan_target_options), 0, 0, 0, 0, 0, 0, 0, 0, 0                              \
    }

/** @brief A kind of change. */
typedef enum memopt_plan_change_kind {
    MEMOPT_PLAN_CHANGE_MICRO_BATCH = 0,   /**< A smaller micro-batch and more accumulation. */
    MEMOPT_PLAN_CHANGE_DTYPE = 1,         /**< Weights or compute of 16 bits. */
    MEMOPT_PLAN_CHANGE_OPTIMIZER = 2,     /**< 8-bit states. */
    MEMOPT_PLAN_CHANGE_CHECKPOINTING = 3, /**< Layers are run again. */
    MEMOPT_PLAN_CHANGE_OFFLOAD = 4,       /**< Activations go to the host. */
    MEMOPT_PLAN_CHANGE_ATTENTION = 5,     /**< sdpa in place of eager. */
    MEMOPT_PLAN_CHANGE_LOSS = 6,          /**< A fused loss. */
    MEMOPT_PLAN_CHANGE_SEQUENCE = 7,      /**< Shorter sequences. */
    MEMOPT_PLAN_CHANGE_SHARDING = 8,      /**< ZeRO or FSDP. */
    MEMOPT_PLAN_CHANGE_LORA = 9,          /**< Adapters in place of all weights. */
    MEMOPT_PLAN_CHANGE_ALLOCATOR = 10,    /**< Expandable segments. */
    MEMOPT_PLAN_CHANGE_BUCKET = 11        /**< A smaller bucket for gradients (DeepSpeed). */
} memopt_plan_change_kind;

/** @brief A change of the run that saves memory. One that is applied is measured on top of those
 *         before it, an alternative on the run as given. */
typedef struct memopt_plan_change {
    size_t struct_size;   /**< Set by the caller. */
    uint32_t kind;        /**< A ::memopt_plan_change_kind. */
    uint32_t applied;     /**< 1: it is one of those that make the run fit; 0: an alternative. */
    char change[96];      /**< In words, such as "optimizer adamw → adamw8bit". */
    char option[48];      /**< What to give `memopt plan`, such as "--optimizer adamw8bit". */
    uint64_t saves_bytes; /**< How much lower the peak is with it. */
    uint64_t peak_bytes;  /**< The peak with it. */
    double time_factor;   /**< Time of a step with it, relative to that before it. */
} memopt_plan_change;

/** @brief What memopt_plan_solve() found. */
typedef struct memopt_plan_fit {
    size_t struct_size;           /**< Set by the caller. */
    uint32_t fits;                /**< 1: the run as given fits; one without a batch: with some
                                       micro-batch. */
    uint32_t fits_after;          /**< 1: it fits after the changes that are applied. */
    uint64_t micro_batch;         /**< The largest that fits (after the changes if they are
                                       needed) and is best for the effective batch; 0: none. */
    uint64_t largest_micro_batch; /**< The largest that fits at all. */
    uint64_t accumulation;        /**< Micro-batches per step. */
    uint64_t effective_batch;     /**< Samples of a step on all devices. */
    uint64_t target_batch;        /**< What was asked for. */
    int64_t remainder;            /**< effective_batch − target_batch: 0 where it is met. */
    uint64_t peak_bytes;          /**< With micro_batch. */
    uint64_t floor_bytes;         /**< The least that any combination of the changes reaches; 0 if
                                       it was not needed. */
    uint64_t limit_bytes;         /**< capacity × margin. */
    uint64_t change_count;        /**< Entries for memopt_plan_solution_get_change(). */
    double time_factor;           /**< Of all changes together. */
    uint64_t start_batch; /**< Changes are counted from this micro-batch: the run's, or, where
                               it has none or fits, micro_batch. */
    uint64_t start_accumulation; /**< And from this accumulation: what the effective batch asks for
                                      with start_batch, or the run's. */
    uint64_t start_peak_bytes;   /**< The peak without any change. */
} memopt_plan_fit;

/**
 * @brief The micro-batch and accumulation for an effective batch: exact with a micro-batch of at
 *        least a quarter of the largest, else the nearest with one of its larger half.
 * @param effective_batch samples of a step on all devices, from 1 to 2^40.
 * @param largest the largest micro-batch, from 1 to 65536.
 * @param world_size devices, from 1 to 2^20.
 * @param[out] out_batch the micro-batch of one device.
 * @param[out] out_accumulation micro-batches per step; the product of all three is what a step has.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or a number out of range.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_split_batch(uint64_t effective_batch, uint64_t largest,
                                                 uint64_t world_size, uint64_t *out_batch,
                                                 uint64_t *out_accumulation);

/**
 * @brief Finds the largest micro-batch that fits, accumulation for an effective batch, and, where
 *        nothing fits, the changes that make it fit, cheapest in time first.
 * @param model the model.
 * @param run the run; NULL: defaults.
 * @param card the card, with a capacity.
 * @param options NULL: defaults.
 * @param[out] out_solution the solution; ended by memopt_plan_solution_destroy().
 * @retval MEMOPT_OK done (also where it cannot fit: memopt_plan_fit::fits_after and
 *         memopt_plan_fit::floor_bytes).
 * @retval MEMOPT_INVALID_ARGUMENT as of memopt_plan_create(), or the card has no capacity.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY as told.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solve(const memopt_plan_model *model,
                                           const memopt_plan_run *run, const memopt_plan_card *card,
                                           const memopt_plan_target_options *options,
                                           memopt_plan_solution **out_solution);

/**
 * @brief Bytes of a run that are measured or traced elsewhere, for memopt_plan_solve_measured().
 * @param user as given there.
 * @param run the run, with every default filled in but memopt_plan_run::sequence, which stays 0
 *            where it was not given.
 * @param[out] out_phases ::MEMOPT_PLAN_PHASES entries by ::memopt_plan_phase, all zero: the live
 *             tensors of one device at the fullest moment of each phase, what communication holds
 *             included. overhead and total are not read. A larger batch may not take fewer bytes.
 * @return MEMOPT_OK; MEMOPT_UNSUPPORTED or MEMOPT_INVALID_ARGUMENT where nothing is known of such
 *         a run: a change that leads to it is not proposed. Any other value ends the search and
 *         comes out of the call unchanged.
 */
typedef memopt_status (*memopt_plan_measure)(void *user, const memopt_plan_run *run,
                                             memopt_plan_bytes *out_phases);

/**
 * @brief memopt_plan_solve() where the bytes of runs come from a function: of a program that is
 *        not among the families, as it was measured or traced.
 *
 * The function is asked once for each run, on the calling thread. Changes are those of the run and
 * the card, in the same order; of the model none, and memopt_plan_solution_get_settings() tells a
 * model of zeros. Of time nothing is known but what changes cost beside recomputation and copies.
 * @param measure what a run takes.
 * @param user handed to measure.
 * @param run the run; NULL: defaults.
 * @param card the card, with a capacity.
 * @param options NULL: defaults.
 * @param[out] out_solution the solution; ended by memopt_plan_solution_destroy().
 * @retval MEMOPT_OK done (also where it cannot fit).
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, a value is out of range, the card has no
 *         capacity, or measure returned it for the run as given.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_HOST_MEMORY as told; the first also where measure
 *         returned it for the run as given.
 * @return What else measure returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solve_measured(memopt_plan_measure measure, void *user,
                                                    const memopt_plan_run *run,
                                                    const memopt_plan_card *card,
                                                    const memopt_plan_target_options *options,
                                                    memopt_plan_solution **out_solution);

/**
 * @brief Ends a solution.
 * @param solution the solution; NULL is fine.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solution_destroy(memopt_plan_solution *solution);

/**
 * @brief What was found.
 * @param solution the solution.
 * @param[in,out] out_fit struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solution_get_fit(const memopt_plan_solution *solution,
                                                      memopt_plan_fit *out_fit);

/**
 * @brief One change.
 * @param solution the solution.
 * @param index from 0 to memopt_plan_fit::change_count − 1.
 * @param[in,out] out_change struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such change.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solution_get_change(const memopt_plan_solution *solution,
                                                         uint64_t index,
                                                         memopt_plan_change *out_change);

/**
 * @brief The run and model after the changes that are applied, with the micro-batch and
 *        accumulation found: what memopt_plan_create() says memopt_plan_fit::peak_bytes of.
 * @param solution the solution.
 * @param[in,out] out_model struct_size set by the caller; NULL: not asked for.
 * @param[in,out] out_run struct_size set by the caller; NULL: not asked for.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT solution is NULL or a struct_size is too small.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solution_get_settings(const memopt_plan_solution *solution,
                                                           memopt_plan_model *out_model,
                                                           memopt_plan_run *out_run);

MEMOPT_END_DECLS

#endif /* MEMOPT_PLAN_H */
