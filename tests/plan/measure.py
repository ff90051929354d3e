#!/usr/bin/env python3
"""Measures tests/plan/truth.json: the most bytes of tensors alive in real training steps.

    PYTHONPATH=bindings/python python tests/plan/measure.py            # every row, ~10 minutes
    PYTHONPATH=bindings/python python tests/plan/measure.py NAME…      # these rows, others stay
    PYTHONPATH=bindings/python python tests/plan/measure.py --list

Each row of rows.py is one model with one way to run it. A small step makes the optimizer's state;
the step after it is recorded on the CPU: batch, forward, loss, backward, optimizer, gradients set
to None. README.md says what each key of a row means.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import pathlib
import platform
import sys
import time
from typing import Any, Dict, Tuple

import models
import rows
import torch
import transformers
from memopt.torch._recorder import CATEGORIES, Account
from memopt.torch._step import StepRecorder
from memopt.torch._target import Target

TRUTH = pathlib.Path(__file__).with_name("truth.json")
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
            target,
            models.DTYPES.get(self.run.get("autocast")),
            self.run.get("accumulation", 1),
            self.optimizer,
        )


def measure(row: Dict[str, Any]) -> Dict[str, Any]:
    """The row with what was measured."""
    if "world_size" in row["run"]:
        result: Dict[str, Any] = importlib.import_module("several").measure([row])[0]
        return result
    step = Step(row)
    return told(row, sum(p.numel() for p in step.model.parameters()), step.recorder())


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
            name: {"bytes": peak.bytes, **_short(account.categories(peak.event))}
            for name, peak in peaks.items()
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


def write(measured: Dict[str, Dict[str, Any]]) -> None:
    """One row a line, in the order of rows.py."""
    lines = [json.dumps(measured[row["name"]]) for row in rows.ROWS if row["name"] in measured]
    head = json.dumps({"versions": versions(), "categories": CATEGORIES})
    text = '{"about": %s,\n"rows": [\n%s\n]}\n' % (head, ",\n".join(lines))
    TRUTH.write_text(text)


def known() -> Dict[str, Dict[str, Any]]:
    """Rows measured before."""
    if not TRUTH.exists():
        return {}
    return {row["name"]: row for row in json.loads(TRUTH.read_text())["rows"]}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="rows to measure (all)")
    parser.add_argument("--list", action="store_true", help="print names of rows, measure nothing")
    parser.add_argument("--missing", action="store_true", help="only rows that are not there yet")
    options = parser.parse_args()
    names = options.names or [row["name"] for row in rows.ROWS]
    unknown = set(names) - {row["name"] for row in rows.ROWS}
    if unknown:
        parser.error("no row is called " + ", ".join(sorted(unknown)))
    if options.list:
        print("\n".join(names))
        return 0
    measured = known() if options.names or options.missing else {}
    for row in rows.ROWS:
        if row["name"] not in names or (options.missing and row["name"] in measured):
            continue
        start = time.time()
        measured[row["name"]] = result = measure(row)
        gc.collect()
        print(
            "%-34s %8.1f MiB  %-9s held %+5.1f %%  %5.1f s"
            % (
                row["name"],
                result["peak_bytes"] / 2**20,
                result["peak_phase"],
                100 * (result["held_peak_bytes"] / result["peak_bytes"] - 1),
                time.time() - start,
            ),
            flush=True,
        )
        write(measured)
    print("%s, Python %s" % (versions(), platform.python_version()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
