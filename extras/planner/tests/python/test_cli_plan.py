"""`memopt plan` as a subprocess, as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

import memopt
import memopt.cli
from memopt.plan import Model, Plan, Run
from cli_support import environment
from json_schema import load, validate

BUILD = os.path.dirname(os.path.abspath(memopt.library_path))
DRIVERS = os.path.join(BUILD, "tests", "sim", "lib")
MONITORS = os.path.join(BUILD, "tests", "sim", "monitor")
SCHEMA = load("plan")
GIB = 1 << 30

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch", "overhead")
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1408,
    "vocab_size": 8000,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def command(*words, folder=None, timeout=120, **variables):
    """In this process, unless another folder or environment is asked for."""
    words = list(map(str, words))
    if not (folder or variables):
        said, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            try:
                code = memopt.cli.main(["plan", *words])
            except SystemExit as end:  # argparse
                code = end.code
        return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())
    return subprocess.run(
        [sys.executable, "-m", "memopt", "plan", *words],
        env=environment(**variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def plan(*words, quiet=True, **options):
    """What --json says, checked against the schema; `quiet`: no library may warn."""
    result = command(*words, "--json", **options)
    assert result.returncode == 0, result.stderr
    assert not quiet or result.stderr == ""
    value = json.loads(result.stdout)
    validate(value, SCHEMA)
    for one in [value, *value["cards"]]:
        assert sum(one["categories"].values()) == one["peak_bytes"]
        assert one["phases"][one["peak_phase"]]["total"] == one["peak_bytes"]
    return value


def check_savings(value):
    """What the changes save adds up to the planned peak."""
    peak = value["peak_bytes"]
    for change in value["changes"]:
        if change["applied"]:
            peak -= change["saves_bytes"]
            assert change["peak_bytes"] == peak
        else:
            assert change["peak_bytes"] == value["peak_bytes"] - change["saves_bytes"]
    assert peak == value["planned_peak_bytes"] <= value["limit_bytes"]


def refused(code, *words, **options):
    result = command(*words, **options)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr and result.stdout == ""
    return result.stderr


# --- what a model needs ---------------------------------------------------------------------------


def test_a_configuration(config):
    value = plan("--model", config, "--batch", 2, "--seq", 256)
    assert set(value["categories"]) == set(CATEGORIES)
    assert value["categories"]["overhead"] == 0  # no card: tensors only
    assert value["fits"] and value["batch"] == 2 and value["effective_batch"] == 2
    hidden, ffn, layers, vocabulary = 512, 1408, 6, 8000
    count = 2 * vocabulary * hidden + hidden
    count += layers * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden)
    assert value["model"]["parameters"] == count
    # Weights and rotary frequencies; two moments and a step count a tensor.
    assert 0 <= value["categories"]["parameters"] - 4 * count < 4096
    assert value["phases"]["load"]["optimizer"] >= 8 * count


def test_the_binding_says_the_same(config):
    value = plan("--model", config, "--batch", 3, "--seq", 128, "--dtype", "bf16")
    model = Model(**value["model"]["description"])
    run = Run(batch=3, sequence=128, weight_dtype="bf16", use_cache=True)
    assert Plan(model, run).peak.total == value["peak_bytes"]


def test_options_move_the_categories_they_are_about(config):
    base = ("--model", config, "--batch", 4, "--seq", 256)
    plain = plan(*base)["phases"]
    assert plan(*base, "--checkpointing", "full")["time_factor"] > 1.1
    host = plan(*base, "--offload")
    assert host["host_bytes"] > 0 and host["peak_bytes"] < plan(*base)["peak_bytes"]
    eager = plan(*base, "--attention", "eager")["phases"]
    assert eager["forward"]["activations"] > plain["forward"]["activations"]
    adapters = plan(*base, "--lora", 8)
    assert adapters["model"]["trainable"] < 0.02 * adapters["model"]["parameters"]
    sharded = plan(*base, "--world-size", 4, "--zero", 1)["phases"]
    assert sharded["load"]["optimizer"] < 0.3 * plain["load"]["optimizer"]
    twice = plan(*base, "--world-size", 4)["phases"]["step"]["gradients"]
    assert plan(*base, "--world-size", 4, "--set", "bucket_view=yes")["phases"]["step"]["gradients"] == twice / 2
    gathered = plan(*base, "--world-size", 4, "--zero", 3)["phases"]["forward"]["parameters"]
    narrow = (*base, "--world-size", 4, "--zero", 3, "--set", "gather_dtype=bf16")
    assert plan(*narrow)["phases"]["forward"]["parameters"] < gathered
    waits = (*base, "--world-size", 4, "--zero", 3, "--accumulation", 2, "--set", "gradient_sync=no")
    shares = plan(*waits[:-2])["phases"]["forward"]["gradients"]
    assert plan(*waits)["phases"]["forward"]["gradients"] > 3 * shares > 0


def test_a_card_is_a_gpu(tmp_path):
    """GPT-2's dropout: a GPU has flash attention and byte masks under it, a CPU has not."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2"}')
    words = ("--model", path, "--seq", 1024, "--gpu-memory")
    assert plan(*words, 24)["micro_batch"] == plan(*words, 24, "--device", "cuda")["micro_batch"]
    assert plan(*words, 24)["micro_batch"] > plan(*words, 24, "--device", "cpu")["micro_batch"]
    named = plan("--model", path, "--seq", 1024, "--gpu", "rtx 3090,A100-80GB,RX6750XT")["cards"]
    assert [card["card"] for card in named] == ["RTX3090", "A100-80", "RX6750XT"]
    assert named[0]["micro_batch"] == plan(*words, 24)["micro_batch"] < named[1]["micro_batch"]
    for other in ("A9", "A10G"):
        assert "'%s' is not one of" % other in refused(2, "--model", path, "--gpu", other)
    assert "exclude each other" in refused(2, *words, 24, "--gpu", "T4")


