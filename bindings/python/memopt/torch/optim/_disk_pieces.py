"""Parameters cut into pieces that fit chunks: where each piece's master and states lie in its chunk.

A piece is a run of a parameter's elements in the order of memory, in whole blocks of its codes, so
the bits of its step are those of the whole parameter's.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from ..._abi import StateFormat
from . import _format, _layout
from ._format import Kind
from ._disk_chunks import Chunk, Pager

MASTER = "master"
#: Elements of a piece that is not a parameter's last: a multiple of this, and so of its blocks.
_UNIT = 256
#: A smaller piece of a larger parameter begins in the next chunk.
_LEAST = 4096
_ALIGNED = 64


class Kept(NamedTuple):
    """A parameter and what the file keeps of it."""

    parameter: torch.Tensor
    outline: torch.Tensor  # a meta tensor with the master's type, shape and order of memory
    group: int
    kind: Kind
    format: StateFormat
    moments: bool
    split: int  # bytes of an element's residual
    staged: bool  # gradient and parameter go through a buffer beside the chunk
    mastered: bool  # the chunk has the master, which is not the parameter itself

    def arrays(self, count: int) -> List[Tuple[str, torch.dtype, int]]:
        """The key, type and elements of what a chunk has for `count` elements."""
        found = [(MASTER, self.outline.dtype, count)] if self.mastered else []
        if self.moments:
            keys = _format.keys(self.kind, self.format)
            counts = _format.counts(self.kind, self.format, count)
            coded = _format.FLOATS.get(self.format, torch.uint8)
            for key, number in zip(keys, counts):
                is_moment = key in _format.MOMENTS[self.kind]
                found.append((key, coded if is_moment else torch.float32, number))
        if self.split:
            found.append((_format.RESIDUAL, _format.RESIDUALS[self.split], count))
        return found

    def nbytes(self, count: int) -> int:
        """Bytes of a chunk for `count` elements."""
        return sum(_aligned(number * dtype.itemsize) for _, dtype, number in self.arrays(count))

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
            return _format.zero_byte(self.format, key == moments[0])
        return 0


class Piece(NamedTuple):
    """Consecutive elements of a parameter."""

    kept: Kept
    first: int
    elements: int
    arrays: Dict[str, torch.Tensor]  # in the chunk's buffer
    master: torch.Tensor  # there, or the parameter's own memory
    wire: Optional[torch.Tensor]  # beside the chunk: the gradient, then the parameter
    step: torch.Tensor

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """The piece of a tensor with the parameter's elements in the order of memory."""
        return whole[self.first : self.first + self.elements]


class Part:
    """A chunk, its pieces and the optimizer that steps them."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.pieces: List[Piece] = []
        self.groups: List[int] = []
        self.inner: Any = None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


#: What a parameter's chunk begins with: flat tensors by key, of all its elements; None: a new state.
Source = Callable[[str], Optional[torch.Tensor]]


class Builder:
    """Cuts parameters one after the other, and fills the chunks."""

    def __init__(self, pager: Pager, first: int, make_inner: Callable[[Part], Any]) -> None:
        self.parts: List[Part] = []
        self._pager, self._first, self._make_inner = pager, first, make_inner
        self._part: Optional[Part] = None
        self._used = self._beside = 0

    def add(self, kept: Kept, steps: int, source: Source) -> None:
        """Adds a parameter; its master, where it is new, is the parameter."""
        done, whole = 0, kept.outline.numel()
        while done < whole:
            count = self._fitting(kept, whole - done)
            if count == 0:
                self.close()
                continue
            self._fill(self._cut(kept, done, count, steps), source)
            done += count

    def close(self) -> None:
        """Ends the chunk: the next piece begins another one."""
        part, self._part = self._part, None
        if part is None:
            return
        part.chunk.nbytes = max(self._used, _ALIGNED)
        self._pager.wrote(part.chunk)
        part.groups = list(dict.fromkeys(piece.kept.group for piece in part.pieces))
        part.inner = self._make_inner(part)

    def abandon(self) -> None:
        """Ends all chunks."""
        self._part = None
        self._pager.drop([part.chunk for part in self.parts])

    def _open(self, kept: Kept) -> Part:
        if self._part is None:
            chunk = Chunk(self._first + len(self.parts), 0)
            self._part = Part(chunk)
            self._used = self._beside = 0
            self._pager.buffer(chunk, kept.parameter.device)
            self._pager.begin(chunk)
            self.parts.append(self._part)
        return self._part

    def _fitting(self, kept: Kept, rest: int) -> int:
        """How many of the next elements go into the chunk."""
        room = self._pager.unit - (self._used if self._part is not None else 0)
        if kept.nbytes(rest) <= room:
            return rest
        lost = _ALIGNED * len(kept.arrays(1))
        count = max(room - lost, 0) // kept.nbytes(_UNIT) * _UNIT
        is_small = count < _LEAST and self._part is not None and self._used > 0
        return 0 if is_small else count

    def _cut(self, kept: Kept, first: int, count: int, steps: int) -> Piece:
        part = self._open(kept)
        buffer = self._pager.buffer(part.chunk, kept.parameter.device)
        arrays = {}
        for key, dtype, number in kept.arrays(count):
            end = self._used + number * dtype.itemsize
            arrays[key] = buffer[self._used : end].view(dtype)
            self._used = _aligned(end)
        wire = None
        if kept.staged:
            dtype = kept.parameter.dtype
            room = self._pager.beside(part.chunk, kept.parameter.device)
            end = self._beside + count * dtype.itemsize
            wire = room[self._beside : end].view(dtype)
            self._beside = _aligned(end)
        master = arrays.get(MASTER)
        if master is None:
            master = _layout.flat(kept.parameter.detach())[first : first + count]
        step = _format.step_tensor(steps, torch.device("cpu"))
        piece = Piece(kept, first, count, arrays, master, wire, step)
        part.pieces.append(piece)
        return piece

    def _fill(self, piece: Piece, source: Source) -> None:
        kept = piece.kept
        for key, dtype, number in kept.arrays(piece.elements):
            del dtype
            whole = source(key)
            if whole is None:
                piece.arrays[key].fill_(kept.zero_of(key))
                continue
            before = dict((k, n) for k, _, n in kept.arrays(piece.first))[key]
            piece.arrays[key].copy_(whole[before : before + number])


def state_of(piece: Piece) -> _format.State:
    """A piece's state as an optimizer has it."""
    own = {key: value for key, value in piece.arrays.items() if key != MASTER}
    return {"step": piece.step, **own}


def moved(piece: Piece) -> Piece:
    """A piece of a parameter whose memory is now another one."""
    if piece.kept.mastered:
        return piece
    own = _layout.flat(piece.kept.parameter.detach())
    return piece._replace(master=piece.part_of(own))


def dense(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's or gradient's elements in the order of memory: its own, or a copy's."""
    if _layout.is_dense(parameter):
        return _layout.flat(parameter.detach())
    return _layout.flat(_layout.like(parameter, parameter.dtype).copy_(parameter.detach()))
