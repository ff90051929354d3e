"""fit(): a model's training step within a byte budget.

One step is recorded as a tape (_tape.py), on fake tensors where the model allows it (_runs.py). The
library replays it to the byte under choices (_choices.py) and finds those that hold the budget in
little time; _apply.py applies them by hooks (_recipes.py) and checkpoint(). Steps of other shapes
have plans of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch

from ... import errors
from ..._abi import FIT_NONE
from ..._interrupt import Interruptible
from ...sizes import Size, format_size, parse_size
from .._forward_call import ForwardCall
from .._native import shares_memory
from ..optim._layout import is_sharded
from ..optim._release import GradientRelease, release_gradients
from ._apply import Applied
from ._choices import OFFLOAD, RECOMPUTE, REMAKE, Plan, Planner, choices_of
from ._costs import link_speed, own_seconds
from ._runs import Runs, Tried
from ._states import bytes_in_8bit, may_be_8bit, state_bytes, to_8bit
from ._tape import BACKWARD, Tape, tensors_in

__all__ = ["Fit", "fit"]

FORMAT = 2
#: So often is a plan corrected by what its step was measured to take.
MOST_CORRECTIONS = 4
Step = Callable[[], Any]


def fit(
    model: torch.nn.Module,
    optimizer: Any = None,
    step: Optional[Step] = None,
    *,
    budget: Size,
    host: Optional[Size] = None,
    allow: Sequence[str] = (),
) -> "Fit":
    """Makes training steps of a model take at most `budget` bytes of its device; the bits stay the same.

        fit = mt.fit(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, budget="8GiB")
        print(fit.table())

    Each module is kept or run again in backward; each saved value is kept, made again by one cheap
    operation from other saved ones, or, with `host`, moved to host memory of so many bytes. What is
    chosen is what takes least time; nothing is changed where the step fits as it is.

    `step` runs the model and gives the loss, or calls backward() itself, after each micro-batch;
    `optimizer.step()` stays outside. It is called under torch.no_grad(), with fake tensors in place
    of the model's own, and once in earnest to correct the budget by what the kernels take beyond their
    tensors. Random states, buffers and gradients are as before afterwards. Without `step` the first
    training forward is planned as it comes; the model must give its loss.

    A forward of another shape is planned when it comes: `step` is called with that forward's arguments
    in place of its own. A warning says so. So is one that meets gradients for the first time. After the
    optimizer's first step what is left of the budget is planned anew. A step that saves other tensors than
    the planned one is right, too: what the plan does not know is kept, and a warning says so.

    LimitReachedError gives the least budget and what sets it; a later forward may raise it, too. `allow` names
    what may be done below that although it alters training: "8bit", the states of an AdamW, Adam, Lion or SGD of
    this package are in 8 bits from then on; "release", see :func:`release_gradients`, which then is `fit.release`.
    Clipping by all gradients and accumulating end with it.
    """
    unknown = [name for name in allow if name not in ("8bit", "release")]
    if unknown:
        raise ValueError("fit: allow=%r is not known; there are '8bit' and 'release'" % unknown[0])
    for name, part in model.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule":
            raise NotImplementedError("fit: module %r is compiled; pass the model before torch.compile" % name)
        sharded = [n for n, p in part.named_parameters(recurse=False) if is_sharded(p)]
        if sharded:
            raise NotImplementedError(
                "fit: parameter %s of %r is sharded (a DTensor), and a step on fake tensors would reduce over"
                " processes; use attach_checkpoint()" % (sharded[0], name)
            )
        if getattr(part, "gradient_checkpointing", False) is True:
            raise ValueError("fit: module %r checkpoints itself; call model.gradient_checkpointing_disable()" % name)
    if isinstance(vars(model).get("forward"), ForwardCall):
        raise ValueError("fit: the model has a plan; call remove() of its Fit first")
    made, limits = None, (parse_size(budget), None if host is None else parse_size(host))
    try:
        with Interruptible(patience=1):  # torch ends the process where a mode's function raises in C++'s "noexcept"
            made = Fit(model, optimizer, step, *limits, allow)
            if step is not None:
                made._plan(step)
    except BaseException:
        if made is not None:
            made.remove()
        raise
    return made


class _Planned:
    """What is done in forwards of one shape."""

    def __init__(
        self, spec: Any, plain: int, peak: int, host: int, choices: Any, gradients: bool, states: int, seconds: float = 0
    ) -> None:
        #: What Applied takes, what a step takes as it was and by the plan, and the time that this adds.
        self.spec, self.plain, self.peak, self.host, self.seconds = spec, plain, peak, host, seconds
        self.choices: List[Tuple[str, str]] = [(kind, name) for kind, name in choices]
        #: Whether it may meet gradients, and the bytes of optimizer states that it leaves room for.
        self.gradients, self.states = gradients, states
        self.planner: Optional[Planner] = None  # of a plan that was loaded
        self.tried: Optional[Tried] = None

    def facts(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("planner", "tried")}


class Fit:
    """Plans at work on a model, made by :func:`fit`. Not thread-safe."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        step: Optional[Step],
        budget: int,
        host: Optional[int] = None,
        allow: Sequence[str] = (),
        method: str = "forward",
    ) -> None:
        self.budget = budget
        #: What release_gradients() gave, where that was allowed and needed.
        self.release: Optional[GradientRelease] = None
        self._allow = allow
        #: What the first step took that was measured, weights and states included; None: nothing was.
        self.measured: Optional[int] = None
        self._host, self._step, self._method = host, step, method
        self._model, self._optimizer = model, getattr(optimizer, "optimizer", optimizer)
        self._runs, self._parameters = Runs(model, method), list(model.parameters())
        self._plans: Dict[str, Optional[_Planned]] = {}
        self._now = _Planned(None, 0, 0, 0, (), False, 0)
        self._key = ""
        self._tried: Dict[str, Tried] = {}
        self._margin = 0  # what kernels take beyond their tensors
        self._planning = False
        self._states = state_bytes(model, self._optimizer)
        self._settled, self._hook = False, None  # of the optimizer
        if hasattr(self._optimizer, "register_step_post_hook"):
            self._hook = self._optimizer.register_step_post_hook(self._stepped)
        self._applied = Applied(model, method, host or 0, self._spec_of)

    @property
    def plain_bytes(self) -> int:
        """What a step took as it was."""
        return self._now.plain

    @property
    def peak_bytes(self) -> int:
        """What it takes by the plan."""
        return self._now.peak

    @property
    def host_bytes(self) -> int:
        """What it takes of the host by the plan."""
        return self._now.host

    @property
    def choices(self) -> List[Tuple[str, str]]:
        """What is done, in the table's words."""
        return self._now.choices

    @property
    def seconds(self) -> float:
        """What that adds to a step's time by the plan."""
        return self._now.seconds

    @property
    def measured_seconds(self) -> float:
        """What the last step took to run and make things again; waits for it."""
        return self._applied.spent.seconds()

    @property
    def unplanned(self) -> int:
        """Forwards that saved other tensors than the planned ones."""
        return self._applied.unplanned

    def remove(self) -> None:
        """The model trains as before."""
        self._applied.remove()
        if self._hook is not None:
            self._hook.remove()
        if self.release is not None:
            self.release.remove()

    def table(self) -> str:
        """What is done in steps as the last one, and what it takes."""
        rows = [
            ("budget", format_size(self.budget)),
            ("as it was", format_size(self.plain_bytes)),
            ("planned", format_size(self.peak_bytes)),
            ("measured", "-" if self.measured is None else format_size(self.measured)),
            ("on the host", format_size(self.host_bytes)),
            ("more time", "%.3g ms planned, %.3g ms measured" % (1e3 * self.seconds, 1e3 * self.measured_seconds)),
            ("shapes", "%d, %d steps not as planned" % (len(self._plans), self.unplanned)),
            *self.choices,
        ]
        width = max(len(first) for first, _ in rows)
        return "\n".join("%-*s  %s" % (width, first, second) for first, second in rows)

    __str__ = table

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the plans as JSON; :meth:`load` applies them to a model of the same code."""
        plans = {key: planned.facts() for key, planned in self._plans.items() if planned is not None}
        facts = {"format": FORMAT, "budget": self.budget, "host": self._host, "measured": self.measured}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**facts, "margin": self._margin, "plans": plans}, file, indent=1)

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"], model: torch.nn.Module) -> "Fit":
        """Applies saved plans; nothing is measured. Other shapes are planned as without a step."""
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("fit: %s is not a plan of format %d" % (os.fspath(path), FORMAT))
        made = cls(model, None, None, found["budget"], found["host"])
        made.measured, made._margin = found["measured"], found["margin"]
        try:
            for key, facts in found["plans"].items():
                made._plans[key] = made._now = _Planned(**facts)
                made._applied.use(made._now.spec)
        except BaseException:
            made.remove()
            raise
        return made

    @staticmethod
    def for_trainer(budget: Size, host: Optional[Size] = None) -> Any:
        """A callback for the Trainer of transformers, whose training takes at most `budget` bytes."""
        from ._frameworks import trainer_callback

        return trainer_callback(lambda model, optimizer: fit(model, optimizer, budget=budget, host=host))

    @staticmethod
    def for_lightning(budget: Size, host: Optional[Size] = None) -> Any:
        """A callback for Lightning's Trainer, with automatic optimization."""
        from ._frameworks import lightning_callback

        limits = parse_size(budget), None if host is None else parse_size(host)
        return lightning_callback(lambda module, optimizer: Fit(module, optimizer, None, *limits, (), "training_step"))

    # --- forwards ---

    def _spec_of(self, args: Any, kwargs: Any) -> Optional[Dict[str, Any]]:
        """What the plan for a forward is; it is made where there is none."""
        key = self._key = _key_of(args, kwargs)
        planned = self._plans.get(key)
        if not self._planning and (self._model.training or not self._plans):
            gradients = any(p.grad is not None for p in self._parameters)
            if key not in self._plans or (planned is not None and gradients and not planned.gradients):
                planned = self._plan_anew(key, gradients, args, kwargs)
            elif planned is not None and planned.planner is not None and planned.states != self._states:
                try:
                    self._solve(planned)
                except errors.LimitReachedError:  # what is allowed may help
                    planned = self._plan_anew(key, gradients, args, kwargs)
        if planned is None:
            return None
        self._now = planned
        return planned.spec  # type: ignore[no-any-return]

    def _plan_anew(self, key: str, gradients: bool, args: Any, kwargs: Any) -> Optional[_Planned]:
        def step() -> Any:
            if self._step is None:
                return _loss_of(getattr(self._model, self._method)(*args, **kwargs))
            forward = own = self._model.forward
            self._model.forward = lambda *unused, **also: forward(*args, **kwargs)
            try:
                return self._step()
            finally:
                self._model.forward = own

        first, self._runs.gradients = not self._plans, gradients
        self._plans.pop(key, None)
        try:
            with Interruptible(patience=1):
                planned = self._plan(step)
            said = "was planned: %s of %s" % (format_size(planned.peak), format_size(self.budget))
        except Exception as error:
            if first or isinstance(error, errors.LimitReachedError):
                raise
            self._plans[key] = planned = None
            said = "cannot be planned (%s: %s), and keeps what it saves" % (type(error).__name__, error)
        if not first:
            with_gradients = " that adds to gradients" if gradients else ""
            warnings.warn("fit: a step of shapes %s%s %s" % (key, with_gradients, said), stacklevel=5)
        return planned

    def _plan(self, step: Step) -> _Planned:
        """Records a step and plans it."""
        with self._only_backward():
            tried = self._tried.get(self._key) or self._runs.try_forward(step)
            self._tried[self._key] = tried
            planner = self._planner(step, tried)
            planned = _Planned(None, 0, 0, 0, (), planner.tape.gradients, 0)
            planned.planner, planned.tried = planner, tried
            try:
                self._solve(planned)
            except errors.LimitReachedError as error:
                self._solve_otherwise(planned, step, error)
            self._plans[self._key] = self._now = planned
            if self.measured is None:
                self.measured = self._measure(planned, step)
                for _ in range(MOST_CORRECTIONS):
                    if self.measured > self.budget:
                        self._margin = self.measured - planned.peak  # of kernels, beyond their tensors
                        self._solve(planned)
                        self.measured = self._measure(planned, step)
                if self.measured > self.budget:
                    warnings.warn(
                        "fit: the measured step takes %s, and the budget is %s: in each plan kernels take another"
                        " amount beyond their tensors" % (format_size(self.measured), format_size(self.budget)),
                        stacklevel=3,
                    )
        return planned

    def _planner(self, step: Step, tried: Tried) -> Planner:
        tape = self._runs.record(step, tried.costs)
        for unit in tape.units:
            if not unit.why and any((name + ".").startswith(unit.name + ".") for name in tried.counting):
                unit.why = "changes an attribute of its own"
        device = self._runs.device()
        link = None if self._host is None or shares_memory(device) else link_speed(device)
        parts = dict(self._model.named_modules())
        sizes = {name: sum(parts[name]._buffers[n].nbytes for n in names) for name, names in tried.moving.items()}
        return Planner(tape, tape.fixed, choices_of(tape, sizes, device.type, link))

    def _solve_otherwise(self, planned: _Planned, step: Step, error: errors.LimitReachedError) -> None:
        """Below the floor: by what `allow` names. What it does not name, and would help, the error tells."""
        hints: Dict[str, int] = {}
        states, before, gradients = self._states, planned.planner, self._runs.releases or planned.gradients
        smaller = bytes_in_8bit(self._model, self._optimizer) if may_be_8bit(self._optimizer) else states
        eight, done = "8bit" in self._allow and smaller < states, False
        try:
            if eight:
                self._states = smaller
                try:
                    self._solve(planned)
                    to_8bit(self._optimizer)
                    done = True
                    return
                except errors.LimitReachedError as again:
                    error = again
            else:
                hints["8bit"] = states - smaller
            if not gradients:
                self._runs.releases = True
                lower = self._solve_released(planned, step)
                if lower is None:
                    if eight:
                        to_8bit(self._optimizer)
                    self.release, done = release_gradients(self._optimizer), True
                    return
                hints["release"] = lower
        except errors.LimitReachedError as again:
            error = again
        finally:
            if not done:
                self._runs.releases, planned.planner, self._states = self._runs.releases and gradients, before, states
        found = [". allow=(%r,) would lower the least by %s" % (name, format_size(n)) for name, n in hints.items() if n]
        raise errors.LimitReachedError(error.status, str(error) + "".join(found)) from error

    def _solve_released(self, planned: _Planned, step: Step) -> Optional[int]:
        """With gradients that are freed in backward; where that is not allowed, by how much it lowers the floor."""
        before, host = planned.planner, self._host or 0
        assert before is not None and planned.tried is not None
        planned.planner = self._planner(step, planned.tried)
        if "release" not in self._allow:
            return int(before.solve(0, host).peak - planned.planner.solve(0, host).peak)
        self._solve(planned)
        return None

    def _solve(self, planned: _Planned) -> None:
        """Chooses what holds the budget."""
        planner, beside, host = planned.planner, self._states + self._margin, self._host or 0
        assert planner is not None and planned.tried is not None
        try:
            plan = planner.solve(max(self.budget - beside, 1), host)
        except errors.LimitReachedError as error:
            floor, fixed = planner.solve(0, host), planner.fixed + self._states
            raise errors.LimitReachedError(
                error.status,
                "fit: the budget is %s; the least is %s, of which %s are weights, states and the batch. %s%s"
                % (format_size(self.budget), format_size(floor.peak + beside), format_size(fixed),
                   _at_peak(planner.tape, planner.replay(floor.chosen)), _left_out(planner.tape)),
            ) from error
        planned.spec = _spec(planner.tape, plan, planned.tried.moving)
        planned.choices = [(_KINDS[choice.kind], choice.name) for choice in plan.choices]
        planned.plain = planner.replay(()).peak_bytes + self._states
        planned.peak, planned.host, planned.states = plan.peak + self._states, plan.host, self._states
        hooks = own_seconds().saved * planner.tape.units[0].end if plan.choices else 0.0
        planned.seconds = plan.seconds + hooks

    def _measure(self, planned: _Planned, step: Step) -> int:
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


