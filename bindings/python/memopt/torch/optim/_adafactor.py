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
from collections import defaultdict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from ...groups import F32_EPS
from . import _format, _layout, _other_rules, _sharded
from ._base import Loading, Member, _out_of_graphs
from ._binding import Executor, Slot
from ._facts import Facts, is_skipped
from ._options import number
from ._team import Team, check_rows
from ._whole import PIECE, Task, WholeOptimizer, round_to, write

#: Which of a stack of matrices, and which rows.
Piece = Tuple[slice, slice]


class Adafactor(WholeOptimizer, rule="Adafactor"):
    _kind = OptimizerKind.ADAFACTOR
    _takes_shards = True

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        if not isinstance(group["eps"], (tuple, list)) or len(group["eps"]) != 2:
            raise ValueError("Invalid eps: %s; two numbers" % (group["eps"],))
        for name, value in (("first eps", _least(group)), ("second eps", group["eps"][1])):
            if not 0.0 <= number("%s value" % name, value) < math.inf:
                raise ValueError("Invalid %s value: %s" % (name, value))

    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        super()._check_whole(parameter, name)
        check_rows(parameter, name, type(self).__name__)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if "beta2_decay" not in group:
            what = "group %d has no beta2_decay" % index
            raise _other_rules.refused(what, "another rule", "Adafactor")

    def _shapes(self, shape: torch.Size) -> Dict[str, Tuple[int, ...]]:
        """Those of a parameter's states by their keys, or of a shard's."""
        if len(shape) < 2:
            return {"variance": tuple(shape)}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def _is_cut(self, key: str, parameter: torch.Tensor) -> bool:
        """Whether shards of a parameter have parts of this state, not all of it."""
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

    # --- states ---

    def _state_for(self, one: Member) -> _format.State:
        parameter, dense, _, name, made = one
        state = self.state.get(parameter)
        if state:
            known = self._known(state, parameter, name)
            if any(known[key] is not state[key] for key in known):
                made[parameter] = known
            return known
        new = {"step": _format.step_tensor(0, dense.device)}
        for key, shape in self._shapes(dense.shape).items():
            new[key] = torch.zeros(shape, dtype=torch.float32, device=dense.device)
        made[parameter] = new
        return new

    def _presented(self) -> Dict[Any, Any]:
        return {parameter: self._as_whole(parameter, state) for parameter, state in self.state.items() if state}

    def _as_whole(self, parameter: torch.Tensor, state: _format.State) -> _format.State:
        if not _layout.is_sharded(parameter):
            return state
        owner: Any = parameter
        result = {"step": state["step"]}
        for key, shape in self._shapes(parameter.shape).items():
            if self._is_cut(key, parameter):
                result[key] = _sharded.of_shape(state[key], parameter, torch.Size(shape))
            else:
                result[key] = _layout.same_in_all(state[key], owner.device_mesh)
        return result

    def _localized(self, state: Mapping[str, Any], parameter: torch.Tensor, name: str) -> Mapping[str, Any]:
        """What a state dict has of a parameter, of the rows of this process."""
        result = dict(state)
        for key, shape in self._shapes(parameter.shape).items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor):
                continue
            if not self._is_cut(key, parameter):
                result[key] = _layout.whole(value)
            elif _layout.is_sharded(parameter) or _layout.is_sharded(value):
                result[key] = _sharded.piece(value, parameter, torch.Size(shape), key, name)
        return result

    def _loaded(self, loading: Loading) -> Dict[Any, Any]:
        place_of = loading.places()
        state: Dict[Any, Any] = defaultdict(dict)
        for key, value in loading.states.items():
            if key not in place_of:
                state[key] = value
            elif value:
                parameter, _, name = place_of[key]
                value = self._localized(_format.opened(value), parameter, name)
                known = self._known(value, parameter, name)
                state[parameter] = {k: v.clone() for k, v in known.items()}
        return state

    def _known(self, state: Mapping[str, Any], parameter: torch.Tensor, name: str) -> _format.State:
        """A state as a step takes it, with the same tensors where they are so already."""
        steps = _format.steps_taken(state.get("step", 0))
        if not 0 <= steps < 1 << 53:
            raise ValueError("the state of %s has taken %d steps" % (name, steps))
        step = state.get("step")
        known: _format.State = {"step": _format.step_tensor(steps, parameter.device)}
        if isinstance(step, torch.Tensor) and step.dtype is torch.int64 and step.device == parameter.device:
            known["step"] = step
        for key, shape in self._shapes(_layout.local(parameter).shape).items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                raise ValueError("the state of %s has no %s: it is incomplete, or of another rule" % (name, key))
            if tuple(value.shape) != shape:
                raise ValueError(
                    "the %s of %s has shape %s, which does not fit the parameter's shape %s"
                    % (key, name, tuple(value.shape), tuple(parameter.shape))
                )
            known[key] = value.to(parameter.device, torch.float32).contiguous()
        return known


def _is_direct(group: Dict[str, Any]) -> bool:
    """Whether the library can step the group's parameters in their memory."""
    return not group["stochastic_rounding"] and all(
        parameter.is_contiguous() and not _layout.is_sharded(parameter) for parameter in group["params"]
    )


def _least(group: Dict[str, Any]) -> float:
    """What the root of the second moment counts as at least."""
    least = group["eps"][0]
    return F32_EPS if least is None else number("first eps value", least)


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
