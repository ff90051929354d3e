"""Histories of allocators, their export, and reports of out of memory."""

from __future__ import annotations

import json
import os
import pickle
import re
import threading
import time

import pytest

import memopt
from memopt import HistoryAction, OomCause
from memopt._library import lib, output

MIB = 1 << 20


@pytest.fixture(params=["expandable_segments:True", ""])
def allocator(request):
    device = memopt.Device("cpu", capacity=128 * MIB)
    with memopt.Allocator(device, request.param) as made:
        yield made
    device.close()


def grow(allocator, nbytes, tag="other"):
    return allocator.alloc(nbytes, tag=tag)  # its line is in the frames


def blocks_of(events):
    return [e for e in events if e.action not in (HistoryAction.MAP, HistoryAction.UNMAP)]


def test_events(allocator):
    before = time.time()
    old = allocator.alloc(2 * MIB)
    allocator.start_history(frames=True)
    with pytest.raises(memopt.BusyError):
        allocator.start_history()
    first = grow(allocator, 3 * MIB, "weights")
    first.free()
    events = blocks_of(allocator.history())
    assert [e.action.name for e in events] == ["ALLOC", "ALLOC", "FREE"]
    assert [e.nbytes for e in events] == [2 * MIB, 3 * MIB, 3 * MIB]
    assert events[0].frames == [] and events[1].tag == int(memopt.Tag.WEIGHTS)
    assert events[1].frames[0]["name"] == "grow" and events[1].frames[1]["name"] == "test_events"
    assert events[1].frames[0]["filename"] == __file__ and events[2].frames == events[1].frames
    assert before - 1 <= events[-1].time <= time.time() + 1
    assert events[1].thread == threading.get_native_id()
    assert allocator.history(events[-1].number) == events[-1:]
    live = [b for s in allocator.snapshot() for b in s["blocks"] if b["state"] != "inactive"]
    assert [(b["age"], b["frames"]) for b in live] == [(2, [])]
    allocator.stop_history()
    with pytest.raises(memopt.NotFoundError):
        allocator.history()
    old.free()


def test_the_last_events_are_kept(allocator):
    allocator.start_history(10)
    for i in range(50):
        allocator.alloc(600 + i).free()
    events = allocator.history()
    assert len(events) == 10 and events[-1].nbytes == 649
    assert events[0].number + 9 == events[-1].number >= 99
    assert all(e.frames == [] for e in events)


def test_pools_have_their_own(allocator):
    allocator.start_history(frames=True)
    with allocator.pool("other") as pool:
        grow(pool, 1000).free()
        assert blocks_of(pool.history())[0].frames[0]["name"] == "grow"
        assert blocks_of(allocator.history()) == []


def test_out_of_memory_says_who(allocator):
    assert allocator.out_of_memory is None
    allocator.start_history(frames=True)
    kept = [grow(allocator, MIB, "activations") for _ in range(40)]
    kept.append(allocator.alloc(60 * MIB, tag="weights"))
    with pytest.raises(memopt.OutOfMemoryError) as raised:
        allocator.alloc(50 * MIB, tag="gradients")
    while kept:
        kept.pop().free()
    report = allocator.out_of_memory  # as it was when memory ran out
    assert report.cause is OomCause.GROWTH and report.tag == "gradients"
    assert report.message == str(raised.value) and "; cause: live memory: weights" in report.message
    assert [(h.tag, h.nbytes, h.blocks) for h in report.holders] == [
        ("weights", 60 * MIB, 1),
        ("activations", 40 * MIB, 40),
    ]
    assert report.holders[1].frames[0]["name"] == "grow"
    assert (report.holders[1].newest, report.holders[1].oldest) == (2, 41)
    assert abs(report.holders[1].since - time.time()) < 60
    assert report.numbers["asked_bytes"] == 50 * MIB and report.numbers["live_bytes"] >= 100 * MIB
    text = str(report)
    assert "50.00 MiB asked for gradients" in text and "40.00 MiB of activations in 40" in text
    assert "test_history.py:" in text and "recompute or offload" in text
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["cause"] == "growth" and plain["limit_bytes"] is None


def test_failures_without_a_history(allocator):
    """Of the library's own asking, of a limit, of more than there is."""
    with pytest.raises(memopt.OutOfMemoryError):
        output(lib.memopt_allocator_alloc, allocator._handle.pointer, 1 << 30, 3, None)
    report = allocator.out_of_memory
    assert report.tag == "optimizer" and report.message == "" and report.holders == []
    allocator.set_limit("20MiB")
    for size, cause in (("40MiB", OomCause.LIMIT), ("1GiB", OomCause.REQUEST)):
        with pytest.raises(memopt.OutOfMemoryError):
            allocator.alloc(size)
        assert allocator.out_of_memory.cause is cause
    assert allocator.out_of_memory.as_dict()["limit_bytes"] == 20 * MIB
    assert allocator.out_of_memory.numbers["number"] == 3


def shown(text):
    """The data of a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


def test_exports(allocator, tmp_path):
    allocator.start_history(frames=True)
    tag = allocator.register_tag("</script><b>")  # which ends no script of the page
    kept = [grow(allocator, (1 + i % 5) * MIB, tag) for i in range(9)]
    kept.pop(3).free()
    with pytest.raises(memopt.OutOfMemoryError):
        allocator.alloc("1GiB")
    for ending in ("pickle", "json", "html"):
        allocator.dump_snapshot(tmp_path / ("memory." + ending))
    snapshot = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert snapshot == allocator.full_snapshot()
    actions = [e["action"] for e in snapshot["device_traces"][-1]]
    assert actions == ["alloc"] * 9 + ["free_requested", "free_completed", "oom"]
    assert json.loads((tmp_path / "memory.json").read_text())["segments"] == json.loads(
        json.dumps(snapshot["segments"])
    )
    text = (tmp_path / "memory.html").read_text()
    assert "http" not in text.replace("http://www.w3.org/", "")  # no network
    data = shown(text)
    sizes = [(1 + i % 5) * MIB for i in range(9)]
    assert [point[1] for point in data["devices"][-1]["live"]] == [
        *(sum(sizes[: i + 1]) for i in range(9)),
        sum(sizes) - 4 * MIB,
    ]
    held = allocator.stat("reserved_bytes.all.current")
    assert data["devices"][-1]["held"][-1][1] == held
    assert len(data["devices"][-1]["failed"]) == 1 and data["failure"]["cause"] == "request"
    assert sum(segment["bytes"] for segment in data["segments"]) == held
    live = [b for s in data["segments"] for b in s["blocks"] if b[2] == 0]
    assert len(live) == 8 and all("test_history.py" in data["stacks"][b[4]] for b in live)
    assert {data["tags"][b[3]] for b in live} == {"</script><b>"}
    while kept:
        kept.pop().free()


def test_a_page_stays_small(tmp_path):
    """A hundred thousand events and a thousand blocks."""
    with memopt.Device("cpu", capacity="2GiB") as device:
        with memopt.Allocator(device, "expandable_segments:True") as allocator:
            allocator.start_history(100_000)
            kept = [allocator.alloc(MIB) for _ in range(1000)]
            for _ in range(49_000):
                allocator.alloc(5000).free()
            allocator.dump_snapshot(tmp_path / "memory.html")
            assert os.path.getsize(tmp_path / "memory.html") < 400_000
            data = shown((tmp_path / "memory.html").read_text())
            assert max(p[1] for p in data["devices"][-1]["live"]) == 1000 * MIB + 5000
            while kept:
                kept.pop().free()
