"""A step as a tape: storages are born and die, saved tensors are packed, unpacked and released.

Two forward passes are recorded. In the first, packs keep nothing, so that every storage dies when
its last other owner goes; of the second the backward is recorded. Together they are the tape that
``memopt_fit_create()`` takes.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..._abi import FitEventKind
from . import _recipes
from ._costs import Costs, products

Event = Tuple[int, int, int]
BIRTH, DEATH, PACK, UNPACK, RELEASE, ENTER, LEAVE, BACKWARD = map(int, FitEventKind)

class Unit:
    """One call of a module."""

    def __init__(self, index: int, name: str, module: torch.nn.Module, parent: Optional["Unit"]) -> None:
        self.index, self.name, self.module, self.parent = index, name, module, parent
        self.inputs: Tuple[int, ...] = ()
        self.outputs: Tuple[int, ...] = ()
        #: Numbers of the hook's calls within the root, and of the tape's packs.
        self.begin = self.end = self.first_pack = self.last_pack = 0
        #: Of its forward, and of what is after its last pack.
        self.seconds = self.tail = 0.0
        self.is_leaf, self.is_heavy, self.is_random = True, False, False
        self.has_gradient = False
        #: It takes tensors alone, and gives one that has its storage for itself.
        self.is_simple = False
        #: Why it cannot run again; empty if it can.
        self.why = ""

    def outer(self) -> Iterator["Unit"]:
        """The calls that it is in."""
        unit = self.parent
        while unit is not None:
            yield unit
            unit = unit.parent


class Pack(NamedTuple):
    """A saved tensor: the hook's number within the root (-1: outside) and what it looks like."""

    number: int
    storage: int
    look: List[Any]
    #: Storages that a recipe of the graph takes; None: there is no recipe.
    sources: Optional[Tuple[int, ...]]


class _Ticket:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("number", "tensor", "__weakref__")

    def __init__(self, number: int, tensor: Any) -> None:
        self.number, self.tensor = number, tensor


