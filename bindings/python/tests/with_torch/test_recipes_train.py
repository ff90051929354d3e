"""The files that the walks of docs/recipes end with, as real trainers read them: two optimizer steps
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

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")
pytest.importorskip("safetensors")

import memopt.torch as mt  # noqa: E402
from memopt.cli import main  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[4]
RECIPES = ROOT / "examples" / "recipes"
#: Tokens of the guides' sequences for one here.
SHORTER = 64


@pytest.fixture(scope="module")
def recipe() -> Iterator[Any]:
    """Modules of examples/recipes."""
    sys.path.insert(0, str(RECIPES))
    try:
        from recipe import models, settings

        yield SimpleNamespace(models=models, load=settings.load)
    finally:
        sys.path.remove(str(RECIPES))


class Keys(Dict[str, Any]):
    """A section of a file, which notes what is read of it."""

    def __init__(self, values: Dict[str, Any], read: Set[str], path: str = "") -> None:
        super().__init__(values)
        self._read, self._path = read, path

    def __getitem__(self, key: str) -> Any:
        value, path = super().__getitem__(key), self._path + key
        if isinstance(value, dict):
            return Keys(value, self._read, path + ".")
        self._read.add(path)
        return value


def flat(values: Dict[str, Any], path: str = "") -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict)
        found.update(flat(value, path + key + ".") if inner else {path + key: value})
    return found


def applied(name: str, folder: pathlib.Path, monkeypatch: Any) -> pathlib.Path:
    """The file of a page's last command, changed by it."""
    page = (ROOT / "docs" / "recipes" / (name + ".md")).read_text(encoding="utf-8")
    block = re.findall(r"```console\n\$ memopt (plan .*?[^\\])\n", page, re.S)[-1]
    words: List[str] = shlex.split(block.replace("\\\n", " "))
    assert words.pop() == "--dry-run"
    place = words.index("--from") + 1
    words[place] = str(shutil.copy(ROOT / words[place], folder))
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    return pathlib.Path(words[place])


def train_with_transformers(task: Any, file: Any, folder: pathlib.Path) -> Any:
    """`transformers.Trainer` with the file's arguments. Its fp16 needs a GPU: bf16 is in its place."""
    names = {field for field in transformers.TrainingArguments.__dataclass_fields__}
    arguments = {key: file[key] for key in list(file) if key in names}
    arguments.update(bf16=arguments.pop("fp16") or arguments["bf16"])
    taken = transformers.TrainingArguments(
        str(folder), use_cpu=True, max_steps=2, report_to=[], save_strategy="no", **arguments
    )
    rows = [{k: v[0] for k, v in task.batch().items()} for _ in range(16)]
    trainer = transformers.Trainer(task.model, taken, train_dataset=rows * 64)
    loss = trainer.train().training_loss
    return SimpleNamespace(
        steps=trainer.state.global_step,
        loss=loss,
        optimizer=type(trainer.optimizer.optimizer).__name__,
    )


def train_with_lightning(task: Any, settings: Any) -> Any:
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
            kind = getattr(mt, settings.optimizer, None) or getattr(torch.optim, settings.optimizer)
            return kind(self.net.parameters(), lr=1e-4)

    count = 2 * settings.accumulation
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision=settings.precision,
        accumulate_grad_batches=settings.accumulation,
    )  # fmt: skip
    batches = [task.batch() for _ in range(count)]
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    assert len(losses) == count
    optimizer = type(trainer.optimizers[0]).__name__
    return SimpleNamespace(steps=trainer.global_step, loss=sum(losses), optimizer=optimizer)


#: Where the files of Lightning's users have what, and what the page's command line says itself.
NESTED = {
    "video": ("data_loader", "training.trainer.accumulate_grad_batches", {"images": 4}),
    "contrastive": (
        "data_loader", "training.trainer.accumulate_grad_batches", {"positives": 1, "negatives": 7},
    ),
    "rx6750xt": ("data", "trainer.accumulate", {}),
}  # fmt: skip


def at(file: Any, path: str) -> Any:
    for key in path.split("."):
        file = file[key]
    return file


@pytest.mark.parametrize("name", ["4x44gb", "contrastive", "rx6750xt", "t4", "video"])
def test_the_file_of_a_walk_trains(
    name: str, recipe: Any, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    path = applied(name, tmp_path, monkeypatch)
    values, before = recipe.load(path), recipe.load(RECIPES / name / path.name)
    read: Set[str] = set()
    file = Keys(values, read)
    small = RECIPES / name / "small.json"
    if name in NESTED:
        data, accumulation, more = NESTED[name]
        section = file[accumulation.split(".")[0]]
        loop = at(file, accumulation.rpartition(".")[0])
        sequence = file[data]["sequence"] if "sequence" in file[data] else 512
        shape = {"batch": file[data]["batch_size"], "seq": sequence // SHORTER}
        task = recipe.models.Task(small, {**shape, **more})
        owner = file if "optimizer" in file else section
        settings = SimpleNamespace(
            precision=loop["precision"],
            accumulation=at(file, accumulation),
            optimizer=owner["optimizer"]["name"] if "optimizer" in owner else "AdamW",
        )
        model, optimizer = getattr(task.model, "encoder", task.model), settings.optimizer
        checkpointing = section["gradient_checkpointing"]
        if checkpointing:
            model.gradient_checkpointing_enable()
        done = train_with_lightning(task, settings)
    else:
        task = recipe.models.Task(small, {"batch": 1, "seq": file["max_length"] // SHORTER})
        model, checkpointing = task.model, values["gradient_checkpointing"]
        done = train_with_transformers(task, file, tmp_path)
        optimizer = {"adamw_torch": "AdamW", "adamw_bnb_8bit": "AdamW"}[values["optim"]]
    assert done.steps == 2 and math.isfinite(done.loss)
    assert done.optimizer == optimizer
    assert model.is_gradient_checkpointing == checkpointing
    changed = {key for key, value in flat(values).items() if flat(before).get(key) != value}
    assert changed and changed <= read, changed - read
