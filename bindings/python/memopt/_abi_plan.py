"""The part of the C interface that plan.h declares, as ctypes sees it; see _abi.py."""

from __future__ import annotations

import enum
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Tuple, Type

from ._abi_base import CHECKED, Struct

# --- enumerations ---------------------------------------------------------------------------------


class PlanFamily(enum.IntEnum):
    """The family whose code the layers follow."""

    LLAMA = 0
    MIXTRAL = 1
    GPT2 = 2
    OPT = 3
    BERT = 4
    VIT = 5


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


class PlanChoice(enum.IntEnum):
    """Yes or no, or what the family does."""

    DEFAULT = 0
    NO = 1
    YES = 2


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


class PlanTowerMode(enum.IntEnum):
    """What of a vision tower learns."""

    TRAINED = 0
    FROZEN = 1


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


class PlanAttention(enum.IntEnum):
    """How attention is computed."""

    SDPA = 0
    EAGER = 1
    FLASH = 2


class PlanCheckpointing(enum.IntEnum):
    """Which layers are run again in backward."""

    NONE = 0
    FULL = 1
    SELECTIVE = 2
    EVERY = 3
    BUDGET = 4


class PlanOffload(enum.IntEnum):
    """Where tensors that are not needed at once are kept."""

    ACTIVATIONS = 1
    OPTIMIZER = 2


class PlanSharding(enum.IntEnum):
    """How several devices share the work."""

    DDP = 0
    ZERO1 = 1
    ZERO2 = 2
    ZERO3 = 3


class PlanLoss(enum.IntEnum):
    """How the loss over the vocabulary is computed."""

    PLAIN = 0
    FUSED = 1
    CHUNKED = 2


class PlanDevice(enum.IntEnum):
    """What kind of device the run is on: what its kernels need, and its overhead."""

    ANY = 0
    CPU = 1
    CUDA = 2
    HIP = 3


class PlanAllocator(enum.IntEnum):
    """How the device's memory is handed out."""

    CLASSIC = 0
    EXPANDABLE = 1


class PlanPhase(enum.IntEnum):
    """The moments of a step."""

    LOAD = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    STEP = 4


class PlanLayerKind(enum.IntEnum):
    """What an entry of the list of layers is."""

    EMBEDDING = 0
    BLOCK = 1
    VISION = 2
    HEAD = 3


class PlanChangeKind(enum.IntEnum):
    """A kind of change."""

    MICRO_BATCH = 0
    DTYPE = 1
    OPTIMIZER = 2
    CHECKPOINTING = 3
    OFFLOAD = 4
    ATTENTION = 5
    LOSS = 6
    SEQUENCE = 7
    SHARDING = 8
    LORA = 9
    ALLOCATOR = 10


#: Prefix of the C enumerators of each enumeration.
ENUM_PREFIXES: Dict[Type[enum.IntEnum], str] = {
    PlanFamily: "MEMOPT_PLAN_",
    PlanHead: "MEMOPT_PLAN_HEAD_",
    PlanActivation: "MEMOPT_PLAN_ACTIVATION_",
    PlanChoice: "MEMOPT_PLAN_",
    PlanTarget: "MEMOPT_PLAN_TARGET_",
    PlanTowerMode: "MEMOPT_PLAN_TOWER_",
    PlanOptimizer: "MEMOPT_PLAN_",
    PlanAttention: "MEMOPT_PLAN_ATTENTION_",
    PlanCheckpointing: "MEMOPT_PLAN_CHECKPOINT_",
    PlanOffload: "MEMOPT_PLAN_OFFLOAD_",
    PlanSharding: "MEMOPT_PLAN_",
    PlanLoss: "MEMOPT_PLAN_LOSS_",
    PlanDevice: "MEMOPT_PLAN_DEVICE_",
    PlanAllocator: "MEMOPT_PLAN_ALLOCATOR_",
    PlanPhase: "MEMOPT_PLAN_PHASE_",
    PlanLayerKind: "MEMOPT_PLAN_LAYER_",
    PlanChangeKind: "MEMOPT_PLAN_CHANGE_",
}
ENUM_SPELLINGS: Dict[Tuple[Type[enum.IntEnum], str], str] = {}


