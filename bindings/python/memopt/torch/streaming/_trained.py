"""Weights that are trained on the host: the store is the optimizer's parameters.

A gradient leaves the device as soon as backward has it. A step of any optimizer over these parameters
waits for the copies that read them; what it has changed is fetched again.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Set, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..optim import _pinned
from ..optim._lane import Lane
from ._layers import Layer, Layers
from ._parts import Part
from ._ranks import ranks
from ._stores import HostStore

_graph_task = torch._C._current_graph_task_id


class Master:
    """A trained parameter on the host."""

    def __init__(self, trained: "Trained", part: Part) -> None:
        self.part, self.trained = part, trained
        self.parameter = torch.nn.Parameter(trained.store.read(part))
        self._wire: Any = None  # for gradients from a GPU
        parameter: Any = part.parameter
        self.hook = parameter.register_post_accumulate_grad_hook(self._take)

    @torch.no_grad()
    def _take(self, p: torch.Tensor) -> None:
        """After backward has a gradient."""
        gradient, p.grad = p.grad, None
        if gradient is None or self.trained.of.trial:
            return
        before, lane = self.parameter.grad, self.trained.lane
        self.trained.will_reduce()
        if lane is None:
            self.parameter.grad = gradient if before is None else before.add_(gradient)
            return
        if before is not None:
            self.trained.arrived()
            gradient.add_(before.to(gradient.device))
        elif self._wire is None:
            self._wire = _pinned.like(self.parameter.detach(), gradient.dtype, gradient.device)
        lane.begin()
        lane.copy(self._wire if before is None else before, gradient)
        self.parameter.grad = self._wire if before is None else before
        self.trained.will_arrive()

    def __reduce__(self) -> Any:
        raise TypeError("stream_weights: parameters that are trained on the host are not copied; use state_dict()")


class Trained:
    """All of them."""

    def __init__(self, layers: Layers, store: HostStore, device: torch.device) -> None:
        self.of, self.store = layers, store
        self.lane = None if device.type == "cpu" else Lane(device)
        self._marks: Dict[int, Any] = {}  # of a backward, its copies
        self.layers: List[Tuple[Layer, List[Master]]] = []
        for layer in layers.all:
            masters = [Master(self, part) for part in layer.parts if part.parameter.requires_grad]
            self.layers.append((layer, masters))
        self._ranks = ranks()
        self._reduces: Set[int] = set()  # backwards, at whose end gradients are averaged
        if self._ranks is not None:
            self._ranks.same([master.parameter.detach() for master in self.masters()])
        self._versions = [self._version(masters) for _, masters in self.layers]
        self._theirs = {id(m.part.parameter): m.part.name for m in self.masters()}
        self._ours = {id(m.parameter) for m in self.masters()}
        self._writing = False
        this = weakref.ref(self)
        hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: _of(this)._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: _of(this)._end_writing()),
        ]
        self.end = weakref.finalize(self, _remove, hooks)

    def masters(self) -> List[Master]:
        """In the order of the layers."""
        return [master for _, masters in self.layers for master in masters]

    def remove(self) -> None:
        """Gradients are the model's again."""
        self.end()
        self._end_writing()
        for master in self.masters():
            master.hook.remove()
            if master.parameter.grad is not None:
                master.part.parameter.grad = master.parameter.grad.to(master.part.parameter.device)

    # --- the host's changes ---

    @staticmethod
    def _version(masters: List[Master]) -> int:
        return sum(master.parameter._version for master in masters)

    def settle(self) -> None:
        """Notes which layers have new weights."""
        self._end_writing()
        for number, (layer, masters) in enumerate(self.layers):
            version = self._version(masters)
            if version != self._versions[number]:
                self._versions[number] = version
                layer.is_old = True
                layer.generation += 1

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of some optimizer begins."""
        mine = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in self._theirs:
                    raise RuntimeError(
                        "stream_weights: the optimizer has %s itself, whose weights and gradient are on the host; give"
                        " it the parameters() of the stream, and the model's other trained ones" % self._theirs[id(p)]
                    )
                mine = mine or id(p) in self._ours
        if mine:
            self.arrived()
            self._writing = True
            self.store.writing((m.part for m in self.masters()), True)

    def _end_writing(self) -> None:
        if self._writing:
            self.store.writing((m.part for m in self.masters()), False)
            self._writing = False

    # --- gradients of several processes ---

    def will_reduce(self) -> None:
        """Backward ends with the mean of its gradients over all processes."""
        task = _graph_task()
        if self._ranks is not None and task not in self._reduces:
            self._reduces.add(task)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._reduce)

    def _reduce(self) -> None:
        self._reduces.clear()
        self.arrived()
        assert self._ranks is not None
        self._ranks.average([master.parameter for master in self.masters()])

    # --- gradients of a GPU ---

    def will_arrive(self) -> None:
        """Backward ends when its gradients are on the host."""
        task = _graph_task()
        if task not in self._marks:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.arrived)
        assert self.lane is not None
        self._marks[task] = self.lane.mark()

    def arrived(self) -> None:
        """Waits for them."""
        marks, self._marks = self._marks, {}
        for mark in marks.values():
            self.lane.wait(mark)  # type: ignore[union-attr]


def _of(this: "weakref.ref[Trained]") -> Trained:
    found = this()
    assert found is not None
    return found


def _remove(hooks: List[Any]) -> None:
    for hook in hooks:
        hook.remove()
