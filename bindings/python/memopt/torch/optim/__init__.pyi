# Written by tests/stubs.py from memopt/rules.py.
from typing import Optional, Tuple, Union

import torch

from ._base import MemoptOptimizer as MemoptOptimizer
from ._base import Params as Params
from ._host import CPUOffloadOptimizer as CPUOffloadOptimizer
from ._keep import keep_32bit as keep_32bit
from ._release import GradientRelease as GradientRelease
from ._release import release_gradients as release_gradients
from ._save import portable_states as portable_states
from ._save import to_bitsandbytes as to_bitsandbytes

Learning = Union[float, torch.Tensor]
Betas = Tuple[Learning, Learning]

class AdEMAMix(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., betas: 'Tuple[float, float, float]' = ..., alpha: 'float' = ...,
        t_alpha: 'Optional[int]' = ..., t_beta3: 'Optional[int]' = ..., eps: 'float' = ..., weight_decay: 'float' = ...,
        *, maximize: 'bool' = ..., states: 'str' = ..., codes: 'Optional[str]' = ..., paged: 'bool' = ...,
        min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Adafactor(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., beta2_decay: 'float' = ...,
        eps: 'Tuple[Optional[float], float]' = ..., d: 'float' = ..., weight_decay: 'float' = ..., *,
        foreach: 'Optional[bool]' = ..., maximize: 'bool' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Adagrad(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., lr_decay: 'float' = ..., weight_decay: 'float' = ...,
        initial_accumulator_value: 'float' = ..., eps: 'float' = ..., *, maximize: 'bool' = ...,
        foreach: 'Optional[bool]' = ..., differentiable: 'bool' = ..., fused: 'Optional[bool]' = ...,
        states: 'str' = ..., codes: 'Optional[str]' = ..., paged: 'bool' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ..., split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class Adam(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., amsgrad: 'bool' = ..., *, maximize: 'bool' = ..., foreach: 'Optional[bool]' = ...,
        capturable: 'bool' = ..., differentiable: 'bool' = ..., fused: 'Optional[bool]' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., paged: 'bool' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ..., split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class Adam8bit(Adam): ...

class AdamW(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., amsgrad: 'bool' = ..., *, maximize: 'bool' = ..., foreach: 'Optional[bool]' = ...,
        capturable: 'bool' = ..., differentiable: 'bool' = ..., fused: 'Optional[bool]' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., paged: 'bool' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ..., split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class AdamW4bit(AdamW): ...

class AdamW8bit(AdamW): ...

class AdamWScheduleFree(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., warmup_steps: 'int' = ..., r: 'float' = ..., weight_lr_power: 'float' = ...,
        foreach: 'Optional[bool]' = ..., *, maximize: 'bool' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...
    def train(self) -> None: ...
    def eval(self) -> None: ...

class LAMB(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., bias_correction: 'bool' = ..., betas: 'Betas' = ...,
        eps: 'float' = ..., weight_decay: 'float' = ..., amsgrad: 'bool' = ..., adam_w_mode: 'bool' = ..., *,
        max_unorm: 'float' = ..., trust_clip: 'bool' = ..., maximize: 'bool' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class LARS(SGD): ...

class Lion(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., betas: 'Betas' = ..., weight_decay: 'float' = ..., *,
        maximize: 'bool' = ..., foreach: 'Optional[bool]' = ..., capturable: 'bool' = ..., differentiable: 'bool' = ...,
        fused: 'Optional[bool]' = ..., states: 'str' = ..., codes: 'Optional[str]' = ..., paged: 'bool' = ...,
        min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
        split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class Lion8bit(Lion): ...

class Muon(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., weight_decay: 'float' = ..., momentum: 'float' = ...,
        nesterov: 'bool' = ..., ns_coefficients: 'Tuple[float, float, float]' = ..., eps: 'float' = ...,
        ns_steps: 'int' = ..., adjust_lr_fn: 'Optional[str]' = ..., *, states: 'str' = ...,
        codes: 'Optional[str]' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
    ) -> None: ...

class Muon8bit(Muon): ...

class RMSprop(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., alpha: 'float' = ..., eps: 'float' = ...,
        weight_decay: 'float' = ..., momentum: 'float' = ..., centered: 'bool' = ..., *, maximize: 'bool' = ...,
        foreach: 'Optional[bool]' = ..., capturable: 'bool' = ..., differentiable: 'bool' = ..., states: 'str' = ...,
        codes: 'Optional[str]' = ..., paged: 'bool' = ..., min_8bit_size: 'int' = ...,
        stochastic_rounding: 'bool' = ..., seed: 'int' = ..., split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class SGD(MemoptOptimizer):
    def __init__(
        self, params: 'Params', lr: 'Learning' = ..., momentum: 'float' = ..., dampening: 'float' = ...,
        weight_decay: 'float' = ..., nesterov: 'bool' = ..., *, maximize: 'bool' = ..., foreach: 'Optional[bool]' = ...,
        differentiable: 'bool' = ..., fused: 'Optional[bool]' = ..., states: 'str' = ..., codes: 'Optional[str]' = ...,
        paged: 'bool' = ..., min_8bit_size: 'int' = ..., stochastic_rounding: 'bool' = ..., seed: 'int' = ...,
        split_weights: 'Union[bool, int]' = ...,
    ) -> None: ...

class SGD8bit(SGD): ...
