"""The rules beside Adam, Lion and SGD: each in 64 bits, peers' state dicts, and the manners of all."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, NamedTuple, Tuple

import pytest
import torch

import memopt.torch as mt
import optim_rules
from memopt.torch._live_bytes import LiveBytes
from memopt.torch.optim import _whole
from optim_support import (
    SHAPES,
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


class Case(NamedTuple):
    make: Callable[..., Any]
    peer: Any = None  # torch's or bitsandbytes' class
    values: Tuple[Dict[str, Any], ...] = ({},)  # under which the rule is compared
    always: Dict[str, Any] = {}  # what the comparison needs
    bound: float = 3e-5  # of fp32, as a share of the movement
    coded: float = 0.05  # of 8-bit states
    bytes: Tuple[float, float] = (4, 1)  # of states, in fp32 and in 8 bits
    shapes: Any = SHAPES


O = mt.optim
CASES = {
    "adafactor": Case(mt.Adafactor, torch.optim.Adafactor, (
        {}, {"weight_decay": 0.1, "maximize": True}, {"beta2_decay": -0.5, "eps": (1e-30, 1e-2)},
        {"eps": (1.0, 1e-3)}, {"d": 3.0, "lr": torch.tensor(0.03)}), bytes=(0, 0)),
    "ademamix": Case(O.AdEMAMix, None, (
        {}, {"weight_decay": 0.1, "maximize": True, "lr": torch.tensor(0.03)},
        {"t_alpha": 8, "t_beta3": 8}, {"alpha": 0.0, "eps": 1e-2, "weight_decay": 0.0},
        {"t_alpha": 100, "t_beta3": 50, "betas": (0.8, 0.99, 0.999)}), {"lr": 0.02}, bytes=(12, 3)),
    "rmsprop": Case(O.RMSprop, torch.optim.RMSprop, (
        {}, {"weight_decay": 0.1, "alpha": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1, "lr": 1e-3, "maximize": True})),
    "adagrad": Case(O.Adagrad, torch.optim.Adagrad, ({"weight_decay": 0.1},)),
    "schedulefree": Case(mt.AdamWScheduleFree, None, (
        {}, {"warmup_steps": 7, "weight_decay": 0.1, "lr": 1e-2},
        {"r": 1.0, "weight_lr_power": 1.0, "maximize": True}, {"betas": (0.95, 0.9), "eps": 1e-3}),
        bound=2e-4, bytes=(8, 8)),
    "lamb": Case(O.LAMB, None, (
        {}, {"weight_decay": 0.1, "trust_clip": False, "maximize": True},
        {"bias_correction": False, "max_unorm": 0.0, "betas": (0.8, 0.99), "eps": 1e-6}),
        {"lr": 0.02}, bytes=(8, 2)),
    "lars": Case(O.LARS, None, (
        {}, {"dampening": 0.1, "weight_decay": 0.1, "max_unorm": 0.001},
        {"momentum": 0.9, "trust_clip": False, "maximize": True}), {"momentum": 0.9, "lr": 1.0}),
    "muon": Case(mt.Muon, getattr(torch.optim, "Muon", None), (
        {"lr": 0.02}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}), bound=0.02,
        shapes=((96, 33), (33, 129), (80, 80))),
}  # fmt: skip
#: Rules with 8-bit states.
CODED = ("ademamix", "rmsprop", "adagrad", "lamb", "lars", "muon")
EACH = [(name, "fp32") for name in CASES] + [(name, "8bit") for name in CODED]
each = pytest.mark.parametrize("name, states", EACH, ids=["%s-%s" % pair for pair in EACH])


def maker(name: str, states: str) -> Callable[..., Any]:
    """The class with these states and what the rule needs."""
    options = {"states": states} if name in CODED else {}
    return functools.partial(CASES[name].make, **options)


def of(name: str, params: Any, states: str = "fp32", **values: Any) -> Any:
    """An optimizer that moves."""
    return maker(name, states)(params, **{**CASES[name].always, **values})


def parameters(device: Any = "cpu", dtype: Any = torch.float32, shapes: Any = SHAPES) -> Any:
    return drawn(shapes, 0, dtype, device)


def those(name: str, device: Any, dtype: Any = torch.float32) -> Any:
    """Parameters that the rule takes."""
    return parameters(device, dtype, CASES[name].shapes)


# --- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, values", [(n, v) for n, case in CASES.items() for v in case.values], ids=lambda v: str(v)[:30]
)
@pytest.mark.parametrize("piece", [None, 50])
def test_the_rule(name, values, piece, device, monkeypatch):
    """In fp32 within its error, in 8 bits within the codes'; the tensors in several pieces too."""
    if piece:
        monkeypatch.setitem(_whole.PIECE, device.type, piece)
    for states in ("fp32", "8bit") if name in CODED else ("fp32",):
        params = those(name, device)
        start = [p.detach().double().clone() for p in params]
        rules = [optim_rules.Rule(name, p) for p in params]
        optimizer = of(name, params, states, **values)
        for t in range(15):
            fill(params, t, 1.0 if name == "adafactor" else 0.01)
            for p, rule in zip(params, rules):
                rule.step(p.grad, optimizer.param_groups[0])
            optimizer.step()
        for p, rule, old in zip(params, rules, start):
            apart = float((p.detach().double() - rule.p).norm() / (rule.p - old).norm())
            small = states == "fp32" or p.numel() < 4096
            assert apart < (CASES[name].bound if small else CASES[name].coded), (states, p.shape)


