"""Optimizers for torch: steps in backward, with the gradients freed."""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from optim_support import coded, every, make, same_bits


def model_of(device, dtype=torch.float32, bias=True):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(80, 80, bias=bias) for _ in range(4)]
    return torch.nn.Sequential(*layers).to(device, dtype)


def loss_of(model, seed):
    p = next(model.parameters())
    x = torch.randn(5, 80, generator=torch.Generator().manual_seed(seed)).to(p)
    return model(x).float().square().mean()


def same_run(a, b, first, second):
    for p, q in zip(first.parameters(), second.parameters()):
        assert same_bits(p, q)
        assert all(same_bits(a.state[p][key], b.state[q][key]) for key in b.state[q])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_are_those_of_a_step_after_backward(kind, dtype, device):
    """And no two gradients live at once; a scheduler works; it can end and begin again."""
    model = model_of(device, dtype, bias=not kind.startswith("Muon"))
    other = copy.deepcopy(model)
    options = dict(lr=1e-2, stochastic_rounding=dtype is torch.bfloat16, seed=3)
    a = make(kind, model.parameters(), **options)
    b = make(kind, other.parameters(), **options)
    live = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: live.append(sum(q.grad is not None for q in model.parameters())))
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (a, b)]
    release = mt.release_gradients(a)
    for seed in range(4):
        loss_of(model, seed).backward()
        assert seed == 2 or all(p.grad is None for p in model.parameters())
        a.step()
        loss_of(other, seed).backward()
        b.step()
        for optimizer, schedule in zip((a, b), schedules):
            optimizer.zero_grad()
            schedule.step()
        if seed == 1:
            assert live == [1] * 2 * len(list(model.parameters()))
            release.remove()
        elif seed == 2:
            mt.release_gradients(a)
        same_run(a, b, model, other)


def test_gradients_that_accumulate(device):
    model = model_of(device)
    other = copy.deepcopy(model)
    a = mt.AdamW8bit(model.parameters(), lr=1e-2)
    b = mt.AdamW8bit(other.parameters(), lr=1e-2)
    release = mt.release_gradients(a)
    for round_ in range(2):
        with release.accumulate():
            loss_of(model, 2 * round_).backward()
        assert all(p.grad is not None for p in model.parameters())
        loss_of(model, 2 * round_ + 1).backward()
        assert all(p.grad is None for p in model.parameters())
        a.step()
        for micro in range(2):
            loss_of(other, 2 * round_ + micro).backward()
        b.step()
        b.zero_grad()
        same_run(a, b, model, other)


@coded
def test_clipping_by_the_measured_norm(kind, device):
    """To the nearest code: low bits of what is clipped draw the others, and the two clip in other operations."""
    model = model_of(device)
    other = copy.deepcopy(model)
    nearest = {"codes": "dynamic"} if kind.endswith("8bit") else {}
    a = make(kind, model.parameters(), lr=1e-2, **nearest)
    b = make(kind, other.parameters(), lr=1e-2, **nearest)
    release = mt.release_gradients(a, max_norm=0.01)
    for seed in range(3):
        loss = loss_of(model, seed)
        with pytest.raises(RuntimeError, match="no norm is known"):
            loss.backward(retain_graph=True)
        before = [p.detach().clone() for p in model.parameters()]
        model.zero_grad()
        with release.measure():
            loss.backward(retain_graph=True)
        assert all(same_bits(p, q) for p, q in zip(model.parameters(), before))
        assert all(p.grad is None for p in model.parameters())
        loss.backward()
        loss_of(other, seed).backward()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01)
        assert norm > 0.01 and abs(release.norm - norm) <= 1e-5 * norm
        a.step()
        b.step()
        b.zero_grad()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.allclose(p, q, rtol=0, atol=2e-4)


def test_a_norm_that_is_not_finite_skips_the_steps(device):
    model = model_of(device)
    optimizer = mt.AdamW8bit(model.parameters(), lr=1e-2)
    release = mt.release_gradients(optimizer, max_norm=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    loss = loss_of(model, 0) * float("inf")
    with release.measure():
        loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    assert all(same_bits(p, q) for p, q in zip(model.parameters(), before))
    assert all(int(optimizer.state[p]["step"]) == 0 for p in model.parameters())


def test_clipping_by_the_previous_norm(device):
    """SGD's step shows by how much: the gradient of a sum does not change."""
    p = torch.zeros(100, device=device, requires_grad=True)
    optimizer = mt.SGD([p], lr=1.0)
    release = mt.release_gradients(optimizer, max_norm=1.0, norm="previous")
    steps = []
    for factor in (1.0, 1.0, 3.0, float("inf"), 1.0):
        before = p.detach().clone()
        (factor * p).sum().backward()
        optimizer.step()
        steps.append(float((before - p.detach())[0]))
    assert steps == pytest.approx([1.0, 0.1, 0.3, 0.0, 1 / 30], rel=1e-5)
    assert float(release.norm) == pytest.approx(10.0)


def test_what_is_refused(device):
    p = torch.zeros(10, device=device, requires_grad=True)
    optimizer = mt.AdamW([p])
    with pytest.raises(TypeError, match="Adam is not"):
        mt.release_gradients(torch.optim.Adam([p]))
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="Invalid max_norm"):
            mt.release_gradients(optimizer, max_norm=bad)
    with pytest.raises(ValueError, match="Invalid norm: 'last'"):
        mt.release_gradients(optimizer, max_norm=1.0, norm="last")
    release = mt.release_gradients(optimizer)
    with pytest.raises(RuntimeError, match="needs max_norm"):
        with release.measure():
            pass
    release.remove()
    p.grad = torch.ones_like(p)
    measured = mt.release_gradients(optimizer, max_norm=1.0)
    with pytest.raises(RuntimeError, match="accumulated"):
        with measured.measure():
            pass
