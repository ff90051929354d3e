"""An optimizer's states: what they take, and in 8 bits."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ..._abi import StateFormat
from ..optim import SGD, Adam, Adam8bit, AdamW, AdamW8bit, Lion, Lion8bit, SGD8bit
from ._tape import tensors_in

_IN_8_BITS = {AdamW: AdamW8bit, Adam: Adam8bit, Lion: Lion8bit, SGD: SGD8bit}


def state_bytes(model: torch.nn.Module, optimizer: Any) -> int:
    """Of an optimizer's tensors on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    states = () if optimizer is None else tensors_in(list(optimizer.state.values()))
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in states if t.device == device}
    return sum(storages.values())


def may_be_8bit(optimizer: Any) -> bool:
    """Whether there are 32-bit states that to_8bit() takes."""
    return type(optimizer) in _IN_8_BITS and optimizer._states == StateFormat.F32 and bool(optimizer.state)


def to_8bit(optimizer: Any) -> None:
    """The optimizer is its rule's 8-bit class from now on; its states are converted as load_state_dict() does it."""
    before, format_, saved = type(optimizer), optimizer._states, optimizer.state_dict()
    fresh = _IN_8_BITS[before]([torch.nn.Parameter(torch.empty(0))])
    places = (optimizer.defaults, *optimizer.param_groups)
    added = {name: value for name, value in fresh.defaults.items() if name not in optimizer.defaults}
    optimizer.__class__, optimizer._states = type(fresh), fresh._states
    for values in places:
        values.update(added)
    try:
        optimizer.load_state_dict(saved)
    except BaseException:
        optimizer.__class__, optimizer._states = before, format_
        for values, name in itertools.product(places, added):
            values.pop(name, None)
        raise


def bytes_in_8bit(model: torch.nn.Module, optimizer: Any) -> int:
    """What its states would take then, found by converting those of one parameter after the other."""
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                values = {name: value for name, value in group.items() if name in optimizer.defaults}
                alone = type(optimizer)([parameter], **values)
                alone.state[parameter] = optimizer.state[parameter]
                to_8bit(alone)
                total += state_bytes(model, alone)
    return total
