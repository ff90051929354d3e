#!/usr/bin/env python3
"""What the loops of the optimizer's GPU kernels take, counted in the machine code that a user's GPU runs.

    kernel_report.py [--arch sm_90] [--kernel mo_step_adamwc8...] [--write]

Compiles the text that the library carries, one kernel at a time as at its first launch, and disassembles it
(nvcc; nvdisasm, from CUDA or from pip's nvidia-cuda-nvdisasm). A row is a loop over the whole blocks of a class of
types. "instructions": those of the shortest way through the loop, for each element; repairs of rare values lie beside
it. "loads": global loads of an iteration, and within how many of its instructions they stand: they are those of the next
block, so no instruction waits for another one's load. "in flight": bytes that the warps of a multiprocessor have on
their way.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/kernels_build")]
from compilers import NVCC_FLAGS  # noqa: E402
from gpu_text import flattened  # noqa: E402

KERNELS = ["mo_step_adamwc8", "mo_step_adamw8", "mo_step_lion8"]
WIDTH = {"64": 8, "128": 16}  # others are scales, one for all of a warp
TYPES = {2: "bf16", 3: "f32, gradients and copy bf16", 4: "f32"}  # by vectors of parameters and gradients
PAGE = ROOT / "docs/benchmarks/kernels.md"
HEAD = """# GPU kernels: what a step's loop takes

Written by `tests/bench/kernel_report.py --write` with nvcc {nvcc}: counted in the machine code of the kernels that the
library launches, over whole blocks whose tensors are aligned. "instructions": those of the shortest way through the
loop, an element; repairs of rare values lie beside it. "loads": the loop's loads of memory are those of the next block,
all of them before so many of its instructions. "in flight": bytes that the 24 warps of a multiprocessor have on their
way; an H200 needs about 14 KiB to reach its memory's speed. No card has run them yet.

Before, types and alignments were found at run time, and moments, gradients and parameters were read one after another:
75.6 instructions for `mo_step_adamw8` with bf16 on sm_90, and at most 9 KiB in flight.

"""
ELEMENTS, WARPS = 8, 24  # of a thread; of three blocks of 256 threads


def assembly(text, kernel, arch, nvdisasm):
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder, "kernel.cu"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(text)
        subprocess.run(["nvcc", *NVCC_FLAGS, f"-arch={arch}", "-DMO_ONLY", f"-DMO_ONLY_{kernel}", "-cubin", source,
                        "-o", out], check=True, capture_output=True)
        return subprocess.run([nvdisasm, "-c", out], check=True, capture_output=True, text=True).stdout


def instructions(listing):
    """The instructions, and where labels stand."""
    found, labels = [], {}
    for line in listing.splitlines():
        text = re.sub(r"/\*.*?\*/", "", line).strip().rstrip(" ;")
        if re.fullmatch(r"\.L_x_\d+:", text):
            labels[text[:-1]] = len(found)
        elif text and re.search(r"/\*[0-9a-f]{4,5}\*/", line):
            found.append(text)
    return found, labels


def target(text, labels):
    branch = re.search(r"\bBRA\b.*?(\.L_x_\d+)", text)
    return labels.get(branch[1]) if branch else None


def shortest(code, labels, start, end):
    """The shortest way from the loop's first instruction to its last."""
    before, front = {start: None}, [start]
    while front:
        behind = []
        for at in front:
            if at == end:
                way = []
                while at is not None:
                    way.append(at)
                    at = before[at]
                return way[::-1]
            to = target(code[at], labels)
            always = to is not None and re.match(r"BRA(\.U)? `", code[at])
            for following in ([] if always else [at + 1]) + ([to] if to is not None else []):
                if start <= following <= end and following not in before:
                    before[following] = at
                    behind.append(following)
        front = behind
    return []


def rows(code, labels):
    """The loops over whole blocks: those that load and store ahead of no inner loop, smallest first."""
    for end, text in enumerate(code):
        start = target(text, labels)
        if start is None or start > end:
            continue
        body = code[start:end + 1]
        loads = [(i, re.search(r"LDG\.E(?:\.(\w+))?", line)) for i, line in enumerate(body)]
        loads = [(i, WIDTH.get(found[1], 0)) for i, found in loads if found]
        if any("REDUX" in line or "SHFL" in line for line in body) and 4 <= len(loads) <= 12:
            yield len(shortest(code, labels, start, end)), loads


def table(text, options):
    lines = ["| kernel | types | GPU | instructions | loads | in flight |", "|---|---|---|---:|---:|---:|"]
    for kernel in options.kernel:
        for arch in options.arch:
            code, labels = instructions(assembly(text, kernel, arch, options.nvdisasm))
            for length, loads in sorted(rows(code, labels), key=lambda row: len(row[1])):
                types = TYPES[sum(width == 16 for _, width in loads)]
                flight = sum(width for _, width in loads) * 32 * WARPS
                lines.append(f"| {kernel} | {types} | {arch} | {length / ELEMENTS:.1f} | {len(loads)} in {loads[-1][0] + 1} of "
                             f"{length} | {flight // 1024} KiB |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=["sm_80", "sm_90", "sm_100"])
    parser.add_argument("--kernel", nargs="+", default=KERNELS)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--build", default=ROOT / "build/test", help="a build folder, for its tables")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or "nvdisasm")
    options = parser.parse_args()
    version = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    page = HEAD.format(nvcc=re.search(r"V([\d.]+)", version)[1]) + table(flattened(options.cmake, options.build), options)
    if options.write:
        PAGE.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
