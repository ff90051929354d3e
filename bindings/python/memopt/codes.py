"""Codes of 4 and 8 bits: blocks of numbers as codes and a scale each, and what the codes stand for.

The dynamic map is that of block-wise quantisation; the states of optimizers have formats of their
own.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Tuple, Union

from ._abi import StateFormat
from ._arguments import choice, unsigned
from ._library import lib
from .device import Device
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, tensor_array

_FORMAT_NAMES = {
    "f32": StateFormat.F32,
    "32bit": StateFormat.F32,
    "8bit": StateFormat.BITS8,
    "4bit": StateFormat.BITS4,
    "fp8": StateFormat.F8,
}


def format_of(states: Union[str, StateFormat]) -> StateFormat:
    """A format of states by itself, its number or its name: "8bit"."""
    if states in _FORMAT_NAMES:
        states = _FORMAT_NAMES[str(states)]
    return StateFormat(choice(StateFormat, states, "states"))


def quantize_blockwise(
    device: Device,
    source: TensorLike,
    codes: TensorLike,
    absmax: TensorLike,
    *,
    signed: bool = True,
    block_size: int = 256,
    stream: StreamLike = None,
) -> None:
    """Quantises blocks with the dynamic map: u8 codes and one f32 absmax per block."""
    parts = (("source", source, False), ("codes", codes, True), ("absmax", absmax, True))
    size = unsigned(block_size, 32, "block_size")
    _run(lib.memopt_quantize_blockwise, device, (), parts, (int(bool(signed)), size), stream)


def dequantize_blockwise(
    device: Device,
    codes: TensorLike,
    absmax: TensorLike,
    destination: TensorLike,
    *,
    signed: bool = True,
    block_size: int = 256,
    stream: StreamLike = None,
) -> None:
    """The inverse of :func:`quantize_blockwise`: map[code] * absmax."""
    parts = (("codes", codes, False), ("absmax", absmax, False), ("destination", destination, True))
    size = unsigned(block_size, 32, "block_size")
    _run(lib.memopt_dequantize_blockwise, device, (), parts, (int(bool(signed)), size), stream)


def dynamic_map(signed: bool = True) -> Tuple[float, ...]:
    """The 256 values of the dynamic map, sorted."""
    values = (ctypes.c_float * 256)()
    lib.memopt_dynamic_map(int(bool(signed)), values)
    return tuple(values)


def quantize_state(
    device: Device,
    states: Union[str, StateFormat],
    source: TensorLike,
    codes: TensorLike,
    scales: TensorLike,
    *,
    signed: bool = True,
    stream: StreamLike = None,
) -> None:
    """Quantises as a state format does: "8bit" and "4bit" (u8 codes, f32 absmax) or "fp8" (e4m3
    codes, f32 scales). `signed` is False for a second moment."""
    parts = (("source", source, False), ("codes", codes, True), ("scales", scales, True))
    before = (format_of(states),)
    _run(lib.memopt_quantize_state, device, before, parts, (int(bool(signed)),), stream)


def dequantize_state(
    device: Device,
    states: Union[str, StateFormat],
    codes: TensorLike,
    scales: TensorLike,
    destination: TensorLike,
    *,
    signed: bool = True,
    stream: StreamLike = None,
) -> None:
    """The inverse of :func:`quantize_state`: the code's value times its block's scale."""
    parts = (("codes", codes, False), ("scales", scales, False), ("destination", destination, True))
    before = (format_of(states),)
    _run(lib.memopt_dequantize_state, device, before, parts, (int(bool(signed)),), stream)


def state_map(states: Union[str, StateFormat], signed: bool = True) -> Tuple[float, ...]:
    """The values that the codes of a state format stand for, before the block's scale, by code."""
    format_ = format_of(states)
    values = (ctypes.c_float * 256)()
    lib.memopt_state_map(format_, int(bool(signed)), values)
    return tuple(values[: 16 if format_ is StateFormat.BITS4 else 256])


def _run(
    function: Callable[..., Any],
    device: Device,
    before: Tuple[int, ...],
    parts: Tuple[Tuple[str, TensorLike, bool], ...],
    after: Tuple[int, ...],
    stream: StreamLike,
) -> None:
    """Calls with a tensor for each part, (name, tensor, whether it is written)."""
    arrays, views = [], []
    for name, part, writable in parts:
        array, view = tensor_array([part], device, name, writable=writable)
        arrays.append(array)
        views.append(view)
    function(device._handle.pointer, *before, *arrays, *after, stream_pointer(stream))
    device._keep(stream, views)
