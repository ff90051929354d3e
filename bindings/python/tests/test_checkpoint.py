"""Checkpoint regions with Python callbacks."""

from __future__ import annotations

import array
import gc
import random
import weakref

import pytest

import memopt
from memopt import Pass


def square(region, which, stream):
    """The smallest segment: leases one value and computes it."""
    lease = region.alloc(64)
    lease.tensor("f32").as_memoryview()[0] = 3.0 * 3.0
    region.check("square", lease.tensor("f32"))


def test_forward_recompute_release(allocator):
    passes = []

    def run(region, which, stream):
        passes.append(which)
        square(region, which, stream)

    with memopt.Region(allocator, run, name="square") as region:
        region.forward()
        assert region.leases == () and region.stats()["dropped_bytes"] >= 64
        assert allocator.stat("allocated_bytes.all.current") == 0
        region.recompute()
        (lease,) = region.leases
        assert lease.tensor("f32").as_memoryview()[0] == 9.0
        with pytest.raises(memopt.BusyError):
            region.recompute()
        region.release()
        with pytest.raises(memopt.ClosedError):
            lease.pointer
        assert passes == [Pass.FORWARD, Pass.RECOMPUTE]
        assert region.stats()["forwards"] == region.stats()["recomputes"] == 1
        region.release()


def test_keep_mode(allocator):
    with memopt.Region(allocator, square, mode="keep") as region:
        region.forward()
        (lease,) = region.leases
        assert lease.tensor("f32").as_memoryview()[0] == 9.0
        region.recompute()
        assert region.leases == (lease,) and region.stats()["recomputes"] == 0
        region.release()
        assert lease.freed


@pytest.mark.parametrize("check", ["hash", "exact"])
def test_a_difference_is_found_and_named(allocator, check):
    values = iter([1.0, 1.0, 2.0])

    def run(region, which, stream):
        lease = region.alloc(4096)
        numbers = lease.tensor("f32")
        allocator.device.fill(lease, 0)
        numbers.as_memoryview()[5] = next(values)
        region.check("activations", numbers)

    with memopt.Region(allocator, run, name="layer 3", check=check) as region:
        region.forward()
        region.recompute()
        region.release()
        with pytest.raises(memopt.MismatchError) as caught:
            region.recompute()
        assert "layer 3" in str(caught.value) and "activations" in str(caught.value)
        assert region.leases == ()
        assert region.stats()["checked_bytes"] > 0


class Odd(Exception):
    """An exception that no one else raises."""


