"""The text that NVRTC and hipRTC compile has functions of the device only, and needs no header: NVRTC
refuses a host function even if it is only declared. No vendor's tool is needed.

    test_text.py CMAKE C_COMPILER BUILD
"""
import re
import sys
import unittest

from compilers import kernel_names
from gpu_text import ROOT, files, flattened, functions, preprocessed

CMAKE, COMPILER, BUILD = "cmake", "cc", "build/test"
VIEWS = {
    "NVRTC": ("__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__=900", "__CUDACC_VER_MAJOR__=13",
              "__CUDACC_VER_MINOR__=0"),
    "hipRTC": ("__clang__", "__HIP__", "__HIPCC__", "__HIPCC_RTC__", "__HIP_DEVICE_COMPILE__"),
}
HEADERS = {"stdint.h"}  # rtc_types.h stands for it


def place(line):
    """Where a line of the text comes from."""
    for name in files():
        lines = (ROOT / name).read_text().splitlines()
        if line in lines:
            return f"{name}:{lines.index(line) + 1}"
    return "?"


class Text(unittest.TestCase):
    def test_functions(self):
        text = flattened(CMAKE, BUILD)
        for view, macros in VIEWS.items():
            found = functions(preprocessed(COMPILER, text, macros))
            with self.subTest(view):
                self.assertLessEqual(kernel_names(), {f.name for f in found})
                host = [f"{place(text.splitlines()[f.line - 1])}: {f.name} is a function of the host"
                        for f in found if not f.on_device]
                self.assertFalse(host, "\n" + "\n".join(host))

    def test_headers(self):
        for name in files():
            found = re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>]*)>", (ROOT / name).read_text(), re.M)
            self.assertEqual(set(found) - HEADERS, set(), name)


class Snippets(unittest.TestCase):
    """The rule finds host functions in every form, and nothing else."""

    HOST = {
        "int f(int x);": "f",
        "static inline int f(void) { return 1; }": "f",
        "__host__ int f(int x);": "f",
        "int f(int device, struct global *__attribute__((unused)) x);": "f",
        "__device__ int d(int x) { return x; } int f(int x);": "f",
        'extern "C" int f(void);': "f",
        'extern "C" { __device__ int d(void); int f(void); }': "f",
        "namespace a { namespace { struct s { int x; }; } int f(s *x); }": "f",
        "struct s { int f(void) const { return 1; } __device__ int d(void); };": "f",
        "template <class T, int n = (3)> T f(T x) { return x; }": "f",
        "template <> int f<3>(int x);": "f",
        "struct s { bool operator<(const s &x) const; };": "operator",
        "__attribute__((always_inline)) static inline int f(void) { return 1; }": "f",
        "void (*f(int x))(int);": "f",
        "struct s *f(void);": "f",
        "int a = d(1), b[] = {1, 2}; int f(void);": "f",
        '// "\n/* \' */ int f(void); /* int g(void); */': "f",
    }
    DEVICE = """
        #define F int f(int x); \\
            int g(int x);
        __device__ int a(int x) { if (x) { return a(x); } return d(x); }
        extern "C" __global__ void __launch_bounds__(64, 2) b(const int args, int first) {}
        __attribute__((host)) __attribute__((device)) inline int c(void) { return ")"[0]; }
        template <class T> struct pair { T x, y; __device__ pair operator+(pair o) const; pair() = default; };
        typedef int (*pointer)(int x); typedef void type(int x); using other = void(int);
        extern int variable; int (*variable_too)(int x); int value = f(1); enum { A = f(2) };
        static __device__ const int table[] = {f(3), f(4)}; static_assert(f(5), "f(6)");
        struct __attribute__((aligned(16))) wide { int x; void (*call)(int x); } variable_three;
    """

    def test_host(self):
        for text, name in self.HOST.items():
            with self.subTest(text):
                self.assertEqual([f.name for f in functions(text) if not f.on_device], [name])

    def test_device(self):
        found = functions(self.DEVICE)
        self.assertEqual([f for f in found if not f.on_device], [])
        self.assertEqual([f.name for f in found], ["a", "b", "c", "operator"])
        self.assertEqual(found[0].line, 4)

    def test_brackets(self):
        for text in ("int f(int x;", "}", "struct s { int a[3); };"):
            self.assertRaises(ValueError, functions, text)


if __name__ == "__main__":
    CMAKE, COMPILER, BUILD = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
