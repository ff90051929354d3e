#!/usr/bin/env python3
"""docs/benchmarks/kernels.md: what the compilers say of each GPU kernel (registers, spills, occupancy),
the bytes it moves per element against the least that it could, and the instructions and look-ups
that its main path takes per element against what GPUs do while they move those bytes.

    kernel_report.py --write        writes the page
    kernel_report.py --check        makes its tables again and compares them
    kernel_report.py --check-text   compares what needs no compiler: kernels, rows, the digest

Checks end with 1 where the page must be written anew, with 77 where the page's compilers are not here
to tell. nvdisasm comes with the CUDA toolkit, or with `pip install nvidia-cuda-nvdisasm`; any
version will do.
"""
import argparse
import difflib
import hashlib
import pathlib
import re
import shutil
import sys
import tempfile
from typing import NamedTuple

from bank_cycles import LANES, mean_cycles

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kernels_build"))
from compilers import (HIP_FLAGS, NVCC_FLAGS, Failure, hip_kernels, kernel_names,  # noqa: E402
                       nvcc_kernels, run)

PAGE, PATHS = ROOT / "docs/benchmarks/kernels.md", ROOT / "tests/bench/kernel_paths.cu"

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
     4 + 4 + 2 + 2 + 4 + 16 / BLOCK, 16.06, "step8_master", 8),
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
    ("mo_step_adamwc8", "companded AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 4 + 16 / BLOCK, 10.06,
     "stepc8_bf16", 8),
    ("mo_step_adamwc4", "companded 4-bit AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 16 / BLOCK4, 8.125,
     "stepc4_bf16", 8),
    ("mo_step_adamw16", "bf16 AdamW, bf16 parameters and gradients", 2 + 2 + 2 + 8, 14, "step16_bf16", 8),
    ("mo_step_schedule_free", "schedule-free AdamW, fp32", 4 * 7, 28, "schedule_free_f32", 4),
    ("mo_step_ademamix8", "8-bit AdEMAMix, bf16 parameters and gradients", 2 + 2 + 2 + 6 + 24 / BLOCK, 12.09,
     "ademamix8_bf16", 8),
    ("mo_step_ademamix8", "32-bit AdEMAMix, fp32", 4 * 9, 36, "ademamix32_f32", 4),
    ("mo_step_lion8", "8-bit Lion, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 8 / BLOCK, 8.03,
     "lion8_bf16", 8),
    ("mo_step_lion8", "32-bit Lion, fp32", 4 * 5, 20, "lion32_f32", 4),
    ("mo_step_sgd8", "8-bit SGD, bf16 parameters and gradients", 2 + 2 + 2 + 2 + 8 / BLOCK, 8.03,
     "sgd8_bf16", 8),
    ("mo_step_sgd8", "32-bit SGD, fp32", 4 * 5, 20, "sgd32_f32", 4),
    ("mo_step_sgd8", "SGD without momentum, fp32", 4 * 3, 12, "sgd_plain_f32", 4),
    ("mo_quantize", "fp32 to signed 8-bit codes", 4 + 1 + 4 / BLOCK, 5.02, "quantize_signed", 8),
    ("mo_quantize", "fp32 to unsigned 8-bit codes", 4 + 1 + 4 / BLOCK, 5.02, "quantize_unsigned", 8),
    ("mo_dequantize", "8-bit codes to fp32", 4 + 1 + 4 / BLOCK, 5.02, "dequantize", 8),
    ("mo_quantize4", "fp32 to signed 4-bit codes", 4 + 0.5 + 4 / BLOCK4, 4.53, "quantize4_signed", 8),
    ("mo_quantize4", "fp32 to unsigned 4-bit codes", 4 + 0.5 + 4 / BLOCK4, 4.53, "quantize4_unsigned", 8),
    ("mo_dequantize4", "4-bit codes to fp32", 4 + 0.5 + 4 / BLOCK4, 4.53, "dequantize4", 8),
    ("mo_quantizef8", "fp32 to signed e4m3 codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizef8_signed", 8),
    ("mo_quantizef8", "fp32 to unsigned e4m3 codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizef8_unsigned", 8),
    ("mo_dequantizef8", "e4m3 codes to fp32", 4 + 1 + 4 / BLOCK, 5.02, "dequantizef8", 8),
    ("mo_quantizec8", "fp32 to signed companded codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizec8_signed", 8),
    ("mo_quantizec8", "fp32 to unsigned companded codes", 4 + 1 + 4 / BLOCK, 5.02, "quantizec8_unsigned", 8),
    ("mo_dequantizec8", "companded codes to fp32", 4 + 1 + 4 / BLOCK, 5.02, "dequantizec8", 8),
    ("mo_quantizec4", "fp32 to signed companded 4-bit codes", 4 + 0.5 + 4 / BLOCK4, 4.53, "quantizec4_signed", 8),
    ("mo_cast", "fp32 to bf16", 6, 6, "cast_f32_bf16", 4),
    ("mo_cast", "fp32 to bf16, stochastic", 6, 6, "cast_f32_bf16_stochastic", 8),
    ("mo_cast", "bf16 to fp32", 6, 6, "cast_bf16_f32", 4),
    ("mo_cast", "fp32 to fp16", 6, 6, "cast_f32_f16", 4),
    ("mo_cast", "fp16 to fp32", 6, 6, "cast_f16_f32", 4),
    ("mo_cast", "fp32 to e4m3", 5, 5, "cast_f32_e4m3", 4),
    ("mo_cast", "bf16 to e4m3", 3, 3, "cast_bf16_e4m3", 8),
    ("mo_cast", "bf16 to e5m2", 3, 3, "cast_bf16_e5m2", 8),
    ("mo_cast", "e4m3 to bf16", 3, 3, "cast_e4m3_bf16", 8),
    ("mo_accumulate", "bf16 gradients to an fp32 sum", 2 + 4 + 4, 10, "accumulate_bf16_f32", 4),
    ("mo_accumulate", "bf16 gradients to a bf16 sum", 2 + 2 + 2, 6, "accumulate_bf16_bf16", 8),
    ("mo_scale", "fp32 in place", 8, 8, "scale_f32", 4),
    ("mo_scale", "bf16 in place", 4, 4, "scale_bf16", 8),
    ("mo_scale", "fp16 in place", 4, 4, "scale_f16", 8),
    ("mo_square_sum", "fp32", 4, 4, "squares_f32", 1),
    ("mo_square_sum", "bf16", 2, 2, "squares_bf16", 1),
    ("mo_check", "fp32", 4, 4, "check_f32", 4),
    ("mo_check", "bf16", 2, 2, "check_bf16", 8),
    ("mo_hash_granules", "a byte", 1 + 8 / 4096, 1.00, "hash", 16),
]


