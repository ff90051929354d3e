"""What counts as a tensor, seen without a copy.

:func:`tensor` takes everything that holds numbers: our own Memory, an object of a framework
(``data_ptr()``, ``numel()``, ``dtype``), anything with the buffer protocol or ``__dlpack__``, or a
tuple ``(pointer, count, dtype)``. A Tensor keeps its memory alive, except a bare pointer's.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _dlpack, errors
from ._abi import DType, TensorStruct
from .dtypes import DTypeLike, dtype_of
from .memory import Memory
from .open_device import OpenDevice
from .views import Tensor

_BUFFER_DTYPES = {
    "f": DType.F32,
    "d": DType.F64,
    "e": DType.F16,
    "h": DType.I16,
    "i": DType.I32,
    "q": DType.I64,
    "B": DType.U8,
    "c": DType.U8,
}
_KINDS_OF_DEVICE = {"cpu": _dlpack.CPU, "cuda": _dlpack.CUDA, "hip": _dlpack.ROCM}


TensorLike = Union[Tensor, Memory, Tuple[int, int, DTypeLike], Any]


def tensor(source: TensorLike, dtype: Optional[DTypeLike] = None, *, writable: bool = False) -> Tensor:
    """A view of `source`, without a copy.

    `dtype` sees the same bytes as another type. `writable` refuses read-only memory. TypeError if
    `source` holds no such memory; ValueError if it is not contiguous.
    """
    if type(source) is Tensor:
        view = source
    elif isinstance(source, Memory):
        view = source.tensor()
    elif isinstance(source, tuple):
        view = _from_tuple(source)
    elif hasattr(source, "data_ptr"):
        view = _from_framework(source, keep_storage=True)
    else:
        view = _from_protocols(source)
    if writable and view.readonly:
        raise TypeError("%s is read-only, and the call writes to it" % _type_name(source))
    return view if dtype is None else _reinterpret(view, dtype_of(dtype))


def _type_name(value: object) -> str:
    return "a " + type(value).__name__


def _from_tuple(source: Tuple[Any, ...]) -> Tensor:
    if len(source) != 3:
        raise TypeError("a tensor as a tuple is (pointer, count, dtype); this tuple has %d items" % len(source))
    pointer, count, dtype = source
    pointer, count = int(pointer), int(count)
    if pointer < 0 or count < 0 or pointer >= 1 << 64 or count >= 1 << 63:
        raise ValueError("pointer %#x or count %d is out of range" % (pointer, count))
    return Tensor(pointer, (count,), dtype_of(dtype), None, False, source[0])


def passing(source: TensorLike) -> Tensor:
    """As tensor(), for the length of a call: a framework's object is kept, but not its storage."""
    if type(source) is not Tensor and hasattr(source, "data_ptr"):
        return _from_framework(source, keep_storage=False)
    return tensor(source)


def _from_framework(source: Any, keep_storage: bool) -> Tensor:
    """torch's way, without DLPack: it works for tensors that require a gradient, and is quicker."""
    layout = getattr(source, "layout", None)
    if layout not in _dense_layouts and not _is_dense(layout):
        raise TypeError("%s has layout %s; only dense tensors are supported" % (_type_name(source), layout))
    dtype = dtype_of(source.dtype)
    if not source.is_contiguous():
        raise ValueError(
            "%s of shape %s is not contiguous; call .contiguous() first" % (_type_name(source), tuple(source.shape))
        )
    device = source.device
    kind = _KINDS_OF_DEVICE.get(device.type)
    if kind is None:
        raise TypeError("%s is on device %s, whose memory cannot be used" % (_type_name(source), device))
    pointer, count = source.data_ptr(), source.numel()
    if pointer == 0 and count:
        raise TypeError("%s of %d elements has no memory" % (_type_name(source), count))
    # An alias holds the storage even where the tensor's own is replaced later (p.data = …).
    owner = source.detach() if keep_storage and hasattr(source, "detach") else source
    return Tensor(pointer, tuple(source.shape), dtype, (kind, device.index or 0), False, owner, count)


_dense_layouts = {None}  # layouts seen: None where an object has none, and torch.strided


def _is_dense(layout: Any) -> bool:
    if str(layout) != "torch.strided":
        return False
    _dense_layouts.add(layout)
    return True


def _from_protocols(source: Any) -> Tensor:
    try:
        view = memoryview(source)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None and _buffer_dtype(view) is not None:
        return _from_buffer(source, view)
    if hasattr(source, "__dlpack__"):
        return _from_dlpack(source)
    if view is not None:
        raise TypeError(
            "%s has items of format %r, which is not an element type of this library"
            % (_type_name(source), view.format)
        )
    raise TypeError(
        "%s is not a tensor: it has no data_ptr(), no buffer and no __dlpack__, and is not a"
        " tuple (pointer, count, dtype)" % _type_name(source)
    )


