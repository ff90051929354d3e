"""Split weights: bf16 parameters with 8 or 16 more bits in their states."""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from optim_support import KINDS, fill, kinds, make, parameters, same_bits, through_a_file, walk

KEY = "weight_residual"
BITS = pytest.mark.parametrize("bits", [8, 16])


def split(kind, params, bits, **values):
    return make(kind, params, split_weights=bits, min_8bit_size=100, **values)


def joined(optimizer, p):
    """The 24 or 32 bits of a parameter as fp32."""
    residual = optimizer.state[p][KEY]
    residual = residual.int() if residual.dtype is torch.int16 else residual.view(torch.int8).int() * 256
    bits = p.detach().float().contiguous().view(torch.int32)
    return (bits + residual).view(torch.float32)


def rounded(x):
    """The nearest numbers with 16 bits of significand, ties to even."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp(torch.round(mantissa * 65536), exponent - 16).float()


def without_ties(x):
    """The value before it, of one in the middle of an even bf16 number and the next."""
    bits = x.view(torch.int32)
    return (bits - ((bits & 0x1FFFF) == 0x8000).int()).view(torch.float32)


@BITS
@kinds
def test_the_steps_of_fp32_rounded_to_24_bits_or_as_they_are(kind, bits):
    params = parameters(dtype=torch.bfloat16)
    whole = [p.detach().float().requires_grad_() for p in params]
    a, b = split(kind, params, bits, lr=1e-3), make(kind, whole, lr=1e-3, min_8bit_size=100)
    for step in range(5):
        fill(params, step)
        for p, q in zip(params, whole):
            q.grad = p.grad.float()
        a.step()
        b.step()
        for p, q in zip(params, whole):
            q.data.copy_(rounded(q.detach()) if bits == 8 else without_ties(q.detach()))
            assert same_bits(joined(a, p), q) and a.state[p][KEY].element_size() == bits // 8
            # the model's weight is the nearest, or beside it where 24 bits were a tie
            assert float((p.detach().float() - q.detach()).abs().max()) <= 2**-8 * float(q.detach().abs().max())


def test_a_training_run_has_the_weights_of_fp32_masters():
    """With 16 bits the model reads what a cast of a master gives, ties included: before, runs parted."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))
    a, b = model.bfloat16(), copy.deepcopy(model)
    masters = [p.detach().float().requires_grad_() for p in b.parameters()]
    split16, whole = mt.AdamW(a.parameters(), split_weights=16), mt.AdamW(masters)
    for _ in range(20):
        x, y = torch.randn(32, 64).bfloat16(), torch.randn(32, 16).bfloat16()
        for m in (a, b):
            m.zero_grad()
            torch.nn.functional.mse_loss(m(x), y).backward()
        for q, p in zip(masters, b.parameters()):
            q.grad = p.grad.float()
        split16.step()
        whole.step()
        for p, q, r in zip(b.parameters(), masters, a.parameters()):
            p.data.copy_(q.detach())
            assert torch.equal(p, r)


def test_small_updates_are_not_lost():
    """80 steps of 1e-4 from 1, each less than half of bf16's last place, 2^-8."""
    moved = {}
    for name, values in (("plain", {}), ("split", {"split_weights": True})):
        p = torch.ones(300, dtype=torch.bfloat16).requires_grad_()
        optimizer = mt.AdamW8bit([p], lr=1e-4, weight_decay=0.0, min_8bit_size=1, **values)
        for _ in range(80):
            p.grad = torch.ones_like(p)
            optimizer.step()
        moved[name] = p.detach().float()
    assert same_bits(moved["plain"], torch.ones(300))
    assert torch.allclose(moved["split"], torch.full((300,), 1 - 80e-4), atol=2**-8 / 2)


