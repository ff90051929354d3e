"""Runs of a step that leave everything as it was: on fake tensors, where only shapes and types are
known and nothing is allocated, or on the model's own values.

Other tensors stand for the parameters meanwhile. So gradients and hooks of the real ones (a DDP's,
steps in backward) see nothing of it.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from .._fakes import not_packed
from .._live_bytes import LiveBytes
from ..streaming._parts import Part
from ._costs import Costs, dropping
from ._loss import chunked
from ._streams import Streamed, bring
from ._tape import Tape, around_forwards, record, run, tensors_in

#: So many forwards are timed where others disturb them.
MOST_FORWARDS = 6
#: What a step raises that needs values.
REFUSALS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
Moving = Dict[str, List[str]]


class Tried(NamedTuple):
    """What forwards tell."""

    #: Buffers whose contents a forward changes, by module.
    moving: Moving
    #: Modules whose attributes it changes.
    counting: Set[str]
    costs: Costs


class Variant(NamedTuple):
    """What is recorded in place of the step as it is."""

    #: The Linear whose cross-entropy is made in pieces; "": none.
    chunked: str = ""
    #: Gradients are freed in backward, and weights of 32 bits have 16.
    releases: bool = False
    split: bool = False


class NotRecordedError(RuntimeError):
    """A variant cannot be recorded: which, and why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class Runs:
    """A model's steps. `method`: what is called once in a step, "forward" or Lightning's "training_step"."""

    def __init__(self, model: torch.nn.Module, method: str) -> None:
        self.model, self.method = model, method
        #: The parameters have gradients before the step.
        self.gradients = False
        self.variant = Variant()
        #: A Candidate: layers that would stream.
        self.would: Any = None

    def device(self) -> torch.device:
        """Of the model."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def is_virtual(self) -> bool:
        """Whether the model has no values: it is on the meta device."""
        return any(p.is_meta for p in self.model.parameters())

    def record(self, step: Callable[[], Any], costs: Costs) -> Tape:
        """The tape of a step."""
        if self.variant.split:  # fakes may take weights of 16 bits where kernels do not
            try:
                with self._unchanged(), self._stand_ins(_alias_of, Streamed(self.model)), dropping():
                    _losses(step)
            except RuntimeError as error:
                raise NotRecordedError("split", "with weights in bf16 the step raises: %s" % error) from error
        recurrent = any(isinstance(module, torch.nn.RNNBase) for module in self.model.modules())
        streamed = Streamed(self.model, self.would)
        if streamed.has_fakes and (not recurrent or self.device().type != "cpu"):  # there fakes take other operations
            mode, random = FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[])
            try:
                with self._unchanged(), mode, self._stand_ins(_fake_of, streamed), not_packed(), random:
                    return self._record(step, costs, streamed, streamed.arenas + streamed.absent)
            except REFUSALS as error:  # it needs values
                if self.is_virtual():
                    raise NotImplementedError(
                        "fit: the model is on the meta device, and its step needs values, as a loop over the experts that"
                        ' tokens chose (transformers: experts_implementation="grouped_mm" has none); plan it with its'
                        " weights: %s" % error
                    ) from error
        with self._unchanged(), self._stand_ins(_alias_of, streamed):
            return self._record(step, costs, streamed, streamed.arenas)

    def _record(self, step: Callable[[], Any], costs: Costs, streamed: Streamed, nbytes: int) -> Tape:
        given = self.model, step, self.method, costs, streamed.is_weight, nbytes
        if not self.variant.chunked:
            return record(*given)
        with chunked(self.model.get_submodule(self.variant.chunked)) as told:
            tape = record(*given)
        whole = [name for name in told if name]
        if whole or not told:
            use = "%s needs all of" % whole[0] if whole else "no cross-entropy takes"
            raise NotRecordedError("chunked_loss", "%s what %s gives" % (use, self.variant.chunked))
        for unit in tape.units:
            if (self.variant.chunked + ".").startswith(unit.name + "."):
                unit.why = "has the loss in pieces"
        return tape

    def measure(self, step: Callable[[], Any]) -> int:
        """The most bytes that live in a real step beside weights and buffers, kernels' own included."""
        device, streamed = self.device(), Streamed(self.model)
        with self._unchanged(), self._stand_ins(_alias_of, streamed):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                before: int = torch.cuda.memory_allocated(device)
                torch.cuda.reset_peak_memory_stats(device)
                run(step, lambda backward, losses: backward())
                torch.cuda.synchronize(device)
                most: int = torch.cuda.max_memory_allocated(device)
                return most - before
            with _allocations() as count:
                if count is not None:
                    run(step, lambda backward, losses: backward())
                    return count()
            with _Live([*self.model.parameters(), *self.model.buffers()], streamed) as live:
                run(step, lambda backward, losses: backward())
            return int(live.peak)

    def try_forward(self, step: Callable[[], Any]) -> "Tried":
        """Runs five forwards or a few more, which keep nothing for backward. Buffers are compared by contents:
        BatchNorm changes its averages without a version."""
        costs, kind = Costs(), self.device().type
        with self._unchanged(), self._stand_ins(_alias_of, Streamed(self.model)):
            for _ in range(2):
                with self._unchanged(), costs.operations(kind):
                    first = _losses(step)
            for _ in range(MOST_FORWARDS):
                with self._unchanged(), costs.forwards(kind, self._around):
                    _losses(step)
                if costs.are_known():
                    break
            parts = dict(self.model.named_modules())
            buffers = {
                name: {n: b.clone() for n, b in part._buffers.items() if b is not None} for name, part in parts.items()
            }
            scalars = {name: _scalars(part) for name, part in parts.items()}
            with costs.forwards(kind, self._around):
                again = _losses(step)
            if len(first) != len(again) or not all(map(_same, first, again)):
                raise ValueError(
                    "fit: two runs of step() from the same random states give %s and %s. What is run again in backward"
                    " must be what was run: take random numbers from torch's default generators"
                    % tuple(", ".join("%r" % loss.item() for loss in losses) for losses in (first, again))
                )
            moving: Moving = {}
            for name, before in buffers.items():
                names = [n for n, b in before.items() if not _same(b, parts[name]._buffers[n])]
                if names:
                    moving[name] = names
            counting = {name for name, before in scalars.items() if _scalars(parts[name]) != before}
            return Tried(moving, counting, costs)

    def _around(self, call: Callable[..., Any]) -> Any:
        """Around forwards; the time of copies is no module's own."""

        def called(name: str, module: torch.nn.Module, *given: Any) -> Any:
            bring(module)
            return call(name, module, *given)

        return around_forwards(self.model, called, self.method)

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Random states, buffers, gradients and plain attributes of modules are as before afterwards; there
        are no gradients meanwhile, and nothing is logged."""
        modules = list(self.model.modules())
        generators = [torch.default_generator, *(torch.cuda.default_generators if _cuda_runs() else ())]
        random = [(generator, generator.get_state()) for generator in generators]
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        gradients = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
        attributes = [(module, _scalars(module)) for module in modules]
        logs = ("log", "log_dict") if self.method != "forward" else ()
        for name in logs:
            setattr(self.model, name, lambda *args, **kwargs: None)
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            yield
        finally:
            for name in logs:
                self.model.__dict__.pop(name, None)
            for generator, state in random:
                generator.set_state(state)
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, values in attributes:
                module.__dict__.update(values)

    @contextlib.contextmanager
    def _stand_ins(self, make: Callable[..., torch.Tensor], streamed: Streamed) -> Iterator[None]:
        """Meanwhile others are in the places of parameters and buffers; shared ones stay shared. Those that stream
        have fakes or none."""
        rests = make is _fake_of
        places: List[Tuple[Any, Any, torch.Tensor]] = []
        for module in self.model.modules():
            for tensors in (module._parameters, module._buffers):
                places += [(tensors, name, t) for name, t in tensors.items() if t is not None]
            flat = module.__dict__.get("_flat_weights", [])  # of torch's recurrent modules
            places += [(flat, i, t) for i, t in enumerate(flat) if t is not None]
        known: Dict[int, torch.Tensor] = {}
        for _, _, tensor in places:
            part = streamed.there.get(id(tensor))
            if part is not None and not rests:
                known[id(tensor)] = tensor
            elif id(tensor) not in known:
                made = make(tensor, part)
                if self.variant.split and made.requires_grad and made.is_leaf and made.dtype is torch.float32:
                    made = torch.nn.Parameter(made.detach().to(torch.bfloat16))
                known[id(tensor)] = made
                if part is not None or id(tensor) in streamed.would:
                    streamed.standing.add(made.untyped_storage()._cdata)
                if made.requires_grad and made.is_leaf:
                    made.grad = torch.zeros_like(made) if self.gradients and part is None else None
                    if self.variant.releases or part is not None:
                        made.register_post_accumulate_grad_hook(_release)  # type: ignore[no-untyped-call]
        try:
            with streamed.trial(rests):
                for owner, name, tensor in places:
                    owner[name] = known[id(tensor)]
                yield
        finally:
            for owner, name, tensor in places:
                owner[name] = tensor


def _release(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _fake_of(tensor: torch.Tensor, part: Optional[Part]) -> torch.Tensor:
    stride, device = (tensor.stride() if part is None else part.stride), tensor.device
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="cpu" if tensor.is_meta else device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _alias_of(tensor: torch.Tensor, part: Optional[Part]) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor


def _cuda_runs() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _scalars(module: torch.nn.Module) -> Dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in (int, float, str, bool)}


def _losses(step: Callable[[], Any]) -> List[torch.Tensor]:
    """What a step's backward would begin at."""
    found: List[torch.Tensor] = []
    run(step, lambda backward, losses: found.extend(loss.detach() for loss in losses))
    return found


