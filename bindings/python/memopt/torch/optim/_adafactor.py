"""Adafactor (Shazeer & Stern 2018): a second moment of rows and columns in place of one for each
element, steps relative to the parameter, and no momentum.

The rule is torch.optim.Adafactor's. What differs: states are in fp32 whatever the parameter's type
is, and a half-precision parameter is rounded once a step. A parameter that this process has whole is
stepped by one call of the library.

``optimizer.state[parameter]`` holds "step" (int64, on the host, which needs it) and, of fp32,
"row_var" and "col_var" of the last two dimensions, or "variance" where there is only one. In state
dicts only Adafactor's groups have "beta2_decay".

A parameter that is sharded by rows (dimension 0, as fully_shard cuts) is stepped by all processes together:
they add up sums of squares, of a matrix those of its columns too. Of a matrix every process has all of
"col_var".
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import torch

from ..._abi import AdafactorStruct
from ..._library import lib
from .._native import native
from .._tensor_lists import changed, raw
from . import _format, _layout, _options, _other_rules
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import PIECE, Task, write

#: Which of a stack of matrices, and which rows.
Piece = Tuple[slice, slice]


class Adafactor(ShapedOptimizer, rule="Adafactor"):
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

    def _step_task(self, task: Task) -> None:
        if not _layout.is_sharded(task.owner):
            _step_whole(task)
            return
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


def _least(group: Dict[str, Any]) -> float:
    """What the root of the second moment counts as at least."""
    least = group["eps"][0]
    return torch.finfo(torch.float32).eps if least is None else float(least)


def _step_whole(task: Task) -> None:
    group, state, shape = task.group, task.state, task.parameter.shape
    what = AdafactorStruct(
        rows=1,
        columns=task.parameter.numel(),
        step=int(state["step"]) + 1,
        lr=float(group["lr"]),
        beta2_decay=float(group["beta2_decay"]),
        eps=(_least(group), float(group["eps"][1])),
        d=float(group["d"]),
        weight_decay=float(group["weight_decay"]),
        gradient_scale=1.0,
        maximize=bool(group["maximize"]),
    )
    if len(shape) < 2:
        what.column_var = state["variance"].data_ptr()
    else:
        what.row_var, what.column_var = (state[key].data_ptr() for key in ("row_var", "col_var"))
        what.rows, what.columns = shape[-2:]
    exact = task.parameter.detach()  # in fp32 where it is not to be rounded to nearest
    if group["stochastic_rounding"] or not exact.is_contiguous():
        exact = exact.float().contiguous()
    gradient = task.gradient.contiguous()
    what.parameter = raw(exact.data_ptr(), exact.numel(), exact.dtype)
    what.gradient = raw(gradient.data_ptr(), gradient.numel(), gradient.dtype)
    side = native(exact.device)
    lib.memopt_adafactor_step(side.device._handle.pointer, what, side.stream())
    changed([exact, *state.values()])
    write(task, exact)


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
