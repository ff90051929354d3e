"""Where values may wait beside their device, how fast they get there and back, and how large they may be."""

from __future__ import annotations

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
#: The path of a disk, and the most bytes of its file; 0: no limit.
Place = Optional[Tuple[str, int]]


class Way(NamedTuple):
    """To the host or to the disk: MEMOPT_FIT_OFFLOAD or _DISK, bytes a second, and sizes of values."""

    kind: int
    speed: float
    least: float
    most: float


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


def ways_of(link: float, host: int, disk: Place) -> List[Way]:
    """`link`: bytes a second to the host."""
    ways = [Way(int(_abi.FitChoiceKind.OFFLOAD), link, LEAST, math.inf)]
    if disk is not None:
        ways.append(Way(int(_abi.FitChoiceKind.DISK), min(disk_speed(host, disk), link), LEAST_ON_DISK, host))
    return ways


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
