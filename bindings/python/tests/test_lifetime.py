"""Ends in any order: by close, by collection, in cycles, and at the interpreter's exit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import pytest

import memopt

PACKAGE = os.path.dirname(os.path.dirname(memopt.__file__))


class World:
    """One of everything, tied together."""

    def __init__(self):
        self.device = memopt.Device("cpu", capacity="32MiB", threads=1)
        self.allocator = memopt.Allocator(self.device)
        self.stream = self.device.stream()
        self.event = self.device.event()
        self.pinned = self.device.pinned(4096)
        self.buffer = self.allocator.alloc(4096, stream=self.stream)
        self.scaler = memopt.Scaler(self.device)
        self.offloader = memopt.Offloader(self.allocator)
        self.ticket = self.offloader.pack(self.allocator.alloc(4096))
        self.region = memopt.Region(self.allocator, lambda r, w, s: r.alloc(10) and None)
        self.region.forward()
        self.region.recompute()
        self.optimizer = memopt.AdamW8bit(self.allocator, [self.allocator.alloc(64).tensor("f32")])


NAMES = """device allocator stream event pinned buffer scaler offloader ticket region optimizer""".split()


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], NAMES[::2] + NAMES[1::2]])
def test_forgotten_in_any_order(order, recwarn):
    world = World()
    handle = world.device._handle
    for name in order:
        delattr(world, name)
        gc.collect()
    assert handle.closed, "the device ends with the last object made from it"


def test_forgotten_as_a_cycle():
    told = []
    hook, sys.unraisablehook = sys.unraisablehook, told.append
    try:
        world = World()
        world.device_handle = handle = world.device._handle
        world.itself = world
        del world
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert handle.closed and not told


def test_everything_raises_after_close():
    world = World()
    ends = "ticket optimizer offloader region scaler buffer pinned event stream allocator device"
    for name in ends.split():
        thing = getattr(world, name)
        if name == "ticket":
            thing.release()
        elif name in ("buffer", "pinned"):
            thing.free()
        else:
            thing.close()
            thing.close()
            assert thing.closed
    uses = [
        world.device.stream,
        world.allocator.stats,
        lambda: world.allocator.alloc(1),
        world.stream.query,
        world.event.query,
        lambda: world.pinned.pointer,
        lambda: world.buffer.pointer,
        world.scaler.get_scale,
        world.offloader.stats,
        world.ticket.unpack,
        world.region.forward,
        world.optimizer.step,
    ]
    for use in uses:
        with pytest.raises(memopt.ClosedError):
            use()


def test_parents_refuse_to_close_before_their_children():
    with memopt.Device("cpu", capacity="8MiB") as device:
        with memopt.Allocator(device) as allocator:
            with memopt.Region(allocator, lambda *_: None):
                with pytest.raises(memopt.BusyError) as caught:
                    allocator.close(force=True)
                assert "region" in str(caught.value)
            with pytest.raises(memopt.BusyError) as caught:
                device.close()
            assert "allocator" in str(caught.value)


EXITS = {
    "nothing closed": "world = World()",
    "in a cycle": "world = World(); world.itself = world",
    "held by a module that is torn down late": "world = World(); sys.modules['late'] = world",
    "a view in use": "world = World(); view = world.buffer.as_memoryview()",
    "a capsule never taken": "world = World(); capsule = world.buffer.__dlpack__()",
    "work pending": (
        "world = World()\n"
        "world.stream.call(lambda: time.sleep(0.2))\n"
        "world.device.fill(world.buffer, 1, stream=world.stream)"
    ),
    "a host call that comes late": "world = World(); world.stream.call(lambda: time.sleep(0.2))",
    "a log receiver": "memopt.set_log(lambda level, text: None, 'debug'); world = World()",
    "an exception on its way": "world = World(); raise SystemExit(0)",
    "a daemon thread at work": (
        "world = World()\n"
        "def work():\n"
        "    while True: world.allocator.alloc(100).free()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.05)"
    ),
    "an array of NumPy": ("import numpy; world = World(); array = numpy.from_dlpack(world.buffer)"),
    "a tensor of torch": "import torch; world = World(); tensor = torch.from_dlpack(world.buffer)",
}


@pytest.mark.parametrize("what", sorted(EXITS))
def test_exit(what, tmp_path):
    code = EXITS[what]
    for module in ("numpy", "torch"):
        if "import " + module in code:
            pytest.importorskip(module)
    script = tmp_path / "leave.py"
    with open(__file__, encoding="utf-8") as source:
        world = source.read().partition("class World:")[2].partition("\nNAMES")[0]
    script.write_text("import sys, threading, time, memopt\nclass World:" + world + "\n" + code + "\n")
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script)],
        env=dict(os.environ, PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_handles_do_not_pile_up():
    for _ in range(3):
        with memopt.Device("cpu", capacity="8MiB") as device:
            for _ in range(50):
                device.event()
                device.stream()
            gc.collect()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        world = World()
        del world
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_a_failed_construction_leaves_nothing():
    device = memopt.Device("cpu", capacity="8MiB")
    reference = weakref.ref(device)
    for make in (lambda: memopt.Allocator(device, "nonsense:1"), lambda: memopt.Scaler(device, growth_factor=0.5)):
        with pytest.raises(ValueError):
            make()
    device.close()
    del device, make
    gc.collect()
    assert reference() is None


def test_python_s_own_hook_is_not_needed(capsys):
    """Its argument is of a type that only Python makes, so the report is printed instead."""
    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    try:
        memopt.errors.report_unraisable(ValueError("what went wrong"), "in a test")
    finally:
        sys.unraisablehook = hook
    text = capsys.readouterr().err
    assert "Exception ignored in a test:" in text and "ValueError: what went wrong" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_leaves_its_parent_s_objects_alone():
    """The workers of a stream are not there to be waited for."""
    import signal

    world = World()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)  # ends a child that waits
            sys.unraisablehook = lambda _what: os._exit(3)  # nothing fails unseen
            del world
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    world.ticket.release()
    world.offloader.close()
