"""Optimizers with paged states. Without a GPU the pages go from the host's memory to the host's, on the
library's streams; the names are there on any machine."""

from __future__ import annotations

import pytest
import torch

import memopt.torch as mt
from memopt.torch.optim import _base, _binding
from optim_support import assert_same_states, drawn, fill, through_a_file, twin

CASES = [
    (mt.AdamW, "fp32"), (mt.AdamW, "8bit"), (mt.Adam, "8bit"), (mt.Lion, "fp32"),
    (mt.optim.AdEMAMix, "8bit"),
]  # fmt: skip
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")),
]


@pytest.fixture(params=["as on a CPU", "paged"])
def paged(request, monkeypatch):
    if request.param == "paged":
        monkeypatch.setattr(_binding, "is_paged", lambda device: True)
        monkeypatch.setattr(_base, "PAGE_BYTES", 40_000)
    return request.param == "paged"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cls, states", CASES)
def test_the_bits_are_the_class_s(cls, states, dtype, device, paged):
    """In steps, from a saved state, and in both directions between the two."""
    options = dict(states=states, lr=1e-2, weight_decay=0.1, stochastic_rounding=dtype is torch.bfloat16)
    params = drawn([(130, 70), (7,), (90, 100), (3000,)], 1, dtype, device)
    others = twin(params)
    a, b = cls(params, paged=True, **options), cls(others, **options)
    for step in range(3):
        for optimizer, ps in ((a, params), (b, others)):
            fill(ps, step)
            if step == 0:
                ps[1].grad = None
            optimizer.step()
        assert_same_states_on_host(a, b, params, others)
    a.load_state_dict(through_a_file(b.state_dict()))
    b.load_state_dict(a.state_dict())
    for optimizer, ps in ((a, params), (b, others)):
        fill(ps, 9)
        optimizer.step()
    assert_same_states_on_host(a, b, params, others)
    for p in params:
        for key, value in a.state[p].items():
            assert (value.device.type == device) == (device == "cpu" or key == "step"), key


def assert_same_states_on_host(a, b, params, others):
    if params[0].is_cuda:
        torch.cuda.synchronize()
    assert_same_states(a, b, params, others)


def test_pages_are_made(monkeypatch):
    """What the library is told."""
    seen = []
    made = _binding._abi.OptimizerOptions
    monkeypatch.setattr(_binding._abi, "OptimizerOptions", lambda **values: seen.append(values) or made(**values))
    params = drawn([(64, 80)])
    for forced in (False, True):
        monkeypatch.setattr(_binding, "is_paged", lambda device, forced=forced: forced)
        optimizer = mt.bnb.PagedAdamW8bit(params)
        fill(params, 1)
        optimizer.step()
    assert [values["page_bytes"] for values in seen] == [0, 64 << 20]


@pytest.mark.parametrize("bits", [8, 16])
def test_split_weights(paged, bits):
    params = [p.bfloat16().detach().requires_grad_() for p in drawn([(64, 80), (300, 31)])]
    others = twin(params)
    a, b = mt.bnb.PagedAdamW8bit(params, split_weights=bits), mt.AdamW8bit(others, split_weights=bits)
    for step in range(3):
        for optimizer, ps in ((a, params), (b, others)):
            fill(ps, step)
            optimizer.step()
        assert_same_states(a, b, params, others)
