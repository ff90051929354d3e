"""Bad input, item by item: an exception of the type that torch raises, which names what is meant, and
a model and an optimizer that are as they were.

Parameters and gradients of types and layouts that an optimizer does not take, and hyperparameters out
of range, are in test_torch_optim_refusals.py; damaged state dicts also in test_torch_optim_states.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import memopt.torch as mt
from optim_support import assert_unchanged, fill, kinds, make, parameters, snapshot, walk

SHAPES = ((50, 100), (60, 100))
LEAST = 65792  # bytes that the chains below need


def free(tensor):
    """As what empties a storage by hand: the tensor keeps its shape, and has no memory."""
    tensor.untyped_storage().resize_(0)


# --- tensors of another device, and without contents ----------------------------------------------


def test_cast_and_accumulate_on_two_devices():
    here, there = torch.ones(9), torch.ones(9, device="meta")
    with pytest.raises(TypeError, match="source 0 is .* on meta"):
        mt.cast_(here, there)
    with pytest.raises(TypeError, match="destination 0 is .* on meta"):
        mt.cast_(there, here)
    with pytest.raises(TypeError, match="gradient 0 is .* on meta"):
        mt.cast.accumulate_(here, there)
    assert torch.equal(here, torch.ones(9))


@kinds
def test_a_state_on_another_device(kind):
    params = parameters(shapes=SHAPES)
    optimizer = make(kind, params)
    walk(optimizer, params, 1)
    name = next(key for key in optimizer.state[params[1]] if key != "step")
    kept = optimizer.state[params[1]][name]
    optimizer.state[params[1]][name] = kept.to("meta")
    before = [p.detach().clone() for p in params]
    fill(params, 1)
    with pytest.raises((RuntimeError, ValueError), match="parameter 1 of group 0"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before))
    optimizer.state[params[1]][name] = kept
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [2, 2]


def test_a_budget_without_memory_to_measure():
    chain = nn.Sequential(*(nn.Linear(8, 8, device="meta") for _ in range(3)))
    x = torch.randn(2, 8, device="meta", requires_grad=True)
    with pytest.raises(TypeError, match="the input is on meta; with a budget"):
        mt.checkpoint_sequential(chain, x, budget="1MiB")
    mt.checkpoint_sequential(chain, 2, x).sum().backward()  # torch's form needs no measuring
    assert x.grad.is_meta


def test_a_state_dict_of_meta_tensors_is_refused():
    params = parameters(shapes=SHAPES)
    optimizer = mt.AdamW8bit(params)
    walk(optimizer, params, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    entry = saved["state"][1]["exp_avg"]
    entry["memopt"] = entry["memopt"].to("meta")
    before = snapshot(optimizer, params)
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)):
        optimizer.load_state_dict(saved)
    assert_unchanged(optimizer, params, before)


# --- freed storages -------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("what", ["gradient", "parameter", "state"])
@pytest.mark.parametrize("steps", [0, 1])
def test_freed_memory_of_an_optimizer(kind, what, steps, device):
    """Nothing is stepped, not even the parameters that are whole."""
    params = parameters(device, shapes=SHAPES)
    optimizer = make(kind, params)
    if steps == 0 and what == "state":
        pytest.skip("there is none yet")
    walk(optimizer, params, steps)
    fill(params, 7)
    state = optimizer.state[params[1]] if steps else {}
    name = next((key for key in state if key != "step"), None)
    victim = {"gradient": params[1].grad, "parameter": params[1], "state": state.get(name)}[what]
    kept = victim.detach().clone()
    first = params[0].detach().clone()
    free(victim)
    with pytest.raises((RuntimeError, ValueError), match="parameter 1 of group 0"):
        optimizer.step()
    assert torch.equal(params[0], first)
    victim.untyped_storage().resize_(kept.untyped_storage().nbytes())
    with torch.no_grad():
        victim.copy_(kept)
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [steps + 1, steps + 1]


def test_freed_gradients_of_a_scaler_and_of_clipping(device):
    params = parameters(device, shapes=SHAPES)
    fill(params, 1)
    whole = params[0].grad.clone()
    scaler = mt.GradScaler(device.type, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))
    optimizer = torch.optim.SGD(params, lr=1.0)
    before = [p.detach().clone() for p in params]
    free(params[1].grad)
    with pytest.raises((RuntimeError, ValueError), match=r"tensors\[1\]|parameter 1|\[1\]"):
        scaler.unscale_(optimizer)
    with pytest.raises((RuntimeError, ValueError), match=r"tensors\[1\]|parameter 1|\[1\]"):
        mt.clip_grad_norm_(params, 1e-3)
    assert torch.equal(params[0].grad, whole)
    assert all(torch.equal(p, q) for p, q in zip(params, before))


def test_freed_sources_of_casts(device):
    whole = [torch.ones(5000, device=device) for _ in range(2)]
    freed = [torch.ones(5000, device=device) for _ in range(2)]
    free(freed[1])
    with pytest.raises((RuntimeError, ValueError), match=r"sources\[1\]|source 1"):
        mt.cast_([w.clone() for w in whole], freed)
    with pytest.raises((RuntimeError, ValueError), match=r"sources\[1\]|gradient 1"):
        mt.cast.accumulate_(whole, freed)
    assert all(torch.equal(w, torch.ones_like(w)) for w in whole)


class FreedInside(torch.autograd.Function):
    """Saves a tensor without memory, as layers of sharding engines do between their uses."""

    @staticmethod
    def forward(ctx, x):
        inner = x.clone()
        free(inner)
        ctx.save_for_backward(inner)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (inner,) = ctx.saved_tensors
        assert inner.shape == gradient.shape
        return gradient * 2


def test_a_saved_tensor_without_memory(device):
    """It is nobody's error: whoever emptied it may fill it again before it is used."""
    x = torch.ones(5000, device=device, requires_grad=True)
    with mt.save_on_cpu(device_type=device.type):
        y = FreedInside.apply(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))
    mt.checkpoint(FreedInside.apply, x).sum().backward()
    with pytest.raises(RuntimeError, match="saved tensor .*storage was freed"):
        mt.checkpoint(FreedInside.apply, x, determinism_check="hash")


# --- leaves changed in place between forward and backward -----------------------------------------


@pytest.mark.parametrize("saver", ["none", "save_on_cpu", "checkpoint", "chain", "segments"])
def test_a_leaf_changed_in_place(saver, device):
    """Torch's exception and words, with the versions; no gradient is given to anyone."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)))
    layers.to(device)
    x = torch.randn(32, 64, device=device, requires_grad=True)
    if saver == "save_on_cpu":
        with mt.save_on_cpu(device_type=device.type, min_bytes=1 << 20):  # it is kept, being small
            y = layers(x.sin())
    elif saver == "checkpoint":
        y = mt.checkpoint(layers, x)
    elif saver == "segments":
        y = mt.checkpoint_sequential(layers, 2, x)
    elif saver == "chain":
        y = mt.checkpoint_sequential(layers, x, budget=LEAST)
    else:
        y = layers(x.sin())
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place|modified by an inplace operation.*version"):
        y.sum().backward()
    assert x.grad is None


def test_a_scaler_s_dict_that_lacks_something_changes_nothing(device):
    scaler = mt.GradScaler(device.type, init_scale=8.0)
    before = scaler.state_dict()
    for missing in before:
        damaged = {k: v * 2 for k, v in before.items() if k != missing}
        with pytest.raises(KeyError, match=missing):
            mt.GradScaler(device.type).load_state_dict(damaged)
    assert scaler.state_dict() == before
