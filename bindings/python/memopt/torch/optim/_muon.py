"""Muon (Jordan et al. 2024): a step along the orthogonalised momentum of each matrix.

The arithmetic is that of torch.optim.Muon, operation by operation, so fp32 matrices get its bits. On a
CPU large symmetric products, from about 800 rows on, are computed by halves; on processors without products
of bf16 some last bits may differ from torch's there.
What differs: the momentum is in fp32 whatever the parameter's type is, or in 8-bit codes, and a
half-precision parameter is rounded once a step.

The state is an SGD's: one moment, "momentum_buffer". Groups tell the two apart in state dicts: only
Muon's have "ns_steps".
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from ... import rules
from ..._abi import StateFormat
from . import _format, _layout, _other_rules
from ._options import number
from ._whole import PIECE, Task, Wide, WholeOptimizer, room_for

BLOCK = _format.BLOCKS[StateFormat.BITS8]
_MOMENT = "momentum_buffer"
#: torch's limit.
_MOST_STEPS = 99
#: Multiplications of a symmetric product below which parts cost more than they save.
_LEAST_WORK = 1 << 29
#: The part of a matrix that some rows and columns make.
Product = Callable[[slice, slice], torch.Tensor]
_ADJUSTMENTS = ("original", "match_rms_adamw", "spectral_unclamped")


class Muon(WholeOptimizer, rule="Muon"):
    def _check_whole(self, parameter: torch.Tensor, name: str) -> None:
        if parameter.dim() != 2:
            raise ValueError(
                "%s only supports 2D parameters: the shape of %s is %s; give it to another"
                " optimizer, such as AdamW8bit" % (type(self).__name__, name, tuple(parameter.shape))
            )
        super()._check_whole(parameter, name)

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        steps, coefficients = group["ns_steps"], group["ns_coefficients"]
        if not isinstance(steps, int) or not 0 <= steps <= _MOST_STEPS:
            raise ValueError("Invalid ns_steps value: %s; 0 to %d" % (steps, _MOST_STEPS))
        if not isinstance(coefficients, (tuple, list)) or len(coefficients) != 3:
            raise ValueError("Invalid ns_coefficients: %s; three numbers" % (coefficients,))
        for coefficient in coefficients:
            if not math.isfinite(number("ns_coefficients", coefficient)):
                raise ValueError("Invalid ns_coefficients: %s" % (coefficients,))
        if group["adjust_lr_fn"] not in (None, *_ADJUSTMENTS):
            raise ValueError(
                "Invalid adjust_lr_fn: %r; None or one of %s" % (group["adjust_lr_fn"], ", ".join(_ADJUSTMENTS))
            )

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        if "ns_steps" not in group:
            raise _other_rules.refused("group %d has no ns_steps" % index, "another rule", "Muon")

    def _step_task(self, task: Task) -> None:
        parameter, group = task.parameter, task.group
        lr = float(group["lr"])
        keep, rate = 1 - lr * float(group["weight_decay"]), lr * _adjustment(group, parameter.shape)
        change = _orthogonal(_direction(task), group)
        values = Wide(task, parameter.shape)
        high = max(1, PIECE[parameter.device.type] // max(1, parameter.shape[1]))
        for first in range(0, parameter.shape[0], high):
            here = slice(first, first + high)
            part = values.piece(here)
            values.store(here, part.mul_(keep).add_(change[here], alpha=-rate))
        values.finish()


Muon8bit = rules.variant(Muon, "8bit")


def _direction(task: Task) -> torch.Tensor:
    """Moves the momentum, by pieces; what is to be orthogonalised, in bf16."""
    moment, gradient = task.state[_MOMENT], task.gradient
    if moment.shape != gradient.shape:  # contiguous, from a flat state
        moment = moment.view(gradient.shape)
    if gradient.stride() != moment.stride():
        gradient = _layout.like(moment, gradient.dtype).copy_(gradient)
    result = _layout.like(moment, torch.bfloat16)
    count, most = moment.numel(), PIECE[moment.device.type]
    most = -(-most // BLOCK) * BLOCK
    flat = [_layout.flat(tensor) for tensor in (moment, gradient, result)]
    key = _format.scale_of(task.state, 0)
    format_ = StateFormat.F32 if key is None else _format.FORMATS_OF_SCALES[key[:-1]]
    rooms = [gradient.new_empty(min(most, count), dtype=torch.float32) for _ in range(1 if key is None else 2)]
    for first in range(0, count, most):
        here = slice(first, first + most)
        blocks = slice(first // BLOCK, -(-here.stop // BLOCK))
        scales = None if key is None else task.state[key].view(-1)[blocks]
        old, fresh, into = (tensor[here] for tensor in flat)
        into.copy_(_moved(task.group, format_, old, scales, fresh, rooms))
    return result


def _moved(
    group: Dict[str, Any],
    format_: StateFormat,
    moment: torch.Tensor,
    scales: Optional[torch.Tensor],
    gradient: torch.Tensor,
    rooms: List[torch.Tensor],
) -> torch.Tensor:
    """Moves some of the momentum; the direction, perhaps in one of the rooms."""
    momentum, first = float(group["momentum"]), room_for(moment, rooms[0])
    if gradient.dtype is not torch.float32:
        gradient = first.copy_(gradient)
    if scales is None:
        moment.lerp_(gradient, 1 - momentum)
        return torch.lerp(gradient, moment, momentum, out=first) if group["nesterov"] else moment
    second = room_for(moment, rooms[1])
    _format.decode(second, moment, scales, format_, True)
    second.lerp_(gradient, 1 - momentum)
    _format.encode(second, moment, scales, format_, True)
    return torch.lerp(gradient, second, momentum, out=second) if group["nesterov"] else second


def _orthogonal(x: torch.Tensor, group: Dict[str, Any]) -> torch.Tensor:
    """Singular values brought near 1 by Newton–Schulz iterations, which take turns in the memory of x
    and in as much."""
    a, b, c = group["ns_coefficients"]
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    x.div_(x.norm().clamp(min=float(group["eps"])))
    room, other = torch.empty(x.shape, dtype=x.dtype, device=x.device), _layout.flat(x).view(x.shape)
    for _ in range(group["ns_steps"]):
        gram = _by_symmetry(x, lambda rows, columns: x[rows] @ x[columns].T)
        gram = _by_symmetry(gram, _polynomial(gram, b, c))
        torch.addmm(x, gram, x, beta=a, out=room)
        x, room, other = room, other, room
    # Reading it transposed would take longer than this copy, which torch makes by blocks.
    return _layout.flat(room).view(x.T.shape).copy_(x.T) if tall else x


def _polynomial(gram: torch.Tensor, b: float, c: float) -> Product:
    """A part of b times the matrix plus c times its square."""
    return lambda rows, columns: torch.addmm(gram[rows, columns], gram[rows], gram[:, columns], beta=b, alpha=c)


def _by_symmetry(like: torch.Tensor, product: Product) -> torch.Tensor:
    """A symmetric matrix of as many rows, of which parts are computed: on a CPU those on and below the
    diagonal, a third less work. A GPU is faster with one product."""
    count, high = len(like), -(-len(like) // 96) * 32
    if like.is_cuda or count * like.numel() < _LEAST_WORK:
        return product(slice(None), slice(None))
    result = like.new_empty(count, count)
    for first in range(0, count, high):
        last = min(first + high, count)
        result[first:last, :last] = product(slice(first, last), slice(last))
        result[:first, first:last] = result[first:last, :first].T
    return result


def _adjustment(group: Dict[str, Any], shape: Sequence[int]) -> float:
    rows, columns = shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = rows / columns
    return math.sqrt(ratio if group["adjust_lr_fn"] == "spectral_unclamped" else max(1, ratio))
