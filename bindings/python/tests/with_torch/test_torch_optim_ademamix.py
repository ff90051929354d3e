"""AdEMAMix: the rule in 64 bits, bitsandbytes' class, and the manners of the other optimizers."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402
import optim_rules  # noqa: E402
from memopt.torch._live_bytes import LiveBytes  # noqa: E402

from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    drawn,
    fill,
    snapshot,
    twin,
    walk,
)

SHAPES = ((33, 129), (7,), (), (3, 4, 5))


def parameters(seed=0, shapes=SHAPES, **named):
    return drawn(shapes, seed, **named)


class Rule:
    """The paper's, in 64 bits."""

    def __init__(self, p, lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, t_alpha=None, t_beta3=None,
                 eps=1e-8, weight_decay=1e-2, maximize=False):  # fmt: skip
        self.p = p.detach().double().clone()
        self.m1, self.m2, self.v = (torch.zeros_like(self.p) for _ in range(3))
        self.t, self.values = 0, (float(lr), betas, alpha, t_alpha, t_beta3, eps, weight_decay)
        self.sign = -1 if maximize else 1

    def step(self, g):
        lr, (beta1, beta2, beta3), alpha, t_alpha, t_beta3, eps, decay = self.values
        g, self.t = self.sign * g.double(), self.t + 1
        if t_alpha and self.t < t_alpha:
            alpha = alpha * self.t / t_alpha
        if t_beta3 and self.t < t_beta3:
            start, end, done = math.log(beta1), math.log(beta3), self.t / t_beta3
            beta3 = math.exp(start * end / ((1 - done) * end + done * start))
        self.m1 = beta1 * self.m1 + (1 - beta1) * g
        self.m2 = beta3 * self.m2 + (1 - beta3) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        root = (self.v / (1 - beta2**self.t)).sqrt()
        update = (self.m1 / (1 - beta1**self.t) + alpha * self.m2) / (root + eps)
        self.p = self.p - lr * (update + decay * self.p)


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"weight_decay": 0.1, "maximize": True, "lr": torch.tensor(0.03)},
        {"t_alpha": 8, "t_beta3": 8},  # fewer than the steps
        {"t_alpha": 100, "t_beta3": 50, "betas": (0.8, 0.99, 0.999), "alpha": 8.0},
        {"alpha": 0.0, "eps": 1e-2, "weight_decay": 0.0},
    ],
)
def test_the_rule(values, device):
    """Within fp32's error."""
    values = {"lr": 0.02, **values}
    params = parameters(device=device)
    start = [p.detach().double().clone() for p in params]
    optimizer, rules = mt.optim.AdEMAMix(params, **values), [Rule(p, **values) for p in params]
    for t in range(20):
        fill(params, t)
        for p, rule in zip(params, rules):
            rule.step(p.grad)
        optimizer.step()
    for p, rule, old in zip(params, rules, start):
        moved = (rule.p - old).norm()
        assert float((p.detach().double() - rule.p).norm() / moved) < 2e-5
        state = optimizer.state[p]
        for key, exact in (("exp_avg", rule.m1), ("exp_avg_slow", rule.m2), ("exp_avg_sq", rule.v)):
            torch.testing.assert_close(state[key].double(), exact, rtol=1e-5, atol=1e-8)


