"""The front ends of the run-time compilers take the text that the library carries, with the library's
options. They check all of it and make no code, which would take a minute for each target.

    test_front_end.py CMAKE BUILD nvrtc MAJOR    the real NVRTC: of the wheels that ./setup installs, or else
                                                 the one that the loader finds
    test_front_end.py CMAKE BUILD hiprtc CLANG   clang as hipRTC starts it: without any header but its own

Exit status 77 where the compiler is not found.
"""
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from compilers import loose_arithmetic
from gpu_text import ROOT, flattened, library_options

# What a front end must refuse, and a word of what it says.
WRONG = {
    'extern "C" __global__ void k(int *x) { *x = wrong_name; }': "wrong_name",
    "template <class T> __device__ int t(T x) { return x.wrong_name; }\n"
    'extern "C" __global__ void k(int *x) { *x = t(*x); }': "instantiation",
    '__host__ int h(void);\nextern "C" __global__ void k(int *x) { *x = h(); }': "__host__",
    "#include <string.h>": "string.h",
}
WRONG_NVRTC = {**WRONG, "int f(int x);": "host functions are not allowed"}


class Nvrtc:
    def __init__(self, major):
        name, problems = f"libnvrtc.so.{major}", []
        folders = [*map(pathlib.Path, sys.path), *ROOT.glob(".venv/lib/python*/site-packages")]
        for path in [*(p for folder in folders for p in folder.glob(f"nvidia/*/lib/{name}")), name]:
            try:
                self.calls = ctypes.CDLL(str(path))
                break
            except OSError as error:
                problems.append(str(error))
        else:
            raise FileNotFoundError(f"{'; '.join(problems)}: ./setup installs it in .venv")
        self.file = path

    def number(self, call, *arguments):
        value = ctypes.c_size_t()
        assert self.calls[call](*arguments, ctypes.byref(value)) == 0, call
        return value.value

    def targets(self):
        known = (ctypes.c_int * self.number("nvrtcGetNumSupportedArchs"))()
        assert self.calls.nvrtcGetSupportedArchs(known) == 0
        return [f"sm_{target}" for target in known]

    def refuses(self, text, target):
        """What it says where it does not take the text, else None."""
        return self.compile(text, f"--gpu-architecture={target}", "--fdevice-syntax-only")[0]

    def kernels(self, text, target, *options):
        """The kernels that it makes of the text."""
        return re.findall(r"\.entry (\w+)", self.text_of(text, target, *options))

    def text_of(self, text, target, *options):
        target = target.replace("sm_", "compute_")
        refused, code = self.compile(text, f"--gpu-architecture={target}", *options)
        assert refused is None, refused
        return code

    def compile(self, text, *more):
        program = ctypes.c_void_p()
        given = [*library_options("cuda"), *more]
        options = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
        assert self.calls.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"memopt.cu", 0, None,
                                             None) == 0
        status = self.calls.nvrtcCompileProgram(program, len(options), options)
        log = ctypes.create_string_buffer(self.number("nvrtcGetProgramLogSize", program))
        assert self.calls.nvrtcGetProgramLog(program, log) == 0
        code = ctypes.create_string_buffer(self.number("nvrtcGetPTXSize", program))
        assert self.calls.nvrtcGetPTX(program, code) == 0
        self.calls.nvrtcDestroyProgram(ctypes.byref(program))
        return None if status == 0 else f"status {status}: {log.value.decode()}", code.value.decode()


# Of hipRTC's own header, what may get into the way: its words, and types of names that the text has.
HIPRTC_HEADER = """
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef signed int int32_t;
typedef signed long int64_t;
"""


