"""APOLLO (Zhu et al. 2024) and GaLore (Zhao et al. 2024): AdamW whose states are of a projection of
each matrix's gradient to a few rows or columns.

A matrix of R rows and C columns is projected on its shorter side, to `rank` (R x rank where R >= C, else
rank x C). GaLore's projection is the leading singular vectors of a gradient, found anew every
`update_proj_gap` steps; its update is projected back. APOLLO's projection is of random numbers, which
depend on the seed, the parameter's place and the step of its last renewal alone: no state holds it, and
processes agree on it. Its update is the gradient itself, of which each row or column (or, with
scale_type="tensor", all) is scaled as AdamW scales the projected one.

Of a bf16 matrix and gradient GaLore's two products are of bf16 matrices with sums in fp32, where the
processor has instructions for it; the parameter is rounded once a step.

Other parameters, and those with no side longer than the rank, get AdamW with fp32 states. Shards of rows
(dimension 0, as fully_shard cuts) are stepped by all processes together: they add up the projections of
matrices with R < C, and norms. GaLore gathers a gradient for each new projection.

``optimizer.state[parameter]`` holds "step" (int64, on the host), "exp_avg" and "exp_avg_sq" in fp32 of the
projected shape, GaLore's "projector", and APOLLO's "norm" of the last update.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import torch

from ..._abi import StateFormat
from . import _options, _other_rules, _row_steps
from ._base import Learning, Params
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import PIECE, Task, write

_PIECEWISE = ("exp_avg", "exp_avg_sq", "absmax1", "absmax2")
_STRIDES = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


class _LowRank(ShapedOptimizer):
    """What the two have in common."""

    _takes_shards = True
    _together = True

    def _check_group(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        _options.check_betas(group["betas"], 2)
        for key in ("eps", "weight_decay", "scale"):
            value = number("%s value" % key, group[key])
            if not 0.0 <= value < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, value))
        for key in ("rank", "update_proj_gap"):
            if not isinstance(group[key], int) or group[key] < 1:
                raise ValueError("Invalid %s value: %s; a whole number from 1" % (key, group[key]))
        _options.check_states(group)

    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        super()._check_whole(parameter, name)
        check_rows(parameter, name, type(self).__name__)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        own = "scale_type" in self.defaults
        if "update_proj_gap" not in group or ("scale_type" in group) != own:
            what = "group %d has no update_proj_gap of it" % index
            raise _other_rules.refused(what, "another rule", type(self).__name__)

    def _rank_of(self, parameter: torch.Tensor) -> int:
        """0: it is not projected."""
        rank = int(self._home(parameter)[0]["rank"])
        shape = parameter.shape
        return rank if len(shape) == 2 and min(shape) > rank else 0

    def _shapes(self, parameter: torch.Tensor, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        rank = self._rank_of(parameter)
        if not rank:
            return dict.fromkeys(("exp_avg", "exp_avg_sq"), tuple(shape))
        tall = _is_tall(parameter)
        low = (shape[0], rank) if tall else (rank, shape[1])
        return {"exp_avg": low, "exp_avg_sq": low, **self._further(tall, rank, shape)}

    def _further(self, tall: bool, rank: int, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        raise NotImplementedError

    def _signs(self, parameter: torch.Tensor) -> Dict[str, bool]:
        return {"exp_avg": True, "exp_avg_sq": False}

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        if not self._rank_of(parameter):
            return True
        return key != "norm" and (key != "projector") == _is_tall(parameter)

    def _step_task(self, task: Task) -> None:
        group = task.group
        steps, lr = int(task.state["step"]) + 1, float(group["lr"])
        keep = 1 - lr * float(group["weight_decay"])
        if self._rank_of(task.owner):
            self._move(task, steps, keep)
            return
        gradient = _exact_gradient(task)
        exact = task.parameter.float().contiguous()  # perhaps the parameter itself
        update = self._adam(task.state, gradient, group, steps, torch.empty_like(gradient))
        _kept(exact, keep).sub_(update, alpha=lr)
        write(task, exact)

    def _move(self, task: Task, steps: int, keep: float) -> None:
        """Steps a matrix of which this process has some rows: `keep` of it, less the update."""
        raise NotImplementedError

    def _adam(
        self, state: Any, g: torch.Tensor, group: Dict[str, Any], steps: int, into: torch.Tensor
    ) -> torch.Tensor:
        """Moves the moments by g, by pieces; `into`, perhaps g itself, gets the corrected quotient."""
        if not g.numel():
            return into
        shape = (len(g), -1) if g.dim() > 1 else (1, -1)
        rows, quotients, is_coded = g.view(shape), into.view(shape), "absmax1" in state
        kept = {k: t.view(len(rows), -1) for k, t in state.items() if k in _PIECEWISE}
        betas = tuple(float(beta) for beta in group["betas"])
        values = (("lr", 1.0), ("beta1", betas[0]), ("beta2", betas[1]), ("eps", float(group["eps"])))
        high = max(1, PIECE[g.device.type] // rows.shape[1])
        for first in range(0, len(rows), high):
            here = slice(first, first + high)
            part, into_ = rows[here], quotients[here]
            moments = {key: tensor[here] for key, tensor in kept.items()}
            if is_coded:
                _row_steps.of(self).update(moments, part, values, steps, into_)
            else:
                _quotient(moments, part.float(), group, steps, into_)
        return into


class GaLore(_LowRank):
    """GaLore's AdamW with fp32 states of a rank: for a matrix of R × C, with C the shorter side,
    8 · R · rank + 4 · C · rank bytes."""

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        rank: int = 128,
        update_proj_gap: int = 200,
        scale: float = 0.25,
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            rank: to how many rows or columns a gradient is projected.
            update_proj_gap: so many steps use one projection.
            scale: by which a projected update is multiplied.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        values.update(rank=rank, update_proj_gap=update_proj_gap, scale=scale)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        rounding.update(min_8bit_size=min_8bit_size)
        super().__init__(params, {**values, "maximize": maximize, **rounding})

    def _further(self, tall: bool, rank: int, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        return {"projector": (shape[1] if tall else shape[0], rank)}

    def _move(self, task: Task, steps: int, keep: float) -> None:
        group, tall, team = task.group, _is_tall(task.owner), Team(task.owner)
        projector = task.state["projector"]
        if (steps - 1) % group["update_proj_gap"] == 0:
            whole = team.gathered(task.gradient.contiguous())
            basis = _leading(whole if tall else whole.T, projector.shape[1])
            projector.copy_(basis if tall else basis[team.rows()])
        in_half = _multiplies_in_half(task)
        gradient = task.gradient.contiguous() if in_half else task.gradient.float().contiguous()
        basis = projector.to(gradient.dtype)
        low = gradient @ basis if tall else team.add((basis.T @ gradient).float())
        low = low.neg_() if group["maximize"] else low
        update = self._adam(task.state, low, group, steps, low).to(basis.dtype)
        pair = (update, basis.T) if tall else (basis, update)
        exact = task.parameter if in_half else task.parameter.float().contiguous()
        exact.addmm_(*pair, beta=keep, alpha=-float(group["lr"]) * float(group["scale"]))
        write(task, exact)


class GaLore8bit(GaLore):
    """GaLore's AdamW with 8-bit states of a rank, in blocks of at most 256 of a row: for a matrix of
    R × C, with C the shorter side, 2 · R · rank + 4 · C · rank bytes, and 8 a block."""

    _states = StateFormat.BITS8


class APOLLO(_LowRank):
    """APOLLO's AdamW with fp32 states of a rank: for a matrix of R × C, with C the shorter side,
    8 · R · rank bytes. rank=1, scale_type="tensor", scale=128 is APOLLO-Mini."""

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        rank: int = 256,
        update_proj_gap: int = 200,
        scale: float = 1.0,
        scale_type: str = "channel",
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            rank: to how many rows or columns a gradient is projected.
            update_proj_gap: so many steps use one projection.
            scale: its root multiplies a projected parameter's update.
            scale_type: "channel": a factor for each row or column of the longer side; "tensor": one
                for the matrix.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of projections and of stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        values.update(rank=rank, update_proj_gap=update_proj_gap, scale=scale)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        named = dict(scale_type=scale_type, maximize=maximize, min_8bit_size=min_8bit_size)
        super().__init__(params, {**values, **named, **rounding})

    def _check_group(self, group: Dict[str, Any]) -> None:
        if group["scale_type"] not in ("channel", "tensor"):
            raise ValueError(
                'Invalid scale_type: %r; "channel" or "tensor"' % (group["scale_type"],)
            )
        super()._check_group(group)

    def _further(self, tall: bool, rank: int, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        return {"norm": ()}

    def _move(self, task: Task, steps: int, keep: float) -> None:
        group, tall, team = task.group, _is_tall(task.owner), Team(task.owner)
        gradient = _exact_gradient(task)
        projector = self._random(task, steps).to(gradient.device)
        if tall:
            low = gradient @ projector
        else:
            low = team.add(projector[team.rows()].T @ gradient)
        update = self._adam(task.state, low, group, steps, torch.empty_like(low))
        if group["scale_type"] == "tensor":
            norms = [team.norm(t) if tall else float(t.norm(2)) for t in (update, low)]
            factor = low.new_full((1, 1), norms[0] / (norms[1] + 1e-8))
            squares = torch.full_like(factor, team.norm(gradient), dtype=torch.float64).square_()
        else:
            side = 1 if tall else 0
            factor = update.norm(2, dim=side, keepdim=True)
            factor /= low.norm(2, dim=side, keepdim=True).add_(1e-8)
            squares = gradient.norm(2, dim=side, keepdim=True).double().square_()
            squares = squares if tall else team.add(squares)
        factor *= math.sqrt(float(group["scale"]))
        total = (squares * factor.double().square()).sum()
        if tall and group["scale_type"] != "tensor":
            total = team.add(total)
        rate = float(group["lr"]) * self._limit(task, math.sqrt(float(total)))
        exact = task.parameter.float().contiguous()  # perhaps the parameter itself
        _kept(exact, keep).addcmul_(gradient, factor, value=-rate)
        write(task, exact)

    def _limit(self, task: Task, length: float) -> float:
        """By which an update is cut: it is at most 1.01 times as long as the last one, as its
        authors' limit."""
        last, cut = float(task.state["norm"]), 1.0
        if last and length > 1.01 * last:
            cut = 1.01 * last / length
        task.state["norm"].fill_(cut * length)
        return cut

    def projection_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The random projection of a matrix in its last step: the shorter side × rank. KeyError where
        there was none."""
        params = [p for group in self.param_groups for p in group["params"]]
        place = next(i for i, p in enumerate(params) if p is parameter)
        kept: Dict[Any, Tuple[int, torch.Tensor]] = self.__dict__.get("_projections", {})
        return kept[place][1]

    def _random(self, task: Task, steps: int) -> torch.Tensor:
        """The projection of all rows or columns, the same in all processes."""
        rank, gap = self._rank_of(task.owner), int(task.group["update_proj_gap"])
        renewal = (steps - 1) // gap
        seed = int(task.group["seed"]) + renewal * _STRIDES[0] + task.place * _STRIDES[1]
        kept: Dict[Any, Tuple[int, torch.Tensor]] = self.__dict__.setdefault("_projections", {})
        known = kept.get(task.place)
        if known is None or known[0] != seed:
            generator = torch.Generator().manual_seed(seed % (1 << 63))
            drawn = torch.randn(min(task.owner.shape), rank, generator=generator)
            known = kept[task.place] = (seed, drawn.div_(math.sqrt(rank)).to(task.gradient.device))
        return known[1]


class APOLLO8bit(APOLLO):
    """APOLLO's AdamW with 8-bit states of a rank, in blocks of at most 256 of a row."""

    _states = StateFormat.BITS8


