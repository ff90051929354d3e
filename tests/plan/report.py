#!/usr/bin/env python3
"""Writes docs/benchmarks/planner.md: each row of truth.json beside what estimators say of it.

    export PYTHONPATH=bindings/python
    python tests/plan/report.py                        # prints it
    python tests/plan/report.py --write --unseen 100   # writes the page: ~10 minutes
    python tests/plan/report.py --check                # exit 1 where the planner misses its bounds

* memopt plan: the command itself, from the configuration alone.
* traced: the module's sizes on fake tensors, as `memopt plan --model module:function` does it.
* accelerate: the calculation of its `estimate-memory` ("Training using Adam"), on the row's model
  with its head. It knows neither batch nor sequence.
* Below them zero_report.py's part: steps under DeepSpeed.
* ZeRO-2, ZeRO-3: DeepSpeed's estimators of model states, the row's number of GPUs (one), nothing
  offloaded. Where it is not installed, what those of version 0.19.8 compute: 2 bytes a parameter
  and 18 shared out; 18 shared out, and 4 a parameter of the largest layer. They stand for fp16
  weights with fp32 copies, whatever the row has.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tempfile
from typing import Any, Dict, List

import measure
import models
import torch
import zero_report
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from memopt.cli import main as command
from memopt.torch._target import Target
from memopt.torch._trace_model import Trace

PAGE = measure.TRUTH.parents[2] / "docs" / "benchmarks" / "planner.md"

#: Never under; a tenth over. Rounded figures of the classes may differ by a thousandth.
UNDER, OVER = -0.001, 0.10


#: The command's word for what is sharded.
ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}

#: What does it.
SHARDING = {
    "ddp": "DDP",
    "zero1": "ZeroRedundancyOptimizer",
    "zero2": "FSDP kept",
    "zero3": "FSDP",
}


# --- estimators ---


def options_of(row: Dict[str, Any]) -> List[str]:
    """A row's run as options of `memopt plan`."""
    run = row["run"]
    result = ["--device", "cpu", "--batch", run["batch"], "--dtype", run["dtype"]]
    if row["config"]["model_type"] != "vit":
        result += ["--seq", run["seq"]]
    result += ["--attention", run["attention"], "--optimizer", run["optimizer"]]
    if "every" in run:
        result += ["--checkpoint-every", run["every"]]
    else:
        result += ["--checkpointing", run["checkpointing"]]
    for key, option in (("autocast", "--autocast"), ("accumulation", "--accumulation")):
        result += [option, run[key]] if key in run else []
    result += ["--padding-mask"] if run.get("mask") else []
    for key in ("positives", "negatives", "loss"):
        result += ["--" + key, run[key]] if key in run else []
    result += ["--images", run["frames"]] if "frames" in run else []
    result += ["--freeze-vision"] if run.get("freeze_vision") else []
    result += ["--offload"] if run.get("offload") else []
    if "world_size" in run:
        result += ["--world-size", run["world_size"], "--zero", ZERO[run["sharding"]]]
    result += ["--gather-dtype", run["gather"]] if "gather" in run else []
    result += ["--bucket-view"] if run.get("bucket_view") else []
    result += ["--no-sync"] if run.get("sync") == "last" else []
    if "lora" in run:
        targets = ",".join(name.split("_")[0] for name in run["lora_targets"])
        result += ["--lora", run["lora"], "--lora-targets", targets]
    for key, option in (("images", "--image-dtype"), ("adapters", "--adapter-dtype")):
        result += [option, run[key]] if key in run else []
    return [str(part) for part in result]


def memopt_plan(row: Dict[str, Any], *more: str) -> int:
    """Bytes of live tensors by the command."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.json")
        config.write_text(json.dumps(row["config"]))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = command(["plan", "--json", "--model", str(config), *options_of(row), *more])
    if code != 0:
        raise SystemExit("%s: memopt plan ended with %d" % (row["name"], code))
    answer = json.loads(said.getvalue())
    return int(answer["peak_bytes"]) - int(answer["categories"]["overhead"])


def traced(row: Dict[str, Any], model: torch.nn.Module) -> int:
    """Bytes of live tensors by the module's own operations on fake tensors."""
    run = row["run"]
    target = Target(
        model,
        lambda batch: models.batch_of(row, batch, run["seq"]),
        lambda outputs, inputs: outputs.loss,
        [],
    )
    trace = Trace(
        target,
        optimizer=run["optimizer"],
        autocast=models.DTYPES.get(run.get("autocast")),
        accumulation=run.get("accumulation", 1),
    )
    return trace.at(run["batch"]).peak_bytes


def accelerate(row: Dict[str, Any], model: torch.nn.Module) -> int:
    """What its command prints for the model in fp32, in the row's dtype or mixed precision."""
    total, _ = calculate_maximum_sizes(model.float())
    mixed = row["run"]["dtype"] != "fp32" or "autocast" in row["run"]
    return int(max(estimate_training_usage(total, "float16" if mixed else "float32").values()))


