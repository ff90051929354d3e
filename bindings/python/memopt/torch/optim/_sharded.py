"""The states of sharded parameters (DTensors) in state dicts.

``optimizer.state`` holds what this process keeps: states of its shard, whose blocks start anew at
the shard's first element. A state dict must be valid for any number of processes, so there the
tensors are DTensors with the parameter's mesh and placements, by rows (indices of dimension 0, the
dimension that ``fully_shard`` cuts):

* 32-bit and bf16 moments and residuals of split weights have the parameter's shape.
* Codes have, for each row, a byte for the format, one for the position of the row's first element
  in its block, and the row's codes.
* Scales have, for each row, those of all blocks that the row may lie in.

Each row is complete in itself. A reader copies codes and scales byte by byte if its blocks are the
same; else it decodes them exactly and quantises again. Blocks are the same in the same layout, and
in any layout if all shards begin at a multiple of the block. Codes by rows never have the
parameter's shape: what expects floats there refuses them instead of copying bytes.

How wide a row of codes is depends on how many processes share it. portable_states() decodes: 32-bit
moments have one shape in every layout.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _layout, _load
from ._load import Place

_TAGS = {StateFormat.BITS8_DYNAMIC: 8, StateFormat.BITS8: 2, StateFormat.BITS4: 3}
_FORMATS = {tag: format_ for format_, tag in _TAGS.items()}
_HEAD = 2  # bytes before the codes of a row


def _tagged(codes: torch.Tensor, name: str) -> StateFormat:
    """The format of rows of codes."""
    tags = torch.unique(codes[:, 0]).tolist()
    if len(tags) != 1 or tags[0] not in _FORMATS:
        raise ValueError(
            "the state of %s is in rows of the format %s, which is not read any more; where it was made,"
            " save it within portable_states()" % (name, " and ".join(map(str, tags)))
        )
    return _FORMATS[tags[0]]


class Rows(NamedTuple):
    """How a parameter divides into rows."""

    total: int  # of all processes
    here: int
    length: int  # elements of a row in this process
    room: int  # elements of a row in the process with the most
    pieces: int  # processes that share a row

    def width(self, format_: StateFormat) -> int:
        """Bytes of the codes of a row."""
        return self.room // 2 if packed(format_, self.room) else self.room

    def scales(self, format_: StateFormat) -> int:
        """Blocks that a row may lie in."""
        size = _format.BLOCKS[format_]
        return (self.room + size - 2) // size + 1


def packed(format_: StateFormat, length: int) -> bool:
    """Whether a row of codes has two in a byte."""
    return format_ is _format.PAIRS and length % 2 == 0 and length >= 8


def _rows(parameter: torch.Tensor, memory: torch.Tensor) -> Rows:
    shape = list(parameter.shape)
    total, inner = (shape[0], shape[1:]) if shape else (1, [])
    pieces = 1
    for k, placement in enumerate(getattr(parameter, "placements", ())):
        dim = getattr(placement, "dim", 0)
        if dim > 0:
            parts = parameter.device_mesh.size(k)  # type: ignore[attr-defined]
            inner[dim - 1] = -(-inner[dim - 1] // parts)
            pieces *= parts
    here = memory.shape[0] if shape else 1
    return Rows(total, here, math.prod(memory.shape[1:]), math.prod(inner), pieces)


def _by_rows(parameter: torch.Tensor) -> Tuple[Any, ...]:
    """Placements for tensors of two dimensions, the rows and what is in them."""
    from torch.distributed.tensor import Shard

    placements: Tuple[Any, ...] = parameter.placements  # type: ignore[attr-defined]
    return tuple(Shard(1) if getattr(p, "dim", 0) > 0 else p for p in placements)


def check_placements(parameter: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Refuses a gradient whose placement differs from its parameter's."""
    mesh, placements = getattr(other, "device_mesh", None), getattr(other, "placements", None)
    own: Any = parameter
    if mesh != own.device_mesh or tuple(placements or ()) != tuple(own.placements):
        raise RuntimeError(
            "the gradient of %s is placed %s, the parameter %s: both must be laid out alike"
            % (name, "in one process" if placements is None else placements, own.placements)
        )


# --- writing ---------------------------------------------------------------------------------------


def _present(state: _format.State, parameter: torch.Tensor, place: Place, decode: bool) -> _format.State:
    """A parameter's state as state dicts hold it."""
    kind, own, memory, name = place
    if not state or any(key not in state for key in _format.MOMENTS[kind]):
        return state
    if decode:
        saved = place.read(state)
        assert saved is not None
        state = _load.convert(saved, kind, StateFormat.F32, _layout.dense(memory), True)
    if not _layout.is_sharded(parameter):
        return state
    format_ = _format.of(state, kind, own)
    if format_ in _format.FLOATS:
        return {
            key: of_shape(value, parameter, parameter.shape) if key in _format.MOMENTS[kind] else value
            for key, value in state.items()
        }
    if not memory.is_contiguous():
        raise RuntimeError("the shard of %s is not contiguous, and its coded state cannot be saved by rows" % name)
    rows = _rows(parameter, memory)
    result = dict(state)
    for moment, scale in zip(_format.MOMENTS[kind], _format.scale_names(kind, format_)):
        codes, scales = to_rows(state[moment], state[scale], rows, format_)
        for key, value in ((moment, codes), (scale, scales)):
            result[key] = of_shape(value, parameter, torch.Size((rows.total, value.shape[1] * rows.pieces)), True)
    return result


