"""fit() in training as people write it: scaled and accumulated gradients, autocast, frameworks, two processes."""

from __future__ import annotations

import pathlib
import runpy
import sys
import warnings

import fit_models as models
import pytest
import torch
from fit_models import results, same
from torch import nn
from torch.nn import functional as F

import memopt
import memopt.torch as mt
from distributed_support import Group, meet
from memopt.torch._live_bytes import LiveBytes


def gradients(model, step):
    """What a step that calls backward() leaves."""
    model.zero_grad()
    step()
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    return found


def plain_bytes(model, step, optimizer=None):
    fit = mt.fit(model, optimizer, step, budget="1GiB")
    fit.remove()
    return fit.plain_bytes


def test_micro_batches_under_a_scaler():
    model, _ = models.stack()
    batches, scaler = torch.randn(3, 64, 32), torch.amp.GradScaler("cpu", init_scale=256.0)

    def step():
        for x in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().square().mean()
            scaler.scale(loss / 3).backward()

    expected = gradients(model, step)
    plain = plain_bytes(model, step)
    fit = mt.fit(model, None, step, budget=int(0.93 * plain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(gradients(model, step), expected)
    assert fit.choices and 0.95 * fit.peak_bytes <= fit.measured <= fit.budget


def test_gradients_that_are_there_already():
    """They take bytes: such a step is planned anew, without touching them."""
    model, step = models.stack()
    plain = plain_bytes(model, step)
    step().backward()
    before = [p.grad.clone() for p in model.parameters()]
    fit = mt.fit(model, None, step, budget=int(0.9 * plain))
    with pytest.warns(UserWarning, match="that adds to gradients was planned"):
        loss = step()
    assert fit.plain_bytes > plain and fit.peak_bytes <= fit.budget
    assert same([p.grad for p in model.parameters()], before)
    loss.backward()
    del loss
    fixed = [t for p in model.parameters() for t in (p, p.grad)]
    with LiveBytes(fixed) as live:
        step().backward()
    assert sum(t.nbytes for t in fixed) + live.peak <= fit.budget
    assert same([p.grad for p in model.parameters()], [3 * g for g in before])


def test_the_optimizers_states_come_later():
    """Also: without a step the first forward is planned."""
    model, x = models.Scored(), torch.randn(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    plain = plain_bytes(model, lambda: model(x))
    fit = mt.fit(model, optimizer, budget=plain)
    choices = []
    for _ in range(3):
        model(x).backward()
        choices.append(len(fit.choices))
        optimizer.step()
        optimizer.zero_grad()
    assert choices[0] == 0 < choices[1] == choices[2] and fit.peak_bytes <= plain < fit.plain_bytes
    fit.remove()
    with pytest.raises(TypeError, match="must give its loss"):
        mt.fit(model.body, budget=plain)
        model.body(x)


def test_a_plan_made_under_autocast():
    """Autocast keeps casts of weights until its end: those of planned runs have no graph."""
    model, x = models.Scored(), torch.randn(64, 32)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x)
        loss.backward()

    expected = gradients(model, step)
    fit = mt.fit(model, budget="1GiB")
    assert same(gradients(model, step), expected) and fit.plain_bytes
    model.eval()
    model(x[:7])  # not a training step: it is not planned
    assert "1, 0 steps not as planned" in fit.table()
    fit.remove()


def test_shapes_that_cannot_be_planned():
    """The loss takes labels that another batch does not fit."""
    torch.manual_seed(0)
    model, labels = nn.Sequential(models.Block(), models.Block()), torch.randint(0, 32, (64,))
    x, other = torch.randn(64, 32), torch.randn(48, 32)
    fit = mt.fit(model, None, lambda: F.cross_entropy(model(x), labels), budget="1GiB")
    with pytest.warns(UserWarning, match=r"48x32:float32 cannot be planned \(ValueError"):
        model(other).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(other).sum().backward()
    fit.budget = 1
    with pytest.raises(memopt.LimitReachedError, match="the budget is 1 B"):
        fit._step = lambda: model(x).sum()
        model(other[:8])
    fit.remove()


def test_released_gradients():
    """Below the floor, and only where they are allowed: the same steps, within backward."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))

    def train(budget, **options):
        torch.manual_seed(0)
        model = models.Scored()
        optimizer = mt.AdamW(model.parameters(), lr=1e-3)
        fit = mt.fit(model, optimizer, lambda: model(x), budget=budget, **options)
        for _ in range(3):
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.parameters()], fit

    expected, plain = train("1GiB", allow=("release",))
    assert plain.release is None
    budget = int(0.7 * plain.plain_bytes)
    with pytest.raises(memopt.LimitReachedError, match=r"allow=\('release',\) would lower the least by [\d.]+ KiB"):
        train(budget)
    found, fit = train(budget, allow=("release",))
    assert fit.release is not None and same(found, expected)
    assert fit._measure(fit._now, lambda: fit._model(x)) <= budget and fit.peak_bytes <= budget
    fit.remove()
    with pytest.raises(ValueError, match="allow='loss' is not known"):
        mt.fit(fit._model, budget=budget, allow=("loss",))


EXAMPLE = pathlib.Path(__file__).resolve().parents[4] / "examples" / "python" / "fit.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not beside this package")
def test_the_example(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fit.py", "--budget", "70%"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert end.value.code == 0 and "the same bits" in said and " again  " in said


# --- frameworks ------------------------------------------------------------------------------------


def batches_of(words=512, count=4, length=64):
    ids = torch.randint(0, words, (2 * count, length), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def trained(folder, callbacks, **options):
    """The model after the Trainer's training, and the most bytes from the third step on."""
    transformers = pytest.importorskip("transformers")
    model, _ = models.gpt2(layers=2)
    fixed = [*model.parameters(), *model.buffers()]
    live = LiveBytes(fixed)

    class Seen(transformers.TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            if args[1].global_step == 2:
                live.peak = live.live

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_steps=100, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=batches_of(), callbacks=[*callbacks, Seen()])
    trainer.remove_callback(transformers.PrinterCallback)
    with live:
        trainer.train()
    return model, sum(t.nbytes for t in fixed) + live.peak


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer(tmp_path, accumulate):
    plain, most = trained(tmp_path, [], gradient_accumulation_steps=accumulate)
    callback = mt.Fit.for_trainer(budget=int(0.85 * most))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, peak = trained(tmp_path, [callback], gradient_accumulation_steps=accumulate, gradient_checkpointing=True)
    assert same([*model.parameters()], [*plain.parameters()])
    assert callback.fit.choices and not callback.fit.unplanned and "forward" not in vars(model)
    assert callback.fit.measured and callback.fit.peak_bytes <= callback.fit.budget
    assert peak <= 1.01 * callback.fit.budget


def least_of(callback):
    """The least budget that it can hold."""
    now = callback.fit._now
    return now.planner.solve(0, *callback.fit._limits()).peak + now.states


def test_the_trainers_disk(tmp_path):
    """Near the floor values go there, by way of a full host."""
    with pytest.raises(ValueError, match="pass host="):
        mt.Fit.for_trainer("1GiB", disk=tmp_path)
    places = {"host": "48KiB", "disk": tmp_path}
    plain, _ = trained(tmp_path, [])
    wide = mt.Fit.for_trainer("1GiB", **places)
    trained(tmp_path, [wide])
    callback = mt.Fit.for_trainer(int(1.02 * least_of(wide)), **places)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _ = trained(tmp_path, [callback])
    assert same([*model.parameters()], [*plain.parameters()]) and not callback.fit.unplanned
    assert callback.fit.disk_bytes > 0 < callback.fit.host_bytes <= 48 << 10


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")

    def train(budget):
        model, _ = models.gpt2(layers=2)
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer = accelerator.prepare(model, optimizer)
        fit = None if budget is None else mt.fit(accelerator.unwrap_model(model), optimizer, budget=budget)
        for row in batches_of():
            with accelerator.accumulate(model):
                ids = row["input_ids"][None]
                accelerator.backward(model(input_ids=ids, labels=ids).loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        return model, fit

    plain, fit = train("1GiB")
    assert not fit.choices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, fit = train(int(0.8 * fit.plain_bytes))
    assert same([*model.parameters()], [*train(None)[0].parameters()])
    assert fit.choices and not fit.unplanned and fit.peak_bytes <= fit.budget


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = models.Scored()

        def training_step(self, batch, number):
            loss = self.body(batch[0])
            self.log("loss", loss)
            return {"loss": loss}

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train(callback):
        module, x = Module(), torch.randn(256, 32, generator=torch.Generator().manual_seed(1))
        trainer = lightning.Trainer(
            max_steps=4, accelerator="cpu", callbacks=callback, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=64)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?!fit:)")
            trainer.fit(module, loader)
        return module, trainer.callback_metrics["loss"]

    plain, loss = train([])
    least = mt.Fit.for_lightning(budget="1GiB")
    train([least])
    callback = mt.Fit.for_lightning(budget=int(0.85 * least.fit.plain_bytes))
    module, again = train([callback])
    assert same([*module.parameters()], [*plain.parameters()]) and torch.equal(loss, again)
    assert callback.fit.choices and callback.fit.peak_bytes <= callback.fit.budget
    assert "training_step" not in vars(module) and "log" not in vars(module)


# --- processes -------------------------------------------------------------------------------------


def in_ddp(rank):
    """Each process plans for itself: before DDP, or within its forward. Plans take one process longer than the other,
    seconds on a busy machine, so they meet before a collective, whose limit is short."""
    model = models.Scored()
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(rank))
    whole = torch.nn.parallel.DistributedDataParallel(model)

    def forward():
        loss = whole(x)
        meet()
        return loss

    expected = results(whole, forward)
    found = []
    for step in (lambda: model(x), None):
        fit = mt.fit(model, None, step, budget="700KiB")
        meet()
        found.append(same(results(whole, forward), expected))
        fit.remove()
        found.append(bool(fit.choices))
    return found


def in_fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    model, step = models.stack()
    fully_shard(model)
    try:
        mt.fit(model, None, step, budget="700KiB")
    except NotImplementedError as error:
        return str(error)


@pytest.fixture(scope="module")
def run():
    group = Group(2, "gloo")
    yield group.run
    group.close()


def test_ddp(run):
    one, other = run(in_ddp)
    assert one == other == [True] * 4


def test_fsdp_is_refused(run):
    assert all("is sharded (a DTensor)" in found for found in run(in_fsdp))
