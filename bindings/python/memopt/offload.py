"""Save-on-CPU: parks device values in page-locked host memory between forward and backward."""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from typing import Any, Callable, Dict, Optional, Tuple, Union

from . import _abi, _lifetime, errors
from ._abi import OffloaderFlags, Overflow
from ._arguments import choice
from ._library import c_text, lib, output, values_of
from .allocator import Allocator, Buffer
from .memory import Memory
from .sizes import Size, parse_size
from .streams import StreamLike, ready, stream_pointer
from .tensors import TensorLike, tensor
from .views import Tensor

#: Where values go that do not fit the host: a directory or a file to make, or that and the most
#: bytes to use of it.
Disk = Union[str, "os.PathLike[str]", Tuple[Union[str, "os.PathLike[str]"], Size]]


def parse_disk(disk: Optional[Disk], host_limit: int) -> Tuple[Optional[bytes], int]:
    """The path for C, None without a disk, and the limit."""
    if disk is None:
        return None, 0
    path, limit = disk if isinstance(disk, tuple) else (disk, 0)
    if host_limit == 0:
        raise ValueError(
            "disk: without host_limit no value goes to %s; set host_limit to the bytes that may"
            " stay in host memory" % os.fspath(path)
        )
    return c_text(os.fspath(path), "disk"), parse_size(limit)


class Offloader(_lifetime.Closing):
    """A store of offloaded values.

    `host_limit` is the most host memory it may hold (0: no limit); what does not fit is kept
    on the device, waited for, refused, or moved to a disk, as `overflow` says ("keep", "wait",
    "fail", "spill"). Of it, `pinned_limit` may be page-locked (0: as much as the system allows);
    the rest is pageable, and slower. Values below `min_bytes` stay on the device. With `null_stream` copies run on
    the device's NULL stream: on "cpu" they are done when a call returns.

    `disk` is a directory, or a file to make, for "spill", which is then the default: "/scratch", or
    ("/scratch", "200GiB") to use no more of it. Its file has no name, so it never outlives the
    process.
    """

    __slots__ = ("allocator", "_handle", "__weakref__")

    def __init__(
        self,
        allocator: Allocator,
        *,
        host_limit: Size = 0,
        pinned_limit: Size = 0,
        min_bytes: Size = 0,
        overflow: Union[None, str, Overflow] = None,
        null_stream: bool = False,
        disk: Optional[Disk] = None,
    ) -> None:
        limit = parse_size(host_limit)
        disk_path, disk_limit = parse_disk(disk, limit)
        if overflow is None:
            overflow = Overflow.KEEP if disk is None else Overflow.SPILL
        options = _abi.OffloaderOptions(
            host_limit=limit,
            min_bytes=parse_size(min_bytes),
            overflow=choice(Overflow, overflow, "overflow"),
            flags=OffloaderFlags.NULL_STREAM if null_stream else 0,
            disk_path=disk_path,
            disk_limit=disk_limit,
            pinned_limit=parse_size(pinned_limit),
        )
        device = allocator.device
        #: Where packed blocks come from and unpacked ones go.
        self.allocator = allocator
        self._handle = _lifetime.create(
            self,
            "offloader",
            lib.memopt_offloader_destroy,
            lib.memopt_offloader_create,
            device._handle.pointer,
            allocator._handle.pointer,
            options,
            parents=(allocator._handle, device._handle),
            force_end=lib.memopt_offloader_destroy_force,
        )

    def close(self, force: bool = False) -> None:
        """Ends it after its copies. BusyError while tickets are not released, unless `force`."""
        self._handle.close(force)

    def pack(self, buffer: Buffer, nbytes: Optional[Size] = None, stream: StreamLike = None) -> "Ticket":
        """Takes a buffer over: it is copied to the host after the stream's work so far, and freed.

        On success the buffer belongs to the ticket and is as freed; on failure nothing has changed.
        """
        if buffer.allocator is not self.allocator:
            raise ValueError("pack: the buffer belongs to another allocator; use pack_borrowed()")
        buffer._refuse_exports()
        size = buffer.nbytes if nbytes is None else parse_size(nbytes)
        number = output(lib.memopt_offloader_pack, self._handle.pointer, buffer.pointer, size, stream_pointer(stream))
        self.allocator._disown(buffer)
        return Ticket(self, number, size, stream, None)

    def pack_borrowed(self, source: TensorLike, stream: StreamLike = None) -> "Ticket":
        """Copies device memory that stays the caller's, such as a framework's tensor.

        The ticket keeps `source` alive until the copy is done (or, where it had to stay on the
        device, until release). Do not overwrite it before ``ticket.packed`` or
        ``ticket.wait_packed(stream)``.
        """
        view = tensor(source)
        self.allocator.device._check_tensor(view)
        request = self._request(view, stream)
        lib.memopt_offloader_request_pack(request)
        return Ticket(self, request.ticket, view.nbytes, stream, view, kept=bool(request.kept))

    def _request(self, view: Tensor, stream: StreamLike, ticket: int = 0) -> _abi.OffloadRequest:
        return _abi.OffloadRequest(
            offloader=self._handle.pointer,
            stream=stream_pointer(stream),
            data=view.pointer,
            bytes=view.nbytes,
            ticket=ticket,
        )

    def give_way(self, nbytes: Size) -> int:
        """Frees device memory of values that prefetch() brought and unpack() has not asked for: what an
        allocator's ``on_pressure`` calls. They stay on the host. The bytes."""
        return int(output(lib.memopt_offloader_give_way, self._handle.pointer, parse_size(nbytes)))

    def trim(self) -> int:
        """Gives cached host memory and unused space of the disk back; the bytes of host memory."""
        return int(output(lib.memopt_offloader_trim_sync, self._handle.pointer))

    def stats(self) -> Dict[str, int]:
        """What it holds and has done."""
        return values_of(output(lib.memopt_offloader_get_stats, self._handle.pointer))


