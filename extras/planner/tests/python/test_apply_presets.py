"""Whose keys a file has, and how the frameworks say each setting."""

from __future__ import annotations

import json

import pytest

from apply_files import ALL, changed, keyed, write
from memopt.cli import apply
from memopt.cli.apply import KeyMapping
from memopt.cli.apply.presets import PRESETS
from memopt.cli.apply.reading import read
from memopt.cli.apply.values import by_example

LIGHTNING = {
    "trainer": {"precision": "32-true", "accumulate_grad_batches": 1, "max_epochs": 3},
    "data": {"class_path": "x.Data", "init_args": {"batch_size": 16}},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}},
}
TRANSFORMERS = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "fp16": True,
    "optim": "adamw_torch",
    "gradient_checkpointing": False,
}
TORCHTUNE = {
    "batch_size": 16,
    "gradient_accumulation_steps": 1,
    "dtype": "fp32",
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
    "model": {"_component_": "torchtune.models.llama3.llama3_8b"},
    "enable_activation_checkpointing": False,
}
NESTED = {
    "data_loader": {"batch_size": 16, "workers": 2},
    "training": {
        "trainer": {"accumulate_grad_batches": 1, "precision": 32},
        "optimizer": {"name": "AdamW"},
        "gradient_checkpointing": False,
    },
}
TRL = {
    **TRANSFORMERS,
    "bf16": False,
    "model_name_or_path": "x/y",
    "dtype": "float32",
    "max_length": 512,
    "use_peft": False,
    "lora_r": 16,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "use_bnb_nested_quant": False,
    "activation_offloading": False,
    "use_liger_kernel": False,
}
LLAMAFACTORY = {
    **TRANSFORMERS,
    "finetuning_type": "full",
    "lora_rank": 8,
    "cutoff_len": 512,
    "quantization_bit": None,
    "double_quantization": True,
    "disable_gradient_checkpointing": True,
    "enable_liger_kernel": False,
    "pure_bf16": False,
}
AXOLOTL = {
    "base_model": "x/y",
    "micro_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "sequence_len": 512,
    "bf16": False,
    "fp16": True,
    "optimizer": "adamw_torch",
    "gradient_checkpointing": False,
    "adapter": None,
    "lora_r": 8,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "bnb_config_kwargs": {"bnb_4bit_use_double_quant": True},
    "activation_offloading": False,
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_fused_linear_cross_entropy": False,
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": False},
    "fp16": {"enabled": False},
    "zero_optimization": {"stage": 1},
}
ACCELERATE = {
    "distributed_type": "FSDP",
    "mixed_precision": "no",
    "num_processes": 4,
    "fsdp_config": {"fsdp_reshard_after_forward": False, "fsdp_activation_checkpointing": False},
    "deepspeed_config": {"gradient_accumulation_steps": 1},
}
FILES = {
    "trl": TRL,
    "llamafactory": LLAMAFACTORY,
    "axolotl": AXOLOTL,
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "transformers": TRANSFORMERS,
    "torchtune": TORCHTUNE,
    "nested": NESTED,
}


def edit(tmp_path, data, settings=ALL, **options):
    path = write(tmp_path, "c.json", json.dumps(data, indent=2))
    return apply.prepare([path], settings, KeyMapping(**options)).files[0]


def result(*words, **options):
    return json.loads(edit(*words, **options).data)


def test_every_preset_is_tested():
    assert set(FILES) == set(PRESETS)


@pytest.mark.parametrize("name", FILES)
def test_detected(tmp_path, name):
    assert edit(tmp_path, FILES[name]).preset == name
    assert edit(tmp_path, FILES[name], preset=name).preset == name


