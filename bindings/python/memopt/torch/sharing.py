"""Tensors that several processes use: share_tensor() in one, import_tensor() in the other.

What travels is a description of the tensor and then what :mod:`memopt.sharing` sends: the block
that holds the tensor. Views of one block are exported each with its own offset and strides.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple, Union

import torch
from torch.utils.dlpack import from_dlpack

from .. import _lifetime, errors
from .._abi import Status
from .._library import lib
from ..sharing import Export, SocketLike, import_block, socket_number
from . import _pluggable
from ._native import native
from .allocator import DeviceLike, any_allocator

_VERSION = 1
_DESCRIPTION_BYTES = 4096  # JSON, filled with blanks


class TensorExport(_lifetime.Closing):
    """A tensor that other processes may import; made by :func:`share_tensor`.

    While it is open, the tensor's memory is kept. What was imported outlives it.
    """

    __slots__ = ("_handle", "_export", "_device", "_description")

    def __init__(self, tensor: torch.Tensor) -> None:
        allocator, base = _block_of(tensor)
        self._description = _describe(tensor, tensor.data_ptr() - base)
        # The allocator lives as long as the process.
        self._export = Export(_lifetime.Handle("allocator", allocator, lambda _: None), base)
        self._device = tensor.device
        self._handle = self._export._handle
        self._handle.keep = tensor  # torch gives its memory to no other tensor meanwhile

    def send(self, socket: SocketLike) -> None:
        """Waits for the work of the current stream and sends the tensor over a connected Unix
        socket, for one :func:`import_tensor` at its other end. OSError where the socket fails."""
        self._wait()
        _write(socket_number(socket), self._description)
        self._export.send(socket)

    def describe(self) -> bytes:
        """Waits as :meth:`send` does; the message that describes the tensor, for a transport of your
        own."""
        self._wait()
        return self._description + self._export.describe()

    def open_files(self) -> List[int]:
        """New file descriptors that belong to the message, which the caller closes."""
        return self._export.open_files()

    def _wait(self) -> None:
        self._handle.pointer  # raises where it is closed
        torch.cuda.current_stream(self._device).synchronize()


def share_tensor(tensor: torch.Tensor) -> TensorExport:
    """Lets other processes use a GPU tensor's memory, without a copy; end it with ``close()`` or
    ``with``. The memory comes from the library's allocator with ``expandable_segments:True`` (else
    RuntimeError or UnsupportedError). A view is exported as such: its offset and strides go along.
    The others can reach the whole pages of the tensor's block."""
    return TensorExport(tensor)


def import_tensor(source: Union[SocketLike, Tuple[bytes, Sequence[int]]], device: DeviceLike = None) -> torch.Tensor:
    """The tensor of another process, with the same memory: the one that :meth:`TensorExport.send`
    sends to the other end of a connected Unix socket, or a pair of what
    :meth:`TensorExport.describe` and :meth:`TensorExport.open_files` have given. `device` is the
    tensor's GPU under its number here, by default the current one; UnsupportedError for another. The
    memory goes back when the tensor and its views are forgotten, after a wait for the device. Streams
    of two processes have no order: tell the other one when work is complete. After a failure the
    socket may hold a rest: close it."""
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    owner = native(where).device
    if isinstance(source, tuple):
        message = bytes(source[0])
        layout = _parse(message[:_DESCRIPTION_BYTES])
        block = import_block(owner, (message[_DESCRIPTION_BYTES:], source[1]))
    else:
        layout = _parse(_read(socket_number(source), _DESCRIPTION_BYTES))
        block = import_block(owner, source)
    first, end = layout.offset, layout.offset + layout.span * layout.dtype.itemsize
    if end > block.nbytes:
        raise ValueError("import_tensor: the tensor ends at byte %d of a block of %d" % (end, block.nbytes))
    whole: torch.Tensor = from_dlpack(block)  # which keeps the block
    return whole[first:end].view(layout.dtype).as_strided(layout.shape, layout.strides)


# --- where a tensor is ----------------------------------------------------------------------------


def _block_of(tensor: torch.Tensor) -> Tuple[int, int]:
    """The allocator that has the tensor's memory, and the first byte of the block."""
    if tensor.device.type != "cuda" or tensor.layout != torch.strided:
        raise ValueError(
            "share_tensor: give a dense GPU tensor, not a %s one on %s"
            % (str(tensor.layout)[len("torch.") :], tensor.device)
        )
    if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise ValueError("share_tensor: an empty, conjugate, negative or quantized tensor is no plain memory")
    any_allocator("share_tensor")
    for handle in _pluggable.handles(tensor.device.index):
        base = ctypes.c_void_p()
        try:
            lib.memopt_allocator_get_block(handle, tensor.data_ptr(), base, None)
        except errors.InvalidArgumentError:
            continue
        return handle, base.value or 0
    raise RuntimeError(
        "share_tensor: the tensor's memory is not the library's; allocate it after"
        " enable_allocator() or inside TorchAllocator.pool()"
    )


# --- descriptions ---------------------------------------------------------------------------------


class _Layout(NamedTuple):
    dtype: torch.dtype
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    offset: int  # bytes from the first of the block
    span: int  # elements between the first one and the last, both included


def _describe(tensor: torch.Tensor, offset: int) -> bytes:
    text = json.dumps(
        {
            "memopt tensor": _VERSION,
            "dtype": str(tensor.dtype)[len("torch.") :],
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": offset,
        }
    )
    return text.encode().ljust(_DESCRIPTION_BYTES)


def _parse(message: bytes) -> _Layout:
    """ValueError for what no TensorExport has sent."""
    try:
        fields = json.loads(message)
        version = fields["memopt tensor"]
        dtype = getattr(torch, fields["dtype"])
        shape, strides = tuple(fields["shape"]), tuple(fields["strides"])
        numbers = (fields["offset"], *shape, *strides)
        plain = all(type(n) is int and n >= 0 for n in numbers) and len(shape) == len(strides)
        if version == _VERSION and isinstance(dtype, torch.dtype) and plain and 0 not in shape:
            span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
            if fields["offset"] % dtype.itemsize == 0:
                return _Layout(dtype, shape, strides, fields["offset"], span)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError("import_tensor: the message of %d bytes describes no tensor of this version" % len(message))


# --- the socket, whether it blocks or not ---------------------------------------------------------


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[_moved(lambda: os.write(number, data), number, reading=False) :]


def _read(number: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += _moved(lambda: os.read(number, count - len(data)), number, reading=True)
    return data


def _moved(move: Callable[[], Any], number: int, reading: bool) -> Any:
    """What a read or write that can wait has done."""
    while True:
        try:
            moved = move()
        except BlockingIOError:
            ready = select.poll()
            ready.register(number, select.POLLIN if reading else select.POLLOUT)
            ready.poll()
            continue
        if not moved:
            raise errors.StorageError(Status.IO_ERROR, "import_tensor: the other end of the socket was closed")
        return moved
