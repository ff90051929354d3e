"""The history of torch.cuda.memory._record_memory_history(), from the rings of the allocators.

A ring has the last events. Reading takes those that are new since the last reading, as torch's
entries, so that a history that is read often is longer than its rings.
"""

from __future__ import annotations

import collections
import warnings
from typing import Any, Container, Deque, Dict, List, Optional, Tuple

from .. import _events, errors
from .._lock import Guard
from .._library import lib
from .._stacks import Frame, Stacks, no_frames
from . import _pluggable

Entry = Dict[str, Any]

#: The most events of a ring, of 48 bytes each.
MOST = 1 << 20


class History:
    """Events of all devices since it was made, at most `max_entries` for each device, with the
    Python frames of allocations if `stacks` is given."""

    def __init__(self, max_entries: int, skipped: Container[str] = (), stacks: Optional[Stacks] = None) -> None:
        self._most = max_entries
        self._skipped = skipped
        self._stacks = stacks
        self._entries: Dict[int, Deque[Entry]] = {}
        self._rings: Dict[int, _Ring] = {}  # by the handle of its allocator
        self._failed: Dict[int, List[Tuple[int, int]]] = {}
        self._lock = Guard()
        room = min(4 * max_entries + 4096, MOST)  # some events make no entry, or are skipped
        lib.memopt_pluggable_history(_events.options(room, stacks))
        for device in _pluggable.in_use():
            for handle in _pluggable.handles(device):
                self._begin(handle, room)

    def frames(self, number: int) -> List[Frame]:
        """The frames behind the number of a block."""
        return no_frames(number) if self._stacks is None else self._stacks.frames(number)

    def failed(self, device: int, asked: int, free: int) -> None:
        """Memory ran out."""
        self._failed.setdefault(device, []).append((asked, free))

    def read(self) -> List[List[Entry]]:
        """The events of each device, oldest first."""
        with self._lock:
            for device in _pluggable.in_use():
                self._take(device)
            last = max(self._entries, default=-1)
            return [list(self._entries.get(device, ())) for device in range(last + 1)]

    def held(self, device: int) -> List[Tuple[float, int]]:
        """Changes of the bytes held from a device, as long as its rings have them."""
        found: List[Tuple[float, int]] = []
        for handle in _pluggable.handles(device):
            found += _events.held(self._events(handle, 0))
        return sorted(found)

    def ages(self, device: int) -> Dict[int, float]:
        """When the live blocks of a device were allocated, where the rings know."""
        found: Dict[int, float] = {}
        for handle in _pluggable.handles(device):
            found.update(_events.ages(self._events(handle, 0)))
        return found

    def end(self) -> None:
        """Records no more."""
        with self._lock:
            lib.memopt_pluggable_history(None)
            for device in _pluggable.in_use():
                for handle in _pluggable.handles(device):
                    try:
                        lib.memopt_allocator_set_history(handle, None)
                    except errors.NotFoundError:
                        pass

    def _begin(self, handle: int, room: int) -> None:
        try:
            _events.start(handle, room, self._stacks)
        except errors.BusyError:
            pass  # made just now, or recorded by its user
        except errors.MemoptError as error:
            warnings.warn("memory history: %s" % error, stacklevel=5)

    def _events(self, handle: int, first: int) -> List[_events.HistoryEvent]:
        try:
            return _events.read(handle, first, self.frames)
        except errors.NotFoundError:
            return []

    def _take(self, device: int) -> None:
        """Adds the new events of a device's allocators."""
        entries: List[Entry] = []
        for number, handle in enumerate(_pluggable.handles(device)):
            ring = self._rings.setdefault(handle, _Ring(_pluggable.pool(device, number)))
            events = self._events(handle, ring.next)
            if events:
                ring.next = events[-1].number + 1
            entries += ring.entries.of(events)
        entries.sort(key=lambda entry: int(entry["time_us"]))
        for entry in entries:
            if entry["action"] == "oom":
                entry["device_free"] = self._free_at(device, entry["size"])
        kept = self._entries.setdefault(device, collections.deque(maxlen=self._most))
        kept.extend(entry for entry in entries if entry["action"] not in self._skipped)

    def _free_at(self, device: int, asked: int) -> int:
        """What was free when memory ran out."""
        told = self._failed.get(device, [])
        for i, (wanted, free) in enumerate(told):
            if wanted == asked:
                del told[i]
                return free
        return 0


class _Ring:
    """What was read of one."""

    def __init__(self, pool: Tuple[int, int]) -> None:
        self.next = 0
        self.entries = _events.Entries(pool)
