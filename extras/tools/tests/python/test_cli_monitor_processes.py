"""`memopt monitor`: names of processes, and leaks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from cli_support import start
from memopt.cli.monitor.trends import Watch
from monitor_support import GIB, fake, sampled_once

NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\x1b[2Jx\\ny", 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_names_cannot_steer_a_terminal():
    process = subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    try:
        (device,) = sampled_once("--device", "cpu")["devices"]
    finally:
        process.communicate("")
    (one,) = [one for one in device["processes"] if one["pid"] == process.pid]
    assert one["name"] in ("?[2Jx?y", "?[2Jx")


# --- leaks ----------------------------------------------------------------------------------------


def test_a_creeping_floor_is_told():
    """Over sawteeth that are far greater than the leak."""
    watch = Watch(interval=2.0)
    for number in range(1, 200):
        saw = (number * 37 % 10) * (300 << 20)
        sample = watch.add(fake(number, [6 * GIB + saw + number * (1 << 20), saw], pids=[7, 8]))
    (warning,) = sample["warnings"]
    assert (warning["cause"], warning["device"], warning["pid"]) == ("leak", "cuda:0", 7)
    assert "train (7) on cuda:0: its floor creeps up by 30.00 MiB a minute" in warning["message"]
    assert "last for" in warning["message"]
    sample = watch.add(fake(200, [5], pids=[8]))
    assert sample["warnings"] == []  # its process has ended


def test_noise_is_no_leak_and_devices_without_bytes_are_watched_as_a_whole():
    watch = Watch(interval=1.0)
    for number in range(1, 1000):
        sample = watch.add(fake(number, [6 * GIB + number * 7919 % 1000 * (1 << 20)], pids=[7]))
    assert sample["warnings"] == []
    watch = Watch(interval=1.0)
    for number in range(1, 200):
        sample = watch.add(_untold(number))
    (warning,) = sample["warnings"]
    assert warning["cause"] == "leak" and warning["pid"] is None


def _untold(number):
    sample = fake(number, [6 * GIB + number * (1 << 20)], pids=[7])
    sample["devices"][0]["processes"][0]["used"] = None
    return sample


def test_ended_processes_do_not_pile_up():
    watch = Watch(interval=1.0)
    for number in range(1, 500):
        watch.add(fake(number, [GIB], pids=[number]))
    assert len(watch.courses) < 70


def test_a_number_that_another_process_has_got():
    """What the one before used is not the new one's peak."""
    watch = Watch(interval=1.0)
    watch.add(fake(1, [6 * GIB], pids=[7]))
    sample = fake(2, [GIB], pids=[7])
    sample["devices"][0]["processes"][0]["name"] = "another"
    (process,) = watch.add(sample)["devices"][0]["processes"]
    assert process["peak"] == GIB


@pytest.mark.parametrize(
    "change, causes",
    [
        ({}, ["under-use"]),
        ({"backend": "cpu"}, []),
        ({"processes": []}, []),  # nobody uses it: that is no waste
        ({"processes": [], "utilization": 38.0}, ["under-use"]),
    ],
    ids=["a GPU", "the CPU", "idle", "processes that are not told"],
)
def test_under_use_is_told_until_it_is_over(change, causes):
    watch = Watch(interval=1.0)
    for number in range(1, 102):
        sample = fake(number, [2 * GIB], pids=[7])
        sample["devices"][0].update(change)
        watch.add(sample)
    assert [one["cause"] for one in sample["warnings"]] == causes
    if causes:
        (warning,) = sample["warnings"]
        assert warning["device"] == "cuda:0"
        assert "at most 20 % of its 10.00 GiB were used in" in warning["message"]
    assert watch.add(fake(102, [6 * GIB], pids=[7]))["warnings"] == []


#: Keeps more whenever it is told to, so that it leaks as fast as it is watched.
LEAKING = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * (1 << 18))
"""


def test_a_leak_of_a_real_process():
    leaking = subprocess.Popen([sys.executable, "-c", LEAKING], stdin=subprocess.PIPE, text=True)
    watching = start("monitor", "--json", "--interval", "0.01", "--device", "cpu", "--count", "1000")
    found = []
    try:
        for line in watching.stdout:
            leaking.stdin.write("more\n")
            leaking.stdin.flush()
            found = [w for w in json.loads(line)["warnings"] if w["pid"] == leaking.pid]
            if found:
                break
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate()
        leaking.communicate()
    assert watching.returncode == 0
    assert found[0]["cause"] == "leak" and "creeps up" in found[0]["message"]