_KINDS = {RECOMPUTE: "run again", REMAKE: "made again", OFFLOAD: "to the host"}


def _key_of(args: Any, kwargs: Any) -> str:
    """What forwards of one plan agree in."""
    return " ".join("%s:%s" % ("x".join(map(str, t.shape)), str(t.dtype)[6:]) for t in tensors_in((args, kwargs)))


def _loss_of(result: Any) -> torch.Tensor:
    """The loss that a model gives."""
    if isinstance(result, dict):  # as outputs of transformers are
        result = result.get("loss")
    elif isinstance(result, tuple) and result:
        result = result[0]
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise TypeError("fit: without a step the model must give its loss, not a %s" % type(result).__name__)
    return result


def _at_peak(tape: Tape, result: Any) -> str:
    """What lives at a floor's peak."""
    kind = ["forward", "backward"][any(e[0] == BACKWARD for e in tape.events[: result.peak_event])]
    where = ""
    if result.peak_module != FIT_NONE:
        unit = tape.units[result.peak_module]
        where = ", in %s (%s)" % (unit.name, type(unit.module).__name__)
    largest = ""
    if result.peak_storage != FIT_NONE:
        looks = [pack.look for pack in tape.packs if pack.storage == result.peak_storage][:1]
        name = ", saved as %s %s" % (looks[0][3], "x".join(map(str, looks[0][0]))) if looks else ""
        largest = "; the largest tensor then has %s%s" % (format_size(tape.bytes[result.peak_storage]), name)
    return "That is reached in %s%s%s" % (kind, where, largest)