def _same(a: torch.Tensor, b: Optional[torch.Tensor]) -> bool:
    return b is not None and torch.equal(a.nan_to_num(), b.nan_to_num())


@contextlib.contextmanager
def _allocations() -> Iterator[Optional[Callable[[], int]]]:
    """Meanwhile what the CPU's allocator gives is recorded, by torch's profiler as it was before Kineto: it prints
    nothing. Gives what ends that and tells the most bytes; None where another profiler is at work, or none is."""
    autograd: Any = torch.autograd
    enable = getattr(torch._C._autograd, "_enable_profiler_legacy", None)
    if enable is None or autograd._profiler_enabled():
        yield None
        return
    flags = (False, True, False, False, False)  # only memory
    config = autograd.ProfilerConfig(autograd.ProfilerState.CPU, *flags, torch._C._profiler._ExperimentalConfig())
    enable(config)
    found: List[Any] = []

    def end() -> int:
        found.extend(torch._C._autograd._disable_profiler_legacy())
        events = (e.cpu_memory_usage() for thread in found for e in thread if e.kind() == "memory_alloc")
        return int(max(itertools.accumulate(events, initial=0)))

    try:
        yield end
    finally:
        if not found:
            torch._C._autograd._disable_profiler_legacy()


class _Live(LiveBytes):  # type: ignore[no-untyped-call]
    """What the step brings along does not count, nor do views of it, nor streamed weights."""

    def __init__(self, known: Iterable[torch.Tensor], streamed: Streamed) -> None:
        self._streamed = streamed
        super().__init__(known)

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs or {})):
            if tensor.layout is torch.strided:
                self._note(tensor, count=False)
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _note(self, tensor: torch.Tensor, count: bool) -> None:
        super()._note(tensor, count and not self._streamed.is_weight(tensor))
