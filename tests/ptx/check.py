"""Runs the conformance suite on the translated PTX of the kernels.

    check.py BUILD embedded [--small]   the text that the library in BUILD carries, every kernel
    check.py BUILD nvcc SM              nvcc's text for sm_SM, in its place
    check.py BUILD approximations       the same bits where each approximation is two steps off
    check.py BUILD mutants              changed copies of the text: the suite finds each change

BUILD is a build folder with the suite and the simulated driver. Status: 0 as it should be, 1 not so,
77 where nvcc is missing.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

import translate

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NVCC_FLAGS = ["--std=c++17", "-O3", "--fmad=false", "--prec-div=true", "--prec-sqrt=true",
              "--ftz=false", "--diag-suppress=177"]
COMPILE = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-ffp-contract=off", "-fPIC", "-shared",
           "-fvisibility=hidden", "-Werror=implicit-function-declaration", "-I", str(HERE)]


class Mutant(NamedTuple):
    what: str
    kernel: str
    cases: str
    pattern: str
    replacement: str
    which: int = 0  # of the pattern's places in the kernel, from 0


MUTANTS = [
    Mutant("a barrier is missing", "mo_step_adamw8", "optimizer_adamw_8bit", r"bar\.sync\s+0;", ""),
    Mutant("a barrier is missing", "mo_square_sum", "scaler_norms", r"bar\.sync\s+0;", "", 1),
    Mutant("only some threads reach a barrier", "mo_cast", "cast*", r"bar\.sync\s+0;",
           "setp.gt.u32 %p1, %tid.x, 200; @%p1 bra past; bar.sync 0; past:"),
    Mutant("an fma rounds twice", "mo_step_adamw8", "optimizer_adamw_f32",
           r"fma\.rn\.f32\s+(%f\d+), (\S+), (\S+), (\S+);",
           r"{ .reg .f32 t; mul.rn.f32 t, \2, \3; add.rn.f32 \1, t, \4; }", 70),
    Mutant("a division by its reciprocal", "mo_step_adamw4", "optimizer_adamw_4bit",
           r"div\.rn\.f32\s+(%f\d+), (\S+), (\S+);",
           r"{ .reg .f32 t; rcp.rn.f32 t, \3; mul.rn.f32 \1, \2, t; }"),
    Mutant("another lane", "mo_hash_granules", "hash",
           r"shfl\.sync\.bfly\.b32\s*(%r\d+), (%r\d+), 16,", r"shfl.sync.bfly.b32 \1, \2, 8,"),
    Mutant("another lane", "mo_square_sum", "scaler*",
           r"shfl\.sync\.bfly\.b32\s*(%r\d+), (%r\d+), 8,", r"shfl.sync.bfly.b32 \1, \2, 4,", 1),
    Mutant("a shuffle is missing", "mo_quantize8", "codes_*",
           r"shfl\.sync\.bfly\.b32\s*(%r\d+), (%r\d+), 1,[^;]*;", r"mov.u32 \1, \2;"),
    Mutant("a minimum for a maximum", "mo_step_lion8", "optimizer_lion_8bit", r"max\.u32", "min.u32",
           4),
    Mutant("one bit less of a shift", "mo_dequantize8", "codes_*", r"(shl\.b32\s+%r\d+, %r\d+), 16;",
           r"\1, 15;"),
    Mutant("a store is missing", "mo_step_sgd8", "optimizer_sgd_8bit", r"st\.global\.u8[^;]*;", "",
           3),
    Mutant("a store beyond the place", "mo_quantizec4", "codes_*",
           r"st\.global\.u8\s+\[(%rd\d+)\],", r"st.global.u8 [\1+1],"),
    Mutant("a load of the next element", "mo_accumulate", "accumulate",
           r"ld\.global\.v4\.u32\s+(\{[^}]*\}), \[(%rd\d+)\]", r"ld.global.v4.u32 \1, [\2+16]",
           1),
    Mutant("a NaN for an infinity", "mo_accumulate", "accumulate*",
           r"setp\.gt\.u32(\s+%p\d+, %r\d+), 31744;", r"setp.gt.u32\1, 31743;", 5),
    Mutant("an infinity for the largest number", "mo_accumulate", "accumulate*",
           r"setp\.gt\.u32(\s+%p\d+, %r\d+), 31743;", r"setp.gt.u32\1, 31742;", 12),
    Mutant("past infinity", "mo_accumulate", "accumulate*",
           r"min\.u32(\s+%r\d+), (%r\d+), 31744;", r"mov.u32\1, \2;", 3),
    Mutant("a sum in another order", "mo_square_sum", "scaler*",
           r"add\.rn\.f64\s+(%fd\d+), (%fd\d+), (%fd\d+);", r"add.rn.f64 \1, \3, \3;", 1),
    Mutant("towards zero, not to nearest", "mo_cast", "cast*",
           r"add\.s32(\s+%r\d+, %r\d+), 32767;", r"add.s32\1, 0;"),
    Mutant("a table's entry", "mo_dequantize8", "codes_*", r"", ""),
    Mutant("a tie goes up, not to even", "mo_cast", "cast*",
           r"bfe\.u32(\s+%r\d+), %r\d+, 16, 1;", r"mov.u32\1, 1;"),
    Mutant("a choice the other way round", "mo_quantizec4", "codes_*",
           r"selp\.b32\s+(%r\d+), (\S+), (\S+), (%p\d+);", r"selp.b32 \1, \3, \2, \4;", 1),
    Mutant("the flag of a NaN is not raised", "mo_check", "scaler*", r"st\.volatile\.global[^;]*;",
           ""),
    Mutant("another parameter", "mo_scale", "scaler*", r"(mo_scale_param_0\+)8\b", r"\g<1>16"),
    Mutant("a sign is kept", "mo_step_adamwc8", "optimizer_adamw_companded",
           r"and\.b32(\s+%r\d+, %r\d+), 2147483647;", r"mov.b32\1;"),
    Mutant("both conditions, not one", "mo_scale", "scaler*", r"or\.pred", "and.pred", 1),
    Mutant("a square root in double", "mo_optim_prologue", "optimizer_adamw_f32",
           r"sqrt\.rn\.f64\s+(%fd\d+), (%fd\d+);", r"mov.f64 \1, \2;"),
    Mutant("the next word of a table", "mo_dequantizec8", "codes_*",
           r"dp4a\.u32\.u32(\s+%r\d+, %r\d+, %r\d+), 0;", r"dp4a.u32.u32\1, 4;"),
    Mutant("halves in the wrong order", "mo_dequantizec4", "codes_*",
           r"and\.b32(\s+%r\d+, %r\d+), 15;", r"shr.u32\1, 4;"),
]


class Suite:
    """The conformance suite on one device of the simulated CUDA driver."""

    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.image = build / "gpu" / "kernels.ptx"

    def compile(self, text, only=None):
        source, out = self.folder / "kernels.c", self.folder / "kernels.so"
        source.write_text(translate.translate(text, self.image.read_text(), only))
        subprocess.run([*COMPILE, str(source), "-o", str(out), "-lm"], check=True)
        return out

    def run(self, kernels, *arguments, capability="8.0", approximation=0):
        drivers = str(self.build / "tests" / "sim" / "lib")
        ran = self.folder / "ran"
        ran.unlink(missing_ok=True)
        environment = dict(
            os.environ, LD_LIBRARY_PATH=drivers, MEMOPT_DRIVER_PATH=drivers, MEMOPT_SIM_QUIET="1",
            MEMOPT_SIM_MEMORY="256M", MEMOPT_CACHE_DIR="", MEMOPT_SIM_DEAD_STREAM="400",
            MEMOPT_SIM_CAPABILITY=capability, MEMOPT_SIM_KERNELS=str(kernels),
            MEMOPT_PTX_RAN=str(ran), MEMOPT_PTX_APPROXIMATION=str(approximation))
        done = subprocess.run(
            [str(self.build / "tests" / "conformance" / "conformance"), "--device", "cuda:0",
             *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        return done, set(ran.read_text().split()) if ran.exists() else set()

    def proves(self, text, *arguments, **more):
        """The suite passes, and every kernel of the text ran in it."""
        done, ran = self.run(self.compile(text), *arguments, **more)
        missing = {found[1] for found in translate.ENTRY.finditer(text)} - ran
        print("\n".join(done.stdout.splitlines()[-1:]), "%d kernels ran" % len(ran))
        if done.returncode != 0:
            print(done.stdout)
        if missing:
            print("never ran:", ", ".join(sorted(missing)))
        return done.returncode == 0 and not missing


def any_approximation_passes(suite):
    kernels = suite.compile(suite.image.read_text())
    runs = [suite.run(kernels, "--small", "--only", "optimizer_*,step_plain", approximation=steps)[0]
            for steps in (-2, 2)]
    for done in runs:
        print(done.stdout if done.returncode != 0 else done.stdout.splitlines()[-1])
    return all(done.returncode == 0 for done in runs)


def change(text, mutant):
    if not mutant.pattern:  # the first table: the last of its first four bytes
        return re.sub(r"(mo_map_signed\[1024\] = \{\d+, \d+, )(\d+)",
                      lambda m: m[1] + str(int(m[2]) ^ 1), text, count=1)
    begin = re.search(r"\.entry %s\(" % mutant.kernel, text).end()
    end = text.find(".entry ", begin)
    end = len(text) if end < 0 else end
    places = list(re.finditer(mutant.pattern, text[begin:end]))
    place = places[mutant.which]
    return text[:begin + place.start()] + place.expand(mutant.replacement) + \
        text[begin + place.end():]


def all_caught(suite):
    text = suite.image.read_text()
    survivors = []
    for mutant in MUTANTS:
        kernels = suite.compile(change(text, mutant), mutant.kernel)
        done, _ = suite.run(kernels, "--small", "--only", mutant.cases)
        caught = done.returncode in (1, 98)  # other bits, a violation
        print("%-9s %-18s %s" % ("caught" if caught else "SURVIVED", mutant.kernel, mutant.what),
              flush=True)
        survivors += [] if caught else [mutant]
    print("%d of %d caught" % (len(MUTANTS) - len(survivors), len(MUTANTS)))
    return not survivors


def nvcc_text(build, folder, sm):
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        print("no nvcc here")
        sys.exit(77)
    out = folder / ("nvcc%s.ptx" % sm)
    source = ROOT / "kernels" / "core" / "all_kernels.cu"
    subprocess.run([nvcc, *NVCC_FLAGS, "-I", str(ROOT), "-I", str(build / "made"), "-ptx", "-arch=compute_" + sm, "-x", "cu",
                    str(source), "-o", str(out)], check=True)
    return out.read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("what", choices=["embedded", "nvcc", "approximations", "mutants"])
    parser.add_argument("sm", nargs="?")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(options.build.resolve(), pathlib.Path(folder))
        small = ["--small"] if options.small else []
        if options.what == "mutants":
            good = all_caught(suite)
        elif options.what == "approximations":
            good = any_approximation_passes(suite)
        elif options.what == "nvcc":
            text = nvcc_text(options.build, suite.folder, options.sm)
            good = suite.proves(text, "--small",
                                capability="%s.%s" % (options.sm[:-1], options.sm[-1]))
        else:
            good = suite.proves(suite.image.read_text(), *small)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
