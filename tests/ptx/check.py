"""Runs the conformance suite on the translated PTX of the kernels.

    check.py BUILD embedded [--small]   the text that the library in BUILD carries, every kernel
    check.py BUILD nvcc SM              nvcc's text for sm_SM, in its place
    check.py BUILD types                programs for a class of types alone, with these types
    check.py BUILD approximations       the same bits where each approximation is two steps off
    check.py BUILD mutants              changed copies of the text: the suite finds each change

BUILD is a build folder with the suite and the simulated driver. Status: 0 as it should be, 1 not so,
77 where nvcc is missing.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import translate

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests" / "sim"), str(ROOT / "tests" / "kernels_build")]
from compilers import CLANG_PTX_FLAGS  # noqa: E402
from executed import Mutant, Suite  # noqa: E402
from gpu_text import flattened  # noqa: E402

NVCC_FLAGS = ["--std=c++17", "-O3", "--fmad=false", "--prec-div=true", "--prec-sqrt=true",
              "--ftz=false", "--diag-suppress=177"]


MUTANTS = [
    Mutant("a barrier is missing", "mo_step_adamw8", "optimizer_adamw_8bit", r"bar\.sync\s+0;", ""),
    Mutant("a barrier is missing", "mo_square_sum", "scaler_norms", r"bar\.sync\s+0;", "", 1),
    Mutant("only some threads reach a barrier", "mo_cast", "cast*", r"bar\.sync\s+0;",
           "setp.gt.u32 %p1, %tid.x, 200; @%p1 bra past; bar.sync 0; past:"),
    Mutant("an fma rounds twice", "mo_step_schedule_free", "optimizer_schedule_free_f32",
           r"fma\.rn\.f32\s+(%f\d+), (\S+), (\S+), (\S+);",
           r"{ .reg .f32 t; mul.rn.f32 t, \2, \3; add.rn.f32 \1, t, \4; }", 20),
    Mutant("a division by its reciprocal", "mo_step_adamwc4", "optimizer_adamw_companded4",
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
           1),
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
           r"and\.b32(\s+%r\d+, %r\d+), 2147483647;", r"mov.b32\1;", 12),
    Mutant("both conditions, not one", "mo_scale", "scaler*", r"or\.pred", "and.pred", 1),
    Mutant("a square root in double", "mo_optim_prologue", "optimizer_adamw_f32",
           r"sqrt\.rn\.f64\s+(%fd\d+), (%fd\d+);", r"mov.f64 \1, \2;"),
    Mutant("the next word of a table", "mo_dequantizec8", "codes_*",
           r"dp4a\.u32\.u32(\s+%r\d+, %r\d+, %r\d+), 0;", r"dp4a.u32.u32\1, 4;"),
    Mutant("halves in the wrong order", "mo_dequantizec4", "codes_*",
           r"and\.b32(\s+%r\d+, %r\d+), 15;", r"shr.u32\1, 4;"),
]


def compiled(suite, text, only=None):
    return suite.compiled(translate.translate(text, image_of(suite.build).read_text(), only))


def image_of(build):
    return build / "gpu" / "kernels.ptx"


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


# A program for a class of types alone, as run-time compilers make it.
TYPED, TYPED_CASE = "mo_step_adamwc8", "optimizer_adamw_companded"


def typed_text(build, folder, types):
    source, out = folder / "typed.cu", folder / "typed.ptx"
    source.write_text(flattened("cmake", build))
    subprocess.run([shutil.which("clang-19") or "clang", *CLANG_PTX_FLAGS, "-w", "-DMO_ONLY", "-DMO_ONLY_" + TYPED,
                    "-DMO_TYPES=%d" % types, "-S", str(source), "-o", str(out)], check=True)
    return out.read_text()


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
    parser.add_argument("what", choices=["embedded", "nvcc", "types", "approximations", "mutants"])
    parser.add_argument("sm", nargs="?")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    build = options.build.resolve()
    text = image_of(build).read_text()
    more = {}
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(build, pathlib.Path(folder), "cuda:0", HERE, MEMOPT_SIM_DEAD_STREAM="400",
                      MEMOPT_SIM_CAPABILITY="8.0")
        if options.what == "nvcc":
            text = nvcc_text(build, suite.folder, options.sm)
            more = {"MEMOPT_SIM_CAPABILITY": "%s.%s" % (options.sm[:-1], options.sm[-1])}
        if options.what == "mutants":
            good = suite.catches(MUTANTS, lambda mutant: compiled(suite, change(text, mutant), mutant.kernel))
        elif options.what == "types":
            good = all([suite.proves(compiled(suite, typed_text(build, suite.folder, types)), {TYPED}, "--small",
                                     "--only", TYPED_CASE, MEMOPT_CONFORMANCE_TYPES=str(types),
                                     MEMOPT_TEST_LONG="1") for types in (1, 2, 3)])
        elif options.what == "approximations":
            good = suite.passes_beside(compiled(suite, text), "optimizer_*,step_plain", 2)
        else:
            names = {found[1] for found in translate.ENTRY.finditer(text)}
            small = ["--small"] if options.small or more else []
            good = suite.proves(compiled(suite, text), names, *small, **more)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
