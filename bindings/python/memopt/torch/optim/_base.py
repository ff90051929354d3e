"""What the optimizers have in common: torch's protocols around one call of the library a step."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from itertools import chain, repeat
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch

from ... import rules
from ..._abi import OptimizerKind, StateFormat
from ...groups import VALUES
from . import _binding, _format, _layout, _load, _options, _other_rules, _pinned, _sharded
from ._binding import Binding, Key, Slot
from ._facts import Facts, loss_of
from ._keep import kept, settle

Params = Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]], Iterable[Tuple[str, torch.Tensor]]]

_HOST = torch.device("cpu")
#: Paged states: two areas of so many bytes, or of the largest parameter's states, are on the GPU.
PAGE_BYTES = 64 << 20

#: torch.compile does not trace the function; torch does the same for its optimizers.
_out_of_graphs: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", lambda function: function)


class Loading(NamedTuple):
    """A state dict that is being loaded."""

    states: Dict[Any, Any]  # by number
    saved_groups: List[Dict[str, Any]]
    groups: List[Dict[str, Any]]  # with the values that they will have

    def places(self) -> Dict[Any, Tuple[torch.Tensor, Dict[str, Any], str]]:
        """The parameter, its group and its name by number."""
        numbers = chain.from_iterable(group["params"] for group in self.saved_groups)
        places = [
            (parameter, group, _layout.name_of(group, g, i))
            for g, group in enumerate(self.groups)
            for i, parameter in enumerate(group["params"])
        ]
        return dict(zip(numbers, places))


class Member(NamedTuple):
    """A parameter whose state is looked for."""

    parameter: torch.Tensor
    dense: torch.Tensor  # what this process has of it, or a tensor like that without gaps
    group: Dict[str, Any]
    name: str
    made: Dict[torch.Tensor, _format.State]  # new states


class MemoptOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose step is one call of the library for each device.

    States are tensors of torch in ``optimizer.state`` (see :mod:`._format`), made at a parameter's
    first gradient. A class names its rule in memopt/rules.py, or the states that differ from its
    base's, and gets its constructor and the description of its arguments from there.
    """

    _step_supports_amp_scaling = True  # GradScaler leaves its scale and verdict to step()

    _rule: rules.Rule
    _binding: Optional[Binding]
    _kind: OptimizerKind
    _states = StateFormat.F32
    _codes: Optional[str] = None  # of 8-bit states, if they were chosen
    _steps_on_host = True  # CPUOffloadOptimizer may step it on masters
    _by_pieces = True  # a part of a parameter steps as in the whole, so that they may be on a disk
    _takes_flattened = True  # pieces of FullyShardedDataParallel's are stepped
    _counts: Dict[str, Any] = {}  # entries of groups that are no arguments
    _portable = 0  # how many portable_states() are active
    #: States are in the host's memory, and a step brings them in pages of at most so many bytes.
    _page_bytes = 0
    _trust = False  # an update is bounded by its parameter's norm
    #: Takes a state dict in the place of _loaded(): parameters are meta tensors, which stand for memory elsewhere.
    _sink: Optional[Callable[[Any], Dict[Any, Any]]] = None
    #: By parameter: the half-precision tensor that each step fills with it, rounded.
    _model_copies: Mapping[torch.Tensor, torch.Tensor] = {}

    def __init_subclass__(cls, rule: Optional[str] = None, states: Optional[str] = None, **kwargs: Any) -> None:
        """Makes the constructor and its description."""
        super().__init_subclass__(**kwargs)
        if rule is not None:
            cls._rule = rules.RULES[rule]
            if cls._rule.kind is not None and not hasattr(cls, "_kind"):
                cls._kind = cls._rule.kind
        if states is not None:
            cls._states = rules.format_named(states, None, cls._rule)
        if rule is not None or states is not None:
            call = rules.call_of_torch(cls._rule, states or "fp32")
            cls.__doc__ = rules.described(cls._rule, cls.__doc__ or cls._rule.text, call)
            made = rules.construct(cls.__doc__, call, _start)
            cls.__init__ = _options.checked(made, call)  # type: ignore[method-assign]

    def __init__(self, params: Params, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("each rule's class has its own")

    # --- groups ---

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group; nothing changes if one of its values or parameters is refused."""
        if isinstance(param_group, dict):
            known = (*self.defaults, "params", "param_names")
            number, rule = len(self.param_groups), type(self).__name__
            _options.check_keys(param_group, known, number, rule)
            self._check_group({**self.defaults, **param_group})
        before = len(self.param_groups)
        super().add_param_group(param_group)
        settle(self.param_groups[-1]["params"])
        try:
            group = self.param_groups[-1]
            for index, parameter in enumerate(group["params"]):
                self._check_member(parameter, group, _layout.name_of(group, before, index))
        except (TypeError, ValueError):
            del self.param_groups[before:]
            raise

    def _check_member(self, parameter: torch.Tensor, group: Dict[str, Any], name: str) -> None:
        """Refuses a parameter that the rule cannot step, or not in this group."""
        if parameter.requires_grad:
            _layout.check_parameter(parameter, name, later=True)
            if group.get("split_weights") and parameter.dtype is torch.float16:
                raise TypeError("%s is torch.float16; split_weights is for bfloat16" % name)
            if self._page_bytes and _layout.is_sharded(parameter) and _binding.is_paged(parameter.device):
                raise TypeError("%s is a DTensor on a GPU; its states cannot be paged" % name)
        if not self._takes_flattened and _layout.is_flattened(parameter):
            raise TypeError(
                "%s is a piece of FullyShardedDataParallel's; %s needs whole parameters" % (name, type(self).__name__)
            )

    def _check_group(self, group: Dict[str, Any]) -> None:
        """Refuses what is out of range or not supported, in torch's words."""
        _options.check_values(group, self._rule, type(self).__name__)

    def _check_saved_group(self, group: Dict[str, Any], number: int) -> None:
        """Refuses a group of a state dict that is another rule's."""
        _other_rules.check_group(group, self._kind, number)

    def _values(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        """The group's hyperparameters as (name in the library, value), the learning rate first."""
        return (("lr", group["lr"]), *_in_library(group, VALUES[self._kind]))

    def _keeps_moments(self, group: Dict[str, Any]) -> bool:
        """Whether the group's parameters need moments."""
        return True

    # --- stepping ---

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step over all parameters with a gradient; it does not wait for the device.

        `closure` reevaluates the model and returns the loss. A GradScaler's scale and verdict are
        read on the device.
        """
        loss = loss_of(closure)
        params = [p for group in self.param_groups for p in group["params"]]
        facts = Facts(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        self._step(params, [p.grad for p in params], facts)
        return loss

    @_out_of_graphs
    def _step(self, params: List[torch.Tensor], grads: List[Optional[torch.Tensor]], facts: Facts) -> None:
        values = [self._values(group) for group in self.param_groups]
        binding = self._binding
        if binding is None or not binding.is_current(params, grads, self.state.get) or self._is_lacking(binding):
            binding = self._binding = self._bind(params, grads)
        binding.run(grads, values, facts, type(self).__name__)

    @torch.no_grad()
    @_out_of_graphs
    def _step_one(self, parameter: torch.Tensor, place: int, facts: Facts) -> None:
        """A step of the parameter at this place among all, whose gradient is there."""
        if parameter.grad is not None and parameter.numel():
            self._step_alone(place, parameter.grad, facts)

    def _step_alone(self, place: int, gradient: torch.Tensor, facts: Facts) -> None:
        binding = self._binding
        if binding is None or not binding.is_current_at(place, self.state.get) or self._is_lacking(binding):
            params = [p for group in self.param_groups for p in group["params"]]
            # A gradient like the parameter stands for the one that each will get.
            expected = [p if p.requires_grad else None for p in params]
            binding = self._binding = self._bind(params, expected)
        values = [self._values(group) for group in self.param_groups]
        binding.run_one(place, gradient, values, facts, type(self).__name__)

    def _is_lacking(self, binding: Binding) -> bool:
        """Whether a group needs moments now that its parameters do not have."""
        return any(self._keeps_moments(self.param_groups[g]) for g in binding.bare)

    def _bind(self, params: List[torch.Tensor], grads: List[Optional[torch.Tensor]]) -> Binding:
        """Everything is checked first; then states are made where there are none."""
        made: Dict[torch.Tensor, _format.State] = {}
        found: Dict[torch.Tensor, Tuple[int, int, Member]] = {}
        given = enumerate(grads)
        for g, group in enumerate(self.param_groups):
            for i, parameter in enumerate(group["params"]):
                place, grad = next(given)
                if parameter not in found and (grad is not None or self.state.get(parameter)):
                    name = _layout.name_of(group, g, i)
                    memory = self._memory_of(parameter, grad, name)
                    found[parameter] = place, g, Member(parameter, memory, group, name, made)
        slots: List[Tuple[Key, Slot]] = []
        idle = []
        for place, g, one in found.values():
            parameter, memory, group, name, _ = one
            if memory.numel():
                one = one._replace(dense=_layout.dense(memory))
                state = self._state_for(one)
                steps = state["step"] if state else _format.step_tensor(0, memory.device)
                split = _format.split_bytes(group, memory)
                key = (memory.device, bool(group["stochastic_rounding"]), int(group["seed"]), split)
                copy, copied = self._model_copies.get(parameter), one.dense is not memory
                slot = Slot(place, g, name, parameter, one.dense, copied, state, steps, copy, split)
                slots.append((key, slot))
            elif _layout.is_sharded(parameter):  # the shards of other processes have elements
                state = self.state.get(parameter)
                if not _format.has_moments(state, self._kind):
                    state = self._new_state(state, one)
                idle.append((place, parameter, self._with_residual(state, one)))
        count = len(self.param_groups)
        how = self._page_bytes, self._trust
        binding = Binding(self._kind, self._states, params, count, slots, idle, *how)
        self.state.update(made)
        return binding

    def _memory_of(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor], name: str) -> torch.Tensor:
        """What this process has of a parameter; refuses what a step cannot take."""
        memory = _layout.local(parameter)
        _layout.check_parameter(memory, name)
        if _layout.shares_elements(memory):
            raise RuntimeError("%s has elements that share memory" % name)
        if gradient is not None:
            _layout.check_gradient(_layout.local(gradient), memory, name, type(self).__name__)
            if _layout.is_sharded(parameter):
                _sharded.check_placements(parameter, gradient, name)
        return memory

    def _state_for(self, one: Member) -> Optional[_format.State]:
        """The state to bind: the existing one, or a new one, which is also added to `made`."""
        state = self.state.get(one.parameter)
        if _format.opened(state) is not state:  # from a loader that is not load_state_dict()
            one.made[one.parameter] = state = _format.opened(state)
        bare = self._kind is OptimizerKind.SGD and not {*(state or ())} - {"step", _format.RESIDUAL}
        if state and not bare:
            state = self._checked_state(state, one)
        else:
            state = self._new_state(state, one)
        return self._with_residual(state, one)

    def _with_residual(self, state: Optional[_format.State], one: Member) -> Optional[_format.State]:
        """The state with what a split weight has there."""
        split, dense = _format.split_bytes(one.group, one.dense), one.dense
        if not split:
            return state
        state = state or {"step": _format.step_tensor(0, dense.device)}
        own = state.get(_format.RESIDUAL)

        def missing(home: torch.Tensor) -> _format.State:
            residual = _format.residual(home, own, split)
            return {} if residual is own else {_format.RESIDUAL: residual}

        made = self._at_home(dense, missing)
        if made:
            one.made[one.parameter] = state = {**state, **made}
        return state

    def _new_state(self, state: Optional[_format.State], one: Member) -> Optional[_format.State]:
        """Replaces a state without moments: by one with moments if the group needs them, by a step
        count if random numbers depend on it; else keeps it."""
        dense, group = one.dense, one.group
        if self._keeps_moments(group):
            format_ = self._format_of(group, one.parameter)
            new = self._at_home(dense, lambda home: _format.new(home, self._kind, format_))
            if state:
                new["step"].copy_(state["step"]).bitwise_or_(_format.NOT_BEGUN)
                new.update({k: v for k, v in state.items() if k == _format.RESIDUAL})
        elif group["stochastic_rounding"] and not state:
            new = {"step": _format.step_tensor(0, dense.device)}
        else:
            return state
        one.made[one.parameter] = new
        return new

    def _format_of(self, group: Dict[str, Any], parameter: torch.Tensor) -> StateFormat:
        """The format of a new state, by the number of all elements, so that sharding does not
        change it."""
        small = parameter.numel() < int(group.get("min_8bit_size", rules.MIN_8BIT_SIZE))
        return StateFormat.F32 if small or kept(parameter) else self._states

    def _checked_state(self, state: _format.State, one: Member) -> _format.State:
        """An existing state, in the parameter's order of memory; ValueError if it is invalid."""
        dense, place = one.dense, self._place(one.dense, one.name)
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                raise RuntimeError("the state of %s has a %s for %s" % (one.name, type(value).__name__, key))
        if _lies_as_bound(state, place, self._home(dense)):
            return state
        saved = place.read(state)
        if saved is None or "step" not in state:
            raise ValueError("the state of %s is without %s" % (one.name, "moments" if saved is None else "a step"))
        own = self._at_home(dense, lambda home: _load.convert(saved, self._kind, self._states, home, True))
        one.made[one.parameter] = own
        return own

    # --- states ---

    def _home(self, memory: torch.Tensor) -> torch.device:
        """Where the states of a parameter lie: paged ones on the host."""
        return _HOST if self._page_bytes and _binding.is_paged(memory.device) else memory.device

    def _at_home(self, memory: torch.Tensor, make: Callable[[torch.Tensor], _format.State]) -> _format.State:
        """A state made of a tensor like a parameter's memory where its states lie: on the host page-locked, but
        for the step count, which stays with the parameter."""
        if self._home(memory) == memory.device:
            return make(memory)
        state, device = make(torch.empty_like(memory, device=_HOST)), memory.device
        return {k: v.to(device) if k == "step" else _pinned.moved(v, device) for k, v in state.items()}

    def _place(self, memory: torch.Tensor, name: str) -> _load.Place:
        """For what a state is read."""
        return _load.Place(self._kind, self._states, memory, name)

    def __getstate__(self) -> Dict[str, Any]:
        kept_ = ("_states", "_codes", "_page_bytes")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept_}}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._binding = None
        self.__dict__.pop("_tasks", None)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)

    def state_dict(self) -> Dict[str, Any]:
        """torch's, which the optimizers here and `portable_states` understand.

        No other optimizer accepts a dict with coded states: torch's raise when they load it or in
        their first step. For those, call this within ``mt.portable_states(optimizer)``. With
        FullyShardedDataParallel it always behaves so. States of sharded parameters (DTensors) are
        DTensors as well: any number of processes can load them.
        """
        own, self.state = self.state, defaultdict(dict, self._presented())
        try:
            return super().state_dict()
        finally:
            self.state = own

    def _presented(self) -> Dict[Any, Any]:
        """The states by parameter, as state dicts have them."""
        flattened = any(_layout.is_flattened(p) for g in self.param_groups for p in g["params"])
        return _sharded.presented(self, self._place, self._portable > 0 or flattened)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads a state dict of this rule, made here, by torch, by bitsandbytes or by torchao.

        States go to the devices of their parameters and keep their types whatever the parameters'
        are. Codes are kept byte by byte where this optimizer has such codes; 8-bit codes that were not
        chosen (`codes`) are those of the dict from then on. In a dict without any codes, 32-bit states
        are converted to this optimizer's format; in a dict with codes they stay. ValueError for a dict
        of another rule. Everything is checked before anything changes; the message names the parameter.
        """
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            result = pre_hook(self, state_dict)
            if result is not None:
                state_dict = result
        saved_groups = deepcopy(state_dict["param_groups"])
        check_counts(self.param_groups, saved_groups)
        for number, group in enumerate(saved_groups):
            self._check_saved_group(group, number)
        groups = [_load.group_values(s, own) for s, own in zip(saved_groups, self.param_groups)]
        for group in groups:
            self._check_group(group)
        before = self._states
        try:
            state = (self._sink or self._loaded)(Loading(state_dict["state"], saved_groups, groups))
        except BaseException:
            self._states = before
            raise
        self.__setstate__({"state": state, "param_groups": groups})
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _loaded(self, loading: Loading) -> Dict[Any, Any]:
        """The states of a state dict by parameter."""
        state, read, residuals = self._read(loading)
        coded = any(_load.has_codes(one.saved) for one in read)
        for one in read:
            dense = _layout.dense(_layout.local(one.parameter))
            state[one.parameter] = self._at_home(dense, lambda home: self._converted(one, home, coded))
        for parameter, residual in residuals.items():
            if parameter in state:
                own, size = residual.clone(), residual.element_size()
                made = self._at_home(
                    _layout.local(parameter), lambda home: {_format.RESIDUAL: _format.residual(home, own, size)}
                )
                state[parameter].update(made)
        return state

    def _read(self, loading: Loading) -> Tuple[Dict[Any, Any], List[_load.Found], Dict[torch.Tensor, torch.Tensor]]:
        """What a state dict has: the states of parameters with moments as they were saved, and all
        others as they are; and the residuals of split weights."""
        place_of, read, residuals = loading.places(), [], {}
        state: Dict[Any, Any] = defaultdict(dict)
        for number, value in loading.states.items():
            if number not in place_of:
                state[number] = value
                continue
            parameter, group, name = place_of[number]
            memory = _layout.local(parameter)
            place = self._place(memory, name)
            value = _sharded.localized(self._completed(_format.opened(value), group), parameter, place)
            one = place.read(value)
            if one is None and self._kind is OptimizerKind.SGD and isinstance(value.get("step"), torch.Tensor):
                state[parameter] = {"step": _format.step_tensor(_format.steps_taken(value["step"]), memory.device)}
            if one is not None and (memory.numel() or _layout.is_sharded(parameter)):
                _layout.check_parameter(memory, name, later=self._sink is not None)
                read.append(_load.Found(parameter, group, one))
            split = _format.split_bytes(group, memory)
            if split and value.get(_format.RESIDUAL) is not None:
                residual = _sharded.piece(value[_format.RESIDUAL], parameter, parameter.shape, _format.RESIDUAL, name)
                residuals[parameter] = _format.sized_residual(residual, split)
        found = {moment.format for one in read for moment in one.saved.moments if isinstance(moment, _load.Codes)}
        if self._codes is None and self._states in rules.CODES.values() and found & {*rules.CODES.values()}:
            self._states = StateFormat.BITS8_DYNAMIC if StateFormat.BITS8_DYNAMIC in found else StateFormat.BITS8
        return state, read, residuals

    def _completed(self, state: Any, group: Dict[str, Any]) -> Any:
        """A saved state with what a rule needs and others do not save."""
        return state

    def _converted(self, one: _load.Found, home: torch.Tensor, coded: bool) -> _format.State:
        """A saved state for memory like the parameter's. `coded`: there are codes in its dict."""
        coded_before = _load.has_codes(one.saved) and not kept(one.parameter)
        format_ = self._states if coded_before else self._format_of(one.group, one.parameter)
        return _load.convert(one.saved, self._kind, format_, home, coded)


