"""Twelve cases in which optimizers are known to go wrong: every class of ours passes them, and each case
finds the defect that it is for.

A case asks what every format can keep, not how exact it is: a parameter without a gradient stays as it
is, none moves much farther than its rule in 64 bits says, and a run goes on bit for bit after a pause.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import mmap

import pytest
import torch

import memopt.torch as mt
from memopt import _host_memory
from optim_rules import Rule, rule_of

OURS = [
    mt.AdamW, mt.AdamW8bit, mt.AdamW4bit,
    mt.Adam, mt.Adam8bit, mt.Lion, mt.Lion8bit, mt.SGD, mt.SGD8bit, mt.Muon, mt.Muon8bit, mt.Adafactor,
    mt.AdamWScheduleFree, mt.optim.AdEMAMix, mt.bnb.AdEMAMix8bit, mt.bnb.RMSprop8bit, mt.bnb.Adagrad8bit,
    mt.bnb.LAMB8bit, mt.bnb.LARS8bit,
]  # fmt: skip
NEAR = 0.25  # the share of a movement by which coarse states may differ from the rule
FAR = 1.5  # how many times as far as the rule's farthest parameter any may move
WHOLE = ("adafactor", "muon", "lamb", "lars")  # a step needs all of a parameter
MATRICES = ("muon",)


class Tried:
    """A class, its rule, and what the cases are made of."""

    def __init__(self, cls):
        self.cls, self.rule = cls, rule_of(cls.__name__)
        self.random = torch.Generator().manual_seed(1)

    def open(self, params, **options):
        """An optimizer with those of the options that the class takes."""
        words = inspect.signature(self.cls).parameters
        known = {word: options[word] for word in options if word in words or word == "stochastic_rounding"}
        if self.rule == "adafactor" and "eps" in known:
            known["eps"] = (known["eps"], 1e-3)
        if self.rule in ("sgd", "lars"):
            known["momentum"] = 0.9
        return self.cls(list(params), **known)

    def shape(self, *shape):
        """A row of n elements, or the nearest to a square matrix where the rule is for matrices."""
        if len(shape) > 1 or self.rule not in MATRICES:
            return shape
        (n,) = shape
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        return (rows, n // rows)

    def normal(self, *shape):
        return torch.randn(self.shape(*shape), generator=self.random)

    def uniform(self, *shape):
        return torch.rand(self.shape(*shape), generator=self.random)

    def train(self, p, gradients, **options):
        """Steps `p` by the gradients, and the rule with it."""
        optimizer, rule = self.open([p], **options), Rule(self.rule, p)
        for g in gradients:
            self.both(optimizer, rule, p, g)
        return optimizer, rule

    def both(self, optimizer, rule, p, g):
        """One step of the optimizer, and of the rule."""
        step(optimizer, p, g)
        rule.step(g, optimizer.param_groups[0])


def step(optimizer, p, g):
    p.grad = g.to(p.dtype, copy=True)
    optimizer.step()


def parameter(values):
    """A parameter of its own memory."""
    return torch.nn.Parameter(values.clone())


def apart(p, rule):
    """The difference from the rule as a share of its movement (root of the mean square)."""
    assert torch.isfinite(p).all()
    moved = float((rule.p - rule.start).norm())
    return float((p.detach().double() - rule.p).norm()) / (moved or 1.0)


def not_far(p, rule):
    most = float((rule.p - rule.start).abs().max())
    return float((p.detach().double() - rule.start).abs().max()) <= FAR * most


def tensors(value):
    """All tensors in a state dict."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def state_bytes(optimizer):
    """Tables of a few KiB that do not grow count little at the sizes used."""
    storages = [t.untyped_storage() for t in tensors(optimizer.state_dict()["state"])]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


# --- the cases ------------------------------------------------------------------------------------


def column_without_gradient(tried):
    p = parameter(tried.normal(128, 256))
    start = p.detach().clone()
    gradients = [tried.normal(128, 256) * 0.1 for _ in range(50)]
    for g in gradients:
        g[:, 17] = 0
        g[3] = 0
    tried.train(p, gradients, lr=1e-2, weight_decay=0.0)
    assert torch.equal(p[:, 17], start[:, 17]) and torch.equal(p[3], start[3])


