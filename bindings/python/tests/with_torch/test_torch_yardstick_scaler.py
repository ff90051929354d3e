"""Behaviours that torch tests of its GradScaler, tested of ours.

docs/guide/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
import memopt.torch as mt  # noqa: E402


def parameter(*size, dtype=None, device=None):
    return torch.nn.Parameter(torch.randn(*size, device=device).to(dtype or torch.float32))


def test_scaled_gradients_accumulate(device):
    """Two backwards between steps give the sum; each scale is the same until update()."""
    weight = parameter(40, 40, device=device)
    other = copy.deepcopy(weight)
    scaler = mt.GradScaler(device.type, init_scale=1024.0)
    ours = torch.optim.SGD([weight], lr=0.5)
    theirs = torch.optim.SGD([other], lr=0.5)
    for _ in range(2):
        x = torch.randn(3, 40, device=device)
        scaler.scale((x @ weight).square().mean()).backward()
        (x @ other).square().mean().backward()
    scaler.step(ours)
    scaler.update()
    theirs.step()
    assert torch.equal(weight, other)


def test_a_penalty_on_scaled_gradients(device):
    """Gradients taken with create_graph from a scaled loss, unscaled by hand, are part of the loss."""
    weight = parameter(40, 40, device=device)
    other = copy.deepcopy(weight)
    scaler = mt.GradScaler(device.type, init_scale=256.0)
    x = torch.randn(3, 40, device=device)

    def norm_of(loss, leaf, scale):
        (gradient,) = torch.autograd.grad(loss * scale, leaf, create_graph=True)
        return (gradient / scale).norm()

    loss = (x @ weight).square().mean()
    scaler.scale(loss + norm_of(loss, weight, scaler.get_scale())).backward()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.step(optimizer)
    loss = (x @ other).square().mean()
    (loss + norm_of(loss, other, 1.0)).backward()
    torch.optim.SGD([other], lr=0.5).step()
    torch.testing.assert_close(weight, other)


# --- training beside a run without scaling ----------------------------------------------------------


def network(device):
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(device)


def batches(device):
    generator = torch.Generator().manual_seed(6)
    return [[torch.randn(8, 8, generator=generator).to(device) for _ in range(2)] for _ in range(4)]


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def beside(device, make_optimizer, body, skip=2, clip=None, **options):
    """Trains two models, the one without scaling, the other by body(scaler, model, optimizer, loss),
    whose gradients are infinite at step `skip`; the scaler, and the models."""
    plain, scaled = network(device), network(device)
    one, two = make_optimizer(plain.parameters()), make_optimizer(scaled.parameters())
    scaler = mt.GradScaler(device.type, init_scale=128.0, growth_interval=1, **options)
    for number, batch in enumerate(batches(device)):
        one.zero_grad()
        two.zero_grad()
        loss_of(plain, batch).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        if number != skip or not scaler.is_enabled():
            one.step()
        spoil = number == skip and scaler.is_enabled()
        scaler = body(scaler, scaled, two, loss_of(scaled, batch), spoil) or scaler
    for p, q in zip(plain.parameters(), scaled.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    return scaler


def spoiled(model):
    with torch.no_grad():
        model[1].weight.grad.fill_(float("inf"))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.5)


def ours(parameters):
    return mt.AdamW(parameters, lr=1e-2)


MAKERS = pytest.mark.parametrize("make_optimizer", [sgd, ours])


@MAKERS
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("pickled", [False, True])
def test_training_with_a_skipped_step(make_optimizer, enabled, pickled, device):
    """The scale grew at three steps and fell at one, also of a scaler that is pickled each time."""

    def body(scaler, model, optimizer, loss, spoil):
        scaler.scale(loss).backward()
        if spoil:
            spoiled(model)
        scaler.step(optimizer)
        scaler.update()
        return pickle.loads(pickle.dumps(scaler)) if pickled else None

    scaler = beside(device, make_optimizer, body, enabled=enabled)
    assert scaler.get_scale() == (128.0 * 2.0**3 * 0.5 if enabled else 1.0)


@MAKERS
@pytest.mark.parametrize("unscaled", [True, False])
@pytest.mark.parametrize("clipper", [torch.nn.utils.clip_grad_norm_, mt.clip_grad_norm_])
def test_clipping_before_or_after_unscaling(make_optimizer, unscaled, clipper, device):
    """Scaled gradients are clipped at a scaled norm; an infinite norm is no error in either."""

    def body(scaler, model, optimizer, loss, spoil):
        scaler.scale(loss).backward()
        if spoil:
            spoiled(model)
        if unscaled:
            scaler.unscale_(optimizer)
        factor = 1.0 if unscaled else scaler.get_scale()
        clipper(model.parameters(), 0.05 * factor, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()

    scaler = beside(device, make_optimizer, body, clip=0.05)
    assert scaler.get_scale() == 128.0 * 2.0**3 * 0.5


def test_what_happens_to_gradients_after_unscaling_is_not_looked_at(device):
    """As torch's: an infinity that comes between unscale_() and step() goes into the parameters."""
    model = network(device)
    optimizer = mt.AdamW8bit(model.parameters(), lr=1e-2)
    scaler = mt.GradScaler(device.type, init_scale=128.0)
    scaler.scale(loss_of(model, batches(device)[0])).backward()
    scaler.unscale_(optimizer)
    spoiled(model)
    scaler.step(optimizer)
    scaler.update()
    assert not model[1].weight.isfinite().all() and model[0].weight.isfinite().all()
    assert scaler.get_scale() == 128.0


def test_two_models_two_optimizers_and_a_loss_of_both_each(device):
    """One optimizer is unscaled by hand, the other skips a step."""
    first, second = network(device), network(device)
    plain = copy.deepcopy(first), copy.deepcopy(second)
    scaler = mt.GradScaler(device.type, init_scale=128.0, growth_interval=1)
    optimizers = sgd(first.parameters()), sgd(second.parameters())
    others = sgd(plain[0].parameters()), sgd(plain[1].parameters())

    def losses(one, two, batch):
        a, b = one(batch[0]), two(batch[0])
        mse = torch.nn.functional.mse_loss
        return mse(0.3 * a + 0.7 * b, batch[1]), mse(0.6 * a - 0.4 * b, batch[1])

    for number, batch in enumerate(batches(device)):
        for optimizer in (*optimizers, *others):
            optimizer.zero_grad()
        loss0, loss1 = losses(first, second, batch)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        if number == 2:
            spoiled(second)
        scaler.unscale_(optimizers[0])
        scaler.step(optimizers[0])
        scaler.step(optimizers[1])
        scaler.update()
        loss0, loss1 = losses(*plain, batch)
        loss0.backward(retain_graph=True)
        loss1.backward()
        others[0].step()
        if number != 2:
            others[1].step()
    assert scaler.get_scale() == 128.0 * 2.0**3 * 0.5
    for model, other in zip((first, second), plain):
        for p, q in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
