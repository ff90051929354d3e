"""Ours against PyTorch (and bitsandbytes, where it is installed) on the same device in one process.

    bench_torch.py [TABLE...] [--device cuda:N] [--json FILE] [--rounds N] [--seconds S] [--small]

Cases of a table run interleaved, timed by events of the device, after two unmeasured runs. Rows are
written as soon as they are known: Markdown to the output, one JSON object a line to the file. It
reports and never fails on a time. Status 77 where torch, or its support of the GPU, is missing.
--device cpu takes the cpu in the place of the GPU.
"""

import argparse
import contextlib
import gc
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError as problem:
    print("bench_torch: %s" % problem)
    sys.exit(77)

import accelerators
import memopt
import memopt.torch as mt

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from gpt_block import Block  # noqa: E402

LR, WD = 1e-3, 1e-2
MIB = 2**20


class Bench:
    """The device, the rows, and the time that is left."""

    def __init__(self, gpu, options, file):
        self.gpu = gpu
        self.small = options.small
        self.rounds = options.rounds
        self.deadline = time.monotonic() + options.seconds
        self.file = file

    def row(self, table, case, **values):
        """One line of both outputs."""
        shown = values.get("skipped")
        cells = [
            "skipped: %s" % shown if shown else "%.1f us" % (1e6 * values["seconds_median"]),
            "" if shown else "%.1f us" % (1e6 * values["seconds_best"]),
            "%.1f GB/s" % (values["bytes_per_second"] / 1e9) if "bytes_per_second" in values else "",
            "%.3f of %s" % (values["ratio"], values["of"]) if "of" in values else "",
        ]
        print("| %s | %s | %s |" % (table, case, " | ".join(cells)), flush=True)
        self.file.write(json.dumps(dict(table=table, case=case, **values)) + "\n")
        self.file.flush()

    def measure(self, table, cases):
        """Cases are (name, function, bytes or 0, the case to compare with or None)."""
        if time.monotonic() > self.deadline:
            for name, *_ in cases:
                self.row(table, name, skipped="no time left")
            return
        repeats, times = {}, {}
        for name, function, *_ in cases:
            self.gpu.seconds(function, 1)
            one = self.gpu.seconds(function, 1)
            repeats[name] = 1 if self.small else max(1, min(20, int(2e-3 / max(one, 1e-6))))
            times[name] = []
        gc.collect()
        gc.disable()
        for _ in range(self.rounds):
            for name, function, *_ in cases:
                times[name].append(self.gpu.seconds(function, repeats[name]))
        gc.enable()
        middle = {name: statistics.median(seconds) for name, seconds in times.items()}
        for name, _, size, peer in cases:
            values = {"seconds_median": middle[name], "seconds_best": min(times[name])}
            if size:
                values["bytes_per_second"] = size / middle[name]
            if peer in middle:
                values.update(of=peer, ratio=middle[name] / middle[peer])
            self.row(table, name, **values)


def gpt2_shapes(width, vocabulary, context):
    """The 148 tensors of a 12-layer GPT-2."""
    shapes = [(vocabulary, width), (context, width)]
    for _ in range(12):
        shapes += [
            (width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,),
            (width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,),
        ]  # fmt: skip
    return shapes + [(width,), (width,)]


def parameters_of(bench, shapes, dtype):
    """Parameters with gradients."""
    place = dict(dtype=dtype, device=bench.gpu.device)
    parameters = [torch.empty(s, **place).normal_(0, 0.02).requires_grad_() for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter).normal_(0, 0.01)
    return parameters


def steps_of(bench, shapes, dtype):
    """Cases of one element type, each with parameters of its own."""
    wide = torch.tensor([], dtype=dtype).element_size()
    n = sum(torch.Size(shape).numel() for shape in shapes)

    def step(kind, **more):
        return kind(parameters_of(bench, shapes, dtype), lr=LR, weight_decay=WD, **more).step

    peer, eight = "torch AdamW fused %s" % name_of(dtype), (3 * wide + 4.0625) * n
    cases = [
        (peer, step(torch.optim.AdamW, fused=True), 7 * wide * n, None),
        ("memopt AdamW %s" % name_of(dtype), step(mt.AdamW), (3 * wide + 16) * n, peer),
        ("memopt AdamW8bit %s" % name_of(dtype), step(mt.AdamW8bit), eight, peer),
    ]
    try:
        theirs = importlib.import_module("bitsandbytes").optim.AdamW8bit
    except Exception as problem:  # missing, or broken on this machine: both are told
        bench.row("bitsandbytes", "AdamW8bit", skipped=type(problem).__name__)
    else:
        cases.append(("bitsandbytes AdamW8bit %s" % name_of(dtype), step(theirs), eight, peer))
    return cases


def name_of(dtype):
    return {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]


def optimizers(bench):
    """Steps over a GPT-2's tensors, and over one large tensor."""
    if bench.small:
        kinds = (("GPT-2", gpt2_shapes(8, 50, 10)), ("1 tensor", [(5000,)]))
    else:
        large = 256 if bench.gpu.free() > 24 * 2**30 else 64
        kinds = (
            ("GPT-2", gpt2_shapes(768, 50257, 1024)),
            ("1 tensor, %d Mi" % large, [(large * MIB,)]),
        )
    for table, shapes in kinds:
        for dtype in (torch.float32, torch.bfloat16):
            cases = steps_of(bench, shapes, dtype)
            copied = torch.ones(5000 if bench.small else 256 * MIB, device=bench.gpu.device)
            into = torch.empty_like(copied)
            copy = lambda into=into, copied=copied: into.copy_(copied)  # noqa: E731
            bench.measure(table, [*cases, ("torch copy f32", copy, 8 * copied.numel(), None)])
            bench.gpu.sync()
            del cases, copied, into, copy
            gc.collect()
            bench.gpu.empty_cache()


