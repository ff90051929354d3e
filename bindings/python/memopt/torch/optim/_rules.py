"""The optimizers whose rules the library steps, by name. Their arguments are in memopt/rules.py."""

from __future__ import annotations

from typing import Any, Dict, Iterable

import torch

from ... import rules
from ..._abi import OptimizerKind
from . import _format, _options, _other_rules
from ._base import Loading, Member, MemoptOptimizer


class AdamW(MemoptOptimizer, rule="AdamW"):
    pass


class Adam(MemoptOptimizer, rule="Adam"):
    pass


class Lion(MemoptOptimizer, rule="Lion"):
    pass


class SGD(MemoptOptimizer, rule="SGD"):
    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        _options.check_momentum(group)

    def _keeps_moments(self, group: Dict[str, Any]) -> bool:
        return float(group["momentum"]) != 0.0


class Adagrad(MemoptOptimizer, rule="Adagrad"):
    pass


_BUFFER = _format.MOMENTS[OptimizerKind.RMSPROP_MOMENTUM][0]


class RMSprop(MemoptOptimizer, rule="RMSprop"):
    @property
    def _kind(self) -> OptimizerKind:  # type: ignore[override]
        """With a buffer as soon as a group has a momentum or a state has a buffer; it then stays."""
        buffered = self._notice(self.param_groups, ())
        return OptimizerKind.RMSPROP_MOMENTUM if buffered else OptimizerKind.RMSPROP

    def _notice(self, groups: Iterable[Dict[str, Any]], states: Iterable[Any]) -> bool:
        found = self.__dict__.get("_buffered", False) or any(float(group["momentum"]) for group in groups)
        found = found or any(isinstance(state, dict) and _BUFFER in state for state in states)
        self.__dict__["_buffered"] = found
        return found

    def _completed(self, state: Any, group: Dict[str, Any]) -> Any:
        return _buffered(state) if self._notice((), ()) else state

    def _checked_state(self, state: _format.State, one: Member) -> _format.State:
        """A state from before there was a momentum gets a buffer of zeros."""
        completed = self._completed(state, one.group)
        if completed is not state:
            one.made[one.parameter] = completed
        return super()._checked_state(completed, one)

    def _read(self, loading: Loading) -> Any:
        self._notice(loading.groups, loading.states.values())
        return super()._read(loading)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._notice((), self.state.values())


def _buffered(state: Any) -> Any:
    """A state with a buffer of zeros where it has none."""
    if not isinstance(state, dict) or _BUFFER in state or "square_avg" not in state:
        return state
    squares, made, zero = state["square_avg"], dict(state), 0
    scale = _format.scale_of(state, 0)
    if scale is not None:
        zero = _format.zero_byte(_format.FORMATS_OF_SCALES[scale[:-1]], True)
        made.update({scale[:-1] + "2": made[scale], scale: torch.zeros_like(made[scale])})
    return {**made, _BUFFER: torch.full_like(squares, zero)}


class AdEMAMix(MemoptOptimizer, rule="AdEMAMix"):
    _takes_flattened = False

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        betas = group["betas"]
        if group["t_beta3"] is not None and not (betas[0] > 0.0 and betas[2] > 0.0):
            raise ValueError("Invalid betas: %s; t_beta3 needs two above 0" % (betas,))
        for key in ("t_alpha", "t_beta3"):
            if group[key] == 0:
                raise ValueError("Invalid %s value: %s; None or above 0" % (key, group[key]))

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if not _other_rules.has_three_betas(group):
            what = "group %d has no three betas" % index
            raise _other_rules.refused(what, "another rule", "AdEMAMix")


#: One class for each rule.
CLASSES = (AdamW, Adam, Lion, SGD, Adagrad, RMSprop, AdEMAMix)
AdamW8bit, AdamW4bit = (rules.variant(AdamW, states) for states in ("8bit", "4bit"))
Adam8bit, Lion8bit, SGD8bit = (rules.variant(cls, "8bit") for cls in (Adam, Lion, SGD))
