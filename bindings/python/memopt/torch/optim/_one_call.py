"""A parameter's step by one call of the library: memopt_adafactor_step() and its like."""

from __future__ import annotations

from typing import Any

import torch

from ..._library import output
from .._native import native
from .._tensor_lists import changed, raw
from ._whole import Task, write


def step_by(call: Any, get_scratch: Any, what: Any, task: Task) -> None:
    """Fills in what all calls have in common, and steps; a copy in fp32 where the parameter is not to be
    rounded to nearest."""
    group, state, exact = task.group, task.state, task.parameter.detach()
    if group["stochastic_rounding"] or not exact.is_contiguous():
        exact = exact.float().contiguous()
    gradient = task.gradient.contiguous()
    what.parameter = raw(exact.data_ptr(), exact.numel(), exact.dtype)
    what.gradient = raw(gradient.data_ptr(), gradient.numel(), gradient.dtype)
    what.step = int(state["step"]) + 1
    what.lr = float(group["lr"])
    what.weight_decay = float(group["weight_decay"])
    what.gradient_scale = 1.0
    what.maximize = bool(group["maximize"])
    side, bytes_ = native(exact.device), int(output(get_scratch, what))
    scratch = torch.empty(-(-bytes_ // 8), dtype=torch.float64, device=exact.device)
    handle = side.device._handle.pointer
    call(handle, what, scratch.data_ptr() or None, 8 * len(scratch), side.stream())
    changed([exact, *state.values()])
    write(task, exact)
