"""AdEMAMix (Pagliardini et al. 2024): AdamW with a second, slow mean of the gradients beside the fast
one.

The rule is that of bitsandbytes' AdEMAMix: the fast mean and the mean of squares are corrected for
their start at 0, the slow one is not, and the weight decay is AdamW's.

``optimizer.state[parameter]`` holds "step" (int64) and, of the parameter's shape,
"exp_avg", "exp_avg_slow" and "exp_avg_sq", with 8-bit states their "absmax1" to "absmax3" too. In state
dicts its groups have three betas.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _layout, _load, _options, _other_rules
from ._base import Learning, MemoptOptimizer, Params
from ._options import number

_FAST, _SLOW, _SQUARES = _format.MOMENTS[OptimizerKind.ADEMAMIX]


class AdEMAMix(MemoptOptimizer):
    """AdEMAMix as bitsandbytes', with fp32 states: 12 bytes a parameter."""

    _kind = OptimizerKind.ADEMAMIX
    _numbers = ("eps", "weight_decay", "alpha")

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: Optional[int] = None,
        t_beta3: Optional[int] = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        block_size: Optional[int] = None,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            betas: what the fast mean, the mean of squares and the slow mean keep in a step.
            alpha: the weight of the slow mean; the fast one has 1.
            t_alpha: alpha grows from 0 over so many steps (None: it is alpha from the first on).
            t_beta3: the third beta grows from the first over so many steps (None: likewise).
            eps: added to the root.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            block_size: elements per scale of 8-bit states, a power of two from 32 to 4096 (None: 256);
                the same in all groups.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, alpha=alpha, t_alpha=t_alpha, t_beta3=t_beta3, eps=eps)
        switches = dict(weight_decay=weight_decay, maximize=maximize)
        rounding: Dict[str, Any] = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        rounding.update(min_8bit_size=min_8bit_size, block_size=block_size)
        super().__init__(params, {**values, **switches, **rounding})

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group; nothing changes if one of its values or parameters is refused."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        for index, parameter in enumerate(self.param_groups[-1]["params"]):
            if _layout.is_flattened(parameter):
                name = _layout.name_of(self.param_groups[-1], before, index)
                del self.param_groups[before:]
                raise TypeError(
                    "%s is a piece of FullyShardedDataParallel's; %s needs whole parameters"
                    % (name, type(self).__name__)
                )

    def _check_group(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        betas = group["betas"]
        _options.check_betas(betas, 3)
        for key in ("alpha", "eps", "weight_decay"):
            if not 0.0 <= number("%s value" % key, group[key]) < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, group[key]))
        for key in ("t_alpha", "t_beta3"):
            value = group[key]
            if value is not None and not 0.0 < number("%s value" % key, value) < math.inf:
                raise ValueError("Invalid %s value: %s; None or above 0" % (key, value))
        if group["t_beta3"] is not None and not (betas[0] > 0.0 and betas[2] > 0.0):
            raise ValueError("Invalid betas: %s; t_beta3 needs two above 0" % (betas,))
        _options.check_states(group)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if not _other_rules.has_three_betas(group):
            what = "group %d has no three betas" % index
            raise _other_rules.refused(what, "another rule", "AdEMAMix")

    def _loaded(
        self,
        saved: Dict[Any, Any],
        saved_groups: List[Dict[str, Any]],
        groups: List[Dict[str, Any]],
    ) -> Dict[Any, Any]:
        saved = {key: _from_bitsandbytes(value) for key, value in saved.items()}
        return super()._loaded(saved, saved_groups, groups)

    def _values(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        growth = tuple((key, float(group[key] or 0.0)) for key in ("t_alpha", "t_beta3"))
        return (*super()._values(group), *growth)


class AdEMAMix8bit(AdEMAMix):
    """AdEMAMix with three 8-bit states in blocks of 256: 3.05 bytes a parameter."""

    _states = StateFormat.BITS8


def _from_bitsandbytes(state: Any) -> Any:
    """Its states under our names; any other state as it is."""
    if not isinstance(state, Mapping):
        return state
    inner = {**state, **state.get(_load.NESTED, {})}
    means, scales = inner.get("state1"), inner.get("absmax1")
    if not isinstance(means, torch.Tensor) or means.shape[:1] != (2,):
        return state
    known = {_FAST: means[0], _SLOW: means[1], _SQUARES: inner.get("state2")}
    if means.dtype is torch.uint8 and isinstance(scales, torch.Tensor):
        pairs = ((scales[0], "qmap1"), (scales[1], "qmap1"), (inner.get("absmax2"), "qmap2"))
        for key, (scale, qmap) in zip(tuple(known), pairs):
            known[key] = {"codes": known[key], "scale": scale, "qmap": inner.get(qmap)}
    return {"step": inner.get("step", 0), **known}


def to_bitsandbytes(state: Any) -> Dict[str, Any]:
    """A parameter's state as bitsandbytes keeps it; any other as it is."""
    opened: Dict[str, Any] = _format.opened(state)
    if _FAST not in opened:
        return opened
    result = {"step": int(opened["step"]), "state2": opened[_SQUARES]}
    result["state1"] = torch.stack((opened[_FAST], opened[_SLOW]))
    if "absmax1" in opened:
        result["absmax1"] = torch.stack((opened["absmax1"], opened["absmax2"]))
        result["absmax2"] = opened["absmax3"]
        for number_, signed in ((1, True), (2, False)):
            map_ = _format.values(StateFormat.BITS8, signed)
            result["qmap%d" % number_] = map_.to(opened[_FAST].device, copy=True)
    return result