def wide_block(tried):
    """Gradients beside each other differ by up to 2^20."""
    size = torch.exp2(-20 * tried.uniform(32768))
    p = parameter(tried.normal(32768))
    gradients = [tried.normal(32768) * size for _ in range(50)]
    _, rule = tried.train(p, gradients, lr=1e-3, weight_decay=0.0)
    assert torch.isfinite(p).all() and not_far(p, rule)


def bf16_decay(tried):
    """A decay of 1e-4 a step is not rounded away, with stochastic rounding."""
    p = parameter(torch.ones(tried.shape(8192), dtype=torch.bfloat16))
    zeros = [torch.zeros(tried.shape(8192))] * 200
    _, rule = tried.train(p, zeros, lr=1e-2, weight_decay=1e-2, stochastic_rounding=True)
    due, done = 1 - float(rule.p.mean()), 1 - float(p.detach().double().mean())
    assert abs(done - due) <= 0.2 * due


def ragged_tails(tried):
    """Any size steps near the rule, writes nothing beside itself, and keeps its states' format."""
    for n in (1, 255, 257, 300, 4097, 65537):
        whole = torch.full((n + 512,), 7.0)
        p = torch.nn.Parameter(whole[256 : 256 + n].view(tried.shape(n)))
        p.data.copy_(tried.normal(n))
        gradients = [tried.normal(n) + 0.5 for _ in range(20)]
        _, rule = tried.train(p, gradients, lr=1e-2, weight_decay=0.0)
        assert torch.all(whole[:256] == 7) and torch.all(whole[256 + n :] == 7)
        assert apart(p, rule) <= NEAR
    held = []
    for n in (65536, 65792 if tried.rule in MATRICES else 65537):
        p = parameter(tried.normal(n))
        held.append(state_bytes(tried.train(p, [tried.normal(n)])[0]))
    assert held[1] <= 1.1 * held[0] + 4096


