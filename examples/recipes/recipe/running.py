"""The command line of a recipe: trains every step of it, measures, plans, compares, applies."""

import argparse
import gc
import json
import pathlib
import sys
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import applying, comparing, planning
from .measuring import measure
from .settings import Step, load, steps
from .training import Trainer

Check = Tuple[str, bool]


class Recipe:
    """A folder: `steps.toml` with what changes, `small.json`, the model that is trained here,
    `model.json`, that of the guide, and the configuration that `--apply` changes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.described = load(folder / "steps.toml")
        self.steps = steps(self.described)
        self.small = folder / "small.json"

    def trainer(self, step: Step) -> Trainer:
        """A fresh trainer; the same weights and samples every time."""
        return Trainer(self.small, step.settings)

    def row(self, step: Step, count: int) -> comparing.Row:
        """A step trained, measured and planned."""
        trainer = self.trainer(step)
        losses = trainer.losses(count)
        measured = measure(trainer)
        del trainer
        gc.collect()
        return comparing.Row(step, planning.planned(self.small, step.settings), measured, losses)


#: Further checks of a recipe: lines to print, and checks.
Extras = Callable[[Recipe], Tuple[List[str], List[Check]]]


def main(
    file: str, extras: Optional[Extras] = None, arguments: Optional[Sequence[str]] = None
) -> int:
    """Runs the recipe beside `file`; 0 where all checks hold, else 1."""
    folder = pathlib.Path(file).resolve().parent
    recipe = Recipe(folder)
    parser = argparse.ArgumentParser(description=recipe.described["title"])
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    parser.add_argument("--train", type=int, default=2, metavar="N", help="steps before measuring")
    parser.add_argument(
        "--threads", type=int, default=1, help="more do not help models so small (%(default)s)"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    rows = [recipe.row(step, given.train) for step in _watched(recipe.steps)]
    lines, checks = [], comparing.checks(rows)
    checks += applying.apply(folder, recipe.described["apply"])
    if extras is not None:
        lines, more = extras(recipe)
        checks += more
    _print(recipe, rows, lines, checks)
    if given.json:
        result = {
            "steps": comparing.as_json(rows),
            "checks": [{"text": text, "holds": holds} for text, holds in checks],
        }
        pathlib.Path(given.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(holds for _, holds in checks) else 1


def _watched(described: List[Step]) -> Iterator[Step]:
    """The steps, with a bar where somebody watches."""
    count = len(described)
    for number, step in enumerate(described):
        if sys.stderr.isatty():
            bar = "#" * (20 * number // count)
            line = "\r[%-20s] %d/%d %-30s" % (bar, number + 1, count, step.title)
            print(line, end="", file=sys.stderr, flush=True)
        yield step
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


def _print(
    recipe: Recipe, rows: List[comparing.Row], lines: List[str], checks: List[Check]
) -> None:
    print(recipe.described["title"])
    print("\nBytes of a step")
    print("\n".join("  " + line for line in comparing.table(rows)))
    print("\nSaved by all changes")
    print("\n".join("  " + line for line in comparing.savings(rows)))
    if lines:
        print("\n" + "\n".join(lines))
    print("\nChecks")
    for text, holds in checks:
        print("  %-4s %s" % ("ok" if holds else "NO", text))
