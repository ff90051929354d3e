"""Plain PyTorch: trains a small GPT on several processes, with torch's own memory savers.

    torchrun --standalone --nproc-per-node=2 examples/python/plain_ddp_training.py

Nothing here is libmemopt's. To train with it, change these five imports, and nothing else:

    from torch.amp import GradScaler           ->  from memopt.torch import GradScaler
    from torch.autograd.graph import save_on_cpu
                                               ->  from memopt.torch import save_on_cpu
    from torch.nn.utils import clip_grad_norm_ ->  from memopt.torch import clip_grad_norm_
    from torch.optim import AdamW              ->  from memopt.torch import AdamW8bit as AdamW
    from torch.utils.checkpoint import checkpoint_sequential
                                               ->  from memopt.torch import checkpoint_sequential

The tests do that, and compare the losses that both print.
"""

import argparse
import pathlib
import time

import torch
import torch.distributed as dist
from gpt_block import Block
from torch import nn
from torch.amp import GradScaler
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.checkpoint import checkpoint_sequential

TEXT = pathlib.Path(__file__).resolve().parents[2] / "docs"


class GPT(nn.Module):
    """A byte-level transformer whose blocks are checkpointed in two segments."""

    def __init__(self, width=96, heads=4, layers=4, context=64, dropout=0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        return self.head(self.norm(x))


def batches(text, device, rank, batch=4, context=64):
    """Random windows of the text, others in each process, and the same one byte later."""
    data = torch.tensor(list(text), dtype=torch.long)
    generator = torch.Generator().manual_seed(2 + rank)
    while True:
        starts = torch.randint(len(data) - context - 1, (batch,), generator=generator)
        x = torch.stack([data[s : s + context] for s in starts])
        y = torch.stack([data[s + 1 : s + 1 + context] for s in starts])
        yield x.to(device), y.to(device)


def train(text, device, steps, accumulation=2):
    """Yields the loss of each step, the mean of all processes."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT().to(device), gradient_as_bucket_view=True)
    torch.manual_seed(10 + rank)  # each process has a dropout of its own
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=2e-3, weight_decay=0.1
    )
    warmup = LinearLR(optimizer, start_factor=0.2, total_iters=5)
    schedule = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, steps)], [5])
    scaler = GradScaler(device.type, init_scale=2.0**12)
    data = batches(text, device, rank)
    for _ in range(steps):
        mean = torch.zeros((), device=device)
        for part in range(accumulation):
            x, y = next(data)
            model.require_backward_grad_sync = part == accumulation - 1
            with torch.autocast(device.type, dtype=torch.bfloat16), save_on_cpu():
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulation
            scaler.scale(loss).backward()
            mean += loss.detach() / dist.get_world_size()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(mean)
        yield mean.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30, help="(default: 30)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--text", type=pathlib.Path, default=TEXT, help="a folder of .md files")
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    index = dist.get_rank() if arguments.device == "cuda" else None
    text = b"\n".join(path.read_bytes() for path in sorted(arguments.text.rglob("*.md")))
    losses = train(text, torch.device(arguments.device, index), arguments.steps)
    for step, loss in enumerate(losses, 1):
        if dist.get_rank() == 0:
            print("step %d  loss %.9g" % (step, loss), flush=True)
    dist.barrier()
    time.sleep(0.5)  # gloo's threads drop their last work; at exit torch 2.15 would abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