class Gpu(NamedTuple):
    """What traffic_head() tells the reader of it."""
    name: str
    multiprocessors: int
    clock: float
    memory: float  # bytes a second

    def share(self, cycles, moved):
        """The time of a multiprocessor's cycles over the memory's, both of one element."""
        return cycles / (self.multiprocessors * self.clock) / (moved / self.memory)


GPUS = [Gpu("H100", 132, 1.7e9, 3.35e12), Gpu("H200", 132, 1.7e9, 4.8e12), Gpu("B200", 148, 1.85e9, 8e12)]
ON_LOGIC = {"LOP3", "SHF", "ISETP", "IADD3", "SEL", "VIMNMX", "VIMNMX3", "VIADD", "VIADDMNMX", "PRMT",
            "FMNMX", "FSETP", "FSEL", "LEA", "PLOP3", "SGXT", "BMSK", "IABS", "ICMP", "FCHK"}

HEAD = """# GPU kernels: what the compilers say

Written by `tests/bench/kernel_report.py --write` from nvcc {nvcc} and clang {clang}. The code that was
compiled has the digest {digest}. Times are not here: they need a GPU.

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
    text = "".join(p.read_text() for p in sorted((ROOT / "kernels").rglob("*.h")))
    words.update((n, int(v)) for n, v in re.findall(r"\b(MO_\w+_THREADS) = (\d+)", text))
    chunk = int(re.search(r"MO_CHUNK_ELEMENTS = (\d+)", text)[1])
    stripe = int(re.search(r"MO_STRIPE_ELEMENTS = (\d+)", text)[1])
    words["MO_SQUARE_SUM_THREADS"] = chunk // stripe * 32
    for path in (ROOT / "kernels").rglob("*.cu"):
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
            path.append((guard, name))
        if name == "EXIT" and not guard:
            break
    return [name for _, name in path]


def words_loaded(name):
    """From shared memory, by a thread: 0 where the instruction is another one."""
    if name.split(".")[0] != "LDS":
        return 0
    return 4 if ".128" in name else 2 if ".64" in name else 1


def path_counts(options, source, folder):
    """{path: (instructions, of them on the logic pipe, words looked up)} of a pack."""
    unit, cubin = folder / "paths.cu", folder / "paths.cubin"
    unit.write_text(source.read_text() + PATHS.read_text())
    run(options.nvcc, *NVCC_FLAGS, "-DMO_RARE_NEVER", "--cubin", "-arch=sm_90", unit, "-o", cubin)
    counts = {}
    for section in re.split(r"^\.text\.", run(options.nvdisasm, "-c", cubin), flags=re.M)[1:]:
        path = main_path(section)
        counts[section.split(":", 1)[0]] = (len(path), sum(n.split(".")[0] in ON_LOGIC for n in path),
                                            sum(map(words_loaded, path)))
    names = {n[len("path_"):-2] for n in counts if n.startswith("path_")}
    return {n: [(counts[f"path_{n}_3"][i] - counts[f"path_{n}_1"][i]) / 2 for i in range(3)]
            for n in names}


def traffic_head(cycles):
    gpus = "\n".join(f"- {g.name}: {g.multiprocessors} multiprocessors at {g.clock / 1e9:g} GHz, "
                     f"{g.memory / 1e12:g}e12 bytes a second." for g in GPUS)
    return f"""
