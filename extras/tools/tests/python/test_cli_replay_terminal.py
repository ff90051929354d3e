"""`memopt replay`: plots, progress bars, Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

import traces
from cli_support import Terminal, environment, without
from replay_support import EVENTS, answer, command, shown, trace  # noqa: F401


# --- plots ----------------------------------------------------------------------------------------


def test_plot(trace, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    found = answer(trace, "--plot", picture, "--find-capacity")
    assert found["plot"] == str(picture)
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(head[16:20], "big") >= 1000
    drawing = tmp_path / "picture.svg"
    assert "plot " in shown(trace, "--capacity", "32MiB", "--plot", drawing, code=1)
    texts = re.findall(r"<!-- (.*?) -->", drawing.read_text())
    assert {"live", "reserved", "capacity", "events", "MiB"} <= set(texts)
    assert any(text.startswith("out of memory at event") for text in texts)
    assert not any(text.startswith("smallest") for text in texts)


def test_plots_that_cannot_be_drawn(trace, tmp_path):
    pytest.importorskip("matplotlib")
    result = command(trace, "--plot", tmp_path / "picture.txt")
    assert result.returncode == 2 and "must end in one of" in result.stderr
    result = command(trace, "--plot", "")
    assert result.returncode == 2 and "--plot '': the name must end" in result.stderr
    result = command(trace, "--plot", tmp_path / "none" / "picture.png")
    assert result.returncode == 1 and "does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


# --- the terminal ---------------------------------------------------------------------------------


def on_a_terminal(*words, **variables):
    """What the command writes to a terminal, bars included, and its exit code."""
    terminal = Terminal("replay", *words, **variables)
    code, _ = terminal.end()
    return terminal.text.decode().replace("\r\n", "\n"), code


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Takes a second or more with --passes 200."""
    path = tmp_path_factory.mktemp("long") / "long.csv"
    path.write_text(traces.csv(traces.training(steps=500)))
    return path


def test_progress_bars(long, tmp_path):
    plain, code = on_a_terminal(long, "--passes", "200", PYTHONPATH=without(tmp_path, "rich"))
    assert code == 0 and "\x1b" not in plain
    percents = [int(n) for n in re.findall(r"\rreplaying \[[#.]{30}\] +(\d+) %", plain)]
    assert len(percents) > 2 and percents == sorted(percents) and percents[-1] <= 100
    dumb, code = on_a_terminal(long, "--passes", "200", TERM="dumb")
    assert code == 0 and "replaying" not in dumb
    rich, code = on_a_terminal(long, "--passes", "200")
    assert code == 0 and "replaying" in rich and "━" in rich


def test_interrupted(long):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "memopt", "replay", str(long), "--passes", "1000"],
        env=environment(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    seen = b""
    while b"replaying" not in seen:  # the bar shows that it is in the library by now
        seen += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    seen += os.read(leader, 65536)
    os.close(leader)
    assert process.returncode == 130 and out == b""
    assert b"Traceback" not in seen