@pytest.mark.parametrize("error", [Odd("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_comes_out_as_the_same_object(allocator, error):
    def run(region, which, stream):
        region.alloc(100)
        raise error

    with memopt.Region(allocator, run) as region:
        with pytest.raises(type(error)) as caught:
            region.forward()
        assert caught.value is error
        assert caught.traceback[-1].name == "run"
        assert allocator.stat("allocated_bytes.all.current") == 0
        with pytest.raises(memopt.InvalidArgumentError):
            region.recompute()  # as if never run


def test_a_status_passes_through(allocator):
    with memopt.Region(allocator, lambda r, w, s: memopt.Status.USER + 41) as region:
        with pytest.raises(memopt.MemoptError) as caught:
            region.forward()
        assert caught.value.status == memopt.Status.USER + 41
        assert caught.value.name == "USER" and "run returned status 65577" in str(caught.value)


def test_an_error_of_the_library_inside_keeps_its_status_and_text(allocator):
    with memopt.Region(allocator, lambda r, w, s: r.alloc("1TiB") and None) as region:
        with pytest.raises(memopt.OutOfMemoryError) as caught:
            region.forward()
        assert caught.value.status is memopt.Status.OUT_OF_DEVICE_MEMORY
        assert "1.00 TiB" in str(caught.value)


def random_state(generator):
    """Python's generator as a region sees it: its state in a fixed number of bytes."""
    import pickle

    size = 4096

    def save():
        return pickle.dumps(generator.getstate(), 4).ljust(size, b"\0")

    return memopt.RandomState(size, save, lambda data: generator.setstate(pickle.loads(data)))


def test_random_state(allocator):
    generator, drawn = random.Random(1), []

    def run(region, which, stream):
        drawn.append(generator.random())
        lease = region.alloc(8)
        lease.tensor("f64").as_memoryview()[0] = drawn[-1]
        region.check("drawn", lease.tensor("f64"))

    with memopt.Region(allocator, run, check="exact", random=random_state(generator)) as region:
        region.forward()
        between = generator.getstate()
        region.recompute()
        region.release()
        assert drawn[0] == drawn[1]
        assert generator.getstate() == between, "the caller's own state is put back"


def test_failing_random_callbacks(allocator, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda raised: None)  # restore may be tried again

    def fail(*_):
        raise Odd("state")

    short = memopt.RandomState(16, lambda: b"short", lambda data: None)
    with memopt.Region(allocator, square, random=short) as region:
        with pytest.raises(ValueError) as caught:
            region.forward()
        assert "5 bytes" in str(caught.value)
    state = memopt.RandomState(4, lambda: b"1234", fail)
    with memopt.Region(allocator, square, random=state) as region:
        region.forward()
        with pytest.raises(Odd):
            region.recompute()


def test_the_first_exception_wins(allocator, monkeypatch):
    """run raises, and the restore that follows raises too."""
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: told.append(raised.exc_value))

    def run(region, which, stream):
        if which == Pass.RECOMPUTE:
            raise Odd("run")

    restores = []

    def restore(data):
        restores.append(data)
        if len(restores) > 1:
            raise Odd("restore")

    state = memopt.RandomState(4, lambda: b"1234", restore)
    with memopt.Region(allocator, run, random=state) as region:
        region.forward()
        with pytest.raises(Odd) as caught:
            region.recompute()
    assert caught.value.args == ("run",)
    assert all(error.args == ("restore",) for error in told)


def test_views_of_leases_may_not_outlive_the_run(allocator):
    kept = []

    def run(region, which, stream):
        kept.append(region.alloc(64).as_memoryview())

    with memopt.Region(allocator, run, name="greedy") as region:
        with pytest.raises(BufferError) as caught:
            region.forward()
        assert "greedy" in str(caught.value)
        kept.clear()
        del caught
        gc.collect()


def test_misuse(allocator):
    with memopt.Region(allocator, square) as region:
        with pytest.raises(memopt.InvalidArgumentError):
            region.alloc(10)  # no callback is running
        with pytest.raises(memopt.InvalidArgumentError):
            region.check("x", array.array("f", [1]))
        with pytest.raises(memopt.InvalidArgumentError):
            region.recompute()
    with pytest.raises(memopt.ClosedError):
        region.forward()
    with pytest.raises(TypeError):
        memopt.Region(allocator, None)
    with pytest.raises(ValueError):
        memopt.Region(allocator, square, mode="sometimes")
    sizes = iter([100, 200])
    with memopt.Region(allocator, lambda r, w, s: r.alloc(next(sizes)) and None) as region:
        region.forward()
        with pytest.raises(memopt.MismatchError):
            region.recompute()


def test_a_region_cannot_be_closed_from_its_callback(allocator):
    def run(region, which, stream):
        region.close()

    with memopt.Region(allocator, run) as region:
        with pytest.raises(memopt.BusyError):
            region.forward()


def test_the_stream_is_handed_on(device, allocator):
    seen = []
    with device.stream() as stream:
        with memopt.Region(allocator, lambda r, w, s: seen.append(s)) as region:
            region.forward(stream)
            region.recompute(None)
            stream.sync()
    assert seen == [stream, None]


def test_a_region_can_be_collected(allocator):
    """Its callback closes over it: a cycle that Python must be able to see."""

    class Layer:
        def __init__(self):
            self.region = memopt.Region(allocator, self.run)

        def run(self, region, which, stream):
            square(self.region, which, stream)

    layer = Layer()
    layer.region.forward()
    layer.region.recompute()
    assert allocator.stat("allocated_bytes.all.current") > 0
    forgotten = weakref.ref(layer)
    del layer
    gc.collect()
    assert forgotten() is None
    assert allocator.stat("allocated_bytes.all.current") == 0
