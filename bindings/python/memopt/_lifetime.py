"""Native handles: when they end, and in which order.

A Handle owns one native object. It counts its holds: handles made from it (children) and memory
views that were given out (exports). Three ways lead to its end:

- close(): at once; BusyError or BufferError where there are holds.
- the Python object is collected: abandon(). With holds left the end waits for the last of them,
  because Python may collect the objects of a cycle in any order.
- the interpreter exits: weakref.finalize abandons what is left, the youngest first, before modules
  are torn down; what still has exported views stays for the system to take back. With a daemon
  thread alive all of it stays: that thread may be inside a call of the library.

In a child process after a fork, what the parent made is left alone when it is collected: its
threads are not there, and its end would wait for them for ever.

Invariant: a parent's native object outlives those of its children. `_lock` guards the counts and is
never held across a call of the library (ending a stream waits for workers that may need Python).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Any, Callable, ContextManager, List, Optional, Tuple

from . import errors
from ._abi import Status
from ._library import output
from ._lock import Guard

_lock = Guard()  # reentrant: a collection may run a finalizer inside the locked part


class Handle:
    """Owner of one native object; see the module's text."""

    __slots__ = (
        "kind",
        "keep",
        "_pointer",
        "_end",
        "_force_end",
        "around",
        "_parents",
        "_children",
        "_exports",
        "_given_up",
        "_forks",
    )

    def __init__(
        self,
        kind: str,
        pointer: int,
        end: Callable[[int], object],
        parents: Tuple["Handle", ...] = (),
        keep: Any = None,
        force_end: Optional[Callable[[int], object]] = None,
    ) -> None:
        self.kind = kind
        self.keep = keep  # what the native object refers to: callback thunks
        self._pointer: Optional[int] = pointer
        self._end = end
        self._force_end = force_end or end
        #: The native object ends inside ``with around(pointer)``.
        self.around: Callable[[int], ContextManager[object]] = contextlib.nullcontext
        self._parents = parents
        self._children: List["Handle"] = []
        self._exports = 0
        self._given_up = False
        self._forks = _forks
        with _lock:
            for parent in parents:
                parent._children.append(self)

    @property
    def pointer(self) -> int:
        """The native pointer; ClosedError after the end."""
        pointer = self._pointer
        if pointer is None:
            raise errors.ClosedError(self.kind + " is closed")
        return pointer

    @property
    def closed(self) -> bool:
        """Whether the native object is gone."""
        return self._pointer is None

    @property
    def lost(self) -> bool:
        """Whether nothing of it can be ended here: it is closed, or belongs to a parent process."""
        return self._pointer is None or self._forks != _forks

    def add_export(self) -> None:
        """Counts a view of memory that lives as long as the native object."""
        with _lock:
            self._exports += 1

    def drop_export(self) -> None:
        """Undoes add_export(); ends an object that only waited for this."""
        with _lock:
            self._exports -= 1
        self._end_if_given_up()

    def close(self, force: bool = False) -> None:
        """Ends the native object now; harmless when it has ended. Unchanged where this raises."""
        with _lock:
            pointer = self._pointer
            if pointer is not None:
                self._refuse_holds()
                self._pointer = None
        if pointer is None:
            self._detach()  # a signal may have ended an earlier close() before that
            return
        try:
            with self.around(pointer):
                (self._force_end if force else self._end)(pointer)
        except errors.BusyError:
            self._pointer = pointer
            raise
        except BaseException:
            self._detach()
            raise
        self._detach()

    def refuse_exports(self, what: str) -> None:
        """BufferError where views are in use; `what` is not done."""
        if self._exports:
            raise BufferError("%s cannot be %s: %d memory views of it are in use" % (self.kind, what, self._exports))

    def _refuse_holds(self) -> None:
        self.refuse_exports("closed")
        if self._children:
            names = sorted({child.kind for child in self._children})
            raise errors.BusyError(
                Status.BUSY,
                "%s cannot be closed: %d objects made from it are open (%s); close them first"
                % (self.kind, len(self._children), ", ".join(names)),
            )

    def _detach(self) -> None:
        """Tells the parents; one that only waited for this child ends too."""
        with _lock:
            parents = self._parents
            for parent in parents:
                parent._children = [child for child in parent._children if child is not self]
            self._parents = ()
        self.keep = None
        for parent in parents:
            parent._end_if_given_up()

    def abandon(self) -> None:
        """The Python object is gone: end by force now, or when the last hold goes."""
        self._given_up = True
        try:
            self._end_if_given_up()
        except BaseException:  # of a signal, which Python ignores here
            self._end_if_given_up()
            raise

    def _end_if_given_up(self) -> None:
        with _lock:
            if not self._given_up or self._pointer is None or self._children or self._exports:
                return
            if _leave_all or self.lost:
                return
            pointer, self._pointer = self._pointer, None
        try:
            with self.around(pointer):
                self._force_end(pointer)
        except errors.MemoptError as error:
            errors.report_unraisable(error, "while a forgotten %s was ended" % self.kind)
        self._detach()


_leave_all = False
_forks = 0  # between the first process and this one


def _after_fork() -> None:
    global _lock, _forks
    _lock = Guard()
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Other threads have been joined by now, but for daemons."""
    global _leave_all
    _leave_all = threading.active_count() > 1


# Exit functions run last in, first out: ours must run before the one of weakref.finalize, which
# registers itself when the first finalizer is made.
weakref.finalize(Handle, _at_exit).detach()
atexit.register(_at_exit)


def finalize(owner: object, handle: Handle) -> None:
    """Abandons the handle when the owner is collected, or at exit, the youngest first."""
    weakref.finalize(owner, handle.abandon)


def create(
    owner: object,
    kind: str,
    end: Callable[[int], object],
    function: Any,
    *arguments: Any,
    parents: Tuple[Handle, ...] = (),
    keep: Any = None,
    force_end: Optional[Callable[[int], object]] = None,
) -> Handle:
    """The handle of the native object that a function of the library makes for an owner."""
    handle = Handle(kind, output(function, *arguments) or 0, end, parents, keep, force_end)
    finalize(owner, handle)
    return handle


class Closing:
    """close(), closed and the context manager for an object with a `_handle`."""

    __slots__ = ()
    _handle: Handle

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._handle.closed

    def close(self) -> None:
        """Ends it now. Harmless a second time."""
        self._handle.close()

    def __enter__(self) -> Any:
        self._handle.pointer  # raises where it is closed
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()
            return
        try:  # never hide the exception that is on its way
            self._handle.close(force=True)
        except (errors.MemoptError, BufferError):
            pass  # a frame of the traceback still uses it: it ends when that goes
