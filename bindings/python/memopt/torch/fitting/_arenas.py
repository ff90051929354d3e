"""Which layers of a model could stream, in how many bytes, and what that takes of a step's time."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from ... import _abi, errors
from ..._library import lib
from ...sizes import format_size
from .._store import copies_inline
from ..streaming import WeightStream, stream_weights
from ..streaming._arena import ARENA_UNIT
from ..streaming._parts import Part, find, rounded
from ._choices import Plan, Planner
from ._tape import Tape

#: So many layers at once are tried.
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: A step's backward takes so many times its forward's seconds.
BACKWARD = 2.0
Solve = Callable[[int], Plan]


class Arena(NamedTuple):
    """Bytes for streamed layers, and what a step does with them."""

    nbytes: int
    resident: int
    copies: int
    copied_bytes: int
    #: Of a step, what the plan runs again included; and of these what is for the copies alone.
    seconds: float
    late: float


class Candidate:
    """Layers that could stream."""

    def __init__(self, names: List[str], modules: List[torch.nn.Module], parts: List[List[Part]]) -> None:
        self.names, self.modules = names, modules
        self.parts: Dict[int, Part] = {id(part.parameter): part for layer in parts for part in layer}
        self.sizes = [sum(rounded(part.nbytes) for part in layer) for layer in parts]
        #: What the weights take where they do not stream; and what is in their places where they do.
        self.weights = sum(part.nbytes for part in self.parts.values())
        self.absent = sum(part.absent.untyped_storage().nbytes() for part in self.parts.values())
        #: Of the arena; 0: none was chosen yet.
        self.arena: Optional[Arena] = None

    @property
    def device_bytes(self) -> int:
        """What they take of the device when they stream."""
        return 0 if self.arena is None else self.arena.nbytes + self.absent

    def facts(self) -> Dict[str, Any]:
        """What is saved, as JSON has it: names, bytes of the weights, and what of them is off the device."""
        assert self.arena is not None
        off = self.weights - self.device_bytes
        return {"names": self.names, "weights": self.weights, "off": off, **self.arena._asdict()}

    @property
    def least_bytes(self) -> int:
        """Of the device, with one layer at once."""
        return self._of(1) + self.absent

    def choose(self, planner: Planner, solve: Solve, link: float, overlaps: bool) -> bool:
        """The arena with which a step takes least time; the smallest where none leaves room for the rest: False."""
        forward, rest = self._forward(planner.tape)
        found: List[Arena] = []
        for count in (n for n in COUNTS if n < len(self.sizes)):
            nbytes = self._of(count)
            try:
                again = solve(nbytes + self.absent).seconds
            except errors.LimitReachedError:
                break
            found.append(self._rehearse(nbytes, forward, rest, again, link, overlaps))
            if len(found) > 2 and found[-1].seconds > found[-2].seconds > found[-3].seconds:
                break
        best = min(found, key=lambda arena: arena.seconds, default=None)
        self.arena = best or self._rehearse(self._of(1), forward, rest, 0.0, link, overlaps)
        return best is not None

    def _of(self, count: int) -> int:
        """Bytes in which any so many neighbours fit."""
        sums = (sum(self.sizes[first : first + count]) for first in range(len(self.sizes) - count + 1))
        return -(-max(sums) // ARENA_UNIT) * ARENA_UNIT

    def _forward(self, tape: Tape) -> Tuple[List[float], float]:
        """The seconds of each layer's forward, and of the rest of the model's."""
        seconds: Dict[str, float] = dict.fromkeys(self.names, 0.0)
        for unit in tape.units:
            if unit.name in seconds:
                seconds[unit.name] += unit.seconds
        layers = list(seconds.values())
        return layers, max(tape.units[0].seconds - sum(layers), 0.0)

    def _rehearse(
        self, nbytes: int, forward: List[float], rest: float, again: float, link: float, overlaps: bool
    ) -> Arena:
        share = again / max(sum(forward), 1e-12)
        work = [*forward, *((BACKWARD + share) * seconds for seconds in reversed(forward))]
        work[len(forward) - 1] += (1 + BACKWARD) * rest  # what is not in a layer is around the turn
        sizes = (ctypes.c_uint64 * len(self.sizes))(*self.sizes)
        plan, seconds = _abi.StreamPlan(), ctypes.c_double()
        given = (ctypes.c_double * len(work))(*work)
        lib.memopt_streamer_rehearse(sizes, len(sizes), nbytes, given, link, plan, ctypes.byref(seconds))
        least = seconds.value if overlaps else sum(work) + plan.copied_bytes / link
        return Arena(nbytes, plan.resident, plan.copies, plan.copied_bytes, least, least - sum(work))


def overlap(device: torch.device) -> bool:
    """Whether copies to a device run beside its work."""
    return not copies_inline(device)


def candidate(model: torch.nn.Module) -> Optional[Candidate]:
    """The repeated layers of a model whose weights can stream, if there are any."""
    named = dict(_repeated(model))
    if not named or any("_memopt_streams" in vars(module) for module in model.modules()):
        return None
    try:
        found = find(list(named.values()), None, False)
    except (ValueError, TypeError, NotImplementedError):
        return None
    layers = [(name, module, parts) for name, (_, module, parts) in zip(named, found.layers) if parts]
    made = Candidate(*([row[i] for row in layers] for i in range(3)))  # type: ignore[arg-type]
    inside = {id(inner) for module in named.values() for inner in module.modules()}
    outside = (m for m in model.modules() if id(m) not in inside)
    if any(id(p) in made.parts for module in outside for p in module.parameters(recurse=False)):  # a tied one
        return None
    return made


def streaming(stream: WeightStream, names: List[str]) -> Candidate:
    """Of layers that do already."""
    layers = stream._layers.all
    return Candidate(names, [layer.module() for layer in layers], [layer.parts for layer in layers])  # type: ignore[misc]


def _repeated(model: torch.nn.Module) -> List[Tuple[str, torch.nn.Module]]:
    """The members of the outermost lists of several modules of one class."""
    lists: List[str] = []
    found = []
    for name, module in model.named_modules():
        children = list(module.named_children())
        is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))
        if not is_list or len({type(child) for _, child in children}) != 1 or len(children) < 2:
            continue
        if not any(not outer or name.startswith(outer + ".") for outer in lists):
            lists.append(name)
            found += [("%s.%s" % (name, own) if name else own, child) for own, child in children]
    return found


def words_of(facts: Dict[str, Any]) -> str:
    """For the table."""
    return "%d layers, %d at once in %s; a step copies %d, %s, which takes %.3g ms more" % (
        len(facts["names"]), facts["resident"], format_size(facts["nbytes"]),
        facts["copies"], format_size(facts["copied_bytes"]), 1e3 * facts["late"],
    )  # fmt: skip


def begin(
    model: torch.nn.Module, names: List[str], nbytes: int, device: Optional[torch.device] = None
) -> WeightStream:
    """The layers stream, to the device of what is beside them if none is named."""
    modules = [model.get_submodule(name) for name in names]
    inside = {id(p) for module in modules for p in module.parameters()}
    beside = {p.device for p in model.parameters() if id(p) not in inside and not p.is_meta}
    where = device if device is not None else next(iter(beside)) if len(beside) == 1 else None
    return stream_weights(modules, nbytes if where is None else (where, nbytes))
