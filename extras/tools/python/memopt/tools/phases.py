"""phase(): reports to `memopt profile` what the program is doing.

    for batch in batches:
        with memopt.tools.phase("forward"):
            loss = model(batch)
        with memopt.tools.phase("backward"):
            loss.backward()

Without `memopt profile` around it nothing happens. A mark is one line, "NANOSECONDS PID NAME" by
the monotonic clock, written into the pipe that the environment variable MEMOPT_PROFILE names; it
never waits: a mark is lost if the pipe is full or has no reader. Only a name that differs from the
previous one is a mark.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any, List, Optional

ENVIRONMENT = "MEMOPT_PROFILE"
_MOST_CHARACTERS = 64

_pipe: Optional[int] = None
_owner = 0  # the process that opened it, or found that there is none
_current = ""


class phase:
    """Starts a phase; as a context manager, until the end of the block, where the previous phase
    continues. "" is no phase. For one thread of a process."""

    __slots__ = ("_before",)

    def __init__(self, name: str) -> None:
        self._before: List[str] = [_current]
        _mark(name)

    def __enter__(self) -> "phase":
        return self

    def __exit__(self, *unused: Any) -> None:
        _mark(self._before[0])


def _mark(name: str) -> None:
    global _current
    if name == _current:
        return
    _current = name
    pipe = _pipe if _owner == os.getpid() else _open()
    if pipe is None:
        return
    text = " ".join(name[:_MOST_CHARACTERS].split())
    line = "%d %d %s\n" % (time.monotonic_ns(), _owner, text)
    try:
        os.write(pipe, line.encode("utf-8", "replace"))
    except OSError:  # it is full, or memopt profile is gone
        pass


def _open() -> Optional[int]:
    """The pipe of this process; a fork opens its own."""
    global _pipe, _owner
    _pipe, _owner = None, os.getpid()
    path = os.environ.get(ENVIRONMENT)
    if path:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):  # nothing else is written to
            os.close(pipe)
            return None
        _pipe = pipe
    return _pipe
