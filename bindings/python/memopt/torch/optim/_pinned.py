"""Page-locked host memory in whole pages. torch's own comes in powers of two: up to twice the bytes."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

from .._native import native


def like(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty tensor of the host with another's shape, in its order of memory if that is dense;
    page-locked where copies come from and go to a GPU. Its memory ends with it, after the copies."""
    shape = torch.empty_like(tensor, dtype=dtype, device="meta", requires_grad=False)
    if device.type == "cpu" or not shape.numel():
        return torch.empty_strided(shape.size(), shape.stride(), dtype=dtype)
    memory = native(device).device.pinned(shape.numel() * dtype.itemsize)
    memory._handle.around = lambda _: _idle(device)
    flat = torch.frombuffer(memory.as_memoryview(), dtype=dtype)
    return flat.as_strided(shape.size(), shape.stride())


def moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host in such memory."""
    return like(value, value.dtype, device).copy_(value)


@contextlib.contextmanager
def _idle(device: torch.device) -> Iterator[None]:
    """Waits for a device's copies; not if it has failed, or while torch captures a graph."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if started and not torch.cuda.is_current_stream_capturing():
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(device)
    yield
