"""Rules by torch's operations whose states are fp32 tensors of shapes that the parameter's gives, beside
"step" (int64). Of a sharded parameter a process has the states of its rows;
in state dicts they are DTensors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Dict, Mapping, Tuple

import torch

from . import _format, _layout, _sharded
from ._base import Loading, Member
from ._whole import WholeOptimizer


class ShapedOptimizer(WholeOptimizer):
    """What such rules have in common."""

    def _shapes(self, parameter: torch.Tensor, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        """Those of a parameter's states by their keys; shape: of all of it, or of a shard."""
        raise NotImplementedError

    def _state_for(self, one: Member) -> _format.State:
        parameter, dense, _, name, made = one
        state = self.state.get(parameter)
        if state:
            known = self._known(state, parameter, name)
            if any(known[key] is not state[key] for key in known):
                made[parameter] = known
            return known
        new = {"step": _format.step_tensor(0, dense.device)}
        for key, shape in self._shapes(parameter, dense.shape).items():
            new[key] = torch.zeros(shape, dtype=torch.float32, device=dense.device)
        made[parameter] = new
        return new

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        """Whether shards of a parameter have parts of this state, not all of it."""
        return True

    def _presented(self) -> Dict[Any, Any]:
        return {parameter: self._as_whole(parameter, state) for parameter, state in self.state.items() if state}

    def _as_whole(self, parameter: torch.Tensor, state: _format.State) -> _format.State:
        if not _layout.is_sharded(parameter):
            return state
        owner: Any = parameter
        result = {"step": state["step"]}
        for key, shape in self._shapes(parameter, parameter.shape).items():
            if self._is_cut(key, parameter):
                result[key] = _sharded.of_shape(state[key], parameter, torch.Size(shape))
            else:
                result[key] = _layout.same_in_all(state[key], owner.device_mesh)
        return result

    def _localized(self, state: Mapping[str, Any], parameter: torch.Tensor, name: str) -> Mapping[str, Any]:
        """What a state dict has of a parameter, of the rows of this process."""
        result = dict(state)
        for key, shape in self._shapes(parameter, parameter.shape).items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor):
                continue
            if not self._is_cut(key, parameter):
                result[key] = _layout.whole(value)
            elif _layout.is_sharded(parameter) or _layout.is_sharded(value):
                result[key] = _sharded.piece(value, parameter, torch.Size(shape), key, name)
        return result

    def _loaded(self, loading: Loading) -> Dict[Any, Any]:
        place_of = loading.places()
        state: Dict[Any, Any] = defaultdict(dict)
        for key, value in loading.states.items():
            if key not in place_of:
                state[key] = value
            elif value:
                parameter, _, name = place_of[key]
                value = self._localized(_format.opened(value), parameter, name)
                known = self._known(value, parameter, name)
                state[parameter] = {k: v.clone() for k, v in known.items()}
        return state

    def _known(self, state: Mapping[str, Any], parameter: torch.Tensor, name: str) -> _format.State:
        """A state as a step takes it, with the same tensors where they are so already."""
        steps = _format.steps_taken(state.get("step", 0))
        if not 0 <= steps < 1 << 53:
            raise ValueError("the state of %s has taken %d steps" % (name, steps))
        step = state.get("step")
        known: _format.State = {"step": _format.step_tensor(steps, parameter.device)}
        if isinstance(step, torch.Tensor) and step.dtype is torch.int64 and step.device == parameter.device:
            known["step"] = step
        for key, shape in self._shapes(parameter, _layout.local(parameter).shape).items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                raise ValueError("the state of %s has no %s: it is incomplete, or of another rule" % (name, key))
            if tuple(value.shape) != shape:
                raise ValueError(
                    "the %s of %s has shape %s, which does not fit the parameter's shape %s"
                    % (key, name, tuple(value.shape), tuple(parameter.shape))
                )
            known[key] = value.to(parameter.device, torch.float32).contiguous()
        return known
