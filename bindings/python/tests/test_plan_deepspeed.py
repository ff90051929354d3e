"""Estimates against tests/plan/truth_zero.json: real training steps under DeepSpeed's ZeRO.

Nothing here needs torch or DeepSpeed: configurations are read as `memopt plan` reads them.
"""

import json
import pathlib

import pytest

import memopt
from memopt.cli.plan import hfconfig

TRUTH = pathlib.Path(__file__).resolve().parents[3] / "tests" / "plan" / "truth_zero.json"
ROWS = json.loads(TRUTH.read_text())["rows"]
CPU = memopt.PlanCard(device="cpu")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch")
WIDTHS = {"fp32": 4, "bf16": 2}
NAMES = {
    "prefetch_bucket": "prefetch_bucket",
    "persistence": "persistence_threshold",
    "live": "live_parameters",
    "reuse": "reuse_distance",
    "contiguous": "contiguous_gradients",
    "overlap": "overlap_comm",
}


def model_of(row):
    """The row's model."""
    model = hfconfig.interpret(row["config"]).model
    if row["run"].get("lora"):
        targets = ["query", "key", "value", "output"]
        model = model.replace(lora_rank=row["run"]["lora"], lora_targets=targets)
    return model


def run_of(row):
    """The row's run."""
    run = row["run"]
    fields = {
        "batch": run["batch"],
        "weight_dtype": run["dtype"],
        "checkpointing": run["checkpointing"],
        "optimizer": run["optimizer"],
        "accumulation": run.get("accumulation", 1),
        "world_size": run["world_size"],
        "sharding": run["sharding"],
        "zero_engine": run["engine"],
    }
    if row["config"]["model_type"] != "vit":
        fields["sequence"] = run["seq"]
    if "reduce_bucket" in run:
        fields["bucket_bytes"] = run["reduce_bucket"] * WIDTHS[run["dtype"]]
    fields.update({NAMES[key]: value for key, value in run.items() if key in NAMES})
    return memopt.PlanRun(**fields)


def plan_of(row):
    """What is planned of it."""
    return memopt.Plan(model_of(row), run_of(row), CPU)


def live(peak):
    """Bytes of tensors."""
    return peak.total - peak.overhead


def test_there_are_rows_of_every_stage():
    told = {(row["run"]["sharding"], row["run"]["dtype"]) for row in ROWS}
    assert told == {("zero%d" % n, dtype) for n in (1, 2, 3) for dtype in ("fp32", "bf16")}
    assert len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_peak_is_what_was_measured(row):
    """Not below, and above by two thousandths at most; at stage 3, where of a layer's gathers the
    most counts throughout, by two hundredths, and by a tenth where embeddings are the head, too."""
    plan = plan_of(row)
    shared = 0.1 if plan.model.tied == 2 else 0.02
    over = shared if row["run"]["sharding"] == "zero3" else 0.002
    assert row["peak_bytes"] <= live(plan.peak) <= (1 + over) * row["peak_bytes"]
    assert plan.parameter_count == row["parameters"]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_no_phase_is_below_what_was_measured(row):
    """Where the peak lies elsewhere, too: another size of the same model has it there."""
    plan = plan_of(row)
    for name, measured in row["phases"].items():
        estimate = live(plan.phases[{"optimizer": "step"}.get(name, name)])
        assert measured["bytes"] <= estimate <= 1.1 * measured["bytes"], name


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_categories_are_what_was_measured(row):
    """In the step, and where the peak is in the same phase: each within a hundredth of the peak."""
    plan = plan_of(row)
    pairs = [(plan.phases["step"], row["phases"]["optimizer"])]
    if plan.peak_phase == row["peak_phase"] and live(plan.peak) <= 1.01 * row["peak_bytes"]:
        pairs.append((plan.peak, row["categories"]))
    for peak, told in pairs:
        both = {name: (getattr(peak, name), told.get(name, 0)) for name in CATEGORIES}
        if row["run"].get("accumulation", 1) > 1:  # a gradient that is added to one: an activation
            both["gradients"] = tuple(map(sum, zip(both["gradients"], both.pop("activations"))))
        if row["name"] == "zero2-bert":  # where the part lies in one weight, the gradient is kept
            both["gradients"] = tuple(map(sum, zip(both["gradients"], both.pop("optimizer"))))
        for name, (planned, measured) in both.items():
            assert abs(planned - measured) <= 0.01 * row["peak_bytes"], name
