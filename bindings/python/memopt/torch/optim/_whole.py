"""Rules by torch's operations, one parameter after another, so that the temporaries are those of one:
those whose step of a parameter needs all of it, such as Muon.

The arithmetic is in fp32; a half-precision parameter is rounded once a step. To the modules that
read and write states these optimizers are SGDs; groups tell them apart in state dicts.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..._abi import OptimizerKind
from ..cast import cast_
from . import _format, _layout
from ._base import Member, MemoptOptimizer, _out_of_graphs
from ._facts import Facts, factor_of, is_skipped

#: By which seeds of one parameter, and of one step, differ: odd, so that none comes twice.
_STRIDES = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)

#: Elements of a piece of a parameter, by the type of the device: of a cache; enough to fill a GPU.
PIECE = {"cpu": 1 << 18, "cuda": 1 << 24}


class Task(NamedTuple):
    """A parameter to step."""

    place: int  # among all parameters
    parameter: torch.Tensor  # what this process has of it
    gradient: torch.Tensor
    state: _format.State
    group: Dict[str, Any]
    owner: torch.Tensor  # the parameter, perhaps sharded


class WholeOptimizer(MemoptOptimizer):
    """What such rules have in common."""

    _kind: OptimizerKind = OptimizerKind.SGD
    _by_pieces = False
    _takes_flattened = False
    _takes_shards = False  # all processes take part in a step of a sharded parameter
    _step_supports_amp_scaling = False  # GradScaler unscales, checks and skips by itself

    def _check_member(self, parameter: torch.Tensor, group: Dict[str, Any], name: str) -> None:
        super()._check_member(parameter, group, name)
        self._check_whole(parameter, name)

    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        """Refuses a parameter of which this process has a part only."""
        if _layout.is_sharded(parameter) and not self._takes_shards:
            raise TypeError("%s is sharded (a DTensor); %s needs whole parameters" % (name, type(self).__name__))

    def _own_state(self, one: Member) -> _format.State:
        """The parameter's state, which is added to `made` if it is new."""
        state = self._state_for(one)
        assert state is not None
        return state

    def _step_task(self, task: Task) -> None:
        raise NotImplementedError

    def _step_tasks(self, tasks: List[Task], facts: Facts) -> None:
        """Steps all of them: the gradients are to be unscaled and clipped by the facts."""
        factor = factor_of(facts)
        for task in tasks:
            if factor != 1.0:
                task = task._replace(gradient=task.gradient.float() * factor)
            self._step_task(task)

    @_out_of_graphs
    def _step(self, params: Sequence[torch.Tensor], grads: Sequence[Optional[torch.Tensor]], facts: Facts) -> None:
        """Everything is checked first; then states are made where there are none."""
        if is_skipped(facts):
            return
        places = [(g, i) for g, own in enumerate(self.param_groups) for i in range(len(own["params"]))]
        made: Dict[torch.Tensor, _format.State] = {}
        tasks: Dict[torch.Tensor, Task] = {}
        for place, (parameter, gradient) in enumerate(zip(params, grads)):
            if gradient is not None and parameter not in tasks:
                tasks[parameter] = self._task(place, *places[place], gradient, made)
        self.state.update(made)
        stepped = [task for task in tasks.values() if task.parameter.numel() or _layout.is_sharded(task.owner)]
        self._step_tasks(stepped, facts)
        for task in stepped:
            copy = self._model_copies.get(task.owner)
            if copy is not None:
                round_to(task, copy.detach(), task.parameter.detach())

    def _step_alone(self, place: int, gradient: torch.Tensor, facts: Facts) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        self._step(params, [gradient if i == place else None for i in range(len(params))], facts)

    def _task(
        self, place: int, g: int, index: int, gradient: torch.Tensor, made: Dict[torch.Tensor, _format.State]
    ) -> Task:
        """A parameter with its state, which is added to `made` if it is new."""
        group = self.param_groups[g]
        parameter = group["params"][index]
        name = _layout.name_of(group, g, index)
        every: Dict[int, Tuple[Task, List[int]]] = self.__dict__.setdefault("_tasks", {})
        if place in every:  # the last step's, if it is still as it was
            last, where = every[place]
            same = last.parameter is parameter and last.group is group and self.state.get(parameter) is last.state
            if same and _addresses(last) == where:
                _layout.check_gradient(gradient, parameter, name, type(self).__name__)
                return last._replace(gradient=gradient)
        self._check_whole(parameter, name)
        memory, own = self._memory_of(parameter, gradient, name), _layout.local(gradient)
        if not (memory.numel() or _layout.is_sharded(parameter)):
            return Task(place, memory, own, {}, group, parameter)
        state = self._own_state(Member(parameter, _layout.dense(memory.detach()), group, name, made))
        task = Task(place, memory, own, state, group, parameter)
        every[place] = task._replace(gradient=memory), _addresses(task)
        return task


def _addresses(task: Task) -> List[int]:
    return [tensor.data_ptr() for tensor in (task.parameter, *task.state.values())]


class Wide:
    """A parameter's values in fp32 for a step by pieces: its own where it is contiguous and fp32, else
    copies of pieces, which are rounded as they are stored. Where the parameter is not contiguous, and for
    stochastic rounding, whose random numbers go by place, one copy of all that finish() rounds."""

    def __init__(self, task: Task, shape: Sequence[int]) -> None:
        self._task, parameter = task, task.parameter
        self._apart = bool(task.group["stochastic_rounding"]) or not parameter.is_contiguous()
        self._exact = parameter.float().contiguous() if self._apart else parameter
        self._values = self._exact.view(shape)
        self._room: Optional[torch.Tensor] = None

    def piece(self, here: Any) -> torch.Tensor:
        """Some values, which may be changed until the next piece is taken."""
        part = self._values[here]
        if part.dtype is torch.float32:
            return part
        if self._room is None or self._room.numel() < part.numel():
            self._room = part.new_empty(part.numel(), dtype=torch.float32)
        return room_for(part, self._room).copy_(part)

    def store(self, here: Any, values: torch.Tensor) -> None:
        """Keeps what piece() gave and the step changed."""
        if self._values.dtype is not torch.float32:
            self._values[here].copy_(values)

    def finish(self) -> None:
        """Counts the step."""
        write(self._task, self._exact if self._apart else self._task.parameter)


def room_for(like: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """The begin of a flat tensor in the shape of another one."""
    return room[: like.numel()].view(like.shape)


def write(task: Task, exact: torch.Tensor) -> None:
    """Counts the step and writes the new values, rounded, unless they are the parameter itself."""
    task.state["step"].add_(1)
    if exact is not task.parameter:
        round_to(task, task.parameter, exact)


def round_to(task: Task, into: torch.Tensor, exact: torch.Tensor) -> None:
    """Writes the values of a step that is counted, rounded as the group says."""
    if task.group["stochastic_rounding"] and into.dtype is not torch.float32:
        cast_(into, exact, "stochastic", _random_seed(task))
    else:
        into.copy_(exact)


def _random_seed(task: Task) -> int:
    """A seed of its own for every parameter and step."""
    step = _format.steps_taken(task.state["step"])
    return (int(task.group["seed"]) + step * _STRIDES[0] + task.place * _STRIDES[1]) % (1 << 64)