def of_shape(value: torch.Tensor, parameter: torch.Tensor, shape: torch.Size, rows: bool = False) -> torch.Tensor:
    """A DTensor of what this process has, placed as the parameter is; `rows`: by rows."""
    from torch.distributed.tensor import DTensor

    own: Any = parameter
    stride = own.stride() if shape == own.shape and not rows else torch.empty(shape, device="meta").stride()
    placements = _by_rows(own) if rows else own.placements
    return DTensor.from_local(value, own.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def _blocks(rows: Rows, format_: StateFormat, device: torch.device) -> Tuple[torch.Tensor, ...]:
    """By row: the position of its first element in its block, and by column the block's number
    and whether the row lies in it."""
    block = _format.BLOCKS[format_]
    first = torch.arange(rows.here, device=device) * rows.length
    start = first % block
    column = torch.arange(rows.scales(format_), device=device)
    inside = column * block < (start + rows.length)[:, None]
    return start, (first // block)[:, None] + column, inside


def to_rows(
    moment: torch.Tensor, scales: torch.Tensor, rows: Rows, format_: StateFormat
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales by rows of a moment whose blocks start at its first element."""
    start, number, inside = _blocks(rows, format_, moment.device)
    codes = moment.new_zeros((rows.here, _HEAD + rows.width(format_)))
    codes[:, 0], codes[:, 1] = _TAGS[format_], start.to(torch.uint8)
    piece, narrow = moment.reshape(-1), packed(format_, rows.room)
    if format_ is _format.PAIRS and not (narrow and rows.length == rows.room):
        piece = _format.unpacked(piece)[: rows.here * rows.length]
        if narrow:  # this process has fewer elements of a row than another
            piece = _packed(piece.reshape(rows.here, rows.length))
    if rows.here and rows.length:
        piece = piece.reshape(rows.here, -1)
        codes[:, _HEAD : _HEAD + piece.shape[1]] = piece
    return codes, _scale_rows(scales, number, inside)


def _scale_rows(scales: torch.Tensor, number: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    if not scales.numel():
        return scales.new_zeros(number.shape)
    return torch.where(inside, scales[number.clamp(max=scales.numel() - 1)], 0.0)


def _packed(codes: torch.Tensor, signed: bool = False) -> torch.Tensor:
    """Two codes in a byte; where one is missing, that of zero."""
    if codes.shape[-1] % 2:
        zero = _format.zero_byte(_format.PAIRS, signed) & 15
        codes = torch.nn.functional.pad(codes, (0, 1), value=zero)
    return codes[..., 0::2] << 4 | codes[..., 1::2]


# --- reading ---------------------------------------------------------------------------------------


def localized(state: Any, parameter: torch.Tensor, place: Place) -> Any:
    """What a state dict holds of a parameter, as the state of what this process has of it.

    Whatever is neither by rows nor sharded, of a parameter that is not either, comes back as it is.
    """
    kind, own, memory, name = place
    moments, sharded = _format.MOMENTS[kind], _layout.is_sharded(parameter)
    if not all(isinstance(state.get(key), torch.Tensor) for key in moments):
        return state
    by_rows = any(_is_by_rows(state, i, parameter) for i in range(len(moments)))
    if not (sharded or by_rows or any(_layout.is_sharded(state[key]) for key in moments)):
        return state
    result = dict(state)
    for i, key in enumerate(moments):
        if state[key].dtype is not torch.uint8:
            result[key] = piece(state[key], parameter, parameter.shape, key, name)
            continue
        to = own if own in _TAGS else StateFormat.BITS8_DYNAMIC
        scale = _format.scale_of(state, i)
        if scale is None:
            raise ValueError("the state of %s has no scales of %s" % (name, key))
        codes, scales = state[key], state[scale]
        if not _is_by_rows(state, i, parameter):
            codes, scales = _whole_to_rows(state, i, parameter, place, to)
        rows = _rows(parameter, memory)
        wide = torch.Size((rows.total, codes.shape[1])), torch.Size((rows.total, scales.shape[1]))
        codes = piece(codes, parameter, wide[0], key, name, rows=True)
        scales = piece(scales, parameter, wide[1], scale, name, rows=True)
        here = codes.to(memory.device), scales.to(memory.device, torch.float32)
        moved = from_rows(*here, rows, i, to, place)
        del result[scale]
        result[key], result[_format.scale_names(OptimizerKind.ADEMAMIX, moved[2])[i]] = moved[:2]
    return result


def _is_by_rows(state: Any, index: int, parameter: torch.Tensor) -> bool:
    key = _format.scale_of(state, index)
    return key is not None and state[key].dim() == 2


def _whole_to_rows(
    state: Any, index: int, parameter: torch.Tensor, place: Place, to: StateFormat
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The state of one process that has the whole parameter, by rows."""
    whole = {k: _layout.whole(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    what, shape = _format.MOMENTS[place.kind][index], parameter.shape
    outline = torch.empty(shape, device=whole[what].device)
    moment = place._replace(parameter=outline).moment(whole, index, what)
    assert isinstance(moment, _load.Codes)
    if moment.strides != outline.stride():
        raise ValueError(
            "the loaded %s of %s is not in the order of its indices, which sharded parameters need" % (what, place.name)
        )
    format_, codes, scales = moment.format, moment.codes, moment.scales.float()
    if format_ is None or moment.block != _format.BLOCKS[format_]:
        format_, signed = to, _format.is_signed(place.kind, index)
        codes, scales = _format.quantize(moment.floats(shape), outline, to, signed)
    count = shape[0] if len(shape) else 1
    length = outline.numel() // count if count else 0
    return to_rows(codes, scales, Rows(count, count, length, length, 1), format_)


def piece(
    value: torch.Tensor, parameter: torch.Tensor, shape: torch.Size, what: str, name: str, rows: bool = False
) -> torch.Tensor:
    """This process's piece of a tensor that is sharded, or the same in all processes."""
    if value.shape != shape:
        raise ValueError(
            "the loaded %s of %s has shape %s, which does not fit the parameter's shape %s"
            % (what, name, tuple(value.shape), tuple(parameter.shape))
        )
    if not _layout.is_sharded(parameter):
        return _layout.whole(value)
    from torch.distributed.tensor import distribute_tensor

    own: Any = parameter
    placements = _by_rows(parameter) if rows else tuple(own.placements)
    theirs: Any = value
    if _layout.is_sharded(value):
        if theirs.device_mesh == own.device_mesh and tuple(theirs.placements) == placements:
            return _layout.local(value)
        value = _layout.whole(value)
    return _layout.local(distribute_tensor(value.detach(), own.device_mesh, placements, src_data_rank=None))


def from_rows(
    codes: torch.Tensor, scales: torch.Tensor, rows: Rows, index: int, to: StateFormat, place: Place
) -> Tuple[torch.Tensor, torch.Tensor, StateFormat]:
    """Codes and scales of what is here, with blocks that start at its first element, and their format."""
    kind, _, memory, name = place
    format_, signed = _tagged(codes, name) if rows.here else to, _format.is_signed(kind, index)
    if rows.here and (codes.shape[1], scales.shape[1]) != (_HEAD + rows.width(format_), rows.scales(format_)):
        raise ValueError(
            "the loaded %s of %s has codes of shape %s and scales of shape %s, which do not fit the"
            " parameter's shape %s"
            % (_format.MOMENTS[kind][index], name, tuple(codes.shape), tuple(scales.shape), tuple(memory.shape))
        )
    units = codes[:, _HEAD:]
    if packed(format_, rows.room):
        units = _format.unpacked(units)
    units = units[:, : rows.length]
    start, number, inside = _blocks(rows, format_, memory.device)
    saved = codes[:, 1].long() if rows.here else start
    if torch.equal(start, saved):
        flat = _format.empty_scales(memory, format_)
        flat[number[inside]] = scales[inside]
        if format_ is _format.PAIRS:
            return _packed(units.reshape(-1), signed).contiguous(), flat, format_
        return units.reshape(memory.shape).contiguous(), flat, format_
    column = saved[:, None] + torch.arange(rows.length, device=memory.device)
    values = _format.values(format_, signed).to(units.device)[units.long()]
    floats = values * scales.gather(1, column // _format.BLOCKS[format_])
    return *_format.quantize(floats.reshape(memory.shape), memory, format_, signed), format_


def presented(
    optimizer: torch.optim.Optimizer, place_of: Callable[[torch.Tensor, str], Place], decode: bool
) -> Dict[Any, Any]:
    """All states of an optimizer as state dicts hold them."""
    result = {}
    for g, group in enumerate(optimizer.param_groups):
        # in the order of the groups: gathering one state after another needs that of all processes
        for i, p in enumerate(group["params"]):
            if p not in optimizer.state:
                continue
            place = place_of(_layout.local(p), _layout.name_of(group, g, i))
            state = _format.opened(optimizer.state[p])
            if decode or _layout.is_sharded(p):
                further = state.get(_format.RESIDUAL)
                state = _present(state, p, place, decode)
                if further is not None:
                    further = of_shape(further, p, p.shape) if _layout.is_sharded(p) else further
                    state = {**state, _format.RESIDUAL: further}
            sealed = place.own not in _format.FLOATS and not decode
            result[p] = _format.sealed(state) if sealed else state
    for key, state in optimizer.state.items():
        result.setdefault(key, state)
    return result
