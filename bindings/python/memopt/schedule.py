"""Which stages of a chain to recompute, so that it trains within a byte budget in least time."""

from __future__ import annotations

import ctypes
from typing import Iterable, Iterator, NamedTuple, Optional, Tuple

from . import _abi
from ._abi import ScheduleOperation
from ._arguments import unsigned
from ._library import lib, output
from .sizes import Size, parse_size
from .streams import ready


class Stage(NamedTuple):
    """What a stage takes. Its output counts in `saved_bytes` too."""

    #: Time of its forward, in any unit.
    forward_seconds: float
    #: Time of its backward, in the same unit.
    backward_seconds: float
    #: Its output.
    output_bytes: int
    #: All that it keeps for backward beside its input.
    saved_bytes: int
    #: What forward takes beyond that while it runs.
    forward_extra_bytes: int = 0
    #: What backward takes beyond what is saved and the gradients while it runs.
    backward_extra_bytes: int = 0


Step = Tuple[ScheduleOperation, int]


class Schedule:
    """The fastest order of forward and backward runs within `budget` bytes (None: no limit).

    Iterating gives (operation, number of the stage). LimitReachedError names a sufficient budget.
    """

    __slots__ = ("steps", "peak_bytes", "minimum_budget", "recomputed", "seconds", "seconds_plain")

    def __init__(
        self,
        stages: Iterable[Stage],
        budget: Optional[Size] = None,
        *,
        input_bytes: Size = 0,
        input_gradient: bool = False,
        slots: int = 0,
    ) -> None:
        chain = [_chain_stage(i, stage) for i, stage in enumerate(stages)]
        array = (_abi.ChainStage * max(len(chain), 1))(*chain)
        options = _abi.ScheduleOptions(
            budget=_limit(budget),
            input_bytes=parse_size(input_bytes),
            input_gradient=int(bool(input_gradient)),
            slots=unsigned(slots, 32, "slots"),
        )
        handle = output(lib.memopt_schedule_create, array, len(chain), options)
        try:
            info = output(lib.memopt_schedule_get_info, handle)
            #: The steps in order.
            self.steps: Tuple[Step, ...] = tuple(_steps(handle))
        finally:
            lib.memopt_schedule_destroy(handle)
        #: The most that is alive at once.
        self.peak_bytes: int = info.peak_bytes
        #: The smallest budget that any schedule of the chain needs.
        self.minimum_budget: int = info.minimum_budget
        #: Forward runs beyond one a stage.
        self.recomputed: int = info.recomputed
        #: Time of all steps.
        self.seconds: float = info.seconds
        #: Time without recomputation.
        self.seconds_plain: float = info.seconds_plain

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def _limit(budget: Optional[Size]) -> int:
    if budget is None:
        return 0
    return max(parse_size(budget), 1)  # to C, 0 would be no limit


def _chain_stage(number: int, stage: Stage) -> _abi.ChainStage:
    values = Stage(*stage)
    for size in values[2:]:
        unsigned(size, 64, "stage %d: a size" % number)
    return _abi.ChainStage(**values._asdict())


def _steps(handle: ctypes.c_void_p) -> Iterator[Step]:
    step = _abi.ScheduleStep()
    while ready(lib.memopt_schedule_next(handle, step)):
        yield ScheduleOperation(step.operation), step.stage
