"""load_safetensors(): malformed files are told before anything is changed."""

from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt.torch import load as load_module
from load_support import file_of, item, path, save, snapshot, unchanged  # noqa: F401


GOOD = {"x": item(), "y": item("BF16", (3,), (8, 14))}
HUGE = 1 << 62

MALFORMED = {
    "empty": (b"", "0 bytes"),
    "seven bytes": (b"\1\0\0\0\0\0\0", "7 bytes"),
    "header beyond the file": (file_of(GOOD, bytes(14), length=4000), "4000"),
    "header of 2^64 - 1": (file_of(GOOD, bytes(14), length=(1 << 64) - 1), "header"),
    "not a JSON": (file_of(b'{"x": ', b""), "malformed"),
    "not UTF-8": (file_of(b'{"\xff": 1}', b""), "malformed"),
    "deep": (file_of(b"[" * 200000, b""), "malformed"),
    "a list": (file_of([1], b""), "not a JSON object"),
    "an empty header": (file_of(b"", b""), "malformed"),
    "a name twice": (
        file_of(json.dumps(GOOD)[:-1].encode() + b', "x": ' + json.dumps(item()).encode() + b"}", bytes(14)),
        "'x' occurs twice",
    ),
    "is missing": (file_of({"x": 3}, b""), "'x'"),
    "a field is missing": (file_of({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)), "'x'"),
    "a field too many": (file_of({"x": dict(item(), strange=1)}, bytes(8)), "'x'"),
    "unknown type": (file_of({"x": item("F31")}, bytes(8)), "'F31'"),
    "type of a wrong kind": (file_of({"x": item(["F32"])}, bytes(8)), "unknown"),
    "negative size": (file_of({"x": item(shape=(-2,))}, bytes(8)), "shape"),
    "real size": (file_of({"x": item(shape=(2.0,))}, bytes(8)), "shape"),
    "true as a size": (file_of({"x": item(shape=(True, 2))}, bytes(8)), "shape"),
    "too many dimensions": (file_of({"x": item(shape=[1] * 65 + [2])}, bytes(8)), "shape"),
    "sizes overflow": (file_of({"x": item(shape=(HUGE, 4, 2))}, bytes(8)), "needs"),
    "range runs back": (file_of({"x": item(offsets=(8, 0))}, bytes(8)), "not a range"),
    "range of three": (file_of({"x": item(offsets=(0, 8, 8))}, bytes(8)), "not a range"),
    "negative range": (file_of({"x": item(offsets=(-8, 0))}, bytes(8)), "not a range"),
    "range too short": (file_of({"x": item(offsets=(0, 7))}, bytes(8)), "needs 8 bytes"),
    "range out of the file": (file_of({"x": item(), "y": item("F32", (2,), (8, 16))}, bytes(15)), "cut off"),
    "range far out": (file_of({"x": item("U8", (1 << 40,), (0, 1 << 40))}, bytes(8)), "cut off"),
    "cut off": (file_of(GOOD, bytes(14))[:-1], "cut off"),
    "cut off in the header": (file_of(GOOD, b"")[:-3], "header"),
    "overlap": (file_of({"x": item(), "y": item("F32", (2,), (4, 12))}, bytes(12)), "overlap"),
    "the same range": (file_of({"x": item(), "y": item()}, bytes(8)), "overlap"),
    "a gap": (file_of({"x": item(), "y": item("F32", (2,), (12, 20))}, bytes(20)), "belong to no tensor"),
    "more data": (file_of(GOOD, bytes(15)), "belong to no tensor"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(tmp_path, case):
    content, text = MALFORMED[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    model = nn.ParameterDict({"x": nn.Parameter(torch.ones(2)), "y": nn.Parameter(torch.ones(3))})
    before = snapshot(model)
    with pytest.raises(ValueError, match=text):
        mt.load_safetensors(model, path, strict=False)
    assert unchanged(model, before)


def test_the_good_one_loads(tmp_path):
    path = tmp_path / "good.safetensors"
    path.write_bytes(file_of(GOOD, bytes(14)))
    model = nn.ParameterDict({"x": nn.Parameter(torch.ones(2)), "y": nn.Parameter(torch.ones(3))})
    mt.load_safetensors(model, path)
    assert not any(p.any() for p in model.parameters())


def test_every_cut_of_a_file_is_told(tmp_path):
    whole = file_of(GOOD, bytes(14))
    path = tmp_path / "cut.safetensors"
    model = nn.ParameterDict({"x": nn.Parameter(torch.ones(2)), "y": nn.Parameter(torch.ones(3))})
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            mt.load_safetensors(model, path)
    assert all(bool(p.all()) for p in model.parameters())


def test_random_damage_never_loads_what_is_not_there(tmp_path):
    """Bytes of the header changed: either told, or a header that is right all the same."""
    whole = file_of(GOOD, bytes(range(14)))
    path = tmp_path / "hit.safetensors"
    generator = torch.Generator().manual_seed(7)
    refused = 0
    for _ in range(600):
        content = bytearray(whole)
        at = int(torch.randint(len(whole) - 14, (), generator=generator))
        content[at] = int(torch.randint(256, (), generator=generator))
        path.write_bytes(content)
        model = nn.ParameterDict({k: nn.Parameter(torch.ones(n)) for k, n in (("x", 2), ("y", 3))})
        try:
            mt.load_safetensors(model, path, strict=False)
        except (ValueError, RuntimeError):
            refused += 1
            assert all(bool(p.all()) for p in model.parameters())
    assert refused > 300


def test_a_file_that_shrinks_under_us(tmp_path, monkeypatch):
    path = save(tmp_path / "x.safetensors", {"x": torch.ones(100)})
    read = load_module._safetensors.read_header

    def and_cut(name):
        entries = read(name)
        os.truncate(name, 200)
        return entries

    monkeypatch.setattr(load_module._safetensors, "read_header", and_cut)
    model = nn.ParameterDict({"x": nn.Parameter(torch.zeros(100))})
    with pytest.raises(OSError, match="ended while it was read"):
        mt.load_safetensors(model, path)
