"""Behaviours that torch tests of its own savers, and that no other file here covers.

docs/guide/pytorch-tests.md lists what torch tests and which tests of ours stand for it.
"""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")
import memopt.torch as mt  # noqa: E402

OPTIMIZERS = [mt.AdamW, mt.AdamW8bit, mt.Lion8bit, mt.SGD8bit]


def parameter(*size, dtype=None, device=None):
    return torch.nn.Parameter(torch.randn(*size, device=device).to(dtype or torch.float32))


def extra(kind):
    return {"momentum": 0.9} if kind in (mt.SGD, mt.SGD8bit) else {}


# --- optimizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_tensor_as_learning_rate(kind, device):
    """It is read at each step, so that a scheduler or the user may change it in place."""
    one = parameter(64, 80, device=device)
    two = copy.deepcopy(one)
    rate = torch.tensor(1e-2)
    first, second = kind([one], lr=rate, **extra(kind)), kind([two], lr=1e-2, **extra(kind))
    for step in range(3):
        gradient = torch.randn_like(one)
        one.grad, two.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        rate.mul_(0.5)
        second.param_groups[0]["lr"] *= 0.5


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_group_without_parameters(kind, device):
    used = parameter(70, 70, device=device)
    optimizer = kind([{"params": []}, {"params": [used]}], lr=1e-2, **extra(kind))
    before = used.detach().clone()
    used.grad = torch.randn_like(used)
    optimizer.step()
    assert not torch.equal(before, used)
    again = kind([{"params": []}, {"params": [used]}], lr=1e-2, **extra(kind))
    again.load_state_dict(optimizer.state_dict())
    assert len(again.param_groups) == 2


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_in_two_groups_is_refused(kind):
    shared = parameter(8)
    with pytest.raises(ValueError, match="more than one parameter group"):
        kind([{"params": [shared]}, {"params": [shared]}], lr=1e-2, **extra(kind))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_of_zero_are_a_step_and_none_are_not(kind, device):
    used, unused = parameter(70, 70, device=device), parameter(70, 70, device=device)
    optimizer = kind([used, unused], lr=1e-2, **extra(kind))
    before = unused.detach().clone()
    used.grad = torch.zeros_like(used)
    optimizer.step()
    assert torch.equal(before, unused) and unused not in optimizer.state
    assert optimizer.state[used]


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
def test_a_loaded_dict_is_not_shared(kind, device):
    """Steps of the optimizer that loaded a dict leave the one that gave it as it was."""
    one = parameter(70, 70, device=device)
    two = copy.deepcopy(one)
    first, second = kind([one], lr=1e-2, **extra(kind)), kind([two], lr=1e-2, **extra(kind))
    one.grad = torch.randn_like(one)
    first.step()
    second.load_state_dict(first.state_dict())
    before = copy.deepcopy(first.state_dict()["state"])
    two.grad = torch.randn_like(two)
    second.step()
    after = first.state_dict()["state"]
    for name, value in before[0].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, after[0][name])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_saved_dict_loads_with_weights_only(kind, device):
    one = parameter(70, 70, device=device)
    optimizer = kind([one], lr=1e-2, **extra(kind))
    one.grad = torch.randn_like(one)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    two = copy.deepcopy(one)
    again = kind([two], lr=1e-2, **extra(kind))
    again.load_state_dict(torch.load(file, weights_only=True))
    one.grad = torch.randn_like(one)
    two.grad = one.grad.clone()
    optimizer.step()
    again.step()
    assert torch.equal(one, two)


# --- checkpoint -----------------------------------------------------------------------------------


@pytest.mark.parametrize("modules", [1, 2, 5])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_chains_of_any_length(modules, segments):
    chain = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(modules))
    )
    x = torch.randn(4, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    chain(x).sum().backward()
    expected = [p.grad.clone() for p in chain.parameters()]
    chain.zero_grad()
    mt.checkpoint_sequential(chain, min(segments, modules), y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, chain.parameters()))


# --- save_on_cpu ----------------------------------------------------------------------------------


def test_saved_inputs_and_outputs_of_a_function_of_ones_own(device):
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            assert torch.equal(x.exp(), y)
            return gradient * y

    x = torch.randn(300, 5, device=device, requires_grad=True)
    with mt.save_on_cpu(device_type=device.type) as context:
        loss = Exponential.apply(x * 2).sum()
    assert context.stats()["saved"] == 2
    loss.backward()
    assert torch.equal(x.grad, 2 * (x.detach() * 2).exp())


# --- GradScaler -----------------------------------------------------------------------------------


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
