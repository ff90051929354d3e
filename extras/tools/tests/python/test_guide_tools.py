"""The pieces of Python on the pages of replay and of the monitor run, and the command takes what pages show."""

from __future__ import annotations

import pathlib
import pickle
import shlex

import pytest
import traces
from test_guide import check_options, check_shown, commands, pieces, run

import memopt.tools

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("verb", ["monitor", "replay"])
def test_pages_and_the_command(verb: str) -> None:
    shown = [words for words in map(shlex.split, commands(DOCS)) if words[0] == verb]
    check_shown(verb, shown)
    text = "".join(page.read_text("utf-8") for page in DOCS.glob("command-%s*.md" % verb))
    check_options(verb, text, *{"replay": ["run.csv"], "profile": ["true"]}.get(verb, []))


def test_a_replay(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    events = traces.training()
    trace = traces.snapshot(traces.trace_entries(events))
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(trace))
    monkeypatch.chdir(tmp_path)
    run(pieces("command-replay", DOCS)[1], memopt=memopt)
    first, capacity = capsys.readouterr().out.splitlines()
    assert int(first.split()[0]) == traces.peaks(events)[0] <= int(capacity)


def test_watching(capsys: pytest.CaptureFixture[str]) -> None:
    run(pieces("monitor", DOCS)[0].replace('"cuda"', '"cpu"'), memopt=memopt)
    assert "memory_used=" in capsys.readouterr().out
