"""Letting `memopt monitor` see what this process's allocators hold and cache.

    memopt.tools.publish(allocator)       # a daemon thread answers monitors until the process ends

or, in the program's loop, without a thread:

    publisher = memopt.tools.Publisher()
    publisher.add(allocator)
    ...                             # wait for publisher.fileno() to become readable
    publisher.serve(0)
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Set, Tuple, Union

from .. import _lifetime, errors
from .._library import c_text, output
from .._lock import Guard
from ..allocator import Allocator
from ._library import lib

_lock = Guard()  # reentrant: a collection may end an allocator inside the locked part
_publishers: Set["Publisher"] = set()  # those that are open: a publisher lives until it is closed


class Publisher(_lifetime.Closing):
    """A Unix socket that reports about allocators to its clients; see memopt/tools/publish.h.

    Without `path` it lies where `memopt monitor` looks. It stays open, also when it is forgotten,
    until close() or the process's end. In the child of a fork it is closed.
    """

    def __init__(self, path: Union[str, os.PathLike[str], None] = None) -> None:
        given = None if path is None else c_text(os.fspath(path), "a path")
        pointer = output(lib.memopt_publisher_open, given)
        self._handle = _lifetime.Handle("publisher", pointer, lib.memopt_publisher_close)
        path_text = lib.memopt_publisher_get_path(pointer) or b""
        self._path = path_text.decode("utf-8", "surrogateescape")
        self._allocators: Set[int] = set()  # native pointers
        self._thread: Optional[threading.Thread] = None
        self._pipe: Optional[Tuple[int, int]] = None  # closing the second end ends the thread
        with _lock:
            _publishers.add(self)

    @property
    def path(self) -> str:
        """Where the socket lies."""
        return self._path

    def __repr__(self) -> str:
        return "<memopt.Publisher %s%s>" % (self._path, " (closed)" if self.closed else "")

    def close(self) -> None:
        """Ends the thread, if there is one, and removes the socket. Harmless a second time."""
        self._stop()
        with _lock:
            _publishers.discard(self)
        self._handle.close()

    # --- allocators ---

    def add(self, allocator: Allocator) -> None:
        """Publishes an allocator, until it is closed or forgotten."""
        handle = allocator._handle
        lib.memopt_publisher_add(self._handle.pointer, handle.pointer)
        with _lock:
            self._allocators.add(handle.pointer)
            handle.around = _unpublished

    def add_pluggable(self) -> None:
        """Publishes the allocators of memopt.torch.enable_allocator()."""
        lib.memopt_publisher_add_pluggable(self._handle.pointer)

    def remove(self, allocator: Allocator) -> None:
        """Stops publishing an allocator. NotFoundError if it is not published."""
        pointer = allocator._handle.pointer
        lib.memopt_publisher_remove(self._handle.pointer, pointer)
        with _lock:
            self._allocators.discard(pointer)

    # --- serving ---

    def fileno(self) -> int:
        """A descriptor that is readable while a client waits for an answer."""
        return int(output(lib.memopt_publisher_get_fd, self._handle.pointer))

    def serve(self, timeout: Optional[float] = 0) -> int:
        """Answers waiting clients; returns the number of answers. Waits `timeout` seconds for the
        first one, or as long as it takes (None)."""
        wait = -1 if timeout is None else max(int(timeout * 1000), 0)
        return int(output(lib.memopt_publisher_serve, self._handle.pointer, wait))

    def start(self) -> None:
        """Serves from a daemon thread until close() or the process's end."""
        with _lock:
            if self._thread is not None:
                return
            self._pipe = os.pipe()
            self._thread = threading.Thread(
                target=_serve_until,
                args=(self._handle.pointer, self.fileno(), self._pipe[0]),
                name="memopt publisher",
                daemon=True,
            )
            self._thread.start()

    def _stop(self) -> None:
        with _lock:
            thread, self._thread = self._thread, None
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe[1])
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _forget_in_child(self) -> None:
        """A child lacks the parent's threads, and its locks may be held for ever."""
        pointer, self._handle._pointer = self._handle._pointer, None
        for end in self._pipe or ():
            os.close(end)
        self._thread, self._pipe = None, None
        self._allocators = set()
        if pointer is not None:
            lib.memopt_publisher_close(pointer)


def publish(
    *allocators: Allocator, path: Union[str, os.PathLike[str], None] = None
) -> Publisher:
    """Lets `memopt monitor` see what these allocators hold and cache.

    A daemon thread answers; it sleeps between requests and never blocks the program. The returned
    Publisher need not be kept.
    """
    publisher = Publisher(path)
    try:
        for allocator in allocators:
            publisher.add(allocator)
        publisher.start()
    except BaseException:
        publisher.close()
        raise
    return publisher


def _serve_until(pointer: int, listener: int, wake: int) -> None:
    """The thread: answers until the other end of the pipe `wake` is closed."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(wake, select.POLLIN)
    try:
        while wake not in dict(poller.poll()):
            try:
                lib.memopt_publisher_serve(pointer, 0, None)
            except errors.MemoptError:  # too many open files: later there may be room
                if select.select([wake], [], [], 1)[0]:
                    return
    finally:
        os.close(wake)


@contextmanager
def _unpublished(allocator: int) -> Iterator[None]:
    """Inside, the allocator of this native pointer is not published, because it is about to end; if
    that fails, it is published again."""
    with _lock:
        holders: List[Publisher] = [one for one in _publishers if allocator in one._allocators]
        for one in holders:
            one._allocators.discard(allocator)
    for one in holders:
        _quietly(lib.memopt_publisher_remove, one, allocator)
    try:
        yield
    except errors.BusyError:
        for one in holders:
            if _quietly(lib.memopt_publisher_add, one, allocator):
                with _lock:
                    one._allocators.add(allocator)
        raise


def _quietly(call: Callable[[int, int], object], publisher: Publisher, allocator: int) -> bool:
    pointer = publisher._handle._pointer
    if pointer is None:
        return False
    try:
        call(pointer, allocator)
    except errors.MemoptError:
        return False
    return True


# --- ends of processes ----------------------------------------------------------------------------


def _after_fork_in_child() -> None:
    global _lock
    _lock = Guard()  # a thread of the parent may hold the old one
    for publisher in list(_publishers):
        publisher._forget_in_child()
    _publishers.clear()


def _at_exit() -> None:
    """Runs before native objects end: with our thread alive, all of them would stay."""
    for publisher in list(_publishers):
        publisher.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
