"""The recipes of extras/planner/recipes, each through its command line, as a user runs them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

pytest.importorskip("transformers")
pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")
pytest.importorskip("safetensors")

import memopt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[5]
PLANNER = ROOT / "extras" / "planner"
RECIPES = PLANNER / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/steps.toml"))


def start(script: pathlib.Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Runs a recipe in a new process."""
    environment = dict(os.environ)
    here = os.path.dirname(os.path.dirname(memopt.__file__))
    environment["PYTHONPATH"] = os.pathsep.join([here, environment.get("PYTHONPATH", "")])
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )


def test_there_are_five() -> None:
    assert NAMES == ["4x44gb", "contrastive", "rx6750xt", "t4", "video"]


@pytest.mark.parametrize("name", NAMES)
def test_recipe(name: str) -> None:
    """Each change saves what steps.toml says, planned and measured."""
    done = start(RECIPES / "run.py", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  ok   " in done.stdout and "  NO " not in done.stdout


def test_one_command_for_all_names_them() -> None:
    done = start(RECIPES / "run.py", "no-such-recipe")
    assert done.returncode == 2
    assert all(name in done.stderr for name in NAMES)


def test_a_saving_that_is_not_there_is_noticed(tmp_path: pathlib.Path) -> None:
    """The contrastive recipe without LoRA, which it says saves the gradients."""
    shutil.copytree(RECIPES, tmp_path / "recipes")
    steps = tmp_path / "recipes" / "contrastive" / "steps.toml"
    text = steps.read_text()
    assert "set = { lora = 8 }" in text
    steps.write_text(text.replace("set = { lora = 8 }", "set = { lora = false }"))
    done = start(tmp_path / "recipes" / "run.py", "contrastive")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NO   LoRA of rank 8: gradients 0 % measured, 0 % planned" in done.stdout
