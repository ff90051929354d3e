"""The training programs of examples/python, run as a user would, each against its plain-torch run.

The programs check themselves (exit status 1 and a line with NO) and write what they saw with --json.
Their text is training_text.py's, but for one run.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

import memopt
from distributed_support import TORCHRUN

ROOT = pathlib.Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples" / "python"
PACKAGE = ROOT / "bindings" / "python"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not beside this package"),
]


def start(command, check=True):
    environment = dict(
        os.environ,
        PYTHONPATH=str(PACKAGE),
        MEMOPT_LIBRARY=memopt.library_path,
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_OFFLINE="1",
    )
    result = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, timeout=240
    )
    if check:
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        assert "NO " not in result.stdout
    return result


@pytest.fixture
def run(tmp_path, text_file):
    """run(program, *options): what the program wrote."""
    path = tmp_path / "result.json"

    def run(program, *options):
        start([sys.executable, EXAMPLES / program, "--json", path, "--text", text_file, *options])
        return json.loads(path.read_text())

    return run


@pytest.fixture
def call(tmp_path, text_file, monkeypatch):
    """As run(), in this process: imports cost more than these few steps."""
    path = tmp_path / "result.json"

    def call(program, *options, text=text_file):
        given = ["--json", str(path), *(["--text", str(text)] if text else []), *options]
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [program, *given])
        module = __import__(program.partition(".")[0])
        assert module.main() == 0
        return json.loads(path.read_text())

    return call


def saved(result):
    """The bytes that the savers took away, as parts of the plain run's."""
    plain, ours = result["plain"], result["ours"]
    return (ours["state"] / plain["state"], ours["activations"]["device"] / plain["activations"]["device"])


def test_plain_loop_with_everything(run):
    result = run("train_gpt.py", "--model", "gpt", "--steps", "12")
    state, device = saved(result)
    assert state < 0.28 and device < 0.1
    assert result["ours"]["activations"]["host"] > 0


def test_checkpoint_offload_and_scaler_change_no_bit(call):
    # The text is the repository's own, as without --text: equal bits, whatever it says.
    options = "--model gpt --steps 6 --optimizer torch".split()
    result = call("train_gpt.py", *options, text=None)
    assert result["plain"]["losses"] == result["ours"]["losses"]


def test_plain_loop_within_a_budget_in_bfloat16(call):
    result = call(
        "train_gpt.py",
        *("--model gpt --steps 6 --checkpoint budget --budget 3600KiB --dtype bfloat16").split(),
        "--no-save-on-cpu",
    )
    ours = result["ours"]["activations"]
    assert ours["host"] == 0 and ours["device"] < result["plain"]["activations"]["device"] / 3


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW4bit", "Lion8bit", "SGD8bit"])
def test_other_optimizers(optimizer, call):
    # 4-bit states learn more slowly: 10 to 40 steps in they are about 2 % behind, at 100 under 1 %.
    call(
        "train_gpt.py",
        *"--model gpt --batch 4 --checkpoint none --no-save-on-cpu --no-grad-scaler".split(),
        *("--optimizer", optimizer, "--steps", "100" if optimizer == "AdamW4bit" else "10"),
    )


@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral", "vit"])
def test_models_of_transformers(model, call):
    pytest.importorskip("transformers")
    checkpoint = "budget" if model in ("gpt2", "llama") else "layers"
    # An image's class is learned slowly: in a few small batches the loss does not fall for certain.
    length = "--steps 40 --batch 8" if model == "vit" else "--steps 16 --batch 4"
    result = call(
        "train_gpt.py",
        *length.split(),
        *("--budget 5MiB --no-save-on-cpu --model".split()),
        *(model, "--checkpoint", checkpoint),
    )
    assert saved(result)[0] < 0.3


def test_trainer(run):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    result = run("train_trainer.py", "--model", "gpt2", "--steps", "8")
    assert "resuming gives the same losses" in result["checks"]


def test_accelerate(run):
    pytest.importorskip("accelerate")
    run("train_accelerate.py", "--model", "gpt", "--steps", "8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lightning(dtype, run):
    pytest.importorskip("lightning")
    run("train_lightning.py", "--model", "gpt", "--steps", "8", "--dtype", dtype)


def test_ddp(tmp_path, text_file):
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    path = tmp_path / "result.json"
    start(
        [
            *TORCHRUN,
            *(EXAMPLES / "train_ddp.py", "--model", "gpt", "--steps", 8, "--json", path),
            *("--text", text_file),
        ]
    )
    result = json.loads(path.read_text())
    assert len(result["ours"]["digests"]) == 2
    assert len(set(result["ours"]["digests"])) == 1


def test_the_text_is_the_same_for_ever(text_file):
    found = hashlib.sha256(text_file.read_bytes()).hexdigest()
    assert found == "43afa38d9ad1346d17151e41d77e085b35ae91042221ea866198f8108100968d"


def test_a_run_that_does_not_learn_is_noticed(text_file):
    result = start(
        [
            *(sys.executable, EXAMPLES / "train_gpt.py", "--model", "gpt", "--text", text_file),
            *("--steps", 1, "--lr", 0, "--optimizer", "torch", "--checkpoint", "none"),
        ],
        check=False,
    )
    assert result.returncode == 1 and "NO   the loss falls" in result.stdout
