"""What is changed of a module before its step is traced: adapters, weights of few bits, layers that
run again, values that wait on the host, a loss in chunks, and what devices share."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from . import _adapters
from ._target import Target, TargetError, head_of

#: How layers that LoRA adapts are called, by the planner's words; "all-linear" is another.
NAMES: Dict[str, Tuple[str, ...]] = {
    "query": ("q_proj", "query", "q_lin"),
    "key": ("k_proj", "key", "k_lin"),
    "value": ("v_proj", "value", "v_lin"),
    "output": ("o_proj", "out_proj", "out_lin"),
    "gate": ("gate_proj", "gate_up_proj", "w1"),
    "up": ("up_proj", "gate_up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h"),
    "down": ("down_proj", "w2", "fc2", "dense_4h_to_h"),
    "head": ("lm_head",),
}
#: Names of layers that make query, key and value at once.
_JOINED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv")

_MLP = ("gate", "up", "down")
#: Models of these forms had a linear layer for each expert once: for their MLP's names PEFT adapts
#: the experts' parameters, and no linear layer (`_convert_peft_config_moe`).
_RENAMED = ("mixtral", "qwen2_moe")

#: Tokens whose logits exist at once, where a loss goes in chunks.
CHUNK = 256

#: Saved storages smaller than this stay on the device.
_LEAST_OFFLOADED = 4096


class Features(NamedTuple):
    """In the planner's words."""

    lora_rank: int = 0
    lora_targets: Tuple[str, ...] = ("query", "value")
    lora_dropout: float = 0.0
    adapter_dtype: torch.dtype = torch.float32
    quantize: str = "none"
    base_dtype: Optional[torch.dtype] = None
    checkpointing: str = "none"
    checkpoint_every: int = 0
    #: Activations wait on the host; states of the optimizer live there.
    offload: Tuple[str, ...] = ()
    loss: str = "plain"
    sharding: str = "ddp"
    world_size: int = 1
    gather_dtype: Optional[torch.dtype] = None
    bucket_view: bool = False
    #: Whether FSDP reduces gradients of each micro-batch.
    gradient_sync: bool = True

    @property
    def divides(self) -> bool:
        """Whether FSDP divides the weights: then a module cannot be made whole again."""
        return self.world_size > 1 and self.sharding in ("zero2", "zero3")


def changed(target: Target, features: Features, autocast: Optional[torch.dtype], gpu: bool) -> Target:
    """A copy of a target with features. TargetError for what the module does not have."""
    if features == Features():
        return target
    module = copy.deepcopy(target.module)
    if features.quantize != "none" and not features.lora_rank:
        raise TargetError("weights of %s do not learn: give --lora" % features.quantize)
    if features.divides and features.quantize not in ("none", "nf4", "nf4-double"):
        raise TargetError("weights of %s are not divided: give --quantize nf4, or --zero 0 or 1" % features.quantize)
    if features.lora_rank:
        _adapt(module, features, autocast, gpu)
    _run_again(module, features)
    changed_target = target._replace(module=module)
    if features.loss != "plain":
        changed_target = _chunked(changed_target, features.loss)
    if "activations" in features.offload:
        _offload(changed_target.module)
    return changed_target


# --- adapters ---


def _adapt(module: Any, features: Features, autocast: Any, gpu: bool) -> None:
    module.requires_grad_(False)
    head, rank = head_of(module), features.lora_rank
    experts = _experts_in_place(module)
    found = False
    for path, part in list(module.named_modules()):
        sizes = _adapters.sizes_of(part)
        named = _is_target(path, features.lora_targets, part is not head)
        if experts and path.rpartition(".")[2] in _names(_MLP):
            named = False
        made: Any = part
        if sizes and features.quantize != "none" and part is not head:
            made = _few_bits(part, features, autocast, gpu)
        if sizes and named:
            cast = not (gpu and autocast)
            dtype = features.adapter_dtype
            made = _adapters.Lora(made, sizes, rank, features.lora_dropout, dtype, cast)
        ranks = _of_experts(path, part, features, experts)
        if ranks:
            if features.lora_dropout:
                raise TargetError("PEFT adapts experts without dropout alone: --lora-dropout 0")
            made = _adapters.Experts(part, ranks, features.adapter_dtype)
        found = found or bool(ranks) or bool(sizes and named)
        if made is not part:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, made)
    if not found:
        layers = {path.rpartition(".")[2] for path, p in module.named_modules() if _adapters.sizes_of(p)}
        raise TargetError(
            "no layer is called %s; --lora-targets takes names of %s, or all-linear"
            % (", ".join(features.lora_targets), ", ".join(sorted(layers)) or "linear layers")
        )


