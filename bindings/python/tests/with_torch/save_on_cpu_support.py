"""What the tests of save_on_cpu share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt.torch import _store

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int64,
)


@pytest.fixture(params=["inline", "streams"])
def offload(request, device, monkeypatch):
    """Makes a save_on_cpu of the device. On the CPU also with copies on threads of their own, as a
    GPU has them: what is ordered wrongly is then wrong."""
    if request.param == "streams":
        if device.type != "cpu":
            pytest.skip("a GPU's copies always run on streams")
        monkeypatch.setattr(_store, "copies_inline", lambda device: False)
    monkeypatch.setattr(_store, "_idle", {})

    def make(**options):
        options.setdefault("device_type", device.type)
        options.setdefault("min_bytes", 1)
        return mt.save_on_cpu(**options)

    return make


class Keeping(torch.autograd.Function):
    """Saves what it is given, and hands what it gets back in backward to a function."""

    @staticmethod
    def forward(ctx, anchor, see, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.see = see
        return anchor * 1.0

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        ctx.see(saved)
        return (gradient, None) + (None,) * len(saved)


def through(context, *tensors, between=None):
    """What backward gets of tensors that were saved under a context."""
    seen = []
    anchor = torch.ones((), requires_grad=True)
    with context:
        result = Keeping.apply(anchor, lambda saved: seen.extend(saved), *tensors)
    if between is not None:
        between()
    result.backward()
    return seen


def assert_same_tensor(one, other):
    assert one.dtype == other.dtype and one.device == other.device
    assert one.shape == other.shape and one.stride() == other.stride()
    assert torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def random_tensor(shape, dtype, device):
    """Bits of every kind, NaNs with payloads too."""
    if dtype == torch.bool:
        return torch.rand(shape, device=device) < 0.5
    itemsize = torch.empty(0, dtype=dtype).itemsize
    length = itemsize
    for size in shape:
        length *= size
    return torch.randint(0, 256, (length,), dtype=torch.uint8, device=device).view(dtype).view(shape)


class Net(nn.Module):
    """Linear layers, a norm with buffers, dropout and a view or two."""

    def __init__(self, width=64):
        super().__init__()
        self.one, self.two = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        a, b = nn.functional.gelu(self.one(x)).chunk(2, dim=-1)
        x = self.two(torch.cat([a * b, a.tanh()], dim=-1))
        return self.drop(self.norm(x)) + x


def train(net, x, context):
    """Loss and gradients of one step."""
    torch.manual_seed(7)
    net.zero_grad()
    x.grad = None
    with context:
        loss = net(x).square().sum()
    loss.backward()
    return [loss.detach(), x.grad] + [p.grad for p in net.parameters()]


def assert_equal_lists(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.fixture
def net(device):
    return Net().to(device)


@pytest.fixture
def x(device):
    return torch.randn(32, 64, device=device, requires_grad=True)


def plain():
    """No hooks of ours."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


@pytest.fixture
def streams(monkeypatch):
    """A save_on_cpu whose copies run on threads of their own, on the CPU."""
    monkeypatch.setattr(_store, "copies_inline", lambda device: False)
    monkeypatch.setattr(_store, "_idle", {})
    return lambda **options: mt.save_on_cpu(device_type="cpu", min_bytes=1, **options)