#: Each with the presets that have a key for it in the files above.
BOTH_WAYS = [
    ("micro_batch", 4, set(FILES) - {"accelerate"}),
    ("accumulation", 16, set(FILES)),
    ("optimizer", "adamw8bit", set(FILES) - {"deepspeed", "accelerate"}),
    ("checkpointing", "full", set(FILES) - {"deepspeed", "lightning"}),
    ("sequence", 256, {"trl", "llamafactory", "axolotl"}),
    ("lora", 32, {"trl", "llamafactory", "axolotl"}),
    ("loss", "fused", {"trl", "llamafactory", "axolotl"}),
    ("offload", "activations", {"trl", "axolotl"}),
    ("sharding", "zero3", {"accelerate"}),
    ("sharding", "deepspeed_zero2", {"deepspeed"}),
    *(("dtype", dtype, set(FILES)) for dtype in ("fp32", "bf16")),
    ("dtype", "fp16", set(FILES) - {"torchtune"}),
    *(("quantize", kind, {"trl", "llamafactory", "axolotl"}) for kind in ("nf4", "nf4-double")),
    *(("quantize", "int8", {name}) for name in ("trl", "llamafactory", "axolotl")),
]


@pytest.mark.parametrize("setting, value, names", BOTH_WAYS)
def test_what_is_written_is_read(tmp_path, setting, value, names):
    """One table, in both directions."""
    settings = {setting: value}
    if setting == "offload":
        settings["checkpointing"] = "full"  # without it axolotl refuses to offload
    for name in sorted(names):
        found = edit(tmp_path, FILES[name], settings, required={setting: setting})
        assert setting in found.known and setting not in found.unset, (name, found.notes)
        path = write(tmp_path, name + ".json", found.data)
        said = read([path], KeyMapping())[0].said[setting]
        assert said.value == value and said.written, (name, said)


def test_lightning(tmp_path):
    found = edit(tmp_path, LIGHTNING)
    after = json.loads(found.data)
    assert after["trainer"] == {
        "precision": "bf16-mixed", "accumulate_grad_batches": 16, "max_epochs": 3,
    }  # fmt: skip
    assert after["data"]["init_args"] == {"batch_size": 4}
    assert after["optimizer"]["class_path"] == "memopt.torch.AdamW8bit"
    assert [note for note in found.notes if "checkpointing is not set" in note]


@pytest.mark.parametrize(
    "old, dtype, new",
    [
        (32, "bf16", "bf16-mixed"), (16, "bf16", "bf16-mixed"), ("16", "bf16", "bf16-mixed"),
        ("bf16", "bf16", "bf16"), ("bf16-true", "bf16", "bf16-true"), (32, "fp32", 32),
        ("32", "fp32", "32"), ("bf16-mixed", "fp16", "16-mixed"), (16, "fp16", 16),
        ("bf16-mixed", "bf16-true", "bf16-true"), ("16-true", "bf16-mixed", "bf16-mixed"),
        ("bf16-true", "bf16-mixed", "bf16-true"), ("32-true", "fp16-true", "16-true"),
        ("64-true", "fp32", "32-true"), (None, "fp32", None),
        (None, "bf16", "bf16-mixed"),
    ],
)  # fmt: skip
def test_precision_of_lightning(tmp_path, old, dtype, new):
    data = {"trainer": {"precision": old}, "data": {"batch_size": 1}}
    assert result(tmp_path, data, {"dtype": dtype})["trainer"]["precision"] == new


def test_weights_of_transformers_are_told(tmp_path):
    found = edit(tmp_path, TRANSFORMERS, {"dtype": "bf16-true"})
    assert json.loads(found.data)["bf16"] is True
    assert "load the model in that dtype too" in found.notes[0]
    assert edit(tmp_path, TRANSFORMERS, {"dtype": "bf16-mixed"}).notes == []


def test_transformers_knows_what_an_absent_key_means(tmp_path):
    small = {"per_device_train_batch_size": 16}
    wanted = {"accumulation": 1, "dtype": "fp32", "checkpointing": "none"}
    assert result(tmp_path, small, wanted) == small
    wanted = {"micro_batch": 4, "dtype": "bf16", "accumulation": 2, "optimizer": "adamw8bit"}
    with pytest.raises(apply.KeyMissing) as raised:
        edit(tmp_path, small, wanted)
    for key in ("bf16", "gradient_accumulation_steps", "optim"):
        assert "no key %s" % key in str(raised.value)
    assert result(tmp_path, small, wanted, create_keys=True) == {
        "per_device_train_batch_size": 4,
        "bf16": True,
        "gradient_accumulation_steps": 2,
        "optim": "adamw_bnb_8bit",
    }


