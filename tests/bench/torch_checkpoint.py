#!/usr/bin/env python3
"""What a checkpointed region costs beside its function: ours and torch's, in interleaved rounds.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_checkpoint.py [--rounds 15] [--json FILE]

The function is one sine of 16 numbers, so nearly all of the time is the region's own. A round runs
each case 500 times; what counts is each case's best round, less that of the function by itself. It
reports and never fails on a time.
"""

import argparse
import json
import time

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import memopt.torch as mt

REPEATS = 500


def regions():
    """Name: a call of the region for an input."""

    def function(x):
        return x.sin()

    return {
        "no region": function,
        "torch": lambda x: torch_checkpoint(function, x, use_reentrant=False),
        "torch, no random state": lambda x: torch_checkpoint(
            function, x, use_reentrant=False, preserve_rng_state=False
        ),
        "torch, reentrant": lambda x: torch_checkpoint(function, x, use_reentrant=True),
        "memopt": lambda x: mt.checkpoint(function, x),
        "memopt, no random state": lambda x: mt.checkpoint(function, x, preserve_rng_state=False),
        "memopt, content hash": lambda x: mt.checkpoint(function, x, determinism_check="hash"),
    }


def forward_seconds(region, x):
    start = time.perf_counter()
    for _ in range(REPEATS):
        region(x)
    return (time.perf_counter() - start) / REPEATS


def step_seconds(region, x):
    one = torch.ones_like(x)
    start = time.perf_counter()
    for _ in range(REPEATS):
        region(x).backward(one)
    return (time.perf_counter() - start) / REPEATS


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(4, 4, requires_grad=True)
    cases = regions()
    times = {(name, what): [] for name in cases for what in ("forward", "step")}
    for _ in range(options.rounds + 1):  # the first one warms up
        for name, region in cases.items():
            times[name, "forward"].append(forward_seconds(region, x))
            times[name, "step"].append(step_seconds(region, x))
    best = {key: min(values[1:]) * 1e6 for key, values in times.items()}
    print("torch %s, best of %d rounds, microseconds" % (torch.__version__, options.rounds))
    print("%-26s %9s %9s %22s" % ("", "forward", "step", "step less no region"))
    rows = []
    for name in cases:
        own = best[name, "step"] - best["no region", "step"]
        row = {
            "case": name,
            "forward_us": best[name, "forward"],
            "step_us": best[name, "step"],
            "overhead_us": own,
        }
        rows.append(row)
        print("%-26s %9.1f %9.1f %22.1f" % (name, row["forward_us"], row["step_us"], own))
    ratio = rows[4]["overhead_us"] / rows[1]["overhead_us"]
    print("memopt's overhead is %.2f of torch's" % ratio)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "rows": rows, "ratio": ratio}, file, indent=1)


if __name__ == "__main__":
    main()
