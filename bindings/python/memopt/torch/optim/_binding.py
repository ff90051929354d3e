"""Executes the steps: optimizers of the library that work on the memory of torch's tensors.

A :class:`Binding` belongs to one torch optimizer and holds an executor for each device and way of
rounding. It is replaced whenever a parameter or a state has another address than the bound one.
Each step compares the addresses, in a fraction of a microsecond each.
"""

from __future__ import annotations

import array
import ctypes
import operator
import os
from itertools import chain
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ... import _abi, _lifetime, errors
from ..._abi import OptimizerKind, StateFormat, TensorStruct
from ..._library import lib, output
from .. import _tensor_lists
from .._native import Native, native
from . import _format, _layout, _options
from ._facts import Facts
from ._team import Team

_data_ptr = torch.Tensor.data_ptr
_stride = torch.Tensor.stride
_numel = torch.Tensor.numel

#: Elements of sharded parameters whose updates are in scratch memory at once.
_TURN = 1 << 22

#: Executors: device, stochastic rounding, seed, bytes of residuals.
Key = Tuple[torch.device, bool, int, int]


class Slot(NamedTuple):
    """A parameter that has a state."""

    place: int  # among all parameters
    group: int
    name: str
    parameter: torch.Tensor
    memory: torch.Tensor  # of this process, dense: the parameter's own or a copy
    copied: bool  # which of the two
    state: Optional[_format.State]  # as the torch optimizer holds it
    steps: torch.Tensor  # the state's, or a private one if there is no state
    copy: Optional[torch.Tensor] = None  # what the step fills with the rounded parameter
    split: int = 0  # the bytes of an element's residual, if the state has one


#: A sharded parameter of which this process has no part: place, parameter, state.
Idle = Tuple[int, torch.Tensor, Optional[_format.State]]


def is_paged(device: torch.device) -> bool:
    """Whether paged states of parameters there are elsewhere."""
    return device.type != "cpu"


