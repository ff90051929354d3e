"""A process and its descendants, and the host memory that they use, from /proc.

Children are found through the list that the kernel keeps for each thread; where it keeps none, by
looking at every process's parent. Descendants whose parents have ended become children of memopt
profile itself (see program.py), which has no others: so the tree is what descends from it.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

#: Where the system describes processes.
PROC = "/proc"


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
    folder = "%s/%d/task" % (PROC, pid)
    found: List[int] = []
    for thread in _names(folder):
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
    for name in os.listdir(PROC):
        if name.isdigit():
            try:
                with open("%s/%s/stat" % (PROC, name), "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1 and int(fields[1]) == pid:
                found.append(int(name))
    return found


def process_use(pid: int) -> Optional[ProcessUse]:
    """What a process uses now; None where it has ended."""
    fields = _status("%s/%d/status" % (PROC, pid))
    if b"VmRSS" not in fields:  # its first thread has ended: use another thread, if any
        folder = "%s/%d/task" % (PROC, pid)
        for thread in _names(folder):
            fields = _status("%s/%s/status" % (folder, thread))
            if b"VmRSS" in fields:
                break
        else:
            return None

    def kib(key: bytes) -> int:
        words = fields.get(key, b"").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else 0

    return ProcessUse(kib(b"VmRSS"), kib(b"VmHWM"), max(kib(b"VmLck"), kib(b"VmPin")))


def hidden(pid: int) -> Optional[str]:
    """Why an existing process (not yet waited for) cannot be read; None if it can."""
    try:
        with open("%s/%d/status" % (PROC, pid), "rb") as file:
            file.read(1)
        return None
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            if os.path.exists("%s/%d" % (PROC, os.getpid())):
                why = "it hides this program's (mounted with hidepid, and it runs as another user)"
            else:
                why = "no processes are in it: it is not mounted here, or not of this container"
        return "host memory is not seen, since %s does not tell it: %s" % (PROC, why)


def _status(path: str) -> Dict[bytes, bytes]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    return {key: value for key, _, value in (line.partition(b":") for line in lines)}


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def proportional(pid: int) -> Optional[int]:
    """The bytes of a process with its share of shared memory; None if unknown. The kernel visits
    every page for it."""
    try:
        with open("%s/%d/smaps_rollup" % (PROC, pid), "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
