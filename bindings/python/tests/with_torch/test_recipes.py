"""The recipes of examples/recipes, each through its command line, as a user runs them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any, Dict, List

import pytest

pytestmark = pytest.mark.long

pytest.importorskip("transformers")
pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")
pytest.importorskip("safetensors")

ROOT = pathlib.Path(__file__).resolve().parents[4]
RECIPES = ROOT / "examples" / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/steps.toml"))


def start(script: pathlib.Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Runs a recipe in a new process."""
    environment = dict(os.environ)
    here = str(ROOT / "bindings" / "python")
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
def test_recipe(name: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "result.json"
    done = start(RECIPES / name / "run.py", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert all(check["holds"] for check in result["checks"])
    assert "  NO " not in done.stdout
    check_savings(name, result["steps"])


def check_savings(name: str, steps: List[Dict[str, Any]]) -> None:
    """Sizes that hold whatever `steps.toml` expects."""
    first, last = steps[0]["measured"], steps[-1]["measured"]
    for kind in ("planned", "measured"):
        assert steps[-1][kind]["peak"] < 0.75 * steps[0][kind]["peak"]
    assert last["activations"] < 0.4 * first["activations"]
    if name == "t4":
        assert last["optimizer"] * 3.8 < first["optimizer"]
        assert last["parameters"] * 2 <= first["parameters"] + 512  # buffers stay
    if name == "video":
        assert last["gradients"] * 2 == first["gradients"]
    if name == "contrastive":
        assert last["gradients"] * 50 < first["gradients"]


def test_one_command_for_all_names_them() -> None:
    done = start(RECIPES / "run.py", "no-such-recipe")
    assert done.returncode == 2
    assert all(name in done.stderr for name in NAMES)


def test_a_saving_that_is_not_there_is_noticed(tmp_path: pathlib.Path) -> None:
    """The contrastive recipe without LoRA, which it says saves the gradients."""
    shutil.copytree(RECIPES / "recipe", tmp_path / "recipe")
    shutil.copytree(RECIPES / "contrastive", tmp_path / "contrastive")
    steps = tmp_path / "contrastive" / "steps.toml"
    text = steps.read_text()
    assert "set = { lora = 8 }" in text
    steps.write_text(text.replace("set = { lora = 8 }", "set = { lora = false }"))
    done = start(tmp_path / "contrastive" / "run.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NO   LoRA of rank 8: gradients 0 % measured, 0 % planned" in done.stdout