@pytest.mark.parametrize("optim", ["adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"])
def test_an_optimizer_that_needs_as_little_stays(tmp_path, optim):
    data = {**TRANSFORMERS, "optim": optim}
    assert result(tmp_path, data, {"optimizer": "adamw8bit"})["optim"] == optim
    assert result(tmp_path, data, {"optimizer": "adamw"})["optim"] == "adamw_torch"


def test_what_a_framework_has_not(tmp_path):
    found = edit(tmp_path, TRANSFORMERS, {"optimizer": "adamwfp8"})
    assert not found.changed and "no such optim" in found.notes[0]
    found = edit(tmp_path, TORCHTUNE, {"dtype": "fp16"})
    assert not found.changed and "refuse fp16" in found.notes[0]


def test_torchtune(tmp_path):
    found = edit(tmp_path, TORCHTUNE)
    assert json.loads(found.data) == {
        "batch_size": 4,
        "gradient_accumulation_steps": 16,
        "dtype": "bf16",
        "optimizer": {"_component_": "memopt.torch.AdamW8bit", "fused": True},
        "model": TORCHTUNE["model"],
        "enable_activation_checkpointing": True,
    }
    assert [note for note in found.notes if "take optimizer.fused out" in note]
    data = {**TORCHTUNE, "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"}}
    assert result(tmp_path, data)["optimizer"] == data["optimizer"]


#: What the trainers' own parsers take: a file, a setting, and the keys that are added or changed.
FSDP = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}}
READ_BY_TRAINERS = [
    # axolotl refuses attn_implementation beside a flag that is true
    (AXOLOTL, {"attention": "sdpa"}, {"attn_implementation": "sdpa"}),
    ({**AXOLOTL, "flash_attention": True}, {"attention": "flash"}, {}),
    (
        {**AXOLOTL, "flash_attention": True},
        {"attention": "sdpa"},
        {"flash_attention": False, "attn_implementation": "sdpa"},
    ),
    ({**AXOLOTL, "sdp_attention": False}, {"attention": "sdpa"}, {"sdp_attention": True}),
    # … and qlora in 8 bits or with GPTQ
    (
        {**AXOLOTL, "adapter": "qlora", "load_in_4bit": True},
        {"lora": 8, "quantize": "int8"},
        {"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True},
    ),
    (
        {**AXOLOTL, "adapter": "qlora", "load_in_4bit": True},
        {"lora": 8, "quantize": "gptq"},
        {"adapter": "lora", "load_in_4bit": False, "gptq": True},
    ),
    ({**AXOLOTL, "fsdp_version": 2}, {"sharding": "zero2"}, {"fsdp_config": {"reshard_after_forward": False}}),
    # LLaMA-Factory's Transformers has FSDP1, whose strategy is a word
    (LLAMAFACTORY, {"sharding": "zero2"}, {"fsdp": "shard_grad_op auto_wrap"}),
    (LLAMAFACTORY, {"sharding": "zero3"}, {"fsdp": "full_shard auto_wrap"}),
    (
        {**LLAMAFACTORY, "fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": True}},
        {"sharding": "zero2"},
        {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"reshard_after_forward": False}},
    ),
    # accelerate's too: a word stays a word, a number a number
    *(
        ({**FSDP, "fsdp_config": {key: old}}, {"sharding": "zero2"}, {"fsdp_config": {key: new}})
        for key, old, new in (
            ("fsdp_sharding_strategy", "FULL_SHARD", "SHARD_GRAD_OP"),
            ("fsdp_sharding_strategy", 1, 2),
            ("fsdp_reshard_after_forward", "FULL_SHARD", "SHARD_GRAD_OP"),
            ("fsdp_reshard_after_forward", True, False),
            ("fsdp_reshard_after_forward", "true", "false"),
        )
    ),
    ({**TORCHTUNE, "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"}}, {"loss": "fused"}, {}),
]


