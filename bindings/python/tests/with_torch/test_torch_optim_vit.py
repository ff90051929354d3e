"""Optimizers for torch with coded states on the gradients of a small vision transformer.

A run of its own amplifies every difference: weights that differ by one part in a million end as far
apart as 32-bit and 8-bit states (docs/guide/optimizer.md has the figures). So all optimizers get the
gradients of one run with torch's AdamW, and what is compared is how far their parameters are from it.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib

import pytest
import torch

import memopt.torch as mt

EXAMPLES = pathlib.Path(__file__).resolve().parents[4] / "examples" / "python"
STEPS, BATCH = 40, 8
VALUES = dict(lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)


@pytest.fixture(scope="module")
def common():
    pytest.importorskip("transformers")
    if not EXAMPLES.exists():
        pytest.skip("the examples are not beside this package")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import common
    return common


def distances(common, text_file, kinds):
    """How far each optimizer's parameters are from AdamW's, as parts of the way that AdamW went."""
    model = common.make_model("vit").train()
    start = [p.detach().clone() for p in model.parameters()]
    copies = {name: [p.clone().requires_grad_() for p in start] for name in kinds}
    optimizers = [kinds[name](copies[name], **VALUES) for name in kinds]
    optimizers.append(torch.optim.AdamW(model.parameters(), **VALUES))
    factor = common.warmup_and_cosine(STEPS)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    data = common.Windows(common.read_text(text_file), "vit", STEPS * BATCH)
    for batch in torch.utils.data.DataLoader(data, batch_size=BATCH):
        model.zero_grad(set_to_none=True)
        model(**batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for params in copies.values():
            for p, q in zip(params, model.parameters()):
                p.grad = q.grad.clone()
        for part in optimizers + schedules:
            part.step()

    def norm(a, b):
        return sum(((x - y).double() ** 2).sum().item() for x, y in zip(a, b)) ** 0.5

    goal = [p.detach() for p in model.parameters()]
    return {name: norm(params, goal) / norm(start, goal) for name, params in copies.items()}


def test_coded_states_are_near_and_8_bits_nearer_than_bitsandbytes(common, text_file):
    kinds = {"8bit": mt.AdamW8bit, "32bit": mt.AdamW, "4bit": mt.AdamW4bit}
    kinds["dynamic"] = functools.partial(mt.AdamW8bit, codes="dynamic")
    if importlib.util.find_spec("bitsandbytes"):
        kinds["theirs"] = importlib.import_module("bitsandbytes").optim.AdamW8bit
    found = distances(common, text_file, kinds)
    assert found["32bit"] < 1e-4 and 0.05 < found["4bit"] < 0.6
    assert max(found["8bit"], found["dynamic"]) < 0.05
    assert found["8bit"] < 0.85 * min(found["dynamic"], found.get("theirs", 1.0))
