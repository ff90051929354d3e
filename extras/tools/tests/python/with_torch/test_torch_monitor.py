"""MemoryMonitor: what it writes is there whatever happens, and it warns only where it should."""

from __future__ import annotations

import csv
import ctypes
import gc
import itertools
import json
import os
import pathlib
import random
import re
import time
import types
import warnings

import pytest
import torch

import memopt
import memopt.torch as mt
import memopt.torch.monitor
from memopt.tools._leaks import LeakDetector
from memopt.torch.monitor import FIELDS

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(memopt.__file__)))
GIB = 1 << 30
MIB = 1 << 20


def jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Trace:
    """Given figures in place of a device's."""

    def __init__(self, device="cuda:0", total=24 * GIB, **values):
        self.values = dict(
            device=device,
            allocated=values.get("allocated"),
            reserved=None,
            peak=None,
            pinned=0,
            device_used=values.get("used", 20 * GIB),
            device_free=4 * GIB,
            device_total=total,
        )

    def read(self):
        return {k: v() if callable(v) else v for k, v in self.values.items()}

    def close(self):
        pass


def monitor_of(monkeypatch, rss=lambda: GIB, options=None, **trace):
    """A monitor of a synthetic trace."""
    monkeypatch.setattr("memopt.torch.monitor._source", lambda device: Trace(**trace))
    monkeypatch.setattr("memopt._host_memory.rss", rss)
    return mt.monitor.MemoryMonitor(**(options or {}))


def causes(monitor, steps):
    """The warnings of so many steps; each is told once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            monitor.step()
    assert all(w.category is mt.monitor.MemoryWarning for w in caught)
    assert len(caught) == len(monitor.warnings)
    return monitor.warnings


# --- leaks ----------------------------------------------------------------------------------------


def first_alarm(values, **options):
    """The step at which a leak is told, and its slope; None where it is not."""
    detector = LeakDetector(**options)
    for step, value in enumerate(values):
        slope = detector.add(step, int(value))
        if slope is not None:
            return step, slope
    return None


def noise(seed, low, high):
    choose = random.Random(seed)
    while True:
        yield choose.uniform(low, high)


def walk(seed):
    """Variable-length batches: high and low for many steps, but it comes back."""
    level = 0.5
    for change in noise(seed, -0.1, 0.1):
        level += 0.2 * (0.5 - level) + change
        yield GIB * level


LEAKS = {  # values of steps, the step by which it is told, the slope
    "1 % a step": (lambda: [GIB * 1.01**step for step in range(400)], 180, None),
    "1 % of the start, under noise": (
        lambda: [GIB * (1 + 0.01 * s + n) for s, n in zip(range(400), noise(1, 0, 0.1))],
        180,
        0.01 * GIB,
    ),
    "every fifty steps": (lambda: [GIB + 8 * MIB * (step // 50) for step in range(3000)], 1400, 8 * MIB / 50),
    "above the threshold": (lambda: [GIB + 1100 * step for step in range(5000)], 5000, 1100),
}
NO_LEAKS = {
    "noise": lambda: (GIB * n for n in itertools.islice(noise(0, 0.2, 1), 20000)),
    "a walk that returns": lambda: itertools.islice(walk(2), 20000),
    "a cache that fills": lambda: (GIB * (2 - 0.9**step) for step in range(2000)),
    "a cache that is soon full": lambda: (min(step, 100) * MIB + GIB for step in range(2000)),
    "below the threshold": lambda: (GIB + 1000 * step for step in range(5000)),
    "a gather every hundred": lambda: (GIB + 5 * MIB * (step % 100) for step in range(20000)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found(name):
    values, latest, slope = LEAKS[name]
    found = first_alarm(values(), threshold=1024)
    assert found and found[0] < latest
    assert slope is None or found[1] == pytest.approx(slope, rel=0.15)


@pytest.mark.parametrize("name", NO_LEAKS)
def test_what_is_no_leak(name):
    assert first_alarm(NO_LEAKS[name](), threshold=1024) is None


def test_a_leak_is_told_once(monkeypatch):
    step = iter(range(10000))
    monitor = monitor_of(monkeypatch, allocated=lambda: GIB + MIB * next(step))
    told = causes(monitor, 500)
    assert list(told) == ["leak"]
    assert "1.00 MiB a step" in told["leak"] and "4096 steps" in told["leak"]


def test_a_host_leak_is_told(monkeypatch):
    step = iter(range(10000))
    monitor = monitor_of(monkeypatch, rss=lambda: GIB + MIB * next(step), allocated=GIB)
    assert list(causes(monitor, 400)) == ["host leak"]


def test_a_real_leak_of_a_real_loop():
    """Tensors kept by mistake, seen through the host memory of the process on the CPU."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free but still the process's would be taken first
    kept = []
    monitor = mt.monitor.MemoryMonitor(device="cpu", leak="64KiB")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(220):
            kept.append(torch.ones(1 << 18))  # 1 MiB
            monitor.step()
    assert [w.category for w in caught] == [mt.monitor.MemoryWarning]
    assert "host memory of this process grow" in str(caught[0].message)
    assert caught[0].filename == __file__


# --- use ------------------------------------------------------------------------------------------


def test_underuse_warns_once(monkeypatch):
    monitor = monitor_of(monkeypatch, allocated=GIB, used=6 * GIB)
    told = causes(monitor, 300)
    assert list(told) == ["under-use"]
    assert "25 %" in told["under-use"] and "24.00 GiB" in told["under-use"]


