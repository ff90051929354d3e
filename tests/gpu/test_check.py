"""Tests of check.py and pack.sh on a machine without a GPU.

    test_check.py Summary               arguments, what becomes of stages, what is packed
    test_check.py Dry.test_DEVICE       a pack of the build in MEMOPT_BUILD runs on its simulated drivers
"""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import check

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("MEMOPT_BUILD", ROOT / "build" / "test"))
VENV = ROOT / ".venv" / "bin" / "python"
PYTHON = str(VENV) if VENV.exists() else sys.executable
PROGRAMS = (
    "libmemopt.so.1", "tests/conformance/conformance",
    "tests/gpu/gpu_bench", "tests/gpu/gpu_held_memory",
)  # fmt: skip


def run(*command, **environment):
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHON": PYTHON, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Summary(Folder):
    def check(self, status, text, *arguments):
        code, said = run(HERE / "check.sh", *arguments, MEMOPT_DRIVER_PATH="")
        self.assertEqual((code, text in said), (status, True), said)

    def test_arguments(self):
        out = self.folder / "out"
        self.check(2, "required: out")
        self.check(2, "unrecognized arguments: --fast", out, "--build", BUILD, "--fast")
        self.check(2, "cuda:N or hip:N", out, "--device", "cpu")
        self.check(2, "invalid int value: 'long'", out, "--budget", "long")
        self.check(2, "pack.sh builds it", out, "--build", self.folder)
        self.check(0, "results.json", "--help")
        self.check(77, "no GPU here (cuda:63)", out, "--build", BUILD, "--device", "cuda:63")
        self.assertFalse(out.exists())

    def stages(self, *scripts, budget=100):
        """What results.json has of shell scripts that are stages, and how the run ended."""
        machine = {"name": "a card", "device": "cuda:0"}
        stages = [check.Stage(str(i), 6, ["sh", "-c", script]) for i, script in enumerate(scripts)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = check.run_stages(check.Run(self.folder, machine, budget), stages)
        results = json.loads((self.folder / "results.json").read_text())
        tally = said.getvalue().splitlines()[-1].partition(";")[0]
        return status, tally, [(s["status"], s["note"], s["rows"]) for s in results["stages"]]

    def test_outcomes(self):
        status, tally, stages = self.stages(
            "echo first; echo; echo done; echo",
            "echo no card; exit 77",
            "echo '| a | table |'; echo broken; exit 3",
            "kill -9 $$",
        )
        self.assertEqual((status, tally), (1, "1 passed, 2 failed, 1 skipped"))
        self.assertEqual(
            [(one, note) for one, note, _ in stages],
            [("passed", "done"), ("skipped", "no card"), ("failed", "status 3: broken"),
             ("failed", "status -9: ")],
        )  # fmt: skip
        text = (self.folder / "results.md").read_text()
        self.assertIn("## 2\n\n| a | table |\n", text)
        self.assertIn("1 passed, 2 failed, 1 skipped", text)

    def test_nothing_failed(self):
        status, tally, _ = self.stages("exit 0", "exit 77")
        self.assertEqual((status, tally), (0, "1 passed, 0 failed, 1 skipped"))

    def test_rows_of_a_stage_that_dies_within_a_line(self):
        path = self.folder / "0.jsonl"
        _, _, stages = self.stages("printf '{\"case\": 1}\\n{\"case\": 2' >%s; exit 1" % path)
        self.assertEqual(stages[0][2], [{"case": 1}])
        # The next run does not take them for its own.
        self.assertEqual(self.stages("exit 0")[2][0][2], [])

    def test_a_stage_that_hangs_is_ended_with_its_children(self):
        log, begin = self.folder / "log", time.monotonic()
        child = self.folder / "child"
        stage = check.Stage("s", 1, ["sh", "-c", "sleep 60 & echo $! >%s; echo begun; wait" % child])
        self.assertEqual(check.attempt(stage, 1, log), ("failed", "stopped after 1 s: begun"))
        self.assertLess(time.monotonic() - begin, 30)
        state = pathlib.Path("/proc", child.read_text().strip(), "stat")
        deadline = time.monotonic() + 10
        while state.exists() and ") Z" not in state.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertLess(time.monotonic(), deadline, "the child lives")

    def test_results_are_there_after_each_stage(self):
        _, _, stages = self.stages("exit 0", "grep -c passed %s/results.md" % self.folder)
        self.assertEqual([stages[0][0], stages[1][0]], ["passed", "passed"])

    def test_a_spent_budget(self):
        status, _, stages = self.stages("echo never", budget=4)
        self.assertEqual((status, stages), (0, [("skipped", "no time left", [])]))

    def test_an_interruption_keeps_what_is_known(self):
        status, tally, stages = self.stages("exit 0", "kill -TERM $PPID; sleep 60", "exit 0")
        self.assertEqual((status, tally), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(stages[1][:2], ("failed", "interrupted"))

    def test_every_stage_is_named_and_fits_the_time(self):
        machine = {"device": "cuda:0", "devices": 2}
        stages = list(check.stages_of(BUILD, machine, self.folder, "/empty", False))
        for stage in stages:
            self.assertIn(stage.name, check.__doc__)
        self.assertEqual([stages[0].name, stages[1].name, stages[3].name], ["exact", "torch_user", "conformance"])
        self.assertLessEqual(sum(stage.limit for stage in stages), 570)
        alone = list(check.stages_of(BUILD, {**machine, "devices": 1}, self.folder, "/empty", False))
        self.assertEqual(check.attempt(alone[-1], 5, self.folder / "log"), ("skipped", "there is one card"))

    def test_what_is_packed(self):
        build, pack = self.folder / "build", self.folder / "pack"
        for name in PROGRAMS:
            (build / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/bin/true", build / name)
        (build / "memopt/kernels").mkdir(parents=True)
        (build / "memopt/kernels/kernels.ptx").touch()
        (build / "tests/gpu/exact.ptx").touch()
        code, said = run(HERE / "pack.sh", pack, str(build) + "/")
        self.assertEqual((code, "MB; there: " in said), (0, True), said)
        self.assertEqual(
            check.environment(pack / "build/gpu", None)["MEMOPT_KERNELS_DIR"],
            str(pack / "build/gpu/memopt/kernels"),
        )
        wanted = ["build/gpu/" + name for name in (*PROGRAMS, "memopt/kernels/kernels.ptx")]
        wanted += ["tests/gpu/check.sh", "tests/gpu/check.py", "tests/gpu/exact.py", "build/gpu/tests/gpu/exact.ptx", "tests/gpu/torch_user.py", "examples/python/gpt_block.py",
                   "tests/bench/workloads.py", "bindings/python/memopt/torch/__init__.py",
                   "bindings/python/tests/conftest.py", "bindings/python/tests/with_torch/conftest.py"]  # fmt: skip
        with tarfile.open(str(pack) + ".tar.gz") as tar:
            names = set(tar.getnames())
        self.assertLessEqual({"pack/" + name for name in wanted}, names)
        self.assertFalse([name for name in names if "__pycache__" in name])
        if VENV.exists():
            alone = "import sys; sys.path.insert(0, %r); import pytest" % str(pack / "build/packages")
            self.assertEqual(run(PYTHON, "-I", "-S", "-c", alone), (0, ""))
        self.assertEqual(run(HERE / "pack.sh", pack, str(build) + "/")[0], 2)  # it is there
        self.assertEqual(run(HERE / "pack.sh", self.folder / "other", "sm_90")[0], 2)


class Dry(Folder):
    def dry(self, device):
        pack, out = self.folder / "pack", self.folder / "out"
        code, said = run(HERE / "pack.sh", pack, BUILD)
        self.assertEqual(code, 0, said)
        code, said = run(
            pack / "tests/gpu/check.sh", out, "--device", device, "--dry-run", BUILD / "tests/sim/lib",
            "--budget", "100000",
        )  # fmt: skip
        results = json.loads((out / "results.json").read_text())
        found = {stage["name"]: stage for stage in results["stages"]}
        self.assertEqual(code, 0, said + "".join(p.read_text()[-2000:] for p in out.glob("*.log")))
        with_torch = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
        for name, stage in found.items():
            torch = name in ("torch_user", "bench_torch", "gpt")
            skipped = name in ("exact", "torch_tests") or (torch and not with_torch)
            self.assertEqual(stage["status"], "skipped" if skipped else "passed", (name, stage["note"]))
        self.assertIn("torch", found["torch_tests"]["note"])
        cases = {row["case"] for row in found["bench"]["rows"]}
        self.assertLessEqual({"first step", "set_access, 2 MiB", "at the limit / with room",
                              "AdamW 8-bit bf16", "alloc + free, 512 B"}, cases)  # fmt: skip
        self.assertIn("| AdamW 8-bit bf16 |", (out / "results.md").read_text())

    def test_cuda(self):
        self.dry("cuda:1")

    def test_hip(self):
        self.dry("hip:0")


if __name__ == "__main__":
    unittest.main()
