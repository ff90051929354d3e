"""RMSprop and Adagrad: torch's rules and dicts, bitsandbytes' dicts, and what differs from them."""

from __future__ import annotations

import copy
import io

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

SHAPES = ((64, 129), (7,), (3, 40, 5))
#: Ours, ours in 8 bits, torch's, arguments.
RULES = {
    "plain": (mt.optim.RMSprop, mt.bnb.RMSprop8bit, torch.optim.RMSprop, {}),
    "decay": (mt.optim.RMSprop, mt.bnb.RMSprop8bit, torch.optim.RMSprop, {"weight_decay": 0.1, "alpha": 0.9}),
    "momentum": (mt.optim.RMSprop, mt.bnb.RMSprop8bit, torch.optim.RMSprop,
                 {"momentum": 0.9, "weight_decay": 0.1, "lr": 1e-3, "maximize": True}),
    "adagrad": (mt.optim.Adagrad, mt.bnb.Adagrad8bit, torch.optim.Adagrad, {"weight_decay": 0.1}),
}  # fmt: skip
rules = pytest.mark.parametrize("rule", sorted(RULES))


def parameters(device="cpu", **named):
    return drawn(SHAPES, device=device, **named)


def _apart(some, others, start):
    pairs = [(p.detach() - q.detach(), q.detach() - old) for p, q, old in zip(some, others, start)]
    return max(float(d.norm() / moved.norm()) for d, moved in pairs)


@rules
def test_torchs_rule_and_dicts_both_ways(rule, device):
    make, coded, theirs, values = RULES[rule]
    ours, wide, exact = (parameters(device) for _ in range(3))
    start = [p.detach().clone() for p in ours]
    a, b, c = make(ours, **values), coded(wide, **values), theirs(exact, **values)
    for optimizer, own in ((a, ours), (b, wide), (c, exact)):
        walk(optimizer, own, 20)
    assert _apart(ours, exact, start) < 1e-5
    assert 1e-5 < _apart(wide, exact, start) < 0.03
    assert b.state[wide[0]]["absmax1"].dtype is torch.float32 and "absmax1" not in b.state[wide[1]]
    there, here = twin(ours), twin(exact)
    d, e = theirs(there, **values), make(here, lr=0.5)
    with mt.portable_states(a):
        d.load_state_dict(copy.deepcopy(a.state_dict()))
    e.load_state_dict(c.state_dict())
    before = [p.detach().clone() for p in here]
    for optimizer, own in ((a, ours), (c, exact), (d, there), (e, here)):
        walk(optimizer, own, 3, seed=50)
    assert _apart(there, ours, before) < 1e-3 and _apart(here, exact, before) < 1e-3


@pytest.mark.parametrize("rule", ["plain", "adagrad"])
@pytest.mark.parametrize("bits", [32, 8])
def test_bitsandbytes_dicts_both_ways(rule, bits):
    """Codes of ours come back as they were; those of bitsandbytes keep their values."""
    bnb = pytest.importorskip("bitsandbytes")
    make = RULES[rule][bits == 8]
    theirs = getattr(bnb.optim, make.__name__)
    ours = parameters()
    a = make(ours, lr=0.02)
    walk(a, ours, 3)
    there, here, own = twin(ours), twin(ours), twin(ours)
    b, c, d = theirs(there, lr=0.02), make(here), theirs(own, lr=0.02)
    b.load_state_dict(mt.to_bitsandbytes(a))
    c.load_state_dict(b.state_dict())
    assert_same_states(a, c, ours, here)
    assert "betas" not in c.param_groups[0]
    assert rule == "adagrad" or c.param_groups[0]["alpha"] == 0.99
    walk(d, own, 3)
    kept = [p.detach().clone() for p in own]
    e = make(own)
    e.load_state_dict(d.state_dict())
    for i, p in enumerate(own):
        state = d.state[p]
        values = state["state1"].float()
        if state["state1"].dtype is torch.uint8:
            scales = state["absmax1"].repeat_interleave(256)[: p.numel()].view_as(p)
            values = state["qmap1"][state["state1"].long()] * scales
        (moment,) = set(e.state[p]) & {"square_avg", "sum"}
        if e.state[p][moment].dtype is torch.float32:
            assert torch.equal(e.state[p][moment], values), i
    walk(e, own, 1, seed=9)
    assert all(torch.isfinite(p).all() and not torch.equal(p, q) for p, q in zip(own, kept))


def test_bitsandbytes_has_no_buffer():
    params = parameters()
    optimizer = mt.bnb.RMSprop8bit(params, momentum=0.9)
    walk(optimizer, params, 1)
    with pytest.raises(TypeError, match="no RMSprop with a momentum buffer"):
        mt.to_bitsandbytes(optimizer)


