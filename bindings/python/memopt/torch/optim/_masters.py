"""Masters of parameters in host memory, and steps of an optimizer over them.

A step works on lists of pieces: their gradients are copied to the host, the masters are stepped there, and
the new parameters are copied back, so that copies of one list pass beside the arithmetic of another. Here
a piece is a whole parameter and its memory stays; :class:`._disk_steps.OnDisk` cuts parameters and keeps
masters and states in a file.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch

from . import _format, _keep, _layout, _pinned
from ._base import MemoptOptimizer
from ._facts import Facts, square_sum
from ._lane import Lane

HOST = torch.device("cpu")
#: Elements of the lists by which copies and steps overlap; a parameter is not cut.
PIECE = 8 << 20

#: An optimizer of the class over groups.
Make = Callable[[List[Dict[str, Any]]], MemoptOptimizer]
#: Copies that were enqueued.
Marks = List[Tuple[Lane, Any]]


class Piece(NamedTuple):
    """Elements of a parameter, and where they are on the host."""

    parameter: torch.Tensor
    master: torch.Tensor  # fp32 (split: bf16); the parameter itself if it is such
    wire: Optional[torch.Tensor]  # for the gradient in and the parameter out; None: both are used where they are
    first: int = 0
    elements: Optional[int] = None  # in the order of memory, from the first one; None: all, in the parameter's shape
    kept: Any = None  # of a disk: how the file keeps the parameter
    state: Dict[str, torch.Tensor] = {}  # of a disk: in a chunk's buffer, but for the "step"

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """The piece of a tensor like the parameter."""
        return whole if self.elements is None else whole[self.first : self.first + self.elements]

    def take_over(self, whole: torch.Tensor, state: Dict[str, torch.Tensor]) -> None:
        """Takes over what something else has written into the parameter, as loading a model does."""
        residual = state.get(_format.RESIDUAL)
        theirs, master = self.part_of(whole), self.master.detach()
        same = master.to(theirs.dtype) == theirs
        master.copy_(torch.where(same, master, theirs.to(master.dtype)))
        if residual is not None:
            residual.masked_fill_(~same, 0)


class Masters:
    """The masters of one optimizer. What a step is given is kept from begin() to end()."""

    inner: MemoptOptimizer  # of the class, over the masters or what stands for them

    def __init__(self, make: Make, name: str, is_staged: Callable[[torch.Tensor], bool], early: bool) -> None:
        self._make, self._name, self._is_staged = make, name, is_staged
        self._early = early  # gradients leave the device in backward
        #: The groups of parameters.
        self.groups: List[Dict[str, Any]] = []
        #: Gradients that are on the host already, by parameter.
        self.held: Dict[torch.Tensor, Any] = {}
        self._pieces: Dict[torch.Tensor, Piece] = {}
        self._lanes: Dict[torch.device, Lane] = {}
        self._copies: Dict[torch.Tensor, torch.Tensor] = {}
        #: Version and address of each parameter after our last write.
        self._written: Dict[torch.Tensor, Tuple[int, int]] = {}
        self._binding: Any = None
        self._given: Dict[torch.Tensor, Optional[torch.Tensor]] = {}
        self._targets: Dict[torch.Tensor, torch.Tensor] = {}
        self._queue: List[Tuple[List[Piece], Marks]] = []

    # --- parameters ---

    def extend(self, groups: List[Dict[str, Any]]) -> None:
        """Takes in the last of the groups."""
        self.groups, group = groups, groups[-1]
        for index, p in enumerate(group["params"]):
            name = _layout.name_of(group, len(groups) - 1, index)
            if _layout.is_sharded(p):
                raise TypeError(
                    "%s is a DTensor; use %s itself on shards, with FSDP2's CPUOffloadPolicy" % (name, self._name)
                )
            _layout.check_parameter(p, name)
        own = with_params(group, [self._stand_in(p, group) for p in group["params"]])
        if len(groups) > 1:
            self.inner.add_param_group(own)
        else:
            self.inner = self._make([own])
            self.inner._model_copies = self._copies

    def all(self) -> List[torch.Tensor]:
        """The parameters."""
        return [p for group in self.groups for p in group["params"]]

    def _stand_in(self, p: torch.Tensor, group: Dict[str, Any]) -> torch.Tensor:
        """What the inner optimizer has in a parameter's place."""
        if p not in self._pieces:
            self._pieces[p] = self._placed(p, self._type(p, group))
            self._note(p)
            if self._early and self._pieces[p].wire is not None and p.requires_grad:
                hooked: Any = p
                hooked.register_post_accumulate_grad_hook(self._take)
        return self._pieces[p].master

    def _type(self, p: torch.Tensor, group: Dict[str, Any]) -> torch.dtype:
        """The master's."""
        return p.dtype if _format.split_bytes(group, p) else torch.float32

    def _placed(self, p: torch.Tensor, dtype: torch.dtype) -> Piece:
        staged = self._is_staged(p)
        if not staged and p.dtype is dtype:
            return Piece(p, p, None)
        master = _pinned.like(p, dtype, p.device)
        master.copy_(p.detach())
        master.requires_grad_(p.requires_grad)
        wire = _pinned.like(master, p.dtype, p.device) if staged else None
        if p.dtype is not dtype:
            self._copies[master] = p if wire is None else wire
        return Piece(p, master, wire)

    def _note(self, p: torch.Tensor) -> None:
        self._written[p] = (p._version, p.data_ptr())

    def _is_written(self, p: torch.Tensor) -> bool:
        return self._written[p] != (p._version, p.data_ptr())

    def follow(self, only: Optional[torch.Tensor] = None) -> None:
        """Takes over the values of the groups, and what others have written into the parameters or one."""
        copy_values(self.groups, self.inner)
        for p in self._pieces if only is None else [only]:
            piece = self._pieces[p]
            if piece.master is not p and self._is_written(p):
                piece.take_over(p.detach().to(HOST), self.inner.state.get(piece.master, {}))
                self._note(p)
            mark(p, piece.master)

    # --- stepping ---

    def gradients(self) -> Dict[torch.Tensor, Optional[torch.Tensor]]:
        """Those of the next step; None: it is on the host."""
        return {p: p.grad for p in self.all() if p.grad is not None or p in self.held}

    def begin(self, gradients: Dict[torch.Tensor, Optional[torch.Tensor]]) -> None:
        """Enqueues the copies of gradients to the host."""
        self._given, self._targets = gradients, {p: p.detach() for p in gradients}
        self._begin_lanes([p for p in gradients if self._pieces[p].wire is not None])
        lists, size = [[self._pieces[p] for p in gradients if self._pieces[p].wire is None]], PIECE
        for piece in (self._pieces[p] for p in gradients):
            if piece.wire is not None:
                if size >= PIECE:
                    lists.append([])
                    size = 0
                lists[-1].append(piece)
                size += piece.parameter.numel()
        self._queue = [(pieces, self._fetch(pieces)) for pieces in lists if pieces]

    def square_sum(self) -> torch.Tensor:
        """The sum of squares over all gradients, in the order of one step over them. Where all of them are on
        one device as well, it is taken there, before they have arrived."""
        there = list(self._given.values())
        steps = [self._gradient(self._pieces[p]) for p in self._given]
        here = [t for t in there if t is not None]
        if len(here) == len(there) and len({t.device for t in here}) == 1:
            if all(a.stride() == b.stride() and a.dtype is b.dtype for a, b in zip(here, steps)):
                return square_sum(here)
        for _, marks in self._queue:
            wait(marks)
        return square_sum(steps)

    def step(self, facts: Facts, place: Optional[int] = None) -> None:
        """Steps the parameters whose gradients begin() got; `place`: of the only one among all."""
        for pieces, marks in self._queue:
            wait(marks)
            if place is None:
                self._step_pieces(pieces, self.inner, facts)
            else:
                self.inner._step_alone(place, self._gradient(pieces[0]), facts)
            self._send(pieces)
        self._note_all()

    def end(self) -> None:
        """Ends a step."""
        self._end_lanes()
        self._given, self._targets, self._queue = {}, {}, []

    def _note_all(self) -> None:
        for p in self._given:
            torch.autograd.graph.increment_version(p)
            self._note(p)

    def _lane(self, device: torch.device) -> Lane:
        if device not in self._lanes:
            self._lanes[device] = Lane(device)
        return self._lanes[device]

    def _begin_lanes(self, staged: Iterable[torch.Tensor]) -> None:
        for device in {p.device for p in staged}:
            self._lane(device).begin()

    def _end_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.end()

    def _fetch(self, pieces: List[Piece]) -> Marks:
        """Enqueues the copies of gradients to the host."""

        def fetch(lane: Lane, piece: Piece, wire: torch.Tensor) -> None:
            gradient = self._given[piece.parameter]
            if gradient is not None and piece.parameter not in self.held:
                lane.copy(wire, piece.part_of(gradient))

        return self._through_wires(pieces, fetch)

    def _send(self, pieces: List[Piece]) -> Marks:
        """Enqueues the copies of stepped pieces to their parameters."""

        def send(lane: Lane, piece: Piece, wire: torch.Tensor) -> None:
            p, master = piece.parameter, piece.master.detach()
            lane.copy(piece.part_of(self._targets[p]), master if p.dtype is master.dtype else wire)

        return self._through_wires(pieces, send)

    def _through_wires(self, pieces: List[Piece], copy: Callable[[Lane, Piece, torch.Tensor], None]) -> Marks:
        lanes: Dict[Lane, None] = {}
        for piece in pieces:
            if piece.wire is not None and piece.parameter in self._given:
                lane = self._lane(piece.parameter.device)
                copy(lane, piece, piece.wire)
                lanes[lane] = None
        return [(lane, lane.mark()) for lane in lanes]

    def _gradient(self, piece: Piece) -> torch.Tensor:
        """What the step reads as the gradient."""
        if piece.wire is not None:
            return piece.wire
        gradient = self._given[piece.parameter]
        assert gradient is not None
        return piece.part_of(gradient)

    def _step_pieces(self, pieces: List[Piece], inner: MemoptOptimizer, facts: Facts) -> None:
        grads = {id(q.master): self._gradient(q) for q in pieces if q.parameter in self._given}
        masters = [master for group in inner.param_groups for master in group["params"]]
        inner._step(masters, [grads.get(id(master)) for master in masters], facts)

    @torch.no_grad()
    def _take(self, p: torch.Tensor) -> None:
        """After backward has a gradient: to the host, and freed on the device."""
        wire, lane = self._pieces[p].wire, self._lane(p.device)
        if p.grad is None or wire is None:
            return
        if p in self.held:
            lane.wait(self.held[p])
            p.grad.add_(wire.to(p.device))
        lane.begin()
        lane.copy(wire, p.grad)
        self.held[p] = lane.mark()
        p.grad = None

    # --- states ---

    def states(self) -> Optional[Dict[torch.Tensor, Any]]:
        """The states by parameter, if there may be others than at the last call."""
        if self.inner._binding is not None and self.inner._binding is self._binding:
            return None
        self._binding, state = self.inner._binding, self.inner.state
        return {p: state[piece.master] for p, piece in self._pieces.items() if state.get(piece.master)}

    def host_bytes(self) -> Dict[str, int]:
        """Bytes of host memory by what they are for."""
        pieces = self._pieces.values()
        return {
            "masters": sum(piece.master.nbytes for piece in pieces if piece.master is not piece.parameter),
            "states": sum(t.nbytes for state in self.inner.state.values() for t in state.values()),
            "gradients": sum(piece.wire.nbytes for piece in pieces if piece.wire is not None),
        }

    def saved(self) -> Tuple[Dict[str, Any], Dict[torch.Tensor, torch.Tensor]]:
        """The class's state dict, and the masters (or the parameter)."""
        self.follow()
        return self.inner.state_dict(), {p: self._pieces[p].master for p in self.all()}

    def load(self, state_dict: Dict[str, Any], masters: Dict[torch.Tensor, Optional[torch.Tensor]]) -> None:
        """Loads the class's state dict and masters; None: the parameter as it is."""
        self.follow()
        self.inner.load_state_dict(state_dict)
        for p, saved in masters.items():
            if saved is not None:
                p.copy_(saved)
            if p in self._pieces and self._pieces[p].master is not p:
                self._pieces[p].master.data.copy_(p if saved is None else saved)
            self._note(p)
        self.held.clear()
        self._binding = None


def wait(marks: Marks) -> None:
    """Returns when the copies are done."""
    for lane, mark in marks:
        lane.wait(mark)


def copy_values(groups: Iterable[Dict[str, Any]], into: torch.optim.Optimizer) -> None:
    """Gives an optimizer's groups the values of others."""
    for group, own in zip(groups, into.param_groups):
        own.update({k: v for k, v in group.items() if k not in ("params", "param_names")})


def with_params(group: Dict[str, Any], members: List[torch.Tensor]) -> Dict[str, Any]:
    """A group with other tensors in the place of its parameters, under their names if it is all."""
    values = {**{k: v for k, v in group.items() if k != "params"}, "params": members}
    names = values.pop("param_names", None)
    if names is not None:
        some = names if len(names) == len(members) else ["of %s" % names[0]]
        values["params"] = [(some[i % len(some)], member) for i, member in enumerate(members)]
    return values


def mark(p: torch.Tensor, master: torch.Tensor) -> None:
    """Lets a master keep 32-bit states where its parameter does."""
    if _keep.kept(p) and not _keep.kept(master):
        _keep.mark(master)
