"""`memopt plan --from`: the training file as input, and QLoRA written into it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("ruamel.yaml")  # most of these files are YAML

from memopt.sizes import format_size
from test_cli_plan import SMALL, command, plan, refused

TRAINER = """\
model_name_or_path: %s
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
"""
TRL = TRAINER + "max_length: 256\nuse_peft: true\nlora_target_modules: all-linear\n"
LLAMAFACTORY = TRAINER + "stage: sft\ncutoff_len: 256\nbf16: true\n"
AXOLOTL = """\
base_model: %s
sequence_len: 256
micro_batch_size: 2
gradient_accumulation_steps: 4
"""
TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_1.%s
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 8
tokenizer: {max_seq_len: 256}
checkpointer: {checkpoint_dir: %%s}
dataset: {packed: true}
batch_size: 2
gradient_accumulation_steps: 4
optimizer: {_component_: torch.optim.AdamW, fused: true}
dtype: bf16
"""
#: Files that capture steps, and one that does not.
GRAPHS = [
    ("own.yaml", "batch_size: 2\ncuda_graphs: true\n", True),
    ("mode.yaml", "batch_size: 2\ntorch_compile_mode: reduce-overhead\n", True),
    ("train.py", "batch_size = 2\nmodel = torch.compile(model, mode='reduce-overhead')\n", True),
    ("graph.py", "batch_size = 2\ngraph = torch.cuda.CUDAGraph()\n", True),
    ("plain.py", "batch_size = 2\nmodel = torch.compile(model, mode='default')\n", False),
]
LORA = "--lora-targets all-linear"
#: Files, and the options that they stand for.
FILES = {
    "transformers": (
        TRAINER + "optim: paged_adamw_8bit\nfp16: true\ngradient_checkpointing: true\n"
        "use_liger_kernel: true\ndtype: float32\n",
        "--optimizer adamw8bit --autocast fp16 --checkpointing full --loss fused --seq 512 "
        "--dtype fp32",
    ),
    "trl": (  # bf16 and checkpointing are TRL's defaults, dtype float32 too
        TRL,
        "--optimizer adamw-fused --autocast bf16 --dtype fp32 --checkpointing full --set attention_mask=yes "
        "--lora 16 --set lora_dropout=0.05 " + LORA,
    ),
    "trl, 4 bits": (
        TRL + "load_in_4bit: true\nuse_bnb_nested_quant: true\npacking: true\ndtype: bfloat16\n",
        "--optimizer adamw-fused --autocast bf16 --dtype bf16 --set base_dtype=bf16 --checkpointing full "
        "--lora 16 --set lora_dropout=0.05 --set adapter_dtype=bf16 --quantize nf4-double " + LORA,
    ),
    "llamafactory": (
        LLAMAFACTORY + "quantization_bit: 4\nlora_rank: 4\npacking: true\n",
        "--optimizer adamw-fused --autocast bf16 --dtype bf16 --set base_dtype=bf16 --checkpointing full "
        "--lora 4 --quantize nf4-double " + LORA,
    ),
    "llamafactory, all weights": (
        LLAMAFACTORY + "finetuning_type: full\ndisable_gradient_checkpointing: true\npacking: true\n",
        "--optimizer adamw-fused --autocast bf16 --dtype fp32",
    ),
    "axolotl": (
        AXOLOTL + "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n"
        "bf16: auto\nflash_attention: true\noptimizer: adamw_bnb_8bit\nsample_packing: true\n"
        "gradient_checkpointing: true\nliger_fused_linear_cross_entropy: true\n"
        "plugins: [axolotl.integrations.liger.LigerPlugin]\n",
        "--lora 32 --quantize nf4-double --set base_dtype=bf16 --dtype bf16 --autocast bf16 --attention "
        "flash --optimizer adamw8bit --checkpointing full --loss fused " + LORA,
    ),
    "axolotl, 8 bits": (
        AXOLOTL + "adapter: lora\nload_in_8bit: true\nlora_r: 8\nlora_target_modules: [q_proj]\n"
        "fp16: true\nbf16: false\n",
        "--lora 8 --lora-targets q --quantize int8 --set base_dtype=fp16 --dtype fp16 --autocast fp16 "
        "--optimizer adamw-fused --set attention_mask=yes",
    ),
    "torchtune": (
        TORCHTUNE % "qlora_llama3_1_8b",
        "--lora 8 --lora-targets q,v,o,gate,up,down --quantize nf4-double --set base_dtype=bf16 --dtype "
        "bf16 --set adapter_dtype=bf16 --optimizer adamw-fused",
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**SMALL, "dtype": "bfloat16"}))
    return tmp_path


