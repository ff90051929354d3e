#!/usr/bin/env python3
"""Our casts beside torch's, in one process, in interleaved rounds; and what torch_optim.py shares.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_compare.py [--parameters 64M] [--rounds 5] [--json FILE]

Both sides work on tensors of torch that were made the same way, in one order, and touched before;
every case runs once unmeasured. A round runs each case once, so that a disturbance of the machine
meets all alike; what counts is each case's best round, and the ratio of bests. It reports and never
fails on a time.
"""

import argparse
import gc
import json
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of torch must not spin beside us

import memopt
import torch

LR, WD = 1e-3, 1e-2


def gpt2_shapes(parameters):
    """The 148 tensors of a 12-layer GPT-2, its width scaled so that they are about `parameters`."""
    vocabulary, context, layers = 50257, 1024, 12
    width = 64
    while True:
        shapes = [(vocabulary, width), (context, width)]
        for _ in range(layers):
            shapes += [
                (width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,),
                (width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,),
            ]  # fmt: skip
        shapes += [(width,), (width,)]
        if sum(map(count, shapes)) >= parameters:
            return shapes
        width += 64


def count(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def big_shapes(parameters):
    """Four tensors that share the parameters."""
    return [(parameters // 4,)] * 4


def values(shapes, dtype, scale):
    """Random tensors, written by one thread so that their pages are placed alike."""
    return [torch.empty(shape, dtype=dtype).normal_(0, scale) for shape in shapes]


class Copy:
    """torch's own copy of fp32 tensors: what the memory gives for the bytes it moves."""

    def __init__(self, shapes):
        self.sources = values(shapes, torch.float32, 1.0)
        self.into = [torch.zeros_like(source) for source in self.sources]

    def run(self):
        for into, source in zip(self.into, self.sources):
            into.copy_(source)

    def close(self):
        pass


class TorchCast(Copy):
    """What .to() does without its allocation: a copy into a tensor of the other type."""

    def __init__(self, shapes, source, into):
        self.sources = [value.to(source) for value in values(shapes, torch.float32, 1.0)]
        self.into = [torch.zeros(value.shape, dtype=into) for value in self.sources]


class TorchTo(TorchCast):
    """.to() as it is written in programs: it allocates the result each time."""

    def __init__(self, shapes, source, into):
        super().__init__(shapes, source, into)
        self.dtype, self.into = into, []

    def run(self):
        for source in self.sources:
            source.to(self.dtype)


class OurCast(TorchCast):
    """memopt's cast, all tensors in one call."""

    def __init__(self, shapes, source, into, threads):
        super().__init__(shapes, source, into)
        self.device = memopt.Device("cpu", threads=threads)

    def run(self):
        memopt.cast(self.device, self.into, self.sources)

    def close(self):
        self.device.close()


def casts(shapes, threads):
    """The casts: name, maker, bytes that one moves per element, the case to beat."""
    types = {
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "e4m3": torch.float8_e4m3fn,
    }
    cases = []
    for name in (
        "fp32 to bf16", "fp32 to fp16", "bf16 to fp32", "fp16 to fp32",
        "fp32 to e4m3", "bf16 to e4m3", "e4m3 to fp32", "e4m3 to bf16",
    ):  # fmt: skip
        a, b = (types[word] for word in name.split(" to "))
        size = a.itemsize + b.itemsize
        cases += [
            ("torch %s" % name, lambda a=a, b=b: TorchCast(shapes, a, b), size, None),
            ("torch .to() %s" % name, lambda a=a, b=b: TorchTo(shapes, a, b), size, None),
            ("memopt %s" % name, lambda a=a, b=b: OurCast(shapes, a, b, threads), size,
             "torch %s" % name),
        ]  # fmt: skip
    return cases


#: Rounds of a case that is `least` times slower than the fastest of its kind; it then stays out.
FEW = 3


def measure(cases, rounds, kind=(), least=2.0):
    """Seconds of every round of every case, interleaved after one unmeasured run of each. What a case's
    draw() makes anew for a run is not measured. `kind`: names of which only the fastest matters."""
    every = made = [(name, make()) for name, make, _, _ in cases]
    draws = {name: getattr(case, "draw", lambda: None) for name, case in made}
    try:
        for name, case in made:
            draws[name]()
            case.run()
        times = {name: [] for name, _ in made}
        gc.collect()
        gc.disable()
        for turn in range(rounds):
            if turn == FEW and kind:
                limit = least * min(min(times[name]) for name in kind)
                made = [one for one in made if one[0] not in kind or min(times[one[0]]) <= limit]
            for name, case in made:
                draws[name]()
                begin = time.perf_counter()
                case.run()
                times[name].append(time.perf_counter() - begin)
        gc.enable()
        return times
    finally:
        for _, case in every:
            case.close()


def report(title, cases, times, parameters, rows):
    """Prints one table and adds its rows to the list."""
    print("\n%s\n%-28s %9s %9s %8s   %s" % (title, "", "ns/param", "GB/s", "ratio", "of"))
    for name, _, size, peer in cases:
        best = min(times[name])
        ratio = best / min(times[peer]) if peer else None
        print(
            "%-28s %9.3f %9.1f %8s   %s"
            % (
                name,
                best / parameters * 1e9,
                size * parameters / best / 1e9,
                "%.2f" % ratio if ratio else "",
                peer or "",
            )
        )
        rows.append(
            {
                "table": title,
                "case": name,
                "ns_per_parameter": best / parameters * 1e9,
                "bytes_per_parameter": size,
                "gigabytes_per_second": size * parameters / best / 1e9,
                "compared_with": peer,
                "ratio": ratio,
                "seconds": times[name],
            }
        )


def huge_pages():
    """Whether the system gives huge pages unasked: to torch's memory, to shared memory (ours)."""
    found = []
    for name in ("enabled", "shmem_enabled"):
        try:
            with open("/sys/kernel/mm/transparent_hugepage/" + name, encoding="ascii") as file:
                found.append(name + "=" + file.read().partition("[")[2].partition("]")[0])
        except OSError:
            found.append(name + "=unknown")
    return ", ".join(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--parameters", default="64M", help="how many (64M = 64 * 2**20)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args()
    wanted = memopt.parse_size(options.parameters)
    with memopt.Device("cpu") as device:
        isa = device.properties.isa
    print(
        "torch %s, memopt %s (%s), %d cores, best of %d interleaved rounds"
        % (torch.__version__, memopt.__version__, isa, os.cpu_count(), options.rounds)
    )
    print("huge pages: " + huge_pages())
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        shapes = big_shapes(wanted)
        total = sum(map(count, shapes))
        title = "casts: %d tensors, %.1f Mi elements, %d thread%s" % (
            len(shapes), total / 2**20, threads, "s" * (threads > 1))  # fmt: skip
        cases = casts(shapes, threads)
        report(title, cases, measure(cases, options.rounds), total, rows)
        sys.stdout.flush()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "isa": isa, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
