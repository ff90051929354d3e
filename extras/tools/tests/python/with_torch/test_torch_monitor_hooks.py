"""MemoryMonitor: hooks, writers, arguments, and a simulated GPU."""

from __future__ import annotations

import json
import os

import pytest
import torch

import memopt.torch as mt
from on_threads import on_threads
from simulated import run


def jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# --- hooks, writers, arguments --------------------------------------------------------------------


def test_attach(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with mt.monitor.MemoryMonitor(device="cpu") as monitor:
        handle = monitor.attach(optimizer)
        for _ in range(3):
            weight.grad = torch.ones(3)
            optimizer.step()
        assert len(monitor.records) == 3
        handle.remove()
        optimizer.step()
        assert len(monitor.records) == 3
        monitor.attach(optimizer)
        optimizer.step()
    optimizer.step()  # closed: the hook is gone
    assert len(monitor.records) == 4
    with pytest.raises(TypeError, match="attach"):
        monitor.attach(object())


def test_a_writer(tmp_path):
    class Writer:
        scalars = []

        def add_scalar(self, tag, value, step):
            self.scalars.append((tag, value, step))

    with mt.monitor.MemoryMonitor(device="cpu", tensorboard=Writer()) as monitor:
        monitor.step()
        record = monitor.step()
    assert ("memory/rss", record["rss"], 2) in Writer.scalars
    assert not any(tag == "memory/allocated" for tag, _, _ in Writer.scalars)


def test_only_a_writer_of_its_own_is_closed(monkeypatch, tmp_path):
    class Writer:
        closed = 0

        def __init__(self, *unused, **options):
            pass

        def add_scalar(self, *unused):
            pass

        def close(self):
            self.closed += 1

    given = Writer()
    mt.monitor.MemoryMonitor(device="cpu", tensorboard=given).close()
    assert given.closed == 0
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", Writer)
    monitor = mt.monitor.MemoryMonitor(device="cpu", tensorboard=tmp_path)
    own = monitor._writer
    monitor.close()
    monitor.close()
    assert own.closed == 1


def test_threads(tmp_path):
    path = tmp_path / "log.jsonl"
    with mt.monitor.MemoryMonitor(path, device="cpu") as monitor:
        on_threads(lambda _: [monitor.step() for _ in range(50)], range(4))
    assert sorted(record["step"] for record in jsonl(path)) == list(range(1, 201))


@pytest.mark.parametrize(
    "options, name",
    [
        ({"interval": 0}, "interval"),
        ({"interval": 1.5}, "interval"),
        ({"interval": True}, "interval"),
        ({"underuse": 2}, "underuse"),
        ({"leak": "many"}, "many"),
        ({"device": "meta"}, "meta"),
    ],
)
def test_wrong_arguments(options, name):
    with pytest.raises(ValueError, match=name):
        mt.monitor.MemoryMonitor(**options)


def test_no_file_is_left_open_by_a_refused_one(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path / "x.csv"
    path.write_text("a\n")
    for _ in range(3):
        with pytest.raises(ValueError):
            mt.monitor.MemoryMonitor(path, device="cpu")
    monitor = mt.monitor.MemoryMonitor(tmp_path / "y.csv", device="cpu")
    monitor.close()
    monitor.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- a GPU, simulated -----------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_gpu_records_on_the_simulated_driver(ours):
    run(
        """
        import memopt.torch.monitor

        allocator = mt.enable_allocator("") if %s else None
        monitor = mt.monitor.MemoryMonitor()
        kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        first, second = monitor.step(), monitor.step()
        assert first["device"] == "cuda:0" and first["allocated"] == 4 * MIB
        assert first["peak"] == 20 * MIB and second["peak"] == 4 * MIB
        assert first["reserved"] >= 20 * MIB
        assert first["device_total"] == 256 * MIB
        assert first["device_used"] == driver.memopt_sim_used(0) > 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(98):
                monitor.step()
        (warning,) = caught
        assert warning.category is mt.monitor.MemoryWarning and "256.00 MiB" in str(warning.message)
        assert list(monitor.warnings) == ["under-use"]
        """
        % ours,
        torch_too=True,
    )