class Executor:
    """An optimizer of the library over slots of one device."""

    def __init__(
        self,
        kind: OptimizerKind,
        format_: StateFormat,
        key: Key,
        groups: int,
        slots: List[Slot],
        page_bytes: int,
        trust: bool = False,
    ) -> None:
        device, stochastic, seed, split = key
        self.native: Native = native(device)
        self.slots = slots
        self.device = device
        allocator = self.native.allocator
        options = _abi.OptimizerOptions(
            kind=kind,
            state_format=format_,
            stochastic_rounding=int(stochastic),
            min_8bit_size=1,
            seed=seed,
            split_weights=split,
            page_bytes=page_bytes if is_paged(device) else 0,
            trust=int(trust),
        )
        self._handle = _lifetime.create(
            self,
            "optimizer",
            lib.memopt_optimizer_destroy,
            lib.memopt_optimizer_create,
            allocator._handle.pointer,
            options,
            parents=(allocator._handle,),
        )
        self._pointer = self._handle.pointer
        self._values: List[Any] = [None] * groups
        self._rates: List[Any] = [None] * groups  # keeps tensors that the device reads
        for _ in range(groups):
            output(lib.memopt_optimizer_add_group, self._pointer, _abi.OptimizerGroup(lr=0.0))
        for slot in slots:
            self._add(kind, format_, slot)
        self._indices = [slot.place for slot in slots]
        self._sharded = any(_layout.is_sharded(slot.parameter) for slot in slots)
        self._strides = [slot.memory.stride() for slot in slots]
        self._counts = [slot.memory.numel() for slot in slots]
        self._copied = [(3 * i, slot) for i, slot in enumerate(slots) if slot.copied]
        self._fill(len(slots))

    def _add(self, kind: OptimizerKind, format_: StateFormat, slot: Slot) -> None:
        state, states = slot.state, []
        if kind is OptimizerKind.ADAFACTOR and state is not None:
            states = [value for key, value in state.items() if key != "step"]  # as _adafactor.py has them
        elif state is not None and _format.has_moments(state, kind):
            format_ = _format.of(state, kind, format_)
            states = [state[name] for name in _format.keys(kind, format_)]
        residuals = [state[_format.RESIDUAL]] if state is not None and slot.split else []
        given = [*states, *residuals]
        structs = _tensor_lists.array(given)
        options = _abi.ParameterOptions(state_count=len(given), steps=slot.steps.data_ptr())
        if given:
            options.states = ctypes.addressof(structs)
        if kind is OptimizerKind.ADAFACTOR and slot.memory.dim() > 1:
            options.rows, options.columns = slot.memory.shape[-2:]
        if slot.copy is not None and kind is not OptimizerKind.ADAFACTOR:  # it fills its own
            options.model_copy = _tensor_lists.array([slot.copy])[0]
        parameter, add = _tensor_lists.array([slot.memory]), lib.memopt_optimizer_add_parameter
        try:
            output(add, self._pointer, slot.group, parameter, options, self.native.stream())
        except errors.InvalidArgumentError as error:
            raise ValueError("%s: %s" % (slot.name, error)) from None

    def _fill(self, count: int) -> None:
        """The array of gradients: data, count and type of each as three words."""
        self._words = array.array("Q", bytes(24 * count))
        self._words[1::3] = array.array("Q", self._counts)
        self._array = (TensorStruct * count).from_buffer(self._words)
        self._dtypes: Optional[List[torch.dtype]] = None
        self._options = _abi.StepOptions()
        self._options_pointer = ctypes.byref(self._options)

    def set_groups(self, values: Sequence[Tuple[Any, ...]]) -> None:
        """Hyperparameters by group; only what changed goes to the library."""
        for number, value in enumerate(values):
            if type(value[0][1]) is not float:
                value = self._learning_rate(number, value[0][1]) + value[1:]
            if value != self._values[number]:
                raw = _abi.OptimizerGroup(**dict(value))
                lib.memopt_optimizer_set_group(self._pointer, number, ctypes.byref(raw))
                self._values[number] = value

    def _learning_rate(self, number: int, lr: Any) -> Tuple[Any, ...]:
        """Each step reads a tensor of the device there, also if it is captured; any other is read
        here."""
        if isinstance(lr, torch.Tensor) and lr.device == self.device and lr.dtype is torch.float32 and lr.numel() == 1:
            if lr.device.type == "cpu":
                _options.check_lr(lr)
            self._rates[number] = lr
            return (("lr", 0.0), ("device_lr", lr.data_ptr()))
        return (("lr", _options.number("learning rate", lr)),)

    def gradients(self, given: Sequence[Optional[torch.Tensor]], rule: str) -> List[torch.Tensor]:
        """Writes the array; keep the result until the step is enqueued."""
        grads: List[Any] = [given[index] for index in self._indices]
        if self._sharded:
            grads = [None if g is None else _layout.local(g) for g in grads]
        try:  # the common case, by whole lists
            if list(map(_stride, grads)) == self._strides:
                dtypes = [g.dtype for g in grads]
                pointers = array.array("Q", map(_data_ptr, grads))
                counts = list(map(_numel, grads))
                if self._known(dtypes) and counts == self._counts and 0 not in pointers:
                    self._words[0::3] = pointers
                    if self._dtypes != dtypes:
                        self._set_dtypes(dtypes)
                    return []
        except (TypeError, RuntimeError):  # no gradient, or one that is not strided
            pass
        return self._each_gradient(grads, rule)

    def _known(self, dtypes: List[torch.dtype]) -> bool:
        return dtypes == self._dtypes or all(dtype in _tensor_lists.GRADIENT_TYPES for dtype in dtypes)

    def _set_dtypes(self, dtypes: List[torch.dtype]) -> None:
        self._words[2::3] = array.array("Q", [_tensor_lists.CODES[dtype] for dtype in dtypes])
        self._dtypes = dtypes

    def _each_gradient(self, grads: Sequence[Optional[torch.Tensor]], rule: str) -> List[torch.Tensor]:
        kept: List[torch.Tensor] = []
        dtypes: List[torch.dtype] = []
        pointers: List[int] = []
        for slot, gradient in zip(self.slots, grads):
            if gradient is None:
                dtypes.append(slot.memory.dtype)
                pointers.append(0)
                continue
            _layout.check_gradient(gradient, slot.memory, slot.name, rule)
            if gradient.stride() != slot.memory.stride() and not (
                _layout.same_order(gradient, slot.memory) and _layout.is_dense(gradient)
            ):
                gradient = _layout.like(slot.memory, gradient.dtype).copy_(gradient)
                kept.append(gradient)
            dtypes.append(gradient.dtype)
            pointers.append(gradient.data_ptr())
        self._words[0::3] = array.array("Q", pointers)
        self._set_dtypes(dtypes)
        return kept

    def step_one(self, number: int, gradient: torch.Tensor, facts: Facts, rule: str) -> None:
        """Enqueues the step of one slot: to the library, the others have no gradient."""
        slot = self.slots[number]
        _layout.check_gradient(gradient, slot.memory, slot.name, rule)
        if gradient.stride() != slot.memory.stride():
            gradient = _layout.like(slot.memory, gradient.dtype).copy_(gradient)
        self._words[0::3] = array.array("Q", bytes(8 * len(self.slots)))
        self._words[3 * number] = gradient.data_ptr()
        self._words[3 * number + 2] = _tensor_lists.CODES[gradient.dtype]
        self._dtypes = None  # the array holds others
        self.step(facts)

    def step(self, facts: Facts, half: int = 0, squares: Optional[torch.Tensor] = None) -> None:
        """Enqueues the step of the array's gradients on torch's current stream, or a half of it."""
        scale, found_inf = self._fact(facts.scale), self._fact(facts.found_inf)
        options, total = self._options, facts.square_sum
        options.max_norm = facts.max_norm
        options.skip_non_finite = int(total is not None)
        options.square_sum = None if total is None else total.data_ptr()
        options.grad_scale = None if scale is None else scale.data_ptr()
        options.found_inf = None if found_inf is None else found_inf.data_ptr()
        options.half, options.squares = half, None if squares is None else squares.data_ptr()
        copied = [slot for word, slot in self._copied if self._words[word]]
        for slot in copied if half != 2 else ():
            slot.memory.copy_(_layout.local(slot.parameter))
        lib.memopt_optimizer_step(
            self._pointer, self._array, len(self.slots), self._options_pointer, self.native.stream()
        )
        for slot in copied if half != 1 else ():
            _layout.local(slot.parameter).copy_(slot.memory)

    def _fact(self, value: Any) -> Optional[torch.Tensor]:
        """One float of a GradScaler's, where this device can read it."""
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):  # as where no parameter had a gradient
            return torch.tensor(float(value), dtype=torch.float32, device=self.device)
        if value.device == self.device and value.dtype is torch.float32:
            return value
        return value.to(self.device, torch.float32, non_blocking=True)


