"""Trains a small language model with PyTorch twice: with torch's AdamW, and with memopt's AdamW
whose states are 8-bit. Both runs see the same weights, batches and learning rates.

    pip install ./bindings/python torch numpy
    python examples/python/train_torch.py

It prints both loss curves and what the optimizers' states take, and fails (exit status 1) unless
the 8-bit run learns as well as the 32-bit run and its states take less than 30 % of the memory.
"""

import argparse
import math
import pathlib
import sys
import time

import memopt
import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Block(nn.Module):
    """Attention and a two-layer network, each added to what comes in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A byte-level transformer: reads bytes, predicts the next one."""

    def __init__(self, width, heads, layers, context):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text(path):
    """The bytes of a file, or this repository's own sources and documents."""
    if path:
        return pathlib.Path(path).read_bytes()
    files = sorted(
        file
        for pattern in ("include/**/*.h", "lib/**/*.c", "docs/**/*.md", "bindings/python/**/*.py")
        for file in ROOT.glob(pattern)
    )
    return b"\n".join(file.read_bytes() for file in files)[: 1 << 20]


class TorchAdamW:
    """torch's own optimizer."""

    def __init__(self, model, lr):
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step(self, lr):
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()

    def state_bytes(self):
        return sum(
            value.numel() * value.element_size()
            for state in self.optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        )


class MemoptAdamW8bit:
    """Ours: the model's tensors are used where they are, the states come from our allocator."""

    def __init__(self, model, lr):
        self.device = memopt.Device("cpu", threads=torch.get_num_threads())
        self.allocator = memopt.Allocator(self.device, "expandable_segments:True")
        self.optimizer = memopt.AdamW8bit(self.allocator, model.parameters(), lr=lr)

    def step(self, lr):
        self.optimizer.groups[0].lr = lr
        self.optimizer.step()  # takes each parameter's .grad

    def state_bytes(self):
        return self.optimizer.state_bytes


def train(make_optimizer, data, options):
    """One run from the same seed; the losses, the optimizer and the seconds spent in its steps."""
    torch.manual_seed(options.seed)
    model = GPT(options.width, options.heads, options.layers, options.context)
    optimizer, losses, seconds = make_optimizer(model, options.lr), [], 0.0
    for step in range(options.steps):
        starts = torch.randint(len(data) - options.context - 1, (options.batch,))
        rows = torch.stack([data[s : s + options.context + 1] for s in starts.tolist()]).long()
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        warm = min(1.0, (step + 1) / 10)
        cosine = 0.5 * (1 + math.cos(math.pi * step / options.steps))
        begin = time.perf_counter()
        optimizer.step(options.lr * warm * (0.1 + 0.9 * cosine))
        seconds += time.perf_counter() - begin
        losses.append(loss.item())
    return losses, optimizer, seconds, sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--text", help="train on this file instead of the repository's own text")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=1, help="more do not help a model this small"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = torch.frombuffer(bytearray(read_text(options.text)), dtype=torch.uint8)
    if len(data) <= options.context + 1:
        parser.error("the text is shorter than the context")

    theirs, their_optimizer, their_time, parameters = train(TorchAdamW, data, options)
    ours, our_optimizer, our_time, _ = train(MemoptAdamW8bit, data, options)

    print(f"{parameters:,} parameters, {len(data):,} bytes of text, {options.steps} steps\n")
    print("  step   torch AdamW   memopt AdamW8bit")
    for step in sorted({*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1}):
        print(f"  {step:4}   {theirs[step]:11.4f}   {ours[step]:16.4f}")

    tail = max(1, options.steps // 10)
    their_loss, our_loss = sum(theirs[-tail:]) / tail, sum(ours[-tail:]) / tail
    their_bytes, our_bytes = their_optimizer.state_bytes(), our_optimizer.state_bytes()
    print(f"\n  mean of the last {tail}: {their_loss:.4f} and {our_loss:.4f}")
    print(
        f"  optimizer states: {their_bytes:,} and {our_bytes:,} bytes"
        f" ({our_bytes / their_bytes:.0%}), {our_bytes / parameters:.2f} a parameter"
    )
    print(f"  time in steps: {their_time:.2f} s and {our_time:.2f} s")

    checks = {
        "the 8-bit run learns": our_loss < 0.8 * ours[0],
        "as well as the 32-bit run (within 3 %)": our_loss < 1.03 * their_loss,
        "with less than 30 % of the state": our_bytes < 0.3 * their_bytes,
    }
    for text, holds in checks.items():
        print(f"  {'yes' if holds else 'NO '}  {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