@rules
@pytest.mark.parametrize("bits", [32, 8])
def test_a_resumed_run_is_the_run(rule, bits, device):
    make, values = RULES[rule][bits == 8], RULES[rule][3]
    params = parameters(device, dtype=torch.bfloat16)
    optimizer = make(params, stochastic_rounding=True, **values)
    walk(optimizer, params, 3)
    again = twin(params)
    resumed = make(again, lr=0.5)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    cloned, clones = copy.deepcopy((optimizer, params))
    for some, own in ((optimizer, params), (resumed, again), (cloned, clones)):
        walk(some, own, 3, seed=7)
    assert_same_states(optimizer, resumed, params, again)
    assert_same_states(optimizer, cloned, params, clones)


@pytest.mark.parametrize("make", [mt.optim.RMSprop, mt.bnb.RMSprop8bit])
def test_a_momentum_that_begins_later_and_one_that_ends(make, device):
    """A buffer of zeros is added; it stays, and its decay of 0 leaves the plain rule."""
    params, plain = parameters(device), parameters(device)
    a, b = make(params), make(plain)
    walk(a, params, 2)
    walk(b, plain, 2)
    a.param_groups[0]["momentum"] = 0.5
    walk(a, params, 1, seed=3)
    walk(b, plain, 1, seed=3)
    for p, q in zip(params, plain):  # the first update with the buffer is the plain one
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
        for key in set(b.state[q]) - {"step", "absmax1"}:
            assert same_bits(a.state[p][key], b.state[q][key])
    a.param_groups[0]["momentum"] = 0.0
    saved = through_a_file(a.state_dict())
    late = make(twin(params))
    late.load_state_dict(saved)
    assert_same_states(a, late, params, late.param_groups[0]["params"])
    for optimizer, own in ((a, params), (b, plain)):
        walk(optimizer, own, 1, seed=4)
    for p, q in zip(params, plain):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(device)
    for make in (mt.optim.RMSprop, mt.bnb.Adagrad8bit):
        optimizer = make(params)
        walk(optimizer, params, 1)
        others = [mt.AdamW, mt.Lion8bit, mt.optim.AdEMAMix, torch.optim.SGD, torch.optim.Adadelta,
                  mt.optim.Adagrad if make is mt.optim.RMSprop else mt.optim.RMSprop]  # fmt: skip
        for other in others:
            strange = other(params, **({"momentum": 0.9} if other is torch.optim.SGD else {}))
            walk(strange, params, 1)
            before = snapshot(optimizer, params)
            with pytest.raises(ValueError):
                optimizer.load_state_dict(strange.state_dict())
            assert_unchanged(optimizer, params, before)
            if not other.__module__.startswith("torch"):
                with pytest.raises(ValueError, match="is of (RMSprop|Adagrad|another rule), not of"):
                    strange.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    "make, values, text",
    [
        (mt.optim.RMSprop, {"centered": True}, "does not support centered=True"),
        (mt.optim.RMSprop, {"alpha": 1.0}, "Invalid alpha value: 1.0"),
        (mt.bnb.RMSprop8bit, {"momentum": -1.0}, "Invalid momentum value: -1.0"),
        (mt.optim.RMSprop, {"eps": -1.0}, "Invalid epsilon value: -1.0"),
        (mt.optim.Adagrad, {"lr_decay": 0.1}, "Adagrad does not support lr_decay=0.1"),
        (mt.bnb.Adagrad8bit, {"initial_accumulator_value": 1.0}, "does not support initial_accumulator_value=1.0"),
    ],
)
def test_values(make, values, text):
    with pytest.raises(ValueError, match=text):
        make(parameters(), **values)


def test_split_weights_follow_a_master(device):
    """Each step adds to 24 bits: the weights stay within two roundings of an fp32 run's."""
    params = parameters(device, dtype=torch.bfloat16)
    wide = [p.detach().float().requires_grad_() for p in params]
    a, b = mt.bnb.RMSprop8bit(params, lr=1e-4, split_weights=True), mt.bnb.RMSprop8bit(wide, lr=1e-4)
    for t in range(30):
        fill(params, t)
        for p, q in zip(params, wide):
            q.grad = p.grad.float()
        a.step()
        b.step()
    for p, q in zip(params, wide):
        torch.testing.assert_close(p.float(), q, rtol=2**-8, atol=1e-6)


def test_states_on_the_host(device):
    params, plain = parameters(device), parameters(device)
    a = mt.CPUOffloadOptimizer(params, mt.bnb.RMSprop8bit, lr=1e-2)
    b = mt.bnb.RMSprop8bit(plain, lr=1e-2)
    for t in range(3):
        walk(a, params, 1, seed=t)
        walk(b, plain, 1, seed=t)
    for p, q in zip(params, plain):
        assert same_bits(p, q)
    file = io.BytesIO()
    torch.save(a.state_dict(), file)
