"""Rules by torch's operations whose states are fp32 tensors of shapes that the parameter's gives, beside
"step" (int64, on the host, which needs it). Some of them may be 8-bit codes, in blocks that begin anew in
each row, with scales under "absmax1", "absmax2". Of a sharded parameter a process has the states of its
rows; in state dicts they are DTensors."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any, Dict, List, Mapping, Tuple

import torch

from ..._abi import StateFormat
from . import _format, _keep, _layout, _row_codes, _sharded
from ._whole import WholeOptimizer

_HOST = torch.device("cpu")


class ShapedOptimizer(WholeOptimizer):
    """What such rules have in common."""

    def _home(self, parameter: torch.Tensor) -> Tuple[Dict[str, Any], str]:
        """A parameter's group, and its name, "" without one."""
        homes: Dict[torch.Tensor, Any] = self.__dict__.setdefault("_homes", {})
        if parameter not in homes:
            for group in self.param_groups:
                names = group.get("param_names") or ()
                for i, one in enumerate(group["params"]):
                    homes[one] = group, (names[i] if i < len(names) else "")
        home: Tuple[Dict[str, Any], str] = homes[parameter]
        return home

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.pop("_homes", None)
        super().__setstate__(state)

    def _shapes(self, parameter: torch.Tensor, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        """Those of a parameter's states by their keys; shape: of all of it, or of a shard."""
        raise NotImplementedError

    def _signs(self, parameter: torch.Tensor) -> Dict[str, bool]:
        """Those that are coded where the parameter has 8-bit states, and whether they have signs."""
        return {}

    def _every_shape(
        self, parameter: torch.Tensor, shape: torch.Size, is_coded: bool
    ) -> Dict[str, Tuple[int, ...]]:
        """_shapes(), and those of scales."""
        shapes = dict(self._shapes(parameter, shape))
        for i, key in enumerate(self._signs(parameter) if is_coded else ()):
            shapes[_scale(i)] = _row_codes.scales_shape(shapes[key])
        return shapes

    def _is_to_be_coded(self, parameter: torch.Tensor, group: Dict[str, Any]) -> bool:
        """Whether a new state has codes: of vectors, whose shards are parts of a row, it has none."""
        has_rows = parameter.dim() > 1 and bool(self._signs(parameter))
        return has_rows and self._format_of(group, parameter) is StateFormat.BITS8

    def _own_state(
        self,
        parameter: torch.Tensor,
        dense: torch.Tensor,
        group: Dict[str, Any],
        name: str,
        made: Dict[torch.Tensor, _format.State],
    ) -> _format.State:
        state = self.state.get(parameter)
        if state:
            known = self._known(state, parameter, name)
            if any(known[key] is not state[key] for key in known):
                made[parameter] = known
            return known
        new = {"step": _format.step_tensor(0, _HOST)}
        is_coded = self._is_to_be_coded(parameter, group)
        for key, shape in self._every_shape(parameter, dense.shape, is_coded).items():
            sign = self._signs(parameter).get(key) if is_coded else None
            if sign is None:
                new[key] = torch.zeros(shape, dtype=torch.float32, device=dense.device)
            else:
                new[key] = _row_codes.new(shape, sign, dense.device)
        made[parameter] = new
        return new

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        """Whether shards of a parameter have parts of this state, not all of it."""
        return True

    def _is_state_cut(self, key: str, parameter: torch.Tensor) -> bool:
        """_is_cut(), of scales too."""
        moments = dict(zip(map(_scale, range(9)), self._signs(parameter)))
        return self._is_cut(moments.get(key, key), parameter)

    def state_dict(self) -> Dict[str, Any]:
        """torch's; states of sharded parameters are DTensors: any number of processes can load
        them. No other optimizer accepts codes; within portable_states() they are floats."""
        own = self.state
        presented = {p: self._presented(p, s) for p, s in own.items() if s}
        self.state = defaultdict(dict, presented)
        try:
            return super().state_dict()
        finally:
            self.state = own

    def _presented(self, parameter: torch.Tensor, state: _format.State) -> _format.State:
        if self._portable > 0:
            state = self._decoded(state, parameter)
        result = state
        if _layout.is_sharded(parameter):
            result = self._distributed(state, parameter)
        sealed: _format.State = _format.sealed(result) if _is_coded(state) else result
        return sealed

    def _decoded(self, state: _format.State, parameter: torch.Tensor) -> _format.State:
        """A state without codes."""
        if not _is_coded(state):
            return state
        signs = self._signs(parameter)
        result = {k: v for k, v in state.items() if k not in map(_scale, range(len(signs)))}
        for i, (key, sign) in enumerate(signs.items()):
            result[key] = _row_codes.decoded(state[key], state[_scale(i)], sign)
        return result

    def _coded(self, state: _format.State, parameter: torch.Tensor) -> _format.State:
        """A state with codes in place of floats."""
        result = dict(state)
        for i, (key, sign) in enumerate(self._signs(parameter).items()):
            result[key], result[_scale(i)] = _row_codes.coded(state[key], sign)
        return result

    def _distributed(self, state: _format.State, parameter: torch.Tensor) -> _format.State:
        owner: Any = parameter
        result = {"step": state["step"]}
        for key, shape in self._every_shape(parameter, parameter.shape, _is_coded(state)).items():
            if self._is_state_cut(key, parameter):
                result[key] = _sharded.of_shape(state[key], parameter, torch.Size(shape))
            else:
                result[key] = _layout.same_in_all(state[key], owner.device_mesh)
        return result

    def _localized(
        self, state: Mapping[str, Any], parameter: torch.Tensor, name: str
    ) -> Mapping[str, Any]:
        """What a state dict has of a parameter, of the rows of this process."""
        result = dict(state)
        for key, shape in self._every_shape(parameter, parameter.shape, _is_coded(state)).items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor):
                continue
            if not self._is_state_cut(key, parameter):
                result[key] = _layout.whole(value)
            elif _layout.is_sharded(parameter) or _layout.is_sharded(value):
                result[key] = _sharded.piece(value, parameter, torch.Size(shape), key, name)
        return result

    def _loaded(
        self,
        saved: Dict[Any, Any],
        saved_groups: List[Dict[str, Any]],
        groups: List[Dict[str, Any]],
    ) -> Dict[Any, Any]:
        numbers = chain.from_iterable(group["params"] for group in saved_groups)
        places = [
            (parameter, _layout.name_of(group, g, i), group)
            for g, group in enumerate(groups)
            for i, parameter in enumerate(group["params"])
        ]
        place_of = dict(zip(numbers, places))
        state: Dict[Any, Any] = defaultdict(dict)
        saved = {key: _format.opened(value) for key, value in saved.items()}
        any_codes = any(isinstance(value, dict) and _is_coded(value) for value in saved.values())
        for key, value in saved.items():
            if key not in place_of:
                state[key] = value
            elif value:
                parameter, name, group = place_of[key]
                value = self._localized(value, parameter, name)
                known = self._known(value, parameter, name)
                if self._states is StateFormat.F32 or _keep.kept(parameter):
                    known = self._decoded(known, parameter)
                elif not any_codes and self._is_to_be_coded(parameter, group):
                    known = self._coded(known, parameter)
                state[parameter] = {k: v.clone() for k, v in known.items()}
        return state

    def _known(
        self, state: Mapping[str, Any], parameter: torch.Tensor, name: str
    ) -> _format.State:
        """A state as a step takes it, with the same tensors where they are so already."""
        steps = _format.steps_taken(state.get("step", 0))
        if not 0 <= steps < 1 << 53:
            raise ValueError("the state of %s has taken %d steps" % (name, steps))
        step = state.get("step")
        known: _format.State = {"step": _format.step_tensor(steps, _HOST)}
        if isinstance(step, torch.Tensor) and step.dtype is torch.int64 and step.device == _HOST:
            known["step"] = step
        own, is_coded = _layout.local(parameter).shape, _is_coded(state)
        for key, shape in self._every_shape(parameter, own, is_coded).items():
            value = state.get(key)
            codes = is_coded and key in self._signs(parameter)
            if not isinstance(value, torch.Tensor) or value.is_floating_point() == codes:
                raise ValueError(
                    "the state of %s has no %s: it is incomplete, or of another rule" % (name, key)
                )
            if tuple(value.shape) != shape:
                raise ValueError(
                    "the %s of %s has shape %s, which does not fit the parameter's shape %s"
                    % (key, name, tuple(value.shape), tuple(parameter.shape))
                )
            dtype = torch.uint8 if codes else torch.float32
            known[key] = value.to(parameter.device, dtype).contiguous()
        return known


def _scale(index: int) -> str:
    return "absmax%d" % (index + 1)


def _is_coded(state: Mapping[str, Any]) -> bool:
    return _scale(0) in state
