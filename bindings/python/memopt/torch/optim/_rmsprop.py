"""RMSprop and Adagrad, with the arguments of torch's and bitsandbytes'."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format
from ._base import Learning, MemoptOptimizer, Params
from ._options import number
from ._rules import state_options

_BUFFER = _format.MOMENTS[OptimizerKind.RMSPROP_MOMENTUM][0]


class RMSprop(MemoptOptimizer):
    """RMSprop as torch.optim.RMSprop, with 32-bit states: 4 bytes a parameter, with momentum 8."""

    _numbers = ("eps", "weight_decay")

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        capturable: bool = False,
        differentiable: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        block_size: Optional[int] = None,
        seed: int = 0,
        split_weights: Union[bool, int] = False,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            alpha: how much the mean of squares keeps in a step.
            eps: added to its root.
            weight_decay: the share of a parameter that is added to its gradient.
            momentum: how much the buffer of updates keeps in a step; 0 in all groups: there is none.
            centered: only False.
            maximize: climb instead of descend.
            foreach, capturable: no effect; a step is one fused call that may be captured.
            differentiable: only False.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            block_size: elements per scale of 8-bit states, a power of two from 32 to 4096 (None: 256);
                the same in all groups.
            seed: chooses the random numbers of stochastic_rounding.
            split_weights: keep more bits of each bf16 parameter in its state, in place of an fp32
                master (6 bytes with the parameter): with True or 8 the next 8 (3 bytes), with 16
                all of them (4 bytes, exactly the master); not with stochastic_rounding.
        """
        values = dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        switches = dict(centered=centered, maximize=maximize, foreach=foreach)
        switches.update(capturable=capturable, differentiable=differentiable)
        options = state_options(min_8bit_size, stochastic_rounding, block_size, seed, split_weights)
        super().__init__(params, {**values, **switches, **options})

    @property
    def _kind(self) -> OptimizerKind:  # type: ignore[override]
        """With a buffer as soon as a group has a momentum or a state has a buffer; it then stays."""
        known = self.__dict__.get("_buffered", False)
        if known or any(float(group["momentum"]) for group in self.param_groups):
            self.__dict__["_buffered"] = True
            return OptimizerKind.RMSPROP_MOMENTUM
        return OptimizerKind.RMSPROP

    def _check_group(self, group: Dict[str, Any]) -> None:
        if group["centered"]:
            raise ValueError("%s does not support centered=True" % type(self).__name__)
        for key in ("alpha", "momentum"):
            value = number("%s value" % key, group[key])
            if not 0.0 <= value < (1.0 if key == "alpha" else float("inf")):
                raise ValueError("Invalid %s value: %s" % (key, value))
        super()._check_group(group)

    def _values(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        own = (("beta2", float(group["alpha"])), ("momentum", float(group["momentum"])))
        return (*super()._values(group), *own)

    def _checked_state(
        self,
        state: _format.State,
        parameter: torch.Tensor,
        dense: torch.Tensor,
        name: str,
        made: Dict[torch.Tensor, _format.State],
    ) -> _format.State:
        """A state from before there was a momentum gets a buffer of zeros."""
        if self._kind is OptimizerKind.RMSPROP_MOMENTUM and _BUFFER not in state:
            state = _with_buffer(state, dense, self._block_size)
            made[parameter] = state
        return super()._checked_state(state, parameter, dense, name, made)

    def _loaded(
        self,
        saved: Dict[Any, Any],
        saved_groups: List[Dict[str, Any]],
        groups: List[Dict[str, Any]],
    ) -> Dict[Any, Any]:
        """Buffers among the saved states decide the kind; states without one get zeros."""
        opened = {key: _format.opened(value) for key, value in saved.items()}
        states = [value for value in opened.values() if isinstance(value, dict)]
        before = self.__dict__.get("_buffered", False)
        buffered = any(_BUFFER in s for s in states) or any(float(g["momentum"]) for g in groups)
        self.__dict__["_buffered"] = buffered
        if buffered:
            opened = {key: _buffered(value) for key, value in opened.items()}
        try:
            return super()._loaded(opened, saved_groups, groups)
        except BaseException:
            self.__dict__["_buffered"] = before
            raise

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        states = [_format.opened(value) for value in self.state.values()]
        if any(isinstance(value, dict) and _BUFFER in value for value in states):
            self.__dict__["_buffered"] = True


class RMSprop8bit(RMSprop):
    """RMSprop with 8-bit states in blocks of 256."""

    _states = StateFormat.BITS8


class Adagrad(MemoptOptimizer):
    """Adagrad as torch.optim.Adagrad, with a 32-bit sum of squares."""

    _kind = OptimizerKind.ADAGRAD
    _numbers = ("eps", "weight_decay")

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        differentiable: bool = False,
        fused: Optional[bool] = None,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        block_size: Optional[int] = None,
        seed: int = 0,
        split_weights: Union[bool, int] = False,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            lr_decay: only 0: a scheduler of torch's does the same.
            weight_decay: the share of a parameter that is added to its gradient.
            initial_accumulator_value: only 0.
            eps: added to the root of the sum.
            maximize: climb instead of descend.
            foreach, fused: no effect; a step is one fused call.
            differentiable: only False.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            block_size: elements per scale of 8-bit states, a power of two from 32 to 4096 (None: 256);
                the same in all groups.
            seed: chooses the random numbers of stochastic_rounding.
            split_weights: keep more bits of each bf16 parameter in its state, in place of an fp32
                master (6 bytes with the parameter): with True or 8 the next 8 (3 bytes), with 16
                all of them (4 bytes, exactly the master); not with stochastic_rounding.
        """
        values = dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        values.update(initial_accumulator_value=initial_accumulator_value)
        switches = dict(maximize=maximize, foreach=foreach, differentiable=differentiable)
        options = state_options(min_8bit_size, stochastic_rounding, block_size, seed, split_weights)
        super().__init__(params, {**values, **switches, "fused": fused, **options})

    def _check_group(self, group: Dict[str, Any]) -> None:
        for key in ("lr_decay", "initial_accumulator_value"):
            if number("%s value" % key, group[key]) != 0.0:
                raise ValueError(
                    "Invalid %s value: %s; %s supports 0" % (key, group[key], type(self).__name__)
                )
        super()._check_group(group)


class Adagrad8bit(Adagrad):
    """Adagrad with an 8-bit sum of squares in blocks of 256. What a step adds is lost where it is
    less than half a code's distance, about one part in 150: late in long runs the sum grows too
    slowly, so that steps stay longer than with 32 bits."""

    _states = StateFormat.BITS8


def _with_buffer(state: _format.State, dense: torch.Tensor, size: int) -> _format.State:
    """A state of RMSprop without momentum, and zeros for the buffer."""
    single = _format.of(state, OptimizerKind.RMSPROP, dense.numel(), StateFormat.BITS8)
    new = _format.new(dense, OptimizerKind.RMSPROP_MOMENTUM, single, size)
    new.update({k: v for k, v in state.items() if k in ("step", "square_avg", _format.RESIDUAL)})
    if "absmax1" in state:
        new["absmax2"] = state["absmax1"]
    return new


def _buffered(saved: Any) -> Any:
    """A saved state with a buffer of zeros where it has none."""
    if not isinstance(saved, dict) or _BUFFER in saved or "square_avg" not in saved:
        return saved
    squares = saved["square_avg"]
    if squares.dtype is not torch.uint8:
        return {**saved, _BUFFER: torch.zeros_like(squares)}
    zero = _format.zero_byte(StateFormat.BITS8, True)
    scales = {"absmax1": torch.zeros_like(saved["absmax1"]), "absmax2": saved["absmax1"]}
    return {**saved, _BUFFER: torch.full_like(squares, zero), **scales}