def test_the_rule_of_the_cases():
    (p,) = parameters(shapes=((9, 8),))
    for values in ({}, {"t_alpha": 4, "t_beta3": 6}, {"t_alpha": 30, "t_beta3": 20}):
        group = mt.optim.AdEMAMix([p], lr=0.1, **values).param_groups[0]
        rule, known = Rule(p, lr=0.1, **values), optim_rules.Rule("ademamix", p)
        for t in range(10):
            fill([p], t)
            rule.step(p.grad)
            known.step(p.grad, group)
        torch.testing.assert_close(known.p, rule.p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixed, plain", [(mt.optim.AdEMAMix, mt.AdamW), (mt.bnb.AdEMAMix8bit, mt.AdamW8bit)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_the_slow_mean_it_is_adamw(mixed, plain, dtype, device):
    """In all bits, with stochastic rounding as well."""
    shapes = (*SHAPES, (64, 129))
    ours, theirs = (drawn(shapes, 0, dtype, device) for _ in range(2))
    options = dict(lr=1e-2, stochastic_rounding=dtype is torch.bfloat16)
    walk(mixed(ours, alpha=0.0, **options), ours, 10)
    walk(plain(theirs, **options), theirs, 10)
    for p, q in zip(ours, theirs):
        assert torch.equal(p, q)


def test_a_grad_scaler_skips_on_the_device():
    """The step reads scale and verdict: nothing changes, nor does the count."""
    params = parameters()
    optimizer = mt.optim.AdEMAMix(params)
    walk(optimizer, params, 2)
    before = snapshot(optimizer, params)
    fill(params, 3)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    optimizer.step()
    assert_unchanged(optimizer, params, before)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [3] * len(params)


@pytest.mark.parametrize("values", [{}, {"t_alpha": 4, "t_beta3": 12, "weight_decay": 0.1}])
def test_between_ours_and_bitsandbytes(values):
    """The same steps within fp32's error, before and after the states go each way."""
    bnb = pytest.importorskip("bitsandbytes")
    ours, theirs = parameters(), parameters()
    a, b = mt.optim.AdEMAMix(ours, **values), bnb.optim.AdEMAMix(theirs, **values)
    walk(a, ours, 3)
    walk(b, theirs, 3)
    there, here = twin(ours), twin(theirs)
    c, d = bnb.optim.AdEMAMix(there), mt.optim.AdEMAMix(here, lr=0.5)
    c.load_state_dict(mt.to_bitsandbytes(a))
    d.load_state_dict(b.state_dict())
    assert d.param_groups[0]["lr"] == 1e-3 and int(d.state[here[0]]["step"]) == 3
    for optimizer, own in ((a, ours), (b, theirs), (c, there), (d, here)):
        walk(optimizer, own, 3, seed=5)
    for p, others in zip(ours, zip(theirs, there, here)):
        for other in others:
            torch.testing.assert_close(p, other, rtol=1e-5, atol=1e-6)


def test_8_bits_follow_the_rule(device):
    params = parameters(device=device, shapes=((64, 129), (7,)))
    start = [p.detach().double().clone() for p in params]
    optimizer, rules = mt.bnb.AdEMAMix8bit(params, lr=0.02), [Rule(p, lr=0.02) for p in params]
    for t in range(100):
        fill(params, t)
        for p, rule in zip(params, rules):
            rule.step(p.grad)
        optimizer.step()
    for p, rule, old, bound in zip(params, rules, start, (0.03, 2e-5)):  # 7 elements have 32 bits
        apart = float((p.detach().double() - rule.p).norm() / (rule.p - old).norm())
        assert apart < bound and (apart > 1e-4) == (p.numel() > 7)


def test_8_bits_between_ours_and_bitsandbytes():
    """Codes and scales go each way as they are; a step from them is the rule's."""
    bnb = pytest.importorskip("bitsandbytes")
    ours = parameters(shapes=((64, 129), (7,)))
    a = mt.bnb.AdEMAMix8bit(ours)
    walk(a, ours, 3)
    there, here, wide = twin(ours), twin(ours), twin(ours)
    c, d, e = bnb.optim.AdEMAMix8bit(there), mt.bnb.AdEMAMix8bit(here), mt.optim.AdEMAMix(wide)
    c.load_state_dict(mt.to_bitsandbytes(a))
    d.load_state_dict(c.state_dict())
    assert_same_states(a, d, ours, here)
    e.load_state_dict(c.state_dict())
    for optimizer, own in ((a, ours), (c, there), (e, wide)):
        walk(optimizer, own, 1, seed=5)
    for p, q, r in zip(ours, there, wide):
        torch.testing.assert_close(p, r, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make, each", [(mt.optim.AdEMAMix, 12), (mt.bnb.AdEMAMix8bit, 3 + 12 / 256)])
def test_bytes(make, each, device):
    (p,) = parameters(shapes=((2048, 1024),), device=device)
    optimizer = make([p])
    fill([p], 0)
    with LiveBytes([p, p.grad]) as live:
        optimizer.step()
        assert live.live == each * p.numel() + 8
    assert device.type != "cpu" or live.peak < (each + 5) * p.numel()


# --- state dicts ----------------------------------------------------------------------------------


def test_states_that_do_not_fit_are_refused(device):
    params = parameters(device=device)
    optimizer = mt.optim.AdEMAMix(params)
    walk(optimizer, params, 1)
    before = snapshot(optimizer, params)
    codes = {"step": 1, "state1": torch.zeros(2, 7).byte(), "state2": torch.zeros(7).byte()}
    for change, text in (
        (lambda s: s[0].pop("exp_avg_slow"), "parameter 0 of group 0 has no exp_avg_slow"),
        (lambda s: s[1].update(exp_avg_sq=torch.zeros(8)), r"exp_avg_sq of parameter 1 .* \(8,\)"),
        (lambda s: s.update({1: codes}), "parameter 1 of group 0 has no absmax1"),
        (lambda s: s.update({1: {**codes, "state1": None}}), "parameter 1 of group 0 has no state1"),
    ):
        saved = copy.deepcopy(optimizer.state_dict())
        change(saved["state"])
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(saved)
        assert_unchanged(optimizer, params, before)


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(shapes=((8, 9), (5, 6)), device=device)
    optimizer = mt.optim.AdEMAMix(params)
    walk(optimizer, params, 1)
    for other in (mt.SGD8bit(params, momentum=0.9), mt.AdamW(params), mt.Muon(params),
                  mt.Adafactor(params), mt.AdamWScheduleFree(params)):  # fmt: skip
        walk(other, params, 1)
        before = snapshot(optimizer, params)
        with pytest.raises(ValueError, match="not of AdEMAMix: group 0 has no three betas"):
            optimizer.load_state_dict(other.state_dict())
        assert_unchanged(optimizer, params, before)
        with pytest.raises(ValueError, match="another rule|is of AdEMAMix, not of"):
            other.load_state_dict(optimizer.state_dict())


# --- manners --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, text",
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (0.9, 0.999)}, "three numbers"),
        ({"betas": (0.9, 0.999, 1.0)}, "Invalid beta parameter at index 2: 1.0"),
        ({"betas": (0.0, 0.9, 0.9), "t_beta3": 5}, "t_beta3 needs two above 0"),
        ({"alpha": -1.0}, "Invalid alpha value: -1.0"),
        ({"t_alpha": 0}, "Invalid t_alpha value: 0"),
        ({"t_beta3": float("inf")}, "Invalid t_beta3 value: inf"),
        ({"eps": float("nan")}, "Invalid epsilon value: nan"),
        ({"weight_decay": -0.5}, "Invalid weight_decay value: -0.5"),
        ({"seed": -1}, "Invalid seed value: -1"),
    ],
)
def test_values(values, text):
    optimizer = mt.optim.AdEMAMix(parameters())
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": parameters(), **values})
    assert len(optimizer.param_groups) == 1


def test_what_it_cannot_take(device):
    params = parameters(device=device)
    flat = torch.zeros(20, requires_grad=True)
    flat._fsdp_flattened = True
    with pytest.raises(TypeError, match="needs whole parameters"):
        mt.optim.AdEMAMix([flat])