def zero2(row: Dict[str, Any], model: torch.nn.Module) -> int:
    """DeepSpeed's estimate_zero2_model_states_mem_needs: what one GPU holds."""
    count, devices = row["parameters"], row["run"].get("world_size", 1)
    try:
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
    except ImportError:
        return 2 * count + int(18 * count / devices)
    return int(estimate_zero2_model_states_mem_needs(count, devices, 1, cpu_offload=False)[1])


def zero3(row: Dict[str, Any], model: torch.nn.Module) -> int:
    """DeepSpeed's estimate_zero3_model_states_mem_needs: what one GPU holds."""
    count, devices = row["parameters"], row["run"].get("world_size", 1)
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    try:
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    except ImportError:
        return 4 * largest + int(18 * count / devices)
    return int(
        estimate_zero3_model_states_mem_needs(
            count, largest, devices, 1, cpu_offload=False, cpu_offload_params=False
        )[1]
    )


NAMES = ("memopt plan", "traced", "accelerate", "ZeRO-2", "ZeRO-3")


def is_traced(row: Dict[str, Any]) -> bool:
    """Whether a trace can follow the row: not to host memory or other processes, nor where a model
    counts its image tokens."""
    return not ({"offload", "world_size"} & set(row["run"]) or "vision_config" in row["config"])


def errors_of(row: Dict[str, Any]) -> Dict[str, float]:
    """Relative errors of all estimators, and of the planner where outputs are kept."""
    peak = row["peak_bytes"]
    said = {
        "memopt plan": memopt_plan(row),
        "traced": traced(row, models.build(row, "meta")) if is_traced(row) else 0,
        "ZeRO-2": zero2(row, models.build(row, "meta")),
        "ZeRO-3": zero3(row, models.build(row, "meta")),
        "accelerate": accelerate(row, models.build(row, "meta")),
    }
    result = {name: said[name] / peak - 1.0 for name in NAMES if said[name]}
    result["kept"] = memopt_plan(row, "--keep-outputs") / row["held_peak_bytes"] - 1.0
    return result


# --- the page ---

#: Before the tables.
HEAD = """# Benchmark: planner

The most bytes of tensors alive at once in real training steps of Transformers' models, with
torch %(torch)s and transformers %(transformers)s (`tests/plan`), and what estimators say of them
without running them:

    python tests/plan/report.py --write --unseen 100

An error of −50 %% says half of what is needed. accelerate's `estimate-memory` and DeepSpeed's
estimators of model states count weights, gradients and optimizer states by parameters; they do not
claim activations, which is why they say too little. DeepSpeed's stand for fp16 weights with fp32
copies, whatever the row has. *traced* is `memopt plan --model module:function`. With `--keep-outputs`
the planner is compared with a loop that holds the model's outputs through backward. *offloaded*: in
`memopt.torch.save_on_cpu`, which a trace does not follow; *1 + n*: sequences of a contrastive sample;
*fused* and *chunked*: losses over 256 tokens at a time, with gradients in forward, or run again in
backward (`tests/plan/heads.py`); *n × DDP*, *ZeroRedundancyOptimizer*, *FSDP*: n processes over gloo,
of which the fullest counts; *kept*: `reshard_after_forward=False`; *reduced at the end*: gradients of
the last micro-batch alone are, as accelerate does it. DeepSpeed's estimators are told their number,
accelerate's knows none. Rows called llava have CLIP's tower in front, with so many images a sample.
""".split(
    "\n"
)


#: After them.
UNSEEN = """
## Models that nobody looked at

The rows above were there while the planner was written. %(count)d models drawn at random after it
(`tests/plan/unseen.py --seed %(seed)d`: family, sizes, batch, sequence, dtypes, attention, checkpointing,
optimizer, dropout, masks, windows, LoRA, accumulation, contrastive samples, losses in chunks), beside
traces of their modules: lowest %(low)s, median %(median)s, highest %(high)s; never under and at most
10 %% over on %(kept)d. Of the draws before, two (seeds 9002 and 9201) had found
a model that was under, by 0.45 and 0.26 %%, and one (seed 7001) a model that was 11 %% over; they are
mended.
"""


def is_dense(row: Dict[str, Any]) -> bool:
    """Whether the bound of a tenth is for it: no experts, whose sizes depend on the data."""
    return experts_of(row) == 0


def experts_of(row: Dict[str, Any]) -> int:
    """Experts of a layer, under either family's name."""
    config = row["config"]
    return int(config.get("num_local_experts") or config.get("num_experts") or 0)


def within(row: Dict[str, Any], error: float) -> bool:
    """Whether the planner keeps its bounds."""
    return error >= UNDER and (error <= OVER or not is_dense(row))


