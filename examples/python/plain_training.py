"""Plain PyTorch: trains a small GPT with torch's own memory savers.

    python examples/python/plain_training.py

Nothing here is libmemopt's. To train with it, change these four imports, and nothing else:

    from torch.amp import GradScaler                  ->  from memopt.torch import GradScaler
    from torch.autograd.graph import save_on_cpu      ->  from memopt.torch import save_on_cpu
    from torch.optim import AdamW                     ->  from memopt.torch import AdamW8bit as AdamW
    from torch.utils.checkpoint import checkpoint     ->  from memopt.torch import checkpoint

The tests do that, and compare the losses that both print.
"""

import argparse
import pathlib

import torch
from gpt_block import Block
from torch import nn
from torch.amp import GradScaler
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

TEXT = pathlib.Path(__file__).resolve().parents[2] / "docs"


class GPT(nn.Module):
    """A byte-level transformer whose blocks are checkpointed."""

    def __init__(self, width=96, heads=4, layers=3, context=64, dropout=0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def batches(text, device, batch=8, context=64):
    """Random windows of the text, and the same one byte later."""
    data = torch.tensor(list(text), dtype=torch.long)
    generator = torch.Generator().manual_seed(2)
    while True:
        starts = torch.randint(len(data) - context - 1, (batch,), generator=generator)
        x = torch.stack([data[s : s + context] for s in starts])
        y = torch.stack([data[s + 1 : s + 1 + context] for s in starts])
        yield x.to(device), y.to(device)


def train(model, text, device, steps):
    """Yields the loss of each step."""
    optimizer = AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = GradScaler(device.type, init_scale=2.0**12)
    for (x, y), _ in zip(batches(text, device), range(steps)):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16), save_on_cpu():
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30, help="(default: 30)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--text", type=pathlib.Path, default=TEXT, help="a folder of .md files")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device(arguments.device)
    text = b"\n".join(path.read_bytes() for path in sorted(arguments.text.rglob("*.md")))
    if not text:
        parser.error("%s has no .md files: --text FOLDER" % arguments.text)
    model = GPT().to(device)
    losses = train(model, text, device, arguments.steps)
    for step, loss in enumerate(losses, 1):
        print("step %d  loss %.9g" % (step, loss), flush=True)


if __name__ == "__main__":
    main()
