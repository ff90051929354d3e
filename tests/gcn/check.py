"""Runs the conformance suite on the translated code objects of the kernels.

    check.py BUILD TARGET embedded         the code object that the library in BUILD carries
    check.py BUILD TARGET approximations   the same bits, on whichever side an approximation lies
    check.py BUILD TARGET mutants          changed instructions: the suite finds each change

BUILD is a build folder with the suite and the simulated driver; TARGET is gfx1030 or gfx90a.
Status: 0 as it should be, 1 not so, 77 where no llvm-objdump is.
"""
import argparse
import pathlib
import re
import sys
import tempfile

import translate

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "sim"))
from executed import Mutant, Suite  # noqa: E402

DIVIDING_CASES = "scaler*,codes_*,optimizer_*,step_plain"
NOTHING = "s_nop 0"


# A replacement: instructions, with semicolons between them.
MUTANTS = [
    Mutant("a barrier is missing", "mo_step_adamw8", "optimizer_adamw_8bit", r"s_barrier", NOTHING),
    Mutant("a barrier is missing", "mo_square_sum", "scaler_norms", r"s_barrier", NOTHING, 1),
    Mutant("an fma rounds twice", "mo_accumulate", "accumulate",
           r"v_fma_f32 (v\d+), (s\d+), (v\d+), (v\d+)",
           r"v_mul_f32_e32 v255, \2, \3; v_add_f32_e32 \1, v255, \4", 4, "gfx1030"),
    Mutant("an fma rounds twice", "mo_accumulate", "accumulate",
           r"v_pk_fma_f32 (v\S+), (s\S+), (v\S+), (v\S+)",
           r"v_pk_mul_f32 v[254:255], \2, \3; v_pk_add_f32 \1, v[254:255], \4", 0, "gfx90a"),
    Mutant("another lane", "mo_hash_granules", "hash",
           r"ds_bpermute_b32 (v\d+), v\d+, (v\d+)", r"ds_bpermute_b32 \1, \2, \2"),
    Mutant("another lane", "mo_square_sum", "scaler*",
           r"ds_bpermute_b32 (v\d+), v\d+, (v\d+)", r"ds_bpermute_b32 \1, \2, \2", 2),
    Mutant("a lane's own value", "mo_quantize8", "codes_*",
           r"ds_bpermute_b32 (v\d+), v\d+, (v\d+)", r"v_mov_b32_e32 \1, \2"),
    Mutant("lanes stay off", "mo_quantize8", "codes_*",
           r"s_or_b(?:32|64) exec\w*, exec\w*, \S+", NOTHING, 1),
    Mutant("the other lanes", "mo_cast", "cast*", r"s_andn2_saveexec", "s_and_saveexec"),
    Mutant("the other half", "mo_quantize8", "codes_*", r"src0_sel:WORD_1", "src0_sel:WORD_0"),
    Mutant("one bit less of a shift", "mo_quantize8", "codes_*",
           r"v_lshlrev_b32_e32 (v\d+), 16,", r"v_lshlrev_b32_e32 \1, 15,"),
    Mutant("a load is not waited for", "mo_cast", "cast*", r"s_waitcnt vmcnt\(0\)", NOTHING, 2),
    Mutant("an argument is not waited for", "mo_scale", "scaler*", r"s_waitcnt lgkmcnt\(0\)",
           NOTHING),
    Mutant("shared memory is not waited for", "mo_quantizec4", "codes_*",
           r"s_waitcnt lgkmcnt\(0\)", NOTHING, 3),
    Mutant("a quotient is not fixed up", "mo_step_adam8", "optimizer_adam_8bit",
           r"v_div_fixup_f32 (v\d+), (v\d+),[^/]*", r"v_mov_b32_e32 \1, \2"),
    Mutant("a minimum for a maximum", "mo_step_lion8", "optimizer_lion_8bit", r"v_max_u32_e32",
           "v_min_u32_e32"),
    Mutant("a store is missing", "mo_step_sgd8", "optimizer_sgd_8bit", r"global_store_byte [^/]*",
           NOTHING, 1),
    Mutant("a store beyond the place", "mo_quantizec4", "codes_*",
           r"global_store_byte (v\[\S+\], v\d+, off) *", r"global_store_byte \1 offset:1 "),
    Mutant("a load of the next element", "mo_accumulate", "accumulate",
           r"global_load_dword (v\d+, v\[\S+\], off) *", r"global_load_dword \1 offset:4 "),
    Mutant("past infinity", "mo_accumulate", "accumulate*",
           r"v_min_u32_e32 (v\d+), 0x7c00, (v\d+)", r"v_mov_b32_e32 \1, \2", 3),
    Mutant("an infinity for the largest number", "mo_accumulate", "accumulate*",
           r"v_cmp_lt_u32_e32 vcc_lo, 0x7bff", "v_cmp_lt_u32_e32 vcc_lo, 0x7bfe", 9, "gfx1030"),
    Mutant("a tie goes up, not to even", "mo_accumulate", "accumulate*",
           r"v_bfe_u32 (v\d+), v\d+, 16, 1", r"v_mov_b32_e32 \1, 1", 5),
    Mutant("another place in a table", "mo_quantize8", "codes_*",
           r"(s_add_u32 (s\d+), \2, 0xfff[0-9a-f]*)[0-9a-f]\b", r"\g<1>2"),
    Mutant("a branch the other way", "mo_scale", "scaler*", r"s_cbranch_scc1", "s_cbranch_scc0", 1),
    Mutant("a bit of a constant", "mo_cast", "cast*", r"0x7fff\b", "0x7ffe", 1),
    Mutant("a root in double", "mo_optim_prologue", "optimizer_adamw_f32",
           r"v_rsq_f64_e32 (v\[\S+\]), (v\[\S+\])", r"v_add_f64 \1, \2, 0"),
]


def change(text, mutant):
    """The disassembly with one place of a kernel changed; the new lines keep the old address."""
    begin = re.search(r"^[0-9a-f]{16} <%s>:\n" % mutant.kernel, text, re.M).end()
    end = text.find("\n\n", begin)
    place = list(re.finditer(mutant.pattern, text[begin:end]))[mutant.which]
    start = text.rindex("\n", 0, begin + place.start()) + 1
    code, _, comment = text[start:text.index("\n", start)].partition("//")
    changed = code.replace(place[0], place.expand(mutant.replacement), 1)
    lines = ["\t%s // %s" % (c.strip(), comment.strip()) for c in changed.split(";")]
    return text[:start] + "\n".join(lines) + text[text.index("\n", start):]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("target", choices=["gfx1030", "gfx90a"])
    parser.add_argument("what", choices=["embedded", "approximations", "mutants"])
    options = parser.parse_args()
    build = options.build.resolve()
    code = translate.CodeObject(build / "gpu" / (options.target + ".hsaco"))
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(build, pathlib.Path(folder), "hip:0", HERE, MEMOPT_SIM_GFX=options.target,
                      MEMOPT_SIM_WARP=str(code.lanes))
        if options.what == "mutants":
            good = suite.catches(
                [mutant for mutant in MUTANTS if mutant.target in ("", options.target)],
                lambda m: suite.compiled(translate.translate(code, change(code.text, m), m.kernel)))
        else:
            kernels = suite.compiled(translate.translate(code))
            if options.what == "approximations":
                good = suite.passes_beside(kernels, DIVIDING_CASES, 1)
            else:
                good = suite.proves(kernels, set(re.findall(r"^[0-9a-f]{16} <(\w+)>:", code.text, re.M)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
