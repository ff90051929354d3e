"""Memory that the library owns: a block, a pinned range, a lease, an unpacked value.

Whatever a Memory is, it can be given to every call that takes memory, seen as a typed Tensor, as a
memoryview, or through DLPack, always without a copy. As long as a memoryview or a DLPack consumer
uses it, it cannot be freed (BufferError); a Tensor only looks, and raises once the memory is gone.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Optional, Sequence, Tuple, Union

from . import _dlpack, _lifetime, errors
from ._abi import DType
from ._lock import Guard
from .dtypes import DTypeLike, dtype_of
from .open_device import OpenDevice
from .views import Owner, Tensor, product, view_bytes

_lock = Guard()  # guards export counts; a collection may re-enter


class _Export:
    """One view that was given out; drops its count once, when told or when collected."""

    __slots__ = ("_memory",)

    def __init__(self, memory: "Memory") -> None:
        self._memory: Optional[Memory] = None
        memory._add_export()
        self._memory = memory

    def drop(self) -> None:
        """The view is gone."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory._drop_export()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # at the very end the system takes everything back
            self.drop()


class Memory(Owner):
    """A range of bytes in device or pinned memory; see the module's text."""

    __slots__ = ("device", "_address", "_nbytes", "_handle", "_exports", "__weakref__")

    #: For messages.
    _kind = "memory"

    def __init__(self, device: OpenDevice, address: Optional[int], nbytes: int, handle: _lifetime.Handle) -> None:
        #: The device it belongs to.
        self.device = device
        self._address: Optional[int] = address or 0  # None once it is freed
        self._nbytes = nbytes
        self._handle = handle  # the native object whose end would take the memory away
        self._exports = 0

    @property
    def _on_host(self) -> bool:
        """Whether it is host memory, whatever the device."""
        return False

    @property
    def pointer(self) -> int:
        """The address of the first byte; 0 where there are none. ClosedError once it is freed."""
        address = self._address
        if address is None or self._handle.closed:
            raise errors.ClosedError("%s was freed" % self._kind)
        return address

    @property
    def nbytes(self) -> int:
        """The size that was asked for."""
        return self._nbytes

    @property
    def freed(self) -> bool:
        """Whether it is gone."""
        return self._address is None or self._handle.closed

    def __len__(self) -> int:
        return self._nbytes

    def __bool__(self) -> bool:
        return self._nbytes > 0

    def __index__(self) -> int:
        return self.pointer

    __int__ = __index__

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.pointer)

    def __repr__(self) -> str:
        where = "freed" if self.freed else "%#x" % self.pointer
        return "<memopt.%s %s, %d bytes>" % (type(self).__name__, where, self._nbytes)

    # --- views ---

    def tensor(
        self, dtype: DTypeLike = DType.U8, shape: Union[None, int, Sequence[int]] = None, offset: int = 0
    ) -> Tensor:
        """A typed view: `shape` elements (all that fit, by default) from byte `offset` on."""
        kind = dtype_of(dtype)
        if not 0 <= offset <= self.nbytes:
            raise ValueError("offset %d is outside the memory of %d bytes" % (offset, self.nbytes))
        room = self.nbytes - offset
        if shape is None:
            sizes: Tuple[int, ...] = (room // kind.itemsize,)
        elif isinstance(shape, int):
            sizes = (shape,)
        else:
            sizes = tuple(int(size) for size in shape)
        if any(size < 0 for size in sizes) or product(sizes) * kind.itemsize > room:
            raise ValueError("shape %s of %s does not fit in %d bytes" % (list(sizes), kind.name.lower(), room))
        device = self.__dlpack_device__()
        return Tensor(self.pointer + offset, sizes, kind, device, False, self)

    def as_memoryview(self) -> memoryview:
        """The bytes as a writable memoryview; host memory and "cpu" devices only."""
        return self._view_bytes(self.pointer, self._nbytes)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.device._dlpack_device(self._on_host)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        return self.tensor().__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)

    # --- exports ---

    def _view_bytes(self, address: int, nbytes: int) -> memoryview:
        if self.__dlpack_device__()[0] not in (_dlpack.CPU, _dlpack.CUDA_HOST, _dlpack.ROCM_HOST):
            raise BufferError("%s of %s is not host memory" % (self._kind, self.device.name))
        if nbytes == 0:
            return memoryview(bytearray())
        return view_bytes(address, nbytes, _Export(self))

    def _give_dlpack(self, address: int, shape: Tuple[int, ...], dtype: DType, read_only: bool, versioned: bool) -> Any:
        export = _Export(self)
        device = self.__dlpack_device__()
        return _dlpack.give(address, shape, dtype, device, read_only, versioned, export.drop)

    def _add_export(self) -> None:
        with _lock:
            self._exports += 1
        self._handle.add_export()

    def _drop_export(self) -> None:
        with _lock:
            self._exports -= 1
        self._handle.drop_export()

    def _refuse_exports(self) -> None:
        if self._exports:
            _dlpack.sweep()
        if self._exports:
            raise BufferError("%s cannot be freed: %d memory views of it are in use" % (self._kind, self._exports))


class Part(Memory):
    """Memory inside another object (a scaler's scale, an optimizer's state), which it keeps."""

    __slots__ = ("_whole",)

    def __init__(
        self, device: OpenDevice, address: Optional[int], nbytes: int, handle: _lifetime.Handle, whole: object
    ) -> None:
        super().__init__(device, address, nbytes, handle)
        self._whole = whole
