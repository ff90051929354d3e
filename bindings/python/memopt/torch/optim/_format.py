"""The states of a parameter as tensors of torch.

``optimizer.state[parameter]`` holds "step" (int64, without dimensions, on the parameter's device),
the moments ("exp_avg" and, with AdamW, "exp_avg_sq"; of SGD "momentum_buffer") and, where these are
coded, their scales ("absmax1", "absmax2"; of companded codes "power1", "power2", of 4 bits "companded1",
"companded2"). 32-bit, bf16 and 8-bit moments have the parameter's shape and order of memory; blocks go by the order of memory. SGD
without momentum has no state, or "step" alone if it rounds stochastically, because the random numbers
depend on it. 4-bit moments are a row of bytes with two codes each, and where the parameter's order of
memory is not that of its indices, "order" holds its strides. A split weight's "weight_residual" has a
byte (uint8) or two (int16) for each element, as the parameter has them.

In the state dicts of optimizers with coded states every entry is sealed: see :func:`sealed`.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from ..._library import lib
from ...codes import residual_bytes, state_map
from .._native import native
from .._tensor_lists import array
from . import _layout

State = Dict[str, torch.Tensor]


_SEAL = "memopt"
#: The key of a split weight's further bits, and their types by the bytes of an element.
RESIDUAL = "weight_residual"
RESIDUALS = {1: torch.uint8, 2: torch.int16}

#: A bit of SGD's step count: no counted step has written the momentum buffer (see
#: memopt_parameter_options). As an int64 the count is then negative.
NOT_BEGUN = -(1 << 63)

MOMENTS: Dict[OptimizerKind, Tuple[str, ...]] = {
    OptimizerKind.ADAMW: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.ADAM: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.SCHEDULE_FREE: ("z", "exp_avg_sq"),
    OptimizerKind.LION: ("exp_avg",),
    OptimizerKind.SGD: ("momentum_buffer",),
    OptimizerKind.RMSPROP: ("square_avg",),
    OptimizerKind.ADAGRAD: ("sum",),
    OptimizerKind.RMSPROP_MOMENTUM: ("momentum_buffer", "square_avg"),
    OptimizerKind.ADEMAMIX: ("exp_avg", "exp_avg_slow", "exp_avg_sq"),
    OptimizerKind.ADAFACTOR: ("row_var", "col_var"),  # of a vector "variance": _adafactor.py
}
#: Moments that are never negative.
_SQUARES = ("exp_avg_sq", "square_avg", "sum")
#: The elements that share a scale.
BLOCKS = {StateFormat.BITS8_DYNAMIC: 256, StateFormat.BITS8: 256, StateFormat.BITS4: 128}
#: The format with two codes in a byte.
PAIRS = StateFormat.BITS4
#: The element types of moments that are no codes.
FLOATS = {StateFormat.F32: torch.float32, StateFormat.BF16: torch.bfloat16}
#: The format by the begin of its scales' keys. "companded" beside whole bytes are older codes.
FORMATS_OF_SCALES = {
    "absmax": StateFormat.BITS8_DYNAMIC, "power": StateFormat.BITS8, "companded": StateFormat.BITS4,
}
_STEMS = {format_: stem for stem, format_ in FORMATS_OF_SCALES.items()}


def is_signed(kind: OptimizerKind, index: int) -> bool:
    """Whether a rule's moment may be negative, which decides its codes."""
    return MOMENTS[kind][index] not in _SQUARES


def has_moments(state: Any, kind: OptimizerKind) -> bool:
    """Whether it is a state with moments: SGD's has none where there never was a momentum."""
    return bool(state) and MOMENTS[kind][0] in state


def sealed(state: State) -> Dict[str, Any]:
    """A state that no other optimizer accepts: each tensor in its own dict.

    Codes under torch's names would be taken for moments. The names stay, since torch's flattened
    state dicts go by those in ``optimizer.state``. A "step" that is a dict stops Adam and its
    relatives when they load it, any entry the others in their first step.
    """
    return {key: {_SEAL: value} for key, value in state.items()}


