"""AdEMAMix (Pagliardini et al. 2024): AdamW with a second, slow mean of the gradients beside the fast
one.

The rule is that of bitsandbytes' AdEMAMix: the fast mean and the mean of squares are corrected for
their start at 0, the slow one is not, and the weight decay is AdamW's. The arithmetic is in fp32, and
a half-precision parameter is rounded once a step. The library's own step has places for two moments:
a third one would make it carry more for all rules. So AdamW's step moves the parameter by the fast
mean, SGD's step takes the new slow mean into scratch memory, and a last pass moves the parameter by
that over the root. Of 8-bit states this root is of the coded mean of squares, that of the fast mean
of the mean before it is coded.

``optimizer.state[parameter]`` holds "step" (int64) and, of the parameter's shape,
"exp_avg", "exp_avg_slow" and "exp_avg_sq", with 8-bit states their "absmax1" to "absmax3" too. In state
dicts its groups have three betas.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _fused, _layout, _load, _options, _other_rules
from ._base import Learning, Params
from ._binding import Facts
from ._coded_pieces import CodedOptimizer
from ._options import number
from ._whole import PIECE, Task, round_to

_FAST, _SLOW, _SQUARES = _format.MOMENTS[_format.OwnKind.ADEMAMIX]
#: What the library's rules call a state's entries.
_OF_ADAMW = (
    (_FAST, _SQUARES, "absmax1", "absmax3"),
    ("exp_avg", "exp_avg_sq", "absmax1", "absmax2"),
)
_OF_SGD = ((_SLOW, "absmax2"), ("momentum_buffer", "absmax1"))


class AdEMAMix(CodedOptimizer):
    """AdEMAMix as bitsandbytes', with fp32 states: 12 bytes a parameter."""

    _kind = _format.OwnKind.ADEMAMIX
    _by_pieces = True

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
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, alpha=alpha, t_alpha=t_alpha, t_beta3=t_beta3, eps=eps)
        switches = dict(weight_decay=weight_decay, maximize=maximize)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        rounding.update(min_8bit_size=min_8bit_size)
        super().__init__(params, {**values, **switches, **rounding})

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

    def _step_tasks(self, tasks: List[Task], facts: Facts) -> None:
        """By runs whose scratch memory fits a cache."""
        sizes = {task.parameter.device: 4 * PIECE[task.parameter.device.type] for task in tasks}
        scales = ("absmax1", "absmax2", "absmax3")
        keys = (_FAST, _SLOW, _SQUARES)
        runs = (r for t in tasks for r in _fused.cut(t, sizes[t.parameter.device], keys, scales))
        try:
            for batch in _fused.batches(runs, max(sizes.values(), default=0)):
                self._step_batch(batch, facts)
        finally:
            _fused.of(self).release()
        for task in tasks:
            task.state["step"].add_(1)
            torch.autograd.graph.increment_version(task.owner)

    def _step_batch(self, batch: List[_fused.Run], facts: Facts) -> None:
        """AdamW's step on the parameters; the slow means into scratch memory, by SGD's step on
        zeros; then what they move the parameters by."""
        groups = [run.task.group for run in batch]
        steps = [int(run.task.state["step"]) for run in batch]
        scheduled = [_scheduled(group, step + 1) for group, step in zip(groups, steps)]
        parts, name = _fused.of(self), type(self).__name__
        wide = parts.scratch("wide", [run for run in batch if not _fused.is_in_place(run)])
        exact = [
            run.parameter.detach() if _fused.is_in_place(run) else wide.pop(0).copy_(run.parameter)
            for run in batch
        ]
        means = parts.scratch("slow", batch)
        for mean in means:
            mean.zero_()
        fast, slow = (
            [{"step": count, **_renamed(run.state, *names)} for run, count in zip(batch, counts)]
            for names, counts in (
                (_OF_ADAMW, parts.counts("steps", batch, steps)),
                (_OF_SGD, parts.counts("ones", batch, [1] * len(batch))),  # SGD's first is not damped
            )
        )
        gradients = [run.gradient for run in batch]
        adamw = parts.part("fast", batch, OptimizerKind.ADAMW, self._states, fast, exact)
        adamw.run(gradients, list(map(_of_adamw, groups, scheduled)), facts, name)
        sgd = parts.part("slow", batch, OptimizerKind.SGD, self._states, slow, means)
        sgd.run(gradients, list(map(_of_sgd, groups, scheduled)), facts, name)
        for run, p, mean, step, (_, beta2, _, alpha) in zip(batch, exact, means, steps, scheduled):
            _take_slow(run, p, mean, alpha, math.sqrt(1 - beta2 ** (step + 1)))
            if not _fused.is_in_place(run):
                place = run.key[0] + (run.key[1] << 24)  # random numbers of its own
                round_to(run.task._replace(place=place), run.parameter, p)


