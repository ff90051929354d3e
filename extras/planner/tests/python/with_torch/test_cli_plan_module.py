"""`memopt plan --model module:function` and `--profile`, as a user runs them."""

from __future__ import annotations

import json

import pytest

import test_cli_plan
from json_schema import load, validate
from memopt.sizes import format_size

MIB = 1 << 20

NET = """
import torch

def plain():
    layers = [torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)]
    return torch.nn.Sequential(*layers), lambda batch: torch.randn(64 * batch, 512)

class Loud(torch.nn.Linear):
    def forward(self, x):
        print("running")
        return super().forward(x)

def loud():
    print("building")
    return Loud(512, 512), lambda batch: torch.randn(batch, 512)

def broken():
    raise ZeroDivisionError("one too many")

def without_inputs():
    return torch.nn.Linear(2, 2)

def wrong_inputs():
    return torch.nn.Linear(2, 2), lambda batch: torch.randn(batch, 3)

class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(64, 4)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(4)])

    def forward(self, x):
        chosen, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out

def routed():
    return Routed(), lambda batch: torch.randn(16 * batch, 64)

def curriculum():
    def inputs(batch, negatives=24, frames=8):
        return torch.randn(batch * (1 + negatives) * frames, 512)

    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh()), inputs

class Square(torch.nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return (x @ x.transpose(1, 2)).softmax(-1)

def square():
    return Square(32, 32), lambda batch, sequence=64: torch.randn(batch, sequence, 32)

number = 7
"""

