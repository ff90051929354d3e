"""Steps that an allocator learns, through Python."""

from __future__ import annotations

import pytest

import memopt


def test_a_step_that_repeats(device):
    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        assert allocator.step_plan == memopt.StepPlan(*[0] * 10)
        for _ in range(5):
            allocator.mark_step()
            for block in [allocator.alloc(size) for size in ("3MiB", "1MiB", "7MiB", 1000)]:
                block.free()
        plan = allocator.step_plan
        assert plan.active and plan.plans == 1 and plan.allocations == 4 and plan.missed == 0
        assert plan.served == 12 and plan.bytes >= plan.least_bytes > 11 << 20
        allocator.mark_step(end=True)
        assert not allocator.step_plan.active
        allocator.mark_step()
        allocator.alloc("3MiB").free()
        allocator.mark_step(learn=True)
        assert allocator.step_plan.active
        with pytest.raises(ValueError):
            allocator.mark_step(learn=True, end=True)


def test_pinned_memory_has_no_steps(device):
    with memopt.Allocator(device, pinned=True) as allocator:
        with pytest.raises(memopt.UnsupportedError):
            allocator.mark_step()
