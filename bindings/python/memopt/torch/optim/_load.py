"""Converts a parameter's state in a state dict to this optimizer's format.

It reads the dicts of the optimizers here, of torch, of bitsandbytes and of torchao. A moment comes
as floats or as codes; codes of the same kind of map are copied with their scales, byte by byte.
Moments that this optimizer cannot hold as unchanged codes keep 32-bit states.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _layout, _other_rules
from ._format import Kind

#: Where bitsandbytes puts a parameter's states in a dict.
NESTED = "__bnb_optimizer_quant_state__"


#: Sizes of blocks in dicts, the formats' own first where several fit.
_SIZES = (256, 128, 32, 64, 512, 1024, 2048, 4096)
#: The dynamic 4-bit map of torchao, with signs; without signs it is the companded one.
_DYNAMIC4 = (0.0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1.0)


class Codes(NamedTuple):
    """A moment as codes."""

    format: Optional[StateFormat]  # None: one that no optimizer here has
    pairs: bool  # two codes in a byte
    codes: torch.Tensor  # bytes in the order of memory
    scales: torch.Tensor
    map: torch.Tensor
    block: int  # elements that share a scale
    strides: Tuple[int, ...]  # the order of memory

    def units(self) -> torch.Tensor:
        """The codes, one in a byte."""
        return _format.unpacked(self.codes) if self.pairs else self.codes

    def floats(self, shape: torch.Size) -> torch.Tensor:
        """The moment's values, exactly: code's value times scale in fp32."""
        count = shape.numel()
        values = self.map.to(self.codes.device)[self.units()[:count].long()]
        scales = self.scales.float().repeat_interleave(self.block)[:count]
        return torch.as_strided(values * scales, shape, self.strides)


Moment = Union[Codes, torch.Tensor]


class Saved(NamedTuple):
    """A parameter's state as it was saved."""

    steps: int
    moments: List[Moment]
    lent: bool = False  # a converted state may consist of these very tensors


class Found(NamedTuple):
    """A parameter's state in a state dict."""

    parameter: torch.Tensor
    group: Dict[str, Any]
    saved: Saved


# --- reading ---------------------------------------------------------------------------------------


def read(state: Mapping[str, Any], kind: Kind, own: StateFormat, parameter: torch.Tensor, name: str) -> Optional[Saved]:
    """The state of a parameter; None where there is none. ValueError if it does not fit."""
    if NESTED in state:
        state = {**state, **state[NESTED]}
    _other_rules.check_state(state, kind, name)
    names = _format.MOMENTS[kind]
    if "max_exp_avg_sq" in state:
        raise ValueError("the state of %s is AMSGrad's, which is not supported" % name)
    if "state1" in state:
        moments = [_bitsandbytes(state, i + 1, parameter, name) for i in range(len(names))]
    else:
        if all(state.get(key) is None for key in names):
            return None
        missing = [key for key in names if state.get(key) is None]
        if missing:
            raise _lacking(name, missing[0])
        moments = [moment(state, i, kind, own, parameter, name) for i in range(len(names))]
    steps = int(state["step"]) if state.get("step") is not None else 1
    negative = steps < 0 and kind not in (OptimizerKind.SGD, _format.OwnKind.LARS)  # NOT_BEGUN
    if negative or _format.steps_taken(steps) >= 1 << 53:
        raise ValueError("the state of %s has taken %d steps" % (name, steps))
    return Saved(steps, moments)


def is_count(state: Mapping[str, Any], kind: Kind) -> bool:
    """Whether it is the state of SGD without momentum that rounds stochastically."""
    return kind is OptimizerKind.SGD and isinstance(state.get("step"), torch.Tensor)


def _lacking(name: str, key: str) -> ValueError:
    return ValueError("the state of %s has no %s: it is incomplete, or of another rule" % (name, key))


def _fail(name: str, what: str, got: Any, parameter: torch.Tensor) -> ValueError:
    return ValueError(
        "the loaded %s of %s has %s, which does not fit the parameter's shape %s"
        % (what, name, got, tuple(parameter.shape))
    )


def _codes(
    format_: Optional[StateFormat],
    codes: torch.Tensor,
    scales: torch.Tensor,
    map_: torch.Tensor,
    order: Optional[Sequence[int]],
    parameter: torch.Tensor,
    what: str,
    name: str,
) -> Codes:
    count, pairs = parameter.numel(), len(map_) == 16
    if pairs:
        good = codes.numel() == (count + 1) // 2
        strides = tuple(order) if order is not None else _contiguous(parameter.shape)
    else:
        good = codes.shape == parameter.shape
        if not _layout.is_dense(codes):
            codes = codes.contiguous()
        strides = codes.stride()
    if not good:
        raise _fail(name, what, "shape %s" % (tuple(codes.shape),), parameter)
    block = block_of(count, scales.numel(), 128 if pairs else 256)
    if scales.dim() != 1 or not block:
        raise _fail(name, what, "%d scales" % scales.numel(), parameter)
    flat = _layout.flat(codes.view(torch.uint8))
    return Codes(format_, pairs, flat, scales, map_, block, strides)


