"""Monitor: the machine itself, and the simulated libraries in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cli_support import environment
from monitor_support import MONITORS, simulated
from test_interrupt import alarm, repeat  # noqa: F401

import memopt.tools


def test_this_machine():
    with memopt.tools.Monitor("cpu") as monitor:
        assert len(monitor) == 1 and monitor.backend == "cpu" and "cpu" in repr(monitor)
        reading = monitor.read()
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert reading.memory_total == pages
        assert reading.memory_used + reading.memory_free == pages
        assert reading.power is None and reading.uuid is None
        assert reading.denied == reading.failed == () and reading.problem == ""
        (own,) = [process for process in monitor.processes() if process.pid == os.getpid()]
        assert own.kinds == ("host",) and own.used_bytes > 1 << 20 and own.name
        sizes = [process.used_bytes for process in monitor.processes()]
        assert sizes == sorted(sizes, reverse=True)
        for index in (-1, 1):
            with pytest.raises(memopt.NotFoundError):
                monitor.read(index)
    with pytest.raises(memopt.ClosedError):
        monitor.read()
    monitor.close()  # harmless


def test_unknown_back_end():
    with pytest.raises(memopt.NotFoundError):
        memopt.tools.Monitor("abacus")
    with pytest.raises(memopt.NotFoundError):
        memopt.tools.Monitor.info("abacus")
    with pytest.raises(memopt.NotFoundError):
        memopt.backend_info("abacus")


def test_info_of_what_is_there_and_what_is_not():
    info = memopt.tools.Monitor.info("cpu")
    assert info.available and info.source == "proc" and info.device_count == 1
    info = memopt.tools.Monitor.info("cuda")
    if info.available:
        pytest.skip("this machine has NVML")
    assert info.status == memopt.Status.DRIVER_MISSING and "libnvidia-ml.so.1" in info.tried
    with pytest.raises(memopt.DeviceError) as caught:
        memopt.tools.Monitor("cuda")
    assert info.problem in str(caught.value)


PROGRAM = """
import json, sys, memopt.tools
with memopt.tools.Monitor(sys.argv[1]) as monitor:
    print(json.dumps([len(monitor), monitor.read(1)._asdict(),
                      [process._asdict() for process in monitor.processes(0)]]))
"""


@simulated
@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_simulated(backend):
    variables = environment(
        MONITORS,
        MEMOPT_SIM_PROCESSES="%d:64M:cg,4000001:?:c" % os.getpid(),
        MEMOPT_SIM_FAIL="nvmlDeviceGetPowerUsage:*=4,rsmi_dev_power_get:*=4",
    )
    words = [sys.executable, "-c", PROGRAM, backend]
    result = subprocess.run(words, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    count, reading, processes = json.loads(result.stdout)
    assert count == 2
    assert reading["name"] == "libmemopt simulated device"
    assert reading["memory_total"] == 1 << 30 and reading["memory_used"] == 272 << 20
    assert reading["memory_reserved"] == (32 << 20 if backend == "cuda" else None)
    assert reading["utilization"] == 38 and reading["temperature"] == 55
    assert reading["power_limit"] == 300 and reading["power"] is None
    assert reading["denied"] == ["power"] and reading["failed"] == []
    assert reading["driver_code"] == 4 and reading["problem"].startswith("power: ")
    own, other = processes
    assert own["pid"] == os.getpid() and own["used_bytes"] == 64 << 20 and own["name"]
    assert own["kinds"] == (["compute", "graphics"] if backend == "cuda" else ["compute"])
    assert other["used_bytes"] is None and other["name"] == ""


@pytest.mark.filterwarnings("error")
def test_no_signal_is_lost_while_processes_are_listed(alarm):
    with memopt.tools.Monitor("cpu") as monitor:
        repeat(monitor.processes, alarm)