@BITS
@kinds
def test_resuming(kind, bits):
    params = parameters(dtype=torch.bfloat16)
    a = split(kind, params, bits)
    walk(a, params, 3)
    others = [p.detach().clone().requires_grad_() for p in params]
    b = split(kind, others, bits)
    b.load_state_dict(through_a_file(a.state_dict()))
    for optimizer, ps in ((a, params), (b, others)):
        walk(optimizer, ps, 2, seed=3)
    for p, q in zip(params, others):
        assert same_bits(p, q) and same_bits(a.state[p][KEY], b.state[q][KEY])
    theirs = KINDS[kind][3]
    if theirs is None:
        return
    with mt.portable_states(a):  # torch's takes it, and what it gives back still fits
        foreign = theirs(others, lr=1e-3)
        foreign.load_state_dict(a.state_dict())
    fill(others, 9)
    foreign.step()
    c = split(kind, params, bits)
    c.load_state_dict(foreign.state_dict())
    fill(params, 9)
    c.step()


def test_states_without_a_residual_begin_with_zeros():
    """Those of a state dict from before, on memory in another order; and SGD's momentum that comes
    later leaves them."""
    params = [torch.randn(60, 70).bfloat16().t().requires_grad_(), *parameters(dtype=torch.bfloat16)]
    plain = mt.AdamW8bit(params, lr=1e-3)
    walk(plain, params, 2)
    saved = plain.state_dict()
    del saved["param_groups"][0]["split_weights"]
    later = mt.AdamW8bit(params, split_weights=True)
    later.load_state_dict(saved)
    walk(later, params, 1)
    assert all(later.state[p][KEY].stride() == p.stride() for p in params)
    sgd = mt.SGD8bit(params, lr=1e-3, split_weights=True)
    walk(sgd, params, 2)
    assert set(sgd.state[params[0]]) == {"step", KEY}
    sgd.param_groups[0].update(momentum=0.9, lr=0.0)
    before = sgd.state[params[0]][KEY].clone()
    walk(sgd, params, 1)
    assert "momentum_buffer" in sgd.state[params[0]] and same_bits(sgd.state[params[0]][KEY], before)
    full = torch.randn(300).requires_grad_()
    mixed = mt.AdamW8bit([full], split_weights=True)
    walk(mixed, [full], 1)
    assert KEY not in mixed.state[full]


def test_8_bits_become_16():
    """Where a state dict's groups ask for more than its states have, and not the other way round."""
    params = parameters(dtype=torch.bfloat16)
    a = mt.AdamW8bit(params, lr=1e-3, split_weights=True)
    walk(a, params, 3)
    saved, before = a.state_dict(), [joined(a, p) for p in params]
    saved["param_groups"][0].update(split_weights=16, lr=0.0)
    a.load_state_dict(saved)
    walk(a, params, 1)
    for p, q in zip(params, before):
        assert a.state[p][KEY].dtype is torch.int16 and same_bits(joined(a, p), without_ties(q))
    saved = a.state_dict()
    saved["param_groups"][0]["split_weights"] = 8
    with pytest.raises(ValueError, match="weight_residual is of torch.int16; split_weights=8 keeps"):
        a.load_state_dict(saved)
    assert all(same_bits(joined(a, p), without_ties(q)) for p, q in zip(params, before))


def test_refusals():
    params = parameters(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="split_weights is 12; it is False, True, 8 or 16"):
        mt.AdamW8bit(params, split_weights=12)
    with pytest.raises(ValueError, match="exclude each other"):
        mt.AdamW8bit(params, split_weights=True, stochastic_rounding=True)
    halves = [p.detach().half().requires_grad_() for p in params]
    with pytest.raises(TypeError, match="parameter 0 of group 0 is torch.float16; split_weights"):
        mt.AdamW8bit(halves, split_weights=True)
    a = mt.AdamW8bit(params, split_weights=True)
    walk(a, params, 1)
    saved = a.state_dict()
    saved["state"][0][KEY] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="weight_residual .* has shape|has the shape"):
        a.load_state_dict(saved)
