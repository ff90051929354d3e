"""torch.cuda.memory answers for the library's allocator what it answers for torch's own.

Each program runs twice on the simulated driver, with torch's allocator and with the library's.
"""

from __future__ import annotations

import json


from simulated import run

ENABLE = "mt.enable_allocator('')\n"

#: What both allocators do alike: sizes stay clear of segments' rounding.
WORK = """
import json, sys
torch.cuda.memory._record_memory_history(max_entries=%d)
kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1000, 3 * MIB, 40 * MIB)]
other = torch.empty(70 * MIB, dtype=torch.uint8, device="cuda:1")
del kept[1]
try:
    torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
"""


def both(program):
    """What the program printed as JSON, with torch's allocator and with the library's."""
    outputs = [run(text, torch_too=True) for text in (program, ENABLE + program)]
    # The driver has a line of its own.
    return [json.loads(next(x for x in o.split("\n") if x.startswith("["))) for o in outputs]


def test_statistics_are_torch_s():
    """The same keys; the same values of all that does not depend on how segments are made."""
    program = (
        WORK % 100
        + """
def show():
    values = torch.cuda.memory_stats()
    return {k: values[k] for k in values if not k.startswith(("seg", "res", "inac", "num_s", "num_d"))}
shown = [list(torch.cuda.memory_stats()), show(), torch.cuda.memory_allocated(1)]
shown += [torch.cuda.max_memory_allocated(), "40962 KiB" in torch.cuda.memory_summary(abbreviated=True)]
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
kept.append(torch.empty(5000, device="cuda"))
shown += [show(), torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()]
torch.cuda.set_per_process_memory_fraction(0.25)
shown += [torch.cuda.get_per_process_memory_fraction(i) for i in (0, 1)]
print(json.dumps(shown), flush=True)
"""
    )
    torch_s, ours = both(program)
    assert ours == torch_s


def test_history_is_torch_s():
    """The events of blocks, over two snapshots; torch also has those of segments."""
    program = (
        WORK % 100
        + """
def show(snapshot):
    seen = [[e for e in t if e["action"][:3] in ("all", "fre", "oom")] for t in snapshot["device_traces"]]
    names = {}
    return [
        [(e["action"], e["size"], e["stream"], names.setdefault(e.get("addr"), len(names)), sorted(e))
         for e in events] for events in seen
    ]
history = [show(torch.cuda.memory._snapshot())]
del kept[0]
later = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda:1")
snapshot = torch.cuda.memory._snapshot()
history.append(show(snapshot))
times = [e["time_us"] for e in snapshot["device_traces"][0]]
history += [times == sorted(times), torch.cuda.memory_snapshot() == snapshot["segments"]]
torch.cuda.memory._record_memory_history(None)
history.append(torch.cuda.memory._snapshot()["device_traces"][0])
print(json.dumps(history), flush=True)
"""
    )
    torch_s, ours = both(program)
    assert ours[2:] == [True, True, []]
    assert ours == torch_s
    assert [len(events) for events in ours[1]] == [8, 2]


def test_history_keeps_the_last_entries():
    program = (
        WORK % 3
        + """
actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
del kept
late = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
torch.cuda.memory._record_memory_history(max_entries=9, clear_history=True, skip_actions=["alloc"])
x = torch.empty(1000, device="cuda")
address = x.data_ptr()
del x
last = torch.cuda.memory._snapshot()["device_traces"][0]
print(json.dumps([actions, late, [(e["action"], e["addr"] == address) for e in last]]), flush=True)
"""
    )
    ours = both(program)[1]
    assert ours == [
        ["free_requested", "free_completed", "oom"],
        ["free_completed", "free_requested", "free_completed"],
        [["free_requested", True], ["free_completed", True]],
    ]


def test_observers_of_out_of_memory_see_it_first():
    program = (
        """
seen = []
def observer(device, asked, allocated, free):
    seen.append((device, asked, allocated, bool(torch.cuda.memory._snapshot()["segments"])))
torch._C._cuda_attach_out_of_memory_observer(observer)
"""
        + WORK % 10
        + """
print(json.dumps([seen[0][0], seen[0][1], seen[0][3], len(seen)]), flush=True)
"""
    )
    ours = both(program)[1]
    assert ours == [0, 400 << 20, True, 1]


def test_torch_s_viewers_read_what_torch_writes(tmp_path):
    path = tmp_path / "snapshot.pickle"
    program = (
        WORK % 100
        + """
torch.cuda.memory._dump_snapshot(%r)
from torch.cuda import _memory_viz as viz
import pickle
with open(%r, "rb") as file:
    snapshot = pickle.load(file)
shown = [viz.segsum(snapshot).count("[") >= 2, viz.trace(snapshot), "base64" in viz.trace_plot(snapshot)]
left = viz.filter_alloc_free_pairs(snapshot)["device_traces"]
print(json.dumps(shown + [[e["size"] for t in left for e in t if e["action"] == "alloc"]]), flush=True)
"""
        % (str(path), str(path))
    )
    ours = both(program)[1]
    assert ours[0] and ours[2]
    assert "Device 1" in ours[1] and "OutOfMemoryError # 400.0MiB requested" in ours[1]
    assert ours[3] == [1000, 40 << 20, 70 << 20]
