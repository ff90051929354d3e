"""Signals that end the watching between two samples.

The library calls back while it lists processes, and an exception in there is lost; and half a line
is not JSON. So a signal during a sample, or while it is shown, takes effect after it.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, Optional

from ..._interrupt import Interruptible


class Stopped(Exception):
    """The user ended the watching."""


class StopSignals:
    """``with StopSignals() as ends``: SIGINT, SIGTERM and SIGHUP raise Stopped. Signals that
    were ignored before, as ``nohup`` has it, stay ignored."""

    def __init__(self) -> None:
        self.signal: Optional[int] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *unused: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _end(self, number: int, _frame: Any) -> None:
        if self.signal is None:  # else it comes during the cleanup
            self.signal = number
            raise Stopped

    def held(self) -> Interruptible:
        """``with ends.held()`` around what must not be interrupted: Stopped at its end instead, or
        with the second signal."""
        return Interruptible(patience=1)

    @property
    def code(self) -> int:
        """The exit code: Ctrl-C is the ordinary end."""
        return 0 if self.signal in (None, signal.SIGINT) else 128 + int(self.signal or 0)
