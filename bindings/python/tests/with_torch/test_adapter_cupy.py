"""examples/adapters/memopt_cupy.py with the real CuPy, which ./setup --torch brings.

Without a GPU CuPy makes arrays from an allocator that is given to it, and has no current stream: that one is said here.
"""

from __future__ import annotations

import gc
import pathlib
import re
import sys
import types

import pytest
from simulated import run

import memopt

ADAPTERS = pathlib.Path(__file__).resolve().parents[4] / "examples" / "adapters"


@pytest.fixture
def cupy(monkeypatch):
    module = pytest.importorskip("cupy")
    monkeypatch.syspath_prepend(str(ADAPTERS))
    monkeypatch.setattr(module.cuda, "get_current_stream", lambda: types.SimpleNamespace(ptr=module.now))
    module.now = 0
    yield module
    module.cuda.set_allocator(None)
    del module.now
    sys.modules.pop("memopt_cupy", None)


def test_arrays_are_blocks(cupy):
    from memopt_cupy import CupyAllocator

    with memopt.Device("cpu", capacity="64MiB") as device, memopt.Allocator(device) as allocator:
        cupy.cuda.set_allocator(CupyAllocator(allocator, "activations"))
        array = cupy.ndarray((1000, 10), dtype=cupy.float32)
        assert allocator.block(array.data.ptr) == (array.data.ptr, 40448)
        assert allocator.tags()["activations"].current_bytes == 40000
        part = array[5:6]
        del array
        assert allocator.stat("allocation.all.current") == 1  # the part's
        empty = cupy.ndarray((0,), dtype=cupy.int8)
        del part, empty
        gc.collect()
        assert allocator.stat("allocation.all.current") == 0
        with pytest.raises(MemoryError, match="65.00 MiB asked for activations"):
            cupy.ndarray((65 << 20,), dtype=cupy.int8)


def test_blocks_belong_to_the_current_stream(cupy):
    from memopt_cupy import CupyAllocator

    with memopt.Device("cpu", capacity="64MiB") as device, memopt.Allocator(device) as allocator:
        with device.stream() as stream:
            cupy.cuda.set_allocator(CupyAllocator(allocator))

            def address():
                return cupy.ndarray((1000,), dtype=cupy.int8).data.ptr

            first = address()
            cupy.now = int(stream)
            second = address()
            assert second != first and address() == second
            cupy.now = 0
            assert address() == first


TOGETHER = """
import random, types
import cupy, memopt_cupy
cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
mt.enable_allocator("expandable_segments:True")
cupy.cuda.set_allocator(memopt_cupy.TorchPool(0))

def play(of_torch, of_cupy):
    "A step of one library after one of the other, and each leaves something alive; the joint peak."
    draw, live, now, most = random.Random(1), [], 0, 0
    for phase in range(24):
        make = of_torch if phase % 2 else of_cupy
        for _ in range(draw.randrange(10, 80)):
            nbytes = int(draw.lognormvariate(15, 1.5)) + 1
            live.append((make(nbytes), nbytes))
            now += nbytes
            most = max(most, now)
            if draw.random() < 0.3:
                now -= live.pop(draw.randrange(len(live)))[1]
        for _ in range(int(draw.choice((0.2, 0.9)) * len(live))):
            now -= live.pop(draw.randrange(len(live)))[1]
    return most

joint = play(int, int)
torch.cuda.set_per_process_memory_fraction(1.03 * joint / torch.cuda.mem_get_info()[1])
assert play(empty, lambda nbytes: cupy.ndarray((nbytes,), dtype=cupy.uint8)) == joint
reserved = stat("reserved_bytes.all.peak")
print("reserved %d joint %d ratio %.4f" % (reserved, joint, reserved / joint))
gc.collect()
assert stat("allocated_bytes.all.current") == 0
"""


def test_torch_and_cupy_run_in_their_joint_peak():
    pytest.importorskip("cupy")
    program = "import sys; sys.path.insert(0, %r)\n" % str(ADAPTERS) + TOGETHER
    printed = run(program, torch_too=True, MEMOPT_SIM_MEMORY="4G", MEMOPT_SIM_FILL="0")
    found = re.search(r"ratio ([\d.]+)", printed)
    assert found and 1 <= float(found[1]) <= 1.03, printed
