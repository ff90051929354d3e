"""What training files say, and what is written into them: frameworks, formats, several files at once."""

from __future__ import annotations

import errno
import json
import os

import pytest

pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")

from memopt.cli import apply
from memopt.cli.apply.reading import read
from memopt.cli.apply.text import Text

ALL = {"micro_batch": 4, "accumulation": 16, "dtype": "bf16", "optimizer": "adamw8bit", "checkpointing": "full"}
TRANSFORMERS = {
    "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "bf16": False, "fp16": True,
    "optim": "adamw_torch", "gradient_checkpointing": False,
}  # fmt: skip
TRL = {**TRANSFORMERS, "model_name_or_path": "x/y", "dtype": "float32", "max_length": 512, "use_peft": False,
       "lora_r": 16, "load_in_4bit": False, "load_in_8bit": False, "use_bnb_nested_quant": False,
       "activation_offloading": False, "use_liger_kernel": False}  # fmt: skip
LLAMAFACTORY = {**TRANSFORMERS, "finetuning_type": "full", "lora_rank": 8, "cutoff_len": 512, "quantization_bit": None,
                "double_quantization": True, "disable_gradient_checkpointing": True, "enable_liger_kernel": False,
                "pure_bf16": False}  # fmt: skip
AXOLOTL = {
    "base_model": "x/y", "micro_batch_size": 16, "gradient_accumulation_steps": 1, "sequence_len": 512, "bf16": False,
    "fp16": True, "optimizer": "adamw_torch", "gradient_checkpointing": False, "adapter": None, "lora_r": 8,
    "load_in_4bit": False, "load_in_8bit": False, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": True},
    "activation_offloading": False, "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_fused_linear_cross_entropy": False,
}  # fmt: skip
FILES = {
    "transformers": TRANSFORMERS,
    "trl": TRL,
    "llamafactory": LLAMAFACTORY,
    "axolotl": AXOLOTL,
    "deepspeed": {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1, "bf16": {"enabled": False},
                  "fp16": {"enabled": False}, "zero_optimization": {"stage": 1}},
    "accelerate": {"distributed_type": "FSDP", "mixed_precision": "no", "num_processes": 4, "deepspeed_config":
                   {"gradient_accumulation_steps": 1}, "fsdp_config": {"fsdp_reshard_after_forward": False,
                                                                       "fsdp_activation_checkpointing": False}},
    "lightning": {"trainer": {"precision": "32-true", "accumulate_grad_batches": 1}, "data": {"init_args":
                  {"batch_size": 16}}, "optimizer": {"class_path": "torch.optim.AdamW"}},
    "torchtune": {"batch_size": 16, "gradient_accumulation_steps": 1, "dtype": "fp32", "optimizer": {"_component_":
                  "torch.optim.AdamW", "fused": True}, "model": {"_component_": "torchtune.models.llama3.llama3_8b"},
                  "enable_activation_checkpointing": False},
    None: {"data_loader": {"batch_size": 16, "eval_batch_size": 99}, "train": {"grad_accum": 1, "amp_dtype": "float32",
           "grad_checkpointing": False, "optimizer": {"name": "AdamW"}, "seq_len": 512}, "max_frames": 8,
           "loss": {"num_negatives": 7, "positives": 1}, "eval": {"batch_size": 1}},
}  # fmt: skip
EVERY = set(FILES)
#: A setting and value, and the files that have a key for it.
BOTH_WAYS = [
    ("micro_batch", 4, EVERY - {"accelerate"}),
    ("accumulation", 16, EVERY),
    ("optimizer", "adamw8bit", EVERY - {"deepspeed", "accelerate"}),
    ("checkpointing", "full", EVERY - {"deepspeed", "lightning"}),
    ("sequence", 256, {"trl", "llamafactory", "axolotl", None}),
    ("images", 4, {None}),
    ("negatives", 3, {None}),
    ("positives", 2, {None}),
    ("lora", 32, {"trl", "llamafactory", "axolotl"}),
    ("loss", "fused", {"trl", "llamafactory", "axolotl"}),
    ("offload", "activations", {"trl"}),
    ("sharding", "zero3", {"accelerate"}),
    ("sharding", "deepspeed_zero2", {"deepspeed"}),
    *(("dtype", dtype, EVERY) for dtype in ("fp32", "bf16")),
    ("dtype", "fp16", EVERY - {"torchtune"}),
    *(("quantize", kind, {"trl", "llamafactory", "axolotl"}) for kind in ("nf4", "nf4-double", "int8")),
]  # fmt: skip


