#!/usr/bin/env python3
"""Writes docs/benchmarks/kernels.md: what the compiler says of each GPU kernel (registers, spills,
occupancy at sm_80 and sm_90) and the bytes it moves per element against the least that it could.

    kernel_report.py BUILD [--nvcc nvcc] [--output docs/benchmarks/kernels.md]

BUILD is a build folder, whose gpu/kernels.cu is compiled.
"""
import argparse
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kernels_build"))
from compilers import hip_kernels, nvcc_kernels, run  # noqa: E402

# Of a multiprocessor: warps, blocks, registers, bytes of shared memory.
LIMITS = {80: (64, 32, 65536, 164 << 10), 90: (64, 32, 65536, 228 << 10)}

BLOCK = 256  # elements of 8-bit state with one absmax
# (kernel, what, bytes moved per element, the least): state codes are read and written, so are their
# absmax; every tensor goes through memory once.
TRAFFIC = [
    ("mo_optim_step", "8-bit AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 4 + 16 / BLOCK, 10.06),
    ("mo_optim_step", "8-bit AdamW, fp32 parameters and gradients", 4 + 4 + 4 + 4 + 16 / BLOCK, 16.06),
    ("mo_optim_step", "8-bit AdamW, fp32 master, bf16 gradients and copy",
     4 + 4 + 2 + 2 + 4 + 16 / BLOCK, 16.06),
    ("mo_optim_step", "32-bit AdamW, fp32", 4 * 7, 28),
    ("mo_optim_step", "32-bit AdamW, bf16 parameters and gradients", 2 * 3 + 4 * 4, 22),
    ("mo_quantize", "fp32 to 8-bit codes", 4 + 1 + 4 / BLOCK, 5.02),
    ("mo_dequantize", "8-bit codes to fp32", 4 + 1 + 4 / BLOCK, 5.02),
    ("mo_cast", "fp32 to bf16", 6, 6),
    ("mo_cast", "bf16 to fp8", 3, 3),
    ("mo_scale", "fp32 in place", 8, 8),
    ("mo_square_sum", "fp32", 4, 4),
    ("mo_check", "bf16", 2, 2),
    ("mo_hash_granules", "a byte", 1 + 8 / 4096, 1.00),
]

HEAD = """# GPU kernels: what the compilers say

Written by `tests/bench/kernel_report.py` from {compiler}. Times
are not here: they need a GPU.

Occupancy is the share of a multiprocessor's 64 warps that registers, shared memory and the block's
size leave room for. "Spills" are bytes written to and read from local memory; there must be none,
nor a stack.

"""


def round_up(value, unit):
    return -(-value // unit) * unit


def occupancy(kernel, threads, arch):
    """Share of the warps; registers are given to warps in units of 256, shared memory with 1 KiB of
    the system's for each block in units of 128 bytes."""
    warps, blocks, registers, shared = LIMITS[arch]
    block_warps = threads // 32
    per_warp = round_up(kernel["registers"] * 32, 256)
    fit = min(blocks, warps // block_warps, registers // per_warp // block_warps,
              shared // round_up(kernel["shared"] + 1024, 128))
    return fit * block_warps / warps


def block_sizes():
    """{kernel: threads}, from the bounds that the kernels are compiled with."""
    words, sizes = {}, {}
    text = "".join(p.read_text() for p in sorted((ROOT / "kernels").glob("*.h")))
    words.update((n, int(v)) for n, v in re.findall(r"\b(MO_\w+_THREADS) = (\d+)", text))
    chunk = int(re.search(r"MO_CHUNK_ELEMENTS = (\d+)", text)[1])
    stripe = int(re.search(r"MO_STRIPE_ELEMENTS = (\d+)", text)[1])
    words["MO_SQUARE_SUM_THREADS"] = chunk // stripe * 32
    for path in (ROOT / "kernels").glob("*.cu"):
        for name, word in re.findall(r"^MO_GLOBAL(?:_ROOM)?\((\w+), \w+, (\w+)", path.read_text(), re.M):
            sizes[name] = words[word]
    return sizes


def cuda_table(reports, sizes):
    lines = ["## CUDA\n", "| kernel | threads | shared | registers sm_80 / sm_90 | spills | stack | "
             "occupancy sm_80 / sm_90 |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name in sorted(reports[80]):
        a, b, threads = reports[80][name], reports[90][name], sizes[name]
        lines.append(f"| `{name}` | {threads} | {b['shared']} | {a['registers']} / {b['registers']} | "
                     f"{a['spill'] + b['spill']} | {a['stack'] + b['stack']} | "
                     f"{occupancy(a, threads, 80):.0%} / {occupancy(b, threads, 90):.0%} |")
    return lines


def hip_table(kernels, sizes, target):
    lines = [f"\n## HIP, {target}\n", "| kernel | threads | shared | vector registers | spills | stack |",
             "|---|---:|---:|---:|---:|---:|"]
    for name, k in sorted(kernels.items()):
        lines.append(f"| `{name}` | {sizes[name]} | {k['shared']} | {k['registers']} | {k['spill']} | "
                     f"{k['stack']} |")
    return lines


def traffic_table():
    lines = ["\n## Bytes per element\n",
             "What a kernel reads and writes of tensors, against the least that the task needs: "
             "counted from the\nsources, not measured. A thread block of the 8-bit kernels also reads "
             "the code tables: 9 KB, 0.6 bytes\nper element of a whole chunk, from the second-level "
             "cache.\n",
             "| kernel | what | bytes | floor |", "|---|---|---:|---:|"]
    lines += [f"| `{k}` | {what} | {moved:.2f} | {floor:.2f} |" for k, what, moved, floor in TRAFFIC]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--nvcc", default="/usr/local/cuda/bin/nvcc")
    parser.add_argument("--clang", default="clang-19")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/benchmarks/kernels.md")
    options = parser.parse_args()
    source, sizes = options.build / "gpu/kernels.cu", block_sizes()
    with tempfile.TemporaryDirectory() as folder:
        reports = {arch: nvcc_kernels(options.nvcc, source, arch, folder) for arch in LIMITS}
        hip = hip_kernels(options.clang, source, "gfx90a", folder)
    nvcc = re.search(r"release ([\d.]+)", run(options.nvcc, "--version"))[1]
    clang = re.search(r"version (\d+\.\d+)", run(options.clang, "--version"))[1]
    lines = cuda_table(reports, sizes) + hip_table(hip, sizes, "gfx90a") + traffic_table()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(HEAD.format(compiler=f"nvcc {nvcc} and clang {clang}")
                              + "\n".join(lines) + "\n")
    print(f"{options.output}: {len(reports[80])} kernels")


main()
