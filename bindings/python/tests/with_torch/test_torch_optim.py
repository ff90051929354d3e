"""Optimizers for torch: what a step computes, and on what."""

from __future__ import annotations

import ctypes
import warnings

import pytest
import torch

import memopt
import memopt.torch as mt
from memopt.torch._native import native
from optim_support import KINDS, assert_same_states, coded, every, fill, kinds, make, parameters, same_bits, twin, walk

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


# --- against the library and against torch -----------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stochastic", [False, True])
def test_the_bits_are_the_librarys(kind, dtype, stochastic, device):
    ours = parameters(device, dtype)
    theirs = twin(ours)
    options = dict(lr=3e-3, weight_decay=0.1, stochastic_rounding=stochastic, seed=7)
    options["maximize"] = stochastic
    a = make(kind, ours, min_8bit_size=100, **options)
    side = native(device)
    allocator = memopt.Allocator(side.device)
    detached = [q.detach() for q in theirs]
    b = KINDS[kind][2](allocator, detached, min_8bit_size=100, **options, **KINDS[kind][1])
    for t in range(5):
        fill(ours, t)
        a.step()
        b.step([p.grad.clone() for p in ours], stream=side.stream())
    for i, (p, q) in enumerate(zip(ours, theirs)):
        assert same_bits(p, q)
        state = a.state[p]
        assert int(state.pop("step")) == 5 == b.steps(i, side.stream())
        expected = b.state(i)
        assert list(state) == list(expected)
        if device.type == "cpu":
            for key, value in expected.items():
                row = state[key].contiguous()
                size = row.numel() * row.element_size()
                assert size == value.nbytes
                assert ctypes.string_at(row.data_ptr(), size) == ctypes.string_at(value.pointer, size), key
        expected = value = None
    b.close()
    allocator.close()


VALUES = [
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"betas": (0.8, 0.95), "eps": 1e-6}),
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"nesterov": True}),
    ("SGD", {"dampening": 0.5, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.0}),
]


@pytest.mark.parametrize("kind, values", VALUES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_close_to_torch(kind, values, dtype, device):
    """torch's optimizer on fp32, each step's result rounded to the type as ours is: torch's own
    would keep states of that type, which lose what is small."""
    ours = parameters(device, dtype)
    theirs = [p.detach().float().requires_grad_() for p in ours]
    a = make(kind, ours, lr=1e-3, **values)
    b = KINDS[kind][3](theirs, lr=1e-3, **{**KINDS[kind][1], **values})
    for t in range(20):
        fill(ours, t)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step()
        b.step()
        for q in theirs:
            q.data.copy_(q.data.to(dtype))
    tolerances = {torch.float32: (1e-6, 1e-5), torch.float16: (1e-4, 1e-3)}
    atol, rtol = tolerances.get(dtype, (1e-3, 1e-2))
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.float(), q, atol=atol, rtol=rtol)


def test_min_8bit_size_and_groups():
    p, q, r = (torch.randn(n).requires_grad_() for n in (4096, 5000, 4095))  # from 4096 on
    a = mt.AdamW8bit([{"params": [p, r]}, {"params": [q], "min_8bit_size": 5001}])
    walk(a, [p, q, r], 1)
    assert a.state[p]["exp_avg"].dtype is torch.uint8 and "power2" in a.state[p]
    assert a.state[q]["exp_avg"].dtype is torch.float32 and "power1" not in a.state[q]
    assert a.state[r]["exp_avg"].dtype is torch.float32


@kinds
def test_states_take_the_bytes_they_should(kind):
    n = 1 << 16
    p = torch.randn(n).requires_grad_()
    a = make(kind, [p])
    walk(a, [p], 1)
    taken = sum(t.numel() * t.element_size() for t in a.state[p].values()) - 8
    moments = 2 if kind.startswith("Adam") else 1
    per = {"AdamW4bit": n // 2 + n // 128 * 4, "AdamWBf16": 2 * n}.get(
        kind,
        n + n // 256 * 4 if kind in ("Adam8bit", "AdamW8bit", "AdamW8bitDynamic", "Lion8bit", "SGD8bit") else 4 * n,
    )
    assert taken == moments * per


