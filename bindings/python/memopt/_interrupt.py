"""Signals during what must not be cut in two: calls of the library that call back, say.

Python runs the handler of a signal when Python code next runs: inside a C call that is at the first
line of a callback, before any ``try``, and ctypes drops what is raised there. So handlers are put
off: a callback may ask for :attr:`Interruptible.asked` and end the call if it is set, and the
handlers that were there run afterwards, in the order in which their signals came.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Tuple


class Interruptible:
    """``with Interruptible() as interrupt:`` around the call; does nothing on other threads, which
    run no handlers. More signals than `patience` end what may never end by itself, writing to a
    pipe that nobody reads, say: handlers are not put off any longer then."""

    def __init__(self, patience: Optional[int] = None) -> None:
        self._patience = patience
        self._asked = False
        self._handlers: Dict[int, Any] = {}
        self._came: List[Tuple[int, Any]] = []

    @property
    def asked(self) -> bool:
        """Whether a signal came that a handler waits for: Ctrl-C, say."""
        return self._asked

    def __enter__(self) -> "Interruptible":
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            self._take()
        except BaseException:  # of a handler that was still there
            self._put_back()
            raise
        return self

    def _take(self) -> None:
        """Not in line: Python 3.13 has no handler of exceptions where a loop at the end of a ``try``
        jumps back, and that is where signals are heard."""
        import signal  # it makes enumerations, which takes milliseconds

        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._asked = True
        self._came.append((number, frame))
        if self._patience is not None and len(self._came) > self._patience:
            self._run()

    def _run(self) -> None:
        """The handlers of the signals that came; what one of them raises is the end of it."""
        came, self._came = self._came, []
        for number, frame in came:
            self._handlers[number](number, frame)

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
        self._run()
