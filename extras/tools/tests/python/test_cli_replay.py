"""`memopt replay` as a subprocess, as a user runs it, on traces that are made here."""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import termios

import pytest

import memopt.tools
import memopt.cli
import traces
from cli_support import environment, wait_for
from memopt.cli.replay import _failure_lines
from replay_support import EVENTS, answer, command, shown, trace  # noqa: F401

MIB = 1 << 20
PEAK, LEFT = traces.peaks(EVENTS)
EXPANDABLE = ("--config", "expandable_segments:True")


def write(folder, text, name="trace.csv"):
    path = folder / name
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + text)
    return path


# --- figures --------------------------------------------------------------------------------------


def test_json(trace):
    found = answer(trace, *EXPANDABLE)
    assert found["trace"] == str(trace) and found["format"] == "csv" and found["device"] is None
    assert found["config"] == "expandable_segments:True" and found["capacity_bytes"] is None
    assert found["events"] == len(EVENTS) and found["streams"] == 2
    assert found["peak_live_bytes"] == PEAK and found["live_at_end_bytes"] == LEFT
    assert found["ratio"] == found["peak_reserved_bytes"] / PEAK >= 1
    assert found["out_of_memory"] is False and found["failure"] is None
    assert found["ns_per_event"] > 0 and found["first_ns_per_event"] > 0
    assert found["smallest_capacity_bytes"] is None and found["smallest_capacity_ratio"] is None
    with memopt.tools.Trace.read(trace) as same:
        replay = same.replay("expandable_segments:True")
    assert found["peak_reserved_bytes"] == replay.peak_reserved_bytes
    assert found["device_allocs"] == replay.device_allocs
    assert answer(trace)["peak_reserved_bytes"] != found["peak_reserved_bytes"]  # classic segments


def test_as_a_step_that_repeats(trace):
    assert answer(trace)["planned"] is None
    found = answer(trace, *EXPANDABLE, "--steps", "3", "--passes", "0")
    planned = found["planned"]
    assert planned == found["configurations"][0]["planned"]
    assert planned["steps"] == planned["as_planned"] == 3 and planned["device_calls"] == 0
    assert planned["reserved_bytes"] >= planned["least_bytes"] > 0
    assert planned["ratio"] == planned["reserved_bytes"] / PEAK
    text = shown(trace, *EXPANDABLE, "--steps", "2")
    assert "As a step that repeats" in text and "2 of 2 steps after the first" in text
    both = shown(trace, *EXPANDABLE, "--config", "", "--steps", "2")
    assert "planned" in both


def test_a_device_that_is_behind(trace):
    idle = answer(trace, "--passes", "0")
    assert idle["lag"] == 0
    for given, told in (("3", 3), ("step", "step"), ("inf", "inf")):
        found = answer(trace, "--passes", "0", "--lag", given, "--find-capacity")
        assert found["lag"] == told and not found["out_of_memory"]
        assert found["peak_live_bytes"] == idle["peak_live_bytes"] <= found["smallest_capacity_bytes"]


def test_smallest_device(trace):
    found = answer(trace, *EXPANDABLE, "--find-capacity", "--passes", "0")
    smallest = found["smallest_capacity_bytes"]
    assert PEAK <= smallest <= found["peak_reserved_bytes"] and smallest % (2 * MIB) == 0
    assert found["smallest_capacity_ratio"] == smallest / PEAK
    assert answer(trace, *EXPANDABLE, "--capacity", smallest)["out_of_memory"] is False
    short = answer(trace, *EXPANDABLE, "--capacity", smallest - 2 * MIB, code=1)
    assert short["out_of_memory"] is True and short["capacity_bytes"] == smallest - 2 * MIB
    failure = short["failure"]
    assert EVENTS[failure["event"] - 1][0] == "allocate"
    assert EVENTS[failure["event"] - 1][2] == failure["asked_bytes"]
    assert short["peak_live_bytes"] == PEAK  # of the whole trace
    both = answer(trace, "--capacity", "10MiB", "--find-capacity", "--passes", "0", code=1)
    assert both["out_of_memory"] and both["smallest_capacity_bytes"] >= PEAK


