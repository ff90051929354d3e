"""Each object file of the library has only instructions of its set: the end of its name says which
(kernels/CMakeLists.txt), and files without such an end run on every x86-64.

    test_instructions.py OBJECTS [FLAGS]

OBJECTS is a file with the object files' paths, one a line, FLAGS what the builder gave the compiler
for all of them. Every instruction goes back through the
assembler, which is told the set's extensions and refuses all others. What other files may link to in
a file for a larger set carries the set's name, and is not weak: else a copy of an inline function
that was compiled there could run where the set is not. No file reads what the compiler's own library fills
when a program starts (__builtin_cpu_supports does): a linker of another compiler leaves it empty.
Exit status 77 where there is nothing to look at, or no GNU binutils to do it.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

OBJECTS = []
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}  # the words of tools are looked for

# By the end of a file's name. SSE4.2 is of AVX2 and brings POPCNT; endbr64 of IBT is a nop elsewhere.
EXTENSIONS = {"": "ibt"}
EXTENSIONS["avx2"] = EXTENSIONS[""] + "+avx2+fma+f16c+bmi2+popcnt"
EXTENSIONS["avx512"] = EXTENSIONS["avx2"] + "+avx512f+avx512bw+avx512dq+avx512vl"
EXTENSIONS["avx512vbmi"] = EXTENSIONS["avx512"] + "+avx512vbmi"
EXTENSIONS["avx512bf16"] = EXTENSIONS["avx512vbmi"] + "+avx512_bf16"

SUFFIX = re.compile(r"_(%s)\.c\.(?:o|obj)$" % "|".join(filter(None, EXTENSIONS)))
FILE = re.compile(r"^(.*):\s+file format (\S+)$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^ *[0-9a-f]+:\t([0-9a-f ]+)\t(.+)$")
PADDING = re.compile(r"^(data16 |cs )*(nop|xchg +%ax,%ax)")
FILLED_AT_START = {"__cpu_model", "__cpu_features2", "__cpu_indicator_init"}
SHOWN = 5  # findings of one file


def run(*command, **arguments):
    return subprocess.run(command, text=True, env=ENVIRONMENT, capture_output=True, **arguments)


def output(*command):
    result = run(*command)
    if result.returncode != 0:
        raise AssertionError("%s: %s" % (command[0], result.stderr))
    return result.stdout


def set_of(path):
    match = SUFFIX.search(path)
    return match.group(1) if match else ""


def instructions(text):
    """(file, function, bytes, instruction) of a disassembly, as the assembler can read it."""
    path = function = None
    for line in text.splitlines():
        match = INSTRUCTION.match(line)
        if match is None:
            path = FILE.sub(r"\1", line) if FILE.match(line) else path
            function = FUNCTION.sub(r"\1", line) if FUNCTION.match(line) else function
            continue
        words = match.group(2).split("#")[0].strip()
        if not words or PADDING.match(words):  # empty: the rest of a long instruction
            continue
        words = re.sub(r"\b[0-9a-f]+ <[^>]*>", ".", words)
        words = re.sub(r"^(data16 |rex\.W )+", "", words)  # they make room in access to thread-locals
        # compilers write `rep bsf`, which older processors take for bsf: the same but for 0
        yield path, function, match.group(1), re.sub(r"^tzcnt", "bsf", words)


def refused(isa, lines):
    """{number of a line: why the set does not have it}"""
    result = run("as", "--64", "-march=generic64+" + EXTENSIONS[isa], "-o", os.devnull, "-",
                 input="\n".join(lines) + "\n")
    found = {int(n) - 1: why for n, why in re.findall(r":(\d+): Error: (.*)", result.stderr)}
    if result.returncode != 0 and not found:
        raise AssertionError("as: " + result.stderr)
    return found


def foreign_instructions(paths):
    """{file: what is not of its set}"""
    places = {isa: {} for isa in EXTENSIONS}  # instruction, and whether in the coding of AVX-512
    found = {path: [] for path in paths}
    for path, function, code, words in instructions(output("objdump", "-dw", *paths)):
        # asked only where cpuid says that the system lets programs have it
        if (pathlib.Path(path).name, words) == ("isa.c.o", "xgetbv"):
            continue
        places[set_of(path)].setdefault((words, code.startswith("62 ")), (path, function))
    for isa, lines in places.items():
        reasons = refused(isa, [words for words, _ in lines])
        for number, ((words, evex), (path, function)) in enumerate(lines.items()):
            if number in reasons:
                found[path].append("%s: %s (%s)" % (function, words, reasons[number]))
            elif evex and "avx512" not in EXTENSIONS[isa]:
                found[path].append("%s: %s is coded for AVX-512" % (function, words))
    return found


def foreign_symbols(paths):
    """{file: what other files might link to though it is for a larger set, and what may be empty}"""
    found = {}
    for path in paths:
        for name in sorted(FILLED_AT_START & set(output("nm", "--undefined-only", path).split())):
            found.setdefault(path, []).append("%s is of the compiler's library" % name)
    for path in filter(set_of, paths):
        for line in output("nm", "--defined-only", "--extern-only", path).splitlines():
            kind, name = line.split()[-2:]
            if kind not in "TDRB":
                found.setdefault(path, []).append("%s is weak or common (%s)" % (name, kind))
            elif not name.endswith("_" + set_of(path)):
                found.setdefault(path, []).append("%s has not the set in its name" % name)
    return found


def findings(paths):
    lines = []
    for found in foreign_instructions(paths), foreign_symbols(paths):
        for path, what in found.items():
            lines += ["%s: %s" % (pathlib.Path(path).name, x) for x in what[:SHOWN]]
            if len(what) > SHOWN:
                lines.append("%s: and %d more" % (pathlib.Path(path).name, len(what) - SHOWN))
    return lines


class Objects(unittest.TestCase):
    def test_of_the_library(self):
        self.assertEqual({set_of(path) for path in OBJECTS}, set(EXTENSIONS))
        lines = findings(OBJECTS)
        if lines:
            self.fail("\n" + "\n".join(lines))

    def test_that_are_wrong(self):
        """What the above is there to find is found, and nothing else."""
        sources = {
            "plain.c.o": ("f: vaddss %xmm0,%xmm0,%xmm0; pshufb %xmm0,%xmm0; popcnt %eax,%eax\n"
                          "tzcnt %eax,%eax; endbr64; addps %xmm0,%xmm0; call f\n"
                          "call __cpu_indicator_init; testl $4, __cpu_model(%rip)\n", 3 + 2),
            "x_avx2.c.o": (".globl f_avx2, g, h_avx2; .weak h_avx2; f_avx2: g: h_avx2:\n"
                           "vpaddd %zmm0,%zmm0,%zmm0; vpxord %xmm17,%xmm1,%xmm1; kmovw %k1,%eax\n"
                           "vpternlogd $1,%xmm0,%xmm0,%xmm0; {evex} vpaddd %xmm0,%xmm1,%xmm2\n"
                           "vfmadd132ps %ymm0,%ymm0,%ymm0; vpgatherdd %ymm1,(%rax,%ymm2),%ymm3\n"
                           "vcvtph2ps %xmm0,%ymm0; shlx %eax,%ebx,%ecx\n", 5 + 2),
            "x_avx512.c.o": ("vpermb %zmm0,%zmm0,%zmm0; vpermi2w %zmm0,%zmm0,%zmm0\n"
                             "vcvtne2ps2bf16 %zmm0,%zmm0,%zmm0; vpopcntd %zmm0,%zmm0\n"
                             "vrangeps $1,%zmm0,%zmm0,%zmm0; vpmovm2b %k1,%xmm0\n", 3),
            "x_avx512vbmi.c.o": ("vpermb %zmm0,%zmm0,%zmm0\n"
                                 "vdpbf16ps %zmm0,%zmm0,%zmm0; vpcompressb %zmm0,%zmm0\n", 2),
            "x_avx512bf16.c.o": ("vdpbf16ps %zmm0,%zmm0,%zmm0; vpdpbusd %zmm0,%zmm0,%zmm0\n", 1),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, (source, count) in sources.items():
                path = os.path.join(folder, name)
                run("as", "--64", "-o", path, "-", input=source, check=True)
                lines = findings([path])
                self.assertEqual(len(lines), count, "%s: %s" % (name, "\n".join(lines)))


def nothing_to_do():
    if not all(map(shutil.which, ("objdump", "nm", "as"))):
        return "binutils are not installed"
    if "GNU" not in output("objdump", "--version"):
        return "objdump is not GNU's"
    if re.search(r"-m(arch|cpu|avx|sse)", " ".join(sys.argv[2:])):
        return "the builder has chosen the processor: " + sys.argv[2]
    if "file format elf64-x86-64" not in run("objdump", "-f", OBJECTS[0]).stdout:
        return "this is no build for x86-64"
    if any(run("as", "--64", "-march=generic64+" + x, "-o", os.devnull, os.devnull).returncode
           for x in EXTENSIONS.values()):
        return "the assembler is too old to know every instruction set"
    return None


if __name__ == "__main__":
    OBJECTS = [x for x in pathlib.Path(sys.argv[1]).read_text().split("\n") if x]
    REASON = nothing_to_do()
    if REASON:
        print(REASON)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
