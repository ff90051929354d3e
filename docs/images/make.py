"""Makes monitor.svg, profile.png and plan.png anew: what the command draws, by its own code.

    extras/build
    MEMOPT_LIBRARY=build/extras/prefix/lib/libmemopt.so PYTHONPATH=build/extras/python python docs/images/make.py

monitor.svg: the live view of `memopt monitor`, of two programs that tell what their allocators
hold. The GPU, its driver and the library for monitoring are the simulated ones of tests/sim, so the
picture can be made on any machine; the programs' bytes are what their allocators really hold there.

profile.png: `memopt profile --plot` of extras/planner/examples/train_phases.py, which needs PyTorch.

plan.png: `memopt plan --plot` of a model of 1.1 billion parameters on a card of 24 GiB.
"""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1 << 20
CONTEXT = 180 * MIB  # of a process on a GPU, beside what its allocator holds

#: Allocates as a training step does: more and more on the way forward, less on the way back.
PROGRAM = """
import sys, memopt
own = memopt.Device("cuda:0")
allocator = memopt.Allocator(own, "expandable_segments:True")
weights = allocator.alloc("%dMiB", tag="weights")
kept, leak = [], []
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    if number %% 12 < 6:
        kept.append(allocator.alloc("%dMiB"))
    else:
        kept = kept[:-1]
    if number %% 12 == 0:
        allocator.trim()
    leak += [allocator.alloc("%dKiB")] if %d else []
    print(allocator.stats()["reserved_bytes.all.current"], flush=True)
"""
PROGRAMS = (PROGRAM % (220, 60, 4, 0), PROGRAM % (90, 12, 1024, 1))


def start(text, sim):
    """A program on the simulated driver."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(sim / "lib"), MEMOPT_SIM_MEMORY="2G")
    program = subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    program.stdout.readline()
    return program


def step(program):
    """Lets it allocate or free once; the bytes that its allocator holds then."""
    program.stdin.write("\n")
    program.stdin.flush()
    return int(program.stdout.readline())


def monitor():
    """Draws the view after 170 samples."""
    if "LD_LIBRARY_PATH" not in os.environ:  # the loader reads it at the start only
        sim = pathlib.Path(os.environ["MEMOPT_LIBRARY"]).resolve().parent / "tests" / "sim"
        again = dict(os.environ, LD_LIBRARY_PATH=str(sim / "monitor"), PICTURES=str(sim))
        again.update(MEMOPT_SIM_DEVICES="1", MEMOPT_SIM_MEMORY="2G", MEMOPT_SIM_NAME="simulated GPU")
        subprocess.run([sys.executable, __file__, "monitor"], env=again, check=True)
        return
    from memopt.cli.monitor.live import as_text
    from memopt.cli.monitor.sampling import Sampler
    from memopt.cli.monitor.screen import screen
    from memopt.cli.monitor.trends import Watch
    from rich.console import Console

    programs = [start(text, pathlib.Path(os.environ["PICTURES"])) for text in PROGRAMS]
    watch = Watch(interval=1.0)
    with Sampler([("cuda", None)]) as sampler:
        for number in range(196):
            uses = [(program.pid, step(program) + CONTEXT) for program in programs]
            os.environ["MEMOPT_SIM_PROCESSES"] = ",".join("%d:%d:c" % use for use in uses)
            os.environ["MEMOPT_SIM_USED"] = str(sum(use for _, use in uses))
            os.environ["MEMOPT_SIM_UTILIZATION"] = str(60 + number * 7 % 35)
            sample = watch.add(sampler.sample())
    for program in programs:
        program.communicate()
    title = "memopt monitor  every 1 s  q quits"
    console = Console(record=True, width=110, height=16, file=open(os.devnull, "w"))
    console.print(as_text(screen(sample, watch, title, 110, 16, 10)))
    picture = console.export_svg(title="memopt monitor")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)  # nothing is downloaded
    (HERE / "monitor.svg").write_text(picture)


def profile():
    """Draws a training run."""
    words = ["--interval", "0.02", "--plot", str(HERE / "profile.png")]
    program = ["python", "extras/planner/examples/train_phases.py"]
    folders = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    subprocess.run(
        [sys.executable, "-m", "memopt", "profile", *words, "--", *program],
        env=dict(os.environ, PATH=folders),
        cwd=ROOT,
        check=True,
    )


def plan():
    """Draws a plan."""
    model = "--layers 22 --hidden 2048 --heads 32 --kv-heads 4 --ffn 5632 --vocab 32000"
    run = "--batch 4 --seq 2048 --dtype bf16 --gpu-memory 24"
    words = [*model.split(), *run.split(), "--plot", str(HERE / "plan.png")]
    subprocess.run([sys.executable, "-m", "memopt", "plan", *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["monitor"]):
        monitor()
    if sys.argv[1:] in ([], ["profile"]):
        profile()
    if sys.argv[1:] in ([], ["plan"]):
        plan()