# --- parameters of every kind ------------------------------------------------------------------------


def strange_parameters(device):
    """Dense, but not in the order of their indices; and not dense."""
    base = torch.randn(64, 200, device=device)
    return {
        "channels_last": torch.randn(8, 6, 10, 11, device=device).to(memory_format=torch.channels_last),
        "transposed": torch.randn(70, 80, device=device).t(),
        "permuted": torch.randn(5, 30, 40, device=device).permute(2, 0, 1),
        "strided": base[:, ::2],
        "offset": torch.randn(9001, device=device)[1:],
        "scalar": torch.randn((), device=device),
        "ones": torch.randn(1, 4100, 1, device=device),
    }


@kinds
@pytest.mark.parametrize("layout", sorted(strange_parameters("cpu")))
def test_strange_layouts(kind, layout, device):
    """The same as with the elements in a row, in the order in which they lie in memory."""
    p = strange_parameters(device)[layout].detach()
    dense = layout != "strided"
    order = p if dense else torch.empty_like(p, memory_format=torch.preserve_format).copy_(p)
    flat = torch.as_strided(order, (p.numel(),), (1,), order.storage_offset())
    q = flat.clone().requires_grad_()
    p.requires_grad_()
    a, b = make(kind, [p], min_8bit_size=2), make(kind, [q], min_8bit_size=2)
    for t in range(3):
        fill([p], t)
        grad = torch.empty_like(order).copy_(p.grad)
        q.grad = torch.as_strided(grad, (p.numel(),), (1,)).clone()
        if t == 1:
            p.grad = p.grad.contiguous()  # a gradient in another order
        a.step()
        b.step()
    result = torch.empty_like(order).copy_(p.detach())
    assert same_bits(torch.as_strided(result, (p.numel(),), (1,)), q.detach())


def test_gradients_of_other_layouts_and_types(device):
    p, q = (torch.zeros(40, 50, device=device).requires_grad_() for _ in range(2))
    a, b = mt.AdamW([p], lr=0.1), mt.AdamW([q], lr=0.1)
    g = torch.randn(50, 40, device=device).t()
    p.grad, q.grad = g, g.contiguous()
    a.step()
    b.step()
    assert same_bits(p, q)
    p.grad = torch.ones((), device=device).expand(40, 50)
    q.grad = torch.ones(40, 50, device=device)
    a.step()
    b.step()
    assert same_bits(p, q)


def test_gradient_of_another_type(device):
    p = torch.zeros(5000, device=device).requires_grad_()
    try:
        p.grad_dtype = torch.bfloat16
        p.grad = torch.full((5000,), 0.5, device=device, dtype=torch.bfloat16)
    except (AttributeError, RuntimeError) as error:
        pytest.skip("this torch has gradients of the parameter's type only: %s" % error)
    q = torch.zeros(5000, device=device).requires_grad_()
    q.grad = torch.full((5000,), 0.5, device=device)
    for x in (p, q):
        mt.AdamW8bit([x], lr=0.1).step()
    assert same_bits(p, q)


@every
def test_empty_frozen_and_without_gradient(kind, device):
    p, q, empty = (torch.ones(n, 100, device=device).requires_grad_() for n in (50, 50, 0))
    frozen = torch.ones(10, 1, device=device, dtype=torch.int32)
    a = make(kind, [p, q, empty, frozen])
    fill([p, empty], 1)
    a.step()
    assert q not in a.state and torch.equal(q, torch.ones_like(q))
    assert frozen not in a.state and not a.state.get(empty)
    fill([q], 2)
    p.grad = None
    was = p.detach().clone()
    a.step()
    assert same_bits(p, was) and int(a.state[p]["step"]) == 1 == int(a.state[q]["step"])
    make(kind, [empty]).step()
    make(kind, [p]).step()  # no gradient at all


