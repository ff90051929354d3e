"""Where values may wait beside their device, how fast they get there and back, and how large they may be."""

from __future__ import annotations

import functools
import math
import os
from typing import List, NamedTuple, Optional, Tuple

import torch

from ... import _abi
from ...offload import Disk, parse_disk
from ...sizes import Size, parse_size
from .._packer import Packer
from .._store import Options
from ._costs import LINK_BYTES, Clock

#: Values of fewer bytes stay on the device, or on the host.
LEAST, LEAST_ON_DISK = 1 << 10, 1 << 15
#: Values that are moved to measure what that costs: so many, of LEAST bytes and of these, more than caches hold.
VALUES, LARGE = 16, 1 << 20
#: The path of a disk, and the most bytes of its file; 0: no limit.
Place = Optional[Tuple[str, int]]


class Cost(NamedTuple):
    """Of a value that is moved and brought back: seconds of any, and bytes a second of each copy."""

    each: float
    speed: float


class Way(NamedTuple):
    """To the host or to the disk: MEMOPT_FIT_OFFLOAD or _DISK, what that costs, and sizes of values."""

    kind: int
    cost: Cost
    least: float
    most: float

    def seconds(self, nbytes: int) -> float:
        """There and back."""
        return self.cost.each + 2 * nbytes / self.cost.speed


def parse_place(host: Optional[Size], disk: Optional[Disk]) -> Place:
    """Checks what fit() is given."""
    if disk is None:
        return None
    limit = 0 if host is None else parse_size(host)
    if limit == 0:
        raise ValueError("fit: values go to the disk by way of host memory; pass host=, the bytes that they may take there")
    path, most = parse_disk(disk, limit)
    return os.fsdecode(path or b""), most


def options_of(host: Optional[int], disk: Place) -> Options:
    """The store of values that wait: with a disk, the oldest move on to it from a full host."""
    return Options(host or 0) if disk is None else Options(host or 0, int(_abi.Overflow.SPILL), disk)


def disk_limit(disk: Place) -> int:
    """For the solver, which counts bytes: values there fill blocks of 4096, so a ninth is left; 0: no limit."""
    return 0 if disk is None or disk[1] == 0 else max(disk[1] - disk[1] // 9, 1)


def ways_of(cost: Cost, host: int, disk: Place) -> List[Way]:
    """`cost`: of values on the host."""
    ways = [Way(int(_abi.FitChoiceKind.OFFLOAD), cost, LEAST, math.inf)]
    if disk is not None:
        slower = Cost(cost.each, min(disk_speed(host, disk), cost.speed))
        ways.append(Way(int(_abi.FitChoiceKind.DISK), slower, LEAST_ON_DISK, host))
    return ways


@functools.lru_cache(maxsize=None)
def cost_of_moving(device: torch.device) -> Cost:
    """Measured once, with what the packer and its copies take of the device's time, or of the CPU's where that is it."""
    packer, clock = Packer(Options(0), device.type, 1, (0, 0), (None, None)), Clock(device.type)

    def least(nbytes: int) -> float:
        """Seconds of one value of so many bytes."""
        values = [torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(VALUES)]
        seconds = []
        for _ in range(8):  # the first takes host memory from the system
            begin = clock.mark()
            packed = [packer.pack(value) for value in values]
            back = [packer.unpack(value) for value in packed]
            seconds.append(clock.seconds(begin, clock.mark()) / VALUES)
            del packed, back
        return min(seconds)

    torch.empty(LINK_BYTES, dtype=torch.uint8, device=device)  # from now on the allocator keeps what is freed, as in steps
    small, large = least(LEAST), least(LARGE)
    packer.stats()  # releases what it moved, so that its host memory is the next packer's
    speed = 2 * (LARGE - LEAST) / max(large - small, 1e-9)
    return Cost(max(small - 2 * LEAST / speed, 0.0), speed)


def disk_speed(host: int, disk: Tuple[str, int]) -> float:
    """Bytes a second of values that go to the disk from a full host, and of one that comes back."""
    size = min(LINK_BYTES, host, disk[1] // 4 or LINK_BYTES)
    packer = Packer(Options(size, int(_abi.Overflow.SPILL), disk), "cpu", 1, (0, 0), (None, None))
    values, clock = [torch.zeros(size, dtype=torch.uint8) for _ in range(3)], Clock("cpu")
    begin = clock.mark()
    packed = [packer.pack(value) for value in values]
    middle = clock.mark()
    packer.unpack(packed[0])
    seconds = clock.seconds(begin, middle) / 2 + clock.seconds(middle, clock.mark())
    return 2 * size / max(seconds, 1e-9)
