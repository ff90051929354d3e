"""The training run that extras/planner/docs/command-profile.md shows, in small."""

from __future__ import annotations

import json
import pathlib
import sys


from cli_support import command

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "examples" / "train_phases.py"


def test_phases_under_profile(tmp_path):
    small = ["--steps", 3, "--layers", 3, "--width", 256, "--batch", 64]
    path = tmp_path / "report.json"
    result = command("profile", "--interval", "0.02", "--output", path, "--", sys.executable, PROGRAM, *small)
    assert result.returncode == 0 and result.stdout.startswith("loss "), result.stderr
    report = json.loads(path.read_text())
    names = [phase["phase"] for phase in report["phases"]]
    assert names == [None, "setup", "forward", "backward", "optimizer"]
    assert report["peaks"]["rss"]["bytes"] > 1 << 26 and "Most in each phase" in result.stderr