# --- structs --------------------------------------------------------------------------------------


class PlanModel(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("family", c_uint32),
        ("head", c_uint32),
        ("parameters", c_uint64),
        ("layers", c_uint64),
        ("hidden", c_uint64),
        ("heads", c_uint64),
        ("kv_heads", c_uint64),
        ("head_dim", c_uint64),
        ("ffn", c_uint64),
        ("vocabulary", c_uint64),
        ("positions", c_uint64),
        ("token_types", c_uint64),
        ("embedding", c_uint64),
        ("labels", c_uint64),
        ("experts", c_uint64),
        ("experts_per_token", c_uint64),
        ("activation", c_uint32),
        ("gated", c_uint32),
        ("tied", c_uint32),
        ("attention_bias", c_uint32),
        ("output_bias", c_uint32),
        ("mlp_bias", c_uint32),
        ("qk_norm", c_uint32),
        ("pooler", c_uint32),
        ("sliding_window", c_uint64),
        ("embedding_dropout", c_double),
        ("attention_dropout", c_double),
        ("hidden_dropout", c_double),
        ("activation_dropout", c_double),
        ("image_size", c_uint64),
        ("patch_size", c_uint64),
        ("channels", c_uint64),
        ("vision_layers", c_uint64),
        ("vision_hidden", c_uint64),
        ("vision_heads", c_uint64),
        ("vision_ffn", c_uint64),
        ("vision_tokens", c_uint64),
        ("vision_mode", c_uint32),
        ("lora_targets", c_uint32),
        ("lora_rank", c_uint64),
        ("lora_dropout", c_double),
        ("router_jitter", c_double),
        ("post_norm", c_uint32),
        ("reserved", c_uint32),
    ]


class PlanRun(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_uint64),
        ("sequence", c_uint64),
        ("sequence_mean", c_uint64),
        ("images", c_uint64),
        ("positives", c_uint64),
        ("negatives", c_uint64),
        ("accumulation", c_uint64),
        ("world_size", c_uint64),
        ("weight_dtype", c_int32),
        ("compute_dtype", c_int32),
        ("gradient_dtype", c_int32),
        ("master_dtype", c_int32),
        ("state_dtype", c_int32),
        ("optimizer", c_uint32),
        ("attention", c_uint32),
        ("checkpointing", c_uint32),
        ("offload", c_uint32),
        ("sharding", c_uint32),
        ("loss", c_uint32),
        ("use_cache", c_uint32),
        ("keep_outputs", c_uint32),
        ("attention_mask", c_uint32),
        ("checkpoint_every", c_uint64),
        ("checkpoint_budget", c_uint64),
        ("host_limit", c_uint64),
        ("min_8bit_size", c_uint64),
        ("bucket_bytes", c_uint64),
        ("image_dtype", c_int32),
        ("reserved", c_uint32),
    ]


class PlanCard(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_uint64),
        ("margin", c_double),
        ("device", c_uint32),
        ("allocator", c_uint32),
        ("context_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("other_bytes", c_uint64),
        ("link_bytes_per_second", c_double),
        ("disk_bytes_per_second", c_double),
        ("flops_per_second", c_double),
    ]


class PlanBytes(Struct):
    _fields_ = [
        ("parameters", c_uint64),
        ("gradients", c_uint64),
        ("optimizer", c_uint64),
        ("activations", c_uint64),
        ("logits", c_uint64),
        ("batch", c_uint64),
        ("overhead", c_uint64),
        ("total", c_uint64),
    ]


