"""What torch.cuda.memory asks torch._C for, answered by the library where its allocator is torch's.

torch.cuda.memory is Python above a few functions of torch._C, which refuse to answer for any
allocator but torch's own. They are replaced, for the rest of the process, as the allocator is.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import _snapshot, errors
from .._abi import PluggableObserver
from .._library import lib
from ..allocator import config_items, stat_names
from .._stacks import Stacks, no_frames
from ..oom import OutOfMemoryReport, holders_of, numbers_of, tag_names
from . import _pluggable
from ._history import History

#: Of a statistic that counts since the last reset.
_ACCUMULATED = ("allocated", "freed")


class TorchMemory:
    """The answers, and what torch keeps between questions."""

    def __init__(self, config: str) -> None:
        self._config = config
        self._bases: Dict[int, Dict[str, int]] = {}  # accumulated statistics at their reset
        self._fractions: Dict[int, float] = {}
        self._history: Optional[History] = None
        self._kept: List[Stacks] = []  # C may call them as long as the allocators live
        #: Of the last failures, by device.
        self.reports: Dict[int, OutOfMemoryReport] = {}
        self._failures: Dict[int, Dict[int, int]] = {}  # how many, by device and allocator
        self._observers: List[Callable[[int, int, int, int], Any]] = []
        self._set_fraction: Any = torch._C._cuda_setMemoryFraction
        self._observer = PluggableObserver(self._out_of_memory)  # as long as the process

    def install(self) -> None:
        """Puts the answers into torch._C; a function that this torch lacks is left out."""
        for name, answer in (
            ("_cuda_memoryStats", self.stats),
            ("_cuda_resetPeakMemoryStats", _pluggable.reset_peaks),
            ("_cuda_resetAccumulatedMemoryStats", self.reset_accumulated),
            ("_cuda_memorySnapshot", self.snapshot),
            ("_cuda_getMemoryFraction", self.fraction),
            ("_cuda_setMemoryFraction", self.set_fraction),
            ("_cuda_record_memory_history", self.record),
            ("_cuda_record_memory_history_legacy", self.record_legacy),
            ("_cuda_isHistoryEnabled", self.recording),
            ("_cuda_attach_out_of_memory_observer", self.observe),
        ):
            if hasattr(torch._C, name):
                setattr(torch._C, name, answer)
        lib.memopt_pluggable_observe(self._observer)

    # --- statistics ---

    def stats(self, device: int) -> Dict[str, Any]:
        """Nested: {"active": {"all": {"current": …}}}."""
        values = dict.fromkeys(stat_names(), 0)
        if device in _pluggable.in_use():
            values = _pluggable.stats(device)
        if values["max_split_size"] >> 63:
            values["max_split_size"] = -1  # no limit
        bases = self._bases.get(device, {})
        nested: Dict[str, Any] = {}
        for name, value in values.items():
            *path, last = name.split(".")
            place = nested
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value - bases.get(name, 0)
        return nested

    def reset_accumulated(self, device: int) -> None:
        """Counts "allocated", "freed" and "num_…" from 0 again."""
        self._bases[device] = {
            name: value
            for name, value in _pluggable.stats(device).items()
            if name.startswith("num_") or name.rsplit(".", 1)[-1] in _ACCUMULATED
        }

    def fraction(self, device: int) -> float:
        """Of the device's memory, what the allocator may hold."""
        given = self._fractions.get(device)
        if given is not None:
            return given
        found = 1.0
        for _, item in config_items(self._config):
            key, _, value = item.partition(":")
            if key.strip() == "per_process_memory_fraction":
                found = float(value)
        return found

    def set_fraction(self, fraction: float, device: int) -> None:
        """As torch's, and it is remembered."""
        self._set_fraction(fraction, device)
        self._fractions[device] = fraction

    # --- snapshots ---

    def snapshot(self, arguments: Optional[Tuple[Any, ...]] = None) -> Dict[str, Any]:
        """All devices; with (high, low) or (high, low, traces too), of one pool if not (0, 0)."""
        high, low, *rest = arguments or (0, 0)
        segments = self._segments()
        if (high, low) != (0, 0):
            segments = [s for s in segments if s["segment_pool_id"] == (high, low)]
        traces: List[List[Any]] = []
        if self._history is not None and (not rest or rest[0]):
            traces = self._history.read()
        whole = _snapshot.whole(segments, self._config, traces)
        whole.update(host_segments=[], host_traces=[])
        return whole

    def _segments(self) -> List[Dict[str, Any]]:
        frames = no_frames if self._history is None else self._history.frames
        return [s for device in _pluggable.in_use() for s in _pluggable.segments(device, frames)]

    def seen(self, device: int) -> Dict[str, Any]:
        """A snapshot of one device, with what the page of HTML shows besides."""
        whole = self.snapshot()
        whole["segments"] = [s for s in whole["segments"] if s["device"] == device]
        del whole["device_traces"][device + 1 :]
        report = self.reports.get(device)
        whole["memopt"] = {
            "tags": tag_names(_pluggable.handles(device)[0]),
            "held": [] if self._history is None else self._history.held(device),
            "out_of_memory": None if report is None else report.as_dict(),
        }
        return whole

    # --- history ---

    def record(
        self,
        enabled: Optional[str] = "all",
        context: Optional[str] = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Tuple[str, ...] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Begins or ends the history. The frames of an allocation are Python's; torch tells those of
        C++ only its own allocator."""
        history = self._history
        if history is not None and (enabled != "all" or clear_history or not record_cuda):
            self._history = None
            history.end()
        if enabled == "all" and record_cuda and self._history is None:
            table = Stacks() if context in ("alloc", "all", "state") else None
            if table is not None:
                self._kept.append(table)
            self._history = History(max_entries, frozenset(skip_actions), table)

    def record_legacy(self, enabled: bool, context: bool = True, max_entries: int = 1, *_rest: Any) -> None:
        """The form with a bool."""
        self.record(
            "all" if enabled and max_entries > 1 else None, "alloc" if context else None, max_entries=max_entries
        )

    def recording(self) -> bool:
        """Whether there is a history."""
        return self._history is not None

    # --- out of memory ---

    def observe(self, observer: Callable[[int, int, int, int], Any]) -> None:
        """observer(device, asked, allocated, free) is called before the exception is thrown."""
        self._observers.append(observer)

    def _out_of_memory(self, device: int, asked: int, allocated: int, free: int) -> None:
        history = self._history
        if history is not None:
            history.failed(device, asked, free)
        with contextlib.suppress(errors.MemoptError):  # never hide the failure
            report = self._report(device)
            if report is not None:
                self.reports[device] = report
        for observer in list(self._observers):
            observer(device, asked, allocated, free)

    def _report(self, device: int) -> Optional[OutOfMemoryReport]:
        """Who holds what, before the exception frees anything. The failure is the last one of that
        allocator which has just counted one more."""
        found = None
        before = self._failures.get(device, {})
        counts: Dict[int, int] = {}
        for number, handle in enumerate(_pluggable.handles(device)):
            numbers = numbers_of(handle)
            counts[number] = 0 if numbers is None else numbers["number"]
            if numbers is not None and counts[number] > before.get(number, 0):
                found = numbers
        self._failures[device] = counts
        if found is None:
            return None
        history = self._history
        frames = no_frames if history is None else history.frames
        born = {} if history is None else history.ages(device)
        tags = tag_names(_pluggable.handles(device)[0])
        holders = holders_of(_pluggable.segments(device, frames), tags, frames, born)
        return OutOfMemoryReport(found, tags, holders)