class Unpacked(Memory):
    """A ticket's value on the device; there until the ticket is released."""

    __slots__ = ("_ticket",)

    _kind = "unpacked value"

    def __init__(self, ticket: "Ticket", address: Optional[int]) -> None:
        offloader = ticket._offloader
        super().__init__(offloader.allocator.device, address, ticket.nbytes, offloader._handle)
        self._ticket = ticket


class Ticket:
    """A packed value. Released by release(), on leaving ``with``, or when it is forgotten."""

    __slots__ = ("_offloader", "_number", "nbytes", "kept", "_stream", "_source", "_into", "_view", "__weakref__")

    def __init__(
        self,
        offloader: Offloader,
        number: int,
        nbytes: int,
        stream: StreamLike,
        source: Optional[Tensor],
        kept: bool = False,
    ) -> None:
        self._offloader = offloader
        self._number = number
        #: Size of the value.
        self.nbytes = nbytes
        #: Whether borrowed memory was not copied (min_bytes or overflow) and must stay unchanged.
        self.kept = kept
        self._stream = stream  # the one that used the value last
        self._source = source  # borrowed memory, while the copy or the keeping needs it
        self._into: Optional[Tensor] = None  # memory that a copy may be filling
        self._view: Optional["weakref.ref[Unpacked]"] = None  # it keeps the ticket, not we it

    @property
    def _memory(self) -> "Optional[Unpacked]":
        return None if self._view is None else self._view()

    def _id(self) -> int:
        if self._number == 0:
            raise errors.ClosedError("the ticket was released")
        return self._number

    @property
    def released(self) -> bool:
        """Whether it is over."""
        return self._number == 0

    @property
    def packed(self) -> bool:
        """Whether the copy to the host is done (or not needed), without waiting."""
        pointer = self._offloader._handle.pointer
        done = ready(lib.memopt_offloader_query_packed(pointer, self._id()))
        if done and not self.kept:
            self._source = None
        return done

    def wait_packed(self, stream: StreamLike = None) -> None:
        """Makes later work of a stream wait until the copy to the host is done."""
        lib.memopt_offloader_wait_packed(self._offloader._handle.pointer, self._id(), stream_pointer(stream))

    def prefetch(self) -> None:
        """Begins the copy back, so that unpack() need not wait for all of it."""
        lib.memopt_offloader_prefetch(self._offloader._handle.pointer, self._id())

    def unpack(self, stream: StreamLike = None) -> Unpacked:
        """The value on the device, valid in the order of a stream until release."""
        address = output(
            lib.memopt_offloader_unpack, self._offloader._handle.pointer, self._id(), stream_pointer(stream)
        )
        self._stream = stream
        memory = self._memory
        if memory is None or memory._address != address:
            memory = Unpacked(self, address)
            self._view = weakref.ref(memory)
        return memory

    def unpack_into(self, destination: TensorLike, stream: StreamLike = None) -> None:
        """Copies the value into device memory of the caller's, in the order of a stream."""
        view = tensor(destination, writable=True)
        device = self._offloader.allocator.device
        device._check_tensor(view)
        lib.memopt_offloader_request_unpack(self._offloader._request(view, stream, self._id()))
        device._keep(stream, view)

    def prefetch_into(self, destination: TensorLike, stream: StreamLike = None) -> None:
        """Begins what unpack_into() does; nothing may use the memory before wait_unpacked().

        LimitReachedError where the value is on the disk and no host memory is free to read it into.
        """
        view = tensor(destination, writable=True)
        device = self._offloader.allocator.device
        device._check_tensor(view)
        lib.memopt_offloader_prefetch_into(
            self._offloader._handle.pointer, self._id(), view.pointer, view.nbytes, stream_pointer(stream)
        )
        self._into = view

    def wait_unpacked(self, stream: StreamLike = None) -> None:
        """Makes later work of a stream wait for prefetch_into(); a value on the disk is waited for."""
        lib.memopt_offloader_wait_unpacked(self._offloader._handle.pointer, self._id(), stream_pointer(stream))
        view, self._into = self._into, None
        self._offloader.allocator.device._keep(stream, view)

    def release(self, stream: StreamLike = None) -> None:
        """Ends the ticket; `stream` is the one that used the value last. Harmless a second time."""
        if self._number == 0:
            return
        memory = self._memory
        if memory is not None:
            memory._refuse_exports()
        lib.memopt_offloader_release(self._offloader._handle.pointer, self._number, stream_pointer(stream))
        self._number = 0
        if memory is not None:
            memory._address = None
        source, self._source = self._source, None
        if source is not None and not self.kept:  # its copy may still be running
            self._offloader.allocator.device._keep(stream, source)

    def __enter__(self) -> "Ticket":
        self._id()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        memory = self._memory
        if error is None or memory is None or not memory._exports:
            self.release(self._stream)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing() or not getattr(self, "_number", 0) or self._offloader._handle.lost:
            return
        self.release(self._stream)
