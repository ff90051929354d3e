"""What the tests of checkpoint() share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

MODES = ("none", "default", "hash")


class Block(nn.Module):
    """Two layers with dropout in between."""

    def __init__(self, width=16):
        super().__init__()
        self.one, self.two = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.3)
        self.runs = 0

    def forward(self, x, scale=1.0):
        self.runs += 1
        return x + scale * self.drop(self.two(torch.tanh(self.one(x))))


@pytest.fixture
def block(device):
    return Block().to(device)


@pytest.fixture
def x(device):
    return torch.randn(8, 16, device=device, requires_grad=True)


def results(function, inputs, **options):
    torch.manual_seed(7)
    loss = function().square().sum()
    return loss, torch.autograd.grad(loss, inputs, **options)


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1]))
