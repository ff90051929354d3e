"""DLPack by ctypes: reads capsules of any framework, and gives capsules of our memory.

A capsule that is read stays unconsumed and is kept by the view: when the view goes, the capsule's
own destructor frees what it holds. A capsule that is given has no destructor, since Python code
must not run there with an exception in flight; `_given` keeps it instead, and sweep() forgets those
that were not taken. Consumers call `_release` when they are done; at exit structs still in use get
`_NOTHING` in its place, so a late free never calls into an interpreter that has ended. (Not NULL,
which the format allows: JAX does not look.)
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ._abi import DType

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 10, 11, 13
DEVICE_NAMES = {
    CPU: "cpu",
    CUDA: "cuda",
    CUDA_HOST: "cuda_host",
    ROCM: "hip",
    ROCM_HOST: "hip_host",
    CUDA_MANAGED: "cuda_managed",
}
_READ_ONLY = 1
_VERSION = (1, 0)

# (kind, bits) of every element type; kinds: 0 int, 1 unsigned, 2 float, 4 bfloat, 10-13 f8.
_KINDS = {
    DType.F32: (2, 32),
    DType.F16: (2, 16),
    DType.BF16: (4, 16),
    DType.F8_E4M3: (10, 8),
    DType.F8_E5M2: (12, 8),
    DType.F8_E4M3FNUZ: (11, 8),
    DType.F8_E5M2FNUZ: (13, 8),
    DType.U8: (1, 8),
    DType.I16: (0, 16),
    DType.I32: (0, 32),
    DType.I64: (0, 64),
    DType.F64: (2, 64),
}
_DTYPES = {kind: dtype for dtype, kind in _KINDS.items()}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


class View(NamedTuple):
    """What a capsule describes, with what keeps it alive."""

    pointer: int
    shape: Tuple[int, ...]
    dtype: Optional[DType]
    dtype_text: str
    contiguous: bool
    read_only: bool
    device_type: int
    device_id: int
    keep: Any


def _python_api(name: str, result: Any, *parameters: Any) -> Any:
    function = ctypes.pythonapi[name]  # its own function object: no one else sees this prototype
    function.restype, function.argtypes = result, list(parameters)
    return function


_capsule_new = _python_api("PyCapsule_New", ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)
_capsule_pointer = _python_api("PyCapsule_GetPointer", c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_is_valid = _python_api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


# --- reading --------------------------------------------------------------------------------------


def read(source: Any) -> View:
    """The memory behind an object with ``__dlpack__``, without a copy."""
    device_type = int(source.__dlpack_device__()[0])
    # On a GPU -1 asks the producer not to synchronise: the caller's stream gives the order.
    stream = None if device_type in (CPU, CUDA_HOST, ROCM_HOST) else -1
    try:
        capsule = source.__dlpack__(stream=stream, max_version=_VERSION)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = source.__dlpack__(stream=stream)
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION[0]:
            raise BufferError("DLPack version %d is not supported" % versioned.major)
        return _describe(versioned.tensor, bool(versioned.flags & _READ_ONLY), capsule)
    if _capsule_is_valid(capsule, b"dltensor"):
        managed = _Managed.from_address(_capsule_pointer(capsule, b"dltensor"))
        return _describe(managed.tensor, False, capsule)
    raise BufferError("__dlpack__ did not return a DLPack capsule")


def _describe(tensor: _DLTensor, read_only: bool, capsule: Any) -> View:
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    kind = (tensor.code, tensor.bits)
    return View(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        dtype=_DTYPES.get(kind) if tensor.lanes == 1 else None,
        dtype_text="DLPack type code %d, %d bits, %d lanes" % (kind + (tensor.lanes,)),
        contiguous=_is_contiguous(tensor, shape),
        read_only=read_only,
        device_type=tensor.device_type,
        device_id=tensor.device_id,
        keep=capsule,
    )


def _is_contiguous(tensor: _DLTensor, shape: Tuple[int, ...]) -> bool:
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1 and tensor.strides[i] != expected:
            return False
        expected *= shape[i]
    return True


# --- giving ---------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A capsule that was given out, by the address of its struct."""

    struct: Union[_Managed, _ManagedVersioned]
    arrays: Any  # shape and strides, which the struct points to
    capsule: Any
    name: bytes
    done: Callable[[], None]


_given: Dict[int, _Given] = {}


def _release(address: int) -> None:
    """The consumer is done with a tensor."""
    entry = _given.pop(address, None)
    if entry is not None:
        entry.done()


_release_thunk = ctypes.CFUNCTYPE(None, c_void_p)(_release)
_RELEASE = ctypes.cast(_release_thunk, c_void_p).value
# A function in C that changes nothing, and stays when Python has ended.
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, c_void_p).value


def give(
    pointer: int,
    shape: Tuple[int, ...],
    dtype: DType,
    device: Tuple[int, int],
    read_only: bool,
    versioned: bool,
    done: Callable[[], None],
) -> Any:
    """A capsule over memory that stays until `done` is called, once, by whoever takes it."""
    sweep()
    if read_only and not versioned:
        raise BufferError("read-only memory needs a consumer that supports DLPack 1.0")
    sizes = (c_int64 * max(len(shape), 1))(*shape)
    strides = (c_int64 * max(len(shape), 1))(*_row_major(shape))
    struct: Union[_Managed, _ManagedVersioned]
    if versioned:
        struct = _ManagedVersioned(*_VERSION, None, _RELEASE, _READ_ONLY if read_only else 0)
        name = b"dltensor_versioned"
    else:
        struct = _Managed(context=None, deleter=_RELEASE)
        name = b"dltensor"
    tensor = struct.tensor
    tensor.data, tensor.byte_offset = pointer, 0
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = _KINDS[dtype]
    tensor.lanes, tensor.ndim = 1, len(shape)
    tensor.shape = ctypes.cast(sizes, POINTER(c_int64))
    tensor.strides = ctypes.cast(strides, POINTER(c_int64))
    address = ctypes.addressof(struct)
    capsule = _capsule_new(address, name, None)
    _given[address] = _Given(struct, (sizes, strides), capsule, name, done)
    return capsule


def _row_major(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides: List[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def sweep() -> None:
    """Forgets capsules that were given and dropped without being taken."""
    for address, entry in list(_given.items()):
        dropped = sys.getrefcount(entry.capsule) <= 2  # the entry's and the argument's own
        if dropped and _capsule_is_valid(entry.capsule, entry.name):
            if _given.pop(address, None) is not None:
                entry.done()


def _at_exit() -> None:
    """What consumers still hold stays for ever, and nobody calls us back."""
    for entry in list(_given.values()):
        entry.struct.deleter = _NOTHING
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(entry))


atexit.register(_at_exit)