def opened(state: Any) -> Any:
    """The argument of sealed(); any other state unchanged."""
    if not isinstance(state, dict) or not any(map(_is_sealed, state.values())):
        return state
    return {key: value[_SEAL] if _is_sealed(value) else value for key, value in state.items()}


def _is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [_SEAL]


def scale_names(kind: OptimizerKind, format_: StateFormat) -> Tuple[str, ...]:
    """The keys of the scales."""
    if format_ in FLOATS:
        return ()
    return tuple("%s%d" % (_STEMS[format_], i + 1) for i in range(len(MOMENTS[kind])))


def scale_of(state: Any, index: int) -> Optional[str]:
    """The key of a moment's scales in a state of any format; None if it has no such tensor."""
    keys_ = ("%s%d" % (stem, index + 1) for stem in (*FORMATS_OF_SCALES, "scale"))
    return next((key for key in keys_ if isinstance(state.get(key), torch.Tensor)), None)


def split_bytes(group: Dict[str, Any], parameter: torch.Tensor) -> int:
    """The bytes that a parameter of the group keeps of each weight in its state; 0: it is not split."""
    if parameter.dtype is not torch.bfloat16:
        return 0
    return residual_bytes(group.get("split_weights") or False)


def sized_residual(value: torch.Tensor, bytes_: int) -> torch.Tensor:
    """A residual with so many bytes an element: those of 8 bits become 16 without a loss. One that a
    torch optimizer has cast to the parameter's type comes back rounded."""
    dtype = RESIDUALS[bytes_]
    if value.dtype is dtype:
        return value
    if value.is_floating_point():
        limits = torch.iinfo(dtype)
        return value.float().clamp_(limits.min, limits.max).to(dtype)
    if bytes_ != 2 or value.dtype is not torch.uint8:
        raise ValueError("the %s is of %s; split_weights=%d keeps %s" % (RESIDUAL, value.dtype, 8 * bytes_, dtype))
    return value.view(torch.int8).to(dtype).mul_(256)


def residual(parameter: torch.Tensor, value: Optional[torch.Tensor], bytes_: int) -> torch.Tensor:
    """The residual of a split weight, in the parameter's order of memory: `value`, or zeros."""
    if value is None:
        return _layout.like(parameter, RESIDUALS[bytes_]).zero_()
    if value.shape != parameter.shape:
        raise ValueError(
            "the %s has the shape %s, its parameter %s" % (RESIDUAL, tuple(value.shape), tuple(parameter.shape))
        )
    value = sized_residual(value, bytes_)
    if value.device == parameter.device:
        if value.stride() == torch.empty_like(parameter, device="meta").stride():
            return value
    return _layout.like(parameter, RESIDUALS[bytes_]).copy_(value)


def keys(kind: OptimizerKind, format_: StateFormat) -> Tuple[str, ...]:
    """The keys of a state's tensors in the library's order."""
    return MOMENTS[kind] + scale_names(kind, format_)


def counts(kind: OptimizerKind, format_: StateFormat, count: int) -> List[int]:
    """The elements of each of keys() for a parameter of `count` elements."""
    moments = len(MOMENTS[kind])
    if format_ in FLOATS:
        return [count] * moments
    codes = (count + 1) // 2 if format_ is PAIRS else count
    return [codes] * moments + [blocks(format_, count)] * moments


def of(state: State, kind: OptimizerKind, own: StateFormat) -> StateFormat:
    """The format in which a state is kept, in an optimizer with `own`."""
    moment = state[MOMENTS[kind][0]]
    if moment.dtype is not torch.uint8:
        return own if moment.dtype is FLOATS.get(own) else StateFormat.F32
    stems = (stem for stem in FORMATS_OF_SCALES if stem + "1" in state)
    return FORMATS_OF_SCALES[next(stems, "absmax")]


