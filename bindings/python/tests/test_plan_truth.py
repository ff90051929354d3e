"""Estimates against what was measured on real training steps (tests/plan): torch's own engines and
DeepSpeed's ZeRO.

Nothing here needs torch: the rows' configurations are read as `memopt plan` reads them.
"""

import json
import pathlib

import pytest

from memopt.cli.plan import hfconfig
from memopt.plan import Card, Plan, Run

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "tests" / "plan"
ROWS = json.loads((FOLDER / "truth.json").read_text())["rows"]
ZERO = json.loads((FOLDER / "truth_zero.json").read_text())["rows"]
#: What DeepSpeed makes of these is traced alone.
TRACED = [row for row in ZERO if row["name"] in ("zero1-int8", "zero3-nf4-double")]
ZERO = [row for row in ZERO if row not in TRACED]
CPU = Card(device="cpu")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch")
TARGETS = {"q": "query", "k": "key", "v": "value", "o": "output"}
#: Fields of a run by the rows' names, where they differ.
NAMES = {
    "dtype": "weight_dtype",
    "autocast": "compute_dtype",
    "images": "image_dtype",
    "frames": "images",
    "adapters": "adapter_dtype",
    "base": "base_dtype",
    "gather": "gather_dtype",
    "engine": "zero_engine",
    "overlap": "overlap_comm",
    "every": "checkpoint_every",
}
SAME = (
    "batch", "attention", "checkpointing", "optimizer", "accumulation", "loss", "positives",
    "negatives", "world_size", "sharding", "bucket_view",
)  # fmt: skip


def plan_of(row):
    """What is planned of a row."""
    reading, run = hfconfig.interpret(row["config"]), row["run"]
    model = reading.model
    if run.get("lora"):
        targets = [name.split("_")[0] for name in run["lora_targets"]]
        targets = [TARGETS.get(name, name) for name in targets]
        model = model.replace(lora_rank=run["lora"], lora_targets=targets)
        model = model.replace(quantize=run.get("quantize"))
    if "positives" in run or "negatives" in run:
        model = model.replace(head="contrastive")
    if run.get("freeze_vision"):
        model = model.replace(vision_mode="frozen")
    fields = {NAMES.get(k, k): v for k, v in run.items() if k in NAMES or k in SAME}
    fields["use_cache"] = reading.run.get("use_cache")
    if row["config"]["model_type"] != "vit":
        fields["sequence"] = run["seq"]
    if run.get("every"):
        fields["checkpointing"] = "every"
    if run.get("mask"):
        fields["attention_mask"] = True
    if run.get("offload"):
        fields["offload"] = "activations"
    if run.get("sync") == "last":
        fields["gradient_sync"] = False
    if "reduce_bucket" in run:
        fields["bucket_bytes"] = run["reduce_bucket"] * {"fp32": 4, "bf16": 2}[run["dtype"]]
    return Plan(model, Run(**fields), CPU)


def live(peak):
    """Bytes of tensors."""
    return peak.total - peak.overhead


def test_there_are_rows_of_every_family_and_stage():
    assert {row["config"]["model_type"] for row in ROWS} == {*hfconfig.FAMILIES, "llava"}
    assert len(ROWS) >= 100
    told = {(row["run"]["sharding"], row["run"]["dtype"]) for row in ZERO}
    assert told == {("zero%d" % n, dtype) for n in (1, 2, 3) for dtype in ("fp32", "bf16")}


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_a_step_takes_what_was_measured(row):
    """The peak: not below, and above by two thousandths at most. No phase is below, wherever the
    peak lies: another size of the same model has it there. Forward: by half a hundredth."""
    plan = plan_of(row)
    assert row["peak_bytes"] <= live(plan.peak) <= 1.002 * row["peak_bytes"]
    assert plan.parameter_count == row["parameters"]
    for name, measured in row["phases"].items():
        estimate = live(plan.phases[{"optimizer": "step"}.get(name, name)])
        assert estimate >= (1 - 1e-5) * measured["bytes"], name
    assert live(plan.phases["forward"]) <= 1.005 * row["phases"]["forward"]["bytes"]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_categories_are_what_was_measured(row):
    """Where the peak is in the same phase: each category within a hundredth of the peak."""
    plan = plan_of(row)
    phase = {"step": "optimizer"}.get(plan.peak_phase, plan.peak_phase)
    assert phase == row["peak_phase"]
    both = [(getattr(plan.peak, name), row["categories"].get(name, 0)) for name in CATEGORIES]
    for name, (planned, measured) in zip(CATEGORIES, both):
        # The table counts a sum of two gradients of a shared weight as an activation, a cast
        # weight of as many rows as there are tokens as logits, and the logits of a chunk and those
        # that come back from the host, which have another shape, as activations.
        shared = plan.model.tied == "yes" and name in ("gradients", "activations")
        reshaped = {"autocast", "offload", "loss"} & set(row["run"])
        if row["run"].get("loss") and name == "gradients":
            continue
        if not shared and not (reshaped and name in ("logits", "activations")):
            assert abs(planned - measured) <= 0.01 * row["peak_bytes"], name
    total = sum(planned - measured for planned, measured in both)
    assert abs(total) <= 0.002 * row["peak_bytes"]


@pytest.mark.parametrize("row", TRACED, ids=[row["name"] for row in TRACED])
def test_quantised_weights_that_are_traced_alone_are_refused(row):
    with pytest.raises(ValueError, match="trace the model"):
        plan_of(row)


@pytest.mark.parametrize("row", ZERO, ids=[row["name"] for row in ZERO])
def test_deepspeed_takes_what_was_measured(row):
    """The peak: not below, and above by two thousandths at most; at stage 3, where the most that is
    gathered counts throughout a layer, by two hundredths. No phase is below, nor far above."""
    plan = plan_of(row)
    over = 0.02 if row["run"]["sharding"] == "zero3" else 0.002
    assert row["peak_bytes"] <= live(plan.peak) <= (1 + over) * row["peak_bytes"]
    assert plan.parameter_count == row["parameters"]
    for name, measured in row["phases"].items():
        estimate = live(plan.phases[{"optimizer": "step"}.get(name, name)])
        assert measured["bytes"] <= estimate <= 1.1 * measured["bytes"], name


@pytest.mark.parametrize("row", ZERO, ids=[row["name"] for row in ZERO])
def test_deepspeed_s_categories_are_what_was_measured(row):
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
