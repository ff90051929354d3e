"""Snapshots that a real torch writes, of its own allocator on the simulated driver: their replay
adds up to what torch's own statistics say."""

from __future__ import annotations

import json

import memopt.tools
from simulated import run

PROGRAM = """
import json
before = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
freed_later = torch.empty(1000, dtype=torch.uint8, device="cuda")
torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
torch.cuda.reset_peak_memory_stats()
side = torch.cuda.Stream()
keep, mib = [], 1 << 20
for i in range(20):
    a = torch.empty((i + 1) * 100000, dtype=torch.uint8, device="cuda")
    if i %% 5 == 0:
        keep.append(a)
    if i == 7:
        a.record_stream(side)
    with torch.cuda.stream(side):
        b = torch.empty(5000 + i, dtype=torch.uint8, device="cuda")
    if i == 3:
        del freed_later
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
other = torch.empty(100, dtype=torch.uint8, device="cuda:1")
torch.cuda.memory._dump_snapshot(%r)
stats = torch.cuda.memory_stats()
print(json.dumps([stats["requested_bytes.all." + key] for key in ("peak", "current")]))
"""


def test_a_snapshot_of_torch(tmp_path):
    path = str(tmp_path / "snapshot.pickle")
    peak, current = json.loads(run(PROGRAM % path, torch_too=True).splitlines()[-1])
    with memopt.tools.Trace.read(path) as trace:
        source, info = trace.source, trace.info
        assert source is not None and source.format == "pytorch" and source.device == 0
        assert source.events_by_device[1] == 1
        assert source.earlier_blocks == 2 and source.earlier_bytes == (3 << 20) + 1000
        assert info.peak_live_bytes == peak and info.live_bytes == current
        assert info.failed_allocations == 1 and info.failed_bytes == 1 << 30
        assert info.streams == 2
        assert info.unknown_frees == info.double_frees == info.lost_frees == 0
        replay = trace.replay("expandable_segments:True")
        assert not replay.out_of_memory and replay.peak_reserved_bytes >= peak
    with memopt.tools.Trace.read(path, recorded_only=True) as trace:
        assert trace.info.unknown_frees == 1 and trace.info.peak_live_bytes < peak
    with memopt.tools.Trace.read(path, device=1, with_failed=True) as trace:
        assert len(trace) == 1 and trace.info.live_bytes == 100
