"""A progress bar on standard error: only on a terminal, and gone when the work is done.

``rich`` draws it where it is installed, else it is a line of plain text.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Optional, TextIO

#: Seconds between two drawings, and before the first: short work shows no bar.
_INTERVAL = 0.1
_PATIENCE = 0.3
_WIDTH = 30


class Progress:
    """``with Progress("reading") as bar: bar(done, total)``; total may be None."""

    def __init__(self, label: str, stream: Optional[TextIO] = None) -> None:
        self._label = label
        self._stream = stream if stream is not None else sys.stderr
        self._shown = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._next = time.monotonic() + _PATIENCE
        self._rich: Any = None
        self._task: Any = None
        self._drawn = 0

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, done: int, total: Optional[int]) -> None:
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL
        if self._rich is None and self._drawn == 0:
            self._rich = self._start_rich()
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=total)
        else:
            self._draw(done, total)

    def _start_rich(self) -> Any:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            return None
        bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        bar.start()
        self._task = bar.add_task(self._label, total=None)
        return bar

    def _draw(self, done: int, total: Optional[int]) -> None:
        if total:
            part = min(done / total, 1.0)
            filled = int(part * _WIDTH)
            bar = "[%s%s] %3d %%" % ("#" * filled, "." * (_WIDTH - filled), int(part * 100))
        else:
            bar = "%.1f million" % (done / 1e6)
        line = "%s %s" % (self._label, bar)
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = max(self._drawn, len(line))

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