## Bytes and instructions per element

Bytes: what a kernel reads and writes of tensors, against the least that the task needs, counted
from the sources. A thread block of the 8-bit kernels also reads the code tables: 24.7 KB, 1.5 bytes
per element of a whole chunk, from the second-level cache.

Instructions: of the main path at sm_90 (aligned whole packs, `tests/bench/kernel_paths.cu`), how many of
them are on the integer and logic pipe, and how many words they look up in shared memory (LDS).

The other columns are estimates, not measurements: the time that the instructions or the look-ups
take over the time in which the memory moves the bytes. Below 1 the memory is the limit. Assumed:

{gpus}
- Multiprocessors and bytes are those of the vendor's data sheets (SXM). Clocks are below the boost
  clocks there (1.98 GHz, 1.98 GHz, 1.965 GHz), as under load.
- A multiprocessor issues 4 instructions of warps a cycle, 2 of them on the integer and logic pipe, by
  the table of throughputs in CUDA's programming guide. The larger of both times counts. The
  instructions of a B200 are taken to be those of sm_90.
- Its shared memory has 32 banks of a word a cycle. A warp's look-up of a word takes {cycles["8bit"]:.2f} cycles in
  the tables of 8-bit codes, {cycles["4bit"]:.2f} in those of 4-bit codes and {cycles["companded"]:.2f} in those of companded ones:
  the most words that it wants of one bank, on average over the tables, for states of normally
  distributed gradients after 30 steps (`tests/bench/bank_cycles.py`).
"""


def traffic_table(counts, cycles):
    lines = [traffic_head(cycles),
             "| kernel | what | bytes | floor | instructions | logic | look-ups | "
             + " | ".join([f"issue / memory {GPUS[0].name}", *(g.name for g in GPUS[1:]),
                           f"look-ups / memory {GPUS[0].name}", *(g.name for g in GPUS[1:])]) + " |",
             "|---|---|" + "---:|" * (5 + 2 * len(GPUS))]
    for kernel, what, moved, floor, path, pack in TRAFFIC:
        every, logic, words = (count / pack for count in counts[path])
        issue = max(every / (4 * LANES), logic / (2 * LANES))
        look_ups = words / LANES * cycles["4bit" if "4" in kernel else "companded" if "c8" in kernel else "8bit"]
        ratios = [gpu.share(busy, moved) for busy in (issue, look_ups) for gpu in GPUS]
        cells = [f"{moved:.2f}", f"{floor:.2f}", f"{every:.1f}", f"{logic:.1f}", f"{words:.1f}"]
        lines.append(f"| `{kernel}` | {what} | " + " | ".join(cells + [f"{r:.2f}" for r in ratios]) + " |")
    return lines


# --- the page ------------------------------------------------------------------------------------


def flattened(folder):
    """The one text of the kernels, as a build makes it."""
    out = folder / "kernels.cu"
    run("cmake", f"-DROOT={ROOT}", f"-DOUTPUT={out}", "-P", ROOT / "cmake/MemoptFlatten.cmake")
    return out


def digest(source):
    """Of all that the tables are made from, comments and spaces apart."""
    code = source.read_text() + PATHS.read_text()
    code = re.sub(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*|\s+', lambda m: m[1] or "", code, flags=re.S)
    tool = repr((NVCC_FLAGS, HIP_FLAGS, TRAFFIC, GPUS))
    return hashlib.sha256((code + tool).encode()).hexdigest()[:16]


def versions(options):
    """{nvcc, clang: version}, of those that are here."""
    found = {}
    for name, program, pattern in (("nvcc", options.nvcc, r", V([\d.]+)"),
                                   ("clang", options.clang, r"version ([\d.]+)")):
        if program and shutil.which(program):
            found[name] = re.search(pattern, run(program, "--version"))[1]
    return found


def sections(text):
    """{heading: text} of a page, with what comes before the first one."""
    return {part.split("\n", 1)[0]: part.strip() for part in re.split(r"^## ", text, flags=re.M)}


def make_tables(options, source, folder, compilers):
    """The tables that these compilers make, in the page's order."""
    lines, sizes = [], block_sizes()
    if "nvcc" in compilers:
        lines += cuda_table({arch: nvcc_kernels(options.nvcc, source, arch, folder) for arch in LIMITS},
                            sizes)
    if "clang" in compilers:
        for target in ("gfx90a", "gfx1100"):
            lines += hip_table(hip_kernels(options.clang, source, target, folder), sizes, target)
    if "nvcc" in compilers and options.nvdisasm:
        lines += traffic_table(path_counts(options, source, folder), mean_cycles())
    return "\n".join(lines) + "\n"


