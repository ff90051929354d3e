"""The files that the walks of extras/planner/docs/recipes end with, as real trainers read them: two optimizer steps
of the scaled-down model on the CPU, and no key that was written is left unread."""

from __future__ import annotations

import math
import pathlib
import re
import shlex
import shutil
import sys
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Set

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")
pytest.importorskip("safetensors")

import memopt.torch as mt
from memopt.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[5]
PLANNER = ROOT / "extras" / "planner"
RECIPES = PLANNER / "recipes"
#: Tokens of the guides' sequences for one here.
SHORTER = 64


@pytest.fixture(scope="module")
def recipe() -> Iterator[Any]:
    """Modules of extras/planner/recipes."""
    sys.path.insert(0, str(RECIPES))
    try:
        from recipe import models, settings

        yield SimpleNamespace(models=models, load=settings.load)
    finally:
        sys.path.remove(str(RECIPES))


class File:
    """The values of a file, which notes what is read of it."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self.values = flat(values)
        self.read: Set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.values[key]


def flat(values: Dict[str, Any], path: str = "") -> Dict[str, Any]:
    """By dotted keys."""
    found: Dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict)
        found.update(flat(value, path + key + ".") if inner else {path + key: value})
    return found


def applied(name: str, folder: pathlib.Path, monkeypatch: Any) -> pathlib.Path:
    """The file of a page's last command, changed by it."""
    page = (PLANNER / "docs" / "recipes" / (name + ".md")).read_text(encoding="utf-8")
    block = re.findall(r"```console\n\$ memopt (plan .*?[^\\])\n", page, re.S)[-1]
    words: List[str] = shlex.split(block.replace("\\\n", " "))
    assert words.pop() == "--dry-run"
    place = words.index("--from") + 1
    words[place] = str(shutil.copy(ROOT / words[place], folder))
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    return pathlib.Path(words[place])


def train_with_transformers(task: Any, file: File, folder: pathlib.Path) -> Any:
    """`transformers.Trainer` with the file's arguments. Its fp16 needs a GPU: bf16 is in its place."""
    names = transformers.TrainingArguments.__dataclass_fields__
    arguments = {key: file[key] for key in file.values if key in names}
    arguments.update(bf16=arguments.pop("fp16") or arguments["bf16"])
    taken = transformers.TrainingArguments(
        str(folder), use_cpu=True, max_steps=2, report_to=[], save_strategy="no", **arguments
    )
    rows = [{k: v[0] for k, v in task.batch().items()} for _ in range(16)]
    trainer = transformers.Trainer(task.model, taken, train_dataset=rows * 64)
    loss = trainer.train().training_loss
    return trainer.state.global_step, loss, trainer.optimizer.optimizer


def train_with_lightning(task: Any, precision: str, accumulation: int, optimizer: Any) -> Any:
    """`lightning.Trainer` with the file's precision and accumulation."""
    lightning = pytest.importorskip("lightning")
    losses: List[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model

        def training_step(self, batch: Any, number: int) -> Any:
            loss = task.loss(batch)
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer(self.net.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision=precision,
        accumulate_grad_batches=accumulation,
    )  # fmt: skip
    batches = [task.batch() for _ in range(2 * accumulation)]
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    assert len(losses) == len(batches)
    return trainer.global_step, sum(losses), trainer.optimizers[0]


#: Where files for Lightning have the loop and the rest, and what the page's command says itself.
NESTED = {
    "video": ("training.trainer.accumulate_grad_batches", "training", {"images": 4}),
    "contrastive": (
        "training.trainer.accumulate_grad_batches", "training", {"positives": 1, "negatives": 7},
    ),
    "rx6750xt": ("trainer.accumulate", "trainer", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["4x44gb", "contrastive", "rx6750xt", "t4", "video"])
def test_the_file_of_a_walk_trains(name: str, recipe: Any, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    path = applied(name, tmp_path, monkeypatch)
    file, before = File(recipe.load(path)), flat(recipe.load(RECIPES / name / path.name))
    small = RECIPES / name / "small.json"
    if name in NESTED:
        loop, rest, more = NESTED[name]
        data = "data_loader." if "data_loader.batch_size" in file.values else "data."
        sequence = file["data.sequence"] if "data.sequence" in file.values else 512
        shape = {"batch": file[data + "batch_size"], "seq": sequence // SHORTER}
        if "images" in more:
            more = {"images": max(file["data_loader.max_frames"] // 2, 1)}
        task = recipe.models.Task(small, {**shape, **more})
        model = getattr(task.model, "encoder", task.model)
        checkpointing = file[rest + ".gradient_checkpointing"]
        if checkpointing:
            model.gradient_checkpointing_enable()
        names = [key for key in file.values if key.endswith("optimizer.name")]
        word = file[names[0]] if names else "AdamW"
        kind = getattr(mt, word, None) or getattr(torch.optim, word)
        precision = file[loop.rpartition(".")[0] + ".precision"]
        steps, loss, optimizer = train_with_lightning(task, precision, file[loop], kind)
    else:
        task = recipe.models.Task(small, {"batch": 1, "seq": file["max_length"] // SHORTER})
        model, checkpointing = task.model, file.values["gradient_checkpointing"]
        eight = file.values["optim"] == "adamw_bnb_8bit"
        kind = pytest.importorskip("bitsandbytes").optim.AdamW if eight else torch.optim.AdamW
        steps, loss, optimizer = train_with_transformers(task, file, tmp_path)
    assert steps == 2 and math.isfinite(loss)
    assert isinstance(optimizer, kind) and model.is_gradient_checkpointing == checkpointing
    changed = {key for key, value in file.values.items() if before.get(key) != value}
    assert changed and changed <= file.read, changed - file.read
