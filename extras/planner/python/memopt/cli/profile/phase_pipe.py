"""The pipe through which the program says what it is doing (memopt.tools.phase)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from typing import Dict, List, NamedTuple, Optional

from ..layout import printable

_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20
_MOST_PHASES = 100  # names that are told apart
_READ = 1 << 16  # bytes
_MOST_READS = 2 * _PIPE_BYTES // _READ
_MOST_DIGITS = 20  # of a number in a mark


class Mark(NamedTuple):
    """From this time on, the program is in this phase; "" is no phase."""

    seconds: float  # of the monotonic clock
    phase: str


class Marks:
    """Reads marks. Those of the process that made the first one count: of several ranks they would
    contradict each other."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="memopt-profile-")
        self.path = os.path.join(self._folder, "marks")
        os.mkfifo(self.path, 0o600)
        # Open for writing too, so that the pipe outlives each of its writers.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass
        self._rest = b""
        self._pid: Optional[int] = None
        self._names: Dict[str, None] = {}

    def read(self) -> List[Mark]:
        """The marks that came since the last time, in order."""
        for _ in range(_MOST_READS):  # does not wait for an endless writer
            try:
                part = os.read(self._pipe, _READ)
            except BlockingIOError:
                break
            self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        self._rest = self._rest[:4096]
        return [mark for mark in map(self._parse, lines) if mark is not None]

    def _parse(self, line: bytes) -> Optional[Mark]:
        words = line.split(b" ", 2)
        if len(words) != 3 or not all(map(_is_number, words[:2])):
            return None
        pid = int(words[1])
        self._pid = self._pid or pid
        if pid != self._pid:
            return None
        name = printable(words[2].decode("utf-8", "replace"))
        if name not in self._names:
            if len(self._names) >= _MOST_PHASES:
                name = "(others)"
            self._names[name] = None
        return Mark(min(int(words[0]) / 1e9, time.monotonic()), name)

    def close(self) -> None:
        """Removes the pipe."""
        os.close(self._pipe)
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _MOST_DIGITS
