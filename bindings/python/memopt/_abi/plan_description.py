"""The C interface of plan.h, what goes in: a model, a run and a card."""

from __future__ import annotations

import enum

from .words import *


@enumeration("MEMOPT_PLAN_")
class PlanFamily(enum.IntEnum):
    """The family whose code the layers follow."""

    LLAMA = 0
    MIXTRAL = 1
    GPT2 = 2
    OPT = 3
    BERT = 4
    VIT = 5


@enumeration("MEMOPT_PLAN_HEAD_")
class PlanHead(enum.IntEnum):
    """What is on top of the layers."""

    DEFAULT = 0
    CAUSAL_LM = 1
    MASKED_LM = 2
    SEQUENCE = 3
    TOKEN = 4
    IMAGE = 5
    CONTRASTIVE = 6
    NONE = 7


@enumeration("MEMOPT_PLAN_ACTIVATION_")
class PlanActivation(enum.IntEnum):
    """The activation of the MLP, by what autograd keeps for it."""

    DEFAULT = 0
    SILU = 1
    GELU = 2
    GELU_NEW = 3
    RELU = 4
    QUICK_GELU = 5
    TANH = 6
    GELU_FAST = 7


@enumeration("MEMOPT_PLAN_")
class PlanChoice(enum.IntEnum):
    """Yes or no, or what the family does."""

    DEFAULT = 0
    NO = 1
    YES = 2


@enumeration("MEMOPT_PLAN_KIN_")
class PlanKin(enum.IntEnum):
    """Whose code it is, where it differs from that of its family."""

    NONE = 0
    GEMMA = 1
    PHI3 = 2
    QWEN_MOE = 3
    GRANITE = 4
    ROBERTA = 5


@enumeration("MEMOPT_PLAN_TARGET_")
class PlanTarget(enum.IntEnum):
    """Linear layers that LoRA adapts."""

    QUERY = 1
    KEY = 2
    VALUE = 4
    OUTPUT = 8
    GATE = 16
    UP = 32
    DOWN = 64
    HEAD = 128


@enumeration("MEMOPT_PLAN_TOWER_")
class PlanTowerMode(enum.IntEnum):
    """What of a vision tower learns."""

    TRAINED = 0
    FROZEN = 1


@struct("memopt_plan_model")
class PlanModel(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("family", U32),
        ("head", U32),
        ("parameters", U64),
        ("layers", U64),
        ("hidden", U64),
        ("heads", U64),
        ("kv_heads", U64),
        ("head_dim", U64),
        ("ffn", U64),
        ("vocabulary", U64),
        ("positions", U64),
        ("token_types", U64),
        ("embedding", U64),
        ("labels", U64),
        ("experts", U64),
        ("experts_per_token", U64),
        ("activation", U32),
        ("gated", U32),
        ("tied", U32),
        ("attention_bias", U32),
        ("output_bias", U32),
        ("mlp_bias", U32),
        ("qk_norm", U32),
        ("pooler", U32),
        ("sliding_window", U64),
        ("embedding_dropout", F64),
        ("attention_dropout", F64),
        ("hidden_dropout", F64),
        ("activation_dropout", F64),
        ("image_size", U64),
        ("patch_size", U64),
        ("channels", U64),
        ("vision_layers", U64),
        ("vision_hidden", U64),
        ("vision_heads", U64),
        ("vision_ffn", U64),
        ("vision_tokens", U64),
        ("vision_mode", U32),
        ("lora_targets", U32),
        ("lora_rank", U64),
        ("lora_dropout", F64),
        ("router_jitter", F64),
        ("post_norm", U32),
        ("kin", U32),
        ("vision_activation", U32),
        ("vision_skipped", U32),
    ]