def test_shared_parameter_steps_once():
    p = torch.ones(5000).requires_grad_()
    q = torch.ones(5000).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = mt.AdamW([p, p], lr=0.1)
    b = mt.AdamW([q], lr=0.1)
    walk(a, [p], 2)
    walk(b, [q], 2)
    assert same_bits(p, q)
    with pytest.raises(ValueError, match="more than one parameter group"):
        a.add_param_group({"params": [p]})


def test_parameters_that_share_memory_are_refused():
    base = torch.ones(6000)
    p, q = base[:5000].requires_grad_(), base[4000:].requires_grad_()
    a = mt.AdamW8bit([p, q])
    fill([p, q], 0)
    with pytest.raises(ValueError, match="parameter 1 of group 0.*overlaps"):
        a.step()
    assert torch.equal(base, torch.ones(6000)) and not a.state


@kinds
def test_moving_a_parameter_is_noticed(kind, device):
    ours = parameters(device)
    theirs = twin(ours)
    a, b = make(kind, ours), make(kind, theirs)
    walk(a, ours, 2)
    walk(b, theirs, 2)
    for p in ours:
        p.data = p.data.clone()
        for key, value in a.state[p].items():
            a.state[p][key] = value.clone()
    walk(a, ours, 2, 5)
    walk(b, theirs, 2, 5)
    assert_same_states(a, b, ours, theirs)
    a.state.clear()
    walk(a, ours, 1)
    assert int(a.state[ours[0]]["step"]) == 1


@coded
def test_changing_a_parameters_type_keeps_the_state(kind, device):
    p = torch.randn(5000, device=device).requires_grad_()
    a = make(kind, [p])
    walk(a, [p], 2)
    moment = next(k for k in a.state[p] if k != "step")
    codes = a.state[p][moment].clone()
    p.grad = None
    p.data = p.data.to(torch.bfloat16)
    p.grad = torch.zeros_like(p)
    found = a.state[p][moment]
    assert same_bits(found, codes)
    a.step()
    assert p.dtype is torch.bfloat16 and int(a.state[p]["step"]) == 3


def test_changing_the_order_of_memory_requantises():
    p = torch.randn(8, 6, 10, 11).requires_grad_()
    a = mt.AdamW8bit([p], lr=1e-2)
    q = p.detach().clone().requires_grad_()
    b = mt.AdamW([q], lr=1e-2)
    walk(a, [p], 3)
    walk(b, [q], 3)
    p.grad = None
    p.data = p.data.to(memory_format=torch.channels_last)
    walk(a, [p], 1, 8)
    walk(b, [q], 1, 8)
    assert a.state[p]["exp_avg"].stride() == p.stride()
    assert (p - q).abs().max() < 5e-3


@coded
def test_marked_parameters_keep_32_bits(kind, device):
    """Their steps are those of the 32-bit optimizer; a state of codes becomes 32 bits when loaded."""
    model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 100)).to(device)
    plain = twin(list(model.parameters()))
    codes = make(kind, plain)
    walk(codes, plain, 2)
    with pytest.raises(ValueError, match="no parameter fits '2"):
        mt.keep_32bit(model, "0.*", "2.*")
    with pytest.raises(ValueError, match="one parameter"):
        mt.keep_32bit(model[0].weight, "*")
    assert mt.keep_32bit(model, "0.*") == ["0.weight"]
    marked = list(model.parameters())
    alone = twin(marked[:1])
    a, b = make(kind, marked), make(kind, alone, min_8bit_size=1 << 40)
    walk(a, marked, 2)
    walk(b, alone, 2)
    assert same_bits(alone[0], marked[0])
    types = [{v.dtype for k, v in a.state[p].items() if k != "step"} for p in marked[:2]]
    assert types[0] == {torch.float32} and torch.uint8 in types[1]
    a.load_state_dict(codes.state_dict())
    assert all(v.dtype is torch.float32 for k, v in a.state[marked[0]].items() if k != "step")
    moment = next(k for k in a.state[marked[1]] if k != "step")
    assert same_bits(a.state[marked[1]][moment], codes.state[plain[1]][moment])
