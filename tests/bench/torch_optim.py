#!/usr/bin/env python3
"""Every optimizer for torch beside its peers and a copy, in interleaved rounds.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_optim.py [--parameters 16M] [--rounds 15] [--json FILE] \\
        [--peers torch bitsandbytes] [--rules LAMB LARS]

Each case is a whole ``optimizer.step()`` over parameters with gradients. Peers are torch's fastest form of
the rule, and bitsandbytes; DeepSpeed and torchao, which compile, if asked for. torchao compiles for each shape of
a tensor, before its first round, so it has the large tensors alone. Tables: four large tensors and
the 148 of a GPT-2, in fp32 and bf16; and steps of the host's optimizer.
A round runs each case of a rule once; what counts is each case's best round. A peer that takes twice the
fastest one's time has three rounds. Rows of ours that are slower
than their fastest peer are named at the end. It never fails on a time.
"""

import argparse
import functools
import json
import os
import random
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of torch must not spin beside us
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import memopt
import memopt.torch as mt
import torch
from torch_compare import LR, WD, Copy, big_shapes, count, gpt2_shapes, huge_pages, measure

PEERS = ("torch", "bitsandbytes", "deepspeed", "torchao")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


#: Places in the drawn numbers at which a tensor's may begin.
PLACES = 1 << 16


@functools.cache
def drawn(count):
    """More random numbers than a tensor of so many elements needs: drawing takes ten times as long as a step."""
    return torch.empty(count + 16 * PLACES).normal_(0, 0.01)


def fill(tensor):
    """Writes a tensor from some place in the drawn numbers on."""
    begin = 16 * random.randrange(PLACES)
    tensor.view(-1).copy_(drawn(tensor.numel())[begin : begin + tensor.numel()])


class Step:
    """A step of one optimizer over tensors of its own."""

    def __init__(self, shapes, dtype, make):
        self.parameters = [torch.zeros(shape, dtype=dtype) for shape in shapes]
        for parameter in self.parameters:
            fill(parameter)
            parameter.requires_grad_().grad = torch.zeros_like(parameter)
        self.optimizer = make(self.parameters)

    def draw(self):
        """Other gradients for each step, as training has: second moments are means of many squares."""
        for parameter in self.parameters:
            fill(parameter.grad)

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


#: torch's fastest form of a rule on a CPU, and its options.
TORCHS = {
    "AdamW": dict(fused=True, weight_decay=WD),
    "Adam": dict(fused=True),
    "SGD": dict(fused=True, momentum=0.9),
    "RMSprop": dict(foreach=True),
    "Adagrad": dict(fused=True),
    "Adafactor": {},
    "Muon": {},
}
#: Options of both sides.
SHARED = {"SGD": {"momentum": 0.9}, "LARS": {"momentum": 0.9}}


