"""Adafactor (Shazeer & Stern 2018): a second moment of rows and columns in place of one for each
element, steps relative to the parameter, and no momentum.

The rule is torch.optim.Adafactor's. What differs: states are in fp32 whatever the parameter's type
is, and a half-precision parameter is rounded once a step. A matrix is stepped by pieces that fit a
processor's cache: fresh memory of a matrix's size costs more than the arithmetic, and torch's norm
over columns more than all else. So sums are taken in another order than torch's.

``optimizer.state[parameter]`` holds "step" (int64, on the host, which needs it) and, of fp32,
"row_var" and "col_var" of the last two dimensions, or "variance" where there is only one. In state
dicts only Adafactor's groups have "beta2_decay".

A parameter that is sharded by rows (dimension 0, as fully_shard cuts) is stepped by all processes together:
they add up sums of squares, of a matrix those of its columns too. Of a matrix every process has all of
"col_var".
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from . import _options, _other_rules
from ._base import Learning, Params
from ._options import number
from ._shaped import ShapedOptimizer
from ._team import Team, check_rows
from ._whole import PIECE, Task, Wide, in_fp32, room_for

#: Which of a stack of matrices, and which rows.
Piece = Tuple[slice, slice]


class Adafactor(ShapedOptimizer):
    """Adafactor as torch.optim.Adafactor, with fp32 states: R + C numbers for a matrix of R rows and
    C columns."""

    _takes_shards = True
    _together = True
    _steps_on_host = True

    def __init__(
        self,
        params: Params,
        lr: Learning = 1e-2,
        beta2_decay: float = -0.8,
        eps: Tuple[Optional[float], float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: Optional[bool] = None,
        maximize: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Groups of parameters may have their own values of all of these.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            lr: the learning rate, a number or a tensor of one element: step t takes at most
                1 / sqrt(t), times the root of the mean square of the parameter.
            beta2_decay: at most 0: in step t the second moment takes t ** beta2_decay of the square.
            eps: below the first, the root of the second moment counts as this (None: fp32's
                epsilon); below the second, the root of the mean square of a parameter does.
            d: at least 1: a longer root of the mean square of an update is cut to this.
            weight_decay: the share of a parameter, times lr, that a step takes from it.
            foreach: no effect.
            maximize: climb instead of descend.
            stochastic_rounding: round bf16 and fp16 parameters up or down with probability by
                distance, so that updates below half a unit are not lost.
            seed: chooses the random numbers of stochastic_rounding.
        """
        values = dict(lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay)
        switches = dict(foreach=foreach, maximize=maximize)
        rounding = dict(stochastic_rounding=stochastic_rounding, seed=seed)
        super().__init__(params, {**values, **switches, **rounding})

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
        step = _Step(task)
        if task.parameter.dim() < 2:
            step.move_vector(task.state["variance"])
        else:
            step.move_matrices(task.state["row_var"], task.state["col_var"])
        step.values.finish()


