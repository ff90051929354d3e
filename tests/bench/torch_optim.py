#!/usr/bin/env python3
"""Every optimizer for torch beside its peers and a copy, in interleaved rounds.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_optim.py [--parameters 16M] [--rounds 5] [--peers all] [--json FILE]

Each case is a whole ``optimizer.step()`` over parameters with gradients. Peers are torch's fastest form of
the rule, bitsandbytes, torchao and DeepSpeed where they are installed; torchao compiles for each shape, so it
runs only with ``--peers all``. Tables: four large tensors and the 148 of a GPT-2, in fp32 and bf16; steps of
the host's optimizer; and 148 tensors of 16 elements, which show what a step costs before the first element.
A round runs each case once; what counts is each case's best round. It never fails on a time.
"""

import argparse
import functools
import json
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of torch must not spin beside us
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import memopt
import memopt.torch as mt
import torch
from torch_compare import LR, WD, Copy, big_shapes, count, gpt2_shapes, huge_pages, measure, values

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Step:
    """A step of one optimizer over tensors of its own."""

    def __init__(self, shapes, dtype, make):
        self.parameters = [p.requires_grad_() for p in values(shapes, dtype, 0.02)]
        for parameter, gradient in zip(self.parameters, values(shapes, dtype, 0.01)):
            parameter.grad = gradient
        self.optimizer = make(self.parameters)

    def renew(self):
        """Gradients in tensors of their own, as a backward pass after zero_grad() makes them."""
        for parameter in self.parameters:
            parameter.grad = parameter.grad.clone()

    def run(self):
        self.optimizer.step()

    def close(self):
        pass


class HostStep(Step):
    """A step on fp32 masters of bf16 parameters with bf16 gradients, the parameters written."""

    def __init__(self, shapes, make, torchs):
        super().__init__(shapes, torch.bfloat16, lambda parameters: None)
        self.masters = None
        if torchs:
            self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
            for master in self.masters:
                master.grad = torch.empty_like(master)
        self.optimizer = make(self.masters or self.parameters)

    def run(self):
        if self.masters is None:
            self.optimizer.step()
            return
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
            self.optimizer.step()
            torch._foreach_copy_(self.parameters, self.masters)


def installed(name):
    """An optional package's module, or None."""
    try:
        return __import__(name, fromlist=["optim"])
    except ImportError:
        return None