def block_of(count: int, scales: int, own: int) -> int:
    """The size of the blocks of which `count` elements have so many scales: `own` if it fits, 0 if
    none does. Only elements that are one block together leave a choice."""
    return next((s for s in (own, *_SIZES) if -(-count // s) == scales), 0)


def _e4m3() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def _contiguous(shape: torch.Size) -> Tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _floats(value: Any, what: str, parameter: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        raise ValueError("the loaded %s of %s is %r" % (what, name, type(value).__name__))
    if value.shape != parameter.shape:
        raise _fail(name, what, "shape %s" % (tuple(value.shape),), parameter)
    return value


def moment(
    state: Mapping[str, Any], index: int, kind: Kind, own: StateFormat, parameter: torch.Tensor, name: str
) -> Moment:
    """A moment as this package, torch or torchao saves it."""
    what = _format.MOMENTS[kind][index]
    value = _layout.local(state[what]) if isinstance(state[what], torch.Tensor) else state[what]
    parts = [_part(value, key) for key in ("codes", "scale", "qmap")]
    if parts[0] is not None and parts[1] is not None:
        return _torchao(parts, what, parameter, name)
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.uint8:
        return _floats(value, what, parameter, name)
    order = state["order"].tolist() if "order" in state else None
    key, signed = _format.scale_of(state, index), _format.is_signed(kind, index)
    if key is None:
        raise ValueError("the state of %s has no absmax%d" % (name, index + 1))
    format_: Optional[StateFormat] = _format.of(dict(state), kind, parameter.numel(), own)
    if key.startswith("scale"):
        format_, map_ = None, _e4m3()
    elif format_ is StateFormat.BITS8 and value.numel() < parameter.numel():
        format_, map_ = None, _dynamic4(signed)
    else:
        assert format_ is not None
        map_ = _format.values(format_, signed)
    return _codes(format_, value, state[key], map_, order, parameter, what, name)


def _dynamic4(signed: bool) -> torch.Tensor:
    if not signed:
        return _format.values(StateFormat.COMPANDED4, False)
    return torch.tensor([-x for x in _DYNAMIC4[7:0:-1]] + list(_DYNAMIC4))


def _part(value: Any, key: str) -> Any:
    """A part of torchao's states, which are tensors of its own classes, or dicts."""
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _torchao(parts: List[Any], what: str, parameter: torch.Tensor, name: str) -> Codes:
    codes, scales, map_ = parts
    format_ = StateFormat.BITS8 if map_ is not None and map_.numel() == 256 else None
    map_ = _e4m3() if map_ is None else map_
    return _codes(format_, codes, scales, map_, None, parameter, what, name)


def _bitsandbytes(state: Mapping[str, Any], number: int, parameter: torch.Tensor, name: str) -> Moment:
    what = "state%d" % number
    value = state.get(what)
    if value is None:
        raise _lacking(name, what)
    if value.dtype is not torch.uint8:
        return _floats(value, what, parameter, name)
    scales, map_ = state.get("absmax%d" % number), state.get("qmap%d" % number)
    if scales is None or map_ is None:
        raise ValueError(
            "the state of %s has codes without absmax%d and qmap%d, of which only the block-wise"
            " form is known" % (name, number, number)
        )
    return _codes(StateFormat.BITS8, value, scales, map_, None, parameter, what, name)


# --- converting ------------------------------------------------------------------------------------


def has_codes(saved: Saved) -> bool:
    """Whether any of it is coded."""
    return any(isinstance(moment, Codes) for moment in saved.moments)


def convert(saved: Saved, kind: Kind, format_: StateFormat, parameter: torch.Tensor, as_it_is: bool) -> _format.State:
    """A state for the parameter (dense memory) of an optimizer that keeps `format_`.

    Codes are kept where that format can hold them, else requantised if they were of another format
    or order of memory, else (another map, another size of blocks) become 32-bit states. Floats are
    quantised, or rounded to bf16, unless `as_it_is`.
    """
    pairs = [
        _pair(m, format_, parameter, _format.is_signed(kind, i), as_it_is, saved.lent)
        for i, m in enumerate(saved.moments)
    ]
    if any(pair is None for pair in pairs) and not _is_rounded(saved, format_, as_it_is):
        format_ = StateFormat.F32
    state = {"step": _format.step_tensor(saved.steps, parameter.device)}
    names = _format.MOMENTS[kind]
    if format_ in _format.FLOATS:
        for key, moment in zip(names, saved.moments):
            values = _values(moment, parameter)
            if not (saved.lent and _lies_as(values, parameter, _format.FLOATS[format_])):
                values = _format.empty_moment(parameter, format_).copy_(values)
            state[key] = values
        return state
    for i, key in enumerate(names):
        state[key] = pairs[i][0]  # type: ignore[index]
    for i, key in enumerate(_format.scale_names(kind, format_)):
        state[key] = pairs[i][1]  # type: ignore[index]
    return _format.with_order(state, parameter, format_)


def _is_rounded(saved: Saved, format_: StateFormat, as_it_is: bool) -> bool:
    """Whether the moments are kept in 16 bits."""
    wide = any(isinstance(m, torch.Tensor) and m.dtype is torch.float32 for m in saved.moments)
    return format_ is StateFormat.BF16 and not (as_it_is and wide)


def _values(moment: Moment, parameter: torch.Tensor) -> torch.Tensor:
    return moment.floats(parameter.shape) if isinstance(moment, Codes) else moment


def _pair(
    moment: Moment, format_: StateFormat, parameter: torch.Tensor, signed: bool, as_it_is: bool, lent: bool
) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
    """Codes and scales in the format; None: it becomes floats."""
    if format_ in _format.FLOATS:
        return None
    if isinstance(moment, Codes):
        same = moment.format is format_
        narrow = moment.pairs and format_ is _format.PAIRS  # all have the same second moments
        if _same_strides(moment, parameter) and (same or narrow):
            kept = _kept(moment, format_, parameter, signed, lent)
            if kept is not None or same:
                return kept
    elif as_it_is:
        return None
    floats = _values(moment, parameter).to(parameter.device)
    return _format.quantize(floats, parameter, format_, signed)


def _lies_as(values: torch.Tensor, parameter: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a moment is as a step needs it."""
    return (
        (values.device, values.dtype, values.shape) == (parameter.device, dtype, parameter.shape)
        and _layout.is_dense(values)
        and _layout.same_order(values, parameter)
    )


def _same_strides(moment: Codes, parameter: torch.Tensor) -> bool:
    own = torch.empty_like(parameter, device="meta").stride()
    return all(a == b for a, b, size in zip(own, moment.strides, parameter.shape) if size != 1)


def _kept(
    moment: Codes, format_: StateFormat, parameter: torch.Tensor, signed: bool, lent: bool
) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
    """The same codes, or the codes of the same values; None where the values have none here."""
    table, codes = _table(moment, format_, signed), moment.codes
    wanted = _format.BLOCKS[format_]
    if table is None or moment.block % wanted:
        return None
    if not torch.equal(table.cpu(), torch.arange(len(table))):
        units = table.to(codes.device)[moment.units().long()].to(torch.uint8)
        codes = units[0::2] << 4 | units[1::2] if moment.pairs else units
    scales = moment.scales.to(torch.float32).repeat_interleave(moment.block // wanted)
    scales = scales[: _format.blocks(format_, parameter.numel())]
    if lent and codes.device == parameter.device:
        if not moment.pairs:
            codes = torch.as_strided(codes, parameter.shape, moment.strides, codes.storage_offset())
        return codes, scales
    kept = _format.empty_moment(parameter, format_)
    _layout.flat(kept).copy_(codes)
    return kept, _format.empty_scales(parameter, format_).copy_(scales)


def _table(moment: Codes, format_: StateFormat, signed: bool) -> Optional[torch.Tensor]:
    """Our code for each code that the moment uses; None where one has no equal here.

    Values that differ by their last bits only are the same: builds of the same map differ by them.
    """
    ours = _format.values(format_, signed).double()
    theirs = moment.map.detach().cpu().double()
    if theirs.numel() != ours.numel():
        return None
    order = torch.argsort(ours)
    at = torch.searchsorted(ours[order], theirs).clamp(1, ours.numel() - 1)
    below, above = ours[order[at - 1]], ours[order[at]]
    nearest = torch.where((theirs - below).abs() <= (above - theirs).abs(), at - 1, at)
    table = order[nearest]
    equal = (ours[table] - theirs).abs() <= 2.5e-7 * theirs.abs()
    if bool(equal.all()):
        return table
    used = torch.unique(moment.units()).long().cpu()
    return table if bool(equal[used].all()) else None


def group_values(saved: Dict[str, Any], own: Dict[str, Any]) -> Dict[str, Any]:
    """A group of a state dict with what this optimizer needs beside it."""
    group = dict(saved)
    if "betas" in group and "betas" not in own:  # as bitsandbytes keeps them
        betas = group.pop("betas")
        if "centered" in own:
            group["alpha"], group["momentum"] = betas
        elif "momentum" in own:
            group.setdefault("momentum", betas[0])
    for key, value in own.items():
        group.setdefault(key, value)
    group.pop("block_size", None)  # of dicts that we made before
    group["params"] = own["params"]
    return group