def peers_of(family, shapes, wanted):
    """Other libraries' optimizers of a rule: name and maker."""
    found = []
    shared = dict(lr=LR, **SHARED.get(family, {}))
    if "torch" in wanted and family in TORCHS:
        make = functools.partial(getattr(torch.optim, family), lr=LR, **TORCHS[family])
        found.append(("torch " + family, make))
    bnb = installed("bitsandbytes") if "bitsandbytes" in wanted else None
    for name in (family, family + "8bit"):
        make = getattr(bnb.optim, name, None) if bnb else None
        if make:
            found.append(("bitsandbytes " + name, functools.partial(make, **shared)))
    decay = dict(lr=LR, weight_decay=WD)
    if family == "AdamW" and "deepspeed" in wanted and installed("deepspeed"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        found.append(("DeepSpeedCPUAdam", functools.partial(DeepSpeedCPUAdam, **decay)))
    if family == "AdamW" and "torchao" in wanted and len(set(shapes)) == 1 and installed("torchao"):
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
        "AdamW8bit, dynamic": 4.06,
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
#: The table of the host's optimizer, among the rules.
HOST = "host"
#: Rules that are for matrices.
MATRICES = ("Muon",)


def named(name):
    """A class of ours, at the top or not."""
    if name == "AdamWBf16":
        return functools.partial(mt.AdamW, states="bf16")
    if name.endswith(", dynamic"):
        return functools.partial(named(name.split(",")[0]), codes="dynamic")
    return getattr(mt.optim, name, None) or getattr(mt.bnb, name)


def cases_of(family, shapes, dtype, wanted):
    """Name, maker, bytes moved for a parameter (None: a peer), and the rule, of each case."""
    size = dtype.itemsize
    made = [(name, make, None) for name, make in peers_of(family, shapes, wanted)]
    for name, bytes_ in OURS[family].items():
        make = functools.partial(named(name), lr=LR, **SHARED.get(family, {}))
        made.append(("memopt " + name, make, 3 * size + bytes_))
    return [
        (name, functools.partial(Step, shapes, dtype, make), bytes_, family)
        for name, make, bytes_ in made
    ]


def host_cases(shapes):
    """The host optimizer's cases."""
    fused = functools.partial(torch.optim.AdamW, lr=LR, weight_decay=WD, fused=True)
    cases = [("torch AdamW fused + casts", lambda: HostStep(shapes, fused, True), None, HOST)]
    for cls, bytes_ in ((mt.AdamW8bit, 16.06), (mt.AdamW, 28)):
        make = functools.partial(mt.CPUOffloadOptimizer, optimizer_class=cls, lr=LR)
        name = "memopt host " + cls.__name__
        cases.append((name, functools.partial(HostStep, shapes, make, False), bytes_, HOST))
    clipped = functools.partial(mt.CPUOffloadOptimizer, lr=LR, max_norm=1.0)
    make = functools.partial(HostStep, shapes, clipped, False)
    return [*cases, ("memopt host AdamW8bit clip", make, 18.06, HOST)]


def compare(title, family, cases, fused, shapes, rounds, rows):
    """Measures a rule's cases beside a copy and torch's fused AdamW; the rows of a table."""
    copy = ("copy", lambda: Copy(shapes), 8, None)
    beside = [] if any(name == fused[0] for name, _, _, _ in cases) else [fused]
    theirs = [name for name, _, bytes_, _ in cases if bytes_ is None]
    times = {k: min(t) for k, t in measure([copy, *beside, *cases], rounds, theirs).items()}
    total = sum(map(count, shapes))
    peers = {name: times[name] for name in theirs}
    peer = min(peers, key=peers.get, default=None)
    for name, _, bytes_, _ in cases:
        ratios = [None, None, times[name] / times[fused[0]]]
        if bytes_ is not None:
            ratios[0] = times[name] / (times["copy"] / 8 * bytes_)
            ratios[1] = times[name] / peers[peer] if peer else None
        ns = times[name] / total * 1e9
        words = ["" if ratio is None else "%.2f" % ratio for ratio in ratios]
        print("| %s | %.3f | %s |" % (name, ns, " | ".join(words)))
        row = {"table": title, "rule": family, "case": name, "ns": ns, "bytes": bytes_}
        rows.append({**row, "peer": peer, "ratios": ratios})
    sys.stdout.flush()


def head(title):
    print("\n%s\n\n| step | ns | ÷ copy | ÷ fastest peer | ÷ torch's fused AdamW |" % title)
    print("|---|---|---|---|---|")


def table(what, shapes, dtype, options, rows):
    """All rules' cases, one rule after the other, so that the memory is that of one."""
    make = functools.partial(torch.optim.AdamW, lr=LR, **TORCHS["AdamW"])
    total = sum(map(count, shapes)) / 2**20
    title = "%s, %s: %d tensors, %.1f Mi parameters" % (what, dtype, len(shapes), total)
    head(title)
    for family in options.rules:
        if family == HOST:
            continue
        kept = [s for s in shapes if len(s) == 2] if family in MATRICES else shapes
        if not kept:
            continue
        fused = ("torch AdamW", functools.partial(Step, kept, DTYPES[dtype], make), None, None)
        cases = cases_of(family, kept, DTYPES[dtype], options.peers)
        compare(title, family, cases, fused, kept, options.rounds, rows)


def slower(rows):
    """Prints which of our rows took longer than their fastest peer."""
    found = [row for row in rows if row["bytes"] is not None and (row["ratios"][1] or 0) > 1]
    print("\nslower than the fastest peer: %s" % (len(found) or "none"))
    for row in found:
        words = (row["case"], row["ratios"][1], row["peer"], row["table"])
        print("- %s: %.2f of %s (%s)" % words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--parameters", default="16M", help="how many (16M = 16 * 2**20)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS[:2])
    every = [*OURS, HOST]
    parser.add_argument("--rules", nargs="+", choices=every, default=every, metavar="RULE")
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
        for dtype in DTYPES if options.rules != [HOST] else ():
            table(what, shapes, dtype, options, rows)
    if HOST in options.rules:
        shapes = gpt2_shapes(wanted)
        title = "fp32 masters, bf16 parameters and gradients"
        head(title)
        cases = host_cases(shapes)
        compare(title, HOST, cases, cases[0], shapes, options.rounds, rows)
    slower(rows)
    if options.json:
        result = {
            "torch": torch.__version__, "isa": isa, "threads": options.threads,
            "rounds": options.rounds, "rows": rows,
        }  # fmt: skip
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