@enumeration("MEMOPT_PLAN_")
class PlanOptimizer(enum.IntEnum):
    """The optimizer, by the states it keeps and what its step makes."""

    ADAMW = 0
    ADAMW_FOREACH = 1
    ADAMW_FUSED = 2
    ADAMW_8BIT = 3
    ADAMW_4BIT = 4
    ADAMW_FP8 = 5
    ADAMW_OURS = 6
    LION = 7
    LION_8BIT = 8
    SGD = 9
    SGD_MOMENTUM = 10
    SGD_8BIT = 11
    ADAFACTOR = 12
    NO_OPTIMIZER = 13


@enumeration("MEMOPT_PLAN_ATTENTION_")
class PlanAttention(enum.IntEnum):
    """How attention is computed."""

    SDPA = 0
    EAGER = 1
    FLASH = 2


@enumeration("MEMOPT_PLAN_CHECKPOINT_")
class PlanCheckpointing(enum.IntEnum):
    """Which layers are run again in backward."""

    NONE = 0
    FULL = 1
    SELECTIVE = 2
    EVERY = 3
    BUDGET = 4


@enumeration("MEMOPT_PLAN_OFFLOAD_")
class PlanOffload(enum.IntEnum):
    """Where tensors that are not needed at once are kept."""

    ACTIVATIONS = 1
    OPTIMIZER = 2


@enumeration("MEMOPT_PLAN_")
class PlanSharding(enum.IntEnum):
    """How several devices share the work."""

    DDP = 0
    ZERO1 = 1
    ZERO2 = 2
    ZERO3 = 3


@enumeration("MEMOPT_PLAN_ENGINE_")
class PlanEngine(enum.IntEnum):
    """Whose ZeRO it is."""

    TORCH = 0
    DEEPSPEED = 1


@enumeration("MEMOPT_PLAN_LOSS_")
class PlanLoss(enum.IntEnum):
    """How the loss over the vocabulary is computed."""

    PLAIN = 0
    FUSED = 1
    CHUNKED = 2


@struct("memopt_plan_run")
class PlanRun(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("batch", U64),
        ("sequence", U64),
        ("sequence_mean", U64),
        ("images", U64),
        ("positives", U64),
        ("negatives", U64),
        ("accumulation", U64),
        ("world_size", U64),
        ("weight_dtype", I32),
        ("compute_dtype", I32),
        ("gradient_dtype", I32),
        ("master_dtype", I32),
        ("state_dtype", I32),
        ("optimizer", U32),
        ("attention", U32),
        ("checkpointing", U32),
        ("offload", U32),
        ("sharding", U32),
        ("loss", U32),
        ("use_cache", U32),
        ("keep_outputs", U32),
        ("attention_mask", U32),
        ("checkpoint_every", U64),
        ("checkpoint_budget", U64),
        ("host_limit", U64),
        ("min_8bit_size", U64),
        ("bucket_bytes", U64),
        ("image_dtype", I32),
        ("gradient_sync", U32),
        ("gather_dtype", I32),
        ("bucket_view", U32),
        ("adapter_dtype", I32),
        ("reserved_end", U32),
        ("zero_engine", U32),
        ("contiguous_gradients", U32),
        ("overlap_comm", U32),
        ("reserved_zero", U32),
        ("prefetch_bucket", U64),
        ("persistence_threshold", U64),
        ("live_parameters", U64),
        ("reuse_distance", U64),
        ("sub_group", U64),
    ]


@enumeration("MEMOPT_PLAN_DEVICE_")
class PlanDevice(enum.IntEnum):
    """What kind of device the run is on: what its kernels need, and its overhead."""

    ANY = 0
    CPU = 1
    CUDA = 2
    HIP = 3


@enumeration("MEMOPT_PLAN_ALLOCATOR_")
class PlanAllocator(enum.IntEnum):
    """How the device's memory is handed out."""

    CLASSIC = 0
    EXPANDABLE = 1


@struct("memopt_plan_card")
class PlanCard(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("capacity", U64),
        ("margin", F64),
        ("device", U32),
        ("allocator", U32),
        ("context_bytes", U64),
        ("workspace_bytes", U64),
        ("other_bytes", U64),
        ("link_bytes_per_second", F64),
        ("disk_bytes_per_second", F64),
        ("flops_per_second", F64),
    ]
