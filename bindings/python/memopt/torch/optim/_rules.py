"""The optimizers whose rules the library steps, by name. Their arguments are in memopt/rules.py."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _load, _options, _other_rules
from ._base import Loading, Member, MemoptOptimizer


class AdamW(MemoptOptimizer, rule="AdamW"):
    pass


class AdamW8bit(AdamW, states="8bit"):
    """AdamW with 8-bit states in blocks of 256 (Dettmers et al. 2022)."""


class AdamW4bit(AdamW, states="companded4"):
    """AdamW with 4-bit states in blocks of 128: the first moment on a curve, the second in even
    steps (Li et al. 2023). torchao's states load with one more rounding of the first moment."""


class AdamW8bitCompanded(AdamW, states="companded8"):
    """AdamW with 8-bit states in blocks of 256, coded by arithmetic and so quicker on a CPU: the
    first moment on a curve, the root of the second in even steps."""


class Adam(MemoptOptimizer, rule="Adam"):
    pass


class Adam8bit(Adam, states="8bit"):
    """Adam with 8-bit states in blocks of 256 (Dettmers et al. 2022)."""


class Lion(MemoptOptimizer, rule="Lion"):
    pass


class Lion8bit(Lion, states="8bit"):
    """Lion with an 8-bit state in blocks of 256."""


class SGD(MemoptOptimizer, rule="SGD"):
    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        _options.check_momentum(group)

    def _keeps_moments(self, group: Dict[str, Any]) -> bool:
        return float(group["momentum"]) != 0.0


class SGD8bit(SGD, states="8bit"):
    """SGD with an 8-bit momentum buffer in blocks of 256."""


class Adagrad(MemoptOptimizer, rule="Adagrad"):
    pass


_BUFFER = _format.MOMENTS[OptimizerKind.RMSPROP_MOMENTUM][0]


class RMSprop(MemoptOptimizer, rule="RMSprop"):
    @property
    def _kind(self) -> OptimizerKind:  # type: ignore[override]
        """With a buffer as soon as a group has a momentum or a state has a buffer; it then stays."""
        known = self.__dict__.get("_buffered", False)
        if known or any(float(group["momentum"]) for group in self.param_groups):
            self.__dict__["_buffered"] = True
            return OptimizerKind.RMSPROP_MOMENTUM
        return OptimizerKind.RMSPROP

    def _checked_state(self, state: _format.State, one: Member) -> _format.State:
        """A state from before there was a momentum gets a buffer of zeros."""
        if self._kind is OptimizerKind.RMSPROP_MOMENTUM and _BUFFER not in state:
            one.made[one.parameter] = state = _buffered(state)
        return super()._checked_state(state, one)

    def _loaded(self, loading: Loading) -> Dict[Any, Any]:
        """Buffers among the saved states decide the kind; states without one get zeros."""
        opened = {key: _format.opened(value) for key, value in loading.states.items()}
        states = [value for value in opened.values() if isinstance(value, dict)]
        before = self.__dict__.get("_buffered", False)
        buffered = any(_BUFFER in s for s in states) or any(float(g["momentum"]) for g in loading.groups)
        self.__dict__["_buffered"] = buffered
        if buffered:
            opened = {key: _buffered(value) for key, value in opened.items()}
        try:
            return super()._loaded(loading._replace(states=opened))
        except BaseException:
            self.__dict__["_buffered"] = before
            raise

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        states = [_format.opened(value) for value in self.state.values()]
        if any(isinstance(value, dict) and _BUFFER in value for value in states):
            self.__dict__["_buffered"] = True


def _buffered(state: Any) -> Any:
    """A state with a buffer of zeros where it has none."""
    if not isinstance(state, dict) or _BUFFER in state or "square_avg" not in state:
        return state
    squares, scales, zero = state["square_avg"], {}, 0
    if squares.dtype is torch.uint8:
        zero = _format.zero_byte(StateFormat.BITS8, True)
        scales = {"absmax1": torch.zeros_like(state["absmax1"]), "absmax2": state["absmax1"]}
    rest = {key: value for key, value in state.items() if key not in ("square_avg", "absmax1")}
    return {**rest, _BUFFER: torch.full_like(squares, zero), "square_avg": squares, **scales}


_FAST, _SLOW, _SQUARES = _format.MOMENTS[OptimizerKind.ADEMAMIX]


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

    def _loaded(self, loading: Loading) -> Dict[Any, Any]:
        states = {key: _from_bitsandbytes(value) for key, value in loading.states.items()}
        return super()._loaded(loading._replace(states=states))


def _from_bitsandbytes(state: Any) -> Any:
    """Its states under our names; any other state as it is."""
    if not isinstance(state, Mapping):
        return state
    inner = {**state, **state.get(_load.NESTED, {})}
    means, scales = inner.get("state1"), inner.get("absmax1")
    if not isinstance(means, torch.Tensor) or means.shape[:1] != (2,):
        return state
    known = {_FAST: means[0], _SLOW: means[1], _SQUARES: inner.get("state2")}
    if means.dtype is torch.uint8 and isinstance(scales, torch.Tensor):
        pairs = ((scales[0], "qmap1"), (scales[1], "qmap1"), (inner.get("absmax2"), "qmap2"))
        for key, (scale, qmap) in zip(tuple(known), pairs):
            known[key] = {"codes": known[key], "scale": scale, "qmap": inner.get(qmap)}
    return {"step": inner.get("step", 0), **known}


def to_bitsandbytes(state: Any) -> Dict[str, Any]:
    """A parameter's state as bitsandbytes keeps it; any other as it is."""
    opened: Dict[str, Any] = _format.opened(state)
    if _FAST not in opened:
        return opened
    result = {"step": int(opened["step"]), "state2": opened[_SQUARES]}
    result["state1"] = torch.stack((opened[_FAST], opened[_SLOW]))
    if "absmax1" in opened:
        result["absmax1"] = torch.stack((opened["absmax1"], opened["absmax2"]))
        result["absmax2"] = opened["absmax3"]
        for number_, signed in ((1, True), (2, False)):
            map_ = _format.values(StateFormat.BITS8, signed)
            result["qmap%d" % number_] = map_.to(opened[_FAST].device, copy=True)
    return result


#: One class for each rule.
CLASSES = (AdamW, Adam, Lion, SGD, Adagrad, RMSprop, AdEMAMix)
