#!/usr/bin/env python3
"""Unscaling, clipping and accumulating gradients, and cross-entropy with its gradient: ours beside torch's, in interleaved rounds.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_gradients.py [--rounds 30]

A round runs each case once, so that a disturbance of the machine meets all alike; what counts is
each case's best round. It reports and never fails on a time.
"""

import argparse
import ctypes
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of torch must not spin beside us

import memopt
import memopt.torch as mt
import torch
from memopt import _abi
from memopt._library import lib


def parameters(shapes):
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    return made


def cases():
    """(what, whose): a call without arguments."""
    found = {}
    for what, shapes in (
        ("4 Mi in 4", [(1024, 1024)] * 4),
        ("300 of 64", [(64,)] * 300),
    ):
        for whose, scalers, clip in (
            ("torch", torch.amp.GradScaler, torch.nn.utils.clip_grad_norm_),
            ("memopt", mt.GradScaler, mt.clip_grad_norm_),
        ):
            owned = parameters(shapes)
            optimizer = torch.optim.SGD(owned, lr=0.0)
            scaler = scalers("cpu", init_scale=1.0)
            scaler.scale(torch.ones(()))
            found["unscale " + what, whose] = lambda s=scaler, o=optimizer: (
                s.unscale_(o),
                s._per_optimizer_states.clear(),  # as update() does
            )
            found["clip " + what, whose] = lambda p=owned, c=clip: c(p, 1e-3)
    sums = [torch.zeros(1 << 20) for _ in range(10)]
    gradients = [torch.ones(1 << 20, dtype=torch.bfloat16) for _ in range(10)]
    name = "accumulate 10 Mi bf16 into f32"
    found[name, "torch"] = lambda: torch._foreach_add_(sums, gradients)
    found[name, "memopt"] = lambda: mt.cast.accumulate_(sums, gradients)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        name = "cross-entropy of 512 x 50257 in %s" % name
        found[name, "torch"], found[name, "memopt"] = cross_entropies(512, 50257, dtype)
    return found


def cross_entropies(rows, classes, dtype):
    """torch's and ours, of equal logits. Ours are gradients from the second round on, which takes as long."""
    logits = torch.randn(rows, classes).to(dtype)
    targets = torch.randint(0, classes, (rows,))
    theirs = logits.clone().requires_grad_()

    def of_torch():
        theirs.grad = None
        torch.nn.functional.cross_entropy(theirs, targets).backward()

    device = memopt.Device("cpu")
    narrow, losses = targets.int(), torch.zeros(rows)
    states = (_abi.CrossEntropyRow * rows)()
    code = _abi.DType.F32 if dtype is torch.float32 else _abi.DType.BF16
    piece = _abi.Logits(rows=rows, columns=classes, dtype=int(code))

    def of_memopt():
        pointer, piece.data = device._handle.pointer, logits.data_ptr()
        ctypes.memset(states, 0, ctypes.sizeof(states))
        lib.memopt_cross_entropy_add(pointer, piece, narrow.data_ptr(), states, None)
        cells = ctypes.cast(losses.data_ptr(), _abi.OUT_F32)
        lib.memopt_cross_entropy_losses(pointer, states, narrow.data_ptr(), rows, cells, None)
        lib.memopt_cross_entropy_gradient(pointer, piece, narrow.data_ptr(), states, 1 / rows, None)

    return of_torch, of_memopt


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    calls, best = cases(), {}
    for _ in range(arguments.rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            best.setdefault(name, []).append(time.perf_counter() - begin)
    print("torch %s, best of %d rounds" % (torch.__version__, arguments.rounds))
    print("%-34s %10s %10s %8s" % ("", "memopt ms", "torch ms", "ratio"))
    for what in dict.fromkeys(name for name, _ in calls):
        ours, theirs = (
            1e3 * min(best[what, whose][1:]) for whose in ("memopt", "torch")
        )
        print("%-34s %10.3f %10.3f %8.2f" % (what, ours, theirs, ours / theirs))


if __name__ == "__main__":
    main()