def _buffer_dtype(view: memoryview) -> Optional[DType]:
    code = view.format.lstrip("@=<" if sys.byteorder == "little" else "@=>")
    if code in ("l", "b"):  # long: by its size; signed bytes have no type of their own
        return {8: DType.I64, 4: DType.I32}.get(view.itemsize)
    dtype = _BUFFER_DTYPES.get(code)
    return dtype if dtype is not None and dtype.itemsize == view.itemsize else None


def _from_buffer(source: Any, view: memoryview) -> Tensor:
    if not view.c_contiguous:
        raise ValueError("%s of shape %s is not contiguous" % (_type_name(source), view.shape))
    dtype = _buffer_dtype(view)
    assert dtype is not None
    pointer = _address_of(view)
    shape = tuple(view.shape or ())
    return Tensor(pointer, shape, dtype, (_dlpack.CPU, 0), view.readonly, view)


class _PyBuffer(ctypes.Structure):
    """The head of Python's Py_buffer, with room for the rest."""

    _fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_ubyte * 120)]


_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None


def _address_of(view: memoryview) -> int:
    """Where a memoryview points; it keeps the memory where it is as long as it lives."""
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    address = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return address


def _from_dlpack(source: Any) -> Tensor:
    view = _dlpack.read(source)
    if view.dtype is None:
        raise TypeError(
            "%s has an element type that this library does not have (%s)" % (_type_name(source), view.dtype_text)
        )
    if not view.contiguous:
        raise ValueError("%s of shape %s is not contiguous" % (_type_name(source), view.shape))
    device = (view.device_type, view.device_id)
    return Tensor(view.pointer, view.shape, view.dtype, device, view.read_only, view.keep)


def _reinterpret(view: Tensor, dtype: DType) -> Tensor:
    if dtype == view.dtype:
        return view
    if view.nbytes % dtype.itemsize:
        raise ValueError("%d bytes are not a multiple of the size of %s" % (view.nbytes, dtype.name.lower()))
    shape: Tuple[int, ...] = (view.nbytes // dtype.itemsize,)
    if dtype.itemsize == view.dtype.itemsize:
        shape = view.shape
    device = None if view.device_type is None else (view.device_type, view.device_id)
    return Tensor(view._pointer, shape, dtype, device, view.readonly, view._owner)


def tensor_array(
    sources: Sequence[TensorLike], device: OpenDevice, what: str, *, writable: bool = False
) -> Tuple[Any, List[Tensor]]:
    """A C array of tensors for a device, and the views, which must outlive its use."""
    views: List[Tensor] = []
    array = (TensorStruct * max(len(sources), 1))()
    for i, source in enumerate(sources):
        with naming(what, i):
            view = tensor(source, writable=True) if writable else passing(source)
            device._check_tensor(view)
        views.append(view)
        fill_struct(array[i], view)
    return array, views


def one_f32(source: TensorLike, device: OpenDevice, what: str) -> Tensor:
    """A single f32 element that the device's work can write."""
    view = tensor(source, writable=True)
    device._check_tensor(view)
    if view.dtype is not DType.F32 or view.count < 1:
        raise ValueError("%s must be one f32 element, not %d of %s" % (what, view.count, view.dtype.name))
    return view


class naming:
    """Puts what a tensor is, and its number, before the message of an error in the block."""

    __slots__ = ("_what", "_number")

    def __init__(self, what: str, number: int) -> None:
        self._what = what
        self._number = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        text = "%s %d: %s" % (self._what, self._number, error)
        if isinstance(error, errors.MemoptError):
            raise errors.make(error.status, text) from None
        if isinstance(error, (TypeError, ValueError, BufferError)):
            raise type(error)(text) from None


def fill_struct(struct: TensorStruct, view: Tensor) -> None:
    """Writes a view into a C tensor."""
    struct.data = view.pointer
    struct.count = view.count
    struct.dtype = view.dtype


def tensor_list(sources: Union[TensorLike, Sequence[TensorLike]]) -> List[TensorLike]:
    """One tensor or a sequence of them as a list."""
    some: Any = sources
    if isinstance(sources, list) or hasattr(sources, "__next__"):
        return list(some)  # a generator, such as model.parameters()
    if isinstance(sources, tuple) and not (
        len(sources) == 3 and isinstance(sources[0], int) and isinstance(sources[1], int)
    ):
        return list(sources)
    return [sources]
