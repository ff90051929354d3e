"""Steps of a training loop that an allocator learns: see :meth:`memopt.Allocator.mark_step`."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _abi
from ._library import lib, output


class StepPlan(NamedTuple):
    """What an allocator knows of the steps that were marked. All is 0 before the first."""

    #: Steps that have ended, and those of them that went wholly as planned.
    steps: int
    planned_steps: int
    #: Plans made.
    plans: int
    #: Whether there is a plan.
    active: bool
    #: Allocations of a planned step, and those of them that get no place: their blocks live for
    #: longer than a step.
    allocations: int
    unplanned: int
    #: The most bytes that the step's blocks have alive at once, and what the plan takes for them.
    least_bytes: int
    bytes: int
    #: Allocations served from their places so far, and those whose places were in use.
    served: int
    missed: int


def mark(handle: Any, learn: bool, end: bool) -> None:
    """Marks the end of a step of the allocator behind a handle."""
    if learn and end:
        raise ValueError("mark_step: learn and end exclude each other")
    what = _abi.Step.LEARN if learn else _abi.Step.END if end else _abi.Step.NEXT
    lib.memopt_allocator_mark_step(handle, what)


def read(handle: Any) -> StepPlan:
    """The plan of the allocator behind a handle."""
    raw = output(lib.memopt_allocator_get_step_plan, handle)
    values = {name: getattr(raw, name) for name in StepPlan._fields}
    return StepPlan(**{**values, "active": bool(raw.active)})
