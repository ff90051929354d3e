"""What optimizers keep and need temporarily, without running them."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Sequence

import torch

from .._abi import OptimizerKind, StateFormat
from .optim import _format


class OptimizerBytes(NamedTuple):
    """Bytes of states, and the most that a step takes on top of them."""

    states: int
    temporaries: int


def optimizer_bytes(
    kind: str, parameters: Sequence[torch.Tensor], gpu: bool = False
) -> OptimizerBytes:
    """For the parameters that are trained, in the optimizer's order. "none" has nothing. On a GPU
    torch's AdamW takes foreach."""
    try:
        rule = _RULES["adamw-foreach" if gpu and kind == "adamw" else kind]
    except KeyError:
        raise ValueError(
            "the optimizer %r is unknown; the known ones are %s" % (kind, ", ".join(sorted(_RULES)))
        ) from None
    return rule([p for p in parameters if p.requires_grad])


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _none(parameters: List[torch.Tensor]) -> OptimizerBytes:
    return OptimizerBytes(0, 0)


def _torch_adamw(parameters: List[torch.Tensor]) -> OptimizerBytes:
    """foreach=False: a root and a quotient, while the last parameter's quotient still lives."""
    peak, last = 0, 0
    for parameter in parameters:
        size = _bytes(parameter)
        peak = max(peak, last + 2 * size)
        last = size
    return OptimizerBytes(_adamw_states(parameters), peak)


def _torch_adamw_foreach(parameters: List[torch.Tensor]) -> OptimizerBytes:
    """The roots of all parameters of one dtype at once."""
    by_dtype: Dict[torch.dtype, int] = {}
    for parameter in parameters:
        by_dtype[parameter.dtype] = by_dtype.get(parameter.dtype, 0) + _bytes(parameter)
    return OptimizerBytes(_adamw_states(parameters), max(by_dtype.values(), default=0))


def _torch_adamw_fused(parameters: List[torch.Tensor]) -> OptimizerBytes:
    return OptimizerBytes(_adamw_states(parameters), 0)


def _adamw_states(parameters: List[torch.Tensor]) -> int:
    return sum(2 * _bytes(p) + 4 for p in parameters)


def _torch_sgd(parameters: List[torch.Tensor]) -> OptimizerBytes:
    return OptimizerBytes(0, 0)


def _torch_sgd_momentum(parameters: List[torch.Tensor]) -> OptimizerBytes:
    return OptimizerBytes(sum(map(_bytes, parameters)), 0)


def _ours(
    kind: OptimizerKind, own: StateFormat
) -> Callable[[List[torch.Tensor]], OptimizerBytes]:
    def rule(parameters: List[torch.Tensor]) -> OptimizerBytes:
        total = 0
        for parameter in parameters:
            whole = getattr(parameter, "whole", parameter.numel())  # what a shard is of
            small = own is not StateFormat.F32 and whole < 4096
            like = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            state = _format.new(like, kind, StateFormat.F32 if small else own)
            total += sum(map(_bytes, state.values()))
        return OptimizerBytes(total, 0)

    return rule


_RULES: Dict[str, Callable[[List[torch.Tensor]], OptimizerBytes]] = {
    "none": _none,
    "adamw": _torch_adamw,
    "adamw-foreach": _torch_adamw_foreach,
    "adamw-fused": _torch_adamw_fused,
    "sgd": _torch_sgd,
    "sgd-momentum": _torch_sgd_momentum,
    "adamw8bit": _ours(OptimizerKind.ADAMW, StateFormat.BITS8),
    "adamw4bit": _ours(OptimizerKind.ADAMW, StateFormat.BITS4),
    "adamwfp8": _ours(OptimizerKind.ADAMW, StateFormat.F8),
    "lion8bit": _ours(OptimizerKind.LION, StateFormat.BITS8),
    "sgd8bit": _ours(OptimizerKind.SGD, StateFormat.BITS8),
}
OPTIMIZERS = tuple(_RULES)