def _left_out(tape: Tape) -> str:
    """Which modules cannot run again although they have gradients, for the commonest reason."""
    names: Dict[str, List[str]] = {}
    for unit in tape.units:
        if unit.why.startswith(("takes", "changes")):
            names.setdefault(unit.why, []).append(unit.name)
    if not names:
        return ""
    why = max(names, key=lambda reason: len(names[reason]))
    hint = " (pass use_cache=False)" if "Cache" in why else ""
    more = " and %d more" % (len(names[why]) - 1) if len(names[why]) > 1 else ""
    return ". %s%s cannot run again: %s%s" % (names[why][0], more, why, hint)


def _spec(tape: Tape, plan: Plan, moving: Dict[str, List[str]]) -> Dict[str, Any]:
    """What Applied takes; plain data."""
    spec: Dict[str, Any] = {"modules": {}, "again": [], "graph": [], "host": []}
    looks = {pack.number: pack.look for pack in tape.packs}
    for choice in plan.choices:
        kind, what = choice.what
        if kind == "module":
            unit = tape.units[choice.module]
            buffers = [
                "%s.%s" % (name, buffer) if name else buffer
                for name, names in moving.items()
                for buffer in names
                if (name + ".").startswith(unit.name + ".")
            ]
            spec["modules"][what] = [unit.begin, unit.end, buffers]
        elif kind == "again":
            spec["again"].append(what)
        else:
            spec[kind] += [[number, looks[number]] for number in what]
    return spec
