"""What two runs of a function must agree on: shapes and, optionally, contents of saved tensors.

Some contents may differ: those that the function changes after they were saved, such as the running
statistics of a norm in training, and what an operation leaves unwritten.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any, NamedTuple, Optional

import torch

from .._abi import DType, TensorStruct
from .._library import lib
from ._native import native

#: The modes, from the cheapest.
MODES = ("none", "default", "hash")
_GRANULE = 4096  # bytes of a hash


#: Functions of torch that save memory with gaps between what they have written.
_GAPS = frozenset((torch.nn.functional.ctc_loss.__code__,))


class _Content(NamedTuple):
    """What is noted of a tensor whose contents are compared."""

    outline: Any
    hashes: Optional[torch.Tensor]  # None: they are not
    place: str  # of the code that saved it
    storage: Any  # a weak reference to its plain bytes, and where in them it is
    offset: Any
    stride: Any


def facts(tensor: torch.Tensor, mode: str) -> Any:
    """What is noted of a tensor of the first run, which is being saved."""
    outline = (tensor.shape, tensor.dtype, tensor.device)
    if mode != "hash":
        return outline
    caller = sys._getframe(2)  # who called the operation; the hook is between
    hashes = None if caller.f_code in _GAPS else _hashes(tensor)
    if hashes is None:
        return _Content(outline, None, "", None, 0, None)
    place = "%s, line %d" % (caller.f_code.co_filename, caller.f_lineno)
    lazy = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    storage = None if lazy else weakref.ref(tensor.untyped_storage())
    return _Content(outline, hashes, place, storage, tensor.storage_offset(), tensor.stride())


def settled(noted: _Content) -> _Content:
    """Drops contents that the first run changed itself: they are not compared."""
    storage = noted.storage and noted.storage()
    if storage is None or not storage.nbytes():  # gone, or freed for a while
        return noted._replace(storage=None)
    shape, dtype, device = noted.outline
    now = torch.empty(0, dtype=dtype, device=device)
    before, after = noted.hashes, _hashes(now.set_(storage, noted.offset, shape, noted.stride))
    same = before is not None and after is not None and torch.equal(before, after)
    return noted._replace(storage=None, hashes=before if same else None)


def difference(noted: Any, tensor: torch.Tensor, mode: str) -> Optional[str]:
    """How a recomputed tensor differs from what was noted; None where it does not."""
    outline = (tensor.shape, tensor.dtype, tensor.device)
    if mode != "hash":
        return None if noted == outline else _outline_text(noted, outline)
    if noted.outline != outline:
        return _outline_text(noted.outline, outline)
    before, now = noted.hashes, None if noted.hashes is None else _hashes(tensor)
    if before is None or now is None or torch.equal(before, now):
        return None
    first = int((before != now).nonzero()[0])
    size = tensor.numel() * tensor.element_size()
    return "(%s of %s, saved by %s) has other contents, first in bytes %d to %d of %d" % (
        str(tensor.dtype).replace("torch.", ""),
        list(tensor.shape),
        noted.place,
        first * _GRANULE,
        min((first + 1) * _GRANULE, size) - 1,
        size,
    )


def _outline_text(noted: Any, outline: Any) -> str:
    return "was %s, and is %s" % tuple(
        "%s of %s on %s" % (str(dtype).replace("torch.", ""), list(shape), device)
        for shape, dtype, device in (noted, outline)
    )


def _hashes(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """A hash for each 4 KiB; None for what has no plain memory (sparse and the like)."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    dense = tensor.detach().contiguous()
    size = dense.numel() * dense.element_size()
    result = torch.empty(-(-size // _GRANULE), dtype=torch.int64, device=tensor.device)
    if size:
        if not dense.data_ptr():
            raise RuntimeError(
                "checkpoint: the contents of a saved tensor (%s of %s) cannot be compared: its"
                " storage was freed" % (tensor.type(), list(tensor.shape))
            )
        side = native(tensor.device)
        raw = TensorStruct(data=dense.data_ptr(), count=size, dtype=DType.U8)
        hashes = ctypes.cast(result.data_ptr(), ctypes.POINTER(ctypes.c_uint64))
        lib.memopt_content_hash(side.device._handle.pointer, hashes, ctypes.byref(raw), side.stream())
    return result
