"""Detects a floor that creeps up, and a device that is hardly used."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, Optional, Tuple


class Floor:
    """Looks at the smallest value of each window of samples.

    It is a leak when that minimum rose in each of the last `windows` windows, by at least
    `threshold` bytes a step in both halves of them: memory that fills up flattens. With values that
    only vary, eight minima rise by chance once in 40,320 windows.
    """

    def __init__(self, window: int, windows: int, threshold: float) -> None:
        self._window = window
        self._threshold = threshold
        self._minima: Deque[Tuple[int, int]] = deque(maxlen=windows)  # step, value
        self._least: Optional[Tuple[int, int]] = None
        self._count = 0

    def add(self, step: int, value: int) -> Optional[float]:
        """The bytes a step that leak, if they do."""
        if self._least is None or value < self._least[1]:
            self._least = (step, value)
        self._count += 1
        if self._count < self._window:
            return None
        self._minima.append(self._least)
        self._least, self._count = None, 0
        return self._slope()

    def _slope(self) -> Optional[float]:
        minima = list(self._minima)
        if len(minima) < (self._minima.maxlen or 0):
            return None
        if any(after[1] <= before[1] for before, after in zip(minima, minima[1:])):
            return None
        middle = len(minima) // 2
        slope = min(_rise(minima[: middle + 1]), _rise(minima[middle:]))
        return slope if slope >= self._threshold else None


def _rise(minima: List[Tuple[int, int]]) -> float:
    """Bytes a step between the first and the last."""
    (first, low), (last, high) = minima[0], minima[-1]
    return (high - low) / max(last - first, 1)


class LeakDetector:
    """Floors over short and long windows, so that a leak that strikes rarely is seen too.

    The first `warm_up` samples do not count: caches fill then.
    """

    def __init__(
        self, window: int = 20, windows: int = 8, threshold: float = 16384, warm_up: int = 20
    ) -> None:
        self._skip = warm_up
        self._floors: List[Floor] = [
            Floor(window * factor, windows, threshold) for factor in (1, 8)
        ]

    def add(self, step: int, value: int) -> Optional[float]:
        """The bytes a step that leak, if this sample shows it."""
        if self._skip > 0:
            self._skip -= 1
            return None
        found = [floor.add(step, value) for floor in self._floors]
        return max((slope for slope in found if slope is not None), default=None)


class UseWatch:
    """Says whether less than a share of a device was used by the `after`-th sample, and since."""

    def __init__(self, share: float = 0.5, after: int = 100) -> None:
        self._share, self._after = share, after
        self._count = 0
        #: The greatest share so far.
        self.most = 0.0

    def add(self, share: float) -> bool:
        """Whether this sample shows that the device is under-used."""
        self._count += 1
        self.most = max(self.most, share)
        return self._count >= self._after and self.most < self._share
