"""What parts of a step take, measured in forwards: each operation's time in two, each module's in two or more. Saved
tensors are dropped meanwhile, so that this takes no more memory than under torch.no_grad().

Times are the device's: on a GPU those between two events, which nobody waits for within a step.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from .._hooks import hooked
from .._packer import keep
from ..checkpointing import checkpoint
from ._recipes import Recipe, look, note, noted

#: What is taken for an operation that was not measured; a factor of what was measured corrects it.
FLOPS_PER_SECOND, BYTES_PER_SECOND = 5e10, 1e10
#: For models without values: these of a small card, and the bytes a second of its link.
CARD, CARD_LINK = (2.5e13, 2.5e11), 1.2e10
#: So much longer than the quickest forward may the next one take.
ALIKE = 1.05
#: Operations whose saved tensors are timed together, and what is between them: more than a core's own caches.
LINKS, COLD_BYTES = 16, 2 << 20
#: Elements of which torch makes no work for several threads.
ONE_THREAD = 1 << 14
#: Enough for the speed of copies to show.
LINK_BYTES = 16 << 20


class Clock:
    """Of a device."""

    def __init__(self, device_type: str) -> None:
        self.is_gpu = device_type == "cuda"

    def mark(self) -> Any:
        """Now, in the order of the device's work."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; waits for the second."""
        if not self.is_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def products(function: Any, inputs: List[torch.Tensor], outputs: List[torch.Tensor]) -> int:
    """How many products an operation of forward sums up; 0: it is a cheap one."""
    name = function._overloadpacket.__name__
    if name in ("mm", "bmm"):
        return outputs[0].numel() * inputs[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return outputs[0].numel() * inputs[1].shape[-1]
    if name == "convolution":
        return outputs[0].numel() * (inputs[1].numel() // max(inputs[1].shape[0], 1))
    if "attention" in name or "rnn" in name or "lstm" in name or "gru" in name:
        return sum(t.numel() for t in inputs) * inputs[1].shape[-2]
    return 0


def _guess(
    function: Any,
    inputs: List[torch.Tensor],
    outputs: List[torch.Tensor],
    speeds: Tuple[float, float] = (FLOPS_PER_SECOND, BYTES_PER_SECOND),
) -> float:
    size = sum(tensor.nbytes for tensor in (*inputs, *outputs) if tensor.layout is torch.strided)
    return 2 * products(function, inputs, outputs) / speeds[0] + size / speeds[1]


def _key(function: Any, inputs: List[torch.Tensor]) -> Any:
    return function, tuple((tensor.shape, tensor.dtype) for tensor in inputs)


class Costs:
    """Seconds of operations and modules. `speeds`: products and bytes a second of those that are not measured."""

    def __init__(self, speeds: Tuple[float, float] = (FLOPS_PER_SECOND, BYTES_PER_SECOND)) -> None:
        self._speeds = speeds
        self._operations: Dict[Any, float] = {}
        self._factor = 1.0
        self._forwards: List[float] = []
        #: Of a module's forward, by name; of one that is called several times, the mean.
        self.modules: Dict[str, float] = {}

    def of(self, function: Any, inputs: List[torch.Tensor], outputs: List[torch.Tensor]) -> float:
        """Of an operation: as measured with inputs of these shapes and types, else a guess."""
        found = self._operations.get(_key(function, inputs))
        return self._factor * _guess(function, inputs, outputs, self._speeds) if found is None else found

    @contextlib.contextmanager
    def operations(self, device_type: str) -> Iterator[None]:
        """Measures operations."""
        with dropping(), _Operations(Clock(device_type)) as mode:
            yield
        times: Dict[Any, List[float]] = collections.defaultdict(list)
        guessed = 0.0
        for key, guess, begin, end in mode.found:
            times[key].append(mode.clock.seconds(begin, end))
            guessed += guess
        if guessed > 0:
            self._factor = sum(map(sum, times.values())) / guessed
        for key, found in times.items():
            self._operations[key] = min(*found, self._operations.get(key, math.inf))

    @contextlib.contextmanager
    def forwards(self, device_type: str, around: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
        """Measures modules; `around` makes their forwards go through a function. Of several runs the least counts."""
        clock, marks = Clock(device_type), []

        def call(name: str, module: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            begin = clock.mark()
            result = forward(*args, **kwargs)
            marks.append((name, begin, clock.mark()))
            return result

        with dropping(), around(call):
            yield
        times: Dict[str, List[float]] = collections.defaultdict(list)
        for name, begin, end in marks:
            times[name].append(clock.seconds(begin, end))
        for name, found in times.items():
            self.modules[name] = min(statistics.fmean(found), self.modules.get(name, math.inf))
        self._forwards.append(sum(times.get("", ())))

    def are_known(self) -> bool:
        """Whether the two quickest forwards agree, so that nothing disturbed them."""
        best = sorted(self._forwards)
        return not best or (len(best) > 1 and best[1] <= ALIKE * best[0])


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.found: List[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors(args, kwargs)
        begin = self.clock.mark()
        result = function(*args, **kwargs)
        end = self.clock.mark()
        self.found.append((_key(function, inputs), _guess(function, inputs, _tensors(result)), begin, end))
        return result


def _tensors(*values: Any) -> List[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def dropping() -> Any:
    """Meanwhile autograd works and keeps nothing for backward."""
    return saved_tensors_hooks(lambda tensor: None, lambda packed: packed)


def link_speed(device: torch.device) -> float:
    """Bytes a second of a copy to the host."""
    source, clock = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device), Clock(device.type)
    to = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=clock.is_gpu)
    seconds = []
    for _ in range(3):
        begin = clock.mark()
        to.copy_(source, non_blocking=True)
        seconds.append(clock.seconds(begin, clock.mark()))
    return LINK_BYTES / max(min(seconds), 1e-9)


class Own(NamedTuple):
    """What fit() itself takes of the host's time."""

    #: For each module that runs again, for each value that is made again, and for each tensor that is saved.
    module: float
    value: float
    saved: float


@functools.lru_cache(maxsize=None)
def own_seconds() -> Own:
    """Measured, once. Between two of a step's saved tensors the caches see a step's data: it takes two to four
    times as long as it does in a loop of its own."""
    with torch.enable_grad():
        cold = _Cold(torch.zeros(COLD_BYTES // 8, dtype=torch.int64))
        x = torch.ones(1, requires_grad=True)
        plain, forward, module, saved, values = cold.medians(
            lambda: torch.autograd.backward(cold.chain(x)),
            lambda: cold.chain(x),
            lambda: torch.autograd.backward(checkpoint(cold.chain, x)),
            lambda: torch.autograd.backward(hooked(_pack, _unpack, cold.chain, (x,), {})),
            lambda: torch.autograd.backward(hooked(_pack_recipe, _unpack, cold.chain, (x,), {})),
        )
    hooks = max(saved - plain, 0.0)  # checkpoint() has as many
    again = max(module - plain - forward - hooks, 0.0)
    return Own(again, max(values - saved, 0.0) / LINKS, hooks / LINKS)


class _Cold:
    """Runs things while the processor's caches have other data; what that takes does not count."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.spent = torch.split(memory, ONE_THREAD), 0.0

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.perf_counter()
        for piece in self.memory:
            piece.add_(1)
        self.spent += time.perf_counter() - begin
        return x

    def chain(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(LINKS):
            x = torch.sin(_Between.apply(x, self))
        return x

    def medians(self, *functions: Callable[[], Any], count: int = 15) -> Iterator[float]:
        """Seconds of each; they take turns, so that a disturbance meets all."""

        def once(function: Callable[[], Any]) -> float:
            self.spent, begin = 0.0, time.perf_counter()
            function()
            return time.perf_counter() - begin - self.spent

        return map(statistics.median, zip(*([once(function) for function in functions] for _ in range(count))))


class _Between(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cold: _Cold) -> torch.Tensor:
        ctx.cold = cold
        return cold.touch(x.view_as(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.cold.touch(gradient), None


def _pack(tensor: torch.Tensor) -> Any:
    return noted(tensor) or keep(tensor)


def _unpack(packed: Any) -> Any:
    return packed.tensor()


def _pack_recipe(tensor: torch.Tensor) -> Any:
    look(tensor)
    note(tensor, Recipe(lambda given: given, [tensor]))
    return noted(tensor)
