"""Tensors that sleep and tensors that processes share: a real torch on the simulated driver."""

from __future__ import annotations

import pathlib
import re

import pytest
import torch

import memopt.torch as mt
from simulated import run

TENSORS = """
import os, random, signal, socket

def copy(tensor, data, into):
    storage = tensor.untyped_storage()
    assert len(data) == storage.nbytes()
    new_context(tensor.device.index)
    host, device = ctypes.addressof(data), storage.data_ptr()
    to, source = (device, host) if into else (host, device)
    check(driver.cuMemcpyAsync(*map(ctypes.c_uint64, (to, source, len(data), 0))))
    check(driver.cuStreamSynchronize(None))

def bits(tensor, seed):
    count = tensor.untyped_storage().nbytes()
    return (random.Random(seed).randbytes(4099) * (count // 4099 + 1))[:count]

def write(tensor, seed):
    data = bits(tensor, seed)
    copy(tensor, (ctypes.c_char * len(data)).from_buffer_copy(data), True)

def write_blocks(allocator):
    # Also what no tensor uses: the simulator notices that a pause reads it.
    for segment in allocator.snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                size = ctypes.c_size_t(block["size"])
                new_context()
                check(driver.cuMemsetD8Async(
                    ctypes.c_uint64(block["address"]), ctypes.c_ubyte(1), size, None))

def read(tensor):
    data = (ctypes.c_char * tensor.untyped_storage().nbytes())()
    copy(tensor, data, False)
    return data.raw

def holds(tensor, seed):
    return read(tensor) == bits(tensor, seed)

def in_a_child(function, line):
    line.set_inheritable(True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = function(line) or 0
            import gc; gc.collect()
        except BaseException:
            import traceback; traceback.print_exc()
        ctypes.CDLL(None).exit(code)  # the simulator tells what it found wrong
    line.close()
    return child
"""


def torch_run(program, **environment):
    return run(TENSORS + program, torch_too=True, **environment)


@pytest.mark.parametrize("how", ["host", "file", "lost"])
@pytest.mark.parametrize("of", ["process", "pools"])
def test_tensors_sleep_by_tag(how, of, tmp_path):
    """Weights and a cache sleep while others use the memory; addresses stay, bits come back."""
    torch_run(
        """
config, keep, file = "expandable_segments:True", %r != "lost", %r
if %r == "process":
    allocator = mt.enable_allocator(config)
else:
    allocator = mt.allocator.TorchAllocator(config)
with mt.tagged("weights"):
    weights = [empty(n) for n in (12 * MIB, 300, 3 * MIB + 5)]
with mt.tagged("kv cache"):
    cache = empty(8 * MIB)
other = empty(4 * MIB)
kept = [*weights, cache, other]
write_blocks(allocator)
for seed, tensor in enumerate(kept):
    write(tensor, seed)
addresses = [t.data_ptr() for t in kept]
held = driver.memopt_sim_used(0)
slept = mt.pause("weights", keep=keep, file=file)
assert slept >= 14 * MIB and slept.kept >= 14 * MIB * keep, (slept, slept.kept)
assert driver.memopt_sim_used(0) <= held - 14 * MIB
assert mt.pausing.paused_tags() == {"weights"}
assert holds(cache, 3) and holds(other, 4)
raises(memopt.BusyError, "paused already", mt.pause, "weights")
mt.pause("kv cache", keep=False)
assert mt.pausing.paused_tags() == {"weights", "kv cache"}
guest = empty((84 if allocator.enabled else 64) * MIB)  # there was no room for this
raises(memopt.OutOfMemoryError, "", mt.resume, "weights")
assert holds(other, 4) and mt.pausing.paused_tags() == {"weights", "kv cache"}
del guest
torch.cuda.empty_cache()
mt.resume("weights")
assert mt.pausing.paused_tags() == {"kv cache"}
mt.resume()
assert mt.pausing.paused_tags() == set()
assert [t.data_ptr() for t in kept] == addresses
if not keep:
    write(weights[0], 0), write(weights[1], 1), write(weights[2], 2)
write(cache, 3)
assert all(holds(t, seed) for seed, t in enumerate(kept))
raises(memopt.BusyError, "not paused", mt.resume, "weights")
raises(ValueError, "the tags are", mt.pause, "wieghts")
raises(ValueError, "discards", mt.pause, "weights", keep=False, file="/tmp")
assert os.listdir(%r) == []
"""
        % (how, str(tmp_path) if how == "file" else None, of, str(tmp_path)),
        MEMOPT_SIM_MEMORY="96M",
    )


