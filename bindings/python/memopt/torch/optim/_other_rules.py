"""Refuses state dicts of other rules, whose moments an optimizer would lose."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import torch

from ..._abi import OptimizerKind
from . import _format

#: Entries that only one rule's state has.
_OWN = {
    "momentum_buffer": "SGD with momentum",
    "exp_avg_sq": "Adam",
    "state2": "Adam",
    "exp_inf": "Adamax",
    "mu_product": "NAdam",
    "square_avg": "RMSprop",
    "sum": "Adagrad",
    "acc_delta": "Adadelta",
}
_RULES: Dict[OptimizerKind, str] = {
    OptimizerKind.ADAMW: "AdamW",
    OptimizerKind.ADAM: "Adam",
    OptimizerKind.LION: "Lion",
    OptimizerKind.SGD: "SGD",
    OptimizerKind.SCHEDULE_FREE: "schedule-free AdamW",
    OptimizerKind.RMSPROP: "RMSprop",
    OptimizerKind.RMSPROP_MOMENTUM: "RMSprop",
    OptimizerKind.ADAGRAD: "Adagrad",
    OptimizerKind.ADEMAMIX: "AdEMAMix",
    OptimizerKind.ADAFACTOR: "Adafactor",
}
_RMSPROPS = (OptimizerKind.RMSPROP, OptimizerKind.RMSPROP_MOMENTUM)
_ADAMS = (OptimizerKind.ADAMW, OptimizerKind.ADAM)
#: Keys that only one rule's groups have, the rule, and its kinds.
_MARKS: Tuple[Tuple[str, str, Tuple[OptimizerKind, ...]], ...] = (
    ("ns_steps", "Muon", ()),
    ("weight_lr_power", "schedule-free AdamW", (OptimizerKind.SCHEDULE_FREE,)),
    ("max_unorm", "LAMB or LARS", ()),
    ("update_proj_gap", "GaLore or APOLLO", ()),
    ("n_kv_heads", "Adam-mini", ()),
    ("beta2_decay", "Adafactor", ()),
    ("centered", "RMSprop", _RMSPROPS),
    ("initial_accumulator_value", "Adagrad", (OptimizerKind.ADAGRAD,)),
)


def refused(what: str, rule: str, own: str) -> ValueError:
    """The error for a state dict of another rule than the optimizer's own."""
    return ValueError(
        "the state dict is of %s, not of %s: %s; go on with an optimizer of that rule, or begin"
        " without a state dict" % (rule, own, what)
    )


def _refused(what: str, rule: str, kind: OptimizerKind) -> ValueError:
    return refused(what, rule, _RULES[kind])


def has_three_betas(group: Mapping[str, Any]) -> bool:
    """Whether a group is AdEMAMix's."""
    betas = group.get("betas")
    return isinstance(betas, (tuple, list)) and len(betas) == 3


def check_group(group: Mapping[str, Any], kind: OptimizerKind, number: int) -> None:
    """Refuses a group whose keys are those of another rule."""
    where = "group %d has " % number
    for key, rule, kinds in _MARKS:
        if key in group and kind not in kinds:
            raise _refused(where + key, rule, kind)
    if kind is OptimizerKind.SCHEDULE_FREE and "weight_lr_power" not in group:
        raise refused(where + "no weight_lr_power", "another rule", _RULES[kind])
    if has_three_betas(group):
        raise _refused(where + "three betas", "AdEMAMix", kind)
    if kind is not OptimizerKind.SGD and "momentum" in group and not {"betas", "centered"} & {*group}:
        raise _refused(where + "momentum and no betas", "SGD", kind)
    if kind not in _ADAMS and "amsgrad" in group:
        raise _refused(where + "amsgrad=%s" % group["amsgrad"], "Adam", kind)
    decay, decoupled = group.get("weight_decay", 0), group.get("decoupled_weight_decay")
    if kind is OptimizerKind.ADAM and "amsgrad" in group:
        if decoupled and decay != 0:
            raise _refused(where + "weight_decay=%s beside the gradient" % decay, "AdamW", kind)
    elif decoupled is False:
        if "amsgrad" not in group:
            raise _refused(where + "no amsgrad", "RAdam or NAdam", kind)
        if decay != 0:
            what = "weight_decay=%s, which Adam adds to the gradient" % decay
            raise _refused(where + what, "Adam", kind)


def check_state(state: Mapping[str, Any], kind: OptimizerKind, name: str) -> None:
    """Refuses a parameter's state that has other moments than those of the rule."""
    moments = _format.MOMENTS[kind]
    kept = (*moments, *("state%d" % (i + 1) for i in range(len(moments))))
    for key, rule in _OWN.items():
        if key not in kept and state.get(key) is not None:
            raise _refused("%s has %s" % (name, key), rule, kind)
    if not any(state.get(key) is not None for key in kept):
        others = [k for k, v in state.items() if isinstance(v, torch.Tensor)]
        others = [k for k in others if k not in ("step", "master")]
        if others:
            raise _refused("%s has %s" % (name, " and ".join(others)), "another rule", kind)
