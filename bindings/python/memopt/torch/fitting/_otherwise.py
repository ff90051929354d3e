"""What `allow` names: below the floor, the fewest of these that hold the budget. Each alters training, or where
the optimizer's states are; what a step takes with it is recorded anew, and not reckoned."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Collection, Dict, List, Optional, Tuple

import torch

from ... import errors
from ...sizes import format_size
from .._native import shares_memory
from ..optim import release_gradients
from ..optim._base import MemoptOptimizer
from ..optim._host import CPUOffloadOptimizer
from . import _states
from ._choices import Planner
from ._loss import may_be_chunked
from ._runs import NotRecordedError
from ._tape import Tape

#: In the order in which they are tried.
ALLOWED = ("stream", "chunked_loss", "host", "8bit", "split", "release")


class Otherwise:
    """Tries for one planned step."""

    def __init__(self, planning: Any, planned: Any, step: Callable[[], Any]) -> None:
        self.planning, self.planned, self.step = planning, planned, step
        self.runs, self.model, self.optimizer = planning._runs, planning._model, planning._optimizer
        self.before = self.runs.variant, planning._states, planned.planner
        self.plain = planned.planner.replay(()).peak_bytes + planning._states + planning._streaming.off
        self.layer = _last_layer(planned.planner.tape)
        self.refused: Dict[str, str] = {}
        self.planners: Dict[Any, Planner] = {(self.runs.variant, False): planned.planner}

    def find(self, error: errors.LimitReachedError) -> None:
        """Plans the step with the fewest that are allowed and hold the budget. Else raises, and tells what would help."""
        others = [name for name in ALLOWED if name not in self.planning.done and self._is_possible(name)]
        allowed = [name for name in others if name in self.planning._allow]
        try:
            for count in range(1, len(allowed) + 1):
                for some in itertools.combinations(allowed, count):
                    if self.refused.keys() & {*some}:
                        continue
                    try:
                        self._use(some)
                        self.planning._solve(self.planned)
                    except errors.LimitReachedError as again:
                        error = again
                        continue
                    except NotRecordedError as why:
                        self.refused[why.name] = str(why)
                        continue
                    self.planned.spared = max(self.plain - self.planned.plain, 0)
                    self.planned.plain += self.planned.spared
                    self._do(some)
                    return
            raise errors.LimitReachedError(error.status, str(error) + self._hints(others, allowed)) from error
        except BaseException:
            self.planning._streaming.use(False)
            self.runs.variant, self.planning._states, self.planned.planner = self.before
            raise

    def _is_possible(self, name: str) -> bool:
        """Whether it may lower the floor."""
        if name == "stream":
            return bool(self.planning._streaming.could())
        if name == "chunked_loss":
            return bool(self.layer)
        if name == "release":
            ours = isinstance(self.optimizer, (MemoptOptimizer, CPUOffloadOptimizer))
            return ours and not self.planned.planner.tape.gradients and not _states.several_processes()
        if name == "host":
            return not shares_memory(self.runs.device()) and _states.may_be_on_host(self.optimizer)
        return _states.may_be_8bit(self.optimizer) if name == "8bit" else _states.may_be_split(self.optimizer)

    def _use(self, some: Collection[str]) -> None:
        """The tape and the states with these."""
        chunked, releases, split = self.before[0]
        variant = (
            self.layer if "chunked_loss" in some else chunked,
            releases or "release" in some,
            split or "split" in some,
        )
        self.runs.variant = self.runs.variant._make(variant)
        self.planning._streaming.use("stream" in some)
        key = self.runs.variant, "stream" in some
        if key not in self.planners:
            self.planners[key] = self.planning._planner(self.step, self.planned.tried)
        self.planned.planner = self.planners[key]
        eight, host = (name in some or name in self.planning.done for name in ("8bit", "host"))
        if {"8bit", "host", "split"} & {*some}:
            self.planning._states = _states.bytes_with(self.model, self.optimizer, eight, host, "split" in some)
        else:
            self.planning._states = self.before[1]

    def _floor(self, some: Collection[str]) -> Optional[int]:
        try:
            self._use(some)
        except NotRecordedError as why:
            self.refused[why.name] = str(why)
            return None
        beside = self.planning._states + self.planning._streaming.least_bytes
        return int(self.planned.planner.solve(0, *self.planning._limits()).peak + beside)

    def _hints(self, others: List[str], allowed: List[str]) -> str:
        said = ""
        allowed = [name for name in allowed if name not in self.refused]
        floor = self._floor(allowed)
        for name in others:
            lower = None if name in allowed else self._floor([*allowed, name])
            if lower is not None and floor is not None and lower < floor:
                said += ". allow=(%r,) would lower the least by %s" % (name, format_size(floor - lower))
        for name, why in self.refused.items():
            if name in self.planning._allow:
                said += ". allow=(%r,) does not help: %s" % (name, why)
        return said

    def _do(self, some: Tuple[str, ...]) -> None:
        """From now on."""
        apply(some, self.optimizer, self.planning)
        for name in some:
            if name == "stream":  # which begins when all is planned
                continue
            self.planning.done[name] = self.layer if name == "chunked_loss" else _WHAT[name]


#: What the table says.
_WHAT = {
    "host": "states on the host",
    "8bit": "states in 8 bits",
    "split": "weights in bf16, 16 bits more in states",
    "release": "steps in backward",
}


def apply(some: Collection[str], optimizer: Any, planning: Any) -> None:
    """What these do to an optimizer, once."""
    if "8bit" in some and _states.is_32bit(optimizer):
        _states.to_8bit(optimizer)
    if "host" in some and not optimizer._page_bytes:
        _states.to_host(optimizer)
    if "split" in some:
        _states.to_split(optimizer)
    if "release" in some:
        planning.release = release_gradients(optimizer)


def _last_layer(tape: Tape) -> str:
    """The plain Linear that gives most, once in a step: that of the logits, if there is one."""
    most, name = 0, ""
    for unit in tape.units:
        size = sum(tape.bytes[number] for number in unit.outputs)
        if unit.parent is not None and may_be_chunked(unit.module) and size >= most and "several" not in unit.why:
            most, name = size, unit.name
    return name
