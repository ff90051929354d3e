#!/usr/bin/env python3
"""examples/python/plain_training.py as it is, and with imports changed to memopt.torch's: losses,
bytes of optimizer state and time, as the table of docs/guide/pytorch.md.

    tests/bench/torch_imports.py [--steps N] [--repeat N] [--device cpu|cuda]
"""

import argparse
import pathlib
import sys
import time
import types

import memopt.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "python" / "plain_training.py"
SAVERS = ("GradScaler", "save_on_cpu", "checkpoint")
OPTIMIZERS = ("AdamW", "AdamW8bit", "AdamW4bit")


def script_with(names):
    """The script as a module with these names from memopt.torch, and the optimizers it makes."""
    sys.path.insert(0, str(SCRIPT.parent))  # it imports what lies beside it
    script = types.ModuleType("plain_training")
    script.__file__ = str(SCRIPT)
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), script.__dict__)
    for name in names:
        setattr(script, "AdamW" if name in OPTIMIZERS else name, getattr(memopt.torch, name))
    made, optimizer = [], script.AdamW

    def make(*arguments, **options):
        made.append(optimizer(*arguments, **options))
        return made[-1]

    script.AdamW = make
    return script, made


def run(names, device, text, steps):
    """(losses, bytes of state a parameter, seconds a step)"""
    script, made = script_with(names)
    torch.manual_seed(1)
    model = script.GPT().to(device)
    start = time.perf_counter()
    losses = torch.tensor(list(script.train(model, text, device, steps)))
    seconds = (time.perf_counter() - start) / steps
    states = (x for state in made[0].state.values() for x in state.values())
    held = sum(x.numel() * x.element_size() for x in states if torch.is_tensor(x) and x.dim())
    return losses, held / sum(p.numel() for p in model.parameters()), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    text = b"\n".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
    rows = [(), *((name,) for name in (*SAVERS, *OPTIMIZERS)), (*SAVERS, "AdamW8bit")]
    found = {row: [] for row in rows}
    for _ in range(arguments.repeat):  # in turn, so that a busy moment does not hit one row alone
        for row in rows:
            found[row].append(run(row, device, text, arguments.steps))
    plain = found[()][0][0]
    fastest = {row: min(seconds for _, _, seconds in found[row]) for row in rows}
    print("| from memopt.torch | last loss | largest difference | state | time of a step |")
    print("|---|---|---|---|---|")
    for row in rows:
        losses, state, _ = found[row][0]
        print("| %s | %.4f | %.1e | %.2f B | %.2f |" % (
            ", ".join(row) or "nothing", losses[-1], (losses - plain).abs().max(), state,
            fastest[row] / fastest[()],
        ))  # fmt: skip


if __name__ == "__main__":
    main()
