"""What a parameter group may hold: values in range, and no misspelt key."""

from __future__ import annotations

import difflib
import functools
import math
from typing import Any, Callable, Dict, Iterable, Optional, Sequence

import torch

from ...codes import residual_bytes
from ...rules import LIMITS, ONLY, ZERO, Call, Rule

_U64 = 1 << 64
#: Arguments of bitsandbytes' constructors that those here do not have.
BITSANDBYTES = ("optim_bits", "args", "percentile_clipping", "block_wise", "is_paged")

#: Options of other libraries, with their names here.
_ELSEWHERE = {"optim_bits": "min_8bit_size", "learning_rate": "lr", "epsilon": "eps"}
#: From this similarity (0 to 1) on, one key counts as the other misspelt.
_ALIKE = 0.8


def number(name: str, value: Any) -> float:
    """A hyperparameter as a float; TypeError for text, also for text that reads as a number."""
    if not hasattr(value, "__float__"):
        raise TypeError("Invalid %s: %r is a %s, not a number" % (name, value, type(value).__name__))
    return float(value)


def check_lr(lr: Any) -> None:
    """Refuses learning rates out of range, in torch's words."""
    if isinstance(lr, torch.Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= number("learning rate", lr) < math.inf:
        raise ValueError("Invalid learning rate: %s" % float(lr))


def check_betas(betas: Any, count: int) -> None:
    """Refuses betas out of range, in torch's words, or of another number."""
    if not isinstance(betas, (tuple, list)) or len(betas) != count:
        words = {2: "two", 3: "three"}
        raise ValueError("Invalid betas: %s; %s numbers" % (betas, words[count]))
    for index, beta in enumerate(betas):
        if not 0.0 <= number("beta parameter at index %d" % index, beta) < 1.0:
            raise ValueError("Invalid beta parameter at index %d: %s" % (index, float(beta)))


def check_values(group: Dict[str, Any], rule: Rule, name: str) -> None:
    """Refuses hyperparameters out of range, in torch's words. `name`: the class's."""
    check_lr(group["lr"])
    for key, default in {**rule.values, **rule.further}.items():
        value = group[key]
        if key == "betas":
            check_betas(value, len(default))
        elif key in ONLY and bool(value) is not ONLY[key] or key in ZERO and number(key, value) != 0.0:
            raise ValueError("%s does not support %s=%s" % (name, key, value))
        elif isinstance(default, float) or key in ("t_alpha", "t_beta3", "warmup_steps"):
            least, end = rule.limits.get(key) or LIMITS.get(key, (0.0, math.inf))
            word = "epsilon" if key == "eps" else key
            given = default if value is None else number("%s value" % word, value)
            if given is not None and not least <= given < end or given in (-math.inf, math.inf):
                raise ValueError("Invalid %s value: %s" % (word, value))
    if group.get("differentiable"):
        raise ValueError("%s does not support differentiable=True" % name)
    check_states(group)
    if group.get("foreach") and group.get("fused"):
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def check_momentum(group: Dict[str, Any]) -> None:
    """Refuses Nesterov's momentum without one."""
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")


def check_states(group: Dict[str, Any]) -> None:
    """Refuses what says how states and parameters are kept, if it is out of range."""
    if not number("min_8bit_size value", group.get("min_8bit_size", 0)) >= 0:
        raise ValueError("Invalid min_8bit_size value: %s" % group["min_8bit_size"])
    number("seed value", group["seed"])
    if not 0 <= int(group["seed"]) < _U64:
        raise ValueError("Invalid seed value: %s" % group["seed"])
    residual_bytes(group.get("split_weights") or False)
    if group.get("split_weights") and group["stochastic_rounding"]:
        raise ValueError("split_weights and stochastic_rounding exclude each other")


def checked(made: Callable[..., None], call: Call) -> Callable[..., None]:
    """A constructor that says what an argument which it does not have may mean."""
    known = (*call.first, *call.every())

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _check_arguments(type(self).__name__, [name for name in kwargs if name not in known], known)
        made(self, *args, **kwargs)

    return __init__


def _check_arguments(rule: str, strange: Iterable[str], known: Sequence[str]) -> None:
    for name in strange:
        if name in BITSANDBYTES:
            raise ValueError(
                "%s has no argument %r, which is bitsandbytes'; take the class of memopt.torch.bnb, or"
                " states= and paged=" % (rule, name)
            )
        likely = nearest(name, known)
        if likely is not None:
            raise ValueError("%s has no argument %r; did you mean %r?" % (rule, name, likely))
        raise TypeError("%s has no argument %r" % (rule, name))


def check_keys(given: Iterable[str], known: Sequence[str], index: int, rule: str) -> None:
    """Refuses a misspelt key of a group. Any other unknown key is kept, as torch does: programs
    mark their groups with keys of their own."""
    for key in given:
        likely = nearest(key, known)
        if likely is not None:
            raise ValueError(
                "parameter group %d has the key %r, which %s does not know; did you mean %r?"
                % (index, key, rule, likely)
            )


def nearest(key: Any, known: Sequence[str]) -> Optional[str]:
    """The known key that an unknown one resembles; None for a key of the program."""
    if key in known or not isinstance(key, str):
        return None
    if _ELSEWHERE.get(key) in known:
        return _ELSEWHERE[key]
    plain = key.lower().replace("-", "_")
    if any(plain.startswith(k + "_") or plain.endswith("_" + k) for k in known):
        return None  # "weight_decay_scale", "max_momentum", "initial_lr"
    return next(iter(difflib.get_close_matches(plain, known, 1, _ALIKE)), None)