@pytest.mark.parametrize("data, settings, differs", READ_BY_TRAINERS)
def test_what_the_trainers_read(tmp_path, data, settings, differs):
    required = dict.fromkeys(settings, "it")
    after = result(tmp_path, data, settings, create_keys=True, required=required)
    assert after == {**data, **differs}


@pytest.mark.parametrize(
    "data, settings, told",
    [
        (AXOLOTL, {"offload": "activations"}, "needs gradient_checkpointing"),
        (
            {**AXOLOTL, "gradient_checkpointing": True, "activation_offloading": True},
            {"checkpointing": "none"},
            "needs gradient_checkpointing",
        ),
        ({**AXOLOTL, "plugins": None}, {"loss": "fused"}, "liger.LigerPlugin"),
        (
            {**AXOLOTL, "plugins": ["x.LigerPlugin"], "cut_cross_entropy": True},
            {"micro_batch": 3},
            "CutCrossEntropyPlugin",
        ),
        (AXOLOTL, {"sharding": "zero3"}, "fsdp_version: 2"),
        ({**AXOLOTL, "fsdp_version": 1}, {"sharding": "zero3"}, "fsdp_version: 2"),
        ({**FSDP, "distributed_type": "MULTI_GPU"}, {"sharding": "zero3"}, "accelerate config"),
        ({**FSDP, "distributed_type": "NO"}, {"sharding": "deepspeed_zero3"}, "accelerate config"),
        (LIGHTNING, {"loss": "fused"}, "linear_cross_entropy"),
        (TORCHTUNE, {"offload": "activations"}, "needs enable_activation_checkpointing"),
        (TORCHTUNE, {"lora": 8}, "lora_… builder"),
        ({**TORCHTUNE, "loss": {"_component_": "x"}}, {"loss": "fused"}, "no fused loss"),
    ],
)
def test_what_the_trainers_would_refuse(tmp_path, data, settings, told):
    required = dict.fromkeys(settings, "it")
    with pytest.raises(apply.ApplyError, match=told):
        edit(tmp_path, data, settings, create_keys=True, required=required)


def test_a_key_without_what_it_needs_is_not_read(tmp_path):
    data = {**AXOLOTL, "plugins": None, "liger_fused_linear_cross_entropy": True}
    found = read([write(tmp_path, "c.json", json.dumps(data))], KeyMapping())[0]
    assert "loss" not in found.said and "needs plugins" in found.open[0]


def test_arguments_that_a_new_class_lacks_are_named(tmp_path):
    found = edit(tmp_path, TORCHTUNE, {"optimizer": "adafactor"})
    assert "torch.optim.Adafactor has no argument fused" in found.notes[0]


def test_nested(tmp_path):
    assert result(tmp_path, NESTED) == {
        "data_loader": {"batch_size": 4, "workers": 2},
        "training": {
            "trainer": {"accumulate_grad_batches": 16, "precision": "bf16-mixed"},
            "optimizer": {"name": "AdamW8bit"},
            "gradient_checkpointing": True,
        },
    }
    small = {"data_loader": {"batch_size": 1}}
    found = edit(tmp_path, small, {"micro_batch": 2, "accumulation": 1, "optimizer": "adamw8bit"})
    assert json.loads(found.data) == {"data_loader": {"batch_size": 2}}
    assert "optimizer is not set to adamw8bit" in found.notes[0]


def test_transformers_in_a_section(tmp_path):
    after = result(tmp_path, {"a": [{"training_args": TRANSFORMERS}], "batch_size": 1})
    assert after["a"][0]["training_args"]["per_device_train_batch_size"] == 4
    assert after["batch_size"] == 1


