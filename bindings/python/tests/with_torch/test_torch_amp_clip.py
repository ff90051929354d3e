"""clip_grad_norm_: torch's norms and factors, for gradients of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import memopt.torch as mt
from amp_support import INF, NAN, TYPES, clones, parameters_of
from on_threads import on_threads


@pytest.mark.parametrize("dtypes", [(torch.float32,), TYPES, (torch.bfloat16,)])
@pytest.mark.parametrize("max_norm", [0.5, 1e-3, 1e6, 0.0, INF, 10])
def test_clipping_against_torch(device, dtypes, max_norm):
    a = parameters_of(device, dtypes=dtypes)
    a.append(nn.Parameter(torch.zeros(3, device=device)))  # without a gradient
    b = clones(a)
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in a if p.grad is not None))
    norm = mt.clip_grad_norm_(a, max_norm)
    wanted = torch.nn.utils.clip_grad_norm_(b, max_norm)
    assert norm.shape == () and norm.dtype == torch.float32 and norm.device == a[0].device
    assert float(norm) == torch.tensor(exact).float().item() or abs(float(norm) / exact - 1) < 2e-7
    assert abs(float(norm) / float(wanted) - 1) < 0.02
    for p, q in zip(a, b):
        if p.grad is None:
            continue
        narrow = dtypes != (torch.float32,)
        assert torch.allclose(p.grad, q.grad, rtol=0.02 if narrow else 1e-5, atol=1e-7)


def test_half_precision_norms_do_not_overflow(device):
    """torch's norm of these float16 gradients is infinite, and the gradients would become 0."""
    parameter = nn.Parameter(torch.zeros(10000, device=device, dtype=torch.float16))
    parameter.grad = torch.full((10000,), 1000.0, device=device, dtype=torch.float16)
    assert float(mt.clip_grad_norm_(parameter, 1e4)) == 1e5
    assert torch.equal(parameter.grad.float(), torch.full((10000,), 100.0, device=device))


@pytest.mark.parametrize("bad", [INF, NAN])
def test_gradients_that_are_not_finite(device, bad):
    pair = parameters_of(device)
    pair[1].grad[5] = bad
    other = clones(pair)
    with pytest.raises(RuntimeError, match="non-finite"):
        mt.clip_grad_norm_(pair, 1.0, error_if_nonfinite=True)
    assert all(torch.equal(p.grad.nan_to_num(7), q.grad.nan_to_num(7)) for p, q in zip(pair, other))
    norm = mt.clip_grad_norm_(pair, 1.0)
    wanted = torch.nn.utils.clip_grad_norm_(other, 1.0)
    assert torch.equal(torch.isnan(norm), torch.isnan(wanted))
    assert all(torch.equal(p.grad.nan_to_num(7), q.grad.nan_to_num(7)) for p, q in zip(pair, other))


@pytest.mark.parametrize("norm_type", [1.0, 3, INF, "inf", 0.0])
def test_other_norms_are_torchs(device, norm_type):
    a = parameters_of(device)
    b = clones(a)
    assert torch.equal(mt.clip_grad_norm_(a, 0.5, norm_type), torch.nn.utils.clip_grad_norm_(b, 0.5, norm_type))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


def test_lists_generators_and_single_tensors(device):
    assert float(mt.clip_grad_norm_([], 1.0)) == 0.0
    assert float(mt.clip_grad_norm_([nn.Parameter(torch.zeros(2))], 1.0)) == 0.0
    with pytest.warns(UserWarning, match="empty generator"):
        mt.clip_grad_norm_((p for p in []), 1.0)
    parameter = nn.Parameter(torch.zeros(2, device=device))
    parameter.grad = torch.tensor([3.0, 4.0], device=device)
    assert float(mt.clip_grad_norm_(parameter, 1.0)) == 5.0
    assert float(mt.clip_grad_norm_((p for p in [parameter]), 10.0)) == pytest.approx(1.0)


def test_gradients_of_other_kinds_go_to_torch(device):
    a = parameters_of(device, dtypes=(torch.float32, torch.float64))
    b = clones(a)
    assert float(mt.clip_grad_norm_(a, 0.5)) == float(torch.nn.utils.clip_grad_norm_(b, 0.5))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


def test_clipping_tells_autograd(device):
    a = parameters_of(device)
    versions = [p.grad._version for p in a]
    mt.clip_grad_norm_(a, 0.5)
    assert all(p.grad._version > v for p, v in zip(a, versions))


def test_threads_clip_at_the_same_time(device):
    a = parameters_of(device, (1 << 18, 33))
    expected = float(mt.clip_grad_norm_(clones(a), 1.0))

    def work(_):
        for _ in range(20):
            assert float(mt.clip_grad_norm_(clones(a), 1.0)) == expected

    on_threads(work, range(4))
