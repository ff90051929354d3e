"""512M parameters on 4 cards of 44 GB, scaled down: one of the four devices."""

import csv
import io
import pathlib
import tempfile
from typing import List, Tuple

import memopt.torch as mt
import memopt.torch.monitor
import torch
from memopt.sizes import format_size
from recipe import comparing, measuring, planning, replicas
from recipe.running import Recipe

Check = Tuple[str, bool]
WORLD = 2


def same_bytes(recipe: Recipe) -> Tuple[List[str], List[Check]]:
    """fp16 and bf16 take the same memory."""
    peaks = []
    for dtype in ("fp16", "bf16"):
        step = recipe.steps[-1]
        settings = dict(step.settings, autocast=dtype)
        trainer = recipe.trainer(step._replace(settings=settings))
        trainer.step()
        peaks.append(measuring.measure(trainer).peak)
    text = "Measured peaks: fp16 %s, bf16 %s" % tuple(map(format_size, peaks))
    return [text], [("fp16 and bf16 take the same bytes", peaks[0] == peaks[1])]


def resumed(recipe: Recipe) -> List[Check]:
    """Saved in the middle and loaded by a new process's objects, training goes on bit for bit."""
    first = recipe.trainer(recipe.steps[-1])
    first.losses(2)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = recipe.trainer(recipe.steps[-1])
    second.load(torch.load(file, weights_only=True))
    return [("resumed from a checkpoint, the same losses", first.losses(2) == second.losses(2))]


def logged(recipe: Recipe) -> List[Check]:
    """A log of memory, one line for each step while it trains."""
    trainer = recipe.trainer(recipe.steps[-1])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "memory.csv"
        with mt.monitor.MemoryMonitor(path, device="cpu") as monitor:
            monitor.attach(trainer.optimizer)
            trainer.losses(3)
        with path.open(newline="") as file:
            records = list(csv.DictReader(file))
    steps = [int(record["step"]) for record in records]
    held = all(int(record["rss"]) > 0 for record in records)
    return [("MemoryMonitor logs every step", steps == [1, 2, 3] and held)]


def replicas_too(recipe: Recipe) -> Tuple[List[str], List[Check]]:
    """Two processes of a data parallel run: each has buckets of gradients beside them."""
    settings = dict(recipe.steps[-1].settings)
    each = [of.peak for of in replicas.measured(recipe.small, settings, WORLD)]
    plan = planning.planned(recipe.small, dict(settings, **{"world-size": WORLD})).peak
    error = 100.0 * (plan / max(each) - 1)
    text = "Measured peaks of %d processes (DDP, gloo): %s; planned %s, %+.1f %%"
    sizes = ", ".join(map(format_size, each))
    return [text % (WORLD, sizes, format_size(plan), error)], [
        ("every process needs the same", max(each) <= 1.001 * min(each)),
        ("with buckets: planned %+.1f %% of measured" % error, comparing.holds(error)),
    ]


def extras(recipe: Recipe) -> Tuple[List[str], List[Check]]:
    """What the guide claims of dtypes, checkpoints, logs and devices."""
    lines, checks = same_bytes(recipe)
    more, bounds = replicas_too(recipe)
    return lines + more, checks + resumed(recipe) + logged(recipe) + bounds