def write(folder, name, data):
    (folder / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data, indent=1).encode())
    return str(folder / name)


def edit(folder, data, settings, name="c.json", **options):
    """The edit of one file, which is left as it is."""
    path = write(folder, name, data)
    found = apply.prepare([path], settings, **options).files[0]
    return found


@pytest.mark.parametrize("setting, value, names", BOTH_WAYS)
def test_what_is_written_is_read(tmp_path, setting, value, names):
    """One table, in both directions."""
    for name in sorted(names, key=str):
        found = edit(tmp_path, FILES[name], {setting: value})
        assert found.preset == name and (found.notes == [] or setting == "optimizer")
        said = read([write(tmp_path, "after.json", found.data)], {})[0].said[setting]
        assert said.value == value and said.written, (name, said)
        again = apply.prepare([str(tmp_path / "after.json")], {setting: value})
        assert not again.files[0].changed, name


#: A file, settings, and the keys that are added or changed.
WRITTEN = [
    ({"per_device_train_batch_size": 16}, {"accumulation": 1, "dtype": "fp32", "checkpointing": "none"}, {}),
    (
        {"per_device_train_batch_size": 16},
        {"accumulation": 2, "dtype": "bf16"},
        {"gradient_accumulation_steps": 2, "bf16": True},
    ),
    ({"per_device_train_batch_size": "16"}, {"micro_batch": 4}, {"per_device_train_batch_size": "4"}),
    ({**TRANSFORMERS, "optim": "paged_adamw_8bit"}, {"optimizer": "adamw8bit"}, {}),
    ({**AXOLOTL, "flash_attention": True}, {"attention": "flash"}, {}),
    (
        {**AXOLOTL, "adapter": "qlora", "load_in_4bit": True},
        {"lora": 8, "quantize": "int8"},
        {"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True},
    ),
    (LLAMAFACTORY, {"sharding": "zero2"}, {"fsdp": "shard_grad_op auto_wrap"}),
    *(
        (
            {"distributed_type": "FSDP", "fsdp_config": {key: old}},
            {"sharding": "zero2"},
            {"fsdp_config": {key: new}},
        )
        for key, old, new in (
            ("fsdp_sharding_strategy", "FULL_SHARD", "SHARD_GRAD_OP"),
            ("fsdp_sharding_strategy", 1, 2),
            ("fsdp_reshard_after_forward", True, False),
            ("fsdp_reshard_after_forward", "true", "false"),
        )
    ),
    *(
        ({"trainer": {"precision": old}}, {"dtype": dtype}, {"trainer": {"precision": new}})
        for old, dtype, new in (
            ("32-true", "bf16", "bf16-mixed"), ("16", "bf16", "bf16-mixed"), ("bf16-true", "bf16", "bf16-true"),
            ("bf16-mixed", "fp16", "16-mixed"), ("32-true", "fp16-true", "16-true"), (32, "fp32", 32),
        )
    ),
    *(
        ({"train": {"batch": 1, "dtype": old}}, {"dtype": dtype}, {"train": {"batch": 1, "dtype": new}})
        for old, dtype, new in (("float16", "bf16-true", "bfloat16"), ("torch.float32", "bf16-true", "torch.bfloat16"))
    ),
]  # fmt: skip


@pytest.mark.parametrize("data, settings, differs", WRITTEN)
def test_what_is_written(tmp_path, data, settings, differs):
    assert json.loads(edit(tmp_path, data, settings).data) == {**data, **differs}


REFUSED = [
    (AXOLOTL, {"offload": "activations"}, "needs gradient_checkpointing"),
    ({**AXOLOTL, "plugins": None}, {"loss": "fused"}, "liger.LigerPlugin"),
    (AXOLOTL, {"sharding": "zero3"}, "fsdp_version: 2"),
    (FILES["lightning"], {"loss": "fused"}, "linear_cross_entropy"),
    (FILES["torchtune"], {"lora": 8}, "lora_… builder"),
    (FILES["torchtune"], {"dtype": "fp16"}, "refuse fp16"),
    (TRANSFORMERS, {"optimizer": "adamwfp8"}, "no such word"),
    (TRANSFORMERS, {"quantize": "nf4"}, "BitsAndBytesConfig"),
    (TRANSFORMERS, {"dtype": "bf16-true"}, "load the model in that dtype too"),
    ({"x": 1}, {"micro_batch": 4}, "--key micro_batch="),
    ({"batch_size": True}, {"micro_batch": 4}, "True, which is no number"),
    ({"batch_size": "${oc.env:B}"}, {"micro_batch": 4}, "no number"),
]


@pytest.mark.parametrize("data, settings, told", REFUSED)
def test_what_cannot_be_written_is_said(tmp_path, data, settings, told):
    with pytest.raises(apply.ApplyError, match=told):
        edit(tmp_path, data, settings)


def test_partial_writes_the_rest(tmp_path):
    found = edit(tmp_path, TRANSFORMERS, {"micro_batch": 4, "lora": 8}, partial=True)
    assert json.loads(found.data) == {**TRANSFORMERS, "per_device_train_batch_size": 4}
    assert "by hand: lora 8: TrainingArguments has no LoRA" in found.notes[0]


# --- whose key --------------------------------------------------------------------------------------


def test_a_question_where_it_is_ambiguous(tmp_path):
    stages = {"stages": [{"batch_size": 8}, {"batch_size": 4}]}
    path = write(tmp_path, "c.json", stages)
    with pytest.raises(apply.ApplyError) as asked:
        read([path], {})
    assert len(str(asked.value).splitlines()) == 3
    assert "stages.0.batch_size is 8 (line 4)" in str(asked.value)
    assert "--key 'micro_batch=*.*.batch_size'" in str(asked.value)
    found = apply.prepare([path], {"micro_batch": 2}, {"micro_batch": ["stages.*.batch_size"]}).files[0]
    assert json.loads(found.data) == {"stages": [{"batch_size": 2}, {"batch_size": 2}]}
    with pytest.raises(apply.ApplyError, match="no file has this key; near: stages.0.batch_size"):
        read([path], {"micro_batch": ["stages.0.batch_sizes"]})


def test_what_matters_and_is_not_read_is_named(tmp_path):
    path = write(tmp_path, "c.json", {**TRANSFORMERS, "torch_compile": True, "other": {"seq_len_max": 7}})
    assert read([path], {})[0].open == ["torch_compile: True", "other.seq_len_max: 7"]


def test_several_files_and_hydra_s_folder(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path, "config.yaml", b"defaults:\n  - data: big\n  - _self_\ntrainer:\n  accumulate_grad_batches: 2\n")
    big = write(tmp_path / "data", "big.yaml", b"# samples\nbatch_size: 8\n")
    edits = apply.prepare([str(tmp_path)], {"micro_batch": 4, "accumulation": 4})
    edits.commit()
    assert open(big).read() == "# samples\nbatch_size: 4\n"
    assert "accumulate_grad_batches: 4" in (tmp_path / "config.yaml").read_text()
    assert {file.source.name for file in edits.files} == {big, str(tmp_path / "config.yaml")}


# --- formats ------------------------------------------------------------------------------------------

#: A name, the text, settings, and what is replaced: nothing else may change.
FORMATS = [
    ("c.yaml", "a: &x {b: 1}   # c\r\ndata:\r\n  batch_size:  8   # samples\r\n", ("batch_size:  8", "batch_size:  4")),
    ("c.yaml", "batch_size: '8'\n", ("'8'", "'4'")),
    ("c.yaml", "batch_size: &b 8\n", ("8", "4")),
    ("c.yaml", "train: {batch_size: 8, lr: 1e-4}\n", ("8", "4")),
    ("c.yaml", "\ufeff- x\n- batch_size: 8\n", ("8", "4")),
    ("c.toml", "# t\n[data]\nbatch_size = 8 # samples\n[[more]]\nx = 1\n", ("= 8", "= 4")),
    ("c.toml", "data = {batch_size = 8, name = 'x'}\r\n", ("= 8", "= 4")),
    ("c.json", '{"x": [1, {"batch_size":8}], "y": 1e400}', ("8", "4")),
    ("c.py", "p.add_argument('--lr', default=1)\np.add_argument('--batch-size', type=int, default=8)\n", ("=8", "=4")),
    ("c.py", "é = 'ü'; args = TrainingArguments('ü', batch_size=8)\n", ("=8", "=4")),
    ("c.py", "class Config:\n    batch_size: int = 8\n", ("= 8", "= 4")),
]


@pytest.mark.parametrize("name, text, change", FORMATS)
def test_only_the_value_changes(tmp_path, name, text, change):
    found = edit(tmp_path, text.encode(), {"micro_batch": 4}, name)
    assert found.data.decode() == text.replace(*change)


ADDED = [
    ("c.yaml", "t:\n  per_device_train_batch_size: 1  # x\n  lr: 1\n",
     "t:\n  per_device_train_batch_size: 1  # x\n  gradient_accumulation_steps: 2\n  lr: 1\n"),
    ("c.yaml", "{per_device_train_batch_size: 1}\n",
     "{per_device_train_batch_size: 1, gradient_accumulation_steps: 2}\n"),
    ("c.json", '{\n\t"per_device_train_batch_size": 1\n}',
     '{\n\t"per_device_train_batch_size": 1,\n\t"gradient_accumulation_steps": 2\n}'),
    ("c.json", '{"per_device_train_batch_size": 1}',
     '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}'),
    ("c.toml", "per_device_train_batch_size = 1\r\n",
     "per_device_train_batch_size = 1\r\ngradient_accumulation_steps = 2\r\n"),
]  # fmt: skip


@pytest.mark.parametrize("name, text, after", ADDED)
def test_a_key_is_added_beside_the_others(tmp_path, name, text, after):
    assert edit(tmp_path, text.encode(), {"accumulation": 2}, name).data.decode() == after


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("c.yaml", "a: &b 8\nbatch_size: *b\n", "shared by an anchor with a"),
        ("c.yaml", "base: &b {batch_size: 8}\nrun:\n  <<: *b\n", "shared by an anchor"),
        ("c.yaml", "batch_size: 8\nbatch_size: 4\n", "twice|duplicate"),
        ("c.yaml", "a: [\n", "line 2 column 1: it is not YAML"),
        ("c.json", '{"batch_size": 8,}', "it is not JSON"),
        ("c.json", '{"batch_size": 8, "batch_size": 9}', "there twice"),
        ("c.toml", "batch_size = \n", "it is not TOML"),
        ("c.py", "batch_size = (\n", "it is not Python"),
        ("c.ini", "batch_size = 8\n", "ends in none of"),
        ("c.yaml", b"batch_size: \xff\n", "line 1: it is not UTF-8"),
    ],
)
def test_texts_that_are_refused(tmp_path, name, text, told):
    with pytest.raises(apply.ApplyError, match=told):
        edit(tmp_path, text if isinstance(text, bytes) else text.encode(), {"micro_batch": 4}, name)


