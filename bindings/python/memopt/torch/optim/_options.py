"""What a parameter group may hold: values in range, and no misspelt key."""

from __future__ import annotations

import difflib
import math
from typing import Any, Dict, Iterable, Optional, Sequence

import torch

from ...codes import residual_bytes

_U64 = 1 << 64

#: Options of other libraries, with their names here.
_ELSEWHERE = {"optim_bits": "min_8bit_size", "learning_rate": "lr", "epsilon": "eps"}
#: From this similarity (0 to 1) on, one key counts as the other misspelt.
_ALIKE = 0.8


def number(name: str, value: Any) -> float:
    """A hyperparameter as a float; TypeError for text, also for text that reads as a number."""
    if not hasattr(value, "__float__"):
        raise TypeError(
            "Invalid %s: %r is a %s, not a number" % (name, value, type(value).__name__)
        )
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


def check_values(group: Dict[str, Any], rule: str) -> None:
    """Refuses hyperparameters out of range, in torch's words."""
    check_lr(group["lr"])
    decay = number("weight_decay value", group["weight_decay"])
    if not 0.0 <= decay < math.inf:
        raise ValueError("Invalid weight_decay value: %s" % decay)
    check_betas(group.get("betas", (0.0, 0.0)), 2)
    if not 0.0 <= number("epsilon value", group.get("eps", 0.0)) < math.inf:
        raise ValueError("Invalid epsilon value: %s" % group["eps"])
    check_states(group)
    residual_bytes(group.get("split_weights") or False)
    if group.get("split_weights") and group["stochastic_rounding"]:
        raise ValueError("split_weights and stochastic_rounding exclude each other")
    _check_switches(group, rule)


def check_block_size(size: Any, rule: str, own: int, sizes: Sequence[int]) -> None:
    """Refuses a size of blocks that is none of `sizes`, nor None; `own` is what None stands for."""
    if size is None or (size in (own, *sizes) and not isinstance(size, bool)):
        return
    beside = "; powers of two from %d to %d are possible" % (sizes[0], sizes[-1]) if sizes else ""
    raise ValueError(
        "Invalid block_size value: %s; %s has blocks of %d%s" % (size, rule, own, beside)
    )


def check_states(group: Dict[str, Any]) -> None:
    """Refuses what says how states and parameters are kept, if it is out of range."""
    if not number("min_8bit_size value", group.get("min_8bit_size", 0)) >= 0:
        raise ValueError("Invalid min_8bit_size value: %s" % group["min_8bit_size"])
    number("seed value", group["seed"])
    if not 0 <= int(group["seed"]) < _U64:
        raise ValueError("Invalid seed value: %s" % group["seed"])


def _check_switches(group: Dict[str, Any], rule: str) -> None:
    """Refuses what torch's optimizers can do and these cannot."""
    for name in ("amsgrad", "differentiable"):
        if group.get(name):
            raise ValueError("%s does not support %s=True" % (rule, name))
    if group.get("foreach") and group.get("fused"):
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


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
