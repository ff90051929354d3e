"""Values that save_on_cpu stores in a block-scaled format: with fewer bytes, and not exactly.

The elements of a storage, in the order of memory, are quantised on their device into one buffer:
codes, scales, and NVFP4's largest magnitude. The buffer is packed as any other value is. So limits,
prefetch and the disk see its bytes only.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import torch

from .. import _abi
from .._abi import BlockFormat
from .._arguments import choice
from .._library import lib
from ..blocks import FormatLike, blocks_layout
from . import _tensor_lists as _lists
from ._native import native
from ._slots import Saved, Slot

_empty = torch.empty

#: A format, or a function that is given the tensor and returns one, or None.
Compress = Union[None, FormatLike, Callable[[torch.Tensor], Optional[FormatLike]]]

#: Each part of a buffer begins at a multiple of this.
_ALIGNMENT = 16


class Coding(NamedTuple):
    """What a coded slot's bytes mean."""

    kind: BlockFormat
    dtype: torch.dtype
    elements: int


class Coder:
    """Which values are coded, and how."""

    def __init__(self, compress: Compress, min_bytes: int) -> None:
        self.choose: Optional[Callable[[torch.Tensor], Optional[FormatLike]]] = None
        self.kind: Optional[BlockFormat] = None
        if callable(compress):
            self.choose = compress
        else:
            self.kind = _kind(compress)
        self.min_bytes = min_bytes

    def kind_of(self, tensor: torch.Tensor) -> Optional[BlockFormat]:
        """The format for a tensor that could be coded; None: exactly."""
        return self.kind if self.choose is None else _kind(self.choose(tensor))


def _kind(format: Optional[FormatLike]) -> Optional[BlockFormat]:
    if format is None:
        return None
    if isinstance(format, str) and format.lower() == "mxfp8":
        return BlockFormat.MXFP8_E4M3
    kind: BlockFormat = choice(BlockFormat, format, "compress")
    if kind is BlockFormat.E4M3_128X128:
        raise ValueError("compress is 'e4m3_128x128', which is of matrices; 'e4m3_1x128' has the same codes")
    if kind in (BlockFormat.E4M3_TENSOR, BlockFormat.E5M2_TENSOR):
        raise ValueError(
            "compress is %r, which has one scale for all values; 'e4m3_1x128' has one for each 128" % kind.name.lower()
        )
    return kind


def whole_of(tensor: torch.Tensor, storage: torch.UntypedStorage, total: int) -> Optional[torch.Tensor]:
    """The tensor, or what it is a view of, if its elements are all of the storage, each once."""
    for whole in (tensor, tensor._base):
        if (
            whole is not None
            and whole.dtype is tensor.dtype
            and whole.nbytes == total
            and _lists.is_plain(whole)
            and not whole.is_neg()
            and whole.data_ptr() == storage.data_ptr()
            and _lists.is_dense(whole)
        ):
            return whole
    return None


@functools.lru_cache(maxsize=1024)
def _places(kind: BlockFormat, count: int) -> Tuple[int, int, int]:
    """Where the scales and the largest magnitude begin in a buffer, and its bytes."""
    layout = blocks_layout(kind, 1, count)
    scales = -(-layout.code_bytes // _ALIGNMENT) * _ALIGNMENT
    end = scales + layout.scale_bytes
    cell = -(-end // _ALIGNMENT) * _ALIGNMENT
    return scales, cell, cell + 4 if kind is BlockFormat.NVFP4 else end


def _matrix(coding: Coding, address: int) -> Any:
    scales, cell, _ = _places(coding.kind, coding.elements)
    return ctypes.byref(
        _abi.BlocksStruct(
            codes=address,
            scales=address + scales,
            tensor_amax=address + cell if coding.kind is BlockFormat.NVFP4 else None,
            rows=1,
            columns=coding.elements,
            format=int(coding.kind),
        )
    )


def encode(whole: torch.Tensor, coding: Coding) -> torch.Tensor:
    """A buffer with a dense tensor's elements, in the order of the current stream."""
    _, cell, nbytes = _places(coding.kind, coding.elements)
    buffer = _empty(nbytes, dtype=torch.uint8, device=whole.device)
    address, values = buffer.data_ptr(), _lists.array([whole])
    side = native(whole.device)
    device, stream = side.device._handle.pointer, side.stream()
    if coding.kind is BlockFormat.NVFP4:
        lib.memopt_fill(device, address + cell, 0, 4, stream)
        lib.memopt_cast(device, None, values, 1, _abi.CastOptions(amax=address + cell), stream)
    lib.memopt_blocks_quantize(device, _matrix(coding, address), values, 1, None, stream)
    return buffer


def decode(buffer: torch.Tensor, coding: Coding) -> torch.UntypedStorage:
    """The elements of a buffer, in the order of the current stream."""
    values = _empty(coding.elements, dtype=coding.dtype, device=buffer.device)
    side = native(buffer.device)
    lib.memopt_blocks_dequantize(
        side.device._handle.pointer, _lists.array([values]), _matrix(coding, buffer.data_ptr()), 1, side.stream()
    )
    return values.untyped_storage()


class Coded:
    """A tensor in a coded slot."""

    __slots__ = ("saved", "size", "stride", "offset")

    def __init__(self, saved: Saved, size: Tuple[int, ...], stride: Tuple[int, ...], offset: int) -> None:
        self.saved = saved  # the slot's buffer
        self.size = size
        self.stride = stride
        self.offset = offset  # in elements

    @property
    def slot(self) -> Slot:
        """Where the buffer is."""
        return self.saved.slot

    def tensor(self, stream: Any) -> torch.Tensor:
        """The value, in the order of `stream`."""
        slot = self.saved.slot
        coding: Coding = slot.coding
        storage: Optional[torch.UntypedStorage] = None
        if slot.decoded is not None:
            reference, of = slot.decoded
            storage = reference() if of == stream else None
        if storage is None:
            storage = decode(self.saved.tensor(stream), coding)
            if slot.shared:
                slot.decoded = weakref.ref(storage), stream
        return _empty(0, dtype=coding.dtype, device=slot.store.device).set_(
            storage, self.offset, self.size, self.stride
        )
