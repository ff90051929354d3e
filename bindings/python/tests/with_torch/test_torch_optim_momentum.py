"""Optimizers for torch: SGD without momentum has no state, as torch's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import memopt.torch as mt
from memopt.torch.optim import _format
from optim_support import assert_same_states, fill, parameters, twin, walk

both = pytest.mark.parametrize("kind", [mt.SGD, mt.SGD8bit])


def assert_near(ours, theirs):
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


@both
def test_no_state_and_torchs_values(kind, device):
    ours = parameters(device)
    theirs = twin(ours)
    a, b = kind(ours, lr=0.1, weight_decay=0.01), torch.optim.SGD(theirs, lr=0.1, weight_decay=0.01)
    walk(a, ours, 1)
    bound = a._binding
    walk(a, ours, 3, 1)
    walk(b, theirs, 4)
    assert_near(ours, theirs)
    assert a.state_dict()["state"] == b.state_dict()["state"] == {}
    assert a._binding is bound  # nothing is made anew from step to step
    a.state[ours[0]]  # as a look at a defaultdict leaves it
    walk(a, ours, 2, 4)
    walk(b, theirs, 2, 4)
    assert_near(ours, theirs)


@both
def test_a_momentum_that_is_set_later(kind):
    ours = parameters()
    theirs = twin(ours)
    a, b = (cls(p, lr=0.1) for cls, p in ((kind, ours), (torch.optim.SGD, theirs)))
    walk(a, ours, 2)
    walk(b, theirs, 2)
    for optimizer in (a, b):
        optimizer.param_groups[0]["momentum"] = 0.9
    walk(a, ours, 1, 2)
    walk(b, theirs, 1, 2)
    assert_near(ours, theirs)  # the first moment is not coded when it is used
    assert {"momentum_buffer", "step"} <= set(a.state[ours[0]])
    assert ("power1" in a.state[ours[0]]) == (kind is mt.SGD8bit)
    tolerance = dict(atol=1e-3, rtol=0.0) if kind is mt.SGD8bit else {}
    walk(a, ours, 3, 3)
    walk(b, theirs, 3, 3)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, **tolerance)
    for optimizer in (a, b):
        optimizer.param_groups[0]["momentum"] = 0.0  # the buffer stays
    assert "momentum_buffer" in a.state[ours[0]]
    walk(a, ours, 2, 6)
    walk(b, theirs, 2, 6)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, **tolerance)


@pytest.mark.parametrize("rounding", [False, True])  # with it there is a step count from the start
@pytest.mark.parametrize("skipped", [None, 2, 4])
def test_dampening_begins_with_the_first_momentum(rounding, skipped, device):
    """Also after a skipped step, and in a copy, in a dict, and after steps without momentum."""
    ours = parameters(device)
    theirs = twin(ours)
    values = dict(lr=0.1, weight_decay=0.01, dampening=0.4)
    a = mt.SGD(ours, stochastic_rounding=rounding, **values)
    b = torch.optim.SGD(theirs, **values)
    for t, momentum in enumerate([0.0, 0.0, 0.9, 0.0, 0.5, 0.5, 0.0, 0.25]):
        for optimizer in (a, b):
            optimizer.param_groups[0]["momentum"] = momentum
        if t == skipped:
            a.found_inf = torch.ones((), device=device)
            walk(a, ours, 1, t)
            del a.found_inf
        else:
            walk(a, ours, 1, t)
            walk(b, theirs, 1, t)
        assert_near(ours, theirs)
        moved = mt.SGD(ours, lr=1.0)
        moved.load_state_dict(pickle.loads(pickle.dumps(a.state_dict())))
        assert_same_states(a, moved, ours, ours)
        a = moved
    steps = [_format.steps_taken(a.state[p]["step"]) for p in ours]
    assert steps == [8 - (skipped is not None) - (0 if rounding else 2)] * 2
    assert mt.optim.to_bitsandbytes(a)["state"][0]["step"] == steps[0]


def test_a_group_with_and_one_without():
    p, q = parameters(), parameters()
    optimizer = mt.SGD8bit([{"params": p, "momentum": 0.9}, {"params": q}], lr=0.1, momentum=0.0)
    walk(optimizer, p + q, 2)
    assert all("momentum_buffer" in optimizer.state[x] for x in p)
    assert not any(x in optimizer.state for x in q)


def test_stochastic_rounding_goes_on_after_a_load():
    """Its random numbers go by the step count, which is then the only state."""
    whole = parameters(dtype=torch.bfloat16)
    part = twin(whole)
    values = dict(lr=0.1, stochastic_rounding=True, seed=3)
    a, b = mt.SGD(whole, **values), mt.SGD(part, **values)
    walk(a, whole, 3)
    walk(b, part, 2)
    assert all(list(b.state[p]) == ["step"] for p in part)
    restarted = twin(part)
    c = mt.SGD(restarted, lr=1.0)
    c.load_state_dict(copy.deepcopy(b.state_dict()))
    assert all(int(c.state[p]["step"]) == 2 for p in restarted)
    for p, q in zip(part, restarted):
        fill([p], 2)
        q.grad = p.grad.clone()
    b.step()
    c.step()
    assert_same_states(b, c, part, restarted)
    c.param_groups[0]["momentum"] = 0.5
    c.step()
    assert all(int(c.state[p]["step"]) == 4 for p in restarted)  # it is not counted anew
    assert mt.optim.to_bitsandbytes(b)["state"] == {}


def test_dicts_of_others():
    """With a buffer from a run with momentum, and without one."""
    theirs = parameters()
    b = torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    walk(b, theirs, 2)
    saved = b.state_dict()
    for group in saved["param_groups"]:
        group["momentum"] = 0.0
    ours = twin(theirs)
    a = mt.SGD(ours)
    a.load_state_dict(saved)
    b.load_state_dict(saved)
    walk(a, ours, 2, 2)
    walk(b, theirs, 2, 2)
    assert_near(ours, theirs)
    a.load_state_dict(torch.optim.SGD(twin(theirs), lr=0.1).state_dict())
    assert a.state_dict()["state"] == {}
