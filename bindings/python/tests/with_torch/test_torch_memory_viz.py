"""torch's own viewers read the snapshots of the library's allocator."""

from __future__ import annotations

import base64
import pickle
import re

import pytest
from torch.cuda import _memory_viz as viz

import memopt

MIB = 1 << 20


@pytest.fixture(params=["expandable_segments:True", ""])
def full(request):
    """An allocator with holes, blocks of two kinds and a pending free."""
    order = memopt.Device("cpu", capacity=256 * MIB, stream_order="adversarial")
    streams = [order.stream(), order.stream()]
    with memopt.Allocator(order, request.param) as allocator:
        blocks = [allocator.alloc(size, streams[0]) for size in (1000, 30 * MIB, 5 * MIB, 40 * MIB)]
        other = allocator.alloc(25 * MIB + 100, streams[1])
        blocks[1].free()
        allocator.trim()
        order.fill(blocks[2], 1, stream=streams[1])
        blocks[2].record_stream(streams[1])
        blocks[2].free()
        yield allocator
        for block in (blocks[0], blocks[3], other):
            block.free()
        for stream in streams:
            stream.sync()
    for stream in streams:
        stream.close()
    order.close()


def shown(html):
    """The snapshot in a page."""
    text = re.search(r'"base64": "([^"]+)"', html)
    return pickle.loads(base64.b64decode(text.group(1)))


def test_torch_sums_up_the_segments(full):
    snapshot = full.full_snapshot()
    text = viz.segsum(snapshot)  # checks that the parts of each segment are its size
    reserved = full.stat("reserved_bytes.all.current")
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == reserved
    assert "total_reserved: %s\n" % viz.Bytes(reserved) in text
    assert "total_allocated: %s\n" % viz.Bytes(1000 + 40 * MIB + 25 * MIB + 100) in text
    states = {block["state"] for segment in snapshot["segments"] for block in segment["blocks"]}
    assert states == {"active_allocated", "active_pending_free", "inactive"}


def test_torch_shows_the_segments(full, tmp_path):
    full.dump_snapshot(tmp_path / "snapshot.pickle")
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    assert snapshot == full.full_snapshot()
    assert "TOTAL MEM" not in viz.trace(snapshot)  # no history
    for html in (viz.segment_plot(snapshot), viz.trace_plot(snapshot)):
        assert shown(html) == snapshot
    lines = []
    for summary in (viz.segments, viz.memory):
        summary(snapshot, format_flamegraph=lines.append)
    assert all("active_allocated;<non-python> 1000\n" in text for text in lines)
    viz.compare(snapshot["segments"], [], format_flamegraph=lines.append)
    assert lines[-1].count("only_before") == lines[0].count("\n")
