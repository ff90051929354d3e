"""`memopt replay` with several configurations, and the difference of two traces."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest

import memopt
import memopt.tools
import traces
from json_schema import load, validate
from replay_support import EVENTS, answer, command, shown, trace  # noqa: F401

MIB = 1 << 20
DIFF = load("replay-diff")


def difference(*words, code=0, **options):
    """What --diff --json says, checked against its schema."""
    result = command("--diff", *words, "--json", **options)
    assert result.returncode == code, result.stderr
    value = json.loads(result.stdout)
    validate(value, DIFF)
    assert value["attributed_bytes"] == value["difference_bytes"]  # all of it
    return value


def alloc(pointer, size):
    return ("allocate", pointer, size, 0)


def write(folder, name, events, tag=None):
    text = traces.csv(events)
    if tag is not None:
        lines = text.splitlines()
        text = "\n".join([lines[0] + ",Tag"] + ["%s,%s" % (x, tag) for x in lines[1:]]) + "\n"
    path = folder / name
    path.write_text(text)
    return path


# --- configurations -------------------------------------------------------------------------------


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


# --- differences ----------------------------------------------------------------------------------


def test_sizes_and_counts(tmp_path):
    few = [alloc(0x1000 * i, 3 * MIB) for i in range(1, 5)] + [alloc(0x90000, 700)]
    many = [alloc(0x1000 * i, 3 * MIB) for i in range(1, 11)] + [alloc(0x90000, 5 * MIB)]
    found = difference(write(tmp_path, "few.csv", few), write(tmp_path, "many.csv", many))
    assert found["difference_bytes"] == 18 * MIB + 5 * MIB - 700
    assert [(g["size"], g["first_blocks"], g["second_blocks"]) for g in found["groups"]] == [
        ("3.00 MiB", 4, 10),
        ("5.00 MiB", 0, 1),
        ("700 B", 1, 0),
    ]
    assert all(g["tag"] is None and g["where"] is None for g in found["groups"])


def test_it_is_the_peak_that_counts(tmp_path):
    """What was freed before the peak, or came behind it, is in no group; faults are as in a
    replay."""
    free = ("free", 0x1000, 9 * MIB, 0)
    events = [alloc(0x1000, 9 * MIB), free, free, alloc(0x2000, 6 * MIB), alloc(0x2000, 7 * MIB)]
    events += [alloc(0x3000, 5 * MIB), alloc(0x5000, 0), ("free", 0x3000, 0, 0), alloc(0x4000, MIB)]
    path = write(tmp_path, "trace.csv", events)
    with memopt.tools.Trace.read(path) as same:
        peak = memopt.tools.Peak.read(path)
        assert peak.nbytes == same.info.peak_live_bytes == 12 * MIB
    assert {g.size: n for g, n in peak.groups.items()} == {
        "7.00 MiB": (7 * MIB, 1),
        "5.00 MiB": (5 * MIB, 1),
    }


@pytest.mark.parametrize("ends", [1, 3])
def test_tags_and_classes(tmp_path, ends):
    a = [alloc(0x1000 * i, 3 * MIB + i) for i in range(1, 5)]
    first = write(tmp_path, "a.csv", a, "activations")
    second = write(tmp_path, "b.csv", a * ends + [alloc(0x99000, 40 * MIB)], "activations")
    found = difference(first, second)
    assert [(g["tag"], g["size"], g["difference_bytes"]) for g in found["groups"]] == [
        ("activations", "32.00 MiB to 64.00 MiB", 40 * MIB),
        ("activations", "2.00 MiB to 4.00 MiB", 0),
    ]


def test_frames(tmp_path):
    """The program's innermost line; PyTorch's own are left out."""

    def snapshot(name, count):
        entries = [traces.entry("alloc", 0x1000 * i, MIB) for i in range(1, count + 1)]
        for entry in entries[:4]:
            entry["frames"] = [
                {"name": "empty", "filename": "/x/site-packages/torch/a.py", "line": 1},
                {"name": "forward", "filename": "/x/model.py", "line": 12},
            ]
        lived = traces.segment(0, 0x900000, [(512, 300, "active_allocated")])
        path = tmp_path / name
        path.write_bytes(gzip.compress(pickle.dumps(traces.snapshot(entries, segments=[lived]))))
        return path

    found = difference(snapshot("a.gz", 3), snapshot("b.gz", 6))
    assert [(g["where"], g["difference_bytes"]) for g in found["groups"]] == [
        ("train.py:7 step", 2 * MIB),
        ("model.py:12 forward", MIB),
        (None, 0),
    ]
    assert found["groups"][2]["first_blocks"] == 1  # from before the recording


def test_standard_input_and_text(trace, tmp_path):
    other = write(tmp_path, "other.csv", traces.training(steps=8, seed=2))
    with open(trace, "rb") as file:
        found = difference("-", other, stdin=file)
    assert found["traces"][0]["trace"] == "-"
    peaks = [traces.peaks(events)[0] for events in (EVENTS, traces.training(steps=8, seed=2))]
    assert [t["peak_live_bytes"] for t in found["traces"]] == peaks
    text = shown("--diff", trace, other)
    assert "A         training.csv: peak live %s" % memopt.format_size(peaks[0]) in text
    assert "Blocks alive at the peaks" in text
    rows = text[text.index("-----") :].splitlines()[1:]
    assert len(rows) <= 31
    same = shown("--diff", trace, trace)
    assert "B less A  0 B" in same


def test_usage(trace, tmp_path):
    for words, said in (
        (("--diff", trace), "expected 2 arguments"),
        (("--diff", trace, trace, "--config", "expandable_segments:True"), "no config"),
        ((trace, "--diff", trace, trace), "no trace"),
        (("--diff", "-", "-"), "only one"),
        ((), "required: TRACE"),
    ):
        result = command(*words)
        assert result.returncode == 2 and said in result.stderr
    empty = write(tmp_path, "empty.csv", [("free", 1, 1, 0)])
    result = command("--diff", trace, empty)
    assert result.returncode == 1 and "empty.csv: the trace has no allocation" in result.stderr
    bad = tmp_path / "bad.csv"
    bad.write_text("Action,Pointer,Size\nallocate,0x1,x\n")
    result = command("--diff", trace, bad)
    assert result.returncode == 1 and "bad.csv" in result.stderr and "line 2" in result.stderr
