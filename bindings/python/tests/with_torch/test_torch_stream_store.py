"""stream_weights(): stores, the model's state, and training on the host."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from stream_models import LAYER, run, same, stack
from torch import nn

import memopt
import memopt.torch as mt
from memopt.torch import blocks


def full():
    """A stack whose layers are trained themselves."""
    return stack(None)


# --- the state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, "disk"])
def test_state_dict_and_loading(store, tmp_path):
    (model, step), (plain, step_plain) = stack(), stack()
    expected = {name: value.clone() for name, value in plain.state_dict().items()}
    mt.stream_weights(model, 2 * LAYER, store=store and "disk:%s" % tmp_path)
    assert os.listdir(tmp_path) == []
    state = model.state_dict()
    assert list(state) == list(expected) and all(map(torch.equal, state.values(), expected.values()))
    assert same(run(model, step), run(plain, step_plain))
    other = {name: value * 0.5 for name, value in expected.items()}
    names = list(other)
    for assign in (False, True):
        for some in (model, plain):
            some.load_state_dict({name: value.clone() for name, value in other.items()}, assign=assign)
        assert same(run(model, step), run(plain, step_plain))
        assert torch.equal(model.state_dict()["5.up.base.weight"], other["5.up.base.weight"])
        other = {name: value * 0.9 for name, value in other.items()}
    del other[names[0]]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(other)
    with pytest.raises(RuntimeError, match="size mismatch for 3.up.base.weight"):
        model.load_state_dict({"3.up.base.weight": torch.zeros(3, 3)}, strict=False)


def test_a_disk_that_is_full(small_disk):
    """What is needed and what is free is said; nothing changes; with room it works."""
    import subprocess

    (model, step), (plain, step_plain) = stack(), stack()
    keys = {name: set(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(memopt.StorageError, match="needs 288.00 KiB, and 64.00 KiB of its file system are free") as told:
        mt.stream_weights(model, LAYER, store="disk:%s" % small_disk)
    assert told.value.errno == errno.ENOSPC
    assert {name: set(vars(module)) for name, module in model.named_modules()} == keys
    assert os.statvfs(small_disk).f_bavail * 4096 == 64 << 10 and os.listdir(small_disk) == []
    subprocess.run(["mount", "-o", "remount,size=1M", str(small_disk)], check=True)
    stream = mt.stream_weights(model, LAYER, store="disk:%s" % small_disk)
    assert same(run(model, step), run(plain, step_plain))
    stream.remove()


@pytest.mark.parametrize("store", [None, "disk"])
def test_from_meta(store, tmp_path):
    plain, step_plain = stack()
    state = plain.state_dict()
    model, _ = stack()
    model.to("meta"), model.eval(), plain.eval()
    stream = mt.stream_weights(model, LAYER, store=store and "disk:%s" % (tmp_path / "weights"))
    x = torch.randn(4, 32)
    assert model(x).isnan().all()  # never loaded
    model.load_state_dict(state)
    assert torch.equal(model(x), plain(x))
    stream.remove()
    assert all(map(torch.equal, model.state_dict().values(), state.values()))


@pytest.mark.parametrize("store", [None, "mxfp8", "disk"])
def test_another_arena(store, tmp_path):
    """Of fewer bytes, and of more; what does not work changes nothing."""
    store = "disk:%s" % (tmp_path / "weights") if store == "disk" else store
    model, step = stack()
    mt.stream_weights(model, 5 * LAYER, store=store)
    expected = run(model, step)
    model, step = stack()
    stream = mt.stream_weights(model, 5 * LAYER, store=store)
    model.load_state_dict(stack()[0].state_dict())
    copies = []
    for budget in (2 * LAYER + 1024, 5 * LAYER):
        stream.resize(budget)
        copies.append(stream.stats()["copies_a_step"])
        held = stream._layers.acquire(stream._layers.all[0])
        with pytest.raises(memopt.BusyError, match="tensors hold those of layers 0"):
            stream.resize(LAYER)
        del held
        with pytest.raises(memopt.LimitReachedError):
            stream.resize(600)
        step().backward()
        model.zero_grad()
        stats = stream.stats()
        assert stats["resident_bytes_peak"] <= stats["budget"] == stream.budget // 512 * 512 <= budget
    assert copies[0] > copies[1] if store != "mxfp8" else copies[0] >= copies[1]
    torch.manual_seed(0)
    assert same(run(model, step), expected)
    stream.remove()
    with pytest.raises(RuntimeError, match="nothing streams any more"):
        stream.resize(LAYER)


def test_a_checkpoint_is_the_store(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    plain, step_plain = stack()
    inner = nn.ModuleDict({"layers": plain})
    whole = nn.ModuleDict({"model": inner})
    path = str(tmp_path / "model.safetensors")
    save_file(whole.state_dict(), path)
    model, step = stack()
    with torch.no_grad():
        model[0].up.base.weight.zero_()  # the file's weights count
    stream = mt.stream_weights(model, 2 * LAYER, store="disk:" + path)
    stats = stream.stats()
    assert stats["host_bytes"] == 0 and stats["disk_bytes"] == stats["layer_bytes"] == 6 * LAYER
    assert same(run(model, step), run(plain, step_plain))
    assert torch.equal(model.state_dict()["0.up.base.weight"], plain[0].up.base.weight)
    with pytest.raises(memopt.UnsupportedError, match="only read"):
        model.load_state_dict({name: value + 1 for name, value in plain.state_dict().items()})
    model.load_state_dict(plain.state_dict())  # what is there
    stream.remove()
    assert torch.equal(model[0].up.base.weight, plain[0].up.base.weight)
    save_file({"layers.0.up.base.weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="0 of the 1 names"):
        mt.stream_weights(model, 2 * LAYER, store="disk:" + path)
    save_file({name: value.half() for name, value in whole.state_dict().items()}, path)
    with pytest.raises(ValueError, match=r"torch.float16 for 0.up.base.weight, which is \[128, 32\] of torch.float32"):
        mt.stream_weights(model, 2 * LAYER, store="disk:" + path)


@pytest.mark.parametrize("own", [False, True])
def test_load_safetensors(own, tmp_path):
    """From meta: what stays is loaded, and what streams unless the file is its store."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    plain, _ = stack()
    path = str(tmp_path / "model.safetensors")
    save_file(plain.state_dict(), path)
    model, _ = stack()
    model.to("meta")
    mt.stream_weights(model, 2 * LAYER, store="disk:" + path if own else None)
    mt.load_safetensors(model, path)
    x = torch.randn(4, 32)
    assert torch.equal(model.eval()(x), plain.eval()(x))