@pytest.mark.parametrize(
    "word, means",
    [
        ("adamw_torch_fused", "adamw-fused"),
        ("adamw_torch", "adamw"),
        ("torch.optim.AdamW", "adamw"),
        ("paged_adamw_8bit", "adamw8bit"),
        ("adamw_bnb_8bit", "adamw8bit"),
        ("paged_adamw_32bit", "adamw-memopt"),
        ("lion_8bit", "lion8bit"),
        ("AdamW-8bit", "adamw8bit"),
    ],
)
def test_words_of_optimizers(config, word, means):
    assert plan("--model", config, "--optimizer", word)["optimizer"] == means


def test_torch_s_adamw_takes_foreach_on_a_gpu(config):
    steps = {
        (device, name): plan("--model", config, "--device", device, "--optimizer", name)["phases"]
        for device in ("cpu", "cuda")
        for name in ("adamw", "adamw-foreach")
    }
    of = {key: phases["step"]["optimizer"] for key, phases in steps.items()}
    assert of["cuda", "adamw"] == of["cuda", "adamw-foreach"] == of["cpu", "adamw-foreach"]
    assert of["cpu", "adamw"] < of["cpu", "adamw-foreach"]


def test_adapters_of_experts(tmp_path):
    """PEFT adapts gate and up as one weight with the ranks of both, and keeps a copy of what it
    adapts for backward."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mixtral"}')
    words = ("--model", path, "--seq", 64, "--dtype", "bf16", "--lora", 16, "--lora-targets")
    kept = plan(*words, "q,k,v,o,gate,up,down")["phases"]["forward"]["activations"]
    assert kept > 2 * 32 * 8 * 3 * 14336 * 4096  # the copies
    assert "one of gate and up" in refused(1, *words, "gate")
    assert "adapters of experts have none" in refused(1, *words, "down", "--set", "lora_dropout=0.05")


def test_dropout_of_adapters(config):
    words = ("--model", config, "--batch", 8, "--seq", 256, "--lora", 8)
    plain, dropped = plan(*words), plan(*words, "--set", "lora_dropout=0.05")
    assert dropped["peak_bytes"] > 1.05 * plain["peak_bytes"]


# --- what fits ------------------------------------------------------------------------------------


def applied_options(value):
    """What to give for the run that is proposed, without batches."""
    options = [change["option"] for change in value["changes"] if change["applied"]]
    return [word for one in options if not one.startswith("--batch") for word in one.split()]


@pytest.mark.parametrize(
    "words, batches",
    [
        (("--gpu-memory", "1200MiB"), ("--batch", 8, "--target-effective-batch", 32)),
        (("--gpu-memory", 1, "--safety-margin", 0.75, "--allow", "other"), ("--batch", 3, "--accumulation", 2)),
        (("--gpu-memory", 4, "--lora", 8), ("--target-effective-batch", 64)),
    ],
)
def test_what_is_proposed_takes_what_was_said(config, words, batches):
    """Its options are ones that the command reads."""
    base = ("--model", config, "--seq", 512, *words)
    value = plan(*base, *batches)
    proposed = ("--batch", value["micro_batch"], "--accumulation", value["accumulation"])
    again = plan(*base, *applied_options(value), *proposed)
    assert value["fits_after_changes"] and again["fits"]
    check_savings(value)
    assert again["peak_bytes"] == value["planned_peak_bytes"]
    assert value["effective_batch"] == value["micro_batch"] * value["accumulation"]
    assert again["effective_batch"] == value["effective_batch"]
    target = dict(zip(batches[::2], batches[1::2])).get("--target-effective-batch")
    assert value["target_effective_batch"] == target
    assert value["remainder"] == (value["effective_batch"] - target if target else None)


def test_words_of_a_batch_that_does_not_fit(config):
    words = ("--model", config, "--seq", 512, "--batch", 8, "--gpu-memory", 1)
    words += ("--target-effective-batch", 33, "--world-size", 2)
    value, text = plan(*words), command(*words, "--details").stdout
    batch, steps = value["micro_batch"], value["accumulation"]
    assert "micro-batch 8, sequence 512, accumulation 2, 2 devices" in text
    assert "micro-batch 8 → %d, accumulation 2 → %d" % (batch, steps) in text
    product = "%d × %d × 2" % (batch, steps)
    assert "effective batch  %d = %s" % (value["effective_batch"], product) in text
    assert value["remainder"] in (-1, 1)
    told = "%+d: %d samples" % (value["remainder"], value["effective_batch"])
    assert "remainder        %s a step in place of 33" % told in text
    assert "8-bit states are taken to cost 2 %" in text
    assert "backward takes twice forward" in text


@pytest.mark.parametrize(
    "words, accumulation, remainder",
    [
        (("--batch", 8, "--target-effective-batch", 32), 4, 0),
        (("--batch", 8, "--target-effective-batch", 12), 1, -4),
        (("--batch", 8, "--target-effective-batch", 13), 2, 3),
        (("--batch", 8, "--target-effective-batch", 3), 1, 5),
        (("--target-effective-batch", 32, "--world-size", 3), 11, 1),
    ],
)
def test_a_target_without_a_card(config, words, accumulation, remainder):
    value = plan("--model", config, *words)
    assert (value["accumulation"], value["remainder"]) == (accumulation, remainder)
    text = command("--model", config, *words).stdout
    assert ("remainder" in text) == (remainder != 0)
    assert accumulation == 1 or "accumulation %d" % accumulation in text
    assert "effective batch  %d = " % value["effective_batch"] in text


def test_what_cannot_fit_says_its_floor():
    value = plan("--params", "70B", "--batch", 1, "--gpu-memory", 8)
    assert not value["fits"] and not value["fits_after_changes"]
    assert value["floor_bytes"] > value["limit_bytes"] and value["micro_batch"] == 0
    text = command("--params", "70B", "--batch", 1, "--gpu-memory", 8).stdout
    assert "cannot fit" in text and "floor" in text


def test_a_shorter_sequence_comes_last_and_the_fused_loss_is_named():
    size = ("--layers", 32, "--hidden", 4096, "--heads", 32, "--kv-heads", 8, "--ffn", 14336)
    words = (*size, "--vocab", 128256, "--dtype", "bf16", "--batch", 1, "--seq", 2048, "--allow", "other")
    value = plan(*words, "--gpu-memory", 8)
    applied = {change["kind"]: change for change in value["changes"] if change["applied"]}
    assert value["fits_after_changes"] and "sequence" not in applied and "loss" in applied
    assert "torch.nn.functional.linear_cross_entropy" in command(*words, "--gpu-memory", 8).stdout
    assert "linear_cross_entropy" not in command(*words, "--gpu-memory", 80).stdout


def test_cards_side_by_side(config):
    value = plan("--model", config, "--seq", 1024, "--gpu-memory", "8,16", "--gpu-memory", 24)
    batches = [card["micro_batch"] for card in value["cards"]]
    assert len(batches) == 3 and batches == sorted(batches) and len(set(batches)) == 3
    words = ("--target-effective-batch", 33, "--world-size", 2)
    text = command("--model", config, "--seq", 1024, "--gpu-memory", "8,16,24", *words).stdout
    assert all("%d GiB" % size in text for size in (8, 16, 24))
    assert "micro-batch 1" not in text and ("32 (-1)" in text or "34 (+1)" in text)


def test_reserved_bytes(config):
    words = ("--model", config, "--batch", 4, "--seq", 1024)
    assert plan(*words)["reserved"] is None  # of a CPU
    bare = plan(*words, "--device", "cuda")
    classic, expandable = (bare["reserved"][name] for name in ("classic", "expandable"))
    live = bare["peak_bytes"] - bare["categories"]["overhead"]
    assert live < expandable["bytes"] < classic["bytes"] and classic["fits"] is None
    # A card of what is estimated: the classic allocator runs out.
    assert expandable["bytes"] < bare["peak_bytes"] < classic["bytes"]
    tight = (*words, "--gpu-memory", "%dB" % bare["peak_bytes"], "--safety-margin", 1)
    value = plan(*tight)
    assert value["fits"] and value["micro_batch"] == 4
    assert value["reserved"] == {
        "classic": {"bytes": classic["bytes"], "fits": False},
        "expandable": {"bytes": expandable["bytes"], "fits": True},
    }
    assert "default allocator" in value["environment"]["why"]
    assert "does not fit the card" in command(*tight, "--details").stdout
    ample = plan(*words, "--gpu-memory", 80)["reserved"]
    assert ample["classic"] == {"bytes": classic["bytes"], "fits": True}


def test_the_environment_where_it_is_tight(config):
    tight = plan("--model", config, "--gpu-memory", 4)["environment"]
    # Of the run that is proposed: where none is, there is nothing to set.
    changed = plan("--model", config, "--batch", 64, "--gpu-memory", 4)
    planned = changed["planned_peak_bytes"] / (1 << 30)
    assert not changed["fits"] and "%.2f GiB of 4.00 GiB" % planned in changed["environment"]["why"]
    assert plan("--params", "70B", "--gpu-memory", 8)["environment"] is None
    assert tight["name"] == "PYTORCH_CUDA_ALLOC_CONF" and "expandable" in tight["value"]
    assert plan("--model", config, "--gpu-memory", 4, "--device", "hip")["environment"] is None
    assert plan("--model", config, "--gpu-memory", 80, "--batch", 1)["environment"] is None


# --- people ---------------------------------------------------------------------------------------


def test_a_plot(config, tmp_path):
    pytest.importorskip("matplotlib")
    for cards in ("4", "4,8"):
        path = tmp_path / ("plot%s.png" % cards.replace(",", "-"))
        assert command("--model", config, "--gpu-memory", cards, "--plot", path).returncode == 0
        assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_plot_that_cannot_be_written(config, tmp_path):
    pytest.importorskip("matplotlib")
    text = refused(1, "--model", config, "--plot", tmp_path / "absent" / "plot.png")
    assert "plot.png" in text
    for name in ("plot.bmp", "plot"):  # no other name is written instead
        text = refused(2, "--model", config, "--plot", tmp_path / name)
        assert name in text and "must end in one of .png, .svg, .pdf" in text
    assert [one for one in tmp_path.iterdir() if "plot" in one.name] == []


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, say",
    [
        ((), "--model"),
        (("--params", "-3"), "-3"),
        (("--params", "lots"), "lots"),
        (("--params", "9" * 5000), "from 1 to 2^48"),
        (("--params", "1B", "--model", "x.json"), "exclude"),
        (("--params", "1B", "--batch", "0"), "0"),
        (("--params", "1B", "--batch", "two"), "two"),
        (("--params", "1B", "--dtype", "int4"), "bf16"),
        (("--params", "1B", "--optimizer", "sgdx"), "adamw8bit"),
        (("--params", "1B", "--attention", "fast"), "eager"),
        (("--params", "1B", "--gpu-memory", "0"), "0"),
        (("--params", "1B", "--gpu-memory", "-8"), "-8"),
        (("--params", "1B", "--gpu-memory", "24parsecs"), "parsecs"),
        (("--params", "1B", "--gpu-memory", os.fsdecode(b"\xff")), "UTF-8 cannot encode"),
        (("--params", "1B", "--safety-margin", "1.2"), "1.2"),
        (("--params", "1B", "--zero", "3"), "--world-size"),
        (("--params", "1B", "--set", "batch"), "not KEY=VALUE"),
        (("--params", "1B", "--zero", "4"), "4"),
        (("--params", "1B", "--auto", "--gpu-memory", "8"), "exclude"),
        (("--params", "1B", "--apply"), "--config-path"),
    ],
)
def test_usage(words, say):
    assert say in refused(2, *words)


@pytest.mark.parametrize(
    "words, say",
    [
        (("--model", "absent.json"), "absent.json"),
        (("--hidden", "512", "--heads", "7"), "7"),
        (("--hidden", "512", "--heads", "8", "--kv-heads", "3"), "3"),
        (("--params", "1B", "--layers", "1000000"), "1000000"),
    ],
)
def test_what_cannot_be_planned(words, say):
    assert say in refused(1, *words)


def test_an_unknown_architecture(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "brand_new", "hidden_size": 512}))
    text = refused(1, "--model", path)
    assert "brand_new" in text and '"model_type" of a known one' in text and "num_hidden_layers" in text


def test_no_gpu():
    text = refused(1, "--params", "1B", "--auto", folder="/", MEMOPT_DRIVER_PATH="")
    assert "no GPU" in text and "--gpu-memory" in text


@pytest.mark.skipif(
    not os.path.exists(os.path.join(MONITORS, "libnvidia-ml.so.1")),
    reason="no simulated NVML beside " + memopt.library_path,
)
def test_gpus_that_are_found(config):
    value = plan("--model", config, "--auto", MEMOPT_DRIVER_PATH=MONITORS)
    assert value["card"].startswith("cuda:0") and value["capacity_bytes"] >= GIB
    assert value["categories"]["overhead"] > 0


@pytest.mark.skipif(
    not os.path.exists(os.path.join(DRIVERS, "libcuda.so.1")),
    reason="no simulated drivers beside " + memopt.library_path,
)
def test_gpus_that_only_the_driver_tells_of(config):
    value = plan("--model", config, "--auto", "--batch", 1, MEMOPT_DRIVER_PATH=DRIVERS)
    assert value["card"].startswith("cuda:0")
    assert any(card["card"].startswith("hip:0") for card in value["cards"])


# --- changing files -------------------------------------------------------------------------------


def test_applied_to_a_file(config, tmp_path):
    path = tmp_path / "train.json"
    before = '{"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1, "lr": 1e-3}\n'
    path.write_text(before)
    words = ("--model", config, "--seq", 512, "--gpu-memory", 4, "--target-effective-batch", 64)
    dry = command(*words, "--config-path", path, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "per_device_train_batch_size" in dry.stdout and path.read_text() == before
    value = plan(*words, "--apply", "--config-path", path)
    after = json.loads(path.read_text())
    assert after["per_device_train_batch_size"] == value["micro_batch"] < 64
    assert after["gradient_accumulation_steps"] == value["accumulation"]
    assert after["lr"] == 1e-3
    assert (tmp_path / "train.json.backup").read_text() == before


def test_nothing_is_applied_that_does_not_fit(tmp_path):
    path = tmp_path / "train.json"
    path.write_text('{"batch_size": 64}\n')
    result = command(
        "--params", "70B", "--gpu-memory", 8, "--apply", "--config-path", path
    )  # fmt: skip
    assert result.returncode == 1 and "nothing that fits" in result.stderr
    assert path.read_text() == '{"batch_size": 64}\n'


# --- a plan and a file ----------------------------------------------------------------------------


def trainer(tmp_path, **keys):
    path = tmp_path / "train.json"
    keys = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, **keys}
    path.write_text(json.dumps(keys, indent=1))
    return path


def test_what_cannot_be_written_is_an_error_before_anything_is(config, tmp_path):
    """The plan fits by what the file has no key for."""
    path = trainer(tmp_path, optim="adamw_torch", bf16=False, fp16=False, use_liger_kernel=False,
                   gradient_checkpointing=False)  # fmt: skip
    words = ("--model", config, "--seq", 128, "--gpu-memory", "750MiB", "--allow", "other", "--config-path", path)
    before, base = path.read_text(), ("--target-effective-batch", 8)
    found = [c for c in plan(*words[:8], *base)["changes"] if c["applied"]]
    kinds = {c["kind"]: c["change"] for c in found}
    lacking = [kinds[kind] for kind in ("lora", "allocator", "offload", "sequence") if kind in kinds]
    assert lacking
    words += ("--apply",)
    said = refused(1, *words, "--json")
    assert all(change in said for change in lacking) and "--partial writes the rest" in said
    assert path.read_text() == before
    assert len(plan(*words, "--partial")["apply"]["files"][0]["notes"]) >= len(lacking)


# --- dtypes ---------------------------------------------------------------------------------------


def test_the_dtype_of_a_configuration(tmp_path):
    path = tmp_path / "config.json"
    for key, dtype in (("torch_dtype", "bfloat16"), ("dtype", "float16")):
        path.write_text(json.dumps({**SMALL, key: dtype}))
        value = plan("--model", path)
        assert value["dtype"] == {"bfloat16": "bf16", "float16": "fp16"}[dtype]
        assert "as the configuration says" in value["notes"][0]
    assert plan("--model", path, "--dtype", "fp32")["dtype"] == "fp32"


def test_fp16_where_a_card_has_no_bf16(config):
    words = ("--model", config, "--seq", 4096, "--batch", 64, "--gpu")
    t4 = [c["change"] for c in plan(*words, "T4")["changes"] if c["kind"] == "dtype"]
    assert t4 == ["compute fp32 → fp16 (autocast, with a gradient scaler)"]
    a10 = [c["change"] for c in plan(*words, "A10")["changes"] if c["kind"] == "dtype"]
    assert "compute fp32 → bf16 (autocast)" in a10 and not any("fp16" in each for each in a10)


# --- what is shown --------------------------------------------------------------------------------


def test_changes_that_would_allow_more(config):
    text = command("--model", config, "--batch", 3, "--target-effective-batch", 64, "--gpu", "A10", "--details")
    assert "To fit more" in text.stdout and "--optimizer adamw8bit" in text.stdout
    assert "micro-batch 2 in place of 3, which divides 64 less evenly" in text.stdout


def test_a_plot_draws_the_runs_of_the_table(config, monkeypatch):
    from memopt.cli import main
    from memopt.cli.plan import plot

    drawn = []
    monkeypatch.setattr(plot, "plot", lambda answers, *rest: drawn.extend(answers))
    words = ["--seq", "4096", "--batch", "8", "--gpu-memory", "2,24", "--plot", "x.png"]
    assert main(["plan", "--model", config, *words]) == 0
    changed, fits = drawn
    assert not changed.solution.fits and fits.solution.fits
    for one in drawn:
        assert one.proposed.peak.total == one.solution.peak_bytes
        assert "micro-batch %d" % one.run.batch in plot._card(one)
    assert "with changes" in plot._card(changed) and "with" not in plot._card(fits)
