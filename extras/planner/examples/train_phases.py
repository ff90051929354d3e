"""A training run that says what it is doing, for `memopt profile`:

    memopt profile --plot memory.png -- python extras/planner/examples/train_phases.py

Without `memopt profile` the marks do nothing. The model is a stack of wide layers, so that weights,
activations, gradients and optimizer states each show in the picture.
"""

import argparse

import memopt.tools
import torch
from torch import nn


def model(layers, width):
    """Layers whose activations are kept for backward."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 16))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2048)
    options = parser.parse_args()
    torch.manual_seed(0)

    with memopt.tools.phase("setup"):
        net = model(options.layers, options.width)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        x = torch.randn(options.batch, options.width)
        y = torch.randint(16, (options.batch,))

    losses = []
    for _ in range(options.steps):
        with memopt.tools.phase("forward"):
            loss = nn.functional.cross_entropy(net(x), y)
        with memopt.tools.phase("backward"):
            loss.backward()
        with memopt.tools.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    print("loss %.4f -> %.4f" % (losses[0], losses[-1]))
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    raise SystemExit(main())
