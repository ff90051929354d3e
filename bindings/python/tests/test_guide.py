"""The pieces of Python on the pages run. Those of other pages run in test_examples.py and, where they need
torch, in with_torch/test_torch_guide.py; and the command takes what pages show."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any, Dict, List

import pytest

import memopt
from memopt.cli import build_parser

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide"
PAGES = ("allocator",)
ELSEWHERE = {"python", "cast", "checkpoint", "offload", "optimizer", "race", "fit", "stream"}

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside this package")


def pieces(name: str, folder: pathlib.Path = GUIDE) -> List[str]:
    text = (folder / (name + ".md")).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.S)


def run(code: str, **names: Any) -> Dict[str, Any]:
    exec(compile(code, "a page", "exec"), names)
    return names


def test_no_piece_is_left_out() -> None:
    assert [len(pieces(name)) for name in PAGES] == [1]
    others = {page.stem for page in GUIDE.glob("*.md") if "```python" in page.read_text("utf-8")}
    assert {name for name in others if not name.startswith("pytorch")} == {*PAGES, *ELSEWHERE}


def commands(*more: pathlib.Path) -> List[str]:
    """What follows "$ memopt" in these documents, up to a pipe, a comment or another command."""
    root = GUIDE.parents[1]
    found: List[str] = []
    folders = (root / "docs", *more)
    pages = [page for folder in folders for page in sorted(folder.glob("**/*.md"))]
    for page in [root / "README.md", root / "CONTRIBUTING.md", *pages]:
        for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.S):
            lines = block.replace("\\\n", " ")
            found += re.findall(r"^\$ memopt ((?:'[^']*'|[^'|&#\n])*)", lines, re.M)
    return found


def check_shown(verb: str, shown: List[List[str]]) -> None:
    """The command takes what pages show of the verb."""
    assert shown
    for words in shown:
        build_parser(verb).parse_args([word for word in words if word != "…"])


def check_options(verb: str, text: str, *needed: str) -> None:
    """The text, or the page of the command, has every option of the verb."""
    text += (GUIDE / "command.md").read_text("utf-8")
    parser = build_parser(verb).parse_args([verb, *needed]).parser
    options = {word for each in parser._actions for word in each.option_strings if word[1] == "-"}
    assert not sorted(each for each in options if not re.search(each + r"(?![\w-])", text))


def test_info() -> None:
    shown = [words for words in map(shlex.split, commands()) if words[0] == "info"]
    check_shown("info", shown)
    check_options("info", "")


def test_a_history(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with memopt.Device("cpu", capacity="64MiB") as device:
        with memopt.Allocator(device) as allocator:
            names = run(pieces("allocator")[0], allocator=allocator)
            names.pop("block").free()
            del names
    assert "a page" in capsys.readouterr().out
    names_of_files = {path.name for path in tmp_path.iterdir()}
    assert names_of_files == {"memory.pickle", "memory.json", "memory.html"}
