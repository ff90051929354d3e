"""A training step within a byte budget, on the CPU, in seconds: the losses stay the same bits.

    python examples/python/fit.py [--budget 60%|80MiB]
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


def train(budget=None, steps=4):
    """The losses, and the plan."""
    torch.manual_seed(0)
    model, ids = Model(), torch.randint(0, 512, (8, 65))
    optimizer = mt.AdamW8bit(model.parameters(), lr=1e-3)
    fit = None if budget is None else mt.fit(model, optimizer, lambda: model(ids), budget=budget)
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
    budget = parser.parse_args().budget
    if budget.endswith("%"):
        plain, fit = train("1TiB", steps=2)
        budget = int(fit.plain_bytes * float(budget[:-1]) / 100)
    plain, _ = train()
    losses, fit = train(budget)
    print(fit.table())
    same = losses == plain
    print("losses", *("%.4f" % loss for loss in losses), "the same bits" if same else "NOT as without a budget")
    return 0 if same and fit.peak_bytes <= fit.budget else 1


if __name__ == "__main__":
    sys.exit(main())