def _is_target(path: str, targets: Sequence[str], is_layer: bool) -> bool:
    """Whether a linear layer is among the targets: PEFT's names, or our words."""
    name = path.rpartition(".")[2]
    return any(
        path == target
        or path.endswith("." + target)
        or name in NAMES.get(target, ())
        or (target == "all-linear" and is_layer)
        or (target in ("query", "key", "value") and name in _JOINED)
        for target in targets
    )


def _names(words: Sequence[str]) -> List[str]:
    return [name for word in words for name in NAMES[word]]


def _experts_in_place(module: Any) -> bool:
    """Whether PEFT adapts experts in place of the MLP's linear layers."""
    mapping = sys.modules.get("transformers.conversion_mapping")
    known: Dict[str, str] = getattr(mapping, "_MODEL_TO_CONVERSION_PATTERN", {})
    kind = getattr(getattr(module, "config", None), "model_type", "")
    return kind == "mixtral" or known.get(kind) in _RENAMED


def _of_experts(path: str, part: nn.Module, features: Features, renamed: bool) -> List[Tuple[str, int]]:
    """Parameters of experts that are adapted, and their ranks: gate and up are one, of both's; of
    all linear layers the router is one. Those of other models are named, as in PEFT's
    `target_parameters`: experts.down_proj."""
    targets = features.lora_targets
    words = [word for word in _MLP if "all-linear" in targets or any(t == word or t in NAMES[word] for t in targets)]
    ranks = []
    router = part._parameters.get("weight") if path.rpartition(".")[2] == "gate" else None
    if renamed and router is not None and router.dim() == 2 and not isinstance(part, nn.Linear):
        ranks += [("weight", features.lora_rank)] * ("all-linear" in targets)
    for name, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        parameter = part._parameters.get(name)
        if parameter is None or parameter.dim() != 3:
            continue
        count = sum(word in words for word in parts) if renamed else 0
        if any("." in t and (path + "." + name).endswith("." + t) for t in targets):
            count = 1
        if count:
            ranks.append((name, count * features.lora_rank))
    return ranks


def _few_bits(linear: Any, features: Features, autocast: Any, gpu: bool) -> nn.Module:
    if features.quantize == "int8":
        return _adapters.EightBits(linear, gpu)
    dtype = features.base_dtype or autocast or linear.weight.dtype
    storage = (features.gather_dtype if features.divides else None) or torch.uint8
    return _adapters.FourBits(linear, features.quantize, dtype, gpu, storage)


# --- layers that run again ---