def test_no_match_names_the_keys(tmp_path):
    with pytest.raises(apply.ApplyError) as raised:
        edit(tmp_path, {"batch": 4})
    for preset in PRESETS.values():
        assert preset.name in str(raised.value)
        assert all(key in str(raised.value) for key in preset.signature)
    assert "--key micro_batch=" in str(raised.value)


@pytest.mark.parametrize(
    "data, names",
    [
        ({**TRANSFORMERS, **NESTED}, ["transformers", "nested"]),
        ({**TRANSFORMERS, "batch_size": 3}, ["transformers", "torchtune"]),
        ({"x": TRANSFORMERS, "y": TRANSFORMERS}, ["transformers in x", "transformers in y"]),
        ({"fit": LIGHTNING, **LIGHTNING}, ["lightning", "lightning in fit"]),
    ],
)
def test_ambiguous(tmp_path, data, names):
    with pytest.raises(apply.ApplyError) as raised:
        edit(tmp_path, data)
    assert all(name in str(raised.value) for name in names)
    assert "--preset" in str(raised.value) and "--key" in str(raised.value)


def test_the_advice_is_one_that_works(tmp_path):
    """--preset does not tell two sections apart; the keys that are named do."""
    data = {"x": TRANSFORMERS, "y": TRANSFORMERS}
    with pytest.raises(apply.ApplyError) as raised:
        edit(tmp_path, data)
    said = dict(word.split("=") for word in str(raised.value).split(" --key ")[1:])
    assert said == {"micro_batch": "x.per_device_train_batch_size", "accumulation": "x.gradient_accumulation_steps"}


def test_documents_of_one_preset_are_told_apart_by_nothing(tmp_path):
    pytest.importorskip("ruamel.yaml")
    path = tmp_path / "c.yaml"
    path.write_text("per_device_train_batch_size: 1\n---\nper_device_train_batch_size: 1\n")
    with pytest.raises(apply.ApplyError, match="2 of its 2 documents have the keys of transf"):
        apply.prepare([str(path)], {"micro_batch": 4})
    empty = tmp_path / "e.json"
    empty.write_text(" \n")
    with pytest.raises(apply.ApplyError, match="it is empty"):
        apply.prepare([str(empty)], {"micro_batch": 4})


def test_a_preset_settles_it(tmp_path):
    data = {**TRANSFORMERS, **NESTED}
    after = result(tmp_path, data, preset="nested")
    assert after["data_loader"]["batch_size"] == 4
    assert after["per_device_train_batch_size"] == 16
    with pytest.raises(apply.ApplyError, match="2 places: x, y"):
        edit(tmp_path, {"x": TRANSFORMERS, "y": TRANSFORMERS}, preset="transformers")


def test_keys_come_before_the_preset(tmp_path):
    data = {**TRANSFORMERS, "bs": 16}
    mapping = keyed("micro_batch=bs")
    after = json.loads(changed(tmp_path, "c.json", json.dumps(data), ALL, mapping))
    assert after["bs"] == 4 and after["per_device_train_batch_size"] == 16
    assert after["gradient_accumulation_steps"] == 16


def test_keys_alone_set_only_themselves_and_say_so(tmp_path):
    path = write(tmp_path, "c.json", '{"bs": 16, "dtype": "float32"}')
    found = apply.prepare([path], ALL, keyed("micro_batch=bs", "dtype=dtype")).files[0]
    assert json.loads(found.data) == {"bs": 4, "dtype": "bfloat16"}
    notes = " ".join(found.notes)
    for name in ("accumulation", "optimizer", "checkpointing"):
        assert "%s is not set to %s" % (name, ALL[name]) in notes


