"""Blocks of device memory that several processes use."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple, Union

from . import _lifetime
from ._abi.share import SHARE_MESSAGE_BYTES
from ._library import lib, output
from .memory import Memory
from .open_device import OpenDevice

if TYPE_CHECKING:  # slow to import
    import socket as sockets

#: A connected Unix socket, or the number of one.
SocketLike = Union["sockets.socket", int]


def socket_number(socket: SocketLike) -> int:
    """The descriptor of a socket."""
    return socket if isinstance(socket, int) else socket.fileno()


class Export(_lifetime.Closing):
    """A block that other processes may import; made by :meth:`memopt.Allocator.export_block`.

    While it is open, the block keeps its memory, also if it is freed. What was imported outlives it.
    """

    __slots__ = ("_handle", "__weakref__")

    def __init__(self, allocator: _lifetime.Handle, address: int) -> None:
        self._handle = _lifetime.create(
            self,
            "export",
            lib.memopt_export_destroy,
            lib.memopt_export_create,
            allocator.pointer,
            address,
            parents=(allocator,),
        )

    def send(self, socket: SocketLike) -> None:
        """Sends the block over a connected Unix socket, for one :func:`import_block` at its other
        end. StorageError, an OSError, where the socket fails."""
        lib.memopt_export_send(self._handle.pointer, socket_number(socket))

    def describe(self) -> bytes:
        """The message that describes the block, for a transport of your own."""
        return self._describe(0, None)[0]

    def open_files(self) -> List[int]:
        """New file descriptors, one for each page of the block, which the caller closes. They belong
        to the message of :meth:`describe`."""
        count = self._describe(0, None)[1]
        files = (ctypes.c_int32 * count)()
        self._describe(count, files)
        return list(files)

    def _describe(self, room: int, files: Any) -> Tuple[bytes, int]:
        message = ctypes.create_string_buffer(SHARE_MESSAGE_BYTES)
        handle, at = self._handle.pointer, ctypes.addressof(message)
        count = int(output(lib.memopt_export_describe, handle, room, at, files))
        return message.raw, count


class ImportedBlock(Memory):
    """A block of another process; given back by free(), on leaving `with`, or when forgotten."""

    __slots__ = ()
    _kind = "imported block"

    def __init__(self, device: OpenDevice, function: Any, *arguments: Any) -> None:
        parent, address, size = device._handle, ctypes.c_void_p(), ctypes.c_uint64()
        given = (parent.pointer, *arguments, address, size)
        end = lib.memopt_import_destroy
        handle = _lifetime.create(self, self._kind, end, function, *given, parents=(parent,))
        super().__init__(device, address.value, size.value, handle)

    def free(self) -> None:
        """Waits for the device and gives the block back. Harmless a second time."""
        self._refuse_exports()
        self._handle.close()

    def __enter__(self) -> "ImportedBlock":
        self.pointer
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or not self._exports:
            self.free()


def import_block(device: OpenDevice, source: Union[SocketLike, Tuple[bytes, Sequence[int]]]) -> ImportedBlock:
    """Imports a block of another process, with the same memory: the one that :meth:`Export.send`
    sends to the other end of a connected Unix socket, or a pair of what :meth:`Export.describe` and
    :meth:`Export.open_files` have given. UnsupportedError for memory of another device. After a
    failure the socket may hold a rest: close it. Streams of two processes have no order: tell the
    other one when work is complete."""
    if not isinstance(source, tuple):
        return ImportedBlock(device, lib.memopt_import_receive, socket_number(source))
    message, files = bytes(source[0]), [int(file) for file in source[1]]
    text = ctypes.create_string_buffer(message, len(message) or 1)
    numbers = (ctypes.c_int32 * max(len(files), 1))(*files)
    return ImportedBlock(device, lib.memopt_import_open, ctypes.addressof(text), len(message), numbers, len(files))
