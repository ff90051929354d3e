"""Ours against PyTorch (and bitsandbytes, where it is installed) on the same device in one process.

    bench_torch.py [--device cuda:N] [--json FILE] [--rounds N] [--seconds S] [--small]

Cases of a table run interleaved, timed by events of the device, after two unmeasured runs. Rows are
written as soon as they are known: Markdown to the output, one JSON object a line to the file. It
reports and never fails on a time. Status 77 where torch, or its support of the GPU, is missing.
--device cpu takes the cpu in the place of the GPU.
"""

import argparse
import collections
import gc
import importlib
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as problem:
    print("bench_torch: %s" % problem)
    sys.exit(77)

import accelerators
import memopt

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
        self.device = memopt.Device(gpu.name)
        self.allocator = memopt.Allocator(self.device)

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


class Model:
    """Parameters with gradients."""

    def __init__(self, bench, shapes, dtype):
        place = dict(dtype=dtype, device=bench.gpu.device)
        self.parameters = [torch.empty(s, **place).normal_(0, 0.02).requires_grad_() for s in shapes]
        self.gradients = [torch.empty(s, **place).normal_(0, 0.01) for s in shapes]
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient
        self.count = sum(p.numel() for p in self.parameters)


def steps_of(bench, shapes, dtype):
    """Cases of one element type, each with parameters of its own, and what to close after."""
    wide = torch.tensor([], dtype=dtype).element_size()
    closing = []

    def ours(kind):
        model = Model(bench, shapes, dtype)
        plain = [p.detach() for p in model.parameters]
        optimizer = kind(bench.allocator, plain, lr=LR, weight_decay=WD, stream=bench.gpu.current())
        closing.append(optimizer)
        return lambda: optimizer.step(model.gradients, stream=bench.gpu.current())

    model = Model(bench, shapes, dtype)
    fused = torch.optim.AdamW(model.parameters, lr=LR, weight_decay=WD, fused=True)
    peer = "torch AdamW fused %s" % name_of(dtype)
    n = model.count
    cases = [
        (peer, fused.step, 7 * wide * n, None),
        ("memopt AdamW %s" % name_of(dtype), ours(memopt.AdamW), (3 * wide + 16) * n, peer),
        ("memopt AdamW8bit %s" % name_of(dtype), ours(memopt.AdamW8bit),
         (3 * wide + 4.0625) * n, peer),
    ]  # fmt: skip
    try:
        bitsandbytes = importlib.import_module("bitsandbytes")
    except Exception as problem:  # missing, or broken on this machine: both are told
        bench.row("bitsandbytes", "AdamW8bit", skipped=type(problem).__name__)
    else:
        other = Model(bench, shapes, dtype)
        eight = bitsandbytes.optim.AdamW8bit(other.parameters, lr=LR, weight_decay=WD)
        name = "bitsandbytes AdamW8bit %s" % name_of(dtype)
        cases.append((name, eight.step, (3 * wide + 4.0625) * n, peer))
    return cases, closing


def name_of(dtype):
    return {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]


def optimizers(bench):
    """Steps over a GPT-2's tensors, and over one large tensor."""
    if bench.small:
        kinds = (("GPT-2", gpt2_shapes(8, 50, 10)), ("1 tensor", [(5000,)]))
    else:
        kinds = (("GPT-2", gpt2_shapes(768, 50257, 1024)), ("1 tensor, 256 Mi", [(256 * MIB,)]))
    for table, shapes in kinds:
        for dtype in (torch.float32, torch.bfloat16):
            cases, closing = steps_of(bench, shapes, dtype)
            copied = torch.ones(5000 if bench.small else 256 * MIB, device=bench.gpu.device)
            into = torch.empty_like(copied)
            cases.append(("torch copy f32", lambda: into.copy_(copied), 8 * copied.numel(), None))
            bench.measure(table, cases)
            bench.gpu.sync()
            for optimizer in closing:
                optimizer.close()
            del cases, closing, optimizer, copied, into
            gc.collect()
            bench.gpu.empty_cache()
            bench.allocator.trim()


