"""What this process and this machine use of host memory."""

from __future__ import annotations

import os
import resource
from typing import Dict, Optional


def rss() -> int:
    """Bytes of this process that are in memory; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def rss_peak() -> int:
    """The most bytes of this process that were in memory at once."""
    told = _lines("/proc/self/status").get("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if told is None else told


def available() -> Optional[int]:
    """Bytes that can be allocated on this machine without swapping."""
    return _lines("/proc/meminfo").get("MemAvailable")


def total() -> Optional[int]:
    """Bytes of memory of this machine."""
    return _lines("/proc/meminfo").get("MemTotal")


def _lines(path: str) -> Dict[str, int]:
    """The "Name:  123 kB" lines of a file, in bytes."""
    found = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
                    found[name] = int(words[0]) * 1024
    except OSError:
        pass
    return found
