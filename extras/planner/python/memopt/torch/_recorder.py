"""Records when each tensor of a training step is made and freed.

A `Recorder` is active over a step (meta tensors suffice). Afterwards an `Account` of it answers:
the most bytes alive at once, in which phase, and what they were by category. Nothing is sampled:
every storage that an operation makes counts once, from its operation to its death. Memory that a
kernel allocates and frees inside one operation is not a tensor and does not count.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.utils._pytree import tree_iter

from ._kernels import KERNELS
from ._live_bytes import LiveBytes

#: The categories of live bytes; the planner's words.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch")

_DEVICE = torch.ops.prim.device.default


class Tensor:
    """One storage: what made it, and what it turned out to be."""

    __slots__ = (
        "bytes", "shape", "dtype", "operation", "node", "module", "phase", "category", "into", "onto", "within"
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, size: int, phase: str) -> None:
        self.bytes = size
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).replace("torch.", "")
        #: The operation, autograd's node while it ran, and the module.
        self.operation = ""
        self.node = ""
        self.module = ""
        self.phase = phase
        #: Where somebody claimed it.
        self.category: Optional[str] = None
        #: The sum that a gradient went into, when autograd adds two.
        self.into: Optional[int] = None
        #: Of such a sum, the gradient that autograd would add to, without a recorder.
        self.onto: Optional[int] = None
        #: What the kernel that made it, and nothing after it, took beside tensors.
        self.within = 0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that something holds: containers of all kinds, and objects such as a cache."""
    seen: Set[int] = set()
    waiting = [value]
    while waiting:
        for leaf in tree_iter(waiting.pop()):
            if isinstance(leaf, torch.Tensor):
                yield leaf
            elif id(leaf) not in seen and not isinstance(leaf, (type, torch.nn.Module)):
                seen.add(id(leaf))
                waiting.append(dict(getattr(leaf, "__dict__", {})))


class Recorder(LiveBytes):
    """While active, records births and deaths of storages, in order."""

    def __init__(self, modules: Optional[torch.nn.Module] = None) -> None:
        super().__init__()
        #: By number.
        self.tensors: List[Tensor] = []
        #: n + 1 where tensor n was born, -(n + 1) where it died.
        self.events: List[int] = []
        #: (index of an event, the phase that starts there).
        self.marks: List[Tuple[int, str]] = [(0, "load")]
        self._numbers: Dict[int, int] = {}
        self._operation: Any = None
        self._stack: List[str] = []
        self._names = {} if modules is None else {m: n for n, m in modules.named_modules()}
        self._hooks: List[Any] = []

    def __enter__(self) -> Any:
        if self._names:
            torch_modules = torch.nn.modules.module
            self._hooks = [
                torch_modules.register_module_forward_pre_hook(self._enter_module),
                torch_modules.register_module_forward_hook(self._leave_module, always_call=True),
            ]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> Any:
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if function is _DEVICE and hasattr(args[0], "fake_device"):  # asked of each, often
            return args[0].fake_device
        with torch._C.DisableTorchFunction():  # no mode needs see how sizes are read
            return self._run(function, args, kwargs or {})

    def _run(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        self._operation = function
        born = len(self.tensors)
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, count=True)
        self._operation = None
        if len(self.tensors) > born and function in KERNELS:
            self.tensors[-1].within = KERNELS[function](args, result)
        if len(self.tensors) == born + 1 and self.tensors[born].node == "sum":
            if not args[0]._is_view():  # whose base holds the storage too
                self.tensors[born].onto = self._number(args[0])
            for value in args[:2]:
                number = self._number(value)
                if number is not None:
                    self.tensors[number].into = born
        return result

    def phase(self, name: str) -> None:
        """What follows belongs to this phase."""
        self.marks.append((len(self.events), name))

    def claim(self, tensors: Iterable[Any], category: str) -> None:
        """These are parameters, batch, …; those not seen before count from now on."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, count=True)
                number = self._number(tensor)
                if number is not None:
                    self.tensors[number].category = category

    def numbers(self, values: Any) -> Set[int]:
        """The numbers of the tensors in a value (of a model's outputs, for example)."""
        found = (self._number(value) for value in tensors_in(values))
        return {number for number in found if number is not None}

    def _number(self, value: Any) -> Optional[int]:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return None
        return self._numbers.get(value.untyped_storage()._cdata)

    def _note(self, tensor: torch.Tensor, count: bool) -> None:
        if tensor.layout is not torch.strided:
            return
        key = tensor.untyped_storage()._cdata
        if key in self._seen:
            return
        made = Tensor(tensor, tensor.untyped_storage().nbytes(), self.marks[-1][1])
        made.operation = "" if self._operation is None else str(self._operation)
        made.module = self._stack[-1] if self._stack else ""
        made.node = self._node()
        self._numbers[key] = len(self.tensors)
        self.tensors.append(made)
        self.events.append(len(self.tensors))
        super()._note(tensor, count)

    def _node(self) -> str:
        if self.marks[-1][1] != "backward":
            return ""
        node = torch._C._current_autograd_node()
        # Gradients that meet are added by autograd itself, while it still names the last node.
        if self._operation is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            return "sum"
        return "" if node is None else str(node.name())

    def _forget(self, key: int, size: int) -> None:
        self.events.append(-self._numbers.pop(key) - 1)
        super()._forget(key, size)

    def _enter_module(self, module: torch.nn.Module, *unused: Any) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))

    def _leave_module(self, module: torch.nn.Module, *unused: Any) -> None:
        if self._stack:
            self._stack.pop()


