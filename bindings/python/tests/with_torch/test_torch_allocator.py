"""enable_allocator() and a real torch, on the simulated driver.

Each program runs in a process of its own: a process has one allocator. Where torch sees a real GPU,
the last tests run there.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import memopt
import memopt.torch as mt
from simulated import PACKAGE, run

GPU = torch.cuda.is_available()


# --- a real torch on the simulated driver ---------------------------------------------------------


def test_torch_tensors_come_from_the_library():
    run(
        """
        allocator = mt.enable_allocator("expandable_segments:True")
        assert allocator.enabled and mt.enable_allocator() is allocator
        x = torch.empty(3, 1000, device="cuda")
        y = torch.empty(1000, device="cuda:1", dtype=torch.bfloat16)
        assert allocator.stats(0)["requested_bytes.all.current"] == 12000
        assert allocator.stats("cuda:1")["requested_bytes.all.current"] == 2000
        (segment,) = allocator.snapshot(1)
        assert segment["device"] == 1 and segment["is_expandable"]
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert [b["address"] for b in used] == [y.data_ptr()]
        del x, y
        stats = allocator.stats(0)
        assert stats["requested_bytes.all.current"] == 0
        assert stats["requested_bytes.all.peak"] == 12000
        allocator.reset_peaks(0)
        assert allocator.stats(0)["requested_bytes.all.peak"] == 0
        assert driver.memopt_sim_used(0) > 0
        torch.cuda.empty_cache()
        assert driver.memopt_sim_used(0) == driver.memopt_sim_used(1) == 0
        empty = torch.empty(0, device="cuda")
        assert empty.data_ptr() == 0
        del empty
        told = raises(ValueError, "max_split_size_mb:64", mt.enable_allocator, "max_split_size_mb:64")
        assert "expandable" in told
        """,
        torch_too=True,
    )


def test_torch_raises_when_memory_is_out():
    """torch does not look at what a pluggable allocator returns: NULL would become a tensor."""
    run(
        """
        allocator = mt.enable_allocator("")
        kept = empty(200 * MIB)
        for _ in range(3):
            told = raises(torch.OutOfMemoryError, "100.00 MiB asked", empty, 100 * MIB)
            assert told.startswith("CUDA out of memory. ")
        del kept
        empty(100 * MIB)
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.25, 0)
        raises(torch.OutOfMemoryError, "CUDA out of memory. ", empty, 100 * MIB)
        empty(50 * MIB)
        told = raises(RuntimeError, "overflow", empty, 1 << 62)
        assert "out of memory" not in told  # it is no matter of memory
        """,
        torch_too=True,
    )


def test_torch_record_stream():
    run(
        """
        allocator = mt.enable_allocator("")
        stream = torch.cuda.Stream()
        for recorded in (False, True):
            x = empty(3 * MIB)
            address = x.data_ptr()
            if recorded:
                new_context()
                check(driver.cuMemsetD8Async(
                    ctypes.c_uint64(address), ctypes.c_ubyte(1), ctypes.c_size_t(MIB),
                    ctypes.c_void_p(stream.cuda_stream)))
                x.record_stream(stream)
            del x
            y = empty(3 * MIB)
            assert (y.data_ptr() == address) is not recorded
            del y
        stream.synchronize()
        """,
        torch_too=True,
    )


def test_torch_graph_pools():
    """torch hands a pool's id and a std::function by value; graphs get memory of their own."""
    run(
        """
        allocator = mt.enable_allocator("")
        stream = torch.cuda.Stream()
        empty(MIB)
        new_context()
        pool = (123456789012, 5)
        torch._C._cuda_beginAllocateToPool(0, pool)
        with torch.cuda.stream(stream):
            begin_capture(stream.cuda_stream)
            x = empty(MIB)
            address = x.data_ptr()
            assert stat("requested_bytes.all.current", 0, 1) == MIB
            assert allocator.stats(0)["requested_bytes.all.current"] == MIB
            del x
            end_capture(stream.cuda_stream)
        torch._C._cuda_endAllocateToPool(0, pool)
        torch.cuda.empty_cache()
        assert {s["segment_pool_id"] for s in allocator.snapshot(0)} == {pool}
        assert torch.cuda.memory_snapshot(pool) == allocator.snapshot(0)
        assert torch.cuda.memory_snapshot((8, 8)) == []
        with torch.cuda.stream(stream):
            y = empty(MIB)
        assert y.data_ptr() != address and stat("requested_bytes.all.current") == MIB
        torch._C._cuda_releasePool(0, pool)
        assert stat("reserved_bytes.all.current", 0, 1) == 0
        del y
        """,
        torch_too=True,
    )


