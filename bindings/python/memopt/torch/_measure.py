"""What each module of a chain takes, and the schedule for it; both are remembered."""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from .. import schedule
from ..schedule import Schedule
from ..sizes import Size, parse_size
from ._call_context import CallContext
from ._live_bytes import LiveBytes

Function = Callable[[torch.Tensor], torch.Tensor]


class _Measured(NamedTuple):
    """The stages of a chain (modules that work in place joined to those before), and their costs."""

    modules: Tuple["weakref.ref[Any]", ...]
    stages: List[Any]
    costs: List[schedule.Stage]
    plans: Dict[int, Schedule]


_known: Dict[Any, _Measured] = {}


def plan(modules: Sequence[Function], x: torch.Tensor, budget: Size) -> Tuple[Any, Schedule]:
    """The stages and their fastest schedule for inputs like `x` within a budget."""
    limit = parse_size(budget)
    key = _key(modules, x)
    found = _known.get(key)
    if found is None or any(r() is not m for r, m in zip(found.modules, modules)):
        _forget_dead()
        stages, costs = _measure(modules, x)
        # Stages hold modules only if several are joined: otherwise a dead chain would stay alive.
        found = _known[key] = _Measured(tuple(map(_reference, modules)), stages, costs, {})
    made = found.plans.get(limit)
    if made is None:
        made = found.plans[limit] = Schedule(found.costs, limit, input_bytes=_bytes(x), input_gradient=x.requires_grad)
    return [_Joined([modules[i] for i in group]) for group in found.stages], made


def _reference(module: Any) -> Any:
    try:
        return weakref.ref(module)
    except TypeError:  # a bound method or a builtin: kept, so that its id stays its own
        return lambda: module


def _forget_dead() -> None:
    for key in [k for k, m in _known.items() if any(r() is None for r in m.modules)]:
        del _known[key]


def _key(modules: Sequence[Function], x: torch.Tensor) -> Any:
    return (
        tuple(map(id, modules)),
        tuple(getattr(module, "training", None) for module in modules),
        tuple(p.requires_grad for p in _parameters(modules)),
        x.shape,
        x.dtype,
        x.device,
        x.requires_grad,
        torch.is_autocast_enabled(x.device.type),
        torch.get_autocast_dtype(x.device.type),
    )


class _Joined:
    """Modules that run as one stage."""

    __slots__ = ("modules",)

    def __init__(self, modules: Sequence[Any]) -> None:
        self.modules = modules

    def __call__(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x

    @property
    def name(self) -> str:
        """For messages."""
        return " + ".join(type(module).__qualname__ for module in self.modules)


def _measure(modules: Sequence[Function], x: torch.Tensor) -> Tuple[List[List[int]], List[schedule.Stage]]:
    """Groups of numbers of modules, and their costs. Nothing of the model is changed."""
    here = CallContext([x], True)
    return here.run(_measure_here, modules, x.detach())  # type: ignore[no-any-return]


def _measure_here(modules: Sequence[Function], x: torch.Tensor) -> Tuple[List[List[int]], List[schedule.Stage]]:
    with _buffers_kept(modules):
        groups = _groups(modules, x)
        costs = []
        for number, group in enumerate(groups):
            stage = _Joined([modules[i] for i in group])
            cost, x = _measure_stage(stage, x, number)
            costs.append(cost)
    return groups, costs


def _groups(modules: Sequence[Function], x: torch.Tensor) -> List[List[int]]:
    """A module that changes its input in place can only run again together with the one before."""
    groups: List[List[int]] = []
    with torch.no_grad():
        x = x.clone()
        for number, module in enumerate(modules):
            version = x._version
            result = module(x)
            if not isinstance(result, torch.Tensor):
                raise TypeError(
                    "checkpoint_sequential: module %d gives a %s; in a chain each takes one tensor"
                    " and gives one" % (number, type(result).__name__)
                )
            if groups and x._version != version:
                groups[-1].append(number)
            else:
                groups.append([number])
            x = result
    return groups


def _measure_stage(stage: _Joined, x: torch.Tensor, number: int) -> Tuple[schedule.Stage, torch.Tensor]:
    parameters = [p for p in _parameters(stage.modules) if p.requires_grad]
    known = list(_tensors(stage.modules)) + [x]
    needs = x.is_floating_point() or x.is_complex()
    best = [float("inf"), float("inf")]
    for _ in range(2):  # the first run warms caches
        inputs = x.detach().requires_grad_(needs)
        run = _Run(stage, inputs, parameters, known)
        best = [min(pair) for pair in zip(best, (run.forward_seconds, run.backward_seconds))]
    output = _bytes(run.output)
    saved = max(run.saved_bytes, output)
    gradients = output + (_bytes(x) if needs else 0)
    return (
        schedule.Stage(
            best[0],
            best[1],
            output,
            saved,
            max(run.forward_peak - saved, 0),
            max(run.backward_peak - saved - gradients, 0),
        ),
        run.output,
    )


class _Run:
    """A forward and a backward of a stage, measured. Parameters' gradients are not counted."""

    def __init__(
        self, stage: _Joined, x: torch.Tensor, parameters: List[torch.Tensor], known: List[torch.Tensor]
    ) -> None:
        storages = {tensor.untyped_storage()._cdata for tensor in known}
        saved: Dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in storages:
                    saved[storage._cdata] = storage.nbytes()
            return tensor

        with LiveBytes(known) as live:
            with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
                start = _now(x)
                result = stage(x)
                self.forward_seconds = _now(x) - start
            saved[result.untyped_storage()._cdata] = result.untyped_storage().nbytes()
            self.forward_peak = live.peak
            self.output = result.detach()
            self._backward(result, x, parameters, live)
        self.saved_bytes = sum(saved.values())

    def _backward(self, result: torch.Tensor, x: torch.Tensor, parameters: List[torch.Tensor], live: Any) -> None:
        self.backward_seconds, self.backward_peak = 0.0, 0
        wanted = [t for t in [x, *parameters] if t.requires_grad]
        if not result.requires_grad or not wanted:
            return
        hooks = [_on_gradient(p, live.leave_out) for p in parameters]
        gradient = torch.ones_like(result)
        live.peak = live.live
        start = _now(x)
        torch.autograd.grad(result, wanted, gradient, allow_unused=True)
        self.backward_seconds = _now(x) - start
        self.backward_peak = live.peak
        for hook in hooks:
            hook.remove()


def _on_gradient(tensor: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    return tensor.register_hook(function)  # type: ignore[no-untyped-call]


def _now(x: torch.Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensors(modules: Sequence[Any]) -> Iterator[torch.Tensor]:
    for module in modules:
        if isinstance(module, torch.nn.Module):
            yield from module.parameters()
            yield from module.buffers()


def _parameters(modules: Sequence[Any]) -> Iterator[torch.Tensor]:
    for module in modules:
        if isinstance(module, torch.nn.Module):
            yield from module.parameters()


class _buffers_kept:
    """Puts the buffers of modules back, such as the running averages of batch norm."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._buffers = [
            (b, b.clone()) for module in modules if isinstance(module, torch.nn.Module) for b in module.buffers()
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *unused: Any) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
