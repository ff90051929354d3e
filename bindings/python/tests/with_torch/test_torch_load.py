"""load_safetensors(): right values, little memory, and malformed files told before anything is
changed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt.torch import _loading
from load_support import (  # noqa: F401
    NAMES,
    Model,
    item,
    path,
    save,
    snapshot,
    source,
    unchanged,
)


def same(model, source, dtype):
    for name, given in source.state_dict().items():
        want = given.to(dtype) if given.is_floating_point() and dtype else given
        got = model.state_dict()[name].cpu()
        assert got.dtype == want.dtype, name
        assert torch.equal(got, want), name


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, None])
def test_into_a_meta_model(path, source, device, dtype):
    with torch.device("meta"):
        model = Model()
    model.linear.weight.requires_grad_(False)
    result = mt.load_safetensors(model, path, dtype, device=device)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    same(model, source, dtype)
    assert model.embedding.weight.device.type == device.type
    assert isinstance(model.linear.weight, nn.Parameter)
    assert not model.linear.weight.requires_grad and model.linear.bias.requires_grad


def test_in_place_where_nothing_changes(path, source, device):
    model = Model().to(device, torch.bfloat16)
    parameters = list(model.parameters())
    addresses = [p.data_ptr() for p in parameters]
    version = parameters[0]._version
    mt.load_safetensors(model, path)
    same(model, source, torch.bfloat16)
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert [p.data_ptr() for p in parameters] == addresses
    assert parameters[0]._version > version  # autograd is told


@pytest.mark.parametrize("file", [torch.float32, torch.float16])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_types_are_those_after_load_state_dict(tmp_path, file, own):
    """Of a model on the meta device those after load_state_dict(assign=True)."""
    state = Model().to(file).state_dict()
    path = save(tmp_path / "x.safetensors", state)
    model, expected = Model().to(own), Model().to(own)
    mt.load_safetensors(model, path)
    expected.load_state_dict(state)
    same(model, expected, None)
    with torch.device("meta"):
        model = Model().to(own)
    mt.load_safetensors(model, path)
    expected.load_state_dict(state, assign=True)
    same(model, expected, None)


def test_a_float32_model_becomes_half(path, source, device):
    model = Model().to(device)
    weight = model.linear.weight
    model.linear(torch.zeros(1, 16, device=device)).sum().backward()
    mt.load_safetensors(model, path, torch.bfloat16)
    same(model, source, torch.bfloat16)
    assert model.linear.weight is weight and weight.grad is None
    x = torch.zeros(1, 16, device=device, dtype=torch.bfloat16)
    model.linear(x).sum().backward()
    assert weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("stored", list(NAMES)[:6], ids=str)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_every_type(tmp_path, device, stored, wanted):
    value = torch.randn(3, 1000).to(stored)
    model = nn.ParameterDict({"x": nn.Parameter(torch.zeros(3, 1000, device=device))})
    mt.load_safetensors(model, save(tmp_path / "x.safetensors", {"x": value}), wanted)
    expected = value.to(wanted).float()
    assert model["x"].dtype == wanted and torch.equal(model["x"].detach().float().cpu(), expected)


def test_tensors_of_many_pieces(tmp_path, device, monkeypatch):
    monkeypatch.setattr(_loading, "PIECE", 64)
    tensors = {"a": torch.randn(1001), "b": torch.randn(16).double(), "c": torch.arange(300)}
    tensors["d"] = torch.zeros(0, 4)
    model = nn.Module()
    for name, value in tensors.items():
        model.register_buffer(name, torch.zeros_like(value, device=device))
    mt.load_safetensors(model, save(tmp_path / "x.safetensors", tensors), torch.float16)
    for name, value in tensors.items():
        want = value.half() if value.is_floating_point() else value
        assert torch.equal(getattr(model, name).cpu(), want), name


def test_integers_and_floats_cross(tmp_path):
    model = nn.Module()
    model.register_buffer("whole", torch.zeros(4, dtype=torch.int64))
    model.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
    model.register_buffer("real", torch.zeros(3))
    tensors = {"whole": torch.tensor([1.0, 2, 3, 4]), "flag": torch.tensor([True, False])}
    tensors["real"] = torch.tensor([5, 6, 7])
    mt.load_safetensors(model, save(tmp_path / "x.safetensors", tensors), None)
    assert model.whole.tolist() == [1, 2, 3, 4] and model.whole.dtype == torch.int64
    assert model.flag.tolist() == [True, False]
    assert model.real.tolist() == [5, 6, 7] and model.real.dtype == torch.float32


def test_channels_last_parameters_keep_their_layout(tmp_path, device):
    value = torch.randn(4, 3, 5, 5)
    model = nn.Conv2d(3, 4, 5, bias=False).to(device, torch.bfloat16)
    model.to(memory_format=torch.channels_last)
    strides = model.weight.stride()
    mt.load_safetensors(model, save(tmp_path / "x.safetensors", {"weight": value}))
    assert model.weight.stride() == strides
    assert torch.equal(model.weight.detach().cpu(), value.bfloat16())


# --- tied weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("kept", ["embedding.weight", "linear.weight", "both"])
def test_tied_weights_stay_tied(tmp_path, meta, kept):
    source = Model(tied=True)
    state = source.state_dict()
    for name in {"embedding.weight", "linear.weight"} - {kept}:
        if kept != "both":
            del state[name]
    with torch.device("meta" if meta else "cpu"):
        model = Model(tied=True)
    mt.load_safetensors(model, save(tmp_path / "x.safetensors", state))
    assert model.linear.weight is model.embedding.weight
    same(model, source, None)


# --- folders and shards ---------------------------------------------------------------------------


def shards(folder, source):
    state = source.state_dict()
    names = sorted(state)
    parts = {"a-1.safetensors": names[::2], "a-2.safetensors": names[1::2]}
    for file, some in parts.items():
        save(folder / file, {name: state[name] for name in some})
    weight_map = {name: file for file, some in parts.items() for name in some}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_sharded_checkpoint(tmp_path, source):
    index = shards(tmp_path, source)
    for path in (tmp_path, str(tmp_path), index):
        model = Model()
        mt.load_safetensors(model, path)
        same(model, source, None)


def test_folder_of_one_file(tmp_path, source):
    save(tmp_path / "other_name.safetensors", source.state_dict())
    model = Model()
    mt.load_safetensors(model, tmp_path)
    same(model, source, None)


def test_folders_that_do_not_say_which(tmp_path, source):
    with pytest.raises(FileNotFoundError, match="no file"):
        mt.load_safetensors(Model(), tmp_path)
    for name in ("a", "b"):
        save(tmp_path / (name + ".safetensors"), source.state_dict())
    with pytest.raises(ValueError, match="2 files"):
        mt.load_safetensors(Model(), tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "", "..", 3, "a\0b"])
def test_an_index_stays_in_its_folder(tmp_path, source, name):
    index = shards(tmp_path, source)
    content = json.loads(index.read_text())
    content["weight_map"]["linear.bias"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="linear.bias"):
        mt.load_safetensors(Model(), index)


def test_an_index_that_promises_too_much(tmp_path, source):
    index = shards(tmp_path, source)
    content = json.loads(index.read_text())
    content["weight_map"]["more"] = "a-1.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="'more' is not in"):
        mt.load_safetensors(Model(), index)
    content["weight_map"] = {"more": "a-3.safetensors"}
    index.write_text(json.dumps(content))
    with pytest.raises(FileNotFoundError):
        mt.load_safetensors(Model(), index)
    index.write_text("[]")
    with pytest.raises(ValueError, match="not a JSON object"):
        mt.load_safetensors(Model(), index)


# --- names and shapes -----------------------------------------------------------------------------


def test_missing_and_unexpected_names_as_load_state_dict(tmp_path, source):
    state = source.state_dict()
    del state["linear.bias"]
    state["extra.one"] = torch.zeros(2)
    path = save(tmp_path / "x.safetensors", state)
    model = Model()
    before = snapshot(model)
    with pytest.raises(RuntimeError) as ours:
        mt.load_safetensors(model, path)
    with pytest.raises(RuntimeError) as theirs:
        Model().load_state_dict(state)  # it changes the model all the same
    assert str(ours.value) == str(theirs.value)
    assert unchanged(model, before)
    result = mt.load_safetensors(model, path, torch.float32, strict=False)
    assert result == model.load_state_dict(state, strict=False)
    assert result.missing_keys == ["linear.bias"] and result.unexpected_keys == ["extra.one"]


def test_other_shapes_as_load_state_dict(tmp_path, source):
    state = source.state_dict()
    state["linear.weight"] = torch.zeros(37, 17)
    path = save(tmp_path / "x.safetensors", state)
    for strict in (True, False):
        model = Model()
        before = snapshot(model)
        with pytest.raises(RuntimeError) as ours:
            mt.load_safetensors(model, path, strict=strict)
        with pytest.raises(RuntimeError) as theirs:
            Model().load_state_dict(state, strict=strict)
        assert str(ours.value) == str(theirs.value)
        assert unchanged(model, before)


def test_arguments(path):
    with pytest.raises(TypeError, match="dtype"):
        mt.load_safetensors(Model(), path, torch.int8)

    class Odd(torch.Tensor):
        pass

    model = Model()
    model.linear.bias = nn.Parameter(torch.zeros(37).as_subclass(Odd))
    with pytest.raises(TypeError, match="linear.bias"):
        mt.load_safetensors(model, path)


# --- memory ---------------------------------------------------------------------------------------

PEAK_PROGRAM = """
import sys
import torch