def test_text(trace):
    text = shown(trace, "--find-capacity")
    lines = {line[2:17].strip(): line[17:].strip() for line in text.splitlines()}
    assert text.startswith("Trace training.csv\n") and "\nReplay\n" in text
    assert "Notes" not in text and "PyTorch" not in text
    events = r"\n  events +{:,}, \d+ of them allocations on 2 streams\n".format(len(EVENTS))
    assert re.search(events, text)
    assert re.search(r"\n  peak live +%s in \d+ blocks\n" % memopt.format_size(PEAK), text)
    assert re.search(r"\n  at the end +%s in 30 blocks\n" % memopt.format_size(LEFT), text)
    assert lines["config"] == "default (classic segments)" and lines["capacity"] == "no limit"
    assert lines["completes"] == "yes"
    assert re.fullmatch(r"[\d.]+ MiB \(1\.\d\d\d × live\)", lines["smallest device"])
    assert re.search(r"time an event +\d+ ns; [\d.]+ (ns|µs) in the first pass, with \d+ dev", text)


def test_out_of_memory_says_why(trace):
    text = shown(trace, "--capacity", "32MiB", code=1)
    assert "\nOut of memory\n" in text and "completes      no: event " in text
    assert "%s alive at its peak: no configuration makes that fit" % memopt.format_size(PEAK) in text
    enough = (PEAK // (2 * MIB) + 1) * 2 * MIB
    text = shown(trace, "--capacity", enough, code=1)
    assert "lie in holes that are too small" in text and "--config expandable_segments:True" in text
    held = re.search(r"held +([\d.]+ MiB) of ([\d.]+ MiB)", text)
    assert held.group(2) == memopt.format_size(enough)


def test_retries_are_told(tmp_path):
    """Two blocks that do not fit side by side: the second finds room once the cache is given back."""
    block = "0,{0},alloc,{0},{1},0\n0,{0},free,{0},{1},0\n"
    tight = write(tmp_path, block.format(1, 20 * MIB) + block.format(2, 30 * MIB))
    assert answer(tight, "--capacity", "40MiB")["retries"] == 1
    text = shown(tight, "--capacity", "40MiB")
    assert re.search(r"\n  retries +1 allocation only after giving the cache back\n", text)
    assert "retries" not in shown(tight)
    growing = "".join(block.format(size, size * MIB) for size in (12, 22, 32))
    text = shown(write(tmp_path, growing), "--capacity", "32MiB")
    assert re.search(r"\n  retries +2 allocations only after", text)


def test_what_to_try_where_memory_lies_in_holes():
    """Other segments, or where that is so already, a larger device."""
    info, failure = memopt.tools.TraceInfo(*[0] * 17), memopt.tools.ReplayFailure(1, 10, 0, 50, 90)
    replay = memopt.tools.Replay(100, 0, *[0] * 8, failure, [])
    for config, hint in (("", EXPANDABLE[0]), (EXPANDABLE[1], "--find-capacity")):
        lines = dict(_failure_lines(info, replay, argparse.Namespace(config=config)))
        assert lines["try"].startswith(hint) and "40 B are held" in lines["why"]


# --- where it comes from --------------------------------------------------------------------------


def test_standard_input_and_gzip(trace, tmp_path):
    whole = answer(trace)
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    for words, options in (
        ([packed], {}),
        (["-"], {"stdin": open(trace, "rb")}),
        (["-"], {"stdin": open(packed, "rb")}),
    ):
        found = answer(*words, **options)
        assert found["trace"] == str(words[0])
        for key in ("events", "peak_live_bytes", "peak_reserved_bytes", "ratio", "device_allocs"):
            assert found[key] == whole[key]
    result = command("-", text=False, input=trace.read_bytes())  # a pipe
    assert result.returncode == 0 and result.stdout.startswith(b"Trace standard input\n")


def test_snapshots(tmp_path):
    path = tmp_path / "snapshot.pickle"
    lived = traces.segment(1, 0x100, [(512, 300, "active_allocated")])
    few = [traces.entry("alloc", 0x50000, MIB), traces.entry("oom", 0, 3 << 30)]
    path.write_bytes(pickle.dumps(traces.snapshot(few, traces.trace_entries(EVENTS), segments=[lived])))
    found = answer(path)
    assert found["format"] == "pytorch" and found["device"] == 1
    assert found["events_by_device"] == [1, len(EVENTS)]
    assert found["peak_live_bytes"] == PEAK + 300 and found["events"] == len(EVENTS) + 1
    assert found["earlier_blocks"] == 1 and found["earlier_bytes"] == 300
    assert answer(path, "--recorded-only")["peak_live_bytes"] == PEAK
    text = shown(path)
    assert "1 of a PyTorch snapshot (events of device 0: 1, 1: %d)" % len(EVENTS) in text
    assert re.search(r"from before +300 B in 1 block, allocated first", text)
    failed = answer(path, "--device", "0")
    assert failed["failed_allocations"] == {"count": 1, "largest_bytes": 3 << 30}
    assert failed["peak_live_bytes"] == MIB
    assert "left out (--with-failed replays them)" in shown(path, "--device", 0)
    assert answer(path, "--device", "0", "--with-failed")["peak_live_bytes"] == MIB + (3 << 30)
    assert answer(path, "--device=0", "--with-failed", "--capacity=1GiB", code=1)["out_of_memory"]
    result = command(path, "--device", "2")
    assert result.returncode == 1 and "these devices have: 0 (1), 1 (" in result.stderr


def test_odd_events_are_told(tmp_path):
    path = write(
        tmp_path,
        "0,0,free,0x99,1,0\n"
        "0,0,allocate,0x10,4000,0\n"
        "0,0,allocate,0x10,5000,0\n"
        "0,0,free,0x10,5000,0\n"
        "0,0,free,0x10,5000,0\n"
        "0,0,allocate,0x20,0,0\n"
        "0,0,allocate failure,(nil),9000000,0\n",
    )
    found = answer(path)
    assert found["events"] == 4 and found["peak_live_bytes"] == 5000
    assert found["unknown_frees"] == {"count": 1, "first": 2}
    assert found["lost_frees"] == {"count": 1, "first": 4}
    assert found["double_frees"] == {"count": 1, "first": 6}
    assert found["empty_allocations"] == 1 and found["failed_allocations"]["count"] == 1
    text = shown(path)
    notes = text[text.index("\nNotes\n") :]
    assert re.search(r"unknown frees +1 free of blocks from before.*first in line 2", notes)
    assert re.search(r"lost frees +1 allocation at the address of a living.*first in line 4", notes)
    assert re.search(r"double frees +1 free of what was freed before.*first in line 6", notes)


# --- what cannot be done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "TRACE"),
        (("TRACE", "another"), "unrecognized"),
        (("TRACE", "--capacity", "lots"), "lots"),
        (("TRACE", "--capacity", "1MiB"), "1MiB is less than a page of 2 MiB"),
        (("TRACE", "--capacity", "-5"), "capacity"),
        (("TRACE", "--config", "expandable:True"), "the nearest valid one is"),
        (("TRACE", "--config", "max_split_size_mb:1"), "max_split_size_mb"),
        (("TRACE", "--passes", "many"), "'many' is not an integer from 0 to 1000"),
        (("TRACE", "--device", "first"), "first"),
        (("TRACE", "--config", b"\xff:1"), "unknown key"),
    ],
)
def test_usage_errors(trace, words, says, capsys):
    words = [os.fsdecode(word) if isinstance(word, bytes) else word for word in words]
    with pytest.raises(SystemExit) as left:
        memopt.cli.main(["replay", *(str(trace) if word == "TRACE" else word for word in words)])
    said = capsys.readouterr()
    assert left.value.code == 2 and said.out == ""
    assert said.err.startswith("usage: memopt ") and says in said.err


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "memopt: trace.csv: the trace has no allocation to replay"),
        ("0,0,allocate,0x10,many,0\n", "CORRUPT: trace.csv: trace: line 2: the size 'many' must be"),
        ("0,0,allocate,0x10,512,0\n0,0,fre", "line 3: '0,0,fre' has 3 fields; the header has 6; it"),
        ("0,0,free,0x10,512,0\n", "has no allocation"),
    ],
)
def test_malformed_traces(tmp_path, text, says):
    path = write(tmp_path, text)
    for more in ((), ("--json",)):
        result = command(path, *more)
        assert result.returncode == 1 and result.stdout == ""
        assert says in result.stderr and "Traceback" not in result.stderr
        assert result.stderr.startswith("memopt: ") and result.stderr.count("\n") == 1


def test_a_pipe_that_does_not_wait(trace):
    """Whoever shares a pipe may have it so, a terminal's program say."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "memopt", "replay", "-", "--json", "--passes", "0"],
        env=environment(),
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(reading)
    data = trace.read_bytes()
    os.write(writing, data[:100])
    wait_for(lambda: not fcntl.ioctl(writing, termios.FIONREAD, bytes(4)).strip(b"\0"), "a read")
    with open(writing, "wb") as pipe:
        pipe.write(data[100:])
    told, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == b""
    assert json.loads(told)["peak_live_bytes"] == PEAK


def test_partial(trace, tmp_path):
    path = tmp_path / "cut.csv"
    path.write_bytes(trace.read_bytes()[:5000])
    assert command(path).returncode == 1
    found = answer(path, "--partial")
    assert found["events"] == trace.read_bytes()[:5000].count(b"\n") - 1
    assert "cut off" in found["cut"]
    assert re.search(r"cut off +trace: line \d+: .*what stands before it was repl", shown(path, "--partial"))