class Binding:
    """All executors of a torch optimizer."""

    def __init__(
        self,
        kind: OptimizerKind,
        format_: StateFormat,
        params: List[torch.Tensor],
        groups: int,
        slots: List[Tuple[Key, Slot]],
        idle: Sequence[Idle] = (),
        page_bytes: int = 0,
        trust: bool = False,
    ) -> None:
        self._params = params
        self._idle = idle
        self._process = os.getpid()
        by_key: Dict[Key, List[Slot]] = {}
        for key, slot in slots:
            by_key.setdefault(key, []).append(slot)
        self.executors = [
            Executor(kind, format_, key, groups, members, page_bytes, trust) for key, members in by_key.items()
        ]
        self._together = trust and any(map(_layout.is_sharded, params))
        every = [slot for executor in self.executors for slot in executor.slots]
        bound = {slot.place for slot in every}.union(place for place, _, _ in idle)
        self._unbound = [i for i in range(len(params)) if i not in bound and params[i].numel()]
        self._bound = [slot.parameter for slot in every]
        self._sharded = any(map(_layout.is_sharded, self._bound))
        self._states = [slot.state for slot in every]
        self._copies = [slot.copy for slot in every if slot.copy is not None]
        self._kept = [state for state in self._states if state]
        #: Groups with parameters that have no moments.
        self.bare = {s.group for s in every if not _format.has_moments(s.state, kind)}
        self._pointers = self._addresses()
        self._where = {
            slot.place: (executor, number) for executor in self.executors for number, slot in enumerate(executor.slots)
        }
        self._alone = {slot.place: _addresses_of(slot) for slot in every}

    def _addresses(self) -> List[int]:
        params: Iterable[torch.Tensor] = self._bound
        if self._sharded:
            params = map(_layout.local, params)
        return list(map(_data_ptr, chain(params, self._copies, *map(dict.values, self._kept))))

    def is_current(
        self, params: List[torch.Tensor], grads: List[Optional[torch.Tensor]], state_of: Callable[[torch.Tensor], Any]
    ) -> bool:
        """Whether all addresses are still the bound ones, and this is not a child process."""
        if os.getpid() != self._process:
            return False
        if len(params) != len(self._params) or not all(map(operator.is_, params, self._params)):
            return False
        if any(grads[i] is not None for i in self._unbound):
            return False
        if not all(map(operator.is_, map(state_of, self._bound), self._states)):
            return False
        if any(state_of(parameter) is not state for _, parameter, state in self._idle):
            return False
        try:
            return self._addresses() == self._pointers
        except TypeError:  # something else than tensors in a state
            return False

    def is_current_at(self, place: int, state_of: Callable[[torch.Tensor], Any]) -> bool:
        """The same for one parameter."""
        if os.getpid() != self._process or place not in self._where:
            return False
        executor, number = self._where[place]
        slot = executor.slots[number]
        try:
            return state_of(slot.parameter) is slot.state and _addresses_of(slot) == self._alone[place]
        except TypeError:  # something else than tensors in a state
            return False

    def run_one(
        self, place: int, gradient: torch.Tensor, values: Sequence[Tuple[Any, ...]], facts: Facts, rule: str
    ) -> None:
        """A step of one parameter."""
        executor, number = self._where[place]
        executor.set_groups(values)
        executor.step_one(number, _layout.local(gradient), facts, rule)
        _tensor_lists.changed([self._params[place]])

    def run(
        self, grads: List[Optional[torch.Tensor]], values: Sequence[Tuple[Any, ...]], facts: Facts, rule: str
    ) -> None:
        """One step; everything is checked before the first executor starts."""
        if isinstance(facts.found_inf, torch.Tensor):  # once: a collective call
            facts = facts._replace(found_inf=_layout.whole(facts.found_inf))
        kept = []
        for executor in self.executors:
            executor.set_groups(values)
            kept.append(executor.gradients(grads, rule))
        if self._together:
            for part in _parts(self._params, grads):
                self._step_together(part, facts, rule)
        else:
            for executor in self.executors:
                executor.step(facts)
        self._count_idle(grads, facts.found_inf)
        _tensor_lists.changed([p for p, g in zip(self._params, grads) if g is not None])

    def _step_together(self, grads: List[Optional[torch.Tensor]], facts: Facts, rule: str) -> None:
        """A step of trust whose squares the processes add up."""
        kept = [executor.gradients(grads, rule) for executor in self.executors]
        squares = {
            executor: torch.zeros(2, len(executor.slots), dtype=torch.float64, device=executor.device)
            for executor in self.executors
        }
        for executor, sums in squares.items():
            executor.step(facts, 1, sums)
        for place, (parameter, gradient) in enumerate(zip(self._params, grads)):
            if gradient is None or not _layout.is_sharded(parameter):
                continue
            if place in self._where:
                executor, number = self._where[place]
                own = squares[executor][:, number]
                own.copy_(Team(parameter).add(own.contiguous()))
            else:  # no elements here
                Team(parameter).add(torch.zeros(2, dtype=torch.float64, device=_layout.local(parameter).device))
        for executor, sums in squares.items():
            executor.step(facts, 2, sums)
        del kept

    def _count_idle(self, grads: Sequence[Optional[torch.Tensor]], found_inf: Optional[torch.Tensor]) -> None:
        """Counts the step of parameters without elements here: other processes have such states
        too."""
        for place, _, state in self._idle:
            if grads[place] is None or not state:
                continue
            steps = state["step"]
            if found_inf is None:
                steps.add_(1)
            else:
                steps.add_((found_inf == 0).to(steps.device, steps.dtype))


def _parts(params: List[torch.Tensor], grads: List[Optional[torch.Tensor]]) -> Iterator[List[Optional[torch.Tensor]]]:
    """The gradients in turns, the same in all processes, which bound the scratch memory of a step."""
    most = max([_TURN, *(p.numel() for p in params)])
    part: List[Optional[torch.Tensor]] = [None] * len(params)
    count = 0
    for place, (parameter, gradient) in enumerate(zip(params, grads)):
        if gradient is None:
            continue
        if count + parameter.numel() > most:
            yield part
            part, count = [None] * len(params), 0
        part[place] = gradient
        count += parameter.numel()
    yield part


def _addresses_of(slot: Slot) -> List[int]:
    copies = [] if slot.copy is None else [slot.copy]
    tensors = [_layout.local(slot.parameter), *copies, *(slot.state or {}).values()]
    return list(map(_data_ptr, tensors))
