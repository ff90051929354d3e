"""LAMB and LARS: the rules in 64 bits, 8-bit states, bitsandbytes' dicts, manners."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402
from memopt.torch.optim import _whole  # noqa: E402

from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    drawn,
    fill,
    snapshot,
    through_a_file,
    twin,
    walk,
)

SHAPES = ((64, 129), (7,), (3, 4, 5))
MAKERS = {"LAMB": (mt.optim.LAMB, mt.bnb.LAMB8bit), "LARS": (mt.optim.LARS, mt.bnb.LARS8bit)}


def parameters(device="cpu", **named):
    params = drawn(SHAPES, device=device, **named)
    with torch.no_grad():
        params[1].zero_()  # its updates are taken as they are
    return params


class Rule:
    """The rule in 64 bits."""

    def __init__(self, name, p, lr, betas=(0.9, 0.999), eps=1e-8, bias_correction=True, momentum=0.9,
                 dampening=0.0, nesterov=False, weight_decay=0.0, max_unorm=None, trust_clip=True,
                 maximize=False):  # fmt: skip
        self.name, self.p, self.t = name, p.detach().double().clone(), 0
        self.m, self.v = torch.zeros_like(self.p), torch.zeros_like(self.p)
        self.values = (lr, betas, eps, bias_correction, momentum, dampening, nesterov, weight_decay)
        self.most = (1.0 if name == "LAMB" else 0.02) if max_unorm is None else max_unorm
        self.clip, self.sign = trust_clip, -1 if maximize else 1

    def step(self, g):
        lr, (beta1, beta2), eps, correct, momentum, dampening, nesterov, decay = self.values
        g, self.t = self.sign * g.double(), self.t + 1
        if self.name == "LAMB":
            self.m = beta1 * self.m + (1 - beta1) * g
            self.v = beta2 * self.v + (1 - beta2) * g * g
            c1, c2 = (1 - beta1**self.t, 1 - beta2**self.t) if correct else (1, 1)
            update = self.m / c1 / ((self.v / c2).sqrt() + eps) + decay * self.p
        else:
            d = g + decay * self.p
            self.m = d if self.t == 1 else momentum * self.m + (1 - dampening) * d
            update = d + momentum * self.m if nesterov else self.m
        if self.most and self.p.norm() and update.norm():
            ratio = float(self.most * self.p.norm() / update.norm())
            lr = lr * (min(1.0, ratio) if self.clip else ratio)
        self.p = self.p - lr * update


@pytest.mark.parametrize(
    "name, values",
    [
        ("LAMB", {}),
        ("LAMB", {"weight_decay": 0.1, "trust_clip": False, "maximize": True}),
        ("LAMB", {"bias_correction": False, "max_unorm": 0.0, "betas": (0.8, 0.99), "eps": 1e-6}),
        ("LARS", {"momentum": 0.9}),
        ("LARS", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "max_unorm": 0.001}),
        ("LARS", {"momentum": 0.9, "nesterov": True, "trust_clip": False, "maximize": True}),
    ],
)
def test_the_rule(name, values, device, monkeypatch):
    """In 32 bits within fp32's error, in 8 bits within the codes'; the second in many pieces."""
    for make, bound in zip(MAKERS[name], (2e-5, 0.05)):
        params = parameters(device)
        start = [p.detach().double().clone() for p in params]
        lr = 0.02 if name == "LAMB" else 1.0  # far beyond fp32's error of the parameter
        optimizer = make(params, lr=lr, **values)
        rules = [Rule(name, p, lr, **values) for p in params]
        for t in range(20):
            fill(params, t)
            for p, rule in zip(params, rules):
                rule.step(p.grad)
            optimizer.step()
        for p, rule, old in zip(params, rules, start):
            apart = float((p.detach().double() - rule.p).norm() / (rule.p - old).norm())
            assert apart < (bound if p.numel() > 4096 else 2e-5), (make, tuple(p.shape))
        monkeypatch.setitem(_whole.PIECE, device.type, 300)


@pytest.mark.parametrize("make", ["LAMB", "LAMB8bit", "LARS", "LARS8bit"])
def test_resumed_and_bitsandbytes_dicts(make, device):
    """Both load what was saved; the run goes on bit for bit."""
    ours = getattr(mt.bnb, make)
    values = {"lr": 0.02, **({"momentum": 0.9} if "LARS" in make else {})}
    params = parameters(device, dtype=torch.bfloat16)
    a = ours(params, stochastic_rounding=True, **values)
    walk(a, params, 3)
    again, back = twin(params), twin(params)
    b = ours(again, lr=0.5)
    b.load_state_dict(through_a_file(a.state_dict()))
    bnb = pytest.importorskip("bitsandbytes")
    c = getattr(bnb.optim, make)(twin(params), **values)
    c.load_state_dict(copy.deepcopy(mt.to_bitsandbytes(a)))
    d = ours(back, lr=0.5, max_unorm=7.0)
    d.load_state_dict(c.state_dict())
    assert d.param_groups[0]["max_unorm"] == 7.0 and d.param_groups[0].get("momentum", 0.9) == 0.9
    assert_same_states(a, d, params, back)
    walk(a, params, 3, seed=7)
    walk(b, again, 3, seed=7)
    assert_same_states(a, b, params, again)


@pytest.mark.parametrize(
    "make, values, text",
    [
        (mt.optim.LAMB, {"amsgrad": True}, "amsgrad=False and adam_w_mode=True only"),
        (mt.bnb.LAMB8bit, {"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1"),
        (mt.optim.LAMB, {"max_unorm": -1.0}, "Invalid max_unorm value: -1.0"),
        (mt.optim.LARS, {"momentum": -1.0}, "Invalid momentum value"),
        (mt.optim.LARS, {"nesterov": True}, "Nesterov momentum requires"),
    ],
)
def test_values(make, values, text):
    with pytest.raises(ValueError, match=text):
        make(parameters(), lr=0.1, **values)


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(device)
    a = mt.optim.LAMB(params)
    walk(a, params, 1)
    for other in (mt.AdamW(params), mt.SGD8bit(params, momentum=0.9), mt.optim.AdEMAMix(params)):
        walk(other, params, 1)
        before = snapshot(a, params)
        with pytest.raises(ValueError, match="not of LAMB"):
            a.load_state_dict(other.state_dict())
        assert_unchanged(a, params, before)
        with pytest.raises(ValueError, match="is of (LAMB|another rule)"):
            other.load_state_dict(a.state_dict())
