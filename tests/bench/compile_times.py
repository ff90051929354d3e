#!/usr/bin/env python3
"""docs/benchmarks/compile.md: how long a GPU kernel takes that is compiled on the user's machine.

    compile_times.py            prints the table
    compile_times.py --write    writes the page

NVRTC 12 and 13 make machine code for sm_80 of the text that the library carries. ptxas stands in for
the driver: it makes machine code of the PTX that clang makes, which the library carries too. Each
figure is the median of three runs, in processor time: the machine may be shared.
"""
import argparse
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/kernels_build")]
from compilers import CLANG_PTX_FLAGS, NVCC_FLAGS  # noqa: E402
from gpu_text import flattened  # noqa: E402
from test_front_end import Nvrtc  # noqa: E402

PAGE = ROOT / "docs/benchmarks/compile.md"
WORDS = ["mixed types", "bf16", "f32", "f32, gradients and copy bf16"]
# Kernels, and the class of types (mo_step_types) that they are made for.
ROWS = [*((f"step of `AdamW8bit`, {words}", [("mo_step_adamwc8", types)]) for types, words in enumerate(WORDS)),
        *((f"step of `AdamW8bit(codes=\"dynamic\")`, {WORDS[types]}", [("mo_step_adamw8", types)]) for types in (0, 1)),
        ("before a first step", [("mo_optim_upload", 0), ("mo_optim_prologue", 0)]),
        ("clipping", [("mo_square_sum", 0), ("mo_sum", 0)]),
        ("a cast", [("mo_cast", 0)])]
HEAD = """# Kernels compiled on the user's machine

Written by `tests/bench/compile_times.py --write` on {cpu}, {count} processors, with
{compilers}:
seconds of processor time (one thread), medians of three. A kernel is compiled when it is first launched.
ptxas stands in for the driver, which compiles PTX where no machine code fits: for all types. NVRTC compiles a step for the
class of types that all tensors have, or for all types. nvcc makes all kernels of one target (sm_90), when the library is
built, in {nvcc:.0f} s.

"""


def processor_time():
    return sum(getattr(resource.getrusage(who), field) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
               for field in ("ru_utime", "ru_stime"))


def seconds(action):
    times = []
    for _ in range(3):
        begin = processor_time()
        action()
        times.append(processor_time() - begin)
    return statistics.median(times)


def only(kernel, types):
    return "-DMO_ONLY", f"-DMO_ONLY_{kernel}", *([f"-DMO_TYPES={types}"] if types else [])


def by_nvrtc(nvrtc, text, kernel, types):
    def compile_it():
        refused, _ = nvrtc.compile(text, "--gpu-architecture=sm_80", *only(kernel, types))
        assert refused is None, refused

    return seconds(compile_it)


def by_ptxas(text, kernel, folder):
    source, ptx = folder / "kernel.cu", folder / "kernel.ptx"
    source.write_text(text)
    subprocess.run(["clang-19", *CLANG_PTX_FLAGS, *only(kernel, 0), "-w", "-S", source, "-o", ptx], check=True)
    ptxas = shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"
    return seconds(lambda: subprocess.run([ptxas, "-arch=sm_80", ptx, "-o", folder / "out"], check=True))


def by_nvcc(text):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernels.cu"
        source.write_text(text)
        begin = processor_time()
        subprocess.run([shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", *NVCC_FLAGS, "-arch=sm_90", "-cubin", source, "-o",
                        source.with_suffix(".cubin")], check=True)
        return processor_time() - begin


def table(cmake, build):
    text, compilers = flattened(cmake, build), {major: Nvrtc(major) for major in (12, 13)}
    lines = ["| what | kernels | NVRTC 12 | NVRTC 13 | ptxas |", "|---|---:|---:|---:|---:|"]
    known = {}
    with tempfile.TemporaryDirectory() as folder:
        for what, kernels in ROWS:
            for kernel in kernels:
                if kernel[0] not in known:
                    known[kernel[0]] = by_ptxas(text, kernel[0], pathlib.Path(folder))
            sums = [sum(by_nvrtc(c, text, *kernel) for kernel in kernels) for c in compilers.values()]
            sums.append(sum(known[kernel] for kernel, _ in kernels))
            lines.append(f"| {what} | {len(kernels)} | " + " | ".join(f"{s:.1f}" for s in sums) + " |")
    return "\n".join(lines) + "\n"


def here():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = re.search(r"model name\s*: (.*)", info)[1]
    model = re.search(r"^model\s*: (.*)", info, re.M)[1]
    release = re.search(r"V[\d.]+", subprocess.run(
        [shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas", "--version"], capture_output=True, text=True,
        check=True).stdout)[0]
    return {"cpu": f"\"{cpu}\" (model {model})", "count": info.count("model name"),
            "compilers": f"the NVRTC wheels that `./setup` installs and ptxas {release}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--build", default=ROOT / "build/test", help="a build folder, for its tables")
    options = parser.parse_args()
    nvcc = by_nvcc(flattened(options.cmake, options.build))
    page = HEAD.format(**here(), nvcc=nvcc) + table(options.cmake, options.build)
    if options.write:
        PAGE.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
