"""A tensor as the library sees one: a typed, contiguous range of memory, and who owns it."""

from __future__ import annotations

import ctypes
from typing import Any, Iterable, Optional, Tuple

from . import _dlpack
from ._abi import DType

_FORMATS = {  # of a memoryview; what Python has no type for is shown as raw bits
    DType.F32: "f",
    DType.F64: "d",
    DType.I16: "h",
    DType.I32: "i",
    DType.I64: "q",
    DType.U8: "B",
    DType.F16: "H",
    DType.BF16: "H",
    DType.F8_E4M3: "B",
    DType.F8_E5M2: "B",
    DType.F8_E4M3FNUZ: "B",
    DType.F8_E5M2FNUZ: "B",
}


class Owner:
    """Memory of the library: it may be freed, but not while anyone has a view of it."""

    __slots__ = ()

    @property
    def pointer(self) -> int:
        """The address of the first byte. ClosedError once it is freed."""
        raise NotImplementedError

    def _view_bytes(self, address: int, nbytes: int) -> memoryview:
        raise NotImplementedError

    def _give_dlpack(self, address: int, shape: Tuple[int, ...], dtype: DType, read_only: bool, versioned: bool) -> Any:
        raise NotImplementedError


class Tensor:
    """A typed view of contiguous memory. Make one with :func:`tensor` or ``Memory.tensor``."""

    __slots__ = ("_pointer", "count", "dtype", "shape", "device_type", "device_id", "readonly", "_owner", "__weakref__")

    def __init__(
        self,
        pointer: int,
        shape: Tuple[int, ...],
        dtype: DType,
        device: Optional[Tuple[int, int]],
        readonly: bool,
        owner: Any,
        count: Optional[int] = None,
    ) -> None:
        self._pointer = pointer
        self.shape = shape
        #: Elements, the product of the shape.
        self.count: int = product(shape) if count is None else count
        self.dtype = dtype
        #: DLPack's number of the kind of device; None where nobody told (a bare pointer).
        self.device_type: Optional[int] = None if device is None else device[0]
        self.device_id: int = 0 if device is None else device[1]
        #: Whether writing is forbidden; such a tensor is refused where a call writes.
        self.readonly = readonly
        self._owner = owner

    @property
    def pointer(self) -> int:
        """The address of the first element. ClosedError once our own memory is freed."""
        if isinstance(self._owner, Owner):
            self._owner.pointer  # raises
        return self._pointer

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __repr__(self) -> str:
        return "<memopt.Tensor %s %s at %#x>" % (self.dtype.name.lower(), list(self.shape), self._pointer)

    def as_memoryview(self) -> memoryview:
        """The elements as a memoryview (raw bits of f16, bf16, 8-bit floats); host memory only."""
        if not self._is_host():
            raise BufferError("the tensor is in the memory of a %s device" % self._device_text())
        if self.count == 0:
            nothing: memoryview = getattr(memoryview(b""), "cast")(_FORMATS[self.dtype])
            return nothing
        owner, pointer = self._owner, self.pointer
        if isinstance(owner, Owner):
            view = owner._view_bytes(pointer, self.nbytes)
        else:
            view = view_bytes(pointer, self.nbytes, owner)
        # To type checkers, cast() wants a literal format.
        typed: memoryview = getattr(view, "cast")(_FORMATS[self.dtype], self.shape or (1,))
        return typed.toreadonly() if self.readonly else typed

    def tolist(self) -> Any:
        """The elements as (nested) lists, raw bits where as_memoryview() gives them."""
        return self.as_memoryview().tolist()

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (self.device_type or _dlpack.CPU, self.device_id)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A DLPack capsule over the same memory, for ``torch.from_dlpack`` and the like.

        Work of streams that still writes it is the caller's to wait for.
        """
        if copy:
            raise BufferError("a memopt tensor cannot be copied through DLPack")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("a memopt tensor cannot move to another device through DLPack")
        versioned = max_version is not None and max_version[0] >= 1
        pointer = self.pointer
        if isinstance(self._owner, Owner):
            return self._owner._give_dlpack(pointer, self.shape, self.dtype, self.readonly, versioned)
        owner = [self._owner]  # kept until the consumer is done
        return _dlpack.give(
            pointer, self.shape, self.dtype, self.__dlpack_device__(), self.readonly, versioned, owner.clear
        )

    def _is_host(self) -> bool:
        return self.device_type in (None, _dlpack.CPU, _dlpack.CUDA_HOST, _dlpack.ROCM_HOST)

    def _device_text(self) -> str:
        if self.device_type is None:
            return "unknown"
        name = _dlpack.DEVICE_NAMES.get(self.device_type, "DLPack type %d" % self.device_type)
        return name if self._is_host() else "%s:%d" % (name, self.device_id)


def product(shape: Iterable[int]) -> int:
    """Elements of a shape."""
    count = 1
    for size in shape:
        count *= size
    return count


def view_bytes(address: int, nbytes: int, keep: object) -> memoryview:
    """A memoryview of bytes at an address; it holds `keep` as long as any part of it lives."""
    # A class of its own, so that the instance has a __dict__ to hold it in.
    kind: Any = type("Bytes", (ctypes.c_ubyte * nbytes,), {})
    array = kind.from_address(address)
    array.keep = keep
    return memoryview(array).cast("B")
