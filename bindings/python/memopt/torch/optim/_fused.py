"""Steps of the library over many parameters at once, as parts of rules that it does not have: one call
brings moments up to date and writes what they say into scratch memory (or into the parameters).

Scratch memory is one fp32 tensor for each device and use, as large as the largest batch, and there during a
step only. A batch is of many small parameters, so a model of them costs few calls.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _layout
from ._binding import Executor, Facts, Slot
from ._whole import Task

Values = Tuple[Tuple[str, Any], ...]
#: Elements of 8-bit states that share a scale.
BLOCK = 256


class Run(NamedTuple):
    """Consecutive elements of a parameter, in the order of memory, or all of it."""

    key: Tuple[int, int]  # the parameter's place, and the first element
    task: Task
    parameter: torch.Tensor
    gradient: torch.Tensor
    state: _format.State


def whole(task: Task) -> Run:
    """All of a parameter."""
    return Run((task.place, 0), task, task.parameter, task.gradient, task.state)


def cut(task: Task, most: int, moments: Sequence[str], scales: Sequence[str]) -> Iterator[Run]:
    """The runs of a parameter that is dense, in whole blocks. The state's count stays the task's."""
    if task.parameter.numel() <= most or not _layout.is_dense(task.parameter):
        yield whole(task)
        return
    gradient = task.gradient
    if gradient.stride() != task.parameter.stride():
        gradient = _layout.like(task.parameter, gradient.dtype).copy_(gradient)
    flat = _layout.flat(task.parameter.detach()), _layout.flat(gradient)
    state = {key: _layout.flat(task.state[key]) for key in moments}
    most = -(-most // BLOCK) * BLOCK
    for start in range(0, flat[0].numel(), most):
        here = slice(start, start + most)
        part = {key: value[here] for key, value in state.items()}
        blocks = slice(start // BLOCK, -(-here.stop // BLOCK))
        part.update({key: task.state[key][blocks] for key in scales if key in task.state})
        yield Run((task.place, start), task, flat[0][here], flat[1][here], part)


def batches(runs: Iterable[Run], most: int) -> Iterator[List[Run]]:
    """Neighbours of one device, of at most so many elements together, or one."""
    batch: List[Run] = []
    count = 0
    for run in runs:
        count += run.parameter.numel()
        if batch and (count > most or run.parameter.device != batch[0].parameter.device):
            yield batch
            batch, count = [], run.parameter.numel()
        batch.append(run)
    if batch:
        yield batch


class Part:
    """A rule of the library on the states of a batch: an executor with a group for each parameter."""

    def __init__(
        self,
        kind: OptimizerKind,
        format_: StateFormat,
        states: Sequence[_format.State],
        targets: Sequence[torch.Tensor],
    ) -> None:
        self._addresses = _addresses(states, targets)
        slots = [
            Slot(i, i, "a parameter", target, target, False, state, state["step"])
            for i, (state, target) in enumerate(zip(states, targets))
        ]
        key = (targets[0].device, False, 0, False)
        self._executor = Executor(kind, format_, key, len(slots), slots, 0)

    def is_of(self, states: Sequence[_format.State], targets: Sequence[torch.Tensor]) -> bool:
        """Whether it was made for these tensors, where they are now."""
        return self._addresses == _addresses(states, targets)

    def run(
        self,
        gradients: Sequence[torch.Tensor],
        values: Sequence[Values],
        facts: Facts,
        rule: str,
    ) -> None:
        """One step; `values` by parameter, the learning rate first."""
        self._executor.set_groups(values)
        kept = self._executor.gradients(gradients, rule)
        self._executor.step(facts)
        del kept


def _addresses(states: Sequence[_format.State], targets: Sequence[torch.Tensor]) -> List[int]:
    tensors = (*targets, *(t for state in states for t in state.values()))
    return [tensor.data_ptr() for tensor in tensors]


class Parts:
    """The parts of an optimizer and their scratch memory."""

    def __init__(self) -> None:
        self._rooms: Dict[Tuple[torch.device, str], Tuple[torch.Tensor, int]] = {}
        self._parts: Dict[Tuple[str, Tuple[Tuple[int, int], ...]], Part] = {}
        self._process = os.getpid()

    def counts(self, use: str, batch: Sequence[Run], steps: Sequence[int]) -> List[torch.Tensor]:
        """Counts of so many steps, for as long as scratch memory."""
        room = self._room(batch[0].parameter.device, use, torch.int64, len(steps))
        room[:] = torch.tensor(steps)
        return list(room.unbind())

    def scratch(self, use: str, batch: Sequence[Run]) -> List[torch.Tensor]:
        """An fp32 tensor for each run, with its shape and the order of memory of its states. It is
        there until release()."""
        if not batch:
            return []
        total = sum(run.parameter.numel() for run in batch)
        room = self._room(batch[0].parameter.device, use, torch.float32, total)
        views, start = [], 0
        for run in batch:
            outline = torch.empty_like(run.parameter, device="meta")
            views.append(torch.as_strided(room, outline.shape, outline.stride(), start))
            start += outline.numel()
        return views

    def _room(self, device: torch.device, use: str, dtype: torch.dtype, count: int) -> torch.Tensor:
        """As large as ever needed, so that the next steps find it at one address."""
        room, most = self._rooms.get((device, use), (torch.empty(0, dtype=dtype, device=device), 0))
        self._rooms[device, use] = room, max(most, count)
        storage = room.untyped_storage()
        if storage.nbytes() < count * dtype.itemsize:
            storage.resize_(max(most, count) * dtype.itemsize)
        return torch.as_strided(room, (count,), (1,), 0)

    def release(self) -> None:
        """Frees the scratch memory, whose tensors stay: between steps there is none."""
        for room, _ in self._rooms.values():
            room.untyped_storage().resize_(0)

    def part(
        self,
        use: str,
        batch: Sequence[Run],
        kind: OptimizerKind,
        format_: StateFormat,
        states: Sequence[_format.State],
        targets: Sequence[torch.Tensor],
    ) -> Part:
        """The part for these tensors: the last one if they lie where they did."""
        if os.getpid() != self._process:  # a child's handles are the parent's
            self._parts, self._process = {}, os.getpid()
        key = (use, tuple(run.key for run in batch))
        known = self._parts.get(key)
        if known is None or not known.is_of(states, targets):
            known = self._parts[key] = Part(kind, format_, states, targets)
        return known


def of(optimizer: Any) -> Parts:
    """The optimizer's, which copies and pickles do not have."""
    parts: Parts = optimizer.__dict__.setdefault("_parts", Parts())
    return parts


def is_in_place(run: Run) -> bool:
    """Whether the parameter's memory holds what states are in the order of, in fp32."""
    return run.parameter.dtype is torch.float32 and _layout.is_dense(run.parameter)
