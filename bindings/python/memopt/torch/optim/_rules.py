"""The optimizers by name, with torch's arguments and additional ones."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

import torch

from ..._abi import OptimizerKind, StateFormat
from ._base import Learning, MemoptOptimizer, Params
from ._options import number

Betas = Tuple[Union[float, torch.Tensor], Union[float, torch.Tensor]]


class AdamW(MemoptOptimizer):
    """Adam with decoupled weight decay and 32-bit states, as torch.optim.AdamW."""

    _kind = OptimizerKind.ADAMW
    _numbers = ("eps", "weight_decay")

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        capturable: bool = False,
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
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            amsgrad: only False.
            maximize: climb instead of descend.
            foreach, fused, capturable: no effect; a step is one fused call that may be captured.
            differentiable: only False.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            block_size: elements per scale of coded states, a power of two from 32 to 4096 (None: 128
                with 4 bits, else 256); the same in all groups.
            seed: chooses the random numbers of stochastic_rounding.
            split_weights: keep more bits of each bf16 parameter in its state, in place of an fp32
                master (6 bytes with the parameter): with True or 8 the next 8 (3 bytes), with 16
                all of them (4 bytes, exactly the master); not with stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        switches = dict(maximize=maximize, foreach=foreach, capturable=capturable)
        switches.update(differentiable=differentiable, fused=fused)
        options = state_options(min_8bit_size, stochastic_rounding, block_size, seed, split_weights)
        super().__init__(params, {**values, **switches, **options})


class AdamW8bit(AdamW):
    """AdamW with 8-bit states in blocks of 256 (Dettmers et al. 2022)."""

    _states = StateFormat.BITS8


class AdamW4bit(AdamW):
    """AdamW with 4-bit states in blocks of 128: the first moment on a curve, the second in even
    steps (Li et al. 2023). torchao's states load with one more rounding of the first moment."""

    _states = StateFormat.COMPANDED4


class AdamW8bitCompanded(AdamW):
    """AdamW with 8-bit states in blocks of 256, coded by arithmetic and so quicker on a CPU: the
    first moment on a curve, the root of the second in even steps."""

    _states = StateFormat.COMPANDED


class AdamWFp8(AdamW):
    """AdamW with e4m3 states and a scale per block of 256."""

    _states = StateFormat.F8


class AdamWBf16(AdamW):
    """AdamW with bf16 states, rounded stochastically, so that slow means do not stop: 4 bytes a
    parameter. Shards step as the whole, bit for bit."""

    _states = StateFormat.BF16


class Adam(AdamW):
    """Adam with 32-bit states, as torch.optim.Adam: the decay is part of the gradient."""

    _kind = OptimizerKind.ADAM

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter that is added to its gradient.
            amsgrad: only False.
            options: AdamW's other arguments.
        """
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


class Adam8bit(Adam):
    """Adam with 8-bit states in blocks of 256 (Dettmers et al. 2022)."""

    _states = StateFormat.BITS8


class Lion(MemoptOptimizer):
    """Lion (Chen et al. 2023) with a 32-bit state: one moment, the update is a sign."""

    _kind = OptimizerKind.LION

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        capturable: bool = False,
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
            betas: the weight of the moment in the update, and how much it keeps in a step.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            maximize: climb instead of descend.
            foreach, fused, capturable: no effect; a step is one fused call that may be captured.
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
        values = dict(lr=lr, betas=betas, weight_decay=weight_decay)
        switches = dict(maximize=maximize, foreach=foreach, capturable=capturable)
        switches.update(differentiable=differentiable, fused=fused)
        options = state_options(min_8bit_size, stochastic_rounding, block_size, seed, split_weights)
        super().__init__(params, {**values, **switches, **options})


class Lion8bit(Lion):
    """Lion with an 8-bit state in blocks of 256."""

    _states = StateFormat.BITS8


class SGD(MemoptOptimizer):
    """Gradient descent as torch.optim.SGD, with a 32-bit momentum buffer; none without momentum."""

    _kind = OptimizerKind.SGD
    _numbers = ("momentum", "dampening", "weight_decay")
    _switches = ("nesterov", "maximize")

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
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
            momentum: how much the buffer keeps in a step; 0: there is no buffer.
            dampening: the share of the gradient that does not go into the buffer.
            weight_decay: the share of a parameter that is added to its gradient.
            nesterov: use Nesterov's momentum.
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
        values = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        switches = dict(nesterov=nesterov, maximize=maximize, foreach=foreach)
        switches.update(differentiable=differentiable, fused=fused)
        options = state_options(min_8bit_size, stochastic_rounding, block_size, seed, split_weights)
        super().__init__(params, {**values, **switches, **options})

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        momentum = number("momentum value", group["momentum"])
        dampening = number("dampening value", group["dampening"])
        if not 0.0 <= momentum < float("inf"):
            raise ValueError("Invalid momentum value: %s" % momentum)
        if not abs(dampening) < float("inf"):
            raise ValueError("Invalid dampening value: %s" % dampening)
        if group["nesterov"] and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def _keeps_moments(self, group: Dict[str, Any]) -> bool:
        return float(group["momentum"]) != 0.0


class SGD8bit(SGD):
    """SGD with an 8-bit momentum buffer in blocks of 256."""

    _states = StateFormat.BITS8


def state_options(
    min_8bit_size: int,
    stochastic_rounding: bool,
    block_size: Optional[int],
    seed: int,
    split_weights: Union[bool, int],
) -> Dict[str, Any]:
    """How states and parameters are kept, as entries of a group."""
    return dict(
        min_8bit_size=min_8bit_size,
        stochastic_rounding=stochastic_rounding,
        block_size=block_size,
        seed=seed,
        split_weights=split_weights,
    )
