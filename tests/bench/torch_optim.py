#!/usr/bin/env python3
"""Our optimizers for torch beside torch's fused ones and bitsandbytes', in interleaved rounds.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_optim.py [--parameters 16MiB] [--rounds 5] [--json FILE]

Each case is a whole ``optimizer.step()`` over parameters with gradients. The first tables have the
tensors of a GPT-2; the last has 148 small ones and so shows what a step costs before the first
element. A round runs each case once; what counts is each case's best round, and the ratio of bests.
It never fails on a time.
"""

import argparse
import functools
import json
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of torch must not spin beside us

import memopt
import memopt.torch as mt
import torch
from torch_compare import LR, WD, count, gpt2_shapes, huge_pages, measure, report, values

try:
    import bitsandbytes
except ImportError:
    bitsandbytes = None


class Step:
    """A step of one optimizer over tensors of its own."""

    def __init__(self, shapes, dtype, make):
        self.parameters = [p.requires_grad_() for p in values(shapes, dtype, 0.02)]
        for parameter, gradient in zip(self.parameters, values(shapes, dtype, 0.01)):
            parameter.grad = gradient
        self.optimizer = make(self.parameters)

    def renew(self):
        """Gradients in tensors of their own, as a backward pass after zero_grad() makes them."""
        for parameter in self.parameters:
            parameter.grad = parameter.grad.clone()

    def run(self):
        self.optimizer.step()

    def close(self):
        pass


class HostStep(Step):
    """A step on fp32 masters of bf16 parameters with bf16 gradients, the parameters written."""

    def __init__(self, shapes, make, torchs):
        super().__init__(shapes, torch.bfloat16, lambda parameters: None)
        self.masters = None
        if torchs:
            self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
            for master in self.masters:
                master.grad = torch.empty_like(master)
        self.optimizer = make(self.masters or self.parameters)

    def run(self):
        if self.masters is None:
            self.optimizer.step()
            return
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
            self.optimizer.step()
            torch._foreach_copy_(self.parameters, self.masters)


def host_steps(shapes):
    """The host optimizer's cases; bytes are those of one pass."""
    name = "torch AdamW fused + casts"
    fused = functools.partial(torch.optim.AdamW, lr=LR, weight_decay=WD, fused=True)
    cases = [(name, lambda: HostStep(shapes, fused, True), 28, None)]
    for cls, bytes_ in ((mt.AdamW8bit, 16.06), (mt.AdamW8bitCompanded, 16.06), (mt.AdamW, 28)):
        ours = functools.partial(mt.CPUOffloadOptimizer, optimizer_class=cls, lr=LR)
        cases.append(
            ("memopt host " + cls.__name__, lambda m=ours: HostStep(shapes, m, False), bytes_, name)
        )
    clipped = functools.partial(mt.CPUOffloadOptimizer, lr=LR, max_norm=1.0)
    cases.append(
        ("memopt host AdamW8bit clip", lambda: HostStep(shapes, clipped, False), 18.06, name)
    )
    return cases


def makers():
    """Optimizers by name, with the bytes of state that a step reads and writes per parameter."""
    ours = {
        "AdamW": (mt.AdamW, 16),
        "AdamW8bit": (mt.AdamW8bit, 4.06),
        "AdamWFp8": (mt.AdamWFp8, 4.06),
        "AdamW4bit": (mt.AdamW4bit, 2.13),
        "Lion8bit": (mt.Lion8bit, 2.03),
    }
    made = [
        ("memopt " + name, lambda p, c=cls: c(p, lr=LR, weight_decay=WD), size)
        for name, (cls, size) in ours.items()
    ]
    made.insert(
        0,
        ("torch AdamW fused",
         lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=WD, fused=True), None),
    )  # fmt: skip
    if bitsandbytes is not None:
        made.append(
            ("bitsandbytes AdamW8bit",
             lambda p: bitsandbytes.optim.AdamW8bit(p, lr=LR, weight_decay=WD), 4.06)
        )  # fmt: skip
    return made


def steps(shapes, dtype, name):
    """The cases of a type of parameters. torch keeps states of that type."""
    size = 4 if dtype is torch.float32 else 2
    return [
        (
            "%s %s" % (who, name),
            lambda make=make: Step(shapes, dtype, make),
            3 * size + (4 * size if state is None else state),
            None if state is None else "torch AdamW fused " + name,
        )
        for who, make, state in makers()
    ]


def overhead(rounds):
    """Microseconds of a step over 148 tensors of 16 elements whose gradients are new each time."""
    cases = [
        (who, Step([(16,)] * 148, torch.float32, make))
        for who, make, _ in makers()
        if "bitsandbytes" not in who
    ]
    best = dict.fromkeys((who for who, _ in cases), float("inf"))
    for _ in range(rounds):
        for who, case in cases:
            case.renew()
            begin = time.perf_counter()
            case.run()
            best[who] = min(best[who], time.perf_counter() - begin)
    print("\n148 tensors of 16 elements, new gradients each step")
    for who, seconds in best.items():
        print("%-28s %9.1f us" % (who, seconds * 1e6))
    return {who: seconds * 1e6 for who, seconds in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--parameters", default="16M", help="how many (16M = 16 * 2**20)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "torch %s, memopt %s, %d threads, best of %d interleaved rounds; huge pages: %s"
        % (torch.__version__, memopt.__version__, options.threads, options.rounds, huge_pages())
    )
    rows = []
    shapes = gpt2_shapes(memopt.parse_size(options.parameters))
    total = sum(map(count, shapes))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        cases = steps(shapes, dtype, name)
        title = "GPT-2, %s: %d tensors, %.1f Mi parameters" % (name, len(shapes), total / 2**20)
        report(title, cases, measure(cases, options.rounds), total, rows)
        sys.stdout.flush()
    cases = host_steps(shapes)
    title = "fp32 masters, bf16 parameters and gradients: %.1f Mi parameters" % (total / 2**20)
    report(title, cases, measure(cases, options.rounds), total, rows)
    small = overhead(40 * options.rounds)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {"torch": torch.__version__, "rows": rows, "overhead_us": small}, file, indent=1
            )


if __name__ == "__main__":
    main()