def test_all_sleeps_and_is_freed_meanwhile():
    torch_run(
        """
allocator = mt.enable_allocator("expandable_segments:True")
first, second = empty(30 * MIB), empty(50 * MIB, "cuda:1")
write(first, 1), write(second, 2)
assert mt.pause() == 80 * MIB
assert driver.memopt_sim_used(0) == driver.memopt_sim_used(1) == 0
assert "weights" in mt.pausing.paused_tags()
raises(RuntimeError, "paused", empty, 100)
raises(memopt.BusyError, "everything is paused", mt.pause)
del first
allocator.resume(device=1)
assert holds(second, 2) and driver.memopt_sim_used(0) == 0
mt.resume()
raises(memopt.BusyError, "everything is not paused", mt.resume)
third = empty(30 * MIB)
del second, third
torch.cuda.empty_cache()
assert driver.memopt_sim_used(0) == driver.memopt_sim_used(1) == 0
"""
    )


def test_a_failure_pauses_nothing():
    """The second device's graph is being recorded: the first one's pause is undone."""
    torch_run(
        """
allocator = mt.enable_allocator("expandable_segments:True")
with mt.tagged("weights"):
    both = [empty(6 * MIB, i) for i in range(2)]
with torch.cuda.device(1):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), mt.tagged("weights"):
        both.append(empty(MIB, 1))
for seed, tensor in enumerate(both):
    write(tensor, seed)
begin_capture(stream.cuda_stream)
raises(memopt.BusyError, "records a graph", mt.pause, "weights")
assert mt.pausing.paused_tags() == set() and holds(both[0], 0)
new_context(1)
end_capture(stream.cuda_stream)
raises(OSError, "", mt.pause, "weights", file="/nowhere/at/all")
assert mt.pausing.paused_tags() == set() and all(holds(t, i) for i, t in enumerate(both))
"""
    )


def test_what_cannot_sleep():
    torch_run(
        """
raises(RuntimeError, "enable_allocator", mt.pause)
raises(RuntimeError, "enable_allocator", lambda: mt.tagged("weights").__enter__())
allocator = mt.allocator.TorchAllocator("")
with allocator.pool():
    x = empty(MIB)
raises(memopt.UnsupportedError, "expandable_segments:True", mt.pause)
raises(ValueError, "characters", lambda: mt.tagged("x" * 32).__enter__())
with mt.tagged("weights"):
    y = empty(MIB)
    raises(memopt.BusyError, "not left yet", mt.pause, "weights")
raises(memopt.UnsupportedError, "expandable_segments:True", mt.pause, "weights")
"""
    )


