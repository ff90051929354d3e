#!/usr/bin/env python3
"""Steps within budgets: mt.fit() beside the plain step, torch's checkpoint on every block, and offloading all.

    MEMOPT_LIBRARY=build/demo/libmemopt.so PYTHONPATH=bindings/python \\
        python tests/bench/torch_fit.py [--budgets 20] [--rounds 7] [--threads 2] [--only NAME]

With --budgets, so many budgets of each model, from the floor, the least that fit() can do, to what the plain step
takes: whether torch's profiler sees a higher peak than the budget, how much of it is used, and whether loss,
gradients and buffers are the same bits. Where less than 97 % is used, whether more memory buys time: all sets of
choices that are quicker are replayed, as far as those are not too many. Peaks are bytes of allocations, with weights
and the batch.

Without, times: each model is there once for each row, and a round runs one step of each, so that a disturbance of
the machine meets all alike; what counts is each row's best round. It reports and never fails on a time.
"""

import argparse
import contextlib
import itertools
import pathlib
import re
import sys
import time
import warnings

import torch
from torch.utils.checkpoint import checkpoint

import memopt
import memopt.torch as mt
from memopt.torch.fitting._choices import RECOMPUTE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "tests" / "with_torch"))
import fit_models  # noqa: E402

LARGE = {"layers": 4, "width": 192, "length": 128, "batch": 4, "words": 2048}
#: So large that what Python takes for each saved tensor does not decide.
TIMED = {
    "GPT-2, 4 layers of 192": lambda: fit_models.gpt2(**LARGE),
    "Llama, 4 layers of 192": lambda: fit_models.llama(**LARGE),
    "ViT, 4 layers of 192": lambda: fit_models.vit(layers=4, width=192, batch=8),
    "ResNet with BatchNorm, 5 blocks of 32": lambda: fit_models.resnet(width=32, size=32, batch=8),
}
PARTS = (0.1, 0.3, 0.5, 0.7)
#: So many sets of choices are replayed to find a quicker one.
MOST_SETS = 200000
MIB = 2.0**20


def fixed_of(model):
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])


def batch_of(step):
    return sum(c.cell_contents.nbytes for c in step.__closure__ if isinstance(c.cell_contents, torch.Tensor))


def peak_of(model, step, batch):
    """By torch's profiler: the most bytes that the step's allocations hold, and the model's and the batch's."""
    model.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = step()
        loss.backward()
    events = profiler.profiler.kineto_results.events()
    model.zero_grad()
    sizes = (event.nbytes() for event in events if event.name() == "[memory]")
    return fixed_of(model) + batch + max(itertools.accumulate(sizes, initial=0))


def checkpointed(model):
    """torch's checkpoint round every block."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model
    for block in model:
        if isinstance(block, fit_models.Residual):
            forward = block.forward
            block.forward = lambda x, run=forward: checkpoint(run, x, use_reentrant=False)
    return model


def fitted(make, budget, host=None):
    model, step = make()
    return model, step, mt.fit(model, None, step, budget=budget, host=host)


def floor_of(make):
    """The least budget that is held, kernels' scratch included."""
    budget = 1
    while True:
        try:
            fitted(make, budget)
            return budget
        except memopt.LimitReachedError as error:
            size, unit = re.search(r"the least is ([\d.]+) (\w+)", str(error)).groups()
            least = int(float(size) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit])
            budget = max(least, budget) + (least >> 9)


# --- budgets ---------------------------------------------------------------------------------------


def quicker_sets(choices, seconds):
    """All sets of choices whose times sum up to less, without two of the same value or module."""
    order = sorted(range(len(choices)), key=lambda i: -choices[i].seconds)

    def extend(at, chosen, left):
        yield chosen
        taken = {(choices[i].kind == RECOMPUTE, choices[i].module, choices[i].storage) for i in chosen}
        for k in range(at, len(order)):
            choice = choices[order[k]]
            if choice.seconds < left and (choice.kind == RECOMPUTE, choice.module, choice.storage) not in taken:
                yield from extend(k + 1, [*chosen, order[k]], left - choice.seconds)

    return extend(0, [], seconds * (1 - 1e-9))


