"""kernel_report.py counts the kernels that the library launches, and finds their loops.

    test_report.py CMAKE BUILD PROGRAM

PROGRAM (examples/c/optimizer.c) makes steps with 32-bit and 8-bit states on the simulated driver, which names the kernels
that it is asked for; so does the example of casts beside it. Exit status 77 without it, and where neither nvcc and nvdisasm nor clang can make the machine code.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD, PROGRAM = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import kernel_report  # noqa: E402


class Report(unittest.TestCase):
    def launched(self, program):
        drivers = str(BUILD / "tests/sim/lib")
        with tempfile.TemporaryDirectory() as folder:
            ran = pathlib.Path(folder, "ran")
            subprocess.run([program, "--device", "cuda"], check=True, stdout=subprocess.DEVNULL, env=dict(
                os.environ, LD_LIBRARY_PATH=drivers, MEMOPT_DRIVER_PATH=drivers, MEMOPT_SIM_QUIET="1",
                MEMOPT_CACHE_DIR="", MEMOPT_SIM_RAN=str(ran)))
            return set(ran.read_text().split())

    def test_counts_what_is_launched(self):
        steps = {name for name in self.launched(PROGRAM) if name.startswith("mo_step_")}
        self.assertEqual(steps, {kernel_report.symbol_of("COMPANDED"), kernel_report.symbol_of("F32")})
        casts = self.launched(pathlib.Path(PROGRAM).with_name("example_cast"))
        self.assertLessEqual({stream.symbol for stream in kernel_report.STREAMS}, casts)

    def test_finds_every_class(self):
        text = kernel_report.flattened(CMAKE, BUILD)
        for form, states in ("COMPANDED", ["coded"]), ("F32", kernel_report.PLAIN):
            found = kernel_report.kernel(text, kernel_report.symbol_of(form), TARGET, "nvdisasm")
            self.assertEqual(sorted((loop.states, loop.name) for loop in found.loops),
                             sorted((kind, name) for kind, name in kernel_report.CLASSES.values() if kind in states))
            self.assertEqual({loop.spills for loop in found.loops}, {0})
            self.assertEqual(found.spilled, 0)

    def test_finds_every_stream(self):
        text = kernel_report.flattened(CMAKE, BUILD)
        found = kernel_report.streams(text, TARGET, "nvdisasm")
        self.assertEqual([words for words, counted in found.items() if counted is None], [])
        for stream in kernel_report.STREAMS if TARGET == "sm_90" else ():
            _, issue = kernel_report.share_of_stream(kernel_report.CARDS["H200"], stream, found[stream.words])
            self.assertLessEqual(issue, 1, stream.words)  # a copy's time is memory's


if __name__ == "__main__":
    TARGET = "sm_90" if shutil.which("nvcc") and shutil.which("nvdisasm") else "gfx1100"
    if not pathlib.Path(PROGRAM).exists() or (TARGET == "gfx1100" and not shutil.which("clang-19")):
        print("there is no example to run, or neither nvcc and nvdisasm nor clang 19")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
