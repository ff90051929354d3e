"""What two runs of a function must agree on: shapes, and by wish contents, of saved tensors."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import torch

from .._abi import DType, TensorStruct
from .._library import lib
from ._native import native

#: The modes, from the cheapest.
MODES = ("none", "default", "hash")
_GRANULE = 4096  # bytes of a hash


def facts(tensor: torch.Tensor, mode: str) -> Any:
    """What is noted of a tensor of the first run."""
    outline = (tensor.shape, tensor.dtype, tensor.device)
    return outline if mode != "hash" else (outline, _hashes(tensor))


def difference(noted: Any, tensor: torch.Tensor, mode: str) -> Optional[str]:
    """How a recomputed tensor differs from what was noted; None where it does not."""
    outline = (tensor.shape, tensor.dtype, tensor.device)
    if mode != "hash":
        return None if noted == outline else _outline_text(noted, outline)
    if noted[0] != outline:
        return _outline_text(noted[0], outline)
    before, now = noted[1], _hashes(tensor)
    if before is None or now is None or torch.equal(before, now):
        return None
    first = int((before != now).nonzero()[0])
    size = tensor.numel() * tensor.element_size()
    return "(%s of %s) has other contents, first in bytes %d to %d of %d" % (
        str(tensor.dtype).replace("torch.", ""),
        list(tensor.shape),
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
    if tensor.layout is not torch.strided or type(tensor) not in (
        torch.Tensor,
        torch.nn.Parameter,
    ):
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
        lib.memopt_content_hash(
            side.device._handle.pointer,
            ctypes.byref(raw),
            ctypes.cast(result.data_ptr(), ctypes.POINTER(ctypes.c_uint64)),
            side.stream(),
        )
    return result
