"""checkpoint_sequential(): a chain of modules within a byte budget.

The chain is measured once, module by module; the library's schedule says which modules keep what
backward needs, which inputs are kept, and what runs again when. The first run builds autograd's
graph with a :class:`_StageFrame` for each module that does not save; when backward asks one of its
holders for a value, the chain follows its schedule up to the step that saves this module.

Values that backward needs out of the schedule's order (a second backward pass, parts of the graph)
are recomputed from the nearest input that is kept.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from .._abi import ScheduleOperation as Operation
from ..schedule import Schedule
from ..sizes import Size
from . import _measure
from ._call_context import CallContext
from ._arguments import Arguments
from ._hooks import hooked
from .checkpointing import Frame, checkpoint, unpack, without_contexts

Stage = Callable[[torch.Tensor], torch.Tensor]


class _StageFrame(Frame):
    """A stage of a chain that is run again."""

    __slots__ = ("chain", "number")

    def __init__(self, chain: "_Chain", number: int) -> None:
        nothing, _ = without_contexts()
        stage, call_context = chain.stages[number], chain.contexts[number]
        super().__init__(stage, Arguments((), {}), call_context, nothing, chain.check, True)
        self.chain = chain
        self.number = number

    @property
    def name(self) -> str:
        stage: Any = self.function
        return "module %d of a chain (%s)" % (self.number, stage.name)

    def recompute(self, task: Any) -> Dict[int, torch.Tensor]:
        return self.chain.save(self.number, task)


class _Chain:
    """One run of a chain through a schedule."""

    def __init__(self, stages: Sequence[Stage], plan: Schedule, x: torch.Tensor, check: str, random: bool) -> None:
        self.stages = stages
        self.check = check
        self.steps = plan.steps
        self.next = next(n for n, (operation, _) in enumerate(plan.steps) if operation is Operation.BACKWARD)
        self.random = random
        #: What each stage met in the first run.
        self.contexts: List[CallContext] = []
        #: Whether its input needed a gradient.
        self.needs_gradient: List[bool] = []
        #: Of the stages that did not save. Autograd's graph holds them, and they hold the chain.
        self.frames: "weakref.WeakValueDictionary[int, _StageFrame]" = weakref.WeakValueDictionary()
        #: Inputs of stages by number, as they were when they were kept.
        self.inputs: Dict[int, _Kept] = {0: _Kept(x)}

    # --- first run ---

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for operation, number in self.steps[: self.next]:
            stage = self.stages[number]
            self.contexts.append(CallContext([x], self.random))
            self.needs_gradient.append(x.requires_grad)
            if operation is Operation.FORWARD_SAVE:
                x = _tensor(stage(x), number)
                continue
            if operation is Operation.FORWARD_KEEP:
                self.inputs[number] = _Kept(x)
            self.frames[number] = frame = _StageFrame(self, number)
            x = _tensor(hooked(frame.pack, unpack, stage, (x,), {}), number)
            frame.finish()
        return x

    # --- backward ---

    def save(self, number: int, task: Any) -> Dict[int, torch.Tensor]:
        """The saved tensors of a stage, after the schedule's steps up to it."""
        wanted = (Operation.FORWARD_SAVE, number)
        if task != -1 and wanted in self.steps[self.next :]:
            while True:
                operation, stage = self.steps[self.next]
                self.next += 1
                values = self._step(operation, stage, task)
                if (operation, stage) == wanted:
                    return values
        return self._out_of_order(number, task)

    def _step(self, operation: Operation, number: int, task: Any) -> Dict[int, torch.Tensor]:
        if operation is Operation.BACKWARD:
            self._drop(number)
            return {}
        x = self.inputs[number].value()
        frame = self.frames.get(number)
        values: Dict[int, torch.Tensor] = {}
        if operation is Operation.FORWARD_SAVE and frame is not None:
            # If its output is needed next, the run must reach its end.
            stop = self.steps[self.next][0] is Operation.BACKWARD
            x.requires_grad_(self.needs_gradient[number])
            values, result = frame.run_again(task, (x,), {}, stop)
            if stop:
                return values
        else:  # a frame without holders has nothing to fill
            result = self._run(number, x)
        if operation is Operation.FORWARD:
            del self.inputs[number]
        self.inputs[number + 1] = _Kept(result)
        return values

    def _run(self, number: int, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return _tensor(self.contexts[number].run(self.stages[number], x), number)

    def _drop(self, number: int) -> None:
        """After the backward of a stage nothing of it is needed in this pass."""
        self.inputs.pop(number + 1, None)
        if number > 0:
            self.inputs.pop(number, None)
        frame = self.frames.get(number)
        if frame is not None:
            frame.forget()

    def _out_of_order(self, number: int, task: Any) -> Dict[int, torch.Tensor]:
        start = max(i for i in self.inputs if i <= number)
        x = self.inputs[start].value()
        for i in range(start, number):
            x = self._run(i, x)
        x = x.detach().requires_grad_(self.needs_gradient[number])
        return self.frames[number].run_again(task, (x,), {}, True)[0]


class _Kept:
    """A value, and its version when it was kept: changes in place are found."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self.version = tensor._version

    def value(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                "checkpoint_sequential: a value that a module of the chain reads was changed in"
                " place after it was kept (version %d, expected %d)" % (self.tensor._version, self.version)
            )
        return self.tensor.detach()


def _tensor(value: Any, number: int) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            "checkpoint_sequential: module %d gives a %s; in a chain each takes one tensor and"
            " gives one" % (number, type(value).__name__)
        )
    return value


def checkpoint_sequential(
    functions: Union[torch.nn.Sequential, Sequence[Stage]],
    segments: Any,
    input: Any = None,
    use_reentrant: Optional[bool] = None,
    *,
    budget: Optional[Size] = None,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
) -> Any:
    """Runs a chain of modules so that its forward and backward fit a byte budget.

        y = checkpoint_sequential(model.blocks, x, budget="2GiB")

    With `budget` (bytes, or text such as "2GiB") the second argument is the input. The modules are
    measured at the first call for a shape of the input (a forward and a backward of each, whose
    gradients are discarded), and the fastest schedule is used. The budget covers the chain's
    values, what its modules save, and gradients of values; not parameters and their gradients. If
    it is too small, LimitReachedError names a sufficient one.

    Without `budget` this is torch's form: ``checkpoint_sequential(functions, segments, input)``
    cuts the chain into `segments` parts and checkpoints all but the last.

    Each module takes what the one before it gives: with a budget one tensor, else any one value,
    such as a tuple. `use_reentrant` has no effect.
    """
    stages: List[Any] = list(functions)
    if not stages:
        raise ValueError("checkpoint_sequential: the list of modules is empty")
    if budget is None:
        return _in_segments(stages, segments, input, preserve_rng_state, determinism_check)
    x = segments if input is None else input
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            "checkpoint_sequential: with a budget the second argument is the input, one tensor, as"
            " each module takes and gives, not a %s; bind what else they need (functools.partial),"
            " or give segments in place of the budget" % type(x).__name__
        )
    if not (x.is_cpu or x.is_cuda):
        raise TypeError(
            "checkpoint_sequential: the input is on %s; with a budget the modules are measured,"
            " which takes tensors on cpu or cuda" % x.device
        )
    if not torch.is_grad_enabled():
        return _plain(stages, x)
    stages, plan = _measure.plan(stages, x, budget)
    return _Chain(stages, plan, x, determinism_check, preserve_rng_state).forward(x)


def _plain(stages: Sequence[Stage], x: Any) -> Any:
    for stage in stages:
        x = stage(x)
    return x


def _in_segments(stages: List[Stage], segments: Any, x: Any, random: bool, check: str) -> Any:
    if not isinstance(segments, int) or x is None:
        raise TypeError(
            "checkpoint_sequential: give (functions, input, budget=…), or torch's (functions,"
            " segments, input); here segments is a %s, and input a %s" % (type(segments).__name__, type(x).__name__)
        )
    if segments < 1:
        raise ValueError("checkpoint_sequential: segments is %d; it must be at least 1" % segments)
    size = max(len(stages) // segments, 1)
    cuts = [size * i for i in range(min(segments, len(stages)))]
    for start, end in zip(cuts, cuts[1:]):
        x = checkpoint(_plain, stages[start:end], x, preserve_rng_state=random, determinism_check=check)
    return _plain(stages[cuts[-1] :], x)
