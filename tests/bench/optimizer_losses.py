#!/usr/bin/env python3
"""Final losses of coded optimizer states beside those of the same rule with 32-bit states.

    python tests/bench/optimizer_losses.py [--steps 300] [--seeds 3] [--only AdamW8bit ...]
        [--models vit] [--json FILE]

Trains the examples' small GPT and vision transformer once for each class and seed of weights, on one
thread, and prints the mean loss of the last tenth of the steps: its mean over the seeds, and how far
it is from the 32-bit rule's. --json keeps the runs; a run on the same text (this repository's own, which
changes) that the file has is not run again.
"""

import argparse
import functools
import json
import pathlib
import sys
import zlib

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))

import memopt.torch as mt
from common import Windows, make_model, progress, read_text, warmup_and_cosine

MODELS = {"gpt": 2e-3, "vit": 5e-4}  # AdamW's learning rates
ADAM = dict(betas=(0.9, 0.95), weight_decay=0.1)
LION = dict(weight_decay=0.1, factor=0.2)
SGD = dict(momentum=0.9, factor=20)
LARS = dict(momentum=0.9, factor=20)

# Each class: the class whose loss it is compared with (None: it is one itself), and arguments;
# `factor` times AdamW's learning rate is its own. "moved": from weights that differ by one part in
# a million, which shows how far two runs of the same rule part.
CLASSES = {
    "torch.AdamW": (None, ADAM),
    "torch.AdamW, moved": ("torch.AdamW", ADAM),
    "AdamW": ("torch.AdamW", ADAM),
    "AdamW8bit": ("torch.AdamW", ADAM),
    "AdamW8bit, dynamic": ("torch.AdamW", dict(ADAM, codes="dynamic")),
    "AdamWBf16": ("torch.AdamW", ADAM),
    "AdamW4bit": ("torch.AdamW", ADAM),
    "torch.Adam": (None, dict(betas=(0.9, 0.95))),
    "Adam8bit": ("torch.Adam", dict(betas=(0.9, 0.95))),
    "Lion": (None, LION),
    "Lion8bit": ("Lion", LION),
    "torch.SGD": (None, SGD),
    "SGD8bit": ("torch.SGD", SGD),
    "torch.RMSprop": (None, dict(alpha=0.95)),
    "torch.RMSprop, moved": ("torch.RMSprop", dict(alpha=0.95)),
    "RMSprop8bit": ("torch.RMSprop", dict(alpha=0.95)),
    "torch.Adagrad": (None, dict(factor=5)),
    "torch.Adagrad, moved": ("torch.Adagrad", dict(factor=5)),
    "Adagrad8bit": ("torch.Adagrad", dict(factor=5)),
    "AdEMAMix": (None, dict(weight_decay=0.1)),
    "AdEMAMix8bit": ("AdEMAMix", dict(weight_decay=0.1)),
    "Muon": (None, dict(weight_decay=0.1, factor=10)),
    "Muon8bit": ("Muon", dict(weight_decay=0.1, factor=10)),
    "LAMB": (None, dict(weight_decay=0.1, factor=5)),
    "LAMB8bit": ("LAMB", dict(weight_decay=0.1, factor=5)),
    "LARS": (None, LARS),
    "LARS8bit": ("LARS", LARS),
}


def named(name):
    """A class of ours, at the top or not."""
    if name == "AdamWBf16":
        return functools.partial(mt.AdamW, states="bf16")
    return getattr(mt.optim, name, None) or getattr(mt.bnb, name)


def make(name, model, lr):
    """The optimizers of a class over a model: Muon leaves what is no matrix to AdamW."""
    module, _, base = name.partition(",")[0].rpartition(".")
    kind = getattr(torch.optim, base) if module else named(base)
    options = dict(CLASSES[name][1])
    options["lr"] = lr * options.pop("factor", 1)
    parameters = list(model.parameters())
    if not name.startswith("Muon"):
        return [kind(parameters, **options)]
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "token" not in n]
    others = [p for p in parameters if all(p is not m for m in matrices)]
    return [kind(matrices, **options), mt.AdamW(others, lr=lr, **ADAM)]


def train(model_name, name, seed, steps, text, batch=8):
    """The mean loss of the last tenth of a run."""
    model = make_model(model_name, seed=seed)
    if name.endswith("moved"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-6 * torch.randn_like(parameter))
    data = Windows(text, model_name, steps * batch, seed=100 + seed)
    optimizers = make(name, model, MODELS[model_name])
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, warmup_and_cosine(steps)) for o in optimizers
    ]
    torch.manual_seed(seed)
    losses = []
    for step in progress(steps, "%s %s %d" % (model_name, name, seed)):
        windows = [data[step * batch + i] for i in range(batch)]
        inputs = {
            key: torch.stack([torch.as_tensor(window[key]) for window in windows])
            for key in windows[0]
        }
        loss = model(**inputs)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


def table(runs, names, models, seeds):
    """Rows of Markdown: for each model the mean, the difference, and the seeds' differences."""
    print("| class | %s |" % " | ".join("%s: loss | ÷ 32-bit − 1 | each seed" % m for m in models))
    print("|---" * (1 + 3 * len(models)) + "|")
    for name in names:
        cells = [name]
        for model in models:
            own = [runs["%s %s %d" % (model, name, seed)] for seed in range(1, seeds + 1)]
            cells.append("%.4f" % (sum(own) / seeds))
            like = CLASSES[name][0]
            if like is None:
                cells += ["", ""]
                continue
            base = [runs["%s %s %d" % (model, like, seed)] for seed in range(1, seeds + 1)]
            cells.append("%+.2f %%" % (100 * (sum(own) / sum(base) - 1)))
            cells.append(", ".join("%+.2f" % (100 * (a / b - 1)) for a, b in zip(own, base)))
        print("| %s |" % " | ".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CLASSES, help="these and what they follow")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", type=pathlib.Path, help="runs, kept between calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = options.only or list(CLASSES)
    names = [n for n in CLASSES if n in wanted or any(CLASSES[w][0] == n for w in wanted)]
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    text = read_text()
    runs = kept.setdefault("%d steps of text %08x" % (options.steps, zlib.crc32(text)), {})
    for name in names:
        for model in options.models:
            for seed in range(1, options.seeds + 1):
                key = "%s %s %d" % (model, name, seed)
                if key not in runs:
                    runs[key] = train(model, name, seed, options.steps, text)
                    if options.json:
                        options.json.write_text(json.dumps(kept, indent=1))
    table(runs, names, options.models, options.seeds)


if __name__ == "__main__":
    main()
