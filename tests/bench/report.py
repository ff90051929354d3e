#!/usr/bin/env python3
"""Runs the benchmark programs and prints what they say, ours beside its peers.

    tests/bench/report.py [--build FOLDER] [--filter REGEX] [--repetitions N] [--no-write] [NAME...]

NAME is a program without bench_ ("optim"); all by default. Repetitions are interleaved at random
within a program. Times are of the best; ratios are given between the best and between the medians of
both, since a machine that others use can favour either side once.
Names go in pairs: a benchmark is compared with those that have the same name but for one word, which
is copy, malloc, plain, peer or torch there (BM_cast/ours/4096 with BM_cast/copy/4096), and with
copy_of/<its name>. The table goes to docs/benchmarks/<NAME>.md, unless --no-write.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What ours is measured against: a plain copy of the same bytes, malloc, the same work without us, …
PEER = re.compile(r"(?<![A-Za-z0-9])(copy|malloc|plain|peer|torch)(?![A-Za-z0-9])")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
USUAL = {
    "name", "run_name", "run_type", "repetitions", "repetition_index", "threads", "iterations",
    "real_time", "cpu_time", "time_unit", "family_index", "per_family_instance_index", "label",
    "bytes_per_second", "items_per_second", "aggregate_name", "aggregate_unit", "error_occurred",
    "error_message",
}


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def run(program, options):
    """The program's JSON, and the command as one types it."""
    flags = [
        f"--benchmark_repetitions={options.repetitions}",
        "--benchmark_enable_random_interleaving=true",
        *getattr(options, "flags", []),
    ]
    if options.filter:
        flags.append(f"--benchmark_filter={options.filter}")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [str(program), *flags, f"--benchmark_out={out}", "--benchmark_out_format=json"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0 or not out.exists():
            raise RuntimeError(f"{program.name} ended with {done.returncode}")
        text = out.read_text(encoding="utf-8")
        result = json.loads(text) if text.strip() else {"context": {}, "benchmarks": []}
    return result, " ".join([program.name, *flags])


def best(result):
    """{name: row} with the best repetition of each benchmark, in the order of the program."""
    rows = {}
    for entry in result["benchmarks"]:
        if entry.get("run_type") != "iteration":
            continue
        name = re.sub(r"/repeats:\d+|/real_time|/process_time|/min_time:[\d.]+", "", entry["run_name"])
        if entry.get("error_occurred"):
            rows.setdefault(name, {"error": entry.get("error_message", "failed")})
            continue
        seconds = entry["real_time"] * UNITS[entry["time_unit"]]
        all_seconds = [*rows.get(name, {}).get("all", []), seconds]
        if name not in rows or seconds < rows[name].get("seconds", float("inf")):
            rows[name] = {
                "seconds": seconds,
                "bytes": entry.get("bytes_per_second"),
                "items": entry.get("items_per_second"),
                "label": entry.get("label", ""),
                "counters": {k: v for k, v in entry.items() if k not in USUAL},
            }
        rows[name]["all"] = all_seconds
    return dict(sorted(rows.items(), key=lambda row: pair_key(row[0])))


def pair_key(name):
    """Sorts the members of a pair beside each other, and sizes as numbers."""
    parts = name.split("/")
    numbers = [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in parts[2:]]
    return parts[0], numbers, parts[1:2]


def peers(name, rows):
    """[(word, row)] of what `name` is measured against."""
    if PEER.search(name):
        return []
    found = []
    for other, row in rows.items():
        match = PEER.search(other)
        if "seconds" not in row or not match:
            continue
        before, after = re.escape(other[: match.start()]), re.escape(other[match.end():])
        if other == f"{match.group()}_of/{name}" or re.fullmatch(f"{before}[A-Za-z0-9]+{after}", name):
            found.append((match.group(), row))
    return found


def time_text(seconds):
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def rate_text(row):
    if row["bytes"]:
        return f"{row['bytes'] / 1e9:.2f} GB/s"
    if row["items"]:
        return f"{row['items'] / 1e6:.2f} M/s"
    return ""


def ratio_text(row, other, word):
    medians = statistics.median(row["all"]) / statistics.median(other["all"])
    return f"{row['seconds'] / other['seconds']:.2f} / {medians:.2f} × {word}"


def number_text(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows):
    """Rows of text cells, the header first."""
    counters = sorted({c for row in rows.values() for c in row.get("counters", {})})
    lines = [["benchmark", "time", "rate", "time ÷ peer's: best / median", *counters, "note"]]
    for name, row in rows.items():
        if "error" in row:
            lines.append([name, "–", "", "", *[""] * len(counters), row["error"]])
            continue
        ratios = [ratio_text(row, other, word) for word, other in peers(name, rows)]
        values = [number_text(row["counters"].get(c, "")) for c in counters]
        lines.append([name, time_text(row["seconds"]), rate_text(row), ", ".join(ratios), *values,
                      row["label"]])
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    return lines


def show(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]
        print("  ".join(cells).rstrip())


def write(name, result, lines, command):
    folder = ROOT / "docs" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    context = result["context"]
    text = [
        f"# Benchmark: {name}",
        "",
        f"{str(context.get('date', ''))[:10]}, on {os.cpu_count()} processors that `/proc/cpuinfo`"
        f' calls "{cpu_model()}" and that other programs may have used meanwhile. Repetitions'
        " interleaved at random; times are of the best:",
        "",
        f"    {command}",
        "",
        "| " + " | ".join(lines[0]) + " |",
        "|---" * len(lines[0]) + "|",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines[1:]),
    ]
    (folder / f"{name}.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Runs the benchmarks and compares ours with peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs without bench_")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "test")
    parser.add_argument("--filter", help="a regular expression for benchmark names")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    folder = options.build / "tests" / "bench"
    names = options.names or sorted(
        p.name[len("bench_"):] for p in folder.glob("bench_*") if p.is_file() and os.access(p, os.X_OK)
    )
    if not names:
        print(f"no benchmarks in {folder}; build them first (cmake --preset test && cmake --build build/test --target benchmarks)")
        return 1
    for name in names:
        program = folder / f"bench_{name}"
        if not program.exists():
            print(f"{program} does not exist")
            return 2
        try:
            result, command = run(program, options)
        except RuntimeError as error:
            print(error)
            return 1
        rows = best(result)
        lines = table(rows)
        print(f"{name} on {cpu_model()}")
        show(lines)
        print()
        if not options.no_write:
            write(name, result, lines, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
