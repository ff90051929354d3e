"""The settings of a plan as dataclasses, one for each group of keys.

A field that is None has its default. ``memopt_plan_get_key`` of the library is the source of names,
words and ranges; a test compares.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Any, Dict, List, Literal, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from .. import _abi
from ..sizes import Size
from ._library import lib

#: "yes", "no", True or False.
Switch = Union[bool, Literal["yes", "no"]]
DType = Literal["fp32", "fp16", "bf16"]
#: Words, or a text of them with commas between.
Flags = Union[str, List[str], Tuple[str, ...]]
Activation = Literal["default", "silu", "gelu", "gelu-new", "relu", "quick-gelu", "tanh", "gelu-fast"]

_FLAGS = ("lora_targets", "offload")
_S = TypeVar("_S", bound="Settings")


class Settings:
    """What the groups have in common."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool):
                object.__setattr__(self, name, "yes" if value else "no")
            elif name in _FLAGS and isinstance(value, str):
                object.__setattr__(self, name, value.split(","))
            elif name in _FLAGS and value is not None:
                object.__setattr__(self, name, list(value))

    def replace(self: _S, **changes: Any) -> _S:
        """A copy with other values."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def as_dict(self) -> Dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def lines(self) -> List[str]:
        """The fields that are set as the library reads them: "run.batch=4"."""
        group = type(self).__name__.lower()
        return [_line("%s.%s" % (group, name), value) for name, value in self.as_dict().items()]

    @classmethod
    def of(cls: Type[_S], settings: Mapping[str, Any]) -> _S:
        """This group's fields of all settings by key."""
        group = cls.__name__.lower() + "."
        size = len(group)
        return cls(**{key[size:]: value for key, value in settings.items() if key.startswith(group)})


def _line(key: str, value: Any) -> str:
    text = ",".join(value) if isinstance(value, list) else str(value)
    if ";" in text or "\n" in text:
        raise ValueError("%s is %r; a value has neither semicolons nor line ends" % (key, value))
    return "%s=%s" % (key, text)