def test_a_file_of_others_is_not_overwritten(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(b"mine")
    model, _ = stack()
    with pytest.raises(FileExistsError):
        mt.stream_weights(model, LAYER, store="disk:%s" % path)
    assert path.read_bytes() == b"mine" and not model[0].up.base.weight.isnan().any()


def test_a_file_that_changes(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, step = stack()
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), str(path))
    mt.stream_weights(model, LAYER, store="disk:%s" % path)
    step().backward()
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.seek(file.tell() // 2)
        file.write(b"\xff" * 4096)
    with pytest.raises(memopt.CorruptError):
        step().backward()


# --- codes ------------------------------------------------------------------------------------------


def rounded(weight, kind):
    if kind == "bf16":
        return weight.bfloat16().float()
    amax = weight.abs().amax().reshape(1) if kind == "nvfp4" else None
    codes, scales = blocks.quantize_blocks(weight, CODES[kind], tensor_amax=amax)
    return blocks.dequantize_blocks(codes, scales, CODES[kind], tensor_amax=amax).view_as(weight)


@torch.no_grad()
def round_frozen(model, kind):
    for p in model.parameters():
        if not p.requires_grad and p.dim() > 1:
            p.copy_(rounded(p, kind))


CODES = {"bf16": None, "mxfp8": "mxfp8_e4m3", "nvfp4": "nvfp4", "nf4": "nf4"}
#: Bytes of a matrix of 128 x 32, and of 32 x 128, with their scales at steps of 256.
CODED = {"bf16": 8192, "mxfp8": 4096 + 256, "nvfp4": 2048 + 256 + 256, "nf4": 2048 + 256}


@pytest.mark.parametrize("kind", sorted(CODES))
def test_codes(kind):
    (model, step), (plain, step_plain) = stack(), stack()
    round_frozen(plain, kind)
    budget = -(-(LAYER + 2 * 3 * CODED[kind]) // 512) * 512
    stream = mt.stream_weights(model, budget, store=kind)
    assert same(run(model, step), run(plain, step_plain))
    stats = stream.stats()
    assert stats["resident_bytes_peak"] == LAYER + 2 * 3 * CODED[kind] <= budget
    assert stats["layer_bytes"] == 6 * 3 * CODED[kind] and "as codes" in stream.table()
    assert stats["copies"] - 2 <= 3 * (2 * 4 + 1)
    state = model.state_dict()
    assert torch.equal(state["4.down.base.weight"], plain[4].down.base.weight)
    half = {name: value * 0.5 for name, value in plain.state_dict().items()}
    model.load_state_dict(half), plain.load_state_dict(half)
    round_frozen(plain, kind)
    assert same(run(model, step), run(plain, step_plain))
    stream.remove()
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))


