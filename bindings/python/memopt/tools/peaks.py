"""What is alive at the peak of a trace, by groups, and what differs between two traces."""

from __future__ import annotations

import array
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .._abi.tools import TraceAction
from ..sizes import format_size
from . import _trace_files
from ._trace_files import TraceSource
from .trace import Trace, TraceInfo

_ALLOCATE, _FREE = ("allocate", "alloc"), ("free", "deallocate")


class PeakGroup(NamedTuple):
    """Blocks that belong together."""

    #: The tag that was recorded; "" where there was none.
    tag: str
    #: The line of the program that allocates them; "" where no frames were recorded.
    where: str
    #: "1.50 MiB", or "1.00 MiB to 2.00 MiB" where there is a tag or a line.
    size: str


class PeakDifference(NamedTuple):
    """What a group had at the peaks of two traces."""

    group: PeakGroup
    first_bytes: int
    first_blocks: int
    second_bytes: int
    second_blocks: int

    @property
    def difference(self) -> int:
        """Bytes that the second has more."""
        return self.second_bytes - self.first_bytes


class Peak:
    """A trace with the blocks that were alive when most bytes were."""

    def __init__(self, info: TraceInfo, source: TraceSource) -> None:
        self.info = info
        self.source = source
        #: Bytes and blocks at the peak.
        self.groups: Dict[PeakGroup, Tuple[int, int]] = {}

    @classmethod
    def read(
        cls,
        file: Any,
        *,
        device: Optional[int] = None,
        partial: bool = False,
        recorded_only: bool = False,
        progress: Any = None,
        max_unpacked: Optional[int] = None,
    ) -> "Peak":
        """Reads a trace as :meth:`Trace.read` does."""
        with Trace() as trace:
            lives = _Lives(trace)
            source = _trace_files.read_trace(
                lives, file, device, partial, recorded_only, progress, max_unpacked
            )
            found = cls(trace.info, source)
        found.groups = lives.at_peak()
        return found

    @property
    def nbytes(self) -> int:
        """The most requested bytes alive at once."""
        return sum(nbytes for nbytes, _ in self.groups.values())


def compare_peaks(first: Peak, second: Peak) -> List[PeakDifference]:
    """The groups of both, those that differ most first."""
    none = (0, 0)
    rows = [
        PeakDifference(group, *first.groups.get(group, none), *second.groups.get(group, none))
        for group in {**first.groups, **second.groups}
    ]
    return sorted(rows, key=lambda row: (-abs(row.difference), row.group))


class _Lives:
    """Passes a file's events on to a trace, which checks them, and notes each block's group."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._numbers: Dict[PeakGroup, int] = {}
        self._groups: List[PeakGroup] = []
        self._events = array.array("q")  # a group's number and its bytes, negative of a free
        self._live: Dict[int, Tuple[int, int]] = {}
        self._now = self._most = self._peak = 0
        self._columns: Optional[Dict[str, int]] = None
        self._rest = b""

    def __len__(self) -> int:
        return len(self._trace)

    # --- events ---

    def _alloc(self, address: int, size: int, tag: str, where: str) -> None:
        self._free(address)  # a lost one
        if size == 0:
            return
        text = _class_of(size) if tag or where else format_size(size)
        group = PeakGroup(tag, where, text)
        number = self._numbers.setdefault(group, len(self._groups))
        if number == len(self._groups):
            self._groups.append(group)
        self._live[address] = number, size
        self._events.extend((number, size))
        self._now += size
        if self._now > self._most:
            self._most, self._peak = self._now, len(self._events)

    def _free(self, address: int) -> None:
        known = self._live.pop(address, None)
        if known is not None:
            self._events.extend((known[0], -known[1]))
            self._now -= known[1]

    def at_peak(self) -> Dict[PeakGroup, Tuple[int, int]]:
        """Bytes and blocks of the groups that were alive then."""
        bytes_, blocks = [0] * len(self._groups), [0] * len(self._groups)
        for i in range(0, self._peak, 2):
            number, size = self._events[i], self._events[i + 1]
            bytes_[number] += size
            blocks[number] += 1 if size > 0 else -1
        return {
            group: (bytes_[i], blocks[i]) for i, group in enumerate(self._groups) if blocks[i]
        }

    # --- CSV ---

    def parse_csv(self, text: bytes) -> None:
        self._trace.parse_csv(text)  # refuses what is malformed
        lines = (self._rest + text).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._line(line)

    def end_csv(self) -> None:
        self._trace.end_csv()
        self._line(self._rest)
        self._rest, self._columns = b"", None

    def _line(self, line: bytes) -> None:
        fields = [field.strip(b' \t\r"') for field in line.split(b",")]
        if fields == [b""]:
            return
        if self._columns is None:
            names = [field.lstrip(b"\xef\xbb\xbf\"").decode("ascii", "replace") for field in fields]
            self._columns = {name.lower(): i for i, name in enumerate(names)}
            return
        columns = self._columns
        action = fields[columns["action"]].decode("ascii", "replace").lower()
        address = int(fields[columns["pointer"]] or b"0", 16)
        if action in _ALLOCATE:
            at = columns.get("tag", len(fields))
            tag = fields[at].decode("utf-8", "replace") if at < len(fields) else ""
            self._alloc(address, int(fields[columns["size"]]), tag, "")
        elif action in _FREE:
            self._free(address)

    # --- snapshots ---

    def add_events(self, words: "array.array[int]", frames: List[Any]) -> None:
        """Events of a snapshot, and the frames of each."""
        self._trace.add_words(words)
        alloc, free = int(TraceAction.ALLOC), int(TraceAction.FREE)
        for i, stack in enumerate(frames):
            address, size, _, action = words[4 * i : 4 * i + 4]
            if action == alloc:
                self._alloc(address, size, "", _place(stack))
            elif action == free:
                self._free(address)


def _class_of(size: int) -> str:
    """Between which powers of two a size is."""
    low = 1 << (size.bit_length() - 1)
    return "%s to %s" % (format_size(low), format_size(2 * low))


def _place(stack: Any) -> str:
    """The innermost line of a stack that is the program's, or its innermost."""
    frames = [f for f in stack or () if isinstance(f, dict) and "filename" in f]
    own = [f for f in frames if not _is_a_library_s(str(f["filename"]))]
    for frame in (own or frames)[:1]:
        name = os.path.basename(str(frame["filename"]))
        return "%s:%s %s" % (name, frame.get("line"), frame.get("name"))
    return ""


def _is_a_library_s(filename: str) -> bool:
    return (
        "site-packages" in filename
        or "/torch/" in filename
        or "/memopt/" in filename
        or not filename.endswith(".py")
    )
