#!/usr/bin/env python3
"""Writes docs/benchmarks/kernels.md: what the compilers say of each GPU kernel (registers, spills,
occupancy), the bytes it moves per element against the least that it could, and the instructions that
its main path takes per element against what an H100 issues while it moves those bytes.

    kernel_report.py BUILD [--nvcc nvcc] [--nvdisasm nvdisasm] [--output docs/benchmarks/kernels.md]

BUILD is a build folder, whose gpu/kernels.cu is compiled. Instructions are left out where there is
no nvdisasm.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kernels_build"))
from compilers import NVCC_FLAGS, hip_kernels, nvcc_kernels, run  # noqa: E402

# Of a multiprocessor: warps, blocks, registers, bytes of shared memory.
LIMITS = {80: (64, 32, 65536, 164 << 10), 90: (64, 32, 65536, 228 << 10)}

BLOCK, BLOCK4 = 256, 128  # elements of 8-bit and 4-bit state with one absmax
# (kernel, what, bytes moved per element, the least, its path in kernel_paths.cu, elements of a pack):
# state codes are read and written, so are their absmax; every tensor goes through memory once.
TRAFFIC = [
    ("mo_optim_step", "8-bit AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 4 + 16 / BLOCK, 10.06,
     "step8_bf16", 8),
    ("mo_optim_step", "8-bit AdamW, fp32 parameters and gradients", 4 + 4 + 4 + 4 + 16 / BLOCK, 16.06,
     "step8_f32", 8),
    ("mo_optim_step", "8-bit AdamW, fp32 master, bf16 gradients and copy",
     4 + 4 + 2 + 2 + 4 + 16 / BLOCK, 16.06, None, 8),
    ("mo_optim_step", "32-bit AdamW, fp32", 4 * 7, 28, "step32_f32", 4),
    ("mo_optim_step", "32-bit AdamW, bf16 parameters and gradients", 2 * 3 + 4 * 4, 22, "step32_bf16", 4),
    ("mo_step_adamw4", "4-bit AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 16 / BLOCK4, 8.125,
     "step4_bf16", 8),
    ("mo_step_adamw4", "4-bit AdamW, fp32 parameters and gradients", 4 + 4 + 4 + 2 + 16 / BLOCK4, 14.125,
     "step4_f32", 8),
    ("mo_step_adamwf8", "e4m3 AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 4 + 16 / BLOCK, 10.06,
     "stepf8_bf16", 8),
    ("mo_step_adamwf8", "e4m3 AdamW, fp32 parameters and gradients", 4 + 4 + 4 + 4 + 16 / BLOCK, 16.06,
     "stepf8_f32", 8),
    ("mo_step_lion8", "8-bit Lion, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 8 / BLOCK, 8.03,
     "lion8_bf16", 8),
    ("mo_step_lion8", "32-bit Lion, fp32", 4 * 5, 20, "lion32_f32", 4),
    ("mo_step_sgd8", "8-bit SGD, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 8 / BLOCK, 8.03,
     "sgd8_bf16", 8),
    ("mo_step_sgd8", "32-bit SGD, fp32", 4 * 5, 20, "sgd32_f32", 4),
    ("mo_step_sgd8", "SGD without momentum, fp32", 4 * 3, 12, None, 4),
    ("mo_quantize", "fp32 to signed 8-bit codes", 4 + 1 + 4 / BLOCK, 5.02, "quantize_signed", 8),
    ("mo_quantize", "fp32 to unsigned 8-bit codes", 4 + 1 + 4 / BLOCK, 5.02, "quantize_unsigned", 8),
    ("mo_dequantize", "8-bit codes to fp32", 4 + 1 + 4 / BLOCK, 5.02, "dequantize", 8),
    ("mo_quantize4", "fp32 to signed 4-bit codes", 4 + 0.5 + 4 / BLOCK4, 4.53, "quantize4_signed", 8),
    ("mo_quantize4", "fp32 to unsigned 4-bit codes", 4 + 0.5 + 4 / BLOCK4, 4.53, "quantize4_unsigned", 8),
    ("mo_dequantize4", "4-bit codes to fp32", 4 + 0.5 + 4 / BLOCK4, 4.53, "dequantize4", 8),
    ("mo_quantizef8", "fp32 to signed e4m3 codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizef8_signed", 8),
    ("mo_quantizef8", "fp32 to unsigned e4m3 codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizef8_unsigned", 8),
    ("mo_dequantizef8", "e4m3 codes to fp32", 4 + 1 + 4 / BLOCK, 5.02, "dequantizef8", 8),
    ("mo_cast", "fp32 to bf16", 6, 6, "cast_f32_bf16", 4),
    ("mo_cast", "fp32 to bf16, stochastic", 6, 6, "cast_f32_bf16_stochastic", 8),
    ("mo_cast", "bf16 to fp32", 6, 6, "cast_bf16_f32", 4),
    ("mo_cast", "fp32 to fp16", 6, 6, "cast_f32_f16", 4),
    ("mo_cast", "fp16 to fp32", 6, 6, "cast_f16_f32", 4),
    ("mo_cast", "fp32 to e4m3", 5, 5, "cast_f32_e4m3", 4),
    ("mo_cast", "bf16 to e4m3", 3, 3, "cast_bf16_e4m3", 8),
    ("mo_cast", "bf16 to e5m2", 3, 3, "cast_bf16_e5m2", 8),
    ("mo_cast", "e4m3 to bf16", 3, 3, "cast_e4m3_bf16", 8),
    ("mo_scale", "fp32 in place", 8, 8, "scale_f32", 4),
    ("mo_scale", "bf16 in place", 4, 4, "scale_bf16", 8),
    ("mo_scale", "fp16 in place", 4, 4, "scale_f16", 8),
    ("mo_square_sum", "fp32", 4, 4, "squares_f32", 1),
    ("mo_square_sum", "bf16", 2, 2, "squares_bf16", 1),
    ("mo_check", "fp32", 4, 4, "check_f32", 4),
    ("mo_check", "bf16", 2, 2, "check_bf16", 8),
    ("mo_hash_granules", "a byte", 1 + 8 / 4096, 1.00, "hash", 16),
]

# H100 SXM: instructions of single threads that its 132 multiprocessors issue in a second, at 4
# warps a cycle and 1.7 GHz; those of them on the integer and logic pipe, 64 threads a cycle; bytes
# that its memory moves.
ISSUE, LOGIC, MEMORY = 132 * 4 * 32 * 1.7e9, 132 * 64 * 1.7e9, 3.35e12
ON_LOGIC = {"LOP3", "SHF", "ISETP", "IADD3", "SEL", "VIMNMX", "VIADD", "VIADDMNMX", "PRMT", "FMNMX", "FSETP",
            "FSEL", "LEA", "PLOP3", "SGXT", "BMSK", "IABS", "ICMP", "FCHK"}

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
        source = path.read_text()
        for name, word in re.findall(r"^MO_GLOBAL(?:_ROOM)?\((\w+), \w+, (\w+)", source, re.M):
            sizes[name] = words[word]
        # kernels that are all made by one macro, whose first parameter is the name
        macros = re.findall(r"^#define (\w+)\(name,[^)]*\)\s*\\\n\s*MO_GLOBAL(?:_ROOM)?\(name, \w+, (\w+)",
                            source, re.M)
        for macro, word in macros:
            for name in re.findall(rf"^{macro}\((\w+),", source, re.M):
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
    lines = [f"\n## HIP, {target}\n",
             "| kernel | threads | LDS bytes | VGPR | SGPR | spilled | scratch |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for name, k in sorted(kernels.items()):
        lines.append(f"| `{name}` | {sizes[name]} | {k['shared']} | {k['registers']} | {k['scalars']} | "
                     f"{k['spill']} | {k['stack']} |")
    return lines


def main_path(listing):
    """The instructions of a kernel's listing up to its end, without calls for rare operands and what
    leads to them."""
    path = []
    for guard, name in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)", listing, re.M):
        if name.startswith("CALL"):
            while path and not (path[-1][0] and path[-1][1] == "BRA"):
                path.pop()
        else:
            path.append((guard, name.split(".")[0]))
        if name == "EXIT" and not guard:
            break
    return path


def path_counts(options, source, folder):
    """{path: (instructions, of them on the logic pipe)} of a pack."""
    unit, cubin = pathlib.Path(folder) / "paths.cu", pathlib.Path(folder) / "paths.cubin"
    unit.write_text(source.read_text() + (ROOT / "tests/bench/kernel_paths.cu").read_text())
    run(options.nvcc, *NVCC_FLAGS, "-DMO_RARE_NEVER", "--cubin", "-arch=sm_90", unit, "-o", cubin)
    counts = {}
    for section in re.split(r"^\.text\.", run(options.nvdisasm, "-c", cubin), flags=re.M)[1:]:
        path = main_path(section)
        counts[section.split(":", 1)[0]] = (len(path), sum(name in ON_LOGIC for _, name in path))
    names = {n[len("path_"):-2] for n in counts if n.startswith("path_")}
    return {n: [(counts[f"path_{n}_3"][i] - counts[f"path_{n}_1"][i]) / 2 for i in range(2)]
            for n in names}


def traffic_table(counts):
    lines = ["\n## Bytes and instructions per element\n",
             "Bytes: what a kernel reads and writes of tensors, against the least that the task needs, "
             "counted\nfrom the sources. A thread block of the 8-bit kernels also reads the code tables: "
             "9 KB, 0.6 bytes\nper element of a whole chunk, from the second-level cache.\n\n"
             "Instructions: of the main path at sm_90 (aligned whole packs, `tests/bench/kernel_paths.cu`), "
             "and how\nmany of them are on the integer and logic pipe. The last column is the larger of the "
             "times that an\nH100 needs to issue them (28.7e12 a second, 14.4e12 of the pipe's), over the time "
             "in which it moves\nthe bytes at 3.35e12 a second: below 1 the memory is the limit. An "
             "estimate, not a measurement.\n",
             "| kernel | what | bytes | floor | instructions | logic | issue / memory |",
             "|---|---|---:|---:|---:|---:|---:|"]
    for kernel, what, moved, floor, path, pack in TRAFFIC:
        line = f"| `{kernel}` | {what} | {moved:.2f} | {floor:.2f} |"
        if path in counts:
            every, logic = (count / pack for count in counts[path])
            ratio = max(every / ISSUE, logic / LOGIC) / (moved / MEMORY)
            lines.append(f"{line} {every:.1f} | {logic:.1f} | {ratio:.2f} |")
        else:
            lines.append(f"{line} | | |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--nvcc", default="/usr/local/cuda/bin/nvcc")
    parser.add_argument("--clang", default="clang-19")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/benchmarks/kernels.md")
    options = parser.parse_args()
    source, sizes = options.build / "gpu/kernels.cu", block_sizes()
    with tempfile.TemporaryDirectory() as folder:
        reports = {arch: nvcc_kernels(options.nvcc, source, arch, folder) for arch in LIMITS}
        hip = {target: hip_kernels(options.clang, source, target, folder)
               for target in ("gfx90a", "gfx1100")}
        counts = path_counts(options, source, folder) if options.nvdisasm else {}
    nvcc = re.search(r"release ([\d.]+)", run(options.nvcc, "--version"))[1]
    clang = re.search(r"version (\d+\.\d+)", run(options.clang, "--version"))[1]
    lines = cuda_table(reports, sizes)
    for target, kernels in hip.items():
        lines += hip_table(kernels, sizes, target)
    lines += traffic_table(counts)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(HEAD.format(compiler=f"nvcc {nvcc} and clang {clang}")
                              + "\n".join(lines) + "\n")
    print(f"{options.output}: {len(reports[80])} kernels")


main()
