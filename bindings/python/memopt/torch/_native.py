"""The library's side of a torch device: our device handle, an allocator, and torch's streams.

One :class:`Native` for each torch device, made at its first use and kept: a GPU's primary context
is shared with torch anyway. A child process after a fork makes its own, because it lacks the
threads of the parent's handles.

On a CPU, kernels run on as many threads as torch's own: each call reads torch.get_num_threads() of
the calling thread, as torch does. MEMOPT_NUM_THREADS takes precedence.
"""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple

import torch

from .._lock import Guard
from ..allocator import Allocator
from ..device import Device

_MOST_THREADS = 1024  # of a device

_torch_threads = torch.get_num_threads
_lock = Guard()
_natives: Dict[Tuple[int, str, int], "Native"] = {}


class Native:
    """A torch device as the library sees it."""

    __slots__ = ("torch_device", "device", "_allocator", "_is_cpu", "_threads")

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._is_cpu = torch_device.type == "cpu"
        #: Our handle of the device.
        self.device = Device(_name(torch_device), unified=shares_memory(torch_device))
        self._allocator: Optional[Allocator] = None
        #: torch's number that the device has; None where it does not follow torch.
        self._threads: Optional[int] = 0
        if not self._is_cpu or os.environ.get("MEMOPT_NUM_THREADS"):
            self._threads = None

    @property
    def allocator(self) -> Allocator:
        """Where the library's own tables come from; tensors that users see are torch's."""
        with _lock:
            if self._allocator is None:
                self._allocator = Allocator(self.device)
            return self._allocator

    def stream(self) -> Optional[int]:
        """What the next call runs on: torch's current stream as the driver's handle, None for the
        default one; and on a CPU, as many threads as torch has."""
        if self._is_cpu:
            if self._threads is not None and self._threads != _torch_threads():
                self._follow()
            return None
        return torch.cuda.current_stream(self.torch_device).cuda_stream or None

    def _follow(self) -> None:
        with _lock:
            threads = _torch_threads()
            self.device.set_threads(min(threads, _MOST_THREADS))
            self._threads = threads


def shares_memory(device: torch.device) -> bool:
    """Whether a GPU's memory is the machine's own, as GB10's is. (An APU of AMD's may have a part of it set aside.)"""
    if device.type != "cuda" or torch.version.hip:
        return False
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    backend = "hip" if torch.version.hip else "cuda"
    return "%s:%d" % (backend, device.index)


def native(device: torch.device) -> Native:
    """The :class:`Native` of a torch device; TypeError for kinds that the library cannot use."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
    elif device.type == "cpu":
        index = 0
    else:
        raise TypeError("memopt supports tensors on cpu and cuda devices, not on %s" % device)
    key = (os.getpid(), device.type, index)
    found = _natives.get(key)
    if found is None:
        with _lock:
            found = _natives.get(key)
            if found is None:
                found = _natives[key] = Native(torch.device(device.type, index))
    return found
