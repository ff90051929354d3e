"""`memopt plan` on a terminal, narrow and wide."""

from __future__ import annotations

import io
import re
import time

import pytest

from cli_support import Terminal, without
from memopt.cli.plan.waiting import waiting

PLAN = ["--params", "1.1B", "--layers", "22", "--batch", "8", "--seq", "2048", "--dtype", "bf16", "--details"]


@pytest.mark.parametrize("columns, rich", [(40, True), (80, True), (80, False), (300, True)])
def test_a_plan_on_a_terminal(columns, rich, tmp_path):
    pytest.importorskip("pyte")
    variables = {} if rich else {"PYTHONPATH": without(tmp_path, "rich")}
    for cards in ("24", "8,16,24,40,80") if columns == 40 else ("24",):
        terminal = Terminal("plan", *PLAN, "--gpu-memory", cards, size=(600, columns), **variables)
        code, _ = terminal.end()
        assert code == 0 and ("\x1b[1m" in terminal.text.decode()) == rich
        lines = [line.rstrip() for line in terminal.screen.display]
        text = "\n".join(lines)
        assert "…" not in text and "phase" in text or cards != "24"
        # in tables, no figure has lost its unit to another line
        tables = lines[next(at for at, line in enumerate(lines) if line in ("At the peak", "What fits")) :]
        assert not [line for line in tables if re.fullmatch(r"\s*([KMGT]iB|%|×)(\s+[KMGT]iB)*", line)]
        if cards == "24":
            assert "GiB" in next(line for line in lines if "peak  " in line)
            if columns >= 80:
                assert any(line.split()[:2] == ["phase", "load"] for line in lines) == (columns == 80)


class Screen(io.StringIO):
    """A terminal, or none."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_shows_that_it_goes_on(terminal, monkeypatch):
    """A bar appears within a call that takes long, and is gone after it."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(terminal)
    with waiting("planning", 4, screen) as done:
        done()
        end = time.monotonic() + (60 if terminal else 0.6)
        while time.monotonic() < end and "25 %" not in screen.getvalue():
            time.sleep(0.02)
    assert ("planning" in screen.getvalue()) == terminal == ("25 %" in screen.getvalue())
