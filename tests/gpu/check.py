"""Proves and measures the library on a GPU. It needs python3 and the driver: no compiler, no network.

    tests/gpu/check.sh OUTDIR [--device cuda:N|hip:N] [--budget SECONDS] [--only STAGE,...]
                              [--build FOLDER] [--dry-run FOLDER]

OUTDIR    gets results.json, results.md and a log of each stage, rewritten after every stage
--device  default: the first CUDA device, else the first HIP device
--budget  seconds for everything, default 570: stages that no longer fit are skipped
--only    these stages: exact, torch_user, torch_tests, conformance, first_launch, bench,
          bench_torch, held_memory, gpt, two_cards
--build   what pack.sh has built: the libraries, conformance, gpu_bench and gpu_held_memory; default
          build/gpu, where a pack has it
--dry-run a folder of simulated drivers: small sizes, PyTorch on the CPU, and figures that mean nothing

A stage that fails or takes too long does not stop the next. It closes with "N passed, N failed, N
skipped", of stages. Status: 0 nothing failed, 1 something did, 2 wrong arguments, 77 no GPU here.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: A command with the most seconds it may take, and what its environment has more.
Stage = collections.namedtuple("Stage", "name limit command environment", defaults=({},))
Result = collections.namedtuple("Result", "name status seconds note rows")


# --- running --------------------------------------------------------------------------------------


class Run:
    """The stages that ran, and the files that tell of them."""

    def __init__(self, out, machine, budget):
        self.out, self.machine = out, machine
        self.end = time.monotonic() + budget
        self.results = []

    def do(self, stage):
        """Runs a stage for as long as it may. Exit status 77 is a skip; the last line says why."""
        begin, log = time.monotonic(), self.out / (stage.name + ".log")
        limit = min(stage.limit, self.end - begin)
        rows = self.out / (stage.name + ".jsonl")
        rows.unlink(missing_ok=True)
        if limit < 5:
            status, note = "skipped", "no time left"
        else:
            status, note = attempt(stage, limit, log)
        seconds = round(time.monotonic() - begin, 1)
        self.results.append(Result(stage.name, status, seconds, note, rows_of(rows)))
        print("%-14s %-8s %6.1f s  %s" % (stage.name, status, seconds, note), flush=True)
        self.write()

    def count(self, status):
        return sum(result.status == status for result in self.results)

    def tally(self):
        return "%d passed, %d failed, %d skipped" % tuple(
            map(self.count, ("passed", "failed", "skipped"))
        )

    def write(self):
        """What is known so far; a reader never sees half a file."""
        stages = [result._asdict() for result in self.results]
        counts = {status: self.count(status) for status in ("passed", "failed", "skipped")}
        document = dict(machine=self.machine, **counts, stages=stages)
        replace(self.out / "results.json", json.dumps(document, indent=1) + "\n")
        text = ["# libmemopt on %s" % self.machine["name"], "", ", ".join(
            "%s: %s" % pair for pair in self.machine.items() if pair[0] != "name"
        ), "", self.tally(), "", "| stage | result | seconds | |", "|---|---|--:|---|"]  # fmt: skip
        for result in self.results:
            note = result.note.replace("|", "/")
            text.append("| %s | %s | %.1f | %s |" % (result.name, result.status, result.seconds, note))
        for result in self.results:
            table = table_of(self.out / (result.name + ".log"))
            text += ["", "## " + result.name, "", *table] if table else []
        replace(self.out / "results.md", "\n".join(text) + "\n")


def replace(path, text):
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def attempt(stage, limit, log):
    """The outcome of a stage, and a note. What it started is ended with it."""
    environment = {**os.environ, **stage.environment}
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(
                list(map(str, stage.command)), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            return "failed", str(problem)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return "failed", "stopped after %d s: %s" % (limit, last_line(log))
        finally:
            end(process)
    if code == 0:
        return "passed", last_line(log)
    if code == 77:
        return "skipped", last_line(log)
    return "failed", "status %d: %s" % (code, last_line(log))


def end(process):
    """Ends a process and its children; one that not even SIGKILL ends is left behind."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def last_line(log):
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def table_of(log):
    """The lines of a log that are a table's."""
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.split("\n") if line.startswith("|")]


