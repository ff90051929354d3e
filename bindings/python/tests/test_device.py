"""Devices, streams, events, copies, fills and page-locked memory."""

from __future__ import annotations

import array
import gc
import logging
import sys
import threading
import weakref

import pytest

import memopt

MIB = 1 << 20


def test_properties_and_memory_info(device):
    properties = device.properties
    assert device.backend == properties.backend == "cpu"
    assert properties.total_memory == 64 * MIB and properties.granularity == 2 * MIB
    assert properties.virtual_memory is True and properties.threads == 2
    info = device.memory_info()
    assert info.total == info.free == 64 * MIB and info.used == 0
    assert memopt.Device.count("cpu") == 1


@pytest.mark.parametrize(
    "arguments, error",
    [
        (dict(name="cpux"), memopt.NotFoundError),
        (dict(capacity="1 byte of memory"), ValueError),
        (dict(capacity="1KiB"), ValueError),
        (dict(capacity=-1), ValueError),
        (dict(capacity="0"), ValueError),
        (dict(capacity=1.5), TypeError),
        (dict(granularity=5000), ValueError),
        (dict(stream_order="sideways"), ValueError),
        (dict(threads=-1), ValueError),
        (dict(threads=1 << 32), ValueError),
        (dict(threads="2"), TypeError),
        (dict(seed=1 << 64), ValueError),
        (dict(name="cpu\0"), ValueError),
    ],
)
def test_bad_options(arguments, error):
    with pytest.raises(error):
        memopt.Device(**arguments)


def test_copy_and_fill(device):
    source, destination = array.array("f", range(100)), array.array("f", bytes(400))
    device.copy(destination, source)
    assert destination == source
    device.fill(destination, 0xFF, nbytes=4)
    assert destination.tobytes()[:5] == b"\xff\xff\xff\xff" + source.tobytes()[4:5]
    device.copy(destination, source, nbytes=8)
    assert destination[:2] == source[:2]
    address, length = destination.buffer_info()
    device.fill(address, 0, nbytes=length * 4)
    assert destination == array.array("f", bytes(400))


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda d: d.copy(bytes(8), bytearray(8)), TypeError),  # writes to read-only memory
        (lambda d: d.copy(bytearray(8), bytes(4)), ValueError),
        (lambda d: d.copy(bytearray(8), bytes(8), nbytes=9), ValueError),
        (lambda d: d.copy(bytearray(8), "text"), TypeError),
        (lambda d: d.copy(0, bytes(8)), ValueError),  # NULL
        (lambda d: d.copy(1 << 20, 1 << 21), ValueError),  # two addresses and no size
        (lambda d: d.fill(bytearray(8), 256), ValueError),
        (lambda d: d.fill(bytearray(8), 0, nbytes=9), ValueError),
        (lambda d: d.fill(1 << 20, 0), ValueError),
        (lambda d: d.copy(bytearray(8), bytes(8), stream="s"), TypeError),
        (lambda d: d.copy(bytearray(8), bytes(8), stream=12345), ValueError),  # no such stream
        (lambda d: d.pinned(0), ValueError),
        (lambda d: d.register(b""), ValueError),
    ],
)
def test_bad_memory(device, call, error):
    with pytest.raises(error):
        call(device)


def test_streams_and_events(device):
    with device.stream() as one, device.stream() as two, device.event() as event:
        memory = bytearray(1 << 16)
        device.fill(memory, 7, stream=one)
        event.record(one)
        two.wait(event)
        copy = bytearray(1 << 16)
        device.copy(copy, memory, stream=two)
        two.sync()
        assert copy == b"\x07" * (1 << 16)
        assert event.query() and one.query() and two.query()
        event.sync()


def test_elapsed(device):
    with device.event(timing=True) as start, device.event(timing=True) as end:
        with pytest.raises(ValueError):
            start.elapsed(end)  # never recorded
        start.record()
        device.fill(bytearray(1 << 20), 1)
        end.record()
        device.sync()
        assert 0 <= start.elapsed(end) < 60
    with device.event() as start, device.event() as end:
        start.record(), end.record()
        with pytest.raises(ValueError):
            start.elapsed(end)  # made without timing


def test_host_calls_run_in_order_and_exceptions_are_told(device, monkeypatch):
    told, seen = [], []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: told.append(raised.exc_value))
    gate = threading.Event()
    with device.stream() as stream:
        stream.call(gate.wait)
        for number in range(5):
            stream.call(lambda number=number: seen.append(number))
        stream.call(lambda: 1 / 0)
        assert not stream.query() and not seen
        gate.set()
        stream.sync()
    assert seen == [0, 1, 2, 3, 4]
    assert len(told) == 1 and isinstance(told[0], ZeroDivisionError)
    device.call(lambda: seen.append("inline"))
    assert seen[-1] == "inline"


