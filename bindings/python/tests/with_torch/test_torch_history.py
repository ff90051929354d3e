"""The history of memopt.torch: frames, pending frees, torch's own viewers, and who holds what when
memory runs out. The programs run on the simulated driver, with a real torch."""

from __future__ import annotations

import json


from simulated import run

#: A model's blocks by the lines that make them, and a failure.
WORK = """
import json, os, pickle, tempfile
allocator = mt.enable_allocator('')
torch.cuda.memory._record_memory_history(max_entries=100%s)

def weights():
    return [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]

def activations():
    return [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(5)]

kept = weights() + activations()
try:
    torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    message = str(error)
"""


def answer(program, more=""):
    text = run(WORK % more + program, torch_too=True)
    return json.loads(next(line for line in text.split("\n") if line.startswith(("[", "{"))))


def test_out_of_memory_says_where():
    found = answer(
        """
kept.clear()
report = allocator.out_of_memory()
plain = report.as_dict()
print(json.dumps([plain, str(report), message]), flush=True)
"""
    )
    plain, text, message = found
    assert plain["cause"] == "growth" and plain["asked_bytes"] == 150 << 20
    assert "cause: live memory: other" in message
    assert [(h["nbytes"] >> 20, h["blocks"]) for h in plain["holders"]] == [(150, 5), (30, 10)]
    assert [h["frames"][0]["name"] for h in plain["holders"]] in (
        [["activations", "weights"]],
        ["<listcomp>", "<listcomp>"],
        ["activations", "weights"],
    )
    names = [[f["name"] for f in h["frames"]] for h in plain["holders"]]
    assert "activations" in names[0] and "weights" in names[1]
    assert all(h["since"] > 1e9 for h in plain["holders"])
    assert "150.00 MiB asked for other" in text and "activations" in text


def test_without_a_history_there_are_sizes():
    found = answer(
        """
torch.cuda.memory._record_memory_history(None)
try:
    torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
plain = allocator.out_of_memory("cuda:0").as_dict()
none = allocator.out_of_memory(1)
print(json.dumps([plain, none]), flush=True)
"""
    )
    assert found[0]["number"] == 2 and found[1] is None
    assert [h["frames"] for h in found[0]["holders"]] == [[]] * len(found[0]["holders"])
    assert sum(h["nbytes"] for h in found[0]["holders"]) == 180 << 20


def test_no_frames_where_none_were_asked_for():
    found = answer(
        """
entries = torch.cuda.memory._snapshot()["device_traces"][0]
print(json.dumps([e["frames"] for e in entries]), flush=True)
""",
        ", context=None",
    )
    assert found == [[]] * 16


def test_a_page(tmp_path):
    path = tmp_path / "memory.html"
    found = answer("allocator.dump_snapshot(%r)\nprint(json.dumps([1]), flush=True)\n" % str(path))
    assert found == [1]
    text = path.read_text()
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert [p[1] >> 20 for p in data["devices"][0]["live"]][-1] == 180
    assert data["devices"][0]["held"][-1][1] >= 180 << 20
    assert data["failure"]["cause"] == "growth" and len(data["devices"][0]["failed"]) == 1
    assert any("activations" in stack for stack in data["stacks"])


def test_a_free_that_waits_is_complete_later():
    found = answer(
        """
side = torch.cuda.Stream()
x = kept.pop(0)
x.record_stream(side)
address = x.data_ptr()
del x
def actions():
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [e["action"] for e in trace if e.get("addr") == address]
first = actions()
side.synchronize()
kept.append(torch.empty(1000, device="cuda"))
kept.append(torch.empty(1000, device="cuda"))
print(json.dumps([first, actions()]), flush=True)
"""
    )
    assert found[0] == ["alloc", "free_requested"]
    assert found[1][:3] == ["alloc", "free_requested", "free_completed"]


def test_a_pool_has_no_report():
    text = run(
        """
import json
try:
    mt.allocator.TorchAllocator('').out_of_memory(0)
except RuntimeError as error:
    print(json.dumps([str(error)]), flush=True)
""",
        torch_too=True,
    )
    assert "is not enabled" in text
