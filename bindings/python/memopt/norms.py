"""The norm over many tensors, and clipping by it."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from ._library import lib
from .casts import Tensors
from .device import Device
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, one_f32, tensor_array, tensor_list


def norm(
    device: Device,
    tensors: Tensors,
    out: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> Optional[float]:
    """The Euclidean norm over all elements of all tensors, summed in double in a fixed order.

    With `out` (one f32 in device memory) it is written there in stream order. Without, on a "cpu"
    device, this waits for the stream and returns it.
    """
    array, views = tensor_array(tensor_list(tensors), device, "tensor")

    def enqueue(pointer: int) -> None:
        at = stream_pointer(stream)
        lib.memopt_norm(device._handle.pointer, pointer, array, len(views), 0.0, at)

    return _with_norm(device, out, stream, views, enqueue)


def clip(
    device: Device,
    tensors: Tensors,
    max_norm: float,
    out: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> Optional[float]:
    """Scales all tensors by min(1, max_norm / (norm + 1e-6)); the norm before as in :func:`norm`."""
    if not max_norm > 0:
        raise ValueError("clip: max_norm is %s; it must be above 0" % max_norm)
    array, views = tensor_array(tensor_list(tensors), device, "tensor", writable=True)

    def enqueue(pointer: int) -> None:
        handle, at = device._handle.pointer, stream_pointer(stream)
        lib.memopt_norm(handle, pointer, array, len(views), max_norm, at)

    return _with_norm(device, out, stream, views, enqueue)


def _with_norm(
    device: Device, out: Optional[TensorLike], stream: StreamLike, kept: Any, enqueue: Any
) -> Optional[float]:
    if out is not None:
        view = one_f32(out, device, "norm: `out`")
        enqueue(view.pointer)
        device._keep(stream, kept, view)
        return None
    if device.backend != "cpu":
        raise ValueError("norm: on %s pass `out` in device memory" % device.backend)
    cell = ctypes.c_float()
    enqueue(ctypes.addressof(cell))
    device.sync_stream(stream)
    return cell.value
