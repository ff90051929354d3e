"""Schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024): an average of the steps in
place of a schedule of the learning rate.

Gradients are taken at y, which the parameters hold in training. The state has the sequence "z" and
"exp_avg_sq"; the average x, at which the model is evaluated, is z + (y - z) / beta1. Groups count:
"k" steps taken, "lr_max", "weight_sum" and "train_mode", under the names that the authors' program
gives them, so its state dicts load here.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from . import _format, _layout
from ._base import MemoptOptimizer, _out_of_graphs
from ._facts import Facts
from ._options import number


class _Plan(NamedTuple):
    """What a group's next step takes, and what it leaves."""

    lr: float
    average: float  # the weight of z in the average
    lr_max: float
    weight_sum: float


class AdamWScheduleFree(MemoptOptimizer, rule="AdamWScheduleFree"):
    _step_supports_amp_scaling = False  # groups count steps on the host: GradScaler skips by itself
    _steps_on_host = False

    #: What groups count, under the names of the authors' program.
    _counts = dict(k=0, lr_max=-1.0, weight_sum=0.0, train_mode=True)

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        if float(group["betas"][0]) == 0.0:
            raise ValueError("Invalid beta parameter at index 0: 0.0; the average needs more")
        if group.get("split_weights"):
            raise ValueError("%s does not support split_weights=True" % type(self).__name__)
        for key, least in (("k", 0.0), ("weight_sum", 0.0), ("lr_max", -math.inf)):
            if not least <= number("%s value" % key, group[key]) < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, group[key]))

    def train(self) -> None:
        """Puts y into the parameters, for training; nothing if they hold it."""
        self._turn(True)

    def eval(self) -> None:
        """Puts the average x into the parameters, for evaluation; nothing if they hold it. Each
        turn rounds to the parameter's type."""
        self._turn(False)

    @torch.no_grad()
    def _turn(self, train: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == train:
                continue
            group["train_mode"] = train
            beta1 = float(group["betas"][0])
            for parameter in group["params"]:
                state = _format.opened(self.state.get(parameter)) or {}
                if "z" not in state or not int(state["step"]):
                    continue  # y, z and x are the same
                memory = _layout.local(parameter)
                exact = memory.float()
                exact.lerp_(state["z"].view_as(exact), 1 - beta1 if train else 1 - 1 / beta1)
                if exact is not memory:
                    memory.copy_(exact)

    def _plan(self, group: Dict[str, Any]) -> _Plan:
        count = group["k"] + 1
        warm = min(1.0, count / group["warmup_steps"]) if group["warmup_steps"] else 1.0
        lr = float(group["lr"]) * warm
        lr_max = max(lr, float(group["lr_max"]))
        weight: float = count ** float(group["r"]) * lr_max ** float(group["weight_lr_power"])
        total = float(group["weight_sum"]) + weight
        return _Plan(lr, weight / total if total else 0.0, lr_max, total)

    def _values(self, group: Dict[str, Any]) -> Any:
        plan = self._plan(group)
        return (("lr", plan.lr), *super()._values(group)[1:], ("average", plan.average))

    @_out_of_graphs
    def _step(self, params: List[torch.Tensor], grads: List[Optional[torch.Tensor]], facts: Facts) -> None:
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError(
                "the parameters hold the average: call train() of the %s before a step" % type(self).__name__
            )
        super()._step(params, grads, facts)
        for group in self.param_groups:
            plan = self._plan(group)
            group.update(k=group["k"] + 1, lr_max=plan.lr_max, weight_sum=plan.weight_sum)

    def _completed(self, state: Any, group: Dict[str, Any]) -> Any:
        """The authors' states have no count of their own."""
        return {"step": torch.tensor(group["k"]), **state} if state else state