def train(folder, text, name="train.yaml"):
    (folder / name).write_text(text % (folder / "model") if "%s" in text else text)
    return str(folder / name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_its_options_are(folder, name):
    text, options = FILES[name]
    options = "--batch 2 --accumulation 4 --seq 256 --gpu-memory 24 " + options
    read = plan("--from", train(folder, text), "--gpu-memory", 24, "--batch", 2)
    said = plan("--model", folder / "model", *options.split())
    assert read["notes"][0].startswith("from ")
    for key in ("peak_bytes", "categories", "dtype", "optimizer", "accumulation", "model"):
        if key == "model":
            assert read[key]["description"] == said[key]["description"]
        else:
            assert read[key] == said[key], key


@pytest.mark.parametrize("batch", ["batch_size", "per_device_train_batch_size", "micro_batch_size"])
@pytest.mark.parametrize("times", ["gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"])
def test_frameworks_names_in_somebodys_own_file(folder, batch, times):
    read = plan("--from", train(folder, "train: {%s: 2, %s: 4}" % (batch, times)), "--model", folder / "model")
    assert (read["batch"], read["accumulation"]) == (2, 4)


def test_options_win_over_the_file(folder):
    path = train(folder, FILES["axolotl"][0])
    words = ("--from", path, "--batch", 1, "--optimizer", "sgd", "--lora", 4, "--quantize", "none")
    value = plan(*words)
    assert value["batch"] == 1 and value["accumulation"] == 8 and value["optimizer"] == "sgd"
    assert value["model"]["description"]["lora_rank"] == 4
    assert value["model"]["description"].get("quantize", "none") == "none"


def test_two_that_do_not_agree_are_an_error_with_both(folder):
    one = train(folder, TRAINER + "fp16: true\n")
    other = train(folder, "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n", "acc.yaml")
    told = refused(1, "--from", one, "--from", other)
    assert "train.yaml: fp16 is true, but" in told and "mixed_precision is bf16" in told
    told = refused(1, "--from", train(folder, TRAINER + "fp16: true\nbf16: true\n"))
    assert "bf16 is true and fp16 is true, which do not go together" in told


def test_a_deepspeed_file_that_a_training_file_names(folder):
    zero = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    path = train(folder, json.dumps(zero), "zero.json")
    text = TRAINER + "bf16: true\ndeepspeed: " + path + "\n"
    read = plan("--from", train(folder, text), "--seq", 256, "--world-size", 4)
    options = "--batch 2 --accumulation 4 --seq 256 --optimizer adamw-fused --world-size 4 --zero 2"
    said = plan("--model", folder / "model", *options.split(), "--autocast", "bf16")
    assert read["peak_bytes"] == said["peak_bytes"]
    zero["bf16"] = {"enabled": "auto"}  # weights of bf16, and DeepSpeed's copy of them
    zero["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    train(folder, json.dumps(zero), "zero.json")
    read = plan("--from", train(folder, text), "--seq", 256, "--world-size", 4)
    options += " --dtype bf16 --set master_dtype=fp32 --offload optimizer"
    said = plan("--model", folder / "model", *options.split())
    assert read["peak_bytes"] == said["peak_bytes"] and read["host_bytes"] == said["host_bytes"]
    assert "stage 2 is planned as torch's, by shares" in read["notes"][-1]
    alone = plan("--from", train(folder, text), "--seq", 256)
    assert "on one device" in alone["notes"][-1] and alone["host_bytes"] > read["host_bytes"]
    zero["train_micro_batch_size_per_gpu"] = 8
    train(folder, json.dumps(zero), "zero.json")
    told = refused(1, "--from", str(folder / "train.yaml"), "--world-size", 4)
    assert "per_device_train_batch_size is 2, but" in told and "per_gpu is 8" in told


def test_fsdp_of_accelerate(folder):
    accelerate = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\n"
    accelerate += "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"
    files = ("--from", train(folder, TRAINER), "--from", train(folder, accelerate, "acc.yaml"))
    options = "--batch 2 --accumulation 4 --optimizer adamw-fused --autocast bf16 --zero 2 --set gradient_sync=no"
    said = plan("--model", folder / "model", "--world-size", 4, *options.split())
    assert plan(*files)["peak_bytes"] == said["peak_bytes"]


def test_what_is_not_counted_is_named(folder):
    text = FILES["axolotl"][0].replace("adamw_bnb_8bit", "muon") + "torch_compile: true\nrl: dpo\n"
    notes = plan("--from", train(folder, text))["notes"]
    (note,) = [note for note in notes if "not counted, though it matters" in note]
    for part in ("optimizer: muon", "torch_compile: True", "rl: dpo"):
        assert part in note


def test_keys_of_ones_own(folder):
    text = '[data]\nsize = 3\n[train]\ntype = "bf16-mixed"\nsteps = 4\n'
    keys = ("micro_batch=data.size", "accumulation=train.steps", "dtype=train.type")
    words = [word for key in keys for word in ("--key", key)]
    value = plan("--from", train(folder, text, "t.toml"), "--model", folder / "model", *words)
    assert (value["batch"], value["accumulation"], value["dtype"]) == (3, 4, "bf16")


# --- models ---------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_found_in_the_cache(folder):
    place = folder / "hub" / "models--a--b"
    (place / "refs").mkdir(parents=True)
    told = refused(1, "--model", "a/b", HF_HOME=str(folder), HF_HUB_CACHE="")
    assert "no such model in the cache" in told and "`hf download a/b config.json`" in told
    (place / "refs" / "main").write_text("0123")
    (place / "snapshots" / "0123").mkdir(parents=True)
    (place / "snapshots" / "0123" / "config.json").write_text(json.dumps(SMALL))
    value = plan("--model", "a/b", HF_HOME=str(folder), HF_HUB_CACHE="")
    assert value["model"]["parameters"] == plan("--model", folder / "model")["model"]["parameters"]


@pytest.mark.parametrize(
    "config, options",
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True,
             "bnb_4bit_compute_dtype": "bfloat16"},
            "--quantize nf4-double --set base_dtype=bf16",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "--quantize int8"),
        ({"quant_method": "gptq", "bits": 4}, "--quantize gptq"),
        ({"quant_method": "awq", "bits": 4}, "--quantize awq"),
    ],
)  # fmt: skip
def test_the_quantisation_of_a_configuration(folder, config, options):
    place = folder / "quantised.json"
    place.write_text(json.dumps({**SMALL, "quantization_config": config}))
    lora = ("--lora", 8, "--seq", 256)
    said = plan("--model", folder / "model", "--dtype", "fp32", *lora, *options.split())
    assert plan("--model", place, *lora)["peak_bytes"] == said["peak_bytes"]
    assert any("do not learn" in note for note in plan("--model", place)["notes"])


