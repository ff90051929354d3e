"""What the readers of five guides to small cards type: their files, their cards' names, their mistakes; and the
answers that they should get."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")

from test_cli_plan import command, plan

#: The models of the guides, by their size.
MODELS = {
    "34M": {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 16000},
    "366M": {"hidden_size": 1024, "num_hidden_layers": 24, "vocab_size": 32000},
    "512M": {"hidden_size": 1280, "num_hidden_layers": 24, "vocab_size": 32000},
}
#: Each guide's file, as its project has it.
FILES = {
    "rx.yaml": "model: {dim: 512}\ntraining:\n  batch_size: 4   # micro\n  grad_accum_steps: 8\n  max_seq_len: 1024\n"
    "  precision: bf16-mixed\neval:\n  batch_size: 64\n",
    "video.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=32)\n"
    "p.add_argument('--grad-accum', type=int, default=1)\np.add_argument('--max-frames', default=8)\n"
    "p.add_argument('--seq-len', type=int, default=256)\np.add_argument('--dtype', default='float32')\n",
    "four.yaml": "trainer:\n  devices: 4\n  strategy: ddp\n  accumulate_grad_batches: 32\n  precision: 16-mixed\n"
    "data:\n  batch_size: 2\n  max_length: 2048\n",
    "loader.yaml": "data_loader: {batch_size: 64, num_negatives: 24, max_frames: 100}\ntraining:\n  trainer: "
    "{accumulate_grad_batches: 4}\n",
    "t4.yaml": "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nmax_length: 1024\nbf16: true\n"
    "optim: adamw_torch\ngradient_checkpointing: false\n",
    "zero.json": json.dumps({
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }),
}  # fmt: skip

#: A model, what is typed, and what of the answer is expected.
ANSWERS = [
    # RX 6750 XT, 12 GB: rocm-smi's name; no bf16; PyTorch's expandable segments are not for it.
    ("34M", "--from rx.yaml --gpu 'AMD Radeon RX 6750 XT' --batch 2",
     {"dtype": "fp16", "accumulation": 16, "effective_batch": 32, "sequence": 1024, "environment": None},
     ["RX6750XT has no bf16: planned as fp16 with a gradient scaler", "the file's effective batch of 32 is kept: accumulation 16"]),
    ("34M", "--from rx.yaml --gpu RX6750XT --batch-size 5", {"micro_batch": 4, "accumulation": 8, "effective_batch": 32},
     ["5 does not divide the file's effective batch of 32: the nearest accumulation is 6, of 30 samples"]),
    # Raise, at the same effective batch.
    ("34M", "--from rx.yaml --gpu RX6750XT", {"micro_batch": 16, "accumulation": 2, "effective_batch": 32}, []),
    # Video and LLM: defaults of a program, frames.
    ("366M", "--from video.py --gpu-memory 24 --batch 32", {"batch": 32, "sequence": 256, "fits": False}, ["images 8"]),
    # 4 × 44 GB: Lightning's devices and strategy, fp16 with a scaler.
    ("512M", "--from four.yaml --gpu-memory 44 --batch 2", {"effective_batch": 256, "accumulation": 32, "dtype": "fp16"},
     ["world-size 4", "autocast fp16"]),
    ("512M", "--from four.yaml --gpu-memory 44", {"effective_batch": 256, "micro_batch": 4, "accumulation": 16}, []),
    ("512M", "--from four.yaml --gpu-memory 44 --world-size 2 --batch 2", {"effective_batch": 256, "accumulation": 64}, []),
    # The batch planner.
    ("34M", "--from loader.yaml --gpu 'NVIDIA A100-SXM4-80GB' --seq 64 --batch 8",
     {"effective_batch": 256, "accumulation": 32, "card": "A100-80"}, ["negatives 24", "images 100"]),
    ("34M", "--from loader.yaml --gpu-memory 24 --seq 64 --target-effective-batch 128", {"effective_batch": 128}, []),
    # T4: what the file asks, the card has not.
    ("366M", "--from t4.yaml --gpu 'Tesla T4'", {"dtype": "fp16", "effective_batch": 32, "card": "T4"}, ["no bf16"]),
    ("366M", "--from zero.json --gpu T4 --seq 512 --world-size 4 --batch 4", {"accumulation": 8, "dtype": "fp16"},
     ["stage 2 is planned as torch's, by shares"]),
    ("366M", "--gpu 'NVIDIA GeForce RTX 4080'", {"card": "RTX4080", "assumed": ["sequence 512"]}, []),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, shape in MODELS.items():
        config = {"model_type": "llama", "num_attention_heads": 16, "intermediate_size": 2816, **shape}
        (tmp_path / (name + ".json")).write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(model, words):
    import shlex

    return ("--model", model + ".json", *shlex.split(words))


@pytest.mark.parametrize("model, words, answer, notes", ANSWERS)
def test_the_answer(folder, model, words, answer, notes):
    value = plan(*typed(model, words))
    assert {key: value[key] for key in answer} == answer
    for note in notes:
        assert any(note in each for each in value["notes"]), value["notes"]
    assert not any(change["applied"] and change["training"] == "other" for change in value["changes"])
    assert len(command(*typed(model, words)).stdout.splitlines()) <= 16


#: What each guide claims of a part of the peak: a run, what it changes, the part, and how much of it is left.
CLAIMS = [
    ("34M", "--batch 4 --seq 1024", "--batch 2 --seq 512", "activations", 0.2, 0.3),
    ("34M", "--batch 4 --seq 1024", "--checkpointing full", "activations", 0.02, 0.5),
    ("366M", "--batch 4 --seq 1024 --dtype float32", "--dtype float16", "parameters", 0.49, 0.51),
    ("366M", "--batch 4 --seq 1024 --dtype fp16", "--dtype bfloat16", "activations", 1, 1),  # fp16 is not smaller
    ("512M", "--batch 2 --seq 1024", "--world-size 4 --batch 2 --seq 1024", "parameters", 1, 1),
    ("512M", "--batch 2 --seq 1024", "--lora 16", "optimizer", 0, 0.02),
    ("366M", "--batch 4 --seq 1024", "--optimizer adamw8bit --set min_8bit_size=4096", "optimizer", 0.25, 0.26),
    ("366M", "--batch 4 --seq 1024", "--offload activations", "activations", 0.05, 0.15),
]


@pytest.mark.parametrize("model, before, change, part, least, most", CLAIMS)
def test_what_a_change_leaves(folder, model, before, change, part, least, most):
    was, now = (plan(*typed(model, words))["categories"][part] for words in (before, before + " " + change))
    assert least * was <= now <= most * was, now / was


@pytest.mark.parametrize("model, gib", [("366M", 1.39), ("512M", 1.86)])
def test_weights_are_four_bytes_each(folder, model, gib):
    """Not the 6 and 7 to 8 GB that the guides write."""
    assert plan(*typed(model, "--batch 2"))["categories"]["parameters"] / 2**30 == pytest.approx(gib, rel=0.01)


def test_cards_side_by_side(folder):
    """What fits 8, 16 and 24 GB, cautiously, at one effective batch."""
    words = "--gpu-memory 8,16,24 --seq 512 --dtype bf16 --target-effective-batch 32 --safety-margin 0.75"
    cards = plan(*typed("366M", words))["cards"]
    assert [card["effective_batch"] for card in cards] == [32, 32, 32]
    assert all(card["planned_peak_bytes"] <= 0.75 * card["capacity_bytes"] for card in cards)
    assert [card["micro_batch"] for card in cards] == sorted(card["micro_batch"] for card in cards)


@pytest.mark.parametrize("words, each", [("--gpu A10", 14), ("--gpu A10 --optimizer adamw8bit", 8.03),
                                         ("--device cpu --optimizer adamw8bit", 6.03)])  # fmt: skip
def test_deepspeed_s_states_are_on_the_host(folder, words, each):
    """As `CPUOffloadOptimizer` holds them: fp32 masters, a device's gradients, states."""
    value = plan(*typed("366M", "--from zero.json --seq 512 --world-size 4 --batch 4 " + words))
    count = value["model"]["parameters"]
    assert value["phases"]["load"]["optimizer"] < 0.02 * count
    assert value["host_bytes"] / (count / 4) == pytest.approx(each, rel=2e-3)


