"""AdamW, Lion and SGD with states of 4, 8 or 32 bits, used as torch's are.

They take parameters or groups on construction, and gradients from each parameter's ``.grad``. What
they are made of is :class:`Optimizer`, the library's own.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Tuple, Union

from ._abi import OptimizerKind, StateFormat
from .allocator import Allocator
from .optimizer import Optimizer
from .sizes import Size
from .streams import StreamLike
from .tensors import TensorLike

Parameters = Iterable[Union[TensorLike, Dict[str, Any]]]


class _WithParameters(Optimizer):
    """An optimizer with torch's manners over parameters, or dicts {"params": …, "lr": …, …}."""

    __slots__ = ()

    _kind = OptimizerKind.ADAMW
    _states = StateFormat.F32

    def _start(
        self,
        allocator: Allocator,
        params: Parameters,
        values: Dict[str, Any],
        stream: StreamLike,
        min_8bit_size: Size,
        stochastic_rounding: bool,
        seed: int,
    ) -> None:
        super().__init__(
            allocator,
            kind=self._kind,
            states=self._states,
            min_8bit_size=min_8bit_size,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
        try:
            self._add_all(list(params), values, stream)
        except BaseException:
            self.close()
            raise

    def _add_all(self, params: List[Any], defaults: Dict[str, Any], stream: StreamLike) -> None:
        if not params:
            raise ValueError("the optimizer has no parameters; pass at least one")
        groups: List[Dict[str, Any]] = params
        if not isinstance(params[0], dict):
            groups = [{"params": params}]
        for values in groups:
            own: Dict[str, Any] = {k: v for k, v in values.items() if k != "params"}
            least = own.pop("min_8bit_size", None)
            group = self._add_group({**defaults, **own}, least)
            for parameter in values["params"]:
                self.add_parameter(parameter, group, stream=stream)


class AdamW(_WithParameters):
    """AdamW with 32-bit states over parameters, or over dicts {"params": …, "lr": …, …}."""

    __slots__ = ()

    def __init__(
        self,
        allocator: Allocator,
        params: Parameters,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        stream: StreamLike = None,
        min_8bit_size: Size = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        values = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        states = (min_8bit_size, stochastic_rounding, seed)
        self._start(allocator, params, values, stream, *states)


class AdamW8bit(AdamW):
    """AdamW with 8-bit block-wise states; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.BITS8


class AdamW4bit(AdamW):
    """AdamW with companded 4-bit states; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.COMPANDED4


class AdamWFp8(AdamW):
    """AdamW with e4m3 states and a scale per block; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.F8


class AdamW8bitCompanded(AdamW):
    """AdamW with companded 8-bit states, quicker to compute; the same arguments, and
    `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.COMPANDED


class AdamWBf16(AdamW):
    """AdamW with bf16 states, rounded stochastically; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.BF16


class Adam(AdamW):
    """Adam with 32-bit states; the arguments of AdamW. The decay is part of the gradient."""

    __slots__ = ()

    _kind = OptimizerKind.ADAM

    def __init__(
        self,
        allocator: Allocator,
        params: Parameters,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(allocator, params, lr, betas, eps, weight_decay, **options)


class Adam8bit(Adam):
    """Adam with 8-bit block-wise states."""

    __slots__ = ()

    _states = StateFormat.BITS8


class Lion(_WithParameters):
    """Lion (Chen et al. 2023) with 32-bit states: one moment, the update is a sign."""

    __slots__ = ()

    _kind = OptimizerKind.LION

    def __init__(
        self,
        allocator: Allocator,
        params: Parameters,
        lr: float = 1e-4,
        betas: Tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        stream: StreamLike = None,
        min_8bit_size: Size = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        values = dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
        states = (min_8bit_size, stochastic_rounding, seed)
        self._start(allocator, params, values, stream, *states)


class Lion8bit(Lion):
    """Lion with an 8-bit block-wise state; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.BITS8


class SGD(_WithParameters):
    """SGD as torch.optim.SGD defines it, with a 32-bit momentum buffer (kept also without
    momentum)."""

    __slots__ = ()

    _kind = OptimizerKind.SGD

    def __init__(
        self,
        allocator: Allocator,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        stream: StreamLike = None,
        min_8bit_size: Size = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        values = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )
        states = (min_8bit_size, stochastic_rounding, seed)
        self._start(allocator, params, values, stream, *states)


class SGD8bit(SGD):
    """SGD with an 8-bit block-wise momentum buffer; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.BITS8
