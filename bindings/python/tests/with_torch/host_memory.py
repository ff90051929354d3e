"""Trains a model of LAYERS * 2^20 parameters under a limit of 12 bytes a parameter, and prints what it
took: `host` with memopt.torch's optimizer on the host, `split` and `split16` the same with split
weights of 8 and 16 bits under a limit of 8.1, `plain` in fp32 with torch's AdamW. `disk` has its states on a disk and 16 MiB
for them, and saves them, under a limit of 2 bytes a parameter and 96 MiB; `small` is `host` under that
limit."""

from __future__ import annotations

import gc
import mmap
import resource
import sys
import tempfile
from typing import Any, List, Tuple

import torch

import memopt.torch as mt

WIDTH = 1024


def status(key: str) -> int:
    """A line of this process's status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


class Block(torch.nn.Module):
    """A layer beside which its input passes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(WIDTH, WIDTH, dtype=dtype).normal_(0, 0.002))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.linear(x, self.weight)


def train(mode: str, layers: int, steps: int) -> Tuple[List[float], Any]:
    """The losses of some steps, and the optimizer."""
    host = mode != "plain"
    dtype = torch.bfloat16 if host else torch.float32
    model = torch.nn.Sequential(*[Block(dtype) for _ in range(layers)])
    optimizer: Any = None
    if host:
        options: Any = dict(lr=1e-4, split_weights={"split": 8, "split16": 16}.get(mode, False))
        if mode == "disk":
            options.update(disk=tempfile.gettempdir(), host_limit="16MiB")
        optimizer = mt.CPUOffloadOptimizer(model.parameters(), mt.AdamW8bit, **options)
        mt.release_gradients(optimizer, max_norm=1.0, norm="previous")
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, target = torch.randn(8, WIDTH).to(dtype), torch.randn(8, WIDTH)
    losses = []
    for _ in range(steps):
        loss = (model(x).float() - target).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, optimizer


def main(mode: str, layers: int) -> None:
    torch.manual_seed(1)
    torch.backends.mkldnn.enabled = False  # oneDNN's bf16 product crashes where it gets no memory
    count = layers * WIDTH * WIDTH
    host = mode != "plain"
    train(mode, 1, 2)  # what a first use loads
    gc.collect()
    before = status("VmRSS")
    of_small = mode in ("disk", "small")
    bytes_each = 2 if of_small else 8.1 if mode.startswith("split") else 12
    limit = status("VmData") + int(bytes_each * count) + (96 << 20 if of_small else 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    losses, optimizer = train(mode, layers, 6)
    if mode == "disk":
        with tempfile.TemporaryFile() as file:
            torch.save(optimizer.state_dict(), file)
            name = "/proc/self/fd/%d" % file.fileno()
            assert file.tell() > 6 * count
            torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)  # else it counts as ours
            optimizer.load_state_dict(torch.load(name, mmap=True))
    print("first loss: %.3f" % losses[0])
    print("last loss: %.3f" % losses[-1])
    if host:
        held = sum(optimizer.host_bytes().values())
        in_all = held + 2 * count
        print("held: %.3f" % (held / 2**20 if mode == "disk" else in_all / count))
    print("peak: %.3f" % ((status("VmHWM") - before) / count))
    print("limit: %s" % bytes_each)


main(sys.argv[1], int(sys.argv[2]))