#: The process's allocator is torch's or ours; nothing else differs.
PAIRS = """
import statistics, sys, time
import torch
device, ours, rounds, pairs = sys.argv[1], sys.argv[2] == "ours", int(sys.argv[3]), int(sys.argv[4])
if ours:
    import memopt.torch
    memopt.torch.enable_allocator("expandable_segments:True")
for size in map(int, sys.argv[5:]):
    seconds = []
    for _ in range(rounds + 1):  # the first one fills the cache
        begin = time.perf_counter()
        for _ in range(pairs):
            torch.empty(size, dtype=torch.uint8, device=device)
        seconds.append((time.perf_counter() - begin) / pairs)
    print(statistics.median(seconds[1:]), min(seconds[1:]))
"""


def allocators(bench):
    """A tensor made and forgotten, by the host's clock: torch's allocator, and ours in its place."""
    sizes, middle = (512, MIB, 20 * MIB), {}
    for name in ("torch", "ours"):
        if name == "ours" and bench.gpu.name == "cpu":
            bench.row("torch.empty", "ours", skipped="needs a GPU")
            continue
        words = [str(bench.gpu.device), name, str(bench.rounds), "20" if bench.small else "2000"]
        command = [sys.executable, "-c", PAIRS, *words, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        for size, line in zip(sizes, done.stdout.splitlines()):
            median, best = map(float, line.split())
            values = dict(seconds_median=median, seconds_best=best)
            if name == "ours":
                values.update(of="torch", ratio=median / middle[size])
            middle[size] = median
            bench.row("torch.empty", "%s, %d B" % (name, size), **values)


class Gpt(torch.nn.Module):
    """A small GPT. With savers its layers run again in backward."""

    def __init__(self, small, savers):
        super().__init__()
        width, heads, layers, context = (64, 4, 2, 32) if small else (1024, 16, 16, 1024)
        self.savers, self.vocabulary = savers, 256 if small else 50304
        self.token = torch.nn.Embedding(self.vocabulary, width)
        self.place = torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, 0.0) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, self.vocabulary, bias=False)

    def batch(self, place):
        size = (2 if self.vocabulary == 256 else 4, self.place.num_embeddings + 1)
        return torch.randint(self.vocabulary, size, device=place)

    def forward(self, batch):
        x = self.token(batch[:, :-1]) + self.place.weight
        for block in self.blocks:
            x = mt.checkpoint(block, x) if self.savers else block(x)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())


def train_gpt(bench, savers, steps):
    """Seconds of each step, the peak and the last loss: AdamW in float32, bf16 by autocast."""
    gpu = bench.gpu
    gpu.reset_peak()
    torch.manual_seed(1)
    model = Gpt(bench.small, savers).to(gpu.device)
    kind = mt.AdamW8bit if savers else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-3)
    offload = mt.save_on_cpu(device_type=gpu.device.type) if savers else contextlib.nullcontext()
    batch, seconds = model.batch(gpu.device), []
    for _ in range(steps):
        gpu.sync()
        begin = time.perf_counter()
        with offload, torch.autocast(gpu.device.type, dtype=torch.bfloat16):
            loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        gpu.sync()
        seconds.append(time.perf_counter() - begin)
    return seconds, gpu.peak(), loss.item()


def gpt(bench):
    """The same small GPT trained plainly, and with 8-bit states, checkpoints and save_on_cpu."""
    steps, plain = 3 if bench.small else 15, None
    for name, savers in (("plain", False), ("savers", True)):
        try:
            seconds, peak, loss = train_gpt(bench, savers, steps)
        except torch.OutOfMemoryError as problem:
            bench.row("a small GPT", name, skipped=str(problem).split(". ")[0])
            continue
        finally:
            gc.collect()
        middle = statistics.median(seconds[steps // 3 :])
        values = dict(seconds_median=middle, seconds_best=min(seconds), peak_bytes=peak, loss=loss)
        if plain:
            values.update(of="plain", ratio=middle / plain)
        plain = plain or middle
        name = "%s: peak %.2f GiB, loss %.3f" % (name, peak / 2**30, loss)
        bench.row("a small GPT", name, **values)


TABLES = {"optimizers": optimizers, "allocators": allocators, "gpt": gpt}


def run(bench, tables):
    """The tables; what fails is told, and the others are measured all the same."""
    problems = 0
    for function in map(TABLES.get, tables):
        try:
            function(bench)
        except Exception as error:
            problems += 1
            text = "%s: %s" % (type(error).__name__, str(error).splitlines()[:1])
            bench.row(function.__name__, "all", skipped=text.replace("|", "/"))
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", default="/dev/null")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0, help="no table begins after that")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    gpu = accelerators.of(options.device)
    if isinstance(gpu, str):
        print("bench_torch: %s" % gpu)
        return 77
    print("torch %s, memopt %s\n" % (torch.__version__, memopt.__version__))
    print("| table | case | median | best | rate | ratio |\n|---|---|--:|--:|--:|---|")
    with open(options.json, "w", encoding="utf-8") as file:
        problems = run(Bench(gpu, options, file), options.tables or TABLES)
    print("\n%d tables failed" % problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
