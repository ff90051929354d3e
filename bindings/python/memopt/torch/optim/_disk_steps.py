"""The masters and states of a CPUOffloadOptimizer in a file.

A step brings one chunk after the other into host memory, steps its pieces there and lets it go again,
while the next one is read and earlier ones are written. A step that fails between its first and last
chunk leaves chunks of two steps; then every call but loading a state dict raises.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from ...offload import Disk
from ...sizes import Size
from . import _format, _layout, _load
from ._base import Loading
from ._disk_chunks import Pager
from ._disk_pieces import MASTER, Builder, Kept, Part, Source, dense, stored
from ._facts import Facts, square_sum
from ._masters import HOST, Marks, Masters, copy_values, mark, wait, with_params
from ._snapshot import Snapshot

#: A parameter, its steps, and what its chunks begin with.
New = Tuple[Kept, int, Source]


class OnDisk(Masters):
    """Masters in chunks of a file. To the inner optimizer meta tensors stand for them; an optimizer for each
    chunk steps them."""

    def __init__(self, make: Any, name: str, is_staged: Any, disk: Disk, host_limit: Size) -> None:
        super().__init__(make, name, is_staged, False)
        path = disk[0] if isinstance(disk, tuple) else disk
        self._folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        self.pager = Pager(disk, host_limit)
        self._outlines: Dict[torch.Tensor, torch.Tensor] = {}
        self._parts: List[Part] = []
        self._parts_of: Dict[torch.Tensor, List[Part]] = {}
        self._kept: Dict[torch.Tensor, Kept] = {}
        #: Copies out of each buffer.
        self._leaving: Tuple[Marks, Marks] = ([], [])
        self._broken: Optional[str] = None
        self._is_new = False  # there are other states than states() has told

    # --- parameters ---

    def _stand_in(self, p: torch.Tensor, group: Dict[str, Any]) -> torch.Tensor:
        if p not in self._outlines:
            dtype = self._type(p, group)
            self._outlines[p] = torch.empty_like(p, dtype=dtype, device="meta", requires_grad=p.requires_grad)
        return self._outlines[p]

    def _new(self, p: torch.Tensor, number: int, group: Dict[str, Any]) -> Kept:
        """How the file keeps a parameter with a new state."""
        inner, outline = self.inner, self._outlines[p]
        how = inner._kind, inner._format_of(group, outline), inner._keeps_moments(group)
        return Kept(p, outline, number, *how, _format.split_bytes(group, p), self._is_staged(p))

    def follow(self, only: Optional[torch.Tensor] = None) -> None:
        """Also takes in parameters that the file does not have yet."""
        if self._broken is not None:
            raise RuntimeError(
                "a step ended in part (%s): parameters and states are of different steps. Load a"
                " saved state dict, and the model's parameters saved with it" % self._broken
            )
        self._copy_values()
        new: List[New] = []
        for g, group in enumerate(self.groups):
            for p in group["params"]:
                if p in self._kept:
                    if self._is_written(p):
                        self._refresh(p)
                        self._note(p)
                elif p.numel() and (p.requires_grad or p.grad is not None):
                    new.append((self._new(p, g, group), 0, {MASTER: dense(p)}.get))
        if new:
            built = self._built(new, len(self._parts))
            for kept, _, _ in new:
                self._note(kept.parameter)
            self._take_in([*self._parts, *built])

    def _copy_values(self) -> None:
        copy_values(self.groups, self.inner)
        for p, outline in self._outlines.items():
            mark(p, outline)

    def _refresh(self, p: torch.Tensor) -> None:
        """Takes over what something else has written into a parameter, also where its memory is another one."""
        moved, flat = self._written[p][1] != p.data_ptr(), dense(p).to(HOST)
        for part in self._parts_of[p]:
            if self._kept[p].mastered:
                self._bring(part)
                self.pager.wrote(part.chunk)
            for i, piece in enumerate(part.pieces):
                if piece.parameter is p and self._kept[p].mastered:
                    piece.take_over(flat, piece.state)
                elif piece.parameter is p and moved:
                    part.pieces[i] = piece._replace(master=piece.part_of(_layout.flat(p.detach())))
            if moved:
                self._equip(part)

    def _built(self, new: Iterable[New], first: int) -> List[Part]:
        """Chunks with these parameters."""
        builder = Builder(self.pager, first, self._equip)
        try:
            for one in new:
                builder.add(*one)
            builder.close()
            self.pager.leave()
            if first + len(builder.parts) > self.pager.kept:
                self.pager.fill_the_file(max(part.chunk.nbytes for part in builder.parts))
        except BaseException:
            builder.abandon()
            raise
        return builder.parts

    def _take_in(self, parts: List[Part]) -> None:
        kept: Dict[torch.Tensor, Kept] = {}
        parts_of: Dict[torch.Tensor, List[Part]] = {}
        for part in parts:
            for piece in part.pieces:
                kept[piece.parameter] = piece.kept
                found = parts_of.setdefault(piece.parameter, [])
                if part not in found:
                    found.append(part)
        self._parts, self._kept, self._parts_of, self._is_new = parts, kept, parts_of, True

    def _equip(self, part: Part) -> None:
        """Makes the optimizer of a chunk."""
        members: Dict[int, List[torch.Tensor]] = {}
        for piece in part.pieces:
            members.setdefault(piece.kept.group, []).append(piece.master)
        part.groups = list(members)
        part.inner = self._make([with_params(self.groups[g], own) for g, own in members.items()])
        part.inner._model_copies, part.inner._states = {}, self.inner._states
        for piece in part.pieces:
            p = piece.parameter
            if len(piece.state) > 1 or piece.kept.moments:
                part.inner.state[piece.master] = piece.state
            if p.dtype is not piece.master.dtype:
                own = piece.part_of(_layout.flat(p.detach())) if piece.wire is None else piece.wire
                part.inner._model_copies[piece.master] = own

    # --- stepping ---

    def gradients(self) -> Dict[torch.Tensor, Optional[torch.Tensor]]:
        return {p: p.grad for p in self.all() if p.grad is not None and p.numel()}

    def begin(self, gradients: Dict[torch.Tensor, Any]) -> None:
        for g, group in enumerate(self.groups):
            for i, p in enumerate(group["params"]):
                if p in gradients:
                    name = _layout.name_of(group, g, i)
                    _layout.check_gradient(gradients[p], p, name, self._name)
                    if self.inner._keeps_moments(group) and not self._kept[p].moments:
                        raise RuntimeError(
                            "the state of %s on the disk was made without a momentum; load a state"
                            " dict to make it anew" % name
                        )
        self._given = {p: self._ordered(p, gradient) for p, gradient in gradients.items()}
        self._targets = {p: dense(p) for p in gradients}
        self._begin_lanes([p for p in gradients if self._kept[p].staged])

    def square_sum(self) -> torch.Tensor:
        given: List[Any] = [p.grad for p in self._given]
        together = len({g.device for g in given}) == 1
        return square_sum(given if together else [g.to(HOST) for g in given])

    def step(self, facts: Facts, place: Optional[int] = None) -> None:
        wanted = {id(part) for p in self._given for part in self._parts_of[p]}
        parts = [part for part in self._parts if id(part) in wanted]
        begun, ahead = place is not None, None
        try:
            for part, following in zip(parts, [*parts[1:], None]):
                self._bring(part)
                marks = self._fetch(part.pieces) if ahead is None else ahead
                ahead = self._fetch_ahead(part, following)
                wait(marks)
                begun = True
                self.pager.wrote(part.chunk)
                copy_values([self.groups[g] for g in part.groups], part.inner)
                self._step_pieces(part.pieces, part.inner, facts)
                self._leaving[part.chunk.number % 2].extend(self._send(part.pieces))
        except BaseException as error:
            if begun:
                self._broken = "%s: %s" % (type(error).__name__, error)
            raise
        self._end_lanes()
        for p in self._given:
            if not _layout.is_dense(p):
                p.detach().copy_(self._targets[p].as_strided(p.shape, self._kept[p].outline.stride()))
        self._note_all()

    def _fetch_ahead(self, part: Part, following: Optional[Part]) -> Optional[Marks]:
        """Begins to bring the next chunk and its gradients; None if it needs the same buffer."""
        if following is None or (following.chunk.number - part.chunk.number) % 2 == 0:
            return None
        self._settle(following)
        self.pager.ahead(following.chunk)
        return self._fetch(following.pieces)

    def _bring(self, part: Part) -> None:
        if not self.pager.is_here(part.chunk):
            self._settle(part)
        self.pager.need(part.chunk)

    def _settle(self, part: Part) -> None:
        """Waits for the copies out of the chunk's buffer."""
        leaving = self._leaving[part.chunk.number % 2]
        wait(leaving)
        leaving.clear()

    def _ordered(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient's elements in the order of the master's memory."""
        outline = self._outlines[p]
        if not (_layout.same_order(gradient, outline) and _layout.is_dense(gradient)):
            room = gradient.new_empty_strided(outline.shape, outline.stride())
            gradient = room.copy_(gradient)
        return _layout.flat(gradient)

    # --- whole states ---

    def states(self) -> Optional[Dict[torch.Tensor, Any]]:
        is_new, self._is_new = self._is_new, False
        steps = {p: parts[0].of(p)[0].state["step"] for p, parts in self._parts_of.items()} if is_new else {}
        return {p: {"step": step} for p, step in steps.items()} if is_new else None

    def host_bytes(self) -> Dict[str, int]:
        gradients, rest = self.pager.nbytes()
        return {"masters": 0, "states": rest, "gradients": gradients}

    def saved(self) -> Tuple[Dict[str, Any], Dict[torch.Tensor, torch.Tensor]]:
        """In tensors whose memory is another file's."""
        self.follow()
        file = Snapshot(self._folder)
        places = {
            p: {key: file.reserve(*array) for key, array in kept.arrays(kept.outline.numel()).items()}
            for p, kept in self._kept.items()
        }
        for part in self._parts:
            self._bring(part)
            for piece in part.pieces:
                for key, first, array in stored(piece):
                    file.write(places[piece.parameter][key], first, array)
        tensors = file.finish()
        wholes = {
            p: {key: kept.shaped(key, tensors[place]) for key, place in places[p].items()}
            for p, kept in self._kept.items()
        }
        masters = {p: wholes.get(p, {}).pop(MASTER, p) for p in self.all()}
        own = self._make([with_params(g, [masters[p] for p in g["params"]]) for g in self.groups])
        own._portable, own._states = self.inner._portable, self.inner._states
        for p, kept in self._kept.items():
            step = self._parts_of[p][0].of(p)[0].state["step"].clone()
            if _format.steps_taken(step) > 0:
                state = {"step": step, **wholes[p]}
                if kept.moments:
                    state = _format.with_order(state, kept.outline, kept.format)
                own.state[masters[p]] = state
        return own.state_dict(), masters

    def load(self, state_dict: Dict[str, Any], masters: Dict[torch.Tensor, Optional[torch.Tensor]]) -> None:
        self._copy_values()
        self.inner._sink = functools.partial(self._load, masters)
        try:
            self.inner.load_state_dict(state_dict)
        finally:
            self.inner._sink = None
        for p, saved in masters.items():
            if saved is not None:
                p.copy_(saved)
            self._note(p)

    def _load(self, masters: Dict[torch.Tensor, Optional[torch.Tensor]], loading: Loading) -> Dict[Any, Any]:
        """In the place of the inner optimizer's _loaded(): its states go to the file, one parameter
        after the other."""
        inner = self.inner
        others, read, residuals = inner._read(loading)
        coded = any(_load.has_codes(one.saved) for one in read)
        found = {r.parameter: r._replace(saved=r.saved._replace(lent=True)) for r in read}
        shared = _Room()

        def each() -> Iterator[New]:
            for g, (group, own) in enumerate(zip(loading.groups, self.groups)):
                for p in own["params"]:
                    kept, steps, flats = self._new(p, g, group), 0, {}
                    one, residual = found.get(kept.outline), residuals.get(kept.outline)
                    if not p.numel() or not (p.requires_grad or one is not None):
                        continue
                    room = shared.like(kept.outline)
                    if one is not None:
                        state = inner._converted(one, room, coded)
                        steps = int(state["step"])
                        format_ = _format.of(state, kept.kind, kept.format)
                        kept = kept._replace(moments=True, format=format_)
                        flats = {key: _layout.flat(state[key]) for key in _format.keys(kept.kind, format_)}
                    if residual is not None:
                        whole = _format.residual(room, residual, kept.split)
                        flats[_format.RESIDUAL] = _layout.flat(whole)
                    master = masters.get(p)
                    room.copy_(p.detach() if master is None else master)
                    flats[MASTER] = _layout.flat(room)
                    yield kept, steps, flats.get

        parts = self._built(each(), 0)
        self.pager.drop([part.chunk for part in self._parts])
        self._take_in(parts)
        self._broken = None
        return {key: value for key, value in others.items() if not isinstance(key, torch.Tensor)}


class _Room:
    """Host memory of one tensor after the other, kept: malloc scatters what it is asked for anew each
    time, until the heap has grown by more than a stated limit."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device=HOST)

    def like(self, outline: torch.Tensor) -> torch.Tensor:
        """A tensor of this memory, where the last one was, in the outline's order of memory."""
        count = outline.numel() * outline.dtype.itemsize
        if self._bytes.numel() < count:
            self._bytes = torch.empty(count, dtype=torch.uint8, device=HOST)
        flat = self._bytes[:count].view(outline.dtype)
        return flat.as_strided(outline.size(), outline.stride())