class PlanReport(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("peak", PlanBytes),
        ("phases", PlanBytes * 5),
        ("peak_phase", c_uint32),
        ("fits", c_uint32),
        ("limit_bytes", c_uint64),
        ("mean_bytes", c_uint64),
        ("parameter_count", c_uint64),
        ("trainable_count", c_uint64),
        ("buffer_bytes", c_uint64),
        ("activation_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("host_pinned_bytes", c_uint64),
        ("disk_bytes", c_uint64),
        ("link_bytes", c_uint64),
        ("samples", c_uint64),
        ("layer_count", c_uint64),
        ("recomputed_layers", c_uint64),
        ("forward_flops", c_double),
        ("time_factor", c_double),
        ("recompute_factor", c_double),
        ("offload_factor", c_double),
        ("step_seconds", c_double),
        ("peak_reason", c_char * 256),
        ("time_assumption", c_char * 256),
        ("overhead_reason", c_char * 256),
        ("held_bytes", c_uint64),
    ]


class PlanLayer(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 48),
        ("kind", c_uint32),
        ("recomputed", c_uint32),
        ("parameter_count", c_uint64),
        ("parameter_bytes", c_uint64),
        ("gradient_bytes", c_uint64),
        ("optimizer_bytes", c_uint64),
        ("output_bytes", c_uint64),
        ("saved_bytes", c_uint64),
        ("plain_saved_bytes", c_uint64),
        ("forward_bytes", c_uint64),
        ("backward_bytes", c_uint64),
        ("forward_flops", c_double),
    ]


class PlanTargetOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("effective_batch", c_uint64),
        ("max_micro_batch", c_uint64),
        ("min_sequence", c_uint64),
        ("keep_batch", c_uint32),
        ("keep_dtype", c_uint32),
        ("keep_optimizer", c_uint32),
        ("keep_weights", c_uint32),
        ("all_changes", c_uint32),
        ("reserved", c_uint32),
    ]


class PlanChange(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("applied", c_uint32),
        ("change", c_char * 96),
        ("option", c_char * 48),
        ("saves_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("time_factor", c_double),
    ]


class PlanFit(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fits", c_uint32),
        ("fits_after", c_uint32),
        ("micro_batch", c_uint64),
        ("largest_micro_batch", c_uint64),
        ("accumulation", c_uint64),
        ("effective_batch", c_uint64),
        ("target_batch", c_uint64),
        ("remainder", c_int64),
        ("peak_bytes", c_uint64),
        ("floor_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("change_count", c_uint64),
        ("time_factor", c_double),
    ]


STRUCTS: Dict[str, Type[Struct]] = {
    "memopt_plan_model": PlanModel,
    "memopt_plan_run": PlanRun,
    "memopt_plan_card": PlanCard,
    "memopt_plan_bytes": PlanBytes,
    "memopt_plan_report": PlanReport,
    "memopt_plan_layer": PlanLayer,
    "memopt_plan_target_options": PlanTargetOptions,
    "memopt_plan_change": PlanChange,
    "memopt_plan_fit": PlanFit,
}

PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "memopt_plan_create": (
        CHECKED,
        [POINTER(PlanModel), POINTER(PlanRun), POINTER(PlanCard), POINTER(c_void_p)],
    ),
    "memopt_plan_destroy": (CHECKED, [c_void_p]),
    "memopt_plan_get_report": (CHECKED, [c_void_p, POINTER(PlanReport)]),
    "memopt_plan_get_layer": (CHECKED, [c_void_p, c_uint64, POINTER(PlanLayer)]),
    "memopt_plan_get_settings": (
        CHECKED,
        [c_void_p, POINTER(PlanModel), POINTER(PlanRun), POINTER(PlanCard)],
    ),
    "memopt_plan_add_overhead": (
        CHECKED,
        [POINTER(PlanCard), POINTER(PlanBytes), POINTER(c_uint64)],
    ),
    "memopt_plan_phase_name": (c_char_p, [c_uint32]),
    "memopt_plan_split_batch": (
        CHECKED,
        [c_uint64, c_uint64, c_uint64, POINTER(c_uint64), POINTER(c_uint64)],
    ),
    "memopt_plan_solve": (
        CHECKED,
        [
            POINTER(PlanModel),
            POINTER(PlanRun),
            POINTER(PlanCard),
            POINTER(PlanTargetOptions),
            POINTER(c_void_p),
        ],
    ),
    "memopt_plan_solution_destroy": (CHECKED, [c_void_p]),
    "memopt_plan_solution_get_fit": (CHECKED, [c_void_p, POINTER(PlanFit)]),
    "memopt_plan_solution_get_change": (CHECKED, [c_void_p, c_uint64, POINTER(PlanChange)]),
    "memopt_plan_solution_get_settings": (
        CHECKED,
        [c_void_p, POINTER(PlanModel), POINTER(PlanRun)],
    ),
}
