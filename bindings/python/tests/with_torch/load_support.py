"""What the tests of load_safetensors() share: a writer of files, and a model."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def raw_bytes(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def file_of(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def save(path, tensors):
    """A writer of our own: the format as its description says."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        part = raw_bytes(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    path.write_bytes(file_of(header, data))
    return path


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(37, 16)
        self.linear = nn.Linear(16, 37)
        self.norm = nn.BatchNorm1d(37)
        self.register_buffer("table", torch.arange(5, dtype=torch.int64))
        self.register_buffer("private", torch.ones(3), persistent=False)
        if tied:
            self.linear.weight = self.embedding.weight


@pytest.fixture
def source():
    return Model()


@pytest.fixture
def path(tmp_path, source):
    return save(tmp_path / "model.safetensors", source.state_dict())


def item(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def snapshot(model):
    return [(id(p), p.dtype, p.detach().clone()) for p in model.state_dict(keep_vars=True).values()]


def unchanged(model, before):
    now = snapshot(model)
    return all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(before, now))
