"""A lock that no signal leaves held.

Python hears signals as a call returns, as a loop jumps back and as a function begins, and what a
handler raises there (KeyboardInterrupt, say) leaves by way of that instruction. ``with`` on a lock
of :mod:`threading` is safe up to Python 3.13; in 3.14 a signal that comes while the lock is taken is
heard before the ``with`` begins, and the lock stays held. Here ``__enter__`` is Python's, so that
it can give the lock back, and ``__exit__`` is C's, which hears nothing before the lock is free.

Two rules for the code inside: a ``while`` is never the last thing in it (Python 3.12 and 3.13
jump back outside of the ``with``), and what belongs together is assigned in a row without a call in between.
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
