"""Lists of torch tensors as the library takes them: an array of address, count and type."""

from __future__ import annotations

import ctypes
import operator
from array import array as _words
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

import torch

from .._abi import DType, TensorStruct

_WIDE = {torch.float32: DType.F32.value, torch.float16: DType.F16.value, torch.bfloat16: DType.BF16.value}
#: The types that gradients have here.
GRADIENT_TYPES = frozenset(_WIDE)
_FLOATS = {
    **_WIDE,
    torch.float8_e4m3fn: DType.F8_E4M3.value,
    torch.float8_e5m2: DType.F8_E5M2.value,
    torch.float8_e4m3fnuz: DType.F8_E4M3FNUZ.value,
    torch.float8_e5m2fnuz: DType.F8_E5M2FNUZ.value,
}
#: The types that can be cast into each other.
FLOAT_TYPES = frozenset(_FLOATS)
#: All types, as the library calls them.
CODES: Dict[torch.dtype, int] = {**_FLOATS, torch.uint8: DType.U8.value, torch.int16: DType.I16.value}

#: The classes of tensors without their own behaviour.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_strided = torch.strided

_dtype = operator.attrgetter("dtype")
_device = operator.attrgetter("device")
_layout = operator.attrgetter("layout")
_is_contiguous = torch.Tensor.is_contiguous
_data_ptr = torch.Tensor.data_ptr
_numel = torch.Tensor.numel


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a strided tensor on a device of the library, not a subclass."""
    return type(tensor) in PLAIN and tensor.layout is _strided and (tensor.is_cpu or tensor.is_cuda)


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether it has elements and no memory for them."""
    return is_plain(tensor) and tensor.data_ptr() == 0 and tensor.numel() != 0


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a range of memory, each once, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def is_gradient(tensor: torch.Tensor) -> bool:
    """Whether the library's gradient calls (scale, norm, accumulate) can work on it in place."""
    return tensor.dtype in GRADIENT_TYPES and is_plain(tensor) and is_dense(tensor)


def parted(tensors: Sequence[torch.Tensor]) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """Those that is_gradient() is true of, and the others."""
    ours: List[torch.Tensor] = []
    theirs: List[torch.Tensor] = []
    for tensor in tensors:
        (ours if is_gradient(tensor) else theirs).append(tensor)
    return ours, theirs


def array(tensors: Sequence[torch.Tensor]) -> Any:
    """The C array. It holds addresses only: the caller must keep the tensors."""
    codes = CODES
    words: List[int] = []  # of each: address, count, type with padding behind it
    for tensor in tensors:
        words += (tensor.data_ptr(), tensor.numel(), codes[tensor.dtype])
    if not words:
        return (TensorStruct * 1)()
    return (TensorStruct * len(tensors)).from_buffer(_words("Q", words))


def alike(
    tensors: Sequence[torch.Tensor], types: FrozenSet[torch.dtype] = GRADIENT_TYPES
) -> Optional[Tuple[torch.device, Any]]:
    """The device and the C array of plain tensors; None if one is special.

    Plain tensors are strided, contiguous, of these element types, on one device, and have distinct
    memory. Whole lists are compared, because checking each attribute of each tensor costs more than
    the work on it.
    """
    if not tensors or not PLAIN.issuperset(map(type, tensors)):
        return None
    devices = set(map(_device, tensors))
    dtypes = list(map(_dtype, tensors))
    kinds = set(dtypes)
    if len(devices) != 1 or not types.issuperset(kinds) or set(map(_layout, tensors)) != {_strided}:
        return None
    device = devices.pop()
    addresses = _words("Q", map(_data_ptr, tensors))
    if (
        device.type not in ("cpu", "cuda")
        or not all(map(_is_contiguous, tensors))
        or len(set(addresses)) != len(tensors)
        or 0 in addresses
    ):
        return None
    words = _words("Q", bytes(24 * len(tensors)))
    words[0::3] = addresses
    words[1::3] = _words("Q", map(_numel, tensors))
    if len(kinds) == 1:
        words[2::3] = _words("Q", [CODES[kinds.pop()]]) * len(tensors)
    else:
        words[2::3] = _words("Q", map(CODES.__getitem__, dtypes))
    return device, (TensorStruct * len(tensors)).from_buffer(words)


def raw(address: int, count: int, dtype: torch.dtype) -> TensorStruct:
    """One C tensor."""
    return TensorStruct(data=address, count=count, dtype=CODES[dtype])


def cell(tensor: torch.Tensor) -> ctypes.c_void_p:
    """The address of a tensor of one element."""
    return ctypes.c_void_p(tensor.data_ptr())


def changed(tensors: Sequence[torch.Tensor]) -> None:
    """Marks the tensors as written for autograd."""
    try:
        torch.autograd.graph.increment_version(list(tensors))
    except TypeError:  # torch before 2.5 takes one at a time
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)


def by_device(tensors: Iterable[torch.Tensor]) -> Dict[torch.device, List[torch.Tensor]]:
    """The tensors of each device, in order."""
    result: Dict[torch.device, List[torch.Tensor]] = {}
    for tensor in tensors:
        device = tensor.device
        if device in result:
            result[device].append(tensor)
        else:
            result[device] = [tensor]
    return result


def by_type(tensors: Iterable[torch.Tensor]) -> Dict[torch.dtype, List[torch.Tensor]]:
    """The tensors of each element type, in order."""
    result: Dict[torch.dtype, List[torch.Tensor]] = {}
    for tensor in tensors:
        result.setdefault(tensor.dtype, []).append(tensor)
    return result


def name_of(dtype: torch.dtype) -> str:
    """A type as messages call it."""
    return str(dtype).replace("torch.", "")
