"""Codes of 4 and 8 bits: blocks of numbers as codes with a scale each."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Tuple, Union

from ._abi import StateFormat
from ._arguments import choice
from ._library import lib
from .device import Device
from .rules import FORMATS
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, tensor_array


def format_of(states: Union[str, StateFormat]) -> StateFormat:
    """A format of states by itself, its number or its name: "8bit"."""
    return StateFormat(choice(StateFormat, FORMATS.get(str(states), states), "states"))


def residual_bytes(split_weights: Union[bool, int]) -> int:
    """Bytes that a split weight keeps beside its bf16: one for True or 8 (bits), two for 16."""
    if split_weights not in (False, True, 8, 16):
        raise ValueError("split_weights is %r; it is False, True, 8 or 16" % (split_weights,))
    return max(1, int(split_weights) // 8) if split_weights else 0


def quantize(
    device: Device,
    states: Union[str, StateFormat],
    codes: TensorLike,
    scales: TensorLike,
    source: TensorLike,
    *,
    signed: bool = True,
    stream: StreamLike = None,
) -> None:
    """Quantises as a state format does: "8bit", "4bit" or StateFormat.BITS8_DYNAMIC, bitsandbytes' (u8 codes, f32
    scales). `signed` is False for a second moment."""
    parts = (("codes", codes, True), ("scales", scales, True), ("source", source, False))
    _run(lib.memopt_quantize, device, format_of(states), parts, signed, stream)


def dequantize(
    device: Device,
    states: Union[str, StateFormat],
    destination: TensorLike,
    codes: TensorLike,
    scales: TensorLike,
    *,
    signed: bool = True,
    stream: StreamLike = None,
) -> None:
    """The inverse of :func:`quantize`: the code's value times its block's scale."""
    parts = (("destination", destination, True), ("codes", codes, False), ("scales", scales, False))
    _run(lib.memopt_dequantize, device, format_of(states), parts, signed, stream)


def state_map(states: Union[str, StateFormat], signed: bool = True) -> Tuple[float, ...]:
    """The values that the codes of a state format stand for, before the block's scale, by code."""
    format_ = format_of(states)
    values = (ctypes.c_float * 256)()
    lib.memopt_state_map(format_, int(bool(signed)), values)
    return tuple(values[: 16 if format_ is StateFormat.BITS4 else 256])


def _run(
    function: Callable[..., Any],
    device: Device,
    states: StateFormat,
    parts: Tuple[Tuple[str, TensorLike, bool], ...],
    signed: bool,
    stream: StreamLike,
) -> None:
    """Calls with a tensor for each part, (name, tensor, whether it is written)."""
    arrays, views = [], []
    for name, part, writable in parts:
        array, view = tensor_array([part], device, name, writable=writable)
        arrays.append(array)
        views.append(view)
    function(device._handle.pointer, states, *arrays, int(bool(signed)), stream_pointer(stream))
    device._keep(stream, views)
