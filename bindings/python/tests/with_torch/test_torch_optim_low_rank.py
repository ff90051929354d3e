"""GaLore and APOLLO: the papers' rules in 64 bits, and manners."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402
from memopt.torch._live_bytes import LiveBytes  # noqa: E402
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

#: Tall, wide, and what is not projected.
SHAPES = ((40, 12), (9, 33), (3, 20), (7,))
RANK, GAP = 4, 3


def parameters(device="cpu", **named):
    return drawn(SHAPES, device=device, **named)


class Rule:
    """AdamW of a projection, in 64 bits; `basis` gives a projection of the shorter side."""

    def __init__(self, p, update, basis, gap):
        self.p, self.t, self.update, self.basis = p.detach().double().clone(), 0, update, basis
        self.m = self.v = self.last = 0.0
        self.gap = gap

    def _adam(self, g, eps):
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        root = (self.v / (1 - 0.999**self.t)).sqrt()
        return self.m / (1 - 0.9**self.t) / (root + eps)

    def step(self, g, lr, eps):
        g, self.t = g.double(), self.t + 1
        if min(g.shape) <= RANK or g.dim() != 2:
            change = self._adam(g, eps)
        else:
            tall = g.shape[0] >= g.shape[1]
            if (self.t - 1) % self.gap == 0:
                self.b = self.basis(g if tall else g.T, self.t)
            rows = g if tall else g.T  # the rows are the longer side
            change = self.update(self, rows, rows @ self.b, eps)
            change = change if tall else change.T
        self.p = self.p * (1 - lr * 0.1) - lr * change


def _galore(rule, g, low, eps):
    return 0.25 * rule._adam(low, eps) @ rule.b.T


def _apollo(rule, g, low, eps):
    update = rule._adam(low, eps)
    factor = update.norm(dim=1, keepdim=True) / (low.norm(dim=1, keepdim=True) + 1e-8)
    change = g * factor * math.sqrt(2.0)
    if rule.last and change.norm() > 1.01 * rule.last:
        change = change * (1.01 * rule.last / change.norm())
    rule.last = float(change.norm())
    return change


def _vectors(g, t):
    return torch.linalg.svd(g.float().double(), full_matrices=False)[2][:RANK].T


def _follow(optimizer, params, rules, lr, eps):
    start = [p.detach().double().clone() for p in params]
    for t in range(8):
        fill(params, t)
        optimizer.step()
        for p, rule in zip(params, rules):
            rule.step(p.grad, lr, eps)
    for p, rule, old in zip(params, rules, start):
        apart = float((p.detach().double() - rule.p).norm() / (rule.p - old).norm())
        assert apart < 1e-3, tuple(p.shape)


def test_galore_is_the_papers_rule(device):
    """With one projection: a new one may have singular vectors of other signs than the rule's."""
    params = parameters(device)
    optimizer = mt.GaLore(params, lr=0.02, weight_decay=0.1, rank=RANK, update_proj_gap=100)
    _follow(optimizer, params, [Rule(p, _galore, _vectors, 100) for p in params], 0.02, 1e-8)


@pytest.mark.parametrize("make", [mt.GaLore, mt.GaLore8bit])
def test_galore_in_bf16_is_rounded_once_a_step(make, device):
    """Products of bf16 matrices have errors of the bf16 parameter's rounding, which they do not double."""
    values = dict(lr=0.02, weight_decay=0.1, rank=RANK, update_proj_gap=100, min_8bit_size=1)
    ours = parameters(device, dtype=torch.bfloat16)
    wide = [p.detach().float().requires_grad_() for p in ours]
    a, b = make(ours, **values), make(wide, **values)
    for t in range(5):
        fill(ours, t)
        for p, q in zip(ours, wide):
            q.grad = p.grad.float()
        a.step()
        b.step()
        for p, q in zip(ours, wide):
            off = (p.detach().double() - q.detach().double()).abs()
            assert bool((off <= 0.005 * q.detach().double().abs() + 2e-4).all())
            q.detach().copy_(p.detach())


@pytest.mark.parametrize("make", [mt.GaLore, mt.GaLore8bit, mt.APOLLO8bit])
def test_pieces_do_not_change_bits(make, device, monkeypatch):
    """Of states, and of 8-bit rows shorter and longer than a block."""
    shapes = ((700, 24), (24, 700), (5, 3, 300), (9,))
    ends = []
    for piece in (None, 900):
        if piece:
            monkeypatch.setitem(_whole.PIECE, device.type, piece)
        params = drawn(shapes, device=device)
        optimizer = make(params, lr=0.02, rank=4, min_8bit_size=64)
        walk(optimizer, params, 3)
        ends.append((optimizer, params))
    (a, ours), (b, theirs) = ends
    assert_same_states(a, b, ours, theirs)


