"""The pages of extras/planner/docs/recipes, the README and the guide quote what `memopt plan` says now."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import shlex
import shutil
from types import ModuleType
from typing import Iterator

import pytest

pytest.importorskip("ruamel.yaml")
pytest.importorskip("tomlkit")

ROOT = pathlib.Path(__file__).resolve().parents[5]
PLANNER = ROOT / "extras" / "planner"
PAGES = PLANNER / "docs" / "recipes"
NAMES = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README")


@pytest.fixture
def update(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """extras/planner/docs/recipes/update.py, which works at the repository's root."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("recipes_update", PAGES / "update.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_the_readme_and_the_guide_are_of_today(update: ModuleType) -> None:
    for page in update.OTHERS:
        text = page.read_text(encoding="utf-8")
        assert "\n$ memopt plan --model examples/llama-1.1b.json " in text
        lines = update.stale(text)
        assert not lines, "run extras/planner/docs/recipes/update.py\n" + "\n".join(lines)
        wrong = re.sub(r"(\d) GiB", lambda found: "%d GiB" % ((int(found[1]) + 1) % 10), text)
        assert update.stale(wrong)


def test_claims_of_guides_stay(update: ModuleType) -> None:
    """Rows of theirs are no commands."""
    rows = re.findall(r"^\| the guide, .*$", text_of("t4"), re.M)
    assert len(rows) == 2 and all(row in update.updated(text_of("t4")) for row in rows)


def text_of(name: str) -> str:
    return (PAGES / (name + ".md")).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_today(name: str, update: ModuleType) -> None:
    text = text_of(name)
    assert "| `memopt plan " in text
    lines = update.stale(text)
    assert not lines, "run extras/planner/docs/recipes/update.py\n" + "\n".join(lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_ends_with_a_file_that_fits(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, update: ModuleType
) -> None:
    """From the reader's file to one whose run fits, as the page's last command says."""
    blocks = re.findall(r"```console\n\$ (memopt plan .*?[^\\])\n", text_of(name), re.S)
    asked, last = (shlex.split(block.replace("\\\n", " "))[2:] for block in (blocks[0], blocks[-1]))
    assert "--device" not in asked + last and last[-2:] == ["--apply", "--dry-run"]
    file = last[last.index("--from") + 1]
    assert asked[: len(asked)] == last[: len(asked)]
    copy = shutil.copy(ROOT / file, tmp_path)
    last[last.index(file)] = str(copy)
    before = json.loads(update.call([*last[:-2], "--json"]))
    update.call([*last[:-1]])
    after = json.loads(update.call([*last[:-2], "--json"]))
    assert after["fits"] and after["effective_batch"] == before["effective_batch"]
    assert json.loads(update.call([*last[:-1], "--json"]))["apply"]["files"][0]["changes"] == []


def test_a_stale_number_is_noticed(update: ModuleType) -> None:
    text = text_of("t4")
    found = re.search(r"\| (\d+\.\d)\d GiB \| \d\.\d\d ×", text)
    assert found is not None
    wrong = "%.1f" % (float(found.group(1)) + 1)
    lines = update.stale(text[: found.start(1)] + wrong + text[found.end(1) :])
    assert any(line.startswith("-") and wrong in line for line in lines)
    assert any(line.startswith("+") and found.group(1) in line for line in lines)


def test_a_section_that_is_gone_is_noticed(update: ModuleType) -> None:
    text = update.OTHERS[1].read_text(encoding="utf-8")
    with pytest.raises(update.Failed, match="At the summit"):
        update.stale(text.replace("At the peak\n", "At the summit\n", 1))


def test_every_page_is_in_the_index() -> None:
    index = text_of("README")
    assert all("(%s.md)" % name in index for name in NAMES)
    assert {path.parent.name for path in (PLANNER / "recipes").glob("*/steps.toml")} == set(NAMES)
