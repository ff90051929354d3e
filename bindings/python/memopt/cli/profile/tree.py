"""A process and its descendants, and the host memory that they use, from /proc.

Children are found through the list that the kernel keeps for each thread; where it keeps none, by
looking at every process's parent. Descendants whose parents have ended become children of memopt
profile itself (see child.py), which has no others: so the tree is what descends from it.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Set


class ProcessUse(NamedTuple):
    """Bytes of one process: resident, the most that ever were, and what mlock() and drivers keep in
    place."""

    rss: int
    rss_peak: int
    locked: int


def descendants(root: int) -> List[int]:
    """The children of a process, theirs, and so on."""
    found: List[int] = []
    seen: Set[int] = {root}
    waiting = [root]
    while waiting:
        for child in _children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                waiting.append(child)
    return found


def _children(pid: int) -> Iterable[int]:
    folder = "/proc/%d/task" % pid
    try:
        threads = os.listdir(folder)
    except OSError:  # it has ended
        return []
    found: List[int] = []
    for thread in threads:
        try:
            with open("%s/%s/children" % (folder, thread), "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists("%s/%s/stat" % (folder, thread)):
                return _children_by_parent(pid)
        except OSError:
            pass
    return found


def _children_by_parent(pid: int) -> List[int]:
    """Where the kernel was built without those lists."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1 and int(fields[1]) == pid:
                found.append(int(name))
    return found


def process_use(pid: int) -> Optional[ProcessUse]:
    """What a process uses now; None where it has ended."""
    fields: Dict[bytes, bytes] = {}
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            for line in file.read().splitlines():
                key, _, value = line.partition(b":")
                fields[key] = value
    except OSError:
        return None

    def kib(key: bytes) -> int:
        words = fields.get(key, b"").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else 0

    if b"VmRSS" not in fields:  # it has ended, and nobody has asked how
        return None
    return ProcessUse(kib(b"VmRSS"), kib(b"VmHWM"), max(kib(b"VmLck"), kib(b"VmPin")))


def proportional(pid: int) -> Optional[int]:
    """The bytes of a process with its share of what it shares; None where that is not told. The
    kernel looks at every page for it."""
    try:
        with open("/proc/%d/smaps_rollup" % pid, "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
