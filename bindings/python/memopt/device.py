"""Devices, streams, events, copies, fills and page-locked host memory.

A stream argument is None (the device's default stream), a :class:`Stream`, a framework's stream
object with ``cuda_stream``, or the driver's handle as an int. On "cpu" the default stream runs
before the call returns; work on other streams, and every stream of a GPU, runs later: the Python
objects whose memory it uses are kept until it is done.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import sys
import threading
from typing import Any, Callable, Deque, Dict, NamedTuple, Optional, Tuple, Union

from . import _abi, _dlpack, _lifetime, errors
from ._abi import Status, StreamOrder
from ._library import c_text, from_status, lib
from .memory import Memory
from .sizes import Size, parse_size
from .tensors import Tensor, TensorLike, tensor


class DeviceProperties(NamedTuple):
    """What a device is and can do."""

    name: str
    backend: str
    isa: str
    index: int  # type: ignore[assignment]  # hides tuple.index, as C calls it so
    threads: int
    warp_size: int
    virtual_memory: bool
    total_memory: int
    granularity: int
    kernels: str


class MemoryInfo(NamedTuple):
    """Device and pinned memory in bytes."""

    total: int
    free: int
    used: int
    used_peak: int
    reserved_va: int
    pinned: int
    pinned_peak: int
    registered: int


class Device(_lifetime.Closing):
    """An open device: "cpu", "cuda:N" or "hip:N".

    On "cpu", device memory is host memory of the given capacity: a program that fits there fits a
    card of that size. The keyword arguments are for "cpu" only.
    """

    __slots__ = ("_handle", "_properties", "_is_cpu", "_inline", "_pending", "_lock", "__weakref__")

    def __init__(
        self,
        name: str = "cpu",
        *,
        capacity: Size = 0,
        threads: int = 0,
        stream_order: Union[str, StreamOrder] = "eager",
        seed: int = 0,
        granularity: Size = 0,
    ) -> None:
        options = _abi.DeviceOptions(
            capacity=parse_size(capacity),
            threads=unsigned(threads, 32, "threads"),
            stream_order=choice(StreamOrder, stream_order, "stream_order"),
            seed=unsigned(seed, 64, "seed"),
            granularity=parse_size(granularity),
        )
        if capacity != 0 and options.capacity == 0:
            raise ValueError("capacity: 0 bytes of device memory are of no use")
        out = ctypes.c_void_p()
        lib.memopt_device_open(
            c_text(name, "a device name"), ctypes.byref(options), ctypes.byref(out)
        )
        self._handle = _lifetime.Handle("device %s" % name, _address(out), _close_device)
        _lifetime.finalize(self, self._handle)
        self._properties = _read_properties(self._handle.pointer)
        self._is_cpu = self.backend == "cpu"
        self._inline = self._is_cpu and options.stream_order == StreamOrder.EAGER
        self._pending: Deque[Tuple[Event, Any]] = collections.deque()
        self._lock = threading.Lock()

    @staticmethod
    def count(backend: str) -> int:
        """The number of devices of a back end: "cpu" (1), "cuda" or "hip"."""
        result = ctypes.c_int32()
        lib.memopt_device_count(c_text(backend, "a back end"), ctypes.byref(result))
        return result.value

    @property
    def name(self) -> str:
        """The device as the driver calls it."""
        return self._properties.name

    @property
    def backend(self) -> str:
        """ "cpu", "cuda" or "hip"."""
        return self._properties.backend

    @property
    def properties(self) -> DeviceProperties:
        """What it is and can do."""
        return self._properties

    def __repr__(self) -> str:
        return "<memopt.Device %s%s>" % (self.backend, " (closed)" if self.closed else "")

    def memory_info(self) -> MemoryInfo:
        """Device and page-locked memory: total, free, and what this handle holds."""
        info = _abi.MemoryInfoStruct()
        lib.memopt_device_memory_info(self._handle.pointer, ctypes.byref(info))
        return MemoryInfo(*(getattr(info, field) for field in MemoryInfo._fields))

    def sync(self) -> None:
        """Waits for all work of the device that this handle knows."""
        lib.memopt_device_sync(self._handle.pointer)
        self._forget_done()

    def close(self) -> None:
        """Waits for all work and closes the device. BusyError while anything of it is left."""
        if not self.closed:
            if self._pending:
                self.sync()
            self._handle.close()

    # --- streams and events ---

    def stream(self) -> "Stream":
        """A new stream that runs beside all others."""
        return Stream(self)

    def event(self, timing: bool = False) -> "Event":
        """A new event; with timing where :meth:`Event.elapsed` will be asked."""
        return Event(self, timing)

    def sync_stream(self, stream: "StreamLike" = None) -> None:
        """Waits for all work that is on a stream now."""
        lib.memopt_stream_sync(self._handle.pointer, stream_pointer(stream))
        self._forget_done()

    def release_stream(self, stream: "StreamLike") -> None:
        """Says that a stream of others is about to be destroyed; waits for its work.

        Call it before `cudaStreamDestroy` and the like, so that allocators do not use the handle
        again. A :class:`Stream` says so itself when it is closed.
        """
        lib.memopt_stream_release(self._handle.pointer, stream_pointer(stream))
        self._forget_done()

    def wait_event(self, event: "Event", stream: "StreamLike" = None) -> None:
        """Makes later work of a stream wait for an event's last record."""
        lib.memopt_stream_wait_event(
            self._handle.pointer, stream_pointer(stream), event._handle.pointer
        )

    def call(self, function: Callable[[], Any], stream: "StreamLike" = None) -> None:
        """Calls a function when a stream's work so far is done, on a thread of the library.

        It must not use this library and not wait for device work. An exception in it is reported
        through ``sys.unraisablehook``.
        """
        number = next(_call_numbers)
        _calls[number] = function
        try:
            lib.memopt_stream_host_callback(
                self._handle.pointer, stream_pointer(stream), _host_callback, number
            )
        except errors.MemoptError:
            _calls.pop(number, None)
            raise

    # --- copies ---

    def copy(
        self,
        destination: TensorLike,
        source: TensorLike,
        nbytes: Optional[Size] = None,
        stream: "StreamLike" = None,
    ) -> None:
        """Copies bytes between device and host memory, in either direction, in stream order.

        Both may be anything :func:`memopt.tensor` takes, or an address as an int, which needs
        `nbytes`. Without `nbytes` both must be of the same size.
        """
        into, room, owner = self._memory(destination, writable=True)
        start, size, source_owner = self._memory(source, writable=False)
        known = {value for value in (room, size) if value is not None}
        if nbytes is None:
            if len(known) != 1:
                raise ValueError("copy: sizes differ (%s to %s bytes); give nbytes" % (size, room))
            count = known.pop()
        else:
            count = parse_size(nbytes)
            if known and count > min(known):
                raise ValueError("copy: %d bytes asked, %d are there" % (count, min(known)))
        lib.memopt_copy(self._handle.pointer, into, start, count, stream_pointer(stream))
        self._keep(stream, owner, source_owner)

    def fill(
        self,
        destination: TensorLike,
        value: int = 0,
        nbytes: Optional[Size] = None,
        stream: "StreamLike" = None,
    ) -> None:
        """Sets every byte of device memory to a value, in stream order."""
        into, room, owner = self._memory(destination, writable=True)
        count = room if nbytes is None else parse_size(nbytes)
        if count is None or (room is not None and count > room):
            raise ValueError("fill: %s bytes asked, %s are there" % (nbytes, room))
        if not 0 <= value <= 255:
            raise ValueError("fill: a byte is from 0 to 255, not %d" % value)
        lib.memopt_fill(self._handle.pointer, into, value, count, stream_pointer(stream))
        self._keep(stream, owner)

    def _memory(self, place: TensorLike, writable: bool) -> Tuple[int, Optional[int], Any]:
        if isinstance(place, int):
            return place, None, None
        view = tensor(place, writable=writable)
        self._check_tensor(view, host_too=True)
        return view.pointer, view.nbytes, view

    def pinned(self, nbytes: Size) -> "PinnedMemory":
        """Page-locked host memory, so that copies from and to it are asynchronous."""
        return PinnedMemory(self, parse_size(nbytes))

    def register(self, memory: TensorLike) -> "Registration":
        """Page-locks host memory of the caller until the result is closed."""
        return Registration(self, memory)

    # --- for the other modules ---

    def _dlpack_device(self, on_host: bool) -> Tuple[int, int]:
        kinds = {
            "cpu": (_dlpack.CPU, _dlpack.CPU),
            "cuda": (_dlpack.CUDA, _dlpack.CUDA_HOST),
            "hip": (_dlpack.ROCM, _dlpack.ROCM_HOST),
        }[self.backend]
        return (kinds[on_host], self._properties.index)

    def _check_tensor(self, view: Tensor, host_too: bool = False) -> None:
        """Refuses a tensor that this device's work cannot reach."""
        kind = view.device_type
        if kind is None or (kind == _dlpack.CPU and (self._is_cpu or host_too)):
            return
        if (self._is_cpu or host_too) and view._is_host():
            return
        if view.device_id == self._properties.index:
            if self.backend == "cuda" and view.device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
                return
            if self.backend == "hip" and view.device_type in (_dlpack.ROCM, _dlpack.CUDA):
                return  # torch calls both of them cuda
        raise ValueError(
            "the tensor is on %s, the device is %s:%d"
            % (view._device_text(), self.backend, self._properties.index)
        )

    def _keep(self, stream: "StreamLike", *owners: Any) -> None:
        """Keeps owners of memory until the work on a stream so far is done."""
        if (stream is None and self._inline) or not any(o is not None for o in owners):
            return
        if _torch_captures():
            return
        event = Event(self)
        event.record(stream)
        with self._lock:
            self._pending.append((event, owners))
        self._forget_done()

    def _forget_done(self) -> None:
        """Lets go of what work that is done has used, the oldest first."""
        while True:
            with self._lock:
                if not self._pending or not self._pending[0][0].query():
                    return
                done = self._pending.popleft()
            done[0].close()
            del done  # outside the lock: owners may end here


