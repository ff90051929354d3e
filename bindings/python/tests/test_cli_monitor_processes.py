"""`memopt monitor`: processes, what they publish of our allocators, and leaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import memopt.tools
from cli_support import command, environment, start, wait_for
from memopt.cli.monitor import sampling
from memopt.cli.monitor.trends import Watch
from monitor_support import GIB, fake, sampled_once

# --- our allocators in other processes ------------------------------------------------------------

PUBLISHING = """
import sys, memopt.tools
device = memopt.Device("cpu", capacity="64MiB")
allocator = memopt.Allocator(device)
kept, dropped = allocator.alloc("6MiB"), allocator.alloc("20MiB")
dropped.free()
memopt.tools.publish(allocator)
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_our_allocator_caches(socket_folder):
    place = {"XDG_RUNTIME_DIR": str(socket_folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHING],
        env=environment(**place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    device = {}

    def answered():
        device.update(sampled_once("--device", "cpu", **place)["devices"][0])
        (ours,) = [one for one in device["processes"] if one["pid"] == process.pid]
        return ours if ours["cached"] is not None else None

    def printed(sign, *options):
        words = ("monitor", *options, "--device", "cpu", "--processes", "1000000")
        text = command(*words, **place).stdout
        return text if sign in text else None

    try:  # the monitor does not wait long for an answer, and a busy machine may take longer
        ours = wait_for(answered, "an answer")
        cached = memopt.format_size(ours["cached"])
        text = wait_for(lambda: printed(cached, "--once"), "a table")
        stream = wait_for(
            lambda: printed("and %s cached" % cached, "--count", "2", "--interval", "0.01"), "lines"
        )
    finally:
        process.communicate("")
    assert ours["allocated"] == 6 << 20 and ours["reserved_peak"] >= 26 << 20
    assert ours["cached"] == ours["reserved"] - (6 << 20) >= 20 << 20
    others = [one for one in device["processes"] if one["pid"] == os.getpid()]
    assert others[0]["cached"] is None
    (row,) = [line for line in text.splitlines() if " %d " % process.pid in line]
    assert row.split()[-4:] == ["6.00", "MiB", *cached.split()]
    assert "6.00 MiB allocated and %s cached" % cached in stream


NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\x1b[2Jx\\ny", 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_names_cannot_steer_a_terminal():
    process = subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    try:
        (device,) = sampled_once("--device", "cpu")["devices"]
    finally:
        process.communicate("")
    (one,) = [one for one in device["processes"] if one["pid"] == process.pid]
    assert one["name"] in ("?[2Jx?y", "?[2Jx")


def publishing(pid, *devices):
    allocators = [
        memopt.tools.PublishedAllocator(name, size, size, size * 2, size * 2, 0, 0)
        for name, size in devices
    ]
    return memopt.tools.Published(pid, "1.0.0", tuple(allocators))


def cached_on(places, one):
    """Bytes that are said to be cached on each device, for a process seen on `places`."""
    lists = {
        sampling.Target("cuda", number): sampling._Processes(
            [memopt.tools.Process(one.pid, "x", 1, ("compute",))] if number in places else [], None
        )
        for number in range(12)
    }
    found = {target: sampling._caches(target, lists, [one]) for target in lists}
    return {
        target.number: sum(allocator.cached for allocator in caches[one.pid])
        for target, caches in found.items()
        if caches
    }


def test_whose_allocator_is_whose():
    """A process numbers devices in its own way."""
    assert cached_on([2], publishing(7, ("cuda:0", 5))) == {2: 5}
    assert cached_on([2], publishing(7, ("cuda:0", 5), ("cuda:0", 6))) == {2: 11}
    assert cached_on([1, 3], publishing(7, ("cuda:0", 5), ("cuda:1", 6))) == {1: 5, 3: 6}
    assert cached_on([1, 3], publishing(7, ("cuda:0", 5))) == {}  # one of them: which?
    assert cached_on([1], publishing(7, ("cuda:0", 5), ("cuda:1", 6))) == {}
    assert cached_on([1], publishing(7, ("hip:0", 5), ("cpu:0", 6))) == {}
    assert cached_on([], publishing(7, ("cuda:0", 5))) == {}
    many = {number: number + 1 for number in range(12)}  # "cuda:10" comes behind "cuda:9"
    allocators = [("cuda:%d" % number, size) for number, size in many.items()]
    assert cached_on(list(many), publishing(7, *allocators)) == many


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
    watching = start(
        "monitor", "--json", "--interval", "0.01", "--device", "cpu", "--count", "1000"
    )
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