def test_apollo_is_the_papers_rule(device):
    """With the optimizer's own random numbers, renewed twice."""
    params = parameters(device)
    optimizer = mt.APOLLO(
        params, lr=0.02, weight_decay=0.1, rank=RANK, update_proj_gap=GAP, scale=2.0, seed=5
    )
    rules = []
    for place, p in enumerate(params):

        def drawn_(g, t, place=place):
            return optimizer._projections[place][1].double().cpu()

        rules.append(Rule(p, _apollo, drawn_, GAP))
    _follow(optimizer, params, rules, 0.02, 1e-6)
    seeds = {seed for seed, _ in optimizer._projections.values()}
    assert len(seeds) == 2  # one of each matrix


def test_random_projections_keep_lengths(device):
    """E |g P|^2 = |g|^2: so that a row's factor is about AdamW's."""
    p = torch.nn.Parameter(torch.zeros(400, 300, device=device))
    optimizer = mt.APOLLO([p], rank=64)
    fill([p], 0)
    optimizer.step()
    projector = optimizer._projections[0][1]
    assert projector.shape == (300, 64)
    assert abs(float((p.grad @ projector).norm() / p.grad.norm()) - 1) < 0.02


def test_bytes(device):
    p = torch.nn.Parameter(torch.randn(1024, 512, device=device))
    for make, held in ((mt.GaLore, 8 * 1024 * 8 + 4 * 512 * 8), (mt.APOLLO, 8 * 1024 * 8 + 4)):
        optimizer = make([p], rank=8)
        fill([p], 0)
        optimizer.step()
        states = [v for k, v in optimizer.state[p].items() if k != "step"]
        assert sum(v.numel() * v.element_size() for v in states) == held
    with LiveBytes([p, p.grad]) as live:
        fresh = mt.APOLLO([p], rank=8)
        fresh.step()
        assert live.live == 8 * 1024 * 8 + 4 + 8 + 4 * 512 * 8  # and the cached projection


@pytest.mark.parametrize("make", [mt.GaLore, mt.APOLLO])
def test_a_resumed_run_is_the_run(make, device):
    params = parameters(device, dtype=torch.bfloat16)
    values = dict(rank=RANK, update_proj_gap=GAP, stochastic_rounding=True)
    a = make(params, lr=0.02, **values)
    walk(a, params, 4)
    again = twin(params)
    b = make(again, lr=0.5, rank=RANK)
    b.load_state_dict(through_a_file(a.state_dict()))
    cloned, clones = copy.deepcopy((a, params))
    for optimizer, own in ((a, params), (b, again), (cloned, clones)):
        walk(optimizer, own, 4, seed=7)
    assert_same_states(a, b, params, again)
    assert_same_states(a, cloned, params, clones)


@pytest.mark.parametrize(
    "make, values, text",
    [
        (mt.GaLore, {"rank": 0}, "Invalid rank value: 0"),
        (mt.APOLLO, {"update_proj_gap": 2.5}, "Invalid update_proj_gap value: 2.5"),
        (mt.APOLLO, {"scale_type": "row"}, 'Invalid scale_type: .row.; "channel" or "tensor"'),
        (mt.GaLore, {"scale": -1.0}, "Invalid scale value: -1.0"),
    ],
)
def test_values(make, values, text):
    with pytest.raises(ValueError, match=text):
        make(parameters(), **values)


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(device)
    for a in (mt.GaLore(params, rank=RANK), mt.APOLLO(params, rank=RANK)):
        other = mt.APOLLO if isinstance(a, mt.GaLore) else mt.GaLore
        walk(a, params, 1)
        for strange in (mt.AdamW(params), mt.Adafactor(params), other(params, rank=RANK)):
            walk(strange, params, 1)
            before = snapshot(a, params)
            with pytest.raises(ValueError, match="is of another rule, not of"):
                a.load_state_dict(strange.state_dict())
            assert_unchanged(a, params, before)


@pytest.mark.parametrize("shape", [(48, 32), (32, 48)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_galore_refuses_to_project_what_is_not_finite(shape, value):
    p = torch.nn.Parameter(torch.randn(shape))
    kept = p.detach().clone()
    p.grad = torch.randn(shape)
    p.grad[7, 5] = value
    with pytest.raises(RuntimeError, match="not finite"):
        mt.GaLore([p], rank=4).step()
    assert torch.equal(p.detach(), kept)