def parse_lines(text: str) -> Dict[str, Any]:
    """Settings that the library wrote as text, numbers as numbers."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    return {key: _number(value) for key, value in pairs}


def _number(text: str) -> Union[int, float, str]:
    if text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


class Key(NamedTuple):
    """What the library says of a key."""

    name: str
    #: "count", "size", "share", "number", "choice", "flags", "switch" or "dtype".
    kind: str
    #: The words with "|" between them, or the range in words.
    accepts: str
    help: str


@functools.lru_cache(None)
def keys() -> Dict[str, Key]:
    """All keys by name."""
    found: Dict[str, Key] = {}
    function = lib.memopt_plan_get_key
    texts = [ctypes.c_char_p() for _ in Key._fields]
    while function(len(found), *map(ctypes.byref, texts)) == _abi.Status.OK:
        key = Key(*((text.value or b"").decode() for text in texts))
        found[key.name] = key
    return found


def words(name: str) -> Tuple[str, ...]:
    """The words that a key accepts: words("run.optimizer")."""
    return tuple(keys()[name].accepts.split("|"))


@dataclasses.dataclass(frozen=True)
class Model(Settings):
    """A model; give hidden and what else is known, or parameters alone."""

    family: Optional[Literal["llama", "mixtral", "gpt2", "opt", "bert", "vit"]] = None
    variant: Optional[Literal["none", "qwen-moe", "roberta"]] = None
    head: Optional[
        Literal["default", "causal-lm", "masked-lm", "sequence", "token", "image", "contrastive", "none"]
    ] = None
    parameters: Union[int, str, None] = None
    layers: Optional[int] = None
    hidden: Optional[int] = None
    heads: Optional[int] = None
    kv_heads: Optional[int] = None
    head_dim: Optional[int] = None
    ffn: Optional[int] = None
    vocabulary: Optional[int] = None
    positions: Optional[int] = None
    token_types: Optional[int] = None
    embedding: Optional[int] = None
    labels: Optional[int] = None
    experts: Optional[int] = None
    experts_per_token: Optional[int] = None
    activation: Optional[Activation] = None
    gated: Optional[Switch] = None
    tied: Optional[Switch] = None
    attention_bias: Optional[Switch] = None
    output_bias: Optional[Switch] = None
    mlp_bias: Optional[Switch] = None
    qk_norm: Optional[Switch] = None
    pooler: Optional[Switch] = None
    post_norm: Optional[Switch] = None
    sliding_window: Optional[int] = None
    embedding_dropout: Optional[float] = None
    attention_dropout: Optional[float] = None
    hidden_dropout: Optional[float] = None
    activation_dropout: Optional[float] = None
    image_size: Optional[int] = None
    patch_size: Optional[int] = None
    channels: Optional[int] = None
    vision_layers: Optional[int] = None
    vision_hidden: Optional[int] = None
    vision_heads: Optional[int] = None
    vision_ffn: Optional[int] = None
    vision_tokens: Optional[int] = None
    vision_mode: Optional[Literal["trained", "frozen"]] = None
    vision_activation: Optional[Activation] = None
    vision_skipped: Optional[int] = None
    lora_rank: Optional[int] = None
    lora_targets: Optional[Flags] = None
    lora_dropout: Optional[float] = None
    quantize: Optional[Literal["none", "nf4", "nf4-double", "int8", "gptq", "awq"]] = None


@dataclasses.dataclass(frozen=True)
class Run(Settings):
    """A run."""

    batch: Optional[int] = None
    sequence: Optional[int] = None
    sequence_mean: Optional[int] = None
    images: Optional[int] = None
    positives: Optional[int] = None
    negatives: Optional[int] = None
    accumulation: Optional[int] = None
    world_size: Optional[int] = None
    weight_dtype: Optional[DType] = None
    compute_dtype: Optional[DType] = None
    gradient_dtype: Optional[DType] = None
    master_dtype: Optional[DType] = None
    state_dtype: Optional[DType] = None
    adapter_dtype: Optional[DType] = None
    base_dtype: Optional[DType] = None
    image_dtype: Optional[DType] = None
    gather_dtype: Optional[DType] = None
    optimizer: Optional[
        Literal[
            "adamw",
            "adamw-foreach",
            "adamw-fused",
            "adamw8bit",
            "adamw4bit",
            "adamwfp8",
            "adamw-memopt",
            "lion",
            "lion8bit",
            "sgd",
            "sgd-momentum",
            "sgd8bit",
            "adafactor",
            "none",
        ]
    ] = None
    attention: Optional[Literal["sdpa", "eager", "flash"]] = None
    checkpointing: Optional[Literal["none", "full", "selective", "every"]] = None
    checkpoint_every: Optional[int] = None
    offload: Optional[Flags] = None
    host_limit: Optional[Size] = None
    sharding: Optional[Literal["ddp", "zero1", "zero2", "zero3"]] = None
    loss: Optional[Literal["plain", "fused", "chunked"]] = None
    use_cache: Optional[Switch] = None
    attention_mask: Optional[Switch] = None
    min_8bit_size: Optional[int] = None
    bucket_view: Optional[Switch] = None
    gradient_sync: Optional[Switch] = None


@dataclasses.dataclass(frozen=True)
class Card(Settings):
    """A card. Without a capacity there is no limit."""

    capacity: Optional[Size] = None
    margin: Optional[float] = None
    device: Optional[Literal["default", "cpu", "cuda", "hip"]] = None
    bf16: Optional[Switch] = None
    allocator: Optional[Literal["classic", "expandable"]] = None
    context_bytes: Optional[Size] = None
    workspace_bytes: Optional[Size] = None
    other_bytes: Optional[Size] = None
    cuda_graphs: Optional[Switch] = None
    unified: Optional[Switch] = None
    link_bytes_per_second: Optional[float] = None
    disk_bytes_per_second: Optional[float] = None
    flops_per_second: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Target(Settings):
    """What to look for where something is to fit."""

    effective_batch: Optional[int] = None
    max_micro_batch: Optional[int] = None
    min_sequence: Optional[int] = None
    keep_batch: Optional[Switch] = None
    keep_dtype: Optional[Switch] = None
    keep_optimizer: Optional[Switch] = None
    keep_training: Optional[Switch] = None
    all_changes: Optional[Switch] = None