def test_pools_of_torch_do_not_nest():
    torch_run(
        """
import threading
allocator = mt.allocator.TorchAllocator("expandable_segments:True")
def bytes_of(tag, device=0):
    (handle, *_) = mt.allocator._pluggable.handles(device)
    names = memopt.oom.tag_names(handle)
    if tag not in names:
        return 0
    at = names.index(tag)
    return memopt._library.output(lib.memopt_allocator_get_tag_stats, handle, at).current_bytes
def elsewhere():
    with mt.tagged("inner"):
        kept.append(empty(30 * MIB))
kept = []
with mt.tagged("outer"):
    for call in (lambda: mt.tagged("refused"), allocator.pool):
        raises(memopt.BusyError, "inside tagged() or pool() on cuda:0 already, with the tag 'outer'",
               lambda: call().__enter__())
    x = empty(20 * MIB)  # still the outer pool, with its tag
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with mt.tagged("other card", device=1):
        z = empty(40 * MIB, "cuda:1")
    raises(memopt.BusyError, "not left yet", mt.pause, "outer")
    assert mt.allocator._paused.this_tag() == "outer"
assert [bytes_of(t) for t in ("outer", "inner", "refused")] == [20 * MIB, 30 * MIB, 0]
assert bytes_of("other card", 1) == 40 * MIB
with allocator.pool():
    raises(memopt.BusyError, "tagged('again')", lambda: mt.tagged("again").__enter__())
with mt.tagged("again"):  # after it
    y = empty(22 * MIB)
assert bytes_of("again") == 22 * MIB
write(x, 1)
mt.pause("outer")
mt.resume("outer")
assert holds(x, 1)
"""
    )


def test_a_tag_is_left_whatever_happens():
    torch_run(
        """
import threading
allocator = mt.enable_allocator("expandable_segments:True")
def bytes_of(tag):
    (handle, *_) = mt.allocator._pluggable.handles(0)
    at = memopt.oom.tag_names(handle).index(tag)
    return memopt._library.output(lib.memopt_allocator_get_tag_stats, handle, at).current_bytes
try:
    with mt.tagged("weights"), mt.tagged("inner"):
        x = empty(1000)
        thread = threading.Thread(target=lambda: kept.append(empty(2000)))
        kept = []
        thread.start()
        thread.join()
        raise KeyError
except KeyError:
    pass
y = empty(4000)
assert [bytes_of(t) for t in ("weights", "inner", "other")] == [0, 1000, 6000]
"""
    )


# --- sharing --------------------------------------------------------------------------------------

SHARING = """
here, there = socket.socketpair(socket.AF_UNIX, socket.%s)
here.settimeout(60)

def peer(line):
    allocator = mt.enable_allocator("expandable_segments:True")
    view = mt.sharing.import_tensor(line)
    assert view.dtype is torch.bfloat16 and view.shape == (3, 5) and view.stride() == (1, 100)
    twin = mt.sharing.import_tensor(line)  # another view of the same block
    assert twin.dtype is torch.float32 and twin.shape == (1000,)
    if %s:
        line.sendall(b"k")
        signal.pause()
    line.sendall(b"i")
    assert line.recv(1) == b"w"
    assert read(twin) == read(view)
    del twin
    assert holds(view, 7)
    write(view, 8)
    line.sendall(b"d")
    assert line.recv(1) == b"c"
    assert holds(view, 8)  # it has outlived the export
    del view
"""


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET"])
def test_tensors_of_two_processes(kind):
    torch_run(
        SHARING % (kind, False)
        + """
child = in_a_child(peer, there)
allocator = mt.enable_allocator("expandable_segments:True")
before = empty(MIB + 512)
block = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
view = block[: 4 * MIB].view(torch.bfloat16)[64:].as_strided((3, 5), (1, 100))
write_blocks(allocator)
write(block, 7)
with mt.sharing.share_tensor(view) as shared, mt.sharing.share_tensor(block[4096:8096].view(torch.float32)) as twin:
    shared.send(here)
    twin.send(here)
    assert here.recv(1) == b"i"
    here.sendall(b"w")
    assert here.recv(1) == b"d"
    assert holds(block, 8)
    assert mt.pause("other").shared >= 5 * MIB  # what is shared stays
    mt.resume("other")
    assert holds(block, 8)
raises(memopt.ClosedError, "", shared.send, here)
del block, view, before
torch.cuda.empty_cache()
here.sendall(b"c")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
gc.collect()
assert driver.memopt_sim_used(0) == 0
"""
    )