def test_words_that_yaml_takes_for_others():
    values = {"yes": True, "0x10": 16, "010": 10, "1e3": 1000.0, "~": None, "1_000": 1000, "12:30": "12:30", ".5": 0.5}
    text = "".join("k%d: %s\n" % pair for pair in enumerate(values))
    assert [leaf.value for leaf in Text("c.yaml", text.encode()).leaves] == list(values.values())


# --- all files or none ----------------------------------------------------------------------------------

NAMES = ("one.json", "two.json", "sub/three.json")


@pytest.fixture
def three(tmp_path):
    (tmp_path / "sub").mkdir()
    return [write(tmp_path, name, {"batch_size": 8}) for name in NAMES]


def everything(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepared(paths):
    return apply.prepare(paths, {"micro_batch": 4})


def test_backups_and_what_a_file_was(tmp_path, three):
    os.chmod(three[0], 0o640)
    edits = prepared(three)
    edits.commit()
    assert [file.backup for file in edits.files] == [path + ".backup" for path in three]
    assert os.stat(three[0]).st_mode & 0o777 == os.stat(three[0] + ".backup").st_mode & 0o777 == 0o640
    assert not prepared(three).files[0].changed
    apply.prepare(three[:1], {"micro_batch": 2}).commit()
    assert open(three[0] + ".backup.1").read() == '{\n "batch_size": 4\n}'
    os.link(three[0], str(tmp_path / "link"))
    with pytest.raises(apply.ApplyError, match="2 hard links"):
        apply.prepare(three[:1], {"micro_batch": 1})


def test_a_file_changed_meanwhile_is_refused(tmp_path, three):
    edits = prepared(three)
    write(tmp_path, "two.json", {"batch_size": 9})
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="two.json has changed since"):
        edits.commit()
    assert everything(tmp_path) == there


