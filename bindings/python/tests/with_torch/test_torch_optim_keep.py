"""keep_32bit(): what replaces parameters loses no mark, and a mark without a parameter is told."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt.torch.optim import _keep


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Other tests' marks, whose parameters are gone by now, warn here of nothing."""
    monkeypatch.setattr(_keep, "_marks", [])


def build(device=None):
    return nn.Sequential(nn.Linear(64, 80, device=device), nn.Sequential(nn.Linear(80, 70, device=device)))


def in_32_bits(model, cls=mt.AdamW8bit):
    """The names of parameters whose states a step makes in 32 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = cls(model.parameters(), min_8bit_size=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    found = []
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        if state["exp_avg"].dtype is torch.float32:
            found.append(name)
    return found


def offloaded(params, **options):
    return mt.CPUOffloadOptimizer(params, **options)


@pytest.mark.parametrize("make", [mt.AdamW8bit, offloaded])
def test_a_load_that_assigns(make):
    saved = build().state_dict()
    model = build("meta")
    assert mt.keep_32bit(model, "1.*") == ["1.0.weight", "1.0.bias"]
    model.load_state_dict(saved, assign=True)
    assert in_32_bits(model, make) == ["1.0.weight", "1.0.bias"]


def test_a_deep_copy_has_marks_of_its_own():
    model = build()
    mt.keep_32bit(model[1], "0.weight")
    twin = copy.deepcopy({"model": model})["model"]
    del model
    assert in_32_bits(copy.deepcopy(twin)) == ["1.0.weight"]
    twin.load_state_dict(build().state_dict(), assign=True)
    assert in_32_bits(twin) == ["1.0.weight"]
    twin[0].weight = nn.Parameter(torch.ones(80, 64))  # which was not marked
    twin[1][0].weight = nn.Parameter(torch.ones(70, 80))
    assert in_32_bits(twin) == ["1.0.weight"]


def test_a_model_in_a_file():
    """It has the marks, and needs nothing of this package to be read."""
    model = build()
    mt.keep_32bit(model, "0.weight")
    file = io.BytesIO()
    torch.save(model, file)
    assert b"memopt.torch" not in file.getvalue()
    file.seek(0)
    assert in_32_bits(torch.load(file, weights_only=False)) == ["0.weight"]


def test_fully_shard():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    fsdp = pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = build()
        mt.keep_32bit(model, "*.weight")
        fsdp.fully_shard(model[1], mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        assert in_32_bits(model) == ["0.weight", "1.0.weight"]
        del model
    finally:
        distributed.destroy_process_group()


def test_a_lost_mark_is_told_once():
    model = build()
    mt.keep_32bit(model, "0.weight", "1.*")
    mt.keep_32bit(model[0].bias)
    del model[0].weight
    model[0].weight = torch.zeros(80, 64)
    model[0].bias = nn.Parameter(torch.zeros(80))
    text = r"keep_32bit\(\) marked are gone: 0.weight, one of shape \(80,\)\. If"
    with pytest.warns(UserWarning, match=text) as told:
        mt.AdamW8bit(model.parameters())
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.AdamW8bit(model.parameters())
        del model
        mt.AdamW8bit(build().parameters())  # what an optimizer has had may end


@pytest.mark.parametrize("disk", [False, True])
def test_a_dict_with_codes_that_is_loaded_before_a_step(disk, tmp_path):
    """Also to the host, and to a disk."""
    model = build()
    plain = mt.AdamW8bit(model.parameters(), min_8bit_size=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    plain.step()
    mt.keep_32bit(model, "0.weight")
    optimizer = mt.CPUOffloadOptimizer(model.parameters(), min_8bit_size=1, **({"disk": tmp_path} if disk else {}))
    optimizer.load_state_dict(plain.state_dict())
    states = optimizer.state_dict()["state"]
    assert [states[i]["exp_avg"]["memopt"].dtype for i in range(4)] == [torch.float32] + [torch.uint8] * 3