def _torch_captures() -> bool:
    """Whether torch captures a graph now. Asking about an event would end the capture, and what a
    graph uses must stay longer than one run of it: as in torch, that is the caller's to see to."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


class Stream(_lifetime.Closing):
    """A stream of a device. On a GPU ``int(stream)`` is the driver's own handle."""

    __slots__ = ("_device", "_handle", "__weakref__")

    def __init__(self, device: Device) -> None:
        out = ctypes.c_void_p()
        lib.memopt_stream_create(device._handle.pointer, ctypes.byref(out))
        parent = device._handle
        self._device = device
        self._handle = _lifetime.Handle(
            "stream",
            _address(out),
            lambda pointer, force: _quiet(lib.memopt_stream_destroy(parent.pointer, pointer)),
            (parent,),
        )
        _lifetime.finalize(self, self._handle)

    @property
    def device(self) -> Device:
        """The stream's device."""
        return self._device

    def __index__(self) -> int:
        return self._handle.pointer

    __int__ = __index__

    def sync(self) -> None:
        """Waits for all work that is on the stream now."""
        self._device.sync_stream(self)

    def query(self) -> bool:
        """Whether the stream's work is done, without waiting."""
        return ready(lib.memopt_stream_query(self._device._handle.pointer, self._handle.pointer))

    def wait(self, event: "Event") -> None:
        """Makes later work of this stream wait for an event's last record."""
        self._device.wait_event(event, self)

    def call(self, function: Callable[[], Any]) -> None:
        """As :meth:`Device.call`, on this stream."""
        self._device.call(function, self)