@pytest.mark.parametrize("states, codes", [("fp32", None), ("8bit", None), ("8bit", "dynamic")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ademamix_without_the_slow_mean_is_adamw(states, codes, dtype, device):
    ours, theirs = parameters(device, dtype), parameters(device, dtype)
    options = dict(lr=1e-2, stochastic_rounding=dtype is torch.bfloat16, states=states, codes=codes)
    walk(O.AdEMAMix(ours, alpha=0.0, **options), ours, 5)
    walk(mt.AdamW(theirs, **options), theirs, 5)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("states", ["fp32", "8bit"])
def test_a_momentum_of_rmsprop_that_begins_later_and_ends(states, device):
    """A buffer of zeros is added; it stays, and its decay of 0 leaves the plain rule."""
    params, plain = parameters(device), parameters(device)
    a, b = of("rmsprop", params, states), of("rmsprop", plain, states)
    for t, momentum in enumerate((0.0, 0.5, 0.0)):
        a.param_groups[0]["momentum"] = momentum
        for optimizer, own in ((a, params), (b, plain)):
            walk(optimizer, own, 1, seed=t)
        for p, q in zip(params, plain):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    late = of("rmsprop", twin(params), states)
    late.load_state_dict(through_a_file(a.state_dict()))
    assert_same_states(a, late, params, late.param_groups[0]["params"])


def test_schedule_free_turns_between_training_and_evaluation(device):
    params = parameters(device)
    optimizer = mt.AdamWScheduleFree(params, lr=1e-2)
    walk(optimizer, params, 4)
    y = [p.detach().clone() for p in params]
    optimizer.eval()
    optimizer.eval()  # nothing
    for p, before in zip(params, y):
        x = before.lerp(optimizer.state[p]["z"], 1 - 1 / 0.9)
        torch.testing.assert_close(p.detach(), x, rtol=1e-5, atol=1e-6)
    before = snapshot(optimizer, params)
    fill(params, 1)
    with pytest.raises(RuntimeError, match=r"call train\(\) of the AdamWScheduleFree"):
        optimizer.step()
    assert_unchanged(optimizer, params, before)
    again = twin(params)
    resumed = mt.AdamWScheduleFree(again)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    for some, own in ((optimizer, params), (resumed, again)):
        some.train()
        walk(some, own, 2, seed=7)
    assert_same_states(optimizer, resumed, params, again)
    assert resumed.param_groups[0]["k"] == 6


# --- memory ---------------------------------------------------------------------------------------


@each
def test_bytes(name, states, device):
    (p,) = parameters(device, shapes=((1024, 768),))
    optimizer = of(name, [p], states)
    fill([p], 0)
    count, bits = p.numel(), states == "8bit"
    with LiveBytes([p, p.grad]) as live:
        optimizer.step()
        each_ = CASES[name].bytes[bits]
        extra = 4 * (1024 + 768) if name == "adafactor" else each_ * count // 64 if bits else 0
        assert live.live == each_ * count + extra + 8


# --- state dicts ----------------------------------------------------------------------------------


def test_what_bitsandbytes_does_not_have():
    params = parameters()
    for optimizer, text in (
        (mt.Adafactor(params), "bitsandbytes has no Adafactor"),
        (mt.Muon(params[:1]), "bitsandbytes has no Muon"),
        (mt.AdamW4bit(params), "states like those of AdamW4bit"),
        (mt.AdamWScheduleFree(params), "bitsandbytes has no AdamWScheduleFree"),
        (O.RMSprop(params, momentum=0.9), "no RMSprop with a momentum buffer"),
    ):
        walk(optimizer, params, 1)
        with pytest.raises(TypeError, match=text):
            mt.optim.to_bitsandbytes(optimizer)


def test_schedule_free_states_of_the_authors_program(device):
    """They have no count for each parameter."""
    params = parameters(device)
    optimizer = mt.AdamWScheduleFree(params, lr=1e-2)
    walk(optimizer, params, 4)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        del state["step"]
    for key in ("maximize", "min_8bit_size", "seed", "stochastic_rounding"):
        del saved["param_groups"][0][key]
    again = twin(params)
    resumed = mt.AdamWScheduleFree(again)
    resumed.load_state_dict(saved)
    for some, own in ((optimizer, params), (resumed, again)):
        walk(some, own, 2, seed=9)
    assert_same_states(optimizer, resumed, params, again)


@pytest.mark.parametrize("name", CASES)
def test_dicts_of_other_rules_are_refused(name, device):
    params = those(name, device)
    optimizer = of(name, params)
    walk(optimizer, params, 1)
    others = [case.make for other, case in CASES.items() if other not in (name, "muon")]
    for other in (mt.AdamW, mt.Lion8bit, mt.SGD, *others):
        strange = other(params)
        walk(strange, params, 1)
        before = snapshot(optimizer, params)
        with pytest.raises(ValueError):
            optimizer.load_state_dict(strange.state_dict())
        assert_unchanged(optimizer, params, before)


# --- manners --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adafactor", "ademamix", "lamb", "schedulefree", "muon"])
def test_half_precision_is_rounded_once_a_step(name, device):
    """The bits of fp32 parameters that are rounded to bf16 after each step."""
    ours = those(name, device, torch.bfloat16)
    wide = [p.detach().float().requires_grad_() for p in ours]
    a, b = of(name, ours), of(name, wide)
    for t in range(4):
        fill(ours, t)
        for p, q in zip(ours, wide):
            q.grad = p.grad.float()
        a.step()
        b.step()
        for p, q in zip(ours, wide):
            q.detach().copy_(q.detach().bfloat16())
            assert same_bits(p, q.bfloat16())


def test_what_schedule_free_is_not_for(device):
    with pytest.raises(TypeError, match="cannot step on the host"):
        mt.CPUOffloadOptimizer(parameters(device), mt.AdamWScheduleFree)
    saved = mt.AdamWScheduleFree(parameters()).state_dict()
    saved["param_groups"][0]["split_weights"] = True
    with pytest.raises(ValueError, match="does not support split_weights=True"):
        mt.AdamWScheduleFree(parameters()).load_state_dict(saved)
