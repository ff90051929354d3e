"""What a step knows beforehand: a loss scale, a verdict, a norm."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Optional

import torch

from ..._library import lib
from .. import _tensor_lists
from .._native import native


class Facts(NamedTuple):
    """What a step is given beside gradients."""

    scale: Optional[torch.Tensor] = None  # of the gradients
    found_inf: Optional[torch.Tensor] = None  # not 0: nothing changes
    square_sum: Optional[torch.Tensor] = None  # of all gradients; if not finite, nothing changes
    max_norm: float = 0.0  # clip by square_sum


def loss_of(closure: Optional[Callable[[], Any]]) -> Any:
    """What a step's closure gives, which makes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def on_host(value: Any) -> Optional[torch.Tensor]:
    """A number of a GradScaler's, read."""
    return None if value is None else torch.tensor(float(value), dtype=torch.float32)


def is_skipped(facts: Facts) -> bool:
    """Whether the step changes nothing: the library sees the same, but the gradient in the wire
    must not go out as the parameter."""
    if facts.found_inf is not None and float(facts.found_inf) != 0.0:
        return True
    return facts.square_sum is not None and not math.isfinite(float(facts.square_sum))


def factor_of(facts: Facts) -> float:
    """By which a step multiplies the gradients, as the library does: unscaled, then clipped."""
    factor = 1.0 if facts.scale is None else 1.0 / float(facts.scale)
    if facts.square_sum is not None and facts.max_norm > 0.0:
        norm = math.sqrt(float(facts.square_sum)) * factor
        if facts.max_norm < norm + 1e-6:
            factor *= facts.max_norm / (norm + 1e-6)
    return factor


def square_sum(grads: List[torch.Tensor]) -> torch.Tensor:
    """device_square_sum(), on the host."""
    return device_square_sum(grads).cpu() if grads else torch.zeros(1, dtype=torch.float64)


def device_square_sum(grads: List[torch.Tensor]) -> torch.Tensor:
    """memopt_square_sum() over tensors of one device, which are at least one, on that device."""
    side = native(grads[0].device)
    array = _tensor_lists.array(grads)
    total = torch.empty(1, dtype=torch.float64, device=grads[0].device)
    cell, handle = _tensor_lists.cell(total), side.device._handle.pointer
    lib.memopt_square_sum(handle, cell, array, len(grads), side.stream())
    return total