def _start(self: Any, params: Params, values: Dict[str, Any]) -> None:
    """What every constructor does."""
    self._binding = None
    states, paged, self._codes = values.pop("states", None), values.pop("paged", False), values.pop("codes", None)
    if states is not None:
        self._states = rules.format_named(states, self._codes, self._rule)
    if paged:
        self._page_bytes = PAGE_BYTES
    torch.optim.Optimizer.__init__(self, params, {**values, **self._counts})


def _in_library(group: Dict[str, Any], names: Iterable[str]) -> Iterable[Tuple[str, Any]]:
    """A group's values but the learning rate, under the library's names."""
    for name in names:
        if name == "betas":
            yield from (("beta%d" % i, float(beta)) for i, beta in enumerate(group["betas"], 1))
        elif name in ("maximize", "nesterov"):
            yield name, int(bool(group[name]))
        elif name == "alpha" and "betas" not in group:
            yield "beta2", float(group[name])
        elif name != "lr" and name in group:
            yield name, float(group[name] or 0.0)


def _lies_as_bound(state: _format.State, place: _load.Place, home: torch.device) -> bool:
    """Whether a state has the tensors, types and order of memory with which a step can work on it."""
    kind, own, dense, _ = place
    names = _format.MOMENTS[kind]
    if not state.keys() >= {"step", *names}:
        return False
    format_ = _format.of(state, kind, own)
    if format_ not in (own, StateFormat.F32):
        return False
    found: List[Any] = [state.get(key) for key in _format.keys(kind, format_)]
    types = [_format.FLOATS.get(format_, torch.uint8)] * len(names) + [torch.float32] * (len(found) - len(names))
    for tensor, dtype, count in zip(found, types, _format.counts(kind, format_, dense.numel())):
        if tensor is None or (tensor.dtype, tensor.numel(), tensor.device) != (dtype, count, home):
            return False
    own_, step = found[: len(names)], state["step"]
    if (step.dtype, step.device) != (torch.int64, dense.device) or not all(t.is_contiguous() for t in found[len(names):]):
        return False
    if all(m.shape == dense.shape and m.stride() == dense.stride() for m in own_):
        return True
    return dense.is_contiguous() and "order" not in state and all(m.is_contiguous() for m in own_)


def check_counts(groups: List[Dict[str, Any]], saved: List[Dict[str, Any]]) -> None:
    if len(groups) != len(saved):
        raise ValueError("loaded state dict has a different number of parameter groups")
    if any(len(own["params"]) != len(theirs["params"]) for own, theirs in zip(groups, saved)):
        raise ValueError(
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
        )
