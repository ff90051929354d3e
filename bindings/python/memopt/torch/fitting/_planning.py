"""How a step is planned: recorded, solved, measured and corrected, and what else is tried below the floor."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

import torch

from ... import errors
from ...sizes import format_size
from .._native import shares_memory
from ..optim._release import GradientRelease
from ._choices import Planner, choices_of
from ._costs import CARD, CARD_LINK, LINK_BYTES, Costs, own_seconds
from ._otherwise import ALLOWED, Otherwise
from ._places import Cost, Place, cost_of_moving, disk_limit, ways_of
from ._planned import KINDS, Planned, spec_of
from ._refusal import at_peak, left_out
from ._runs import Runs, Tried
from ._states import state_bytes
from ._streaming import Streaming
from ._streams import Streamed

#: So many plans are measured; one that uses this part of the budget is enough.
MOST_CORRECTIONS, ENOUGH = 6, 0.985
#: Of models without values.
NOT_TRIED = Tried({}, set(), Costs(CARD))
Step = Callable[[], Any]


class Planning:
    """Of one model within one budget."""

    def __init__(
        self, model: torch.nn.Module, optimizer: Any, budget: int, host: Optional[int], disk: Place, allow: Sequence[str],
        method: str
    ) -> None:
        unknown = [name for name in allow if name not in ALLOWED]
        if unknown:
            known = ", ".join(map(repr, ALLOWED))
            raise ValueError("fit: allow=%r is not known; there are %s" % (unknown[0], known))
        self.budget = budget
        #: What release_gradients() gave, where that was allowed and needed.
        self.release: Optional[GradientRelease] = None
        #: What the first step took that was measured, weights and states included; None: nothing was.
        self.measured: Optional[int] = None
        #: What `allow` names and the budget asked for, and the layer or the states that it is about.
        self.done: Dict[str, str] = {}
        self._host, self._disk, self._allow = host, disk, allow
        self._model, self._optimizer = model, getattr(optimizer, "optimizer", optimizer)
        self._runs = Runs(model, method)
        self._streaming = Streaming(self)
        self._plans: Dict[str, Optional[Planned]] = {}
        self._now = Planned(None, 0, 0, 0, (), False, 0)
        self._key = ""
        self._tried: Dict[str, Tried] = {}
        self._margin = 0  # what kernels take beyond their tensors
        self._planning = False
        self._states = state_bytes(model, self._optimizer)
        self._settled, self._hook = False, None  # of the optimizer
        if hasattr(self._optimizer, "register_step_post_hook"):
            self._hook = self._optimizer.register_step_post_hook(self._stepped)
    def _plan(self, step: Step) -> Planned:
        """Records a step and plans it."""
        with self._only_backward():
            virtual = self._runs.is_virtual()
            tried = self._tried.get(self._key) or (NOT_TRIED if virtual else self._runs.try_forward(step))
            self._tried[self._key] = tried
            planner = self._planner(step, tried)
            planned = Planned(None, 0, 0, 0, (), planner.tape.gradients, 0)
            planned.planner, planned.tried = planner, tried
            try:
                self._solve(planned)
            except errors.LimitReachedError as error:
                if self._streaming.shrinks(planned, self.budget - self._states - self._margin, self._limits()):
                    self._solve(planned)
                else:
                    Otherwise(self, planned, step).find(error)
            else:
                if "stream" in self._allow:
                    self._streaming.if_quicker(planned, step)
            self._streaming.begin(planned)
            self._plans[self._key] = self._now = planned
            if self.measured is None and not virtual:
                self._correct(planned, step)
        return planned

    def _correct(self, planned: Planned, step: Step) -> None:
        """By what kernels take beyond their tensors, another amount in each plan. What is left for it in the end is
        more than `low`, which was too little, and at most `high`, which held. The quickest plan that held stays."""
        assert planned.planner is not None
        took = self._measure(planned, step)
        if took <= self.budget and not planned.choices:
            self.measured = took
            return
        low, high = -1, self.budget - planned.planner.solve(0, *self._limits()).peak - self._states + 1
        best: Optional[Tuple[float, int, int]] = None
        for _ in range(MOST_CORRECTIONS):
            own = max(took - planned.peak, 0)
            if took > self.budget:
                low = self._margin
            else:
                high = self._margin
                best = min(best or (math.inf, 0, 0), (planned.seconds, high, took))
            if high - low <= (1 if best is None else (1 - ENOUGH) * self.budget) or ENOUGH * self.budget <= took <= self.budget:
                break
            self._margin = own if low < own < high else high - 1 if best is None else (low + high) // 2
            self._solve(planned)
            took = self._measure(planned, step)
        margin, took = (max(took - planned.peak, 0), took) if best is None else best[1:]
        if margin != self._margin:
            self._margin = margin
            self._solve(planned)
            took = took if best is not None else self._measure(planned, step)
        self.measured = took
        if took > self.budget:
            warnings.warn(
                "fit: the measured step takes %s, and the budget is %s: in each plan kernels take another amount"
                " beyond their tensors" % (format_size(took), format_size(self.budget)),
                stacklevel=4,
            )

    def _planner(self, step: Step, tried: Tried) -> Planner:
        tape = self._runs.record(step, tried.costs)
        for unit in tape.units:
            if not unit.why and any((name + ".").startswith(unit.name + ".") for name in tried.counting):
                unit.why = "changes an attribute of its own"
        device = self._runs.device()
        ways = []
        if self._host is not None and not shares_memory(device):
            cost = Cost(0.0, CARD_LINK) if self._runs.is_virtual() else cost_of_moving(device)
            ways = ways_of(cost, self._host or LINK_BYTES, self._disk)
        streamed = Streamed(self._model, self._runs.would)
        parts = dict(self._model.named_modules())
        sizes = {name: sum(parts[name]._buffers[n].nbytes for n in names) for name, names in tried.moving.items()}
        choices = [c for c in choices_of(tape, sizes, device.type, ways) if not streamed.crosses(tape, c)]
        return Planner(tape, tape.fixed, choices)

    def _limits(self) -> Tuple[int, int]:
        """Of host and disk, for the solver; 0: no limit."""
        return self._host or 0, disk_limit(self._disk)

    def _solve(self, planned: Planned) -> None:
        """Chooses what holds the budget."""
        planner, beside, limits = planned.planner, self._states + self._margin, self._limits()
        assert planner is not None and planned.tried is not None
        planner, limits = self._streaming.placed(planner, self.budget - beside, limits)
        try:
            plan = planner.solve(max(self.budget - beside, 1), *limits)
        except errors.LimitReachedError as error:
            floor, fixed = planner.solve(0, *limits), planner.fixed + self._states
            raise errors.LimitReachedError(
                error.status,
                "fit: the budget is %s; the least is %s, of which %s are weights, states and the batch. %s%s"
                % (format_size(self.budget), format_size(floor.peak + beside), format_size(fixed),
                   at_peak(planner.tape, planner.replay(floor.chosen)), left_out(planner.tape)),
            ) from error
        planned.spec = spec_of(planner.tape, plan, planned.tried.moving, self._runs.variant.chunked)
        planned.choices = [(KINDS[choice.kind], choice.name) for choice in plan.choices]
        planned.plain = planner.replay(()).peak_bytes + self._states + self._streaming.off + planned.spared
        planned.peak, planned.host, planned.states = plan.peak + self._states, plan.host, self._states
        planned.disk = plan.disk
        hooks = own_seconds().saved * planner.tape.units[0].end if plan.choices else 0.0
        planned.seconds = plan.seconds + hooks

    def _measure(self, planned: Planned, step: Step) -> int:
        """What a step takes."""
        assert planned.planner is not None
        tape = planned.planner.tape
        return tape.fixed - tape.carried + self._states + self._runs.measure(step)

    def _stepped(self, *unused: Any) -> None:
        """The optimizer's first steps make its states."""
        if not self._settled:
            before, self._states = self._states, state_bytes(self._model, self._optimizer)
            self._settled = before == self._states

    @contextlib.contextmanager
    def _only_backward(self) -> Iterator[None]:
        """Meanwhile forwards are not planned, and the optimizer does not step."""

        def refuse(*unused: Any) -> None:
            raise TypeError("fit: step() called optimizer.step(); it must end with backward")

        hook = None if self._hook is None else self._optimizer.register_step_pre_hook(refuse)
        self._planning = True
        try:
            yield
        finally:
            self._planning = False
            if hook is not None:
                hook.remove()