class Hiprtc:
    def __init__(self, clang):
        if not clang:
            raise FileNotFoundError("no clang from 17 on: ./setup installs one")
        self.file = clang
        folder = tempfile.TemporaryDirectory()
        self.folder = folder  # as long as this
        self.header = pathlib.Path(folder.name) / "hiprtc.h"
        self.header.write_text(HIPRTC_HEADER)

    @staticmethod
    def targets():
        return ["gfx90a", "gfx1030"]  # warps of 64 threads, and of 32

    def refuses(self, text, target):
        done = self.compile(text, target, "-fsyntax-only")
        return None if done.returncode == 0 else f"status {done.returncode}: {done.stderr}"

    def kernels(self, text, target, *options):
        return re.findall(r"\.amdhsa_kernel (\w+)", self.text_of(text, target, *options))

    def text_of(self, text, target, *options):
        done = self.compile(text, target, *options, "-S", "--no-gpu-bundle-output", "-o", "-")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def compile(self, text, target, *options):
        return subprocess.run([self.file, "-x", "hip", "--offload-device-only", "-nogpulib", "-nogpuinc",
                               "-nostdinc", "-nobuiltininc", "-D__HIPCC_RTC__", "-include", self.header,
                               f"--offload-arch={target}", *library_options("hip"), *options, "-"],
                              input=text, capture_output=True, text=True)


class FrontEnd(unittest.TestCase):
    compiler, text, wrong = None, "", {}

    def test_takes_the_text(self):
        for target in self.chosen():
            with self.subTest(target):
                refused = self.compiler.refuses(self.text, target)
                if refused is not None:
                    self.fail(refused)

    def test_makes_one_kernel(self):
        for name in ("mo_optim_upload", "mo_dequantize8", "mo_sum"):  # by different macros, and quick
            made = self.compiler.kernels(self.text, self.compiler.targets()[-1], "-DMO_ONLY",
                                         f"-DMO_ONLY_{name}")
            self.assertEqual(made, [name])

    def test_a_class_of_types_takes_less(self):
        target, only = self.compiler.targets()[-1], ["-DMO_ONLY", "-DMO_ONLY_mo_step_sgdc8"]
        counts = [len(re.findall(r"^\s+(?:@!?%\w+\s+)?[a-z]", self.compiler.text_of(self.text, target, *only, *more), re.M))
                  for more in ([], ["-DMO_TYPES=1"])]  # instructions: the tables of numbers are in both
        self.assertLess(counts[1], 0.5 * counts[0])

    def test_arithmetic(self):
        if not isinstance(self.compiler, Nvrtc):
            self.skipTest("kernels_build looks at code objects")
        only = "-DMO_ONLY", "-DMO_ONLY_mo_step_adamwc8", "-DMO_TYPES=2"
        text = self.compiler.text_of(self.text, self.compiler.targets()[-1], *only)
        self.assertIn("rsqrt.approx.ftz.f32", text)
        self.assertEqual(loose_arithmetic(text), [])

    def chosen(self):
        """The oldest and the newest target, and one beyond each limit that the text has."""
        known = self.compiler.targets()
        limits = {int(limit) // 10 for limit in re.findall(r"__CUDA_ARCH__ >?<?=? (\d+)", self.text)}
        first = [[x for x in known if x.startswith("sm_") and int(x[3:]) >= limit][:1] for limit in limits]
        return sorted({known[0], known[-1]}.union(*first), key=known.index)

    def test_refuses_what_is_wrong(self):
        target = self.compiler.targets()[-1]
        for wrong, word in self.wrong.items():
            with self.subTest(wrong):
                refused = self.compiler.refuses(wrong, target)
                self.assertIn(word, refused or "accepted")


def main():
    cmake, build, kind, which = sys.argv[1:]
    try:
        FrontEnd.compiler = (Nvrtc if kind == "nvrtc" else Hiprtc)(which)
    except FileNotFoundError as error:
        print(error)
        sys.exit(77)
    FrontEnd.text = flattened(cmake, build)
    FrontEnd.wrong = WRONG_NVRTC if kind == "nvrtc" else WRONG
    print(FrontEnd.compiler.file, "for", *FrontEnd("chosen").chosen())
    unittest.main(argv=sys.argv[:1], verbosity=2)


if __name__ == "__main__":
    main()