def more_buys_time(fit):
    """Whether a quicker set of choices holds the plan's budget; None: there are too many sets to say."""
    planner, plan = fit._now.planner, fit._now
    budget = fit.budget - fit._states - fit._margin
    hooks = plan.seconds - planner.replay(chosen_of(fit)).seconds
    for number, chosen in enumerate(quicker_sets(planner.choices, plan.seconds - hooks)):
        if number == MOST_SETS:
            return None
        with contextlib.suppress(memopt.errors.InvalidArgumentError):  # they exclude each other
            if planner.replay(chosen).peak_bytes <= budget:
                return True
    return False


def chosen_of(fit):
    return fit._now.planner.solve(fit.budget - fit._states - fit._margin, *fit._limits()).chosen


def budgets(count, only):
    print("| model | plain, MiB | floor | held | same bits | used, least | used, mean | 97 % used | all tried: no quicker |"
          " a quicker one | not tried | planned, least and most s |")  # fmt: skip
    print("|---" * 12 + "|")
    for name, make in fit_models.MODELS.items():
        if only not in name:
            continue
        model, step = make()
        expected, plain, floor = fit_models.results(model, step), peak_of(model, step, batch_of(step)), floor_of(make)
        held, same, used, seconds, found = 0, 0, [], [], []
        for i in range(count):
            budget = int(floor + i / count * (plain - floor))
            model, step, fit = fitted(make, budget)
            same += fit_models.same(fit_models.results(model, step), expected)
            peak = peak_of(model, step, batch_of(step))
            held += peak <= budget
            used.append(peak / budget)
            found.append("used" if used[-1] >= 0.97 else more_buys_time(fit))
            start = time.process_time()
            fit._solve(fit._now)
            seconds.append(time.process_time() - start)
        print(
            "| %s | %.2f | %.2f | %d of %d | %d of %d | %.3f | %.3f | %s | %.2f, %.2f |"
            % (name, plain / MIB, floor / MIB, held, count, same, count, min(used), sum(used) / count,
               " | ".join(str(found.count(what)) for what in ("used", False, True, None)), min(seconds), max(seconds)),
            flush=True,
        )  # fmt: skip


# --- times -----------------------------------------------------------------------------------------


def rows_of(make):
    """(what, peak, one step, its Fit, its model) of each row; fits are made one by one, on models of their own."""
    model, step = make()
    batch = batch_of(step)
    plain, least = peak_of(model, step, batch), floor_of(make)
    rows = [("plain", plain, step, None, model)]
    blocks, step = make()
    checkpointed(blocks)
    theirs = peak_of(blocks, step, batch)
    rows.append(("torch, every block", theirs, step, None, blocks))
    asked = [("%.1f of the way" % part, int(least + part * (plain - least)), None) for part in PARTS]
    model, step = make()
    moving = fit_models.offloading(model, step)
    there = peak_of(model, moving, batch)
    rows.append(("offloading all", there, moving, None, model))
    asked += [("torch's bytes", max(theirs, least), None), ("offloading's bytes, with the host", there, "1GiB")]
    for name, budget, host in asked:
        try:
            model, step, fit = fitted(make, budget, host)
        except memopt.LimitReachedError:
            rows.append(("fit, %s: below the floor" % name, 0, None, None, None))
            continue
        assert fit.measured <= budget, (name, fit.measured, budget)
        rows.append(("fit, " + name, peak_of(model, step, batch), step, fit, model))
    return rows


def timed(rows, rounds):
    """Each row's best round."""
    best = [float("inf")] * len(rows)
    for _ in range(rounds):
        for i, (_, _, step, _, model) in enumerate(rows):
            if step is None:
                continue
            start = time.perf_counter()
            loss = step()
            loss.backward()
            best[i] = min(best[i], time.perf_counter() - start)
            del loss
            model.zero_grad()
    return best


def times(rounds, only):
    for title, make in TIMED.items():
        if only not in title:
            continue
        rows = rows_of(make)
        best = timed(rows, rounds)
        print("\n| %s | peak, MiB | step, ms | time ÷ plain | planned |" % title)
        print("|---|---|---|---|---|")
        for (name, peak, step, fit, _), seconds in zip(rows, best):
            said = [""] * 4
            if step is not None:
                said = ["%.2f" % (peak / MIB), "%.1f" % (seconds * 1e3), "%.3f" % (seconds / best[0]), ""]
            if fit is not None:
                said[3] = "%.3f" % (1 + fit.seconds / best[0])
            print("| %s | %s |" % (name, " | ".join(said)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--budgets", type=int, help="check so many budgets of each model")
    parser.add_argument("--only", default="", help="models whose name or title has this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if arguments.budgets:
        budgets(arguments.budgets, arguments.only)
    else:
        times(arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
