"""Schedule-free AdamW: its authors' rule in 64 bits, the two modes, and states of theirs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402

from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    drawn,
    fill,
    same_bits,
    snapshot,
    through_a_file,
    twin,
    walk,
)

SHAPES = ((96, 33), (7,), (), (300,))


def parameters(seed=0, shapes=SHAPES, **named):
    return drawn(shapes, seed, **named)


def theirs(start, gradients, lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
           warmup_steps=0, r=0.0, weight_lr_power=2.0, maximize=False):  # fmt: skip
    """y, x and z after these gradients, as the authors' program computes them."""
    y = start.detach().double().clone()
    z, v = y.clone(), torch.zeros_like(y)
    total, most = 0.0, -1.0
    for k, g in enumerate(gradients):
        g = (-g if maximize else g).double()
        rate = lr * (min(1.0, (k + 1) / warmup_steps) if warmup_steps else 1.0)
        most = max(rate, most)
        weight = (k + 1) ** r * most**weight_lr_power
        total += weight
        c = weight / total if total else 0.0
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        u = g / ((v / (1 - betas[1] ** (k + 1))).sqrt() + eps) + weight_decay * y
        y.lerp_(z, c)
        y.add_(u, alpha=rate * (betas[0] * (1 - c) - 1))
        z.sub_(u, alpha=rate)
    return y, y.lerp(z, 1 - 1 / betas[0]), z


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"warmup_steps": 7, "weight_decay": 0.1, "lr": 1e-2},
        {"r": 1.0, "weight_lr_power": 1.0, "maximize": True},
        {"betas": (0.95, 0.9), "eps": 1e-3},
    ],
)
def test_the_rule_is_the_authors(values, device):
    ours = parameters(device=device)
    start = [p.detach().clone() for p in ours]
    optimizer = mt.AdamWScheduleFree(ours, **values)
    seen = [[] for _ in ours]
    for t in range(12):
        fill(ours, t)
        for some, p in zip(seen, ours):
            some.append(p.grad.clone())
        optimizer.step()
    exact = [theirs(p, g, **values) for p, g in zip(start, seen)]
    for p, (y, _, z) in zip(ours, exact):
        torch.testing.assert_close(p.detach().double(), y, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(optimizer.state[p]["z"].double(), z, rtol=1e-5, atol=1e-6)
    optimizer.eval()
    for p, (_, x, _) in zip(ours, exact):
        torch.testing.assert_close(p.detach().double(), x, rtol=1e-5, atol=1e-6)
    optimizer.eval()  # nothing
    optimizer.train()
    for p, (y, _, _) in zip(ours, exact):
        torch.testing.assert_close(p.detach().double(), y, rtol=1e-5, atol=1e-6)


def test_a_rate_that_changes(device):
    """A scheduler of the program's own: the average counts by the largest rate so far."""
    p = parameters(device=device)[0]
    q = p.detach().clone()
    optimizer = mt.AdamWScheduleFree([p], lr=1e-3)
    rates, gradients = (0.0, 1e-3, 4e-3, 2e-3), []
    for t, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = torch.tensor(rate) if t == 2 else rate
        fill([p], t)
        gradients.append(p.grad.clone())
        optimizer.step()
        if t == 0:
            assert same_bits(p, q)
    group = optimizer.param_groups[0]
    assert group["k"] == 4 and group["lr_max"] == pytest.approx(4e-3)
    assert group["weight_sum"] == pytest.approx(1e-6 + 2 * 16e-6)


@pytest.mark.parametrize("seed", range(2))
def test_no_schedule_is_needed(seed, device):
    """A noisy regression at a constant rate: AdamW stays 3.6 to 6 times as far from the solution."""
    ends = []
    for make in (mt.AdamWScheduleFree, mt.AdamW):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4096, 32, generator=generator).to(device)
        truth = torch.randn(32, generator=generator).to(device)
        w = torch.zeros(32, device=device, requires_grad=True)
        optimizer = make([w], lr=0.05, weight_decay=0.0)
        for _ in range(1500):
            rows = torch.randint(0, 4096, (16,), generator=generator).to(device)
            noise = torch.randn(16, generator=generator).to(device)
            w.grad = x[rows].T @ (x[rows] @ w.detach() - x[rows] @ truth - noise) / 16
            optimizer.step()
        if make is mt.AdamWScheduleFree:
            optimizer.eval()
        ends.append(float((w.detach() - truth).norm()))
    assert ends[0] < 0.4 * ends[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train", [False, True])
def test_a_resumed_run_is_the_run(dtype, train, device):
    values = dict(lr=1e-2, warmup_steps=5, stochastic_rounding=dtype is torch.bfloat16)
    params = parameters(dtype=dtype, device=device)
    optimizer = mt.AdamWScheduleFree(params, **values)
    walk(optimizer, params, 3)
    if not train:
        optimizer.eval()
    saved = through_a_file(optimizer.state_dict())
    again = twin(params)
    resumed = mt.AdamWScheduleFree(again, lr=0.5)
    resumed.load_state_dict(saved)
    cloned, clones = copy.deepcopy((optimizer, params))
    assert_same_states(optimizer, resumed, params, again)
    for some, own in ((optimizer, params), (resumed, again), (cloned, clones)):
        some.train()
        walk(some, own, 3, seed=7)
    assert_same_states(optimizer, resumed, params, again)
    assert_same_states(optimizer, cloned, params, clones)
    assert resumed.param_groups[0]["k"] == 6


def test_states_of_the_authors_program(device):
    """They have no count for each parameter, and z has the parameter's type."""
    params = parameters(device=device)
    optimizer = mt.AdamWScheduleFree(params, lr=1e-2)
    walk(optimizer, params, 4)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        del state["step"]
    group = saved["param_groups"][0]
    for key in ("maximize", "min_8bit_size", "seed", "stochastic_rounding"):
        del group[key]
    group["scheduled_lr"] = 1e-2
    again = twin(params)
    resumed = mt.AdamWScheduleFree(again)
    resumed.load_state_dict(saved)
    for some, own in ((optimizer, params), (resumed, again)):
        walk(some, own, 2, seed=9)
    assert_same_states(optimizer, resumed, params, again)


def test_no_step_at_the_average(device):
    params = parameters(device=device)
    optimizer = mt.AdamWScheduleFree(params)
    optimizer.eval()
    optimizer.train()
    walk(optimizer, params, 1)
    optimizer.eval()
    before = snapshot(optimizer, params)
    fill(params, 1)
    with pytest.raises(RuntimeError, match=r"call train\(\) of the AdamWScheduleFree"):
        optimizer.step()
    assert_unchanged(optimizer, params, before)


def test_a_scaler_unscales_and_skips(device):
    params, plain = parameters(device=device), parameters(device=device)
    a, b = mt.AdamWScheduleFree(params), mt.AdamWScheduleFree(plain)
    scale = mt.GradScaler(device=device.type, init_scale=1024.0)
    scale.scale(torch.zeros((), device=device))
    for t in range(3):
        fill(plain, t)
        for p, q in zip(params, plain):
            p.grad = q.grad * scale.get_scale()
        if t == 1:
            params[0].grad[3, 4] = float("inf")
        else:
            b.step()
        scale.step(a)
        scale.update()
    assert a.param_groups[0]["k"] == 2
    assert_same_states(a, b, params, plain)


def test_steps_in_backward(device):
    params, plain = parameters(device=device), parameters(device=device)
    a, b = mt.AdamWScheduleFree(params), mt.AdamWScheduleFree(plain)
    mt.release_gradients(a)
    for _ in range(3):
        sum(p.pow(3).sum() for p in params).backward()
        a.step()
        sum(p.pow(3).sum() for p in plain).backward()
        b.step()
        b.zero_grad()
    assert_same_states(a, b, params, plain)
    assert a.param_groups[0]["k"] == 3


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(device=device)
    optimizer = mt.AdamWScheduleFree(params)
    walk(optimizer, params, 1)
    for other in (mt.SGD8bit(params, momentum=0.9), mt.AdamW(params), mt.Adafactor(params)):
        walk(other, params, 1)
        before = snapshot(optimizer, params)
        with pytest.raises(ValueError, match="not of schedule-free AdamW"):
            optimizer.load_state_dict(other.state_dict())
        assert_unchanged(optimizer, params, before)
        with pytest.raises(ValueError, match="schedule-free AdamW|another rule"):
            other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    "values, text",
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (0.0, 0.9)}, "index 0: 0.0; the average needs more"),
        ({"betas": (0.9, 1.0)}, "index 1: 1.0"),
        ({"warmup_steps": -1}, "Invalid warmup_steps value: -1"),
        ({"r": float("nan")}, "Invalid r value: nan"),
        ({"split_weights": True}, "does not support split_weights=True"),
    ],
)
def test_values(values, text):
    optimizer = mt.AdamWScheduleFree(parameters())
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": parameters(), **values})
    assert len(optimizer.param_groups) == 1


def test_what_it_is_not_for(device):
    params = parameters(device=device)
    with pytest.raises(TypeError, match="cannot step on the host"):
        mt.CPUOffloadOptimizer(params, mt.AdamWScheduleFree)
    with pytest.raises(TypeError, match="bitsandbytes has no AdamWScheduleFree"):
        mt.to_bitsandbytes(mt.AdamWScheduleFree(params))
