"""GradScaler: update(), optimizers that take the scale, whole programs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memopt.torch as mt
from amp_support import INF, NAN, Fused, Recorder, ours, parameters_of, started, theirs

# --- update() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_new_scale(device, shape):
    """(torch fails for all tensors but those of no dimension.)"""
    scaler = started(ours(device), device)
    given = torch.full(shape, 16.0, device=device)
    scaler.update(given)
    given.fill_(5.0)
    assert scaler.get_scale() == 16.0
    for wrong in (
        torch.ones(2, device=device),
        torch.ones(shape, device=device, requires_grad=True),
        torch.ones(shape, device="meta"),
    ):
        with pytest.raises(AssertionError):
            scaler.update(wrong)
    for number in (8.0, 8):
        scaler.update(number)
        assert scaler.get_scale() == 8.0


# --- the fused protocol ---------------------------------------------------------------------------


def test_an_optimizer_that_takes_the_scale(device):
    parameters = parameters_of(device)
    before = [p.grad.clone() for p in parameters]
    optimizer = Fused(parameters)
    scaler = started(ours(device, init_scale=4.0), device)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen == [(4.0, 0.0)]
    assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before))
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen[1:] == [(None, 0.0)]
    assert all(torch.equal(p.grad, b / 4) for p, b in zip(parameters, before))
    optimizer.grad_scale = torch.full((), 2.0, device=device)
    parameters[2].grad[-1] = NAN
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen[2:] == [(8.0, 1.0)] and scaler.get_scale() == 2.0


def test_an_optimizer_that_takes_the_scaler(device):
    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            self.given = grad_scaler
            self.flags = grad_scaler._check_inf_per_device(self)

    parameters = parameters_of(device)
    parameters[0].grad[0] = INF
    optimizer = Old(parameters, lr=0.1)
    scaler = started(ours(device), device)
    with pytest.warns(FutureWarning):
        scaler.step(optimizer)
    assert optimizer.given is scaler
    assert [float(flag) for flag in optimizer.flags.values()] == [1.0]
    scaler.update()
    assert scaler.get_scale() == 32768.0


# --- whole programs -------------------------------------------------------------------------------


def test_what_happens_to_gradients_after_unscaling_is_not_looked_at(device):
    """As with torch's: an infinity between unscale_() and step() goes into the parameters."""
    parameters = parameters_of(device)
    optimizer = mt.AdamW8bit(parameters, lr=1e-2)
    scaler = started(ours(device, init_scale=128.0), device)
    scaler.unscale_(optimizer)
    parameters[0].grad.fill_(INF)
    scaler.step(optimizer)
    scaler.update()
    assert not parameters[0].isfinite().all() and parameters[1].isfinite().all()
    assert scaler.get_scale() == 128.0


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, mt.AdamW])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_torchs(device, clip, accumulate, optimizer_class):
    """A loop with unscale_, clipping and accumulation, an overflow in the middle: the same bits
    without clipping, and within rounding with it."""
    results = []
    for make, clipper in ((ours, mt.clip_grad_norm_), (theirs, torch.nn.utils.clip_grad_norm_)):
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        scaler = make(device, init_scale=1024.0, growth_interval=2)
        for step in range(8):
            optimizer.zero_grad()
            for _ in range(accumulate):
                x = torch.randn(16, 8, device=device)
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = model(x).float().square().mean() / accumulate
                if step == 5:
                    loss = loss * INF
                scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                clipper(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.state_dict(), [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1]):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7) if clip else torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are due")
def test_two_gpus():
    parameters = parameters_of("cuda:0") + parameters_of("cuda:1")
    parameters[-1].grad[-1] = INF
    optimizer = Recorder(parameters)
    scaler = started(mt.GradScaler(), torch.device("cuda:0"))
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 0 and scaler.get_scale() == 32768.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_no_synchronisation_on_a_gpu():
    device = torch.device("cuda")
    parameters = parameters_of(device)
    optimizer = Fused(parameters)
    optimizer.step = lambda: None
    scaler = started(mt.GradScaler(), device)
    mt.clip_grad_norm_(parameters, 1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scaler.unscale_(optimizer)
        mt.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