def tensors_in(value: Any) -> List[torch.Tensor]:
    """The tensors of arguments or results."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def strange_in(value: Any) -> str:
    """The type of something in arguments or results that may hold tensors or change; else empty."""
    for leaf in tree_leaves(value):
        if not isinstance(leaf, _PLAIN):
            return type(leaf).__name__
    return ""


_PLAIN = (torch.Tensor, int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


def is_whole(value: Any) -> bool:
    """Whether it is a tensor that fills its storage, in order."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_complex()
        and value.is_contiguous()
        and value.nbytes == value.untyped_storage().nbytes()
    )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, records. `keeps`: saved tensors are kept, so that backward can run."""

    def __init__(
        self, model: torch.nn.Module, keeps: bool, method: str, costs: Costs, streams: Callable[[torch.Tensor], bool]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.streams = streams  # whether a tensor is a streamed weight, which takes nothing of its own
        self.model, self.keeps, self.method, self.costs = model, keeps, method, costs
        self.fixed = self.carried = 0
        self.unit: Optional[Unit] = None
        self._known: Set[int] = set()
        self._left: Dict[int, int] = {}  # bytes of storages of earlier micro-batches
        self._kept: List[Any] = []  # known storages, so that their addresses stay theirs
        self._finalizers: List[Any] = []
        self._quiet = self.gradients = False
        self._start()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        for tensor in [*model.parameters(), *model.buffers(), *gradients]:
            self.know(tensor)

    def _start(self) -> None:
        """Begins a tape."""
        self.events: List[Event] = []
        self.bytes: List[int] = []
        self.seconds: Dict[int, float] = {}  # by storage, of the operation that made it
        self.packs: List[Pack] = []
        self.units: List[Unit] = []
        self.forward = 0  # events until backward
        self._numbers: Dict[int, int] = {}  # by storage's address
        self._count = self._root = 0
        self._made: Dict[int, Tuple[Unit, int]] = {}  # by storage: what a simple module gave, and its version

    def _start_over(self) -> None:
        """At the next micro-batch: what the last ones left, such as gradients, is there all the time."""
        self._left.update((key, self.bytes[number]) for key, number in self._numbers.items())
        self._known.update(self._left)
        self._start()
        self.fixed, self.carried = self.fixed - self.carried, sum(self._left.values())
        self.fixed += self.carried

    # --- storages ---

    def know(self, tensor: torch.Tensor, counts: bool = True) -> None:
        """The tensor's storage lives all the time."""
        if tensor.layout is not torch.strided or self.streams(tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._kept.append(storage)
            self.fixed += storage.nbytes() if counts else 0

    def number(self, tensor: torch.Tensor) -> Optional[int]:
        """Of the tensor's storage, which is born if it is new; None: it is known."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or not storage.nbytes() or self.streams(tensor):
            return None
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.bytes)
            self.bytes.append(storage.nbytes())
            self.events.append((BIRTH, number, 0))
            self._finalizers.append(weakref.finalize(storage, self._die, key, number, self.events))
        return number

    def _die(self, key: int, number: int, events: List[Event]) -> None:
        if events is not self.events:  # of an earlier micro-batch
            self._known.discard(key)
            self._left.pop(key, None)
            return
        del self._numbers[key]
        self.events.append((DEATH, number, 0))

    def _know_outside(self, tensors: List[torch.Tensor]) -> None:
        """What no operation made is what the step brings along, as the batch."""
        for tensor in tensors:
            if tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in self._numbers:
                self.know(tensor)

    def numbers(self, value: Any) -> Tuple[int, ...]:
        """Of all storages in arguments or results, each once."""
        found = (self.number(tensor) for tensor in tensors_in(value))
        return tuple(dict.fromkeys(number for number in found if number is not None))

    # --- operations ---

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        self._know_outside(inputs)
        result = function(*args, **kwargs)
        outputs = tensors_in(result)
        if any(of.alias_info is not None and not of.alias_info.is_write for of in function._schema.returns):
            for tensor in outputs:  # a view of something real, among fakes
                if tensor.untyped_storage()._cdata not in self._numbers:
                    self.know(tensor, counts=False)
            return result
        seconds, heavy = self.costs.of(function, inputs, outputs), products(function, inputs, outputs) > 0
        for tensor in outputs:
            number = self.number(tensor)
            if number is not None:
                self.seconds[number] = seconds
        self._charge(seconds, heavy, torch.Tag.nondeterministic_seeded in function.tags)
        return result

    def _charge(self, seconds: float, heavy: bool, random: bool) -> None:
        for unit in self._running():
            unit.seconds += seconds
            unit.tail += seconds
            unit.is_heavy |= heavy
            unit.is_random |= random

    def _running(self) -> Iterable[Unit]:
        return () if self.unit is None else (self.unit, *self.unit.outer())

    # --- saved tensors ---

    def pack(self, tensor: torch.Tensor) -> Any:
        """The hook."""
        if self.streams(tensor):  # it goes to hooks within these
            return tensor if tensor.grad_fn is None else tensor.detach()
        number, self._count = self._count - self._root, self._count + 1
        self._know_outside([tensor])  # inputs are saved before their operation runs
        storage = self.number(tensor)
        kept = tensor if tensor.grad_fn is None else tensor.detach()
        if storage is None:
            return kept
        made = self._made.get(storage)
        if made is not None and tensor._version != made[1]:  # changed in place since
            made[0].is_simple = False
        ticket = _Ticket(len(self.packs), kept if self.keeps else None)
        self._finalizers.append(weakref.finalize(ticket, self.events.append, (RELEASE, ticket.number, 0)))
        sources = self._sources(tensor) if self.keeps else None
        self.events.append((PACK, ticket.number, storage))
        self.packs.append(Pack(number if self.unit is not None else -1, storage, _recipes.look(tensor), sources))
        for unit in self._running():
            unit.tail = 0.0
        return ticket

    def _sources(self, tensor: torch.Tensor) -> Optional[Tuple[int, ...]]:
        self._quiet = True
        try:
            recipe = _recipes.of_graph(tensor)
        finally:
            self._quiet = False
        if recipe is None or any(map(self.streams, recipe.tensors)):  # it would hold a weight
            return None
        return self.numbers(recipe.tensors)

    def unpack(self, packed: Any) -> Any:
        """The hook."""
        if not isinstance(packed, _Ticket):
            return packed
        if not self._quiet:
            self.events.append((UNPACK, packed.number, 0))
        return packed.tensor

    # --- modules ---

    def call(self, name: str, module: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module's forward."""
        parent = self.unit
        if parent is None and name:  # it runs again for a checkpoint, or outside of the model
            return forward(*args, **kwargs)
        if parent is None:
            if self.forward:
                self._start_over()
            if self.units:
                raise ValueError("fit: step() calls the %s more than once before backward" % type(module).__name__)
            self._root = self._count
            self.gradients = any(p.grad is not None for p in self.model.parameters())
        unit = Unit(len(self.units), name, module, parent)
        self.units.append(unit)
        if parent is not None:
            parent.is_leaf = False
        strange = strange_in((args, kwargs))
        given = tensors_in((args, kwargs))
        versions = [tensor._version for tensor in given]
        self._know_outside(given)
        unit.inputs = self.numbers((args, kwargs))
        unit.begin, unit.first_pack = self._count - self._root, len(self.packs)
        self.events.append((ENTER, unit.index, 0))
        self.unit = unit
        try:
            result = forward(*args, **kwargs)
        finally:
            self.unit = parent
        self.events.append((LEAVE, unit.index, 0))
        unit.end, unit.last_pack = self._count - self._root, len(self.packs)
        unit.outputs = self.numbers(result)
        unit.is_simple = not kwargs and len(given) == len(args) and is_whole(result)
        if unit.is_simple and unit.outputs:
            self._made[unit.outputs[0]] = unit, result._version
        unit.has_gradient = any(tensor.requires_grad for tensor in tensors_in(result))
        changed = any(tensor._version != version for tensor, version in zip(given, versions))
        unit.why = _why(unit, strange, strange_in(result), changed)
        return result

    def run(self, step: Callable[[], Any]) -> None:
        """Records a step: forward, and backward where saved tensors are kept; of several micro-batches the last."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(around_forwards(self.model, self.call, self.method))
            stack.enter_context(saved_tensors_hooks(self.pack, self.unpack))
            stack.enter_context(self)
            run(step, self._backward)
        for finalizer in self._finalizers:
            finalizer.detach()
        if not self.units:
            raise ValueError("fit: step() does not call the model")

    def _backward(self, backward: Callable[[], None], losses: List[torch.Tensor]) -> None:
        if not any(loss.requires_grad for loss in losses):
            raise TypeError("fit: the loss that step() gives has no graph")
        if self.forward:
            raise ValueError("fit: step() calls backward more than once after a forward")
        self.forward = len(self.events)
        del losses
        if self.keeps:
            backward()


def run(step: Callable[[], Any], backward: Callable[[Callable[[], None], List[torch.Tensor]], Any]) -> None:
    """Runs a step; its calls of backward(), or the one at the end where it gives the loss, go through
    ``backward(the call, losses)``."""
    real, called = torch.autograd.backward, False

    def instead(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal called
        called = True
        backward(lambda: real(tensors, *args, **kwargs), tensors_in(tensors))

    torch.autograd.backward = instead
    torch.clear_autocast_cache()  # under autocast, casts of weights stay until its end
    try:
        loss = step()
        if not called:
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise TypeError(
                    "fit: step() must give the loss, a tensor of one number, or call backward(), not give a %s"
                    % type(loss).__name__
                )
            instead(loss)
    finally:
        torch.autograd.backward = real
        torch.clear_autocast_cache()


def _why(unit: Unit, strange: str, strange_result: str, changed: bool) -> str:
    if unit.parent is None:
        return "the model itself"
    if strange or strange_result:
        return "takes or gives a " + (strange or strange_result)
    if changed:
        return "changes its input"
    return "" if unit.has_gradient else "no gradient"


@contextlib.contextmanager
def around_forwards(model: torch.nn.Module, call: Callable[..., Any], method: str) -> Iterator[None]:
    """Meanwhile every forward of the model's modules, and the model's `method`, goes through
    ``call(name, module, forward, args, kwargs)``."""
    before: List[Tuple[torch.nn.Module, str, Any]] = []

    def wrap(name: str, module: torch.nn.Module) -> None:
        attribute = "forward" if name else method
        forward = getattr(module, attribute)
        before.append((module, attribute, module.__dict__.get(attribute)))
        setattr(module, attribute, lambda *args, **kwargs: call(name, module, forward, args, kwargs))

    try:
        for name, module in model.named_modules():
            wrap(name, module)
        yield
    finally:
        for module, attribute, own in before:
            if own is None:
                delattr(module, attribute)
            else:
                setattr(module, attribute, own)


class Tape(NamedTuple):
    """What is recorded."""

    events: List[Event]
    bytes: List[int]
    packs: List[Pack]
    units: List[Unit]
    #: By storage: seconds of the operation that made it.
    seconds: Dict[int, float]
    fixed: int
    #: Of these, what earlier micro-batches left; and whether parameters have gradients before it.
    carried: int
    gradients: bool


class NotRepeatedError(RuntimeError):
    """Two runs of forward differ."""


def record(
    model: torch.nn.Module,
    step: Callable[[], Any],
    method: str,
    costs: Costs,
    streams: Callable[[torch.Tensor], bool],
    streamed: int,
) -> Tape:
    """Records a step; the caller keeps random states, buffers and gradients as they were. `streamed`: the bytes of
    streamed weights."""
    free, kept = (Recorder(model, keeps, method, costs, streams) for keeps in (False, True))
    free.run(step)
    kept.run(step)
    forward = free.events[: free.forward]
    early = {subject for kind, subject, _ in forward if kind == DEATH}
    if _without_deaths(forward) != _without_deaths(kept.events[: kept.forward]) or free.bytes[: len(kept.bytes)] != (
        kept.bytes[: len(free.bytes)]
    ):
        raise NotRepeatedError("fit: two runs of forward do not do the same; are layers skipped at random?")
    calls = collections.Counter(unit.module for unit in kept.units)
    for unit in kept.units:
        if calls[unit.module] > 1:
            unit.why = unit.why or "called several times"
        measured = costs.modules.get(unit.name, unit.seconds)
        unit.tail *= measured / unit.seconds if unit.seconds else 0.0
        unit.seconds = measured
    backward = [e for e in kept.events[kept.forward :] if e[0] != DEATH or e[1] not in early]
    events = [*forward, (BACKWARD, 0, 0), *backward]
    fixed = kept.fixed + streamed
    return Tape(events, kept.bytes, kept.packs, kept.units, kept.seconds, fixed, kept.carried, kept.gradients)


def _without_deaths(events: List[Event]) -> List[Event]:
    return [event for event in events if event[0] not in (DEATH, RELEASE, UNPACK)]
