"""Behaviours that torch tests of its optimizers, tested of ours.

docs/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from optim_support import assert_same_states, walk

OPTIMIZERS = [mt.AdamW, mt.AdamW8bit, mt.Lion8bit, mt.SGD8bit]


def parameter(*size, dtype=None, device=None):
    return torch.nn.Parameter(torch.randn(*size, device=device).to(dtype or torch.float32))


def extra(kind):
    return {"momentum": 0.9} if kind in (mt.SGD, mt.SGD8bit) else {}


# --- parameters and groups ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rate",
    [1, torch.tensor(1), torch.tensor(0.0625, dtype=torch.float64), torch.tensor([0.0625])],
    ids=["int", "integer tensor", "float64 tensor", "tensor of one"],
)
def test_a_learning_rate_of_another_type_is_what_its_number_is(rate, device):
    """Also where it is changed from step to step."""
    one = parameter(8, 80, device=device)
    two = copy.deepcopy(one)
    first, second = mt.SGD([one], lr=rate), mt.SGD([two], lr=float(rate))
    for factor in (2, 3):
        one.grad, two.grad = torch.ones_like(one), torch.ones_like(two)
        first.step()
        second.step()
        assert torch.equal(one, two)
        first.param_groups[0]["lr"] *= factor
        second.param_groups[0]["lr"] *= factor


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_parameters_of_several_types_in_one_group(kind, device):
    types = [torch.float32, torch.bfloat16, torch.float16]
    together = [parameter(70, 70, dtype=t, device=device) for t in types]
    alone = copy.deepcopy(together)
    gradients = [torch.randn_like(p) for p in together]
    one = kind(together, lr=1e-2, **extra(kind))
    for p, q, g in zip(together, alone, gradients):
        p.grad, q.grad = g.clone(), g.clone()
        kind([q], lr=1e-2, **extra(kind)).step()
    one.step()
    assert all(torch.equal(p, q) for p, q in zip(together, alone))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_groups_are_optimizers_of_their_own(kind, device):
    """With a decay, a rate and a direction each, as separate optimizers would have; one is empty."""
    options = [{"weight_decay": 0.1}, {"lr": 1e-3}, {"maximize": True, "weight_decay": 0.01}]
    together = [parameter(70, 70, device=device) for _ in options]
    alone = copy.deepcopy(together)
    groups = [{"params": []}, *({"params": [p], **o} for p, o in zip(together, options))]
    one = kind(groups, lr=1e-2, **extra(kind))
    many = [kind([p], **{"lr": 1e-2, **extra(kind), **o}) for p, o in zip(alone, options)]
    for _ in range(3):
        for p, q in zip(together, alone):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        one.step()
        for optimizer in many:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(together, alone))
    assert len({tuple(p.detach().flatten()[:9].tolist()) for p in together}) == 3


# --- the step itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_makes_no_tensors(kind, device):
    from memopt.torch._live_bytes import LiveBytes

    values = [parameter(300, 300, device=device) for _ in range(5)]
    optimizer = kind(values, lr=1e-2, **extra(kind))
    for value in values:
        value.grad = torch.randn_like(value)
    optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values()]
    with LiveBytes([*values, *(v.grad for v in values), *states]) as live:
        optimizer.step()
    assert live.peak < 4096  # on a GPU, a scalar or two


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_parameters_that_get_their_memory_later(kind):
    model = torch.nn.Linear(33, 130, device="meta")
    optimizer = kind(model.named_parameters(), lr=1e-2, **extra(kind))
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    with pytest.raises(RuntimeError, match="parameter 'weight' is a meta tensor"):
        optimizer.step()
    assert not optimizer.state
    optimizer.zero_grad()
    swapping = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to_empty(device="cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapping)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    other = torch.nn.Linear(33, 130)
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters()):
            p.copy_(q)
    again = kind(other.parameters(), lr=1e-2, **extra(kind))
    walk(optimizer, list(model.parameters()), 2)
    walk(again, list(other.parameters()), 2)
    assert_same_states(optimizer, again, list(model.parameters()), list(other.parameters()))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_default_dtype_plays_no_part(kind):
    results = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            value = torch.nn.Parameter(torch.linspace(-1, 1, 5000, dtype=torch.float32))
            optimizer = kind([value], lr=1e-2, **extra(kind))
            for step in range(3):
                value.grad = torch.linspace(-1, 2, 5000, dtype=torch.float32) * (step + 1)
                optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        state = optimizer.state[value].values()
        results.append([value.detach(), *state])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.dtype == b.dtype and torch.equal(a, b)


# --- state dicts ----------------------------------------------------------------------------------


def stepped(kind, named=False, steps=2):
    values = [parameter(70, 70), parameter(7)]
    params = [("weight", values[0]), ("bias", values[1])] if named else values
    optimizer = kind(params, lr=1e-2, **extra(kind))
    for _ in range(steps):
        for value in values:
            value.grad = torch.randn_like(value)
        optimizer.step()
    return optimizer, values


@pytest.mark.parametrize("named", [False, True])
def test_names_of_parameters_come_along(named):
    optimizer, values = stepped(mt.AdamW8bit, named)
    others = [v.detach().clone().requires_grad_() for v in values]
    again = mt.AdamW8bit(others if named else [("weight", others[0]), ("bias", others[1])])
    again.load_state_dict(optimizer.state_dict())
    assert again.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    assert_same_states(optimizer, again, values, others)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_dict_of_before_there_were_all_options(kind):
    optimizer, values = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("maximize", "seed", "stochastic_rounding", "min_8bit_size", "block_size"):
        saved["param_groups"][0].pop(name, None)
    expected = copy.deepcopy(optimizer)
    optimizer.load_state_dict(saved)
    optimizer.step()
    for value, other in zip(values, expected.param_groups[0]["params"]):
        other.grad = value.grad.clone()
    expected.step()
    for value, other in zip(values, expected.param_groups[0]["params"]):
        assert torch.equal(value, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("number", [int, float])
def test_steps_that_are_not_tensors(kind, number):
    optimizer, values = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = number(int(optimizer.state[values[0]]["step"]))
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert int(optimizer.state[values[0]]["step"]) == 3
