"""In the place of deepspeed.ops.adam.DeepSpeedCPUAdam, for ZeRO-Offload:

    from memopt.torch.deepspeed import DeepSpeedCPUAdam8bit as DeepSpeedCPUAdam

The constructors take DeepSpeed's arguments. DeepSpeed accepts the classes without entries in its
configuration, since they are subclasses of its own, but none of its C++ is built. Importing this
module imports deepspeed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Tuple

import torch

from .._abi import OptimizerKind
from .optim._rules import AdamW

__all__ = ["DeepSpeedCPUAdam", "DeepSpeedCPUAdam8bit"]

_Theirs: Any = import_module("deepspeed.ops.adam").DeepSpeedCPUAdam


class _Unbuilt(_Theirs):  # type: ignore[misc]
    """DeepSpeed's class without its constructor, which compiles its kernels."""

    def __init__(self, params: Any, defaults: Any) -> None:
        torch.optim.Optimizer.__init__(self, params, defaults)


class DeepSpeedCPUAdam(AdamW, _Unbuilt):
    """AdamW (or Adam) with 32-bit states and DeepSpeedCPUAdam's arguments."""

    _own_states = "fp32"

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
        **options: Any,
    ) -> None:
        """Groups of parameters may have their own values.

        Args:
            model_params: parameters, or groups of them as dicts.
            lr: the learning rate.
            bias_correction: only True.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the decay, decoupled with adamw_mode.
            amsgrad: only False.
            adamw_mode: AdamW; else Adam.
            fp32_optimizer_states: False: bf16 states (with adamw_mode).
            options: AdamW's other arguments.
        """
        if not bias_correction:
            raise ValueError("bias_correction=False is not supported")
        if not adamw_mode:
            self._kind = OptimizerKind.ADAM
        states = self._own_states
        if not fp32_optimizer_states and states == "fp32":
            if not adamw_mode:
                raise ValueError("fp32_optimizer_states=False is for adamw_mode=True")
            states = "bf16"
        options = {"states": states, **options}
        self.adam_w_mode, self.fp32_optimizer_states = adamw_mode, fp32_optimizer_states
        super().__init__(model_params, lr, betas, eps, weight_decay, amsgrad, **options)
        self.defaults["bias_correction"] = True
        for group in self.param_groups:
            group.setdefault("bias_correction", True)

    def step_subgroup(self, subgroup_id: int, closure: Any = None) -> Any:
        """DeepSpeed's SuperOffload calls it; it is not supported."""
        raise NotImplementedError("%s: SuperOffload is not supported" % type(self).__name__)

    def rollback_subgroup(self, sub_group_id: int, closure: Any = None) -> Any:
        """As step_subgroup()."""
        raise NotImplementedError("%s: SuperOffload is not supported" % type(self).__name__)


class DeepSpeedCPUAdam8bit(DeepSpeedCPUAdam):
    """The same with 8-bit states in blocks of 256: 2.03 bytes a parameter, not 8."""

    _own_states = "8bit"


# ZeRO looks a client's optimizer up here, by its exact class.
import_module("deepspeed.runtime.zero.utils").ZERO_SUPPORTED_OPTIMIZERS.extend((DeepSpeedCPUAdam, DeepSpeedCPUAdam8bit))
