"""exact.py on the simulated CUDA driver, which executes nvcc's PTX: right as it is, wrong where approximations are off.

    test_exact.py BUILD
"""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "sim"), str(HERE.parent / "ptx")]
from executed import Suite  # noqa: E402
from translate import translate  # noqa: E402


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    program = build / "tests/gpu/exact.ptx"
    text = program.read_text()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(build, pathlib.Path(folder), "cuda:0", HERE.parent / "ptx")
        drivers, kernels = build / "tests/sim/lib", suite.compiled(translate(text, text))
        for away, status in ((0, 0), (3, 1)):
            done = subprocess.run([sys.executable, HERE / "exact.py", program, "--small"], env={
                "LD_LIBRARY_PATH": str(drivers), "MEMOPT_SIM_CAPABILITY": "9.0", "MEMOPT_SIM_QUIET": "1",
                "MEMOPT_SIM_KERNELS": str(kernels), "MEMOPT_SIM_APPROXIMATION": str(away)}, capture_output=True, text=True)
            print("approximations %d steps off: status %d\n%s%s" % (away, done.returncode, done.stdout, done.stderr))
            if done.returncode != status:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
