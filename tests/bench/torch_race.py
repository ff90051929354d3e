#!/usr/bin/env python3
"""What the race finder costs: training steps of GPT-2 on one thread, plain and under it, and its memory.

    MEMOPT_LIBRARY=build/test/libmemopt.so PYTHONPATH=bindings/python python tests/bench/torch_race.py

Prints the rows of docs/benchmarks/races.md. Times are processor times, the best of five steps in each of three
alternating rounds. Memory is looked at where backward begins: what the finder holds in C, and what the lines of its
modules have allocated in Python and still hold, in a block that is not the process's first (whose tables of operators
remain: 45 KB), beside all tensors of the device.
"""

import contextlib
import gc
import os
import time
import tracemalloc

import memopt.torch as mt
import torch
import transformers
from memopt.torch import racing
from memopt.torch.racing import _session
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = [(2, 64, 2, 32), (4, 128, 4, 64), (4, 128, 8, 128), (4, 256, 4, 128)]
VOCABULARY, STEPS, ROUNDS = 1000, 5, 3


class Counting(TorchDispatchMode):
    """A mode that does nothing else."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counting.count += 1
        return func(*args, **(kwargs or {}))


def train(size, mode, device, look=lambda: None):
    """The best step's seconds, and what `look` gave in the last one."""
    layers, width, batch, length = size
    shape = {"n_embd": width, "n_layer": layers, "n_head": 4, "n_positions": length, "vocab_size": VOCABULARY}
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **shape)
    best = 1e9
    with mode:
        model = transformers.GPT2LMHeadModel(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(1 + STEPS):
            begin, Counting.count = time.process_time(), 0
            x = torch.randint(0, VOCABULARY, (batch, length)).to(device)
            loss = model(input_ids=x, labels=x).loss
            seen = look()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            best = min(best, time.process_time() - begin)
    return best, seen


def held():
    """Bytes of tensors, of the finder in C, and of its modules."""
    gc.collect()
    session = _session.active()
    tensors = sum(storage.nbytes() for block in [*session.blocks.values()] if (storage := block()) is not None)
    lines = tracemalloc.Filter(True, os.path.join(os.path.dirname(racing.__file__), "*"))
    found = tracemalloc.take_snapshot().filter_traces([lines])
    return tensors, session.finder.stats()["bytes"], sum(trace.size for trace in found.traces)


def main():
    torch.set_num_threads(1)
    for size in SIZES:
        plain = empty = race = 1e9
        for _ in range(ROUNDS):
            plain = min(plain, train(size, contextlib.nullcontext(), "cpu")[0])
            empty = min(empty, train(size, Counting(), "cpu")[0])
            operators = Counting.count
            race = min(race, train(size, mt.race(), "cuda")[0])
        tracemalloc.start()
        tensors, native, python = train(size, mt.race(), "cuda", held)[1]
        tracemalloc.stop()
        cells = "%d, %d, %d × %d" % size, operators, "%.1f ms" % (1e3 * plain), "%.1f ms" % (1e3 * race)
        cells += "%.2f (%.2f)" % (race / plain, empty / plain), "%.0f µs" % (1e6 * (race - plain) / operators)
        cells += ("%.2f %% + %.2f %%" % (100 * native / tensors, 100 * python / tensors),)
        print("| %s | %d | %s | %s | %s | %s | %s |" % cells, flush=True)


main()
