#!/usr/bin/env python3
"""What save_on_cpu costs per saved tensor, beside torch's and bare hooks, in one run.

    python tests/bench/torch_offload.py [--device cpu|cuda] [--streams] [--repeats N] [--json FILE]

Each round times every contender once, in random order; the best of all rounds counts. A step is
forward and backward of a chain of `y.relu()`, each of which saves one tensor. "none" runs without
hooks, "hooks" with hooks that return what they get, and "copies" is what cannot be avoided: hooks
that copy each tensor to other memory and back (on the CPU; on a GPU into and out of one page-locked
buffer). Times are nanoseconds per saved tensor above "none". The last lines are of a context without a
tensor, made for it or entered again. On the CPU they are of processor time of the calling thread.

With --streams the CPU's copies run on threads of their own, as a GPU's on its streams. Then the table is
of what the host does for a value, without the copies: nanoseconds of the calling thread in the hooks of
256 values, forward and backward, and again with each value copied alone. Prints tables and writes JSON; nothing passes or fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import unittest.mock

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import memopt.torch as mt
from memopt.torch import _batches, _store

SIZES = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20)


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
    kind = {"device_type": device.type, "min_bytes": 1}
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
    clock = time.perf_counter if x.is_cuda else time.thread_time
    start = clock()
    if context is None:
        y = chain(x, count)
    else:
        with context:
            y = chain(x, count)
    y.backward(gradient)
    del y
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def measure(device, nbytes, repeats):
    """Nanoseconds per saved tensor of each contender."""
    count = max(8, min(128, (2 << 20) // nbytes))
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


def measure_hooks(nbytes, repeats):
    """Nanoseconds that the calling thread works for a value, in forward and in backward."""
    context = mt.save_on_cpu(device_type="cpu", min_bytes=1)
    leaf = torch.ones(nbytes // 4, requires_grad=True)
    best = {"forward": float("inf"), "backward": float("inf")}
    for _ in range(repeats):
        values, packed = [leaf * 1 for _ in range(256)], []
        start = time.thread_time()
        with context:
            for value in values:
                packed.append(context.pack_hook(value))
        between = time.thread_time()
        del values, value
        begin = time.thread_time()
        while packed:
            context.unpack_hook(packed.pop())
        end = time.thread_time()
        best["forward"] = min(best["forward"], between - start)
        best["backward"] = min(best["backward"], end - begin)
    return {name: 1e9 * seconds / 256 for name, seconds in best.items()}


def measure_contexts(device, repeats):
    """Nanoseconds of a context under which nothing happens: made for it, and entered again."""
    makers = {
        "torch": save_on_cpu,
        "memopt": lambda: mt.save_on_cpu(device_type=device.type),
    }
    best = {}
    for name, make in makers.items():
        kept = make()
        for kind, get in (("new", make), ("again", lambda kept=kept: kept)):
            times = []
            for _ in range(repeats):
                start = time.thread_time()
                for _ in range(20):
                    with get():
                        pass
                times.append(time.thread_time() - start)
            best[name + ", " + kind] = 1e9 * min(times) / 20
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--streams", action="store_true", help="the CPU's copies on threads of their own")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    if arguments.streams:
        _store.copies_inline = lambda device: False
    device = torch.device(arguments.device)
    results = []
    for nbytes in SIZES:
        if arguments.streams:
            rounds = max(1, arguments.repeats // 20)
            row = measure_hooks(nbytes, rounds)
            with unittest.mock.patch.object(_batches, "BATCH_BYTES", 0):
                row.update({name + ", alone": value for name, value in measure_hooks(nbytes, rounds).items()})
            results.append({"bytes": nbytes, **row})
            continue
        times = measure(device, nbytes, arguments.repeats)
        base = times["none"]
        results.append({"bytes": nbytes, "none": base})
        results[-1].update({k: v - base for k, v in times.items() if k != "none"})
    names = [name for name in results[0] if name not in ("bytes",)]
    print("%-22s" % "ns per saved tensor", *("%12d B" % row["bytes"] for row in results))
    for name in names:
        print("%-22s" % name, *("%14.0f" % row[name] for row in results))
    empty = measure_contexts(device, arguments.repeats)
    print("\n%-22s %14s" % ("an empty context", "ns"))
    for name, nanoseconds in empty.items():
        print("%-22s %14.0f" % (name, nanoseconds))
    report = {
        "device": arguments.device,
        "torch": torch.__version__,
        "repeats": arguments.repeats,
        "unit": "ns per saved tensor" + ("" if arguments.streams else " above 'none'"),
        "results": results,
        "empty": empty,
    }
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