def rows_of(path):
    """The complete lines of a file of JSON objects; one that was cut in half is left out."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                pass
    return rows


def run_stages(run, stages):
    """All stages, also when the program is told to end: then what is known is written."""

    def interrupted(number, frame):
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    for stage in stages:
        try:
            run.do(stage)
        except KeyboardInterrupt:
            run.results.append(Result(stage.name, "failed", 0, "interrupted", []))
            run.write()
            break
    print("%s; see %s" % (run.tally(), run.out / "results.md"))
    return 1 if run.count("failed") else 0


# --- the stages -----------------------------------------------------------------------------------


def the_machine(wanted):
    """What the library says of the device, with its name, and of the driver. None: no such device."""
    command = [sys.executable, "-m", "memopt", "info", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit("check: memopt info: %s" % done.stderr.strip())
    for backend in json.loads(done.stdout)["backends"]:
        for device in backend.get("devices") or []:
            name = device["device"]
            if (name == wanted if wanted else backend["name"] != "cpu") and device["properties"]:
                properties = device["properties"]
                return {
                    "name": properties["name"],
                    "device": name,
                    "target": properties["isa"],
                    "memory": properties["memory_total"],
                    "kernels": properties["kernels"]["image"],
                    "driver": (backend["driver"] or {}).get("version"),
                    "processor": processor(),
                    "devices": backend["device_count"],
                }
    return None


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^model name\s*: (.*)$", text, re.M)
    return found.group(1) if found else "unknown"


def stages_of(build, machine, out, empty, dry):
    """What is proved first, then what is measured. `empty`: a folder for the caches of kernels."""
    python, device, small = sys.executable, ["--device", machine["device"]], []
    patience = 1
    on, torch = device, {}  # where PyTorch runs
    tests, cases, traces = [], [], ["full_finetuning", "checkpointed", "lora", "serving"]
    scale = "0.25"
    if dry:  # PyTorch knows no simulated driver: it runs on the CPU. And no time decides a test
        on, torch = ["--device", "cpu"], {"LD_LIBRARY_PATH": "", "OMP_NUM_THREADS": "1"}
        small, patience = ["--small"], 50
        tests = [ROOT / "bindings/python/tests/with_torch/test_torch_amp.py"]
        cases, traces, scale = ["--only", "copies,cast_sizes,hash,graph_waiting"], ["small_tensors"], "0.001"
    conformance = [build / "tests/conformance/conformance", *device, "--require", *(small or ["--large"])]
    bench = [build / "tests/gpu/gpu_bench", *device, *small]
    caches = {"MEMOPT_CACHE_DIR": empty + "/memopt", "CUDA_CACHE_PATH": empty + "/cuda"}

    def script(name, *words):
        return [python, HERE / name, *words]

    def measured(name, seconds):  # the rows of a stage, and when no table begins any more
        rounds = ["--rounds", 2] if dry else []
        return [*rounds, "--seconds", seconds * patience, "--json", out / (name + ".jsonl")]

    def stage(name, limit, command, environment={}):
        return Stage(name, limit * patience, command, environment)

    if dry:
        yield stage("exact", 5, ["sh", "-c", "echo a simulated card has no approximations; exit 77"])
    else:
        yield stage("exact", 20, script("exact.py", build / "tests/gpu/exact.ptx", *device))
    yield stage("torch_user", 60, script("torch_user.py", *on, *small, "--json", out / "torch_user.jsonl"), torch)
    yield stage("torch_tests", 110, script("run_tests.py", 90 * patience, *tests), torch)
    yield stage("conformance", 110, [*conformance, *cases])
    yield stage("first_launch", 40, [*bench, "--first", *measured("first_launch", 30)], caches)
    yield stage("bench", 60, [*bench, *measured("bench", 40)], caches)
    tables = ["optimizers", "allocators", *on, *small, *measured("bench_torch", 45)]
    yield stage("bench_torch", 55, script("bench_torch.py", *tables), torch)
    yield stage("gpt", 45, script("bench_torch.py", "gpt", *on, *small, *measured("gpt", 35)), torch)
    held = ["--", *device, "--above", "1", "--scale", scale]
    yield stage("held_memory", 40, [python, ROOT / "tests/bench/workloads.py", empty, "--only", *traces, *held],
                {"HELD_MEMORY": str(build / "tests/gpu/gpu_held_memory")})  # fmt: skip
    if machine["devices"] < 2:
        yield stage("two_cards", 10, ["sh", "-c", "echo there is one card; exit 77"])
    else:
        yield stage("two_cards", 30, [*conformance, "--only", "two_*"])


def environment(build, simulators):
    """Where the programs and the binding find what is packed."""
    values = dict(
        MEMOPT_LIBRARY=str(build / "libmemopt.so.1"),
        PYTHONPATH=os.pathsep.join(map(str, (ROOT / "bindings/python", ROOT / "build/packages"))),
        PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1",
    )
    kernels = build / "memopt" / "kernels"
    if kernels.is_dir():
        values["MEMOPT_KERNELS_DIR"] = str(kernels)
    if simulators:
        values["LD_LIBRARY_PATH"] = str(simulators.resolve())
    return values


def arguments():
    text, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        "check.sh", usage=rest, description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device")
    parser.add_argument("--budget", type=int, default=570)
    parser.add_argument("--only", type=lambda names: names.split(","), default=[])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--dry-run", type=pathlib.Path)
    options = parser.parse_args()
    if options.device and not re.fullmatch(r"(cuda|hip):\d+", options.device):
        parser.error('--device is cuda:N or hip:N, not "%s"' % options.device)
    if not (options.build / "libmemopt.so.1").exists():
        parser.error("there is no libmemopt.so.1 in %s; tests/gpu/pack.sh builds it" % options.build)
    return parser, options


def main():
    parser, options = arguments()
    os.environ.update(environment(options.build.resolve(), options.dry_run))
    machine = the_machine(options.device)
    if machine is None:
        print("check: no GPU here (%s); nothing was checked" % (options.device or "cuda, hip"))
        return 77
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    if options.dry_run:
        machine["dry run"] = "the figures mean nothing"
    with tempfile.TemporaryDirectory() as empty:
        stages = list(stages_of(options.build.resolve(), machine, out, empty, options.dry_run))
        unknown = set(options.only) - {stage.name for stage in stages}
        if unknown:
            parser.error("there is no stage %s" % ", ".join(sorted(unknown)))
        print("%s: %s, driver %s" % (machine["device"], machine["name"], machine["driver"]))
        run = Run(out, machine, options.budget)
        return run_stages(run, [s for s in stages if not options.only or s.name in options.only])


if __name__ == "__main__":
    sys.exit(main())
