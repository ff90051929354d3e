"""The masters and states of a CPUOffloadOptimizer in a file.

A step brings one chunk after the other into host memory, steps its pieces there and lets it go again,
while the next one is read and earlier ones are written. A step that fails between its first and last
chunk leaves chunks of two steps; then every call but loading a state dict raises.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch

from ...offload import Disk
from ...sizes import Size
from . import _format, _layout
from ._facts import Facts
from ._lane import Lane
from ._disk_chunks import Pager
from ._disk_pieces import MASTER, Builder, Kept, Part, Piece, Source, dense, moved, state_of
from ._snapshot import Snapshot

_HOST = torch.device("cpu")

#: The optimizer whose groups have these members, one per group number, in the place of parameters.
MakeInner = Callable[[Dict[int, List[torch.Tensor]]], Any]
#: A parameter, its steps, and what its chunks begin with.
New = Tuple[Kept, int, Source]


class DiskStates:
    """The chunks of all parameters, and the steps over them."""

    def __init__(self, disk: Disk, host_limit: Size, make_inner: MakeInner) -> None:
        path = disk[0] if isinstance(disk, tuple) else disk
        self._folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        self.pager = Pager(disk, host_limit)
        self._make = make_inner
        self._parts: List[Part] = []
        self._parts_of: Dict[torch.Tensor, List[Part]] = {}
        self._kept: Dict[torch.Tensor, Kept] = {}
        self._address: Dict[torch.Tensor, int] = {}
        self._lanes: Dict[torch.device, Lane] = {}
        #: Copies out of each buffer.
        self._leaving: List[List[Tuple[Lane, Any]]] = [[], []]
        self._broken: Optional[str] = None

    # --- parameters ---

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether the file has the parameter's master and states."""
        return parameter in self._kept

    def check(self) -> None:
        """Raises if a step ended in part."""
        if self._broken is not None:
            raise RuntimeError(
                "a step ended in part (%s): parameters and states are of different steps. Load a"
                " saved state dict, and the model's parameters saved with it" % self._broken
            )

    def add(self, new: List[New]) -> None:
        """Adds parameters. Nothing changes on failure."""
        parts = self._built(new, len(self._parts))
        self._take([*self._parts, *parts])

    def replace(self, new: Iterable[New]) -> None:
        """Other masters and states for all parameters. Nothing changes on failure."""
        parts = self._built(new, 0)
        self.pager.drop([part.chunk for part in self._parts])
        self._take(parts)
        self._broken = None

    def _built(self, new: Iterable[New], first: int) -> List[Part]:
        builder = Builder(self.pager, first, self._inner_of)
        try:
            for kept, steps, source in new:
                builder.add(kept, steps, source)
            builder.close()
            self.pager.leave()
            if first + len(builder.parts) > self.pager.kept:
                self.pager.fill_the_file(max(part.chunk.nbytes for part in builder.parts))
        except BaseException:
            builder.abandon()
            raise
        return builder.parts

    def _take(self, parts: List[Part]) -> None:
        self._parts, self._kept, self._parts_of = parts, {}, {}
        for part in parts:
            for piece in part.pieces:
                p = piece.kept.parameter
                self._kept[p] = piece.kept
                self._parts_of.setdefault(p, []).append(part)
                self._address[p] = p.data_ptr()

    def _inner_of(self, part: Part) -> Any:
        members: Dict[int, List[torch.Tensor]] = {}
        for piece in part.pieces:
            members.setdefault(piece.kept.group, []).append(piece.master)
        inner = self._make(members)
        inner._model_copies = {}
        for piece in part.pieces:
            p, state = piece.kept.parameter, state_of(piece)
            if len(state) > 1 or piece.kept.moments:
                inner.state[piece.master] = state
            if p.dtype is not piece.master.dtype:
                copy = piece.wire
                if copy is None:
                    copy = piece.part_of(_layout.flat(p.detach()))
                inner._model_copies[piece.master] = copy
        # the order of its groups
        part.pieces.sort(key=lambda piece: part.groups.index(piece.kept.group))
        return inner

    def steps_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The tensor with a parameter's step count."""
        return next(self._pieces(parameter))[1].step

    def has_moments(self, parameter: torch.Tensor) -> bool:
        """Whether its state has them."""
        return self._kept[parameter].moments

    def _pieces(self, parameter: torch.Tensor) -> Iterator[Tuple[Part, Piece]]:
        for part in self._parts_of[parameter]:
            for piece in part.pieces:
                if piece.kept.parameter is parameter:
                    yield part, piece

    def refresh(self, parameter: torch.Tensor) -> None:
        """Takes over what something else has written into a parameter, also where its memory is
        another one."""
        if self._address[parameter] != parameter.data_ptr():
            self._address[parameter] = parameter.data_ptr()
            for part in self._parts_of[parameter]:
                part.pieces = [moved(piece) if piece.kept.parameter is parameter else piece for piece in part.pieces]
                part.inner = self._inner_of(part)
        flat = dense(parameter).to(_HOST)
        for part, piece in self._pieces(parameter):
            if piece.kept.mastered:
                self._bring(part)
                self.pager.wrote(part.chunk)
                theirs = piece.part_of(flat)
                same = piece.master.to(theirs.dtype) == theirs
                piece.master.copy_(torch.where(same, piece.master, theirs.to(piece.master.dtype)))
                residual = piece.arrays.get(_format.RESIDUAL)
                if residual is not None:
                    residual.masked_fill_(~same, 0)

    # --- stepping ---

    def step(
        self,
        gradients: Dict[torch.Tensor, torch.Tensor],
        groups: List[Dict[str, Any]],
        facts: Facts,
        alone: bool = False,
    ) -> None:
        """Steps the parameters that have a gradient. `alone`: a part of a step."""
        wanted: Set[int] = {id(part) for p in gradients for part in self._parts_of[p]}
        parts = [part for part in self._parts if id(part) in wanted]
        given = {p: self._gradient(p, g) for p, g in gradients.items()}
        targets = {p: dense(p) for p in gradients}
        begun = alone
        for p in gradients:
            if p.is_cuda or self._kept[p].staged:
                self._lane(p.device).begin()
        try:
            fetched: Dict[int, List[Tuple[Lane, Any]]] = {}
            for i, part in enumerate(parts):
                self._bring(part)
                self._fetch(part, given, fetched)
                following = parts[i + 1] if i + 1 < len(parts) else None
                if following is not None and self._apart(part, following):
                    self._settle(following)
                    self.pager.ahead(following.chunk)
                    self._fetch(following, given, fetched)
                for lane, mark in fetched[id(part)]:
                    lane.wait(mark)
                begun = True
                self._step_part(part, given, groups, facts)
                self._send(part, given, targets)
        except BaseException as error:
            if begun:
                self._broken = "%s: %s" % (type(error).__name__, error)
            raise
        finally:
            for lane in self._lanes.values():
                lane.end()
        for p in gradients:
            if not _layout.is_dense(p):
                p.detach().copy_(targets[p].as_strided(p.shape, self._kept[p].outline.stride()))

    def _apart(self, one: Part, other: Part) -> bool:
        return one.chunk.number % 2 != other.chunk.number % 2

    def _bring(self, part: Part) -> None:
        if not self.pager.is_here(part.chunk):
            self._settle(part)
        self.pager.need(part.chunk)

    def _settle(self, part: Part) -> None:
        """Waits for the copies out of the chunk's buffer."""
        leaving = self._leaving[part.chunk.number % 2]
        for lane, mark in leaving:
            lane.wait(mark)
        leaving.clear()

    def _lane(self, device: torch.device) -> Lane:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = Lane(device)
        return lane

    def _gradient(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Its elements in the order of the master's memory."""
        outline = self._kept[p].outline
        if _layout.same_order(gradient, outline) and _layout.is_dense(gradient):
            return _layout.flat(gradient)
        room = torch.empty_strided(outline.shape, outline.stride(), dtype=gradient.dtype, device=gradient.device)
        return _layout.flat(room.copy_(gradient))

    def _fetch(
        self, part: Part, given: Dict[torch.Tensor, torch.Tensor], fetched: Dict[int, List[Tuple[Lane, Any]]]
    ) -> None:
        """Enqueues the copies of gradients beside the chunk."""
        if id(part) in fetched:
            return
        lanes = []
        for piece in part.pieces:
            p = piece.kept.parameter
            if piece.wire is not None and p in given:
                lane = self._lane(p.device)
                lane.copy(piece.wire, piece.part_of(given[p]))
                lanes.append(lane)
        fetched[id(part)] = [(lane, lane.mark()) for lane in dict.fromkeys(lanes)]

    def _step_part(
        self, part: Part, given: Dict[torch.Tensor, torch.Tensor], groups: List[Dict[str, Any]], facts: Facts
    ) -> None:
        for number, own in zip(part.groups, part.inner.param_groups):
            values = groups[number].items()
            own.update({k: v for k, v in values if k not in ("params", "param_names")})
        grads: List[Optional[torch.Tensor]] = []
        for piece in part.pieces:
            gradient = given.get(piece.kept.parameter)
            if gradient is not None:
                gradient = piece.part_of(gradient) if piece.wire is None else piece.wire
            grads.append(gradient)
        self.pager.wrote(part.chunk)
        part.inner._step([piece.master for piece in part.pieces], grads, facts)

    def _send(
        self, part: Part, given: Dict[torch.Tensor, torch.Tensor], targets: Dict[torch.Tensor, torch.Tensor]
    ) -> None:
        """Enqueues the copies of stepped pieces to their parameters."""
        leaving = self._leaving[part.chunk.number % 2]
        for piece in part.pieces:
            p = piece.kept.parameter
            if piece.wire is not None and p in given:
                source = piece.master if p.dtype is piece.master.dtype else piece.wire
                lane = self._lane(p.device)
                lane.copy(piece.part_of(targets[p]), source)
                leaving.append((lane, lane.mark()))

    # --- whole states ---

    def snapshot(self) -> "Dict[torch.Tensor, Tuple[Optional[torch.Tensor], _format.State]]":
        """The master (None: the parameter is) and state of each parameter in tensors whose memory
        is another file's."""
        file = Snapshot(self._folder)
        places: Dict[torch.Tensor, Dict[str, int]] = {}
        for p, kept in self._kept.items():
            arrays = kept.arrays(kept.outline.numel())
            places[p] = {key: file.reserve(dtype, number) for key, dtype, number in arrays}
        for part in self._parts:
            self._bring(part)
            for piece in part.pieces:
                before = {k: n for k, _, n in piece.kept.arrays(piece.first)}
                for key, array in piece.arrays.items():
                    file.write(places[piece.kept.parameter][key], before[key], array)
        tensors = file.finish()
        result = {}
        for p, kept in self._kept.items():
            state = {"step": self.steps_of(p).clone()}
            whole = {key: kept.shaped(key, tensors[place]) for key, place in places[p].items()}
            master = whole.pop(MASTER, None)
            state.update(whole)
            if kept.moments:
                state = _format.with_order(state, kept.outline, kept.format)
            result[p] = (master, state)
        return result
