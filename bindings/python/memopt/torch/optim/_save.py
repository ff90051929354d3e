"""State dicts for bitsandbytes, and for processes with other shards."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch

from ..._abi import OptimizerKind, StateFormat
from ...rules import CODES
from . import _format, _layout, _load
from ._base import Loading, MemoptOptimizer


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


#: The rules that bitsandbytes has.
_THEIRS = ("AdamW", "Adam", "Lion", "SGD", "Adagrad", "RMSprop", "AdEMAMix", "LAMB", "LARS")


def to_bitsandbytes(optimizer: MemoptOptimizer) -> Dict[str, Any]:
    """The optimizer's state dict as bitsandbytes' 8-bit or 32-bit optimizer of the rule loads it.

    Dynamic codes, scales and 32-bit states are the optimizer's own tensors, as in ``state_dict()``;
    companded codes are coded anew, and AdEMAMix's means are copied into one tensor. TypeError for bf16
    states, and for rules that bitsandbytes does not have: Muon, Adafactor, schedule-free AdamW, RMSprop
    with a momentum buffer.
    """
    kind, name = optimizer._kind, type(optimizer).__name__
    if optimizer._rule.name not in _THEIRS:
        raise TypeError("bitsandbytes has no %s" % name)
    if optimizer._states not in (StateFormat.F32, *CODES.values()):
        raise TypeError("bitsandbytes has no states like those of %s" % name)
    if kind is OptimizerKind.RMSPROP_MOMENTUM:
        raise TypeError("bitsandbytes has no RMSprop with a momentum buffer")
    saved = optimizer.state_dict()
    places = Loading(saved["state"], saved["param_groups"], optimizer.param_groups).places()
    saved["state"] = {
        number: _state(_dynamic(optimizer, _format.opened(state), *places[number]), kind) if number in places else state
        for number, state in saved["state"].items()
        if number not in places or _format.has_moments(state, kind)
    }
    saved["param_groups"] = [_group(group, kind) for group in saved["param_groups"]]
    return saved


def _dynamic(optimizer: MemoptOptimizer, state: Any, p: torch.Tensor, group: Any, name: str) -> Dict[str, Any]:
    """A state with bitsandbytes' codes in the place of others."""
    memory = _layout.local(p)
    saved = optimizer._place(memory, name).read(state)
    assert saved is not None
    lent = saved._replace(lent=True)
    return _load.convert(lent, optimizer._kind, StateFormat.BITS8_DYNAMIC, _layout.dense(memory), True)


def _state(state: Dict[str, Any], kind: OptimizerKind) -> Dict[str, Any]:
    result: Dict[str, Any] = {"step": _format.steps_taken(state["step"])}
    coded = "absmax1" in state
    for i, name in enumerate(_format.MOMENTS[kind], 1):
        result["state%d" % i] = state[name]
        if coded:
            table: torch.Tensor = _format.values(StateFormat.BITS8_DYNAMIC, _format.is_signed(kind, i - 1))
            result["qmap%d" % i] = table.to(state[name].device, copy=True)
            result["absmax%d" % i] = state["absmax%d" % i]
    if kind is OptimizerKind.ADEMAMIX:  # its means are one tensor
        for key in ("state", "absmax") if coded else ("state",):
            means = [result.pop("%s%d" % (key, i)) for i in (1, 2)]
            result.update({key + "1": torch.stack(means), key + "2": result.pop(key + "3")})
        if coded:
            result["qmap2"] = result.pop("qmap3")
    return result


def _group(group: Dict[str, Any], kind: OptimizerKind) -> Dict[str, Any]:
    own = ["params", "lr", "betas", "eps", "weight_decay", "initial_lr", "param_names"]
    own += ["alpha", "t_alpha", "t_beta3"] if kind is OptimizerKind.ADEMAMIX else []
    result: Dict[str, Any] = {"eps": 0.0, "alpha": 0.0, "t_alpha": None, "t_beta3": None}
    result.update({key: group[key] for key in own if key in group})
    if kind is OptimizerKind.SGD:
        result["betas"] = (group["momentum"], group["dampening"])
    if kind is OptimizerKind.RMSPROP:
        result["betas"] = (group["alpha"], 0.0)
    if kind is OptimizerKind.ADAGRAD:
        result["betas"] = (0.0, 0.0)
    return result
