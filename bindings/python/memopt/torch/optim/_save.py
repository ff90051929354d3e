"""State dicts for bitsandbytes, and for processes with other shards."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _rules
from ._format import Kind
from ._base import MemoptOptimizer
from ._schedule_free import AdamWScheduleFree
from ._whole import WholeOptimizer


@contextlib.contextmanager
def portable_states(*optimizers: MemoptOptimizer) -> Iterator[None]:
    """Within it, the optimizers' state dicts have 32-bit moments, under torch's names, in place of
    coded and bf16 ones: torch's optimizers load them, and any optimizer of the rule here.

        with mt.portable_states(optimizer):
            torch.optim.AdamW(model.parameters()).load_state_dict(optimizer.state_dict())

    For torch.distributed.checkpoint:

        with mt.portable_states(optimizer):
            weights, states = get_state_dict(model, optimizer)
            dcp.save({"weights": weights, "states": states}, checkpoint_id=path)

    Such a checkpoint has the same tensors however parameters are cut and whatever states are kept
    in, so any layout can load it, within this context as well. Values
    are decoded exactly, and quantised once where they are loaded. In each process the dict takes 4
    bytes for each element of a moment that the process has. ``optimizer.state`` stays as it is.
    """
    for optimizer in optimizers:
        optimizer._portable += 1
    try:
        yield
    finally:
        for optimizer in optimizers:
            optimizer._portable -= 1


def to_bitsandbytes(optimizer: MemoptOptimizer) -> Dict[str, Any]:
    """The optimizer's state dict as bitsandbytes' 8-bit or 32-bit optimizer of the rule loads it.

    Codes, scales and 32-bit states are the optimizer's own tensors, as in ``state_dict()``; AdEMAMix's
    means are copied into one tensor. TypeError for companded and bf16 states, and for rules that
    bitsandbytes does not have: Muon, Adafactor, schedule-free AdamW, RMSprop with a momentum buffer.
    """
    kind = optimizer._kind
    mixed = isinstance(optimizer, _rules.AdEMAMix)
    trust = kind in (_format.OwnKind.LAMB, _format.OwnKind.LARS)
    if isinstance(optimizer, (WholeOptimizer, AdamWScheduleFree)) and not trust:
        raise TypeError("bitsandbytes has no %s" % type(optimizer).__name__)
    if optimizer._states not in (StateFormat.F32, StateFormat.BITS8):
        raise TypeError("bitsandbytes has no states like those of %s" % type(optimizer).__name__)
    if kind is OptimizerKind.RMSPROP_MOMENTUM:
        raise TypeError("bitsandbytes has no RMSprop with a momentum buffer")
    saved = optimizer.state_dict()
    if mixed:
        states = saved["state"].items()
        return {**saved, "state": {key: _rules.to_bitsandbytes(value) for key, value in states}}
    places = [place for group in saved["param_groups"] for place in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    counts = {place: p.numel() for place, p in zip(places, params)}
    saved["state"] = {
        place: _state(_format.opened(state), kind, counts[place]) if place in counts else state
        for place, state in saved["state"].items()
        if place not in counts or _format.has_moments(state, kind)
    }
    saved["param_groups"] = [_group(group, kind) for group in saved["param_groups"]]
    return saved


def _state(state: Dict[str, Any], kind: Kind, count: int) -> Dict[str, Any]:
    result: Dict[str, Any] = {"step": _format.steps_taken(state["step"])}
    coded = _format.of(state, kind, count, StateFormat.BITS8) is StateFormat.BITS8
    for i, name in enumerate(_format.MOMENTS[kind]):
        number = str(i + 1)
        result["state" + number] = state[name]
        if coded:
            table: torch.Tensor = _format.values(StateFormat.BITS8, _format.is_signed(kind, i))
            result["qmap" + number] = table.to(state[name].device, copy=True)
            result["absmax" + number] = state["absmax" + number]
    return result


def _group(group: Dict[str, Any], kind: Kind) -> Dict[str, Any]:
    own = ("params", "lr", "betas", "eps", "weight_decay", "initial_lr", "param_names")
    result = {key: group[key] for key in own if key in group}
    if kind in (OptimizerKind.SGD, _format.OwnKind.LARS):
        result["betas"] = (group["momentum"], group["dampening"])
    if kind is OptimizerKind.RMSPROP:
        result["betas"] = (group["alpha"], 0.0)
    if kind is OptimizerKind.ADAGRAD:
        result["betas"] = (0.0, 0.0)
    result.setdefault("eps", 0.0)
    return {**result, "alpha": 0.0, "t_alpha": None, "t_beta3": None}
