"""An optimizer's states: what they take, in 8 bits, on the host, and with bits of split weights."""

from __future__ import annotations

import inspect
import itertools
from typing import Any, List, Tuple

import torch

from ..._abi import StateFormat
from ..optim import SGD, Adam, Adam8bit, AdamW, AdamW8bit, Lion, Lion8bit, SGD8bit
from ..optim._base import PAGE_BYTES, MemoptOptimizer
from ..optim._binding import is_paged
from ..optim._format import RESIDUAL, step_tensor
from ..optim._layout import is_sharded
from ._tape import tensors_in

_IN_8_BITS = {AdamW: AdamW8bit, Adam: Adam8bit, Lion: Lion8bit, SGD: SGD8bit}


def state_bytes(model: torch.nn.Module, optimizer: Any) -> int:
    """Of an optimizer's tensors on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    states = () if optimizer is None else tensors_in(list(optimizer.state.values()))
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in states if t.device == device}
    return sum(storages.values())


def is_32bit(optimizer: Any) -> bool:
    """Whether it is one that to_8bit() takes."""
    return type(optimizer) in _IN_8_BITS and optimizer._states == StateFormat.F32


def may_be_8bit(optimizer: Any) -> bool:
    """Whether that would make states smaller."""
    return is_32bit(optimizer) and bool(optimizer.state)


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


# --- on the host -----------------------------------------------------------------------------------


def may_be_on_host(optimizer: Any) -> bool:
    """Whether there are states that to_host() takes."""
    ours = isinstance(optimizer, MemoptOptimizer) and "paged" in inspect.signature(type(optimizer)).parameters
    if not ours or optimizer._page_bytes or not optimizer.state:
        return False
    return any(is_paged(p.device) and not is_sharded(p) for p in optimizer.state)


def to_host(optimizer: Any) -> None:
    """Its states are in page-locked host memory from now on, as with ``paged=True``; steps have the same bits."""
    saved = optimizer.state_dict()
    optimizer._page_bytes = PAGE_BYTES
    try:
        optimizer.load_state_dict(saved)
    except BaseException:
        optimizer._page_bytes = 0
        raise


# --- split weights ---------------------------------------------------------------------------------


def _whole(optimizer: Any) -> List[torch.Tensor]:
    """Its weights of 32 bits."""
    found = (p for group in optimizer.param_groups for p in group["params"])
    return [p for p in found if p.dtype is torch.float32 and p.requires_grad]


def may_be_split(optimizer: Any) -> bool:
    """Whether there are weights that to_split() takes."""
    if not isinstance(optimizer, MemoptOptimizer) or not optimizer.state:
        return False
    groups = optimizer.param_groups
    able = all(g.get("split_weights", 0) is False and not g["stochastic_rounding"] for g in groups)
    return able and bool(_whole(optimizer)) and not several_processes()


def to_split(optimizer: Any) -> None:
    """Weights of 32 bits are bf16 from now on, with their other bits in the optimizer's states, as with
    ``split_weights=16``: where bf16 is a tie, the last bit is lost. Gradients are converted."""
    parts = {p: split(p.detach()) for p in _whole(optimizer)}  # memory ends here, not between two weights
    for p, (value, residual) in parts.items():
        gradient, p.grad = p.grad, None
        p.data = value
        p.grad = None if gradient is None else gradient.to(value.dtype)
        optimizer.state.setdefault(p, {"step": step_tensor(0, p.device)})[RESIDUAL] = residual
    for group in (optimizer.defaults, *optimizer.param_groups):
        group["split_weights"] = 16
    optimizer._binding = None


def split(weight: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """A weight in bf16, and what its bits have beside: an int16."""
    value = weight.to(torch.bfloat16)
    rest = weight.view(torch.int32) - value.float().view(torch.int32)
    return value, rest.clamp_(max=(1 << 15) - 1).to(torch.int16)


def several_processes() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def bytes_with(model: torch.nn.Module, optimizer: Any, eight: bool, host: bool, split: bool) -> int:
    """What states would take of the device in 8 bits, on the host, with those of split weights."""
    if host:
        steps = [state.get("step") for state in optimizer.state.values()]
        return sum(step.nbytes for step in steps if step is not None and step.device.type != "cpu")
    total = bytes_in_8bit(model, optimizer) if eight and may_be_8bit(optimizer) else state_bytes(model, optimizer)
    return total + (sum(2 * p.numel() for p in _whole(optimizer)) if split else 0)
