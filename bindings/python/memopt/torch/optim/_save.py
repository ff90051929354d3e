"""State dicts for bitsandbytes."""

from __future__ import annotations

from typing import Any, Dict

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format
from ._base import MemoptOptimizer


def to_bitsandbytes(optimizer: MemoptOptimizer) -> Dict[str, Any]:
    """The optimizer's state dict as bitsandbytes' 8-bit or 32-bit optimizer of the rule loads it.

    Codes, scales and 32-bit states are the optimizer's own tensors, as in ``state_dict()``.
    TypeError for 4-bit and fp8 states, which bitsandbytes does not have.
    """
    kind = optimizer._kind
    if optimizer._states not in (StateFormat.F32, StateFormat.BITS8):
        raise TypeError("bitsandbytes has no states like those of %s" % type(optimizer).__name__)
    saved = optimizer.state_dict()
    places = [place for group in saved["param_groups"] for place in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    counts = {place: p.numel() for place, p in zip(places, params)}
    saved["state"] = {
        place: _state(state, kind, counts[place]) if place in counts else state
        for place, state in saved["state"].items()
        if place not in counts or _format.has_moments(state, kind)
    }
    saved["param_groups"] = [_group(group, kind) for group in saved["param_groups"]]
    return saved


def _state(state: Dict[str, Any], kind: OptimizerKind, count: int) -> Dict[str, Any]:
    result: Dict[str, Any] = {"step": _format.steps_taken(state["step"])}
    coded = _format.of(state, kind, count, StateFormat.BITS8) is StateFormat.BITS8
    for i, name in enumerate(_format.MOMENTS[kind]):
        number = str(i + 1)
        result["state" + number] = state[name]
        if coded:
            table: torch.Tensor = _format.values(StateFormat.BITS8, i == 0)
            result["qmap" + number] = table.to(state[name].device, copy=True)
            result["absmax" + number] = state["absmax" + number]
    return result


def _group(group: Dict[str, Any], kind: OptimizerKind) -> Dict[str, Any]:
    own = ("params", "lr", "betas", "eps", "weight_decay", "initial_lr", "param_names")
    result = {key: group[key] for key in own if key in group}
    if kind is OptimizerKind.SGD:
        result["betas"] = (group["momentum"], group["dampening"])
    result.setdefault("eps", 0.0)
    return {**result, "alpha": 0.0, "t_alpha": None, "t_beta3": None}