def _is_tall(parameter: torch.Tensor) -> bool:
    return parameter.shape[0] >= parameter.shape[1]


def _kept(exact: torch.Tensor, keep: float) -> torch.Tensor:
    return exact if keep == 1.0 else exact.mul_(keep)


def _exact_gradient(task: Task) -> torch.Tensor:
    """In fp32, of what is to be descended."""
    gradient = task.gradient.float().contiguous()
    return -gradient if task.group["maximize"] else gradient


def _leading(rows: torch.Tensor, rank: int) -> torch.Tensor:
    """The leading right singular vectors of a matrix with no more columns than rows, in 64 bits: as
    eigenvectors of the product of its transpose with it, which takes no memory for the other side."""
    columns = rows.shape[1]
    product = rows.new_zeros((columns, columns), dtype=torch.float64)
    for piece in torch.split(rows, max(columns, PIECE[rows.device.type] // columns)):
        part = piece.double()
        product.addmm_(part.T, part)
    if not bool(torch.isfinite(product).all()):
        raise RuntimeError("GaLore: a gradient is not finite; it gives no projection")
    vectors: torch.Tensor = torch.linalg.eigh(product)[1]
    return vectors[:, -rank:].flip(1)


def _multiplies_in_half(task: Task) -> bool:
    """Whether a matrix and its gradient are multiplied in bf16, with sums in fp32, and the parameter is
    rounded once: where the processor has instructions for it. Shards add up products in fp32."""
    parameter, gradient = task.parameter, task.gradient
    if parameter.dtype is not torch.bfloat16 or gradient.dtype is not torch.bfloat16:
        return False
    if task.group["stochastic_rounding"] or not parameter.is_contiguous():
        return False
    return parameter.is_cuda or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _quotient(
    moments: Dict[str, torch.Tensor],
    g: torch.Tensor,
    group: Dict[str, Any],
    steps: int,
    into: torch.Tensor,
) -> None:
    """Moves fp32 moments of some rows by g."""
    mean, squares = moments["exp_avg"], moments["exp_avg_sq"]
    beta1, beta2 = (float(beta) for beta in group["betas"])
    mean.lerp_(g, 1 - beta1)
    squares.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    correction = math.sqrt(1 - beta2**steps)
    root = squares.sqrt().add_(float(group["eps"]) * correction)
    root.mul_((1 - beta1**steps) / correction)
    into.copy_(torch.div(mean, root, out=root))