#: Mistakes, their exit codes and what is said.
MISTAKES = [
    ("--from four.yaml --key micro_batch=data.batch_sizes", 1, "near: data.batch_size"),
    ("--gpu A100", 2, "40 or 80 GB? Say A100-40 or A100-80"),
    ("--gpu-memory 24576", 2, "do you mean 24576MiB?"),
    ("--from absent.yaml", 1, "absent.yaml cannot be read"),
    ("--from rx.yaml --key batch=training.batch_size", 2, "'batch' is not a setting"),
    ("--set kv_head=4", 2, "near: kv_heads"),
]


@pytest.mark.parametrize("words, code, told", MISTAKES)
def test_a_mistake_is_said(folder, words, code, told):
    result = command(*typed("34M", words))
    assert result.returncode == code and told in result.stderr


def test_what_is_written_for_a_t4(folder):
    value = plan(*typed("366M", "--from t4.yaml --gpu 'Tesla T4' --apply"))
    text = (folder / "t4.yaml").read_text()
    assert "bf16: false" in text and "fp16: true" in text and value["fits_after_changes"]
    assert "per_device_train_batch_size: %d\n" % value["micro_batch"] in text
    assert (folder / "t4.yaml.backup").read_text() == FILES["t4.yaml"]


def test_another_training_is_listed_and_taken_if_it_is_allowed(folder):
    words = typed("512M", "--batch 1 --gpu-memory 3 --seq 2048")
    value = plan(*words)
    assert not value["fits_after_changes"]
    assert "--allow other takes changes to another training too" in command(*words).stdout
    assert plan(*words, "--allow", "other")["fits_after_changes"]
