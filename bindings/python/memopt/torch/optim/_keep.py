"""Parameters whose states stay in 32 bits, whatever the optimizer's format is."""

from __future__ import annotations

import fnmatch
from typing import List, Union

import torch

_MARK = "_memopt_keep_32bit"


def keep_32bit(what: Union[torch.nn.Module, torch.Tensor], *patterns: str) -> List[str]:
    """Marks parameters: an optimizer of this package gives them 32-bit states. It is for programs
    that do not make the groups themselves, such as a Trainer; with groups of your own,
    ``min_8bit_size`` does the same.

        mt.keep_32bit(model, "*embed*", "lm_head.*")
        mt.keep_32bit(model.embed_tokens)

    The mark belongs to the parameter: set it before the first step or `load_state_dict()` (which
    turns codes of a marked parameter into 32-bit states), and after what replaces parameters:
    `copy.deepcopy()` of the model, `fully_shard()`.

    Args:
        what: a module, or one parameter.
        patterns: shell patterns for the names that `what.named_parameters()` gives; without any,
            all parameters are marked.

    Returns:
        The names of the marked parameters, in the module's order.

    Raises:
        ValueError: a pattern fits no parameter, or patterns are given for one parameter. Nothing is
            marked then.
    """
    if isinstance(what, torch.Tensor):
        if patterns:
            raise ValueError("patterns choose among a module's parameters; this is one parameter")
        setattr(what, _MARK, True)
        return [""]
    named = dict(what.named_parameters())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
            some = ", ".join(list(named)[:8]) + (", …" if len(named) > 8 else "")
            raise ValueError("no parameter fits %r; there are: %s" % (pattern, some or "none"))
    chosen = [n for n in named if not patterns or any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    for name in chosen:
        setattr(named[name], _MARK, True)
    return chosen


def kept(parameter: torch.Tensor) -> bool:
    """Whether the parameter is marked."""
    return getattr(parameter, _MARK, False)
