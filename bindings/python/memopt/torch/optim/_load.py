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

#: Where bitsandbytes puts a parameter's states in a dict.
NESTED = "__bnb_optimizer_quant_state__"
#: Sizes of blocks in dicts, the formats' own first where several fit.
_SIZES = (256, 128, 32, 64, 512, 1024, 2048, 4096)
#: Parts of torchao's moments.
_PARTS = ("codes", "scale", "qmap")
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


class Place(NamedTuple):
    """For what a state is read: an optimizer's rule and format, the memory of a parameter, and its name."""

    kind: OptimizerKind
    own: StateFormat
    parameter: torch.Tensor
    name: str

    def read(self, state: Mapping[str, Any]) -> Optional[Saved]:
        """The state of the parameter; None where there is none. ValueError if it does not fit."""
        state = _of_bitsandbytes({**state, **state.get(NESTED, {})}, self.kind)
        meta = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
        if meta:
            raise ValueError("the %s of %s is a meta tensor, without data" % (meta[0], self.name))
        _other_rules.check_state(state, self.kind, self.name)
        if "max_exp_avg_sq" in state:
            raise ValueError("the state of %s is AMSGrad's, which is not supported" % self.name)
        keys, theirs = _format.MOMENTS[self.kind], "state1" in state  # as bitsandbytes names them
        keys = tuple("state%d" % (i + 1) for i in range(len(keys))) if theirs else keys
        missing = [key for key in keys if state.get(key) is None]
        if len(missing) == len(keys) and not theirs:
            return None
        if missing:
            raise ValueError(
                "the state of %s has no %s: it is incomplete, or of another rule" % (self.name, missing[0])
            )
        moments = [self.moment(state, i, key) for i, key in enumerate(keys)]
        steps = int(state["step"]) if state.get("step") is not None else 1
        negative = steps < 0 and self.kind is not OptimizerKind.SGD  # NOT_BEGUN
        if negative or _format.steps_taken(steps) >= 1 << 53:
            raise ValueError("the state of %s has taken %d steps" % (self.name, steps))
        return Saved(steps, moments)

    def moment(self, state: Mapping[str, Any], index: int, what: str) -> Moment:
        """A moment as this package, torch, torchao (tensors of its own classes, or dicts) or bitsandbytes saves
        it."""
        value: Any = _layout.local(state[what]) if isinstance(state[what], torch.Tensor) else state[what]
        parts = value if isinstance(value, Mapping) else {k: getattr(value, k, None) for k in _PARTS}
        codes, scales, map_ = map(parts.get, _PARTS)
        if codes is not None and scales is not None:
            format_ = StateFormat.BITS8_DYNAMIC if map_ is not None and map_.numel() == 256 else None
            return self._codes(what, format_, codes, scales, _e4m3() if map_ is None else map_)
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.uint8:
            return self._floats(what, value)
        if what == "state%d" % (index + 1):
            scales, map_ = (state.get("%s%d" % (key, index + 1)) for key in ("absmax", "qmap"))
            if scales is None or map_ is None:
                raise ValueError(
                    "the state of %s has codes without absmax%d and qmap%d, of which only the block-wise"
                    " form is known" % (self.name, index + 1, index + 1)
                )
            return self._codes(what, StateFormat.BITS8_DYNAMIC, value, scales, map_)
        return self._own_codes(what, state, index, value)

    def _own_codes(self, what: str, state: Mapping[str, Any], index: int, value: torch.Tensor) -> Codes:
        key, signed = _format.scale_of(state, index), _format.is_signed(self.kind, index)
        if key is None:
            raise ValueError("the state of %s has no scales of %s" % (self.name, what))
        format_: Optional[StateFormat] = _format.of(dict(state), self.kind, self.own)
        if key.startswith("scale"):
            format_, map_ = None, _e4m3()
        elif format_ is StateFormat.BITS8_DYNAMIC and value.numel() < self.parameter.numel():
            format_, map_ = None, _dynamic4(signed)
        elif format_ is _format.PAIRS and value.numel() > (self.parameter.numel() + 1) // 2:
            format_, map_ = None, _even(signed)
        else:
            assert format_ is not None
            map_ = _format.values(format_, signed)
        order = state["order"].tolist() if "order" in state else None
        return self._codes(what, format_, value, state[key], map_, order)

    def _codes(
        self,
        what: str,
        format_: Optional[StateFormat],
        codes: torch.Tensor,
        scales: torch.Tensor,
        map_: torch.Tensor,
        order: Optional[Sequence[int]] = None,
    ) -> Codes:
        shape, pairs = self.parameter.shape, len(map_) == 16
        if not pairs and not _layout.is_dense(codes):
            codes = codes.contiguous()
        if codes.numel() != (shape.numel() + 1) // 2 if pairs else codes.shape != shape:
            raise self._misfit(what, "shape %s" % (tuple(codes.shape),))
        strides = codes.stride() if not pairs else order or torch.empty(shape, device="meta").stride()
        # Only elements that are one block together leave a choice of its size.
        sizes = (128 if pairs else 256, *_SIZES)
        block = next((s for s in sizes if -(-shape.numel() // s) == scales.numel()), 0)
        if scales.dim() != 1 or not block:
            raise self._misfit(what, "%d scales" % scales.numel())
        return Codes(format_, pairs, _layout.flat(codes.view(torch.uint8)), scales, map_, block, tuple(strides))

    def _floats(self, what: str, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise ValueError("the loaded %s of %s is %r" % (what, self.name, type(value).__name__))
        if value.shape != self.parameter.shape:
            raise self._misfit(what, "shape %s" % (tuple(value.shape),))
        return value

    def _misfit(self, what: str, got: str) -> ValueError:
        return ValueError(
            "the loaded %s of %s has %s, which does not fit the parameter's shape %s"
            % (what, self.name, got, tuple(self.parameter.shape))
        )


def _of_bitsandbytes(state: Mapping[str, Any], kind: OptimizerKind) -> Mapping[str, Any]:
    """AdEMAMix's state, whose two means bitsandbytes has in one tensor, under our names; any other as it is."""
    means, scales = state.get("state1"), state.get("absmax1")
    if kind is not OptimizerKind.ADEMAMIX or not isinstance(means, torch.Tensor) or means.shape[:1] != (2,):
        return state
    moments: List[Any] = [*means, state.get("state2")]
    if means.dtype is torch.uint8 and isinstance(scales, torch.Tensor):
        further = zip(moments, (*scales, state.get("absmax2")), ("qmap1", "qmap1", "qmap2"))
        moments = [dict(zip(_PARTS, (codes, scale, state.get(qmap)))) for codes, scale, qmap in further]
    return {"step": state.get("step", 0), **dict(zip(_format.MOMENTS[kind], moments))}


def _e4m3() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def _even(signed: bool) -> torch.Tensor:
    """The companded 8-bit codes of older versions, those of a first moment by c / (254 - |c|)."""
    if not signed:
        return (torch.arange(256) / 255.0) ** 2
    c = torch.arange(256, dtype=torch.uint8).view(torch.int8).double()
    slope = (8.016413644007514e-10, 1.9679962548480034e-08, 1.5164292562985793e-05, 0.003988664131611586)
    return sum((k * c.abs() ** (3 - i) for i, k in enumerate(slope)), torch.zeros(())).mul(c).float()


def _dynamic4(signed: bool) -> torch.Tensor:
    if not signed:
        return _format.values(StateFormat.BITS4, False)
    return torch.tensor([-x for x in _DYNAMIC4[7:0:-1]] + list(_DYNAMIC4))


# --- converting ------------------------------------------------------------------------------------


def has_codes(saved: Saved) -> bool:
    """Whether any of it is coded."""
    return any(isinstance(moment, Codes) for moment in saved.moments)


def convert(
    saved: Saved, kind: OptimizerKind, format_: StateFormat, parameter: torch.Tensor, as_it_is: bool
) -> _format.State:
    """A state for the parameter (dense memory) of an optimizer that keeps `format_`.

    Codes are kept where that format can hold them, else requantised if they were of another format
    or order of memory, else (another map, another size of blocks) become 32-bit states. Floats are
    quantised, or rounded to bf16, unless `as_it_is`.
    """
    pairs = [
        _pair(m, format_, parameter, _format.is_signed(kind, i), as_it_is, saved.lent)
        for i, m in enumerate(saved.moments)
    ]
    wide = any(isinstance(m, torch.Tensor) and m.dtype is torch.float32 for m in saved.moments)
    if any(pair is None for pair in pairs) and (format_ is not StateFormat.BF16 or as_it_is and wide):
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


def _values(moment: Moment, parameter: torch.Tensor) -> torch.Tensor:
    return moment.floats(parameter.shape) if isinstance(moment, Codes) else moment


def _pair(
    moment: Moment, format_: StateFormat, parameter: torch.Tensor, signed: bool, as_it_is: bool, lent: bool
) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
    """Codes and scales in the format; None: it becomes floats."""
    if format_ in _format.FLOATS:
        return None
    if isinstance(moment, Codes):
        own = torch.empty_like(parameter, device="meta").stride()
        in_order = all(a == b for a, b, size in zip(own, moment.strides, parameter.shape) if size != 1)
        same = moment.format is format_
        narrow = moment.pairs and format_ is _format.PAIRS  # all have the same second moments
        if in_order and (same or narrow):
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