def test_torch_cache_is_trimmed_to_a_target():
    run(
        """
        allocator = mt.enable_allocator("expandable_segments:True", "cuda:1")
        assert allocator.trim() == 0
        kept = empty(2 * MIB, "cuda:0")
        for device in ("cuda:0", "cuda:1"):
            empty(20 * MIB, device)
        held = [driver.memopt_sim_used(i) for i in range(2)]
        assert allocator.trim("64MiB") == 0
        assert allocator.trim("16MiB", 0) == held[0] - 16 * MIB
        assert torch.cuda.memory_reserved(0) == driver.memopt_sim_used(0) == 16 * MIB
        assert driver.memopt_sim_used(1) == held[1]
        assert allocator.trim(12 * MIB, torch.device("cuda:1")) == held[1] - 12 * MIB
        assert allocator.trim("8MiB") == 8 * MIB + 4 * MIB
        assert allocator.trim() == 6 * MIB + 8 * MIB
        assert driver.memopt_sim_used(0) == 2 * MIB and driver.memopt_sim_used(1) == 0
        assert allocator.trim(0, 0) == 0
        for wrong in (-1, "8 apples"):
            raises(ValueError, "", allocator.trim, wrong)
        del kept
        """,
        torch_too=True,
    )


def test_torch_steps_are_learned():
    run(
        """
        allocator = mt.enable_allocator("expandable_segments:True", "cuda:1")
        def step(size):
            kept = [empty(size, "cuda:1") for _ in range(6)]
            del kept[::2]
            empty(4 * size, "cuda:1")
        for _ in range(5):
            step(3 * MIB)
            allocator.mark_step()
        plan = allocator.step_plan()
        assert plan.active and plan.allocations == 7 and plan.planned_steps >= 2
        assert allocator.step_plan("cuda:0").steps == 0
        step(5 * MIB)
        allocator.mark_step(end=True)
        assert allocator.step_plan(1).steps == 0
        """,
        torch_too=True,
    )


def test_torch_pool_for_a_part_of_a_program():
    run(
        """
        before = empty(MIB)  # torch is in use already
        assert "pool()" in raises(RuntimeError, "in use already", mt.enable_allocator)
        allocator = mt.allocator.TorchAllocator("")
        assert not allocator.enabled and "pools" in repr(allocator)
        with allocator.pool() as pool:
            inside = empty(MIB)
            raises(torch.OutOfMemoryError, "", empty, 300 * MIB)
        held = allocator.stats(0)["requested_bytes.all.current"]
        assert held >= MIB
        outside = empty(MIB)
        assert allocator.stats(0)["requested_bytes.all.current"] == held
        del inside, pool
        gc.collect()
        torch.cuda.empty_cache()
        assert allocator.stats(0)["requested_bytes.all.current"] == 0
        """,
        torch_too=True,
    )


@pytest.mark.parametrize("name", mt.allocator.ENVIRONMENT)
def test_configuration_of_the_environment(name):
    errors = run(
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            allocator = mt.enable_allocator()
        (warning,) = caught
        assert "'brand_new_key:3'" in str(warning.message), warning
        assert "column 23: unknown key" in str(warning.message), warning
        assert warning.filename == "<string>", warning.filename
        assert allocator.config == "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:4]"
        torch.empty(10, device="cuda")
        assert allocator.stats()["max_split_size"] == 64 * MIB
        """,
        torch_too=True,
        **{name: "max_split_size_mb:64, brand_new_key:3,roundup_power2_divisions:[256:1,512:2,>:4],"},
    )
    assert "Traceback" not in errors


def test_keys_of_the_environment_are_checked_together():
    """max_split_size_mb alone is below the large segment's size."""
    run(
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            allocator = mt.enable_allocator()
        assert allocator.config == "max_split_size_mb:12,large_segment_size_mb:11"
        """,
        torch_too=True,
        PYTORCH_ALLOC_CONF="max_split_size_mb:12,large_segment_size_mb:11",
    )


def test_a_given_configuration_must_be_right():
    run(
        """
        for make in (mt.enable_allocator, mt.allocator.TorchAllocator):
            raises(ValueError, "expandable_segments", make, "expandable_segment:True")
        assert mt.allocator.enabled_allocator() is None
        assert mt.enable_allocator("expandable_segments:True").enabled
        """,
        torch_too=True,
    )


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.skipif(GPU, reason="torch sees a GPU")
def test_without_a_gpu():
    with pytest.raises(RuntimeError, match="sees no GPU"):
        mt.enable_allocator("expandable_segments:True")
    assert mt.allocator.enabled_allocator() is None


# --- a real GPU -----------------------------------------------------------------------------------

ON_A_GPU = """
import torch

import memopt.torch as mt
allocator = mt.enable_allocator("expandable_segments:True")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(64, 256, device="cuda")
for _ in range(5):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
assert allocator.stats()["requested_bytes.all.current"] > 0
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    for _ in range(3):
        wanted = model(x)
    with torch.cuda.graph(graph):
        result = model(x).relu() * 2
    noise = [torch.randn(64, 512, device="cuda") for _ in range(50)]
    graph.replay()
    assert torch.equal(result, wanted.relu() * 2)
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "out of memory" in str(error)
else:
    raise AssertionError
side = torch.cuda.Stream()
for _ in range(20):
    y = torch.randn(1 << 20, device="cuda")
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        z = y * 2
    y.record_stream(side)
    del y
    w = torch.zeros(1 << 20, device="cuda")
torch.cuda.synchronize()
"""


@pytest.mark.skipif(not GPU, reason="torch sees no GPU")
def test_training_on_a_gpu():
    variables = dict(os.environ, PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path)
    result = subprocess.run(
        [sys.executable, "-c", ON_A_GPU], env=variables, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
