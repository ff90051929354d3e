"""Adafactor (Shazeer & Stern 2018): a second moment of rows and columns in place of one for each
element, steps relative to the parameter, and no momentum.

The rule is torch.optim.Adafactor's. What differs: states are in fp32 whatever the parameter's type
is, and a half-precision parameter is rounded once a step. Parameters that this process has whole are
stepped by one call of the library for each device.

``optimizer.state[parameter]`` holds "step" (int64, on the parameter's device) and, of fp32,
"row_var" and "col_var" of the last two dimensions, or "variance" where there is only one. In state
dicts only Adafactor's groups have "beta2_decay".

A parameter that is sharded by rows (dimension 0, as fully_shard cuts) is stepped by all processes together:
they add up sums of squares, of a matrix those of its columns too. Of a matrix every process has all of
"col_var".
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from ...groups import F32_EPS
from . import _format, _layout, _options, _other_rules
from ._base import _out_of_graphs
from ._binding import Executor, Slot
from ._facts import Facts, is_skipped
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import PIECE, Task, round_to, write

#: Which of a stack of matrices, and which rows.
Piece = Tuple[slice, slice]


class Adafactor(ShapedOptimizer, rule="Adafactor"):
    _kind = OptimizerKind.ADAFACTOR
    _takes_shards = True
    _together = True

    def _check_group(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        if not isinstance(group["eps"], (tuple, list)) or len(group["eps"]) != 2:
            raise ValueError("Invalid eps: %s; two numbers" % (group["eps"],))
        least = [0.0 if value is None and i == 0 else value for i, value in enumerate(group["eps"])]
        for name, value, low in (
            ("first eps", least[0], 0.0),
            ("second eps", least[1], 0.0),
            ("weight_decay", group["weight_decay"], 0.0),
            ("d", group["d"], 1.0),
        ):
            if not low <= number("%s value" % name, value) < math.inf:
                raise ValueError("Invalid %s value: %s" % (name, value))
        if not -math.inf < number("beta2_decay value", group["beta2_decay"]) <= 0.0:
            raise ValueError("Invalid beta2_decay value: %s" % group["beta2_decay"])
        _options.check_states(group)

    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        super()._check_whole(parameter, name)
        check_rows(parameter, name, type(self).__name__)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if "beta2_decay" not in group:
            what = "group %d has no beta2_decay" % index
            raise _other_rules.refused(what, "another rule", "Adafactor")

    def _shapes(self, parameter: torch.Tensor, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        if len(shape) < 2:
            return {"variance": tuple(shape)}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        return key != "col_var" or parameter.dim() > 2

    @_out_of_graphs
    def _step(self, params: Sequence[torch.Tensor], grads: Sequence[Optional[torch.Tensor]], facts: Facts) -> None:
        """One call if the library can step all parameters in their memory."""
        given, known, binding = list(params), list(grads), self._binding
        if self._model_copies and is_skipped(facts):
            return
        if binding is None or not binding.is_current(given, known, self.state.get):
            self._binding = None
            if not all(map(_is_direct, self.param_groups)):
                super()._step(params, grads, facts)
                return
            binding = self._binding = self._bind(given, known)
        binding.run(known, [_values(group) for group in self.param_groups], facts, type(self).__name__)
        for master, gradient in zip(given, known):
            if gradient is not None and master in self._model_copies:
                self._model_copies[master].detach().copy_(master.detach())

    def _step_tasks(self, tasks: List[Task], facts: Facts) -> None:
        """Those that are sharded in their order: processes that share them add up together."""
        super()._step_tasks([task for task in tasks if _layout.is_sharded(task.owner)], facts)
        for task in tasks:
            if not _layout.is_sharded(task.owner):  # in fp32, perhaps in its memory
                exact = task.parameter.detach().float().contiguous()
                slot = Slot(0, 0, "a parameter", exact, exact, False, task.state, task.state["step"])
                executor = Executor(self._kind, StateFormat.F32, (exact.device, False, 0, 0), 1, [slot], 0)
                executor.set_groups([_values(task.group)])
                kept = executor.gradients([task.gradient], type(self).__name__)
                executor.step(facts)
                round_to(task, task.parameter, exact)
                del kept

    def _step_task(self, task: Task) -> None:
        """The step of a shard."""
        group, state, team = task.group, task.state, Team(task.owner)
        gradient = task.gradient.float().contiguous()
        if group["maximize"]:
            gradient = -gradient
        steps = int(state["step"]) + 1
        lr, fresh = float(group["lr"]), steps ** float(group["beta2_decay"])
        exact = task.parameter.float().contiguous()  # perhaps the parameter itself
        squares = team.add(exact.norm(2).double().square())
        size = max(float(group["eps"][1]), math.sqrt(float(squares) / task.owner.numel()))
        rate = size * min(lr, 1 / steps**0.5)
        if group["weight_decay"] != 0:
            exact.mul_(1 - lr * float(group["weight_decay"]))
        step = _step_vector if gradient.dim() < 2 else _step_matrices
        step(exact, gradient, state, fresh, _least(group), rate, float(group["d"]), team)
        write(task, exact)


def _is_direct(group: Dict[str, Any]) -> bool:
    """Whether the library can step the group's parameters in their memory."""
    return not group["stochastic_rounding"] and all(
        parameter.is_contiguous() and not _layout.is_sharded(parameter) for parameter in group["params"]
    )


