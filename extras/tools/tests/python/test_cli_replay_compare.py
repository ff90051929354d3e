"""`memopt replay` with several configurations."""

from __future__ import annotations

import pytest

import memopt
import traces
from replay_support import EVENTS, answer, command, shown, trace  # noqa: F401

MIB = 1 << 20


def test_several_configurations(trace):
    configs = ["", "expandable_segments:True", "roundup_power2_divisions:2"]
    words = [word for config in configs for word in ("--config", config)]
    found = answer(trace, *words, "--passes", "0")
    rows = found["configurations"]
    assert [row["config"] for row in rows] == configs
    for row in rows:
        alone = answer(trace, "--config", row["config"], "--passes", "0", "--find-capacity")
        for key in ("peak_reserved_bytes", "smallest_capacity_bytes", "device_allocs", "ratio"):
            assert row[key] == pytest.approx(alone[key], rel=0.01)
        assert len(alone["configurations"]) == 1
    assert rows[0]["peak_reserved_bytes"] == found["peak_reserved_bytes"]
    assert rows[1]["peak_reserved_bytes"] < rows[0]["peak_reserved_bytes"]
    text = shown(trace, *words, "--passes", "0")
    assert "\nReplays\n" in text and text.count("yes") == 3 and "\nReplay\n" not in text
    assert memopt.format_size(rows[1]["smallest_capacity_bytes"]) in text


def test_one_that_does_not_complete(trace):
    peak = traces.peaks(EVENTS)[0]
    capacity = (peak // (2 * MIB) + 2) * 2 * MIB
    configs = ("--config", "", "--config", "expandable_segments:True")
    text = shown(trace, *configs, "--capacity", capacity, "--passes", "0", code=1)
    assert "no, event " in text and "yes" in text
    result = command(trace, "--config", "", "--config", "nonsense:1")
    assert result.returncode == 2 and "nonsense" in result.stderr
