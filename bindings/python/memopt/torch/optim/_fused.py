"""Steps of the library over many parameters at once, as parts of rules that it does not have: one call
brings moments up to date and writes what they say into scratch memory (or into the parameters).

Scratch memory is one fp32 tensor for each device and use, as large as the largest batch. More than 16 MiB are
there during a step only. A batch is of many small parameters, so a model of them costs few calls.
"""

from __future__ import annotations

import operator
import os
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format
from ._binding import Executor, Slot
from ._facts import Facts
from ._whole import Task

#: Elements of a batch of small parameters: 16 MiB of scratch memory.
BATCH = 1 << 22

Values = Tuple[Tuple[str, Any], ...]


class Run(NamedTuple):
    """A parameter of a batch."""

    place: int
    task: Task
    parameter: torch.Tensor
    gradient: torch.Tensor
    state: _format.State


def whole(task: Task) -> Run:
    """A task as a part of a batch."""
    return Run(task.place, task, task.parameter, task.gradient, task.state)


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

    def run(self, gradients: Sequence[torch.Tensor], values: Sequence[Values], facts: Facts, rule: str) -> None:
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
        self._views: Dict[Tuple[str, Tuple[int, ...]], Tuple[List[torch.Tensor], List[torch.Tensor]]] = {}
        self._parts: Dict[Tuple[str, Tuple[int, ...]], Part] = {}
        self._process = os.getpid()

    def scratch(self, use: str, batch: Sequence[Run]) -> List[torch.Tensor]:
        """An fp32 tensor of zeros for each run, with its shape and the order of memory of its states. It is
        there until release()."""
        if not batch:
            return []
        total = sum(run.parameter.numel() for run in batch)
        room = self._room(batch[0].parameter.device, use, total).zero_()
        key, parameters = (use, tuple(run.place for run in batch)), [run.parameter for run in batch]
        before, views = self._views.get(key, ([], []))
        if len(before) != len(parameters) or not all(map(operator.is_, before, parameters)):
            views, start = [], 0
            for parameter in parameters:
                outline = torch.empty_like(parameter, device="meta")
                views.append(torch.as_strided(room, outline.shape, outline.stride(), start))
                start += outline.numel()
            self._views[key] = parameters, views
        return views

    def _room(self, device: torch.device, use: str, count: int) -> torch.Tensor:
        """As large as ever needed, so that the next steps find it at one address."""
        room, most = self._rooms.get((device, use), (torch.empty(0, device=device), 0))
        self._rooms[device, use] = room, max(most, count)
        storage = room.untyped_storage()
        if storage.nbytes() < count * 4:
            storage.resize_(max(most, count) * 4)
        return torch.as_strided(room, (count,), (1,), 0)

    def release(self) -> None:
        """Frees large scratch memory, whose tensors stay. Small one keeps its address, which parts are bound to."""
        for room, most in self._rooms.values():
            if most > BATCH:
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
        key = (use, tuple(run.place for run in batch))
        known = self._parts.get(key)
        if known is None or not known.is_of(states, targets):
            known = self._parts[key] = Part(kind, format_, states, targets)
        return known


def of(optimizer: Any) -> Parts:
    """The optimizer's, which copies and pickles do not have."""
    parts: Parts = optimizer.__dict__.setdefault("_parts", Parts())
    return parts
