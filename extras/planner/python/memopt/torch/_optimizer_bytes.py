"""What optimizers keep and need temporarily, without running them."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List, NamedTuple, Sequence

import torch

from .._abi import OptimizerKind, StateFormat
from .optim import _format


class OptimizerBytes(NamedTuple):
    """Bytes of states, and the most that a step takes on top of them."""

    states: int
    temporaries: int


class OptimizerBlocks(NamedTuple):
    """The same as blocks: of the states, and of a step in its order; -n: one of n bytes ends."""

    states: List[int]
    step: List[int]

    def total(self) -> OptimizerBytes:
        """Their bytes."""
        now = most = 0
        for size in self.step:
            now += size
            most = max(most, now)
        return OptimizerBytes(sum(self.states), most)


def optimizer_blocks(kind: str, parameters: Sequence[torch.Tensor], gpu: bool = False) -> OptimizerBlocks:
    """For the parameters that are trained, in the optimizer's order. "none" has nothing. On a GPU
    torch's AdamW takes foreach."""
    try:
        rule = _RULES["adamw-foreach" if gpu and kind == "adamw" else kind]
    except KeyError:
        raise ValueError(
            "the optimizer %r is unknown; the known ones are %s" % (kind, ", ".join(sorted(_RULES)))
        ) from None
    learning = [p for p in parameters if p.requires_grad]
    return OptimizerBlocks([size for p in learning for size in rule.states(p)], rule.step(learning))


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _no_step(parameters: List[torch.Tensor]) -> List[int]:
    return []


def _root_and_quotient(parameters: List[torch.Tensor]) -> List[int]:
    """AdamW's, while the last parameter's quotient still lives."""
    found, last = [], 0
    for size in map(_bytes, parameters):
        found += [size, size, -last, -size]
        last = size
    return [*found, -last]


def _roots(parameters: List[torch.Tensor]) -> List[int]:
    """Of all parameters of one dtype at once."""
    by_dtype: Dict[torch.dtype, List[int]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(_bytes(parameter))
    return [step for sizes in by_dtype.values() for step in (*sizes, *(-size for size in sizes))]


def _ours(kind: OptimizerKind, own: StateFormat, parameter: torch.Tensor) -> List[int]:
    whole = getattr(parameter, "whole", parameter.numel())  # what a shard is of
    small = own is not StateFormat.F32 and whole < 4096
    like = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    state = _format.new(like, kind, StateFormat.F32 if small else own)
    return list(map(_bytes, state.values()))


class _Rule(NamedTuple):
    #: Blocks that a parameter's states take.
    states: Callable[[torch.Tensor], List[int]] = lambda parameter: []
    #: Of a step of all.
    step: Callable[[List[torch.Tensor]], List[int]] = _no_step


def _moments_and_step(parameter: torch.Tensor) -> List[int]:
    """Of torch's AdamW."""
    return [4, _bytes(parameter), _bytes(parameter)]


_RULES: Dict[str, _Rule] = {
    "none": _Rule(),
    "adamw": _Rule(_moments_and_step, _root_and_quotient),
    "adamw-foreach": _Rule(_moments_and_step, _roots),
    "adamw-fused": _Rule(_moments_and_step),
    "sgd": _Rule(),
    "sgd-momentum": _Rule(lambda parameter: [_bytes(parameter)]),
    "adamw8bit": _Rule(partial(_ours, OptimizerKind.ADAMW, StateFormat.BITS8_DYNAMIC)),
    "adamw4bit": _Rule(partial(_ours, OptimizerKind.ADAMW, StateFormat.BITS4)),
    "adamwfp8": _Rule(partial(_ours, OptimizerKind.ADAMW, StateFormat.BITS8)),
    "lion8bit": _Rule(partial(_ours, OptimizerKind.LION, StateFormat.BITS8_DYNAMIC)),
    "sgd8bit": _Rule(partial(_ours, OptimizerKind.SGD, StateFormat.BITS8_DYNAMIC)),
}
OPTIMIZERS = tuple(_RULES)
