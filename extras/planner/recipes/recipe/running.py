"""Runs a recipe: trains every step of it, measures, plans, compares."""

import gc
import pathlib
from typing import Callable, List, Tuple

import torch

from . import comparing, planning
from .measuring import measure
from .settings import Step, load, steps
from .training import Trainer

Check = Tuple[str, bool]


class Recipe:
    """A folder: `steps.toml` with what changes, and `small.json`, the model that is trained here."""

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


def run(folder: pathlib.Path, extras: Extras, count: int) -> bool:
    """Trains `count` steps of each change, prints what was planned and measured, and says whether
    all checks hold."""
    recipe = Recipe(folder)
    torch.set_num_threads(1)  # more do not help models so small
    rows = [recipe.row(step, count) for step in recipe.steps]
    checks = comparing.checks(rows)
    lines, more = extras(recipe)
    _print(recipe, rows, lines, checks + more)
    return all(holds for _, holds in checks + more)


def _print(recipe: Recipe, rows: List[comparing.Row], lines: List[str], checks: List[Check]) -> None:
    print(recipe.described["title"])
    print("\nBytes of a step")
    print("\n".join("  " + line for line in comparing.table(rows)))
    print("\nSaved by all changes")
    print("\n".join("  " + line for line in comparing.savings(rows)))
    print("\n" + "\n".join(lines))
    print("\nChecks")
    for text, holds in checks:
        print("  %-4s %s" % ("ok" if holds else "NO", text))