def peers_of(family, wanted):
    """Other libraries' optimizers of a rule: name and maker."""
    t = torch.optim
    decay = dict(lr=LR, weight_decay=WD)
    found = {
        "AdamW": [("torch AdamW fused", functools.partial(t.AdamW, fused=True, **decay))],
        "Adam": [("torch Adam fused", functools.partial(t.Adam, fused=True, lr=LR))],
        "SGD": [("torch SGD fused", functools.partial(t.SGD, lr=LR, momentum=0.9, fused=True))],
        "RMSprop": [("torch RMSprop foreach", functools.partial(t.RMSprop, lr=LR, foreach=True))],
        "Adagrad": [("torch Adagrad fused", functools.partial(t.Adagrad, lr=LR, fused=True))],
        "Adafactor": [("torch Adafactor", functools.partial(t.Adafactor, lr=LR))],
        "Muon": [("torch Muon", functools.partial(t.Muon, lr=LR))],
    }.get(family, [])
    bnb = installed("bitsandbytes")
    for name in {"AdamW": ["AdamW8bit"], "Lion": ["Lion8bit"], "AdEMAMix": ["AdEMAMix"]}.get(family, []):
        if bnb:
            found.append(("bitsandbytes " + name, functools.partial(getattr(bnb.optim, name), lr=LR)))
    if family == "AdamW" and installed("deepspeed"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        found.append(("DeepSpeedCPUAdam", functools.partial(DeepSpeedCPUAdam, **decay)))
    if family == "AdamW" and wanted == "all" and installed("torchao"):
        import torchao.optim as ao

        found += [
            ("torchao " + name, functools.partial(getattr(ao, name), **decay))
            for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8")
        ]
    return found


# Our classes of each rule, and the bytes of state that a step reads and writes for a parameter.
OURS = {
    "AdamW": {
        "AdamW": 16,
        "AdamWBf16": 8,
        "AdamW8bit": 4.06,
        "AdamW8bitCompanded": 4.06,
        "AdamWFp8": 4.06,
        "AdamW4bit": 2.13,
    },
    "Adam": {"Adam": 16, "Adam8bit": 4.06},
    "Lion": {"Lion": 8, "Lion8bit": 2.03},
    "SGD": {"SGD": 8, "SGD8bit": 2.03},
    "RMSprop": {"RMSprop": 8, "RMSprop8bit": 2.03},
    "Adagrad": {"Adagrad": 8, "Adagrad8bit": 2.03},
    "AdEMAMix": {"AdEMAMix": 24, "AdEMAMix8bit": 6.09},
    "Adafactor": {"Adafactor": 0},
    "LAMB": {"LAMB": 16, "LAMB8bit": 4.06},
    "LARS": {"LARS": 8, "LARS8bit": 2.03},
    "Muon": {"Muon": 8, "Muon8bit": 2.03},
    "schedule-free": {"AdamWScheduleFree": 16},
}


def ours(name):
    """A maker of one of our classes with the options of its peers."""
    options = dict(lr=LR)
    if name.startswith("SGD"):
        options["momentum"] = 0.9
    return functools.partial(getattr(mt, name), **options)


def cases_of(shapes, dtype, wanted):
    """Name, maker, bytes moved for a parameter (None: a peer), and the rule, of each case."""
    size = dtype.itemsize
    cases = []
    for family, classes in OURS.items():
        kept = [s for s in shapes if len(s) == 2] if family == "Muon" else shapes
        if not kept:
            continue
        made = [(name, make, None) for name, make in peers_of(family, wanted)]
        made += [("memopt " + name, ours(name), 3 * size + bytes_) for name, bytes_ in classes.items()]
        for name, make, bytes_ in made:
            cases.append((name, functools.partial(Step, kept, dtype, make), bytes_, family))
    return cases


def host_cases(shapes):
    """The host optimizer's cases."""
    fused = functools.partial(torch.optim.AdamW, lr=LR, weight_decay=WD, fused=True)
    family = "host"
    cases = [("torch AdamW fused + casts", lambda: HostStep(shapes, fused, True), None, family)]
    for cls, bytes_ in ((mt.AdamW8bit, 16.06), (mt.AdamW8bitCompanded, 16.06), (mt.AdamW, 28)):
        make = functools.partial(mt.CPUOffloadOptimizer, optimizer_class=cls, lr=LR)
        name = "memopt host " + cls.__name__
        cases.append((name, functools.partial(HostStep, shapes, make, False), bytes_, family))
    clipped = functools.partial(mt.CPUOffloadOptimizer, lr=LR, max_norm=1.0)
    make = functools.partial(HostStep, shapes, clipped, False)
    return [*cases, ("memopt host AdamW8bit clip", make, 18.06, family)]


def elements(family, shapes):
    """How many parameters the cases of a rule step: Muon those of matrices."""
    return sum(count(s) for s in shapes if family != "Muon" or len(s) == 2)


def table(title, cases, shapes, rounds, rows):
    """Measures the cases beside a copy and prints a Markdown table."""
    copy = ("copy", lambda: Copy(shapes), 8, None)
    times = {name: min(taken) for name, taken in measure([copy, *cases], rounds).items()}
    a_byte = times["copy"] / (8 * elements(None, shapes))
    print("\n%s\n\n| step | ns | ÷ copy | ÷ fastest peer | ÷ torch's fused AdamW |" % title)
    print("|---|---|---|---|---|")
    fused = next((t for n, t in times.items() if n.startswith("torch AdamW fused")), None)
    for name, _, bytes_, family in cases:
        ns = times[name] / elements(family, shapes) * 1e9
        peers = [times[n] for n, _, b, f in cases if f == family and b is None]
        ratios = ["", "", ""]
        if bytes_ is not None:
            ratios[0] = "%.2f" % (ns / (a_byte * bytes_ * 1e9))
            ratios[1] = "%.2f" % (times[name] / min(peers)) if peers else ""
            ratios[2] = "%.2f" % (times[name] / fused) if family != "Muon" else ""
        print("| %s | %.3f | %s |" % (name, ns, " | ".join(ratios)))
        rows.append({"table": title, "case": name, "ns": ns, "bytes": bytes_, "ratios": ratios})
    sys.stdout.flush()


def overhead(rounds):
    """Microseconds of a step over 148 tensors of 16 elements whose gradients are new each time."""
    names = ("AdamW", "AdamW8bit", "AdamWFp8", "AdamW4bit", "Lion8bit")
    makers = [*peers_of("AdamW", "some")[:1], *(("memopt " + n, ours(n)) for n in names)]
    cases = [(who, Step([(16,)] * 148, torch.float32, make)) for who, make in makers]
    best = dict.fromkeys((who for who, _ in cases), float("inf"))
    for _ in range(rounds):
        for who, case in cases:
            case.renew()
            begin = time.perf_counter()
            case.run()
            best[who] = min(best[who], time.perf_counter() - begin)
    print("\n148 tensors of 16 elements, new gradients each step\n\n| step | µs |\n|---|---|")
    for who, seconds in best.items():
        print("| %s | %.1f |" % (who, seconds * 1e6))
    return {who: seconds * 1e6 for who, seconds in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--parameters", default="16M", help="how many (16M = 16 * 2**20)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", choices=("some", "all"), default="some", help="all: torchao too")
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with memopt.Device("cpu") as device:
        isa = device.properties.isa
    print(
        "torch %s, memopt %s (%s), %d threads, best of %d interleaved rounds; huge pages: %s"
        % (torch.__version__, memopt.__version__, isa, options.threads, options.rounds, huge_pages())
    )
    rows = []
    wanted = memopt.parse_size(options.parameters)
    for what, shapes in (("4 large tensors", big_shapes(wanted)), ("GPT-2", gpt2_shapes(wanted))):
        for name, dtype in DTYPES.items():
            total = sum(map(count, shapes)) / 2**20
            title = "%s, %s: %d tensors, %.1f Mi parameters" % (what, name, len(shapes), total)
            table(title, cases_of(shapes, dtype, options.peers), shapes, options.rounds, rows)
    shapes = gpt2_shapes(wanted)
    table("fp32 masters, bf16 parameters and gradients", host_cases(shapes), shapes, options.rounds, rows)
    small = overhead(40 * options.rounds)
    if options.json:
        result = {"torch": torch.__version__, "isa": isa, "rows": rows, "overhead_us": small}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
