"""Plans and solutions whose bytes come from a function."""

from __future__ import annotations

import pytest

import memopt
from memopt.plan import add_overhead, split_batch

MIB = 1 << 20


def phases(run):
    """A line: weights of 8 MiB, 1 MiB a sample, and AdamW's states."""
    eight_bit = run.as_dict().get("optimizer") == "adamw8bit"
    held = {"optimizer": (4 if eight_bit else 16) * MIB, "parameters": 8 * MIB}
    kept = 8 * MIB if run.accumulation > 1 else 0
    backward = dict(held, activations=run.batch * MIB, gradients=8 * MIB)
    return {
        "load": held,
        "forward": dict(held, activations=run.batch * MIB // 2, gradients=kept),
        "backward": backward,
        "step": dict(held, gradients=8 * MIB),
    }


def known(run):
    """Other types and places were not measured."""
    words = run.as_dict()
    if words["weight_dtype"] != "f32" or "compute_dtype" in words or "offload" in words:
        return None
    return None if "checkpointing" in words or "loss" in words else phases(run)


def card(size, **fields):
    return memopt.PlanCard(capacity=size, margin=1.0, device="cpu", **fields)


def test_a_plan():
    run = memopt.PlanRun(batch=4, accumulation=2, world_size=2)
    plan = memopt.Plan.measured(phases(run), run, card(36 * MIB))
    assert plan.peak.total == 36 * MIB and plan.peak_phase == "backward" and plan.fits
    assert plan.peak.activations == 4 * MIB and plan.phases["loss"].total == 0
    assert plan.samples == 16 and plan.layers == [] and plan.held_bytes == 0
    assert plan.run.batch == 4 and plan.run.sequence == 0
    assert not memopt.Plan.measured(phases(run), run, card(36 * MIB - 1)).fits
    bare = memopt.Plan.measured(phases(run))
    assert bare.fits and bare.limit_bytes == 0
    for wrong in ({"backward": {"weights": 1}}, {"optimizer": {"parameters": 1}}):
        with pytest.raises(ValueError, match="of a plan"):
            memopt.Plan.measured(wrong)


def test_a_solution():
    solution = memopt.PlanSolution.measured(known, None, card(40 * MIB), effective_batch=37)
    assert solution.fits and solution.largest_micro_batch == 8
    assert (solution.micro_batch, solution.accumulation) == (6, 6)
    assert solution.effective_batch == 36 and solution.remainder == -1
    assert solution.changes == [] and solution.peak_bytes == 38 * MIB
    assert solution.model.hidden == 0 and solution.run.batch == 6


def test_changes_of_what_is_known():
    run = memopt.PlanRun(batch=4, optimizer="adamw")
    solution = memopt.PlanSolution.measured(known, run, card(22 * MIB), all_changes=True)
    assert not solution.fits and solution.fits_after
    assert [(c.kind, c.applied) for c in solution.changes] == [
        ("micro_batch", True),
        ("optimizer", True),
    ]
    assert solution.start_peak_bytes == 36 * MIB
    assert [c.saves_bytes for c in solution.changes] == [2 * MIB, 12 * MIB]
    assert (solution.micro_batch, solution.accumulation) == (2, 2)
    assert solution.run.as_dict()["optimizer"] == "adamw8bit"
    assert solution.time_factor == pytest.approx(1.02)


def test_the_function_s_own_errors():
    error = ZeroDivisionError("mine")

    def fails(run):
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        memopt.PlanSolution.measured(fails, None, card(40 * MIB))
    assert caught.value is error
    with pytest.raises(memopt.UnsupportedError, match="nothing is known"):
        memopt.PlanSolution.measured(lambda run: None, None, card(40 * MIB))
    with pytest.raises(memopt.InvalidArgumentError, match="capacity"):
        memopt.PlanSolution.measured(known, None, memopt.PlanCard())


def test_overhead_and_limit_of_a_card():
    live = {"parameters": 100 * MIB, "activations": 50 * MIB}
    on_cpu, limit = add_overhead(live, card(200 * MIB))
    assert (on_cpu.parameters, on_cpu.overhead, on_cpu.total) == (100 * MIB, 0, 150 * MIB)
    assert limit == 200 * MIB
    on_gpu, limit = add_overhead(live, memopt.PlanCard(capacity="1GiB", device="cuda"))
    assert on_gpu.overhead > 100 * MIB and on_gpu.total == 150 * MIB + on_gpu.overhead
    assert limit == int(0.85 * 1024 * MIB)


def test_a_batch_in_pieces():
    assert split_batch(256, 45, 2) == (32, 4)
    assert split_batch(256, 256) == (256, 1)
    with pytest.raises(ValueError):
        split_batch(0, 45)
