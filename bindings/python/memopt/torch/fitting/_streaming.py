"""Whether layers stream: where the budget asks for it, or where that is quicker than to run things again."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from ... import errors
from .._native import shares_memory
from ..streaming import WeightStream
from ..streaming._arena import ARENA_UNIT
from ._arenas import Candidate, begin, candidate, overlap, streaming
from ._choices import Plan, Planner
from ._costs import CARD_LINK, link_speed

Limits = Tuple[int, int]  # bytes of the host and of the disk; 0: no limit


class Streaming:
    """Of one planning."""

    def __init__(self, planning: Any) -> None:
        self._planning, self._runs = planning, planning._runs
        self._could: Optional[Candidate] = None
        self._will: Optional[Candidate] = None
        #: Of those that do, as they are saved; and what stream_weights() gave.
        self.facts: Dict[str, Any] = {}
        self.stream: Optional[WeightStream] = None

    def could(self) -> bool:
        """Whether there are layers for it, and a host whose memory is not the device's."""
        host, found = self._planning._host, candidate(self._planning._model)
        if shares_memory(self._runs.device()):
            found = None
        self._could = None if found is None or (host is not None and host < found.weights) else found
        return self._could is not None

    def use(self, some: bool) -> None:
        """Whether they will; planners that are made from now on are of that."""
        self._will = self._could if some else None
        self._runs.would = self._will

    @property
    def least_bytes(self) -> int:
        """Of the device, beside a planner, for one layer at once."""
        return 0 if self._will is None else self._will.least_bytes

    @property
    def off(self) -> int:
        """Bytes of weights that are not on the device."""
        if self._will is not None:
            return self._will.weights - self._will.device_bytes
        return int(self.facts.get("off", 0))

    def placed(self, planner: Planner, room: int, limits: Limits) -> Tuple[Planner, Limits]:
        """A planner with the quickest arena, and what the weights leave of the host's bytes."""
        if self._will is None:
            return planner, _without(limits, int(self.facts.get("weights", 0)))
        limits = _without(limits, self._will.weights)
        self._choose(self._will, planner, room, limits)
        return planner.beside(self._will.device_bytes), limits

    def _choose(self, found: Candidate, planner: Planner, room: int, limits: Limits) -> bool:
        virtual = self._runs.is_virtual()
        link = CARD_LINK if virtual else link_speed(self._runs.device())
        solve: Callable[[int], Plan] = functools.partial(_solve, planner, room, limits)
        return found.choose(planner, solve, link, virtual or overlap(self._runs.device()))

    def shrinks(self, planned: Any, room: int, limits: Limits) -> bool:
        """Whether another step fits with a smaller arena, which there is then. Steps that were planned still fit."""
        if self.stream is None:
            return False
        now, found = self.stream.budget // ARENA_UNIT * ARENA_UNIT, streaming(self.stream, self.facts["names"])
        planner = planned.planner.beside(-now - found.absent)
        if not self._choose(found, planner, room, _without(limits, found.weights)) or found.arena is None:
            return False
        self.stream.resize(found.arena.nbytes)
        self.facts, planned.planner = found.facts(), planner.beside(found.device_bytes)
        for other in self._planning._plans.values():
            if other is not None and other.planner is not None:
                other.planner = other.planner.beside(found.arena.nbytes - now)
                other.peak += found.arena.nbytes - now
        return True

    def if_quicker(self, planned: Any, step: Any) -> None:
        """In place of running things again."""
        facts = vars(planned).copy()
        if not planned.choices or not self.could():
            return
        self.use(True)
        try:
            planned.planner = self._planning._planner(step, planned.tried)
            self._planning._solve(planned)
            arena = self._could.arena if self._could is not None else None
            if arena is not None and planned.seconds + arena.late < facts["seconds"]:
                return
        except errors.LimitReachedError:
            pass
        self.use(False)
        vars(planned).update(facts)

    def begin(self, planned: Any) -> None:
        """Those that will, do; of a model without values it is only said."""
        found = self._will
        self.use(False)
        if found is None or found.arena is None:
            return
        if not self._runs.is_virtual():
            self.stream = begin(self._planning._model, found.names, found.arena.nbytes)
        self.facts = found.facts()
        planned.planner = planned.planner.beside(found.device_bytes)

    def load(self, facts: Dict[str, Any], device: Optional[torch.device] = None) -> None:
        """Saved ones begin."""
        if facts:
            self.stream = begin(self._planning._model, facts["names"], facts["nbytes"], device)
            self.facts = facts

    def remove(self) -> None:
        """None streams."""
        if self.stream is not None:
            self.stream.remove()


def _without(limits: Limits, weights: int) -> Limits:
    host, disk = limits
    return max(host - weights, 1) if host else 0, disk


def _solve(planner: Planner, room: int, limits: Limits, nbytes: int) -> Plan:
    return planner.solve(max(room - nbytes, 1), *limits)