def write(options, folder):
    here = versions(options)
    lacking = [name for name in ("nvcc", "clang") if name not in here]
    lacking += [] if options.nvdisasm else ["nvdisasm (pip install nvidia-cuda-nvdisasm)"]
    if lacking:
        raise Failure(f"kernel_report: not found: {', '.join(lacking)}")
    source = flattened(folder)
    PAGE.write_text(HEAD.format(digest=digest(source), **here) + make_tables(options, source, folder, here))
    print(f"written: {PAGE}")
    return 0


def same_compilers(options, page):
    """Of nvcc and clang, those that are here in the page's versions; and why others do not count."""
    named = dict(re.findall(r"\b(nvcc|clang) (\d[\d.]*\d)", page))
    here = versions(options)
    return ([name for name in named if named[name] == here.get(name)],
            [f"{name} {named[name]} made the page, here is {here.get(name, 'none')}"
             for name in named if named[name] != here.get(name)])


def stale(why):
    print(f"{PAGE.relative_to(ROOT)} is stale: {why}; run tests/bench/kernel_report.py --write")
    return 1


def check(options, folder):
    page = PAGE.read_text()
    compilers, reasons = same_compilers(options, page)
    if not options.nvdisasm:
        reasons.append("no nvdisasm")
    old, new = sections(page), sections(make_tables(options, flattened(folder), folder, compilers))
    new.pop("", None)
    for heading, text in new.items():
        changes = list(difflib.unified_diff(old.get(heading, "").splitlines(), text.splitlines(),
                                            "the page", "now", lineterm="", n=0))
        if changes:
            print("\n".join(changes))
            return stale(f"'{heading}' has changed")
    print(f"the same: {', '.join(new) or 'nothing'}")
    if reasons:
        print("not compared, because " + "; ".join(reasons))
    return 0 if new else 77


def check_text(options, folder):
    page = PAGE.read_text()
    parts = sections(page)
    for heading in list(parts)[1:4]:  # each compiler's table
        missing = kernel_names() - set(re.findall(r"^\| `(\w+)` \|", parts[heading], re.M))
        if missing:
            return stale(f"'{heading}' lacks {', '.join(sorted(missing))}")
    rows = [row for row in TRAFFIC if f"\n| `{row[0]}` | {row[1]} | {row[2]:.2f} | {row[3]:.2f} |" not in page]
    if rows:
        return stale(f"it has no row for {rows[0][0]}, {rows[0][1]}")
    if empty := re.search(r"^\|.*\| *\|.*$", page, re.M):
        return stale(f"an empty cell in {empty[0]}")
    now = digest(flattened(folder))
    if f"digest {now}." in page:
        print("the page is of these kernels")
        return 0
    _, reasons = same_compilers(options, page)
    if not reasons:
        return stale("the kernels have changed")
    print(f"the kernels have changed since {PAGE.relative_to(ROOT)} was written, which cannot be done "
          f"here: {'; '.join(reasons)}")
    return 77


def beside(program, other):
    """A program in PATH, or else in the folder of the other one."""
    there = pathlib.Path(other or "/").resolve().parent / program
    return shutil.which(program) or (str(there) if there.exists() else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    for name, function in (("write", write), ("check", check), ("check-text", check_text)):
        what.add_argument(f"--{name}", dest="action", action="store_const", const=function)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--clang", default="clang-19")
    parser.add_argument("--nvdisasm")
    options = parser.parse_args()
    options.nvdisasm = options.nvdisasm or beside("nvdisasm", options.nvcc)
    with tempfile.TemporaryDirectory() as folder:
        try:
            return options.action(options, pathlib.Path(folder))
        except Failure as failure:
            print(failure)
            return 1


if __name__ == "__main__":
    sys.exit(main())