SMALL = {
    **test_cli_plan.SMALL,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 352,
    "vocab_size": 1000,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return tmp_path


def command(folder, *words):
    return test_cli_plan.command(*words, folder=str(folder), timeout=480)


def plan(folder, *words):
    return test_cli_plan.plan(*words, folder=str(folder), timeout=480, quiet=False)


def test_a_module_is_traced(folder):
    value = plan(folder, "--model", "net:plain", "--batch", 8)
    count = 512 * 2048 + 2048 + 2048 * 512 + 512
    assert value["model"]["parameters"] == count == value["model"]["trainable"]
    assert value["categories"]["optimizer"] >= 8 * count
    # Values before and after the GELU, of 512 rows.
    assert value["phases"]["forward"]["activations"] == 4 * 512 * (2048 + 2048)
    assert value["phases"]["load"]["parameters"] == 4 * count
    assert value["dtype"] == "fp32"


def test_what_a_module_prints_is_no_part_of_the_answer(folder):
    result = command(folder, "--model", "net:loud", "--batch", 8, "--json")
    assert result.returncode == 0, result.stderr
    validate(json.loads(result.stdout), load("plan"))
    assert "building\n" in result.stderr and "running\n" in result.stderr


def test_what_allocators_hold_of_a_module(folder):
    words = ("--model", "net:plain", "--batch", 64, "--gpu-memory", "1GiB")
    beside = 450 * MIB + 72 * MIB  # a context and workspaces
    for value in (plan(folder, *words), plan(folder, *words, "--profile", "--optimizer", "sgd")):
        live = value["peak_bytes"] - value["categories"]["overhead"]
        for of in value["reserved"].values():
            assert of["fits"] and live <= of["bytes"] - beside <= 1.2 * live + 4 * MIB
    assert plan(folder, *words, "--profile", "--world-size", 2)["reserved"] is None


def test_numbers_of_several_devices_go_together(folder):
    words = ("--batch", 500, "--gpu-memory", "1GiB", "--target-effective-batch", 1001)
    value = plan(folder, "--model", "net:plain", *words, "--world-size", 2)
    assert not value["fits"] and value["fits_after_changes"]
    assert value["effective_batch"] == value["micro_batch"] * value["accumulation"] * 2 == 1000
    assert value["remainder"] == -1
    test_cli_plan.check_savings(value)
    kinds = {change["kind"] for change in value["changes"]}
    assert kinds == {"micro_batch", "optimizer", "dtype", "allocator", "sharding", "offload"}
    # Replicas hold a copy of all gradients.
    assert value["phases"]["load"]["gradients"] == 4 * value["model"]["parameters"]


def test_what_one_more_of_each_costs(folder):
    """A stage of a curriculum: its inputs say what it grows with. A row, its output and two gradients."""
    words = ("--model", "net:curriculum", "--batch", 4)
    notes = plan(folder, *words)["notes"]
    row = 4 * 512 * 4
    for told in (25 * 8 * row, 4 * 8 * row, 4 * 25 * row):
        assert any(note.endswith(" costs " + format_size(told)) for note in notes), notes
    assert any(note.startswith("one more negative than 24") for note in notes)
    assert any(note.startswith("one more frame than 8") for note in notes)
    fewer, more = (plan(folder, *words, "--negatives", n, "--images", 32) for n in (16, 24))
    assert more["peak_bytes"] - fewer["peak_bytes"] == 8 * 4 * 32 * row
    notes = plan(folder, "--model", "net:square", "--details")["notes"]
    assert any("one more token of sequence than 64" in note and "not linear" in note for note in notes), notes


LANGUAGE = """
import torch

from transformers import LlamaConfig, LlamaForCausalLM

def make(dtype=torch.bfloat16):
    sizes = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=5, vocab_size=512)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=8, **sizes)).to(dtype)

def wide():
    return make(torch.float32)
"""


def test_adapters_are_proposed_of_a_traced_model(folder):
    """With weights of few bits under them, and 8-bit states beside them."""
    pytest.importorskip("transformers")
    (folder / "language.py").write_text(LANGUAGE)
    words = ("--model", "language:make", "--batch", 1, "--seq", 16, "--device", "cpu")
    value = plan(folder, *words, "--gpu-memory", "20MiB", "--safety-margin", 1, "--allow", "other")
    options = [change["option"] for change in value["changes"] if change["applied"]]
    assert not value["fits"] and value["fits_after_changes"]
    assert "--lora 16" in options and options[-1].startswith("--quantize nf4")
    kinds = {change["kind"] for change in value["changes"]}
    assert {"optimizer", "offload", "lora", "quantize"} <= kinds
    again = plan(folder, *words, "--lora", 16, "--quantize", "nf4", "--set", "base_dtype=bf16",
                 "--checkpointing", "full")  # fmt: skip
    assert again["peak_bytes"] <= value["limit_bytes"]


@pytest.mark.parametrize("targets, told", [("v_proj,up", ["value", "up"]), ("self_attn.q_proj,up", None)])
def test_where_adapters_are_is_what_was_asked(folder, targets, told):
    """Names of the module's own are no words of the planner: it says none rather than others."""
    pytest.importorskip("transformers")
    (folder / "language.py").write_text(LANGUAGE)
    words = ("--model", "language:make", "--batch", 1, "--seq", 16, "--lora", 4)
    value = plan(folder, *words, "--lora-targets", targets)
    assert value["model"]["description"].get("lora_targets") == told
    assert value["model"]["trainable"] == 5 * 4 * (512 + 512 + 512 + 1024)


@pytest.mark.parametrize("what", ["activations", "optimizer"])
def test_what_waits_on_the_host_is_that_of_the_described_model(folder, what):
    pytest.importorskip("transformers")
    (folder / "language.py").write_text(LANGUAGE)
    config = dict(SMALL, hidden_size=512, intermediate_size=1024, num_hidden_layers=5,
                  num_attention_heads=8, num_key_value_heads=8, vocab_size=512)  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    words = ("--batch", 4, "--seq", 64, "--offload", what, "--set", "host_limit=4MiB")
    said, of = (plan(folder, "--model", m, *words) for m in ("config.json", "language:wide"))
    assert of["host_bytes"] == said["host_bytes"] == 4 * MIB
    assert said["disk_bytes"] * 0.999 <= of["disk_bytes"] <= said["disk_bytes"]
    assert of["peak_bytes"] == pytest.approx(said["peak_bytes"], rel=2e-3)


@pytest.mark.long
def test_measured_beside_traced(folder):
    words = ("--model", "net:plain", "--batch", 4, "--profile", "8,16")
    value = plan(folder, *words)
    profile = value["profile"]
    assert [each["batch"] for each in profile["estimates"]] == [2, 4, 8, 16]
    for each in profile["checked"]:
        assert abs(each["error"]) <= 0.03
    for each in profile["estimates"]:
        assert abs(each["error"]) <= 0.03
    text = command(folder, *words).stdout
    assert "Measured on cpu" in text and "predicted" in text


@pytest.mark.long
def test_a_configuration_measured(folder):
    pytest.importorskip("transformers")
    words = ("--model", "config.json", "--batch", 4, "--seq", 64, "--profile", 8)
    for extra in ((), ("--dtype", "bf16", "--checkpointing", "full", "--attention", "eager")):
        profile = plan(folder, *words, *extra)["profile"]
        for each in profile["estimates"]:
            assert 0 <= each["error"] <= 0.1, (extra, each)
        assert abs(profile["checked"][0]["error"]) <= 0.03


@pytest.mark.parametrize(
    "words, code, say",
    [
        (("--model", "net:broken"), 1, "one too many"),
        (("--model", "net:without_inputs"), 1, "inputs"),
        (("--model", "net:wrong_inputs", "--batch", 1), 1, "[2, 3]"),
        (("--model", "net:number"), 1, "not a function"),
        (("--model", "net:absent"), 1, "absent"),
        (("--model", "absent:plain"), 1, "absent"),
        (("--model", "net:plain", "--layers", "4"), 2, "--layers"),
        (("--model", "net:plain", "--negatives", "4"), 2, "inputs(batch, negatives=4)"),
        (("--model", "net:plain", "--dtype", "bf16"), 2, "--dtype"),
        (("--params", "1M", "--profile"), 2, "--profile"),
        (("--model", "net:plain", "--profile", "many"), 2, "many"),
        (("--model", "config.json", "--profile", "--lora", "8"), 2, "--lora"),
        (("--model", "net:plain", "--set", "image_dtype=bf16"), 2, "--set"),
        (("--model", "net:plain", "--lora", "8"), 1, "all-linear"),
        (("--model", "net:plain", "--checkpointing", "full"), 1, "gradient_checkpointing_enable"),
        (("--model", "config.json", "--profile", "--set", "adapter_dtype=bf16"), 2, "--set"),
        (("--model", "config.json", "--profile", "--set", "image_dtype=bf16"), 2, "--set"),
    ],
)
def test_refusals(folder, words, code, say):
    result = command(folder, *words)
    assert result.returncode == code, result.stderr
    assert say in result.stderr and "Traceback" not in result.stderr


def test_what_values_route_is_measured(folder):
    """A trace cannot follow it and says --profile, which then needs no trace."""
    assert "--profile" in command(folder, "--model", "net:routed").stderr
    value = plan(folder, "--model", "net:routed", "--profile", "--gpu-memory", 1)
    assert value["profile"]["measured"] and value["profile"]["estimates"] == []
    assert any("measured on the CPU" in note for note in value["notes"])
