"""The allocator through Python: blocks, statistics, snapshot, tags, callbacks, misuse."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest

import memopt

MIB = 1 << 20


def test_alloc_and_free(device, allocator):
    buffer = allocator.alloc("1MiB")
    assert buffer.pointer % 512 == 0 and buffer.nbytes == MIB and int(buffer) == buffer.pointer
    base, size = allocator.block(buffer.pointer + 100)
    assert base == buffer.pointer and size >= MIB
    assert device.memory_info().used >= MIB
    allocator.free(buffer)
    assert buffer.freed and not allocator._live, "what the binding knows of blocks goes with them"
    allocator.alloc("12MiB").free()
    assert allocator.trim("8MiB") >= 4 * MIB and device.memory_info().used == 8 * MIB
    assert allocator.trim() == 8 * MIB and device.memory_info().used == 0


def test_a_block_can_be_freed_by_its_address(allocator):
    buffer = allocator.alloc(1000)
    allocator.free(int(buffer))
    assert buffer.freed
    other = allocator.alloc(1000)
    del buffer  # must not free the block a second time: it may be the other's now
    gc.collect()
    assert allocator.block(other)[0] == other.pointer
    other.free()


def test_a_forgotten_buffer_is_freed(allocator):
    buffer = allocator.alloc(5000)
    assert allocator.stat("allocated_bytes.all.current") > 0
    del buffer
    assert allocator.stat("allocated_bytes.all.current") == 0


def test_no_bytes(allocator):
    buffer = allocator.alloc(0)
    assert buffer.pointer == 0 and not buffer
    assert buffer.as_memoryview().nbytes == 0
    allocator.free(buffer)
    allocator.free(None)


def test_context_manager_and_repeated_free(allocator):
    with allocator.alloc(100) as buffer:
        pass
    assert buffer.freed
    for use in (buffer.free, buffer.as_memoryview, lambda: buffer.pointer, buffer.tensor):
        with pytest.raises(memopt.ClosedError):
            use()


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda a: a.free(0xDEAD000), memopt.InvalidArgumentError),
        (lambda a: a.alloc(-1), ValueError),
        (lambda a: a.alloc(2**64 - 1), ValueError),
        (lambda a: a.alloc(2**64), ValueError),
        (lambda a: a.alloc("lots"), ValueError),
        (lambda a: a.alloc(10, tag="luggage"), ValueError),
        (lambda a: a.alloc(10, tag=63), ValueError),
        (lambda a: a.trim(-1), ValueError),
        (lambda a: a.record_stream(0xDEAD000, None), ValueError),
        (lambda a: a.pool("x" * 32), ValueError),
        (lambda a: a.pool("a\0b"), ValueError),
        (lambda a: a.pool(config="expandable_segment:True"), memopt.InvalidArgumentError),
        (lambda a: a.pool("outer").pool("inner"), ValueError),
    ],
)
def test_misuse(allocator, call, error):
    with pytest.raises(error):
        call(allocator)


def test_an_address_that_is_no_block_any_more(allocator):
    buffer = allocator.alloc(4096)
    address = int(buffer)
    with pytest.raises(memopt.InvalidArgumentError):
        allocator.free(address + 512)
    allocator.free(buffer)
    with pytest.raises(memopt.InvalidArgumentError):
        allocator.free(address)


def test_pinned_memory(device):
    with memopt.Allocator(device, pinned=True, limit="8MiB") as allocator:
        assert allocator.pinned
        with allocator.alloc("3MiB") as buffer:
            assert buffer.__dlpack_device__() == device._dlpack_device(True)
            buffer.as_memoryview()[:4] = b"abcd"
            assert allocator.stat("reserved_bytes.all.current") == 3 * MIB
            assert device.memory_info().pinned >= 3 * MIB
            with allocator.pool("io") as pool:
                assert pool.pinned
                with pytest.raises(memopt.OutOfMemoryError, match="page-locked"):
                    pool.alloc("6MiB")
    with pytest.raises(memopt.UnsupportedError, match="expandable_segments"):
        memopt.Allocator(device, "expandable_segments:True", pinned=True)


def test_provided_memory(device):
    arena = bytearray(16 * MIB)
    start = (ctypes.c_char * len(arena)).from_buffer(arena)
    base = -(-ctypes.addressof(start) // 4096) * 4096
    held = {}

    def give(nbytes):
        if nbytes == 4 * MIB:
            raise KeyError("no such size")
        if held or nbytes > 12 * MIB:
            return None
        held[base] = nbytes
        return base

    provider = (give, lambda address, nbytes: held.pop(address) == nbytes or 1 / 0)
    with memopt.Allocator(device, "large_segment_size_mb:11", provider=provider) as allocator:
        with allocator.alloc(2 * MIB) as buffer:
            assert int(buffer) == base and held == {base: 12 * MIB}
            buffer.as_memoryview()[:3] = b"abc"
        assert bytes(arena[base - ctypes.addressof(start) :][:3]) == b"abc"
        assert allocator.trim() == 12 * MIB and not held
        with pytest.raises(memopt.OutOfMemoryError, match="provider"):
            allocator.alloc(13 * MIB)
    with memopt.Allocator(device, pinned=True, provider=provider) as allocator:
        with pytest.raises(KeyError, match="no such size"):
            allocator.alloc(4 * MIB)


def test_unknown_configuration_names_the_nearest_key(device):
    with pytest.raises(memopt.InvalidArgumentError) as caught:
        memopt.Allocator(device, "expandable_segment:True")
    assert "expandable_segments" in str(caught.value)
    with pytest.raises(ValueError):
        memopt.Allocator(device, "max_split_size_mb:many")
    with pytest.raises(TypeError):
        memopt.Allocator(device, None)


def test_stats_have_the_field_s_keys(allocator):
    buffer = allocator.alloc(3 * MIB)
    stats = allocator.stats()
    for what in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert "%s.%s.%s" % (what, pool, kind) in stats
    assert stats["requested_bytes.all.current"] == 3 * MIB
    assert stats["reserved_bytes.all.peak"] >= 3 * MIB
    assert all(isinstance(value, int) for value in stats.values())
    buffer.free()
    after = allocator.stats()
    assert after["requested_bytes.all.current"] == 0
    assert after["requested_bytes.all.peak"] == 3 * MIB
    assert after["requested_bytes.all.peak"] == allocator.stat("requested_bytes.all.peak")
    allocator.reset_peaks()
    assert allocator.stat("requested_bytes.all.peak") == 0
    with pytest.raises(memopt.NotFoundError):
        allocator.stat("no.such.key")


def test_tags(allocator):
    mine = allocator.register_tag("embeddings")
    assert mine >= memopt.Tag.USER and allocator.register_tag("embeddings") == mine
    with (
        allocator.alloc(1000, tag="weights"),
        allocator.alloc(2000, tag=memopt.Tag.GRADIENTS),
        allocator.alloc(500, tag="embeddings"),
    ):
        tags = allocator.tags()
        assert tags["weights"].current_bytes == 1000 and tags["weights"].blocks == 1
        assert tags["gradients"].current_bytes == 2000
        assert tags["embeddings"].current_bytes == 500
    tags = allocator.tags()
    assert tags["weights"] == memopt.TagStats(0, 1000, 0)
    with pytest.raises(ValueError):
        allocator.register_tag("")
    with pytest.raises(ValueError):
        allocator.register_tag("x" * 100)


def test_snapshot(allocator):
    with allocator.alloc(1000, tag="weights") as small, allocator.alloc(3 * MIB) as large:
        segments = allocator.snapshot()
        blocks = {b["address"]: b for s in segments for b in s["blocks"]}
        assert blocks[small.pointer]["state"] == "active_allocated"
        assert blocks[small.pointer]["requested_size"] == 1000
        assert blocks[small.pointer]["tag"] == memopt.Tag.WEIGHTS
        assert blocks[large.pointer]["requested_size"] == 3 * MIB
        assert {s["segment_type"] for s in segments} == {"small", "large"}
        assert sum(s["requested_size"] for s in segments) == 1000 + 3 * MIB
        assert all(s["is_expandable"] for s in segments)
    states = {b["state"] for s in allocator.snapshot() for b in s["blocks"]}
    assert "active_allocated" not in states


def test_a_snapshot_has_a_segment_for_each_mapped_range(allocator):
    """As in PyTorch, where an expandable segment has holes."""
    blocks = [allocator.alloc(4 * MIB) for _ in range(5)]
    blocks[1].free()
    blocks[3].free()
    allocator.trim()
    segments = allocator.snapshot()
    assert [len(segment["blocks"]) for segment in segments] == [1, 1, 1]
    for segment, block in zip(segments, blocks[::2]):
        assert segment["address"] == block.pointer
        assert segment["total_size"] == segment["active_size"] == 4 * MIB
        assert (segment["device"], segment["segment_pool_id"]) == (0, (0, 0))
        assert segment["frames"] == [] and segment["blocks"][0]["frames"] == []
    assert 12 * MIB == allocator.stat("reserved_bytes.all.current")


def test_record_stream(device, allocator):
    gate = threading.Event()
    with device.stream() as stream:
        stream.call(gate.wait)
        buffer = allocator.alloc(4096)
        address = int(buffer)
        device.fill(buffer, 9, stream=stream)
        buffer.record_stream(stream)
        buffer.free()
        with allocator.alloc(4096) as other:
            assert int(other) != address, "the stream still works on the first"
        gate.set()
        stream.sync()


def test_release_stream(device, allocator):
    with device.stream() as stream:
        kept = allocator.alloc(4096, stream=stream)
        cached = allocator.alloc(4096, stream=int(stream))
        address = int(cached)
        cached.free()
        with allocator.alloc(4096) as other:
            assert int(other) != address, "the block is the stream's"
        device.release_stream(int(stream))
        assert {s["stream"] for s in allocator.snapshot()} == {0}
        with allocator.alloc(4096, stream=stream) as again:
            assert int(again) == address
        kept.free()
        with pytest.raises(memopt.InvalidArgumentError, match="default stream"):
            device.release_stream(None)


def test_out_of_memory_says_what_there_is(device):
    reports = []
    allocator = memopt.Allocator(device, on_oom=lambda asked, free, report: reports.append((asked, report)))
    with allocator, allocator.alloc("40MiB", tag="weights"):
        with pytest.raises(memopt.OutOfMemoryError) as caught:
            allocator.alloc("1GiB", tag="activations")
        error = caught.value
        assert isinstance(error, MemoryError)
        assert error.status is memopt.Status.OUT_OF_DEVICE_MEMORY
        assert "1.00 GiB" in error.message and "weights" in error.message
        assert reports == [(1 << 30, error.message)]
        with allocator.alloc("1MiB"):  # and it works on
            pass


def test_range_observer(device):
    ranges, last = set(), 0

    def follow(event):
        nonlocal last
        assert event.generation > last
        last = event.generation
        pages = set(range(event.address, event.address + event.bytes, 2 * MIB))
        assert pages.isdisjoint(ranges) if event.mapped else pages <= ranges
        ranges.symmetric_difference_update(pages)

    def refuse(event):
        if event.mapped and event.bytes > 16 * MIB:
            raise KeyError("too large")

    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        early = allocator.alloc("3MiB")
        number = allocator.add_range_observer(follow)
        assert {early.pointer, early.pointer + 2 * MIB} <= ranges
        with allocator.pool("other") as pool, pool.alloc("7MiB"):
            assert len(ranges) * 2 * MIB == device.memory_info().used
        assert len(ranges) == 2
        allocator.remove_range_observer(number)
        with pytest.raises(memopt.NotFoundError):
            allocator.remove_range_observer(number)
        allocator.add_range_observer(refuse)
        before = device.memory_info().used
        with pytest.raises(KeyError):
            allocator.alloc("40MiB")
        assert device.memory_info().used == before
        with pytest.raises(ZeroDivisionError):  # an observer that refuses what is there
            allocator.add_range_observer(lambda event: 1 / 0)
        early.free()


def test_pressure(device):
    cache, asked = [], []

    def give_back(needed):
        freed = sum(buffer.nbytes for buffer in cache)
        asked.append(needed)
        cache.clear()  # frees the buffers, inside the callback
        return freed

    with memopt.Allocator(device, on_pressure=give_back) as allocator:
        cache.append(allocator.alloc("40MiB"))
        with allocator.alloc("30MiB"):
            assert not cache and asked[-1] >= 30 * MIB


def test_an_exception_in_a_callback_comes_out(device, monkeypatch):
    class Odd(Exception):
        pass

    def fail(needed):
        raise Odd(needed)

    allocator = memopt.Allocator(device, on_pressure=fail)
    with allocator:
        with pytest.raises(Odd):
            allocator.alloc("1GiB")
    # Where the call goes well all the same, it is told, not raised.
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: told.append(raised.exc_value))
    with memopt.Allocator(device, on_pressure=fail) as allocator:
        with allocator.alloc("40MiB"):
            told.clear()
            with pytest.raises(Odd):
                allocator.alloc("30MiB")
        with allocator.alloc("1MiB"):
            pass
    assert all(type(error) is Odd for error in told)


def test_close_with_live_blocks(device):
    allocator = memopt.Allocator(device)
    buffer = allocator.alloc(100, tag="weights")
    with pytest.raises(memopt.BusyError) as caught:
        allocator.close()
    assert "weights" in str(caught.value)
    view = buffer.as_memoryview()
    with pytest.raises(BufferError):
        allocator.close(force=True)
    del view
    allocator.close(force=True)
    assert buffer.freed and allocator.closed
    with pytest.raises(memopt.ClosedError):
        buffer.pointer
    with pytest.raises(memopt.ClosedError):
        allocator.alloc(1)
    del buffer
    gc.collect()


def test_an_exception_in_a_with_block_is_not_hidden(device):
    with pytest.raises(KeyError):
        with memopt.Allocator(device) as allocator:
            buffer = allocator.alloc(100)
            view = buffer.as_memoryview()
            raise KeyError("mine")
    del view, buffer
    allocator.close(force=True)


# --- pools ---


def test_pools(device):
    """(What members of a family do is proved in C.)"""
    with memopt.Allocator(device, "expandable_segments:True", limit="32MiB") as allocator:
        number = allocator.register_tag("kv cache")
        pool = allocator.pool("cache", limit="24MiB", retain=True, config="")
        assert isinstance(pool, memopt.Pool) and pool.name == "cache" and pool.parent is allocator
        assert pool.device is device and pool.tag("kv cache") == number
        with pytest.raises(memopt.OutOfMemoryError, match='pool "cache"'):
            pool.alloc("25MiB")
        pool.set_limit(0)
        pool.alloc("25MiB", tag="kv cache").free()
        with pytest.raises(memopt.OutOfMemoryError):
            allocator.alloc("20MiB")  # the pool retains its own
        with pool.alloc("8MiB") as block:
            for call, error in ((pool.close, memopt.BusyError), (allocator.close, memopt.BusyError)):
                with pytest.raises(error):
                    call()
            with pytest.raises(ValueError):
                allocator.free(block)
        pool.close()


def test_a_forgotten_pool_ends_before_its_parent(device):
    used = device.memory_info().used
    allocator = memopt.Allocator(device)
    pool = allocator.pool()
    block = pool.alloc("3MiB")
    del allocator  # the pool keeps it
    gc.collect()
    assert pool.alloc("1MiB").nbytes == MIB
    del pool, block
    gc.collect()
    assert device.memory_info().used == used


# --- pausing ---


@pytest.mark.parametrize("keep", [True, False])
def test_a_paused_pool(device, keep):
    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        with allocator.pool("generator") as pool, pool.alloc("3MiB") as block:
            device.fill(block, 7)
            held = pool.stat("reserved_bytes.all.current")
            assert not pool.paused and pool.pause(keep) == held
            assert pool.paused and device.memory_info().used == 0
            assert (device.memory_info().pinned > 0) == keep
            with pytest.raises(memopt.BusyError, match='"generator" is paused'):
                pool.alloc(10)
            for call in (pool.pause, pool.close):
                with pytest.raises(memopt.BusyError):
                    call()
            pool.resume()
            assert not pool.paused and device.memory_info().pinned == 0
            with pytest.raises(memopt.BusyError):
                pool.resume()
            with block.as_memoryview() as view:
                assert not keep or bytes(view) == b"\x07" * block.nbytes


def test_paused_tags(device, tmp_path):
    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        allocator.register_tag("kv cache")
        weights = allocator.alloc("5MiB", tag="weights")
        cache = allocator.alloc("9MiB", tag="kv cache")
        device.fill(weights, 1)
        dropped = allocator.pause(False, tags=["kv cache"])
        assert dropped > 7 * MIB and dropped.kept == 0 and dropped.shared + dropped >= 9 * MIB
        kept = allocator.pause(tags="weights", file=tmp_path)
        assert kept.kept == 5 * MIB or kept.shared > 0
        assert allocator.paused_tags == {"weights", "kv cache"} and not allocator.paused
        with pytest.raises(memopt.BusyError, match="tag weights"):
            allocator.alloc(512, tag="weights")
        with pytest.raises(memopt.BusyError):
            weights.as_memoryview()
        allocator.resume(tags=["weights"])
        assert allocator.paused_tags == {"kv cache"}
        with weights.as_memoryview() as view:
            assert bytes(view) == b"\x01" * (5 * MIB)
        allocator.resume()
        assert allocator.paused_tags == set()
        for block in (weights, cache):
            block.free()


def test_pauses_that_cannot_be(device, tmp_path):
    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        with allocator.alloc("3MiB", tag="weights"):
            with pytest.raises(memopt.StorageError):
                allocator.pause(tags=["weights"], file=tmp_path / "no" / "folder")
            with pytest.raises(ValueError, match="empty"):
                allocator.pause(tags=[])
            with pytest.raises(ValueError, match="not registered"):
                allocator.pause(tags=["mine"])
            with pytest.raises(ValueError, match="discards"):
                allocator.pause(False, file=tmp_path)
            with pytest.raises(memopt.BusyError):
                allocator.resume(tags=["weights"])
            assert allocator.paused_tags == set()
    with memopt.Allocator(device) as classic:
        with pytest.raises(memopt.UnsupportedError):
            classic.pause()


def test_views_keep_a_pool_from_pausing(device):
    with memopt.Allocator(device, "expandable_segments:True") as allocator:
        with allocator.alloc(1000) as block:
            with block.as_memoryview():
                with pytest.raises(BufferError, match="cannot be paused"):
                    allocator.pause()
            assert not allocator.paused
            allocator.pause()
            for view in (block.as_memoryview, block.tensor().__dlpack__):
                with pytest.raises(memopt.BusyError):
                    view()
            allocator.resume()
            block.as_memoryview().release()


def test_memory_from_outside(device):
    with memopt.Allocator(device, limit="8MiB") as allocator:
        tag = allocator.register_tag("blas")
        allocator.set_outside(tag, "6MiB")
        assert allocator.tags()["blas"].outside_bytes == 6 << 20
        with pytest.raises(memopt.OutOfMemoryError, match="counted from outside: blas 6.00 MiB"):
            allocator.alloc(4 << 20)
        allocator.set_outside(tag, 0)
        allocator.alloc(4 << 20).free()