def _least(group: Dict[str, Any]) -> float:
    """What the root of the second moment counts as at least."""
    least = group["eps"][0]
    return F32_EPS if least is None else float(least)


def _values(group: Dict[str, Any]) -> Tuple[Tuple[str, Any], ...]:
    """A group's values, under the library's names."""
    names = ("beta2_decay", "d", "weight_decay")
    own = ("eps", _least(group)), ("eps2", float(group["eps"][1])), ("maximize", int(bool(group["maximize"])))
    return (("lr", group["lr"]), *((name, float(group[name])) for name in names), *own)


def _cut(rate: float, squares: torch.Tensor, count: int, d: float) -> float:
    """The rate of an update with this sum of squares."""
    return rate / max(1.0, math.sqrt(float(squares) / count) / d)


def _step_vector(
    exact: torch.Tensor,
    gradient: torch.Tensor,
    state: _format.State,
    fresh: float,
    least: float,
    rate: float,
    d: float,
    team: Team,
) -> None:
    variance = state["variance"]
    variance.lerp_(gradient * gradient, fresh)
    update = variance.clamp(min=least * least).rsqrt_().mul_(gradient)
    squares = team.add(update.norm(2).double().square())
    exact.sub_(update, alpha=_cut(rate, squares, team.shape.numel(), d))


def _step_matrices(
    exact: torch.Tensor,
    gradient: torch.Tensor,
    state: _format.State,
    fresh: float,
    least: float,
    rate: float,
    d: float,
    team: Team,
) -> None:
    """A step of contiguous tensors."""
    rows, columns = gradient.shape[-2:]
    stack = math.prod(gradient.shape[:-2])
    p, g = (t.view(stack, rows, columns) for t in (exact, gradient))
    row, column = state["row_var"].view(stack, rows, 1), state["col_var"].view(stack, 1, columns)
    pieces = _pieces(g)
    room = g.new_empty(max([g[piece].numel() for piece in pieces], default=0))
    sums = torch.empty_like(row), torch.zeros_like(column)
    for piece in pieces:
        part = g[piece]
        squares = torch.mul(part, part, out=_of(room, part))
        sums[0][piece] = squares.sum(-1, keepdim=True)
        sums[1][piece[0]] += squares.sum(-2, keepdim=True)
    row.lerp_(sums[0].div_(columns), fresh)
    column.lerp_(team.add_columns(sums[1]).div_(team.shape[-2]), fresh)
    mean = team.add_columns(row.sum(dim=-2, keepdim=True)).div_(team.shape[-2])
    scale = row / mean.clamp_(min=least)

    def update(piece: Piece) -> torch.Tensor:
        here = torch.mul(scale[piece], column[piece[0]], out=_of(room, g[piece]))
        return here.clamp_(min=least * least).rsqrt_().mul_(g[piece])

    total = torch.zeros((), dtype=torch.float64, device=g.device)
    for piece in pieces:
        last = update(piece)
        total += last.norm(2).double().square()
    rate = _cut(rate, team.add(total), team.shape.numel(), d)
    for piece in pieces:
        p[piece].sub_(last if len(pieces) == 1 else update(piece), alpha=rate)


def _of(room: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return room[: like.numel()].view(like.shape)


def _pieces(matrices: torch.Tensor) -> List[Piece]:
    """Some rows of one matrix each, or some whole matrices."""
    count, rows, columns = matrices.shape
    most = PIECE[matrices.device.type]
    high = max(1, most // max(1, columns))
    wide = max(1, most // max(1, rows * columns))
    return [
        (slice(m, m + wide), slice(r, r + high))
        for m in range(0, count, wide)
        for r in range(0, rows, high)
    ]