class Event(_lifetime.Closing):
    """A point in a stream's work."""

    __slots__ = ("_device", "_handle", "__weakref__")

    def __init__(self, device: Device, timing: bool = False) -> None:
        out = ctypes.c_void_p()
        lib.memopt_event_create(device._handle.pointer, int(bool(timing)), ctypes.byref(out))
        self._device = device
        self._handle = _lifetime.Handle(
            "event",
            _address(out),
            lambda pointer, force: _quiet(lib.memopt_event_destroy(pointer)),
            (device._handle,),
        )
        _lifetime.finalize(self, self._handle)

    def record(self, stream: "StreamLike" = None) -> None:
        """Marks the end of a stream's work so far; replaces an earlier record."""
        lib.memopt_event_record(self._handle.pointer, stream_pointer(stream))

    def query(self) -> bool:
        """Whether the last record is complete (or there was none), without waiting."""
        return ready(lib.memopt_event_query(self._handle.pointer))

    def sync(self) -> None:
        """Waits until the last record is complete."""
        lib.memopt_event_sync(self._handle.pointer)

    def elapsed(self, end: "Event") -> float:
        """Seconds from this event's record to another's; both made with timing and complete."""
        seconds = ctypes.c_double()
        lib.memopt_event_elapsed(self._handle.pointer, end._handle.pointer, ctypes.byref(seconds))
        return seconds.value


