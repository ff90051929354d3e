"""LAMB (You et al. 2020) and LARS (You et al. 2017): an update is not longer than a share of its parameter.

They are AdamW and SGD with the library's option `trust`, and have their states. In state dicts groups have
"max_unorm". Of sharded parameters the processes add up the squares of norms: they step as the whole.
"""

from __future__ import annotations

from typing import Any, Dict

from . import _other_rules
from ._base import MemoptOptimizer
from ._rules import SGD


class _Trust(MemoptOptimizer):
    """What the two have in common."""

    _trust = True
    _mark: str  # a key of groups that the other one has not
    _takes_flattened = _by_pieces = False  # a norm is of the whole parameter

    def _values(self, group: Dict[str, Any]) -> Any:
        bound = ("max_ratio", float(group["max_unorm"])), ("trust_clip", int(bool(group["trust_clip"])))
        uncorrected = int(not group.get("bias_correction", True))
        return (*super()._values(group), *bound, ("uncorrected", uncorrected))

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if "t_alpha" in group and not _other_rules.has_three_betas(group):
            return  # bitsandbytes'
        for key in ("max_unorm", self._mark):
            if key not in group:
                raise _other_rules.refused("group %d has no %s" % (index, key), "another rule", self._rule.name)


class LAMB(_Trust, rule="LAMB"):
    _mark = "betas"


class LARS(_Trust, SGD, rule="LARS"):
    _mark = "momentum"