def test_a_peer_that_is_killed():
    torch_run(
        SHARING % ("SOCK_STREAM", True)
        + """
child = in_a_child(peer, there)
allocator = mt.enable_allocator("expandable_segments:True")
block = empty(5 * MIB)
write(block, 7)
view = block[: 4 * MIB].view(torch.bfloat16)[64:].as_strided((3, 5), (1, 100))
with mt.sharing.share_tensor(view) as shared, mt.sharing.share_tensor(block[4096:8096].view(torch.float32)) as twin:
    shared.send(here)
    twin.send(here)
    assert here.recv(1) == b"k"
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    raises(OSError, "", shared.send, here)
    assert holds(block, 7)
del block, view
torch.cuda.empty_cache()
assert driver.memopt_sim_used(0) == 0
"""
    )


def test_own_transport_and_bad_messages():
    torch_run(
        """
import json
raises(RuntimeError, "enable_allocator", mt.sharing.share_tensor, empty(MIB))
allocator = mt.allocator.TorchAllocator("expandable_segments:True")
torch_s = empty(MIB)
raises(RuntimeError, "not the library's", mt.sharing.share_tensor, torch_s)
with allocator.pool():  # the block is torch's segment, the tensor lies in it
    first, second = empty(3 * MIB), empty(2 * MIB)
write(first, 1), write(second, 2)
shared = mt.sharing.share_tensor(second.view(torch.int64))
message, files = shared.describe(), shared.open_files()
text, rest = message[:4096], message[4096:]
for change in ({"shape": [1 << 40]}, {"strides": [-1]}, {"strides": [1, 1]}, {"offset": 4},
               {"offset": 1 << 50}, {"offset": 8.0}, {"dtype": "nn"}, {"dtype": "int65"},
               {"memopt tensor": 2}, {"shape": None}):
    wrong = json.dumps(dict(json.loads(text), **change)).encode().ljust(4096)
    raises(ValueError, "import_tensor: the ", mt.sharing.import_tensor, (wrong + rest, files))
for wrong in (b"", b"[" * 4096, message[:-1]):
    raises(ValueError, "", mt.sharing.import_tensor, (wrong, files))
twin = mt.sharing.import_tensor((message, files))
for file in files:
    os.close(file)
shared.close()
assert twin.dtype is torch.int64 and twin.shape == (MIB // 4,)
at = twin.storage_offset() * 8
assert read(twin)[at : at + 2 * MIB] == read(second)
for wrong in (second[:0], torch.empty(3), second.view(torch.complex64).conj()):
    raises(ValueError, "share_tensor", mt.sharing.share_tensor, wrong)
one, other = socket.socketpair()
one.close()
raises(OSError, "closed", mt.sharing.import_tensor, other)
"""
    )


PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "guide" / "pytorch-memory.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the guide is not beside this package")
def test_the_programs_of_the_guide():
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[2:]
    sleeping, exporting, importing = (p.replace("/scratch", "/tmp") for p in programs)
    torch_run(
        "sleeping, exporting, importing = %r, %r, %r" % (sleeping, exporting, importing)
        + """
import threading
def build():
    write_later.append(empty(4 * MIB))
    return write_later[0]
allocate_cache = build
train = lambda: slept.append(mt.pausing.paused_tags())
write_later, slept = [], []
cut = sleeping.index("mt.pause")
exec(sleeping[:cut])
for tensor in write_later:
    write(tensor, 5)
exec(sleeping[cut:])
assert slept == [{"weights", "kv cache"}] and holds(write_later[0], 5)

def other(socket):
    names = {"mt": mt, "socket": socket}
    exec(importing, names)
    seen.append(holds(names["weight"], 5))
    socket.sendall(b"d")
seen, weight = [], write_later[0]
socket, there = socket.socketpair()
thread = threading.Thread(target=other, args=(there,))
thread.start()
exec(exporting)
thread.join()
assert seen == [True]
"""
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_without_a_gpu():
    for call in (mt.pause, mt.resume, mt.pausing.paused_tags):
        with pytest.raises(RuntimeError, match="allocates nothing yet|sees no GPU"):
            call()
    with pytest.raises(ValueError, match="give a dense GPU tensor"):
        mt.sharing.share_tensor(torch.zeros(4))