class AdEMAMix8bit(AdEMAMix):
    """AdEMAMix with three 8-bit states in blocks of 256: 3.05 bytes a parameter."""

    _states = StateFormat.BITS8


def _renamed(state: _format.State, keys: Tuple[str, ...], own: Tuple[str, ...]) -> _format.State:
    """Entries of a state under the names of another rule."""
    return {name: state[key] for key, name in zip(keys, own) if key in state}


def _of_adamw(group: Dict[str, Any], scheduled: Tuple[float, ...]) -> _fused.Values:
    beta1, beta2, _, _ = scheduled
    values = (("lr", float(group["lr"])), ("beta1", beta1), ("beta2", beta2))
    further = ("eps", float(group["eps"])), ("weight_decay", float(group["weight_decay"]))
    return (*values, *further, ("maximize", int(bool(group["maximize"]))))


def _of_sgd(group: Dict[str, Any], scheduled: Tuple[float, ...]) -> _fused.Values:
    """It takes the new mean from 0. Without a momentum it would keep no mean."""
    beta3 = max(scheduled[2], 1e-300)
    values = (("lr", 1.0), ("momentum", beta3), ("dampening", beta3))
    return (*values, ("maximize", int(bool(group["maximize"]))))


def _take_slow(
    run: _fused.Run, exact: torch.Tensor, mean: torch.Tensor, alpha: float, correction: float
) -> None:
    """Moves the parameter by minus the slow mean over the root of the mean of squares."""
    group, state = run.task.group, run.state
    rate = float(group["lr"]) * alpha * correction
    least = max(float(group["eps"]) * correction, 2.0**-126)  # as AdamW's step has it
    p, m, squares = _layout.flat(exact), _layout.flat(mean), _layout.flat(state[_SQUARES])
    block = _fused.BLOCK
    size = -(-PIECE[p.device.type] // block) * block
    coded = squares.dtype is torch.uint8
    root = p.new_empty(min(size, p.numel()))
    for start in range(0, p.numel(), size):
        here = slice(start, min(start + size, p.numel()))
        part = root[: here.stop - here.start]
        if coded:
            scales = state["absmax3"][start // block : -(-here.stop // block)]
            _format.decode(part, squares[here], scales, StateFormat.BITS8, False)
            part.sqrt_()
        else:
            torch.sqrt(squares[here], out=part)
        p[here].addcdiv_(m[here], part.add_(least), value=rate)


def _scheduled(group: Dict[str, Any], step: int) -> Tuple[float, float, float, float]:
    """The betas and alpha of a step, which counts from 1. Where the third beta grows, the
    half-life of its mean grows linearly."""
    beta1, beta2, beta3 = (float(beta) for beta in group["betas"])
    alpha = float(group["alpha"])
    if group["t_alpha"] is not None:
        alpha *= min(1.0, step / group["t_alpha"])
    if group["t_beta3"] is not None:
        done = min(1.0, step / group["t_beta3"])
        first, last = math.log(beta1), math.log(beta3)
        beta3 = min(beta3, math.exp(first * last / ((1 - done) * last + done * first)))
    return beta1, beta2, beta3, alpha


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