def test_a_quantisation_that_is_not_known_is_named(folder):
    place = folder / "quantised.json"
    place.write_text(json.dumps({**SMALL, "quantization_config": {"quant_method": "hqq"}}))
    assert any("hqq" in note for note in plan("--model", place, "--lora", 8)["notes"])


# --- what is written ------------------------------------------------------------------------------


def tight(folder, text):
    """Options by which only QLoRA fits, and the file."""
    config = {**SMALL, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    return ("--from", train(folder, text), "--gpu-memory", 2.5, "--apply", "--allow", "other")


def test_qlora_is_written_where_there_are_keys(folder):
    text = AXOLOTL + "bf16: true\noptimizer: adamw_torch\n"
    words = tight(folder, text)
    value = plan(*words)
    assert {"lora", "quantize"} <= {one["kind"] for one in value["changes"] if one["applied"]}
    changed = (folder / "train.yaml").read_text()
    for line in ("adapter: qlora", "load_in_4bit: true", "lora_r: 16"):
        assert line in changed
    again = plan("--from", folder / "train.yaml", "--gpu-memory", 2.5)
    assert again["fits"], "what was written fits as it is"


def test_qlora_is_an_error_where_there_are_none(folder):
    words = tight(folder, TRAINER + "max_length: 256\nbf16: true\ngradient_checkpointing: false\n")
    result = command(*words)
    assert result.returncode == 1
    assert "BitsAndBytesConfig" in result.stderr and "no file was changed" in result.stderr
    assert "load_in" not in (folder / "train.yaml").read_text()
    result = command(*words, "--partial")
    assert result.returncode == 0, result.stderr
    assert "by hand: quantize" in result.stdout


@pytest.mark.parametrize("name, text, captured", GRAPHS, ids=lambda value: str(value)[:9])
def test_graphs_have_a_pool_of_their_own(tmp_path, name, text, captured):
    """As large as the activations are at their peak, once more."""
    (tmp_path / name).write_text(text)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    words = ("--model", str(tmp_path / "config.json"), "--batch", 2, "--seq", 256, "--gpu-memory", 24)
    without, value = plan(*words), plan(*words, "--from", str(tmp_path / name), "--accumulation", 1)
    kept = max(of["activations"] + of["logits"] for of in value["phases"].values())
    more = value["peak_bytes"] - without["peak_bytes"]
    assert more == (kept if captured else 0) and value["peak_phase"] == without["peak_phase"]
    held = [of["reserved"]["classic"]["bytes"] for of in (without, value)]
    assert held[1] - held[0] == more
    assert any("CUDA graphs: %s" % format_size(kept) in note for note in value["notes"]) == captured
