"""Parameters cut into pieces that fit chunks: where each piece's master and states lie in its chunk.

A piece is a run of a parameter's elements in the order of memory, in whole blocks of its codes, so
the bits of its step are those of the whole parameter's.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _layout
from ._disk_chunks import Chunk, Pager
from ._masters import HOST, Piece

MASTER = "master"
#: Elements of a piece that is not a parameter's last: a multiple of this, and so of its blocks.
_UNIT = 256
#: A smaller piece of a larger parameter begins in the next chunk.
_LEAST = 4096
_ALIGNED = 64

#: What a parameter's chunk begins with: flat tensors by key, of all its elements; None: a new state.
Source = Callable[[str], Optional[torch.Tensor]]


class Kept(NamedTuple):
    """A parameter and what the file keeps of it."""

    parameter: torch.Tensor
    outline: torch.Tensor  # a meta tensor with the master's type, shape and order of memory
    group: int
    kind: OptimizerKind
    format: StateFormat
    moments: bool
    split: int  # bytes of an element's residual
    staged: bool  # gradient and parameter go through a buffer beside the chunk

    @property
    def mastered(self) -> bool:
        """Whether the chunk has the master, which is not the parameter itself."""
        return self.staged or self.parameter.dtype is not self.outline.dtype

    def arrays(self, count: int) -> Dict[str, Tuple[torch.dtype, int]]:
        """The type and elements of what a chunk has for `count` elements, by key."""
        found = {MASTER: (self.outline.dtype, count)} if self.mastered else {}
        if self.moments:
            coded = _format.FLOATS.get(self.format, torch.uint8)
            counts = _format.counts(self.kind, self.format, count)
            for key, number in zip(_format.keys(self.kind, self.format), counts):
                found[key] = (coded if key in _format.MOMENTS[self.kind] else torch.float32, number)
        if self.split:
            found[_format.RESIDUAL] = (_format.RESIDUALS[self.split], count)
        return found

    def nbytes(self, count: int) -> int:
        """Bytes of a chunk for `count` elements."""
        return sum(_aligned(number * dtype.itemsize) for dtype, number in self.arrays(count).values())

    def shaped(self, key: str, flat: torch.Tensor) -> torch.Tensor:
        """All of an array as states have it."""
        in_bytes = key in _format.MOMENTS[self.kind] and self.format is _format.PAIRS
        if key in _format.scale_names(self.kind, self.format) or in_bytes:
            return flat
        return flat.as_strided(self.outline.shape, self.outline.stride())

    def zero_of(self, key: str) -> int:
        """What a new state is filled with."""
        moments = _format.MOMENTS[self.kind]
        if key in moments and self.format not in _format.FLOATS:
            return _format.zero_byte(self.format, _format.is_signed(self.kind, moments.index(key)))
        return 0


class Part:
    """A chunk, its pieces and the optimizer that steps them."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.pieces: List[Piece] = []
        self.groups: List[int] = []  # of the optimizer's, their numbers among all
        self.inner: Any = None

    def of(self, parameter: torch.Tensor) -> List[Piece]:
        """The parameter's pieces."""
        return [piece for piece in self.pieces if piece.parameter is parameter]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


class Builder:
    """Cuts parameters one after the other, and fills the chunks."""

    def __init__(self, pager: Pager, first: int, finish: Callable[[Part], None]) -> None:
        self.parts: List[Part] = []
        self._pager, self._first, self._finish = pager, first, finish
        self._part: Optional[Part] = None
        self._used = self._beside = 0

    def add(self, kept: Kept, steps: int, source: Source) -> None:
        """Adds a parameter; its master, where it is new, is the parameter."""
        done, whole = 0, kept.outline.numel()
        while done < whole:
            count = self._fitting(kept, whole - done)
            if count == 0:
                self.close()
            else:
                self._fill(self._cut(kept, done, count, steps), source)
            done += count

    def close(self) -> None:
        """Ends the chunk: the next piece begins another one."""
        part, self._part = self._part, None
        if part is not None:
            part.chunk.nbytes = max(self._used, _ALIGNED)
            self._pager.wrote(part.chunk)
            self._finish(part)

    def abandon(self) -> None:
        """Ends all chunks."""
        self._pager.drop([part.chunk for part in self.parts])

    def _open(self, device: torch.device) -> Part:
        if self._part is None:
            chunk = Chunk(self._first + len(self.parts), 0)
            self._part, self._used, self._beside = Part(chunk), 0, 0
            self._pager.buffer(chunk, device)
            self._pager.begin(chunk)
            self.parts.append(self._part)
        return self._part

    def _fitting(self, kept: Kept, rest: int) -> int:
        """How many of the next elements go into the chunk."""
        used = self._used if self._part is not None else 0
        room = self._pager.unit - used
        if kept.nbytes(rest) <= room:
            return rest
        lost = _ALIGNED * len(kept.arrays(1))
        count = max(room - lost, 0) // kept.nbytes(_UNIT) * _UNIT
        return 0 if count < _LEAST and used > 0 else count

    def _cut(self, kept: Kept, first: int, count: int, steps: int) -> Piece:
        p = kept.parameter
        part, arrays, wire = self._open(p.device), {}, None
        buffer = self._pager.buffer(part.chunk, p.device)
        for key, (dtype, number) in kept.arrays(count).items():
            end = self._used + number * dtype.itemsize
            arrays[key] = buffer[self._used : end].view(dtype)
            self._used = _aligned(end)
        if kept.staged:
            end = self._beside + count * p.dtype.itemsize
            wire = self._pager.beside(part.chunk, p.device)[self._beside : end].view(p.dtype)
            self._beside = _aligned(end)
        master = arrays.pop(MASTER) if kept.mastered else _layout.flat(p.detach())[first : first + count]
        state = {"step": _format.step_tensor(steps, HOST), **arrays}
        piece = Piece(p, master, wire, first, count, kept, state)
        part.pieces.append(piece)
        return piece

    def _fill(self, piece: Piece, source: Source) -> None:
        for key, first, array in stored(piece):
            whole = source(key)
            if whole is None:
                array.fill_(piece.kept.zero_of(key))
            else:
                array.copy_(whole[first : first + array.numel()])


def stored(piece: Piece) -> Iterator[Tuple[str, int, torch.Tensor]]:
    """What the chunk has of a piece: key, first element among the parameter's, and tensor."""
    own = {**piece.state, MASTER: piece.master}
    for key, (_, first) in piece.kept.arrays(piece.first).items():
        yield key, first, own[key]


def dense(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's elements in the order of memory: its own, or a copy's."""
    if _layout.is_dense(parameter):
        return _layout.flat(parameter.detach())
    return _layout.flat(_layout.like(parameter, parameter.dtype).copy_(parameter.detach()))