def test_memory_of_an_asynchronous_copy_is_kept(device):
    class Bytes(bytearray):
        pass

    gate = threading.Event()
    with device.stream() as stream:
        stream.call(gate.wait)
        destination = bytearray(4096)
        source = Bytes(b"x" * 4096)
        forgotten = weakref.ref(source)
        device.copy(destination, source, stream=stream)
        del source
        gc.collect()
        assert forgotten() is not None, "the copy has not run yet"
        gate.set()
        stream.sync()
        assert destination == b"x" * 4096
        gc.collect()
        assert forgotten() is None


def test_pinned_memory(device):
    with device.pinned("1MiB") as memory:
        assert device.memory_info().pinned >= MIB
        assert memory.pointer % 4096 == 0 and memory.nbytes == len(memory) == MIB
        view = memory.as_memoryview()
        view[:4] = b"abcd"
        with pytest.raises(BufferError):
            memory.free()
        del view
        assert bytes(memory.as_memoryview()[:4]) == b"abcd"
    assert device.memory_info().pinned == 0 and memory.freed
    memory.free()  # harmless
    with pytest.raises(memopt.ClosedError):
        memory.pointer
    with pytest.raises(ValueError):
        device.copy(bytearray(MIB), memory)
    memory = device.pinned(100)
    del memory  # forgotten, and so freed
    gc.collect()
    assert device.memory_info().pinned == 0


def test_registration(device):
    memory = bytearray(3 << 20)
    with device.register(memory):
        assert device.memory_info().registered >= len(memory)
        with pytest.raises(ValueError):
            device.register(memory)
        with pytest.raises(BufferError):
            memory.extend(b"x")  # it must stay where it is
    assert device.memory_info().registered == 0
    memory.extend(b"x")


def test_use_after_close():
    device = memopt.Device("cpu", capacity=4 * MIB)
    stream, event = device.stream(), device.event()
    with pytest.raises(memopt.BusyError) as caught:
        device.close()
    assert "event" in str(caught.value) and "stream" in str(caught.value)
    assert not device.closed
    stream.close(), event.close()
    device.close()
    device.close()  # harmless
    assert device.closed
    for use in (device.memory_info, device.sync, device.stream, stream.sync, event.record):
        with pytest.raises(memopt.ClosedError):
            use()
    with pytest.raises(ValueError):  # which a ClosedError is
        with device:
            pass


def test_adversarial_order_is_asynchronous():
    with memopt.Device("cpu", capacity=4 * MIB, stream_order="adversarial", seed=7) as device:
        memory = bytearray(64)
        device.fill(memory, 1)
        assert memory == bytes(64), "nothing runs before something waits"
        device.sync_stream()
        assert memory == b"\x01" * 64


def test_calls_release_the_interpreter(device):
    """While one thread waits in the library, another runs Python."""
    gate = threading.Event()
    with device.stream() as stream:
        stream.call(lambda: gate.wait(30))
        waiter = threading.Thread(target=stream.sync)
        waiter.start()
        gate.set()  # would never be reached with the interpreter held
        waiter.join(30)
        assert not waiter.is_alive()


def test_threads_of_an_open_device(monkeypatch):
    monkeypatch.setenv("MEMOPT_NUM_THREADS", "3")
    with memopt.Device() as device:
        assert device.properties.threads == 3
        for threads, expected in ((1, 1), (4, 4), (0, 3)):
            device.set_threads(threads)
            assert device.properties.threads == expected
        for wrong, error in ((1025, ValueError), (-1, ValueError), ("2", TypeError)):
            with pytest.raises(error):
                device.set_threads(wrong)
        assert device.properties.threads == 3


def test_log_lines(caplog):
    """To a function, or to a logger."""
    lines = []
    caplog.set_level(logging.DEBUG, "memopt")
    for receiver in (lambda level, text: lines.append((level, text)), logging.getLogger("memopt")):
        memopt.set_log(receiver, "debug")
        try:
            memopt.Device("cpu", capacity=4 * MIB).close()
        finally:
            memopt.set_log(None)
    assert lines and all(isinstance(level, memopt.LogLevel) for level, _ in lines)
    assert caplog.records and {record.name for record in caplog.records} == {"memopt"}
    with pytest.raises(ValueError):
        memopt.set_log(print, "loud")


def test_nothing_is_kept_or_asked_while_torch_captures(monkeypatch):
    """Asking about an event would end the capture of a graph."""
    from types import SimpleNamespace

    capturing = True
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: capturing)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with memopt.Device("cpu", capacity=16 * MIB) as device, device.stream() as stream:
        source, into = array.array("f", [1.0]), array.array("f", [0.0])
        gate = threading.Event()
        device.call(gate.wait, stream)
        device.copy(into, source, stream=stream)
        assert len(device._pending) == 0
        capturing = False
        device.copy(into, source, stream=stream)
        assert len(device._pending) == 1
        gate.set()
        stream.sync()
