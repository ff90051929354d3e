"""Models with adapters for the tests of stream_weights()."""

from __future__ import annotations

import torch
from fit_models import Block
from torch import nn

#: Layers of a stack, and of each the bytes that stream.
COUNT = 6
LAYER = 3 * 32 * 128 * 4


class Adapter(nn.Module):
    """A frozen layer and a trained part of low rank beside it (LoRA)."""

    def __init__(self, base):
        super().__init__()
        rows, columns = base.weight.shape if type(base).__name__ == "Conv1D" else base.weight.shape[::-1]
        self.base, self.drop = base, nn.Dropout(0.1)
        self.down = nn.Parameter(torch.randn(rows, 4) * 0.1)
        self.up = nn.Parameter(torch.randn(4, columns) * 0.1)

    def forward(self, x):
        return self.base(x) + self.drop(x) @ self.down @ self.up


class NormedAdapter(Adapter):
    """One that reads the frozen weight itself, before any module runs (DoRA)."""

    def forward(self, x):
        weight = self.base.weight
        return super().forward(x) * (self.up.t() @ self.down.t() + weight).norm(dim=1).detach()


def adapted(model, kind=Adapter):
    """Everything is frozen but for adapters at the linear layers."""
    model.requires_grad_(False)
    torch.manual_seed(7)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in ("Linear", "Conv1D") and name != "lm_head":
                setattr(module, name, kind(child))
    return model


def stack(kind=Adapter, count=COUNT):
    """Layers with adapters, or without if there is no kind."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(count)))
    x = torch.randn(16, 32, requires_grad=True)
    return adapted(model, kind) if kind else model, lambda: model(x).square().mean()


def run(model, step, around=None, steps=3, accumulate=1):
    """Losses and gradients of training steps."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    torch.manual_seed(3)
    found = []
    for _ in range(steps):
        for _ in range(accumulate):
            loss = step() if around is None else around(step)
            loss.backward()
            found.append(loss.detach())
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return found


def same(one, other):
    return len(one) == len(other) and len(one) > 3 and all(map(torch.equal, one, other))