@functools.lru_cache(maxsize=None)
def values(format_: StateFormat, signed: bool) -> torch.Tensor:
    """What the codes of a format stand for, by code."""
    return torch.tensor(state_map(format_, signed))


@functools.lru_cache(maxsize=None)
def zero_byte(format_: StateFormat, signed: bool) -> int:
    """A byte of codes that stand for zero."""
    if not signed:
        return 0
    code = int((values(format_, True) == 0).nonzero()[0])
    return code * 0x11 if format_ is PAIRS else code


def blocks(format_: StateFormat, count: int) -> int:
    """Scales of a moment."""
    return -(-count // BLOCKS[format_])


def empty_moment(parameter: torch.Tensor, format_: StateFormat) -> torch.Tensor:
    """Room for a moment."""
    if format_ is PAIRS:
        return torch.empty((parameter.numel() + 1) // 2, dtype=torch.uint8, device=parameter.device)
    return _layout.like(parameter, FLOATS.get(format_, torch.uint8))


def empty_scales(parameter: torch.Tensor, format_: StateFormat) -> torch.Tensor:
    """Room for a moment's scales."""
    count = blocks(format_, parameter.numel())
    return torch.empty(count, dtype=torch.float32, device=parameter.device)


def unpacked(codes: torch.Tensor) -> torch.Tensor:
    """One code in a byte, of two."""
    return torch.stack((codes >> 4, codes & 15), -1).flatten(-2)


def steps_taken(step: Any) -> int:
    """The number of steps in a state's "step"."""
    return int(step) & ~NOT_BEGUN


def step_tensor(steps: int, device: torch.device) -> torch.Tensor:
    """A step count as states hold it."""
    return torch.full((), steps, dtype=torch.int64, device=device)


def new(parameter: torch.Tensor, kind: OptimizerKind, format_: StateFormat) -> State:
    """The state of a parameter before its first step."""
    state = {"step": step_tensor(0, parameter.device)}
    for i, name in enumerate(MOMENTS[kind]):
        state[name] = empty_moment(parameter, format_)
        state[name].fill_(0 if format_ in FLOATS else zero_byte(format_, is_signed(kind, i)))
    for name in scale_names(kind, format_):
        state[name] = empty_scales(parameter, format_).zero_()
    return with_order(state, parameter, format_)


def with_order(state: State, parameter: torch.Tensor, format_: StateFormat) -> State:
    """Adds "order" where it is needed."""
    if format_ is PAIRS and not parameter.is_contiguous():
        strides = _layout.like(parameter, torch.uint8).stride()
        state["order"] = torch.tensor(strides, dtype=torch.int64)
    return state


def quantize(
    source: torch.Tensor, parameter: torch.Tensor, format_: StateFormat, signed: bool
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of floats with the parameter's shape."""
    floats = _layout.like(parameter, torch.float32).copy_(source)
    moment, scales = empty_moment(parameter, format_), empty_scales(parameter, format_)
    encode(floats, moment, scales, format_, signed)
    return moment, scales


def encode(
    floats: torch.Tensor, moment: torch.Tensor, scales: torch.Tensor, format_: StateFormat, signed: bool
) -> None:
    """Writes codes and scales of floats in the moment's order of memory."""
    side = native(floats.device)
    arrays = map(array, ([moment], [scales], [floats]))
    handle = side.device._handle.pointer
    lib.memopt_quantize(handle, format_, *arrays, int(signed), side.stream())


def decode(
    floats: torch.Tensor, moment: torch.Tensor, scales: torch.Tensor, format_: StateFormat, signed: bool
) -> None:
    """The inverse of encode(): writes the floats."""
    side = native(floats.device)
    arrays = map(array, ([floats], [moment], [scales]))
    handle = side.device._handle.pointer
    lib.memopt_dequantize(handle, format_, *arrays, int(signed), side.stream())
