"""The allocators behind memopt/pluggable.h: their statistics and segments, by device."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Tuple

import torch

from .._library import lib, listed, output
from .._snapshot import read_segments
from .._stacks import Frame, no_frames
from ..allocator import stat_names


def handles(device: int) -> List[int]:
    """The allocators of a device: the one for everything but graphs, then those of graphs."""
    get = lib.memopt_pluggable_get_allocator
    return listed(get, device) or [output(get, device, 0)]  # which raises


def in_use() -> List[int]:
    """The devices that this process uses. An allocator is not made only to be looked at."""
    return [i for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)]


def stats(device: int) -> Dict[str, int]:
    """The statistics of all its allocators together."""
    total: Dict[str, int] = {}
    names = stat_names()
    for handle in handles(device):
        values = (ctypes.c_uint64 * len(names))()
        lib.memopt_allocator_get_stats(handle, len(names), None, values, None)
        for name, value in zip(names, values):
            total[name] = value if name == "max_split_size" else total.get(name, 0) + value
    return total


def reset_peaks(device: int) -> None:
    """Makes every peak the current value."""
    for handle in handles(device):
        lib.memopt_allocator_reset_peaks(handle)


def segments(device: int, frames: Callable[[int], List[Frame]] = no_frames) -> List[Dict[str, Any]]:
    """The segments of all its allocators; those of graphs come last, with their pools' ids."""
    found: List[Dict[str, Any]] = []
    for number, handle in enumerate(handles(device)):
        found += read_segments(handle, device, pool(device, number), frames)
    return found


def pool(device: int, number: int) -> Tuple[int, int]:
    """The id of the pool behind an allocator; (0, 0) of the first."""
    high, low = ctypes.c_uint64(), ctypes.c_uint64()
    lib.memopt_pluggable_get_pool(device, number, high, low)
    return high.value, low.value