def test_every_stage_of_a_curriculum(tmp_path):
    stages = [{"name": "a", "bs": 16}, {"name": "b", "bs": 8}, {"name": "c", "bs": 4}]
    before = json.dumps({"stages": stages, "by_name": {"x": {"bs": 9}, "y": {"bs": 4}}}, indent=1)
    mapping = keyed("micro_batch=stages.*.bs", "micro_batch=by_name.*.bs")
    after = changed(tmp_path, "c.json", before, {"micro_batch": 4}, mapping)
    assert after == before.replace("16", "4").replace("8", "4").replace("9", "4")
    with pytest.raises(apply.KeyMissing, match="by_name.x.c"):
        changed(tmp_path, "c.json", before, {"micro_batch": 4}, keyed("micro_batch=by_name.*.c"))
    with pytest.raises(apply.KeyMissing, match="no key none"):
        changed(tmp_path, "c.json", before, {"micro_batch": 4}, keyed("micro_batch=none.*.c"))


@pytest.mark.parametrize(
    "leaf, old, new",
    [
        ("dtype", "fp32", "bf16"), ("dtype", "float16", "bfloat16"), ("dtype", "half", "bfloat16"),
        ("d", "torch.float32", "torch.bfloat16"), ("d", "16-true", "bf16-true"),
        ("d", "16-mixed", "bf16-mixed"), ("d", "no", "bf16"), ("d", 16, "bf16"),
        ("d", None, "bf16"),
        ("use_bf16", False, True), ("fp16", True, False), ("float16", "true", "false"),
        ("use_amp", False, True), ("bfloat16", 0, 1),
    ],
)  # fmt: skip
def test_dtypes_by_example(leaf, old, new):
    if old == 0 and old is not False:
        with pytest.raises(apply.ApplyError, match="--value dtype"):
            by_example("dtype", leaf, old, "bf16")
        return
    assert by_example("dtype", leaf, old, "bf16") == new


@pytest.mark.parametrize(
    "old, new",
    [
        ("adamw", "adamw8bit"), ("AdamW", "AdamW8bit"), ("adamw_torch", "adamw_bnb_8bit"),
        ("torch.optim.AdamW", "memopt.torch.AdamW8bit"), ("paged_adamw_8bit", "paged_adamw_8bit"),
        ("bitsandbytes.optim.AdamW8bit", "bitsandbytes.optim.AdamW8bit"),
        ("adamw-8bit", "adamw-8bit"),
    ],
)  # fmt: skip
def test_optimizers_by_example(old, new):
    assert by_example("optimizer", "optimizer", old, "adamw8bit") == new


@pytest.mark.parametrize(
    "setting, old", [("optimizer", "mine"), ("optimizer", 3), ("dtype", "int8"), ("dtype", True),
                     ("checkpointing", "sometimes"), ("checkpointing", 3)],
)  # fmt: skip
def test_what_an_example_does_not_tell(tmp_path, setting, old):
    path = write(tmp_path, "c.json", json.dumps({"x": 1, "k": old}))
    with pytest.raises(apply.ApplyError, match="--value %s=" % setting):
        apply.prepare([path], {setting: ALL[setting]}, keyed("%s=k" % setting))
    mapping = keyed("%s=k" % setting, values={setting: "that"})
    after = apply.prepare([path], {setting: ALL[setting]}, mapping).files[0].data
    assert json.loads(after) == {"x": 1, "k": "that"}


@pytest.mark.parametrize(
    "leaf, old, wanted, new",
    [
        ("c", "none", "full", "full"), ("c", "full", "selective", "selective"),
        ("c", True, "none", False), ("c", False, "selective", True), ("c", None, "none", None),
        ("recompute_granularity", None, "full", "full"), ("c", None, "full", True),
    ],
)  # fmt: skip
def test_checkpointing_by_example(leaf, old, wanted, new):
    assert by_example("checkpointing", leaf, old, wanted) is new


@pytest.mark.parametrize(
    "settings",
    [{"batch": 4}, {"micro_batch": 0}, {"micro_batch": True}, {"accumulation": 1.5},
     {"dtype": "int8"}, {"checkpointing": True}],
)  # fmt: skip
def test_settings_that_no_plan_has(tmp_path, settings):
    path = write(tmp_path, "c.json", "{}")
    with pytest.raises(ValueError):
        apply.prepare([path], settings)
