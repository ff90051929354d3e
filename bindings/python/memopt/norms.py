"""The norm over many tensors, and clipping by it."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

from ._library import lib, output
from .casts import Tensors
from .device import Device
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, one_f32, tensor, tensor_array, tensor_list


def norm_scratch(tensors: Tensors, device: Device) -> int:
    """Bytes of scratch that :func:`norm` and :func:`clip` need for these tensors."""
    array, views = tensor_array(tensor_list(tensors), device, "tensor")
    return _scratch_bytes(array, len(views))


def norm(
    device: Device,
    tensors: Tensors,
    out: Optional[TensorLike] = None,
    scratch: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> Optional[float]:
    """The Euclidean norm over all elements of all tensors, summed in double in a fixed order.

    With `out` (one f32 in device memory) it is written there in stream order. Without, on a "cpu"
    device, this waits for the stream and returns it. `scratch` is device memory of
    :func:`norm_scratch` bytes; on a "cpu" device it may be left out.
    """
    array, views = tensor_array(tensor_list(tensors), device, "tensor")
    room, bytes_, kept = _scratch(device, scratch, array, len(views))

    def enqueue(pointer: int) -> None:
        at = stream_pointer(stream)
        lib.memopt_norm(device._handle.pointer, pointer, array, len(views), room, bytes_, at)

    return _with_norm(device, out, stream, (views, kept), enqueue)


def clip(
    device: Device,
    tensors: Tensors,
    max_norm: float,
    out: Optional[TensorLike] = None,
    scratch: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> Optional[float]:
    """Scales all tensors by min(1, max_norm / (norm + 1e-6)); the norm before as in :func:`norm`."""
    array, views = tensor_array(tensor_list(tensors), device, "tensor", writable=True)
    room, bytes_, kept = _scratch(device, scratch, array, len(views))

    def enqueue(pointer: int) -> None:
        handle, at = device._handle.pointer, stream_pointer(stream)
        lib.memopt_clip(handle, pointer, array, len(views), max_norm, room, bytes_, at)

    return _with_norm(device, out, stream, (views, kept), enqueue)


def _scratch_bytes(array: Any, count: int) -> int:
    return int(output(lib.memopt_norm_get_scratch, array, count))


def _scratch(
    device: Device, given: Optional[TensorLike], array: Any, count: int
) -> Tuple[int, int, Any]:
    """Address and bytes of scratch, and what has to stay until the work is done."""
    if given is not None:
        view = tensor(given, writable=True)
        device._check_tensor(view)
        return view.pointer, view.nbytes, view
    if device.backend != "cpu":
        raise ValueError("norm: on %s pass `scratch` in device memory" % device.backend)
    room = (ctypes.c_uint64 * (_scratch_bytes(array, count) // 8))()
    return ctypes.addressof(room), ctypes.sizeof(room), room


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