def _run_again(module: Any, features: Features) -> None:
    if features.checkpointing == "selective" and not _has_attention(module):
        raise TargetError(
            "%s has no attention of Transformers that could run again: --checkpointing full" % type(module).__name__
        )
    if features.checkpointing in ("none", "selective"):
        return
    enable = getattr(module, "gradient_checkpointing_enable", None)
    if enable is None:
        raise TargetError(
            "%s has no gradient_checkpointing_enable(): checkpoint its layers in the function that"
            " makes it" % type(module).__name__
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        enable()
    for path, part in module.named_modules():
        number = path.rpartition(".")[2]
        if features.checkpoint_every and number.isdigit() and hasattr(part, "gradient_checkpointing"):
            part.gradient_checkpointing = (int(number) + 1) % features.checkpoint_every != 0
    if features.lora_rank:
        module.enable_input_require_grads()


def _has_attention(module: Any) -> bool:
    """Whether its attention is one of Transformers' functions."""
    defined = (sys.modules.get(type(part).__module__) for part in module.modules())
    return any(hasattr(names, "ALL_ATTENTION_FUNCTIONS") for names in defined)


@contextlib.contextmanager
def attention_again(features: Features) -> Iterator[None]:
    """Selective: attention between its projections runs again."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if features.checkpointing != "selective" or modeling is None:
        yield
        return
    kind = type(modeling.ALL_ATTENTION_FUNCTIONS)
    before = kind.get_interface

    def get(self: Any, *names: Any) -> Any:
        function = before(self, *names)
        return lambda *args, **named: checkpoint(function, *args, use_reentrant=False, **named)

    kind.get_interface = get
    try:
        yield
    finally:
        kind.get_interface = before


# --- values that wait on the host ---


class _Waiting(NamedTuple):
    """A saved tensor whose bytes are elsewhere."""

    shape: Any
    stride: Any
    dtype: torch.dtype
    device: torch.device


def _offload(module: Any) -> None:
    """As `memopt.torch.save_on_cpu` around forward and loss."""
    stay = {id(tensor.untyped_storage()) for tensor in module.buffers()}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        base = tensor if tensor._base is None else tensor._base
        own = base.grad_fn is None and (base.requires_grad or isinstance(base, nn.Parameter))
        if own or storage.nbytes() < _LEAST_OFFLOADED or id(storage) in stay:
            return tensor
        return _Waiting(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def unpack(packed: Any) -> torch.Tensor:
        if not isinstance(packed, _Waiting):
            return packed  # type: ignore[no-any-return]
        return torch.empty_strided(packed.shape, packed.stride, dtype=packed.dtype, device=packed.device)

    forward = module.forward

    def saving(*args: Any, **named: Any) -> Any:
        with saved_tensors_hooks(pack, unpack):
            return forward(*args, **named)

    module.forward = saving


# --- a loss in chunks ---


def _chunked(target: Target, kind: str) -> Target:
    """The head is part of the loss, so that logits never exist as a whole."""
    module, head = target.module, head_of(target.module)
    if head is None or not isinstance(getattr(head, "weight", None), torch.Tensor):
        raise TargetError("%s has no head whose loss could go in chunks" % type(module).__name__)
    score: Callable[..., torch.Tensor] = {"fused": _fused, "chunked": _again}[kind]
    labels: List[Any] = []
    losses: List[torch.Tensor] = []

    def on_head(hidden: torch.Tensor) -> torch.Tensor:
        of_words, words = hidden[:, :-1].flatten(0, 1), labels.pop()[:, 1:].flatten()
        losses.append(score(of_words, head.weight, words))
        return hidden

    forward = module.forward

    def scored(*args: Any, **named: Any) -> Any:
        if named.get("labels") is None:
            raise TargetError("a loss in chunks needs inputs with labels")
        labels.append(named.pop("labels"))
        outputs = forward(*args, **named)
        outputs.loss = losses.pop()
        outputs.logits = outputs.loss.detach()  # of none: no scores
        return outputs

    head.forward, module.forward = on_head, scored
    return target


class _Fused(torch.autograd.Function):
    """Gradients are computed with the loss, a chunk at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, labels: Any) -> torch.Tensor:
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        total = torch.zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part] @ weight.T).float()
            total += functional.cross_entropy(logits, labels[part], reduction="sum")
            scores = logits.softmax(-1)
            del logits
            gradient = scores.div_(len(hidden)).to(hidden.dtype)
            del scores
            of_hidden[part] = gradient @ weight
            if of_weight is not None:
                of_weight.addmm_(gradient.T, hidden[part])
            del gradient
        ctx.save_for_backward(of_hidden, of_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, None if of_weight is None else of_weight * gradient, None


def _fused(hidden: Any, weight: Any, labels: Any) -> torch.Tensor:
    loss: torch.Tensor = _Fused.apply(hidden, weight, labels)
    return loss


def _part(hidden: Any, weight: Any, labels: Any) -> torch.Tensor:
    return functional.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")


def _again(hidden: Any, weight: Any, labels: Any) -> torch.Tensor:
    """Each chunk is a checkpoint."""
    total: Any = torch.zeros(())
    for part, words in zip(hidden.split(CHUNK), labels.split(CHUNK)):
        total = total + checkpoint(_part, part, weight, words, use_reentrant=False)
    return total / len(hidden)  # type: ignore[no-any-return]