def allocators(bench):
    """A cached block taken and given back. Host time, both through Python: it is most of it."""
    pairs = 20 if bench.small else 2000

    def torchs(size):
        for _ in range(pairs):
            torch.empty(size, dtype=torch.uint8, device=bench.gpu.device)

    def ours(size):
        stream = bench.gpu.current()
        for _ in range(pairs):
            bench.allocator.alloc(size, stream=stream).free()

    for size in (512, MIB, 20 * MIB):
        times = {torchs: [], ours: []}
        for function in times:
            function(size)
        for _ in range(bench.rounds):
            for function, seconds in times.items():
                begin = time.perf_counter()
                function(size)
                seconds.append((time.perf_counter() - begin) / pairs)
        table, peer = "alloc + free through Python", "torch.empty, %d B" % size
        middle = {function: statistics.median(seconds) for function, seconds in times.items()}
        bench.row(table, peer, seconds_median=middle[torchs], seconds_best=min(times[torchs]))
        bench.row(
            table, "memopt, %d B" % size, seconds_median=middle[ours],
            seconds_best=min(times[ours]), of=peer, ratio=middle[ours] / middle[torchs],
        )  # fmt: skip


def save_on_cpu(bench):
    """Forward and backward with saved tensors on the host: torch's hooks, ours, none."""
    gpu = bench.gpu
    width, batch = (16, 8) if bench.small else (4096, 8192)
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).to(gpu.device, torch.bfloat16)
    weights = {p.data_ptr() for p in model.parameters()}
    data = torch.randn(batch, width, device=gpu.device, dtype=torch.bfloat16)
    offloader = memopt.Offloader(bench.allocator)
    copying = collections.deque()  # tickets that still hold torch's tensor

    def pack(tensor):
        if tensor.data_ptr() in weights or not tensor.is_contiguous():
            return tensor
        while copying and (copying[0].released or copying[0].packed):
            copying.popleft()
        ticket = offloader.pack_borrowed(tensor, stream=gpu.current())
        copying.append(ticket)
        return ticket, tensor.shape, tensor.dtype

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        ticket, shape, dtype = packed
        out = torch.empty(shape, dtype=dtype, device=gpu.device)
        ticket.unpack_into(out, stream=gpu.current())
        ticket.release(gpu.current())
        return out

    def train():
        loss = model(data).float().square().mean()
        loss.backward()

    def torchs():
        with torch.autograd.graph.save_on_cpu(pin_memory=gpu.device.type != "cpu"):
            train()

    def ours():
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            train()

    plain = "nothing offloaded"
    bench.measure(
        "save on CPU",
        [
            (plain, train, 0, None),
            ("torch save_on_cpu", torchs, 0, plain),
            ("memopt offloader", ours, 0, plain),
        ],
    )
    gpu.sync()
    gc.collect()
    offloader.close()


def run(bench):
    """All tables; what fails is told, and the others are measured all the same."""
    problems = 0
    for function in (optimizers, save_on_cpu, allocators):
        try:
            function(bench)
        except Exception as error:
            problems += 1
            text = "%s: %s" % (type(error).__name__, str(error).splitlines()[:1])
            bench.row(function.__name__, "all", skipped=text.replace("|", "/"))
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", default="/dev/null")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0, help="no table begins after that")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cpu":
        gpu = accelerators.StandIn()
    else:
        problem = accelerators.Gpu.problem(options.device)
        if problem:
            print("bench_torch: %s" % problem)
            return 77
        gpu = accelerators.Gpu(options.device)
    print("torch %s, memopt %s\n" % (torch.__version__, memopt.__version__))
    print("| table | case | median | best | rate | ratio |\n|---|---|--:|--:|--:|---|")
    with open(options.json, "w", encoding="utf-8") as file:
        problems = run(Bench(gpu, options, file))
    print("\n%d tables failed" % problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
