"""memopt.plan: settings as dataclasses, and plans and solutions whose bytes come from a function."""

from __future__ import annotations

import dataclasses
import typing

import pytest

import memopt
from memopt import plan
from memopt.plan import Card, Model, Plan, Run, Solution, Target

MIB = 1 << 20


def test_settings_are_those_of_the_library():
    """Each key has a field, and each choice its words."""
    fields = {}
    for group in (Model, Run, Card, Target):
        hints = typing.get_type_hints(group)
        for field in dataclasses.fields(group):
            fields["%s.%s" % (group.__name__.lower(), field.name)] = hints[field.name]
    assert list(fields) == list(plan.keys())
    for key in plan.keys().values():
        if key.kind in ("choice", "dtype"):
            literal = typing.get_args(fields[key.name])[0]
            assert set(typing.get_args(literal)) == set(plan.words(key.name)), key.name


def test_settings_become_text():
    run = Run(batch=4, offload="activations,optimizer", use_cache=False)
    assert run.lines() == ["run.batch=4", "run.offload=activations,optimizer", "run.use_cache=no"]
    assert run.offload == ["activations", "optimizer"] and run.replace(batch=5).batch == 5
    with pytest.raises(TypeError):
        Run(bach=4)
    with pytest.raises(memopt.InvalidArgumentError, match="model.family.*llama|gpt2"):
        Plan(Model(family="lama", hidden=64))
    with pytest.raises(ValueError, match="neither semicolons"):
        Plan(Model(family="llama;run.batch=2", hidden=64))


def phases(run):
    """A line: weights of 8 MiB, 1 MiB a sample, and AdamW's states."""
    held = {"optimizer": (4 if run.optimizer == "adamw8bit" else 16) * MIB, "parameters": 8 * MIB}
    kept = 8 * MIB if run.accumulation > 1 else 0
    return {
        "load": held,
        "forward": dict(held, activations=run.batch * MIB // 2, gradients=kept),
        "backward": dict(held, activations=run.batch * MIB, gradients=8 * MIB),
        "step": dict(held, gradients=8 * MIB),
    }


def known(run, model):
    """Other types and places were not measured, nor adapters."""
    if model.lora_rank or run.weight_dtype != "fp32" or run.compute_dtype or run.offload:
        return None
    return None if run.checkpointing != "none" or run.loss != "plain" else phases(run)


def card(size):
    return Card(capacity=size, margin=1.0, device="cpu")


def test_a_plan():
    run = Run(batch=4, accumulation=2, world_size=2, optimizer="adamw")
    found = Plan.measured(phases(run), run, card(36 * MIB))
    assert found.peak.total == 36 * MIB and found.peak_phase == "backward" and found.fits
    assert found.peak.activations == 4 * MIB and found.phases["loss"].total == 0
    assert found.samples == 16 and found.layers == []
    assert found.run.batch == 4 and found.run.sequence is None
    assert not Plan.measured(phases(run), run, card(36 * MIB - 1)).fits
    with pytest.raises(memopt.UnsupportedError, match="measured"):
        found.events()
    assert list(Plan.measured(phases(run), run, events=[1, 512, 1, 0]).events()) == [1, 512, 1, 0]
    for wrong in ({"backward": {"weights": 1}}, {"optimizer": {"parameters": 1}}):
        with pytest.raises(ValueError, match="no such bytes"):
            Plan.measured(wrong)


def test_a_solution():
    found = Solution.measured(known, None, card(40 * MIB), Target(effective_batch=37))
    assert found.fits and found.largest_micro_batch == 8
    assert (found.micro_batch, found.accumulation) == (6, 6)
    assert found.effective_batch == 36 and found.remainder == -1
    assert found.changes == [] and found.peak_bytes == found.start.peak.total == 38 * MIB


def test_adapters_of_what_is_known():
    asked = []

    def measure(run, model):
        asked.append(model)
        if run.offload or run.checkpointing != "none" or run.loss != "plain":
            return None
        weights = {None: 8, "none": 8, "nf4": 2}.get(model.quantize)
        if weights is None:
            return None
        states = 1 if model.lora_rank else 16
        return {"step": {"parameters": weights * MIB, "optimizer": states * MIB}}

    given = Model(lora_rank=4, lora_targets="all-linear", lora_dropout=0.25)
    found = Solution.measured(measure, Run(batch=1), card(8 * MIB), model=given)
    assert [change.option for change in found.changes] == ["--quantize nf4 --set base_dtype=bf16"]
    assert found.model.quantize == "nf4" and found.start.model.quantize == "none"
    assert asked[0].lora_rank == 4 and asked[0].lora_dropout == 0.25
    found = Solution.measured(measure, Run(batch=1), card(10 * MIB))
    assert found.fits_after and found.model.lora_rank == 16 and not asked[-1].hidden
    plan = Plan.measured({}, model=given)
    assert plan.model.lora_rank == 4 and "all-linear" in plan.model.lora_targets


def test_the_function_s_own_errors():
    error = ZeroDivisionError("mine")

    def fails(run, model):
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        Solution.measured(fails, None, card(40 * MIB))
    assert caught.value is error
    with pytest.raises(memopt.UnsupportedError, match="does not know such a run"):
        Solution.measured(lambda run, model: None, None, card(40 * MIB))
    with pytest.raises(memopt.InvalidArgumentError, match="capacity"):
        Solution.measured(known, None, Card())