class _Step:
    """A step of a vector or of a stack of matrices by pieces, of which few are in fp32 at a time."""

    def __init__(self, task: Task) -> None:
        self.team, self.group = Team(task.owner), task.group
        shape = task.parameter.shape
        outline = (shape.numel(),) if len(shape) < 2 else (shape[:-2].numel(), *shape[-2:])
        self.gradient = task.gradient.contiguous().view(outline)
        self.values = Wide(task, outline)
        self.pieces = _pieces(self.gradient)
        most = max((self.gradient[here].numel() for here in self.pieces), default=0)
        self._room = self.gradient.new_empty(most, dtype=torch.float32)
        is_wide = self.gradient.dtype is torch.float32
        self._wide = None if is_wide else torch.empty_like(self._room)
        self._steps = int(task.state["step"]) + 1
        self._fresh = self._steps ** float(task.group["beta2_decay"])
        least = task.group["eps"][0]
        self._least = torch.finfo(torch.float32).eps if least is None else float(least)

    def _part(self, here: Any) -> torch.Tensor:
        return in_fp32(self.gradient[here], self._wide)

    def _square_sum(self, parts: Iterable[torch.Tensor]) -> float:
        """Of the elements of all pieces in all processes."""
        return self._sum([torch.linalg.vector_norm(part).double().square_() for part in parts])

    def _sum(self, numbers: List[torch.Tensor]) -> float:
        """Of numbers of all pieces in all processes."""
        numbers = numbers or [self.gradient.new_zeros((), dtype=torch.float32)]
        return float(self.team.add(torch.stack(numbers).double().sum()))

    def _take(self, updates: Callable[[Any], torch.Tensor], squares: float) -> None:
        """Takes the updates, whose squares have this sum, from the parameter."""
        group, count = self.group, self.team.shape.numel()
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        total = self._square_sum(self.values.piece(here) for here in self.pieces)
        size = max(float(group["eps"][1]), math.sqrt(total / count))
        rate = size * min(lr, 1 / self._steps**0.5)
        rate /= max(1.0, math.sqrt(squares / count) / float(group["d"]))
        rate = -rate if group["maximize"] else rate
        for here in self.pieces:
            part = self.values.piece(here)
            if decay:
                part.mul_(1 - lr * decay)
            self.values.store(here, part.sub_(updates(here), alpha=rate))

    def move_vector(self, variance: torch.Tensor) -> None:
        """Updates are made twice: keeping all of them would take longer."""
        variance, least = variance.view(-1), self._least**2
        room = torch.empty_like(self._room)

        def squares(here: slice) -> torch.Tensor:
            part = self._part(here)
            fresh = torch.mul(part, part, out=room_for(part, self._room))
            kept = variance[here].lerp_(fresh, self._fresh)
            return fresh.div_(torch.clamp(kept, min=least, out=room_for(part, room))).sum()

        def update(here: slice) -> torch.Tensor:
            part = self._part(here)
            into = torch.clamp(variance[here], min=least, out=room_for(part, self._room))
            return into.rsqrt_().mul_(part)

        total = self._sum([squares(here) for here in self.pieces])
        if not math.isfinite(total):  # squares beyond fp32, whose updates are 0
            total = self._square_sum(update(here) for here in self.pieces)
        self._take(update, total)

    def move_matrices(self, row_var: torch.Tensor, col_var: torch.Tensor) -> None:
        stack, rows, columns = self.gradient.shape
        row, column = row_var.view(stack, rows, 1), col_var.view(stack, 1, columns)
        sums = torch.empty_like(row), torch.zeros_like(column)
        for here in self.pieces:
            part = self._part(here)
            squares = torch.mul(part, part, out=room_for(part, self._room))
            torch.sum(squares, -1, keepdim=True, out=sums[0][here])
            sums[1][here[0]] += squares.sum(-2, keepdim=True)
        height = self.team.shape[-2]
        row.lerp_(sums[0].div_(columns), self._fresh)
        column.lerp_(self.team.add_columns(sums[1]).div_(height), self._fresh)
        mean = self.team.add_columns(row.sum(dim=-2, keepdim=True)).div_(height)
        update = self._updates(row / mean.clamp_(min=self._least), column)
        one = len(self.pieces) == 1
        kept = [update(here) for here in self.pieces] if one else []
        squares_ = self._square_sum(kept or (update(here) for here in self.pieces))
        self._take((lambda here: kept[0]) if one else update, squares_)

    def _updates(
        self, scale: torch.Tensor, column: torch.Tensor
    ) -> Callable[[Piece], torch.Tensor]:
        """What makes the update of a piece, of which the second moment is scale * column."""
        least = self._least**2
        if scale.numel() and float(scale.min()) * float(column.min()) > least:  # all of them are
            factors = scale.rsqrt(), column.rsqrt()

            def by_factors(here: Piece) -> torch.Tensor:
                part = self._part(here)
                into = torch.mul(part, factors[0][here], out=room_for(part, self._room))
                return into.mul_(factors[1][here[0]])

            return by_factors

        def by_elements(here: Piece) -> torch.Tensor:
            part = self._part(here)
            into = room_for(part, self._room)
            torch.mul(scale[here], column[here[0]], out=into)
            return into.clamp_(min=least).rsqrt_().mul_(part)

        return by_elements


def _pieces(tensor: torch.Tensor) -> List[Any]:
    """Of a vector some elements; else some rows of one matrix each, or some whole matrices."""
    most = PIECE[tensor.device.type]
    if tensor.dim() == 1:
        return [slice(first, first + most) for first in range(0, len(tensor), most)]
    count, rows, columns = tensor.shape
    high = max(1, most // max(1, columns))
    wide = max(1, most // max(1, rows * columns))
    return [
        (slice(m, m + wide), slice(r, r + high))
        for m in range(0, count, wide)
        for r in range(0, rows, high)
    ]
