"""The table of measured training steps: some rows are measured again, more are traced."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memopt.torch._target import Target  # noqa: E402
from memopt.torch._trace_model import Trace  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parents[4] / "tests" / "plan"
if not FOLDER.is_dir():
    pytest.skip("tests/plan is not beside the bindings", allow_module_level=True)
TABLE = json.loads((FOLDER / "truth.json").read_text())
ROWS = {row["name"]: row for row in TABLE["rows"]}
KEYS = ("peak_bytes", "peak_phase", "categories", "phases", "held_peak_bytes")


@pytest.fixture(scope="module")
def plan():
    """The modules of tests/plan."""
    sys.path.insert(0, str(FOLDER))
    names = ("models", "measure", "several")
    try:
        yield {name: importlib.import_module(name) for name in names[:2]}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def same_versions(plan):
    versions = plan["measure"].versions()
    if versions != TABLE["about"]["versions"]:
        pytest.skip("the table is of %s; here is %s" % (TABLE["about"]["versions"], versions))


def test_every_row_is_measured():
    for measured in ROWS.values():
        assert sum(measured["categories"].values()) == measured["peak_bytes"]
        assert measured["peak_bytes"] == max(p["bytes"] for p in measured["phases"].values())
        assert measured["in_place_peak_bytes"] <= measured["peak_bytes"]
        assert measured["peak_bytes"] <= measured["held_peak_bytes"]
        assert 0.1 < measured["peak_bytes"] / 2**30 < 2.5


@pytest.mark.parametrize("name", ["llama-fp16", "llama-long-eager", "mixtral-8-experts-bf16"])
def test_measured_again_it_is_the_same_to_the_byte(plan, same_versions, name):
    again = plan["measure"].measure(ROWS[name])
    assert {key: again[key] for key in KEYS} == {key: ROWS[name][key] for key in KEYS}


@pytest.mark.long
@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="several processes need torch.distributed with gloo",
)
@pytest.mark.parametrize("name", ["llama-ddp-bucket-view", "llama-zero3-checkpointed"])
def test_several_processes_measured_again_are_the_same_to_the_byte(plan, same_versions, name):
    again = plan["measure"].measure(ROWS[name])
    assert {key: again[key] for key in KEYS} == {key: ROWS[name][key] for key in KEYS}


TRACED = [
    "llama-fp32",
    "llama-eager",
    "llama-autocast",
    "llama-long-checkpointed",
    "llama-checkpointed-every-2",
    "llama-tied-few-tokens",
    "llama-accumulation",
    "llama-foreach",
    "llama-adamw8bit",
    "llama-lora-bf16-checkpointed",
    "gpt2-dropout",
    "qwen2-gqa-tied",
    "mixtral",
    "bert-mlm",
    "vit",
    "opt-checkpointed",
]


@pytest.mark.parametrize("name", TRACED)
def test_traced_without_weights_it_is_the_same_to_the_byte(plan, same_versions, name):
    row, run = ROWS[name], ROWS[name]["run"]
    models = plan["models"]
    target = Target(
        models.build(row, "meta"),
        lambda batch: models.batch_of(row, batch, run["seq"]),
        lambda outputs, inputs: outputs.loss,
        [],
    )
    trace = Trace(
        target,
        optimizer=run["optimizer"],
        autocast=models.DTYPES.get(run.get("autocast")),
        accumulation=run.get("accumulation", 1),
    )
    step = trace.at(run["batch"])
    assert step.categories == row["categories"] and step.peak_phase == row["peak_phase"]
    assert {n: sum(p.values()) for n, p in step.phases.items()} == {
        n: p["bytes"] for n, p in row["phases"].items()
    }


#: Families that the planner does not describe, and where their sizes have names of their own.
TRACED_FAMILIES = {
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "falcon": ("FalconForCausalLM", {}),
    "bloom": ("BloomForCausalLM", {"n_layer": 2, "n_head": 4}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {"head_dim": 32}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256},
    ),
}


@pytest.mark.parametrize("kind", TRACED_FAMILIES)
def test_a_family_that_is_not_described_is_traced_to_the_byte(plan, kind):
    """A step of it, measured, and its trace: each phase."""
    head, names = TRACED_FAMILIES[kind]
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    if set(names) & {"n_layer", "n_layers"}:
        sizes = {"hidden_size": 128}
    sizes.update({"num_key_value_heads": 4, "intermediate_size": 256}, **names)
    config = {
        "model_type": kind,
        "architectures": [head],
        "vocab_size": 2000,
        **{name: 1 for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    }
    run = {"batch": 2, "seq": 64, "dtype": "bf16", "attention": "eager", "checkpointing": "full"}
    row = {"name": kind, "config": {**config, **sizes}, "run": {**run, "optimizer": "adamw"}}
    measured = plan["measure"].measure(row)
    target = Target(
        plan["models"].build(row, "meta"),
        lambda batch: plan["models"].batch_of(row, batch, 64),
        lambda outputs, inputs: outputs.loss,
        [],
    )
    step = Trace(target, optimizer="adamw").at(2)
    assert step.peak_bytes == measured["peak_bytes"]
    assert {n: sum(p.values()) for n, p in step.phases.items()} == {
        n: p["bytes"] for n, p in measured["phases"].items()
    }
