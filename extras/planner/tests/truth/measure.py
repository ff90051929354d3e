#!/usr/bin/env python3
"""Measures extras/planner/tests/truth/truth*.json: the most bytes of tensors alive in real training steps.

    PYTHONPATH=build/extras/python python extras/planner/tests/truth/measure.py            # every row, ~30 minutes
    PYTHONPATH=build/extras/python python extras/planner/tests/truth/measure.py NAME…      # these rows, others stay
    PYTHONPATH=build/extras/python python extras/planner/tests/truth/measure.py --missing  # those that were not measured yet

Of a row, `name`, `config` and `run` are given, the rest is measured. A small step
makes the optimizer's state; the step after it is recorded on the CPU: batch, forward, loss, backward,
optimizer, gradients set to None. README.md says what each key of a row means.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import pathlib
from typing import Any, Dict, List, Tuple

import models
import torch
import transformers
from memopt.torch._recorder import CATEGORIES, Account
from memopt.torch._step import StepRecorder
from memopt.torch._target import Target

TRUTH = pathlib.Path(__file__).with_name("truth.json")
#: Of models that the planner does not describe, with features.
TRACED = TRUTH.with_name("truth_traced.json")
PHASES = ("forward", "loss", "backward", "optimizer")


class Step:
    """A row's model and optimizer, with optimizer state."""

    def __init__(self, row: Dict[str, Any]) -> None:
        self.row = row
        self.run = row["run"]
        self.model = models.build(row)
        self.optimizer = models.optimizer_of(self.run, self.model)
        small = models.batch_of(row, 1, min(self.run["seq"], 8))
        with models.autocast(self.run):
            loss = self.model(**small).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def recorder(self) -> StepRecorder:
        """Of the next step."""
        target = Target(self.model, lambda batch: None, lambda outputs, inputs: outputs.loss, [])
        return StepRecorder(
            target, models.DTYPES.get(self.run.get("autocast")), self.run.get("accumulation", 1), self.optimizer
        )


def measure(row: Dict[str, Any]) -> Dict[str, Any]:
    """The row with what was measured."""
    if "world_size" in row["run"]:
        result: Dict[str, Any] = importlib.import_module("several").measure(row)
        return result
    step = Step(row)
    return told(row, models.elements(step.model), step.recorder())


def accounts(row: Dict[str, Any], recorder: StepRecorder) -> Tuple[Account, Account, Account]:
    """Of a whole step; with its outputs held to its end; and without the recorder's own sums of
    gradients."""
    run = row["run"]
    recorded = recorder.record(lambda: models.batch_of(row, run["batch"], run["seq"]))
    account = recorded.account
    # Of several micro-batches, each takes the place of the outputs before.
    until = "after" if run.get("accumulation", 1) == 1 else "between"
    return account, account.held(recorded.outputs, until), account.in_place_sums()


def told(row: Dict[str, Any], parameters: int, recorder: StepRecorder) -> Dict[str, Any]:
    """The row with what a step shows."""
    account, held, in_place = accounts(row, recorder)
    peaks = _of_phases(account)
    top = max(peaks.values(), key=lambda peak: peak.bytes)
    return {
        **row,
        "parameters": parameters,
        "peak_bytes": top.bytes,
        "peak_phase": top.phase,
        "categories": account.categories(top.event),
        "phases": {
            name: {"bytes": peak.bytes, **_short(account.categories(peak.event))} for name, peak in peaks.items()
        },
        "held_peak_bytes": _peak(held),
        "in_place_peak_bytes": _peak(in_place),
    }


def _of_phases(account: Account) -> Dict[str, Any]:
    """Peaks without that of making the batch."""
    return {name: peak for name, peak in account.peaks().items() if name in PHASES}


def _peak(account: Account) -> int:
    return max(peak.bytes for peak in _of_phases(account).values())


def _short(categories: Dict[str, int]) -> Dict[str, int]:
    return {name: size for name, size in categories.items() if size}


def versions() -> Dict[str, str]:
    """What the measurements depend on."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def rows(table: pathlib.Path) -> Dict[str, Dict[str, Any]]:
    """The rows of a table by name."""
    return {row["name"]: row for row in json.loads(table.read_text())["rows"]}


def write(table: pathlib.Path, about: Dict[str, Any], known: Dict[str, Dict[str, Any]]) -> None:
    """One row a line."""
    lines = ",\n".join(json.dumps(row) for row in known.values())
    table.write_text('{"about": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(about), lines))


def show(row: Dict[str, Any]) -> None:
    """Prints a line for a row that was measured."""
    held = 100 * (row["held_peak_bytes"] / row["peak_bytes"] - 1)
    told = (row["name"], row["peak_bytes"] / 2**20, row["peak_phase"], held)
    print("%-38s %8.1f MiB  %-9s held %+5.1f %%" % told, flush=True)


def chosen(*tables: pathlib.Path) -> List[Dict[str, Any]]:
    """The rows of tables that the command line names, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="rows to measure (all)")
    parser.add_argument("--missing", action="store_true", help="only rows without a measured peak")
    options = parser.parse_args()
    known = {name: row for table in tables for name, row in rows(table).items()}
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error("no row is called " + ", ".join(sorted(unknown)))
    asked = [known[name] for name in options.names or known]
    return [row for row in asked if not (options.missing and "peak_bytes" in row)]


def main() -> None:
    """The command."""
    for row in chosen(TRUTH, TRACED):
        table = next(table for table in (TRUTH, TRACED) if row["name"] in rows(table))
        known = {**rows(table), row["name"]: measure(row)}
        gc.collect()
        show(known[row["name"]])
        write(table, {"versions": versions(), "categories": CATEGORIES}, known)


if __name__ == "__main__":
    main()
