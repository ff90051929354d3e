"""Adam-mini (Zhang et al. 2024): AdamW with one second moment for a block of a parameter in place of one
for each element.

Blocks are the authors': of queries and keys the rows of a head, of other matrices each row (an output
neuron, a token of an embedding), of biases each element, and other vectors are one block. Names tell which
is which, so parameters are to be given with names; without names every matrix goes by rows, which are
finer blocks than heads, and every vector is one.

``optimizer.state[parameter]`` holds "step" (int64, on the host), "exp_avg" in fp32 or 8-bit codes of the
parameter's shape (with "absmax1"), and "exp_avg_sq", a number for each block. Parameters are stepped by
rows that fit a processor's cache. A parameter that is sharded by rows steps as the whole: heads must not
be cut, and a vector's processes add up its squares.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple

import torch

from ..._abi import StateFormat
from . import _layout, _options, _other_rules, _row_codes
from ._base import Learning, Params
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import PIECE, Task, Wide, in_fp32

_MEAN, _SQUARES, _SCALES = "exp_avg", "exp_avg_sq", "absmax1"
#: What the names of queries and of keys contain; a name with both is of one matrix for all.
_QUERIES, _KEYS = ("q_proj", "wq", "query"), ("k_proj", "wk", "key")


class AdamMini(ShapedOptimizer):
    """Adam-mini with an fp32 first moment: 4 bytes a parameter."""

    _takes_shards = True
    _together = True
    _steps_on_host = True

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        n_heads: Optional[int] = None,
        n_kv_heads: Optional[int] = None,
        maximize: bool = False,
        min_8bit_size: int = 4096,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: (name, parameter) pairs, as model.named_parameters() gives, parameters, or groups
                of them as dicts.
            lr: the learning rate, a number or a tensor of one element.
            betas: how much the means of gradients and of their squares keep in a step.
            eps: added to the root of the second.
            weight_decay: the share of a parameter, times lr, that a step takes from it. The authors'
                class takes none from norms and biases: give those a group with 0.
            n_heads: heads of the attention; needed where names tell queries or keys.
            n_kv_heads: heads of the keys, if they are fewer.
            maximize: climb instead of descend.
            min_8bit_size: parameters with fewer elements keep 32-bit states.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        heads = dict(n_heads=n_heads, n_kv_heads=n_kv_heads)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        rounding.update(min_8bit_size=min_8bit_size, maximize=maximize)
        super().__init__(params, {**values, **heads, **rounding})

    def _check_group(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        _options.check_betas(group["betas"], 2)
        for key in ("eps", "weight_decay"):
            value = number("%s value" % key, group[key])
            if not 0.0 <= value < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, value))
        for key in ("n_heads", "n_kv_heads"):
            value = group[key]
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError("Invalid %s value: %s; a whole number from 1" % (key, value))
        _options.check_states(group)

    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        super()._check_whole(parameter, name)
        check_rows(parameter, name, type(self).__name__)
        self._rows_of_a_block(parameter)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if "n_kv_heads" not in group:
            what = "group %d has no n_kv_heads" % index
            raise _other_rules.refused(what, "another rule", "Adam-mini")

    # --- blocks ---

    def _rows_of_a_block(self, parameter: torch.Tensor) -> int:
        """Of a matrix; of a vector 1 if each element is a block, 0 if all of it is one."""
        group, name = self._home(parameter)
        name = name.lower()
        if parameter.dim() < 2:
            return int("bias" in name)
        is_query, is_key = (any(w in name for w in words) for words in (_QUERIES, _KEYS))
        if is_query == is_key or "bias" in name:
            return 1
        heads = (group["n_kv_heads"] if is_key else None) or group["n_heads"]
        rows = parameter.shape[0]
        if not heads or rows % heads:
            raise ValueError(
                "%r has queries or keys: its %d rows are cut by heads, and n_heads is %s%s"
                % (name, rows, group["n_heads"], ", n_kv_heads %s" % group["n_kv_heads"] if is_key else "")
            )
        own = _layout.local(parameter).shape[0]
        if own % (rows // heads):
            raise ValueError(
                "%r has heads of %d rows, and a shard %d rows: shards must have whole heads"
                % (name, rows // heads, own)
            )
        return int(rows // heads)

    def _shapes(self, parameter: torch.Tensor, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        rows = self._rows_of_a_block(parameter)
        return {_MEAN: tuple(shape), _SQUARES: (shape[0] // rows if rows else 1,)}

    def _signs(self, parameter: torch.Tensor) -> Dict[str, bool]:
        return {_MEAN: True}

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        return key != _SQUARES or self._rows_of_a_block(parameter) > 0

    # --- stepping ---

    def _step_task(self, task: Task) -> None:
        rows, count = self._rows_of_a_block(task.owner), task.parameter.numel()
        shape = (1, count) if rows == 0 else (len(task.parameter), -1) if count else (0, 1)
        values, gradient = Wide(task, shape), task.gradient.contiguous().view(shape)
        if rows == 0:
            self._step_vector(task, values, gradient)
        elif count:
            self._step_rows(task, values, gradient, rows)
        values.finish()

    def _step_vector(self, task: Task, values: Wide, g: torch.Tensor) -> None:
        """One block, by pieces."""
        most = 4 * PIECE[g.device.type]
        pieces = [slice(first, first + most) for first in range(0, g.shape[1], most)]
        room = _room(g, min(most, g.shape[1]))
        squares = torch.zeros(1, dtype=torch.float32, device=g.device)
        for here in pieces:
            part = in_fp32(g[:, here], room)
            squares += torch.linalg.vector_norm(part).square_()
        squares = Team(task.owner).add(squares).div_(task.owner.numel())
        rates, mean = _rates(task, slice(0, 1), squares, 1), task.state[_MEAN].view(1, -1)
        for here in pieces:
            part = values.piece((slice(None), here))
            _move(task, part, in_fp32(g[:, here], room), mean[:, here], rates)
            values.store((slice(None), here), part)

    def _step_rows(self, task: Task, values: Wide, g: torch.Tensor, rows: int) -> None:
        """By pieces of whole blocks."""
        length, wide = g.shape
        high = max(1, 4 * PIECE[g.device.type] // (rows * wide)) * rows
        room, state = _room(g, min(high, length) * wide), task.state
        for first in range(0, length, high):
            here = slice(first, min(first + high, length))
            part = in_fp32(g[here], room)
            squares = torch.linalg.vector_norm(part, dim=1).square_().div_(wide)
            squares = squares if rows == 1 else squares.view(-1, rows).mean(1)
            rates = _rates(task, here, squares, rows)
            p = values.piece(here)
            if _SCALES in state:
                coded = _row_codes.Rows(state[_MEAN][here], state[_SCALES][here], True)
                _move(task, p, part, coded.values, rates)
                coded.store()
                del coded  # before the next piece has its own
            else:
                _move(task, p, part, state[_MEAN].view(-1, wide)[here], rates)
            values.store(here, p)


def _room(like: torch.Tensor, count: int) -> Optional[torch.Tensor]:
    """For so many elements of a gradient in fp32; None where it is."""
    return None if like.dtype is torch.float32 else like.new_empty(count, dtype=torch.float32)


def _rates(task: Task, here: slice, squares: torch.Tensor, rows: int) -> torch.Tensor:
    """What multiplies the first moments of some rows, of which blocks have these means of squares."""
    group, state = task.group, task.state
    beta1, beta2 = (float(beta) for beta in group["betas"])
    steps = int(state["step"]) + 1
    kept = state[_SQUARES][here.start // rows : here.stop // rows]
    kept.mul_(beta2).add_(squares, alpha=1 - beta2)
    root = kept.sqrt().div_(math.sqrt(1 - beta2**steps)).add_(float(group["eps"]))
    rates = -float(group["lr"]) / (1 - beta1**steps) / root
    return (rates if rows == 1 else rates.repeat_interleave(rows)).unsqueeze(1)


def _move(
    task: Task, p: torch.Tensor, g: torch.Tensor, mean: torch.Tensor, rates: torch.Tensor
) -> None:
    """Brings first moments up to date, and steps the parameter by them."""
    group, decay = task.group, float(task.group["weight_decay"])
    mean.lerp_(-g if group["maximize"] else g, 1 - float(group["betas"][0]))
    if decay:
        p.mul_(1 - float(group["lr"]) * decay)
    p.addcmul_(mean, rates)


class AdamMini8bit(AdamMini):
    """Adam-mini with an 8-bit first moment in blocks of at most 256 of a row: 1.02 bytes a parameter."""

    _states = StateFormat.BITS8