@pytest.mark.parametrize(
    "used, device, options, warns",
    [
        (lambda step: 12 * GIB, "cuda:0", {}, False),
        (lambda step: 20 * GIB if step == 50 else GIB, "cuda:0", {}, False),
        (lambda step: 1, "cuda:0", {"underuse": 0.0}, False),
        (lambda step: 20 * GIB, "cuda:0", {"underuse": 0.9, "underuse_after": 5}, True),
        (lambda step: GIB, "cpu", {}, False),  # the machine's memory
    ],
    ids=["half", "one high step", "none wanted", "more wanted", "cpu"],
)
def test_what_is_underuse(monkeypatch, used, device, options, warns):
    step = itertools.count()
    figures = {"device": device, "allocated": 1, "used": lambda: used(next(step))}
    assert bool(causes(monitor_of(monkeypatch, options=options, **figures), 300)) == warns


# --- records and files ----------------------------------------------------------------------------


def test_records(device):
    monitor = mt.monitor.MemoryMonitor(device=device)
    kept = torch.zeros(MIB, device=device)
    before = time.time()
    record = monitor.step()
    assert tuple(record) == FIELDS and record["step"] == 1
    assert before - 1 < record["time"] < time.time() + 1 and 0 <= record["seconds"] < 100
    assert record["rss"] > MIB and record["pinned"] >= 0
    assert record["device_total"] >= record["device_used"] > 0
    if device.type == "cpu":
        assert record["device"] == "cpu" and record["allocated"] is None
    else:
        assert record["allocated"] >= 4 * MIB and record["peak"] >= record["allocated"]
        torch.zeros(100 * MIB, dtype=torch.uint8, device=device)
        record = monitor.step()
        assert record["peak"] >= record["allocated"] + 100 * MIB
        assert monitor.step()["peak"] < 100 * MIB + record["allocated"]
    del kept
    monitor.close()


def test_seconds_are_those_since_the_last_record(monkeypatch, tmp_path):
    clock = iter([100.0, 100.5, 102.25, 102.2500004])
    stub = types.SimpleNamespace(time=lambda: next(clock))
    monkeypatch.setattr("memopt.torch.monitor.time", stub)
    with mt.monitor.MemoryMonitor(str(tmp_path / "log.csv"), device="cpu") as monitor:
        seconds = [monitor.step()["seconds"] for _ in range(3)]
    assert seconds == [0.5, 1.75, 0.0]
    with open(tmp_path / "log.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["seconds"]) for row in rows] == seconds
    assert [float(row["time"]) for row in rows] == [100.5, 102.25, 102.25]


def test_jsonl_and_csv(tmp_path):
    paths = [tmp_path / "log.jsonl", tmp_path / "log.csv"]
    for path in paths:
        with mt.monitor.MemoryMonitor(path, device="cpu") as monitor:
            for _ in range(3):
                monitor.step()
        with mt.monitor.MemoryMonitor(str(path), device="cpu") as monitor:  # goes on where it ended
            monitor.step()
            expected = monitor.records[-1]
    records = jsonl(paths[0])
    assert [record["step"] for record in records] == [1, 2, 3, 1]
    with open(paths[1], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "1"]
    assert tuple(rows[0]) == FIELDS
    assert rows[3]["rss"] == str(expected["rss"]) and rows[3]["allocated"] == ""


def test_interval(tmp_path):
    with mt.monitor.MemoryMonitor(tmp_path / "log.jsonl", interval=10, device="cpu") as monitor:
        for step in range(1, 36):
            assert (monitor.step() is not None) == (step % 10 == 0)
    assert [record["step"] for record in jsonl(tmp_path / "log.jsonl")] == [10, 20, 30]


def test_an_unfinished_line_is_cut_off(tmp_path):
    json_line, header = '{"%s": 1, "x": "' % FIELDS[0], ",".join(FIELDS) + "\n"
    for name, start in (("a.jsonl", json_line), ("a.csv", header)):
        path = tmp_path / name
        whole = start + ("x" * 70000 + "\n")
        path.write_text(whole + "y" * 100000)
        with mt.monitor.MemoryMonitor(path, device="cpu") as monitor:
            monitor.step()
        text = path.read_text()
        assert text.startswith(whole) and "y" not in text[len(whole) :]
        assert text.count("\n") == whole.count("\n") + 1


def test_a_full_disk_ends_the_log_but_not_the_training():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with mt.monitor.MemoryMonitor("/dev/full", device="cpu") as monitor:
        with pytest.warns(mt.monitor.MemoryWarning, match="cannot be written"):
            monitor.step()
        monitor.step()
        assert list(monitor.warnings) == ["log"] and len(monitor.records) == 2


def test_rank_in_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with mt.monitor.MemoryMonitor(tmp_path / "log-{rank}.jsonl", device="cpu") as monitor:
        monitor.step()
    assert len(jsonl(tmp_path / "log-3.jsonl")) == 1


def test_samples_of_the_warm_up_do_not_count():
    def alarm(warm_up):
        detector = LeakDetector(warm_up=warm_up)
        return next(s for s in range(1000) if detector.add(s, s * (1 << 20)) is not None)

    assert alarm(100) == alarm(0) + 100


def test_used_memory_is_what_is_not_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (30, 100))
    meter = object.__new__(mt.monitor._Gpu)
    meter._monitor, meter._index = None, 0
    assert meter._memory() == (70, 30, 100)


def test_the_program_of_the_page(tmp_path, monkeypatch):
    page = pathlib.Path(__file__).resolve().parents[3] / "docs" / "monitor.md"
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S) if "train()" in c)
    model = torch.nn.Linear(20, 30)
    optimizer = torch.optim.SGD(model.parameters())
    monkeypatch.chdir(tmp_path)
    exec(code, {"optimizer": optimizer, "train": optimizer.step})
    assert len((tmp_path / "memory.csv").read_text().splitlines()) == 2
