"""`memopt plan` on a terminal, narrow and wide."""

from __future__ import annotations

import re

import pytest

from cli_support import Terminal, without

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
        # no figure has lost its unit to another line
        assert not [line for line in lines if re.fullmatch(r"\s*([KMGT]iB|%|×)(\s+[KMGT]iB)*", line)]
        if cards == "24":
            assert "GiB" in next(line for line in lines if "peak  " in line)
            if columns >= 80:
                assert any(line.split()[:2] == ["phase", "load"] for line in lines) == (columns == 80)
