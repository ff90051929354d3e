"""The history of torch.cuda.memory._record_memory_history(), from traces that the library records.

Each allocator records its events to a file of a temporary folder, which reading ends and begins
anew. A new trace lists the live blocks first: what is known already is left out, and what lived
before and is not listed was freed in between.
"""

from __future__ import annotations

import collections
import csv
import os
import tempfile
import time
import warnings
from typing import Any, Container, Deque, Dict, List, Optional, Tuple

from .. import errors
from .._library import lib, output
from .._lock import Guard
from ..tools._library import lib as _tools
from . import _pluggable

Entry = Dict[str, Any]


class History:
    """Events of all devices since it was made, at most `max_entries` for each device."""

    def __init__(self, max_entries: int, skipped: Container[str] = ()) -> None:
        self._most = max_entries
        self._skipped = skipped
        self._entries: Dict[int, Deque[Entry]] = {}
        self._live: Dict[int, Dict[int, Tuple[int, int]]] = {}  # sizes and streams by address
        self._failed: List[Tuple[int, Entry]] = []
        self._count = 0
        self._lock = Guard()
        self._folder = tempfile.TemporaryDirectory(prefix="memopt-history-")
        _tools.memopt_pluggable_trace(os.fsencode(self._folder.name))
        for device in _pluggable.in_use():
            self._begin(device)

    def failed(self, device: int, asked: int, free: int) -> None:
        """Memory ran out."""
        entry = _entry("oom", asked, 0, _now())
        entry["device_free"] = free
        self._failed.append((device, entry))

    def read(self) -> List[List[Entry]]:
        """The events of each device, oldest first."""
        with self._lock:
            for device in _pluggable.in_use():
                self._end(device)
                paths = self._files(device)
                self._begin(device)
                self._take(device, paths)
            last = max(self._entries, default=-1)
            return [list(self._entries.get(device, ())) for device in range(last + 1)]

    def end(self) -> None:
        """Records no more."""
        with self._lock:
            _tools.memopt_pluggable_trace(None)
            for device in _pluggable.in_use():
                self._end(device)
            self._folder.cleanup()

    def _begin(self, device: int) -> None:
        for handle in _pluggable.handles(device):
            self._count += 1
            name = "%d-%d-again%d.csv" % (device, _now(), self._count)
            try:
                lib.memopt_allocator_start_trace(
                    handle, os.fsencode(os.path.join(self._folder.name, name))
                )
            except errors.BusyError:
                pass  # made just now, or recorded by its user
            except errors.MemoptError as error:
                warnings.warn("memory history: %s" % error, stacklevel=4)

    def _end(self, device: int) -> None:
        for handle in _pluggable.handles(device):
            try:
                output(lib.memopt_allocator_stop_trace, handle)
            except errors.NotFoundError:
                pass
            except errors.MemoptError as error:
                warnings.warn("memory history: %s" % error, stacklevel=4)

    def _files(self, device: int) -> List[str]:
        names = [n for n in os.listdir(self._folder.name) if n.startswith("%d-" % device)]
        return [os.path.join(self._folder.name, name) for name in names]

    def _take(self, device: int, paths: List[str]) -> None:
        """Adds the events of ended traces."""
        rows = sorted(
            (row for path in paths for row in _rows(path)), key=lambda row: int(row["time"])
        )
        live = self._live.setdefault(device, {})
        unseen = dict(live)
        entries: List[Entry] = []
        for row in rows:
            address, block = row["address"], (row["size"], row["stream"])
            if row["action"] == "free":
                unseen.pop(address, None)
                if live.pop(address, None) is not None:
                    entries += _freed(address, block, row["time"])
            elif unseen.pop(address, None) != block or live.get(address) != block:
                if address in live:
                    entries += _freed(address, live[address], row["time"])
                live[address] = block
                entries.append(_entry("alloc", *block, row["time"], address))
        for address, block in unseen.items():
            del live[address]
            entries += _freed(address, block, _now())
        entries += [entry for index, entry in self._failed if index == device]
        self._failed = [pair for pair in self._failed if pair[0] != device]
        kept = self._entries.setdefault(device, collections.deque(maxlen=self._most))
        kept.extend(
            entry
            for entry in sorted(entries, key=lambda entry: int(entry["time_us"]))
            if entry["action"] not in self._skipped
        )
        for path in paths:
            os.unlink(path)


def _now() -> int:
    return time.time_ns() // 1000


def _entry(action: str, size: int, stream: int, at: int, address: Optional[int] = None) -> Entry:
    entry: Entry = {"action": action}
    if address is not None:
        entry["addr"] = address
    entry.update(size=size, stream=stream, time_us=at, frames=[], pool_id=(0, 0))
    entry.update(compile_context="N/A", user_metadata="")
    return entry


def _freed(address: int, block: Tuple[int, int], at: int) -> List[Entry]:
    return [_entry(action, *block, at, address) for action in ("free_requested", "free_completed")]


def _rows(path: str) -> List[Dict[str, Any]]:
    """The allocations and frees of a trace."""
    begun = int(os.path.basename(path).split("-")[1])
    with open(path, newline="") as file:
        return [
            {
                "action": row["Action"],
                "time": begun + int(row["Time"]),
                "address": int(row["Pointer"], 16),
                "size": int(row["Size"]),
                "stream": int(row["Stream"], 16),
            }
            for row in csv.DictReader(file)
            if row["Action"] in ("allocate", "free")
        ]
