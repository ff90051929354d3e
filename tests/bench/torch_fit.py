#!/usr/bin/env python3
"""Steps within budgets: mt.fit() beside the plain step and torch's checkpoint on every block.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_fit.py [--rounds 7] [--threads 2]

Each model is there once for each row, and a round runs one step of each, so that a disturbance of the machine
meets all alike; what counts is each row's best round. A budget is a part of the way from the floor, the least
that fit() can do, to what the plain step takes; the last one is what torch's checkpoint takes. Peaks are the
bytes of live tensors, measured. It reports and never fails on a time.
"""

import argparse
import pathlib
import re
import sys
import time
import warnings

import torch
from torch.utils.checkpoint import checkpoint

import memopt
import memopt.torch as mt
from memopt.torch.fitting._runs import Runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "tests" / "with_torch"))
import fit_models  # noqa: E402

MODELS = {
    "GPT-2, 6 layers of 256": lambda: fit_models.gpt2(layers=6, width=256, length=256, batch=4, words=4096),
    "Llama, 6 layers of 256": lambda: fit_models.llama(layers=6, width=256, length=256, batch=4, words=4096),
    "ViT, 3 layers of 64": fit_models.vit,
    "ResNet with BatchNorm, 5 blocks of 8": fit_models.resnet,
}
PARTS = (0.1, 0.3, 0.5, 0.7)


def checkpointed(model):
    """torch's checkpoint round every block."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model
    for block in model:
        if isinstance(block, fit_models.Residual):
            forward = block.forward
            block.forward = lambda x, run=forward: checkpoint(run, x, use_reentrant=False)
    return model


def floor_of(model, step):
    try:
        mt.fit(model, None, step, budget=1)
    except memopt.LimitReachedError as error:
        size, unit = re.search(r"the least is ([\d.]+) (\w+)", str(error)).groups()
        return int(float(size) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]) + (1 << 14)


def rows_of(make):
    """(what, peak, one step) of each row; fits are made one by one, on models of their own."""
    model, step = make()
    fixed = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    plain, least = fixed + Runs(model, "forward").measure(step), floor_of(*make())
    rows = [("plain", plain, step)]
    blocks, step = make()
    checkpointed(blocks)
    theirs = fixed + Runs(blocks, "forward").measure(step)
    rows.append(("torch, every block", theirs, step))
    budgets = [("%.1f of the way" % part, int(least + part * (plain - least))) for part in PARTS]
    for name, budget in budgets + [("torch's bytes", max(theirs, least))]:
        model, step = make()
        start = time.perf_counter()
        try:
            fit = mt.fit(model, None, step, budget=budget)
        except memopt.LimitReachedError:
            rows.append(("fit, %s: below the floor" % name, 0, None))
            continue
        rows.append(("fit, %s (%.1f s)" % (name, time.perf_counter() - start), fit.measured, step))
        assert fit.measured <= budget, (name, fit.measured, budget)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    for title, make in MODELS.items():
        rows = rows_of(make)
        best = [float("inf")] * len(rows)
        for _ in range(arguments.rounds):
            for i, (_, _, step) in enumerate(rows):
                if step is None:
                    continue
                start = time.perf_counter()
                step().backward()
                best[i] = min(best[i], time.perf_counter() - start)
        print("\n| %s | peak, MiB | step, ms | time ÷ plain |\n|---|---|---|---|" % title)
        for (name, peak, step), seconds in zip(rows, best):
            if step is None:
                print("| %s | | | |" % name)
            else:
                print("| %s | %.2f | %.1f | %.3f |" % (name, peak / 2**20, seconds * 1e3, seconds / best[0]))


if __name__ == "__main__":
    main()