class Peak(NamedTuple):
    """The most bytes alive at once, after which event, and in which phase."""

    bytes: int
    event: int
    phase: str


class Account:
    """What a recorder saw."""

    def __init__(self, recorder: Recorder, logits: Callable[[Tensor], bool] = lambda tensor: False) -> None:
        self.tensors = recorder.tensors
        self.events = list(recorder.events)
        self.marks = list(recorder.marks)
        self._is_logits = logits

    def curve(self) -> List[int]:
        """Bytes alive after each event."""
        live, result = 0, []
        for event in self.events:
            number = abs(event) - 1
            live += self.tensors[number].bytes if event > 0 else -self.tensors[number].bytes
            result.append(live)
        return result

    def peaks(self) -> Dict[str, Peak]:
        """By phase. A phase that makes nothing has what it starts with."""
        curve = self.curve()
        result: Dict[str, Peak] = {}
        ends = [start for start, _ in self.marks[1:]] + [len(curve)]
        for (start, phase), end in zip(self.marks, ends):
            for event in range(max(start - 1, 0), end):
                if phase not in result or curve[event] > result[phase].bytes:
                    result[phase] = Peak(curve[event], event, phase)
        return result

    def peak(self) -> Peak:
        """Of the whole step."""
        return max(self.peaks().values(), key=lambda peak: peak.bytes)

    def alive(self, event: int) -> List[int]:
        """Numbers of the tensors alive after an event, in the order of their births."""
        alive: Dict[int, None] = {}
        for e in self.events[: event + 1]:
            if e > 0:
                alive[e - 1] = None
            else:
                alive.pop(-e - 1, None)
        return list(alive)

    def categories(self, event: int) -> Dict[str, int]:
        """Bytes alive after an event, by category."""
        result = dict.fromkeys(CATEGORIES, 0)
        for number in self.alive(event):
            result[self.category(number)] += self.tensors[number].bytes
        return result

    def category(self, number: int) -> str:
        """What a tensor is."""
        tensor = self.tensors[number]
        while tensor.category is None and tensor.into is not None:
            tensor = self.tensors[tensor.into]
        if tensor.category is not None:
            return tensor.category
        if self._is_logits(tensor):
            return "logits"
        return "optimizer" if tensor.phase == "optimizer" else "activations"

    def held(self, numbers: Set[int], until: str) -> "Account":
        """The account as if tensors had been held until a phase next starts."""
        starts = {at for at, name in self.marks if name == until}
        last = max(starts, default=-1)
        result = self._copy()
        result.events = []
        moved: List[int] = []
        late: List[int] = []
        for index, event in enumerate([*self.events, 0]):
            if index in starts:
                result.events += late
                late = []
            moved.append(len(result.events))
            if event < 0 and -event - 1 in numbers and index < last:
                late.append(event)
            elif event:
                result.events.append(event)
        result.marks = [(moved[start], name) for start, name in self.marks]
        return result

    def in_place_sums(self) -> "Account":
        """The account without the recorder's effect: autograd adds into the first of two gradients
        if nothing else holds it; under a recorder it makes a third."""
        result = self._copy()
        for index, event in enumerate(result.events):
            if event > 0 and self.tensors[event - 1].node == "sum":
                self._reuse(result.events, index)
        return result

    def _reuse(self, events: List[int], index: int) -> None:
        """A summand that is freed right after its sum was made counts as freed before."""
        made = events[index] - 1
        for later in range(index + 1, min(index + 3, len(events))):
            dead = self.tensors[-events[later] - 1] if events[later] < 0 else None
            if dead is None:
                return
            if dead.into == made and dead.bytes == self.tensors[made].bytes:
                events.insert(index, events.pop(later))
                return

    def _copy(self) -> "Account":
        result = Account.__new__(Account)
        result.__dict__.update(self.__dict__)
        result.events = list(self.events)
        return result
