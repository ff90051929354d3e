# Written by tests/stubs.py from memopt/rules.py.
from typing import Any, Dict, Iterable, Optional, Tuple, Union

from .allocator import Allocator
from .optimizer import Optimizer
from .streams import StreamLike
from .tensors import TensorLike

Params = Iterable[Union[TensorLike, Dict[str, Any]]]
Learning = float
Betas = Tuple[float, float]

class Adafactor(Optimizer):
    def __init__(
        self, allocator: 'Allocator', params: 'Params', lr: 'Learning' = ..., beta2_decay: 'float' = ...,
        eps: 'Tuple[Optional[float], float]' = ..., d: 'float' = ..., weight_decay: 'float' = ..., *,
        maximize: 'bool' = ..., stream: 'StreamLike' = ..., states: 'str' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Adam(Optimizer):
    def __init__(
        self, allocator: 'Allocator', params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., *, maximize: 'bool' = ..., stream: 'StreamLike' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Adam8bit(Adam): ...

class AdamW(Optimizer):
    def __init__(
        self, allocator: 'Allocator', params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., *, maximize: 'bool' = ..., stream: 'StreamLike' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class AdamW4bit(AdamW): ...

class AdamW8bit(AdamW): ...

class AdamWBf16(AdamW): ...

class Lion(Optimizer):
    def __init__(
        self, allocator: 'Allocator', params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ...,
        weight_decay: 'float' = ..., *, maximize: 'bool' = ..., stream: 'StreamLike' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Lion8bit(Lion): ...

class SGD(Optimizer):
    def __init__(
        self, allocator: 'Allocator', params: 'Params', lr: 'Learning' = ..., momentum: 'float' = ...,
        dampening: 'float' = ..., weight_decay: 'float' = ..., nesterov: 'bool' = ..., *, maximize: 'bool' = ...,
        stream: 'StreamLike' = ..., states: 'str' = ..., codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class SGD8bit(SGD): ...