import memopt.torch as mt


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def reset():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass

path, start, tensors, rows, columns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def make(first):  # something small first, so that libraries and thread pools are there
    with torch.device(start):
        return torch.nn.ParameterList(
            [torch.nn.Parameter(torch.empty(rows, columns, dtype=first)) for _ in range(tensors)]
        )

small = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1024))])
mt.load_safetensors(small, path + ".small", torch.bfloat16)
model = make(torch.bfloat16)
reset()
before = status("VmRSS")
mt.load_safetensors(model, path, torch.bfloat16)
peak = status("VmHWM") - before
total = sum(p.numel() * p.element_size() for p in model.parameters())
assert all(p.dtype == torch.bfloat16 for p in model.parameters())
assert all(float(p.detach()[-1, -1]) == i + 0.5 for i, p in enumerate(model)), "values"
print(total, peak)
"""


def write_large(path, tensors, rows, columns):
    """float32 tensors of i + 0.5, without ever holding one whole."""
    size = 4 * rows * columns
    header = {str(i): item("F32", (rows, columns), (i * size, (i + 1) * size)) for i in range(tensors)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i in range(tensors):
            row = torch.full((columns,), i + 0.5).numpy().tobytes()
            for _ in range(rows):
                file.write(row)
    save(path.with_name(path.name + ".small"), {"0": torch.zeros(1024)})


def measure_peak(tmp_path, start, tensors, rows, columns):
    path = tmp_path / "large.safetensors"
    write_large(path, tensors, rows, columns)
    command = [sys.executable, "-c", PEAK_PROGRAM, str(path), start]
    try:
        done = subprocess.run(
            command + [str(tensors), str(rows), str(columns)], stdout=subprocess.PIPE, check=True, text=True
        )
    finally:
        path.unlink()
    total, peak = map(int, done.stdout.split())
    assert total == 2 * tensors * rows * columns
    return total, peak


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
@pytest.mark.parametrize("start", ["meta", "cpu"])
def test_peak_of_a_large_file(tmp_path, start, record_property):
    """400 MB of float32 into a model of 200 MB: never both."""
    total, peak = measure_peak(tmp_path, start, tensors=4, rows=2500, columns=10000)
    record_property("peak_over_model", peak / total)
    print("model %.1f MB, peak %.1f MB, %.3f of it" % (total / 1e6, peak / 1e6, peak / total))
    assert peak <= 1.1 * total
