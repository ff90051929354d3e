#!/usr/bin/env python3
"""Steps with streamed weights beside the step whose weights are on the device.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_stream.py [--rounds 9] [--threads 2]

A Llama of 8 layers with LoRA, forward and backward, in arenas of 1 to 6 layers. A round runs one step of each, so that
a disturbance of the machine meets all alike; what counts is each row's best round. On the CPU device copies run in
line, so the limit is the step's own time and that of the copies, at the speed of a memcpy of a layer. It reports and
never fails on a time.
"""

import argparse
import pathlib
import sys
import time

import torch

import memopt.torch as mt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "tests" / "with_torch"))
import fit_models  # noqa: E402
import stream_models  # noqa: E402

SIZES = {"layers": 8, "width": 512, "length": 128, "batch": 2, "words": 1024}
ARENAS = (1, 2, 3, 4, 6)


def made():
    model, step = fit_models.llama(**SIZES)
    return stream_models.adapted(model), step


def gradients(model, step):
    model.zero_grad()
    torch.manual_seed(0)
    step().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def link(nbytes, times=9):
    """Bytes a second of a copy."""
    source, target = torch.ones(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8)
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - begin)
    return nbytes / best


def timed(rows, rounds):
    """Of each row the best round's seconds."""
    best = [float("inf")] * len(rows)
    for _ in range(rounds):
        for number, (model, step, _) in enumerate(rows):
            model.zero_grad()
            begin = time.perf_counter()
            step().backward()
            best[number] = min(best[number], time.perf_counter() - begin)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = made()
    expected, rows, same = gradients(*plain), [(*plain, None)], []
    layer = sum(p.nbytes for p in plain[0].model.layers[0].parameters() if not p.requires_grad)
    for count in ARENAS:
        model, step = made()
        stream = mt.stream_weights(model.model.layers, count * layer)
        same.append(all(map(torch.equal, expected, gradients(model, step))))
        rows.append((model, step, stream))
    timed(rows, 2)
    before = [None if stream is None else stream.stats()["copies"] for _, _, stream in rows]
    best, speed = timed(rows, options.rounds), link(layer)
    print("link: %.1f GB/s; a layer: %.2f MiB\n" % (speed / 1e9, layer / 2**20))
    print("| in the arena | budget, MiB | peak, MiB | same bits | copies a step | step, ms | ÷ unstreamed | ÷ limit |")
    print("|---|---|---|---|---|---|---|---|")
    print("| all 8 | – | – | – | 0 | %.1f | 1.000 | – |" % (1e3 * best[0]))
    for count, equal, (_, _, stream), copied, seconds in zip(ARENAS, same, rows[1:], before[1:], best[1:]):
        stats = stream.stats()
        limit = best[0] + stats["copied_bytes_a_step"] / speed
        print(
            "| %d of 8 | %.2f | %.2f | %s | %.1f | %.1f | %.3f | %.3f |"
            % (count, stats["budget"] / 2**20, stats["resident_bytes_peak"] / 2**20, "yes" if equal else "NO",
               (stats["copies"] - copied) / options.rounds, 1e3 * seconds, seconds / best[0], seconds / limit)
        )  # fmt: skip


if __name__ == "__main__":
    main()
