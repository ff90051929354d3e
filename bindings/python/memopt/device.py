"""Devices: streams, copies, fills and page-locked memory.

Work on a stream of a GPU, or on a stream of "cpu" other than its default, runs later: the Python
objects whose memory it uses are kept until it is done.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Tuple, Union

from . import _abi, _lifetime, errors
from ._abi import StreamOrder
from ._arguments import choice, unsigned
from ._library import c_text, lib, output
from .backends import backend_info
from .open_device import OpenDevice
from .pinned import PinnedMemory, Registration
from .sizes import Size, parse_size
from .streams import Event, Stream, StreamLike, call_in_order, stream_pointer, sync_stream, wait_event
from .tensors import TensorLike, tensor


class Device(OpenDevice):
    """An open device: "cpu", "cuda:N" or "hip:N".

    On "cpu", device memory is host memory of the given capacity: a program that fits there fits a
    card of that size. The keyword arguments are for "cpu" only, but for `unified`: the device's memory is
    the host's own (GB10, APUs), so that offloaded values stay where they are.

    `threads` run kernels; 0: as many as MEMOPT_NUM_THREADS or else OMP_NUM_THREADS says, else one
    per processor that the process may use, by its affinity mask and its CPU quota.
    """

    __slots__ = ("_inline",)

    def __init__(
        self,
        name: str = "cpu",
        *,
        capacity: Size = 0,
        threads: int = 0,
        stream_order: Union[str, StreamOrder] = "eager",
        seed: int = 0,
        granularity: Size = 0,
        lag: int = 0,
        unified: bool = False,
    ) -> None:
        options = _abi.DeviceOptions(
            capacity=parse_size(capacity),
            threads=unsigned(threads, 32, "threads"),
            stream_order=choice(StreamOrder, stream_order, "stream_order"),
            seed=unsigned(seed, 64, "seed"),
            granularity=parse_size(granularity),
            lag=unsigned(lag, 64, "lag"),
            unified=int(bool(unified)),
        )
        if capacity != 0 and options.capacity == 0:
            raise ValueError("capacity must be greater than 0 bytes")
        super().__init__(
            _lifetime.create(
                self,
                "device %s" % name,
                lib.memopt_device_close,
                lib.memopt_device_open,
                c_text(name, "a device name"),
                options,
            )
        )
        self._inline = self._is_cpu and options.stream_order == StreamOrder.EAGER and lag == 0

    @staticmethod
    def count(backend: str) -> int:
        """The number of devices of a back end: "cpu" (1), "cuda" or "hip"."""
        info = backend_info(backend)
        if not info.available:
            raise errors.make(info.status, "%s: %s" % (backend, info.problem))
        return info.device_count

    # --- streams and events ---

    def stream(self) -> Stream:
        """A new stream that runs beside all others."""
        return Stream(self)

    def event(self, timing: bool = False) -> Event:
        """A new event; with timing where :meth:`Event.elapsed` will be asked."""
        return Event(self, timing)

    def sync_stream(self, stream: StreamLike = None) -> None:
        """Waits for all work that is on a stream now."""
        sync_stream(self, stream)

    def release_stream(self, stream: StreamLike) -> None:
        """Says that a stream of others is about to be destroyed; waits for its work.

        Call it before `cudaStreamDestroy` and the like, so that allocators do not use the handle
        again. A :class:`Stream` says so itself when it is closed.
        """
        lib.memopt_stream_release_sync(self._handle.pointer, stream_pointer(stream))
        self._forget_done()

    def wait_event(self, event: Event, stream: StreamLike = None) -> None:
        """Makes later work of a stream wait for an event's last record."""
        wait_event(self, event, stream)

    def call(self, function: Callable[[], Any], stream: StreamLike = None) -> None:
        """Calls a function when a stream's work so far is done, on a thread of the library.

        It must not use this library and not wait for device work. An exception in it is reported
        through ``sys.unraisablehook``.
        """
        call_in_order(self, stream, function)

    # --- copies ---

    def copy(
        self, destination: TensorLike, source: TensorLike, nbytes: Optional[Size] = None, stream: StreamLike = None
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
                raise ValueError("copy: the sizes differ (%s and %s bytes); pass nbytes" % (size, room))
            count = known.pop()
        else:
            count = parse_size(nbytes)
            if known and count > min(known):
                raise ValueError("copy: %d bytes were requested, the memory has %d" % (count, min(known)))
        lib.memopt_copy(self._handle.pointer, into, start, count, stream_pointer(stream))
        self._keep(stream, owner, source_owner)

    def fill(
        self, destination: TensorLike, value: int = 0, nbytes: Optional[Size] = None, stream: StreamLike = None
    ) -> None:
        """Sets every byte of device memory to a value, in stream order."""
        into, room, owner = self._memory(destination, writable=True)
        count = room if nbytes is None else parse_size(nbytes)
        if count is None or (room is not None and count > room):
            raise ValueError("fill: %s bytes were requested, the memory has %s" % (nbytes, room))
        if not 0 <= value <= 255:
            raise ValueError("fill: value is %d; it must be from 0 to 255" % value)
        lib.memopt_fill(self._handle.pointer, into, value, count, stream_pointer(stream))
        self._keep(stream, owner)

    def _memory(self, place: TensorLike, writable: bool) -> Tuple[int, Optional[int], Any]:
        if isinstance(place, int):
            return place, None, None
        view = tensor(place, writable=writable)
        self._check_tensor(view, host_too=True)
        return view.pointer, view.nbytes, view

    def pinned(self, nbytes: Size) -> PinnedMemory:
        """Page-locked host memory, so that copies from and to it are asynchronous."""
        return PinnedMemory(self, parse_size(nbytes))

    def register(self, memory: TensorLike) -> Registration:
        """Page-locks host memory of the caller until the result is closed."""
        return Registration(self, memory)

    # --- for the other modules ---

    def _keep(self, stream: StreamLike, *owners: Any) -> None:
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


def _torch_captures() -> bool:
    """Whether torch captures a graph now. Asking about an event would end the capture, and what a
    graph uses must stay longer than one run of it: as in torch, that is the caller's to see to."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
