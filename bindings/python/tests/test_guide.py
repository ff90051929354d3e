"""The pieces of Python on the pages of the command and of the monitor run. Those of the other pages run
in test_examples.py and, where they need torch, in with_torch/test_torch_guide.py."""

from __future__ import annotations

import pathlib
import pickle
import re
import shlex
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest
import traces

import memopt.tools
from memopt.cli import VERBS, build_parser

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide"
PAGES = (
    "allocator", "command-plan-apply", "command-profile", "command-replay", "monitor", "plan",
)
NEEDED = {"replay": ["run.csv"], "profile": ["true"]}
ELSEWHERE = {"command-plan", "python", "cast", "checkpoint", "offload", "optimizer"}

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside this package")


def pieces(name: str) -> List[str]:
    text = (GUIDE / (name + ".md")).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.S)


def run(code: str, **names: Any) -> Dict[str, Any]:
    exec(compile(code, "a page", "exec"), names)
    return names


def test_no_piece_is_left_out() -> None:
    """Of command-replay the first piece needs a GPU."""
    assert [len(pieces(name)) for name in PAGES] == [1, 1, 1, 2, 1, 1]
    others = {page.stem for page in GUIDE.glob("*.md") if "```python" in page.read_text("utf-8")}
    assert {name for name in others if not name.startswith("pytorch")} == {*PAGES, *ELSEWHERE}


def commands() -> List[str]:
    """What follows "$ memopt" in all documents, up to a pipe, a comment or another command."""
    root = GUIDE.parents[1]
    found: List[str] = []
    for page in [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/**/*.md"))]:
        for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.S):
            lines = block.replace("\\\n", " ")
            found += re.findall(r"^\$ memopt ((?:'[^']*'|[^'|&#\n])*)", lines, re.M)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_takes_what_pages_show(verb: str) -> None:
    shown = [words for words in map(shlex.split, commands()) if words[0] == verb]
    assert shown
    for words in shown:
        build_parser(verb).parse_args([word for word in words if word != "…"])


@pytest.mark.parametrize("verb", VERBS)
def test_pages_have_every_option(verb: str) -> None:
    """In the verb's page, or its section of the page of the command."""
    pages = [*GUIDE.glob("command-%s*.md" % verb), GUIDE / "command.md"]
    text = "".join(page.read_text("utf-8") for page in pages)
    parser = build_parser(verb).parse_args([verb, *NEEDED.get(verb, [])]).parser
    options = {word for each in parser._actions for word in each.option_strings if word[1] == "-"}
    assert not sorted(each for each in options if not re.search(each + r"(?![\w-])", text))


def test_planning(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = pieces("plan")
    found = run(code)["found"]
    assert found.peak.total > 2**30
    assert capsys.readouterr().out == "%d %s %s\n" % (found.peak.total, found.peak_phase, found.fits)


def test_phases() -> None:
    seen: List[str] = []
    loss = SimpleNamespace(backward=lambda: seen.append("backward"))
    run(
        pieces("command-profile")[0],
        memopt=memopt,
        batches=[1, 2],
        model=lambda batch: seen.append("forward") or loss,
        optimizer=SimpleNamespace(step=lambda: seen.append("step")),
    )
    assert seen == 2 * ["forward", "backward", "step"]


def test_a_history(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with memopt.Device("cpu", capacity="64MiB") as device:
        with memopt.Allocator(device) as allocator:
            names = run(pieces("allocator")[0], allocator=allocator)
            names.pop("block").free()
            del names
    assert "a page" in capsys.readouterr().out
    names_of_files = {path.name for path in tmp_path.iterdir()}
    assert names_of_files == {"memory.pickle", "memory.json", "memory.html"}


def test_a_replay(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = traces.training()
    trace = traces.snapshot(traces.trace_entries(events))
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(trace))
    monkeypatch.chdir(tmp_path)
    run(pieces("command-replay")[1], memopt=memopt)
    first, capacity = capsys.readouterr().out.splitlines()
    assert int(first.split()[0]) == traces.peaks(events)[0] <= int(capacity)


def test_applying(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ruamel.yaml")
    text = "per_device_train_batch_size: 16\ngradient_accumulation_steps: 2\nbf16: false\nfp16: false\n"
    (tmp_path / "train.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    run(pieces("command-plan-apply")[0])
    assert "+gradient_accumulation_steps: 8" in capsys.readouterr().out
    assert (tmp_path / "train.yaml").read_text() == text
    assert (tmp_path / "train.yaml.backup").read_text() == text


def test_watching(capsys: pytest.CaptureFixture[str]) -> None:
    run(pieces("monitor")[0].replace('"cuda"', '"cpu"'), memopt=memopt)
    assert "memory_used=" in capsys.readouterr().out
