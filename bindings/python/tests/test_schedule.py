"""Schedules: the plan follows the budget; what is wrong is said."""

from __future__ import annotations

import pytest

import memopt
from memopt import ScheduleOperation as Op
from memopt import Stage

CHAIN = [Stage(1.0, 2.0, 100, 700, 10, 10)] * 12


def test_without_a_limit_nothing_is_recomputed():
    plan = memopt.Schedule(CHAIN, input_bytes=100)
    assert plan.recomputed == 0 and plan.seconds == plan.seconds_plain == 36.0
    assert list(plan) == [(Op.FORWARD_SAVE, i) for i in range(12)] + [(Op.BACKWARD, i) for i in reversed(range(12))]
    assert plan.peak_bytes > 12 * 700


def test_a_budget_is_kept():
    free = memopt.Schedule(CHAIN, input_bytes=100)
    half = memopt.Schedule(CHAIN, free.peak_bytes // 2, input_bytes=100)
    least = memopt.Schedule(CHAIN, free.minimum_budget, input_bytes=100)
    assert least.peak_bytes <= free.minimum_budget < half.peak_bytes <= free.peak_bytes // 2
    assert free.seconds < half.seconds < least.seconds
    assert half.recomputed + 12 == sum(op is not Op.BACKWARD for op, _ in half)
    assert [i for op, i in least if op is Op.BACKWARD] == list(reversed(range(12)))


def test_what_is_wrong_is_said():
    with pytest.raises(memopt.LimitReachedError, match="12 stages need at least"):
        memopt.Schedule(CHAIN, 512)
    with pytest.raises(memopt.InvalidArgumentError, match="stage 0 saves 5 bytes"):
        memopt.Schedule([Stage(1, 1, 10, 5)])
    with pytest.raises(memopt.InvalidArgumentError, match="0 stages"):
        memopt.Schedule([])
    with pytest.raises(ValueError, match="stage 1"):
        memopt.Schedule([CHAIN[0], Stage(1, 1, -1, 5)])
    with pytest.raises(memopt.LimitReachedError):
        memopt.Schedule(CHAIN, 0)
