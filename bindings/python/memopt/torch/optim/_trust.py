"""LAMB (You et al. 2020) and LARS (You et al. 2017): an update is not longer than a share of its
parameter.

A parameter is stepped in two passes. The first brings the moments up to date, by pieces that fit a
processor's cache, and writes the update of each element into one fp32 tensor of the parameter's size;
then both norms are known, and the second pass takes the update from the parameter. Of shards the
processes add up the squares of both norms: they step as the whole.

States are Adam's and SGD's, in 32 or 8 bits. In state dicts groups have "max_unorm".
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..._abi import StateFormat
from . import _format, _layout, _options, _other_rules
from ._base import Learning, Params
from ._coded_pieces import CodedOptimizer, Piece, Pieces, dense_floats
from ._options import number
from ._team import Team
from ._whole import Task, write


class _Trust(CodedOptimizer):
    """What the two have in common."""

    _together = True

    def _update(self, task: Task, part: Piece, steps: int) -> torch.Tensor:
        """Moves a piece's moments; its update, which may be new memory."""
        raise NotImplementedError

    def _check_trust(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        for key in ("weight_decay", "max_unorm"):
            value = number("%s value" % key, group[key])
            if not 0.0 <= value < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, value))
        _options.check_states(group)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        theirs = "t_alpha" in group and not _other_rules.has_three_betas(group)  # bitsandbytes'
        if "max_unorm" not in group and not theirs:
            what = "group %d has no max_unorm" % index
            raise _other_rules.refused(what, "another rule", _other_rules.name_of(self._kind))

    def _step_task(self, task: Task) -> None:
        group, steps = task.group, int(task.state["step"]) + 1
        exact = dense_floats(task.parameter)
        update = torch.empty_like(exact)
        flat, start = _layout.flat(update), 0
        for part in Pieces(self._kind, task.state, exact, task.gradient):
            flat[start : start + part.parameter.numel()] = self._update(task, part, steps)
            start += part.parameter.numel()
        team, most = Team(task.owner), float(group["max_unorm"])
        rate = float(group["lr"])
        if most:
            size, length = team.norm(exact), team.norm(update)
            ratio = most * size / length if size and length else 1.0
            rate *= min(1.0, ratio) if group["trust_clip"] else ratio
        exact.sub_(update, alpha=rate)
        write(task, exact)


def _wide(part: Piece, group: Dict[str, Any]) -> torch.Tensor:
    return -part.gradient.float() if group["maximize"] else part.gradient.float()


class LAMB(_Trust):
    """LAMB with 32-bit states."""

    _kind = _format.OwnKind.LAMB

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        *,
        max_unorm: float = 1.0,
        trust_clip: bool = True,
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            bias_correction: correct the means for their start at 0.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter that is added to its update, before the norm.
            amsgrad: only False.
            adam_w_mode: only True: the decay is not part of the gradient.
            max_unorm: an update's norm is at most this times the parameter's; 0: any.
            trust_clip: leave shorter updates as they are. False: every update gets that norm, as in
                the paper, where max_unorm is 1.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps)
        values.update(weight_decay=weight_decay, max_unorm=max_unorm, trust_clip=trust_clip)
        switches = dict(amsgrad=amsgrad, adam_w_mode=adam_w_mode, maximize=maximize)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        super().__init__(
            params, {**values, **switches, **rounding, "min_8bit_size": min_8bit_size}
        )

    def _check_group(self, group: Dict[str, Any]) -> None:
        if group["amsgrad"] or not group["adam_w_mode"]:
            raise ValueError(
                "%s supports amsgrad=False and adam_w_mode=True only" % type(self).__name__
            )
        _options.check_betas(group["betas"], 2)
        eps = number("epsilon value", group["eps"])
        if not 0.0 <= eps < math.inf:
            raise ValueError("Invalid epsilon value: %s" % eps)
        self._check_trust(group)

    def _update(self, task: Task, part: Piece, steps: int) -> torch.Tensor:
        group, g, (mean, squares) = task.group, _wide(part, task.group), part.moments
        beta1, beta2 = (float(beta) for beta in group["betas"])
        mean.lerp_(g, 1 - beta1)
        squares.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        correct = bool(group["bias_correction"])
        root = squares.sqrt().div_(math.sqrt(1 - beta2**steps) if correct else 1.0)
        update = (mean / (1 - beta1**steps if correct else 1.0)).div_(root.add_(float(group["eps"])))
        return update.add_(part.parameter, alpha=float(group["weight_decay"]))


class LAMB8bit(LAMB):
    """LAMB with 8-bit states in blocks of 256."""

    _states = StateFormat.BITS8


class LARS(_Trust):
    """LARS with a 32-bit momentum buffer."""

    _kind = _format.OwnKind.LARS

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        max_unorm: float = 0.02,
        trust_clip: bool = True,
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            momentum: how much the buffer keeps in a step.
            dampening: the share of the gradient that does not go into the buffer.
            weight_decay: the share of a parameter that is added to its gradient.
            nesterov: use Nesterov's momentum.
            max_unorm: an update's norm is at most this times the parameter's; 0: any.
            trust_clip: leave shorter updates as they are. False: every update gets that norm.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        values.update(nesterov=nesterov, max_unorm=max_unorm, trust_clip=trust_clip)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        super().__init__(
            params, {**values, "maximize": maximize, **rounding, "min_8bit_size": min_8bit_size}
        )

    def _check_group(self, group: Dict[str, Any]) -> None:
        momentum = number("momentum value", group["momentum"])
        dampening = number("dampening value", group["dampening"])
        if not 0.0 <= momentum < math.inf:
            raise ValueError("Invalid momentum value: %s" % momentum)
        if not abs(dampening) < math.inf:
            raise ValueError("Invalid dampening value: %s" % dampening)
        if group["nesterov"] and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        self._check_trust(group)

    def _update(self, task: Task, part: Piece, steps: int) -> torch.Tensor:
        group, (buffer,) = task.group, part.moments
        kept = float(group["momentum"])
        d = _wide(part, group).add(part.parameter, alpha=float(group["weight_decay"]))
        fresh = 1.0 if steps == 1 else 1 - float(group["dampening"])
        buffer.mul_(kept).add_(d, alpha=fresh)
        return d.add_(buffer, alpha=kept) if group["nesterov"] else buffer


class LARS8bit(LARS):
    """LARS with an 8-bit momentum buffer in blocks of 256."""

    _states = StateFormat.BITS8
