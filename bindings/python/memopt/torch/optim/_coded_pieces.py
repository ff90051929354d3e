"""Steps by torch's operations over pieces of a parameter: of 32-bit states a piece is a view, of coded
ones it is decoded before and coded after what is done with it."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch

from ..._abi import StateFormat
from . import _format, _layout
from ._format import Kind
from ._whole import PIECE, WholeOptimizer

_BLOCK = 256


class Piece(NamedTuple):
    """A run of elements in the order of memory. The moments may be changed in place."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    moments: List[torch.Tensor]


class CodedOptimizer(WholeOptimizer):
    """Rules whose moments have the parameter's shape, with 32 or 8 bits; shards are stepped too."""

    _takes_shards = True
    _counts_on_host = True

    def _own_state(
        self,
        parameter: torch.Tensor,
        dense: torch.Tensor,
        group: Dict[str, Any],
        name: str,
        made: Dict[torch.Tensor, _format.State],
    ) -> _format.State:
        state = self._state_for(parameter, dense, group, name, made)
        assert state is not None
        return state


def dense_floats(parameter: torch.Tensor) -> torch.Tensor:
    """fp32 values in the order of memory of the parameter's states; perhaps the parameter itself."""
    if _layout.is_dense(parameter):
        return parameter.float()
    return _layout.like(parameter, torch.float32).copy_(parameter)


class Pieces:
    """The pieces of a parameter with its gradient and moments."""

    def __init__(
        self, kind: Kind, state: _format.State, exact: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        names = _format.MOMENTS[kind]
        self._coded = state[names[0]].dtype is torch.uint8
        if gradient.stride() != exact.stride():
            gradient = _layout.like(exact, gradient.dtype).copy_(gradient)
        self._pair = _layout.flat(exact), _layout.flat(gradient)
        self._moments = [_layout.flat(state[name]) for name in names]
        self._scales = [state.get("absmax%d" % (i + 1)) for i in range(len(names))]
        self._signed = [_format.is_signed(kind, i) for i in range(len(names))]

    def __iter__(self) -> Iterator[Piece]:
        p, g = self._pair
        size = -(-PIECE[p.device.type] // _BLOCK) * _BLOCK if self._coded else PIECE[p.device.type]
        room: Optional[torch.Tensor] = None
        if self._coded:
            room = p.new_empty((len(self._moments), min(size, p.numel())))
        for start in range(0, p.numel(), size):
            run = slice(start, start + size)
            if room is None:
                yield Piece(p[run], g[run], [moment[run] for moment in self._moments])
                continue
            floats = [row[: min(size, p.numel() - start)] for row in room]
            self._each(_format.decode, floats, run)
            yield Piece(p[run], g[run], floats)
            self._each(_format.encode, floats, run)

    def _each(self, turn: object, floats: List[torch.Tensor], run: slice) -> None:
        """Decodes or encodes a run of all moments."""
        blocks = slice(run.start // _BLOCK, -(-run.stop // _BLOCK))
        for row, moment, scales, signed in zip(floats, self._moments, self._scales, self._signed):
            assert scales is not None and callable(turn)
            turn(row, moment[run], scales[blocks], StateFormat.BITS8, signed)
