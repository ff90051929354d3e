"""Adam-mini (Zhang et al. 2024): AdamW with one second moment for a block of a parameter in place of one
for each element.

Blocks are the authors': of queries and keys the rows of a head, of other matrices each row (an output
neuron, a token of an embedding), of biases each element, and other vectors are one block. Names tell which
is which, so parameters are to be given with names; without names every matrix goes by rows, which are
finer blocks than heads, and every vector is one.

``optimizer.state[parameter]`` holds "step" (int64, on the host), "exp_avg" in fp32 or 8-bit codes of the
parameter's shape (with "absmax1"), and "exp_avg_sq", a number for each block. A parameter is stepped by
one call of the library. One that is sharded by rows steps as the whole: heads must not be cut, and the
processes of a vector that is one block add up its squares, by torch's operations.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple

import torch

from ..._abi import AdamMiniStruct, StateFormat
from ..._library import lib
from . import _format, _layout, _options, _other_rules
from ._base import Learning, Params
from ._one_call import step_by
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import Task, write

_MEAN, _SQUARES, _SCALES = "exp_avg", "exp_avg_sq", "absmax1"
#: What the names of queries and of keys contain; a name with both is of one matrix for all.
_QUERIES, _KEYS = ("q_proj", "wq", "query"), ("k_proj", "wk", "key")


class AdamMini(ShapedOptimizer):
    """Adam-mini with an fp32 first moment: 4 bytes a parameter."""

    _takes_shards = True
    _together = True

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
        rows, parameter, state = self._rows_of_a_block(task.owner), task.parameter, task.state
        if rows == 0 and _layout.is_sharded(task.owner):
            _step_together(task)
            return
        if not parameter.numel():  # other processes have elements
            state["step"].add_(1)
            return
        group, scales = task.group, state.get(_SCALES)
        what = AdamMiniStruct(
            mean=_format.struct(state[_MEAN]),
            scales=None if scales is None else scales.data_ptr(),
            square_mean=state[_SQUARES].data_ptr(),
            rows=rows or 1,
            columns=parameter.numel() // (len(parameter) if rows else 1),
            eps=float(group["eps"]),
        )
        what.beta1, what.beta2 = (float(beta) for beta in group["betas"])
        step_by(lib.memopt_adam_mini_step, lib.memopt_adam_mini_get_scratch, what, task)


def _step_together(task: Task) -> None:
    """A vector that is one block, of which other processes have parts: they add up its squares."""
    group, state, team = task.group, task.state, Team(task.owner)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    steps, lr = int(state["step"]) + 1, float(group["lr"])
    exact, g = task.parameter.float().contiguous(), task.gradient.float()
    squares = team.add(torch.linalg.vector_norm(g).square_()).div_(task.owner.numel())
    kept, mean = state[_SQUARES], state[_MEAN]
    kept.mul_(beta2).add_(squares, alpha=1 - beta2)
    root = kept.sqrt().div_(math.sqrt(1 - beta2**steps)).add_(float(group["eps"]))
    mean.lerp_(-g if group["maximize"] else g, 1 - beta1)
    exact.mul_(1 - lr * float(group["weight_decay"]))
    exact.addcmul_(mean, -lr / (1 - beta1**steps) / root)
    write(task, exact)


class AdamMini8bit(AdamMini):
    """Adam-mini with an 8-bit first moment in blocks of at most 256 of a row: 1.02 bytes a parameter."""

    _states = StateFormat.BITS8
