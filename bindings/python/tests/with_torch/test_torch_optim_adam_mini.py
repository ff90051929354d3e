"""Adam-mini: the authors' rule in 64 bits on the names of a transformer, 8-bit states, manners."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402
from memopt.torch._live_bytes import LiveBytes  # noqa: E402

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

HEADS, KEYS = 4, 2
#: Names, shapes, and how the authors cut them: the elements of a block.
MODEL = {
    "model.embed_tokens.weight": ((40, 24), 24),
    "layers.0.q_proj.weight": ((24, 24), 6 * 24),
    "layers.0.k_proj.weight": ((12, 24), 6 * 24),
    "layers.0.v_proj.weight": ((12, 24), 24),
    "layers.0.o_proj.weight": ((24, 24), 24),
    "layers.0.mlp.up_proj.weight": ((300, 24), 24),
    "layers.0.mlp.up_proj.bias": ((300,), 1),
    "layers.0.q_proj.bias": ((24,), 1),
    "layers.0.norm.weight": ((24,), 24),
    "conv.weight": ((8, 3, 5, 5), 75),
    "lm_head.weight": ((40, 24), 24),
}
SHAPES = [shape for shape, _ in MODEL.values()]


def named(params):
    return list(zip(MODEL, params))


def parameters(device="cpu", **given):
    return drawn(SHAPES, device=device, **given)


class Rule:
    """The authors' step, in 64 bits: a row of elements for each block."""

    def __init__(self, p, block, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, maximize=False):
        self.p = p.detach().double().clone().view(-1, block)
        self.m, self.v, self.t = torch.zeros_like(self.p), torch.zeros(len(self.p), 1, dtype=torch.float64), 0
        self.v = self.v.to(self.p.device)
        self.values, self.sign = (lr, betas, eps, weight_decay), -1 if maximize else 1

    def step(self, g):
        lr, (beta1, beta2), eps, decay = self.values
        g, self.t = self.sign * g.double().view(self.p.shape), self.t + 1
        self.v = beta2 * self.v + (1 - beta2) * (g * g).mean(dim=1, keepdim=True)
        self.p = self.p * (1 - lr * decay)
        self.m = beta1 * self.m + (1 - beta1) * g
        h = self.v.sqrt() / math.sqrt(1 - beta2**self.t) + eps
        self.p = self.p - lr * self.m * ((1 / (1 - beta1**self.t)) / h)


@pytest.mark.parametrize(
    "values",
    [{}, {"weight_decay": 0.1, "maximize": True}, {"betas": (0.8, 0.99), "eps": 1e-4}],
)
def test_the_rule(values, device):
    """In 32 bits within fp32's error, in 8 bits within the codes'."""
    for make, bound in ((mt.AdamMini, 2e-5), (mt.AdamMini8bit, 0.05)):
        params = parameters(device)
        start = [p.detach().double().clone() for p in params]
        optimizer = make(
            named(params), lr=0.02, n_heads=HEADS, n_kv_heads=KEYS, min_8bit_size=64, **values
        )
        rules = [Rule(p, block, 0.02, **values) for p, (_, block) in zip(params, MODEL.values())]
        for t in range(20):
            fill(params, t)
            optimizer.step()
            for p, rule in zip(params, rules):
                rule.step(p.grad)
        for (name, (_, block)), p, rule, old in zip(MODEL.items(), params, rules, start):
            apart = (p.detach().double() - rule.p.view(p.shape)).norm()
            apart = float(apart / (rule.p.view(p.shape) - old).norm())
            is_coded = "absmax1" in optimizer.state[p]
            assert is_coded == (make is mt.AdamMini8bit and p.dim() > 1), name
            assert apart < (bound if is_coded else 2e-5), name
            assert optimizer.state[p]["exp_avg_sq"].numel() == p.numel() // block, name


def test_bytes(device):
    """One second moment a row; a step's temporaries are of pieces."""
    for make, held in ((mt.AdamMini, 4), (mt.AdamMini8bit, 1 + 4 / 256)):
        p = torch.nn.Parameter(torch.randn(2048, 1024, device=device))
        optimizer = make([p])
        fill([p], 0)
        with LiveBytes([p, p.grad]) as live:
            optimizer.step()
            assert live.live == held * p.numel() + 4 * 2048 + 8
        assert device.type != "cpu" or live.peak < (held + 3) * p.numel()


@pytest.mark.parametrize("make", [mt.AdamMini, mt.AdamMini8bit, mt.GaLore8bit, mt.APOLLO8bit])
def test_a_resumed_run_is_the_run(make, device):
    """Also from a copy. Portable dicts have no codes and load in the class of 32 bits."""
    mini = "Mini" in make.__name__
    own = dict(n_heads=HEADS, n_kv_heads=KEYS) if mini else dict(rank=4, update_proj_gap=3)
    own.update(min_8bit_size=64)
    params = parameters(device, dtype=torch.bfloat16)
    a = make(named(params), lr=0.02, stochastic_rounding=True, **own)
    walk(a, params, 4)
    again, wide = twin(params), twin(params)
    b = make(named(again), lr=0.5, **own)
    b.load_state_dict(through_a_file(a.state_dict()))
    assert_same_states(a, b, params, again)
    cloned, clones = copy.deepcopy((a, params))
    with mt.optim.portable_states(a):
        saved = through_a_file(a.state_dict())
    assert not any(t.dtype is torch.uint8 for s in saved["state"].values() for t in s.values())
    plain = getattr(mt, make.__name__.replace("8bit", ""))(named(wide), **own)
    plain.load_state_dict(saved)
    assert all(plain.state[p]["exp_avg"].dtype is torch.float32 for p in wide)
    for optimizer, ours in ((a, params), (b, again), (cloned, clones), (plain, wide)):
        walk(optimizer, ours, 3, seed=7)
    assert_same_states(a, b, params, again)
    assert_same_states(a, cloned, params, clones)
    for p, q in zip(twin(params), twin(wide)):
        assert float((p.float() - q.float()).detach().norm() / p.detach().float().norm()) < 0.02
    if "8bit" in make.__name__:
        sealed = a.state_dict()["state"][1]
        assert list(sealed["exp_avg"]) == ["memopt"] and sealed["exp_avg"]["memopt"].dtype is torch.uint8


def test_heads_that_do_not_fit(device):
    params = parameters(device)
    for values, text in (
        ({}, "'layers.0.q_proj.weight' has queries or keys: its 24 rows .* n_heads is None"),
        ({"n_heads": 5}, "24 rows are cut by heads, and n_heads is 5"),
        ({"n_heads": 4, "n_kv_heads": 5}, "12 rows .* n_heads is 4, n_kv_heads 5"),
        ({"n_heads": 0}, "Invalid n_heads value: 0"),
    ):
        with pytest.raises(ValueError, match=text):
            mt.AdamMini(named(params), **values)
    mt.AdamMini(params)  # without names there are rows


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(device)
    a = mt.AdamMini8bit(params, min_8bit_size=64)
    walk(a, params, 1)
    for other in (mt.AdamW(params), mt.Adafactor(params), mt.GaLore8bit(params)):
        walk(other, params, 1)
        before = snapshot(a, params)
        with pytest.raises(ValueError, match="is of another rule, not of Adam-mini"):
            a.load_state_dict(other.state_dict())
        assert_unchanged(a, params, before)
        with pytest.raises(ValueError, match="state dict is of (Adam-mini|another rule)"):
            other.load_state_dict(a.state_dict())