def test_codes_need_room_for_both():
    model, step = stack()
    with pytest.raises(memopt.LimitReachedError, match="layer 0 has 48.00 KiB .* and codes of"):
        mt.stream_weights(model, LAYER + 3 * CODED["mxfp8"] - 512, store="mxfp8")
    held = []
    mt.stream_weights(model, LAYER + 3 * CODED["mxfp8"] + 256, store="mxfp8")
    model[0].up.base.register_forward_hook(lambda module, *_: held.append(module.weight.t()))
    with pytest.raises(memopt.LimitReachedError, match=r"layer 1 needs .* layers 0 \(.*held"):
        step()


# --- training on the host -----------------------------------------------------------------------------


def train(model, step, parameters, kind, accumulate=1):
    parameters = list(parameters)
    optimizer = kind(parameters, lr=1e-2)
    losses = []
    for _ in range(4):
        for _ in range(accumulate):
            loss = step()
            loss.backward()
            losses.append(loss.detach())
        mt.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("kind", [mt.AdamW, mt.AdamW8bit, torch.optim.AdamW])
@pytest.mark.parametrize("budget, accumulate", [(1.0, 1), (3.0, 3)])
def test_training(kind, budget, accumulate):
    (model, step), (plain, step_plain) = full(), full()
    expected = train(plain, step_plain, plain.parameters(), kind, accumulate)
    stream = mt.stream_weights(model, int(budget * LAYER), train="host")
    hosted = dict(stream.named_parameters())
    assert len(hosted) == 3 * 6
    streamed = {id(p) for name, p in model.named_parameters() if name in hosted}
    parameters = [hosted.get(name, p) for name, p in model.named_parameters()]
    losses = train(model, step, parameters, kind, accumulate)
    assert all(map(torch.equal, losses, expected))
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    stats = stream.stats()
    assert stats["resident_bytes_peak"] <= stats["budget"] <= budget * LAYER
    assert stats["copies"] <= 4 * accumulate * (2 * 6 - int(budget) + 1)  # each step changes all
    assert all(p.grad is None for p in model.parameters() if id(p) in streamed)
    stream.remove()
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert all(map(torch.equal, *(train(m, s, m.parameters(), kind) for m, s in ((model, step), (plain, step_plain)))))


def test_gradients_leave_at_once():
    """While a layer runs backward, no layer above it has a gradient on the device."""
    model, step = full()
    stream = mt.stream_weights(model, LAYER, train="host")
    hosted = dict(stream.named_parameters())
    seen = []
    for number, layer in enumerate(model):
        weights = [p for name, p in model.named_parameters() if name in hosted and int(name[0]) > number]
        layer.norm.register_full_backward_hook(lambda *_, w=weights: seen.extend(p.grad is None for p in w))
    step().backward()
    assert len(seen) == 3 * 15 and all(seen) and all(p.grad is not None for p in stream.parameters())


def test_wrong_ways_to_train():
    model, step = full()
    stream = mt.stream_weights(model, LAYER, train="host")
    wrong = torch.optim.SGD(model.parameters(), lr=0.1)
    step().backward()
    with pytest.raises(RuntimeError, match="the optimizer has 0.up.weight itself"):
        wrong.step()
    loss = step()
    mt.SGD(stream.parameters(), lr=0.1).step()
    with pytest.raises(RuntimeError, match="were changed after the forward"):
        loss.backward()
    stream.remove()
    wrong.step()


def test_changes_of_the_host():
    """What is written between steps is there at the next."""
    (model, step), (plain, step_plain) = full(), full()
    stream = mt.stream_weights(model, 6 * LAYER, train="host")
    step()
    with torch.no_grad():
        for name, p in stream.named_parameters():
            p.mul_(0.5)
            dict(plain.named_parameters())[name].mul_(0.5)
    assert torch.equal(step(), step_plain())
    model.load_state_dict({"0.up.weight": torch.ones(128, 32)}, strict=False)
    plain.load_state_dict({"0.up.weight": torch.ones(128, 32)}, strict=False)
    assert torch.equal(step(), step_plain())
