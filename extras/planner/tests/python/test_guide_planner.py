"""The pieces of Python on the pages of the planner run, and the command takes what pages show."""

from __future__ import annotations

import pathlib
import shlex
from types import SimpleNamespace
from typing import List

import pytest

from test_guide import check_options, check_shown, commands, pieces, run

import memopt.tools

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("verb", ["plan", "profile"])
def test_pages_and_the_command(verb: str) -> None:
    shown = [words for words in map(shlex.split, commands(DOCS)) if words[0] == verb]
    check_shown(verb, shown)
    text = "".join(page.read_text("utf-8") for page in DOCS.glob("command-%s*.md" % verb))
    check_options(verb, text, *{"replay": ["run.csv"], "profile": ["true"]}.get(verb, []))


def test_planning(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = pieces("plan", DOCS)
    found = run(code)["found"]
    assert found.peak.total > 2**30
    assert capsys.readouterr().out == "%d %s %s\n" % (found.peak.total, found.peak_phase, found.fits)


def test_phases() -> None:
    seen: List[str] = []
    loss = SimpleNamespace(backward=lambda: seen.append("backward"))
    run(
        pieces("command-profile", DOCS)[0],
        memopt=memopt,
        batches=[1, 2],
        model=lambda batch: seen.append("forward") or loss,
        optimizer=SimpleNamespace(step=lambda: seen.append("step")),
    )
    assert seen == 2 * ["forward", "backward", "step"]


def test_applying(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ruamel.yaml")
    text = "per_device_train_batch_size: 16\ngradient_accumulation_steps: 2\nbf16: false\nfp16: false\n"
    (tmp_path / "train.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    run(pieces("command-plan-apply", DOCS)[0])
    assert "+gradient_accumulation_steps: 8" in capsys.readouterr().out
    assert (tmp_path / "train.yaml.backup").read_text() == text
