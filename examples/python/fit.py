"""A training step within a byte budget, on the CPU, in seconds: the losses stay the same bits.

    python examples/python/fit.py [--budget 60%|80MiB] [--frozen]

With --frozen only what is beside the layers is trained, as with adapters, and weights of layers may stream from
host memory: --budget 30% holds what keeps no more than a few of them.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

import memopt.torch as mt


class Model(nn.Module):
    """A small language model of torch's own layers, which gives its loss."""

    def __init__(self, words=512, width=64, layers=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation=F.gelu, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        return F.cross_entropy(self.head(self.body(self.embed(ids[:, :-1]))).flatten(0, 1), ids[:, 1:].flatten())


def train(budget=None, steps=4, frozen=False):
    """The losses, and the plan."""
    torch.manual_seed(0)
    model, ids = Model(), torch.randint(0, 512, (8, 65))
    model.body.requires_grad_(not frozen)
    optimizer = mt.AdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    allow = ("stream",) if frozen else ()
    fit = None if budget is None else mt.fit(model, optimizer, lambda: model(ids), budget=budget, allow=allow)
    losses = []
    for _ in range(steps):
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, fit


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--budget", default="60%", help="bytes, or a part of what the plain step takes (default 60%%)")
    parser.add_argument("--frozen", action="store_true", help="layers are not trained, and their weights may stream")
    options = parser.parse_args()
    budget, frozen = options.budget, options.frozen
    if budget.endswith("%"):
        plain, fit = train("1TiB", steps=2, frozen=frozen)
        budget = int(fit.plain_bytes * float(budget[:-1]) / 100)
    plain, _ = train(frozen=frozen)
    losses, fit = train(budget, frozen=frozen)
    print(fit.table())
    same = losses == plain
    print("losses", *("%.4f" % loss for loss in losses), "the same bits" if same else "NOT as without a budget")
    return 0 if same and fit.peak_bytes <= fit.budget else 1


if __name__ == "__main__":
    sys.exit(main())
