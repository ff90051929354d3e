"""The table of measured training steps: some rows are measured again, more are traced."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from memopt.torch._features import Features
from memopt.torch._target import Target, TargetError
from memopt.torch._trace_model import Trace

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "truth"
if not FOLDER.is_dir():
    pytest.skip("extras/planner/tests/truth is not beside the bindings", allow_module_level=True)
TABLE = json.loads((FOLDER / "truth.json").read_text())
ROWS = {row["name"]: row for row in TABLE["rows"]}
#: Of models that the planner does not describe.
OTHERS = json.loads((FOLDER / "truth_traced.json").read_text())["rows"]
KEYS = ("peak_bytes", "peak_phase", "categories", "phases", "held_peak_bytes")


@pytest.fixture(scope="module")
def plan():
    """The modules of extras/planner/tests/truth."""
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


#: The same with features that are put on the plain model.
FEATURED = [
    "llama-checkpointed-every-2-offload",
    "llama-lora-autocast-checkpointed",
    "llama-adapters-bf16-full-adamw8bit",
    "llama-fused-autocast-lora",
    "llama-chunked",
    "llama-nf4-prepared-autocast-checkpointed",
    "llama-int8-autocast",
    "llama-ddp-4-lora-autocast",
    "gpt2-ddp-bucket-view-accumulation",
    "llama-zero1",
    "bert-zero2-checkpointed",
    "llama-zero3-4-gather-bf16",
    "llama-zero3-checkpointed-offload-lora",
    "llama-zero2-reduced-last-gather-bf16-checkpointed",
]
FSDP = pytest.mark.skipif(not torch.distributed.is_available(), reason="FSDP is traced with torch.distributed")


def features_of(plan, run):
    """What a row's run puts on the plain model."""
    dtypes = plan["models"].DTYPES
    found = {"lora_rank": run.get("lora", 0), "loss": run.get("loss", "plain")}
    if run.get("lora"):
        targets = run["lora_targets"]
        targets = (targets,) if isinstance(targets, str) else tuple(targets)
        found["lora_targets"] = (*targets, *run.get("lora_parameters", ()))
        found["adapter_dtype"] = dtypes[run.get("adapters", "fp32")]
    for name, key in (("base_dtype", "base"), ("gather_dtype", "gather")):
        found[name] = dtypes.get(run.get(key))
    return Features(
        **found,
        lora_dropout=run.get("dropout", 0.0),
        quantize=run.get("quantize", "none"),
        checkpointing=run["checkpointing"],
        checkpoint_every=run.get("every", 0),
        offload=("activations",) if run.get("offload") else (),
        sharding=run.get("sharding", "ddp"),
        world_size=run.get("world_size", 1),
        bucket_view=bool(run.get("bucket_view")),
        gradient_sync=run.get("sync") != "last",
    )


def traced(plan, row, features):
    """The trace of a row's plain model with features."""
    models, run = plan["models"], row["run"]
    own = ("batch", "seq", "dtype", "attention", "mask")
    plain = {**row, "run": {"checkpointing": "none", **{k: run[k] for k in own if k in run}}}
    target = Target(
        models.build(plain, "meta"),
        lambda batch: models.batch_of(row, batch, run["seq"]),
        lambda outputs, inputs: outputs.loss,
        [],
    )
    return Trace(
        target,
        optimizer=run["optimizer"],
        autocast=models.DTYPES.get(run.get("autocast")),
        accumulation=run.get("accumulation", 1),
        features=features,
    )


@FSDP
@pytest.mark.parametrize("row", [*(ROWS[name] for name in (*TRACED, *FEATURED)), *OTHERS], ids=lambda row: row["name"])
def test_traced_without_weights_it_is_the_same_to_the_byte(plan, same_versions, row):
    step = traced(plan, row, features_of(plan, row["run"])).at(row["run"]["batch"])
    assert step.peak_bytes == row["peak_bytes"] and step.peak_phase == row["peak_phase"]
    if row["name"] in TRACED:
        assert step.categories == row["categories"]
    # The class of rows with a loss in chunks has no head, which starts the loss; scales of 8 bits
    # are seen when a row's layer first runs.
    late = 0.005 * ("loss" in row["run"]) + 1e-4 * (row["run"].get("quantize") == "int8")
    for name, measured in row["phases"].items():
        may = name == "forward" and row["name"] not in TRACED
        slack = late * measured["bytes"] if may else 0
        assert abs(sum(step.phases[name].values()) - measured["bytes"]) <= slack, name


@pytest.mark.parametrize(
    "features, word",
    [
        (Features(lora_rank=8, lora_targets=("no_such",)), "q_proj"),
        (Features(quantize="nf4"), "--lora"),
        (Features(lora_rank=8, quantize="int8", world_size=2, sharding="zero3"), "--zero 0"),
    ],
)
def test_features_that_a_model_does_not_have(plan, features, word):
    with pytest.raises(TargetError, match=word):
        traced(plan, ROWS["llama-fp32"], features)


#: Families that the planner does not describe, and where their sizes have names of their own.
TRACED_FAMILIES = {
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "falcon": ("FalconForCausalLM", {}),
    "bloom": ("BloomForCausalLM", {"n_layer": 2, "n_head": 4}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {"head_dim": 32}),
    "distilbert": ("DistilBertForMaskedLM", {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}),
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