@pytest.mark.parametrize("name", ["write", "fsync", "link", "replace", "fchmod"])
def test_every_fault_leaves_every_file(tmp_path, three, monkeypatch, name):
    there, number = everything(tmp_path), 0
    while True:
        number += 1
        edits, real, calls = prepared(three), getattr(os, name), [0]

        def failing(*arguments, **names):
            calls[0] += 1
            if calls[0] == number and not (name == "link" and number > 3):
                raise OSError(errno.ENOSPC, "no room", arguments[0] if isinstance(arguments[0], str) else None)
            return real(*arguments, **names)

        monkeypatch.setattr(os, name, failing)
        try:
            edits.commit()
        except apply.ApplyError as error:
            monkeypatch.undo()
            assert "Every file is as it was" in str(error)
            assert everything(tmp_path) == there, "call %d of %s" % (number, name)
            continue
        monkeypatch.undo()
        break
    assert number > (0 if name == "link" else 3)


def test_killed_at_any_moment(tmp_path, three):
    """Files and their backups are whole, and the next command works."""
    fresh, at, partly, finished = everything(tmp_path), 0, 0, False
    while not finished:
        at += 1
        for path in everything(tmp_path):
            os.unlink(path)
        for path, data in fresh.items():
            with open(path, "wb") as file:
                file.write(data)
        finished = _lives(at, lambda: prepared(three).commit())
        found = [open(path, "rb").read() for path in three]
        changed = [data != fresh[path] for path, data in zip(three, found)]
        assert all(json.loads(data)["batch_size"] in (4, 8) for data in found)
        assert all(open(p + ".backup", "rb").read() == fresh[p] for p, c in zip(three, changed) if c)
        partly += 0 < sum(changed) < 3
        prepared(three).commit()
        left = [name for name in everything(tmp_path) if name.endswith(".tmp")]
        assert all(json.loads(open(path).read())["batch_size"] == 4 for path in three) and not (
            left and not all(changed)
        )
    assert partly >= 2


def _lives(number, work):
    """Runs ``work`` in a process that dies at its n-th call of the system; whether it lived."""
    process = os.fork()
    if process == 0:
        calls = [0]

        def deadly(real):
            def call(*arguments, **names):
                calls[0] += 1
                if calls[0] == number:
                    os._exit(9)
                return real(*arguments, **names)

            return call

        try:
            for name in ("open", "write", "fsync", "link", "unlink", "replace"):
                setattr(os, name, deadly(getattr(os, name)))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.WEXITSTATUS(os.waitpid(process, 0)[1])
    assert code in (0, 9)
    return code == 0