def summary(errors: List[Dict[str, float]]) -> List[str]:
    """One line an estimator."""
    lines = [
        "| estimator | lowest | median | highest | rows under | rows within −1 % … +10 % |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*NAMES, "kept"):
        values = sorted(error[name] for error in errors if name in error)
        lines.append(
            "| %s | %s | %s | %s | %d | %d of %d |"
            % (
                "memopt plan --keep-outputs" if name == "kept" else name,
                percent(values[0]),
                percent(values[len(values) // 2]),
                percent(values[-1]),
                sum(value < UNDER for value in values),
                sum(-0.01 <= value <= OVER for value in values),
                len(values),
            )
        )
    return lines


def percent(value: float) -> str:
    """With a sign; "exact" where not a byte differs."""
    if value == 0.0:
        return "exact"
    small = abs(value) < 0.0995
    text = "%+.*f %%" % (2 if small else 0, 100.0 * value)
    return text.replace("-", "−")


def run_of(row: Dict[str, Any]) -> str:
    """A row's run in few words."""
    run = row["run"]
    words = ["%d × %d" % (run["batch"], run["seq"]), run["dtype"], run["attention"]]
    words += ["autocast " + run["autocast"]] if "autocast" in run else []
    words += ["checkpointed"] if run["checkpointing"] != "none" else []
    words += ["every %d" % run["every"]] if "every" in run else []
    words += ["LoRA %d" % run["lora"]] if "lora" in run else []
    words += ["%d micro-batches" % run["accumulation"]] if "accumulation" in run else []
    words += [run["optimizer"]] if run["optimizer"] != "adamw" else []
    words += ["padding mask"] if run.get("mask") else []
    words += ["offloaded"] if run.get("offload") else []
    if "world_size" in run:
        words += ["%d × %s" % (run["world_size"], SHARDING[run["sharding"]])]
    words += ["gathered in " + run["gather"]] if "gather" in run else []
    words += ["bucket views"] if run.get("bucket_view") else []
    words += ["%s loss" % run["loss"]] if "loss" in run else []
    words += ["images in %s" % run["images"]] if "images" in run else []
    words += ["%d images" % run["frames"]] if "frames" in run else []
    words += ["tower frozen"] if run.get("freeze_vision") else []
    words += ["reduced at the end"] if run.get("sync") == "last" else []
    words += ["1 + %d" % (models.group_of(run) - 1)] if models.contrastive(run) else []
    words += ["%d experts" % experts_of(row)] if not is_dense(row) else []
    return ", ".join(words)


def page(table: Dict[str, Any], errors: List[Dict[str, float]]) -> str:
    """The whole page."""
    versions = table["about"]["versions"]
    release = versions["torch"].split("+")[0]
    lines = [
        *(line % {"torch": release, "transformers": versions["transformers"]} for line in HEAD),
        *summary(errors),
        "",
        "| model | run | MiB | peak in | " + " | ".join(NAMES) + " |",
        "|---" * (4 + len(NAMES)) + "|",
    ]
    for row, error in zip(table["rows"], errors):
        lines.append(
            "| %s, %.0f M | %s | %.1f | %s | %s |"
            % (
                row["name"],
                row["parameters"] / 1e6,
                run_of(row),
                row["peak_bytes"] / 2**20,
                row["peak_phase"],
                " | ".join(percent(error[name]) if name in error else "" for name in NAMES),
            )
        )
    return "\n".join(lines) + "\n"


def unseen_models(count: int, seed: int) -> str:
    """What the planner says of random models."""
    import unseen  # which imports this module

    found = []
    for row, _, error in unseen.errors(seed, count):
        print("%-14s %s" % (row["name"], percent(error)), file=sys.stderr)
        found.append((row, error))
    values = sorted(error for _, error in found)
    kept = sum(within(row, error) for row, error in found)
    return UNSEEN % {
        "count": count,
        "seed": seed,
        "low": percent(values[0]),
        "median": percent(values[count // 2]),
        "high": percent(values[-1]),
        "kept": kept,
    }


def misses(table: Dict[str, Any], errors: List[Dict[str, float]]) -> List[str]:
    """Where the planner is under, or too far over a dense model."""
    result = []
    for row, error in zip(table["rows"], errors):
        for name in ("memopt plan", "kept"):
            held = name == "kept" and row["run"].get("offload")  # the cache is an output, too
            if not within(row, min(error[name], 0.0) if held else error[name]):
                result.append("%s: %s is off by %s" % (row["name"], name, percent(error[name])))
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="rows (all)")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/planner.md")
    parser.add_argument("--unseen", type=int, default=0, help="and so many models of unseen.py")
    parser.add_argument("--seed", type=int, default=20261121, help="of those models")
    parser.add_argument("--check", action="store_true", help="exit 1 where bounds are missed")
    options = parser.parse_args()
    table = json.loads(measure.TRUTH.read_text())
    if options.names:
        table["rows"] = [row for row in table["rows"] if row["name"] in options.names]
    if not table["rows"] or (options.names and options.write):
        parser.error("no such rows" if not table["rows"] else "--write is for all rows")
    errors = []
    for number, row in enumerate(table["rows"], 1):
        told = "\r%3d of %d %-40s" % (number, len(table["rows"]), row["name"])
        print(told, end="", file=sys.stderr)
        errors.append(errors_of(row))
    print("\r%50s\r" % "", end="", file=sys.stderr)
    text = page(table, errors) + "\n" + zero_report.section()
    if options.unseen:
        text += unseen_models(options.unseen, options.seed)
    if options.write:
        PAGE.write_text(text)
    else:
        print(text, end="")
    missed = misses(table, errors)
    print("\n".join(missed), file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
