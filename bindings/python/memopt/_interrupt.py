"""Signals during calls of the library that call back.

Python runs the handler of a signal when Python code next runs: inside a C call that is at the first
line of a callback, before any ``try``, and ctypes drops what is raised there. So handlers are put
off: a callback may ask for :attr:`Interruptible.asked` and end the call if it is set, and the
handlers that were there run afterwards.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Tuple


class Interruptible:
    """``with Interruptible() as interrupt:`` around the call; does nothing on other threads, which
    run no handlers."""

    def __init__(self) -> None:
        self._handlers: Dict[int, Any] = {}
        self._came: List[Tuple[int, Any]] = []

    @property
    def asked(self) -> bool:
        """Whether a signal came that a handler waits for: Ctrl-C, say."""
        return bool(self._came)

    def __enter__(self) -> "Interruptible":
        if threading.current_thread() is not threading.main_thread():
            return self
        import signal  # it makes enumerations, which takes milliseconds

        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # of a handler that was still there
            self._put_back()
            raise
        return self

    def _note(self, number: int, frame: Any) -> None:
        self._came.append((number, frame))

    def _put_back(self) -> None:
        if self._handlers:
            import signal

            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self._put_back()
        except BaseException:  # of a handler that was back already
            self._put_back()
            raise
        for number, frame in self._came:
            self._handlers[number](number, frame)
