#!/usr/bin/env python3
"""What save_on_cpu costs per saved tensor, beside torch's and bare hooks, in one run.

    python tests/bench/torch_offload.py [--device cpu|cuda] [--repeats N] [--json FILE]

Each round times every contender once, in random order; the best of all rounds counts. A step is
forward and backward of a chain of `y.relu()`, each of which saves one tensor. "none" runs without
hooks, "hooks" with hooks that return what they get, and "copies" is what cannot be avoided: hooks
that copy each tensor to other memory and back (on the CPU; on a GPU into and out of one page-locked
buffer). Times are nanoseconds per saved tensor above "none". Prints a table and writes JSON; nothing
passes or fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import memopt.torch as mt

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)


def copying_hooks(device):
    """Two copies of each tensor and no bookkeeping."""
    if device.type == "cpu":
        return saved_tensors_hooks(torch.clone, torch.clone)
    host = torch.empty(max(SIZES) // 4, pin_memory=True)

    def pack(tensor):
        host[: tensor.numel()].copy_(tensor.view(-1), non_blocking=True)
        return tensor.shape

    def unpack(shape):
        result = torch.empty(shape, device=device)
        return result.view(-1).copy_(host[: result.numel()], non_blocking=True).view(shape)

    return saved_tensors_hooks(pack, unpack)


def contenders(device):
    kind = {"device_type": device.type}
    return {
        "none": lambda: None,
        "hooks": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
        "copies": lambda: copying_hooks(device),
        "torch": lambda: save_on_cpu(),
        "torch pinned": lambda: save_on_cpu(pin_memory=True),
        "memopt": lambda: mt.save_on_cpu(**kind),
        "memopt keep_last=4": lambda: mt.save_on_cpu(keep_last=4, **kind),
    }


def chain(x, count):
    y = x
    for _ in range(count):
        y = y.relu()
    return y


def step(context, x, count, gradient):
    """Seconds of one forward and backward."""
    x.grad = None
    start = time.perf_counter()
    if context is None:
        y = chain(x, count)
    else:
        with context:
            y = chain(x, count)
    y.backward(gradient)
    del y
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(device, nbytes, repeats):
    """Nanoseconds per saved tensor of each contender."""
    count = max(4, min(32, (32 << 20) // nbytes))
    x = torch.randn(nbytes // 4, device=device, requires_grad=True)
    gradient = torch.ones_like(x)
    contexts = {name: make() for name, make in contenders(device).items()}
    best = dict.fromkeys(contexts, float("inf"))
    for _ in range(repeats):
        names = list(contexts)
        random.shuffle(names)
        for name in names:
            best[name] = min(best[name], step(contexts[name], x, count, gradient))
    return {name: 1e9 * seconds / count for name, seconds in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    device = torch.device(arguments.device)
    results = []
    for nbytes in SIZES:
        times = measure(device, nbytes, arguments.repeats)
        base = times["none"]
        results.append({"bytes": nbytes, "none": base})
        results[-1].update({k: v - base for k, v in times.items() if k != "none"})
    names = [name for name in results[0] if name not in ("bytes",)]
    print("%-22s" % "ns per saved tensor", *("%12d B" % row["bytes"] for row in results))
    for name in names:
        print("%-22s" % name, *("%14.0f" % row[name] for row in results))
    report = {
        "device": arguments.device,
        "torch": torch.__version__,
        "repeats": arguments.repeats,
        "unit": "ns per saved tensor above 'none'",
        "results": results,
    }
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
