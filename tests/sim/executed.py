"""Runs the conformance suite on kernels that were translated from what a GPU runs (tests/ptx, tests/gcn)."""
import os
import subprocess
from typing import NamedTuple


class Mutant(NamedTuple):
    what: str
    kernel: str
    cases: str
    pattern: str
    replacement: str
    which: int = 0  # of the pattern's places in the kernel, from 0
    target: str = ""  # the only one that has such a place


class Suite:
    """The suite on one device of a simulated driver, with `settings` of that in the environment."""

    def __init__(self, build, folder, device, includes, **settings):
        self.build, self.folder, self.device, self.settings = build, folder, device, settings
        self.flags = ["-std=gnu11", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden",
                      "-Werror=implicit-function-declaration", "-I", str(includes)]

    def compiled(self, translation):
        source, out = self.folder / "kernels.c", self.folder / "kernels.so"
        source.write_text(translation)
        subprocess.run([os.environ.get("CC", "cc"), *self.flags, str(source), "-o", str(out), "-lm"], check=True)
        return out

    def run(self, kernels, *arguments, approximation=0, seconds=None, **settings):
        """What the suite said, and the kernels that ran."""
        drivers = str(self.build / "tests" / "sim" / "lib")
        ran = self.folder / "ran"
        ran.unlink(missing_ok=True)
        environment = dict(
            os.environ, LD_LIBRARY_PATH=drivers, MEMOPT_DRIVER_PATH=drivers, MEMOPT_SIM_QUIET="1",
            MEMOPT_SIM_MEMORY="256M", MEMOPT_CACHE_DIR="", MEMOPT_SIM_KERNELS=str(kernels),
            MEMOPT_SIM_RAN=str(ran), MEMOPT_SIM_APPROXIMATION=str(approximation), **self.settings | settings)
        done = subprocess.run(
            [str(self.build / "tests" / "conformance" / "conformance"), "--device", self.device, *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        return done, set(ran.read_text().split()) if ran.exists() else set()

    def proves(self, kernels, names, *arguments, **settings):
        """The suite passes, and every kernel of these names runs in it."""
        done, ran = self.run(kernels, *arguments, **settings)
        print(done.stdout if done.returncode != 0 else done.stdout.splitlines()[-1])
        print("%d kernels ran; never:" % len(ran), ", ".join(sorted(names - ran)) or "none")
        return done.returncode == 0 and names <= ran

    def passes_beside(self, kernels, cases, steps):
        """The same bits where each approximation is so many steps off, to either side."""
        runs = [self.run(kernels, "--small", "--only", cases, approximation=away)[0] for away in (-steps, steps)]
        for done in runs:
            print(done.stdout if done.returncode != 0 else done.stdout.splitlines()[-1])
        return all(done.returncode == 0 for done in runs)

    def catches(self, mutants, compile_changed):
        """Each is noticed: by other bits, a violation, a fault, or no end."""
        survivors = 0
        for mutant in mutants:
            try:
                done, _ = self.run(compile_changed(mutant), "--small", "--only", mutant.cases, seconds=120)
                caught = done.returncode in (1, 98, -11)
            except subprocess.TimeoutExpired:
                caught = True
            survivors += not caught
            print("%-9s %-18s %s" % ("caught" if caught else "SURVIVED", mutant.kernel, mutant.what), flush=True)
        print("%d of %d caught" % (len(mutants) - survivors, len(mutants)))
        return survivors == 0
