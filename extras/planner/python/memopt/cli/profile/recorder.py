"""Samples of a program's memory: taking them, and keeping peaks, phases and a bounded course."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

from ...errors import MemoptError
from ...tools import Monitor, Process
from ..monitor.sampling import GPUS, Target
from .phase_pipe import Mark
from .process_tree import descendants, hidden, process_use, proportional

_MOST_RECORDS = 4000  # of the course; peaks are exact whatever is kept
#: The shares of the time that may be spent, at most, with what costs more than reading a number.
_SHARES = {"descendants": 0.004, "pss": 0.004}

Record = Dict[str, Any]


class Peak(NamedTuple):
    """The most of a figure, and where it was."""

    bytes: int
    seconds: float
    phase: str


class Budget:
    """Says when something may be done again, so that it takes at most a share of the time."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._next = 0.0

    def allows(self) -> bool:
        """Whether it may be done now."""
        return time.monotonic() >= self._next

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Around doing it."""
        start = time.thread_time()
        yield
        self._next = time.monotonic() + (time.thread_time() - start) / self._share


class Figures:
    """Takes samples of a program and of its descendants."""

    def __init__(self, gpus: bool) -> None:
        self._own = os.getpid()
        self._budgets = {name: Budget(share) for name, share in _SHARES.items()}
        self._descendants: List[int] = []
        self._monitors: Dict[str, Monitor] = {}
        self.devices: List[Target] = []
        self.names: Dict[str, str] = {}
        self.totals: Dict[str, int] = {}
        self.seen: Set[int] = set()
        #: Why host memory cannot be read, if so.
        self.hidden: Optional[str] = None
        for backend in GPUS if gpus else ():
            self._open(backend)

    def _open(self, backend: str) -> None:
        try:
            self._monitors[backend] = monitor = Monitor(backend)
            for number in range(len(monitor)):
                target = Target(backend, number)
                reading = monitor.read(number)
                self.devices.append(target)
                self.names[target.name] = reading.name or ""
                self.totals[target.name] = reading.memory_total or 0
        except MemoptError:
            pass

    def close(self) -> None:
        """Ends the monitors."""
        for monitor in self._monitors.values():
            monitor.close()

    def take(self, root: int) -> Record:
        """One sample of a program that this process started."""
        now = time.monotonic()
        if self._budgets["descendants"].allows():
            with self._budgets["descendants"].spend():
                self._descendants = descendants(self._own)
        pids = [root] + [pid for pid in self._descendants if pid != root]
        self.seen.update(pids)
        uses = [use for use in map(process_use, pids) if use is not None]
        if not uses:
            self.hidden = self.hidden or hidden(root)
        record: Record = {
            "time": now,
            "processes": len(uses),
            "largest": max((use.rss_peak for use in uses), default=None),
            "rss": sum(use.rss for use in uses) if uses else None,
            "pss": self._pss(pids),
            "locked": sum(use.locked for use in uses) if uses else None,
        }
        self._add_devices(record, set(pids))
        return record

    def _pss(self, pids: List[int]) -> Optional[int]:
        """The kernel visits every page for it, so it is seldom read."""
        budget = self._budgets["pss"]
        if not budget.allows():
            return None
        with budget.spend():
            shares = [share for share in map(proportional, pids) if share is not None]
        return sum(shares) if shares else None

    def _add_devices(self, record: Record, pids: Set[int]) -> None:
        """The bytes of these processes, and those of everybody, on each device."""
        for target in self.devices:
            name, monitor = target.name, self._monitors[target.backend]
            used = everybody = None
            try:
                used = _sum(monitor.processes(target.number), pids)
            except MemoptError:
                pass
            try:
                everybody = monitor.read(target.number).memory_used
            except MemoptError:
                pass
            record[name] = used
            record[name + " device"] = everybody


def _sum(processes: List[Process], pids: Set[int]) -> Optional[int]:
    """The bytes of these processes; None if unknown. In a container the driver may use the host's
    process numbers: one without a name here could be any."""
    own = [process for process in processes if process.pid in pids]
    told = [process.used_bytes for process in own if process.used_bytes is not None]
    if told or not own and all(process.name for process in processes):
        return sum(told)
    return None


class Recorder:
    """What is known of the run so far."""

    def __init__(self, columns: List[str], start: float) -> None:
        self.columns = columns
        self.start = start
        self.records: List[Record] = []
        self.samples = 0
        self.peaks: Dict[str, Peak] = {}
        self.by_phase: Dict[str, Dict[str, int]] = {}
        self.phase_samples: Dict[str, int] = {}
        self.phase_seconds: Dict[str, float] = {}
        self.spans: List[Mark] = []  # for the plot: some of the marks
        self._phase = ""
        self._since = start
        self._every = 1
        self._group: Optional[Record] = None
        self._in_group = 0

    def begin(self, seconds: float) -> None:
        """The program is about to be started."""
        self.start = self._since = seconds

    def mark(self, marks: List[Mark]) -> None:
        """Marks up to now; they lie before the next sample."""
        for mark in marks:
            self._end_phase(mark.seconds)
            self._phase, self._since = mark.phase, mark.seconds
            if len(self.spans) < _MOST_RECORDS:
                self.spans.append(mark)

    def _end_phase(self, seconds: float) -> None:
        spent = max(seconds - self._since, 0.0)
        self.phase_seconds[self._phase] = self.phase_seconds.get(self._phase, 0.0) + spent

    def finish(self, seconds: float) -> None:
        """The program has ended."""
        self._end_phase(seconds)
        self._since = seconds
        if self._group is not None:
            self.records.append(self._group)
            self._group = None

    def add(self, record: Record) -> Record:
        """Takes a sample; it comes back with its time since the start and its phase."""
        record["time"] = round(record["time"] - self.start, 4)
        record["phase"] = self._phase
        self.samples += 1
        at_phase = self.by_phase.setdefault(self._phase, {})
        self.phase_samples[self._phase] = self.phase_samples.get(self._phase, 0) + 1
        for column in self.columns:
            value = record.get(column)
            if value is None:
                continue
            at_phase[column] = max(at_phase.get(column, 0), value)
            if column not in self.peaks or value > self.peaks[column].bytes:
                self.peaks[column] = Peak(value, record["time"], self._phase)
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        """The course keeps the maximum of each figure over several samples, so that it shows
        peaks."""
        self._group = dict(record) if self._group is None else self._most(self._group, record)
        self._in_group += 1
        if self._in_group < self._every:
            return
        self.records.append(self._group)
        self._group, self._in_group = None, 0
        if len(self.records) >= _MOST_RECORDS:
            pairs = zip(self.records[::2], self.records[1::2])
            self.records = [self._most(first, second) for first, second in pairs]
            self._every *= 2

    def _most(self, first: Record, second: Record) -> Record:
        both = dict(first)
        for column in self.columns:
            values = [one[column] for one in (first, second) if one.get(column) is not None]
            both[column] = max(values) if values else None
        return both
