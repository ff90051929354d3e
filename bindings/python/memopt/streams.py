"""Streams and events: the order of a device's work.

A stream argument is None (the device's default stream), a :class:`Stream`, a framework's stream
object with ``cuda_stream``, or the driver's handle as an int. On "cpu" the default stream runs
before the call returns; work on other streams, and every stream of a GPU, runs later.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Optional, Union

from . import _abi, _lifetime, errors
from ._abi import Status
from ._library import from_status, lib, output
from .open_device import OpenDevice


class Stream(_lifetime.Closing):
    """A stream of a device. On a GPU ``int(stream)`` is the driver's own handle."""

    __slots__ = ("device", "_handle", "__weakref__")

    def __init__(self, device: OpenDevice) -> None:
        parent = device._handle
        #: The stream's device.
        self.device = device
        self._handle = _lifetime.create(
            self,
            "stream",
            lambda pointer: lib.memopt_stream_destroy(parent.pointer, pointer),
            lib.memopt_stream_create,
            parent.pointer,
            parents=(parent,),
        )

    def __index__(self) -> int:
        return self._handle.pointer

    __int__ = __index__

    def sync(self) -> None:
        """Waits for all work that is on the stream now."""
        sync_stream(self.device, self)

    def query(self) -> bool:
        """Whether the stream's work is done, without waiting."""
        return ready(lib.memopt_stream_query(self.device._handle.pointer, self._handle.pointer))

    def wait(self, event: Event) -> None:
        """Makes later work of this stream wait for an event's last record."""
        wait_event(self.device, event, self)

    def call(self, function: Callable[[], Any]) -> None:
        """As :meth:`Device.call`, on this stream."""
        call_in_order(self.device, self, function)


class Event(_lifetime.Closing):
    """A point in a stream's work."""

    __slots__ = ("_device", "_handle", "__weakref__")

    def __init__(self, device: OpenDevice, timing: bool = False) -> None:
        self._device = device
        self._handle = _lifetime.create(
            self,
            "event",
            lib.memopt_event_destroy,
            lib.memopt_event_create,
            device._handle.pointer,
            int(bool(timing)),
            parents=(device._handle,),
        )

    def record(self, stream: StreamLike = None) -> None:
        """Marks the end of a stream's work so far; replaces an earlier record."""
        lib.memopt_event_record(self._handle.pointer, stream_pointer(stream))

    def query(self) -> bool:
        """Whether the last record is complete (or there is none), without waiting."""
        return ready(lib.memopt_event_query(self._handle.pointer))

    def sync(self) -> None:
        """Waits until the last record is complete."""
        lib.memopt_event_sync(self._handle.pointer)

    def elapsed(self, end: Event) -> float:
        """Seconds from this event's record to another's; both made with timing and complete."""
        return float(output(lib.memopt_event_elapsed, self._handle.pointer, end._handle.pointer))


#: None, a Stream, an object with `cuda_stream`, or the driver's handle as an int.
StreamLike = Union[None, Stream, int, Any]


def ready(status: int) -> bool:
    """What a query's status says; raises where it says neither."""
    if status == Status.OK:
        return True
    if status == Status.NOT_READY:
        return False
    raise from_status(status)


def stream_pointer(stream: StreamLike) -> Optional[int]:
    """The driver's handle of a stream argument; None is the default stream."""
    if stream is None:
        return None
    if isinstance(stream, Stream):
        return stream._handle.pointer
    handle = getattr(stream, "cuda_stream", stream)
    if isinstance(handle, int):
        return handle or None
    raise TypeError("a stream must be None, a memopt.Stream or a driver's handle, not %r" % (stream,))


def sync_stream(device: OpenDevice, stream: StreamLike) -> None:
    """Waits for all work that is on a stream now."""
    lib.memopt_stream_sync(device._handle.pointer, stream_pointer(stream))
    device._forget_done()


def wait_event(device: OpenDevice, event: Event, stream: StreamLike) -> None:
    """Makes later work of a stream wait for an event's last record."""
    lib.memopt_stream_wait_event(device._handle.pointer, stream_pointer(stream), event._handle.pointer)


# --- calls in stream order ------------------------------------------------------------------------

_calls: Dict[int, Callable[[], Any]] = {}
_call_numbers = itertools.count(1)


def _run_host_call(number: int) -> None:
    function = _calls.pop(number, None)
    try:
        if function is not None:
            function()
    except BaseException as error:
        errors.report_unraisable(error, "in a function called in stream order")


_host_callback = _abi.HostCallback(_run_host_call)


def call_in_order(device: OpenDevice, stream: StreamLike, function: Callable[[], Any]) -> None:
    """Calls a function when a stream's work so far is done, on a thread of the library."""
    number = next(_call_numbers)
    _calls[number] = function
    try:
        lib.memopt_stream_host_callback(device._handle.pointer, stream_pointer(stream), _host_callback, number)
    except errors.MemoptError:
        _calls.pop(number, None)
        raise
