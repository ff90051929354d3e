"""Ctrl-C during a long call of the library.

Python runs the handler of a signal when Python code next runs: inside a long C call that is at the
first line of a callback, before any ``try``, and ctypes drops what is raised there. So the handler
is put off: a callback asks for :attr:`Interruptible.asked`, ends the call if it is set, and the
handler that was there runs afterwards.
"""

from __future__ import annotations

import threading
from typing import Any, Optional


class Interruptible:
    """``with Interruptible() as interrupt:`` around the call; does nothing on other threads."""

    def __init__(self) -> None:
        #: Whether Ctrl-C was pressed.
        self.asked = False
        self._number = 0
        self._frame: Any = None
        self._handler: Optional[Any] = None

    def __enter__(self) -> "Interruptible":
        import signal  # it makes enumerations, which takes milliseconds

        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            signal.signal(signal.SIGINT, self._note)
            self._handler = handler
        return self

    def _note(self, number: int, frame: Any) -> None:
        self.asked, self._number, self._frame = True, number, frame

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._handler is None:
            return
        import signal

        signal.signal(signal.SIGINT, self._handler)
        if self.asked:
            self._handler(self._number, self._frame)
