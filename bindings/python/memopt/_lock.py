"""A lock that no signal leaves held.

Python hears signals as a call returns, as a loop jumps back and as a function begins; what a handler
raises there (KeyboardInterrupt, say) is raised by that instruction, and what the call gave is lost.
``with`` on a lock of :mod:`threading` is safe in Python 3.10 to 3.13. In 3.14 a signal that comes
while the lock is taken is raised before the ``with`` begins, and the lock stays held. Here
``__enter__`` is Python's, so that it can give the lock back, and ``__exit__`` is C's, which hears
nothing before the lock is free. (Python 3.9 hears signals between any two instructions.)

Two rules for the code inside: a ``while`` is never the last thing in it (Python 3.12 and 3.13 jump
back outside of the ``with``), and what belongs together is assigned without a call in between.
"""

from __future__ import annotations

import threading


class Guard(type(threading.RLock())):  # type: ignore[misc]
    """``with guard:``. Reentrant, since a collection or a handler may run anything inside."""

    __slots__ = ()

    def __enter__(self) -> bool:
        try:
            self.acquire()
        except BaseException:  # of a handler, when the lock was taken or while it was waited for
            try:
                self.release()
            except RuntimeError:  # it was not taken
                pass
            raise
        return True
