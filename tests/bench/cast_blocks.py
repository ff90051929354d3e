#!/usr/bin/env python3
"""Measures block-scaled matrices on each instruction set and writes the tables of
docs/benchmarks/cast.md anew.

    tests/bench/cast_blocks.py [--build FOLDER] [--repetitions N] [--no-write]

About a minute with the default of five repetitions. bench_cast.cc explains `copy` and `plain`.
"""
import argparse
import datetime
import os
import pathlib
import re
import sys

import report

PAGE = report.ROOT / "docs" / "benchmarks" / "cast.md"
HEADING = "## Block-scaled matrices"
TIERS = {"AVX-512": "avx512", "AVX2": "avx2"}
NAMES = re.compile(r"blocks/")


def best_times(result):
    """{name: ms} of the best repetition: of one thread the processor's time, which other programs
    change little."""
    times = {}
    for entry in result["benchmarks"]:
        if entry.get("run_type") != "iteration":
            continue
        name = re.sub(r"/repeats:\d+|/real_time|/min_time:[\d.]+", "", entry["run_name"])
        time = entry["cpu_time" if name.endswith("/1") else "real_time"]
        times[name] = min(times.get(name, time), time)
    return times


def measured(options, isa):
    """The lines of a tier's table."""
    os.environ["MEMOPT_ISA"] = isa
    options.filter = "blocks/"
    options.flags = ["--benchmark_min_time=0.02"]
    result, _ = report.run(options.build / "tests" / "bench" / "bench_cast", options)
    times = best_times(result)
    lines = [
        "| benchmark / threads | time, ms | copy | plain | time ÷ copy | time ÷ plain |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(filter(NAMES.match, times)):
        time, copy, plain = (times[before + name] for before in ("", "copy_of/", "plain_of/"))
        lines.append(
            f"| {name} | {time:.2f} | {copy:.2f} | {plain:.2f} | {time / copy:.2f} | {time / plain:.2f} |"
        )
    return lines


def replaced(page, heading, lines):
    """The page with another table below a heading of the section."""
    before, rest = page.split(f"\n### {heading}\n", 1)
    _, behind = re.match(r"((?:\n*\|[^\n]*\n)+)(.*)", rest, re.DOTALL).groups()
    return f"{before}\n### {heading}\n\n" + "\n".join(lines) + "\n" + behind


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=report.ROOT / "build" / "test")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    head, section = PAGE.read_text(encoding="utf-8").split(HEADING, 1)
    section = re.sub(
        r"\n\n[^\n]*, on [^\n]*\n",
        f'\n\n{datetime.date.today()}, on {os.cpu_count()} processors that `/proc/cpuinfo` calls "'
        f'{report.cpu_model()}":\n',
        section,
        count=1,
    )
    for heading, isa in TIERS.items():
        lines = measured(options, isa)
        print(heading, *lines, sep="\n")
        section = replaced(section, heading, lines)
    if not options.no_write:
        PAGE.write_text(head + HEADING + section, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