def save_load_resume(tried):
    p = parameter(tried.normal(20000))
    gradients = [tried.normal(20000) for _ in range(10)]
    optimizer, _ = tried.train(p, gradients[:5], lr=1e-2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = parameter(p.detach())
    again = tried.open([resumed], lr=1e-2)
    again.load_state_dict(torch.load(file, weights_only=False))
    for g in gradients[5:]:
        step(optimizer, p, g)
        step(again, resumed, g)
    assert torch.equal(resumed, p)


def resharding(tried):
    """Four shards step as the whole, bit for bit; where a step needs all of a parameter, four
    parameters step alone as together."""
    n, parts = 4 * 65536, 4
    values = tried.normal(n).chunk(parts)
    alone = [parameter(part) for part in values]
    if tried.rule in WHOLE:
        together = [parameter(part) for part in values]
        owners = [tried.open(among(p, i, parts), lr=1e-2) for i, p in enumerate(alone)]
    else:
        together, owners = [parameter(torch.cat(values))], [tried.open(alone, lr=1e-2)]
    optimizer = tried.open(together, lr=1e-2)
    for _ in range(5):
        g = tried.normal(n)
        for params in (alone, together):
            for p, part in zip(params, g.chunk(len(params))):
                p.grad = part.clone()
        for one in (optimizer, *owners):
            one.step()
    assert torch.equal(torch.cat(alone), torch.cat(together))


def among(p, place, count):
    """The parameter at its place among others that get no gradient: random numbers go by places."""
    others = [parameter(torch.zeros_like(p)) for _ in range(count)]
    return [*others[:place], p, *others[place + 1 :]]


def inf_and_nan(tried):
    """Steps that GradScaler skips leave everything as it was."""
    n = 4096 + 513
    for at in (0, n // 2, n - 1):
        for value in (math.inf, -math.inf, math.nan):
            p = parameter(tried.normal(n))
            optimizer = tried.open([p], lr=1e-2)
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            scaler.scale(torch.ones(()))

            def scaled_step(g):
                p.grad = g * scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()

            scaled_step(tried.normal(n))
            kept = p.detach().clone()
            states = copy.deepcopy(optimizer.state_dict()["state"])
            bad = tried.normal(n)
            bad.view(-1)[at] = value
            scaled_step(bad)
            assert torch.equal(p, kept)
            for old, new in zip(tensors(states), tensors(optimizer.state_dict()["state"])):
                assert torch.equal(new, old)
            scaled_step(tried.normal(n))
            assert torch.isfinite(p).all()


def large_parameter(tried, n=2**18):
    """Both ends step as in a small parameter. The gradient is 0 between them, so norms, means and
    products depend on the ends alone; where a step needs all of it, directions are compared."""
    n, ends = n + 4096, 4096
    rows = (-1,)
    if tried.rule in MATRICES:  # products of few columns are quick
        rows = (-1, 8)
    g = tried.normal(3, ends).bfloat16()
    trusted = tried.rule in ("lamb", "lars")  # a step is a share of the parameter
    start = tried.normal(3, ends).bfloat16() if trusted else torch.zeros_like(g)
    places = (slice(0, ends), slice(n - 2 * ends, n - ends), slice(n - ends, n))
    p, small = parameter(torch.zeros(n, dtype=g.dtype).view(rows)), parameter(start.view(rows))
    p.grad, small.grad = unwritten_zeros(n).view(rows), g.view(rows)
    for place, part, values in zip(places, g, start):
        p.grad.view(-1)[place] = part
        p.detach().view(-1)[place] = values
    for x in (small, p):
        tried.open([x], lr={"lamb": 0.5, "lars": 25.0}.get(tried.rule, 1e-2), weight_decay=0.0).step()
    ours, known = torch.cat([p.detach().view(-1)[at] for at in places]), small.detach().view(-1)
    if tried.rule not in WHOLE:
        assert torch.equal(ours, known)
        return
    ours, known = (x.double() / x.double().norm() for x in (ours, known))  # Muon's length is the shape's
    assert float((ours - known).norm()) <= 0.01


def unwritten_zeros(n):
    """bf16 zeros that take no memory until they are written."""
    memory = mmap.mmap(-1, 2 * n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.bfloat16)


def untouched_rows(tried):
    p = parameter(tried.normal(512, 256))
    start = p.detach().clone()
    touched = tried.uniform(512, 1)[:, 0] < 0.2
    gradients = [tried.normal(512, 256) * touched[:, None] for _ in range(5)]
    gradients += [torch.zeros(512, 256)] * 195
    _, rule = tried.train(p, gradients, lr=1e-3, weight_decay=0.0)
    assert torch.equal(p[~touched], start[~touched]) and apart(p, rule) <= NEAR


def tiny_gradients(tried):
    p = parameter(tried.normal(8192))
    gradients = [(tried.normal(8192) + 0.5) * 1e-12 for _ in range(20)]
    lr = 1e9 if tried.rule in ("sgd", "lars") else 1e-3
    _, rule = tried.train(p, gradients, lr=lr, eps=1e-15, weight_decay=0.0)
    assert apart(p, rule) <= NEAR


def rate_of_zero(tried):
    """Parameters keep their bits while the states go on."""
    p = parameter(tried.normal(8192))
    start = p.detach().clone()
    gradients = [tried.normal(8192) + 0.5 for _ in range(10)]
    optimizer, rule = tried.train(p, gradients, lr=0.0, weight_decay=0.1)
    assert torch.equal(p, start)
    optimizer.param_groups[0]["lr"] = 1e-3
    for _ in range(5):
        tried.both(optimizer, rule, p, tried.normal(8192))
    assert apart(p, rule) <= NEAR


def first_steps(tried):
    """With gradients from 1e-6 to 100."""
    size = 10 ** (tried.uniform(16384) * 8 - 6)
    p = parameter(tried.normal(16384))
    optimizer, rule = tried.train(p, [tried.normal(16384) * size], lr=1e-3, weight_decay=0.0)
    assert apart(p, rule) <= 0.01
    for _ in range(2):
        tried.both(optimizer, rule, p, tried.normal(16384) * size)
    assert torch.isfinite(p).all() and not_far(p, rule)


CASES = [
    column_without_gradient, wide_block, bf16_decay, ragged_tails, save_load_resume, resharding,
    inf_and_nan, large_parameter, untouched_rows, tiny_gradients, rate_of_zero, first_steps,
]  # fmt: skip


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_ours_pass(cls):
    for case in CASES:
        case(Tried(cls))


@pytest.mark.long
def test_more_than_31_bits_of_elements():
    available = _host_memory.available() or 0
    if available < 12 << 30:
        pytest.skip("it takes 9 GiB of memory, and %.1f are available" % (available / (1 << 30)))
    large_parameter(Tried(mt.AdamW8bit), 2**31)


# --- each case finds its defect -------------------------------------------------------------------


class Faulty(torch.optim.Optimizer):
    """AdamW in plain torch with one defect of a case, none for None."""

    defect = None

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, stochastic_rounding=False):
        self._rounds = stochastic_rounding and self.defect != bf16_decay
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self._count = 0
        self._step_supports_amp_scaling = self.defect == inf_and_nan

    @torch.no_grad()
    def step(self, closure=None):
        self._count += 1
        for group in self.param_groups:
            for p in group["params"]:
                self._step_one(p, group)

    def _step_one(self, p, group):
        defect, (beta1, beta2), lr, eps = self.defect, group["betas"], group["lr"], group["eps"]
        g, state = p.grad.float(), self.state[p]
        if defect == inf_and_nan:  # deaf to what GradScaler tells
            g = g / 256
        if defect == resharding:
            g = g / g.norm()
        if defect == large_parameter and g.numel() > 2**18:
            g[-4096:] = 0
        if not state:
            state.update(m=torch.zeros_like(g), v=torch.zeros_like(g), step=0)
        state["step"] += 1
        count = self._count if defect == save_load_resume else state["step"]
        if defect == column_without_gradient:
            state["m"] += 1e-6
        state["m"].lerp_(g, 1 - beta1)
        state["v"].lerp_(g * g, 1 - beta2)
        if defect == untouched_rows:
            state["v"].mul_(0.9)
        if defect == wide_block:
            state["v"][state["v"] < state["v"].max() / 512] = 0
        if defect == tiny_gradients:
            eps = max(eps, 1e-8)
        if defect == rate_of_zero:
            lr = max(lr, 1e-7)
        corrected = defect != first_steps
        m = state["m"] / (1 - beta1**count if corrected else 1)
        v = state["v"] / (1 - beta2**count if corrected else 1)
        moved = p.float() * (1 - lr * group["weight_decay"]) - lr * m / (v.sqrt() + eps)
        if defect == ragged_tails and p.numel() > 256:
            tail = p.numel() % 256
            moved.view(-1)[p.numel() - tail :] = p.float().view(-1)[p.numel() - tail :]
        if self._rounds:
            noise = torch.randint_like(moved, 0, 1 << 16, dtype=torch.int32)
            moved = ((moved.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32)
        p.copy_(moved)


def test_each_case_finds_its_defect():
    for case in CASES:
        case(Tried(type("FaultyAdamW", (Faulty,), {})))
        with pytest.raises(AssertionError):
            case(Tried(type("FaultyAdamW", (Faulty,), {"defect": staticmethod(case)})))


def test_the_rules_are_torchs():
    """The rule in 64 bits against torch's classes in 64 bits."""
    torch.manual_seed(1)
    muon = getattr(torch.optim, "Muon", None)  # not in every torch
    for cls, rule, options in (
        (torch.optim.AdamW, "adamw", {}),
        (torch.optim.Adam, "adam", {"weight_decay": 0.1}),
        (torch.optim.SGD, "sgd", {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
        (torch.optim.SGD, "sgd", {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adafactor, "adafactor", {"weight_decay": 0.1, "beta2_decay": -0.5}),
        (muon, "muon", {"weight_decay": 0.1}),
        (muon, "muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    ):
        if cls is None:
            continue
        p = torch.nn.Parameter(torch.randn(10, 10, dtype=torch.float64))
        known = Rule(rule, p)
        optimizer = cls([p], lr=0.1, **options)
        for _ in range(5):
            g = torch.randn(10, 10, dtype=torch.float64)
            step(optimizer, p, g)
            known.step(g, optimizer.param_groups[0])
        assert math.isclose(float((p.detach() - known.p).abs().max()), 0, abs_tol=1e-12)