#: None, a Stream, an object with `cuda_stream`, or the driver's handle as an int.
StreamLike = Union[None, Stream, int, Any]


class PinnedMemory(Memory):
    """Page-locked host memory; freed by free(), on leaving `with`, or when forgotten."""

    __slots__ = ()
    _kind = "pinned memory"
    _on_host = True

    def __init__(self, device: Device, nbytes: int) -> None:
        out = ctypes.c_void_p()
        lib.memopt_host_alloc(device._handle.pointer, nbytes, ctypes.byref(out))
        parent = device._handle
        handle = _lifetime.Handle(
            self._kind,
            _address(out),
            lambda pointer, force: _quiet(lib.memopt_host_free(parent.pointer, pointer)),
            (parent,),
        )
        super().__init__(device, out.value, nbytes, handle)
        _lifetime.finalize(self, handle)

    def free(self) -> None:
        """Frees it. No copy may use it any more. Harmless a second time."""
        self._refuse_exports()
        self._handle.close()

    def __enter__(self) -> "PinnedMemory":
        self.pointer
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or not self._exports:
            self.free()


class Registration(_lifetime.Closing):
    """Host memory of the caller that is page-locked as long as this is open."""

    __slots__ = ("_handle", "_view", "__weakref__")

    def __init__(self, device: Device, memory: TensorLike) -> None:
        view = tensor(memory)
        device._check_tensor(view, host_too=True)
        lib.memopt_host_register(device._handle.pointer, view.pointer, view.nbytes)
        parent = device._handle
        self._view = view
        self._handle = _lifetime.Handle(
            "registration",
            view.pointer,
            lambda pointer, force: _quiet(lib.memopt_host_unregister(parent.pointer, pointer)),
            (parent,),
            keep=view,  # unregistered before the memory goes
        )
        _lifetime.finalize(self, self._handle)


# --- helpers --------------------------------------------------------------------------------------

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


def _address(out: ctypes.c_void_p) -> int:
    return out.value or 0


def _quiet(status: int) -> None:
    """The status was checked by the call; an `end` function returns nothing."""


def _close_device(pointer: int, force: bool) -> None:
    lib.memopt_device_close(pointer)


def _read_properties(pointer: int) -> DeviceProperties:
    raw = _abi.DevicePropertiesStruct()
    lib.memopt_device_get_properties(pointer, ctypes.byref(raw))
    values = {field: getattr(raw, field) for field in DeviceProperties._fields}
    for field in ("name", "backend", "isa", "kernels"):
        values[field] = values[field].decode("utf-8", "replace")
    values["virtual_memory"] = bool(values["virtual_memory"])
    return DeviceProperties(**values)


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
    raise TypeError("a stream is None, a memopt.Stream or a driver's handle, not %r" % (stream,))


def choice(kind: Any, value: Any, what: str) -> Any:
    """An enumerator by itself, its number or its name in any case."""
    if isinstance(value, str):
        try:
            return kind[value.upper().replace("-", "_")]
        except KeyError:
            names = ", ".join(repr(member.name.lower()) for member in kind)
            raise ValueError("%s: %r is none of %s" % (what, value, names)) from None
    return kind(value)


def unsigned(value: int, bits: int, what: str) -> int:
    """An int that fits an unsigned field of C, which would wrap it silently."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("%s is an int, not %s" % (what, type(value).__name__))
    if not 0 <= value < 1 << bits:
        raise ValueError("%s: %d is outside 0 to 2**%d - 1" % (what, value, bits))
    return value
