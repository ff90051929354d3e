"""Where paged states lie: in page-locked memory of the host, where the parameter is on a GPU. Only the
step count stays with the parameter."""

from __future__ import annotations

import torch

from . import _binding, _format, _layout, _pinned

_HOST = torch.device("cpu")


def check(parameter: torch.Tensor, page_bytes: int, name: str) -> None:
    """Refuses what has no paged states."""
    if page_bytes and _layout.is_sharded(parameter) and _binding.is_paged(parameter.device):
        raise TypeError("%s is a DTensor on a GPU; its states cannot be paged" % name)


def home(memory: torch.Tensor, page_bytes: int) -> torch.Tensor:
    """A tensor like a parameter's memory on the device of its states: the same one, if not paged."""
    if not page_bytes or not _binding.is_paged(memory.device) or memory.device == _HOST:
        return memory
    return torch.empty_like(memory, device=_HOST)


def pinned(value: torch.Tensor, home_: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """A state's tensor, page-locked where it is not with its parameter."""
    return value if home_.device == memory.device else _pinned.moved(value, memory.device)


def moved(state: _format.State, home_: torch.Tensor, memory: torch.Tensor) -> _format.State:
    """A state that was made at home_, as the step needs it."""
    if home_.device == memory.device:
        return state
    return {
        key: value.to(memory.device) if key == "step" else _pinned.moved(value, memory.device)
        for key, value in state.items()
    }
