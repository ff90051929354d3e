"""checkpoint_sequential(): within the budget, measured to the byte, with the same gradients."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memopt
import memopt.torch as mt
from memopt.torch import _measure
from memopt.torch._live_bytes import LiveBytes


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.2)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


@pytest.fixture
def chain(device):
    """Blocks of unlike sizes."""
    return nn.Sequential(*(Block(32, 32 * (1 + i % 4)) for i in range(9))).to(device)


@pytest.fixture
def x(device):
    return torch.randn(4, 64, 32, device=device, requires_grad=True)


def run(chain, x, call):
    """Loss, gradients, and the most bytes alive but for parameters, their gradients and x."""
    torch.manual_seed(3)
    inputs = [x, *chain.parameters()] if x.requires_grad else list(chain.parameters())
    weights = weights_like(chain(x))
    torch.manual_seed(3)
    with LiveBytes([x, weights, *chain.parameters(), *chain.buffers()]) as live:
        hooks = [p.register_hook(live.leave_out) for p in chain.parameters()]
        loss = (call(x) * weights).sum()  # a loss that needs no memory, nor holds the output
        gradients = torch.autograd.grad(loss, inputs)
        for hook in hooks:
            hook.remove()
    return loss.detach(), gradients, live.peak


def weights_like(y):
    return torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view_as(y)


def nbytes(tensor):
    return tensor.numel() * tensor.element_size()


def plan_of(chain, x, budget="1TiB"):
    return _measure.plan(list(chain), x, budget)[1]


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1]))


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6, 0.4, 0.0])
@pytest.mark.parametrize("input_gradient", [True, False])
def test_within_the_budget(chain, x, share, input_gradient):
    x = x if input_gradient else x.detach()
    plain = run(chain, x, chain)
    free = plan_of(chain, x)
    floor = free.minimum_budget
    budget = floor + int(share * (free.peak_bytes - floor))

    def ours(x):
        return mt.checkpoint_sequential(chain, x, budget=budget)

    run(chain, x, ours)  # measures
    result = run(chain, x, ours)
    assert_same(plain, result)
    plan = plan_of(chain, x, budget)
    # The plan counts the input, and the gradient of the output from the start.
    assert result[2] + nbytes(x) <= plan.peak_bytes + 64
    assert plan.peak_bytes <= budget
    assert (plan.recomputed == 0) == (share == 1.0)
    if share < 1:
        assert result[2] < plain[2]


def test_a_budget_too_small_names_one_that_does(chain, x):
    with pytest.raises(memopt.LimitReachedError, match=r"9 stages need at least (\d+)"):
        mt.checkpoint_sequential(chain, x, budget="10KiB")


def test_backward_twice_and_in_parts(chain, x):
    inputs = [x, *chain.parameters()]
    plain = run(chain, x, chain)
    budget = plan_of(chain, x).minimum_budget * 3 // 2
    torch.manual_seed(3)
    y = mt.checkpoint_sequential(chain, x, budget=budget, determinism_check="hash")
    loss = (y * weights_like(y)).sum()
    part = torch.autograd.grad(loss, [chain[5].up.weight], retain_graph=True)
    whole = torch.autograd.grad(loss, inputs, retain_graph=True)
    again = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain[1], whole))
    assert all(torch.equal(a, b) for a, b in zip(plain[1], again))
    number = [p is chain[5].up.weight for p in inputs].index(True)
    assert torch.equal(part[0], plain[1][number])


def test_measuring_changes_nothing(device):
    chain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).to(device)
    x = torch.randn(16, 8, device=device, requires_grad=True)
    before = [buffer.clone() for buffer in chain.buffers()]
    state = torch.get_rng_state()
    _measure.plan(list(chain), x, "1GiB")
    assert all(torch.equal(a, b) for a, b in zip(before, chain.buffers()))
    assert torch.equal(state, torch.get_rng_state())
    assert x.grad is None and all(p.grad is None for p in chain.parameters())


def test_modules_that_work_in_place(device):
    layers = []
    for _ in range(6):
        layers += [nn.Linear(16, 16), nn.ReLU(inplace=True)]
    chain = nn.Sequential(*layers).to(device)
    x = torch.randn(32, 16, device=device, requires_grad=True)
    plain = run(chain, x, chain)
    budget = plan_of(chain, x).minimum_budget
    result = run(chain, x, lambda x: mt.checkpoint_sequential(chain, x, budget=budget))
    assert_same(plain, result)


def test_modules_without_parameters_and_views(device):
    chain = nn.Sequential(nn.Linear(12, 12), nn.Unflatten(1, (3, 4)), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5)).to(
        device
    )
    x = torch.randn(64, 12, device=device, requires_grad=True)
    plain = run(chain, x, chain)
    free = plan_of(chain, x)
    for budget in (free.minimum_budget, (free.minimum_budget + free.peak_bytes) // 2):
        assert_same(plain, run(chain, x, lambda x: mt.checkpoint_sequential(chain, x, budget=budget)))


def test_a_parameter_that_its_module_does_not_use(device):
    class Idle(nn.Linear):
        def forward(self, x):
            return torch.tanh(x)

    chain = nn.Sequential(nn.Linear(16, 16), Idle(16, 16), nn.Linear(16, 16), nn.Tanh()).to(device)
    x = torch.randn(32, 16, device=device, requires_grad=True)
    budget = plan_of(chain, x).minimum_budget
    mt.checkpoint_sequential(chain, x, budget=budget).sum().backward()
    assert chain[1].weight.grad is None and chain[0].weight.grad is not None


def test_functions_in_a_list(chain, x):
    functions = [chain[0], torch.tanh, lambda x: chain[1](x) * 2, chain[2]]

    def plain(x):
        for function in functions:
            x = function(x)
        return x

    def grads(y):
        return torch.autograd.grad(y, [x, *chain[1].parameters()], torch.ones_like(y))

    torch.manual_seed(3)
    wanted = grads(plain(x))
    budget = _measure.plan(functions, x, "1TiB")[1].minimum_budget
    torch.manual_seed(3)
    got = grads(mt.checkpoint_sequential(functions, x, budget=budget))
    assert all(torch.equal(a, b) for a, b in zip(wanted, got))


def test_autocast(chain, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        plain = run(chain, x, chain)
        budget = plan_of(chain, x).minimum_budget
        ours = run(chain, x, lambda x: mt.checkpoint_sequential(chain, x, budget=budget))
    assert_same(plain, ours)


def test_what_is_recomputed_is_checked(chain, x):
    budget = plan_of(chain, x).minimum_budget
    y = mt.checkpoint_sequential(chain, x, budget=budget, determinism_check="hash")
    with torch.no_grad():
        chain[2].up.bias.add_(1.0)
    with pytest.raises((mt.CheckpointError, RuntimeError)) as caught:
        y.sum().backward()
    assert "module" in str(caught.value) or "inplace" in str(caught.value)


def test_without_gradients(chain, x):
    chain.eval()
    with torch.no_grad():
        assert torch.equal(chain(x), mt.checkpoint_sequential(chain, x, budget="1KiB"))


@pytest.mark.parametrize("segments", [1, 2, 4, 20])
def test_torch_s_form(chain, x, segments):
    plain = run(chain, x, chain)
    ours = run(chain, x, lambda x: mt.checkpoint_sequential(chain, segments, x, use_reentrant=False))
    assert_same(plain, ours)
    if segments == 4:
        assert ours[2] < 0.7 * plain[2]


def test_values_of_torch_s_form_may_be_tuples(device):
    """With a budget they may not, and the message says so."""
    layers = [lambda pair: (pair[0].sin() * pair[1], pair[1])] * 4
    x, mask = torch.randn(3, requires_grad=True, device=device), torch.ones(3, device=device)
    y, _ = mt.checkpoint_sequential(layers, 2, (x, mask))
    wanted = torch.autograd.grad(x.sin().sin().sin().sin().sum(), x)[0]
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)
    with pytest.raises(TypeError, match="one tensor, .* not a tuple; bind .* or give segments"):
        mt.checkpoint_sequential(layers, (x, mask), budget="1MiB")
    with pytest.raises(TypeError, match="segments is a Tensor, and input a NoneType"):
        mt.checkpoint_sequential(layers, x)


def test_nothing_is_left_behind(device, x):
    """No cycles: values go without the collector, and a dead chain's plans go with it."""
    gc.collect()
    gc.disable()
    try:
        chain = nn.Sequential(*(Block(32, 32) for _ in range(4))).to(device)
        budget = plan_of(chain, x).minimum_budget
        base = x * 1.0
        reference = weakref.ref(base)
        y = mt.checkpoint_sequential(chain, base, budget=budget)
        y.sum().backward()
        del base, y
        assert reference() is None
        first = weakref.ref(chain[0])
        del chain
        assert first() is None
        _measure._forget_dead()
        assert not [k for k, m in _measure._known.items() if m.modules[0]() is None]
    finally:
        gc.enable()


def test_bad_arguments(chain, x):
    with pytest.raises(ValueError, match="modules is empty"):
        mt.checkpoint_sequential([], x, budget="1GiB")
    with pytest.raises(TypeError, match="budget=…"):
        mt.checkpoint_sequential(chain, x)
    with pytest.raises(TypeError, match="one tensor, .* not a list"):
        mt.checkpoint_sequential(chain, [x], budget="1GiB")
    with pytest.raises(ValueError, match="segments is 0"):
        mt.checkpoint_sequential(chain, 0, x)
    with pytest.raises(TypeError, match="module 1 gives a tuple"):
        mt.checkpoint_sequential([chain[0], lambda x: (x, x)], x, budget="1GiB")
    with pytest.raises(ValueError):
        mt.checkpoint_sequential(chain, x, budget="much")
