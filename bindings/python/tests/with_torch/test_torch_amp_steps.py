"""GradScaler: order of calls, update(), optimizers that take the scale, states, whole programs."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import memopt.torch as mt  # noqa: E402
from amp_support import (  # noqa: E402
    BOTH,
    FLT_MAX,
    INF,
    NAN,
    Fused,
    Recorder,
    ours,
    parameters_of,
    started,
    theirs,
)

# --- errors of order ------------------------------------------------------------------------------


@BOTH
def test_each_call_once_in_its_place(make, device):
    optimizer = Recorder(parameters_of(device), lr=0.0)
    fresh = make(device)
    for call in (fresh.unscale_, fresh.step):
        with pytest.raises(AssertionError, match="scaler.scale"):
            call(optimizer)
    with pytest.raises(AssertionError, match="scaler.scale"):
        fresh.update()
    scaler = started(make(device, init_scale=1.0), device)
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="step.. has already been called"):
        scaler.step(optimizer)
    scaler.update()
    scaler.unscale_(optimizer)


@BOTH
def test_no_gradients_at_all(make, device):
    optimizer = Recorder([nn.Parameter(torch.zeros(3, device=device))])
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        started(make(device), device).step(optimizer)


@BOTH
def test_closures_are_refused(make, device):
    optimizer = Recorder(parameters_of(device))
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        started(make(device), device).step(optimizer, closure=lambda: None)


@BOTH
def test_the_steps_result_and_arguments_pass_through(make, device):
    class Odd(torch.optim.SGD):
        def step(self, one, two=0):
            return (one, two)

    optimizer = Odd(parameters_of(device), lr=0.1)
    assert started(make(device), device).step(optimizer, 1, two=2) == (1, 2)


def test_several_optimizers_share_one_update(device):
    good, bad = (Recorder(parameters_of(device), lr=0.0) for _ in range(2))
    bad.param_groups[0]["params"][1].grad[0] = INF
    scaler = started(ours(device), device)
    scaler.unscale_(good)
    scaler.step(bad)
    scaler.step(good)
    scaler.update()
    assert (good.steps, bad.steps) == (1, 0) and scaler.get_scale() == 32768.0
    scaler.step(good)  # its state is new
    scaler.update()
    assert good.steps == 2 and scaler.get_scale() == 32768.0


# --- update() -------------------------------------------------------------------------------------


def one_element(device):
    parameter = nn.Parameter(torch.zeros(1, device=device))
    parameter.grad = torch.zeros(1, device=device)
    return parameter


def drive(scaler, device, events):
    """Steps with and without an overflow; the bits of the scale and the tracker after each."""
    parameter = one_element(device)
    optimizer = Recorder([parameter], lr=0.0)
    started(scaler, device)
    result = []
    for event in events:
        parameter.grad.fill_(event)
        scaler.step(optimizer)
        scaler.update()
        result.append((scaler._scale.view(torch.int32).item(), scaler._get_growth_tracker()))
    return result, optimizer.steps


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(init_scale=3.7, growth_factor=1.7, backoff_factor=0.3, growth_interval=1),
        dict(init_scale=1e38, growth_factor=1.3, growth_interval=2),
        dict(init_scale=1e-44, backoff_factor=0.9, growth_interval=3),
        dict(init_scale=FLT_MAX, growth_factor=1.0000001, growth_interval=1),
    ],
)
def test_the_sequence_of_scales_is_torchs_bit_for_bit(device, options):
    generator = torch.Generator().manual_seed(5)
    events = torch.rand(120, generator=generator)
    events = [INF if e < 0.15 else NAN if e < 0.2 else 1.0 for e in events.tolist()]
    assert drive(ours(device, **options), device, events) == drive(
        theirs(device, **options), device, events
    )


def test_growth_stops_at_the_largest_number(device):
    options = dict(init_scale=FLT_MAX / 4, growth_interval=1)
    scaler = ours(device, **options)
    sequence = drive(scaler, device, [1.0] * 5)
    assert sequence == drive(theirs(device, **options), device, [1.0] * 5)
    assert FLT_MAX / 4 < scaler.get_scale() <= FLT_MAX


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


@BOTH
def test_an_optimizer_that_takes_the_scale(make, device):
    parameters = parameters_of(device)
    before = [p.grad.clone() for p in parameters]
    optimizer = Fused(parameters)
    scaler = started(make(device, init_scale=4.0), device)
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


@BOTH
def test_an_optimizer_that_takes_the_scaler(make, device):
    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            self.given = grad_scaler
            self.flags = grad_scaler._check_inf_per_device(self)

    parameters = parameters_of(device)
    parameters[0].grad[0] = INF
    optimizer = Old(parameters, lr=0.1)
    scaler = started(make(device), device)
    with pytest.warns(FutureWarning):
        scaler.step(optimizer)
    assert optimizer.given is scaler
    assert [float(flag) for flag in optimizer.flags.values()] == [1.0]
    scaler.update()
    assert scaler.get_scale() == 32768.0


def test_torchs_own_fused_optimizer(device):
    """Three steps, one of them with an overflow, as with torch's scaler."""
    results = []
    for make in (ours, theirs):
        torch.manual_seed(3)
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = make(device, init_scale=1024.0)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).to(device)
            scaler.scale(model(x).square().mean()).backward()
            if step == 2:
                model.weight.grad[3, 7] = INF
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.state_dict(), model.weight.detach().clone()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("give, take", [(ours, theirs), (theirs, ours), (ours, ours)])
@pytest.mark.parametrize("lazy", [True, False])
def test_states_are_exchanged_with_torch(device, give, take, lazy):
    first = give(device, growth_interval=4)
    drive(first, device, [1.0, 1.0, INF, 1.0, 1.0])
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = take(device, init_scale=2.0)
    if not lazy:
        started(second, device)
    second.load_state_dict(torch.load(buffer))
    assert second.state_dict() == first.state_dict()
    assert first.state_dict()["_growth_tracker"] == 2
    assert drive(first, device, [1.0] * 6) == drive(second, device, [1.0] * 6)


def test_the_state_of_a_disabled_scaler_is_refused(device):
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        ours(device).load_state_dict(ours(device, enabled=False).state_dict())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("lazy", [True, False])
def test_copies(device, copier, lazy):
    scaler = ours(device, init_scale=8.0, growth_interval=3)
    if not lazy:
        drive(scaler, device, [1.0, 1.0])
    twin = copier(scaler)
    assert type(twin) is mt.GradScaler and twin.state_dict() == scaler.state_dict()
    assert drive(twin, device, [1.0] * 4) == drive(scaler, device, [1.0] * 4)
    started(scaler, device).unscale_(Recorder([one_element(device)]))
    with pytest.raises(AssertionError, match="beginning"):
        pickle.dumps(scaler)


# --- whole programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_torchs(device, clip, accumulate):
    """A loop with unscale_, clipping and accumulation, an overflow in the middle: the same bits
    without clipping, and within rounding with it."""
    results = []
    for make, clipper in (
        (ours, mt.clip_grad_norm_),
        (theirs, torch.nn.utils.clip_grad_norm_),
    ):
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
