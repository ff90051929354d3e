#!/usr/bin/env python3
"""The part of docs/benchmarks/planner.md about DeepSpeed: rows of truth_zero.json and the planner.

    PYTHONPATH=bindings/python python tests/plan/zero_report.py           # prints it
    PYTHONPATH=bindings/python python tests/plan/zero_report.py --write   # puts it into the page

Needs neither torch nor DeepSpeed. Each row is planned by the command, which reads the configuration
of DeepSpeed that the row was measured with; report.py writes it with the rest of the page.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
from typing import Any, Dict, List

from memopt.cli import main as command

HERE = pathlib.Path(__file__).resolve().parent
TRUTH = HERE / "truth_zero.json"
PAGE = HERE.parents[1] / "docs" / "benchmarks" / "planner.md"

#: Keys of a row's run, and where DeepSpeed has them.
SETTINGS = {
    "reduce_bucket": "reduce_bucket_size",
    "prefetch_bucket": "stage3_prefetch_bucket_size",
    "persistence": "stage3_param_persistence_threshold",
    "live": "stage3_max_live_parameters",
    "reuse": "stage3_max_reuse_distance",
    "contiguous": "contiguous_gradients",
    "overlap": "overlap_comm",
}

HEAD = """## DeepSpeed

Real steps under DeepSpeed %(deepspeed)s's own ZeRO (`tests/plan/zero_engine.py`), by processes over
gloo, of which the fullest counts, and what `memopt plan --deepspeed-config` says of them: of the
peak, and of the phase of the step in which it is furthest off. Buckets are in elements; where none
is said, it is DeepSpeed's default of 500 million. *tight*: of stage 3, what is asked for ahead,
live, and kept for use is small too.
"""


def config_of(run: Dict[str, Any]) -> Dict[str, Any]:
    """DeepSpeed's configuration of a row."""
    zero = {name: run[key] for key, name in SETTINGS.items() if key in run}
    result: Dict[str, Any] = {
        "train_micro_batch_size_per_gpu": run["batch"],
        "gradient_accumulation_steps": run.get("accumulation", 1),
        "zero_optimization": {"stage": int(run["sharding"][-1]), **zero},
    }
    if run["dtype"] != "fp32":
        result[run["dtype"]] = {"enabled": True}
    return result


def planned(row: Dict[str, Any]) -> Dict[str, Any]:
    """What the command says of a row."""
    run = row["run"]
    words = ["plan", "--json", "--device", "cpu", "--world-size", run["world_size"]]
    words += ["--checkpointing", run["checkpointing"], "--attention", run["attention"]]
    if row["config"]["model_type"] != "vit":
        words += ["--seq", run["seq"]]
    if "lora" in run:
        targets = ",".join(name.split("_")[0] for name in run["lora_targets"])
        words += ["--lora", run["lora"], "--lora-targets", targets]
    with tempfile.TemporaryDirectory() as folder:
        for option, value in (("--model", row["config"]), ("--deepspeed-config", config_of(run))):
            path = pathlib.Path(folder, option.strip("-") + ".json")
            path.write_text(json.dumps(value))
            words += [option, path]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = command([str(word) for word in words])
    if code != 0:
        raise SystemExit("%s: memopt plan ended with %d" % (row["name"], code))
    result: Dict[str, Any] = json.loads(said.getvalue())
    return result


def live(part: Dict[str, Any]) -> int:
    """Bytes of tensors of the whole or a phase."""
    sizes = part.get("categories", part)
    return sum(size for name, size in sizes.items() if name not in ("overhead", "total"))


def percent(value: float) -> str:
    """With a sign."""
    return ("%+.2f %%" % (100 * value)).replace("-", "−")


def run_of(run: Dict[str, Any]) -> str:
    """A row's run in few words."""
    words = ["%d × %d" % (run["batch"], run["seq"]), run["dtype"]]
    words += ["checkpointed"] if run["checkpointing"] != "none" else []
    words += ["%d micro-batches" % run["accumulation"]] if "accumulation" in run else []
    words += ["LoRA %d" % run["lora"]] if "lora" in run else []
    words += ["%d × ZeRO %s" % (run["world_size"], run["sharding"][-1])]
    words += ["bucket %.3g M" % (run["reduce_bucket"] / 1e6)] if "reduce_bucket" in run else []
    words += ["tight"] if "reuse" in run else []
    words += ["not contiguous"] if run.get("contiguous") is False else []
    words += ["overlap"] if run.get("overlap") else []
    return ", ".join(words)


def line_of(row: Dict[str, Any]) -> str:
    """A row of the table."""
    plan = planned(row)
    error = live(plan) / row["peak_bytes"] - 1
    phases = {"optimizer": "step"}
    errors = [
        (live(plan["phases"][phases.get(name, name)]) / told["bytes"] - 1, name)
        for name, told in row["phases"].items()
    ]
    worst, phase = max(errors, key=lambda one: abs(one[0]))
    said = (row["name"], row["parameters"] / 1e6, run_of(row["run"]), row["peak_bytes"] / 2**20)
    told = (row["peak_phase"], percent(error), percent(worst), phase)
    return "| %s, %.0f M | %s | %.1f | %s | %s | %s (%s) |" % (*said, *told)


def section() -> str:
    """The part of the page."""
    table = json.loads(TRUTH.read_text())
    lines: List[str] = [
        *(HEAD % table["about"]["versions"]).split("\n"),
        "| model | run | MiB | peak in | memopt plan | furthest off |",
        "|---|---|---|---|---|---|",
        *(line_of(row) for row in table["rows"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command."""
    text = section()
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text()
        page = re.sub(r"## DeepSpeed\n.*?(?=\n## |\Z)", "", page, flags=re.DOTALL)
        start = page.find("\n## ")
        start = len(page) if start < 0 else start
        before, after = page[:start].rstrip("\n"), page[start:].lstrip("\n")
        PAGE.write_text(before + "\n\n" + text + "\n" + after)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
